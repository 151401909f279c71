"""An HTTP proxy in front of an object store that makes requests slow, fails them, loses them, and repeats them.

    with ObjectProxy(moto.endpoint, seed=7) as proxy:
        Broker(data, {"shared.endpoint": proxy.endpoint}).start()
        proxy.faults.latency_ms = 2_000
        proxy.faults.is_cut = True

The proxy runs in a thread with an event loop of its own, and listens on loopback, or on `host`. Each request goes to
the store over a connection of its own. With several upstream endpoints, one after the other gets a request; their path
is the proxy's, too.
"""

from __future__ import annotations

import asyncio
import itertools
import random
import threading
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import dataclass
from types import TracebackType
from typing import NamedTuple, Self
from urllib.parse import urlsplit

HEAD_BYTES_MAX = 64 << 10
BODY_BYTES_MAX = 512 << 20
START_WITHIN_S = 10.0


@dataclass
class ProxyFaults:
    """What goes wrong; a test may change it at any time. Chances are from 0 to 1, of each request."""

    latency_ms: float = 0.0
    busy: float = 0.0  # 503 without asking the store
    conflict: float = 0.0  # 409 to a PUT without asking the store
    lost_request: float = 0.0  # The connection ends, and the store is not asked.
    lost_answer: float = 0.0  # The store does the request, and the connection ends without an answer.
    repeated: float = 0.0  # The store gets the request twice; its second answer is passed on.
    stale_list: float = 0.0  # A list is answered by the last answer to the same request.
    truncated: float = 0.0  # The connection ends in the middle of the answer's body.
    ignores_conditions: bool = False  # Headers such as If-None-Match do not reach the store, so a create replaces.
    refuses_clock: bool = False  # 403 RequestTimeTooSkewed without asking the store: the client's clock is wrong
    is_cut: bool = False  # Connections are accepted, and no request and no answer passes.


class _Message(NamedTuple):
    """A request or an answer: its first line, its headers as they came, and its body."""

    line: str
    headers: list[tuple[str, str]]
    body: bytes

    def encode(self) -> bytes:
        lines = [self.line, *(f"{name}: {value}" for name, value in self.headers)]
        return "\r\n".join(lines).encode("latin-1") + b"\r\n\r\n" + self.body


