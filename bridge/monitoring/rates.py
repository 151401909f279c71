"""Message rates for RocketMQ's tools, from samples of the counters every ten seconds, and totals of each UTC day."""

from collections import deque
from collections.abc import Callable
from typing import Final, NamedTuple

INTERVAL_MS: Final = 10_000
DAY_MS: Final = 86_400_000
WINDOWS_MS: Final = (10_000, 60_000, 600_000)  # The windows that RocketMQ's tools print.


class Totals(NamedTuple):
    """Numbers of messages since the start."""

    written: int
    read: int


class Rates:
    """The samples of ten minutes. `totals` returns the current counters; times are monotonic."""

    def __init__(self, totals: Callable[[], Totals]) -> None:
        self._totals = totals
        self._samples: deque[tuple[int, Totals]] = deque(maxlen=WINDOWS_MS[-1] // INTERVAL_MS + 1)
        self._day: int | None = None
        self.this_morning = self.yesterday_morning = Totals(0, 0)

    def next_deadline_ms(self) -> int:
        """Return the monotonic time of the next sample."""
        return self._samples[-1][0] + INTERVAL_MS if self._samples else 0

    def sample(self, mono_ms: int, now_ms: int) -> None:
        """Take a sample if one is due."""
        if mono_ms >= self.next_deadline_ms():
            self._samples.append((mono_ms, self._totals()))
            self._begin_day(now_ms // DAY_MS)

    def _begin_day(self, day: int) -> None:
        if self._day is not None and day > self._day:
            self.yesterday_morning = self.this_morning if day == self._day + 1 else self._totals()
            self.this_morning = self._totals()
        self._day = day

    def per_second(self, mono_ms: int) -> tuple[list[float], list[float]]:
        """Return the rates of writing and reading in each of WINDOWS_MS, or since the first sample if that is later."""
        now = self._totals()
        written, read = [], []
        if not self._samples:
            return [0.0] * len(WINDOWS_MS), [0.0] * len(WINDOWS_MS)
        for window_ms in WINDOWS_MS:
            since_ms, then = next(
                (sample for sample in reversed(self._samples) if mono_ms - sample[0] >= window_ms), self._samples[0]
            )
            seconds = max(mono_ms - since_ms, 1) / 1000
            written.append((now.written - then.written) / seconds)
            read.append((now.read - then.read) / seconds)
        return written, read
