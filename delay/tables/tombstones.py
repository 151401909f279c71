"""The tombstones of one sorted table: the marks of its deleted timers.

Manifests in the log add tombstones (`ManifestChange`), live and at recovery, and a snapshot has all of them. So there
is no file for them. They are dropped with their table, which is written anew when more than half of it is deleted
(`tables_to_compact`).

A table with tombstones takes one byte of memory for each of its timers, and four bytes for each tombstone. Whether a
timer is deleted is known in O(1), and the deleted timers of a topic are counted by bisection.
"""

from array import array
from bisect import bisect_left, insort
from collections.abc import Sequence

# Tombstones of one topic in one table: (table number, topic number, ordinals). The `ordinal` of a timer is its number
# in the table's due order.
TombstoneRow = tuple[int, int, Sequence[int]]


class Tombstones:
    """The tombstones of one table of `count` timers."""

    def __init__(self, count: int) -> None:
        self.total = 0
        self._count = count
        self._flags: bytearray | None = None  # One byte for each timer: 1 if it is deleted.
        self._by_topic: dict[int, array[int]] = {}  # Sorted ordinals.

    def add(self, ordinal: int, topic: int) -> None:
        """Add a tombstone. A second tombstone of the same timer changes nothing."""
        if self._flags is None:
            self._flags = bytearray(self._count)
        if not self._flags[ordinal]:
            self._flags[ordinal] = 1
            insort(self._by_topic.setdefault(topic, array("I")), ordinal)
            self.total += 1

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

    def by_topic(self) -> list[tuple[int, Sequence[int]]]:
        """Return a copy of (topic, ordinals) for each topic with tombstones."""
        return [(topic, ordinals[:]) for topic, ordinals in self._by_topic.items()]
