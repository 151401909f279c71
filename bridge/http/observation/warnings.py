"""GET /api/warnings: what needs a person now, or did within the last hour.

kind            the broker says
`not_ready`     why it does not serve all requests
`set_aside`     stored records were set aside, and nobody has acknowledged them
`damaged`       the background check has found damage in sealed data
`lost`          delayed messages were lost with damaged parts of sorted tables
`faults`        bugs were contained since the start
`disk`          more than DISK_PART of the disk is in use
`overdue`       a delayed message has been due for more than LATE_MS, and is not delivered
`late`          delayed messages were delivered more than LATE_MS after their time
`slow_turns`    turns of the event loop took 100 ms and more
`dead_letters`  messages became dead letters
`given_up`      half messages were given up without a verdict
`hanging`       Kafka transactions are open for HANGING_MS and longer
`paused`        deliveries of delayed messages to a topic are paused
"""

from collections.abc import Iterator
from typing import Final

from aiohttp import web

from duolog.bridge.http.answers import answer
from duolog.bridge.http.context import HttpContext
from duolog.bridge.http.requests import check_query

DISK_PART: Final = 0.9
LATE_MS: Final = 1000
HANGING_MS: Final = 600_000
NAMES_MAX: Final = 5  # The number of names in one text.


async def get_warnings(context: HttpContext, request: web.Request) -> web.Response:
    check_query(request, set())
    return answer([{"kind": kind, "text": text} for kind, text in warnings(context)])


def warnings(context: HttpContext) -> Iterator[tuple[str, str]]:
    """Yield the kind and the text of each warning."""
    monitoring = context.monitoring
    if reason := monitoring.not_ready_reason():
        yield "not_ready", f"the broker does not serve all requests: {reason}"
    if count := sum(not each.is_acknowledged for each in monitoring.poison_records.all()):
        yield "set_aside", f"{count} stored records could not be processed and were set aside"
    if count := monitoring.sealed_data.damaged_places:
        yield "damaged", f"{count} places of sealed data are damaged; duolog log verify names them"
    if count := context.delayed.delays.timers.lost:
        yield "lost", f"{count} delayed messages were lost with damaged parts of tables"
    if count := sum(monitoring.faults.counts.values()):
        yield "faults", f"{count} bugs were contained since the start; the log describes them"
    used_bytes, total_bytes = context.store.write_state.usage
    if total_bytes and used_bytes > DISK_PART * total_bytes:
        yield "disk", f"{100 * used_bytes // total_bytes} % of the disk is in use"
    if (overdue_ms := context.delayed.delays.timers.overdue_ms(context.clock.now_ms())) > LATE_MS:
        yield "overdue", f"a delayed message has been due for {overdue_ms / 1000:g} s, and is not delivered"
    yield from _of_the_last_hour(context)
    yield from _of_state(context)


def _of_the_last_hour(context: HttpContext) -> Iterator[tuple[str, str]]:
    intervals = context.monitoring.history.intervals()
    worst_ms = max((each.late_p99_ms or 0 for each in intervals), default=0)
    if worst_ms > LATE_MS:
        yield "late", f"delayed messages were delivered up to {worst_ms / 1000:g} s late within the last hour"
    for kind, count, text in (
        ("slow_turns", sum(each.long_turns for each in intervals), "turns of the event loop took 100 ms and more"),
        ("dead_letters", sum(each.dead_letters for each in intervals), "messages became dead letters"),
        ("given_up", sum(each.given_up for each in intervals), "half messages were given up without a verdict"),
    ):
        if count:
            yield kind, f"{count} {text} within the last hour"


def _of_state(context: HttpContext) -> Iterator[tuple[str, str]]:
    before_ms = context.clock.now_ms() - HANGING_MS
    hanging = [each.name for each in context.transactions.kafka.coordinator.open if each.started_ms <= before_ms]
    if hanging:
        yield "hanging", f"Kafka transactions are open for 10 minutes and longer: {_some(hanging)}"
    if paused := [topic.name for topic in context.delayed.delays.paused()]:
        yield "paused", f"deliveries of delayed messages are paused: {_some(paused)}"


def _some(names: list[str]) -> str:
    shown = ", ".join(sorted(names)[:NAMES_MAX])
    return shown if len(names) <= NAMES_MAX else f"{shown} and {len(names) - NAMES_MAX} more"
