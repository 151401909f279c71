"""The segments of a log for the local cache. Every broker loads this module, so it imports no code for requests."""

from collections.abc import Callable, Iterator
from typing import NamedTuple

from duolog.store.log.segment import Segment, Segments
from duolog.store.retention.dead_segments import DeadSegments


class CacheCounts(NamedTuple):
    """Metrics of the local cache: sizes on the disk, and counts since the start."""

    disk_bytes: int = 0  # The size of the segment files.
    cached_bytes: int = 0  # The size of the cached chunks of dropped segments.
    dropped_segments: int = 0
    hits: int = 0  # Reads of dropped segments whose chunk was on the disk.
    misses: int = 0


class LocalSegments:
    """Knows the size of one log on the disk, and which of its segments may be dropped."""

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

    def droppable(self, end: int, is_remote: Callable[[str], bool]) -> Iterator[Segment]:
        """Yield the segments on the disk that end below `end` and may be dropped, the oldest one first.

        A segment that ends at `end` stays, because a start that cuts the log there makes it the active one.
        """
        for each in self._segments:
            if each.known_end >= end:
                return
            if not each.is_gap and not is_remote(each.path) and self.may_drop(each):
                yield each

    def may_drop(self, segment: Segment) -> bool:
        """Return whether the segment still exists, and neither a start nor a reader lease needs its file."""
        is_free = segment.known_end <= self._needed_from() and bool(self._dead_segments.not_held([segment]))
        return is_free and not segment.is_dead and segment in self._segments.between(segment.start, segment.known_end)

    def close_file(self, segment: Segment) -> None:
        """Close the file of a segment, so that its removal frees its disk space."""
        self._segments.close_file(segment)
