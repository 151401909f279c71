"""The format of index rows, the rows in memory (RowTail), and searches among rows.

One row has 56 bytes, big-endian:

    base_offset u64     offset of the entry's first record
    position u64        position of the entry in the log
    size u32            size of the frame in bytes
    count u32           number of records in the entry, at least 1
    latest_ms i64       greatest record timestamp of this row and all earlier rows
    stored_ms i64       store time
    tags i32            tag hash
    form u8 | 3 zeros   frame format
    bytes_before u64    frame bytes of all earlier rows

base_offset, position, latest_ms and bytes_before never decrease from row to row, so a value is found by bisection.
stored_ms decreases only at a step back of the clock (`store/index/store_times.py`) and is searched between the steps.
"""

from collections.abc import Callable
from struct import Struct
from typing import Final, NamedTuple

from duolog.store.entry import Buffer
from duolog.store.index.index_files import ROW_SIZE

# (base_offset, position, size, count, latest_ms, stored_ms, tags, form, bytes_before). It is a plain tuple, which
# callers unpack into these names, because every read makes one for each entry and a named tuple takes three times as
# long.
Row = tuple[int, int, int, int, int, int, int, int, int]

ROW: Final = Struct(">QQIIqqiB3xQ")
assert ROW.size == ROW_SIZE
BEFORE_ALL_MS: Final = -1 << 63  # The value of `QueueIndex.latest_ms` if the index has no rows.


class Column(NamedTuple):
    """A field whose values never decrease from row to row, so that they can be searched."""

    at: int  # The byte of the field in a row.
    form: Struct

    def of(self, rows: Buffer, number: int) -> int:
        value: int = self.form.unpack_from(rows, number * ROW_SIZE + self.at)[0]
        return value


BASE_OFFSET: Final = Column(0, Struct(">Q"))
POSITION: Final = Column(8, Struct(">Q"))
LATEST_MS: Final = Column(24, Struct(">q"))
STORED_MS: Final = Column(32, Struct(">q"))
BYTES_BEFORE: Final = Column(48, Struct(">Q"))


class RowTail(bytearray):
    """The encoded rows in memory, from row number `first_row` on.

    Rows are only appended to a RowTail; to drop rows, QueueIndex replaces it by a new one. A reader thread that holds a
    reference to a RowTail therefore sees rows that belong to its `first_row`.
    """

    __slots__ = ("first_row",)
    first_row: int

    def __init__(self, first_row: int, rows: Buffer = b"") -> None:
        super().__init__(rows)
        self.first_row = first_row

    def slice(self, row: int, until: int) -> bytearray:
        """Return the bytes of the rows from `row` up to, but not including, `until`, as far as they are in memory."""
        first_row = self.first_row
        return self[max(0, row - first_row) * ROW_SIZE : max(0, until - first_row) * ROW_SIZE]

    def row_number(self, offset: int, end_offset: int) -> int | None:
        """Return the number of the row whose entry contains `offset`, by one interpolation; None if that fails.

        `end_offset` is the offset after the last row. The interpolation finds the row if all entries have the same
        number of records, as in most queues.
        """
        if not self:
            return None
        first_offset = BASE_OFFSET.of(self, 0)
        if not first_offset <= offset < end_offset:
            return None
        number = (offset - first_offset) * (len(self) // ROW_SIZE) // (end_offset - first_offset)
        base_offset, _, _, count, _, _, _, _, _ = ROW.unpack_from(self, number * ROW_SIZE)
        return self.first_row + number if base_offset <= offset < base_offset + count else None

    def first_at_least(self, column: Column, value: int, end_offset: int) -> int:
        """Return the number of the first row whose `column` is at least `value`.

        The value of the first row in memory must be below `value`.
        """
        count, guess = len(self) // ROW_SIZE, 0
        unpack_from, at = column.form.unpack_from, column.at
        if column is BASE_OFFSET:
            first_offset = column.of(self, 0)
            guess = (value - first_offset) * count // (end_offset - first_offset)
        found = search_rows(lambda row: unpack_from(self, row * ROW_SIZE + at)[0], value, 0, count, guess)
        return self.first_row + found


def search_rows(key: Callable[[int], int], value: int, low: int, high: int, guess: int) -> int:
    """Return the first row in low + 1 .. high with key(row) >= value, given that key(low) < value <= key(high).

    `key` is not called for `low` and `high`. The search begins at row `guess` and moves on by 1 row, 2, 4 and so on
    (an exponential search), then bisects. A good guess takes two calls of `key`; a bad guess takes a few calls more
    than a bisection, because the steps leave the range after log2(high - low) calls.
    """
    step = 1
    while high - low > 1:
        if not low < guess < high:
            guess = (low + high) // 2
        if key(guess) < value:
            low = guess
            guess += step
        else:
            high = guess
            guess -= step
        step *= 2
    return high


def within(rows: list[Row], max_bytes: int, until_offset: int) -> list[Row]:
    """Return the first rows that are within both limits. The first row is returned even if it exceeds `max_bytes`."""
    if is_within(rows, max_bytes, until_offset):
        return rows
    bytes_until = rows[0][8] + max_bytes
    for number, (base_offset, _, size, count, _, _, _, _, bytes_before) in enumerate(rows):
        if base_offset + count > until_offset or (bytes_before + size > bytes_until and number):
            return rows[:number]
    return rows


def is_within(rows: list[Row], max_bytes: int, until_offset: int) -> bool:
    """Return whether all rows are within both limits."""
    last = rows[-1]
    return last[0] + last[3] <= until_offset and last[8] + last[2] - rows[0][8] <= max_bytes
