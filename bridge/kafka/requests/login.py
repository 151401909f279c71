"""The login of a Kafka client on one connection (KIP-43, KIP-152, KIP-368).

    state       request                                  next state
    ----------  ---------------------------------------  ---------------------------------------------------------
    unknown     ApiVersions                              unknown
                SaslHandshake with an offered mechanism  handshaken
                any other                                the connection is closed
    handshaken  SaslAuthenticate                         handshaken (SCRAM has two steps), known, or failed
    known       SaslHandshake: login again               handshaken
                any other, within `security.session_ms`  known
                any other, later                         the connection is closed
    failed      any                                      the connection is closed; it closes anyway after the answer

A repeated login must be by the same user. Until the first login, requests have at most `security.login_bytes_max`
bytes.
"""

from collections.abc import Generator
from typing import Any, Final

from duolog.bridge.net.tls.peer import TlsPeer
from duolog.bridge.net.waiting import UntilCalled, Wait
from duolog.bridge.security.logins import PASSWORD_BYTES_MAX
from duolog.bridge.security.scram import WRONG, LoginFailed, Mechanism, ScramLogin
from duolog.bridge.security.security import Security
from duolog.bridge.security.session import Session
from duolog.protocol.errors import ProtocolError
from duolog.protocol.kafka.api_messages import ApiKey
from duolog.store.errors import StoreError

PLAIN: Final = "PLAIN"
OAUTHBEARER: Final = "OAUTHBEARER"
CERTIFICATE: Final = "certificate"
_SCRAM: Final = {mechanism.value: mechanism for mechanism in Mechanism}
_HANDSHAKE: Final = (ApiKey.API_VERSIONS, ApiKey.SASL_HANDSHAKE)
_LOGIN: Final = (ApiKey.SASL_HANDSHAKE, ApiKey.SASL_AUTHENTICATE)


