"""What the broker says about itself: warnings, runs of cron expressions around changes of the clock, assignments."""

import re
import struct
from collections.abc import Callable
from typing import Any
from urllib.parse import urlencode

import pytest

from duolog.bridge.console.pages.overview import PAGES_OF
from duolog.bridge.http.observation import warnings
from duolog.bridge.http.observation.members import assignment
from duolog.bridge.http.observation.warnings import HANGING_MS
from duolog.delay.tables.table_format import table_path
from duolog.protocol.kafka.api_messages import ApiKey
from tests.kit.core import ManualCore
from tests.kit.http import HttpBench
from tests.unit.bridge.data.test_far_timers import Bench as FarTimers
from tests.unit.bridge.kafka.asking import join
from tests.unit.bridge.kafka.bench import Client, KafkaBench

MARCH = 1_774_000_000_000  # Friday, 20 March 2026, some days before Berlin's clock is set forward.


def preview(expression: str, zone: str, **more: int) -> tuple[int, Any]:
    return HttpBench().ask("GET", f"/api/cron?{urlencode({'expression': expression, 'zone': zone, **more})}")


def test_a_run_in_the_hour_that_does_not_exist_comes_after_the_change() -> None:
    status, found = preview("30 2 * * *", "Europe/Berlin", from_ms=MARCH, count=2)
    assert status == 200
    assert [run["local"][:16] for run in found["runs"]] == ["2026-03-21T02:30", "2026-03-22T02:30"]
    spring, autumn = found["changes"][:2]
    assert (spring["before"], spring["after"]) == ("+01:00", "+02:00")
    shown = [run["local"] for run in spring["runs"]]
    assert shown[0] == "2026-03-27T02:30:00+01:00"
    assert shown[1] == "2026-03-28T02:30:00+01:00"
    assert shown[2].startswith("2026-03-29T03")
    assert shown[3] == "2026-03-30T02:30:00+02:00"
    assert (autumn["before"], autumn["after"]) == ("+02:00", "+01:00")
    assert len([run for run in autumn["runs"] if run["local"].startswith("2026-10-25")]) == 1


@pytest.mark.parametrize("expression", ["* * * * * *", "*/5 * * * *", "0 0 1 1 *", "@daily"])
def test_runs_around_a_change_are_the_nearest_ones(expression: str) -> None:
    _, found = preview(expression, "America/New_York", from_ms=MARCH)
    for change in found["changes"]:
        due = [run["due_ms"] for run in change["runs"]]
        assert due == sorted(due)
        assert sum(run >= change["at_ms"] for run in due) == 2
        assert sum(run < change["at_ms"] for run in due) == (0 if expression == "0 0 1 1 *" else 2)


def test_a_zone_without_changes_has_none() -> None:
    assert preview("0 0 * * *", "UTC")[1]["changes"] == []


@pytest.mark.parametrize(
    ("expression", "zone"), [("61 * * * *", "UTC"), ("0 0 * * *", "Mars/Base"), ("0 0 31 2 *", "UTC")]
)
def test_an_expression_that_is_not_one_is_refused(expression: str, zone: str) -> None:
    assert preview(expression, zone)[0] == 400


# -- Warnings


def in_the_last_hour(change: Callable[[ManualCore], object]) -> Callable[[ManualCore], None]:
    """Return what changes counters between two samples of the history."""

    def between_samples(core: ManualCore) -> None:
        core.history.sample(0, 0)
        change(core)
        core.history.sample(10_000, 10_000)

    return between_samples


def delay_and_do_not_deliver(core: ManualCore) -> None:
    HttpBench(core).ask("POST", "/api/timers", {"topic": core.topic("orders").name, "value": "v", "delay_ms": 1_000})
    core.clock.pass_ms(3_500)


def open_a_transaction(core: ManualCore) -> None:
    producer, _ = core.transactions.init("payer", 900_000, None, core.clock.now_ms())
    core.transactions.add_queues("payer", producer, [core.topic("orders").key(0)], core.clock.now_ms())
    core.pass_ms(HANGING_MS)


