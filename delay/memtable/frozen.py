"""The class Frozen: rows of the memtable that a flush writes to a sorted table, the immutable memtable of an LSM tree.

Until the table is current, the rows are found and deleted in memory. A row that is deleted meanwhile is in the table
nevertheless, so its key is stored in `deleted`, and its timer is deleted in the table.
"""

from collections import Counter, defaultdict
from collections.abc import Iterator

from duolog.delay.memtable.counts import (
    LOG_PART_BITS,
    lower,
    parts_of,
    topics_of,
)
from duolog.delay.memtable.row_arrays import RowsByKey
from duolog.delay.rows import ROW, Timer, TimerKey


class FrozenRows(RowsByKey):
    """The rows of one slice of a flush, in due order, with their counts."""

    __slots__ = ("bits", "last_ms", "parts", "start_ms", "topics")

    def __init__(self, rows: list[bytes]) -> None:
        super().__init__()
        self.extend(b"".join(rows))
        self.topics, self.parts = topics_of(rows), parts_of(rows)
        self.start_ms, self.last_ms = (int.from_bytes(row[:8], "big") for row in (rows[0], rows[-1]))
        self.bits = (self.start_ms ^ self.last_ms).bit_length()


class Frozen:
    """All rows of the flush that is under way."""

    def __init__(self) -> None:
        self.deleted: dict[TimerKey, None] = {}  # Keys of rows that were deleted since they were frozen.
        self.bytes = 0  # The size of the messages of all rows.
        self._arrays: list[FrozenRows] = []
        # The arrays by part of the log. There are hundreds of arrays, and most keys that are searched for are in none.
        self._by_part: defaultdict[int, list[FrozenRows]] = defaultdict(list)

    def __iter__(self) -> Iterator[FrozenRows]:
        return iter(self._arrays)

    def add(self, rows: list[bytes]) -> None:
        rows.sort()
        array = FrozenRows(rows)
        self._arrays.append(array)
        self.bytes += sum([row[3] for row in ROW.iter_unpack(array.rows)])
        for part in array.parts:
            self._by_part[part].append(array)

    def find(self, due_ms: int, address: int) -> tuple[FrozenRows, int] | None:
        for array in self._by_part.get(address >> LOG_PART_BITS, ()):
            if array.start_ms <= due_ms <= array.last_ms and (at := array.find(due_ms, address)) >= 0:
                return array, at
        return None

    def note_deleted(self, array: FrozenRows, timer: Timer) -> None:
        lower(array.topics, timer.topic, 1)
        lower(array.parts, timer.address >> LOG_PART_BITS, 1)
        self.deleted[timer.due_ms, timer.address] = None

    def clear(self) -> tuple[Counter[int], Counter[int]]:
        """Remove all rows, because they are in a table now; return their counts by topic and by part of the log."""
        topics: Counter[int] = Counter()
        parts: Counter[int] = Counter()
        for array in self._arrays:
            topics.update(array.topics)
            parts.update(array.parts)
        self._arrays, self.bytes = [], 0
        self._by_part.clear()
        self.deleted.clear()
        return topics, parts

    def unfreeze(self) -> bytes:
        """Remove and return some rows, because the flush has failed; empty if none are left."""
        self.deleted.clear()
        self.bytes = 0
        if not self._arrays:
            return b""
        array = self._arrays.pop()
        for part in array.parts:  # A part that is no longer a key has no row of the array.
            self._by_part[part].remove(array)
        return array.bytes_from_head() or self.unfreeze()
