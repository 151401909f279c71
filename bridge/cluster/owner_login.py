"""The login of a standby to the owner: SaslHandshake 1 and two SaslAuthenticate 1, as bytes (KIP-43, KIP-152).

request    key i16 | version i16 | correlation i32 | client id i16, -1 for null | mechanism string, or token bytes
answer     correlation i32 | error i16 | the mechanisms, or a message string (i16 size, -1 for null) and token bytes
"""

import struct
from collections.abc import Awaitable, Callable
from typing import Final

from duolog.bridge.security.logins import BROKER_MECHANISM, login_of_broker
from duolog.bridge.security.scram import LoginFailed
from duolog.bridge.security.secret_box import SecretBox
from duolog.protocol.kafka.api_messages import ApiKey, ErrorCode

Exchange = Callable[[bytes], Awaitable[bytes]]  # Sends a request without its size, and returns the answer without its.

_HEADER: Final = struct.Struct(">hhih")
_ANSWER: Final = struct.Struct(">ih")


async def log_in(exchange: Exchange, box: SecretBox) -> None:
    """Log in as a broker of the stream, and check that the owner is one, too. Raises LoginFailed."""
    login, mechanism = login_of_broker(box), BROKER_MECHANISM.value.encode()
    _error(await exchange(_request(ApiKey.SASL_HANDSHAKE, struct.pack(">h", len(mechanism)) + mechanism)))
    server_first = _token(await exchange(_authenticate(login.first())))
    login.check(_token(await exchange(_authenticate(login.final(server_first)))))


def _request(key: ApiKey, body: bytes) -> bytes:
    return _HEADER.pack(key, 1, 0, -1) + body


def _authenticate(token: bytes) -> bytes:
    return _request(ApiKey.SASL_AUTHENTICATE, struct.pack(">i", len(token)) + token)


def _error(answer: bytes) -> None:
    """Raise LoginFailed if the answer has an error."""
    if len(answer) < _ANSWER.size:
        raise LoginFailed(f"the owner's answer has {len(answer)} bytes")
    _, error = _ANSWER.unpack_from(answer)
    if error != ErrorCode.none:
        raise LoginFailed(f"the owner has refused the login with error {error}")


def _token(answer: bytes) -> bytes:
    _error(answer)
    try:
        (message_size,) = struct.unpack_from(">h", answer, _ANSWER.size)
        at = _ANSWER.size + 2 + max(message_size, 0)
        (size,) = struct.unpack_from(">i", answer, at)
    except struct.error:
        raise LoginFailed("the owner's answer to the login is cut short") from None
    return answer[at + 4 : at + 4 + max(size, 0)]
