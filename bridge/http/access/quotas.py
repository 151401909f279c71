"""/api/quotas: how much the clients of users and client ids may use.

    GET    /api/quotas    [{"user": "alice", "client_id": null, "limits": {"producer_byte_rate": 1048576.0}}]
    POST   /api/quotas    {"user": "alice", "limits": {"producer_byte_rate": 1048576, "consumer_byte_rate": null}}

A user or client id that is missing does not matter, an empty one is the default of all. A limit that is null is
removed; if it is not set, nothing is changed, and the status is 404. Quotas hold whether `security.enabled` is on or
off; without it, all clients are the user ANONYMOUS.
"""

import msgspec
from aiohttp import web

from duolog.bridge.http.answers import Listing, answer, array
from duolog.bridge.http.api_part import ApiPart, RequestIo
from duolog.bridge.http.context import HttpContext
from duolog.bridge.http.requests import parsed
from duolog.bridge.security.quotas.entity import Entity


class QuotaChange(msgspec.Struct, forbid_unknown_fields=True):
    """The body of POST /api/quotas."""

    limits: dict[str, float | None]
    user: str | None = None
    client_id: str | None = None


class QuotaApi(ApiPart):
    """The routes."""

    def __init__(self, context: HttpContext, io: RequestIo) -> None:
        super().__init__(context, io)
        self._stored = context.security.quotas.stored

    def routes(self) -> list[web.RouteDef]:
        return [web.get("/api/quotas", self._list), web.post("/api/quotas", self._set)]

    async def _list(self, request: web.Request) -> web.StreamResponse:
        await self._kept(self._context.state_log.barrier())
        rows = [(entity, dict(limits)) for entity, limits in self._stored.all()]
        return Listing(array(_view(entity, limits) for entity, limits in rows))

    async def _set(self, request: web.Request) -> web.Response:
        change = parsed(await self._read(request), QuotaChange)
        entity = Entity(change.user, change.client_id)
        limits, known = self._stored.changed(entity, change.limits), self._stored.get(entity) or {}
        missing = [key for key, value in change.limits.items() if value is None and key not in known]
        if missing:
            raise web.HTTPNotFound(
                text=f"there is no quota {', '.join(missing)} of {entity}; `duolog quota list` shows all"
            )
        promise = self._stored.set(entity, limits, self._context.clock.now_ms())
        await self._kept(promise or self._context.state_log.barrier())
        return answer(_view(entity, limits))


def _view(entity: Entity, limits: dict[str, float]) -> dict[str, object]:
    return {"user": entity.user, "client_id": entity.client_id, "limits": limits}
