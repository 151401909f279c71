"""Rows of the memtable that a flush is writing to a sorted table: the immutable memtable of an LSM tree.

Until the table counts the rows are found and deleted as before. A row that is deleted meanwhile is written all the
same, so its key is remembered: it is a tombstone of the new table.
"""

from collections import Counter, defaultdict
from collections.abc import Iterator

from duolog.delay.memtable.counts import (
    LOG_PART_BITS,
    lower,
    parts_of,
    topics_of,
)
from duolog.delay.memtable.packs import DuePack
from duolog.delay.rows import ROW, Timer, TimerKey


class FrozenPack(DuePack):
    """Some of the rows, in due order, with their counts."""

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
        self.bytes = 0  # Of their messages.
        self._packs: list[FrozenPack] = []
        # By the part of the log: there are hundreds of packs, and most keys that are searched for are in none.
        self._by_part: defaultdict[int, list[FrozenPack]] = defaultdict(list)

    def __iter__(self) -> Iterator[FrozenPack]:
        return iter(self._packs)

    def add(self, rows: list[bytes]) -> None:
        rows.sort()
        pack = FrozenPack(rows)
        self._packs.append(pack)
        self.bytes += sum([row[3] for row in ROW.iter_unpack(pack.rows)])
        for part in pack.parts:
            self._by_part[part].append(pack)

    def find(self, due_ms: int, address: int) -> tuple[FrozenPack, int] | None:
        for pack in self._by_part.get(address >> LOG_PART_BITS, ()):
            if pack.start_ms <= due_ms <= pack.last_ms and (at := pack.find(due_ms, address)) >= 0:
                return pack, at
        return None

    def note_deleted(self, pack: FrozenPack, timer: Timer) -> None:
        lower(pack.topics, timer.topic, 1)
        lower(pack.parts, timer.address >> LOG_PART_BITS, 1)
        self.deleted[timer.due_ms, timer.address] = None

    def clear(self) -> tuple[Counter[int], Counter[int]]:
        """Forget all rows, for a table has them; returns their counts by topic and by part of the log."""
        topics: Counter[int] = Counter()
        parts: Counter[int] = Counter()
        for pack in self._packs:
            topics.update(pack.topics)
            parts.update(pack.parts)
        self._packs, self.bytes = [], 0
        self._by_part.clear()
        self.deleted.clear()
        return topics, parts

    def thaw(self) -> bytes:
        """Give back some rows, for the flush has failed; none when there are no more."""
        self.deleted.clear()
        self.bytes = 0
        if not self._packs:
            return b""
        pack = self._packs.pop()
        for part in pack.parts:  # A part that is not among them any more has no row of the pack.
            self._by_part[part].remove(pack)
        return pack.bytes_from_head() or self.thaw()
