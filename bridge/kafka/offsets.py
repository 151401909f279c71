"""Group positions: OffsetCommit 2..9, OffsetFetch 1..9, OffsetDelete 0.

The table is `bridge/positions.py`, one for both protocols; here it is read, and written through its commits.

Retention times in OffsetCommit are ignored, as Kafka does since 2.1. Who asks with `require_stable` is told where an
open transaction has a position of his group, for after its commit that may be another.
"""

import struct
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from bridge.answers import Answer
from bridge.families import Family
from bridge.kafka.errors import ANSWERABLE, code_of
from bridge.kafka.group import Group
from bridge.kafka.group_coordinator import NAME_CHARACTERS_MAX
from bridge.kafka.groups import CONSUMER
from bridge.kafka.request import NO_THROTTLE, Request
from bridge.positions import Position
from bridge.records import CommittedPosition
from bridge.topics import QUEUE_ID_BITS, Topic
from protocol.errors import ProtocolError
from protocol.kafka.api import ErrorCode
from protocol.kafka.wire import read_classic_string

if TYPE_CHECKING:
    from bridge.broker import Broker
    from bridge.kafka.connection import KafkaConnection

_I32 = struct.Struct(">i")

Partitions = dict[tuple[str, int], ErrorCode]  # results by topic and partition, in the order of the request


# -- OffsetCommit


def offset_commit(broker: "Broker", connection: "KafkaConnection", request: Request) -> Answer:
    """Commit for a member, or for anybody while the group has no members. The answer waits for the log."""
    body = request.body
    error = _check_committer(broker, request)
    asked = [(topic.name, partition) for topic in body.topics for partition in topic.partitions]
    promise = None
    results: Partitions
    if error is not ErrorCode.none:
        results = {(name, partition.partition_index): error for name, partition in asked}
    else:
        results, positions = sort_out(broker, asked)
        if positions:
            try:
                promise = broker.positions.commit(body.group_id, positions, broker.clock.now_ms())
            except ANSWERABLE as refusal:
                code = code_of(refusal)
                results = {place: code if result is ErrorCode.none else result for place, result in results.items()}
    types = request.types
    topics = tuple(
        types.OffsetCommitResponseTopic(
            name=name,
            partitions=tuple(
                types.OffsetCommitResponsePartition(partition_index=partition, error_code=result)
                for partition, result in partitions.items()
            ),
        )
        for name, partitions in by_topic(results).items()
    )
    return request.answer(types.OffsetCommitResponse(throttle_time=NO_THROTTLE, topics=topics), promise)


def _check_committer(broker: "Broker", request: Request) -> ErrorCode:
    body = request.body
    generation = body.generation_id_or_member_epoch
    if not 0 < len(body.group_id) <= NAME_CHARACTERS_MAX:
        return ErrorCode.invalid_group_id
    if not broker.families.admits(body.group_id, Family.KAFKA):
        # What Kafka says to an outsider who commits for a group that has members.
        return ErrorCode.unknown_member_id
    error = broker.kafka_groups.check_commit(
        body.group_id, body.member_id, getattr(body, "group_instance_id", None), generation, broker.clock.mono_ms()
    )
    if error is ErrorCode.illegal_generation and request.version >= 9 and not broker.kafka_groups.group(body.group_id):
        return ErrorCode.group_id_not_found
    return error


def sort_out(broker: "Broker", asked: Iterable[tuple[str, Any]]) -> tuple[Partitions, list[CommittedPosition]]:
    """Judge each partition on its own; give the positions of those that are right."""
    results: Partitions = {}
    positions = []
    metadata_max = broker.options.groups.metadata_bytes_max
    for name, partition in asked:
        topic, index = broker.topics.by_kafka_name(name), partition.partition_index
        metadata = partition.committed_metadata or ""
        if topic is None or not 0 <= index < topic.queue_count:
            results[name, index] = ErrorCode.unknown_topic_or_partition
        elif len(metadata) > metadata_max:
            results[name, index] = ErrorCode.offset_metadata_too_large
        else:
            results[name, index] = ErrorCode.none
            epoch = getattr(partition, "committed_leader_epoch", -1)
            positions.append(CommittedPosition(topic.key(index), partition.committed_offset, epoch, metadata))
    return results, positions


def by_topic(results: Partitions) -> dict[str, dict[int, ErrorCode]]:
    topics: dict[str, dict[int, ErrorCode]] = {}
    for (name, partition), error in results.items():
        topics.setdefault(name, {})[partition] = error
    return topics


# -- OffsetFetch


def offset_fetch(broker: "Broker", connection: "KafkaConnection", request: Request) -> Answer:
    """Give positions; what nobody committed is -1 without an error, also for a group that nobody knows."""
    body, types = request.body, request.types
    if request.version >= 8:
        groups = tuple(
            types.OffsetFetchResponseGroup(
                group_id=asked.group_id,
                topics=_fetch(broker, request, "OffsetFetchResponseTopics", asked.group_id, asked.topics),
                error_code=ErrorCode.none,
            )
            for asked in body.groups
        )
        entity = types.OffsetFetchResponse(throttle_time=NO_THROTTLE, groups=groups)
    else:
        topics = _fetch(broker, request, "OffsetFetchResponseTopic", body.group_id, body.topics)
        entity = types.OffsetFetchResponse(throttle_time=NO_THROTTLE, topics=topics, error_code=ErrorCode.none)
    return request.answer(entity, broker.ledger.barrier())


