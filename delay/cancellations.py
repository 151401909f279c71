"""Which timers were cancelled: remembered for a time, so that who asks again hears the same.

A timer that is neither pending nor cancelled was delivered: so only cancels take memory, each about 150 bytes. The
oldest go at the limit, and after the time that they are kept.
"""

from collections.abc import Iterable
from enum import Enum


class Verdict(Enum):
    """What has become of a timer, durable before anybody hears it."""

    CANCELLED = "cancelled"  # it will never be delivered
    DELIVERED = "delivered"  # it lies in its queue
    NOT_FOUND = "not_found"  # the id is none that was ever given, or its topic is gone
    RESCHEDULED = "rescheduled"  # it is pending, due at the time that was asked for


class Cancelled:
    """The cancelled timers, the oldest first."""

    def __init__(self, count_max: int, keep_ms: int) -> None:
        self._count_max = count_max
        self._keep_ms = keep_ms
        self._at_ms: dict[tuple[int, int], int] = {}  # by id: (due, address)

    def __len__(self) -> int:
        return len(self._at_ms)

    def __contains__(self, timer_id: tuple[int, int]) -> bool:
        return timer_id in self._at_ms

    def add(self, timer_id: tuple[int, int], at_ms: int) -> None:
        cancelled = self._at_ms
        cancelled[timer_id] = at_ms
        while cancelled:
            oldest = next(iter(cancelled))
            if len(cancelled) <= self._count_max and cancelled[oldest] > at_ms - self._keep_ms:
                return
            del cancelled[oldest]

    def all(self) -> Iterable[tuple[tuple[int, int], int]]:
        return self._at_ms.items()
