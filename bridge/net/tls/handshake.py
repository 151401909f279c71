"""The class Handshake: an accepted connection until its TLS handshake is complete, or until it is known to have none.

    state      event                          next
    accepted   first byte is 0x16             begun
    accepted   another first byte             optional: handed to the protocol of the port; required: closed
    accepted   limits.first_request_ms over   closed
    begun      the first record is complete   queued; the socket is not read
    queued     a thread has taken its bytes   awaiting, or complete, or closed because the handshake failed
    awaiting   further bytes                  queued
    awaiting   tls.handshakes_max reached     closed, if its client is silent for longest
    complete                                  handed to the protocol of the port, as a TlsStream
    later      tls.handshake_ms over          closed

No protocol that the broker serves begins with the byte 0x16: a Kafka or RocketMQ frame of this size is refused.
"""

import asyncio
import logging
import ssl
from collections.abc import Callable
from typing import Final, NamedTuple, Protocol, cast

from duolog.bridge.config import TlsOptions
from duolog.bridge.net.addresses import endpoint
from duolog.bridge.net.connections import PendingAnswers
from duolog.bridge.net.server import Server
from duolog.bridge.net.tls.peer import TlsPeer
from duolog.bridge.net.tls.server_tls import NoPrincipal, ServerTls
from duolog.bridge.net.tls.stream import PIECE_BYTES, TlsStream
from duolog.protocol import foreign

TLS_HANDSHAKE: Final = 0x16  # The content type of the first record (RFC 8446, 5.1).
HEADER_BYTES: Final = 5  # The size of the header of a TLS record.

log = logging.getLogger("net")


class HandshakeStep(NamedTuple):
    """What a thread has made of the client's bytes."""

    output: bytes  # For the client: the server's part of the handshake, or an alert.
    error: str  # Empty unless the handshake failed.
    peer: TlsPeer | None  # None until the handshake is complete.
    rest: bytes  # What the client sent after its handshake.


class Handshakes(Protocol):
    """The handshakes of all connections, as one Handshake sees them; `TlsGate`."""

    server: Server
    options: TlsOptions

    def step(self, handshake: "Handshake") -> None:
        """Call `handshake.work()` in a thread soon, and then `handshake.stepped`."""

    def ended(self, handshake: "Handshake") -> None:
        """Forget a handshake."""


class NoAnswers:
    """The unsent answers of a connection that has no protocol yet."""

    pending_bytes = 0
    progress_mono_ms = 0


