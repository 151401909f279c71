"""The class SegmentDropper: removes the files of sealed segments that the object store has, beyond `cache_bytes`.

A segment may be dropped if all of these conditions hold:

    segment objects contain all of it     a manifest names them, and each object exists with its whole size
    a start does not read it              it ends below `read_from` of the checkpoint, and below the tail in `shared`
    no reader lease holds it              `bridge/state/leases.py`

The oldest segment is dropped first. A segment that is damaged, or that no objects contain, stays, and the next one is
dropped. The dropper verifies the units and computes the CRC of each chunk, a chunk at a time; after that it takes the
three steps of `cached_files.py`. A crash between them leaves the segment on the disk or in the store.

A quarter of `cache_bytes` is for chunks of dropped segments that were read back.
"""

import asyncio
import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import Final, TypeVar

from duolog.store.errors import StoreError
from duolog.store.log.segment import Segment
from duolog.store.shared.cache.cached_files import CachedFiles
from duolog.store.shared.cache.local_segments import LocalSegments
from duolog.store.shared.cache.remote_segment import RemoteChunk, RemoteSegment, covering, measure
from duolog.store.shared.options import SharedOptions
from duolog.store.shared.requests import Requests
from duolog.store.shared.segments.manifest import SegmentManifests, SegmentObject
from duolog.store.shared.wal.slots import Tail
from duolog.store.shared.wal.wal_object import damaged
from duolog.store.workers import Executors, Failure

REFRESH_MS: Final = 10_000  # The shortest time between two reads of new manifests.
PAUSE_MS: Final = 10  # The pause after each measured chunk, in which other threads get the processor.
FAILED_MS: Final = 300_000  # The time until the next attempt to drop a segment that could not be dropped.
RANGES_SHARE: Final = 4  # A quarter of `cache_bytes` is for chunks that were read back.

log = logging.getLogger("store")

T = TypeVar("T")


