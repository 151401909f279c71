"""The connection of a RocketMQ client to a standby, on the broker's port or on the name server's.

Routes and the cluster name the owner under the stream's one broker name, to clients that the owner would answer, too.
Every other request is refused with SERVICE_NOT_AVAILABLE, after which producers try again.
"""

import asyncio
from collections.abc import Callable
from typing import Final

from duolog.bridge.cluster.standby_context import StandbyContext
from duolog.bridge.net.answers import Answer
from duolog.bridge.net.connection import Connection
from duolog.bridge.rocketmq.access.gate import Gate, WrongSignature, first_request_bytes_max
from duolog.bridge.rocketmq.namesrv.routes import MASTER_ID
from duolog.bridge.rocketmq.request_table import TABLE
from duolog.bridge.rocketmq.requests.errors import ANSWERABLE, RequestRefused, code_of, remark_of
from duolog.bridge.rocketmq.requests.responses import answer
from duolog.bridge.security.session import Session
from duolog.protocol.rocketmq import remoting
from duolog.protocol.rocketmq.bodies import BrokerData, ClusterInfo, QueueData, TopicList, TopicRouteData
from duolog.protocol.rocketmq.codes import RequestCode, ResponseCode
from duolog.protocol.rocketmq.headers import TopicRequest
from duolog.protocol.rocketmq.names import AUTO_CREATE_TOPIC
from duolog.protocol.rocketmq.remoting import FLAG_ONEWAY, FLAG_RESPONSE, RemotingCommand

NOT_OWNER: Final = "this broker is a standby; ask a name server for the route"


class StandbyRocketMQConnection(Connection):
    """One client of a standby.

    The class has more than 20 methods and 15 fields because it extends Connection.
    """

    wire = "rocketmq"

    __slots__ = ("_context", "_gate", "_has_failed", "session")

    def __init__(self, context: StandbyContext, gate: Gate | None) -> None:
        """`gate` is that of all connections; None: security is off."""
        super().__init__(context.server, context.store)
        self._context, self._gate = context, gate
        self._has_failed = False  # A login has failed: the connection is closed with the answer.
        self.session: Session | None = None  # The session of the last request, which the gate sets.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        # A certificate of the client is a login.
        if self._gate is not None and not self.closed and (self.tls is None or not self.tls.principal):
            self.await_login(first_request_bytes_max(self._context.options))

    def received(self, frame: memoryview) -> None:
        command = remoting.decode(frame)
        if command.flag & FLAG_RESPONSE:
            return
        self.doing = "standby request"
        if self._has_failed:
            return
        try:
            given = self._answer(command)
        except WrongSignature as error:
            self._refuse_login(command, error)
            return
        except ANSWERABLE as error:
            self._context.metrics.errors["rocketmq", code_of(error).name] += 1
            given = answer(command, code_of(error), remark_of(error))
        if not command.flag & FLAG_ONEWAY:
            self.answers.write(given.buffers)

    def _refuse_login(self, command: RemotingCommand, error: WrongSignature) -> None:
        """Answer after `security.failed_login_delay_ms`, and close the connection, which slows down guessing."""
        self._context.metrics.errors["rocketmq", error.code.name] += 1
        self._has_failed = self.is_busy = True
        self.hold()

        def end(_: None) -> None:
            if not self.closed:
                self.answers.write(answer(command, error.code, remark_of(error)).buffers)
                self.close(f"login failed: {error}")

        self.server.timed_calls.wait(self._context.options.security.failed_login_delay_ms, end)

    def _answer(self, command: RemotingCommand) -> Answer:
        """Return the answer. Raises RequestRefused, and what else is ANSWERABLE."""
        handle = _HANDLERS.get(command.code)
        if handle is None:
            raise RequestRefused(ResponseCode.SERVICE_NOT_AVAILABLE, NOT_OWNER)
        if self._gate is not None:
            session = self._gate.authenticator.session_of(self, command)
            self._gate.admit(session, command, TABLE[command.code], self._context)
        return handle(self, command, self._broker())

    def _cluster(self, command: RemotingCommand, broker: BrokerData) -> Answer:
        name = broker.broker_name
        return answer(
            command,
            body=ClusterInfo(broker_addr_table={name: broker}, cluster_addr_table={broker.cluster: [name]}),
        )

    def _topics(self, command: RemotingCommand, broker: BrokerData) -> Answer:
        names = sorted(topic.rocketmq_name for topic in self._context.topics.all())
        return answer(command, body=TopicList(topic_list=names))

    def _broker(self) -> BrokerData:
        """Return the owner in the format of routes. Raises RequestRefused."""
        owner, options = self._context.nodes.owner, self._context.options.rocketmq
        if owner is None:
            raise RequestRefused(ResponseCode.SERVICE_NOT_AVAILABLE, "the stream has no owner at present")
        host, port = owner.endpoints.rocketmq
        return BrokerData(
            cluster=options.cluster, broker_name=options.broker, broker_addrs={MASTER_ID: f"{host}:{port}"}
        )

    def _route(self, command: RemotingCommand, broker: BrokerData) -> Answer:
        name = TopicRequest.parse(command.ext).topic
        topic = self._context.topics.by_rocketmq_name(name)
        if topic is None or (name == AUTO_CREATE_TOPIC and not self._context.topics.auto_create):
            if self._context.is_behind():
                raise RequestRefused(ResponseCode.SERVICE_NOT_AVAILABLE, "this standby has not read the log yet")
            remark = f"No topic route info in name server for the topic: {name[:300]}"
            raise RequestRefused(ResponseCode.TOPIC_NOT_EXIST, remark)
        queues = QueueData(
            broker_name=broker.broker_name,
            read_queue_nums=topic.queue_count,
            write_queue_nums=topic.queue_count,
            perm=topic.perm,
        )
        return answer(command, body=TopicRouteData(queue_datas=[queues], broker_datas=[broker]))


_Handler = Callable[[StandbyRocketMQConnection, RemotingCommand, BrokerData], Answer]
_HANDLERS: Final[dict[int, _Handler]] = {
    RequestCode.GET_ROUTEINFO_BY_TOPIC: StandbyRocketMQConnection._route,
    RequestCode.GET_BROKER_CLUSTER_INFO: StandbyRocketMQConnection._cluster,
    RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER: StandbyRocketMQConnection._topics,
}
