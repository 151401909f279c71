"""Metrics of topics and queues: Duolog's own, those of kafka_exporter, and those of RocketMQ 5.

All values are read from offsets and indexes that the broker keeps anyway, so a message costs nothing for its metrics.
Topics that the broker created for its own use are left out.

Counters of a topic are sums of visible end offsets, which begin at 0 when the topic is created and survive restarts.
Only a power loss may lower them, by entries that were not durable.

Sources: kafka_exporter.go; BrokerMetricsManager.java, DefaultStoreMetricsManager.java.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from operator import attrgetter
from typing import Final

from duolog.bridge.http.context import HttpContext
from duolog.bridge.http.metrics.lines import (
    LINES_IN_PART,
    FamilyLines,
    Scrape,
    counter,
    escaped,
    gauge,
    labelled,
)
from duolog.bridge.state.topic_table import Topic
from duolog.protocol.rocketmq.names import DLQ_PREFIX, HALF_TOPIC, RETRY_PREFIX
from duolog.store.index.queue import Queue

NODE_LABELS: Final = ("cluster", "node_type", "node_id")
STORAGE_LABELS: Final = ("storage_type", "storage_medium")
RECEIVED_LABELS: Final = ("topic", "message_type", "is_system")


def topic_families(context: HttpContext, scrape: Scrape) -> Iterator[FamilyLines]:
    """Yield the families of the topics that the scrape's limits allow."""
    topics = _chosen(context.topics.all(), scrape)
    yield from _own_families(topics)
    yield from _kafka_families(topics, context.monitoring.nodes.own.id)
    yield from _rocketmq_families(context, topics)


def _chosen(all_topics: Iterable[Topic], scrape: Scrape) -> list[Topic]:
    chosen: list[Topic] = []
    queue_count = 0
    for topic in all_topics:
        if not topic.is_listed:
            continue
        if len(chosen) == scrape.topics_max or queue_count + len(topic.queues) > scrape.queues_max:
            scrape.omitted_topics += 1
            continue
        chosen.append(topic)
        queue_count += len(topic.queues)
    return chosen


def _own_families(topics: Sequence[Topic]) -> Iterator[FamilyLines]:
    def labels_of(topic: Topic) -> str:
        return labelled(topic=topic.name)

    name = "duolog_topic_messages_in_total"
    doc = "Messages that became visible in a topic since it was created, markers of Kafka transactions included."
    yield FamilyLines(counter(name, doc, "topic"), _topic_lines(name, topics, labels_of, _messages_of))
    name, doc = "duolog_topic_bytes_in_total", "Bytes of frames appended to a topic since it was created."
    yield FamilyLines(counter(name, doc, "topic"), _topic_lines(name, topics, labels_of, _bytes_of))
    name, doc = "duolog_topic_size_bytes", "Bytes of the frames that a topic's queues have at present."
    yield FamilyLines(gauge(name, doc, "topic"), _topic_lines(name, topics, labels_of, _size_of))


def _kafka_families(topics: Sequence[Topic], node_id: int) -> Iterator[FamilyLines]:
    name = "kafka_topic_partitions"
    family = gauge(name, "Number of partitions of a topic.", "topic")
    lines = _topic_lines(name, topics, lambda topic: labelled(topic=topic.kafka_name), lambda topic: len(topic.queues))
    yield FamilyLines(family, lines)
    for name, doc, value in (
        ("current_offset", "High watermark of a partition: the offset of the next message.", attrgetter("visible_end")),
        ("oldest_offset", "Log start offset of a partition.", attrgetter("start_offset")),
        ("leader", "Broker id of the leader of a partition.", lambda _: node_id),
        ("replicas", "Number of replicas of a partition; always 1.", lambda _: 1),
        ("in_sync_replica", "Number of in-sync replicas of a partition; always 1.", lambda _: 1),
        ("leader_is_preferred", "1 if the preferred broker leads a partition; always 1.", lambda _: 1),
        ("under_replicated_partition", "1 if a partition is under-replicated; always 0.", lambda _: 0),
    ):
        name = f"kafka_topic_partition_{name}"
        yield FamilyLines(gauge(name, doc, "topic", "partition"), _queue_lines(name, topics, value))


def _rocketmq_families(context: HttpContext, topics: Sequence[Topic]) -> Iterator[FamilyLines]:
    node = node_labels(context)
    received = [topic for topic in topics if not topic.rocketmq_name.startswith((RETRY_PREFIX, DLQ_PREFIX))]

    def of_received(topic: Topic) -> str:
        kind = topic.configs.get("message.type", "NORMAL").lower()
        return f"{node},{labelled(topic=topic.rocketmq_name, message_type=kind, is_system='false')}"

    for name, doc, value in (
        ("messages_in", "Messages that became visible in a topic; message_type is the topic's.", _messages_of),
        ("throughput_in", "Bytes of frames appended to a topic; message_type is the topic's.", _bytes_of),
    ):
        name = f"rocketmq_{name}_total"
        counted = counter(name, doc, *NODE_LABELS, *RECEIVED_LABELS)
        yield FamilyLines(counted, _topic_lines(name, received, of_received, value))

    def of_pending(topic: Topic) -> str:
        place = labelled(topic=topic.rocketmq_name, storage_type="local", storage_medium="disk")
        return f"{node},{place}"

    name = "rocketmq_timing_messages"
    family = gauge(name, "Delayed messages of a topic that are pending.", *NODE_LABELS, "topic", *STORAGE_LABELS)
    lists = context.delayed.lists
    yield FamilyLines(family, _topic_lines(name, received, of_pending, lambda topic: lists.count(topic.number)))
    name = "rocketmq_half_messages"
    family = gauge(name, "Half messages that are open; topic is the topic that stores them.", *NODE_LABELS, "topic")
    half_count = len(context.transactions.halves.state)
    yield FamilyLines(family, [f"{name}{{{node},{labelled(topic=HALF_TOPIC)}}} {half_count}\n".encode()])


def node_labels(context: HttpContext) -> str:
    """Return the labels with which RocketMQ 5 names the broker, as they stand between braces."""
    options = context.options.rocketmq
    return labelled(cluster=options.cluster, node_type="broker", node_id=options.broker)


# -- Lines


def _topic_lines(
    name: str, topics: Sequence[Topic], labels_of: Callable[[Topic], str], value_of: Callable[[Topic], int]
) -> Iterator[bytes]:
    for topic in topics:  # One in a part, because a topic may have thousands of queues.
        yield f"{name}{{{labels_of(topic)}}} {value_of(topic)}\n".encode()


def _queue_lines(name: str, topics: Sequence[Topic], value_of: Callable[[Queue], int]) -> Iterator[bytes]:
    for topic in topics:
        begin = f'{name}{{topic="{escaped(topic.kafka_name)}",partition="'
        for at in range(0, len(topic.queues), LINES_IN_PART):
            some = enumerate(topic.queues[at : at + LINES_IN_PART], at)
            yield "".join([f'{begin}{queue_id}"}} {value_of(queue)}\n' for queue_id, queue in some]).encode()


def _messages_of(topic: Topic) -> int:
    return sum([queue.visible_end for queue in topic.queues])


def _bytes_of(topic: Topic) -> int:
    return sum([queue.index.total_bytes for queue in topic.queues])


def _size_of(topic: Topic) -> int:
    return sum([queue.size_bytes for queue in topic.queues])
