"""The axes of the lateness plot contain every value, in a readable unit."""

from __future__ import annotations

from datetime import datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from duolog.spark.jobs.axis import (
    HEADROOM,
    SHORTEST,
    duration_axis,
    time_limits,
)

NOON = datetime(2026, 11, 21, 12)


@pytest.mark.parametrize(
    ("values_ms", "unit", "is_logarithmic"),
    [
        ([0, 0, 0], "ms", False),
        ([3, 9, 40], "ms", False),
        ([9_000, 9_900], "ms", False),
        ([9_000, 12_000], "s", False),
        ([-5, 3, 8], "ms", False),
        ([1, 2, 3, 2, 7_200_000], "min", True),  # One message waited for two hours; the others are seen, too.
        ([86_400_000 * 12] * 3, "days", False),
        ([36_000_000, 40_000_000], "h", False),
    ],
)
def test_unit_and_scale_follow_from_the_values(values_ms: list[int], unit: str, is_logarithmic: bool) -> None:
    axis = duration_axis(values_ms)
    assert (axis.unit, axis.is_logarithmic) == (unit, is_logarithmic)


@given(st.lists(st.integers(-(10**12), 10**12), min_size=1, max_size=20))
def test_every_value_and_zero_are_on_the_axis(values_ms: list[int]) -> None:
    axis = duration_axis(values_ms)
    assert axis.low <= 0 < axis.high
    assert all(axis.low <= value / axis.unit_ms <= axis.high for value in values_ms)
    reach = max(axis.high, -axis.low) * axis.unit_ms
    assert reach <= HEADROOM * max(1, *map(abs, values_ms), 1) * 1.001  # And no more than that.


def test_time_axis_is_ten_minutes_at_least_and_holds_all() -> None:
    assert time_limits([NOON]) == (NOON - SHORTEST / 2, NOON + SHORTEST / 2)
    low, high = time_limits([NOON, NOON + timedelta(hours=5)])
    assert low < NOON
    assert NOON + timedelta(hours=5) < high < NOON + timedelta(hours=6)
