"""The axes of a plot of durations over time: which unit, which scale, from where to where."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from statistics import median
from typing import Final, NamedTuple

UNITS: Final = (("ms", 1), ("s", 1000), ("min", 60_000), ("h", 3_600_000), ("days", 86_400_000))
OF_UNIT: Final = 10  # A unit is taken from so many of it on: "9,000 ms", but "12 s".
SPREAD: Final = 100  # From so many times the median on, a linear scale would show the largest value only.
HEADROOM: Final = 1.05
SHORTEST: Final = timedelta(minutes=10)  # of the time axis


class DurationAxis(NamedTuple):
    """An axis of durations; limits are in the unit."""

    unit: str
    unit_ms: int
    is_logarithmic: bool  # But linear around 0, between -1 ms and 1 ms.
    low: float
    high: float


def duration_axis(values_ms: Sequence[int]) -> DurationAxis:
    """Choose an axis that shows all values and 0, of which some may be negative."""
    low_ms, high_ms = min(0, *values_ms, 0), max(1, *values_ms, 1)
    largest_ms = max(high_ms, -low_ms)
    unit, unit_ms = next((each for each in reversed(UNITS) if largest_ms >= OF_UNIT * each[1]), UNITS[0])
    sizes = [abs(value) for value in values_ms if value] or [1]
    is_logarithmic = largest_ms >= SPREAD * median(sizes)
    return DurationAxis(unit, unit_ms, is_logarithmic, HEADROOM * low_ms / unit_ms, HEADROOM * high_ms / unit_ms)


def time_limits(minutes: Sequence[datetime]) -> tuple[datetime, datetime]:
    """Give the limits of a time axis, at least SHORTEST apart: around a single minute there would be years."""
    first, last = min(minutes), max(minutes)
    padding = max((SHORTEST - (last - first)) / 2, (last - first) * (HEADROOM - 1))
    return first - padding, last + padding
