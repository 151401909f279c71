"""How many messages a second come in and go out: samples of the counters, ten seconds apart, for ten minutes; and how
many there were until this morning, and yesterday's: days are UTC's.
"""

from collections import deque
from collections.abc import Callable
from typing import Final, NamedTuple

INTERVAL_MS: Final = 10_000
DAY_MS: Final = 86_400_000
WINDOWS_MS: Final = (10_000, 60_000, 600_000)  # As RocketMQ's tools print them.


class Totals(NamedTuple):
    """Messages since the start."""

    written: int
    read: int


class Rates:
    """The samples. `totals` gives the counters of now; times are monotonic."""

    def __init__(self, totals: Callable[[], Totals]) -> None:
        self._totals = totals
        self._samples: deque[tuple[int, Totals]] = deque(maxlen=WINDOWS_MS[-1] // INTERVAL_MS + 1)
        self._day: int | None = None
        self.this_morning = self.yesterday_morning = Totals(0, 0)

    def next_deadline_ms(self) -> int:
        return self._samples[-1][0] + INTERVAL_MS if self._samples else 0

    def sample(self, mono_ms: int, now_ms: int) -> None:
        """Take a sample, if it is time."""
        if mono_ms >= self.next_deadline_ms():
            self._samples.append((mono_ms, self._totals()))
            self._begin_day(now_ms // DAY_MS)

    def _begin_day(self, day: int) -> None:
        if self._day is not None and day > self._day:
            self.yesterday_morning = self.this_morning if day == self._day + 1 else self._totals()
            self.this_morning = self._totals()
        self._day = day

    def per_second(self, mono_ms: int) -> tuple[list[float], list[float]]:
        """Give the rates written and read, over each of WINDOWS_MS, or since the first sample if that is shorter."""
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
