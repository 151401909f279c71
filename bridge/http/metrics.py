"""What a Prometheus scrape gets: figures read where they live, at the moment of the scrape."""

from collections.abc import Iterator, Mapping
from heapq import nsmallest
from typing import TYPE_CHECKING, Any

from prometheus_client.core import (
    CollectorRegistry,
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.registry import Collector

from duolog.bridge.http import views
from duolog.bridge.http.answers import in_slices
from duolog.bridge.rocketmq.requests.admission import Kind
from duolog.bridge.state import lag
from duolog.bridge.state.lag import GroupLag

if TYPE_CHECKING:
    from duolog.bridge.broker import Broker

CONTENT_TYPE = CONTENT_TYPE_LATEST
GROUPS_MAX = 1000  # With figures of their own.


def render(broker: "Broker", lags: Mapping[str, GroupLag]) -> bytes:
    registry = CollectorRegistry()
    registry.register(_BrokerCollector(broker, lags))
    return generate_latest(registry)


async def group_lags(broker: "Broker") -> dict[str, GroupLag]:
    """Compute how far groups are behind, some of them at a time; of more than GROUPS_MAX the first by name."""
    lags: dict[str, GroupLag] = {}

    def steps() -> Iterator[None]:
        for name in nsmallest(GROUPS_MAX, views.known_groups(broker)):
            lags[name] = yield from lag.of_group(broker, name)

    await in_slices(steps(), broker.clock.mono_ms)
    return lags


class _BrokerCollector(Collector):
    def __init__(self, broker: "Broker", lags: Mapping[str, GroupLag]) -> None:
        self._broker, self._lags = broker, lags

    def collect(self) -> Iterator[Metric]:
        yield from _traffic(self._broker)
        yield from _log(self._broker)
        yield from _groups(self._broker, self._lags)
        yield from _process(self._broker)


def _traffic(broker: "Broker") -> Iterator[Metric]:
    metrics, server = broker.metrics, broker.server
    yield _labelled("requests", "Requests received.", ("wire", "request"), metrics.requests)
    faults = {(kind,): count for kind, count in broker.faults.counts.items()}
    yield _labelled("faults", "Unexpected exceptions, by what raised them; the log has them.", ("kind",), faults)
    poisoned = {(kind,): count for kind, count in broker.poison.counts.items()}
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
    if broker.hooks is not None:
        skipped = {(why,): count for why, count in broker.hooks.skipped.items()}
        yield _labelled("hooks_skipped", "Calls of hooks that counted for nothing.", ("why",), skipped)
    yield _labelled(
        "delayed", "Delayed messages, by what was done.", ("done",), {(what,): n for what, n in metrics.timers.items()}
    )
    yield _gauge("delayed_pending", "Delayed messages that wait.", len(broker.delays))
    yield _gauge("half_messages_open", "Half messages that wait for a verdict.", len(broker.halves.state))
    yield _gauge(
        "rocketmq_differing_groups",
        "RocketMQ groups whose members subscribe to different messages.",
        len(broker.rocketmq_members.differing()),
    )
    in_work = GaugeMetricFamily("duolog_rocketmq_in_work", "RocketMQ requests that wait, by kind.", labels=("kind",))
    for kind, count in zip(Kind, broker.rocketmq_admission.in_work, strict=True):
        in_work.add_metric((kind.name.lower(),), count)
    yield in_work
    yield _counter("received_bytes", "Bytes received from clients.", server.received_bytes)
    yield _counter("sent_bytes", "Bytes handed to sockets.", server.sent_bytes)
    yield _counter("connections_accepted", "Connections accepted.", server.accepted_count)
    yield _counter("connections_refused", "Connections above limits.connections_max.", server.refused_count)
    yield _counter("connections_overdue", "Connections closed because their time was up.", server.closed_overdue_count)
    yield _gauge("connections", "Open connections.", len(server.connections))
    yield _gauge("answer_bytes", "Unsent bytes of answers.", server.answer_bytes)
    yield _gauge("request_bytes", "Bytes of unfinished requests.", server.request_bytes)


def _log(broker: "Broker") -> Iterator[Metric]:
    store = broker.store
    yield _gauge("log_next_position", "Where the next unit goes.", store.next_position)
    yield _gauge("log_written_position", "Below it, kill -9 loses nothing.", store.written)
    yield _gauge("log_durable_position", "Below it, power loss loses nothing.", store.durable)
    yield _counter(
        "segments_removed", "Segments removed because nothing lived in them.", broker.maintenance.removed_segments
    )
    yield _gauge("topics", "Topics.", len(broker.topics))


def _groups(broker: "Broker", lags: Mapping[str, GroupLag]) -> Iterator[Metric]:
    yield _gauge("groups", "Groups with positions or members.", len(views.known_groups(broker)))
    every = GaugeMetricFamily("duolog_group_lag", "Records that a group has not read.", labels=("group",))
    new = GaugeMetricFamily(
        "duolog_group_lag_without_position", "The part of it in queues without a position yet.", labels=("group",)
    )
    for name, found in lags.items():
        every.add_metric((name,), found.lag)
        new.add_metric((name,), found.lag_without_position)
    yield every
    yield new


def _process(broker: "Broker") -> Iterator[Metric]:
    pauses = broker.metrics.gc_pauses
    yield _counter("gc_pauses", "Pauses of Python's garbage collector.", pauses.count)
    yield _counter("gc_pause_seconds", "Their sum.", pauses.total_s)
    yield _gauge("gc_pause_longest_seconds", "The longest of them.", pauses.longest_s)
    memory = views.resident_bytes()
    watchdog = broker.watchdog
    turns = HistogramMetricFamily("duolog_loop_turn_seconds", "How long each turn kept the event loop busy.")
    turns.add_metric((), watchdog.buckets(), watchdog.total_s)
    yield turns
    long = {(kind,): count for kind, count in watchdog.long.items()}
    yield _labelled("long_loop_turns", "Turns of the event loop of 100 ms and more, by what they did.", ("kind",), long)
    yield _gauge("loop_turn_longest_seconds", "The longest of all.", max(watchdog.longest_s.values(), default=0.0))
    yield _gauge("resident_memory_bytes", "Resident memory.", memory["resident"])
    yield _gauge("anonymous_memory_bytes", "Resident memory that no file backs.", memory["anonymous"])
    yield _gauge("uptime_seconds", "Since start.", (broker.clock.mono_ms() - broker.started_mono_ms) / 1000)


def _counter(name: str, doc: str, value: float) -> Metric:
    return CounterMetricFamily(f"duolog_{name}", doc, value=value)


def _gauge(name: str, doc: str, value: float) -> Metric:
    return GaugeMetricFamily(f"duolog_{name}", doc, value=value)


def _labelled(name: str, doc: str, labels: tuple[str, ...], counts: Mapping[Any, int]) -> Metric:
    family = CounterMetricFamily(f"duolog_{name}", doc, labels=labels)
    for values, count in counts.items():
        family.add_metric(values, count)
    return family
