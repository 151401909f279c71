"""DescribeTopicPartitions 0: topics page by page, in the order of their names (KIP-966).

    requested names, or all topics ── without those before the cursor ── by name ── partitions up to the limit
                                                                                       └── cursor of the next page

Java's admin client describes topics with it, and so does kafka-python 3. The rules are those of Apache's broker
(DescribeTopicPartitionsRequestHandler.java).
"""

from collections.abc import Generator, Iterable, Iterator
from heapq import heapify, heappop
from typing import Any, Final, NamedTuple

from duolog.bridge.kafka.context import Describing, KafkaContext
from duolog.bridge.kafka.metadata import NO_NODE, TOPIC_OPERATIONS, error_of_missing
from duolog.bridge.kafka.requests.encoding import encode_in_steps, make_answer
from duolog.bridge.kafka.requests.errors import InvalidRequest
from duolog.bridge.kafka.requests.ordered_connection import OrderedConnection
from duolog.bridge.kafka.requests.repeated_names import unique
from duolog.bridge.kafka.requests.request import NO_THROTTLE, KafkaRequest, Steps
from duolog.bridge.state.topic_table import Topic
from duolog.protocol.kafka.api_messages import ErrorCode, ResponseTypes
from duolog.protocol.kafka.response import Elements

PARTITIONS_MAX: Final = 2000  # In one answer; Apache Kafka: max.request.partition.size.limit.


class _Part(NamedTuple):
    """The partitions of one topic that a page describes."""

    name: str
    topic: Topic | None  # None: no topic has that name.
    partitions: range


class _Page:
    """The topics of one answer, and the start of the next answer."""

    def __init__(self) -> None:
        self.parts: list[_Part] = []
        self.next: tuple[str, int] | None = None  # A topic and its first partition that no page has described.

    def collect(self, context: Describing, names: list[str], start: tuple[str, int], limit: int) -> Iterator[None]:
        """Take up to `limit` partitions of the named topics, in any order of names; each topic is one step."""
        heapify(names)  # A heap sorts only the names that the page needs.
        left = limit
        while names:
            name = heappop(names)
            if not left:
                self.next = name, 0
                return
            topic = context.topics.by_kafka_name(name)
            count = topic.queue_count if topic else 0
            first = min(start[1], count) if name == start[0] else 0
            end = min(first + left, count)
            self.parts.append(_Part(name, topic, range(first, end)))
            if end < count:
                self.next = name, end
                return
            left -= end - first
            yield


def describe_topic_partitions(context: KafkaContext, connection: OrderedConnection, request: KafkaRequest) -> Steps:
    """Describe topics from the cursor on."""
    return make_answer(request, (yield from describe(context, request)), context.barrier())


def describe(context: Describing, request: KafkaRequest) -> Generator[int | None, None, list[bytes]]:
    """Return the body of the answer. A cursor that names no requested topic is an error for each of them."""
    types = request.types
    asked = unique(topic.name for topic in request.body.topics)
    page = _Page()
    try:
        names, start = _from_cursor(context, request, asked)
    except InvalidRequest:
        topics = (_without_partitions(types, name, ErrorCode.invalid_request) for name in asked)
    else:
        limit = min(max(request.body.response_partition_limit, 1), PARTITIONS_MAX)
        yield from page.collect(context, names, start, limit)
        topics = (_described(context, types, part) for part in page.parts)
    next_cursor = None
    if page.next is not None:
        next_cursor = types.Cursor(topic_name=page.next[0], partition_index=page.next[1])
    entity = types.DescribeTopicPartitionsResponse(
        throttle_time=NO_THROTTLE, topics=Elements(topics), next_cursor=next_cursor
    )
    return (yield from encode_in_steps(context, request, entity))


def _from_cursor(context: Describing, request: KafkaRequest, asked: list[str]) -> tuple[list[str], tuple[str, int]]:
    """Return the names that are not before the cursor, and the cursor itself."""
    cursor = request.body.cursor
    start = (cursor.topic_name, cursor.partition_index) if cursor is not None else ("", 0)
    if start[1] < 0:
        raise InvalidRequest(f"the cursor's partition index is {start[1]}")
    if not asked and request.refused is None:  # The cursor's topic may have been deleted since the last page.
        return [name for name in _all_names(context, request) if name >= start[0]], start
    if cursor is not None and start[0] not in asked:
        raise InvalidRequest(f"the cursor's topic {start[0]} is not among the requested topics")
    return [name for name in asked if name >= start[0]], start


def _all_names(context: Describing, request: KafkaRequest) -> Iterable[str]:
    names = (topic.kafka_name for topic in context.topics.all() if topic.is_listed)
    return filter(request.sees_topic, names)


def _described(context: Describing, types: ResponseTypes, part: _Part) -> Any:
    topic, owner = part.topic, context.nodes.owner
    leader = owner.id if owner is not None else NO_NODE
    error, replicas = (ErrorCode.none, (leader,)) if owner is not None else (ErrorCode.leader_not_available, ())
    if topic is None:
        return _without_partitions(types, part.name, error_of_missing(part.name), TOPIC_OPERATIONS)
    return types.DescribeTopicPartitionsResponseTopic(
        error_code=ErrorCode.none,
        name=part.name,
        topic_id=topic.id,
        is_internal=False,
        partitions=Elements(
            types.DescribeTopicPartitionsResponsePartition(
                error_code=error,
                partition_index=partition,
                leader_id=leader,
                leader_epoch=topic.leader_epoch(partition),
                replica_nodes=replicas,
                isr_nodes=replicas,
                # Never null: Java's admin client would fail on it.
                eligible_leader_replicas=(),
                last_known_elr=(),
                offline_replicas=(),
            )
            for partition in part.partitions
        ),
        topic_authorized_operations=TOPIC_OPERATIONS,
    )


def _without_partitions(types: ResponseTypes, name: str, error: ErrorCode, operations: int = -(1 << 31)) -> Any:
    return types.DescribeTopicPartitionsResponseTopic(
        error_code=error, name=name, topic_id=None, partitions=(), topic_authorized_operations=operations
    )
