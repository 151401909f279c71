"""The decision before an HTTP handler runs: who has sent the request, and whether that principal has what it needs.

    no or wrong credentials    401, with WWW-Authenticate; wrong ones after `security.failed_login_delay_ms`
    no right                   403

Credentials are `Authorization: Basic`, with a user's name and password, or `Bearer`, with a token (JWT). A
password that was checked is known again without its hash being computed again, until the user changes. A request
without the header belongs to the user of the client's certificate, if the connection has one. On routes that read the
log's files, a `Bearer` token may be one of `http.readers_file` instead.
"""

import base64
import binascii
from collections.abc import Awaitable, Callable, Iterable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Final, Protocol, cast

from aiohttp import web

from duolog.bridge.clock import Clock
from duolog.bridge.config import Options
from duolog.bridge.http.access.pauses import Pauses
from duolog.bridge.http.access.requirements import RouteAccess, access_of
from duolog.bridge.http.answers import failure
from duolog.bridge.http.connections import HttpConnection
from duolog.bridge.http.context import HttpContext
from duolog.bridge.http.local_api import BODY
from duolog.bridge.monitoring.repeated_lines import RepeatedLines
from duolog.bridge.net.futures import wait_for_callback
from duolog.bridge.security.logins import PASSWORD_BYTES_MAX
from duolog.bridge.security.needs import AnyOf, first_refused
from duolog.bridge.security.rules import Operation
from duolog.bridge.security.scram import WRONG, LoginFailed
from duolog.bridge.security.security import Security
from duolog.bridge.security.session import Session
from duolog.bridge.state.topic_table import Topic

if TYPE_CHECKING:
    from duolog.bridge.security.oauth.tokens import TokenUser

BASIC: Final = "basic"
BEARER: Final = "bearer"
CERTIFICATE: Final = "certificate"
READER: Final = "reader"  # What the audit log calls a token of `http.readers_file`.
SESSION: Final = web.RequestKey("session", Session)


class NotLoggedIn(Exception):
    """The request does not prove who has sent it; status 401. `has_tokens`: it could have done so with a token."""

    def __init__(self, reason: str, *, has_tokens: bool = False) -> None:
        super().__init__(reason)
        self.has_tokens = has_tokens


class NotAllowed(Exception):
    """The user may not do this; status 403."""


class Admitting(Protocol):
    """What the decision about a request needs, beside what its row asks for. A standby has it, too."""

    @property
    def clock(self) -> Clock: ...

    @property
    def options(self) -> Options: ...

    @property
    def security(self) -> Security: ...


def not_admitted(error: NotLoggedIn | NotAllowed) -> web.Response:
    """Return the answer to a request that was not admitted."""
    if isinstance(error, NotAllowed):
        return failure(str(error), 403)
    response = failure(str(error), 401)
    response.headers["WWW-Authenticate"] = 'Basic realm="duolog", charset="UTF-8"'
    if error.has_tokens:
        response.headers.add("WWW-Authenticate", 'Bearer realm="duolog"')
    return response