class SegmentDropper:
    """Keeps the segments of one broker within `cache_bytes`."""

    def __init__(
        self,
        requests: Requests,
        files: CachedFiles,
        local: LocalSegments,
        executors: Executors,
        manifests: SegmentManifests,
        saved: Callable[[], Tail],
        end: Callable[[], int],
        options: SharedOptions,
        mono_ms: Callable[[], int],
    ) -> None:
        """`saved` returns the tail in the file `shared`, `end` that of the log. The dropper alone uses `manifests`."""
        self.dropped = 0  # A metric: the number of dropped segments.
        self._requests, self._files, self._local, self._executors = requests, files, local, executors
        self._manifests, self._saved, self._end = manifests, saved, end
        self._options, self._mono_ms = options, mono_ms
        self._refresh_mono_ms = 0  # The earliest time of the next read of new manifests.
        # The time of the next attempt, by the start of a segment that could not be dropped. Bounded by the segments.
        self._failed: dict[int, int] = {}
        self._has_warned = False  # The log has a warning of a segment that no objects contain.

    @property
    def bytes_on_disk(self) -> int:
        """The size of the log on the disk, without chunks that were read back."""
        return self._local.bytes_on_disk(self._end(), self._files.is_remote)

    @property
    def is_due(self) -> bool:
        """Whether the log is too large on the disk, and a segment may be dropped according to the known manifests."""
        cache_bytes = self._options.cache_bytes
        if not cache_bytes or self.bytes_on_disk <= cache_bytes - cache_bytes // RANGES_SHARE:
            return False
        if self._mono_ms() >= self._refresh_mono_ms:
            return any(True for _ in self._candidates())
        return self._next_covered() is not None

    def _candidates(self) -> Iterator[Segment]:
        """Yield the segments that may be dropped, except those whose last attempt failed within FAILED_MS."""
        mono_ms = self._mono_ms()
        for each in self._local.droppable(self._saved().position, self._files.is_remote):
            if self._failed.get(each.start, mono_ms) <= mono_ms:
                yield each

    def _next_covered(self) -> tuple[Segment, Sequence[SegmentObject]] | None:
        """Return the first candidate that segment objects contain, and these objects."""
        for each in self._candidates():
            objects = covering(self._manifests.segments, each.start, each.known_end)
            if objects is not None:
                return each, objects
        return None

    async def run(self) -> None:
        """Drop the first segment that may be dropped, if any. Raises StoreError, OSError, RequestsStopped."""
        if self._mono_ms() >= self._refresh_mono_ms and self._is_uncovered(next(self._candidates(), None)):
            self._refresh_mono_ms = self._mono_ms() + REFRESH_MS
            await self._manifests.refresh()
        found = self._next_covered()
        if found is None:
            return
        segment, objects = found
        self._warn_of_one_before(segment)
        try:
            for each in objects:
                await self._check(each)
            await self._drop(segment, RemoteSegment(await self._measured(segment, objects)))
        except (StoreError, OSError):
            mono_ms = self._mono_ms()
            self._failed = {start: until for start, until in self._failed.items() if until > mono_ms}
            self._failed[segment.start] = mono_ms + FAILED_MS
            raise

    def _is_uncovered(self, segment: Segment | None) -> bool:
        return segment is not None and covering(self._manifests.segments, segment.start, segment.known_end) is None

    def _warn_of_one_before(self, segment: Segment) -> None:
        """Warn once if an older segment stays on the disk because no segment objects have all of it."""
        first = next(self._candidates(), segment)
        if first is not segment and not self._has_warned:
            self._has_warned = True
            log.warning(
                "segment not dropped, no objects have all of it; later ones are dropped: start=%d end=%d",
                first.start,
                first.known_end,
            )

    async def _check(self, made: SegmentObject) -> None:
        """Raise DamagedObject if the object is missing or has another size."""
        last = await self._requests.get_range(made.key, made.end - made.start - 1, 2)
        if last is None or len(last) != 1:
            raise damaged(made.key, "it does not exist, or has another size than its name says")

    async def _measured(self, segment: Segment, objects: Sequence[SegmentObject]) -> list[RemoteChunk]:
        chunks: list[RemoteChunk] = []
        steps = measure(self._files, segment, objects, self._options.range_bytes)
        try:
            while (chunk := await _in_thread(lambda: next(steps, None))) is not None:
                chunks.append(chunk)
                await self._requests.pause(PAUSE_MS)
        finally:
            steps.close()
        return chunks

    async def _drop(self, segment: Segment, remote: RemoteSegment) -> None:
        if not self._local.may_drop(segment):
            return  # Retention has removed it, or a reader has a lease on it, since it was measured.
        await self._in_background(lambda: self._files.put_drop_marker(remote))
        if not self._local.may_drop(segment):
            await self._in_background(lambda: self._files.remove_drop_marker(remote))
            return
        self._files.drop(remote)
        self._local.close_file(segment)
        self.dropped += 1
        await self._in_background(lambda: self._files.remove_file(remote.path))
        log.info("segment dropped, the object store has it start=%d bytes=%d", remote.start, remote.end - remote.start)

    async def _in_background(self, run: Callable[[], None]) -> None:
        """Change files in the thread that removes files, too, and that ends before the data directory is released."""
        outcome: asyncio.Future[Failure | None] = asyncio.get_running_loop().create_future()

        def done(found: Failure | None) -> None:
            if not outcome.done():
                outcome.set_result(found)

        self._executors.background.submit(run, done)
        error = await outcome
        if error is not None:
            raise error


async def _in_thread(run: Callable[[], T]) -> T:
    """Await a call in a thread. If this task is cancelled, it ends when the call has ended."""
    step = asyncio.ensure_future(asyncio.to_thread(run))
    try:
        return await asyncio.shield(step)
    except asyncio.CancelledError:
        with suppress(StoreError, OSError):
            await step
        raise
