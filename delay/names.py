"""The class Names: an index of timers by the sender's key. It takes 24 bytes of memory for each timer.

    part 0         hash u64 | due u64 | address u64 ...          in the order of adding
    ...
    part 4095

The first bits of the hash of topic and key are the number of the part, which is searched for the bytes of the hash. So
`find` searches one part, which takes a few microseconds for a million timers. Rows of timers that are not pending any
more show that there was such a timer. When a part has doubled in size, all but the newest of these are removed.

Two keys with the same hash are not distinguished. The probability is 1 in 2**64 for a pair of keys.
"""

from collections.abc import Callable, Iterator
from hashlib import blake2b
from itertools import islice
from struct import Struct
from typing import Final

from duolog.delay.rows import TimerId

_ROW: Final = Struct(">QQQ")
_HASH_BYTES: Final = 8
_PART_BITS: Final = 12
_PARTS_AT_ONCE: Final = 16  # In a snapshot.
_SWEPT_FROM: Final = 64  # A part with fewer rows is not swept.


def name_hash(topic: int, name: bytes) -> int:
    """Return the hash of topic and sender's key. It must never change, because files have it."""
    return int.from_bytes(blake2b(name, digest_size=_HASH_BYTES, salt=topic.to_bytes(8, "big")).digest(), "big")


class Names:
    """The index. Rows of pending timers stay (`is_pending`); about `past_max` rows of other timers stay, too."""

    def __init__(self, is_pending: Callable[[TimerId], bool], past_max: int) -> None:
        self._is_pending = is_pending
        self._past_max = -(-past_max >> _PART_BITS)  # The number for one part.
        self._parts: dict[int, bytearray] = {}
        self._sweep_at: dict[int, int] = {}  # The size at which each part is swept, in bytes.

    def add(self, hashed: int, timer_id: TimerId) -> None:
        number = hashed >> 64 - _PART_BITS
        part = self._parts.get(number)
        if part is None:
            part = self._parts[number] = bytearray()
        part += _ROW.pack(hashed, *timer_id)
        if len(part) > self._sweep_at.get(number, _SWEPT_FROM * _ROW.size):
            self._sweep(number)

    def find(self, hashed: int) -> list[TimerId]:
        """Return the ids that were added with this hash and are not removed, the latest last."""
        part = self._parts.get(hashed >> 64 - _PART_BITS, b"")
        wanted = hashed.to_bytes(_HASH_BYTES, "big")
        found: list[TimerId] = []
        at = part.find(wanted)
        while at >= 0:
            if at % _ROW.size == 0:
                _, due_ms, address = _ROW.unpack_from(part, at)
                found.append((due_ms, address))
            at = part.find(wanted, at + 1)
        return found

    def snapshot(self) -> Iterator[bytes]:
        """Return all rows of this moment in parts, for `restore`. Rows may be added during the iteration.

        The bytes of a part never change: rows are added after them, or another bytearray replaces the part.
        """
        sizes = [(part, len(part)) for part in self._parts.values() if part]
        parts = (part[:size] for part, size in sizes)
        return iter(lambda: b"".join(islice(parts, _PARTS_AT_ONCE)), b"")

    def restore(self, rows: bytes) -> None:
        for hashed, due_ms, address in _ROW.iter_unpack(rows):
            self.add(hashed, (due_ms, address))

    def _sweep(self, number: int) -> None:
        """Remove all but the newest rows of timers that are not pending any more."""
        rows = list(_ROW.iter_unpack(self._parts[number]))
        past = [row for row in rows if not self._is_pending((row[1], row[2]))]
        dropped = set(past[: max(0, len(past) - self._past_max)])
        kept = bytearray(b"".join([_ROW.pack(*row) for row in rows if row not in dropped]))
        self._parts[number] = kept
        self._sweep_at[number] = max(_SWEPT_FROM * _ROW.size, 2 * len(kept))
