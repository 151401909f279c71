"""The routes of this folder: none changes anything, so their handlers need only the context."""

from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Final

from aiohttp import web

from duolog.bridge.http.context import HttpContext
from duolog.bridge.http.observation.clients import get_clients
from duolog.bridge.http.observation.cron import get_cron
from duolog.bridge.http.observation.history import get_history
from duolog.bridge.http.observation.log_lines import get_log_lines
from duolog.bridge.http.observation.members import get_members
from duolog.bridge.http.observation.warnings import get_warnings

HANDLERS: Final[Mapping[str, Callable[[HttpContext, web.Request], Awaitable[web.StreamResponse]]]] = {
    "/api/history": get_history,
    "/api/warnings": get_warnings,
    "/api/clients": get_clients,
    "/api/log": get_log_lines,
    "/api/groups/{name}/members": get_members,
    "/api/cron": get_cron,
}


def observation_routes(context: HttpContext) -> list[web.RouteDef]:
    """Return the routes of one port."""
    return [web.get(path, partial(handler, context)) for path, handler in HANDLERS.items()]
