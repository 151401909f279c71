"""Metrics of groups: Duolog's own, those of kafka_exporter, and those of RocketMQ 5.

The lag of a queue is computed once (`bridge/state/lag.py`) and written into the lines of all families, so that they
agree. The lines are kept until all groups are done, because a family's lines must stand together;
`Scrape.group_bytes_max` limits them. The families named kafka_ have the groups of both client protocols by their Kafka
names, those named rocketmq_ by their RocketMQ names.

Sources: kafka_exporter.go; BrokerMetricsManager.java.
"""

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from operator import attrgetter
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
from duolog.bridge.http.metrics.rocketmq_families import LATENCY, REMOTING, counted_clients
from duolog.bridge.http.metrics.topic_families import NODE_LABELS, node_labels
from duolog.bridge.rocketmq.admin.consume_counts import Total
from duolog.bridge.rocketmq.pop.pop_checkpoints import pending_of
from duolog.bridge.state.lag import QueueLag
from duolog.bridge.state.topic_table import Topic
from duolog.protocol.rocketmq.names import RETRY_PREFIX
from duolog.store.index.queue import Queue

PARTITION: Final = ("consumergroup", "topic", "partition")
TOPIC: Final = ("consumergroup", "topic")
READ_LABELS: Final = (*NODE_LABELS, "consumer_group", "topic", "is_retry", "is_system")
CONNECTION_LABELS: Final = (
    *(*NODE_LABELS, "consumer_group", "language", "version"),
    *("consume_mode", "protocol_type", "is_system"),
)

LAG: Final = "duolog_group_lag_messages"
NEW_LAG: Final = "duolog_group_lag_without_position_messages"
KAFKA_OFFSET: Final = "kafka_consumergroup_current_offset"
KAFKA_OFFSET_SUM: Final = "kafka_consumergroup_current_offset_sum"
KAFKA_LAG: Final = "kafka_consumergroup_lag"
KAFKA_LAG_SUM: Final = "kafka_consumergroup_lag_sum"
KAFKA_MEMBERS: Final = "kafka_consumergroup_members"
ROCKETMQ_LAG: Final = "rocketmq_consumer_lag_messages"
READY: Final = "rocketmq_consumer_ready_messages"
IN_FLIGHT: Final = "rocketmq_consumer_inflight_messages"
QUEUEING: Final = "rocketmq_consumer_queueing_"
LAG_TIME: Final = "rocketmq_consumer_lag_"
CONNECTIONS: Final = "rocketmq_consumer_connections"
ROCKETMQ_OUT: Final = "rocketmq_messages_out_total"

FAMILIES: Final[dict[str, Metric]] = {
    LAG: gauge(LAG, "Messages of a topic that a group has not read.", "group", "topic"),
    NEW_LAG: gauge(NEW_LAG, "The part of the lag in queues without a committed offset.", "group", "topic"),
    KAFKA_OFFSET: gauge(KAFKA_OFFSET, "Committed offset of a group in a partition.", *PARTITION),
    KAFKA_OFFSET_SUM: gauge(KAFKA_OFFSET_SUM, "Sum of the committed offsets of a group in a topic.", *TOPIC),
    KAFKA_LAG: gauge(KAFKA_LAG, "Messages after the committed offset of a group in a partition.", *PARTITION),
    KAFKA_LAG_SUM: gauge(KAFKA_LAG_SUM, "Messages after the committed offsets of a group in a topic.", *TOPIC),
    KAFKA_MEMBERS: gauge(KAFKA_MEMBERS, "Members of a group.", "consumergroup"),
    ROCKETMQ_LAG: gauge(ROCKETMQ_LAG, "Messages of a topic that a group has not read.", *READ_LABELS),
    READY: gauge(READY, "Messages of a topic that a group has not been given.", *READ_LABELS),
    IN_FLIGHT: gauge(IN_FLIGHT, "Messages of a topic that a group was given and has not consumed.", *READ_LABELS),
    **{
        f"{QUEUEING}{ending}": gauge(
            f"{QUEUEING}{ending}", "Milliseconds since the append of the oldest message not given to a group.",
            *READ_LABELS,
        )
        for ending in LATENCY
    },
    **{
        f"{LAG_TIME}{ending}": gauge(
            f"{LAG_TIME}{ending}", "Milliseconds since the append of the oldest message that a group has not read.",
            *READ_LABELS,
        )
        for ending in LATENCY
    },
    CONNECTIONS: gauge(CONNECTIONS, "Connections of a RocketMQ group's consumers.", *CONNECTION_LABELS),
}  # fmt: skip


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
    for name, doc, value_of in OUT:
        yield FamilyLines(counter(name, doc, *READ_LABELS), in_parts(_given(context, name, value_of)))


OUT: Final = (
    (
        "rocketmq_messages_out_total",
        "Messages that pulls and pops gave to a RocketMQ group since the broker started.",
        attrgetter("messages"),
    ),
    (
        "rocketmq_throughput_out_total",
        "Bytes of the messages that pulls and pops gave to a RocketMQ group since the broker started.",
        attrgetter("size"),
    ),
)
NEVER_MS: Final = 1 << 63
_MODES: Final = {"actively": "pull", "passively": "push"}  # ConsumeType.java#getTypeCN


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
    ready: int = 0
    in_flight: int = 0
    oldest_unread_ms: int = NEVER_MS
    oldest_ready_ms: int = NEVER_MS


