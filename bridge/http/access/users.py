"""/api/users: the users of the broker. An answer never has a password or a verifier.

    GET    /api/users          all users
    POST   /api/users          {"name", "password", "is_super"?, "groups"?}
    PATCH  /api/users/{name}   {"password"?, "is_super"?, "groups"?}
    DELETE /api/users/{name}

Only a super user may make, change or remove a super user. All of them are refused while `security.enabled` is off:
whoever reaches an open port could leave a user behind for later.
"""

from collections.abc import Sequence
from functools import partial

import msgspec
from aiohttp import web

from duolog.bridge.http.access.gate import SESSION
from duolog.bridge.http.answers import Json, answer
from duolog.bridge.http.api_part import ApiPart, RequestIo
from duolog.bridge.http.context import HttpContext
from duolog.bridge.http.requests import parsed
from duolog.bridge.net.futures import wait_for_callback
from duolog.bridge.records.security import UserSet
from duolog.bridge.security.user_changes import change_user, hashed, hashing, remove_user, set_user
from duolog.bridge.security.users import UserError


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


class UserApi(ApiPart):
    """The routes."""

    def __init__(self, context: HttpContext, io: RequestIo) -> None:
        super().__init__(context, io)
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
        return answer([user.view for user in self._security.users.all()])

    async def _add(self, request: web.Request) -> web.Response:
        check_enabled(self._context)
        wanted = parsed(await self._read(request), NewUser)
        record = await self._hashed(wanted.name, wanted.password, is_super=wanted.is_super, groups=wanted.groups)
        await self._kept(set_user(self._security, request.get(SESSION), record, self._now_ms(), is_new=True))
        return answer(self._view(wanted.name), 201)

    async def _change(self, request: web.Request) -> web.Response:
        check_enabled(self._context)
        name = request.match_info["name"]
        wanted = parsed(await self._read(request), UserChange)
        self._security.users.known(name)
        made = None if wanted.password is None else await self._hashed(name, wanted.password)
        promise = change_user(
            self._security, request.get(SESSION), name, self._now_ms(),
            made=made, is_super=wanted.is_super, groups=wanted.groups,
        )  # fmt: skip
        await self._kept(promise)
        return answer(self._view(name))

    async def _remove(self, request: web.Request) -> web.Response:
        check_enabled(self._context)
        name = request.match_info["name"]
        await self._kept(remove_user(self._security, request.get(SESSION), name, self._now_ms()))
        return answer({"removed": name})

    async def _hashed(self, name: str, password: str, *, is_super: bool = False, groups: Sequence[str] = ()) -> UserSet:
        """Return the record of a user, which a thread makes. Raises UserError, StoreError."""
        make = hashing(self._security, name, password, self._now_ms(), is_super=is_super, groups=groups)
        outcome: UserSet | UserError = await wait_for_callback(partial(self._security.executor.submit, make))
        return hashed(outcome)

    def _now_ms(self) -> int:
        return self._context.clock.now_ms()

    def _view(self, name: str) -> Json:
        user = self._security.users.get(name)
        return {} if user is None else user.view


def check_enabled(context: HttpContext) -> None:
    """Raise HTTPConflict while security is off."""
    if not context.security.is_enabled:
        raise web.HTTPConflict(
            text="security.enabled is off, so anybody could do this; stop the broker, and use --data DIR"
        )
