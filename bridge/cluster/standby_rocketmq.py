"""The connection of a RocketMQ client to a standby, on the broker's port or on the name server's.

routes, the cluster, lists of topics   answered, to clients that the owner would answer, too: they name the owner
heartbeats, UNREGISTER_CLIENT          answered without effect, because clients send them to each broker of a route;
                                       members of groups are those that are connected to the owner
FORWARDED                              sent on to the owner (`forwarding.py`)
all others                             SERVICE_NOT_AVAILABLE, after which producers try again

A request is sent on if this standby's users and rules allow it to the client at its address; the owner checks the
signature and the rules again, for the address of this standby. A client that proves who it is by a certificate is
refused, because the owner does not see the certificate.
"""

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Final

from duolog.bridge.cluster.standby_context import StandbyContext
from duolog.bridge.net.answers import Answer
from duolog.bridge.net.connection import Connection
from duolog.bridge.rocketmq.access.gate import Gate, WrongSignature, first_request_bytes_max
from duolog.bridge.rocketmq.namesrv.standby_routes import add_standbys, broker_of
from duolog.bridge.rocketmq.request_table import TABLE
from duolog.bridge.rocketmq.requests.admission import Busy
from duolog.bridge.rocketmq.requests.errors import ANSWERABLE, RequestRefused, code_of, remark_of
from duolog.bridge.rocketmq.requests.responses import answer
from duolog.bridge.security.session import Session
from duolog.protocol.rocketmq import remoting
from duolog.protocol.rocketmq.acl_signature import ACCESS_KEY
from duolog.protocol.rocketmq.bodies import BrokerData, ClusterInfo, QueueData, TopicList, TopicRouteData
from duolog.protocol.rocketmq.codes import RequestCode, ResponseCode
from duolog.protocol.rocketmq.headers import TopicRequest
from duolog.protocol.rocketmq.names import AUTO_CREATE_TOPIC
from duolog.protocol.rocketmq.remoting import FLAG_ONEWAY, FLAG_RESPONSE, RemotingCommand

# Requests that clients send to a broker because a route, or the id of a message, names it. Those for which they add up
# the answers of all brokers of a route (QUERY_MESSAGE, VIEW_BROKER_STATS_DATA) are not among them.
FORWARDED: Final = frozenset(
    {RequestCode.SEND_MESSAGE, RequestCode.SEND_MESSAGE_V2, RequestCode.SEND_BATCH_MESSAGE}
    | {RequestCode.SEND_REPLY_MESSAGE, RequestCode.SEND_REPLY_MESSAGE_V2}
    | {RequestCode.RECALL_MESSAGE, RequestCode.CONSUMER_SEND_MSG_BACK, RequestCode.END_TRANSACTION}
    | {RequestCode.GET_CONSUMER_LIST_BY_GROUP, RequestCode.QUERY_ASSIGNMENT, RequestCode.CHECK_CLIENT_CONFIG}
    | {RequestCode.UPDATE_AND_CREATE_TOPIC, RequestCode.GET_TOPIC_STATS_INFO, RequestCode.GET_PRODUCER_CONNECTION_LIST}
    | {RequestCode.GET_TOPIC_CONFIG, RequestCode.QUERY_TOPIC_CONSUME_BY_WHO, RequestCode.VIEW_MESSAGE_BY_ID}
    | {RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS}
)
NOT_SIGNED: Final = "this broker is a standby, and sends on signed requests only"
NOT_OWNER: Final = "this broker is a standby; ask a name server for the route"