class _GroupLines:
    """The lines of all groups by family. `bytes_left` is what may be added."""

    def __init__(self, context: HttpContext, bytes_max: int) -> None:
        self.lines: dict[str, list[str]] = {name: [] for name in FAMILIES}
        self.bytes_left = bytes_max
        self._context = context
        self._now_ms = context.clock.now_ms()
        self._node = node_labels(context)

    def add_group(self, name: str) -> Iterator[None]:
        """Add the lines of a group, as far as there is room; at each None the event loop may run."""
        self._add(KAFKA_MEMBERS, labelled(consumergroup=name), member_count(self._context, name))
        rocketmq_name = self._context.groups.rocketmq_groups.name_of(name)
        self._add_connections(rocketmq_name)
        popped = yield from pending_of(self._context.groups.rocketmq_pop_checkpoints, name)
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
                found = self._begin_topic(name, rocketmq_name, each.topic)
            lag, key = each.lag, each.queue.key
            self._add_queue(found, each, lag)
            if lag or key in popped:
                self._add_unread(found, each.queue, lag, rocketmq_name, popped[key])
        if found is not None:
            self._add_topic(found)

    def _add_connections(self, group: str) -> None:
        members = self._context.groups.rocketmq_members.consumers.get(group)
        if members is None:
            return
        counts: Counter[tuple[str, str]] = Counter()
        counted_clients(members.channels.values(), counts)
        mode = members.consume_type.removeprefix("CONSUME_").lower()
        for (language, version), count in counts.items():
            labels = labelled(
                consumer_group=group, language=language, version=version, consume_mode=_MODES.get(mode, mode),
                protocol_type=REMOTING, is_system="false",
            )  # fmt: skip
            self._add(CONNECTIONS, f"{self._node},{labels}", count)

    def _begin_topic(self, group: str, rocketmq_group: str, topic: Topic) -> _TopicLag:
        return _TopicLag(
            topic,
            own=labelled(group=group, topic=topic.name),
            kafka=labelled(consumergroup=group, topic=topic.kafka_name),
            rocketmq=_read_labels(self._node, rocketmq_group, topic),
        )

    def _add_queue(self, found: _TopicLag, each: QueueLag, lag: int) -> None:
        found.lag += lag
        if each.position is not None:
            offset = each.position.offset
            found.offset += offset
            found.lag_behind_offsets += lag
            labels = f'{found.kafka},partition="{each.queue.queue_id}"'
            self._add(KAFKA_OFFSET, labels, offset)
            self._add(KAFKA_LAG, labels, lag)

    def _add_unread(self, found: _TopicLag, queue: Queue, lag: int, group: str, popped: int) -> None:
        """Add what a group with unread messages in a queue was given of them, and how old they are."""
        context, end = self._context, queue.visible_end
        first = end - lag
        given = min(end, max(context.groups.rocketmq_pulled_offsets.find(group, queue.key), first))
        found.ready += end - given
        found.in_flight += given - first + popped
        stored_ms_at = context.store.reader.stored_ms_at
        unread_ms = stored_ms_at(queue, first) if lag else 0
        ready_ms = unread_ms if given == first else stored_ms_at(queue, given) if given < end else 0
        found.oldest_unread_ms = min(found.oldest_unread_ms, unread_ms or NEVER_MS)
        found.oldest_ready_ms = min(found.oldest_ready_ms, ready_ms or NEVER_MS)

    def _add_topic(self, found: _TopicLag) -> None:
        self._add(LAG, found.own, found.lag)
        self._add(NEW_LAG, found.own, found.lag - found.lag_behind_offsets)
        self._add(KAFKA_OFFSET_SUM, found.kafka, found.offset)
        self._add(KAFKA_LAG_SUM, found.kafka, found.lag_behind_offsets)
        self._add(ROCKETMQ_LAG, found.rocketmq, found.lag)
        self._add(READY, found.rocketmq, found.ready)
        self._add(IN_FLIGHT, found.rocketmq, found.in_flight)
        for ending in LATENCY:
            self._add(f"{QUEUEING}{ending}", found.rocketmq, max(0, self._now_ms - found.oldest_ready_ms))
            self._add(f"{LAG_TIME}{ending}", found.rocketmq, max(0, self._now_ms - found.oldest_unread_ms))

    def _add(self, name: str, labels: str, value: int) -> None:
        line = f"{name}{{{labels}}} {value}\n"
        self.lines[name].append(line)
        self.bytes_left -= len(line)


def _given(context: HttpContext, name: str, value_of: Callable[[Total], int]) -> Iterator[str]:
    node, counts = node_labels(context), context.groups.rocketmq_consume_counts
    for (group, number), total in counts.totals(context.clock.mono_ms()):
        topic = context.topics.by_number(number)
        if topic is not None:
            yield f"{name}{{{_read_labels(node, group, topic)}}} {value_of(total)}\n"


def _read_labels(node: str, group: str, topic: Topic) -> str:
    """Return the text of the labels READ_LABELS between the braces; `group` is a RocketMQ name."""
    is_retry, is_system = topic.rocketmq_name.startswith(RETRY_PREFIX), not topic.is_listed
    read = labelled(
        consumer_group=group, topic=topic.rocketmq_name, is_retry=_truth(is_retry), is_system=_truth(is_system)
    )
    return f"{node},{read}"


def _truth(value: bool) -> str:
    return "true" if value else "false"