class HttpGate:
    """Asks for each request. `table` has a row for each route.

    `is_reader` tells whether `http.readers_file` has the token of an `Authorization` header.
    """

    def __init__(
        self,
        context: Admitting,
        table: Mapping[tuple[str, str], RouteAccess],
        pauses: Pauses,
        is_reader: Callable[[str], bool],
    ) -> None:
        self._pauses = pauses  # Before the answers to logins that have failed.
        self._is_reader = is_reader
        self._context, self._table = context, table
        self._security = context.security
        self._noted = RepeatedLines()  # Logins by tokens and certificates, which come with each request.

    async def admit(self, request: web.Request, read: Callable[[web.Request], Awaitable[bytes]]) -> None:
        """Let a request pass, or raise NotLoggedIn or NotAllowed; `read` reads its body."""
        access = access_of(self._table, request)
        if access is not None and access.is_open:
            return
        session = await self._session(request, access)
        if access is None or session is None:
            return
        body = b""
        if access.reads_body:
            body = request[BODY] = await read(request)  # The handler gets it again.
        request[SESSION] = session
        self._check(request, access, session, body)
        if request.method not in ("GET", "HEAD") and not access.is_data:
            needs = access.needs(self._context, request, body)
            self._security.audit.changed("http", session, _name_of(request), (each[0] for each in needs))

    async def _session(self, request: web.Request, access: RouteAccess | None) -> Session | None:
        """Return who has sent a request; None: its handler checks the token. Raises NotLoggedIn."""
        header, has_tokens = request.headers.get("Authorization", ""), self._security.tokens is not None
        scheme, _, given = header.partition(" ")
        if scheme.lower() == BEARER and access is not None and access.has_readers:
            has_readers = bool(self._context.options.http.readers_file)
            if has_readers and (not has_tokens or self._is_reader(header)):
                return None
        if scheme.lower() == BEARER and has_tokens:
            return await self._logged_in(self._bearer(given.strip(), request.remote or ""))
        if not scheme and (user := _user_of_certificate(request)):
            self._note(CERTIFICATE, user, request.remote or "")
            return Session(user, request.remote or "")
        if scheme.lower() != BASIC:
            ways = "Basic, with the name and password of a user" + (", or Bearer, with a token" if has_tokens else "")
            raise NotLoggedIn(
                f"security.enabled: expected Authorization: {ways}; or a TLS certificate of a user",
                has_tokens=has_tokens,
            )
        name, password = _credentials(given)
        return await self._logged_in(self._login(name, password, request.remote or ""))

    async def note_unknown_reader(self, request: web.Request, reason: str) -> None:
        """Note a token that is not in `http.readers_file` as a failed login, and return after its delay."""
        self._security.audit.login("http", READER, "", request.remote or "", reason)
        await self._delay()

    async def _logged_in(self, login: Awaitable[Session]) -> Session:
        """Return the session of a login. Raises NotLoggedIn, after a delay that slows down guessing of passwords."""
        try:
            return await login
        except LoginFailed as failure:
            await self._delay()
            raise NotLoggedIn(str(failure), has_tokens=self._security.tokens is not None) from failure

    async def _delay(self) -> None:
        """Return after the delay of a failed login."""
        if delay_ms := self._security.options.failed_login_delay_ms:
            await self._pauses.wait(delay_ms)

    async def _bearer(self, token: str, host: str) -> Session:
        clock = self._context.clock
        check = self._security.check_token(token, clock.now_ms(), clock.mono_ms())
        user: TokenUser | LoginFailed = await wait_for_callback(partial(self._security.executor.submit, check))
        if isinstance(user, LoginFailed):
            self._security.audit.login("http", BEARER, "", host, str(user))
            raise user
        self._note(BEARER, user.name, host)
        return Session(user.name, host, groups=user.groups)

    def _note(self, mechanism: str, name: str, host: str) -> None:
        """Note a login that comes with each request in the audit log, once a minute."""
        if self._noted.take((mechanism, name, host), self._context.clock.mono_ms()) is not None:
            self._security.audit.login("http", mechanism, name, host)

    async def _login(self, name: str, password: str, host: str) -> Session:
        logins, user = self._security.logins, self._security.users.get(name)
        if logins.recall(name, password) and user is not None:
            return logins.session_of_password(user, host)
        check = logins.check(user, name, password)
        fits: bool = await wait_for_callback(partial(self._security.executor.submit, check))
        if fits is not True or user is None:
            self._security.audit.login("http", BASIC, name, host, WRONG)
            raise LoginFailed(WRONG)
        session = logins.session_of_password(user, host)
        self._security.audit.login("http", BASIC, name, host)
        logins.remember(user, password)
        return session

    def _check(self, request: web.Request, access: RouteAccess, session: Session, body: bytes) -> None:
        """Raise NotAllowed unless the session has what the request needs."""
        need = first_refused(self._security.authorizer, session, access.needs(self._context, request, body))
        if need is not None:
            self._security.audit.refused("http", session, _name_of(request), (need,))
            raise NotAllowed(f"{session.principal} may not {need}")


def _user_of_certificate(request: web.Request) -> str | None:
    """Return the user that `tls.principal_rule` gives for the client's certificate; None: it has none."""
    peer = cast(HttpConnection, request.protocol).tls
    return None if peer is None else peer.principal


def is_seen(context: HttpContext, request: web.Request, needs: Iterable[AnyOf]) -> bool:
    """Whether a list may show something that needs this: also to those who may describe the cluster."""
    session = request.get(SESSION)
    if session is None:
        return True
    authorizer = context.security.authorizer
    return authorizer.allows_cluster(session, Operation.DESCRIBE) or first_refused(authorizer, session, needs) is None


def check_found(context: HttpContext, request: web.Request, topic: Topic | None, operation: Operation) -> None:
    """Raise NotAllowed unless the request may do an operation on the topic of what its handler has found."""
    session = request.get(SESSION)
    if session is not None and topic is not None:
        security = context.security
        need = first_refused(security.authorizer, session, security.resources.topic(topic.kafka_name, operation))
        if need is not None:
            security.audit.refused("http", session, _name_of(request), (need,))
            raise NotAllowed(f"{session.principal} may not {need}")


def _name_of(request: web.Request) -> str:
    """Return the method and the path; the query may hold what the audit log must not have."""
    return f"{request.method} {request.path}"


def _credentials(given: str) -> tuple[str, str]:
    try:
        name, colon, password = base64.b64decode(given.strip(), validate=True).decode().partition(":")
    except (binascii.Error, ValueError):
        raise NotLoggedIn("Authorization: expected NAME:PASSWORD in base64") from None
    if not colon or len(password.encode()) > PASSWORD_BYTES_MAX:
        raise NotLoggedIn("Authorization: expected NAME:PASSWORD in base64")
    return name, password
