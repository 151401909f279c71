"""Committed offsets of groups: OffsetCommit 2..9, OffsetFetch 1..9, OffsetDelete 0.

`bridge/state/group_offsets.py` keeps the committed offsets for both client protocols.

Retention times in OffsetCommit are ignored, as in Kafka since 2.1. A request with `require_stable` gets
UNSTABLE_OFFSET_COMMIT for a partition in which an open transaction holds an offset of the group, because the commit of
that transaction may change it.
"""

import struct
from collections.abc import Collection, Generator, Iterable, Iterator, Mapping
from typing import Any

from duolog.bridge.kafka.context import KafkaContext
from duolog.bridge.kafka.group_membership import CONSUMER
from duolog.bridge.kafka.groups.classic_group import ClassicGroup
from duolog.bridge.kafka.groups.coordinator import NAME_CHARACTERS_MAX, GroupCoordinator
from duolog.bridge.kafka.requests.encoding import encode_in_steps, make_answer
from duolog.bridge.kafka.requests.errors import ANSWERABLE, code_of
from duolog.bridge.kafka.requests.ordered_connection import OrderedConnection
from duolog.bridge.kafka.requests.repeated_names import Partitions, by_partition
from duolog.bridge.kafka.requests.request import NO_THROTTLE, KafkaRequest, Steps
from duolog.bridge.records.groups import CommittedOffset
from duolog.bridge.state.client_protocols import ClientProtocol
from duolog.bridge.state.group_offsets import GroupOffset
from duolog.bridge.state.topic_table import Topic
from duolog.protocol.errors import ProtocolError
from duolog.protocol.kafka.api_messages import ErrorCode
from duolog.protocol.kafka.primitive_types import read_classic_string
from duolog.protocol.kafka.response import Elements
from duolog.store.index.queue import Queue

_I32 = struct.Struct(">i")

Results = dict[str, dict[int, ErrorCode]]  # By topic and partition, in the order of the request.


# -- OffsetCommit


def offset_commit(context: KafkaContext, connection: OrderedConnection, request: KafkaRequest) -> Steps:
    """Commit for a member, or for any client while the group has no members. The answer waits for the log."""
    body, types = request.body, request.types
    asked = requested_offsets(body)
    results, positions = yield from check_partitions(context, asked)
    error = _check_committer(context, request)
    promise = None
    if error is ErrorCode.none and positions:
        try:
            promise = context.group_offsets.commit(body.group_id, positions, context.clock.now_ms())
        except ANSWERABLE as refusal:
            results = with_error(results, code_of(refusal))
    elif error is not ErrorCode.none:
        results = {name: dict.fromkeys(partitions, error) for name, partitions in asked.items()}
    topics = Elements(
        types.OffsetCommitResponseTopic(
            name=name,
            partitions=Elements(
                types.OffsetCommitResponsePartition(partition_index=partition, error_code=result)
                for partition, result in partitions.items()
            ),
        )
        for name, partitions in results.items()
    )
    entity = types.OffsetCommitResponse(throttle_time=NO_THROTTLE, topics=topics)
    return make_answer(request, (yield from encode_in_steps(context, request, entity)), promise)


def _check_committer(context: KafkaContext, request: KafkaRequest) -> ErrorCode:
    body = request.body
    generation = body.generation_id_or_member_epoch
    if not 0 < len(body.group_id) <= NAME_CHARACTERS_MAX:
        return ErrorCode.invalid_group_id
    if not context.client_protocols.admits(body.group_id, ClientProtocol.KAFKA):
        # Kafka gives this error to a client that commits for a group without being a member.
        return ErrorCode.unknown_member_id
    error = context.groups.check_commit(
        body.group_id, body.member_id, getattr(body, "group_instance_id", None), generation, context.clock.mono_ms()
    )
    if error is ErrorCode.illegal_generation and request.version >= 9 and not context.groups.group(body.group_id):
        return ErrorCode.group_id_not_found
    return error


def requested_offsets(body: Any) -> Partitions:
    """Return the offsets that an OffsetCommit or TxnOffsetCommit request carries, by partition."""
    return by_partition(
        (topic.name, partition.partition_index, partition) for topic in body.topics for partition in topic.partitions
    )


