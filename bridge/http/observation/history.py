"""GET /api/history: figures of the last hour, in intervals of ten seconds (`bridge/monitoring/history.py`)."""

from aiohttp import web

from duolog.bridge.http.answers import Listing, object_with
from duolog.bridge.http.context import HttpContext
from duolog.bridge.http.requests import check_query
from duolog.bridge.monitoring.history import INTERVAL_MS


async def get_history(context: HttpContext, request: web.Request) -> web.StreamResponse:
    check_query(request, set())
    intervals = (each._asdict() for each in context.monitoring.history.intervals())
    return Listing(object_with({"interval_ms": INTERVAL_MS}, "intervals", intervals))