def contain_a_fault(core: ManualCore) -> None:
    core.faults.is_strict = False
    core.faults.contain(ValueError("bug"), "duty")


def pause_a_topic(core: ManualCore) -> None:
    core.delays.pause(core.topic("orders"), core.clock.now_ms())


def lose_a_table(core: ManualCore) -> ManualCore:
    """Return a core after the loss of the table that has a far message."""
    bench = FarTimers()
    bench.core.topic("orders", 1)
    bench.call("_add", {"topic": "orders", "value": "far", "at_ms": bench.now_ms() + 600_000})
    bench.turn_until_idle()
    disk = bench.core.disk.after_kill()
    (table,) = bench.core.delays.timers.tree.context.tables.manifest
    disk.remove(table_path(table.number))
    return ManualCore(disk=disk, now_ms=bench.now_ms())


WARNINGS: dict[str, tuple[Callable[[ManualCore], ManualCore | None], str]] = {
    "not_ready": (lambda core: core.store.write_state.end_writing("EIO"), "does not serve all requests: .*EIO"),
    "set_aside": (lambda core: core.poison_records.set_aside("schedule", "nightly", ValueError()), "^1 stored records"),
    "damaged": (lambda core: setattr(core.sealed_data, "damaged_places", 2), "^2 places .* duolog log verify"),
    "lost": (lose_a_table, "^1 delayed messages were lost"),
    "faults": (contain_a_fault, "^1 bugs"),
    "disk": (lambda core: setattr(core.store.write_state, "usage", (91, 100)), "^91 % of the disk"),
    "overdue": (delay_and_do_not_deliver, "due for 2.5 s, and is not delivered"),
    "late": (in_the_last_hour(lambda core: core.metrics.timer_lateness_s.add(4.0)), "up to 5 s late within"),
    "slow_turns": (in_the_last_hour(lambda core: core.watchdog.long.update(kafka=2)), "^2 turns .* the last hour"),
    "dead_letters": (
        in_the_last_hour(lambda core: setattr(core.metrics, "dead_letters", 3)),
        "^3 messages became dead letters within the last hour",
    ),
    "given_up": (
        in_the_last_hour(lambda core: setattr(core.metrics.check_backs, "given_up", 4)),
        "^4 half messages .* within the last hour",
    ),
    "hanging": (open_a_transaction, "10 minutes and longer: payer$"),
    "paused": (pause_a_topic, "are paused: orders$"),
}


@pytest.mark.parametrize("kind", WARNINGS)
def test_a_warning_names_what_needs_a_person(kind: str) -> None:
    core = ManualCore()
    assert [*warnings.warnings(core.http_context())] == []
    cause, text = WARNINGS[kind]
    core = cause(core) or core
    ((found, said),) = warnings.warnings(core.http_context())
    assert found == kind
    assert re.search(text, said), said


def test_all_warnings_are_documented_and_tested_and_those_of_a_page_lead_to_it() -> None:
    documented = re.findall(r"^`(\w+)` ", str(warnings.__doc__), re.MULTILINE)
    assert documented == [*WARNINGS]
    assert PAGES_OF.keys() == WARNINGS.keys() - {"not_ready", "disk"}
    bench = HttpBench()
    assert bench.ask("GET", "/api/warnings") == (200, [])
    pause_a_topic(bench.core)
    assert [row["kind"] for row in bench.ask("GET", "/api/warnings")[1]] == ["paused"]
    _, page = bench.ask("GET", "/")
    assert b'<a href="/console/delayed">deliveries of delayed messages are paused: orders</a>' in page


# -- Assignments


def encoded(*topics: tuple[str, list[int]]) -> bytes:
    """Return a ConsumerProtocolAssignment of version 1."""
    found = struct.pack(">hi", 1, len(topics))
    for name, queues in topics:
        found += struct.pack(f">h{len(name)}si{len(queues)}i", len(name), name.encode(), len(queues), *queues)
    return found + struct.pack(">i", -1)