class Handshake(asyncio.Protocol):
    """One connection. `factory` makes the protocol of its port.

    The class has more than 15 fields because the limits of all connections count it, and read six of its fields.
    """

    __slots__ = (
        "_bios", "_factory", "_fed_bytes", "_gate", "_held", "_is_first", "_since_mono_ms", "_tls", "_transport",
        "closed", "connections", "partial_bytes", "peer", "using", "wire",
    )  # fmt: skip

    answers: PendingAnswers = NoAnswers()

    def __init__(self, gate: Handshakes, wire: str, factory: Callable[[], asyncio.BaseProtocol]) -> None:
        self._gate, self.wire, self._factory = gate, wire, factory
        self.connections = gate.server.connections
        self.closed = True  # True until `connection_made`, and from the end on.
        self.peer: tuple[str, int] = ("", 0)
        self.partial_bytes = 0  # Bytes in `_held`, which `limits.request_bytes_max` counts.
        self.using: ServerTls | None = None  # None until the handshake has begun.
        self._tls: ssl.SSLObject | None = None
        self._bios = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._is_first = True  # No byte was received.
        self._since_mono_ms = 0  # The time of the accept, then of the first byte.
        self._held = b""  # Received, and not given to OpenSSL.
        self._fed_bytes = 0

    # -- Calls of the transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports have the methods of asyncio's, but not its class.
        self._transport = cast(asyncio.Transport, transport)
        if not self.connections.admit(self, is_counted=False):
            self._transport.abort()
            return
        self._gate.server.touch()  # The first connection arms the sweeps.
        self.closed = False
        self.peer = tuple(transport.get_extra_info("peername", ("", 0))[:2])
        self._since_mono_ms = self.connections.mono_ms

    def data_received(self, data: bytes) -> None:
        if self.closed:
            return
        self._gate.server.touch()
        if self._is_first:
            self._is_first = False
            self._since_mono_ms = self.connections.mono_ms
            if data[0] != TLS_HANDSHAKE:
                self._take_plain(data)
                return
        if self.using is None:
            data = self._held + data
            if len(data) > self._gate.options.handshake_bytes_max:
                # Only what follows a handshake may be as large as a request.
                self._fail(self._too_large(len(data)))
                return
        self._hold(data)
        if not self.closed and (self.using is not None or has_record(data)):
            self._transport.pause_reading()
            self._gate.step(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self._end()
        self._gate.server.on_closed()

    # -- Without TLS

    def _take_plain(self, data: bytes) -> None:
        transport = self._transport
        if self._gate.options.mode == "required":
            counts = self._gate.server.tls_counts
            counts.plain_refused += 1
            port = str(transport.get_extra_info("sockname", ("", 0))[1])
            omitted = self.connections.refused_protocols.take((self.peer[0], "plain", port), self.connections.mono_ms)
            if omitted is not None:
                log.warning(
                    "connection without TLS refused, tls.mode=required wire=%s port=%s peer=%s looks_like=%r "
                    "suppressed=%d",
                    self.wire, port, endpoint(*self.peer), foreign.looks_like(data[: foreign.BYTES]), omitted,
                )  # fmt: skip
            self.close("")
            return
        self._end()
        protocol = cast(asyncio.Protocol, self._factory())
        transport.set_protocol(protocol)
        protocol.connection_made(transport)
        if not transport.is_closing():
            protocol.data_received(data)

    # -- With TLS

    def work(self) -> Callable[[], HandshakeStep]:
        """Return what a thread must do with the bytes that were received; `using` is set."""
        assert self.using is not None
        held, using = self._held, self.using
        self._hold(b"")
        return lambda: self._advance(held, using)

    def _advance(self, held: bytes, using: ServerTls) -> HandshakeStep:
        """Give the bytes to OpenSSL. Runs in a thread.

        Meanwhile the loop touches neither `_tls` nor `_bios` nor `_fed_bytes`.
        """
        incoming, outgoing = self._bios
        if self._tls is None:
            self._tls = using.server_side(incoming, outgoing)
        error, peer, at = "", None, 0
        while at < len(held) and peer is None and not error:
            piece = held[at : at + PIECE_BYTES]
            incoming.write(piece)
            at += len(piece)
            self._fed_bytes += len(piece)
            try:
                self._tls.do_handshake()
                peer = using.peer_of(self._tls)
            except ssl.SSLWantReadError:
                if self._fed_bytes > self._gate.options.handshake_bytes_max:
                    error = self._too_large(self._fed_bytes)
            except ssl.SSLError as failure:
                error = reason_of(failure)
            except (NoPrincipal, ValueError) as failure:  # ValueError: cryptography cannot read the certificate.
                error = str(failure)
        return HandshakeStep(outgoing.read(), error, peer, held[at:])

    def stepped(self, step: HandshakeStep) -> None:
        """Go on with what the thread has made."""
        if self.closed:
            return
        if step.output:
            self._transport.write(step.output)
        if step.error:
            self._fail(step.error)
        elif step.peer is not None:
            self._complete(step.peer, step.rest)
        else:
            self._transport.resume_reading()

    def _complete(self, peer: TlsPeer, rest: bytes) -> None:
        assert self._tls is not None
        self._gate.server.tls_counts.completed += 1
        transport, tls = self._transport, self._tls
        self._end()
        stream = TlsStream(transport, tls, self._bios, peer, self.wire, self._gate.server.loop)
        stream.begin(cast(asyncio.Protocol, self._factory()), rest)

    def _fail(self, reason: str) -> None:
        self._gate.server.tls_counts.failed += 1
        key = (self.peer[0], "tls", reason)
        omitted = self.connections.refused_protocols.take(key, self.connections.mono_ms)
        if omitted is not None:
            log.warning(
                "TLS handshake failed wire=%s peer=%s reason=%r suppressed=%d",
                self.wire, endpoint(*self.peer), reason, omitted,
            )  # fmt: skip
        self.close("")

    # -- Limits and the end

    def _hold(self, data: bytes) -> None:
        connections = self.connections
        connections.request_bytes += len(data) - self.partial_bytes
        self._held, self.partial_bytes = data, len(data)
        if connections.request_bytes > connections.limits.request_bytes_max:
            connections.close_largest_request()

    def _too_large(self, size: int) -> str:
        return f"{size} bytes of a handshake, above tls.handshake_bytes_max={self._gate.options.handshake_bytes_max}"

    def overdue(self, mono_ms: int) -> str:
        """Return why the connection must be closed because of a time limit; empty if it must not."""
        passed_ms = mono_ms - self._since_mono_ms
        first_ms, handshake_ms = self.connections.limits.first_request_ms, self._gate.options.handshake_ms
        if self._is_first:
            return f"no byte within limits.first_request_ms={first_ms}" if passed_ms > first_ms else ""
        return f"no complete TLS handshake within tls.handshake_ms={handshake_ms}" if passed_ms > handshake_ms else ""

    def close_as_silent(self) -> None:
        """Close, because another handshake needs the place of this one."""
        self._fail(f"silent for longest of tls.handshakes_max={self._gate.options.handshakes_max} handshakes")

    def hold(self) -> None:
        """Stop reading, because the broker stops."""
        if not self.closed:
            self._transport.pause_reading()

    def close(self, reason: str, *, abort: bool = False) -> None:
        """Close, with a log line if there is a reason."""
        if self.closed:
            return
        if reason and not self._is_first:
            self._gate.server.tls_counts.failed += 1
        if reason:
            log.info("connection closed wire=%s peer=%s reason=%r", self.wire, endpoint(*self.peer), reason)
        self._end()
        if abort:
            self._transport.abort()
        else:
            self._transport.close()

    def abort(self) -> None:
        """Close at once."""
        self._end()
        self._transport.abort()

    def broken(self, error: Exception, kind: str) -> None:
        """Report an unexpected exception, and close the connection."""
        self._gate.server.faults.contain(error, f"{self.wire} {kind}", endpoint(*self.peer))
        self.close("a bug of the broker", abort=True)

    def _end(self) -> None:
        """Leave the limits of all connections, once."""
        if not self.closed:
            self.closed = True
            self.connections.forget(self)
            self.partial_bytes, self._held = 0, b""
            self._gate.ended(self)


def has_record(data: bytes) -> bool:
    """Return whether the first record (type u8, version u16, length u16, content) is complete, or too large."""
    if len(data) < HEADER_BYTES:
        return False
    length = int.from_bytes(data[3:HEADER_BYTES], "big")
    return length > PIECE_BYTES or len(data) - HEADER_BYTES >= length


def reason_of(error: ssl.SSLError) -> str:
    """Return OpenSSL's reason in words."""
    verify = getattr(error, "verify_message", "")
    words = (error.reason or str(error)).replace("_", " ").lower()
    return f"{words}: {verify}" if verify else words
