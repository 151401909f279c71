"""Sockets: feed, collect, write, re-arm. The only file that knows asyncio's transports.

    data_received ──> FrameReader.feed ──> received(frame)        (the subclass: one protocol's header and table)
                                               │
           leave(buffers) <── promise kept <── send(answer) or OrderedOutbox
                │
    end of the loop's turn: one write of all that is ready        (Server.touch schedules it, once a turn)

At the end of a turn the log is written first (`end_turn`), so that answers which wait for that write leave in the same
system call as those which wait for nothing.

What is bounded, and what happens at the bound (`limits.*`, and `kafka.*` or `rocketmq.*` by `Connection.wire`):
- open connections: further ones are closed as soon as they are accepted;
- one frame, and unanswered requests of a connection: ProtocolError; not read from until half of them are answered;
- unfinished frames over all connections: the connection with the largest is closed;
- unsent answers of a connection, and over all: those who have some are not read from until they took them; at twice
  the sum the one that has taken nothing for longest is closed;
- one turn of a connection, in requests and in time: it goes on when the others had theirs;
- silence (no first request, no traffic, unsent answers that nobody takes): closed by `Server.sweep`.
"""

import asyncio
import logging
import socket
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from functools import partial
from typing import ClassVar, NamedTuple, Protocol, cast

from duolog.bridge.clock import Clock
from duolog.bridge.config import ConfigError, LimitsOptions
from duolog.bridge.monitoring.faults import Faults
from duolog.bridge.monitoring.watchdog import Watchdog
from duolog.bridge.net.addresses import endpoint
from duolog.bridge.net.answers import Answer
from duolog.protocol import foreign
from duolog.protocol.errors import ProtocolError
from duolog.protocol.framing import FrameReader
from duolog.store.entry import Buffer, Promise
from duolog.store.errors import StoreError

log = logging.getLogger("bridge")

SLICE_BYTES = 16 * 1024  # Pieces from here on go to the transport as they are; joining smaller ones is cheaper.
CHARGED_BYTES_MIN = 1024  # Waiting answers from here on count towards the limits in bytes.
JOIN_BYTES_MAX = 64 * 1024  # A whole write up to this size is joined, whatever its pieces.
BACKLOG = 1024  # Connections that the kernel keeps for us; Apache RocketMQ: 1024 (NettyServerConfig).
FRAMES_AT_ONCE = 256  # Of one connection, before the others have their turn: 256 KiB may hold thousands of requests,
TURN_MS = 5  # and some of them take long.
READY_BYTES_MAX = 1 << 20  # Answers are written at once beyond it, so that what a socket does not take is counted.
WIRE_CLIENTS = {"kafka": foreign.KAFKA, "rocketmq": foreign.ROCKETMQ}
BUG = "the broker has a bug, which its log describes"  # What a client is told of a fault.
SWEEP_INTERVAL_MS = 250
STALL_MS = 2_000  # Between two sweeps: it was we who stood still, and what clients sent meanwhile is not read yet.
SWEEP_CONNECTIONS_MAX = 1000  # Looked at in one sweep, so that a sweep stays below a millisecond.


class Log(Protocol):
    """What an answer that waits for the log asks of it."""

    def kept(self, promise: Promise) -> bool: ...

    def when(self, promise: Promise, done: Callable[[StoreError | None], None]) -> None: ...


class Bounds(NamedTuple):
    """The limits of one wire protocol's connections."""

    frame_bytes_max: int
    unanswered_max: int
    idle_ms: int


class StartError(Exception):
    """The broker cannot start, for a reason that its user can mend; the message is one line."""


# -- One connection


