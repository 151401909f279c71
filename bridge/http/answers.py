"""HTTP answers, most of which are JSON, and which are written in pieces, as fast as the client reads them.

    web.Response    the body exists already; its bytes count as held until the socket has taken them
    Listing         the body is made while it is written; only one piece is in memory, for any length of the body

Work of unknown length is an iterator that yields None, or a part of the body, at least every millisecond. Its caller
lets the event loop run after SLICE_MS.
"""

import asyncio
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final, Protocol

import msgspec
from aiohttp import web

PIECE_BYTES: Final = 64 << 10  # The size of a piece; the next piece is made when the socket has taken this one.
SLICE_MS: Final = 4  # The time of a slice; then the event loop runs.

Json = dict[str, Any]
Clock_ms = Callable[[], int]

to_json: Final = msgspec.json.Encoder().encode


class AnswerBytes(Protocol):
    """Counts the bytes of answers. `slices` is locked while a slice of a Listing is made."""

    @property
    def slices(self) -> asyncio.Lock: ...

    def hold(self, size: int) -> None: ...


class Listing(web.StreamResponse):
    """An answer that is written while the iterator `parts` makes it; at each None the event loop may run.

    `undo` is called if the client does not receive the whole answer.
    """

    def __init__(
        self,
        parts: Iterable[bytes | None],
        status: int = 200,
        *,
        content_type: str = "application/json",
        undo: Callable[[], object] = lambda: None,
    ) -> None:
        super().__init__(status=status, headers={"Content-Type": content_type})
        self.parts, self.undo = parts, undo


def answer(content: Any, status: int = 200) -> web.Response:
    """Return an answer with a JSON body."""
    return web.Response(body=to_json(content), status=status, content_type="application/json")


def failure(text: str, status: int) -> web.Response:
    """Return an error answer with this text."""
    return answer({"error": text}, status)


def array(rows: Iterable[Any | None]) -> Iterator[bytes | None]:
    """Yield the parts of a JSON array of rows, and None for each None among the rows."""
    yield b"["
    separator = b""
    for row in rows:
        if row is None:
            yield None
        else:
            yield separator + to_json(row)
            separator = b","
    yield b"]"


def object_with(fields: Json, name: str, rows: Iterable[Any | None]) -> Iterator[bytes | None]:
    """Yield the parts of a JSON object with these fields, followed by one field that is an array of rows."""
    yield (to_json(fields)[:-1] + b"," if fields else b"{") + to_json(name) + b":"
    yield from array(rows)
    yield b"}"


async def in_slices(steps: Iterable[object], mono_ms: Clock_ms) -> None:
    """Run an iterator to its end; the event loop runs after each SLICE_MS."""
    until_mono_ms = mono_ms() + SLICE_MS
    for _ in steps:
        if mono_ms() >= until_mono_ms:
            await asyncio.sleep(0)
            until_mono_ms = mono_ms() + SLICE_MS


async def send(
    request: web.Request, response: web.StreamResponse, sizes: AnswerBytes, mono_ms: Clock_ms
) -> web.StreamResponse:
    """Write an answer, and wait until the socket has taken it.

    Raises ConnectionError if the client has disconnected.
    """
    if isinstance(response, Listing):
        try:
            await response.prepare(request)
            await _write_parts(response, sizes.slices, mono_ms, is_silent=request.method == "HEAD")
            await response.write_eof()
            if request.transport is None:  # aiohttp does not raise if the client has closed the connection in order.
                raise ConnectionResetError("the client has closed the connection")
        except BaseException:
            response.undo()
            raise
        return response
    if isinstance(response, web.Response) and isinstance(response.body, bytes) and len(response.body) > PIECE_BYTES:
        sizes.hold(len(response.body))
        return await _send_body(request, response, response.body)
    await response.prepare(request)
    await response.write_eof()
    return response


async def _write_parts(response: Listing, slices: asyncio.Lock, mono_ms: Clock_ms, *, is_silent: bool) -> None:
    parts = iter(() if is_silent else response.parts)
    piece, is_whole = bytearray(), False
    while not is_whole:
        async with slices:  # One slice of one listing in a turn of the loop, for any number of listings.
            is_whole = _fill(piece, parts, mono_ms)
            await asyncio.sleep(0)
        if piece and (is_whole or len(piece) >= PIECE_BYTES):
            await response.write(bytes(piece))
            piece.clear()


def _fill(piece: bytearray, parts: Iterator[bytes | None], mono_ms: Clock_ms) -> bool:
    """Add parts for one slice, or until the piece is large enough; return whether there are no further parts."""
    until_mono_ms = mono_ms() + SLICE_MS
    for part in parts:
        if part is not None:
            piece += part
        if len(piece) >= PIECE_BYTES or mono_ms() >= until_mono_ms:
            return False
    return True


async def _send_body(request: web.Request, response: web.Response, body: bytes) -> web.StreamResponse:
    paced = web.StreamResponse(status=response.status, headers=response.headers)
    paced.content_length = len(body)
    await paced.prepare(request)
    if request.method != "HEAD":
        for start in range(0, len(body), PIECE_BYTES):
            await paced.write(body[start : start + PIECE_BYTES])
    await paced.write_eof()
    return paced
