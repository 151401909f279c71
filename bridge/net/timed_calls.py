"""Calls that are due at a time: connections that are read from again, requests that wait for a quota, and refusals.

The callers bound the number of calls: a connection has one for its quota, one for its login, and one for each of its
unanswered requests that waits. Times are monotonic.
"""

from collections.abc import Callable
from functools import partial
from heapq import heappop, heappush
from itertools import count

from duolog.bridge.clock import Clock


class TimedCalls:
    """The calls by the times at which they are due; those of one time are made in the order in which they came."""

    def __init__(self, clock: Clock, touch: Callable[[], None]) -> None:
        """`touch` schedules the end of the turn, at which the ticker is set to the next deadline."""
        self._clock, self._touch = clock, touch
        self._calls: list[tuple[int, int, Callable[[], object]]] = []
        self._numbers = count()

    def call_at(self, mono_ms: int, call: Callable[[], object]) -> None:
        """Make a call at a time."""
        heappush(self._calls, (mono_ms, next(self._numbers), call))
        self._touch()

    def wait(self, wait_ms: int, done: Callable[[None], object]) -> None:
        """Call `done(None)` after a time, as those want it who wait for a callback."""
        self.call_at(self._clock.mono_ms() + wait_ms, partial(done, None))

    def next_deadline_mono_ms(self) -> int | None:
        return self._calls[0][0] if self._calls else None

    def run(self, mono_ms: int) -> None:
        """Make the calls that are due."""
        while self._calls and self._calls[0][0] <= mono_ms:
            heappop(self._calls)[2]()
