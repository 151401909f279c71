"""The class AnswerBuffer: the finished answers of one connection that the socket has not taken, and their memory.

    write(buffers) ──> ready ──flush, at the end of the turn──> transport ──> socket
                                                                    └ bytes that the socket did not take are `unsent`

A finished answer that waits for an earlier one is `charged` by its OrderedOutbox. Unsent and charged bytes are limited
by `limits.unsent_bytes_max` for one connection, and by `limits.answer_bytes_max` for all connections. At either limit,
the connection is not read from until its client has taken the bytes.
"""

import asyncio
from collections.abc import Iterable, Sequence
from typing import Protocol

from duolog.bridge.net.server import Server
from duolog.store.entry import Buffer

SLICE_BYTES = 16 * 1024  # Pieces of this size and more are not joined with others; joining smaller ones is cheaper.
JOIN_BYTES_MAX = 64 * 1024  # A whole write up to this size is joined, whatever its pieces.
READY_BYTES_MAX = 1 << 20  # With more ready bytes, `write` flushes at once, so that unsent bytes are counted.


class AnsweringConnection(Protocol):
    """The members of a connection that its AnswerBuffer uses."""

    closed: bool
    active_mono_ms: int

    def hold(self) -> None: ...

    def broken(self, error: Exception, kind: str) -> None: ...


class ClosedConnection:
    """Stands for the connection in the answers of a closed connection."""

    closed = True
    active_mono_ms = 0

    def hold(self) -> None:
        pass

    def broken(self, error: Exception, kind: str) -> None:
        pass

    def close(self, reason: str) -> None:
        pass


CLOSED = ClosedConnection()


class AnswerBuffer:
    """The answers of one connection. Invariant: `pending_bytes` is part of `Connections.answer_bytes` until `drop`."""

    __slots__ = (
        "_all",
        "_charged_bytes",
        "_connection",
        "_handed_bytes",
        "_is_choked",
        "_ready",
        "_ready_bytes",
        "_sent_bytes_seen",
        "_server",
        "_transport",
        "_unsent_bytes",
        "progress_mono_ms",
    )  # fmt: skip

    _transport: asyncio.Transport

    def __init__(self, connection: AnsweringConnection, server: Server) -> None:
        self._connection, self._server, self._all = connection, server, server.connections
        self._ready: list[Buffer] = []  # Sent at the end of this loop turn.
        self._ready_bytes = 0
        self._is_choked = False  # The transport has bytes that the socket did not take.
        # Bytes that were given to the transport since then. It keeps a buffer whole until the last byte is taken.
        self._unsent_bytes = 0
        self._charged_bytes = 0  # Bytes of finished answers that wait for an unfinished one.
        self._handed_bytes = 0  # All bytes that were given to the transport.
        self._sent_bytes_seen = 0
        self.progress_mono_ms = 0  # The client has taken no pending byte since this time.

    def attach(self, transport: asyncio.Transport) -> None:
        """Set the transport. Its high-water mark of 0 reports at once that the socket does not take all bytes."""
        self._transport = transport
        transport.set_write_buffer_limits(high=0)

    @property
    def pending_bytes(self) -> int:
        """The bytes of answers that are finished and not sent."""
        return self._unsent_bytes + self._charged_bytes

    def has_room(self) -> bool:
        """Return whether so few bytes are pending that further requests may be read."""
        return not self._unsent_bytes and self._charged_bytes <= self._all.limits.unsent_bytes_max // 2

    # -- Writing

    def write(self, buffers: Sequence[Buffer]) -> None:
        """Write an answer at the end of the loop turn. Its promise must be kept already."""
        if self._connection.closed:
            return
        if not self._ready:
            self._server.answering(self)
        self._ready += buffers
        self._ready_bytes += len(buffers[0]) if len(buffers) == 1 else sum(map(len, buffers))
        if self._ready_bytes > READY_BYTES_MAX:
            self.flush()

    def flush(self) -> None:
        """Give all ready answers to the transport, in one call."""
        pieces, size = self._ready, self._ready_bytes
        self._ready, self._ready_bytes = [], 0
        connection, connections = self._connection, self._all
        if connection.closed or not pieces:
            return
        if len(pieces) == 1:
            self._transport.write(pieces[0])
        elif size <= JOIN_BYTES_MAX:
            self._transport.write(b"".join(pieces))
        else:
            self._transport.writelines(joined(pieces))
        self._handed_bytes += size
        connections.sent_bytes += size
        connection.active_mono_ms = connections.mono_ms
        if self._is_choked and not connection.closed:
            self._unsent_bytes += size
            self._count(size)

    def failed(self, error: Exception) -> None:
        """Close the connection, because `flush` raised this error."""
        self._connection.broken(error, "write")

    # -- Memory

    def charge(self, size: int) -> None:
        """Add `size` bytes of finished answers that wait; a negative size subtracts them."""
        if self._connection.closed:
            return
        if not self.pending_bytes:
            self.progress_mono_ms = self._all.mono_ms
        self._charged_bytes += size
        self._count(size)

    def choked(self) -> None:
        """Note that the socket did not take all bytes."""
        self._is_choked = True
        self.progress_mono_ms = self._all.mono_ms

    def taken(self) -> None:
        """Note that the socket has taken all bytes."""
        self._is_choked = False
        if not self._connection.closed:
            unsent_bytes, self._unsent_bytes = self._unsent_bytes, 0
            self._count(-unsent_bytes)

    def _count(self, more_bytes: int) -> None:
        connections, pending_bytes = self._all, self.pending_bytes
        connections.answer_bytes += more_bytes
        limits = connections.limits
        is_above = connections.answer_bytes > limits.answer_bytes_max
        if pending_bytes > limits.unsent_bytes_max or (pending_bytes and is_above):
            self._connection.hold()
            if connections.answer_bytes > 2 * limits.answer_bytes_max:
                connections.close_slowest_reader()

    def overdue(self, mono_ms: int) -> str | None:
        """Return why the connection must be closed because its client takes no answers.

        Empty: the client has taken bytes within `limits.unread_ms`. None: no bytes are unsent.
        """
        if not self._is_choked:
            return None
        sent_bytes = self._handed_bytes - self._transport.get_write_buffer_size()
        unread_ms = self._all.limits.unread_ms
        if sent_bytes > self._sent_bytes_seen:
            self._sent_bytes_seen, self.progress_mono_ms = sent_bytes, mono_ms
        elif mono_ms - self.progress_mono_ms > unread_ms:
            return f"took none of {self._unsent_bytes} unsent bytes for limits.unread_ms={unread_ms}"
        return ""

    # -- The end

    def give_up(self) -> None:
        """Subtract all pending bytes from the sum of all connections, because the connection is aborted."""
        self._all.answer_bytes -= self.pending_bytes
        self._unsent_bytes = self._charged_bytes = 0

    def drop(self) -> None:
        """Drop all bytes, and the reference to the closed connection; `Connections.forget` has subtracted the bytes.

        The connection and its answers would keep each other alive until the garbage collector runs.
        """
        self._connection = CLOSED
        self._ready.clear()
        self._ready_bytes = self._unsent_bytes = self._charged_bytes = 0


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
