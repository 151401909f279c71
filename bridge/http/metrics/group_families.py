"""Metrics of groups: Duolog's own, those of kafka_exporter, and those of RocketMQ 5.

The lag of a queue is computed once (`bridge/state/lag.py`) and written into the lines of all families, so that they
agree. The lines are kept until all groups are done, because a family's lines must stand together;
`Scrape.group_bytes_max` limits them. The families named kafka_ have the groups of both client protocols by their Kafka
names, those named rocketmq_ by their RocketMQ names.

Sources: kafka_exporter.go; BrokerMetricsManager.java.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from prometheus_client.core import Metric

from duolog.bridge.http.api.group_views import known_groups, member_count
from duolog.bridge.http.context import HttpContext
from duolog.bridge.http.metrics.lines import (
    FamilyLines,
    Scrape,
    counter,
    gauge,
    in_parts,
    labelled,
)
from duolog.bridge.http.metrics.topic_families import NODE_LABELS, node_labels
from duolog.bridge.state.lag import QueueLag
from duolog.bridge.state.topic_table import Topic
from duolog.protocol.rocketmq.names import RETRY_PREFIX

PARTITION: Final = ("consumergroup", "topic", "partition")
TOPIC: Final = ("consumergroup", "topic")
READ_LABELS: Final = (*NODE_LABELS, "consumer_group", "topic", "is_retry", "is_system")
OUT_DOC: Final = "Messages that pulls and pops gave to a RocketMQ group since the broker started."

LAG: Final = "duolog_group_lag_messages"
NEW_LAG: Final = "duolog_group_lag_without_position_messages"
KAFKA_OFFSET: Final = "kafka_consumergroup_current_offset"
KAFKA_OFFSET_SUM: Final = "kafka_consumergroup_current_offset_sum"
KAFKA_LAG: Final = "kafka_consumergroup_lag"
KAFKA_LAG_SUM: Final = "kafka_consumergroup_lag_sum"
KAFKA_MEMBERS: Final = "kafka_consumergroup_members"
ROCKETMQ_LAG: Final = "rocketmq_consumer_lag_messages"
ROCKETMQ_OUT: Final = "rocketmq_messages_out_total"

FAMILIES: Final[dict[str, Metric]] = {
    LAG: gauge(LAG, "Messages of a topic that a group has not read.", "group", "topic"),
    NEW_LAG: gauge(NEW_LAG, "The part of the lag in queues without a committed offset.", "group", "topic"),
    KAFKA_OFFSET: gauge(KAFKA_OFFSET, "Committed offset of a group in a partition.", *PARTITION),
    KAFKA_OFFSET_SUM: gauge(KAFKA_OFFSET_SUM, "Sum of the committed offsets of a group in a topic.", *TOPIC),
    KAFKA_LAG: gauge(KAFKA_LAG, "Messages behind the committed offset of a group in a partition.", *PARTITION),
    KAFKA_LAG_SUM: gauge(KAFKA_LAG_SUM, "Messages behind the committed offsets of a group in a topic.", *TOPIC),
    KAFKA_MEMBERS: gauge(KAFKA_MEMBERS, "Members of a group.", "consumergroup"),
    ROCKETMQ_LAG: gauge(ROCKETMQ_LAG, "Messages of a topic that a group has not read.", *READ_LABELS),
}


def group_families(context: HttpContext, scrape: Scrape) -> Iterator[FamilyLines | None]:
    """Yield the families of the groups that the scrape's limits allow, after None between slices."""
    found = _GroupLines(context, scrape.group_bytes_max)
    names = list(known_groups(context))
    shown_count = 0
    for name in names[: scrape.groups_max]:
        yield from found.add_group(name)
        if found.bytes_left <= 0:
            break
        shown_count += 1
    scrape.omitted_groups += len(names) - shown_count
    for name, family in FAMILIES.items():
        yield FamilyLines(family, in_parts(found.lines[name]))
    yield FamilyLines(counter(ROCKETMQ_OUT, OUT_DOC, *READ_LABELS), in_parts(_messages_out(context)))


@dataclass(slots=True)
class _TopicLag:
    """The sums of a group in one topic, and the labels of its lines."""

    topic: Topic
    own: str
    kafka: str
    rocketmq: str
    offset: int = 0
    lag: int = 0
    lag_behind_offsets: int = 0


class _GroupLines:
    """The lines of all groups by family. `bytes_left` is what may be added."""

    def __init__(self, context: HttpContext, bytes_max: int) -> None:
        self.lines: dict[str, list[str]] = {name: [] for name in FAMILIES}
        self.bytes_left = bytes_max
        self._context = context
        self._node = node_labels(context)

    def add_group(self, name: str) -> Iterator[None]:
        """Add the lines of a group, as far as there is room; at each None the event loop may run."""
        self._add(KAFKA_MEMBERS, labelled(consumergroup=name), member_count(self._context, name))
        found: _TopicLag | None = None
        for each in self._context.groups.lags.of_queues(name):
            if self.bytes_left <= 0:
                return
            if each is None:
                yield None
                continue
            if found is None or found.topic is not each.topic:
                if found is not None:
                    self._add_topic(found)
                found = self._begin_topic(name, each.topic)
            self._add_queue(found, each)
        if found is not None:
            self._add_topic(found)

    def _begin_topic(self, group: str, topic: Topic) -> _TopicLag:
        rocketmq_group = self._context.groups.rocketmq_groups.name_of(group)
        return _TopicLag(
            topic,
            own=labelled(group=group, topic=topic.name),
            kafka=labelled(consumergroup=group, topic=topic.kafka_name),
            rocketmq=_read_labels(self._node, rocketmq_group, topic),
        )

    def _add_queue(self, found: _TopicLag, each: QueueLag) -> None:
        lag = each.lag
        found.lag += lag
        if each.position is not None:
            offset = each.position.offset
            found.offset += offset
            found.lag_behind_offsets += lag
            labels = f'{found.kafka},partition="{each.queue.queue_id}"'
            self._add(KAFKA_OFFSET, labels, offset)
            self._add(KAFKA_LAG, labels, lag)

    def _add_topic(self, found: _TopicLag) -> None:
        self._add(LAG, found.own, found.lag)
        self._add(NEW_LAG, found.own, found.lag - found.lag_behind_offsets)
        self._add(KAFKA_OFFSET_SUM, found.kafka, found.offset)
        self._add(KAFKA_LAG_SUM, found.kafka, found.lag_behind_offsets)
        self._add(ROCKETMQ_LAG, found.rocketmq, found.lag)

    def _add(self, name: str, labels: str, value: int) -> None:
        line = f"{name}{{{labels}}} {value}\n"
        self.lines[name].append(line)
        self.bytes_left -= len(line)


def _messages_out(context: HttpContext) -> Iterator[str]:
    node, counts = node_labels(context), context.groups.rocketmq_consume_counts
    for (group, number), count in counts.totals(context.clock.mono_ms()):
        topic = context.topics.by_number(number)
        if topic is not None:
            yield f"{ROCKETMQ_OUT}{{{_read_labels(node, group, topic)}}} {count}\n"


def _read_labels(node: str, group: str, topic: Topic) -> str:
    """Return the labels READ_LABELS as they stand between braces; `group` is a RocketMQ name."""
    is_retry, is_system = topic.rocketmq_name.startswith(RETRY_PREFIX), not topic.is_listed
    read = labelled(
        consumer_group=group, topic=topic.rocketmq_name, is_retry=_truth(is_retry), is_system=_truth(is_system)
    )
    return f"{node},{read}"


def _truth(value: bool) -> str:
    return "true" if value else "false"
