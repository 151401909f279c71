"""The class ExternalWatchdog: the broker's side of a child process that disconnects clients of a broker in a stall.

    event loop turns     heartbeats: the owner may answer for so many milliseconds   the child waits
    it stands still      no heartbeat until the lease of the owner has ended         the child shuts down the sockets
    it turns again       the ports are opened again, a heartbeat                     the child waits

A stalled broker that shares its log owns the stream no longer when its lease has ended (`store/shared/lease.py`). Its
kernel keeps connections open all the same, and accepts new ones, so clients would wait for their time-outs instead of
asking the new owner. They are disconnected from outside, because a stopped process can do nothing. A standby has
clients, too, and is given the length of a lease.

Where the kernel does not allow this, a line in the log says so, and the broker runs on without it.
"""

import asyncio
import logging
import os
import socket
import subprocess
import sys
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Final, Self

from duolog.bridge.net.server import Server

PROGRAM: Final = Path(__file__).with_name("watchdog_child.py")
MESSAGE_BYTES: Final = 256  # The longest message of the child.
HEARTBEATS_PER_STALL: Final = 10  # The heartbeats that the broker sends within `stall_ms`.
STALLS_MIN: Final = 3  # A stall of a third of `stall_ms` disconnects no client, however short the rest of the lease is.

log = logging.getLogger("bridge")


class ExternalWatchdog:
    """Watches from `__enter__` to `__exit__`; the ticker runs `advance` at each deadline."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        server: Server,
        ports: Iterable[int],
        stall_ms: int,
        owner_until_mono_ms: Callable[[], int | None],
    ) -> None:
        """Prepare to watch. `owner_until_mono_ms` gives the end of the lease of an owner, and None for a standby."""
        self._loop, self._server, self._ports = loop, server, list(ports)
        self._stall_ms, self._interval_ms = stall_ms, stall_ms // HEARTBEATS_PER_STALL
        self._owner_until_mono_ms = owner_until_mono_ms
        self._announced_until_mono_ms = 0  # The end of the lease that the last heartbeat named.
        self._next_mono_ms = 0
        self._heartbeats: socket.socket | None = None  # None: there is no child, or none any more.
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        """Start the child."""
        try:
            self._start()
        except (OSError, MemoryError) as error:  # Importing `ctypes` may need memory that is executable.
            self._end()
            self._lost(str(error))
        return self

    def _start(self) -> None:
        from duolog.bridge.running.watchdog_child import allow_access_by  # Imported here, because it may raise.

        self._heartbeats, its_end = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._heartbeats.setblocking(False)
        with its_end:
            numbers = [os.getpid(), self._heartbeats.fileno(), *self._ports]
            self._process = subprocess.Popen(
                [sys.executable, "-I", "-S", str(PROGRAM), *map(str, numbers)],
                stdin=its_end.fileno(),
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )
        allow_access_by(self._process.pid)
        self._loop.add_reader(self._heartbeats.fileno(), self._read)

    def next_deadline_ms(self) -> int | None:
        """Return the monotonic time of the next heartbeat; None without a child.

        The heartbeat is due at once when the lease has been extended by an interval or more.
        """
        if self._heartbeats is None:
            return None
        until = self._owner_until_mono_ms()
        is_extended = until is not None and until >= self._announced_until_mono_ms + self._interval_ms
        return 0 if is_extended else self._next_mono_ms

    def advance(self, mono_ms: int) -> None:
        """Send a heartbeat."""
        if self._heartbeats is None:
            return
        until = self._owner_until_mono_ms()
        left_ms = self._stall_ms if until is None else max(until - mono_ms, self._stall_ms // STALLS_MIN)
        self._announced_until_mono_ms = until or 0
        self._next_mono_ms = mono_ms + self._interval_ms
        # The lease may be extended by less than an interval before the next heartbeat names its end.
        with suppress(OSError):  # `_read` notices the end of the child; a child that reads nothing needs no heartbeat.
            self._heartbeats.send(b"%d" % (left_ms + self._interval_ms))

    def _read(self) -> None:
        """Take a message of the child; nothing is its end."""
        assert self._heartbeats is not None, "there is no child"
        try:
            message = self._heartbeats.recv(MESSAGE_BYTES).decode()
        except BlockingIOError:
            return
        except OSError:
            message = ""
        event, _, text = message.partition(" ")
        if event == "ready":
            return
        if event == "disconnected":
            log.warning("clients were disconnected, because the event loop stood still sockets=%s", text)
        else:
            self._end()
            self._lost(text or "the child process has ended")
        self._server.listen_again()  # The child may have ended between the shutdown and its message.

    def _lost(self, reason: str) -> None:
        log.warning("external watchdog does not run, clients wait for a broker that stands still reason=%r", reason)

    def _end(self) -> None:
        heartbeats, self._heartbeats = self._heartbeats, None
        if heartbeats is not None:
            self._loop.remove_reader(heartbeats.fileno())
            heartbeats.close()
        if self._process is not None:
            self._process.kill()  # So that waiting for its end takes no time.
            self._process.wait()
            self._process = None

    def __exit__(self, *_: object) -> None:
        """End the child."""
        self._end()
