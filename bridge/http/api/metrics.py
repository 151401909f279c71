"""The metrics for Prometheus, whose values are read from the parts that own them at each scrape."""

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
GROUPS_MAX = 1000  # The number of groups that have a metric of their own.


def render(context: HttpContext, lags: Mapping[str, GroupLag]) -> bytes:
    """Return the metrics in the text format of Prometheus."""
    registry = CollectorRegistry()
    registry.register(_BrokerCollector(context, lags))
    return generate_latest(registry)


def families(context: HttpContext) -> Iterator[Metric]:
    """Yield all metrics except the lag of groups."""
    return _BrokerCollector(context, {}).collect()


async def group_lags(context: HttpContext) -> dict[str, GroupLag]:
    """Return the lag of groups, computed in slices.

    Of more than GROUPS_MAX groups, the first ones by name are included.
    """
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
        yield from _requests(self._context)
        yield from _traffic(self._context)
        yield from _messages(self._context)
        yield from _connections(self._context)
        yield from _log(self._context)
        yield from _groups(self._context, self._lags)
        yield from _process(self._context)


def _requests(context: HttpContext) -> Iterator[Metric]:
    metrics = context.monitoring.metrics
    yield _labelled("requests", "Requests received.", ("wire", "request"), metrics.requests)
    faults = {(kind,): count for kind, count in context.monitoring.faults.counts.items()}
    yield _labelled(
        "faults", "Bugs that were contained, by the kind of request or task; the log describes them.", ("kind",), faults
    )
    poisoned = {(kind,): count for kind, count in context.monitoring.poison.counts.items()}
    yield _labelled(
        "poisoned_records",
        "Stored records that could not be processed and were set aside, by kind.",
        ("kind",),
        poisoned,
    )
    yield _labelled(
        "errors",
        "Errors that were answered: in Kafka those of Produce for each partition, in "
        "RocketMQ by code, in HTTP by status.",
        ("wire", "error"),
        metrics.errors,
    )


def _traffic(context: HttpContext) -> Iterator[Metric]:
    metrics = context.monitoring.metrics
    for name, doc, by_wire in (
        ("records_in", "Records that were appended, by the client protocol of their producers.", metrics.records_in),
        ("record_bytes_in", "Bytes of frames that were appended.", metrics.bytes_in),
        ("frames_out", "Frames that clients read.", metrics.frames_out),
        ("record_bytes_out", "Bytes of frames that clients read.", metrics.bytes_out),
        (
            "converted_records",
            "Records that were converted for readers of the other client protocol.",
            metrics.converted_records,
        ),
        (
            "dropped_commits",
            "One-way commits that were dropped, because the group is active in the other client protocol.",
            metrics.dropped_commits,
        ),
        ("refused_commits", "One-way commits that were refused by a full disk or a limit.", metrics.refused_commits),
    ):
        yield _labelled(name, doc, ("wire",), {(wire,): count for wire, count in by_wire.items()})


def _messages(context: HttpContext) -> Iterator[Metric]:
    metrics = context.monitoring.metrics
    yield _counter(
        "retries", "Messages that RocketMQ groups failed to consume and that are sent to them again.", metrics.retries
    )
    yield _counter("dead_letters", "Messages that became dead letters of RocketMQ groups.", metrics.dead_letters)
    if context.monitoring.hooks is not None:
        skipped = {(why,): count for why, count in context.monitoring.hooks.skipped.items()}
        yield _labelled("hooks_skipped", "Calls of hooks that were skipped, by the reason.", ("reason",), skipped)
    yield _labelled(
        "delayed",
        "Delayed messages, by what happened to them.",
        ("done",),
        {(what,): n for what, n in metrics.timers.items()},
    )
    yield _gauge("delayed_pending", "Delayed messages that are pending.", len(context.delayed.delays.timers))
    yield _gauge("half_messages_open", "Half messages that are open.", len(context.transactions.halves.state))
    yield _gauge(
        "rocketmq_differing_groups",
        "RocketMQ groups whose members subscribe to different messages.",
        len(context.groups.rocketmq_members.differing()),
    )


