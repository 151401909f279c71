"""Metadata 0..13, DescribeCluster 0..2, FindCoordinator 0..6. One broker, the owner, is every leader and coordinator.

A missing topic is created and described at once, where Kafka answers with an error until its controller has created
it. Answers wait for `KafkaContext.barrier()`, so that no client learns of a topic that a power failure can undo.
"""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from typing import Any
from uuid import UUID

from duolog.bridge.kafka.context import Describing, KafkaContext
from duolog.bridge.kafka.requests.encoding import encode_in_steps, make_answer
from duolog.bridge.kafka.requests.errors import ANSWERABLE
from duolog.bridge.kafka.requests.ordered_connection import OrderedConnection
from duolog.bridge.kafka.requests.repeated_names import unique
from duolog.bridge.kafka.requests.request import NO_THROTTLE, KafkaRequest, Steps
from duolog.bridge.net.answers import Answer
from duolog.bridge.security.needs import cluster as cluster_need
from duolog.bridge.security.needs import topic as topic_need
from duolog.bridge.security.rules import Operation
from duolog.bridge.state.topic_table import Topic
from duolog.protocol.kafka.api_messages import ErrorCode, ResponseTypes
from duolog.protocol.kafka.response import Elements
from duolog.protocol.names import is_kafka_topic

NO_NODE = -1  # The leader and coordinator while none is known.

_GROUP, _TRANSACTION = 0, 1  # FindCoordinatorRequest.java#CoordinatorType
_NULL_NAME_FROM = 12  # From this version of Metadata on, an answer may lack a topic's name.
_FIND_MANY_FROM = 4  # From this version of FindCoordinator on, a request has several keys.

# AclOperation codes as bits. Without an authorizer every operation that Kafka counts for the resource is allowed.
_NOT_ASKED = -(1 << 31)
TOPIC_OPERATIONS = sum(1 << code for code in (3, 4, 5, 6, 7, 8, 10, 11))
_CLUSTER_OPERATIONS = sum(1 << code for code in (5, 7, 8, 9, 10, 11, 12))


# -- Metadata


def metadata(context: KafkaContext, connection: OrderedConnection, request: KafkaRequest) -> Steps:
    """Describe topics, and create missing ones if the client and the settings allow it."""
    names = asked_names(request)
    if names is not None:
        yield from _create_missing(context, request, [name for name, topic_id in names if topic_id is None])
    operations = getattr(request.body, "include_topic_authorized_operations", False)
    question = (request.version, names, operations, context.nodes.version)
    version = context.topics.version
    # What a session sees is not kept for others.
    body = context.metadata_cache.get(version, question) if request.rights is None else None
    if body is None:
        body = yield from encode_in_steps(context, request, describe(context, request, names))
        # The errors of an answer are counted when it is encoded, so one with errors is not kept.
        if context.topics.version == version and request.rights is None and _are_known(context, names):
            context.metadata_cache.put(version, question, request.held_bytes, body)
    return make_answer(request, body, context.barrier())


def _are_known(context: KafkaContext, names: Iterable[tuple[str | None, UUID | None]] | None) -> bool:
    """Whether there is a topic of each of these names and ids; None stands for all topics."""
    topics = context.topics
    return all(
        (topics.by_id(topic_id) if topic_id is not None else topics.by_kafka_name(name or "")) is not None
        for name, topic_id in names or ()
    )


def asked_names(request: KafkaRequest) -> tuple[tuple[str | None, UUID | None], ...] | None:
    """Return the names and ids of the topics that a request asks for, each once; None: all topics."""
    asked = request.body.topics
    everything = asked is None or (request.version == 0 and not asked and request.refused is None)
    return None if everything else tuple(unique(map(_name_and_id, asked)))


def _name_and_id(asked: Any) -> tuple[str | None, UUID | None]:
    """Return what names a topic. Beside an id a name means nothing, so it must not be part of the cache's key."""
    topic_id = getattr(asked, "topic_id", None)
    return asked.name if topic_id is None else None, topic_id


def _create_missing(context: KafkaContext, request: KafkaRequest, names: Iterable[str | None]) -> Iterator[None]:
    # Versions 0 to 3 lack the field, and always allow it.
    if not getattr(request.body, "allow_auto_topic_creation", True):
        return
    for name in names:
        if name and context.topics.by_kafka_name(name) is None and may_create(request, name):
            # A topic that cannot be created is described as unknown, like one that must not be created.
            with suppress(*ANSWERABLE):
                context.topics.auto_create_for_kafka(name, context.clock.now_ms())
            yield


def may_create(request: KafkaRequest, name: str) -> bool:
    """Whether the client may create a topic of this name."""
    return request.sees((*topic_need(name, Operation.CREATE), *cluster_need(Operation.CREATE)))


