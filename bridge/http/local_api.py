"""Calls of the HTTP API in this process: the console's pages use the same routes as scripts do.

A call takes the headers of the page's request with it and passes the same checks, so a page may do exactly what its
browser may do by a request of its own. Answers are limited by ANSWER_BYTES_MAX, because a page shows only a part of
large lists.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final, NamedTuple, cast
from urllib.parse import quote

import msgspec
from aiohttp import web
from yarl import URL

from duolog.bridge.http.answers import SLICE_MS, Clock_ms, Listing, to_json
from duolog.bridge.http.connections import HttpConnection

ANSWER_BYTES_MAX: Final = 4 << 20
BODY: Final = web.RequestKey("body", bytes)  # The body of a call, instead of the payload of the page's request.
NOT_TAKEN: Final = frozenset({"content-length", "content-type", "expect", "transfer-encoding", "idempotency-key"})


class ApiAnswer(NamedTuple):
    """The status and the decoded JSON of an answer."""

    status: int
    content: Any


class LocalApi:
    """The API of one port. `serve` returns the answer to a request, which may be an error, without sending it."""

    def __init__(self, serve: Callable[[web.Request], Awaitable[web.StreamResponse]], mono_ms: Clock_ms) -> None:
        self._serve, self._mono_ms = serve, mono_ms

    async def call(
        self, page: web.Request, method: str, path: str, query: Mapping[str, str], body: object = None
    ) -> ApiAnswer:
        """Return the answer of the API to a request that comes from the client of `page`. Raises TooMuchHeld.

        `path` is encoded (`path_of`). An answer that is too large has the status 413.
        """
        kept = {name: value for name, value in page.headers.items() if name.lower() not in NOT_TAKEN}
        request = page.clone(
            method=method,
            rel_url=URL(path, encoded=True).with_query(query),
            headers=kept | {"Content-Type": "application/json"},
        )
        request[BODY] = b"" if body is None else to_json(body)
        return await self._read(cast(HttpConnection, page.protocol), await self._serve(request))

    async def _read(self, connection: HttpConnection, response: web.StreamResponse) -> ApiAnswer:
        content = bytearray()
        if isinstance(response, Listing):
            until_mono_ms = self._mono_ms() + SLICE_MS
            for part in response.parts:
                content += part or b""
                if len(content) > ANSWER_BYTES_MAX:
                    response.undo()
                    return _too_large()
                if self._mono_ms() >= until_mono_ms:
                    await asyncio.sleep(0)
                    until_mono_ms = self._mono_ms() + SLICE_MS
        elif isinstance(response, web.Response) and isinstance(response.body, bytes):
            content += response.body
        if len(content) > ANSWER_BYTES_MAX:
            return _too_large()
        connection.hold(len(content))
        try:
            return ApiAnswer(response.status, msgspec.json.decode(bytes(content)))
        except msgspec.DecodeError:
            return ApiAnswer(response.status, {"error": content.decode("utf-8", "replace")})


def path_of(template: str, *places: str) -> str:
    """Return a path with these texts in its places: `path_of("/api/topics/{}", name)`."""
    return template.format(*(quote(each, safe="") for each in places))


def _too_large() -> ApiAnswer:
    return ApiAnswer(413, {"error": f"the answer is larger than {ANSWER_BYTES_MAX} bytes; a command shows all of it"})