class Connection(asyncio.Protocol):
    """One client. A subclass names its `wire`, takes frames in `received` and answers by `send` or an OrderedOutbox.

    `received` gets a read-only view that stays valid as long as it is referenced. A ProtocolError that it raises closes
    the connection. So does any other exception, which is reported as a fault; a subclass answers what it can before.
    """

    wire: ClassVar[str]

    __slots__ = (
        "_charged_bytes",
        "_choked",
        "_frames",
        "_handed_bytes",
        "_heard",
        "_held",
        "_holding",
        "_made_mono_ms",
        "_partial_bytes",
        "_progress_mono_ms",
        "_ready",
        "_ready_bytes",
        "_sent_bytes_seen",
        "_transport",
        "_unsent_bytes",
        "active_mono_ms",
        "bounds",
        "closed",
        "doing",
        "held_bytes",
        "is_busy",
        "is_receiving",
        "log",
        "on_close",
        "peer",
        "server",
        "unanswered",
    )

    def __init__(self, server: "Server", log: Log) -> None:
        self.server = server
        self.log = log
        self.bounds = self.server.bounds[self.wire]
        self.peer: tuple[str, int] = ("", 0)
        self.closed = True  # Until connection_made, and from close() on.
        self.doing = self.wire  # The kind of the request that was received last; a subclass says it.
        self.is_receiving = False  # `received_all` will be called before anything else happens.
        self.is_busy = False  # A request of it is worked on in slices; the next one is received after its end.
        self.held_bytes = 0  # Of its requests in the purgatory, which counts them.
        self.on_close: list[Callable[[], None]] = []
        self.unanswered = 0  # Requests in work; the subclass or its outbox counts.
        self.active_mono_ms = 0  # Of the last byte either way, as fine as sweeps are.
        self._frames = FrameReader(self.bounds.frame_bytes_max)
        self._heard = False  # One whole frame came.
        self._made_mono_ms = 0
        self._partial_bytes = 0
        self._held: list[memoryview] = []  # Frames that came before reading stopped; not yet received.
        self._holding = False  # Not reading. Invariant: `_held` is empty otherwise.
        self._ready: list[Buffer] = []  # Leaves at the end of this turn.
        self._ready_bytes = 0
        self._choked = False  # The transport has bytes that the socket did not take.
        self._unsent_bytes = 0  # Handed over since then: a buffer is kept whole until its last byte is taken.
        self._charged_bytes = 0  # Finished answers that wait behind an unfinished one.
        self._handed_bytes = 0  # To the transport, ever.
        self._sent_bytes_seen = 0
        self._progress_mono_ms = 0

    def received(self, frame: memoryview) -> None:
        """Take one request; the subclass's part."""
        raise NotImplementedError

    def received_all(self) -> None:
        """Finish what the requests of one read have begun together; the subclass's part, if it has any."""

    # -- Answering

    def send(self, answer: Answer) -> None:
        """Let the answer go as soon as its promise is kept, whatever else is unanswered."""
        if answer.promise is None:
            self.leave(answer.buffers)
        else:
            self.log.when(answer.promise, partial(self._released, answer))

    def leave(self, buffers: Sequence[Buffer]) -> None:
        """Write these bytes at the end of the loop's turn; nothing holds them back any more."""
        if self.closed:
            return
        if not self._ready:
            self.server.answering(self)
        self._ready += buffers
        self._ready_bytes += len(buffers[0]) if len(buffers) == 1 else sum(map(len, buffers))
        if self._ready_bytes > READY_BYTES_MAX:
            self.flush()

    def fault(self, error: Exception, kind: str) -> None:
        """Report what nobody expected of this connection's work; the caller answers, or closes."""
        self.server.faults.contain(error, f"{self.wire} {kind}", endpoint(*self.peer))

    def broken(self, error: Exception, kind: str) -> None:
        """Report it, and close: nothing else tells this client."""
        self.fault(error, kind)
        self.close(BUG, abort=True)

    def _released(self, answer: Answer, error: StoreError | None) -> None:
        if error is None:
            self.leave(answer.buffers)
        else:
            self.close(f"the log cannot keep what the answer promises: {error}")

    def flush(self) -> None:
        """Hand all that is ready to the transport, in one call."""
        pieces, size = self._ready, self._ready_bytes
        self._ready, self._ready_bytes = [], 0
        if self.closed or not pieces:
            return
        if len(pieces) == 1:
            self._transport.write(pieces[0])
        else:
            if size <= JOIN_BYTES_MAX:
                self._transport.write(b"".join(pieces))
            else:
                self._transport.writelines(joined(pieces))
        self._handed_bytes += size
        self.server.sent_bytes += size
        self.active_mono_ms = self.server.mono_ms
        if self._choked and not self.closed:
            self._unsent_bytes += size
            self._count_answers(size)

    def charge(self, size: int) -> None:
        """Count (or, below zero, give back) bytes of finished answers that cannot leave yet."""
        if self.closed:
            return
        if not self.pending_bytes:
            self._progress_mono_ms = self.server.mono_ms
        self._charged_bytes += size
        self._count_answers(size)

    # -- Back-pressure

    def pause_writing(self) -> None:
        """The socket did not take everything; the transport's high-water mark is 0."""
        self._choked = True
        self._progress_mono_ms = self.server.mono_ms

    def resume_writing(self) -> None:
        """The socket took everything."""
        self._choked = False
        self.active_mono_ms = self.server.mono_ms
        if not self.closed:
            unsent_bytes, self._unsent_bytes = self._unsent_bytes, 0
            self._count_answers(-unsent_bytes)
            self.go_on_soon()

    def _count_answers(self, more_bytes: int) -> None:
        server, pending_bytes = self.server, self.pending_bytes
        server.answer_bytes += more_bytes
        limits = server.limits
        if pending_bytes > limits.unsent_bytes_max or (pending_bytes and server.answer_bytes > limits.answer_bytes_max):
            self.hold()
            if server.answer_bytes > 2 * limits.answer_bytes_max:
                server.relieve_answers()

    @property
    def pending_bytes(self) -> int:
        """Bytes held of answers that are finished and not sent."""
        return self._unsent_bytes + self._charged_bytes

    @property
    def progress_mono_ms(self) -> int:
        """Since when it has taken none of them, as fine as sweeps are."""
        return self._progress_mono_ms

    def hold(self) -> None:
        """Read no further request until `go_on_soon` finds room again."""
        if not self._holding:
            self._holding = True
            if not self.closed:
                self._transport.pause_reading()

    def go_on_soon(self) -> None:
        """Read again if there is room; call it when something was answered or sent."""
        if self._holding and self._has_room():
            self.server.loop.call_soon(self._go_on)

    def _has_room(self) -> bool:
        return (
            not self.closed
            and not self.is_busy
            and not self._unsent_bytes
            and self._charged_bytes <= self.server.limits.unsent_bytes_max // 2
            and self.unanswered < self.bounds.unanswered_max
        )

    def _go_on(self) -> None:
        if not self._holding or not self._has_room():
            return
        self._holding = False
        held, self._held = self._held, []
        server = self.server
        server.touch()
        begun_s = server.watchdog.seconds()
        try:
            self._take(held)
            if not self._holding:
                self._transport.resume_reading()
        except Exception as error:  # noqa: BLE001 - contained
            self.broken(error, "connection")
        server.watchdog.turned(self.doing, begun_s)

    # -- Reading

    def data_received(self, data: bytes) -> None:
        server = self.server
        begun_s = server.watchdog.seconds()
        server.touch()
        server.received_bytes += len(data)
        self.active_mono_ms = server.mono_ms
        try:
            frames = self._frames.feed(data)
            if self._partial_bytes or self._frames.buffered:
                self._count_partial()
            if frames:
                self._heard = True
                self._take(frames)
        except ProtocolError as error:
            self._refuse(str(error), self._frames.refused)
        except Exception as error:  # noqa: BLE001 - contained
            self.broken(error, "connection")
        server.watchdog.turned(self.doing, begun_s)

    def _take(self, frames: list[memoryview]) -> None:
        """Receive frames until one of them makes us hold, or others have waited for long enough."""
        taken = 0
        self.is_receiving = True
        try:
            taken = self._receive(frames)
        except ProtocolError as error:
            # No request was recognised yet: so this is what the client sent first.
            is_first = self.doing == self.wire
            self._refuse(str(error), foreign.first_bytes(frames[0]) if is_first else b"")
        except Exception as error:  # noqa: BLE001 - contained
            self.broken(error, "connection")
        self.is_receiving = False
        self.received_all()
        if taken < len(frames):
            self._held += frames[taken:]
            if not self._holding:
                self.hold()
                self.server.loop.call_soon(self._go_on)

    def _refuse(self, reason: str, first: bytes) -> None:
        """Close because of a frame; where it begins like another protocol, say which."""
        name = foreign.looks_like(first)
        if name and name != WIRE_CLIENTS.get(self.wire) and not self.closed:
            port = self._transport.get_extra_info("sockname", ("", 0))[1]
            text = "connection closed, another protocol is spoken looks_like=%r wire=%s port=%d peer=%s reason=%r"
            log.warning(text, name, self.wire, port, endpoint(*self.peer), reason)
            reason = ""
        self.close(reason)

    def _receive(self, frames: list[memoryview]) -> int:
        """Give how many were received."""
        if len(frames) == 1:  # Mostly so, and then there is nothing to stop before: nobody need look at the clock.
            self.received(frames[0])
            return 1
        mono_ms = self.server.clock.mono_ms
        until_mono_ms = mono_ms() + TURN_MS
        for count, frame in enumerate(frames, 1):
            self.received(frame)
            if self._holding or count == FRAMES_AT_ONCE or mono_ms() > until_mono_ms:
                return count
        return len(frames)

    def _count_partial(self) -> None:
        partial_bytes = self._frames.buffered
        self.server.request_bytes += partial_bytes - self._partial_bytes
        self._partial_bytes = partial_bytes
        if self.server.request_bytes > self.server.limits.request_bytes_max:
            self.server.relieve()

    @property
    def partial_bytes(self) -> int:
        """Bytes held of a request that is not complete."""
        return self._partial_bytes

    # -- Coming and going

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports have the methods of asyncio's, but not its class.
        transport = self._transport = cast(asyncio.Transport, transport)
        if not self.server.admit(self):
            transport.abort()
            return
        self.closed = False
        self.peer = tuple(transport.get_extra_info("peername", ("", 0))[:2])
        self.active_mono_ms = self._made_mono_ms = self.server.mono_ms
        transport.set_write_buffer_limits(high=0)

    def close(self, reason: str, *, abort: bool = False) -> None:
        """Close once the answers that are ready have left; with `abort` at once. Other answers are dropped."""
        if self.closed:
            return
        if self._ready and not abort:
            self.flush()
        self.closed = True
        self._holding = True  # Ends a loop over frames that is under way.
        if reason:
            log.info("connection closed wire=%s peer=%s reason=%r", self.wire, endpoint(*self.peer), reason)
        if abort:
            self.abort()
        else:
            self._transport.close()

    def abort(self) -> None:
        """Close at once, also when `close` still waits for answers to leave."""
        self.closed = True
        self.server.answer_bytes -= self.pending_bytes
        self._unsent_bytes = self._charged_bytes = 0
        self._transport.abort()

    def connection_lost(self, error: Exception | None) -> None:
        self.closed = True
        self._holding = True
        self._held.clear()
        self._ready.clear()
        self._ready_bytes = 0
        self._frames = FrameReader(0)  # The collector may come for the connection much later than its bytes may stay.
        self.server.forget(self, self.pending_bytes, self._partial_bytes)
        self._unsent_bytes = self._charged_bytes = self._partial_bytes = 0
        callbacks, self.on_close = self.on_close, []
        for callback in callbacks:
            try:
                callback()
            except Exception as fault:  # noqa: BLE001 - the others have something to give back as well
                self.fault(fault, "connection lost")

    def overdue(self, mono_ms: int) -> str:
        """Say why this connection has used up its time; empty: it has not."""
        limits = self.server.limits
        if self._choked:
            sent_bytes = self._handed_bytes - self._transport.get_write_buffer_size()
            if sent_bytes > self._sent_bytes_seen:
                self._sent_bytes_seen, self._progress_mono_ms = sent_bytes, mono_ms
            elif mono_ms - self._progress_mono_ms > limits.unread_ms:
                return f"took none of {self._unsent_bytes} unsent bytes for limits.unread_ms={limits.unread_ms}"
            return ""
        if not self._heard and mono_ms - self._made_mono_ms > limits.first_request_ms:
            return f"no whole request within limits.first_request_ms={limits.first_request_ms}"
        if mono_ms - self.active_mono_ms > self.bounds.idle_ms:
            return f"silent for {self.wire}.idle_ms={self.bounds.idle_ms}"
        return ""


