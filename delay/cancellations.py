"""The class Cancelled: the ids of timers that were cancelled lately, so that a repeated request gets the same answer.

A timer that is neither pending nor cancelled was delivered. So only cancelled timers take memory, about 150 bytes each.
The oldest ids are removed at `count_max`, and all ids after `keep_ms`.
"""

from collections.abc import Iterator
from enum import Enum
from itertools import islice
from struct import Struct
from typing import Final

from duolog.delay.rows import TimerId

_ROW: Final = Struct(">QQQ")  # The id (due time, address) of a timer, and when it was cancelled.
_ROWS_IN_SNAPSHOT: Final = 10_000  # In one part.


class TimerOutcome(Enum):
    """The state of a timer that a command named, which is durable before the command is answered."""

    CANCELLED = "cancelled"  # It will never be delivered.
    DELIVERED = "delivered"  # Its message is in its queue.
    NOT_FOUND = "not_found"  # The id was never given to a timer, or the topic is deleted.
    RESCHEDULED = "rescheduled"  # It is pending, due at the requested time.


class Cancelled:
    """The ids of cancelled timers, the oldest first."""

    def __init__(self, count_max: int, keep_ms: int) -> None:
        self._count_max = count_max
        self._keep_ms = keep_ms
        self._at_ms: dict[TimerId, int] = {}

    def __contains__(self, timer_id: TimerId) -> bool:
        return timer_id in self._at_ms

    def add(self, timer_id: TimerId, at_ms: int) -> None:
        cancelled = self._at_ms
        cancelled[timer_id] = at_ms
        while cancelled:
            oldest = next(iter(cancelled))
            if len(cancelled) <= self._count_max and cancelled[oldest] > at_ms - self._keep_ms:
                return
            del cancelled[oldest]

    def snapshot(self) -> Iterator[bytes]:
        """Return all rows of this moment in parts, for `restore`; they may be taken while timers are cancelled."""
        rows = (_ROW.pack(*timer_id, at_ms) for timer_id, at_ms in [*self._at_ms.items()])
        return iter(lambda: b"".join(islice(rows, _ROWS_IN_SNAPSHOT)), b"")

    def restore(self, rows: bytes) -> None:
        for due_ms, address, at_ms in _ROW.iter_unpack(rows):
            self.add((due_ms, address), at_ms)
