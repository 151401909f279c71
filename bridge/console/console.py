"""The routes of the console: pages, actions and files.

    GET  /, /console/...            pages
    POST /console/actions/{name}    {"field": "text", ...}: performs the action of a form; answers a part of a page with
                                    the result and the equivalent command. With "preview" it only shows the command.
    GET  /console/static/{name}     style, script, htmx, uPlot

A foreign web page cannot use the console: pages change nothing and may not be embedded in frames, and actions accept
only JSON, as all routes of the API do (`bridge/http/guard.py`). The other modules of the console are imported in a
thread at the first request (`site.py`), so that a broker whose console is not used needs no time and memory for them.
"""

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from importlib import import_module
from typing import Any, Final

from aiohttp import web

from duolog.bridge.clock import Clock
from duolog.bridge.config import HttpOptions
from duolog.bridge.http.local_api import LocalApi

# The keys of `pages.PAGES`, which would import all pages.
PATHS: Final = (
    "/",
    "/console/topics",
    "/console/topics/{name}",
    "/console/messages",
    "/console/send",
    "/console/delayed",
    "/console/timer",
    "/console/schedules",
    "/console/transactions",
    "/console/groups",
    "/console/groups/{name}",
    "/console/dead-letters",
    "/console/clients",
    "/console/settings",
    "/console/log",
)


class Console:
    """The routes of one broker's console. `read` returns the body of a request; `options` say what messages show."""

    def __init__(
        self, local_api: LocalApi, read: Callable[[web.Request], Awaitable[bytes]], clock: Clock, options: HttpOptions
    ) -> None:
        self._local_api, self._read, self._clock, self._options = local_api, read, clock, options
        self._made: Any = None

    def routes(self) -> list[web.RouteDef]:
        return [
            *(web.get(path, partial(self._page, path)) for path in PATHS),
            web.post("/console/actions/{name}", self._act),
            web.get("/console/static/{name}", self._file),
        ]

    async def _page(self, path: str, request: web.Request) -> web.StreamResponse:
        found: web.StreamResponse = await (await self._site()).page(path, request)
        return found

    async def _act(self, request: web.Request) -> web.StreamResponse:
        done: web.StreamResponse = await (await self._site()).act(request)
        return done

    async def _file(self, request: web.Request) -> web.StreamResponse:
        found: web.StreamResponse = await (await self._site()).file(request)
        return found

    async def _site(self) -> Any:
        if self._made is None:
            site = await asyncio.to_thread(import_module, "duolog.bridge.console.site")
            self._made = site.Site(self._local_api, self._read, self._clock, self._options)
        return self._made
