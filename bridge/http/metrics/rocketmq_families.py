"""Metrics of RocketMQ requests, clients and transactions, with the names and labels of a RocketMQ 5 broker.

A broker that exports OpenTelemetry's metrics to Prometheus adds the unit to names: the documentation says
`rocketmq_rpc_latency`, and a scrape says `rocketmq_rpc_latency_milliseconds`. Both names are exported here.

Sources: BrokerMetricsConstant.java, RemotingMetricsConstant.java, DefaultStoreMetricsConstant.java, their managers.
"""

from collections import Counter
from collections.abc import Generator, Iterable, Iterator
from typing import Final

from prometheus_client.core import HistogramMetricFamily, Metric

from duolog.bridge.http.context import HttpContext
from duolog.bridge.http.metrics.lines import FamilyLines, Scrape, counter, gauge, in_parts, labelled
from duolog.bridge.http.metrics.topic_families import NODE_LABELS, STORAGE_LABELS, node_labels
from duolog.bridge.rocketmq.groups.consumer_group import Client
from duolog.bridge.rocketmq.requests.admission import Kind
from duolog.protocol.rocketmq.names import DLQ_PREFIX
from duolog.protocol.rocketmq.remoting import LANGUAGES
from duolog.txn.half_verdicts import HalfVerdict

# The names of thread pools in BrokerMetricsManager.java that stand for the kinds of requests here.
PROCESSORS: Final = {
    Kind.SEND: "send",
    Kind.TRANSACTION: "transaction",
    Kind.ACK: "ack",
    Kind.PULL: "pull",
    Kind.QUERY: "query_message",
    Kind.CLIENT: "client_manager",
    Kind.ADMIN: "admin",
}
SIZE_BOUNDS: Final = (1 << 10, 4 << 10, 512 << 10, 1 << 20, 2 << 20, 4 << 20)  # BrokerMetricsManager.java
LATENCY: Final = ("latency", "latency_milliseconds")  # What the names of times end in.
CLIENT_KINDS_MAX: Final = 100  # Pairs of language and version with series of their own.
REMOTING: Final = "remoting"


def rocketmq_families(context: HttpContext) -> Iterator[Metric]:
    """Yield the families whose labels are names from tables of the broker."""
    options = context.options.rocketmq
    node = (options.cluster, "broker", options.broker)
    yield _watermark(context, node)
    yield from _rpc_latency(context, node)
    yield _message_size(context, node)
    yield from _finish_latency(context, node)
    family = gauge("rocketmq_storage_dispatch_behind_bytes", "Always 0: an append also indexes.", *_STORAGE)
    family.add_metric((*node, "local", "disk"), 0)
    yield family


def client_families(context: HttpContext, scrape: Scrape) -> Iterator[FamilyLines | None]:
    """Yield the families of clients, transactions and dead letters, after None between slices."""
    node = node_labels(context)
    lines = yield from _producer_lines(context, node)
    family = gauge("rocketmq_producer_connections", "Connections of producers of RocketMQ groups.", *_CLIENT_LABELS)
    yield FamilyLines(family, in_parts(lines))
    for verdict, name, doc in (
        (HalfVerdict.COMMITTED, "commit", "Half messages of a topic that were committed since the broker started."),
        (HalfVerdict.ROLLED_BACK, "rollback", "Half messages of a topic that were rolled back since the start."),
    ):
        name = f"rocketmq_{name}_messages_total"
        verdicts = _verdict_lines(context, scrape, name, node, verdict)
        yield FamilyLines(counter(name, doc, *NODE_LABELS, "topic"), in_parts(verdicts))
    doc = "Messages that became dead letters of a group since its dead-letter topic was created."
    labels = (*NODE_LABELS, "consumer_group", "topic", "is_system")
    yield FamilyLines(counter(_DEAD, doc, *labels), in_parts(_dead_letter_lines(context, scrape, node)))


_STORAGE: Final = (*NODE_LABELS, *STORAGE_LABELS)
_CLIENT_LABELS: Final = (*NODE_LABELS, "language", "version", "protocol_type")
_DEAD: Final = "rocketmq_send_to_dlq_messages_total"


def kind_of(client: Client) -> tuple[str, str]:
    """Return the values of the labels `language` and `version` of a client: "java", and the ordinal in MQVersion."""
    language = client.language if client.language in LANGUAGES else "OTHER"
    return language.lower(), str(client.version)