def check_partitions(
    context: KafkaContext, asked: Partitions
) -> Generator[None, None, tuple[Results, list[CommittedOffset]]]:
    """Check each partition on its own; return the results, and the positions of those without an error."""
    results: Results = {}
    positions = []
    metadata_max = context.options.groups.metadata_bytes_max
    for name, partitions in asked.items():
        topic = context.topics.by_kafka_name(name)
        of_topic = results[name] = {}
        for index, partition in partitions.items():
            metadata = partition.committed_metadata or ""
            if topic is None or not 0 <= index < topic.queue_count:
                of_topic[index] = ErrorCode.unknown_topic_or_partition
            elif len(metadata) > metadata_max:
                of_topic[index] = ErrorCode.offset_metadata_too_large
            else:
                of_topic[index] = ErrorCode.none
                epoch = getattr(partition, "committed_leader_epoch", -1)
                positions.append(CommittedOffset(topic.key(index), partition.committed_offset, epoch, metadata))
            yield
    return results, positions


def with_error(results: Results, error: ErrorCode) -> Results:
    """Replace success by an error."""
    return {
        name: {index: error if result is ErrorCode.none else result for index, result in partitions.items()}
        for name, partitions in results.items()
    }


# -- OffsetFetch


def offset_fetch(context: KafkaContext, connection: OrderedConnection, request: KafkaRequest) -> Steps:
    """Return committed offsets. Without a commit, also of an unknown group, the offset is -1 without an error.

    Where a request repeats a group, its last entry counts.
    """
    body, types = request.body, request.types
    if request.version >= 8:
        groups = {asked.group_id: asked for asked in body.groups}
        entity = types.OffsetFetchResponse(
            throttle_time=NO_THROTTLE,
            groups=Elements(
                types.OffsetFetchResponseGroup(
                    group_id=asked.group_id,
                    topics=_fetch(context, request, "OffsetFetchResponseTopics", asked.group_id, asked.topics),
                    error_code=ErrorCode.none,
                )
                for asked in groups.values()
            ),
        )
    else:
        topics = _fetch(context, request, "OffsetFetchResponseTopic", body.group_id, body.topics)
        entity = types.OffsetFetchResponse(throttle_time=NO_THROTTLE, topics=topics, error_code=ErrorCode.none)
    return make_answer(request, (yield from encode_in_steps(context, request, entity)), context.barrier())


def _fetch(
    context: KafkaContext, request: KafkaRequest, topic_type: str, group_id: str, asked: Iterable[Any] | None
) -> Elements:
    """Return the offsets of the requested topics, or all of the group (None). Version 8 renamed both classes."""
    types = request.types
    is_stable_wanted = getattr(request.body, "require_stable", False)
    unstable = context.transactions.coordinator.pending(group_id) if is_stable_wanted else frozenset()
    positions = context.group_offsets.reported(group_id, context.clock.now_ms())
    if asked is None:
        known = _known_partitions(context, positions)
        wanted = [found for found in known if request.sees_topic(found[0])]
    else:
        found = by_partition((topic.name, index, None) for topic in asked for index in topic.partition_indexes)
        wanted = [(name, context.topics.by_kafka_name(name), indexes) for name, indexes in found.items()]
    make_topic = getattr(types, topic_type)
    make_partition = getattr(types, topic_type.replace("Topic", "Partition"))
    return Elements(
        make_topic(
            name=name,
            partitions=Elements(
                _without_position(make_partition, index, ErrorCode.topic_authorization_failed)
                if not request.sees_topic(name)
                else _without_position(make_partition, index, ErrorCode.unstable_offset_commit)
                if topic and topic.key(index) in unstable
                else _position(make_partition, index, positions.get(topic.key(index)) if topic else None)
                for index in indexes
            ),
        )
        for name, topic, indexes in wanted
    )


def _known_partitions(
    context: KafkaContext, positions: Mapping[int, GroupOffset]
) -> list[tuple[str, Topic | None, Iterable[int]]]:
    indexes: dict[int, list[int]] = {}
    for key in positions:
        number, index = Queue.split(key)
        indexes.setdefault(number, []).append(index)
    found = ((context.topics.by_number(number), sorted(partitions)) for number, partitions in indexes.items())
    return [(topic.kafka_name, topic, partitions) for topic, partitions in found if topic is not None]


