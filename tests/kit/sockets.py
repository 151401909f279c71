"""Sockets without a network: a transport whose peer reads as much as the test says, and a loop that the test runs.

loop = ManualLoop()
transport = connect(connection)          # calls connection_made, as a listener does
connection.data_received(b"...")
loop.turn()                              # the end of the turn: answers are written
transport.taken                          # the bytes that the peer has read
"""

import asyncio
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any

HOST = "192.0.2.1"  # The address of the peer, unless the test names another one.


class ManualLoop:
    """The few methods of an event loop that a connection uses; nothing runs until `turn`."""

    def __init__(self) -> None:
        self._soon: deque[Callable[[], object]] = deque()

    def call_soon(self, callback: Callable[..., object], *args: Any) -> None:
        self._soon.append(lambda: callback(*args))

    def turn(self) -> None:
        """Run all scheduled callbacks, also those that they schedule."""
        while self.turn_once():
            pass

    def turn_once(self) -> bool:
        """Run the scheduled callbacks, but not those that they schedule; return False if there were none."""
        count = len(self._soon)
        for _ in range(count):
            self._soon.popleft()()
        return count > 0


class FakeTransport(asyncio.Transport):
    """A transport whose peer reads `room` bytes (None: all); it buffers the rest and pauses writing as uvloop does."""

    def __init__(
        self, protocol: asyncio.Protocol, loop: "ManualLoop | asyncio.AbstractEventLoop", host: str = HOST
    ) -> None:
        super().__init__(extra={"peername": (host, 40000)})
        self.taken = bytearray()
        self.write_calls = 0
        self.room: int | None = None
        self.is_paused = False
        self.is_aborted = False
        self.closing = False
        self._protocol, self._loop = protocol, loop
        self._unsent = bytearray()
        self._is_choked = False

    # -- Actions of the peer

    def receive(self, data: bytes) -> None:
        """Give bytes of the peer to the protocol, unless it has stopped reading or the connection is closed."""
        if not self.closing:
            assert not self.is_paused, "given bytes while it does not read"
            self._protocol.data_received(data)

    def take(self, size: int | None = None) -> None:
        """Let the peer read `size` of the unsent bytes; None: all of them, and all that follow."""
        if size is None:
            self.room = None
        self._send(len(self._unsent) if size is None else size)

    def _send(self, size: int) -> None:
        self.taken += self._unsent[:size]
        del self._unsent[:size]
        if self._unsent and not self._is_choked:
            self._is_choked = True
            self._protocol.pause_writing()
        elif not self._unsent and self._is_choked:
            self._is_choked = False
            self._protocol.resume_writing()

    # -- Methods that the connection calls

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.writelines([data])

    def writelines(self, pieces: Iterable[bytes | bytearray | memoryview]) -> None:
        assert not self.closing, "written to after close"
        self.write_calls += 1
        for piece in pieces:
            self._unsent += piece
        room = len(self._unsent) if self.room is None else self.room
        if self.room is not None:
            self.room = max(0, self.room - len(self._unsent))
        self._send(room)

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        assert isinstance(protocol, asyncio.Protocol)
        self._protocol = protocol

    def get_protocol(self) -> asyncio.Protocol:
        return self._protocol

    def get_write_buffer_size(self) -> int:
        return len(self._unsent)

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        assert high == 0, "choked means: anything is unsent"

    def pause_reading(self) -> None:
        self.is_paused = True

    def resume_reading(self) -> None:
        self.is_paused = False

    def is_closing(self) -> bool:
        return self.closing

    def close(self) -> None:
        self._end()

    def abort(self) -> None:
        self.is_aborted = True
        self._end()

    def _end(self) -> None:
        if not self.closing:
            self.closing = True
            self._loop.call_soon(self._lose)

    def _lose(self) -> None:
        protocol, self._protocol = self._protocol, asyncio.Protocol()  # uvloop drops its reference, too.
        protocol.connection_lost(None)


def connect(
    protocol: asyncio.Protocol, loop: ManualLoop | asyncio.AbstractEventLoop, host: str = HOST
) -> FakeTransport:
    """Connect a protocol to a new transport, as a listener does; the peer is at `host`."""
    transport = FakeTransport(protocol, loop, host)
    protocol.connection_made(transport)
    return transport
