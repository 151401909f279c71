"""What each RocketMQ request needs. A row of the table without a declaration here is an error at import.

The operations are those that Kafka's requests for the same thing need, so that what is forbidden in one protocol is
forbidden in the other. Names become Kafka's spelling: `orders|eu` and `orders.eu` are one topic with one rule.
"""

from collections.abc import Callable, Iterable, Iterator
from typing import Final

from duolog.bridge.rocketmq.context import RocketMQContext
from duolog.bridge.rocketmq.requests.responses import read_body
from duolog.bridge.security.needs import AnyOf, cluster, group, topic
from duolog.bridge.security.rules import Operation
from duolog.protocol import names
from duolog.protocol.rocketmq import bodies, headers
from duolog.protocol.rocketmq.codes import RequestCode as Code
from duolog.protocol.rocketmq.header import MissingField
from duolog.protocol.rocketmq.names import AUTO_CREATE_TOPIC, retry_topic
from duolog.protocol.rocketmq.remoting import RemotingCommand

Needs = Callable[[RocketMQContext, RemotingCommand], Iterable[AnyOf]]
READ, WRITE, CREATE, DELETE, ALTER = (
    Operation.READ, Operation.WRITE, Operation.CREATE, Operation.DELETE, Operation.ALTER,
)  # fmt: skip
DESCRIBE, DESCRIBE_CONFIGS, ALTER_CONFIGS = Operation.DESCRIBE, Operation.DESCRIBE_CONFIGS, Operation.ALTER_CONFIGS


# -- Names


def topic_needs(context: RocketMQContext, name: str, operation: Operation) -> Iterable[AnyOf]:
    """Return what an operation on a topic needs; the name is in RocketMQ's spelling."""
    known = context.topics.by_rocketmq_name(name)
    spelled = names.kafka_name(name) if known is None else known.kafka_name
    return context.security.resources.topic(spelled, operation)


def group_need(name: str, operation: Operation) -> AnyOf:
    """Return the need of an operation on a group; the name is in RocketMQ's spelling."""
    return group(names.group_of_rocketmq(name), operation)


# -- Declarations


def nothing(context: RocketMQContext, command: RemotingCommand) -> Iterable[AnyOf]:
    """A request that each client needs, and that says nothing about data."""
    return ()


def when_found(context: RocketMQContext, command: RemotingCommand) -> Iterable[AnyOf]:
    """A request that names a message by its place: the handler checks its topic by `Granted.check_topic`."""
    return ()


def of_cluster(operation: Operation) -> Needs:
    """Declare that a request needs an operation on the broker as a whole."""
    return lambda context, command: (cluster(operation),)


def of_topic(operation: Operation, field: str = "topic") -> Needs:
    """Declare that a request needs an operation on the topic that its header names."""
    return lambda context, command: topic_needs(context, _field(command, field), operation)


def of_group(operation: Operation, field: str) -> Needs:
    """Declare that a request needs an operation on the group that its header names."""
    return lambda context, command: (group_need(_field(command, field), operation),)


def of_both(operation: Operation, group_field: str = "consumerGroup") -> Needs:
    """Declare that a request needs an operation on the group and on the topic that its header names."""

    def needs(context: RocketMQContext, command: RemotingCommand) -> Iterator[AnyOf]:
        yield group_need(_field(command, group_field), operation)
        yield from topic_needs(context, _field(command, "topic"), operation)

    return needs


def _field(command: RemotingCommand, name: str) -> str:
    """Return a header field. Raises MissingField, as the handler would."""
    value = command.ext.get(name)
    if value is None:
        raise MissingField(name)
    return value


def send(context: RocketMQContext, command: RemotingCommand) -> Iterator[AnyOf]:
    """Declare WRITE on the topic, and CREATE if the message is the first one of a topic."""
    request = headers.SendRequest.parse(command.ext)
    yield from topic_needs(context, request.topic, WRITE)
    if context.topics.by_rocketmq_name(request.topic) is None:
        yield (*topic(names.kafka_name(request.topic), CREATE), *cluster(CREATE))


