"""What a Prometheus scrape gets: figures read where they live, at the moment of the scrape."""

from collections.abc import Iterator, Mapping
from heapq import nsmallest
from typing import Any

from prometheus_client.core import (
    CollectorRegistry,
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.registry import Collector

from duolog.bridge.http.answers import in_slices
from duolog.bridge.http.api.group_views import known_groups
from duolog.bridge.http.api.status import resident_bytes
from duolog.bridge.http.context import HttpContext
from duolog.bridge.rocketmq.requests.admission import Kind
from duolog.bridge.state.lag import GroupLag

CONTENT_TYPE = CONTENT_TYPE_LATEST
GROUPS_MAX = 1000  # With figures of their own.


def render(context: HttpContext, lags: Mapping[str, GroupLag]) -> bytes:
    registry = CollectorRegistry()
    registry.register(_BrokerCollector(context, lags))
    return generate_latest(registry)


def families(context: HttpContext) -> Iterator[Metric]:
    """Give all metrics, without the lags of groups."""
    return _BrokerCollector(context, {}).collect()


async def group_lags(context: HttpContext) -> dict[str, GroupLag]:
    """Compute how far groups are behind, some of them at a time; of more than GROUPS_MAX the first by name."""
    lags: dict[str, GroupLag] = {}

    def steps() -> Iterator[None]:
        for name in nsmallest(GROUPS_MAX, known_groups(context)):
            lags[name] = yield from context.groups.lags.of_group(name)

    await in_slices(steps(), context.clock.mono_ms)
    return lags


class _BrokerCollector(Collector):
    def __init__(self, context: HttpContext, lags: Mapping[str, GroupLag]) -> None:
        self._context, self._lags = context, lags

    def collect(self) -> Iterator[Metric]:
        yield from _traffic(self._context)
        yield from _log(self._context)
        yield from _groups(self._context, self._lags)
        yield from _process(self._context)


def _traffic(context: HttpContext) -> Iterator[Metric]:
    metrics, connections = context.monitoring.metrics, context.monitoring.server.connections
    yield _labelled("requests", "Requests received.", ("wire", "request"), metrics.requests)
    faults = {(kind,): count for kind, count in context.monitoring.faults.counts.items()}
    yield _labelled("faults", "Unexpected exceptions, by what raised them; the log has them.", ("kind",), faults)
    poisoned = {(kind,): count for kind, count in context.monitoring.poison.counts.items()}
    yield _labelled("poisoned_records", "Stored records that were set aside, by kind.", ("kind",), poisoned)
    yield _labelled(
        "errors",
        "Errors answered: over Kafka by Produce, of each partition; over RocketMQ by code; over HTTP by status.",
        ("wire", "error"),
        metrics.errors,
    )
    for name, doc, by_wire in (
        ("records_in", "Records appended, by the wire they came on.", metrics.records_in),
        ("record_bytes_in", "Bytes of frames appended.", metrics.bytes_in),
        ("frames_out", "Frames read by clients.", metrics.frames_out),
        ("record_bytes_out", "Bytes of frames read by clients.", metrics.bytes_out),
        ("converted_records", "Records read in the other family's form.", metrics.converted_records),
        ("dropped_commits", "One-way commits of a group that is active in the other family.", metrics.dropped_commits),
        ("refused_commits", "One-way commits that a full disk or a limit refused.", metrics.refused_commits),
    ):
        yield _labelled(name, doc, ("wire",), {(wire,): count for wire, count in by_wire.items()})
    yield _counter("retries", "Messages that RocketMQ groups failed to consume and get again.", metrics.retries)
    yield _counter("dead_letters", "And those that went to their dead letters.", metrics.dead_letters)
    if context.monitoring.hooks is not None:
        skipped = {(why,): count for why, count in context.monitoring.hooks.skipped.items()}
        yield _labelled("hooks_skipped", "Calls of hooks that counted for nothing.", ("why",), skipped)
    yield _labelled(
        "delayed", "Delayed messages, by what was done.", ("done",), {(what,): n for what, n in metrics.timers.items()}
    )
    yield _gauge("delayed_pending", "Delayed messages that wait.", len(context.delayed.delays))
    yield _gauge("half_messages_open", "Half messages that wait for a verdict.", len(context.transactions.halves.state))
    yield _gauge(
        "rocketmq_differing_groups",
        "RocketMQ groups whose members subscribe to different messages.",
        len(context.groups.rocketmq_members.differing()),
    )
    in_work = GaugeMetricFamily("duolog_rocketmq_in_work", "RocketMQ requests that wait, by kind.", labels=("kind",))
    for kind, count in zip(Kind, context.monitoring.rocketmq_admission.in_work, strict=True):
        in_work.add_metric((kind.name.lower(),), count)
    yield in_work
    yield _counter("received_bytes", "Bytes received from clients.", connections.received_bytes)
    yield _counter("sent_bytes", "Bytes handed to sockets.", connections.sent_bytes)
    yield _counter("connections_accepted", "Connections accepted.", connections.accepted_count)
    yield _counter("connections_refused", "Connections above limits.connections_max.", connections.refused_count)
    yield _counter("connections_overdue", "Connections closed because their time was up.", connections.overdue_count)
    yield _gauge("connections", "Open connections.", len(connections))
    yield _gauge("answer_bytes", "Unsent bytes of answers.", connections.answer_bytes)
    yield _gauge("request_bytes", "Bytes of unfinished requests.", connections.request_bytes)


def _log(context: HttpContext) -> Iterator[Metric]:
    store = context.store
    yield _gauge("log_next_position", "Where the next unit goes.", store.next_position)
    yield _gauge("log_written_position", "Below it, kill -9 loses nothing.", store.written)
    yield _gauge("log_durable_position", "Below it, power loss loses nothing.", store.durable)
    yield _counter(
        "segments_removed",
        "Segments removed because nothing lived in them.",
        context.monitoring.maintenance.removed_segments,
    )
    yield _gauge("topics", "Topics.", len(context.topics))


def _groups(context: HttpContext, lags: Mapping[str, GroupLag]) -> Iterator[Metric]:
    yield _gauge("groups", "Groups with positions or members.", len(known_groups(context)))
    every = GaugeMetricFamily("duolog_group_lag", "Records that a group has not read.", labels=("group",))
    new = GaugeMetricFamily(
        "duolog_group_lag_without_position", "The part of it in queues without a position yet.", labels=("group",)
    )
    for name, found in lags.items():
        every.add_metric((name,), found.lag)
        new.add_metric((name,), found.lag_without_position)
    yield every
    yield new


def _process(context: HttpContext) -> Iterator[Metric]:
    pauses = context.monitoring.metrics.gc_pauses
    yield _counter("gc_pauses", "Pauses of Python's garbage collector.", pauses.count)
    yield _counter("gc_pause_seconds", "Their sum.", pauses.total_s)
    yield _gauge("gc_pause_longest_seconds", "The longest of them.", pauses.longest_s)
    memory = resident_bytes()
    watchdog = context.monitoring.watchdog
    turns = HistogramMetricFamily("duolog_loop_turn_seconds", "How long each turn kept the event loop busy.")
    turns.add_metric((), watchdog.buckets(), watchdog.total_s)
    yield turns
    long = {(kind,): count for kind, count in watchdog.long.items()}
    yield _labelled("long_loop_turns", "Turns of the event loop of 100 ms and more, by what they did.", ("kind",), long)
    yield _gauge("loop_turn_longest_seconds", "The longest of all.", max(watchdog.longest_s.values(), default=0.0))
    yield _gauge("resident_memory_bytes", "Resident memory.", memory["resident"])
    yield _gauge("anonymous_memory_bytes", "Resident memory that no file backs.", memory["anonymous"])
    yield _gauge(
        "uptime_seconds", "Since start.", (context.clock.mono_ms() - context.monitoring.started_mono_ms) / 1000
    )


def _counter(name: str, doc: str, value: float) -> Metric:
    return CounterMetricFamily(f"duolog_{name}", doc, value=value)


def _gauge(name: str, doc: str, value: float) -> Metric:
    return GaugeMetricFamily(f"duolog_{name}", doc, value=value)


def _labelled(name: str, doc: str, labels: tuple[str, ...], counts: Mapping[Any, int]) -> Metric:
    family = CounterMetricFamily(f"duolog_{name}", doc, labels=labels)
    for values, count in counts.items():
        family.add_metric(values, count)
    return family
