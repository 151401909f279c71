"""GET /api/history: figures of the last hour, in intervals of ten seconds (`bridge/monitoring/history.py`)."""

from aiohttp import web

from duolog.bridge.http.answers import Listing, object_with
from duolog.bridge.http.context import HttpContext
from duolog.bridge.http.requests import check_query
from duolog.bridge.monitoring.history import INTERVAL_MS


class HistoryApi:
    """The route."""

    def __init__(self, context: HttpContext) -> None:
        self._context = context

    def routes(self) -> list[web.RouteDef]:
        return [web.get("/api/history", self._history)]

    async def _history(self, request: web.Request) -> web.StreamResponse:
        check_query(request, set())
        intervals = (each._asdict() for each in self._context.monitoring.history.intervals())
        return Listing(object_with({"interval_ms": INTERVAL_MS}, "intervals", intervals))
