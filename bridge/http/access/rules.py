"""/api/acls: the access rules.

    GET    /api/acls           all rules
    POST   /api/acls           {"rules": [...]}: adds rules; those that exist stay
    POST   /api/acls/remove    {"rules": [...]}: removes rules

A rule is `{"principal", "resource", "name", "pattern", "operation", "host", "permission"}`. Like /api/users, they are
refused while `security.enabled` is off.
"""

import msgspec
from aiohttp import web

from duolog.bridge.http.access.users import check_enabled
from duolog.bridge.http.answers import Listing, answer, array
from duolog.bridge.http.api_part import ApiPart, RequestIo
from duolog.bridge.http.context import HttpContext
from duolog.bridge.http.requests import parsed
from duolog.bridge.security.rules import Rule
from duolog.bridge.security.tools.rule_texts import RuleText, rule_of, text_of


class RuleList(msgspec.Struct, forbid_unknown_fields=True):
    """The body of POST /api/acls and POST /api/acls/remove."""

    rules: list[RuleText]


class AclApi(ApiPart):
    """The routes."""

    def __init__(self, context: HttpContext, io: RequestIo) -> None:
        super().__init__(context, io)
        self._acls = context.security.acls

    def routes(self) -> list[web.RouteDef]:
        return [
            web.get("/api/acls", self._list),
            web.post("/api/acls", self._add),
            web.post("/api/acls/remove", self._remove),
        ]

    async def _list(self, request: web.Request) -> web.StreamResponse:
        check_enabled(self._context)
        await self._kept(self._context.state_log.barrier())
        return Listing(array(map(text_of, [*self._acls.all()])))

    async def _add(self, request: web.Request) -> web.Response:
        rules = await self._rules(request)
        before = len(self._acls)
        promise = self._acls.add(rules, self._context.clock.now_ms())
        added = len(self._acls) - before
        await self._kept(promise or self._context.state_log.barrier())
        return answer({"added": added})

    async def _remove(self, request: web.Request) -> web.Response:
        rules = await self._rules(request)
        before = len(self._acls)
        promise = self._acls.remove(rules, self._context.clock.now_ms())
        removed = before - len(self._acls)
        await self._kept(promise or self._context.state_log.barrier())
        return answer({"removed": removed})

    async def _rules(self, request: web.Request) -> list[Rule]:
        check_enabled(self._context)
        return [rule_of(each) for each in parsed(await self._read(request), RuleList).rules]
