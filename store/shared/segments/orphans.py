"""The class Orphans: deletes objects that no broker will ever read. The owner of a stream runs it in the background.

    object                is an orphan if
    wal/<sequence>        its slot is at or below the floor, and it is no fence
    seg/<start>-<end>     it begins below the floor, and no manifest names it, or a manifest has removed it
    snapshot/<position>   a manifest names a snapshot of a higher position
    self-test/...         it has existed for TEST_MS, so the test of the store that created it was interrupted
    released/...          its owner has given up its lease: nobody waits for it while this owner serves

Orphans are left by a process that ended between an upload and its manifest, or between a manifest and its deletions.
An owner that was deposed may also create objects again that were already deleted.

The class never deletes an object that a later manifest will name, even if another broker creates that manifest. A new
manifest names new segment objects only from the floor of the previous manifest on. Each number has one manifest, so a
broker that creates a manifest later than those read here has read these, too. For the same reason, the newest snapshot
read here remains the newest one or is replaced by a newer one. So it has no effect if this owner was deposed meanwhile.
A list of objects may be stale; the next pass deletes what is missing in it.

The age of an object of a test is measured by the monotonic clock of this owner alone. A broker that was paused for
TEST_MS during its test finds that its object was deleted, and ends with the error that the store is unreliable. It can
be started again.
"""

import logging
from collections.abc import AsyncIterator, Callable, Iterable
from typing import Final

from duolog.store.objects.self_test import FOLDER as TEST_FOLDER
from duolog.store.shared.lease import RELEASED_FOLDER
from duolog.store.shared.requests import Requests
from duolog.store.shared.segments.manifest import (
    SEGMENT_FOLDER,
    SNAPSHOT_FOLDER,
    SegmentManifests,
    segment_start,
    snapshot_position,
)
from duolog.store.shared.wal.wal_object import FOLDER, HEADER_SIZE, DamagedObject, WalKind, decode_header, sequence_of

PAGE: Final = 200  # The number of objects in one list, and in one deletion.
PAUSE_MS: Final = 100  # The pause between two lists.
TEST_MS: Final = 1_800_000  # The age of an object of a test after which the test must have ended.

log = logging.getLogger("store")


class Orphans:
    """Deletes the orphans of one stream, pass by pass."""

    def __init__(self, requests: Requests, manifests: SegmentManifests, mono_ms: Callable[[], int]) -> None:
        self._requests, self._manifests, self._mono_ms = requests, manifests, mono_ms
        self._kept: set[str] = (
            set()
        )  # The keys below the floor that were read and are kept: fences and damaged objects.
        self._tests: dict[
            str, int
        ] = {}  # The objects of tests in the last pass, and the time when each was first found.

    async def delete(self) -> None:
        """Make one pass. Raises RequestsStopped and DamagedObject."""
        count = await self._delete_tests()
        async for keys in self._pages(RELEASED_FOLDER):
            count += await self._delete(keys)
        await self._manifests.refresh()
        floor = self._manifests.floor
        if floor is None:
            return
        named = {each.key for each in self._manifests.segments}
        position, newest = floor.tail.position, self._manifests.snapshot
        async for keys in self._pages(FOLDER):
            old = [key for key in keys if _is_below(sequence_of(key), floor.tail.sequence + 1)]
            count += await self._delete([key for key in old if await self._is_no_fence(key)])
            if len(old) < len(keys):
                break
        async for keys in self._pages(SEGMENT_FOLDER):
            count += await self._delete(
                key for key in keys if key not in named and _is_below(segment_start(key), position)
            )
        async for keys in self._pages(SNAPSHOT_FOLDER):
            count += await self._delete(key for key in keys if _is_below(snapshot_position(key), newest))
        if count:
            log.info("objects deleted that nobody reads any more: count=%d", count)

    async def _delete_tests(self) -> int:
        """Delete the objects of interrupted tests; return their number."""
        found = {key async for keys in self._pages(TEST_FOLDER) for key in keys}
        mono_ms = self._mono_ms()
        self._tests = {key: self._tests.get(key, mono_ms) for key in found}
        return await self._delete(key for key, since_ms in self._tests.items() if mono_ms - since_ms >= TEST_MS)

    async def _pages(self, folder: str) -> AsyncIterator[list[str]]:
        """Yield the keys of a folder in order, up to PAGE at a time."""
        after = ""
        while True:
            listed = await self._requests.list(folder, after, PAGE)
            if listed:
                yield [each.key for each in listed]
            if len(listed) < PAGE:
                return
            after = listed[-1].key
            await self._requests.pause(PAUSE_MS)

    async def _is_no_fence(self, key: str) -> bool:
        sequence = sequence_of(key)
        if sequence is None or key in self._kept:
            return False
        head = await self._requests.get_range(key, 0, HEADER_SIZE)
        if head is None:
            return False
        try:
            is_fence = decode_header(head, sequence)[0].kind == WalKind.FENCE
        except DamagedObject:
            is_fence = True  # The damaged object may have been a fence.
        if is_fence:
            self._kept.add(key)
        return not is_fence

    async def _delete(self, keys: Iterable[str]) -> int:
        orphans = list(keys)
        if orphans:
            await self._requests.delete(orphans)
        return len(orphans)


def _is_below(number: int | None, limit: int) -> bool:
    """Return whether the number of an object, if its key has one, is below a limit."""
    return number is not None and number < limit
