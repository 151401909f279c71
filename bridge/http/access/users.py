"""/api/users: the users of the broker. An answer never has a password or a verifier.

    GET    /api/users          all users
    POST   /api/users          {"name", "password", "is_super"?, "groups"?}
    PATCH  /api/users/{name}   {"password"?, "is_super"?, "groups"?}
    DELETE /api/users/{name}

Only a super user may make, change or remove a super user. All of them are refused while `security.enabled` is off:
whoever reaches an open port could leave a user behind for later.
"""

from collections.abc import Awaitable, Callable
from functools import partial

import msgspec
from aiohttp import web

from duolog.bridge.http.access.gate import SESSION, NotAllowed
from duolog.bridge.http.answers import Json, answer
from duolog.bridge.http.context import HttpContext
from duolog.bridge.http.requests import parsed
from duolog.bridge.net.futures import awaited
from duolog.bridge.records.security import UserSet
from duolog.bridge.security.logins import new_record
from duolog.bridge.security.scram import Mechanism
from duolog.bridge.security.users import ONLY_SUPER, UnknownUser, User, UserError
from duolog.store.entry import Promise


class NewUser(msgspec.Struct, forbid_unknown_fields=True):
    """The body of POST /api/users."""

    name: str
    password: str
    is_super: bool = False
    groups: list[str] = []


class UserChange(msgspec.Struct, forbid_unknown_fields=True):
    """The body of PATCH /api/users/{name}; what it does not have stays."""

    password: str | None = None
    is_super: bool | None = None
    groups: list[str] | None = None


class UserApi:
    """The routes. `kept` waits for a promise of the log, `read` reads a request's body."""

    def __init__(
        self,
        context: HttpContext,
        kept: Callable[[Promise], Awaitable[None]],
        read: Callable[[web.Request], Awaitable[bytes]],
    ) -> None:
        self._context, self._kept, self._read = context, kept, read
        self._security = context.security

    def routes(self) -> list[web.RouteDef]:
        return [
            web.get("/api/users", self._list),
            web.post("/api/users", self._add),
            web.patch("/api/users/{name}", self._change),
            web.delete("/api/users/{name}", self._remove),
        ]

    async def _list(self, request: web.Request) -> web.Response:
        check_enabled(self._context)
        await self._kept(self._context.state_log.barrier())
        return answer([user_view(user) for user in self._security.users.all()])

    async def _add(self, request: web.Request) -> web.Response:
        check_enabled(self._context)
        wanted = parsed(await self._read(request), NewUser)
        record = await self._record(wanted.name, wanted.password, is_super=wanted.is_super, groups=tuple(wanted.groups))
        await self._keep(request, record, is_new=True)
        return answer(self._view(wanted.name), 201)

    async def _change(self, request: web.Request) -> web.Response:
        check_enabled(self._context)
        name = request.match_info["name"]
        wanted = parsed(await self._read(request), UserChange)
        if self._security.users.get(name) is None:
            raise UnknownUser(f"there is no user {name[:255]}")
        hashed = None if wanted.password is None else await self._record(name, wanted.password)
        user = self._security.users.get(name)
        if user is None:
            raise UnknownUser(f"there is no user {name[:255]}")
        record = user.record if hashed is None else hashed
        await self._keep(
            request,
            msgspec.structs.replace(
                record,
                is_super=user.is_super if wanted.is_super is None else wanted.is_super,
                groups=user.record.groups if wanted.groups is None else wanted.groups,
            ),
            is_new=False,
        )
        return answer(self._view(name))

    async def _remove(self, request: web.Request) -> web.Response:
        check_enabled(self._context)
        name = request.match_info["name"]
        self._check_super(request, name)
        await self._kept(self._security.users.remove(name, self._context.clock.now_ms()))
        return answer({"removed": name})

    async def _record(
        self, name: str, password: str, *, is_super: bool = False, groups: tuple[str, ...] = ()
    ) -> UserSet:
        """Compute the record of a user in a thread. Raises UserError."""
        security, now_ms = self._security, self._context.clock.now_ms()
        make = partial(
            new_record, name, password, security.box, security.options, now_ms, is_super=is_super, groups=groups
        )
        outcome = await awaited(partial(security.executor.submit, partial(_outcome, make)))
        if isinstance(outcome, UserError):
            raise outcome
        assert isinstance(outcome, UserSet)
        return outcome

    async def _keep(self, request: web.Request, record: UserSet, *, is_new: bool) -> None:
        self._check_super(request, record.name, makes_super=record.is_super)
        await self._kept(self._security.users.set(record, self._context.clock.now_ms(), is_new=is_new))

    def _check_super(self, request: web.Request, name: str, *, makes_super: bool = False) -> None:
        if not self._security.authorizer.may_change_user(request.get(SESSION), name, makes_super=makes_super):
            raise NotAllowed(ONLY_SUPER)

    def _view(self, name: str) -> Json:
        user = self._security.users.get(name)
        return {} if user is None else user_view(user)


def _outcome(make: Callable[[], UserSet]) -> UserSet | UserError:
    """Return an error instead of raising it, because a thread would report it as a fault."""
    try:
        return make()
    except UserError as error:
        return error


def check_enabled(context: HttpContext) -> None:
    """Raise HTTPConflict while security is off."""
    if not context.security.is_enabled:
        raise web.HTTPConflict(
            text="security.enabled is off, so anybody could do this; stop the broker, and use --data DIR"
        )


def user_view(user: User) -> Json:
    """Return what may be shown of a user."""
    return {
        "name": user.name,
        "is_super": user.is_super,
        "groups": list(user.record.groups),
        "mechanisms": [each.value for each in Mechanism if user.verifier(each) is not None],
        "has_secret_key": bool(user.record.sealed_secret),
    }