def _send_back(context: RocketMQContext, command: RemotingCommand) -> Iterator[AnyOf]:
    request = headers.SendBackRequest.parse(command.ext)
    yield group_need(request.group, READ)  # And READ on the topic of the message: `read_record`.


def _batch_ack(context: RocketMQContext, command: RemotingCommand) -> Iterator[AnyOf]:
    for ack in read_body(command, bodies.BatchAckRequest).acks:
        yield group_need(ack.group, READ)
        yield from topic_needs(context, ack.topic, READ)


def _assignment(context: RocketMQContext, command: RemotingCommand) -> Iterator[AnyOf]:
    request = read_body(command, bodies.AssignmentRequest)
    yield group_need(request.consumer_group, READ)
    if request.topic != retry_topic(request.consumer_group):
        yield from topic_needs(context, request.topic, READ)


def _request_mode(context: RocketMQContext, command: RemotingCommand) -> Iterator[AnyOf]:
    request = read_body(command, bodies.RequestModeRequest)
    yield group_need(request.consumer_group, ALTER_CONFIGS)
    yield from topic_needs(context, request.topic, DESCRIBE)


def _heart_beat(context: RocketMQContext, command: RemotingCommand) -> Iterator[AnyOf]:
    for consumer in read_body(command, bodies.HeartbeatData).consumer_data_set:
        yield group_need(consumer.group_name, READ)
        for subscription in consumer.subscription_data_set:
            if subscription.topic != retry_topic(consumer.group_name):
                yield from topic_needs(context, subscription.topic, READ)


def _unregister(context: RocketMQContext, command: RemotingCommand) -> Iterator[AnyOf]:
    request = headers.UnregisterRequest.parse(command.ext)
    if request.consumer_group:
        yield group_need(request.consumer_group, READ)


def _check_client(context: RocketMQContext, command: RemotingCommand) -> Iterator[AnyOf]:
    yield group_need(read_body(command, bodies.CheckClientRequest).group, READ)


def _locks(context: RocketMQContext, command: RemotingCommand) -> Iterator[AnyOf]:
    request = read_body(command, bodies.LockRequest)
    yield group_need(request.consumer_group, READ)
    for name in {queue.topic for queue in request.mq_set} - {retry_topic(request.consumer_group)}:
        yield from topic_needs(context, name, READ)


def _route(context: RocketMQContext, command: RemotingCommand) -> Iterable[AnyOf]:
    name = _field(command, "topic")
    return () if name == AUTO_CREATE_TOPIC else topic_needs(context, name, DESCRIBE)


def _of_new_topic(context: RocketMQContext, name: str) -> Iterator[AnyOf]:
    if context.topics.by_rocketmq_name(name) is None:
        yield (*topic(names.kafka_name(name), CREATE), *cluster(CREATE))
    else:
        yield from topic_needs(context, name, ALTER)
        yield from topic_needs(context, name, ALTER_CONFIGS)


def _update_topic(context: RocketMQContext, command: RemotingCommand) -> Iterable[AnyOf]:
    return _of_new_topic(context, _field(command, "topic"))


def _update_topics(context: RocketMQContext, command: RemotingCommand) -> Iterator[AnyOf]:
    yield cluster(CREATE)
    yield cluster(ALTER)


# -- By code

# A group that reads its own retry topic needs READ on the topics that the messages came from, as any reader.
_consume: Final = of_both(READ)

