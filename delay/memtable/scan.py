"""Reads over the whole memtable: lists and counts by topic and time, snapshots, and the search for deleted topics.

The rows of a window are in the order of the log. So `prepare` indexes the windows that a list or a count reads
(`row_index.py`), a slice at a time. Ready rows are stored by topic and in due order. `due` and `histogram` must be
called in the loop turn in which `prepare` has returned False.
"""

from collections.abc import Callable, Iterator, Sequence
from heapq import merge
from itertools import chain
from typing import Final, NamedTuple

from duolog.delay.memtable.frozen import FrozenRows
from duolog.delay.memtable.memtable import Memtable
from duolog.delay.memtable.row_index import RowIndex
from duolog.delay.memtable.row_snapshot import RowSnapshot
from duolog.delay.memtable.windows import Window, start_of
from duolog.delay.rows import Timer, TimerKey
from duolog.delay.wheel import NEVER_MS

ROWS_IN_PART: Final = 1 << 13  # Rows in one part of a snapshot, which has 256 KiB.


class SweepCursor(NamedTuple):
    """The place where a sweep continues: an address in the window that begins at `start_ms`."""

    start_ms: int
    address: int


FROM_THE_LATEST: Final = SweepCursor(NEVER_MS, 0)


def prepare(memtable: Memtable, by_topic: bool, start_ms: int, until_ms: int, rows_max: int) -> bool:
    """Index rows for `due` or `histogram` in this span of time; about `rows_max` rows are examined.

    False: all rows are indexed, until the loop turns. True: call it again in the next turn.
    """
    while memtable.windows.is_moving and rows_max > 0:
        # The rows of a window that is being moved would be indexed again in each slice, so they are moved first.
        rows_max -= memtable.windows.move_some(rows_max)
    for array in _meeting(memtable, start_ms, until_ms):
        if rows_max <= 0:
            return True
        rows_max -= _index_of(array, by_topic).add_new(rows_max)
    return rows_max <= 0


def due(memtable: Memtable, topic: int | None, start: TimerKey, until_ms: int) -> Iterator[Timer]:
    """Yield the timers of a topic, or of all, in due order from the key `start` on.

    `prepare` must have returned False, and the Memtable must not change during the iteration.
    """
    by_topic = topic is not None
    found = [array.timers_from(start, until_ms) for _, array in memtable.ready_arrays(topic)]
    found += [_index_of(frozen, by_topic).timers(topic, start, until_ms) for frozen in memtable.frozen]
    windows = [window for window in memtable.windows if _meets(window, start[0], until_ms)]
    if memtable.windows.is_set_back:
        found += [_index_of(window, by_topic).timers(topic, start, until_ms) for window in windows]
        return merge(*found)
    windows.sort(key=start_of)
    in_windows = (_index_of(window, by_topic).timers(topic, start, until_ms) for window in windows)
    return merge(chain.from_iterable(in_windows), *found)


def histogram(memtable: Memtable, topic: int | None, edges_ms: Sequence[int]) -> list[int]:
    """Return the number of timers between each two neighbours of these times. `prepare` must have returned False."""
    counts = [0] * (len(edges_ms) - 1)
    for number, ready in memtable.ready_arrays(topic):
        ready.count_due(number, edges_ms, counts)
    for array in _meeting(memtable, edges_ms[0], edges_ms[-1]):
        _index_of(array, topic is not None).count(topic, edges_ms, counts)
    return counts


def _meeting(memtable: Memtable, start_ms: int, until_ms: int) -> list[Window | FrozenRows]:
    """Return the windows and frozen rows that may have timers due in this span of time."""
    arrays: list[Window | FrozenRows] = [*memtable.windows, *memtable.frozen]
    return [array for array in arrays if _meets(array, start_ms, until_ms)]


def _meets(array: Window | FrozenRows, start_ms: int, until_ms: int) -> bool:
    return array.start_ms < until_ms and array.start_ms + (1 << array.bits) > start_ms


def _index_of(array: Window | FrozenRows, by_topic: bool) -> RowIndex:
    for index in array.indexes:
        if index.by_topic == by_topic:
            return index
    index = RowIndex(array, array.start_ms, array.bits, by_topic=by_topic)
    array.indexes += (index,)
    return index


class Sweep:
    """The search of the windows for timers of deleted topics, from the latest window to the earliest.

    Rows that are ready, or become ready meanwhile, are not searched, because the delivery drops them.
    """

    def __init__(self) -> None:
        self._topics: set[int] = set()
        self._cursor: SweepCursor | None = None  # None: all windows were searched.

    @property
    def is_running(self) -> bool:
        return self._cursor is not None

    def begin(self, memtable: Memtable, topic: int) -> None:
        """Add a topic to the search if the memtable has timers of it. The search begins again at the latest window."""
        if memtable.counts.by_topic.get(topic):
            self._topics.add(topic)
            self._cursor = FROM_THE_LATEST

    def restart(self) -> None:
        """Let a search that is under way begin again, because the clock was set back."""
        if self._cursor is not None:
            self._cursor = FROM_THE_LATEST

    def step(self, memtable: Memtable, rows_max: int, drop: Callable[[list[Timer]], None]) -> None:
        """Search about `rows_max` rows, and drop the timers found. If `drop` raises, the next step finds them again."""
        assert self._cursor is not None, "no sweep is under way"
        found, cursor = self._search(memtable, self._cursor, rows_max)
        if found:
            drop(found)
        self._cursor = cursor
        if cursor is None:
            self._topics.clear()

    def _search(self, memtable: Memtable, cursor: SweepCursor, rows_max: int) -> tuple[list[Timer], SweepCursor | None]:
        found: list[Timer] = []
        for window in memtable.windows.from_the_latest(cursor.start_ms):
            if rows_max <= 0:
                return found, SweepCursor(window.start_ms, 0)
            timers = window.some_from(cursor.address if window.start_ms == cursor.start_ms else 0, rows_max)
            found += [timer for timer in timers if timer.topic in self._topics]
            rows_max -= len(timers)
            if rows_max <= 0:
                return found, SweepCursor(window.start_ms, timers[-1].address + 1)
        return found, None


class MemtableSnapshot:
    """All rows at one moment, in parts, for `Memtable.restore`. The Memtable may change while they are read."""

    def __init__(self, memtable: Memtable) -> None:
        self._arrays = [RowSnapshot(array) for array in memtable.arrays()]

    def parts(self) -> Iterator[bytes]:
        return chain.from_iterable(rows.parts(ROWS_IN_PART) for rows in self._arrays)

    def close(self) -> None:
        """End the snapshot, so that rows are no longer copied before they change."""
        for rows in self._arrays:
            rows.close()
