"""The class Sweep: the search of the memtable for timers of deleted topics."""

from collections.abc import Callable
from itertools import islice

from duolog.delay.memtable.memtable import Memtable
from duolog.delay.rows import KEY, Timer, TimerKey


class Sweep:
    """The search of the rows that wait, a slice at a time. Ready rows are not searched: the delivery drops them."""

    def __init__(self, topic_exists: Callable[[int], bool]) -> None:
        self._topic_exists = topic_exists
        self._next: TimerKey | None = None  # The key at which the search continues; None: all rows were searched.

    @property
    def is_running(self) -> bool:
        return self._next is not None

    def begin(self) -> None:
        """Begin, perhaps again, at the first row."""
        self._next = (0, 0)

    def step(self, memtable: Memtable, rows_max: int, drop: Callable[[list[Timer]], None]) -> None:
        """Search `rows_max` rows, and drop the timers found. If `drop` raises, the next step finds them again."""
        assert self._next is not None, "no sweep is under way"
        timers = [*islice(memtable.waiting.timers(KEY.pack(*self._next)), rows_max)]
        found = [timer for timer in timers if not self._topic_exists(timer.topic)]
        if found:
            drop(found)
        self._next = (timers[-1].due_ms, timers[-1].address + 1) if len(timers) == rows_max else None
