"""The settings of the broker: their values and sources, and their reload.

GET  /api/settings           the settings in force; ?search=
POST /api/settings/reload    reads them again (`bridge/reload.py`)
"""

from collections.abc import Awaitable, Callable
from typing import NamedTuple

from aiohttp import web

from duolog.bridge.config import ConfigError
from duolog.bridge.http.answers import Listing, answer, array, failure
from duolog.bridge.http.context import HttpContext
from duolog.bridge.http.requests import check_query


class Reloaded(NamedTuple):
    """What a reload has changed, as `name:value`, and the names of the settings that need a restart."""

    reloaded: list[str]
    need_restart: list[str]


class SettingsApi:
    """The routes. `reload` reloads the settings; it raises ConfigError if they cannot be used."""

    def __init__(self, context: HttpContext, reload: Callable[[], Awaitable[Reloaded]]) -> None:
        self._context, self._reload = context, reload

    def routes(self) -> list[web.RouteDef]:
        return [web.get("/api/settings", self._settings), web.post("/api/settings/reload", self._reload_settings)]

    async def _settings(self, request: web.Request) -> web.StreamResponse:
        check_query(request, {"search"})
        search, rows = request.query.get("search", "").lower(), self._context.monitoring.settings_in_force.rows()
        return Listing(array(row._asdict() for row in rows if search in row.name))

    async def _reload_settings(self, request: web.Request) -> web.Response:
        try:
            return answer((await self._reload())._asdict())
        except ConfigError as error:
            return failure(f"nothing has changed: {error}", 409)
