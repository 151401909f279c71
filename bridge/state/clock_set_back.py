"""Correction of stored times after the wall clock was ahead and has been set back.

A pop checkpoint, half message or transaction that was stored while the clock was ahead waits for a time in the far
future of the correct clock. Each owner of such state has a sweep, a generator that corrects its table in slices. Other
work may run between the slices, because a sweep only moves times that no entry could have by the correct clock.

    set back ──> begin(sweeps) ──> run() for each slice ──> all sweeps are complete
                    ^──── set back again: all sweeps begin again with the new time
"""

from collections.abc import Iterable, Iterator
from itertools import chain
from typing import Final

from duolog.bridge.state.deleted_topics import run_slice

AT_ONCE_MS: Final = 0

# Yields the number of entries that it processed since the last yield: `deleted_topics.CHECKED_IN_SLICE` at most.
Sweep = Iterator[int]


class ClockSetBack:
    """Runs the sweeps; `next_deadline_mono_ms` is monotonic."""

    def __init__(self) -> None:
        self._slices: Iterator[int] | None = None

    def begin(self, sweeps: Iterable[Sweep]) -> None:
        """Start all sweeps; sweeps that are not complete are replaced."""
        self._slices = chain.from_iterable(sweeps)

    def next_deadline_mono_ms(self) -> int | None:
        """Return a time in the past while a sweep is not complete, else None."""
        return AT_ONCE_MS if self._slices is not None else None

    def run(self) -> None:
        """Run one slice."""
        if self._slices is not None and run_slice(self._slices):
            self._slices = None

    def run_all(self) -> None:
        """Run all remaining slices at once; only before clients are served."""
        while self._slices is not None:
            self.run()
