"""The HTTP port of a whole core without sockets: tests send bytes and get bytes, on an event loop of asyncio.

bench = HttpBench()
bench.ask("POST", "/api/topics", {"name": "orders"})          # (201, {...})
bench.send(b"GET / HTTP/1.1\\r\\n...")                            # the bytes of a request
"""

import asyncio
import atexit
import json
from collections.abc import Awaitable, Callable, Coroutine
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, ParamSpec, TypeVar

from aiohttp import web

from duolog.bridge.console.console import Console
from duolog.bridge.core import Core
from duolog.bridge.http.api.messages import Decompression
from duolog.bridge.http.api.pending import PendingApi
from duolog.bridge.http.api.schedules import ScheduleApi
from duolog.bridge.http.api.timers import TimerApi
from duolog.bridge.http.api.topics import TopicApi
from duolog.bridge.http.api_part import RequestIo
from duolog.bridge.http.port import HttpPort
from duolog.store.entry import Promise
from tests.kit.core import ManualCore
from tests.kit.sockets import FakeTransport, connect

HEADERS = {"Host": "localhost:9644", "Content-Type": "application/json", "Connection": "close"}


def new_port(core: Core) -> HttpPort:
    """Return the port of a core, with the API and the console, as a broker has it."""
    port = HttpPort(core.http_context())
    port.add_pages(Console(port.local_api, port.read, core.clock, core.options.http).routes())
    return port


P = ParamSpec("P")
T = TypeVar("T")


class InlineExecutor(ThreadPoolExecutor):
    """Runs each call at once, in the calling thread. A loop that turns until a thread is done would slow it down."""

    def submit(self, call: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        future: Future[T] = Future()
        try:
            future.set_result(call(*args, **kwargs))
        except Exception as error:  # noqa: BLE001 - raised where the call is awaited
            future.set_exception(error)
        return future


LOOP = asyncio.Runner()  # All benches share this loop, because making a loop takes longer than a request.
LOOP.get_loop().set_default_executor(InlineExecutor())
atexit.register(LOOP.close)


class HttpDialogue:
    """One connection to the port in a running loop; `turn` lets the loop run."""

    def __init__(self, core: ManualCore, port: HttpPort) -> None:
        self._core = core
        connection = port.connection()
        assert isinstance(connection, asyncio.Protocol)
        self.connection = connection
        self.transport: FakeTransport = connect(connection, asyncio.get_running_loop())

    def send(self, sent: bytes) -> None:
        self.connection.data_received(sent)

    async def turn(self, count: int = 1) -> None:
        for _ in range(count):
            self._core.settle()
            await asyncio.sleep(0)

    async def close(self) -> None:
        """Close the client's end of the connection."""
        self.transport.abort()
        await self.turn(10)

    async def answers(self, turns_max: int = 1_000_000) -> bytes:
        """Return all that the port writes until it closes."""
        for _ in range(turns_max):
            if self.transport.closing:
                return bytes(self.transport.taken)
            await self.turn()
        raise AssertionError(f"not closed after {turns_max} turns: {bytes(self.transport.taken[:200])!r}")


class HttpBench:
    """A port on a core. `ask` and `send` run LOOP; `port` makes another port, for tests that run a loop."""

    def __init__(self, core: ManualCore | None = None) -> None:
        self.core = core or ManualCore()
        self.core.faults.is_strict = False  # Otherwise aiohttp would answer the exception; `send` raises it instead.
        self._started: HttpPort | None = None  # One port for all requests, because its routes take milliseconds.

    def port(self) -> HttpPort:
        return new_port(self.core)

    def ask(
        self, method: str, path: str, body: object = None, headers: dict[str, str] | None = None, pause_ms: int = 0
    ) -> tuple[int, Any]:
        """Send a JSON request, and return status and answer; `headers` replaces some of HEADERS (None removes one)."""
        sent = b"" if body is None else body if isinstance(body, bytes) else json.dumps(body).encode()
        status, _, answer = self.send(encoded(method, path, sent, HEADERS | (headers or {})), pause_ms)
        return status, json.loads(answer) if path.startswith("/api") and answer else answer

    def send(self, sent: bytes, pause_ms: int = 0) -> tuple[int, bytes, bytes]:
        """Send bytes over a new connection; return status, head and body of the first answer.

        `pause_ms`: the answer must come only when so much time has passed.
        """
        return LOOP.run(self._send(sent, pause_ms))

    async def _send(self, sent: bytes, pause_ms: int) -> tuple[int, bytes, bytes]:
        if self._started is None:
            self._started = self.port()
            await self._started.start()
        dialogue = HttpDialogue(self.core, self._started)
        dialogue.send(sent)
        for passed_ms in (pause_ms - 1, 1) if pause_ms else ():
            await dialogue.turn(50)
            assert not dialogue.transport.taken, "the answer did not wait"
            self.core.clock.pass_ms(passed_ms)
            self.core.server.timed_calls.run(self.core.clock.mono_ms())
        answer = await dialogue.answers()
        assert not self.core.faults.counts, self.core.faults.counts
        return parsed(answer)


def encoded(method: str, path: str, body: bytes, headers: dict[str, str]) -> bytes:
    lines = [f"{method} {path} HTTP/1.1", *(f"{name}: {value}" for name, value in headers.items() if value)]
    return "\r\n".join([*lines, f"Content-Length: {len(body)}", "", ""]).encode() + body


def parsed(answer: bytes) -> tuple[int, bytes, bytes]:
    """Return status, head and body of the only answer of a connection."""
    head, _, body = answer.partition(b"\r\n\r\n")
    return int(head.split()[1]), head, _joined(body) if b"transfer-encoding: chunked" in head.lower() else body


def _joined(chunks: bytes) -> bytes:
    """Return a body without its chunk headers."""
    body = bytearray()
    while chunks:
        size, _, rest = chunks.partition(b"\r\n")
        body += rest[: int(size, 16)]
        chunks = rest[int(size, 16) + 2 :]
    return bytes(body)


class TimerHandlers:
    """The handlers of timers, pending messages, schedules and topics by their names, without a port."""

    def __init__(
        self,
        core: ManualCore,
        kept: Callable[[Promise], Awaitable[None]],
        read: Callable[[web.Request], Awaitable[bytes]],
    ) -> None:
        context, io = core.http_context(), RequestIo(kept, read)
        self._apis = (
            TimerApi(context, io),
            PendingApi(context, io),
            ScheduleApi(context, io),
            TopicApi(context, io, Decompression(1 << 20)),
        )

    def __getattr__(self, name: str) -> Callable[[Any], Coroutine[Any, Any, Any]]:
        handler: Callable[[Any], Coroutine[Any, Any, Any]] = next(
            getattr(api, name) for api in self._apis if hasattr(api, name)
        )
        return handler
