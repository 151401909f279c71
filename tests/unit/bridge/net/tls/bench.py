"""A TlsGate without sockets and threads: its clients are Python's `ssl`, and the loop is turned by hand.

bench = TlsBench(authority)
client = bench.connect()            # a TlsClient
client.shake()                      # the whole handshake
client.send(b"hello")
bench.received[-1]                  # the Recorder that the gate has connected, with what it received
"""

import asyncio
import ssl
from typing import Any, cast

from duolog.bridge.config import LimitsOptions, TlsOptions
from duolog.bridge.monitoring.watchdog import Watchdog
from duolog.bridge.net.connections import SWEEP_INTERVAL_MS
from duolog.bridge.net.server import Server
from duolog.bridge.net.tls.gate import TlsGate
from duolog.bridge.net.tls.peer import TlsPeer
from duolog.bridge.net.tls.server_tls import ServerTls
from duolog.store.workers import Executor, Inline
from tests.kit.certificates import Authority
from tests.kit.clock import ManualClock
from tests.kit.faults import StrictFaults
from tests.kit.sockets import FakeTransport, ManualLoop, connect


class Recorder(asyncio.Protocol):
    """The protocol of a port: it remembers what it receives, and how often writing was paused and resumed."""

    def __init__(self) -> None:
        self.data = b""
        self.calls: list[str] = []
        self.peer: TlsPeer | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self.transport.set_write_buffer_limits(high=0)
        self.peer = transport.get_extra_info("tls_peer")

    def data_received(self, data: bytes) -> None:
        self.data += data

    def pause_writing(self) -> None:
        self.calls.append("pause")

    def resume_writing(self) -> None:
        self.calls.append("resume")

    def eof_received(self) -> None:
        self.calls.append("eof")

    def connection_lost(self, exc: Exception | None) -> None:
        self.calls.append("lost")


class TlsClient:
    """A client on a FakeTransport of the broker. `tls` is None for a client without TLS."""

    def __init__(self, bench: "TlsBench", transport: FakeTransport, context: ssl.SSLContext) -> None:
        self.bench, self.transport = bench, transport
        self.incoming, self.outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self.tls = context.wrap_bio(self.incoming, self.outgoing, server_hostname="localhost")
        self._read_bytes = 0

    def hello(self) -> bytes:
        """Begin the handshake, and return the client's first bytes."""
        try:
            self.tls.do_handshake()
        except ssl.SSLWantReadError:
            pass
        return self.outgoing.read()

    def shake(self, step_bytes: int = 1 << 20) -> None:
        """Do the whole handshake, giving `step_bytes` at a time. Raises SSLError if the broker refuses it."""
        while True:
            try:
                self.tls.do_handshake()
            except ssl.SSLWantReadError:
                self.flush(step_bytes)
                if not self.fetch():
                    raise ConnectionResetError("the broker closed the connection") from None
            else:
                self.flush(step_bytes)
                return

    def flush(self, step_bytes: int = 1 << 20) -> None:
        self.raw(self.outgoing.read(), step_bytes)

    def raw(self, data: bytes, step_bytes: int = 1 << 20) -> None:
        for at in range(0, len(data), step_bytes):
            self.transport.receive(data[at : at + step_bytes])
            self.bench.loop.turn()

    def fetch(self) -> bool:
        """Take what the broker has written; return whether there was anything."""
        new = bytes(self.transport.taken[self._read_bytes :])
        self._read_bytes += len(new)
        self.incoming.write(new)
        return bool(new)

    def send(self, data: bytes, step_bytes: int = 1 << 20) -> None:
        self.tls.write(data)
        self.flush(step_bytes)

    def read(self) -> bytes:
        """Return everything that the broker has written, decrypted."""
        self.fetch()
        found = b""
        try:
            while content := self.tls.read(1 << 16):
                found += content
        except ssl.SSLWantReadError:
            pass
        return found


class TlsBench:
    """One gate; `options` are settings of `tls`."""

    def __init__(
        self,
        authority: Authority,
        limits: LimitsOptions | None = None,
        executor: Executor | None = None,
        **options: Any,
    ) -> None:
        files = authority.server()
        self.authority = authority
        self.options = TlsOptions(
            **{
                "mode": "optional",
                "certificate_file": str(files.certificate),
                "key_file": str(files.key),
                "ca_file": str(authority.file),
            }
            | options
        )
        self.loop, self.clock = ManualLoop(), ManualClock()
        self.server = Server(
            cast(Any, self.loop),
            self.clock,
            limits or LimitsOptions(),
            {},
            lambda: None,
            StrictFaults(self.clock.mono_ms, print),
            Watchdog(),
        )
        self.gate = TlsGate(self.server, self.options, ServerTls(self.options), executor or Inline())
        self.connected: list[Recorder] = []
        self.client_context = authority.client_context()

    @property
    def counts(self) -> tuple[int, int, int, int]:
        """Handshakes completed, failed, unfinished; connections without TLS refused."""
        counts = self.server.tls_counts
        return counts.completed, counts.failed, counts.unfinished, counts.plain_refused

    def connect(self, context: ssl.SSLContext | None = None, host: str = "192.0.2.1") -> TlsClient:
        protocol = self.gate.accepting("kafka", self._recorder)()
        return TlsClient(self, connect(protocol, self.loop, host), context or self.client_context)

    def _recorder(self) -> Recorder:
        self.connected.append(Recorder())
        return self.connected[-1]

    def sweep_after(self, ms: int) -> None:
        """Let time pass, with sweeps as often as they are due."""
        for _ in range(0, ms, SWEEP_INTERVAL_MS):
            self.clock.pass_ms(SWEEP_INTERVAL_MS)
            self.server.connections.sweep(self.clock.mono_ms())
        self.loop.turn()
