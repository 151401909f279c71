"""The connection of a Kafka client: it decodes a request, calls the handler of its API, and keeps answers in order.

    unknown API key, or version that is not served    the connection is closed; ApiVersions is answered (KIP-511)
    malformed header or body                          the connection is closed
    request larger than `kafka.request_bytes_max`,
    or with more elements than `kafka.elements_max`   the connection is closed before the request is decoded
    before the login, or refused by access rules      `login.py`, `access.py`; `security.enabled`
    the handler returns an answer                     it leaves after the answers of earlier requests
    the handler returns a slot                        the same, once the slot is filled; later requests are handled
    the handler returns a generator                   it runs in slices (`sliced_requests.py`); later requests wait
    the handler returns None                          there is no answer (acks=0)
    the handler raises an unexpected exception        UNKNOWN_SERVER_ERROR (`fault_answers.py`), or closed

Kafka handles one request of a connection at a time. Here the next request is handled at once, in order of arrival, and
only the answers wait for each other. A produced batch is appended before the next request is handled.
"""

import asyncio
from collections.abc import Mapping
from functools import partial
from types import GeneratorType

from duolog.bridge.kafka import TABLE, api_versions
from duolog.bridge.kafka.context import Serving
from duolog.bridge.kafka.requests.access import decide, needs_of, remember
from duolog.bridge.kafka.requests.api import KafkaApi
from duolog.bridge.kafka.requests.login import Login
from duolog.bridge.kafka.requests.ordered_connection import OrderedConnection
from duolog.bridge.kafka.requests.request import KafkaRequest, Steps
from duolog.bridge.net.answers import Answer
from duolog.bridge.net.connection import TurnIsFull
from duolog.bridge.net.ordered_outbox import OutboxSlot
from duolog.bridge.net.server import Server
from duolog.bridge.security.quotas.entity import REQUEST_TIME
from duolog.bridge.security.quotas.quotas import Quotas
from duolog.bridge.security.rights import Rights
from duolog.bridge.security.session import Session
from duolog.protocol.errors import ProtocolError
from duolog.protocol.kafka.api_messages import ApiKey, ErrorCode, decode_header, decode_request
from duolog.store.entry import new_tuple

_METRICS = {key: api.metric for key, api in TABLE.items()}
_KINDS = {key: " ".join(api.metric) for key, api in TABLE.items()}
_SASL_AUTHENTICATE = int(ApiKey.SASL_AUTHENTICATE)  # An int, because comparing with a member of the enum is slower.


