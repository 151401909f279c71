"""The class TlsStream: a connection with TLS after its handshake, between the socket's transport and a protocol.

    socket ──data_received──> incoming BIO ──decrypt──> protocol.data_received
    socket <──── write ────── outgoing BIO <──encrypt── write, writelines <── protocol
                                  └ the protocol's buffers wait unencrypted while the socket takes nothing

For the protocol it is a transport whose high-water mark is 0: `pause_writing` is called as soon as any byte is unsent.
OpenSSL gets at most PIECE_BYTES at a time, because a memory BIO never returns the memory of its largest content.
"""

import asyncio
import logging
import ssl
from collections import deque
from collections.abc import Iterable
from typing import Any, Final

from duolog.bridge.net.addresses import endpoint
from duolog.bridge.net.tls.peer import TlsPeer

PIECE_BYTES: Final = 16 * 1024  # The content of one TLS record.
BURST_BYTES: Final = 256 * 1024  # What is encrypted in one turn of the loop, in 0.1 ms.
# Bytes that TLS itself sends while the client takes nothing: alerts, and answers to key updates.
CONTROL_BYTES_MAX: Final = 64 * 1024

Buffer = bytes | bytearray | memoryview

log = logging.getLogger("net")


class TlsStream(asyncio.Transport, asyncio.Protocol):
    """One connection.

    The class has more than 20 methods and 15 fields because it implements both a transport and a protocol of asyncio.
    """

    __slots__ = (
        "_control_bytes", "_incoming", "_is_app_paused", "_is_choked", "_is_closing", "_is_ended", "_is_reading",
        "_loop", "_outgoing", "_protocol", "_tls", "_transport", "_unsent", "_unsent_bytes", "_wire", "peer",
    )  # fmt: skip

    def __init__(
        self,
        transport: asyncio.Transport,
        tls: ssl.SSLObject,
        bios: tuple[ssl.MemoryBIO, ssl.MemoryBIO],
        peer: TlsPeer,
        wire: str,
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        super().__init__()
        self.peer = peer
        self._transport, self._tls, self._wire, self._loop = transport, tls, wire, loop
        self._incoming, self._outgoing = bios
        self._protocol: asyncio.Protocol = _NOBODY
        self._unsent: deque[memoryview] = deque()  # The protocol's buffers that are not encrypted yet.
        self._unsent_bytes = 0  # Invariant: the size of `_unsent`.
        self._control_bytes = 0  # Bytes that TLS itself has sent since the socket was choked.
        self._is_choked = False  # The socket has not taken all encrypted bytes.
        self._is_app_paused = False  # `pause_writing` was called, and `resume_writing` was not.
        self._is_closing = False  # Nothing is given to the protocol any more.
        self._is_reading = False  # The protocol has not paused reading.
        self._is_ended = False  # The client has sent close_notify.

    def begin(self, protocol: asyncio.Protocol, early: bytes) -> None:
        """Take over the socket's transport, which is not being read, and connect the protocol.

        `early` is what the client sent after its handshake. It may be empty although OpenSSL has read more.
        """
        self._protocol = protocol
        self._transport.set_write_buffer_limits(high=0)
        self._transport.set_protocol(self)
        self._is_reading = True
        protocol.connection_made(self)
        if not self.is_closing():
            self.data_received(early)
        if self._is_reading and not self.is_closing():
            self._transport.resume_reading()

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        assert isinstance(protocol, asyncio.Protocol), "TLS carries a stream"
        self._protocol = protocol

    # -- Calls of the socket's transport

    def data_received(self, data: bytes) -> None:
        if self._is_closing:
            return
        try:
            plain = self._decrypt(data)
        except ssl.SSLError as error:
            self._fail(f"TLS failed: {(error.reason or str(error)).replace('_', ' ').lower()}")
            return
        if plain:
            self._protocol.data_received(plain)
        if self._outgoing.pending and not self._is_closing:
            self._send_control()
        if self._is_ended:
            self.eof_received()

    def _decrypt(self, data: bytes) -> bytes:
        """Return the content of the records that `data` completes, possibly none. Raises SSLError."""
        tls, incoming = self._tls, self._incoming
        found: list[bytes] = []
        view = memoryview(data)
        for at in range(0, len(data) or 1, PIECE_BYTES):
            incoming.write(view[at : at + PIECE_BYTES])
            try:
                while incoming.pending or tls.pending():
                    content = tls.read(PIECE_BYTES)
                    if not content:
                        self._is_ended = True
                        return b"".join(found)
                    found.append(content)
            except ssl.SSLWantReadError:
                pass  # The rest of the record follows.
        return found[0] if len(found) == 1 else b"".join(found)

    def eof_received(self) -> bool:
        """Send what is unsent, and close: TLS has no half-closed connections."""
        if not self._is_closing:
            self._protocol.eof_received()
            self.close()
        return True  # The socket's transport stays open until `_finish`.

    def pause_writing(self) -> None:
        self._is_choked = True
        self._control_bytes = 0
        self._tell_protocol()

    def resume_writing(self) -> None:
        self._is_choked = False
        self._encrypt()

    def connection_lost(self, exc: Exception | None) -> None:
        protocol, self._protocol = self._protocol, _NOBODY  # The two would keep each other alive.
        self._is_closing = True
        self._unsent.clear()
        self._unsent_bytes = 0
        protocol.connection_lost(exc)

    # -- Calls of the protocol: writing

    def write(self, data: Buffer) -> None:
        self.writelines((data,))

    def writelines(self, list_of_data: Iterable[Buffer]) -> None:
        if self._is_closing:
            return
        is_idle = not self._unsent
        for data in list_of_data:
            if data:
                self._unsent.append(memoryview(data))
                self._unsent_bytes += len(data)
        if is_idle and not self._is_choked:
            self._encrypt()
        else:
            self._tell_protocol()

    def _encrypt(self) -> None:
        """Encrypt and send until the socket is choked, or a burst is over; the rest follows in later turns."""
        if self._transport.is_closing():
            return
        try:
            records = self._records()
        except ssl.SSLError as error:
            self._fail(f"TLS failed: {error.reason or error}")
            return
        if len(records) == 1:
            self._transport.write(records[0])
        elif records:
            self._transport.writelines(records)
        if self._unsent and not self._is_choked:
            self._loop.call_soon(self._go_on)
        elif self._is_closing and not self._unsent:
            self._finish()
        self._tell_protocol()

    def _go_on(self) -> None:
        if self._unsent and not self._is_choked:
            self._encrypt()

    def _records(self) -> list[bytes]:
        """Return the encrypted records of the next burst."""
        unsent, tls, outgoing = self._unsent, self._tls, self._outgoing
        records: list[bytes] = []
        room = BURST_BYTES
        while unsent and room > 0:
            first = unsent[0]
            size = tls.write(first if len(first) <= PIECE_BYTES else first[:PIECE_BYTES])
            records.append(outgoing.read())
            room -= size
            self._unsent_bytes -= size
            if size == len(first):
                unsent.popleft()
            else:
                unsent[0] = first[size:]
        return records

    def _send_control(self) -> None:
        """Send what TLS itself has to say. A client that causes it and takes nothing is closed."""
        content = self._outgoing.read()
        self._control_bytes += len(content)
        if self._is_choked and self._control_bytes > CONTROL_BYTES_MAX:
            self._fail(f"takes none of {self._control_bytes} bytes of TLS alerts and key updates")
        else:
            self._transport.write(content)

    def _tell_protocol(self) -> None:
        """Call `pause_writing` or `resume_writing` if bytes are unsent now and were not, or the other way round."""
        has_unsent = self._is_choked or bool(self._unsent)
        if has_unsent != self._is_app_paused:
            self._is_app_paused = has_unsent
            if has_unsent:
                self._protocol.pause_writing()
            else:
                self._protocol.resume_writing()

    def get_write_buffer_size(self) -> int:
        return self._unsent_bytes + self._transport.get_write_buffer_size()

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        assert high == 0, "a TlsStream pauses writing as soon as a byte is unsent"

    def can_write_eof(self) -> bool:
        return False

    # -- Calls of the protocol: reading and the end

    def pause_reading(self) -> None:
        self._is_reading = False
        self._transport.pause_reading()

    def resume_reading(self) -> None:
        self._is_reading = True
        self._transport.resume_reading()

    def is_closing(self) -> bool:
        return self._is_closing or self._transport.is_closing()

    def close(self) -> None:
        """Close after everything that is unsent, and close_notify."""
        if not self._is_closing:
            self._is_closing = True
            if not self._unsent:
                self._finish()

    def abort(self) -> None:
        self._is_closing = True
        self._transport.abort()

    def _finish(self) -> None:
        try:
            self._tls.unwrap()
        except ssl.SSLError:
            pass  # The client's close_notify is not awaited.
        if not self._transport.is_closing():
            self._transport.write(self._outgoing.read())
            self._transport.close()

    def _fail(self, reason: str) -> None:
        peername = self._transport.get_extra_info("peername", ("", 0))
        log.info("connection closed wire=%s peer=%s reason=%r", self._wire, endpoint(*peername[:2]), reason)
        if self._outgoing.pending:
            self._transport.write(self._outgoing.read())  # The alert that names the reason.
        self.abort()

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        if name == "tls_peer":
            return self.peer
        if name == "sslcontext":  # aiohttp asks for it, to find out whether the scheme is https.
            return self._tls.context
        return self._transport.get_extra_info(name, default)


_NOBODY: Final = asyncio.Protocol()  # The protocol before the beginning and after the end.
