"""Connections of the HTTP port: those of aiohttp with limits on their number, their idle time and their memory.

    accepted ──whole head within limits.first_request_ms──> in work ──answer taken──> idle, closed after KEEPALIVE_S
       │                                                      │
       └ above http.connections_max: closed at once           ├ body: limits.first_request_ms, http.body_bytes_max
                                                              ├ unsent bytes: closed when the socket has not taken all
                                                              │ of them (PIECE_BYTES at most) within limits.unread_ms
                                                              └ bytes held over all connections (received while in work,
                                                                answers that are being made): http.held_bytes_max

The requests of a connection are served one after the other, so a connection holds one body and one answer.
AHEAD_BYTES_MAX limits the bytes of pipelined requests that it receives meanwhile.
"""

import asyncio
import logging
from typing import Final, cast

from aiohttp import web

from duolog.bridge.clock import Clock
from duolog.bridge.config import Options
from duolog.bridge.http.answers import failure
from duolog.bridge.net.tls.peer import TlsPeer

KEEPALIVE_S: Final = 30
LINGER_S: Final = 2  # The time in which the rest of a refused body is read, so that the client gets the answer.
SWEEP_S: Final = 1
STOP_S: Final = 0.5  # The time for requests in work when the broker stops. aiohttp's default is a minute.
HEADERS_MAX: Final = 64
HEADER_BYTES_MAX: Final = 4096  # The size of one header.
LINE_BYTES_MAX: Final = 8190  # The size of the request line.
READ_BYTES: Final = 64 << 10  # The size of the part of a body that is received before the handler reads it.
AHEAD_BYTES_MAX: Final = 1 << 20  # Bytes that are received beyond the largest body while a request is in work.

log = logging.getLogger("http")


class TooMuchHeld(Exception):
    """The bytes held over all HTTP connections have reached `http.held_bytes_max`."""


class HttpConnection(web.RequestHandler):
    """One connection. `begin` and `end` enclose the work on each of its requests."""

    __slots__ = (
        "_all",
        "_held_bytes",
        "_is_in_work",
        "_socket",
        "_unsent_since_mono_ms",
        "head_deadline_mono_ms",
        "tls",
    )

    def __init__(self, connections: "HttpConnections", server: web.Server) -> None:
        super().__init__(
            server,
            loop=asyncio.get_running_loop(),
            access_log=cast(logging.Logger, None),  # aiohttp accepts None, though its annotation does not say so.
            auto_decompress=False,  # Bodies are not decompressed, because a few KiB could become a GiB.
            keepalive_timeout=KEEPALIVE_S,
            lingering_time=LINGER_S,
            max_line_size=LINE_BYTES_MAX,
            max_field_size=HEADER_BYTES_MAX,
            max_headers=HEADERS_MAX,
            read_bufsize=READ_BYTES,
        )
        self._all = connections
        # A second reference, because aiohttp drops its own before all is sent.
        self._socket: asyncio.Transport | None = None
        self.tls: TlsPeer | None = None  # None: the connection has no TLS.
        self._held_bytes = 0  # The part of `HttpConnections.held_bytes` that this connection holds.
        self._is_in_work = False
        self._unsent_since_mono_ms: int | None = None
        # The time by which the first head must have arrived; None: it has arrived.
        self.head_deadline_mono_ms: int | None = None

    # -- Calls of the transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._socket = cast(asyncio.Transport, transport)
        self.tls = self._socket.get_extra_info("tls_peer")
        self._socket.set_write_buffer_limits(high=0)  # So that writing is paused as long as any byte is unsent.
        super().connection_made(transport)

    def connection_lost(self, exc: BaseException | None) -> None:
        self._socket = None
        self.end()
        self._all.forget(self)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._is_in_work and data:
            try:
                self.hold(len(data))
            except TooMuchHeld as error:
                self.abort(str(error))
                return
            if self._held_bytes > self._all.ahead_bytes_max:
                self.abort(f"sent {self._held_bytes} bytes before it was answered")
                return
        super().data_received(data)

    def pause_writing(self) -> None:
        super().pause_writing()
        self._unsent_since_mono_ms = self._all.clock.mono_ms()

    def resume_writing(self) -> None:
        super().resume_writing()
        self._unsent_since_mono_ms = None

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        """Answer a malformed request in the format of all errors; aiohttp would also log a traceback of its parser."""
        reason = (message or "").partition(":")[0]  # What follows may quote a header, and that a password.
        log.debug("http request refused peer=%s status=%d reason=%r", request.remote, status, reason)
        response = failure(message or "the request is not valid HTTP", status)
        response.force_close()
        return response

    # -- Work on a request

    def begin(self) -> None:
        """Begin the work on a request."""
        self.head_deadline_mono_ms = None
        self._is_in_work = True

    @property
    def slices(self) -> asyncio.Lock:
        return self._all.slices

    def hold(self, size: int) -> None:
        """Count bytes that the request in work keeps in memory until `end`. Raises TooMuchHeld."""
        self._all.hold(size)
        self._held_bytes += size

    def end(self) -> None:
        """End the work on a request, and release the bytes that it held."""
        self._is_in_work = False
        self._all.held_bytes -= self._held_bytes
        self._held_bytes = 0

    def abort(self, reason: str) -> None:
        """Close the connection at once, and log the reason."""
        log.info("connection closed wire=%s peer=%s reason=%r", "http", self.peername, reason)
        if self._socket is not None:
            self._socket.abort()

    def overdue(self, mono_ms: int) -> str:
        """Return why this connection has exceeded a time limit; an empty string means that it has not."""
        if self.head_deadline_mono_ms is not None and mono_ms >= self.head_deadline_mono_ms:
            return f"no whole request within limits.first_request_ms={self._all.first_request_ms}"
        since_mono_ms = self._unsent_since_mono_ms
        if since_mono_ms is not None and mono_ms - since_mono_ms > self._all.unread_ms:
            return f"did not take its answer within limits.unread_ms={self._all.unread_ms}"
        return ""


