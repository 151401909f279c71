"""The embedded name server: routes (105), cluster (106), lists of topics (206, 224, 304), keys and values (100 to 102,
219), write permission (205, 327).

A route has this broker, id 0 of its cluster, and with a shared log the standbys (`standby_routes.py`). Other brokers
cannot register with the embedded name server. A cluster of several brokers has its own name servers, with which this
broker registers (`registration.py`).
Source: ClientRequestProcessor.java, DefaultRequestProcessor.java, RouteInfoManager.java.
"""

from duolog.bridge.net.answers import Answer
from duolog.bridge.rocketmq.context import RocketMQContext
from duolog.bridge.rocketmq.namesrv.standby_routes import add_standbys, address_text, broker_of
from duolog.bridge.rocketmq.requests.connection import RocketMQConnection
from duolog.bridge.rocketmq.requests.errors import RequestRefused
from duolog.bridge.rocketmq.requests.responses import answer
from duolog.bridge.state.system_topics import AUTO_CREATED_QUEUES_MAX
from duolog.protocol.names import is_rocketmq_group
from duolog.protocol.rocketmq.bodies import (
    BrokerData,
    ClusterInfo,
    KVTable,
    QueueData,
    TopicList,
    TopicRouteData,
)
from duolog.protocol.rocketmq.codes import ResponseCode
from duolog.protocol.rocketmq.headers import (
    BrokerNameRequest,
    ClusterRequest,
    KeyValueRequest,
    NamespaceRequest,
    PutKeyValueRequest,
    TopicRequest,
)
from duolog.protocol.rocketmq.messages.flags import PERM_READ_WRITE, PERM_WRITE
from duolog.protocol.rocketmq.names import AUTO_CREATE_TOPIC, RETRY_PREFIX
from duolog.protocol.rocketmq.remoting import RemotingCommand

# -- Routes


def route(context: RocketMQContext, connection: RocketMQConnection, command: RemotingCommand) -> Answer:
    """Answer GET_ROUTEINFO_BY_TOPIC."""
    name = TopicRequest.parse(command.ext).topic
    topic = context.topics.by_rocketmq_name(name)
    options = context.options
    queue_count, perm = 0, PERM_READ_WRITE
    if topic is None:
        queue_count = _expected_queues(context, connection, name)
    elif name != AUTO_CREATE_TOPIC or context.topics.auto_create:
        # A producer that finds no route asks for the template, and names the template in its send, which creates the
        # topic.
        queue_count, perm = topic.queue_count, topic.perm
    if not queue_count:
        remark = f"No topic route info in name server for the topic: {name[:300]}"
        raise RequestRefused(ResponseCode.TOPIC_NOT_EXIST, remark)
    if context.names.write_permission.is_wiped:
        perm &= ~PERM_WRITE
    queues = QueueData(
        broker_name=options.rocketmq.broker, read_queue_nums=queue_count, write_queue_nums=queue_count, perm=perm
    )
    data = TopicRouteData(queue_datas=[queues], broker_datas=[broker_data(context)])
    add_standbys(data, name, context.node.nodes, options)
    return answer(command, body=data, promise=context.state_log.barrier())


def _expected_queues(context: RocketMQContext, connection: RocketMQConnection, name: str) -> int:
    """Return the number of queues that an expected topic will have (`expected_topics.py`); 0 if it is not expected."""
    mono_ms = context.clock.mono_ms()
    if name.startswith(RETRY_PREFIX) and is_rocketmq_group(group := name.removeprefix(RETRY_PREFIX)):
        # The first heartbeat of the group creates the topic. Without a route the first retries would be 30 s late.
        config = context.groups.configs.get(group)
        queue_count = max(config.retry_queue_nums, 1) if config is not None else 1
        return queue_count if connection.route_misses.is_asked_again(name, mono_ms) else 0
    if not context.topics.may_auto_create_for_rocketmq(name) or not connection.route_misses.is_asked_again(
        name, mono_ms
    ):
        return 0
    context.names.expected_topics.add(name, mono_ms)
    return min(context.options.topics.queues, AUTO_CREATED_QUEUES_MAX)


def broker_data(context: RocketMQContext) -> BrokerData:
    """Return this broker in the format of routes."""
    return broker_of(context.node.addresses.rocketmq, context.options.rocketmq.broker, context.options)


def broker_address(context: RocketMQContext) -> str:
    """Return this broker's address as clients parse it."""
    return address_text(context.node.addresses.rocketmq)


def cluster_info(context: RocketMQContext, connection: RocketMQConnection, command: RemotingCommand) -> Answer:
    """Answer GET_BROKER_CLUSTER_INFO."""
    options = context.options.rocketmq
    info = ClusterInfo(
        broker_addr_table={options.broker: broker_data(context)}, cluster_addr_table={options.cluster: [options.broker]}
    )
    return answer(command, body=info)


# -- Lists of topics