def counted_clients(clients: Iterable[Client], counts: Counter[tuple[str, str]]) -> None:
    """Count clients by language and version. Beyond CLIENT_KINDS_MAX pairs they are counted as "other"."""
    for client in clients:
        kind = kind_of(client)
        counts[kind if kind in counts or len(counts) < CLIENT_KINDS_MAX else ("other", "other")] += 1


# -- Requests


def _watermark(context: HttpContext, node: tuple[str, str, str]) -> Metric:
    doc = "RocketMQ requests that wait, by the name that RocketMQ gives the thread pool of their kind."
    family = gauge("rocketmq_processor_watermark", doc, *NODE_LABELS, "processor")
    for kind, count in zip(Kind, context.monitoring.rocketmq_admission.in_work, strict=True):
        family.add_metric((*node, PROCESSORS[kind]), count)
    return family


def _rpc_latency(context: HttpContext, node: tuple[str, str, str]) -> Iterator[Metric]:
    doc = (
        "Milliseconds from the arrival of a RocketMQ request to its answer, for sends with the wait for a quota; "
        "is_long_polling: a read that waited."
    )
    labels = (*NODE_LABELS, "protocol_type", "request_code", "is_long_polling")
    metrics = context.monitoring.metrics
    for ending in LATENCY:
        family = HistogramMetricFamily(f"rocketmq_rpc_{ending}", doc, labels=labels)
        for is_held, by_name in (("false", metrics.rpc_ms), ("true", metrics.held_rpc_ms)):
            for name, found in by_name.items():
                family.add_metric((*node, REMOTING, name.lower(), is_held), found.buckets(), found.total)
        yield family


def _message_size(context: HttpContext, node: tuple[str, str, str]) -> Metric:
    """Sizes of a batch's records are their mean size, so that a produced batch costs one addition."""
    metrics = context.monitoring.metrics
    family = HistogramMetricFamily(
        "rocketmq_message_size", "Bytes of the messages of both client protocols; in a batch, their mean.",
        labels=NODE_LABELS,
    )  # fmt: skip
    sizes, total = metrics.records_of_size, sum(metrics.bytes_in.values())
    buckets = [(str(float(bound)), sum(sizes[: bound.bit_length()])) for bound in SIZE_BOUNDS]
    family.add_metric(node, [*buckets, ("+Inf", sum(sizes))], total)
    return family


def _finish_latency(context: HttpContext, node: tuple[str, str, str]) -> Iterator[Metric]:
    found = context.transactions.halves.verdict_counts.commit_s
    doc = "Seconds from the append of half messages to their commits."
    family = HistogramMetricFamily("rocketmq_finish_message_latency", doc, labels=NODE_LABELS)
    family.add_metric(node, found.buckets(), found.total)
    yield family


# -- Clients and messages


def _producer_lines(context: HttpContext, node: str) -> Generator[None, None, list[str]]:
    counts: Counter[tuple[str, str]] = Counter()
    for channels in [*context.groups.rocketmq_members.producers.groups.values()]:
        counted_clients([*channels.values()], counts)
        yield None
    name = "rocketmq_producer_connections"
    return [
        f"{name}{{{node},{labelled(language=language, version=version, protocol_type=REMOTING)}}} {count}\n"
        for (language, version), count in counts.items()
    ]


def _verdict_lines(context: HttpContext, scrape: Scrape, name: str, node: str, verdict: HalfVerdict) -> Iterator[str]:
    left = scrape.topics_max
    for kafka_name, count in context.transactions.halves.verdict_counts.of(verdict):
        topic = context.topics.by_kafka_name(kafka_name)
        if topic is not None and left:
            left -= 1
            yield f"{name}{{{node},{labelled(topic=topic.rocketmq_name)}}} {count}\n"


def _dead_letter_lines(context: HttpContext, scrape: Scrape, node: str) -> Iterator[str]:
    left = scrape.groups_max
    for topic in [*context.topics.all()]:
        if left and topic.rocketmq_name.startswith(DLQ_PREFIX):
            left -= 1
            group = topic.rocketmq_name.removeprefix(DLQ_PREFIX)
            labels = labelled(consumer_group=group, topic=topic.rocketmq_name, is_system="false")
            yield f"{_DEAD}{{{node},{labels}}} {sum([queue.visible_end for queue in topic.queues])}\n"
