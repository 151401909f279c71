"""The class LocalRanges: reads ranges, removed ranges and the newest snapshot of the local log for a compaction."""

from typing import NamedTuple

from duolog.store.files import Files, read_whole
from duolog.store.log.segment import Segments
from duolog.store.log.unit_source import UnitSource
from duolog.store.recovery.checkpoint import snapshot_path, snapshot_positions


class LocalSnapshot(NamedTuple):
    position: int
    content: bytes


class LocalRanges:
    """Reads the local log of an owner. `read` and `snapshot` block, so they must be called in a thread."""

    def __init__(self, files: Files, segments: Segments, source: UnitSource) -> None:
        self._files, self._segments = files, segments
        self.read = source.read_range

    def removed(self) -> list[tuple[int, int]]:
        """Return the ranges of positions whose segments retention has removed, in order and merged."""
        ranges = [(0, self._segments.start)] if self._segments.start else []
        for segment in self._segments:
            if segment.is_gap:
                if ranges and ranges[-1][1] == segment.start:
                    ranges[-1] = (ranges[-1][0], segment.known_end)
                else:
                    ranges.append((segment.start, segment.known_end))
        return ranges

    def snapshot(self) -> LocalSnapshot | None:
        """Return the newest snapshot; None if there is none. Blocks; raises OSError."""
        position = max(snapshot_positions(self._files), default=-1)
        if position < 0:
            return None
        return LocalSnapshot(position, read_whole(self._files, snapshot_path(position)))
