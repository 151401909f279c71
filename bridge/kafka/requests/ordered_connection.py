"""A client's connection as handlers see it: its answers leave in the order of its requests."""

from collections.abc import Callable
from functools import partial

from duolog.bridge.kafka.requests import fault_answers
from duolog.bridge.kafka.requests.access import ERRORS
from duolog.bridge.kafka.requests.login import Login
from duolog.bridge.kafka.requests.request import KafkaRequest
from duolog.bridge.net.answers import Answer
from duolog.bridge.net.connection import BUG, Connection, Log
from duolog.bridge.net.ordered_outbox import OrderedOutbox, OutboxSlot
from duolog.bridge.net.server import Server
from duolog.bridge.security.needs import Need
from duolog.bridge.security.quotas.entity import ANONYMOUS, CONNECTION_RATE
from duolog.bridge.security.quotas.quotas import Meter, Quotas
from duolog.bridge.security.rights import Rights
from duolog.bridge.security.session import Session
from duolog.protocol.errors import ProtocolError
from duolog.protocol.kafka.api_messages import ApiKey


class OrderedConnection(Connection):
    """A connection with an outbox in request order. A subclass receives the requests.

    The class has more than 20 methods and 15 fields because it extends Connection.
    """

    wire = "kafka"

    __slots__ = ("_log_directory", "client_id", "login", "membership", "meter", "outbox", "rights", "session")

    def __init__(self, server: Server, log: Log, log_directory: str) -> None:
        """`log_directory` is what the answer to a failed DescribeLogDirs request names."""
        super().__init__(server, log)
        self.outbox = OrderedOutbox(self)
        self.client_id = ""  # As the client's ApiVersions request names it, which is the first one of most clients.
        # (group, member id) of the last member that joined or sent a heartbeat over this connection. A stock client has
        # one member at most for a connection. The member may have left meanwhile.
        self.membership: tuple[str, str] | None = None
        self._log_directory = log_directory
        self.meter: Meter | None = None  # How much the client may use; None: no quota was set yet.
        self.login: Login | None = None  # None: security is off.
        self.rights: Rights | None = None  # Those of `session`.
        self.session: Session | None = None  # Who the client is; None: unknown, or security is off.

    def connection_lost(self, error: Exception | None) -> None:
        super().connection_lost(error)
        self.outbox.drop()

    def failed(self, request: KafkaRequest, error: Exception, slot: OutboxSlot) -> None:
        """Report an unexpected error of a request that has a slot, and answer the request there."""
        self.report(request, error)
        self.answer_fault(request, partial(self.outbox.fail, slot))

    def report(self, request: KafkaRequest, error: Exception) -> None:
        """Count and log an unexpected error, by the API of the request."""
        self.fault(error, ApiKey(request.api_key).name.lower())

    def measure(self, quotas: Quotas, client_id: str, mono_ms: int) -> None:
        """Find the meter of the client. Raises ProtocolError if the client has too many connections."""
        user = ANONYMOUS if self.session is None else self.session.name
        if self.meter is None:
            admitted = quotas.admit(user, client_id, mono_ms)
            if admitted.refusal:
                raise ProtocolError(admitted.refusal)
            if admitted.key is not None:
                self.on_close.append(partial(quotas.closed, admitted.key))
            if admitted.wait_ms:
                quotas.throttled[self.wire, CONNECTION_RATE] += 1
                self.mute(mono_ms + admitted.wait_ms)
        self.meter = quotas.meter(self.meter, user, client_id, mono_ms)

    def throttle(self, quotas: Quotas, key: str, units: float, client_id: str, mono_ms: int) -> int:
        """Count what a request has used, and stop reading while the client is above a quota; return for how long."""
        user = ANONYMOUS if self.session is None else self.session.name
        meter = self.meter = quotas.meter(self.meter, user, client_id, mono_ms)
        rate = meter.rate(key)
        if rate is not None:
            rate.use(units, mono_ms)
        wait_ms = meter.wait_ms(mono_ms)
        if wait_ms and not self.is_muted:
            quotas.throttled[self.wire, key] += 1
            self.mute(mono_ms + wait_ms)
        return wait_ms

    def renew_session(self) -> None:
        """Take the session of a login, which may be complete now; a subclass may lift the limits before a login."""
        if self.login is not None:
            self.session = self.login.session

    def refuse(self, request: KafkaRequest, need: Need) -> Answer | None:
        """Return the answer to a request whose session may not have this; None: the connection must be closed."""
        return fault_answers.answer_of(request, self._log_directory, ERRORS[need.resource_type], f"not allowed: {need}")

    def answer_fault(self, request: KafkaRequest, answer_with: Callable[[Answer], None]) -> None:
        """Answer with UNKNOWN_SERVER_ERROR, or close the connection where the API has no place for it."""
        answer = fault_answers.answer_of(request, self._log_directory)
        if answer is None:
            self.close(BUG, abort=True)
        else:
            answer_with(answer)
