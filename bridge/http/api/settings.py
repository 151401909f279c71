"""The settings of the broker: their values and sources, and their reload.

GET  /api/settings           the settings in force; ?search=
POST /api/settings/reload    reads them again (`bridge/reload.py`)
POST /api/log/levels         changes the least severity of log lines until then
"""

from collections.abc import Callable
from typing import NamedTuple, Protocol

import msgspec
from aiohttp import web

from duolog.bridge.config import ConfigError, LoggingOptions
from duolog.bridge.config.log import component_levels, with_level
from duolog.bridge.http.answers import Listing, answer, array, failure
from duolog.bridge.http.api_part import ApiPart, RequestIo
from duolog.bridge.http.context import HttpContext
from duolog.bridge.http.requests import check_query, parsed


class Reloaded(NamedTuple):
    """What a reload has changed, as `name:value`, and the names of the settings that need a restart."""

    reloaded: list[str]
    need_restart: list[str]


class NewLogLevel(msgspec.Struct, forbid_unknown_fields=True):
    """A least severity of log lines; null instead of a component stands for all that have none of their own."""

    component: str | None = None
    level: str | None = None  # None: the component gets that of all.


class SettingsChanges(Protocol):
    """Changes settings of the running broker. Both methods raise ConfigError for what cannot be used."""

    async def reload(self) -> Reloaded:
        """Read the settings again."""

    def set_log_level(self, component: str | None, level: str | None) -> LoggingOptions:
        """Change the least severity of log lines (`with_level`); return the settings of log lines."""


class OnlyInMemory:
    """The changes of a broker that was started without a file and flags, and does not write its own log lines."""

    def __init__(self, options: LoggingOptions) -> None:
        self._options = options

    async def reload(self) -> Reloaded:
        return Reloaded([], [])

    def set_log_level(self, component: str | None, level: str | None) -> LoggingOptions:
        self._options = with_level(self._options, component, level)
        return self._options


class SettingsApi(ApiPart):
    """The routes. `changes` returns what changes the settings, which `duolog serve` replaces."""

    def __init__(self, context: HttpContext, io: RequestIo, changes: Callable[[], SettingsChanges]) -> None:
        super().__init__(context, io)
        self._changes = changes

    def routes(self) -> list[web.RouteDef]:
        return [
            web.get("/api/settings", self._settings),
            web.post("/api/settings/reload", self._reload_settings),
            web.post("/api/log/levels", self._set_log_level),
        ]

    async def _settings(self, request: web.Request) -> web.StreamResponse:
        check_query(request, {"search"})
        search, rows = request.query.get("search", "").lower(), self._context.monitoring.settings_in_force.rows()
        return Listing(array(row._asdict() for row in rows if search in row.name))

    async def _reload_settings(self, request: web.Request) -> web.Response:
        try:
            return answer((await self._changes().reload())._asdict())
        except ConfigError as error:
            return failure(f"nothing has changed: {error}", 409)

    async def _set_log_level(self, request: web.Request) -> web.Response:
        asked = parsed(await self._read(request), NewLogLevel)
        try:
            options = self._changes().set_log_level(asked.component, asked.level)
        except ConfigError as error:
            raise web.HTTPBadRequest(text=str(error)) from error
        return answer({"level": options.level, "levels": component_levels(options.levels)})
