"""The ranges of expired messages that a group has skipped: they became dead letters of the group, and must not again.

The ranges of a queue below the group's position count as one range. RANGES_MAX ranges are kept of a queue; when there
are more, the gap between the lowest two closes. If all queues have RANGES_IN_ALL_MAX ranges, a queue that gets another
one has a single range. A message that was delivered out of a closed gap, and has expired when it is read again, does
not become a dead letter. `expired.py` decides which messages have expired.
"""

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from duolog.bridge.records.codec import Record
from duolog.bridge.records.expiry import MessagesExpired
from duolog.bridge.records.groups import GroupDeleted
from duolog.bridge.state.deleted_topics import IsDeleted, in_slices
from duolog.bridge.state.group_offsets import GroupOffsets
from duolog.store.entry import EntrySlot
from duolog.store.state_log import StateLog

RANGES_MAX: Final = 1024  # The ranges of one queue. A Java consumer holds at most as many messages of a queue.
RANGES_IN_ALL_MAX: Final = 200_000  # About 100 bytes each.
QUEUES_MAX: Final = 100_000  # The queues of all groups. At the limit, the queue that was added first is removed.

Range = tuple[int, int]  # The first offset, and the offset after the last one.


class ExpiredRanges:
    """The ranges of expired messages that each group has skipped, by queue."""

    def __init__(
        self,
        state_log: StateLog,
        positions: GroupOffsets,
        queues_max: int = QUEUES_MAX,
        ranges_in_all_max: int = RANGES_IN_ALL_MAX,
    ) -> None:
        self._positions, self._queues_max, self._ranges_in_all_max = positions, queues_max, ranges_in_all_max
        self._ranges: dict[tuple[str, int], Sequence[Range]] = {}  # Replaced, never changed in place.
        self._of_group: dict[str, set[int]] = {}  # Invariant: the keys of `_ranges`, by group.
        self._count = 0  # Invariant: the number of ranges of all queues.
        state_log.own(MessagesExpired, self._replay_expired)
        state_log.own(GroupDeleted, self._replay_group_deleted)
        state_log.on_sliced_snapshot(self._snapshot)

    def has(self, group: str, key: int, offset: int) -> bool:
        """Return whether the group has skipped the message at this offset because it had expired."""
        ranges = self._ranges.get((group, key), ())
        at = bisect_right(ranges, offset, key=_start)
        return at > 0 and offset < ranges[at - 1][1]

    def ranges(self, group: str, key: int) -> Sequence[Range]:
        return self._ranges.get((group, key), ())

    # -- Replay

    def _replay_expired(self, record: MessagesExpired, slot: EntrySlot) -> None:
        name = record.group, record.key
        position = None if record.is_restored else self._positions.fetch(*name)
        consumed = [(0, position.offset)] if position is not None and position.offset > 0 else []
        ranges = merged([*self._ranges.get(name, ()), *consumed, *((start, end) for start, end in record.ranges)])
        surplus = len(ranges) - RANGES_MAX
        if surplus > 0:
            ranges[: surplus + 1] = [(ranges[0][0], ranges[surplus][1])]
        others = self._count - len(self._ranges.get(name, ()))
        if others + len(ranges) > self._ranges_in_all_max:
            ranges = [(ranges[0][0], ranges[-1][1])]
        self._ranges[name] = ranges
        self._of_group.setdefault(record.group, set()).add(record.key)
        self._count = others + len(ranges)
        if len(self._ranges) > self._queues_max:
            self._forget(next(iter(self._ranges)))

    def _replay_group_deleted(self, record: GroupDeleted, slot: EntrySlot) -> None:
        for key in [*self._of_group.get(record.group, ())]:
            self._forget((record.group, key))

    def sweep(self, is_deleted: IsDeleted) -> Iterator[int]:
        """Remove the queues of deleted topics."""
        for names in in_slices(self._ranges):
            for name in names:
                if is_deleted(name[1]) and name in self._ranges:
                    self._forget(name)
            yield len(names)

    def _forget(self, name: tuple[str, int]) -> None:
        group, key = name
        self._count -= len(self._ranges.pop(name))
        keys = self._of_group[group]
        keys.discard(key)
        if not keys:
            del self._of_group[group]

    def _snapshot(self) -> Iterable[Record]:
        table = zip([*self._ranges], [*self._ranges.values()], strict=True)
        return (MessagesExpired(*name, ranges, is_restored=True) for name, ranges in table)


def merged(ranges: Iterable[Range]) -> list[Range]:
    """Return the fewest ranges that cover the same offsets, in order."""
    found: list[Range] = []
    for start, end in sorted(ranges):
        if found and start <= found[-1][1]:
            found[-1] = found[-1][0], max(found[-1][1], end)
        else:
            found.append((start, end))
    return found


def _start(each: Range) -> int:
    return each[0]
