"""The class Histogram: counts values by buckets, as Prometheus defines them."""

from bisect import bisect_left
from collections.abc import Sequence
from typing import Final

LATENESS_BOUNDS_S: Final = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 5.0, 60.0, 3600.0)
# Those of BrokerMetricsManager.java: from 5 s to a day.
FINISH_BOUNDS_S: Final = (5.0, 60.0, 600.0, 3_600.0, 43_200.0, 86_400.0)
# Those of RemotingMetricsManager.java.
RPC_BOUNDS_MS: Final = (1.0, 3.0, 5.0, 7.0, 10.0, 100.0, 1_000.0, 2_000.0, 3_000.0)
FSYNC_BOUNDS_S: Final = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 5.0)


class Histogram:
    """The values since the start. `bounds` increase; a value that equals a bound counts as up to it."""

    def __init__(self, bounds: Sequence[float]) -> None:
        self.total = 0.0  # The sum of all values.
        self._bounds, self._first = bounds, bounds[0]
        self._counts = [0] * (len(bounds) + 1)  # Values up to each bound and above the one before; values above all.

    def add(self, value: float) -> None:
        """Count one value. Most values are small, so the first bound is compared before all are bisected."""
        self._counts[0 if value <= self._first else bisect_left(self._bounds, value)] += 1
        self.total += value

    def add_all(self, values: Sequence[float]) -> None:
        """Count these values. Values that lie between the same bounds, as most do, are counted together."""
        if not values:
            return
        self.total += sum(values)
        lowest, highest = bisect_left(self._bounds, min(values)), bisect_left(self._bounds, max(values))
        if lowest == highest:
            self._counts[lowest] += len(values)
            return
        for value in values:
            self._counts[bisect_left(self._bounds, value)] += 1

    def buckets(self) -> list[tuple[str, int]]:
        """Return the histogram for Prometheus: each upper bound with the number of values up to it."""
        found, below = [], 0
        for bound, count in zip((*map(str, self._bounds), "+Inf"), self._counts, strict=True):
            below += count
            found.append((bound, below))
        return found
