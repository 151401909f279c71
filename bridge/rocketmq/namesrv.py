"""The name server: routes (105), the cluster (106), lists of topics (206, 224, 304), and little else.

Routes are the broker's own topics, at once and all in one place: one cluster, one broker, id 0. What a name server of
a cluster keeps for others (configs of tools, registrations) it does not keep; asking for them finds nothing.
Source: ClientRequestProcessor.java, DefaultRequestProcessor.java, RouteInfoManager.java.
"""

from typing import TYPE_CHECKING, Final

from bridge.answers import Answer
from bridge.rocketmq.answer import answer
from bridge.rocketmq.errors import Refused
from bridge.topics import Topic, TopicError
from protocol.rocketmq.bodies import BrokerData, ClusterInfo, QueueData, TopicList, TopicRouteData
from protocol.rocketmq.codes import ResponseCode
from protocol.rocketmq.headers import ClusterRequest, KeyValueRequest, TopicRequest
from protocol.rocketmq.names import AUTO_CREATE_TOPIC, DLQ_PREFIX, RETRY_PREFIX
from protocol.rocketmq.remoting import RemotingCommand
from store.errors import StoreError

if TYPE_CHECKING:
    from bridge.broker import Broker
    from bridge.rocketmq.connection import RocketMQConnection

MASTER_ID: Final = 0  # Producers look for this one.
NO_WISH: Final = 0  # How many queues a new topic should have: `topics.queues`.


# -- Routes


def route(broker: "Broker", connection: "RocketMQConnection", command: RemotingCommand) -> Answer:
    name = TopicRequest.parse(command.ext).topic
    connection.is_consumer |= name.startswith(RETRY_PREFIX)
    topic = broker.topics.by_rocketmq_name(name) or _create_for_consumer(broker, connection, name)
    # Producers ask for the template when they find no route, and then send with its name: which makes the topic.
    if topic is None or (name == AUTO_CREATE_TOPIC and not broker.options.topics.auto_create):
        raise Refused(ResponseCode.TOPIC_NOT_EXIST, f"No topic route info in name server for the topic: {name[:300]}")
    data = TopicRouteData(queue_datas=[_queues_of(broker, topic)], broker_datas=[broker_data(broker)])
    return answer(command, body=data, promise=broker.ledger.barrier())


def _create_for_consumer(broker: "Broker", connection: "RocketMQConnection", name: str) -> Topic | None:
    """Make the topic that a consumer waits for, as Kafka's consumers have theirs made.

    A consumer that finds no route asks again after 30 s, and nothing that a broker may say makes it ask sooner: so one
    that comes before its topic would see the first messages that late. Who asks for a retry topic is a consumer, and
    asks for all its topics twice within moments of its start. A producer finds no route and then names its wishes in
    the first send, so nothing is made for it here.
    """
    if not connection.is_consumer or name.startswith((RETRY_PREFIX, DLQ_PREFIX)):
        return None
    try:
        return broker.topics.auto_create_for_rocketmq(name, AUTO_CREATE_TOPIC, NO_WISH, broker.clock.now_ms())
    except (TopicError, StoreError):
        return None


def _queues_of(broker: "Broker", topic: Topic) -> QueueData:
    count = topic.queue_count
    return QueueData(
        broker_name=broker.options.rocketmq.broker, read_queue_nums=count, write_queue_nums=count, perm=topic.perm
    )


def broker_data(broker: "Broker") -> BrokerData:
    options = broker.options.rocketmq
    return BrokerData(
        cluster=options.cluster, broker_name=options.broker, broker_addrs={MASTER_ID: broker_address(broker)}
    )


def broker_address(broker: "Broker") -> str:
    """Give the address as clients take it apart: at the last colon."""
    host, port = broker.rocketmq_address
    return f"{host}:{port}"


def cluster_info(broker: "Broker", connection: "RocketMQConnection", command: RemotingCommand) -> Answer:
    options = broker.options.rocketmq
    info = ClusterInfo(
        broker_addr_table={options.broker: broker_data(broker)}, cluster_addr_table={options.cluster: [options.broker]}
    )
    return answer(command, body=info)


# -- Lists of topics


def all_topics(broker: "Broker", connection: "RocketMQConnection", command: RemotingCommand) -> Answer:
    names = sorted(topic.rocketmq_name for topic in broker.topics.all())
    return answer(command, body=TopicList(topic_list=names), promise=broker.ledger.barrier())


def topics_of_cluster(broker: "Broker", connection: "RocketMQConnection", command: RemotingCommand) -> Answer:
    cluster = ClusterRequest.parse(command.ext).cluster
    is_ours = cluster == broker.options.rocketmq.cluster
    names = sorted(topic.rocketmq_name for topic in broker.topics.all()) if is_ours else []
    return answer(command, body=TopicList(topic_list=names), promise=broker.ledger.barrier())


def system_topics(broker: "Broker", connection: "RocketMQConnection", command: RemotingCommand) -> Answer:
    """Name the topics that are called as clusters and brokers are; tools take the address along."""
    options = broker.options.rocketmq
    names = [options.cluster, options.broker]
    return answer(command, body=TopicList(topic_list=names, broker_addr=broker_address(broker)))


# -- What others keep here


def forget_topic(broker: "Broker", connection: "RocketMQConnection", command: RemotingCommand) -> Answer:
    """DELETE_TOPIC_IN_NAMESRV: tools send it when they have deleted the topic in the broker; its route went then."""
    TopicRequest.parse(command.ext)
    return answer(command)


def kept_value(broker: "Broker", connection: "RocketMQConnection", command: RemotingCommand) -> Answer:
    """GET_KV_CONFIG: nothing is kept here for tools."""
    request = KeyValueRequest.parse(command.ext)
    remark = f"No config item, Namespace: {request.namespace[:200]} Key: {request.key[:200]}"
    raise Refused(ResponseCode.QUERY_NOT_FOUND, remark)


def kept_values(broker: "Broker", connection: "RocketMQConnection", command: RemotingCommand) -> Answer:
    """GET_KVLIST_BY_NAMESPACE."""
    raise Refused(ResponseCode.QUERY_NOT_FOUND, f"No config item, Namespace: {command.ext.get('namespace', '')[:200]}")


def namesrv_config(broker: "Broker", connection: "RocketMQConnection", command: RemotingCommand) -> Answer:
    port = broker.listening["namesrv"][1]
    return answer(command, body=f"listenPort={port}\norderMessageEnable=false\n".encode())