class KafkaConnection(OrderedConnection):
    """One client of the Kafka port.

    The class has more than 20 methods and 15 fields because it extends OrderedConnection.
    """

    __slots__ = ("_context", "_elements_max", "_request_bytes_max", "_table")

    def __init__(self, server: Server, context: Serving, table: Mapping[int, KafkaApi] = TABLE) -> None:
        super().__init__(server, context.store, context.options.store.directory)
        self.use(context, table)

    def use(self, context: Serving, table: Mapping[int, KafkaApi] = TABLE) -> None:
        """Handle further requests by the handlers of this table, with this context."""
        options = context.options
        self._context, self._table = context, table
        self._elements_max = options.kafka.elements_max
        self._request_bytes_max = options.kafka.request_bytes_max

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        security = self._context.security
        if security.is_enabled:
            self.login = Login(security, self.peer[0], self.tls)
            self.await_login(security.options.login_bytes_max)
            self.renew_session()  # A client certificate counts as a login.

    def renew_session(self) -> None:
        super().renew_session()
        if self.session is not None:
            self.rights = Rights(self._context.security, self.session)
            self.logged_in()

    def received(self, frame: memoryview) -> None:
        header = decode_header(frame)
        key, version, correlation_id, client_id, body_at = header
        api = self._table.get(key)
        context = self._context
        if api is None or not api.min_version <= version <= api.max_version:
            if key != ApiKey.API_VERSIONS:
                raise ProtocolError(f"request with key {key} and version {version} of client {client_id[:100]!r}")
            context.metrics.errors["kafka", ErrorCode.unsupported_version.name.upper()] += 1
            self.outbox.add(api_versions.unsupported(context.advertised_versions, correlation_id))
            return
        login = self.login
        if login is not None and (not login.is_settled or key == _SASL_AUTHENTICATE):
            login.check(key, self.server.clock.mono_ms())
        self.doing = _KINDS[key]
        if len(frame) > self._request_bytes_max and key != ApiKey.PRODUCE:
            raise ProtocolError(
                f"{api.key.name} request of {len(frame)} bytes; kafka.request_bytes_max is {self._request_bytes_max}"
            )
        body = decode_request(key, version, frame, body_at, self._elements_max)
        context.metrics.requests[_METRICS[key]] += 1
        request = new_tuple(
            KafkaRequest,
            (key, version, correlation_id, client_id, body, context.metrics.errors, len(frame), self.rights, None),
        )
        quotas = context.security.quotas
        begun_s = self._begin_measuring(quotas, key, client_id) if quotas.has_any else None
        reserved_count = self.outbox.reserved_count
        try:
            answer = api.handler(context, self, request) if login is None else self._handle(api, request)
            if isinstance(answer, GeneratorType):
                answer = context.sliced_requests.begin(self, request, answer)
            if isinstance(answer, Answer):
                self.outbox.add(answer)
            if begun_s is not None:
                used_ms = (self.server.watchdog.seconds() - begun_s) * 1000
                self.throttle(quotas, REQUEST_TIME, used_ms, client_id, self.server.clock.mono_ms())
        except ProtocolError:
            raise
        except TurnIsFull:
            context.metrics.requests[_METRICS[key]] -= 1  # The request is counted when it is received again.
            raise
        except Exception as error:  # noqa: BLE001 - contained
            self.report(request, error)
            if self.outbox.reserved_count == reserved_count:
                self.answer_fault(request, self.outbox.add)
            elif self.outbox.reserved is not None:
                self.answer_fault(request, partial(self.outbox.fail, self.outbox.reserved))

    def _begin_measuring(self, quotas: Quotas, key: int, client_id: str) -> float | None:
        """Return the time at which a request begins; None if the client has not logged in yet."""
        if key == ApiKey.API_VERSIONS or (self.login is not None and self.session is None):
            return None
        self.measure(quotas, client_id, self.server.clock.mono_ms())
        return self.server.watchdog.seconds()

    def _handle(self, api: KafkaApi, request: KafkaRequest) -> Answer | OutboxSlot | Steps | None:
        """Decide about the needs of the request, and handle its allowed part."""
        context, session = self._context, self.session
        if session is None:
            return api.handler(
                context, self, request
            )  # This is a request of the login, because `Login.check` refuses all others.
        security, remembered = context.security, api.access.remembered
        if (
            remembered is not None
            and session.generation == security.authorizer.generation  # No user and no rule has changed.
            and session.is_valid
            and remembered.covers(session, request.body)
        ):
            return api.handler(context, self, request)
        return self._decide(api, request, session)

    def _decide(self, api: KafkaApi, request: KafkaRequest, session: Session) -> Answer | OutboxSlot | Steps | None:
        """Decide by the access rules, and handle the allowed part of the request."""
        context, security, body = self._context, self._context.security, request.body
        if not security.authorizer.is_valid(session):
            raise ProtocolError(session.end)
        need, allowed, refused = decide(api.access, security.authorizer, session, context, body)
        if need is not None:
            security.audit.refused("kafka", session, api.key.name, (need,))
            answer = self.refuse(request, need)
            if answer is None:
                raise ProtocolError(f"{api.key.name} is not allowed: {need}")
            return answer
        if refused is not None:
            security.audit.refused("kafka", session, api.key.name, refused.needs)
        if api.access.is_change:
            changes = [*needs_of(api.access, context, body if allowed is None else allowed)]
            if changes:
                security.audit.changed("kafka", session, api.key.name, changes)
        if refused is not None:
            return api.handler(context, self, request._replace(body=allowed, refused=refused))
        if api.access.remembered is not None:
            remember(api.access.remembered.topics(session), body.partitions, security.resources.is_plain)
        return api.handler(context, self, request)
