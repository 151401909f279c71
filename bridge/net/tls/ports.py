"""The class TlsPorts: the TLS of one broker, with the files that are loaded at the start and at each reload.

tls.mode=off, and the broker calls no server with TLS   nothing is loaded
tls.mode=off, and it does                               `outgoing` is loaded
tls.mode=optional, required                             a TlsGate stands before the protocols of all ports
"""

import asyncio
import logging
import ssl
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, NamedTuple

from duolog.bridge.config import Options
from duolog.bridge.net.server import Server
from duolog.store.errors import StoreError
from duolog.store.workers import Post, Workers

if TYPE_CHECKING:
    from duolog.bridge.net.tls.gate import TlsGate
    from duolog.bridge.net.tls.server_tls import ServerTls

CERTIFICATE: Final = "tls.certificate_file"
# Settings that a reload puts in force. The mode of the ports and the limits of handshakes need a restart.
RELOADABLE_TLS: Final = tuple(
    f"tls.{name}"
    for name in (
        "certificate_file", "key_file", "key_password", "ca_file", "client_auth", "principal_rule", "min_version",
        "ciphers", "outgoing_ca_file", "outgoing_hostname_check",
    )
)  # fmt: skip
STEPS_MAX: Final = 16  # Tasks of the handshake thread; TlsGate submits one at a time.

log = logging.getLogger("net")


class LoadedTls(NamedTuple):
    """What was loaded from files."""

    server: "ServerTls | None"  # None with `tls.mode=off`.
    outgoing: ssl.SSLContext | None  # None: the broker calls no server with TLS, or the CAs of the system are trusted.


class TlsPorts:
    """The TLS of one broker, which was started with `options`."""

    def __init__(self, options: Options, server: Server, post: Post) -> None:
        self._options, self._server, self._post = options, server, post
        self._outgoing: ssl.SSLContext | None = None
        self._gate: TlsGate | None = None
        self._workers: Workers | None = None
        self.certificate = ""  # Subject and end of the certificate in use; empty with `tls.mode=off`.

    def read(self, options: Options) -> LoadedTls:
        """Read the files of these settings. It may take a while, so it runs in a thread once the ports are open.

        Raises ConfigError, and then nothing has changed.
        """
        tls, is_on = options.tls, self._options.tls.mode != "off"
        server = None
        if is_on:
            from duolog.bridge.net.tls.server_tls import ServerTls

            server = ServerTls(tls)
        if not (tls.outgoing_ca_file or self._calls_brokers() or not tls.outgoing_hostname_check):
            return LoadedTls(server, None)
        from duolog.bridge.net.tls.outgoing import outgoing_context

        return LoadedTls(server, outgoing_context(tls))

    def use(self, loaded: LoadedTls) -> None:
        """Use what was read for connections that begin from now on."""
        self._outgoing = loaded.outgoing
        if loaded.server is None:
            return
        if self._gate is None:
            from duolog.bridge.net.tls.gate import TlsGate

            refusal = StoreError(f"{STEPS_MAX} tasks of TLS handshakes wait for their thread")
            self._workers = Workers("tls", 1, self._post, STEPS_MAX, refusal)
            self._gate = TlsGate(self._server, self._options.tls, loaded.server, self._workers)
        self._gate.use(loaded.server)
        self.certificate = f"{loaded.server.subject} until {loaded.server.expires}"
        log.info("certificate loaded subject=%r expires=%s", loaded.server.subject, loaded.server.expires)
        if loaded.server.expires_s * 1000 < self._server.clock.now_ms():
            log.warning("certificate has expired subject=%r expires=%s", loaded.server.subject, loaded.server.expires)

    def accepting(self, wire: str, factory: Callable[[], asyncio.BaseProtocol]) -> Callable[[], asyncio.BaseProtocol]:
        """Return the factory of a listener whose protocol `factory` makes."""
        return factory if self._gate is None else self._gate.accepting(wire, factory)

    def outgoing(self) -> ssl.SSLContext | None:
        """Return what verifies the servers that the broker calls; None: the CAs of the system are trusted."""
        return self._outgoing

    def between_brokers(self) -> ssl.SSLContext | None:
        """Return what verifies the owner of a shared log; None: it is called without TLS, which it accepts."""
        return self._outgoing if self._options.tls.mode == "required" else None

    def _calls_brokers(self) -> bool:
        """Whether the broker calls name servers or other brokers with TLS."""
        options = self._options
        return options.rocketmq.join_namesrv_tls or (options.tls.mode == "required" and bool(options.shared.url))

    def stop(self) -> None:
        """End the thread. Blocks for one handshake at most."""
        if self._workers is not None:
            self._workers.stop()
