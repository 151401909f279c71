"""CreateTopics 2..7, DeleteTopics 1..6, CreatePartitions 0..3, DescribeLogDirs 1..4, ElectLeaders 0..2,
ListPartitionReassignments 0. Configs are in `configs.py`.

There is one broker, so any replication factor and any replica assignment is accepted and means one replica: tools ask
for 3 by default, and kafka-python assigns new partitions to broker 0. Timeouts are ignored, because every request is
done when it is answered.
"""

from collections.abc import Iterable, Iterator
from typing import Any
from uuid import UUID

from duolog.bridge.kafka.configs import config_value, overrides_of
from duolog.bridge.kafka.context import KafkaContext
from duolog.bridge.kafka.requests.encoding import encode_in_steps, make_answer
from duolog.bridge.kafka.requests.errors import (
    ANSWERABLE,
    InvalidRequest,
    code_of,
    message_of,
)
from duolog.bridge.kafka.requests.ordered_connection import OrderedConnection
from duolog.bridge.kafka.requests.repeated_names import Repeated, by_partition, unique
from duolog.bridge.kafka.requests.request import (
    NO_THROTTLE,
    KafkaRequest,
    Steps,
    join_promises,
)
from duolog.bridge.net.answers import Answer
from duolog.bridge.state.topic_configs import TABLE as TOPIC_CONFIGS
from duolog.bridge.state.topic_table import Topic
from duolog.bridge.state.topics import InvalidTopicName
from duolog.protocol.kafka.api_messages import ErrorCode
from duolog.protocol.kafka.response import Elements
from duolog.protocol.names import is_kafka_topic
from duolog.store.entry import Promise

_REPLICAS = 1
_DEFAULT = -1  # For partitions and replicas: the number that the broker's settings say.


# -- CreateTopics


def create_topics(context: KafkaContext, connection: OrderedConnection, request: KafkaRequest) -> Steps:
    """Create topics; a topic that the request repeats is refused."""
    repeated = Repeated(topic.name for topic in request.body.topics)
    promise: Promise | None = context.barrier()

    def created(spec: Any) -> Any:
        nonlocal promise
        try:
            repeated.check(spec.name, f"topic {spec.name}")
            result, kept = _create_topic(context, request, spec)
            promise = join_promises(promise, kept)
        except ANSWERABLE as error:
            result = request.types.CreatableTopicResult(
                name=spec.name, topic_id=None, error_code=code_of(error), error_message=message_of(error), configs=()
            )
        return result

    specs = {spec.name: spec for spec in request.body.topics}
    topics = Elements(map(created, specs.values()))
    entity = request.types.CreateTopicsResponse(throttle_time=NO_THROTTLE, topics=topics)
    pieces = yield from encode_in_steps(context, request, entity)
    return make_answer(request, pieces, promise)


def _create_topic(context: KafkaContext, request: KafkaRequest, spec: Any) -> tuple[Any, Promise | None]:
    if not is_kafka_topic(spec.name):
        raise InvalidTopicName(f"topic name {spec.name!r} is not legal in Kafka")
    partition_count = _partition_count(context, spec)
    overrides = overrides_of((config.name, config.value) for config in spec.configs)
    topics, now_ms = context.topics, context.clock.now_ms()
    topic_id: UUID | None = None
    promise: Promise | None = None
    if request.body.validate_only:
        topics.check_new(spec.name, partition_count, overrides)
    else:
        topic, promise = topics.create(spec.name, partition_count, overrides, now_ms)
        topic_id = topic.id
    types = request.types
    result = types.CreatableTopicResult(
        name=spec.name,
        topic_id=topic_id,
        error_code=ErrorCode.none,
        error_message=None,
        num_partitions=partition_count,
        replication_factor=_REPLICAS,
        # Not null, on which Java's AdminClient fails.
        configs=_created_configs(context, request, overrides) if request.version >= 5 else (),
    )
    return result, promise


