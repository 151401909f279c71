"""The metrics whose number of series is bounded: most labels are names from tables of the broker."""

from collections.abc import Iterator, Mapping
from typing import Any, Final, Protocol

from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)

from duolog.bridge.http.api.group_views import known_groups
from duolog.bridge.http.api.status import resident_bytes
from duolog.bridge.http.context import HttpContext
from duolog.bridge.http.metrics.lines import gauge
from duolog.bridge.http.metrics.shared_families import shared_families
from duolog.bridge.http.metrics.topic_families import NODE_LABELS
from duolog.bridge.net.addresses import endpoint
from duolog.bridge.rocketmq.requests.admission import Kind
from duolog.delay.quota_entities import QuotaEntities, QuotaEntity
from duolog.protocol.rocketmq.messages.flags import PERM_READ_WRITE

QUOTA_ENTITIES_MAX: Final = 20  # Those with the most pending messages have a series.


class Buckets(Protocol):
    """A histogram."""

    def buckets(self) -> list[tuple[str, int]]: ...


def broker_families(context: HttpContext) -> Iterator[Metric]:
    """Yield the families with their samples."""
    yield from _requests(context)
    yield from _security(context)
    yield from _traffic(context)
    yield from _messages(context)
    yield from _transactions(context)
    yield from _connections(context)
    yield from _log(context)
    yield from _process(context)
    yield from _compatible(context)
    yield from shared_families(
        context.monitoring.metrics,
        is_owner=True,
        epoch=context.store.epoch,
        behind_bytes=context.store.behind_bytes,
    )


def _security(context: HttpContext) -> Iterator[Metric]:
    audit = context.security.audit
    yield _labelled("logins", "Logins by mechanism and result.", ("protocol", "mechanism", "result"), audit.logins)
    yield _labelled(
        "authorization_refusals", "Resources that access rules refused to requests.", ("protocol",), audit.refusals
    )
    yield _labelled(
        "audit_lines",
        "Lines of the audit log: written, left out because of its limits, lost because the disk failed.",
        ("outcome",),
        audit.counts(),
    )
    yield _labelled(
        "quota_throttles",
        "Times that a client had to wait, or was refused, because of a quota.",
        ("protocol", "quota"),
        context.security.quotas.throttled,
    )
    yield _pending_by_entity(context.delayed.delays.timers.quota_entities)


def _pending_by_entity(entities: QuotaEntities) -> Metric:
    """Return a series for each pair of labels. No client id and an empty one have the same label, and one sum."""
    pending = GaugeMetricFamily(
        "duolog_quota_delayed_messages_pending",
        f"Delayed messages pending under a quota, of the {QUOTA_ENTITIES_MAX} users and client ids with the most.",
        labels=("user", "client_id"),
    )
    largest = [entity for entity, _ in entities.largest(QUOTA_ENTITIES_MAX)]
    for user, client_id in dict.fromkeys((entity.user, entity.client_id or "") for entity in largest):
        count = entities.count_of(QuotaEntity(user, client_id))
        if not client_id:
            count += entities.count_of(QuotaEntity(user, None))
        pending.add_metric((user or "", client_id), count)
    return pending


def _requests(context: HttpContext) -> Iterator[Metric]:
    metrics = context.monitoring.metrics
    yield _labelled("requests", "Requests received.", ("wire", "request"), metrics.requests)
    faults = {(kind,): count for kind, count in context.monitoring.faults.counts.items()}
    yield _labelled(
        "faults", "Bugs that were contained, by the kind of request or task; the log describes them.", ("kind",), faults
    )
    poisoned = {(kind,): count for kind, count in context.monitoring.poison_records.counts.items()}
    yield _labelled(
        "poisoned_records",
        "Stored records that could not be processed and were set aside, by kind.",
        ("kind",),
        poisoned,
    )
    yield _labelled(
        "errors",
        "Errors that were answered, by Kafka's error, RocketMQ's code or HTTP's status. An answer of Kafka counts "
        "once for each item, such as a partition, that has an error.",
        ("wire", "error"),
        metrics.errors,
    )


