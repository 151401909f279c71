"""SaslHandshake 0..1 and SaslAuthenticate 0..2: the login (`requests/login.py`).

Version 0 of SaslHandshake, after which tokens follow without SaslAuthenticate, is refused like an unknown mechanism.
While `security.enabled` is off, every mechanism is refused, so that a client with SASL settings reports them as the
cause, not a lost connection.
"""

from datetime import timedelta
from functools import partial
from typing import Any

from duolog.bridge.kafka.context import Serving
from duolog.bridge.kafka.requests.kafka_driver import answer_in_steps
from duolog.bridge.kafka.requests.login import Login
from duolog.bridge.kafka.requests.ordered_connection import OrderedConnection
from duolog.bridge.kafka.requests.request import KafkaRequest, Steps
from duolog.bridge.net.answers import Answer
from duolog.bridge.net.ordered_outbox import OutboxSlot
from duolog.bridge.net.waiting import UntilCalled, WaitingSteps
from duolog.bridge.security.scram import LoginFailed
from duolog.protocol.kafka.api_messages import ErrorCode
from duolog.store.errors import StoreError


def sasl_handshake(context: Serving, connection: OrderedConnection, request: KafkaRequest) -> Answer:
    """Begin a login with a mechanism."""
    login: Login | None = connection.login
    error, mechanisms = ErrorCode.unsupported_sasl_mechanism, tuple[str, ...]()
    if login is not None:
        mechanisms = login.mechanisms
        if request.version > 0 and login.begin(request.body.mechanism):
            error = ErrorCode.none
    return request.answer(request.types.SaslHandshakeResponse(error_code=error, mechanisms=mechanisms))


def sasl_authenticate(
    context: Serving, connection: OrderedConnection, request: KafkaRequest
) -> Answer | Steps | OutboxSlot | None:
    """Take a token of the client. A failure is answered, and closes the connection.

    Too many logins that wait for a thread close it without an answer, because clients give up after one.
    """
    login: Login | None = connection.login
    if login is None:
        return request.answer(_response(request, ErrorCode.illegal_sasl_state, "security.enabled is off"))
    steps = _steps(context, connection, login, request)
    return answer_in_steps(connection, request, steps, context.purgatory, context.sliced_requests)


def _steps(
    context: Serving, connection: OrderedConnection, login: Login, request: KafkaRequest
) -> WaitingSteps[Answer | Steps]:
    connection.is_busy = True  # Requests after the password are not read before the password is checked.
    connection.hold()
    try:
        token = yield from login.steps(bytes(request.body.auth_bytes), context.clock.now_ms(), context.clock.mono_ms())
    except LoginFailed as failure:
        reason = str(failure)
        answer = request.answer(_response(request, ErrorCode.sasl_authentication_failed, reason))
        if delay_ms := context.security.options.failed_login_delay_ms:
            yield UntilCalled(partial(connection.server.timed_calls.wait, delay_ms))
        connection.server.soon("kafka login", lambda: connection.close(f"login failed: {reason}"))
        return answer
    except StoreError as busy:
        connection.close(str(busy))
        return request.answer(_response(request, ErrorCode.sasl_authentication_failed, str(busy)))  # It is not sent.
    finally:
        connection.is_busy = False
        connection.go_on_soon()
    connection.renew_session()
    return request.answer(_response(request, ErrorCode.none, None, token, login.session_ms if login.session else 0))


def _response(
    request: KafkaRequest, error: ErrorCode, message: str | None, token: bytes = b"", session_ms: int = 0
) -> Any:
    return request.types.SaslAuthenticateResponse(
        error_code=error,
        error_message=message,
        auth_bytes=token,
        session_lifetime=timedelta(milliseconds=session_ms),
    )