def _partition_count(context: KafkaContext, spec: Any) -> int:
    if spec.assignments:
        if (spec.num_partitions, spec.replication_factor) != (_DEFAULT, _DEFAULT):
            raise InvalidRequest("the request has both num_partitions and assignments; set num_partitions to -1")
        indexes = sorted(assignment.partition_index for assignment in spec.assignments)
        if indexes != list(range(len(indexes))):
            raise InvalidRequest(f"the assigned partitions are {indexes[:10]}; they must be 0 to {len(indexes) - 1}")
        return len(indexes)
    if spec.num_partitions == _DEFAULT:
        return context.options.topics.queues
    return int(spec.num_partitions)


def _created_configs(context: KafkaContext, request: KafkaRequest, overrides: dict[str, str]) -> tuple[Any, ...]:
    make = request.types.CreatableTopicConfigs
    configs = (config_value(name, overrides, context.topics.config_defaults) for name in TOPIC_CONFIGS)
    return tuple(
        make(name=name, value=value, read_only=False, config_source=source, is_sensitive=False)
        for name, value, source in configs
    )


# -- DeleteTopics, CreatePartitions


def delete_topics(context: KafkaContext, connection: OrderedConnection, request: KafkaRequest) -> Steps:
    """Delete topics by name or, from version 6 on, by id. A topic that the request repeats is refused."""
    if request.version >= 6:
        asked = [(topic.name, topic.topic_id) for topic in request.body.topics]
    else:
        asked = [(name, None) for name in request.body.topic_names]
    repeated = Repeated(_named(context, name, topic_id) or (name, topic_id) for name, topic_id in asked)
    promise: Promise | None = context.barrier()

    def deleted(name: str | None, topic_id: UUID | None) -> Any:
        nonlocal promise
        topic = _named(context, name, topic_id)
        error, message = ErrorCode.none, None
        try:
            repeated.check(topic or (name, topic_id), f"topic {name or topic_id}")
            if (name is None) == (topic_id is None):
                raise InvalidRequest("a topic must be named either by name or by id")
            if topic is None:
                error = ErrorCode.unknown_topic_id if topic_id else ErrorCode.unknown_topic_or_partition
            else:
                promise = join_promises(promise, context.topics.delete(topic, context.clock.now_ms()))
                _complete_waiting_fetches(context, topic)
        except ANSWERABLE as refusal:
            error, message = code_of(refusal), message_of(refusal)
        return request.types.DeletableTopicResult(
            name=topic.kafka_name if topic else name,
            topic_id=topic.id if topic else topic_id,
            error_code=error,
            error_message=message,
        )

    responses = Elements(deleted(name, topic_id) for name, topic_id in unique(asked))
    entity = request.types.DeleteTopicsResponse(throttle_time=NO_THROTTLE, responses=responses)
    pieces = yield from encode_in_steps(context, request, entity)
    return make_answer(request, pieces, promise)


def _named(context: KafkaContext, name: str | None, topic_id: UUID | None) -> Topic | None:
    return context.topics.by_id(topic_id) if topic_id is not None else context.topics.by_kafka_name(name or "")


def _complete_waiting_fetches(context: KafkaContext, topic: Topic) -> None:
    """Complete the requests that wait for records of the topic, which is deleted."""
    context.purgatory.check(queue.key for queue in topic.queues)


def create_partitions(context: KafkaContext, connection: OrderedConnection, request: KafkaRequest) -> Steps:
    """Add partitions to topics; a topic that the request repeats is refused."""
    repeated = Repeated(topic.name for topic in request.body.topics)
    promise: Promise | None = context.barrier()
    requester = f"CreatePartitions of {connection.peer[0]}:{connection.peer[1]} client {request.client_id[:100]!r}"

    def widened(spec: Any) -> Any:
        nonlocal promise
        error, message = ErrorCode.none, None
        topic = context.topics.by_kafka_name(spec.name)
        try:
            repeated.check(spec.name, f"topic {spec.name}")
            if topic is None:
                error = ErrorCode.unknown_topic_or_partition
            elif spec.assignments is not None and len(spec.assignments) != spec.count - topic.queue_count:
                error = ErrorCode.invalid_replica_assignment
                new_count = spec.count - topic.queue_count
                message = f"{len(spec.assignments)} assignments for {new_count} new partitions; give one for each"
            elif request.body.validate_only:
                context.topics.check_more_queues(topic, spec.count)
            else:
                added = context.topics.add_queues(topic, spec.count, context.clock.now_ms(), requester)
                promise = join_promises(promise, added)
        except ANSWERABLE as refusal:
            error, message = code_of(refusal), message_of(refusal)
        return request.types.CreatePartitionsTopicResult(name=spec.name, error_code=error, error_message=message)

    specs = {spec.name: spec for spec in request.body.topics}
    results = Elements(map(widened, specs.values()))
    entity = request.types.CreatePartitionsResponse(throttle_time=NO_THROTTLE, results=results)
    pieces = yield from encode_in_steps(context, request, entity)
    return make_answer(request, pieces, promise)


