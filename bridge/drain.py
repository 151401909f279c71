"""The class Drain: an orderly end of a broker, before which its clients move to other brokers.

begin       /readyz answers 503, the name servers forget the broker, and client ports accept no connection
until       all client connections are closed, or the time is over; requests on open connections are served
end         the broker stops, as by SIGTERM
"""

import logging
from collections.abc import Callable, Sized
from typing import Final

CHECK_MS: Final = 100  # Between two looks at the number of connections.

log = logging.getLogger("bridge")


class Drain:
    """The drain of one broker. `connections` are those of clients; `end` asks for the stop of the broker."""

    def __init__(self, connections: Sized, end: Callable[[str], None]) -> None:
        self._connections, self._end = connections, end
        self._next_mono_ms: int | None = None  # When to look next; None unless a drain is in progress.
        self._ends_mono_ms = 0

    @property
    def has_begun(self) -> bool:
        return self._next_mono_ms is not None

    def begin(self, wait_ms: int, mono_ms: int) -> None:
        """Begin to drain, for at most `wait_ms`. If a drain has begun, the earlier of both ends counts."""
        ends_mono_ms = mono_ms + wait_ms
        if self._next_mono_ms is not None:
            ends_mono_ms = min(ends_mono_ms, self._ends_mono_ms)
        else:
            log.info("draining connections=%d wait_ms=%d", len(self._connections), wait_ms)
        self._ends_mono_ms = ends_mono_ms
        self._next_mono_ms = min(mono_ms + CHECK_MS, ends_mono_ms)

    def next_deadline_ms(self) -> int | None:
        """Return the monotonic time of the next look at the connections; None unless a drain is in progress."""
        return self._next_mono_ms

    def advance(self, mono_ms: int) -> None:
        """Ask for the stop if all clients have left, or the time is over."""
        if self._connections and mono_ms < self._ends_mono_ms:
            self._next_mono_ms = min(mono_ms + CHECK_MS, self._ends_mono_ms)
            return
        self._next_mono_ms = mono_ms + CHECK_MS
        left = len(self._connections)
        self._end(f"drained, the time is over, open connections: {left}" if left else "drained, all clients have left")
