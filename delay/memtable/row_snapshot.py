"""The class RowSnapshot: reads the rows that an array had at one moment, in parts, while the array changes."""

from collections.abc import Iterator
from typing import Final, Protocol

from duolog.delay.rows import (
    NO_QUEUE_KEY,
    QUEUE_KEY_AT,
    QUEUE_KEY_END,
    ROW_SIZE,
    rows_of,
)

_STRETCH_SHIFT: Final = 16  # Copies of deleted rows are found by stretches of 2**16 bytes, which have 2,048 rows.


class SnapshotSource(Protocol):
    """The members of a `RowArray` that `RowSnapshot` uses."""

    rows: bytearray
    head: int
    deleted_count: int
    reading: "RowSnapshot | None"


class RowSnapshot:
    """The rows of an array at the moment when the snapshot was made.

    The array calls `keep_row`, `keep_from` or `keep_all` before it changes rows, and the snapshot copies them. `parts`
    reads the rows of the array from `_at` to `_end`, with the copies in place of rows that were deleted since, and then
    the copies of the rows behind `_end`.
    """

    def __init__(self, array: SnapshotSource) -> None:
        self._array: SnapshotSource | None = array  # None: the array no longer changes the rows.
        self._rows = array.rows
        self._at, self._end = array.head, len(array.rows)
        self._marked: dict[int, dict[int, bytes]] = {}  # Copies of deleted rows, by stretch and by byte.
        self._behind: list[bytes] = []  # Copies of the rows behind `_end`, the last rows first.
        self._has_deleted = array.deleted_count > 0
        array.reading = self

    def keep_row(self, at: int) -> None:
        """Copy the row that begins at byte `at`, because the array is about to change it."""
        if self._at <= at < self._end:
            marked = self._marked.setdefault(at >> _STRETCH_SHIFT, {})
            marked.setdefault(at, bytes(self._rows[at : at + ROW_SIZE]))

    def keep_from(self, at: int) -> None:
        """Copy the rows from byte `at` on, because the array is about to change or move them."""
        start = max(at, self._at)
        if start < self._end:
            self._behind.append(self._as_it_was(start, self._end))
            self._end = start

    def keep_all(self) -> None:
        """Keep the bytearray of the rows, because the array is about to use another one."""
        self.close()

    def close(self) -> None:
        if self._array is not None:
            self._array.reading = None
            self._array = None

    def parts(self, rows_max: int) -> Iterator[bytes]:
        """Yield the rows that were not deleted, joined, at most `rows_max` at a time."""
        size = rows_max * ROW_SIZE
        while self._at < self._end:
            start, self._at = self._at, min(self._end, self._at + size)
            yield from self._part(self._as_it_was(start, self._at))
        self.close()
        self._rows, self._marked = bytearray(), {}
        while self._behind:
            kept = self._behind.pop()
            for at in range(0, len(kept), size):
                yield from self._part(kept[at : at + size])

    def _as_it_was(self, start: int, end: int) -> bytes:
        rows = bytes(memoryview(self._rows)[start:end])
        if not self._marked:
            return rows
        changed = bytearray(rows)
        for stretch in range(start >> _STRETCH_SHIFT, (end - 1 >> _STRETCH_SHIFT) + 1):
            for at, row in self._marked.get(stretch, {}).items():
                if start <= at < end:
                    changed[at - start : at - start + ROW_SIZE] = row
        return bytes(changed)

    def _part(self, rows: bytes) -> Iterator[bytes]:
        if self._has_deleted:
            rows = b"".join([row for row in rows_of(rows) if row[QUEUE_KEY_AT:QUEUE_KEY_END] != NO_QUEUE_KEY])
        if rows:
            yield rows