def _traffic(context: HttpContext) -> Iterator[Metric]:
    metrics = context.monitoring.metrics
    for name, doc, by_wire in (
        ("records_in", "Records that were appended, by the protocol of their producers.", metrics.records_in),
        ("record_bytes_in", "Bytes of frames that were appended.", metrics.bytes_in),
        ("records_out", "Records that clients read; of a batch, all records count.", metrics.records_out),
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
    done = {**metrics.timers, "lost": context.delayed.delays.timers.lost}
    if (spans := context.monitoring.spans) is not None:
        results = {("exported",): spans.exported, ("failed",): spans.failed, ("dropped",): spans.dropped}
        doc = "Spans of traced messages: exported, refused by the collector, dropped because too many waited."
        yield _labelled("spans", doc, ("result",), results)
    yield _labelled(
        "delayed", "Delayed messages, by what happened to them.", ("done",), {(what,): n for what, n in done.items()}
    )
    yield _gauge("delayed_pending", "Delayed messages that are pending.", len(context.delayed.delays.timers))
    yield _gauge(
        "timer_overdue_seconds",
        "For how long the earliest due delayed message waits for its delivery; those of paused topics do not count. "
        "While sorted tables cannot be read, it is the time up to which they were read that counts.",
        context.delayed.delays.timers.overdue_ms(context.clock.now_ms()) / 1000,
    )
    yield _histogram(
        "timer_lateness_seconds",
        "Time from the moment at which a delayed message was due to its append to its queue.",
        metrics.timer_lateness_s,
        metrics.timer_lateness_s.total,
    )
    yield _gauge(
        "rocketmq_differing_groups",
        "RocketMQ groups whose members subscribe to different messages.",
        len(context.groups.rocketmq_members.differing()),
    )


def _transactions(context: HttpContext) -> Iterator[Metric]:
    yield _gauge("half_messages_open", "Half messages that are open.", len(context.transactions.halves.state))
    counts = context.monitoring.metrics.check_backs
    results = {
        ("sent",): counts.requests,
        ("without_producer",): counts.without_producer,
        ("given_up",): counts.given_up,
    }
    doc = "Check-backs of half messages: sent, counted without a producer to ask, and half messages given up."
    yield _labelled("check_backs", doc, ("result",), results)


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
    tls = context.monitoring.server.tls_counts
    handshakes = {("completed",): tls.completed, ("failed",): tls.failed, ("without_tls",): tls.plain_refused}
    doc = "TLS handshakes: completed, failed, and connections without TLS that tls.mode=required refused."
    yield _labelled("tls_handshakes", doc, ("result",), handshakes)
    yield _gauge("tls_handshakes_unfinished", "TLS handshakes that have begun and not ended.", tls.unfinished)
    yield _gauge(
        "tls_certificate_expires_seconds",
        "Unix time at which the broker's certificate expires; 0 without one.",
        tls.certificate_expires_s,
    )
    yield _gauge("answer_bytes", "Bytes of unsent answers.", connections.answer_bytes)
    yield _gauge("request_bytes", "Bytes of unfinished requests.", connections.request_bytes)


def _log(context: HttpContext) -> Iterator[Metric]:
    store = context.store
    yield _gauge("log_next_position", "The position of the next unit, in bytes.", store.next_position)
    yield _gauge("log_written_position", "The log below this position in bytes survives kill -9.", store.written)
    yield _gauge("log_durable_position", "The log below this position in bytes survives a power loss.", store.durable)
    fsyncs = context.monitoring.metrics.fsync_s
    yield _histogram("fsync_seconds", "Duration of the fsyncs of the log.", fsyncs, fsyncs.total)
    used_bytes, total_bytes = store.write_state.usage
    yield _gauge("disk_used_bytes", "Bytes of the disk of the data directory that are in use.", used_bytes)
    yield _gauge("disk_total_bytes", "Size of the disk of the data directory.", total_bytes)
    yield _counter(
        "segments_removed",
        "Segments that were removed because no live message was left in them.",
        store.retention.dead_segments.removed_count,
    )
    sealed = context.monitoring.sealed_data
    yield _counter("checked_bytes", "Bytes of sealed data that the background check has read.", sealed.read_bytes)
    doc = "Damaged places in sealed segments, indexes and tables, as the background check found them."
    yield _gauge("damaged_places", doc, sealed.damaged_places)
    yield _gauge("topics", "Topics.", len(context.topics))
    yield _gauge("groups", "Groups with committed offsets or members.", len(known_groups(context)))


def _process(context: HttpContext) -> Iterator[Metric]:
    pauses = context.monitoring.metrics.gc_pauses
    yield _counter("gc_pauses", "Pauses of Python's garbage collector.", pauses.count)
    yield _counter("gc_pause_seconds", "Total length of the pauses of Python's garbage collector.", pauses.total_s)
    yield _gauge("gc_pause_longest_seconds", "Longest pause of Python's garbage collector.", pauses.longest_s)
    memory = resident_bytes()
    watchdog = context.monitoring.watchdog
    yield _histogram("loop_turn_seconds", "Length of the turns of the event loop.", watchdog, watchdog.total_s)
    long = {(kind,): count for kind, count in watchdog.long.items()}
    yield _labelled(
        "long_loop_turns", "Turns of the event loop of 100 ms and more, by the kind of work.", ("kind",), long
    )
    yield _gauge(
        "loop_turn_longest_seconds", "Longest turn of the event loop.", max(watchdog.longest_s.values(), default=0.0)
    )
    is_ready = not context.monitoring.not_ready_reason()
    yield _gauge("ready", "1 while the broker serves all requests, else 0; GET /readyz has the reason.", int(is_ready))
    yield _gauge("resident_memory_bytes", "Resident memory of the process.", memory["resident"])
    yield _gauge("anonymous_memory_bytes", "Resident memory that no file backs.", memory["anonymous"])
    yield _gauge(
        "uptime_seconds",
        "Time since the broker started.",
        (context.clock.mono_ms() - context.monitoring.started_mono_ms) / 1000,
    )


def _compatible(context: HttpContext) -> Iterator[Metric]:
    """Yield what kafka_exporter and RocketMQ 5 say about the broker."""
    yield GaugeMetricFamily("kafka_brokers", "Number of brokers.", value=len(context.monitoring.nodes.all))
    info = gauge("kafka_broker_info", "The broker's id, and the address that Kafka clients get.", "id", "address")
    info.add_metric((str(context.monitoring.nodes.own.id), endpoint(*context.monitoring.addresses.kafka)), 1)
    yield info
    options, store = context.options.rocketmq, context.store
    node = (options.cluster, "broker", options.broker)
    for name, doc, value in (
        ("broker_permission", "The broker's permission: 2 write, 4 read, 6 both.", PERM_READ_WRITE),
        ("topic_number", "Number of topics.", len(context.topics)),
        ("consumer_group_number", "Number of groups that have a config.", len(context.groups.rocketmq_groups.all())),
    ):
        family = gauge(f"rocketmq_{name}", doc, *NODE_LABELS)
        family.add_metric(node, value)
        yield family
    storage = ("local", "disk")
    for name, doc, value in (
        ("storage_size", "Bytes of the disk that are in use.", store.write_state.usage[0]),
        ("storage_flush_behind_bytes", "Bytes of the log that are not synced yet.", store.written - store.durable),
    ):
        family = gauge(f"rocketmq_{name}", doc, *NODE_LABELS, "storage_type", "storage_medium")
        family.add_metric(node + storage, value)
        yield family


def _histogram(name: str, doc: str, found: Buckets, total: float) -> Metric:
    family = HistogramMetricFamily(f"duolog_{name}", doc)
    family.add_metric((), found.buckets(), total)
    return family


def _counter(name: str, doc: str, value: float) -> Metric:
    return CounterMetricFamily(f"duolog_{name}", doc, value=value)


def _gauge(name: str, doc: str, value: float) -> Metric:
    return GaugeMetricFamily(f"duolog_{name}", doc, value=value)


def _labelled(name: str, doc: str, labels: tuple[str, ...], counts: Mapping[Any, int]) -> Metric:
    family = CounterMetricFamily(f"duolog_{name}", doc, labels=labels)
    for values, count in counts.items():
        family.add_metric(values, count)
    return family
