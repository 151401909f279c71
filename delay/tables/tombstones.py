"""The tombstones of one sorted table: the marks of its deleted timers, in memory and in a file next to the table.

    batch     crc u32 | count u32 | (ordinal u32 | topic u64) ...

`ordinal` is the number of the timer in the table's due order. Each write appends one batch to the file, and the table's
entry in the manifest says how many bytes of the file are valid. The bytes after these were written for a manifest that
was never committed. The log still has their deletions, so the next batch overwrites them. The CRC-32C also covers the
table's number and the position of the batch in the file, so a batch at another place is not valid.

The tables of a stream have their tombstones in the log instead (delay/tables/logged_tombstones.py).

A table with tombstones takes one byte of memory for each of its timers, and four bytes for each tombstone. Whether a
timer is deleted is known in O(1), and the deleted timers of a topic are counted by bisection.
"""

from array import array
from bisect import bisect_left, insort
from collections.abc import Iterable
from struct import Struct

from crc32c import crc32c

from duolog.store.files import Files

TIMERS_DIRECTORY = "timers"

_HEADER = Struct(">II")
ROW = Struct(">IQ")
_PLACE = Struct(">QQ")  # Table number, byte in the file.

Row = tuple[int, int]  # (ordinal, topic number)


def tombstones_path(number: int) -> str:
    return f"{TIMERS_DIRECTORY}/{number:010d}.tombstones"


class Tombstones:
    """The tombstones of one table of `count` timers."""

    def __init__(self, number: int, count: int) -> None:
        self.unwritten: list[Row] = []  # Rows that the file does not have yet, in the order of deletion.
        self.number = number
        self.total = 0
        self._count = count
        self._flags: bytearray | None = None  # One byte for each timer: 1 if it is deleted.
        self._by_topic: dict[int, array[int]] = {}  # Sorted ordinals.

    # -- Reading

    def has(self, ordinal: int) -> bool:
        return self._flags is not None and self._flags[ordinal] != 0

    def flags(self, ordinal: int, until: int) -> bytes | None:
        """Return one byte for each timer in [ordinal, until), 1 if it is deleted; None if none of them is deleted."""
        if self._flags is None:
            return None
        found = bytes(self._flags[ordinal:until])
        return found if any(found) else None

    def count(self, ordinal: int, until: int, topic: int | None = None) -> int:
        """Return the number of deleted timers in [ordinal, until), of one topic or of all."""
        if topic is None:
            return 0 if self._flags is None else self._flags.count(1, ordinal, until)
        found = self._by_topic.get(topic)
        return 0 if found is None else max(0, bisect_left(found, until) - bisect_left(found, ordinal))

    # -- Adding

    def add(self, ordinal: int, topic: int) -> None:
        """Add a tombstone that the file does not have. A second tombstone of the same timer changes nothing."""
        if self._flags is None:
            self._flags = bytearray(self._count)
        if not self._flags[ordinal]:
            self._flags[ordinal] = 1
            insort(self._by_topic.setdefault(topic, array("I")), ordinal)
            self.total += 1
            self.unwritten.append((ordinal, topic))

    def restore(self, rows: Iterable[Row]) -> None:
        """Add tombstones that the log or the file has."""
        found: dict[int, list[int]] = {}
        for ordinal, topic in rows:
            if self._flags is None:
                self._flags = bytearray(self._count)
            if not self._flags[ordinal]:
                self._flags[ordinal] = 1
                found.setdefault(topic, []).append(ordinal)
        for topic, ordinals in found.items():
            self._by_topic[topic] = array("I", sorted([*self._by_topic.get(topic, ()), *ordinals]))
            self.total += len(ordinals)

    # -- The file

    def load(self, data: bytes) -> int:
        """Read the tombstones from the file's bytes up to the first damaged batch; return the size of what was read."""
        at, batches = 0, list[bytes]()
        while at < len(data) and (found := self._read_batch(data, at)) is not None:
            rows, at = found
            batches.append(rows)
        self.restore(ROW.iter_unpack(b"".join(batches)))
        return at

    def _read_batch(self, data: bytes, at: int) -> tuple[bytes, int] | None:
        if len(data) - at >= _HEADER.size:
            crc, count = _HEADER.unpack_from(data, at)
            end = at + _HEADER.size + count * ROW.size
            if end <= len(data) and crc == self._crc(at, data[at + 4 : end]):
                return data[at + _HEADER.size : end], end
        return None

    def committed(self, size: int) -> None:
        """Remove the rows of a batch of `size` bytes from `unwritten`: a manifest says that the file has them."""
        del self.unwritten[: max(0, size - _HEADER.size) // ROW.size]

    def batch(self, rows: list[Row], at: int) -> bytes:
        """Return the bytes of one batch that will be at byte `at` of the file."""
        body = len(rows).to_bytes(4, "big") + b"".join([ROW.pack(*row) for row in rows])
        return self._crc(at, body).to_bytes(4, "big") + body

    def _crc(self, at: int, body: bytes) -> int:
        return crc32c(body, crc32c(_PLACE.pack(self.number, at)))


class TombstoneWrite:
    """Appends the unwritten tombstones of a table to its file. It is made in the loop, and a worker calls `run`."""

    def __init__(self, files: Files, tombstones: Tombstones, at: int) -> None:
        self.number = tombstones.number
        self._files, self._at = files, at
        self._batch = tombstones.batch(tombstones.unwritten, at)
        self.end = at + len(self._batch)

    def run(self) -> None:
        """Write the batch after the valid bytes, and sync the file. Blocks; may be called again after a failure."""
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