class HttpConnections:
    """The open connections of the port, and sums over them."""

    def __init__(self, options: Options, clock: Clock) -> None:
        self.clock = clock
        self.first_request_ms = options.limits.first_request_ms
        self.unread_ms = options.limits.unread_ms
        self.ahead_bytes_max = options.http.body_bytes_max + AHEAD_BYTES_MAX
        self.slices = asyncio.Lock()  # Locked while a slice of a Listing is made.
        self.held_bytes = 0
        self.refused_count = 0
        self.overdue_count = 0
        self._held_bytes_max = options.http.held_bytes_max
        self._count_max = options.http.connections_max
        self._open: set[HttpConnection] = set()
        self._is_sweeping = False

    def __len__(self) -> int:
        return len(self._open)

    def accept(self, server: web.Server) -> asyncio.BaseProtocol:
        """Return the protocol for an accepted socket: a connection, or a refusal."""
        if len(self._open) >= self._count_max:
            self.refused_count += 1
            log.warning("connection refused wire=%s http.connections_max=%d", "http", self._count_max)
            return _Refusal()
        connection = HttpConnection(self, server)
        connection.head_deadline_mono_ms = self.clock.mono_ms() + self.first_request_ms
        self._open.add(connection)
        if not self._is_sweeping:
            self._sweep_later()
        return connection

    def forget(self, connection: HttpConnection) -> None:
        self._open.discard(connection)

    def hold(self, size: int) -> None:
        """Count bytes that a request holds in memory. Raises TooMuchHeld."""
        if self.held_bytes + size > self._held_bytes_max:
            raise TooMuchHeld(f"HTTP requests hold {self.held_bytes} bytes, http.held_bytes_max={self._held_bytes_max}")
        self.held_bytes += size

    def _sweep_later(self) -> None:
        self._is_sweeping = True
        asyncio.get_running_loop().call_later(SWEEP_S, self.sweep)

    def sweep(self) -> None:
        """Close the connections that have exceeded a time limit."""
        self._is_sweeping = False
        mono_ms = self.clock.mono_ms()
        for connection in list(self._open):
            reason = connection.overdue(mono_ms)
            if reason:
                self.overdue_count += 1
                connection.abort(reason)
        if self._open:
            self._sweep_later()


class HttpServer:
    """Serves one application on the connections of a port."""

    def __init__(self, application: web.Application, connections: HttpConnections) -> None:
        self._connections = connections
        self._runner = web.AppRunner(application, handle_signals=False, shutdown_timeout=STOP_S)

    async def start(self) -> None:
        """Make the application ready; `connection` may be called from now on."""
        await self._runner.setup()

    async def stop(self) -> None:
        """Wait for the requests in work, for STOP_S at most."""
        await self._runner.cleanup()

    def connection(self) -> asyncio.BaseProtocol:
        """Return the protocol for an accepted socket."""
        return self._connections.accept(self.server)

    @property
    def server(self) -> web.Server:
        """What aiohttp's connections belong to. `start` must have been called."""
        server = self._runner.server
        assert server is not None, "the HTTP port is not started"
        return server


class _Refusal(asyncio.Protocol):
    """Closes the connection at once."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports have the methods of asyncio's, but not its class.
        cast(asyncio.Transport, transport).abort()
