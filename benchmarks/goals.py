"""The goals of figures: a multiple of the peer's figure in the same run, or a bound.

"At least the peer" means a median ratio of 0.95 or more: below that two runs of the same broker differ, too.
"""

from __future__ import annotations

from typing import NamedTuple

EQUAL = 0.95


class Goal(NamedTuple):
    """`times` is a multiple of the peer's figure, `bound` is absolute; if `is_more`, larger figures are better."""

    times: float | None = None
    bound: float | None = None
    is_more: bool = True

    def is_met(self, value: float, ratio: float | None) -> bool | None:
        """Return whether the goal is met; None if the peer has no figure."""
        if self.times is not None and ratio is not None:
            # "At least" and "at most the peer's" leave room for noise; a multiple has to be reached.
            slack = EQUAL if self.times == 1 else 1.0
            return ratio >= self.times * slack if self.is_more else ratio <= self.times / slack
        if self.bound is not None:
            return value >= self.bound if self.is_more else value < self.bound
        return None

    def __str__(self) -> str:
        sign = ">=" if self.is_more else "<="
        if self.times is not None:
            return f"{sign} {self.times:.3g} x peer"
        if self.bound is not None:
            return f"{'>=' if self.is_more else '<'} {self.bound:,.6g}"
        return ""


NONE = Goal()


def at_least(times: float) -> Goal:
    return Goal(times=times)


def at_most(times: float) -> Goal:
    return Goal(times=times, is_more=False)


def above(bound: float) -> Goal:
    return Goal(bound=bound)


def below(bound: float) -> Goal:
    return Goal(bound=bound, is_more=False)
