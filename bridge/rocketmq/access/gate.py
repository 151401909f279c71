"""Authenticates each RocketMQ request, and checks that its principal has the needs that its row declares.

A refused request is answered NO_PERMISSION, also where Apache RocketMQ would answer "does not exist", so that clients
do not learn which names exist. The needs of a waiting request are checked again when it continues, so a right that was
taken away is missing at once.
"""

from collections.abc import Iterable
from typing import Any, Final, Protocol

from duolog.bridge.config import Options
from duolog.bridge.rocketmq.requests.admission import Kind
from duolog.bridge.rocketmq.requests.errors import RequestRefused
from duolog.bridge.rocketmq.requests.request_row import Row
from duolog.bridge.security.audit.audit_log import CHANGES
from duolog.bridge.security.needs import AnyOf, first_refused
from duolog.bridge.security.rules import Operation
from duolog.bridge.security.security import Security
from duolog.bridge.security.session import DECISIONS_MAX, Session
from duolog.bridge.state.topic_table import Topic
from duolog.protocol.rocketmq.codes import RequestCode, ResponseCode
from duolog.protocol.rocketmq.remoting import RemotingCommand

# Requests of tools that need other operations than `CHANGES`.
_CHANGES: Final = frozenset({RequestCode.INVOKE_BROKER_TO_RESET_OFFSET})


class WrongSignature(RequestRefused):
    """A failed login. Its answer is delayed by `security.failed_login_delay_ms`, which slows down guessing."""

    def __init__(self, remark: str) -> None:
        super().__init__(ResponseCode.NO_PERMISSION, remark)


class Authenticator(Protocol):
    """Authenticates requests."""

    def session_of(self, connection: Any, command: RemotingCommand) -> Session:
        """Return the session of a request. Raises RequestRefused if it does not prove who has sent it.

        The connection keeps it in `session`, as that of its last request. The first request that proves it is the login
        of the connection (`Connection.await_login`).
        """


class Granted:
    """The needs of an allowed request, which are checked again when the request continues after a wait."""

    __slots__ = ("_gate", "_needs", "_request", "_session")

    def __init__(self, gate: "Gate", session: Session, request: str, needs: tuple[AnyOf, ...]) -> None:
        self._gate, self._session, self._request, self._needs = gate, session, request, needs

    def check(self) -> None:
        """Raise RequestRefused if the session no longer has all needs of the request."""
        self._gate.decide(self._session, self._request, self._needs)

    def check_topic(self, topic: Topic, operation: Operation) -> None:
        """Raise RequestRefused unless the session may do the operation on a topic that the handler has found."""
        needs = self._gate.resources.topic(topic.kafka_name, operation)
        self._gate.decide(self._session, self._request, needs)


class Gate:
    """Decides about each request to the RocketMQ port and to the name server's port."""

    def __init__(self, security: Security, authenticator: Authenticator) -> None:
        self._security, self._authorizer = security, security.authorizer
        self.resources = security.resources
        self.authenticator = authenticator
        self.failed_login_delay_ms = security.options.failed_login_delay_ms

    def admit(self, session: Session, command: RemotingCommand, row: Row, context: Any) -> Granted:
        """Decide about a request. Raises RequestRefused, and ProtocolError if its fields cannot be read.

        The session keeps the decisions about sends, by topic.
        """
        if row.topic_of is None:
            return self.decide_request(session, command, row, context)
        topic = context.topics.by_rocketmq_name(row.topic_of(command.ext))
        # No user and no rule has changed.
        if topic is not None and session.generation == self._authorizer.generation:
            known: Granted | None = session.sends.get((command.code, topic.number))
            if known is not None:
                return known
        granted = self.decide_request(session, command, row, context)
        # The first message of a topic needs CREATE. What a retry topic needs changes with the messages in it.
        if topic is not None and self.resources.is_plain(topic.kafka_name):
            if len(session.sends) >= DECISIONS_MAX:
                session.sends.clear()
            session.sends[command.code, topic.number] = granted
        return granted

    def decide_request(self, session: Session, command: RemotingCommand, row: Row, context: Any) -> Granted:
        """Decide about a request by its present needs. Raises RequestRefused."""
        needs, request = tuple(row.needs(context, command)), row.counter[1]
        self.decide(session, request, needs)
        if row.kind is Kind.ADMIN:  # All administrative requests are of this kind.
            self._note_change(session, command, request, needs)
        return Granted(self, session, request, needs)

    def _note_change(self, session: Session, command: RemotingCommand, request: str, needs: tuple[AnyOf, ...]) -> None:
        if command.code in _CHANGES or any(alternatives[0].operation in CHANGES for alternatives in needs):
            self._security.audit.changed("rocketmq", session, request, (each[0] for each in needs))

    def decide(self, session: Session, request: str, needs: Iterable[AnyOf]) -> None:
        """Raise RequestRefused unless the session has all needs."""
        if not self._authorizer.is_valid(session):
            raise no_permission(session.end)
        need = first_refused(self._authorizer, session, needs)
        if need is not None:
            self._security.audit.refused("rocketmq", session, request, (need,))
            raise no_permission(f"{session.principal} may not {need}")


def first_request_bytes_max(options: Options) -> int:
    """Return how large a request on the broker's port may be before one that proves who the client is.

    There is no login. Java's producers send a message as the first request of a connection, and only a whole request
    can be checked, so a first request may be as large as a message. Nothing large is sent to the name server's port,
    where the limit is `security.login_bytes_max`.
    """
    return options.rocketmq.body_bytes_max + options.security.login_bytes_max


def no_permission(reason: str) -> RequestRefused:
    """Return the refusal of a request that is not allowed."""
    return RequestRefused(ResponseCode.NO_PERMISSION, reason)