def all_topics(context: RocketMQContext, connection: RocketMQConnection, command: RemotingCommand) -> Answer:
    """Answer GET_ALL_TOPIC_LIST_FROM_NAMESERVER."""
    names = sorted(topic.rocketmq_name for topic in context.topics.all())
    return answer(command, body=TopicList(topic_list=names), promise=context.state_log.barrier())


def topics_of_cluster(context: RocketMQContext, connection: RocketMQConnection, command: RemotingCommand) -> Answer:
    """Answer GET_TOPICS_BY_CLUSTER."""
    cluster = ClusterRequest.parse(command.ext).cluster
    is_ours = cluster == context.options.rocketmq.cluster
    names = sorted(topic.rocketmq_name for topic in context.topics.all()) if is_ours else []
    return answer(command, body=TopicList(topic_list=names), promise=context.state_log.barrier())


def system_topics(context: RocketMQContext, connection: RocketMQConnection, command: RemotingCommand) -> Answer:
    """Return the topics that have the names of the cluster and the broker; tools also use the address in the answer."""
    options = context.options.rocketmq
    names = [options.cluster, options.broker]
    return answer(command, body=TopicList(topic_list=names, broker_addr=broker_address(context)))


# -- Keys and values


def forget_topic(context: RocketMQContext, connection: RocketMQConnection, command: RemotingCommand) -> Answer:
    """Answer DELETE_TOPIC_IN_NAMESRV, which tools send after they deleted the topic in the broker: with success."""
    TopicRequest.parse(command.ext)
    return answer(command)


def kept_value(context: RocketMQContext, connection: RocketMQConnection, command: RemotingCommand) -> Answer:
    """Answer GET_KV_CONFIG."""
    request = KeyValueRequest.parse(command.ext)
    value = context.names.key_values.all_of(request.namespace).get(request.key)
    if value is None:
        remark = f"No config item, Namespace: {request.namespace[:200]} Key: {request.key[:200]}"
        raise RequestRefused(ResponseCode.QUERY_NOT_FOUND, remark)
    return answer(command, ext={"value": value}, promise=context.state_log.barrier())


def kept_values(context: RocketMQContext, connection: RocketMQConnection, command: RemotingCommand) -> Answer:
    """Answer GET_KVLIST_BY_NAMESPACE."""
    namespace = NamespaceRequest.parse(command.ext).namespace
    values = context.names.key_values.all_of(namespace)
    if not values:
        raise RequestRefused(ResponseCode.QUERY_NOT_FOUND, f"No config item, Namespace: {namespace[:200]}")
    return answer(command, body=KVTable(table=dict(values)), promise=context.state_log.barrier())


def keep_value(context: RocketMQContext, connection: RocketMQConnection, command: RemotingCommand) -> Answer:
    """Answer PUT_KV_CONFIG."""
    request = PutKeyValueRequest.parse(command.ext)
    now_ms = context.clock.now_ms()
    return answer(command, promise=context.names.key_values.put(request.namespace, request.key, request.value, now_ms))


def delete_value(context: RocketMQContext, connection: RocketMQConnection, command: RemotingCommand) -> Answer:
    """Answer DELETE_KV_CONFIG. An unknown key is no error."""
    request = KeyValueRequest.parse(command.ext)
    if request.key not in context.names.key_values.all_of(request.namespace):
        return answer(command, promise=context.state_log.barrier())
    now_ms = context.clock.now_ms()
    return answer(command, promise=context.names.key_values.delete(request.namespace, request.key, now_ms))


# -- The name server itself


def wipe_write_perm(context: RocketMQContext, connection: RocketMQConnection, command: RemotingCommand) -> Answer:
    """Answer WIPE_WRITE_PERM_OF_BROKER: routes from now on have no write permission, which producers learn within 30 s.

    Messages that are sent nevertheless are stored. The effect ends with the process, as with a Java name server.
    """
    return answer(command, ext={"wipeTopicCount": str(_set_write_wiped(context, command, is_wiped=True))})


def add_write_perm(context: RocketMQContext, connection: RocketMQConnection, command: RemotingCommand) -> Answer:
    """Answer ADD_WRITE_PERM_OF_BROKER."""
    return answer(command, ext={"addTopicCount": str(_set_write_wiped(context, command, is_wiped=False))})


def _set_write_wiped(context: RocketMQContext, command: RemotingCommand, *, is_wiped: bool) -> int:
    """Change the permission in routes; return the number of topics whose routes changed."""
    if BrokerNameRequest.parse(command.ext).broker_name != context.options.rocketmq.broker:
        return 0
    permission = context.names.write_permission
    is_changed, permission.is_wiped = permission.is_wiped is not is_wiped, is_wiped
    return sum(topic.perm & PERM_WRITE > 0 for topic in context.topics.all()) if is_changed else 0


def namesrv_config(context: RocketMQContext, connection: RocketMQConnection, command: RemotingCommand) -> Answer:
    """Answer GET_NAMESRV_CONFIG."""
    port = context.node.addresses.listening["namesrv"][1]
    return answer(command, body=f"listenPort={port}\norderMessageEnable=false\n".encode())