def _connections(context: HttpContext) -> Iterator[Metric]:
    connections = context.monitoring.server.connections
    in_work = GaugeMetricFamily("duolog_rocketmq_in_work", "RocketMQ requests in work, by kind.", labels=("kind",))
    for kind, count in zip(Kind, context.monitoring.rocketmq_admission.in_work, strict=True):
        in_work.add_metric((kind.name.lower(),), count)
    yield in_work
    yield _counter("received_bytes", "Bytes received from clients.", connections.received_bytes)
    yield _counter("sent_bytes", "Bytes handed to sockets.", connections.sent_bytes)
    yield _counter("connections_accepted", "Connections accepted.", connections.accepted_count)
    yield _counter(
        "connections_refused", "Connections that were refused above limits.connections_max.", connections.refused_count
    )
    yield _counter(
        "connections_overdue", "Connections that were closed because a time limit was over.", connections.overdue_count
    )
    yield _gauge("connections", "Open connections.", len(connections))
    yield _gauge("answer_bytes", "Bytes of unsent answers.", connections.answer_bytes)
    yield _gauge("request_bytes", "Bytes of unfinished requests.", connections.request_bytes)


def _log(context: HttpContext) -> Iterator[Metric]:
    store = context.store
    yield _gauge("log_next_position", "The position of the next unit.", store.next_position)
    yield _gauge("log_written_position", "The log below this position survives kill -9.", store.written)
    yield _gauge("log_durable_position", "The log below this position survives a power loss.", store.durable)
    yield _counter(
        "segments_removed",
        "Segments that were removed because no live message was left in them.",
        store.retention.dead_segments.removed_count,
    )
    yield _gauge("topics", "Topics.", len(context.topics))


def _groups(context: HttpContext, lags: Mapping[str, GroupLag]) -> Iterator[Metric]:
    yield _gauge("groups", "Groups with committed offsets or members.", len(known_groups(context)))
    every = GaugeMetricFamily("duolog_group_lag", "Records that a group has not read.", labels=("group",))
    new = GaugeMetricFamily(
        "duolog_group_lag_without_position",
        "The part of a group's lag in queues without a committed offset.",
        labels=("group",),
    )
    for name, found in lags.items():
        every.add_metric((name,), found.lag)
        new.add_metric((name,), found.lag_without_position)
    yield every
    yield new


def _process(context: HttpContext) -> Iterator[Metric]:
    pauses = context.monitoring.metrics.gc_pauses
    yield _counter("gc_pauses", "Pauses of Python's garbage collector.", pauses.count)
    yield _counter("gc_pause_seconds", "Total length of the pauses of Python's garbage collector.", pauses.total_s)
    yield _gauge("gc_pause_longest_seconds", "Longest pause of Python's garbage collector.", pauses.longest_s)
    memory = resident_bytes()
    watchdog = context.monitoring.watchdog
    turns = HistogramMetricFamily("duolog_loop_turn_seconds", "Length of the turns of the event loop.")
    turns.add_metric((), watchdog.buckets(), watchdog.total_s)
    yield turns
    long = {(kind,): count for kind, count in watchdog.long.items()}
    yield _labelled(
        "long_loop_turns", "Turns of the event loop of 100 ms and more, by the kind of work.", ("kind",), long
    )
    yield _gauge(
        "loop_turn_longest_seconds", "Longest turn of the event loop.", max(watchdog.longest_s.values(), default=0.0)
    )
    yield _gauge("resident_memory_bytes", "Resident memory of the process.", memory["resident"])
    yield _gauge("anonymous_memory_bytes", "Resident memory that no file backs.", memory["anonymous"])
    yield _gauge(
        "uptime_seconds",
        "Time since the broker started.",
        (context.clock.mono_ms() - context.monitoring.started_mono_ms) / 1000,
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
