"""The class Site: makes pages, carries out actions, returns files. `console.py` imports it for the first request."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final

from aiohttp import web

from duolog.bridge.clock import Clock
from duolog.bridge.config import HttpOptions
from duolog.bridge.config.checks import mask_rules
from duolog.bridge.console import assets, rendering
from duolog.bridge.console.actions import ACTIONS
from duolog.bridge.console.commands import commands
from duolog.bridge.console.forms import NO_LABELS, Form, FormError
from duolog.bridge.console.labels import LABELS
from duolog.bridge.console.masking import Masking
from duolog.bridge.console.pages import PAGES
from duolog.bridge.console.pages.page import Display, Page, PageApi, PageRefused, error_of
from duolog.bridge.http.answers import Listing
from duolog.bridge.http.local_api import LocalApi
from duolog.bridge.http.requests import parsed

HEADERS: Final = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
    "connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'",
    "X-Frame-Options": "DENY",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
}
FRESH: Final = {"Cache-Control": "no-store"}
LASTING: Final = {"Cache-Control": "public, max-age=31536000, immutable"}
# The parts of the navigation: title and path.
NAVIGATION: Final = (
    ("Overview", "/"),
    ("Topics", "/console/topics"),
    ("Messages", "/console/messages"),
    ("Delayed", "/console/delayed"),
    ("Schedules", "/console/schedules"),
    ("Transactions", "/console/transactions"),
    ("Groups", "/console/groups"),
    ("Dead letters", "/console/dead-letters"),
    ("Clients", "/console/clients"),
    ("Settings", "/console/settings"),
    ("Log", "/console/log"),
)


class Site:
    """The pages of one broker. `read` returns the body of a request; `options` say how messages are shown."""

    def __init__(
        self, local_api: LocalApi, read: Callable[[web.Request], Awaitable[bytes]], clock: Clock, options: HttpOptions
    ) -> None:
        self._local_api, self._read, self._clock = local_api, read, clock
        self._display = Display(Masking(mask_rules(options.masks)), options.schemas_directory)

    # -- Pages

    async def page(self, path: str, request: web.Request) -> web.StreamResponse:
        """Answer a request for the page at this path of `PAGES`."""
        api = PageApi(self._local_api, request, self._display, self._clock.now_ms(), LABELS.get(path, NO_LABELS))
        status = 200
        try:
            page = await PAGES[path](api)
        except (PageRefused, FormError) as refusal:
            status = refusal.status
            page = Page("refused.html", "Not possible", {"text": str(refusal), "status": status})
        values = dict(page.values) | {
            "title": page.title,
            "commands": api.commands,
            "navigation": NAVIGATION,
            "path": request.path,
            "origin": api.origin,
            "now_ms": api.now_ms,
            "query": list(request.query.items()),
        }
        return await self._html(page.template, values, status)

    async def _html(self, template: str, values: Mapping[str, Any], status: int) -> web.StreamResponse:
        compiled = await asyncio.to_thread(rendering.template, template)
        response = Listing(rendering.parts(compiled, values), status, content_type="text/html; charset=utf-8")
        response.headers.update(HEADERS | FRESH)
        return response

    # -- Actions

    async def act(self, request: web.Request) -> web.StreamResponse:
        name = request.match_info["name"]
        plan = ACTIONS.get(name)
        if plan is None:
            raise web.HTTPNotFound(text=f"there is no action {name[:80]}")
        fields = parsed(await self._read(request), dict[str, str])
        form = Form(fields, self._clock.now_ms(), LABELS.get(name, NO_LABELS))
        values: dict[str, Any] = {"answer": {}, "error": "", "is_preview": False}
        status = 200
        try:
            planned = plan(form)
        except FormError as error:
            values |= {"error": str(error), "done": "", "commands": []}
            return await self._html("result.html", values, 400)
        origin = f"{request.scheme}://{request.host}"
        shown = commands(planned.words, origin, planned.method, planned.path, planned.query, planned.body)
        values |= {"done": planned.done, "commands": [shown], "is_preview": form.flag("preview")}
        if not values["is_preview"]:
            status, content = await self._local_api.call(
                request, planned.method, planned.path, planned.query, planned.body
            )
            values["answer"] = content
            if status >= 400:
                values["error"] = form.labelled(error_of(content))
        response = await self._html("result.html", values, status if values["error"] else 200)
        if not values["error"] and not values["is_preview"]:
            response.headers["HX-Trigger"] = "changed"
        return response

    # -- Files

    async def file(self, request: web.Request) -> web.Response:
        name = request.match_info["name"]
        if name not in assets.TYPES:
            raise web.HTTPNotFound(text=f"there is no file {name[:80]}")
        return web.Response(
            body=assets.content(name), content_type=assets.TYPES[name], charset="utf-8", headers=HEADERS | LASTING
        )
