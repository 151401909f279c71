"""Stored times are corrected, in slices of the loop, after a wall clock that was ahead was set back.

A pop checkpoint, a half message or a transaction that was stored while the clock was ahead waits for a time that is far
in the future of the right clock. Each owner of such state has a sweep that corrects its whole table. A sweep may run
beside everything else: it only makes times earlier that no entry could have by the right clock.

    set back ──> begin(sweeps) ──> run, run, run: a slice each ──> all sweeps are through
                    ^── set back again: all of them from the beginning, by the new time
"""

from collections.abc import Iterable, Iterator
from itertools import chain
from typing import Final

from duolog.bridge.state.deleted_topics import LOOKED_AT_IN_SLICE

AT_ONCE_MS: Final = 0

Sweep = Iterator[int]  # Yields how many entries it has looked at, LOOKED_AT_IN_SLICE at most.


class ClockSetBack:
    """Runs the sweeps; `next_deadline_mono_ms` is monotonic."""

    def __init__(self) -> None:
        self._slices: Iterator[int] | None = None

    def begin(self, sweeps: Iterable[Sweep]) -> None:
        self._slices = chain.from_iterable(sweeps)

    def next_deadline_mono_ms(self) -> int | None:
        return AT_ONCE_MS if self._slices is not None else None

    def run(self) -> None:
        """Do a slice."""
        looked_at = 0
        for count in self._slices or ():
            looked_at += count
            if looked_at >= LOOKED_AT_IN_SLICE:
                return
        self._slices = None

    def run_all(self) -> None:
        """Do all that is left at once, before clients are served."""
        while self._slices is not None:
            self.run()
