"""Notifications to the service manager that started the broker, by the protocol of systemd's `sd_notify(3)`.

Each notification is one datagram of lines NAME=VALUE to the socket that the variable NOTIFY_SOCKET names:

    READY=1       the ports are open                                    the unit is active
    WATCHDOG=1    the event loop turns; sent twice in WATCHDOG_USEC     without it, systemd restarts the broker
    STOPPING=1    the broker closes its ports, and syncs the log        the unit is deactivating

Without NOTIFY_SOCKET nothing is sent. A notification that cannot be sent is logged, and the broker runs on.
"""

import logging
import socket
from collections.abc import Mapping
from typing import Self

log = logging.getLogger("bridge")


class ServiceManager:
    """The service manager at `address`, which is a path, or `@` and an abstract name; empty if there is none.

    `watchdog_ms` is the longest time between two signs of life that the service manager accepts; 0 if it expects none.
    """

    def __init__(self, address: str, watchdog_ms: int = 0) -> None:
        self._address = address
        self._interval_ms = max(1, watchdog_ms // 2) if address and watchdog_ms else None
        self._next_mono_ms = 0

    @classmethod
    def from_environment(cls, environment: Mapping[str, str], pid: int) -> Self:
        """Return the service manager that the environment of this process names.

        WATCHDOG_PID, if it is set, is the process that WATCHDOG_USEC is meant for; a value that is no number counts
        as no watchdog.
        """
        watchdog_us = environment.get("WATCHDOG_USEC", "")
        is_meant = environment.get("WATCHDOG_PID", str(pid)) == str(pid) and watchdog_us.isdecimal()
        return cls(environment.get("NOTIFY_SOCKET", ""), int(watchdog_us) // 1000 if is_meant else 0)

    def ready(self, status: str) -> None:
        """Tell that the broker serves requests; `systemctl status` shows `status`, which is one line."""
        self._notify(f"READY=1\nSTATUS={status}")

    def stopping(self) -> None:
        """Tell that an orderly stop has begun."""
        self._notify("STOPPING=1\nSTATUS=stopping")

    def next_deadline_ms(self) -> int | None:
        """Return the monotonic time of the next sign of life; None if none is expected."""
        return None if self._interval_ms is None else self._next_mono_ms

    def advance(self, mono_ms: int) -> None:
        """Give a sign of life. The ticker calls this method, so a loop that does not turn gives none."""
        if self._interval_ms is not None:
            self._next_mono_ms = mono_ms + self._interval_ms
            self._notify("WATCHDOG=1")

    def _notify(self, lines: str) -> None:
        if not self._address:
            return
        address = "\0" + self._address[1:] if self._address.startswith("@") else self._address
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sender:
                sender.setblocking(False)
                sender.sendto(lines.encode(), address)
        except OSError as error:
            log.warning("service manager not notified address=%r reason=%r", self._address, str(error))
