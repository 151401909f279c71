"""The class WalCompactor: replaces the WAL objects of an owner's log by segment objects, and deletes them.

    1. Store the units between the floor and a slot that counts as segment objects. They are read from the local log.
    2. Create a manifest that names these objects and moves the floor to that slot.
    3. Delete the WAL objects up to the floor, except fences.

A compaction leaves out ranges that retention has removed from the local log, and deletes segment objects within them.
The manifest then names a snapshot with the state of these ranges (`store/shared/segments/log_download.py`).

A crash after step 1 leaves segment objects that no manifest names. The next compaction creates the same object again,
or another one under another key. A crash after step 2 leaves WAL objects below the floor, which no broker reads. Both
are deleted later (`orphans.py`). Fences are never deleted, because an owner that was paused must find the fence in its
next slot, however long the pause was.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from typing import Final, NamedTuple

from crc32c import crc32c

from duolog.store.errors import Corruption
from duolog.store.shared.options import SharedOptions
from duolog.store.shared.requests import Requests
from duolog.store.shared.segments.local_ranges import LocalRanges, LocalSnapshot
from duolog.store.shared.segments.manifest import Floor, SegmentManifest, SegmentManifests, SegmentObject, snapshot_key
from duolog.store.shared.wal.slots import WINDOW, Tail
from duolog.store.shared.wal.wal_object import Identity, key_of

DELETED_AT_ONCE: Final = 1_000  # The number of keys in one request.


class CountedSlot(NamedTuple):
    """A slot that was read or written by this process."""

    owner: Identity
    tail: Tail
    is_fence: bool


class SlotsSeen:
    """The slots above the floor that this process has read or written, in order."""

    def __init__(self) -> None:
        self._seen: deque[CountedSlot] = deque()

    def __len__(self) -> int:
        return len(self._seen)

    def note(self, slot: CountedSlot, limit: int) -> None:
        """Add the next slot, and remove the first one if there are more than `limit`."""
        self._seen.append(slot)
        if len(self._seen) > limit:
            self._seen.popleft()

    def up_to(self, sequence: int) -> list[CountedSlot]:
        """Return the slots up to this one."""
        return [each for each in self._seen if each.tail.sequence <= sequence]

    def next_end(self, above: int, size_max: int, last: Tail) -> int:
        """Return the last end of a slot up to `last` that is at most `size_max` above position `above`.

        If there is none, it is the first end above that position.
        """
        found = 0
        for each in self._seen:
            position = each.tail.position
            if position > last.position or (position > above + size_max and found):
                break
            if position > above:
                found = position
        return found

    def forget(self, sequence: int) -> None:
        while self._seen and self._seen[0].tail.sequence <= sequence:
            self._seen.popleft()

    def newest_but(self, count: int, sequence_max: int) -> CountedSlot | None:
        """Return the newest slot but `count` that is not above a sequence, if there is one."""
        found = islice(reversed(self._seen), count, None)
        return next((each for each in found if each.tail.sequence <= sequence_max), None)


class WalCompactor:
    """Compacts the log of one owner.

    `saved` returns the tail in the file `shared`. The floor stays below it, so that a restarted owner finds the slots
    with which it compares its log.
    """

    def __init__(
        self,
        requests: Requests,
        manifests: SegmentManifests,
        seen: SlotsSeen,
        local: LocalRanges,
        saved: Callable[[], Tail],
        options: SharedOptions,
    ) -> None:
        # A broker that creates a fence in a deleted slot also takes the slots after it, before it finds out that the
        # slot was deleted. These slots must not be the next ones of the owner.
        assert options.kept_slots >= WINDOW, f"{options.kept_slots} slots are kept, fewer than {WINDOW}"
        self._requests, self._manifests, self._seen = requests, manifests, seen
        self._local, self._saved, self._options = local, saved, options

    @property
    def _newest(self) -> CountedSlot | None:
        """The newest slot to which the floor may move; None if there is none."""
        return self._seen.newest_but(self._options.kept_slots, self._saved().sequence)

    @property
    def is_due(self) -> bool:
        """Whether the number of slots or bytes above the floor requires a compaction."""
        newest, floor = self._newest, self._manifests.floor
        if newest is None:
            return False
        above = newest.tail.position - (floor.tail.position if floor else 0)
        return (
            above >= self._options.segment_bytes
            or len(self._seen) >= self._options.kept_slots + self._options.compact_slots
        )

    async def run(self) -> None:
        """Compact once. Raises DamagedObject, Corruption, OSError, RequestsStopped."""
        await self._manifests.refresh()
        self._seen.forget(self._manifests.floor_sequence)
        newest = self._newest
        if newest is None:
            return
        floor = self._manifests.floor
        first, end = floor.tail.position if floor else 0, newest.tail.position
        removed = self._local.removed()
        # The pieces are computed before the first `await`, because new slots remove the oldest ones from `_seen`.
        pieces = [*self._pieces(_without(first, end, removed), newest.tail)]
        dead = [each for each in self._manifests.segments if _is_within(each.start, each.end, removed)]
        snapshot = -1
        if dead or any(start < end and first < stop for start, stop in removed):
            local = await asyncio.to_thread(self._local.snapshot)
            if local is None or local.position > end:
                return  # A start from the store would lack the state, or the log up to it.
            snapshot = local.position
            await self._store_snapshot(local)
        added = [await self._store(*each) for each in pieces]
        older = self._manifests.snapshot
        starts = tuple(each.start for each in dead)
        if await self._manifests.add(SegmentManifest(Floor(newest.owner, newest.tail), tuple(added), starts, snapshot)):
            await self._delete(newest.tail.sequence)
            await self._requests.delete([each.key for each in dead])
            if 0 <= older < snapshot:
                await self._requests.delete([snapshot_key(older)])

    def _pieces(self, ranges: Iterator[tuple[int, int]], last: Tail) -> Iterator[tuple[int, int]]:
        """Split ranges that end at or below the slot `last` into pieces, each for one segment object."""
        for start, stop in ranges:
            while start < stop:
                end = min(stop, self._seen.next_end(start, self._options.segment_bytes, last))
                yield start, end
                start = end

    async def _store_snapshot(self, local: LocalSnapshot) -> None:
        """Store a snapshot, unless the store has one of this position."""
        key = snapshot_key(local.position)
        while not await self._requests.create(key, local.content):
            if await self._requests.get_range(key, 0, 1) is not None:
                return

    async def _store(self, start: int, end: int) -> SegmentObject:
        content, crc = await asyncio.to_thread(self._read, start, end)
        if len(content) != end - start:
            raise Corruption(f"the local log has {len(content)} bytes from position {start}, not {end - start}")
        made = SegmentObject(start, end, crc)
        while not await self._requests.create(made.key, content):
            found = await self._requests.get(made.key)
            if found is not None:
                if found != content:
                    raise Corruption(f"the object {made.key} has other units than the local log: remove it")
                break
        return made

    def _read(self, start: int, end: int) -> tuple[bytes, int]:
        """Return a range of the local log and its CRC. Blocks; raises OSError."""
        content = self._local.read(start, end)
        return content, crc32c(content)

    async def _delete(self, sequence: int) -> None:
        """Delete the WAL objects up to this slot that this process knows, and those between them, except fences."""
        known = self._seen.up_to(sequence)
        fences = {each.tail.sequence for each in known if each.is_fence}
        first_known = known[0].tail.sequence if known else sequence + 1
        keys = [key_of(each) for each in range(first_known, sequence + 1) if each not in fences]
        for first in range(0, len(keys), DELETED_AT_ONCE):
            await self._requests.delete(keys[first : first + DELETED_AT_ONCE])
        self._seen.forget(sequence)


def _is_within(start: int, end: int, ranges: Sequence[tuple[int, int]]) -> bool:
    return any(first <= start and end <= last for first, last in ranges)


def _without(start: int, end: int, ranges: Sequence[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    """Yield the parts of a range that are outside the other ranges, which must be in order."""
    for first, last in ranges:
        if first >= end:
            break
        if start < first:
            yield start, first
        start = max(start, last)
    if start < end:
        yield start, end