def _without_position(make_partition: Any, index: int, error: ErrorCode) -> Any:
    return make_partition(
        partition_index=index,
        committed_offset=-1,
        committed_leader_epoch=-1,
        metadata="",
        error_code=error,
    )


def _position(make_partition: Any, index: int, position: GroupOffset | None) -> Any:
    position = position or GroupOffset(-1)
    return make_partition(
        partition_index=index,
        committed_offset=position.offset,
        committed_leader_epoch=position.leader_epoch,
        metadata=position.metadata,
        error_code=ErrorCode.none,
    )


# -- OffsetDelete


def offset_delete(context: KafkaContext, connection: OrderedConnection, request: KafkaRequest) -> Steps:
    """Delete the committed offsets of topics to which no member of the group subscribes."""
    body, types = request.body, request.types
    asked = by_partition((topic.name, part.partition_index, None) for topic in body.topics for part in topic.partitions)
    group = context.groups.group(body.group_id)
    error = _check_deletion(context, body.group_id, group)
    results: Results = {}
    promise = context.barrier()
    if error is ErrorCode.none:
        subscribed: set[str] = set()
        for member in [*group.members] if group else ():
            for _, metadata in member.protocols:
                for topic in topics_of(metadata):
                    subscribed.add(topic)
                    yield
        results, keys = _deletable(context, subscribed, asked)
        try:
            promise = context.group_offsets.delete(body.group_id, keys, context.clock.now_ms())
        except ANSWERABLE as refusal:
            error, results = code_of(refusal), {}
    topics = Elements(
        types.OffsetDeleteResponseTopic(
            name=name,
            partitions=Elements(
                types.OffsetDeleteResponsePartition(partition_index=partition, error_code=result)
                for partition, result in partitions.items()
            ),
        )
        for name, partitions in results.items()
    )
    entity = types.OffsetDeleteResponse(error_code=error, throttle_time=NO_THROTTLE, topics=topics)
    return make_answer(request, (yield from encode_in_steps(context, request, entity)), promise)


def _deletable(context: KafkaContext, subscribed: Collection[str], asked: Partitions) -> tuple[Results, list[int]]:
    """Check each partition; return the results, and the queue keys of those whose offsets can be deleted."""
    results: Results = {}
    keys = []
    for name, indexes in asked.items():
        topic = context.topics.by_kafka_name(name)
        of_topic = results[name] = {}
        for index in indexes:
            if topic is None or not 0 <= index < topic.queue_count:
                of_topic[index] = ErrorCode.unknown_topic_or_partition
            elif name in subscribed:
                of_topic[index] = ErrorCode.group_subscribed_to_topic
            else:
                of_topic[index] = ErrorCode.none
                keys.append(topic.key(index))
    return results, keys


def _check_deletion(context: KafkaContext, group_id: str, group: ClassicGroup[Any] | None) -> ErrorCode:
    if group is None and group_id not in context.group_offsets:
        return ErrorCode.group_id_not_found
    if not context.client_protocols.admits(group_id, ClientProtocol.KAFKA):
        return ErrorCode.non_empty_group
    if group is not None and group.members and group.protocol_type != CONSUMER:
        return ErrorCode.non_empty_group
    return ErrorCode.none


def subscribed_topics(groups: GroupCoordinator[Any], group_id: str) -> Iterator[str | None]:
    """Yield the topics to which a group's members subscribe, perhaps repeatedly; None where the loop may turn."""
    group = groups.group(group_id)
    if group is not None and group.protocol_type == CONSUMER:
        for metadata in {member.metadata_of(group.protocol_name) for member in group.members}:
            yield from topics_of(metadata)
            yield None


def topics_of(subscription: bytes) -> Iterator[str]:
    """Yield the topics of a ConsumerProtocolSubscription (version i16, array of strings) up to malformed bytes."""
    try:
        (count,) = _I32.unpack_from(subscription, 2)
        at = 2 + _I32.size
        for _ in range(count):
            topic, at = read_classic_string(subscription, at)
            yield topic or ""
    except (struct.error, IndexError, UnicodeDecodeError, ProtocolError):
        return