NEEDS: Final[dict[Code, Needs]] = {
    # -- Messages
    Code.SEND_MESSAGE: send,
    Code.SEND_MESSAGE_V2: send,
    Code.SEND_BATCH_MESSAGE: send,
    Code.SEND_REPLY_MESSAGE: send,
    Code.SEND_REPLY_MESSAGE_V2: send,
    Code.RECALL_MESSAGE: of_topic(WRITE),
    Code.PULL_MESSAGE: _consume,
    Code.LITE_PULL_MESSAGE: _consume,
    Code.VIEW_MESSAGE_BY_ID: when_found,
    Code.QUERY_MESSAGE: of_topic(READ),
    Code.CONSUMER_SEND_MSG_BACK: _send_back,
    Code.END_TRANSACTION: when_found,
    # -- Popping
    Code.POP_MESSAGE: _consume,
    Code.ACK_MESSAGE: _consume,
    Code.BATCH_ACK_MESSAGE: _batch_ack,
    Code.CHANGE_MESSAGE_INVISIBLETIME: _consume,
    Code.NOTIFICATION: _consume,
    Code.PEEK_MESSAGE: _consume,
    Code.POLLING_INFO: of_both(DESCRIBE),
    Code.QUERY_ASSIGNMENT: _assignment,
    Code.SET_MESSAGE_REQUEST_MODE: _request_mode,
    # -- Offsets
    Code.QUERY_CONSUMER_OFFSET: of_both(DESCRIBE),
    Code.UPDATE_CONSUMER_OFFSET: _consume,
    Code.SEARCH_OFFSET_BY_TIMESTAMP: of_topic(DESCRIBE),
    Code.GET_MAX_OFFSET: of_topic(DESCRIBE),
    Code.GET_MIN_OFFSET: of_topic(DESCRIBE),
    Code.GET_EARLIEST_MSG_STORETIME: of_topic(DESCRIBE),
    Code.INVOKE_BROKER_TO_RESET_OFFSET: of_both(READ, "group"),
    Code.INVOKE_BROKER_TO_GET_CONSUMER_STATUS: of_both(DESCRIBE, "group"),
    # -- Members of groups
    Code.HEART_BEAT: _heart_beat,
    Code.UNREGISTER_CLIENT: _unregister,
    Code.GET_CONSUMER_LIST_BY_GROUP: of_group(DESCRIBE, "consumerGroup"),
    Code.CHECK_CLIENT_CONFIG: _check_client,
    Code.LOCK_BATCH_MQ: _locks,
    Code.UNLOCK_BATCH_MQ: _locks,
    # -- Name server
    Code.GET_ROUTEINFO_BY_TOPIC: _route,
    Code.GET_BROKER_CLUSTER_INFO: nothing,
    Code.GET_ALL_TOPIC_LIST_FROM_NAMESERVER: of_cluster(DESCRIBE),
    Code.GET_TOPICS_BY_CLUSTER: of_cluster(DESCRIBE),
    Code.GET_SYSTEM_TOPIC_LIST_FROM_NS: of_cluster(DESCRIBE),
    Code.DELETE_TOPIC_IN_NAMESRV: of_topic(DELETE),
    Code.GET_KV_CONFIG: nothing,
    Code.GET_KVLIST_BY_NAMESPACE: of_cluster(DESCRIBE_CONFIGS),
    Code.PUT_KV_CONFIG: of_cluster(ALTER_CONFIGS),
    Code.DELETE_KV_CONFIG: of_cluster(ALTER_CONFIGS),
    Code.WIPE_WRITE_PERM_OF_BROKER: of_cluster(ALTER),
    Code.ADD_WRITE_PERM_OF_BROKER: of_cluster(ALTER),
    Code.GET_NAMESRV_CONFIG: of_cluster(DESCRIBE_CONFIGS),
    # -- Topics and groups
    Code.UPDATE_AND_CREATE_TOPIC: _update_topic,
    Code.DELETE_TOPIC_IN_BROKER: of_topic(DELETE),
    Code.GET_ALL_TOPIC_CONFIG: of_cluster(DESCRIBE),
    Code.GET_TOPIC_CONFIG: of_topic(DESCRIBE_CONFIGS),
    Code.GET_TOPIC_STATS_INFO: of_topic(DESCRIBE),
    Code.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP: of_cluster(ALTER_CONFIGS),
    Code.GET_ALL_SUBSCRIPTIONGROUP_CONFIG: of_cluster(DESCRIBE),
    Code.GET_SUBSCRIPTIONGROUP_CONFIG: of_group(DESCRIBE_CONFIGS, "group"),
    Code.GET_CONSUME_STATS: of_group(DESCRIBE, "consumerGroup"),
    Code.GET_CONSUMER_CONNECTION_LIST: of_group(DESCRIBE, "consumerGroup"),
    Code.GET_PRODUCER_CONNECTION_LIST: of_cluster(DESCRIBE),
    Code.UPDATE_AND_CREATE_TOPIC_LIST: _update_topics,
    Code.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST: of_cluster(ALTER_CONFIGS),
    Code.DELETE_SUBSCRIPTIONGROUP: of_group(DELETE, "groupName"),
    # -- Inspection by tools
    Code.QUERY_TOPIC_CONSUME_BY_WHO: of_topic(DESCRIBE),
    Code.QUERY_TOPICS_BY_CONSUMER: of_group(DESCRIBE, "group"),
    Code.QUERY_SUBSCRIPTION_BY_CONSUMER: of_group(DESCRIBE, "group"),
    Code.GET_BROKER_CONSUME_STATS: of_cluster(DESCRIBE),
    Code.GET_ALL_PRODUCER_INFO: of_cluster(DESCRIBE),
    Code.GET_CONSUMER_RUNNING_INFO: of_group(DESCRIBE, "consumerGroup"),
    Code.CONSUME_MESSAGE_DIRECTLY: of_group(READ, "consumerGroup"),
    Code.VIEW_BROKER_STATS_DATA: of_cluster(DESCRIBE),
    Code.GET_SYSTEM_TOPIC_LIST_FROM_BROKER: of_cluster(DESCRIBE),
    Code.QUERY_CONSUME_QUEUE: of_topic(READ),
    Code.CLEAN_EXPIRED_CONSUMEQUEUE: of_cluster(ALTER),
    Code.CLEAN_UNUSED_TOPIC: of_cluster(ALTER),
    Code.DELETE_EXPIRED_COMMITLOG: of_cluster(ALTER),
    # -- The broker
    Code.GET_BROKER_CONFIG: of_cluster(DESCRIBE_CONFIGS),
    Code.UPDATE_BROKER_CONFIG: of_cluster(ALTER_CONFIGS),
    Code.GET_BROKER_RUNTIME_INFO: of_cluster(DESCRIBE),
    Code.GET_BROKER_HA_STATUS: of_cluster(DESCRIBE),
    Code.GET_COLD_DATA_FLOW_CTR_INFO: of_cluster(DESCRIBE),
    Code.CHECK_ROCKSDB_CQ_WRITE_PROGRESS: of_cluster(DESCRIBE),
    Code.UPDATE_NAMESRV_CONFIG: of_cluster(ALTER_CONFIGS),
    # -- Users and access rules
    Code.AUTH_CREATE_USER: of_cluster(ALTER),
    Code.AUTH_UPDATE_USER: of_cluster(ALTER),
    Code.AUTH_DELETE_USER: of_cluster(ALTER),
    Code.AUTH_GET_USER: of_cluster(DESCRIBE),
    Code.AUTH_LIST_USER: of_cluster(DESCRIBE),
    Code.AUTH_CREATE_ACL: of_cluster(ALTER),
    Code.AUTH_UPDATE_ACL: of_cluster(ALTER),
    Code.AUTH_DELETE_ACL: of_cluster(ALTER),
    Code.AUTH_GET_ACL: of_cluster(DESCRIBE),
    Code.AUTH_LIST_ACL: of_cluster(DESCRIBE),
}