class StandbyRocketMQConnection(Connection):
    """One client of a standby. Once the broker is the owner, a RocketMQConnection goes on with the same socket.

    The class has more than 20 methods and 15 fields because it extends Connection.
    """

    wire = "rocketmq"

    __slots__ = ("_context", "_gate", "_has_failed", "_is_ending", "_new_successor", "session")

    def __init__(self, context: StandbyContext, gate: Gate | None, new_successor: Callable[[], Connection]) -> None:
        """`gate` is that of all connections; None: security is off. `new_successor` makes a connection of an owner."""
        super().__init__(context.server, context.store)
        self._context, self._gate, self._new_successor = context, gate, new_successor
        self._has_failed = False  # A login has failed: the connection is closed with the answer.
        self._is_ending = False  # The successor goes on once the owner has answered.
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
            given = self._answer(command, len(frame))
        except WrongSignature as error:
            self._refuse_login(command, error)
            return
        except ANSWERABLE as error:
            self._context.metrics.errors["rocketmq", code_of(error).name] += 1
            given = answer(command, code_of(error), remark_of(error))
        if given is not None and not command.flag & FLAG_ONEWAY:
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

    def _answer(self, command: RemotingCommand, size: int) -> Answer | None:
        """Return the answer; None: it comes from the owner. Raises RequestRefused, and what else is ANSWERABLE."""
        if command.code in FORWARDED:
            self._forward(command, size)
            return None
        handle = _HANDLERS.get(command.code)
        if handle is None:
            raise RequestRefused(ResponseCode.SERVICE_NOT_AVAILABLE, NOT_OWNER)
        self._admit(command)
        return handle(self, command)

    def _admit(self, command: RemotingCommand) -> str:
        """Check who the client is and what it may do; return the name of its user. Raises RequestRefused."""
        if self._gate is None:
            return ""
        session = self._gate.authenticator.session_of(self, command)
        self._gate.admit(session, command, TABLE[command.code], self._context)
        return session.name

    # -- Requests that the owner answers

    def _forward(self, command: RemotingCommand, size: int) -> None:
        """Send a request on to the owner. Raises RequestRefused and Busy."""
        user = self._admit(command)
        if user and ACCESS_KEY not in command.ext:
            raise RequestRefused(ResponseCode.SERVICE_NOT_AVAILABLE, NOT_SIGNED)
        if command.is_forwarded and not self._context.nodes.is_owner:
            raise RequestRefused(ResponseCode.SERVICE_NOT_AVAILABLE, NOT_OWNER)
        if self.unanswered >= self.bounds.unanswered_max:
            raise Busy("[OVERLOAD]system busy, start flow control for a while")
        self.unanswered += 1
        try:
            self._context.forwarding.forward(user, command, size, partial(self._answered, is_oneway=command.is_oneway))
        except Busy:
            self.unanswered -= 1
            raise

    def _answered(self, found: RemotingCommand, *, is_oneway: bool) -> None:
        """Give the owner's answer to the client, if it is still connected."""
        self.unanswered -= 1
        if self.closed:
            return
        if not is_oneway:
            self.answers.write(remoting.encode(found))
        if self._is_ending and not self.unanswered:
            self.hand_over(self._new_successor())
        else:
            self.go_on_soon()

    def serve_when_answered(self) -> None:
        """Serve the client as an owner once what was sent on is answered; nothing more is received until then.

        The client does not notice it. A request that comes just now would be lost if the connection were closed.
        """
        if self._has_failed:
            return  # It is closed soon.
        self._is_ending = True
        if self.unanswered:
            self.is_busy = True
            self.hold()
        else:
            self.hand_over(self._new_successor())

    # -- Requests that this standby answers

    def _nothing_to_do(self, command: RemotingCommand) -> Answer:
        return answer(command)

    def _cluster(self, command: RemotingCommand) -> Answer:
        broker = self._broker()
        name = broker.broker_name
        return answer(
            command,
            body=ClusterInfo(broker_addr_table={name: broker}, cluster_addr_table={broker.cluster: [name]}),
        )

    def _topics(self, command: RemotingCommand) -> Answer:
        names = sorted(topic.rocketmq_name for topic in self._context.topics.all())
        return answer(command, body=TopicList(topic_list=names))

    def _broker(self) -> BrokerData:
        """Return the owner in the format of routes. Raises RequestRefused."""
        owner, options = self._context.nodes.owner, self._context.options
        if owner is None:
            raise RequestRefused(ResponseCode.SERVICE_NOT_AVAILABLE, "the stream has no owner at present")
        return broker_of(owner.endpoints.rocketmq, options.rocketmq.broker, options)

    def _route(self, command: RemotingCommand) -> Answer:
        broker = self._broker()
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
        route = TopicRouteData(queue_datas=[queues], broker_datas=[broker])
        add_standbys(route, name, self._context.nodes, self._context.options)
        return answer(command, body=route)


_Handler = Callable[[StandbyRocketMQConnection, RemotingCommand], Answer]
_HANDLERS: Final[dict[int, _Handler]] = {
    RequestCode.GET_ROUTEINFO_BY_TOPIC: StandbyRocketMQConnection._route,
    RequestCode.GET_BROKER_CLUSTER_INFO: StandbyRocketMQConnection._cluster,
    RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER: StandbyRocketMQConnection._topics,
    RequestCode.HEART_BEAT: StandbyRocketMQConnection._nothing_to_do,
    RequestCode.UNREGISTER_CLIENT: StandbyRocketMQConnection._nothing_to_do,
}