def describe(context: Describing, request: KafkaRequest, names: Sequence[tuple[str | None, UUID | None]] | None) -> Any:
    """Return the answer to a Metadata request; None as `names` asks for all topics."""
    types, nodes = request.types, context.nodes
    leader = nodes.owner.id if nodes.owner is not None else NO_NODE
    operations = _NOT_ASKED
    if getattr(request.body, "include_topic_authorized_operations", False):
        operations = TOPIC_OPERATIONS
    topics: Iterable[Any]
    if names is None:
        every = [*context.topics.all()]
        topics = (_topic(types, topic, operations, leader) for topic in every if _is_seen(request, topic))
    else:
        topics = (_asked_topic(context, request, name, topic_id, operations, leader) for name, topic_id in names)
    cluster_operations = getattr(request.body, "include_cluster_authorized_operations", False)
    return types.MetadataResponse(
        throttle_time=NO_THROTTLE,
        brokers=tuple(
            types.MetadataResponseBroker(node_id=number, host=each.kafka[0], port=each.kafka[1], rack=None)
            for number, each in nodes.all
        ),
        cluster_id=context.cluster_id,
        controller_id=leader,
        topics=Elements(topics),
        cluster_authorized_operations=_CLUSTER_OPERATIONS if cluster_operations else _NOT_ASKED,
        error_code=ErrorCode.none,
    )


def _is_seen(request: KafkaRequest, topic: Topic) -> bool:
    return topic.is_listed and request.sees_topic(topic.kafka_name)


def _asked_topic(
    context: Describing,
    request: KafkaRequest,
    name: str | None,
    topic_id: UUID | None,
    operations: int,
    leader: int,
) -> Any:
    types = request.types
    topic = context.topics.by_id(topic_id) if topic_id is not None else context.topics.by_kafka_name(name or "")
    if topic is not None:
        return _topic(types, topic, operations, leader)
    if topic_id is not None:
        error = ErrorCode.unknown_topic_id
        name = None if request.version >= _NULL_NAME_FROM else ""
    else:
        error = error_of_missing(name or "")
    return types.MetadataResponseTopic(
        error_code=error, name=name or "" if topic_id is None else name, topic_id=topic_id, partitions=()
    )


def error_of_missing(name: str) -> ErrorCode:
    """Return the error that says why no topic has that name."""
    return ErrorCode.unknown_topic_or_partition if is_kafka_topic(name) else ErrorCode.invalid_topic_exception


def _topic(types: ResponseTypes, topic: Topic, operations: int, leader: int) -> Any:
    error, replicas = (ErrorCode.none, (leader,)) if leader != NO_NODE else (ErrorCode.leader_not_available, ())
    return types.MetadataResponseTopic(
        error_code=ErrorCode.none,
        name=topic.kafka_name,
        topic_id=topic.id,
        is_internal=False,  # Spark drops internal topics from what it subscribes to.
        partitions=Elements(
            types.MetadataResponsePartition(
                error_code=error,
                partition_index=partition,
                leader_id=leader,
                leader_epoch=topic.leader_epoch(partition),
                replica_nodes=replicas,
                isr_nodes=replicas,
                offline_replicas=(),
            )
            for partition in range(topic.queue_count)
        ),
        topic_authorized_operations=operations,
    )


# -- Cluster and coordinators


def describe_cluster(context: Describing, connection: OrderedConnection, request: KafkaRequest) -> Answer:
    """Describe the cluster: the owner, as its controller, and the brokers that follow it."""
    types, nodes = request.types, context.nodes
    asked_type = getattr(request.body, "endpoint_type", 1)
    is_ours = asked_type == 1  # 1: brokers. 2: controllers, which have no listener here.
    wants_operations = request.body.include_cluster_authorized_operations
    brokers = tuple(
        types.DescribeClusterBroker(
            broker_id=number, host=each.kafka[0], port=each.kafka[1], rack=None, is_fenced=False
        )
        for number, each in nodes.all
    )
    return request.answer(
        types.DescribeClusterResponse(
            throttle_time=NO_THROTTLE,
            error_code=ErrorCode.none if is_ours else ErrorCode.mismatched_endpoint_type,
            error_message=None if is_ours else "this endpoint is a broker's, not a controller's",
            endpoint_type=1,
            cluster_id=context.cluster_id,
            controller_id=nodes.owner.id if nodes.owner is not None else NO_NODE,
            brokers=brokers if is_ours else (),
            cluster_authorized_operations=_CLUSTER_OPERATIONS if wants_operations else _NOT_ASKED,
        )
    )


def find_coordinator(context: Describing, connection: OrderedConnection, request: KafkaRequest) -> Steps:
    """Name the owner as the coordinator of every group and every transactional id. Share groups have none."""
    types = request.types
    key_type = getattr(request.body, "key_type", _GROUP)
    error, message = ErrorCode.none, None
    if key_type not in (_GROUP, _TRANSACTION):
        error, message = (
            ErrorCode.invalid_request,
            f"key type {key_type} has no coordinator; key types are 0 (group) and 1 (transaction)",
        )
    found: dict[str, Any] = {"error_code": error, "error_message": message, "node_id": -1, "host": "", "port": -1}
    owner = context.nodes.owner
    if error is ErrorCode.none and owner is None:
        found["error_code"] = ErrorCode.coordinator_not_available
    elif error is ErrorCode.none and owner is not None:
        host, port = owner.endpoints.kafka
        found |= {"node_id": owner.id, "host": host, "port": port}
    if request.version < _FIND_MANY_FROM:
        return request.answer(types.FindCoordinatorResponse(throttle_time=NO_THROTTLE, **found))
    coordinators = Elements(types.Coordinator(key=key, **found) for key in unique(request.body.coordinator_keys))
    entity = types.FindCoordinatorResponse(throttle_time=NO_THROTTLE, coordinators=coordinators)
    return make_answer(request, (yield from encode_in_steps(context, request, entity)), None)