class ObjectProxy:
    """The proxy, a context manager. `seen` counts requests by method and status; status 0 is an answer not given."""

    def __init__(self, *upstreams: str, seed: int = 0, host: str = "127.0.0.1") -> None:
        self.faults = ProxyFaults()
        self._host = host
        self.seen: Counter[tuple[str, int]] = Counter()
        self.endpoint = ""  # Set when the proxy is started
        self._upstreams = itertools.cycle([urlsplit(each) for each in upstreams])
        self._path = urlsplit(upstreams[0]).path
        self._random = random.Random(seed)
        self._lists: dict[str, bytes] = {}
        self._thread = threading.Thread(target=self._run, name="object-proxy", daemon=True)
        self._started = threading.Event()
        self._loop = asyncio.new_event_loop()
        self._stop: asyncio.Event | None = None

    def __enter__(self) -> Self:
        self._thread.start()
        assert self._started.wait(START_WITHIN_S), "the proxy did not start"
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        assert self._stop is not None
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(START_WITHIN_S)

    # -- The server

    def _run(self) -> None:
        with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
            runner.run(self._serve())

    async def _serve(self) -> None:
        self._stop = asyncio.Event()
        tasks: set[asyncio.Task[None]] = set()

        def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            task = asyncio.create_task(self._connection(reader, writer))
            tasks.add(task)
            task.add_done_callback(tasks.discard)

        server = await asyncio.start_server(accept, self._host, 0, limit=HEAD_BYTES_MAX)
        self.endpoint = f"http://{self._host}:{server.sockets[0].getsockname()[1]}{self._path}"
        self._started.set()
        await self._stop.wait()
        server.close()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while (request := await _read_message(reader)) is not None:
                answer = await self._answer(request)
                method = request.line.split(" ", 1)[0]
                self.seen[method, int(answer.split(b" ", 2)[1]) if answer else 0] += 1
                if not answer:
                    break
                cut_short = self._happens(self.faults.truncated)
                writer.write(answer[:-1] if cut_short else answer)
                await writer.drain()
                if cut_short:
                    break
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()

    # -- One request

    async def _answer(self, request: _Message) -> bytes:
        """Return the encoded answer; empty if the connection ends without one."""
        faults = self.faults
        method, target, _ = request.line.split(" ", 2)
        await asyncio.sleep(faults.latency_ms / 2000)
        await self._wait_while_cut()
        if faults.refuses_clock:
            return _refusal(403, "RequestTimeTooSkewed")
        if self._happens(faults.busy):
            return _refusal(503, "SlowDown")
        if method == "PUT" and self._happens(faults.conflict):
            return _refusal(409, "ConditionalRequestConflict")
        if self._happens(faults.lost_request):
            return b""
        if faults.ignores_conditions:
            request = request._replace(headers=[each for each in request.headers if not each[0].startswith("if-")])
        is_list = method == "GET" and "list-type=" in target
        if is_list and target in self._lists and self._happens(faults.stale_list):
            return self._lists[target]
        answer = await self._forward(request)
        if self._happens(faults.repeated):
            answer = await self._forward(request)
        if is_list:
            self._lists[target] = answer
        await asyncio.sleep(faults.latency_ms / 2000)
        await self._wait_while_cut()
        return b"" if self._happens(faults.lost_answer) else answer

    async def _wait_while_cut(self) -> None:
        while self.faults.is_cut:  # noqa: ASYNC110 - the test sets it in another thread
            await asyncio.sleep(0.02)

    async def _forward(self, request: _Message) -> bytes:
        """Send the request to the next upstream, and return its encoded answer."""
        upstream = next(self._upstreams)
        try:
            reader, writer = await asyncio.open_connection(upstream.hostname, upstream.port, limit=HEAD_BYTES_MAX)
        except ConnectionError:
            return _refusal(502, "BadGateway")
        try:
            kept = [each for each in request.headers if each[0] != "connection"]
            writer.write(request._replace(headers=[*kept, ("connection", "close")]).encode())
            await writer.drain()
            answer = await _read_message(reader, has_body=not request.line.startswith("HEAD "))
        finally:
            writer.close()
        if answer is None:
            return b""
        framing = ("connection", "transfer-encoding")
        return answer._replace(headers=[each for each in answer.headers if each[0] not in framing]).encode()

    def _happens(self, chance: float) -> bool:
        return chance > 0 and self._random.random() < chance


async def _read_message(reader: asyncio.StreamReader, *, has_body: bool = True) -> _Message | None:
    """Read a request or an answer; None if the connection ends before it begins."""
    try:
        head = await reader.readuntil(b"\r\n\r\n")
    except asyncio.IncompleteReadError as error:
        if error.partial:
            raise
        return None
    line, *rest = head.decode("latin-1").rstrip("\r\n").split("\r\n")
    headers = [(name.strip().lower(), value.strip()) for name, _, value in (each.partition(":") for each in rest)]
    fields = dict(headers)
    body = b""
    if not has_body:
        pass
    elif "chunked" in fields.get("transfer-encoding", ""):
        body = b"".join([chunk async for chunk in _chunks(reader)])
        headers = [*(each for each in headers if each[0] != "content-length"), ("content-length", str(len(body)))]
    else:
        size = int(fields.get("content-length", 0))
        assert size <= BODY_BYTES_MAX, size
        body = await reader.readexactly(size)
    return _Message(line, headers, body)


async def _chunks(reader: asyncio.StreamReader) -> AsyncIterator[bytes]:
    """Yield the chunks of a body with Transfer-Encoding: chunked."""
    while size := int((await reader.readline()).split(b";")[0], 16):
        yield await reader.readexactly(size)
        await reader.readline()
    while (await reader.readline()).strip():
        pass


def _refusal(status: int, code: str) -> bytes:
    body = f"<Error><Code>{code}</Code><Message>by the proxy</Message></Error>".encode()
    return _Message(f"HTTP/1.1 {status} {code}", [("content-length", str(len(body)))], body).encode()
