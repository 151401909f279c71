"""The class TagScan: finds entries of a queue by their tag hash, so that other frames need not be read.

    hash wanted   a
    rows          17 a    18 b    19 b    20-24    25 a    26 b         (offsets, tag hash)
    rows found    17 a                    20-24    25 a

The entry with the offsets 20 to 24 has another frame format, without a tag hash, so it may contain any tag and is
found, too. A TagScan serves one read. `next_offset` and `count` are valid after `rows` has returned a list.
"""

from collections.abc import Collection
from typing import Final

from duolog.store.index.queue_index import QueueIndex
from duolog.store.index.rows import Row

ROWS_MAX: Final = 4096  # Rows that one read scans, in under a millisecond.
FIRST_ROWS: Final = 64  # Rows in the first step; each later step doubles the number up to ROWS_AT_ONCE_MAX.
ROWS_AT_ONCE_MAX: Final = 512
UNSURE_ROWS_MAX: Final = 512  # Rows of other frame formats that one read returns, in addition to `max_rows`.
UNSURE_BYTES_MAX: Final = 4 << 20  # Frame bytes of these rows, in addition to `max_bytes`.


class TagScan:
    """Finds the entries with frame format `form` whose tag hash is in `tags`, and all entries with another format."""

    __slots__ = ("_form", "_tags", "count", "next_offset")

    def __init__(self, form: int, tags: Collection[int]) -> None:
        self._form, self._tags = form, tags
        self.count = 0  # The number of rows that were found.
        self.next_offset = 0  # The offset at which the next read must continue: all entries below it were scanned.

    def rows(
        self,
        index: QueueIndex,
        offset: int,
        max_rows: int,
        max_bytes: int,
        until_offset: int,
        *,
        block: bool = False,
    ) -> list[Row] | None:
        """Return the rows that are found from `offset` on, with the arguments of `QueueIndex.rows_from`.

        `max_rows` and `max_bytes` limit the rows with frame format `form` only. Returns [] if none of the scanned rows
        matches, and None if rows must be read from the disk and `block` is false.
        """
        number = index.find_offset(offset, block=block)
        if number is None:
            return None
        limits, found, end = _Limits(max_rows, max_bytes), list[Row](), offset
        first, step = number, FIRST_ROWS
        while first < number + ROWS_MAX:
            rows = index.rows(first, min(step, number + ROWS_MAX - first), block=block)
            if rows is None and first == number:
                return None
            if not rows:
                break
            first, step = first + len(rows), min(2 * step, ROWS_AT_ONCE_MAX)
            for row in self._candidates(rows):
                if row[0] + row[3] <= offset:
                    continue
                if row[0] >= until_offset:
                    break
                if limits.pass_with(row, is_sure=row[7] == self._form) and found:
                    return self._ended(found, row[0])
                found.append(row)
            end = rows[-1][0] + rows[-1][3]
            if end >= until_offset:
                return self._ended(found, until_offset)
        return self._ended(found, max(offset, end))

    def _candidates(self, rows: list[Row]) -> list[Row]:
        form, tags = self._form, self._tags
        return [row for row in rows if row[6] in tags or row[7] != form]

    def _ended(self, found: list[Row], next_offset: int) -> list[Row]:
        self.count, self.next_offset = len(found), next_offset
        return found


class _Limits:
    """The numbers of rows and bytes that a scan may still return."""

    __slots__ = ("_bytes", "_rows", "_unsure_bytes", "_unsure_rows")

    def __init__(self, max_rows: int, max_bytes: int) -> None:
        self._rows, self._bytes = max_rows, max_bytes
        self._unsure_rows, self._unsure_bytes = UNSURE_ROWS_MAX, UNSURE_BYTES_MAX

    def pass_with(self, row: Row, *, is_sure: bool) -> bool:
        """Count the row, and return whether it exceeds a limit. `is_sure`: its frame format has a tag hash."""
        if is_sure:
            self._rows -= 1
            self._bytes -= row[2]
            return self._rows < 0 or self._bytes < 0
        self._unsure_rows -= 1
        self._unsure_bytes -= row[2]
        return self._unsure_rows < 0 or self._unsure_bytes < 0