def _fetch(
    broker: "Broker", request: Request, topic_type: str, group_id: str, asked: Iterable[Any] | None
) -> tuple[Any, ...]:
    """Positions of the topics asked for, or of all that the group has (null). Version 8 renamed both classes."""
    types = request.types
    is_stable_wanted = getattr(request.body, "require_stable", False)
    unstable = broker.transactions.coordinator.pending(group_id) if is_stable_wanted else frozenset()
    positions = broker.positions.reported(group_id, broker.clock.now_ms())
    if asked is None:
        wanted = _known_partitions(broker, positions)
    else:
        wanted = [(topic.name, broker.topics.by_kafka_name(topic.name), topic.partition_indexes) for topic in asked]
    make_topic = getattr(types, topic_type)
    make_partition = getattr(types, topic_type.replace("Topic", "Partition"))
    return tuple(
        make_topic(
            name=name,
            partitions=tuple(
                _unstable(make_partition, index)
                if topic and topic.key(index) in unstable
                else _position(make_partition, index, positions.get(topic.key(index)) if topic else None)
                for index in indexes
            ),
        )
        for name, topic, indexes in wanted
    )


def _known_partitions(
    broker: "Broker", positions: Mapping[int, Position]
) -> list[tuple[str, Topic | None, Iterable[int]]]:
    indexes: dict[int, list[int]] = {}
    for key in positions:
        indexes.setdefault(key >> QUEUE_ID_BITS, []).append(key & (1 << QUEUE_ID_BITS) - 1)
    found = ((broker.topics.by_number(number), sorted(partitions)) for number, partitions in indexes.items())
    return [(topic.kafka_name, topic, partitions) for topic, partitions in found if topic is not None]


def _unstable(make_partition: Any, index: int) -> Any:
    return make_partition(
        partition_index=index,
        committed_offset=-1,
        committed_leader_epoch=-1,
        metadata="",
        error_code=ErrorCode.unstable_offset_commit,
    )


def _position(make_partition: Any, index: int, position: Position | None) -> Any:
    position = position or Position(-1)
    return make_partition(
        partition_index=index,
        committed_offset=position.offset,
        committed_leader_epoch=position.leader_epoch,
        metadata=position.metadata,
        error_code=ErrorCode.none,
    )


# -- OffsetDelete


def offset_delete(broker: "Broker", connection: "KafkaConnection", request: Request) -> Answer:
    """Forget positions of topics that no live member of the group subscribes to."""
    body, types = request.body, request.types
    group = broker.kafka_groups.group(body.group_id)
    error = _check_deletion(broker, body.group_id, group)
    results: Partitions = {}
    promise = broker.ledger.barrier()
    if error is ErrorCode.none:
        subscribed = _subscribed_topics(group) if group else frozenset()
        keys = []
        for name, index in ((topic.name, part.partition_index) for topic in body.topics for part in topic.partitions):
            found = broker.topics.by_kafka_name(name)
            if found is None or not 0 <= index < found.queue_count:
                results[name, index] = ErrorCode.unknown_topic_or_partition
            elif name in subscribed:
                results[name, index] = ErrorCode.group_subscribed_to_topic
            else:
                results[name, index] = ErrorCode.none
                keys.append(found.key(index))
        try:
            promise = broker.positions.delete(body.group_id, keys, broker.clock.now_ms())
        except ANSWERABLE as refusal:
            error = code_of(refusal)
    topics = tuple(
        types.OffsetDeleteResponseTopic(
            name=name,
            partitions=tuple(
                types.OffsetDeleteResponsePartition(partition_index=partition, error_code=result)
                for partition, result in partitions.items()
            ),
        )
        for name, partitions in by_topic(results).items()
    )
    return request.answer(
        types.OffsetDeleteResponse(error_code=error, throttle_time=NO_THROTTLE, topics=topics), promise
    )


def _check_deletion(broker: "Broker", group_id: str, group: Group[Any] | None) -> ErrorCode:
    if group is None and group_id not in broker.positions:
        return ErrorCode.group_id_not_found
    if not broker.families.admits(group_id, Family.KAFKA):
        return ErrorCode.non_empty_group
    if group is not None and group.members and group.protocol_type != CONSUMER:
        return ErrorCode.non_empty_group
    return ErrorCode.none


def _subscribed_topics(group: Group[Any]) -> frozenset[str]:
    return frozenset(
        topic for member in group.members.values() for _, metadata in member.protocols for topic in _topics_of(metadata)
    )


def _topics_of(subscription: bytes) -> list[str]:
    """The topics in a ConsumerProtocolSubscription: version i16, array of strings. Garbage subscribes to none."""
    try:
        (count,) = _I32.unpack_from(subscription, 2)
        topics, at = [], 2 + _I32.size
        for _ in range(count):
            topic, at = read_classic_string(subscription, at)
            topics.append(topic or "")
    except (struct.error, IndexError, UnicodeDecodeError, ProtocolError):
        return []
    return topics