def joined(pieces: Iterable[Buffer]) -> list[Buffer]:
    """Join runs of small pieces; leave the large ones as they are."""
    out: list[Buffer] = []
    small: list[Buffer] = []
    for piece in pieces:
        if len(piece) < SLICE_BYTES:
            small.append(piece)
            continue
        if small:
            out.append(b"".join(small))
            small = []
        out.append(piece)
    if small:
        out.append(b"".join(small))
    return out


# -- Answers in request order


class OutboxSlot:
    """The place of one answer in the order; filled once, with None when the request has no answer."""

    __slots__ = ("answer", "has_failed", "held_bytes", "is_filled")

    def __init__(self) -> None:
        self.answer: Answer | None = None
        self.is_filled = False
        self.held_bytes = 0  # What the request keeps in memory meanwhile; it counts as if it were unsent.
        self.has_failed = False  # Filled because of a fault; whoever was to fill it may not know.


class _Gone:
    """A connection that has gone, as its outbox sees it."""

    closed = True

    def charge(self, size: int) -> None:
        pass

    def close(self, reason: str) -> None:
        pass


_GONE = _Gone()


class OrderedOutbox:
    """The answers of a connection whose client takes them in request order only (Kafka), whenever each gets ready.

    Only the first answer's promise is waited for: the log keeps promises in the order in which they were given.
    """

    __slots__ = ("_connection", "_is_waiting", "_kept", "_queue", "reserved", "reserved_count")

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._kept = connection.log.kept
        self._queue: deque[Answer | OutboxSlot] = deque()  # In request order.
        self._is_waiting = False  # For the log, on behalf of the first.
        self.reserved: OutboxSlot | None = None  # The slot that was reserved last; None: its answer has left.
        self.reserved_count = 0  # By which a connection notices that a request has a slot.

    def add(self, answer: Answer) -> None:
        """Answer the request that was just received."""
        promise = answer.promise
        if self._queue:
            self._append(answer)
            self._charge(answer)
        elif promise is None or self._kept(promise):
            self._connection.leave(answer.buffers)
        else:
            self._append(answer)
            self._charge(answer)
            self._wait(promise)

    def reserve(self, held_bytes: int = 0) -> OutboxSlot:
        """Keep the place of the request that was just received for an answer that comes later.

        `held_bytes` is what the request keeps in memory until then: it is charged like an answer that waits.
        """
        slot = self.reserved = OutboxSlot()
        self.reserved_count += 1
        if held_bytes >= CHARGED_BYTES_MIN:
            slot.held_bytes = held_bytes
            self._connection.charge(held_bytes)
        self._append(slot)
        return slot

    def charge_more(self, slot: OutboxSlot, more_bytes: int) -> None:
        """Charge what a request that has its place keeps besides: the part of its answer that is built."""
        if more_bytes and not slot.is_filled:
            slot.held_bytes += more_bytes
            self._connection.charge(more_bytes)

    def _append(self, item: Answer | OutboxSlot) -> None:
        queue, connection = self._queue, self._connection
        queue.append(item)
        connection.unanswered = unanswered = len(queue)
        if unanswered >= connection.bounds.unanswered_max:
            connection.hold()

    def fill(self, slot: OutboxSlot, answer: Answer | None) -> None:
        """Put the answer into its place; None: this request has none (acks=0)."""
        if self._connection.closed or slot.has_failed:
            return
        assert not slot.is_filled, "answered twice"
        slot.answer, slot.is_filled = answer, True
        if slot.held_bytes:
            self._connection.charge(-slot.held_bytes)
        if answer is not None:
            self._charge(answer)
        if slot is self._queue[0]:
            self._advance()

    def fail(self, slot: OutboxSlot, answer: Answer) -> None:
        """Put the answer of a fault into its place, if that is still empty; what would come later is left out."""
        if not slot.is_filled:
            self.fill(slot, answer)
            slot.has_failed = True

    def _advance(self) -> None:
        """Let leave what is ready, from the first on."""
        queue, connection, kept = self._queue, self._connection, self._kept
        while queue:
            item = queue[0]
            if isinstance(item, OutboxSlot):
                if not item.is_filled:
                    break
                answer = item.answer
            else:
                answer = item
            if answer is not None:
                promise = answer.promise
                if promise is not None and not kept(promise):
                    self._wait(promise)
                    break
                connection.leave(answer.buffers)
                self._charge(answer, -1)
            if queue.popleft() is self.reserved:
                self.reserved = None  # Its bytes are not to stay.
        connection.unanswered = unanswered = len(queue)
        if unanswered <= connection.bounds.unanswered_max // 2:
            connection.go_on_soon()  # Not for every answer: to stop and start reading costs a system call each.

    def drop(self) -> None:
        """Forget all answers, and the connection, which has gone.

        The two would keep each other until the collector comes, which is not soon in an idle process. Each such
        connection would keep the megabyte of the allocator's memory that it lies in from being given back.
        """
        self._connection = cast(Connection, _GONE)
        self._queue.clear()
        self.reserved = None

    def _charge(self, answer: Answer, sign: int = 1) -> None:
        """Count the bytes of an answer that waits; small ones are bounded by the number of unanswered requests."""
        buffers = answer.buffers
        if len(buffers) > 1 or len(buffers[0]) >= CHARGED_BYTES_MIN:
            self._connection.charge(sign * answer.size)

    def _wait(self, promise: Promise) -> None:
        if not self._is_waiting:
            self._is_waiting = True
            self._connection.log.when(promise, self._log_kept)

    def _log_kept(self, error: StoreError | None) -> None:
        self._is_waiting = False
        if error is not None:
            self._connection.close(f"the log cannot keep what an answer promises: {error}")
        elif not self._connection.closed:
            self._advance()


