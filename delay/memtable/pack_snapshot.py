"""The rows that a pack has at one moment, read some at a time for a snapshot while the pack goes on changing."""

from collections.abc import Iterator
from typing import Final, Protocol

from duolog.delay.rows import (
    NO_QUEUE_KEY,
    QUEUE_KEY_AT,
    QUEUE_KEY_END,
    ROW_SIZE,
    rows_of,
)

_STRETCH_SHIFT: Final = 16  # Of the bytes of a pack: 2,048 rows.


class ReadPack(Protocol):
    """What this needs of a pack."""

    rows: bytearray
    head: int
    gone: int
    reading: "PackSnapshot | None"


class PackSnapshot:
    """The rows that a pack has at one moment, read some at a time while the pack goes on changing.

    What is read is what lies in the pack from `_at` to `_end`, but for rows that were marked since; then what was
    behind `_end` and was copied before it changed. So a change costs a copy of what it changes, and at most that of
    what it moves itself.
    """

    def __init__(self, pack: ReadPack) -> None:
        self._pack: ReadPack | None = pack  # None: it has other rows by now, and those of the moment are left to this
        self._rows = pack.rows
        self._at, self._end = pack.head, len(pack.rows)
        self._marked: dict[int, dict[int, bytes]] = {}  # by stretch, and by their bytes: rows as they were
        self._behind: list[bytes] = []  # the last first
        self._has_gone = pack.gone > 0
        pack.reading = self

    def keep_row(self, at: int) -> None:
        """The pack is about to change the row that begins at this byte."""
        if self._at <= at < self._end:
            marked = self._marked.setdefault(at >> _STRETCH_SHIFT, {})
            marked.setdefault(at, bytes(self._rows[at : at + ROW_SIZE]))

    def keep_from(self, at: int) -> None:
        """The pack is about to change or move what lies from this byte on."""
        start = max(at, self._at)
        if start < self._end:
            self._behind.append(self._as_it_was(start, self._end))
            self._end = start

    def keep_all(self) -> None:
        """The pack is about to take other rows, and will not touch these any more."""
        self.close()

    def close(self) -> None:
        if self._pack is not None:
            self._pack.reading = None
            self._pack = None

    def parts(self, rows_max: int) -> Iterator[bytes]:
        """Yield the rows that are not deleted, so many at a time or fewer."""
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
        if self._has_gone:
            rows = b"".join([row for row in rows_of(rows) if row[QUEUE_KEY_AT:QUEUE_KEY_END] != NO_QUEUE_KEY])
        if rows:
            yield rows
