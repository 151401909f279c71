"""The open connections of all ports, and the limits on their number and on the bytes that they hold together.

    admit ──> open ──┬── closed by its client or by an error
                     ├── closed by `sweep`: a time limit is exceeded
                     ├── closed by `close_largest_request`: unfinished requests hold limits.request_bytes_max
                     └── closed by `close_slowest_reader`: unsent answers hold twice limits.answer_bytes_max

All times are monotonic milliseconds.
"""

import logging
from collections.abc import Iterator
from typing import NamedTuple, Protocol

from duolog.bridge.clock import Clock
from duolog.bridge.config import LimitsOptions
from duolog.bridge.monitoring.repeated_lines import RepeatedLines

log = logging.getLogger("net")

SWEEP_INTERVAL_MS = 250
STALL_MS = 2_000  # A longer time between two sweeps means that the broker was stalled and has not read from clients.
SWEEP_CONNECTIONS_MAX = 1000  # The number of connections that one sweep checks, in less than a millisecond.


class Bounds(NamedTuple):
    """The limits of the connections of one client protocol."""

    frame_bytes_max: int
    unanswered_max: int
    idle_ms: int


class PendingAnswers(Protocol):
    """The encoded answers of a connection that are not sent yet."""

    @property
    def pending_bytes(self) -> int: ...

    progress_mono_ms: int  # The time since which the client has taken none of them.


class OpenConnection(Protocol):
    """The members of a connection that the limits need."""

    @property
    def wire(self) -> str: ...

    closed: bool
    partial_bytes: int  # The size of the received part of an incomplete request.

    @property
    def answers(self) -> PendingAnswers: ...

    def overdue(self, mono_ms: int) -> str: ...

    def close(self, reason: str, *, abort: bool = False) -> None: ...

    def broken(self, error: Exception, kind: str) -> None: ...

    def hold(self) -> None: ...

    def abort(self) -> None: ...


class Connections:
    """The open connections, with counters and sums, and the enforcement of the limits of all connections.

    The class has more than 15 fields because seven of them are counters that connections change.
    """

    def __init__(self, limits: LimitsOptions, clock: Clock) -> None:
        self.limits = limits
        self.count_max = limits.connections_max
        self.mono_ms = clock.mono_ms()  # The time of the last sweep or accept, which is exact enough for idle times.
        self.heard_mono_ms = self.mono_ms  # When a whole request came last, by the same clock.
        self.accepted_count = 0  # This counter and the next four are metrics.
        self.refused_count = 0
        self.overdue_count = 0
        self.received_bytes = 0
        self.sent_bytes = 0
        self.answer_bytes = 0  # Invariant: the sum of `pending_bytes`.
        self.request_bytes = 0  # Invariant: the sum of `partial_bytes`.
        self.refused_protocols = RepeatedLines()
        self._clock = clock
        self._open: dict[OpenConnection, None] = {}  # In the order in which they were opened.
        self._swept_mono_ms = self.mono_ms  # The time of the last sweep. An accept does not change it.
        self._round: list[OpenConnection] = []  # The connections that the sweeps of this round have not checked yet.

    def __len__(self) -> int:
        return len(self._open)

    def __iter__(self) -> Iterator[OpenConnection]:
        return iter(self._open)

    def admit(self, connection: OpenConnection, *, is_counted: bool = True) -> bool:
        """Add a new connection. Returns False at `limits.connections_max`; then the caller must close it.

        A TLS handshake is not counted as accepted, because the connection after it is.
        """
        if len(self._open) >= self.count_max:
            self.refused_count += 1
            log.warning("connection refused wire=%s limits.connections_max=%d", connection.wire, self.count_max)
            return False
        self.accepted_count += is_counted
        self._open[connection] = None
        self.mono_ms = self._clock.mono_ms()
        return True

    def forget(self, connection: OpenConnection) -> None:
        """Remove a closed connection, and subtract its bytes from all sums."""
        self._open.pop(connection, None)
        self.answer_bytes -= connection.answers.pending_bytes
        self.request_bytes -= connection.partial_bytes

    def answer_room_bytes(self) -> int:
        """Return how many bytes of answers may be added now. Even at 0 a read returns one batch."""
        return max(0, self.limits.answer_bytes_max - self.answer_bytes)

    # -- At the limits

    def close_largest_request(self) -> None:
        """Close the connection with the largest unfinished request."""
        largest = max((c for c in self._open if not c.closed), key=lambda c: c.partial_bytes, default=None)
        if largest is not None:
            limit = self.limits.request_bytes_max
            largest.close(
                f"{largest.partial_bytes} bytes of a request, above limits.request_bytes_max={limit} over all"
            )

    def close_slowest_reader(self) -> None:
        """Close the connection that has unsent answers and took none of them for the longest time."""
        slowest = min(
            (c for c in self._open if c.answers.pending_bytes and not c.closed),
            key=lambda c: (c.answers.progress_mono_ms, -c.answers.pending_bytes),
            default=None,
        )
        if slowest is not None:
            self.overdue_count += 1
            limit = self.limits.answer_bytes_max
            slowest.close(
                f"took none of {slowest.answers.pending_bytes} bytes of waiting requests and unsent answers, "
                f"above limits.answer_bytes_max={limit} over all",
                abort=True,
            )

    # -- Sweeps

    def next_deadline_ms(self) -> int | None:
        return self._swept_mono_ms + SWEEP_INTERVAL_MS if self._open else None

    def sweep(self, mono_ms: int) -> None:
        """Close connections that exceed a time limit, except right after the broker was stalled.

        Each call checks SWEEP_CONNECTIONS_MAX connections.
        """
        was_stalled = mono_ms - self._swept_mono_ms > STALL_MS
        self.mono_ms = self._swept_mono_ms = mono_ms
        if was_stalled:
            return
        if not self._round:
            self._round = list(self._open)
        batch, self._round = self._round[:SWEEP_CONNECTIONS_MAX], self._round[SWEEP_CONNECTIONS_MAX:]
        for connection in batch:
            try:
                self._sweep_one(connection, mono_ms)
            except Exception as error:  # noqa: BLE001 - the other connections are swept as well
                connection.broken(error, "sweep")

    def _sweep_one(self, connection: OpenConnection, mono_ms: int) -> None:
        reason = "" if connection.closed else connection.overdue(mono_ms)
        if reason:
            self.overdue_count += 1
            connection.close(reason, abort=True)
