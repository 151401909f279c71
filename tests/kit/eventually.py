"""Waits for a state of another process, with a time limit; the error has the last state that was seen."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")
EVERY_S = 0.02


def eventually(what: str, look: Callable[[], T], is_right: Callable[[T], bool], within_s: float) -> T:
    """Call `look` until `is_right` accepts its result, and return the result."""
    until = time.monotonic() + within_s
    while True:
        seen = look()
        if is_right(seen):
            return seen
        assert time.monotonic() < until, f"{what}: not within {within_s} s; last seen: {seen!r}"
        time.sleep(EVERY_S)
