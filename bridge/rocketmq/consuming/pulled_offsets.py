"""The class PulledOffsets: up to which offset each RocketMQ group has pulled each queue.

A group's messages between its committed offset and its pulled offset are in work at its consumers. Only metrics use
the pulled offsets. They are not in the log, and unknown after a restart, as in Apache RocketMQ.
Source: ConsumerOffsetManager.java#pullOffsetTable.
"""

from typing import Final

# Pairs of group and queue, of some 200 bytes each. The pair that was pulled first is dropped for a new one.
PLACES_MAX: Final = 50_000


class PulledOffsets:
    """The next offset of the last pull, by the group's RocketMQ name and the queue's key."""

    __slots__ = ("_offsets", "_places_max")

    def __init__(self, places_max: int = PLACES_MAX) -> None:
        self._offsets: dict[tuple[str, int], int] = {}
        self._places_max = places_max

    def __len__(self) -> int:
        return len(self._offsets)

    def note(self, group: str, key: int, offset: int) -> None:
        """Note that a pull has returned the messages before `offset`. Every pull calls this method."""
        offsets = self._offsets
        offsets[group, key] = offset
        if len(offsets) > self._places_max:
            del offsets[next(iter(offsets))]

    def find(self, group: str, key: int) -> int:
        """Return the offset after the last pull; 0 if none is known."""
        return self._offsets.get((group, key), 0)
