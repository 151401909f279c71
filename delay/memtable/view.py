"""The class MemtableView: the rows of the memtable at one moment, for lists and counts by topic and time.

The view shares blocks of rows with the memtable, and no block changes. So a worker reads it while the memtable changes.
"""

from collections.abc import Iterator, Sequence
from heapq import merge

from duolog.delay.memtable.sorted_rows import SortedRows
from duolog.delay.rows import KEY, Timer, TimerKey


class MemtableView:
    """A topic is given by its number; None means all topics."""

    def __init__(self, arrays: Sequence[SortedRows]) -> None:
        self._arrays = arrays

    def timers(self, topic: int | None, start: TimerKey, until_ms: int) -> Iterator[Timer]:
        """Yield the timers in due order from the key `start` on that are due before `until_ms`."""
        first = KEY.pack(*start)
        for timer in merge(*[rows.timers(first, topic) for rows in self._arrays]):
            if timer.due_ms >= until_ms:
                return
            yield timer

    def histogram(self, topic: int | None, edges_ms: Sequence[int]) -> list[int]:
        """Return the number of timers between each two neighbours of these times, which must be ascending."""
        counts = [0] * (len(edges_ms) - 1)
        for rows in self._arrays:
            rows.add_counts(topic, edges_ms, counts)
        return counts
