"""The class SegmentDropper: removes the files of sealed segments that the object store has, beyond `cache_bytes`.

A segment may be dropped when nothing but reads of old messages needs its file:

    segment objects have all of it        a manifest names them, and each of them is there with its whole size
    a start does not read it              it ends below `read_from` of the checkpoint, and below the file `shared`
    no reader of files has a lease on it  `bridge/state/leases.py`

The oldest one is dropped first: its units are verified, and the CRC of each chunk is computed, a chunk at a time; then
come the three steps of `cached_files.py`. A crash between them leaves the segment on the disk or in the store.

A quarter of `cache_bytes` is left to ranges that were read back.
"""

import asyncio
import logging
from collections.abc import Callable
from typing import Final, NamedTuple

from duolog.store.log.segment import Segment, Segments
from duolog.store.retention.dead_segments import DeadSegments
from duolog.store.shared.cache.cached_files import CachedFiles
from duolog.store.shared.cache.remote_segment import RemoteChunk, RemoteSegment, covering, measure
from duolog.store.shared.options import SharedOptions
from duolog.store.shared.requests import Requests
from duolog.store.shared.segments.manifest import Manifests, SegmentObject
from duolog.store.shared.wal.slots import Tail
from duolog.store.shared.wal.wal_object import damaged
from duolog.store.workers import Executors, Failure

REFRESH_MS: Final = 10_000  # Between two looks for manifests.
PAUSE_MS: Final = 10  # After each chunk that was measured, so that other threads get the processor.
RANGES_SHARE: Final = 4  # This part of `cache_bytes` is for ranges that were read back.

log = logging.getLogger("store")


class CacheCounts(NamedTuple):
    """What a broker has on its disk, and what it has dropped and read back since its start; metrics."""

    disk_bytes: int = 0  # Of segments.
    cached_bytes: int = 0  # Of ranges that were read back.
    dropped_segments: int = 0
    hits: int = 0  # Reads of dropped segments whose range was on the disk.
    misses: int = 0


class LocalSegments:
    """The segments of one log: how many bytes of them are on the disk, and which may be dropped."""

    def __init__(self, segments: Segments, dead_segments: DeadSegments, needed_from: Callable[[], int]) -> None:
        """`needed_from` returns the position from which on a start reads the log."""
        self._segments, self._dead_segments, self._needed_from = segments, dead_segments, needed_from

    def bytes_on_disk(self, end: int, is_remote: Callable[[str], bool]) -> int:
        """Return the size of the segments on the disk; `end` is the end of the log."""
        return sum(
            min(each.known_end, end) - each.start
            for each in self._segments
            if not each.is_gap and not is_remote(each.path)
        )

    def oldest(self, end: int, is_remote: Callable[[str], bool]) -> Segment | None:
        """Return the first segment on the disk if it ends at or below `end` and may be dropped."""
        for each in self._segments:
            if not each.is_gap and not each.is_dead and not is_remote(each.path):
                return each if each.known_end <= end and self.may_drop(each) else None
        return None

    def may_drop(self, segment: Segment) -> bool:
        """Return whether a start and readers of files need no file of the segment, which may have been removed."""
        is_free = segment.known_end <= self._needed_from() and bool(self._dead_segments.not_held([segment]))
        return is_free and not segment.is_dead and segment in self._segments.between(segment.start, segment.known_end)

    def close_file(self, segment: Segment) -> None:
        """Close the file of a segment, so that its blocks are freed with its name."""
        self._segments.close_file(segment)


class SegmentDropper:
    """Keeps the segments of one broker within `cache_bytes`."""

    def __init__(
        self,
        requests: Requests,
        files: CachedFiles,
        local: LocalSegments,
        executors: Executors,
        manifests: Manifests,
        saved: Callable[[], Tail],
        end: Callable[[], int],
        options: SharedOptions,
        mono_ms: Callable[[], int],
    ) -> None:
        """`saved` returns the tail in the file `shared`, `end` the end of the log. Nobody else uses `manifests`."""
        self.dropped = 0  # Segments; a metric.
        self._requests, self._files, self._local, self._executors = requests, files, local, executors
        self._manifests, self._saved, self._end = manifests, saved, end
        self._options, self._mono_ms = options, mono_ms
        self._refresh_mono_ms = 0  # When the next look for manifests may come.

    @property
    def bytes_on_disk(self) -> int:
        """Bytes of the log on the disk, without those that were read back."""
        return self._local.bytes_on_disk(self._end(), self._files.is_remote)

    @property
    def is_due(self) -> bool:
        """Whether a segment should be dropped, and may be as far as this broker knows."""
        cache_bytes = self._options.cache_bytes
        if not cache_bytes or self.bytes_on_disk <= cache_bytes - cache_bytes // RANGES_SHARE:
            return False
        segment = self._oldest
        return segment is not None and (
            self._mono_ms() >= self._refresh_mono_ms or self._objects_of(segment) is not None
        )

    @property
    def _oldest(self) -> Segment | None:
        return self._local.oldest(self._saved().position, self._files.is_remote)

    def _objects_of(self, segment: Segment) -> list[SegmentObject] | None:
        found = covering(self._manifests.segments, segment.start, segment.known_end)
        return None if found is None else [*found]

    async def run(self) -> None:
        """Drop one segment, if it may be dropped. Raises StoreError, OSError, RequestsStopped."""
        segment = self._oldest
        if segment is None:
            return
        objects = self._objects_of(segment)
        if objects is None:
            self._refresh_mono_ms = self._mono_ms() + REFRESH_MS
            await self._manifests.refresh()
            objects = self._objects_of(segment)
        if objects is not None:
            for each in objects:
                await self._check(each)
            await self._drop(segment, RemoteSegment(await self._measured(segment, objects)))

    async def _check(self, made: SegmentObject) -> None:
        """Raise DamagedObject if the object is missing or has another size."""
        last = await self._requests.get_range(made.key, made.end - made.start - 1, 2)
        if last is None or len(last) != 1:
            raise damaged(made.key, "it does not exist, or has another size than its name says")

    async def _measured(self, segment: Segment, objects: list[SegmentObject]) -> list[RemoteChunk]:
        chunks: list[RemoteChunk] = []
        steps = measure(self._files, segment, objects, self._options.range_bytes)
        try:
            while (chunk := await asyncio.to_thread(next, steps, None)) is not None:
                chunks.append(chunk)
                await self._requests.pause(PAUSE_MS)
        finally:
            steps.close()
        return chunks

    async def _drop(self, segment: Segment, remote: RemoteSegment) -> None:
        await self._in_background(lambda: self._files.put_marker(remote))
        if not self._local.may_drop(segment):
            await self._in_background(lambda: self._files.remove_marker(remote))
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
