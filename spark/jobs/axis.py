"""Chooses the axes of a plot of durations over time: unit, scale and limits."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from statistics import median
from typing import Final, NamedTuple

UNITS: Final = (("ms", 1), ("s", 1000), ("min", 60_000), ("h", 3_600_000), ("days", 86_400_000))
OF_UNIT: Final = 10  # A unit is used if the largest value is at least so many units: "9,000 ms", but "12 s".
SPREAD: Final = 100  # The scale is logarithmic if the largest value is at least so many times the median.
HEADROOM: Final = 1.05
SHORTEST: Final = timedelta(minutes=10)  # The shortest length of the time axis.


class DurationAxis(NamedTuple):
    """An axis of durations."""

    unit: str
    unit_ms: int  # The length of the unit in milliseconds.
    is_logarithmic: bool  # Between -1 ms and 1 ms, the scale is linear all the same.
    low: float  # The lower limit, in units.
    high: float  # The upper limit, in units.


def duration_axis(values_ms: Sequence[int]) -> DurationAxis:
    """Return an axis that contains 0 and all values, which may be negative."""
    low_ms, high_ms = min(0, *values_ms, 0), max(1, *values_ms, 1)
    largest_ms = max(high_ms, -low_ms)
    unit, unit_ms = next((each for each in reversed(UNITS) if largest_ms >= OF_UNIT * each[1]), UNITS[0])
    sizes = [abs(value) for value in values_ms if value] or [1]
    is_logarithmic = largest_ms >= SPREAD * median(sizes)
    return DurationAxis(unit, unit_ms, is_logarithmic, HEADROOM * low_ms / unit_ms, HEADROOM * high_ms / unit_ms)


def time_limits(minutes: Sequence[datetime]) -> tuple[datetime, datetime]:
    """Return the limits of a time axis, which are at least SHORTEST apart: otherwise matplotlib would show years."""
    first, last = min(minutes), max(minutes)
    padding = max((SHORTEST - (last - first)) / 2, (last - first) * (HEADROOM - 1))
    return first - padding, last + padding
