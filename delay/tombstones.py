"""Which timers of a bucket shall not be delivered from it any more, and why: in memory, and in a file beside it.

    batch     crc u32 | count u32 | (ordinal u32 | fate u32 | topic u64) ...

`ordinal` counts the bucket's timers in due order. The file grows by one batch with every flush, and the bucket's entry
in the manifest says how many bytes of it count. What lies beyond was written for a manifest that never came: the log
still says it, so it is cut off when the file is opened. The CRC-32C covers the bucket's number and the batch's place in
the file as well, so that no batch is taken for another.

In memory: one byte for each timer of a bucket that has any tombstone, and four for each tombstone. So looking is O(1),
and counting by topic a bisection.
"""

from array import array
from bisect import bisect_left, insort
from enum import IntEnum
from struct import Struct

from crc32c import crc32c

from duolog.store.files import Files

TIMERS_DIRECTORY = "timers"

_HEADER = Struct(">II")
_ROW = Struct(">IIQ")
_PLACE = Struct(">QQ")  # bucket number, byte in the file


class Fate(IntEnum):
    """What became of a timer that lies in a bucket; forever, for files hold these numbers."""

    PENDING = 0
    CANCELLED = 1
    DELIVERED = 2
    MOVED = 3  # it is another timer now: rescheduled, or replaced under its name


def tombstones_path(number: int) -> str:
    return f"{TIMERS_DIRECTORY}/{number:010d}.dead"


Row = tuple[int, int, int]  # ordinal, fate, topic


class Tombstones:
    """Those of one bucket of `count` timers."""

    def __init__(self, number: int, count: int) -> None:
        self.pending: list[Row] = []  # not in the file yet, in the order of coming
        self.number = number
        self.dead = 0
        self._count = count
        self._fates: bytearray | None = None
        self._by_topic: dict[int, array[int]] = {}  # ordinals, sorted

    # -- Asking

    def fate(self, ordinal: int) -> Fate:
        return Fate.PENDING if self._fates is None else Fate(self._fates[ordinal])

    def fates(self, ordinal: int, until: int) -> bytes | None:
        """Return one byte for each of these timers, or None when all of them are pending."""
        if self._fates is None:
            return None
        found = bytes(self._fates[ordinal:until])
        return found if any(found) else None

    def count(self, ordinal: int, until: int, topic: int | None = None) -> int:
        """Count the dead among these timers."""
        if topic is None:
            fates = self._fates
            return 0 if fates is None else sum(fates.count(fate, ordinal, until) for fate in (1, 2, 3))
        found = self._by_topic.get(topic)
        return 0 if found is None else max(0, bisect_left(found, until) - bisect_left(found, ordinal))

    # -- Burying

    def add(self, ordinal: int, fate: Fate, topic: int) -> None:
        """Note one that the file does not have; a timer's first fate is its last."""
        if self._bury(ordinal, fate, topic):
            self.pending.append((ordinal, fate, topic))

    def _bury(self, ordinal: int, fate: int, topic: int) -> bool:
        if self._fates is None:
            self._fates = bytearray(self._count)
        if self._fates[ordinal]:
            return False
        self._fates[ordinal] = fate
        insort(self._by_topic.setdefault(topic, array("I")), ordinal)
        self.dead += 1
        return True

    # -- The file

    def load(self, data: bytes) -> int:
        """Take over what the file holds, up to the first damaged batch; returns the bytes that were whole."""
        at = 0
        by_topic: dict[int, list[int]] = {}
        self._fates = bytearray(self._count)
        while at < len(data) and (found := self._read_batch(data, at)) is not None:
            rows, at = found
            for ordinal, fate, topic in _ROW.iter_unpack(rows):
                self._fates[ordinal] = fate
                by_topic.setdefault(topic, []).append(ordinal)
        self._by_topic = {topic: array("I", sorted(ordinals)) for topic, ordinals in by_topic.items()}
        self.dead = sum(map(len, self._by_topic.values()))
        return at

    def _read_batch(self, data: bytes, at: int) -> tuple[bytes, int] | None:
        if len(data) - at >= _HEADER.size:
            crc, count = _HEADER.unpack_from(data, at)
            end = at + _HEADER.size + count * _ROW.size
            if end <= len(data) and crc == self._crc(at, data[at + 4 : end]):
                return data[at + _HEADER.size : end], end
        return None

    def counted(self, size: int) -> None:
        """A manifest counts one more batch, of so many bytes: its tombstones are pending no more."""
        del self.pending[: max(0, size - _HEADER.size) // _ROW.size]

    def batch(self, rows: list[Row], at: int) -> bytes:
        """Return the bytes of one batch that will lie at byte `at` of the file."""
        body = len(rows).to_bytes(4, "big") + b"".join([_ROW.pack(*row) for row in rows])
        return self._crc(at, body).to_bytes(4, "big") + body

    def _crc(self, at: int, body: bytes) -> int:
        return crc32c(body, crc32c(_PLACE.pack(self.number, at)))


class Flush:
    """Pending tombstones on their way to a file: made in the loop, `run` in a worker, then counted by a manifest."""

    def __init__(self, files: Files, tombstones: Tombstones, at: int) -> None:
        self.number = tombstones.number
        self._files, self._at = files, at
        self._batch = tombstones.batch(tombstones.pending, at)
        self.end = at + len(self._batch)

    def run(self) -> None:
        """Write behind what counts already, and sync. Blocks; may be done again after a failure."""
        path = tombstones_path(self.number)
        is_new = path.rpartition("/")[2] not in self._files.list(TIMERS_DIRECTORY)
        file = self._files.open(path, create=is_new)
        try:
            self._files.write(file, [self._batch], self._at)
            self._files.sync(file)
        finally:
            self._files.close(file)
        if not self._at:
            self._files.sync_directory(TIMERS_DIRECTORY)