# -- Describing topics


def describe_log_dirs(context: KafkaContext, connection: OrderedConnection, request: KafkaRequest) -> Steps:
    """Return the sizes of partitions. They share one log, so the sizes do not add up to the size of its files."""
    types = request.types
    asked = request.body.topics
    wanted: Iterable[tuple[Topic, Iterable[int]]]
    if asked is None:
        wanted = ((topic, range(topic.queue_count)) for topic in [*context.topics.all()] if topic.is_listed)
    else:
        wanted = _known_partitions(context, asked)
    topics = Elements(
        types.DescribeLogDirsTopic(
            name=topic.kafka_name,
            partitions=Elements(
                types.DescribeLogDirsPartition(
                    partition_index=index,
                    partition_size=topic.queues[index].size_bytes,
                    offset_lag=0,
                    is_future_key=False,
                )
                for index in indexes
            ),
        )
        for topic, indexes in wanted
    )
    directory = types.DescribeLogDirsResult(
        error_code=ErrorCode.none, log_dir=context.options.store.directory, topics=topics
    )
    entity = types.DescribeLogDirsResponse(
        throttle_time=NO_THROTTLE, error_code=ErrorCode.none, results=Elements((directory,))
    )
    return make_answer(request, (yield from encode_in_steps(context, request, entity)), None)


def _known_partitions(context: KafkaContext, asked: Iterable[Any]) -> Iterator[tuple[Topic, list[int]]]:
    found = by_partition((spec.topic, index, None) for spec in asked for index in spec.partitions)
    for name, indexes in found.items():
        topic = context.topics.by_kafka_name(name)
        if topic is not None:
            yield topic, [index for index in indexes if 0 <= index < topic.queue_count]


def elect_leaders(context: KafkaContext, connection: OrderedConnection, request: KafkaRequest) -> Steps:
    """Answer that no election is needed. For all partitions (null) Kafka lists those that changed, which are none."""
    types = request.types
    asked = by_partition(
        (spec.topic, index, None) for spec in request.body.topic_partitions or () for index in spec.partitions
    )

    def elected(name: str, indexes: Iterable[int]) -> Any:
        topic = context.topics.by_kafka_name(name)
        known = range(topic.queue_count if topic else 0)
        not_needed, unknown = ErrorCode.election_not_needed, ErrorCode.unknown_topic_or_partition
        return types.ReplicaElectionResult(
            topic=name,
            partition_result=Elements(
                types.PartitionResult(
                    partition_id=index, error_code=not_needed if index in known else unknown, error_message=None
                )
                for index in indexes
            ),
        )

    results = Elements(elected(name, indexes) for name, indexes in asked.items())
    entity = types.ElectLeadersResponse(
        throttle_time=NO_THROTTLE, error_code=ErrorCode.none, replica_election_results=results
    )
    return make_answer(request, (yield from encode_in_steps(context, request, entity)), None)


def list_partition_reassignments(context: KafkaContext, connection: OrderedConnection, request: KafkaRequest) -> Answer:
    """List no reassignments, because there is one broker."""
    entity = request.types.ListPartitionReassignmentsResponse(
        throttle_time=NO_THROTTLE, error_code=ErrorCode.none, error_message=None, topics=()
    )
    return request.answer(entity)
