"""Pending timers on their way from the log into a bucket: the part that blocks, for a worker.

Rows come in packs as `Timers.detach` gave them, each in due order, and each of about one stretch of the log. So the
messages of a pack are read together, in the order in which they lie there; then packs are merged into the bucket's.
"""

from collections.abc import Callable, Sequence
from heapq import merge as in_order
from struct import Struct
from typing import Final

from duolog.delay.bucket import Bucket, FarTimer, Writer
from duolog.delay.rows import ROW, ROW_SIZE, rows_of
from duolog.store.entry import EntryLocation, Stored

READ_AT_ONCE: Final = 4_096  # Each call gives up the interpreter, and waits for it as long as the loop is busy.

_ID: Final = Struct(">QQ")

Read = Callable[[Sequence[EntryLocation]], list[Stored]]  # may block; raises OSError and StoreError


class Spill:
    """Made in the loop, `run` in a worker. `name_size` bytes of a name lie `name_from` bytes behind a frame."""

    def __init__(self, packs: Sequence[bytes], read: Read, begin: Callable[[], Writer], name_from: int) -> None:
        self.count = sum(map(len, packs)) // ROW_SIZE
        self.bucket: Bucket | None = None
        self.places = b""  # of all that are in the bucket, 16 bytes each, rising
        self._packs, self._read, self._begin, self._name_from = packs, read, begin, name_from

    def run(self) -> None:
        """Write the bucket and make it durable. Blocks; raises OSError and StoreError, and then leaves no file."""
        frames: dict[int, tuple[bytes, bytes]] = {}
        for pack in self._packs:
            self._read_pack(pack, frames)
        writer = self._begin()
        try:
            places = bytearray()
            for row in in_order(*map(rows_of, self._packs)):
                due_ms, address, key, _, _, form, _ = ROW.unpack(row)
                name, frame = frames[address]  # Of a timer that was moved on its way there may be two.
                writer.add(FarTimer(due_ms, address, key, form, name, frame))
                places += row[: _ID.size]
            self.bucket = writer.finish()
        except BaseException:
            writer.abandon()
            raise
        self.places = bytes(places)

    def _read_pack(self, pack: bytes, frames: dict[int, tuple[bytes, bytes]]) -> None:
        """Read the messages of a pack: by address, (name, frame)."""
        rows = sorted(ROW.iter_unpack(pack), key=_address_of)
        for first in range(0, len(rows), READ_AT_ONCE):
            some = rows[first : first + READ_AT_ONCE]
            places = [
                EntryLocation(address, size + (self._name_from + name_size if name_size else 0), form)
                for _, address, _, size, name_size, form, _ in some
            ]
            for (_, address, _, size, name_size, _, _), stored in zip(some, self._read(places), strict=True):
                name = bytes(stored.frame[size + self._name_from :]) if name_size else b""
                frames[address] = (name, bytes(stored.frame[:size]))


def _address_of(row: tuple[int, ...]) -> int:
    return row[1]
