"""The class Orphans: deletes the objects that nobody will ever read, in the background, for the owner of a stream.

    wal/<sequence>        a slot up to the floor, unless it is a fence
    seg/<start>-<end>     begins below the floor, and no manifest names it, or a manifest has removed it
    snapshot/<position>   of a lower position than the newest one that a manifest names
    self-test/...         of a test of the store that was interrupted: it was there TEST_MS ago

A process that ended between an upload and its manifest has left them, or between a manifest and its deletions, or an
owner that was deposed has created them after they were deleted once.

An object that an upload under way is about to name is never deleted, whoever is uploading. A manifest names segment
objects that begin at the floor of the manifest before it, or above. Each manifest has its number once, so whoever
creates a later one than those that were read here has read these, too. For the same reason, the newest snapshot stays
the newest. So it does not matter if this owner was deposed meanwhile. A list may be stale: the next pass finds more.

How long an object of a test was there is said by the monotonic clock of this owner alone. A broker that was paused for
so long in its test finds that its object is gone, and takes the store for one that cannot be relied on: it ends with
that error, and may be started again.
"""

import logging
from collections.abc import AsyncIterator, Callable, Iterable
from typing import Final

from duolog.store.objects.self_test import FOLDER as TEST_FOLDER
from duolog.store.shared.requests import Requests
from duolog.store.shared.segments.manifest import (
    SEGMENT_FOLDER,
    SNAPSHOT_FOLDER,
    SegmentManifests,
    segment_start,
    snapshot_position,
)
from duolog.store.shared.wal.wal_object import FOLDER, HEADER_SIZE, DamagedObject, WalKind, decode_header, sequence_of

PAGE: Final = 200  # Objects in one list, and in one request that deletes.
PAUSE_MS: Final = 100  # Between two lists.
TEST_MS: Final = 1_800_000  # No test of a store takes as long.

log = logging.getLogger("store")


class Orphans:
    """The passes of one owner."""

    def __init__(self, requests: Requests, manifests: SegmentManifests, mono_ms: Callable[[], int]) -> None:
        self._requests, self._manifests, self._mono_ms = requests, manifests, mono_ms
        self._kept: set[str] = set()  # Slots below the floor that were read once: fences, and what is no slot.
        self._tests: dict[str, int] = {}  # Objects of tests in the last pass, and when they were found first.

    async def delete(self) -> None:
        """Make one pass. Raises RequestsStopped and DamagedObject."""
        count = await self._delete_tests()
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
        """Delete the objects of tests that were interrupted; return how many."""
        found = {key async for keys in self._pages(TEST_FOLDER) for key in keys}
        mono_ms = self._mono_ms()
        self._tests = {key: self._tests.get(key, mono_ms) for key in found}
        return await self._delete(key for key, since_ms in self._tests.items() if mono_ms - since_ms >= TEST_MS)

    async def _pages(self, folder: str) -> AsyncIterator[list[str]]:
        """Yield the keys of a folder in their order, some at a time."""
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
            is_fence = True  # It may have been one.
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
