"""The class RowArray and its subclasses: arrays of rows in one order, by address or by key, searched by bisection."""

from bisect import bisect_right
from collections.abc import Container, Iterator, Sequence
from struct import Struct
from typing import TYPE_CHECKING, Final

from duolog.delay.memtable.row_snapshot import RowSnapshot
from duolog.delay.rows import (
    KEY,
    KEY_SIZE,
    NO_QUEUE_KEY,
    QUEUE_KEY_AT,
    QUEUE_KEY_END,
    ROW,
    ROW_SIZE,
    Timer,
    rows_of,
)
from duolog.store.entry import new_tuple

if TYPE_CHECKING:
    from duolog.delay.memtable.row_index import RowIndex

RUNS_MAX: Final = 256  # Sorted runs of one array. At this number runs are merged although no search needs it.
REWRITE_MIN: Final = 64  # An array with more deleted rows may be rewritten without them.
_U64: Final = Struct(">Q")


class RowArray:
    """Rows in one order: by address (`RowsByAddress`) or by due time and address (`RowsByKey`).

    Rows mostly come in order; where a row does not, a new sorted *run* begins. A search merges the last runs until each
    run is twice as long as the run after it. So a search bisects a few runs, and each row is merged a few times. A read
    in order merges all runs.

    The class has more than 20 methods, because rows, runs, indexes and the snapshot change together.
    """

    __slots__ = ("_last", "_starts", "deleted_count", "head", "indexes", "reading", "rows")

    _from = 0  # Rows are sorted by their bytes [_from, _until).
    _until = 16

    def __init__(self) -> None:
        self.rows = bytearray()
        self.head = 0  # Rows before this byte were removed.
        self.deleted_count = 0  # Deleted rows behind `head`.
        self._starts: list[int] = []  # The bytes at which runs begin, except the first run.
        self.indexes: tuple[RowIndex, ...] = ()  # Made by the first list or count that reads these rows.
        self._last = b""
        self.reading: RowSnapshot | None = None  # The snapshot that reads these rows.

    def __len__(self) -> int:
        return (len(self.rows) - self.head) // ROW_SIZE - self.deleted_count

    @property
    def has_rows(self) -> bool:
        """Whether there is any row, deleted or not."""
        return self.head < len(self.rows)

    @property
    def is_sorted(self) -> bool:
        return not self._starts

    def extend(self, rows: bytes) -> None:
        """Add rows, which must be sorted in this array's order."""
        start, until = self._from, self._until
        if rows[start:until] <= self._last:
            if len(self._starts) == RUNS_MAX:
                self._merge()
            self._starts.append(len(self.rows))
        last = len(rows) - ROW_SIZE
        self._last = rows[last + start : last + until]
        self.rows += rows

    def find(self, due_ms: int, address: int) -> int:
        """Return the byte at which the row of this timer begins; -1 if there is none or the row is deleted."""
        key = KEY.pack(due_ms, address)
        wanted, rows = key[self._from :], self.rows
        self._merge()
        high = len(rows) // ROW_SIZE
        for start in (*reversed(self._starts), self.head):
            low = start // ROW_SIZE
            at = self._bisect(wanted, low, high) * ROW_SIZE
            if rows[at : at + KEY_SIZE] == key and rows[at + QUEUE_KEY_AT : at + QUEUE_KEY_END] != NO_QUEUE_KEY:
                return at
            high = low
        return -1

    def _first_at(self, wanted: bytes) -> int:
        """Return the number of the first row whose sorted bytes are `wanted` or greater."""
        self.sort()
        return self._bisect(wanted, self.head // ROW_SIZE, len(self.rows) // ROW_SIZE)

    def _bisect(self, wanted: bytes, low: int, high: int) -> int:
        """Return the same for one run, which has the rows with numbers in [low, high)."""
        rows, start, until = self.rows, self._from, self._until
        while low < high:
            middle = (low + high) // 2
            at = middle * ROW_SIZE
            if rows[at + start : at + until] < wanted:
                low = middle + 1
            else:
                high = middle
        return low

    def at(self, at: int) -> Timer:
        return new_tuple(Timer, ROW.unpack_from(self.rows, at))

    def delete(self, at: int) -> None:
        """Delete the row that begins at byte `at`, by setting its queue key to 0."""
        if self.reading is not None:
            self.reading.keep_row(at)
        for index in self.indexes:
            index.remove(at)
        self.rows[at + QUEUE_KEY_AT : at + QUEUE_KEY_END] = NO_QUEUE_KEY
        self.deleted_count += 1
        if self.deleted_count > REWRITE_MIN and self.deleted_count * ROW_SIZE > (len(self.rows) - self.head) // 2:
            self._rewrite()

    def _rewrite(self) -> None:
        self._replace_rows(self.live())

    def _replace_rows(self, rows: list[bytes]) -> None:
        """Replace all rows by these, which are not deleted and are in the order that they had in this array."""
        if self.reading is not None:
            self.reading.keep_all()
        if self._starts:
            rows = sorted(rows, key=self._order)
            self._starts = []
        self.rows = bytearray(b"".join(rows))
        self._last = bytes(self.rows[-ROW_SIZE:][self._from : self._until])
        self.head = self.deleted_count = 0
        self.indexes = ()

    def _order(self, row: bytes) -> bytes:
        return row[self._from : self._until]

    def _merge(self) -> None:
        """Merge the last runs until each run is twice as long as the run after it."""
        starts, end, count = self._starts, len(self.rows), len(self._starts)
        while starts and 2 * (end - starts[-1]) > starts[-1] - (starts[-2] if len(starts) > 1 else self.head):
            starts.pop()
        if len(starts) == count:
            return
        at = starts[-1] if starts else self.head
        if self.reading is not None:
            self.reading.keep_from(at)
        for index in self.indexes:
            index.cut(at)
        rows = sorted(self._live_from(at), key=self._order)
        self.deleted_count -= (end - at) // ROW_SIZE - len(rows)
        self.rows[at:] = b"".join(rows)
        if starts and not rows:
            starts.pop()
        self._last = self._order(bytes(self.rows[-ROW_SIZE:]))

    def take_out(self, keys: Container[bytes]) -> list[bytes]:
        """Remove the rows whose keys are among these, and return them."""
        found: list[bytes] = []
        kept: list[bytes] = []
        for row in self.live():
            (found if row[:KEY_SIZE] in keys else kept).append(row)
        if found:
            self._replace_rows(kept)
        return found

    def sort(self) -> None:
        """Merge all runs."""
        if self._starts:
            self._replace_rows(self.live())

    def live(self) -> list[bytes]:
        """Return the rows that are not deleted."""
        return self._live_from(self.head)

    def _live_from(self, at: int) -> list[bytes]:
        rows = rows_of(bytes(memoryview(self.rows)[at:]))
        return [row for row in rows if row[QUEUE_KEY_AT:QUEUE_KEY_END] != NO_QUEUE_KEY] if self.deleted_count else rows

    def bytes_from_head(self) -> bytes:
        """Return the rows that are not deleted, joined, in their present order."""
        return b"".join(self.live()) if self.deleted_count else bytes(memoryview(self.rows)[self.head :])

    def drop_head(self, until: int) -> None:
        """Remove the rows before this byte; the caller subtracts deleted ones among them from `deleted_count`."""
        self.head = until
        self.indexes = ()
        # While a snapshot reads the rows, they stay; a later call removes them.
        if self.head > len(self.rows) // 2 and self.reading is None:
            del self.rows[: self.head]
            self.head = 0

    def drop_first(self, keys: bytes) -> bool:
        """Remove the first rows if their keys are these, else none. No row may be deleted."""
        self.sort()
        end = self.head + len(keys) // KEY_SIZE * ROW_SIZE
        rows = bytes(memoryview(self.rows)[self.head : end])
        # Words of 8 bytes: a row has four of them, a key two.
        found, wanted = memoryview(rows).cast("Q"), memoryview(keys).cast("Q")
        if found[::4] != wanted[::2] or found[1::4] != wanted[1::2]:
            return False
        self.drop_head(end)
        return True

    def take_tail(self, rows_max: int) -> bytes:
        """Remove and return the last `rows_max` rows, in any order. Some of them may be deleted rows."""
        at = max(self.head, len(self.rows) - rows_max * ROW_SIZE)
        if self.reading is not None:
            self.reading.keep_from(at)
        taken = bytes(memoryview(self.rows)[at:])
        for index in self.indexes:
            index.cut(at)
        del self.rows[at:]
        while self._starts and self._starts[-1] >= at:
            self._starts.pop()
        self._last = self._order(bytes(self.rows[-ROW_SIZE:])) if at > self.head else b""
        if self.deleted_count:
            self.deleted_count -= sum(1 for row in ROW.iter_unpack(taken) if not row[2])
        return taken


class RowsByAddress(RowArray):
    __slots__ = ()
    _from = 8

    def some_from(self, address: int, count_max: int) -> list[Timer]:
        """Return up to `count_max` rows from an address on. A deleted row has the key 0."""
        low = self._first_at(_U64.pack(address)) * ROW_SIZE
        rows = memoryview(self.rows)[low : low + count_max * ROW_SIZE]
        return [new_tuple(Timer, row) for row in ROW.iter_unpack(rows)]


class RowsByKey(RowArray):
    __slots__ = ()

    def timers(self) -> Iterator[Timer]:
        """Yield the timers in order."""
        self.sort()
        for row in ROW.iter_unpack(memoryview(self.rows)[self.head :]):
            if row[2]:
                yield new_tuple(Timer, row)

    def last_due_ms(self) -> int:
        """Return the due time of the last row, deleted or not; -1 if there are no rows."""
        self.sort()
        return int.from_bytes(self.rows[-ROW_SIZE:][:8], "big") if self.has_rows else -1

    def take_later(self, due_ms: int, rows_max: int) -> bytes:
        """Remove and return the last `rows_max` rows, of those that are due at `due_ms` or later."""
        at = self._first_at(_U64.pack(due_ms))
        return self.take_tail(min(rows_max, len(self.rows) // ROW_SIZE - at))

    def timers_from(self, key: tuple[int, int], until_ms: int) -> Iterator[Timer]:
        """Yield the timers from `key` on that are due before `until_ms`."""
        for at in range(self._first_at(KEY.pack(*key)) * ROW_SIZE, len(self.rows), ROW_SIZE):
            timer = self.at(at)
            if timer.due_ms >= until_ms:
                return
            if timer.key:
                yield timer

    def count_due(self, topic: int, edges_ms: Sequence[int], counts: list[int]) -> None:
        """Add to `counts` the number of rows that are due between each two neighbours of these times.

        All rows must belong to this topic.
        """
        self.sort()
        rows, at = self.rows, self._first_at(_U64.pack(edges_ms[0])) * ROW_SIZE
        # A byte of the queue key in which no live row has 0.
        byte_at = QUEUE_KEY_AT + next(number for number, byte in enumerate(topic.to_bytes(6, "big")) if byte)
        while at < len(rows):
            bin = bisect_right(edges_ms, int.from_bytes(rows[at : at + 8], "big")) - 1
            if bin == len(counts):
                return
            end = self._first_at(_U64.pack(edges_ms[bin + 1])) * ROW_SIZE
            deleted = rows[at + byte_at : end : ROW_SIZE].count(0)
            counts[bin] += (end - at) // ROW_SIZE - deleted
            at = end
