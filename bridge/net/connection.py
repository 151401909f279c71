"""The class Connection: reads frames from a client's socket, stops reading at the limits, and closes the connection."""

import asyncio
import logging
from collections.abc import Callable
from typing import ClassVar, Protocol, cast

from duolog.bridge.net.addresses import endpoint
from duolog.bridge.net.answer_buffer import AnswerBuffer
from duolog.bridge.net.server import Server
from duolog.bridge.net.tls.peer import TlsPeer
from duolog.protocol import foreign
from duolog.protocol.errors import ProtocolError
from duolog.protocol.framing import FrameReader
from duolog.store.entry import Promise
from duolog.store.errors import StoreError

log = logging.getLogger("net")

# The limits of one connection in a loop turn. One read of 256 KiB may have thousands of frames, and some take long.
FRAMES_AT_ONCE = 256
TURN_MS = 5
WIRE_CLIENTS = {"kafka": foreign.KAFKA, "rocketmq": foreign.ROCKETMQ}
BUG = "the broker has a bug, which its log describes"  # The reason that a client gets after a fault.


class TurnIsFull(Exception):
    """Requests of this kind have used up their part of the loop turn, so this one is received in the next turn."""


class Log(Protocol):
    """The methods of the store that an answer needs if it waits for the log."""

    def kept(self, promise: Promise) -> bool: ...

    def safe_end(self, level: int) -> int: ...

    def when(self, promise: Promise, done: Callable[[StoreError | None], None]) -> None: ...


class HeldRequest(Protocol):
    """A request in the purgatory."""

    def connection_closed(self) -> None:
        """End the request without an answer."""


