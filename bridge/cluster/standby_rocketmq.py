"""The connection of a RocketMQ client to a standby, on the broker's port or on the name server's.

Routes and the cluster name the owner under the stream's one broker name. Every other request is refused with
SERVICE_NOT_AVAILABLE, after which producers try again.
"""

from typing import Final

from duolog.bridge.cluster.standby_context import StandbyContext
from duolog.bridge.net.answers import Answer
from duolog.bridge.net.connection import Connection
from duolog.bridge.rocketmq.namesrv.routes import MASTER_ID
from duolog.bridge.rocketmq.requests.responses import answer
from duolog.protocol.rocketmq import remoting
from duolog.protocol.rocketmq.bodies import BrokerData, ClusterInfo, QueueData, TopicList, TopicRouteData
from duolog.protocol.rocketmq.codes import RequestCode, ResponseCode
from duolog.protocol.rocketmq.headers import TopicRequest
from duolog.protocol.rocketmq.names import AUTO_CREATE_TOPIC
from duolog.protocol.rocketmq.remoting import FLAG_ONEWAY, FLAG_RESPONSE, RemotingCommand

NOT_OWNER: Final = "this broker is a standby; ask a name server for the route"


class StandbyRocketMQConnection(Connection):
    """One client of a standby."""

    wire = "rocketmq"

    __slots__ = ("_context",)

    def __init__(self, context: StandbyContext) -> None:
        super().__init__(context.server, context.log)
        self._context = context

    def received(self, frame: memoryview) -> None:
        command = remoting.decode(frame)
        if command.flag & FLAG_RESPONSE:
            return
        self.doing = "standby request"
        given = self._answer(command)
        if not command.flag & FLAG_ONEWAY:
            self.answers.write(given.buffers)

    def _answer(self, command: RemotingCommand) -> Answer:
        broker = self._broker()
        if broker is None:
            return answer(command, ResponseCode.SERVICE_NOT_AVAILABLE, "the stream has no owner at present")
        match command.code:
            case RequestCode.GET_ROUTEINFO_BY_TOPIC:
                return self._route(command, broker)
            case RequestCode.GET_BROKER_CLUSTER_INFO:
                name = broker.broker_name
                info = ClusterInfo(broker_addr_table={name: broker}, cluster_addr_table={broker.cluster: [name]})
                return answer(command, body=info)
            case RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER:
                names = sorted(topic.rocketmq_name for topic in self._context.topics.all())
                return answer(command, body=TopicList(topic_list=names))
        self._context.metrics.errors["rocketmq", ResponseCode.SERVICE_NOT_AVAILABLE.name] += 1
        return answer(command, ResponseCode.SERVICE_NOT_AVAILABLE, NOT_OWNER)

    def _broker(self) -> BrokerData | None:
        """Return the owner in the format of routes."""
        owner, options = self._context.nodes.owner, self._context.options.rocketmq
        if owner is None:
            return None
        host, port = owner.endpoints.rocketmq
        return BrokerData(
            cluster=options.cluster, broker_name=options.broker, broker_addrs={MASTER_ID: f"{host}:{port}"}
        )

    def _route(self, command: RemotingCommand, broker: BrokerData) -> Answer:
        name = TopicRequest.parse(command.ext).topic
        topic = self._context.topics.by_rocketmq_name(name)
        if topic is None or (name == AUTO_CREATE_TOPIC and not self._context.topics.auto_create):
            remark = f"No topic route info in name server for the topic: {name[:300]}"
            return answer(command, ResponseCode.TOPIC_NOT_EXIST, remark)
        queues = QueueData(
            broker_name=broker.broker_name,
            read_queue_nums=topic.queue_count,
            write_queue_nums=topic.queue_count,
            perm=topic.perm,
        )
        return answer(command, body=TopicRouteData(queue_datas=[queues], broker_datas=[broker]))
