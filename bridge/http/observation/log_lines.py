"""GET /api/log: the last lines of the broker's log; ?limit=, level=, component=, search=.

`bridge/monitoring/last_lines.py` keeps them in memory. The newest line is the last one.
"""

from typing import Final

from aiohttp import web

from duolog.bridge.config.log import COMPONENTS
from duolog.bridge.http.answers import Listing, array
from duolog.bridge.http.context import HttpContext
from duolog.bridge.http.requests import check_query, number
from duolog.bridge.monitoring.last_lines import LINES_MAX, last_lines

LEVELS: Final = ("debug", "info", "warning", "error")


async def get_log_lines(context: HttpContext, request: web.Request) -> web.StreamResponse:
    check_query(request, {"limit", "level", "component", "search"})
    limit = number(request, "limit", 100, LINES_MAX, lowest=1)
    level, component = _one_of(request, "level", LEVELS), _one_of(request, "component", tuple(COMPONENTS))
    levels = LEVELS[LEVELS.index(level) :] if level else LEVELS
    search = request.query.get("search", "").lower()
    found = [
        line
        for line in last_lines()
        if line.level in levels and component in ("", line.component) and search in line.text.lower()
    ]
    return Listing(array(line._asdict() for line in found[-limit:]))


def _one_of(request: web.Request, name: str, values: tuple[str, ...]) -> str:
    found = request.query.get(name, "")
    if found and found not in values:
        raise web.HTTPBadRequest(text=f"{name}: expected one of {', '.join(values)}, got {found[:40]!r}")
    return found