# -- All connections


class Server:
    """The open connections of all ports: their limits and sums, and the end of the loop's turn.

    `end_turn` runs at the end of each turn in which something was received: it writes the log and re-arms the ticker.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        clock: Clock,
        limits: LimitsOptions,
        bounds: dict[str, Bounds],
        end_turn: Callable[[], None],
        faults: Faults,
        watchdog: Watchdog,
    ) -> None:
        self.loop = loop
        self.limits = limits
        self.bounds = bounds
        self.connections: set[Connection] = set()
        self.connections_max = limits.connections_max
        self.mono_ms = clock.mono_ms()  # Of the last sweep or accept: close enough for what is idle.
        self.refused_count = 0  # The next five are for the metrics.
        self.accepted_count = 0
        self.closed_overdue_count = 0
        self.received_bytes = 0
        self.sent_bytes = 0
        self.answer_bytes = 0  # Unsent and charged, over all connections.
        self.request_bytes = 0  # Of unfinished frames, over all connections.
        self.clock = clock
        self._end_turn = end_turn
        self.faults = faults
        self.watchdog = watchdog
        self._swept_mono_ms = self.mono_ms  # Of the last sweep: what is accepted meanwhile does not put off the next.
        self._is_touched = False
        self._answering: list[Connection] = []
        self._round: list[Connection] = []  # Still to be looked at in this round of sweeps.
        self._listeners: list[asyncio.AbstractServer] = []
        self._is_empty = asyncio.Event()  # Set when the last connection has gone.

    async def listen(self, bound: socket.socket, factory: Callable[[], asyncio.BaseProtocol]) -> None:
        """Accept connections on a socket from `bind`."""
        self._listeners.append(await self.loop.create_server(factory, sock=bound, backlog=BACKLOG))

    def answer_room_bytes(self) -> int:
        """How many bytes of answers may be added now; a read gives at least one batch even at 0."""
        return max(0, self.limits.answer_bytes_max - self.answer_bytes)

    # -- The end of the loop's turn

    def touch(self) -> None:
        """Have this turn end with `end_turn` and one write per connection that has answers."""
        if not self._is_touched:
            self._is_touched = True
            self.loop.call_soon(self._turn_ends)

    def answering(self, connection: Connection) -> None:
        """Note that this connection has answers ready."""
        self._answering.append(connection)
        self.touch()

    def soon(self, kind: str, callback: Callable[[], object]) -> None:
        """Run a callback in another turn of the loop; what it raises is contained."""
        self.loop.call_soon(self._run_soon, kind, callback)

    def _run_soon(self, kind: str, callback: Callable[[], object]) -> None:
        begun_s = self.watchdog.seconds()
        try:
            callback()
        except Exception as error:  # noqa: BLE001 - contained
            self.faults.contain(error, kind)
        self.watchdog.turned(kind, begun_s)

    def _turn_ends(self) -> None:
        begun_s = self.watchdog.seconds()
        try:
            self._end_turn()
        except Exception as error:  # noqa: BLE001 - contained
            self.faults.contain(error, "end of a turn")
        self.flush()
        self._is_touched = False
        self.watchdog.turned("end of a turn", begun_s)

    def flush(self) -> None:
        """Write all that is ready. The log's keeper calls it when promises were kept outside of a turn's end."""
        while self._answering:
            connections, self._answering = self._answering, []
            for connection in connections:
                try:
                    connection.flush()
                except Exception as error:  # noqa: BLE001 - the others have answers as well
                    connection.broken(error, "write")

    # -- Limits over all connections

    def admit(self, connection: Connection) -> bool:
        if len(self.connections) >= self.connections_max:
            self.refused_count += 1
            log.warning("connection refused wire=%s limits.connections_max=%d", connection.wire, self.connections_max)
            return False
        self.accepted_count += 1
        self.connections.add(connection)
        self.mono_ms = self.clock.mono_ms()
        self.touch()  # The first connection arms the sweeps.
        return True

    def forget(self, connection: Connection, answer_bytes: int, request_bytes: int) -> None:
        self.connections.discard(connection)
        if not self.connections:
            self._is_empty.set()
        self.answer_bytes -= answer_bytes
        self.request_bytes -= request_bytes

    def relieve(self) -> None:
        """Close the connection with the largest unfinished request."""
        largest = max((c for c in self.connections if not c.closed), key=lambda c: c.partial_bytes, default=None)
        if largest is not None:
            limit = self.limits.request_bytes_max
            largest.close(
                f"{largest.partial_bytes} bytes of a request, above limits.request_bytes_max={limit} over all"
            )

    def relieve_answers(self) -> None:
        """Close the connection that has unsent answers and took none of them for longest."""
        slowest = min(
            (c for c in self.connections if c.pending_bytes and not c.closed),
            key=lambda c: (c.progress_mono_ms, -c.pending_bytes),
            default=None,
        )
        if slowest is not None:
            self.closed_overdue_count += 1
            limit = self.limits.answer_bytes_max
            slowest.close(
                f"took none of {slowest.pending_bytes} bytes of waiting requests and unsent answers, "
                f"above limits.answer_bytes_max={limit} over all",
                abort=True,
            )

    def next_deadline_ms(self) -> int | None:
        return self._swept_mono_ms + SWEEP_INTERVAL_MS if self.connections else None

    def sweep(self, mono_ms: int) -> None:
        """Close connections whose time is up; some of them at a time, and none after a stall of our own."""
        was_stalled = mono_ms - self._swept_mono_ms > STALL_MS
        self.mono_ms = self._swept_mono_ms = mono_ms
        if was_stalled:
            return
        if not self._round:
            self._round = list(self.connections)
        batch, self._round = self._round[:SWEEP_CONNECTIONS_MAX], self._round[SWEEP_CONNECTIONS_MAX:]
        for connection in batch:
            try:
                self._sweep_one(connection, mono_ms)
            except Exception as error:  # noqa: BLE001 - the others are swept as well
                connection.broken(error, "sweep")

    def _sweep_one(self, connection: Connection, mono_ms: int) -> None:
        reason = "" if connection.closed else connection.overdue(mono_ms)
        if reason:
            self.closed_overdue_count += 1
            connection.close(reason, abort=True)

    # -- Stopping

    async def stop_listening(self) -> None:
        for listener in self._listeners:
            listener.close()
        self._listeners.clear()

    def hold_all(self) -> None:
        """Read no further requests."""
        for connection in self.connections:
            connection.hold()

    async def close_all(self, wait_ms: int) -> None:
        """Close every connection; give what is unsent `wait_ms` to leave."""
        self.flush()
        self._is_empty.clear()
        for connection in self.connections:
            connection.close("")
        if self.connections:
            with suppress(TimeoutError):
                await asyncio.wait_for(self._is_empty.wait(), wait_ms / 1000)
        for connection in self.connections:
            connection.abort()


def bind(host: str, port: int, setting: str) -> socket.socket:
    """Take a port (0: any free one) and close it to others; raises ConfigError or StartError, naming the setting."""
    try:
        found: Sequence[tuple[int, int, int, str, tuple[str, int]]] = sorted(
            socket.getaddrinfo(host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE),  # type: ignore[arg-type]
            key=lambda address: address[0] != socket.AF_INET,
        )
    except (OSError, UnicodeError) as error:
        raise ConfigError(f"server.host: {host!r} is no address of this machine: {error}") from error
    family, kind, number, _, address = found[0]
    bound = socket.socket(family, kind, number)
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind(address)
    except OSError as error:
        bound.close()
        raise StartError(f"{setting}: cannot listen on {endpoint(host, port)}: {error.strerror}") from error
    bound.setblocking(False)
    return bound