def test_an_assignment_is_read() -> None:
    found = assignment(encoded(("orders", [0, 2]), ("audit", [])))
    assert found == [{"topic": "orders", "queues": [0, 2]}, {"topic": "audit", "queues": []}]
    assert assignment(b"") == []


@pytest.mark.parametrize("length", range(1, len(encoded(("orders", [0, 2]))) - 4))
def test_a_truncated_assignment_is_none(length: int) -> None:
    assert assignment(encoded(("orders", [0, 2]))[:length]) is None


def test_an_assignment_that_claims_many_queues_is_none() -> None:
    assert assignment(struct.pack(">hih1si", 1, 1, 1, b"t", 2_000_000_000)) is None


def test_groups_of_a_topic_have_their_lag_in_it() -> None:
    core = ManualCore()
    bench = HttpBench(core)
    orders, audit = core.topic("orders", 2), core.topic("audit", 1)
    core.publish(orders, b"a", b"b", b"c")
    core.publish(audit, b"x")
    body = {"to": "earliest", "topics": ["orders"], "execute": True}
    assert bench.ask("POST", "/api/groups/billing/reset", body)[0] == 200
    (row,) = bench.ask("GET", "/api/topics/orders/groups")[1]
    assert (row["name"], row["lag"], row["active"], row["members"]) == ("billing", 3, None, 0)
    assert bench.ask("GET", "/api/topics/audit/groups") == (200, [])
    assert bench.ask("GET", "/api/groups/billing/members") == (200, {"group": "billing", "members": []})
    assert bench.ask("GET", "/api/groups/none/members")[0] == 404


def test_connections_of_the_same_client_id_and_host_show_the_group_of_the_only_member() -> None:
    kafka = KafkaBench()
    bench = HttpBench(kafka)
    member, fetcher, elsewhere, other, nameless, rival = (kafka.connect() for _ in range(6))
    for client, name in ((member, "app"), (fetcher, "app"), (elsewhere, "app"), (other, "tool"), (rival, "app")):
        client.connection.client_id = name
    elsewhere.connection.peer = ("198.51.100.7", 40000)

    def groups(*clients: Client) -> list[list[str]]:
        rows = bench.ask("GET", "/api/clients")[1]["clients"]
        by_connection = {id(each): row["groups"] for each, row in zip(kafka.server.connections, rows, strict=True)}
        return [by_connection[id(client.connection)] for client in clients]

    assert groups(member, fetcher) == [[], []]
    member_id = join(member, 3).member_id
    assert groups(member, fetcher, elsewhere, other, nameless) == [["g"], ["g"], [], [], []]
    join(rival, 3, group_id="h")
    assert groups(member, fetcher, rival) == [["g"], [], ["h"]], "the fetcher may belong to either group"
    member.ask(ApiKey.LEAVE_GROUP, 1, group_id="g", member_id=member_id)
    assert groups(member, fetcher, rival) == [["h"], ["h"], ["h"]]


def test_the_connection_that_a_kafka_member_uses_shows_its_group() -> None:
    kafka = KafkaBench()
    bench = HttpBench(kafka)

    def groups() -> list[list[str]]:
        return [row["groups"] for row in bench.ask("GET", "/api/clients")[1]["clients"] if row["wire"] == "kafka"]

    first = kafka.connect()
    kafka.pass_ms(1)  # The oldest connection comes first.
    second = kafka.connect()
    assert groups() == [[], []]
    member_id = join(first, 3).member_id
    assert groups() == [["g"], []]
    me = {"group_id": "g", "generation_id": 1, "member_id": member_id}
    first.ask(ApiKey.SYNC_GROUP, 3, **me)
    second.ask(ApiKey.HEARTBEAT, 3, group_id="g", generation_id=1, member_id="another")
    assert groups() == [["g"], []], "it is not a member"
    second.ask(ApiKey.HEARTBEAT, 3, **me)
    assert groups() == [["g"], ["g"]], "the member goes on over a new connection"
    second.ask(ApiKey.LEAVE_GROUP, 1, group_id="g", member_id=member_id)
    assert groups() == [[], []]