class Connection(asyncio.Protocol):
    """One client. A subclass names its `wire`, takes frames in `received`, and writes to `answers` or an OrderedOutbox.

    `received` gets a read-only view that stays valid as long as it is referenced. It may raise TurnIsFull before it has
    changed anything, and gets the same frame in the next loop turn. If it raises ProtocolError, the connection is
    closed. Any other exception is reported as a fault and closes the connection, too; a subclass may answer the request
    before.

    The class has more than 20 methods and 15 fields because reading, back-pressure and the end of a connection share
    `closed` and `is_holding`, and each further object would cost each request a call.
    """

    wire: ClassVar[str]

    __slots__ = (
        "_frames",
        "_has_heard",
        "_held",
        "_transport",
        "active_mono_ms",
        "answers",
        "bounds",
        "closed",
        "connections",
        "doing",
        "held",
        "held_bytes",
        "is_before_login",
        "is_busy",
        "is_holding",
        "is_muted",
        "is_receiving",
        "log",
        "made_mono_ms",
        "on_close",
        "partial_bytes",
        "peer",
        "server",
        "tls",
        "unanswered",
    )

    def __init__(self, server: Server, log: Log) -> None:
        self.server = server
        self.connections = server.connections
        self.log = log
        self.bounds = server.bounds[self.wire]
        self.answers = AnswerBuffer(self, server)
        self.peer: tuple[str, int] = ("", 0)
        self.tls: TlsPeer | None = None  # None: the connection has no TLS.
        self.closed = True  # True until `connection_made`, and from `close` on.
        self.doing = self.wire  # The kind of the request that was received last; a subclass sets it.
        self.is_receiving = False  # `received` is being called, and `received_all` follows in the same turn.
        self.is_before_login = False  # The client must log in, and has not.
        self.is_busy = False  # A request is processed in slices, or a login; no other is received until it has ended.
        self.is_muted = False  # The client has used up a quota.
        self.held: set[HeldRequest] = set()  # The connection's requests in the purgatory.
        self.held_bytes = 0  # The memory of these requests, which the purgatory counts.
        self.on_close: list[Callable[[], None]] = []
        self.unanswered = 0  # Requests without an answer yet; the subclass or its outbox counts them.
        self.active_mono_ms = 0  # The time of the last received or sent byte; `Connections.mono_ms` is its clock.
        self.partial_bytes = 0  # The size of the received part of an incomplete request.
        self._frames = FrameReader(self.bounds.frame_bytes_max)
        self._has_heard = False  # At least one whole frame was received.
        self.made_mono_ms = 0
        self._held: list[memoryview] = []  # Frames that were read from the socket, and not given to `received` yet.
        self.is_holding = False  # The socket is not read. Invariant: `_held` is empty otherwise.

    def received(self, frame: memoryview) -> None:
        """Process one request; a subclass implements this."""
        raise NotImplementedError

    def received_all(self) -> None:
        """Finish work that the requests of one read share; a subclass may implement this."""

    # -- Reading

    def data_received(self, data: bytes) -> None:
        server, connections = self.server, self.connections
        begun_s = server.watchdog.seconds()
        server.touch()
        connections.received_bytes += len(data)
        self.active_mono_ms = connections.mono_ms
        try:
            frames = self._frames.feed(data)
            if self.partial_bytes or self._frames.partial:
                self._count_partial()
            if frames:
                self._has_heard = True
                connections.heard_mono_ms = connections.mono_ms
                self._take(frames)
        except ProtocolError as error:
            self._refuse(str(error), self._frames.refused)
        except Exception as error:  # noqa: BLE001 - contained
            self.broken(error, "connection")
        server.watchdog.turned(self.doing, begun_s)

    def _take(self, frames: list[memoryview]) -> None:
        """Receive frames until a request stops reading, or the limits of one loop turn are reached."""
        taken = 0
        self.is_receiving = True
        try:
            taken = self._receive(frames)
        except ProtocolError as error:
            # No request was recognised before, so this frame is the first one of the client.
            is_first = self.doing == self.wire
            self._refuse(str(error), foreign.first_bytes(frames[0]) if is_first else b"")
        except Exception as error:  # noqa: BLE001 - contained
            self.broken(error, "connection")
        self.is_receiving = False
        self.received_all()
        if taken < len(frames):
            self._held += frames[taken:]
            if not self.is_holding:
                self.hold()
                self.server.loop.call_soon(self._go_on)

    def _receive(self, frames: list[memoryview]) -> int:
        """Receive frames, and return how many were received."""
        count = 0
        try:
            if len(frames) == 1:  # In this frequent case no limit of the turn needs a check.
                self.received(frames[0])
                return 1
            mono_ms = self.server.clock.mono_ms
            until_mono_ms = mono_ms() + TURN_MS
            for frame in frames:
                self.received(frame)
                count += 1
                if self.is_holding or count == FRAMES_AT_ONCE or mono_ms() > until_mono_ms:
                    break
        except TurnIsFull:
            pass
        return count

    def _count_partial(self) -> None:
        partial_bytes, connections = len(self._frames.partial), self.connections
        more_bytes = partial_bytes - self.partial_bytes
        connections.request_bytes += more_bytes
        self.partial_bytes = partial_bytes
        if self.is_before_login:
            self.server.before_login.count(more_bytes)
        if connections.request_bytes > connections.limits.request_bytes_max:
            connections.close_largest_request()

    def _refuse(self, reason: str, first: bytes) -> None:
        """Close because of a frame; if the frame begins like another protocol, log which one."""
        name = foreign.looks_like(first)
        if name and name != WIRE_CLIENTS.get(self.wire) and not self.closed:
            port = self._transport.get_extra_info("sockname", ("", 0))[1]
            # The client connects again, from another port each time.
            omitted = self.connections.refused_protocols.take((self.peer[0], name, str(port)), self.connections.mono_ms)
            if omitted is not None:
                log.warning(
                    "another protocol is spoken, connection closed looks_like=%r wire=%s port=%d peer=%s suppressed=%d "
                    "reason=%r",
                    name, self.wire, port, endpoint(*self.peer), omitted, reason,
                )  # fmt: skip
            reason = ""
        self.close(reason)

    # -- Back-pressure

    def pause_writing(self) -> None:
        self.answers.choked()

    def resume_writing(self) -> None:
        self.active_mono_ms = self.connections.mono_ms
        self.answers.taken()
        self.go_on_soon()

    def hold(self) -> None:
        """Stop reading from the socket, until `go_on_soon` is called and there is room again."""
        if not self.is_holding:
            self.is_holding = True
            if not self.closed:
                self._transport.pause_reading()

    def mute(self, until_mono_ms: int) -> None:
        """Stop reading until a time, because the client has used up a quota (KIP-219); a muted connection stays so."""
        if not self.is_muted and not self.closed:
            self.is_muted = True
            self.hold()
            self.server.timed_calls.call_at(until_mono_ms, self._unmute)

    def _unmute(self) -> None:
        self.is_muted = False
        self.go_on_soon()

    def go_on_soon(self) -> None:
        """Read again soon if there is room. It must be called after a request was answered or bytes were sent."""
        if self.is_holding and self._has_room():
            self.server.loop.call_soon(self._go_on)

    def _has_room(self) -> bool:
        return (
            not self.closed
            and not self.is_busy
            and not self.is_muted
            and self.unanswered < self.bounds.unanswered_max
            and self.answers.has_room()
        )

    def _go_on(self) -> None:
        if not self.is_holding or not self._has_room():
            return
        self.is_holding = False
        held, self._held = self._held, []
        server = self.server
        server.touch()
        begun_s = server.watchdog.seconds()
        try:
            self._take(held)
            if not self.is_holding:
                self._transport.resume_reading()
        except Exception as error:  # noqa: BLE001 - contained
            self.broken(error, "connection")
        server.watchdog.turned(self.doing, begun_s)

    # -- Beginning and end

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports have the methods of asyncio's, but not its class.
        transport = self._transport = cast(asyncio.Transport, transport)
        if not self.connections.admit(self):
            transport.abort()
            return
        self.server.touch()  # The first connection arms the sweeps.
        self.closed = False
        self.peer = tuple(transport.get_extra_info("peername", ("", 0))[:2])
        self.tls = transport.get_extra_info("tls_peer")
        self.active_mono_ms = self.made_mono_ms = self.connections.mono_ms
        self.answers.attach(transport)

    def await_login(self, frame_bytes_max: int) -> None:
        """Accept only frames of this size until the client has logged in, and bound what all such clients send."""
        self.is_before_login = True
        self._frames.limit_bytes = min(self.bounds.frame_bytes_max, frame_bytes_max)
        self.server.before_login.add(self)

    def logged_in(self) -> None:
        """Accept frames of any allowed size from now on."""
        self.is_before_login = False
        self._frames.limit_bytes = self.bounds.frame_bytes_max
        self.server.before_login.remove(self)

    def fault(self, error: Exception, kind: str) -> None:
        """Report an unexpected exception. The caller answers the request, or closes the connection."""
        self.server.faults.contain(error, f"{self.wire} {kind}", endpoint(*self.peer))

    def broken(self, error: Exception, kind: str) -> None:
        """Report an unexpected exception, and close the connection, because the request cannot be answered."""
        self.fault(error, kind)
        self.close(BUG, abort=True)

    def close(self, reason: str, *, abort: bool = False) -> None:
        """Close after the ready answers are sent, or at once with `abort`. Answers that are not ready are dropped."""
        if self.closed:
            return
        if not abort:
            self.answers.flush()
        self.closed = True
        self.is_holding = True  # Ends the loop in `_receive`.
        if reason:
            log.info("connection closed wire=%s peer=%s reason=%r", self.wire, endpoint(*self.peer), reason)
        if abort:
            self.abort()
        else:
            self._transport.close()

    def abort(self) -> None:
        """Close at once, even if `close` was called and answers are being sent."""
        self.closed = True
        self.answers.give_up()
        self._transport.abort()

    def hand_over(self, successor: "Connection") -> None:
        """Let another object serve this client from now on. It gets what was read and not given to `received`.

        No request may be unanswered. If the socket has not taken all answers, the connection is closed instead.
        """
        self.hold()
        self.answers.flush()
        if self.closed or not self.answers.has_room():
            self.close("the client has not taken all answers")
            return
        transport, frames, held = self._transport, self._frames, self._held
        self._held = []
        self._release()
        self.connections.accepted_count -= 1  # It is the same connection, which `connection_made` counts again.
        successor._frames = frames
        transport.set_protocol(successor)
        successor.connection_made(transport)
        successor._has_heard = True
        successor._count_partial()
        successor._held, successor.is_holding = held, True
        successor.go_on_soon()

    def connection_lost(self, error: Exception | None) -> None:
        self._release()
        self.server.on_closed()

    def _release(self) -> None:
        """Free what belongs to this connection, and end its requests in the purgatory."""
        self.closed = True
        self.is_holding = True
        self._held.clear()
        self._frames = FrameReader(0)  # Frees the bytes now; the connection may be freed much later.
        self.connections.forget(self)
        self.server.before_login.remove(self)
        self.partial_bytes = 0
        self.answers.drop()
        callbacks = [*(request.connection_closed for request in self.held), *self.on_close]
        self.on_close = []
        for callback in callbacks:
            try:
                callback()
            except Exception as fault:  # noqa: BLE001 - the other callbacks release something as well
                self.fault(fault, "connection lost")

    def overdue(self, mono_ms: int) -> str:
        """Return why the connection must be closed because of a time limit; empty if it must not."""
        reason = self.answers.overdue(mono_ms)
        if reason is not None:
            return reason
        limits = self.connections.limits
        if not self._has_heard and mono_ms - self.made_mono_ms > limits.first_request_ms:
            return f"no whole request within limits.first_request_ms={limits.first_request_ms}"
        if mono_ms - self.active_mono_ms > self.bounds.idle_ms:
            return f"silent for {self.wire}.idle_ms={self.bounds.idle_ms}"
        return ""