class Login:
    """The state of the login on one connection. `session` is None until it has succeeded."""

    __slots__ = (
        "_claimed",
        "_host",
        "_mechanism",
        "_scram",
        "_security",
        "_tls",
        "_until_mono_ms",
        "failure",
        "is_settled",
        "session",
        "session_ms",
    )

    def __init__(self, security: Security, host: str, tls: TlsPeer | None) -> None:
        self._security, self._host, self._tls = security, host, tls
        self._mechanism = ""  # That of the handshake; empty: none is in progress.
        self._claimed = ""  # The name that the client gives for itself and has not proved yet, for the audit log.
        self._scram: ScramLogin | None = None
        self.session_ms = 0  # How long the login is valid, at most as long as its token; 0: as long as the connection.
        self._until_mono_ms: int | None = None  # The end of the session; None: it has none.
        # A certificate that the handshake verified is a login by itself.
        self.session: Session | None = Session(tls.principal, host) if tls is not None and tls.principal else None
        self.failure = ""
        # The login has succeeded, the session has no end, and no other login is in progress: `check` refuses no request
        # but SaslAuthenticate.
        self.is_settled = self.session is not None
        if self.session is not None:
            security.audit.login("kafka", CERTIFICATE, self.session.name, host)

    @property
    def mechanisms(self) -> tuple[str, ...]:
        """The mechanisms that the client may use on this connection."""
        is_plain_allowed = self._tls is not None or self._security.options.sasl_plain_without_tls
        has_tokens = self._security.tokens is not None
        return (*_SCRAM, *((PLAIN,) if is_plain_allowed else ()), *((OAUTHBEARER,) if has_tokens else ()))

    def check(self, key: int, mono_ms: int) -> None:
        """Raise ProtocolError if the connection may not send a request of this API now."""
        if self.failure:
            raise ProtocolError(f"a request after a login that failed: {self.failure}")
        if self._mechanism:
            if key not in _LOGIN and not (self.session is None and key == ApiKey.API_VERSIONS):
                raise ProtocolError("expected SaslAuthenticate after SaslHandshake")
        elif self.session is None:
            if key not in _HANDSHAKE:
                raise ProtocolError("security.enabled: expected SaslHandshake before any other request")
        elif key == ApiKey.SASL_AUTHENTICATE:
            raise ProtocolError("expected SaslHandshake before SaslAuthenticate")
        elif self._until_mono_ms is not None and mono_ms >= self._until_mono_ms and key not in _HANDSHAKE:
            raise ProtocolError("the session has ended, security.session_ms; the client must log in again")

    def begin(self, mechanism: str) -> bool:
        """Begin a login with a mechanism; return False if it is not offered."""
        if mechanism not in self.mechanisms:
            return False
        self._mechanism, self.is_settled = mechanism, False
        self._scram = self._security.logins.scram(_SCRAM[mechanism]) if mechanism in _SCRAM else None
        return True

    def steps(self, token: bytes, now_ms: int, mono_ms: int) -> Generator[Wait, Any, bytes]:
        """Process a token of the client, and return the answer.

        Raises LoginFailed, which ends the login, and StoreError if too many logins wait for a thread.
        """
        try:
            if self._scram is not None:
                return self._take_scram(self._scram, token, mono_ms)
            if self._mechanism == OAUTHBEARER:
                return (yield from self._take_bearer(token, now_ms, mono_ms))
            return (yield from self._take_plain(token, mono_ms))
        except ProtocolError as error:
            self._fail(str(error))
            raise LoginFailed(self.failure) from error
        except (LoginFailed, StoreError) as error:
            self._fail(str(error))
            raise

    def _fail(self, reason: str) -> None:
        self.failure = reason
        self._security.audit.login("kafka", self._mechanism, self._claimed, self._host, reason)

    def _take_scram(self, scram: ScramLogin, token: bytes, mono_ms: int) -> bytes:
        if scram.verifier is None:
            answer = scram.first(token)
            self._claimed = scram.user_name
            return answer
        answer = scram.final(token)
        self._succeed(self._security.logins.session_of_scram(scram, self._host), mono_ms)
        return answer

    def _take_plain(self, token: bytes, mono_ms: int) -> Generator[Wait, Any, bytes]:
        """Check a token of RFC 4616: `authorization id NUL name NUL password`."""
        parts = token.split(b"\0")
        if len(parts) != 3 or len(parts[2]) > PASSWORD_BYTES_MAX:
            raise ProtocolError("PLAIN: expected an authorization id, a name and a password between zero bytes")
        try:
            other, name, password = (part.decode() for part in parts)
        except UnicodeDecodeError:
            raise ProtocolError("PLAIN: the name or the password is not UTF-8") from None
        self._claimed = name
        if other not in ("", name):
            raise LoginFailed("another authorization id than the user's name is not supported")
        logins, user = self._security.logins, self._security.users.get(name)
        check, executor = logins.check(user, name, password), self._security.executor
        fits = yield UntilCalled(lambda done: executor.submit(check, done))
        if not fits or user is None:
            raise LoginFailed(WRONG)
        self._succeed(logins.session_of_password(user, self._host), mono_ms)
        return b""

    def _take_bearer(self, token: bytes, now_ms: int, mono_ms: int) -> Generator[Wait, Any, bytes]:
        """Check a token of RFC 7628: `n,,^Aauth=Bearer TOKEN^A^A`."""
        header, *pairs = token.decode("utf-8", "replace").split("\1")
        given = dict(pair.partition("=")[::2] for pair in pairs if pair)
        scheme, _, bearer = given.get("auth", "").partition(" ")
        if not header.startswith("n,") or scheme.lower() != "bearer":
            raise ProtocolError("OAUTHBEARER: expected n,, and auth=Bearer with a token")
        check = self._security.check_token(bearer.strip(), now_ms, mono_ms)
        user = yield UntilCalled(lambda done: self._security.executor.submit(check, done))
        self._succeed(Session(user.name, self._host, groups=user.groups), mono_ms, user.until_ms - now_ms)
        return b""

    def _succeed(self, session: Session, mono_ms: int, token_ms: int = 0) -> None:
        # The certificate of a broker need not name a user.
        if self.session is not None and self.session.name != session.name and not session.is_broker:
            raise LoginFailed("a login again must be by the same user")
        self._security.audit.login("kafka", self._mechanism, session.name, self._host)
        self.session, self._mechanism, self._scram = session, "", None
        limits_ms = [limit_ms for limit_ms in (self._security.options.session_ms, token_ms) if limit_ms]
        self.session_ms = min(limits_ms, default=0)
        self._until_mono_ms = mono_ms + self.session_ms if self.session_ms else None
        self.is_settled = not self.session_ms
