"""The class LocalRanges: reads ranges, removed ranges and the newest snapshot of the local log for a compaction."""

from typing import NamedTuple

from duolog.store.errors import Corruption
from duolog.store.files import Files, read_whole
from duolog.store.log.format import BadUnit, check_unit
from duolog.store.log.segment import Segments
from duolog.store.log.unit_source import UnitSource
from duolog.store.recovery.checkpoint import snapshot_path, snapshot_positions


class LocalSnapshot(NamedTuple):
    position: int
    content: bytes


class LocalRanges:
    """Reads the local log of an owner. `read` and `snapshot` block, so they must be called in a thread."""

    def __init__(self, files: Files, segments: Segments, source: UnitSource) -> None:
        self._files, self._segments, self._source = files, segments, source

    def read(self, first: int, end: int) -> bytes:
        """Return the units of a range, all of which were verified. Blocks; raises OSError and Corruption.

        A segment object replaces the WAL objects, so a wrong bit of this disk must not get into it.
        """
        content = self._source.read_range(first, end)
        block, at = memoryview(content), 0
        try:
            while at < len(block):
                at += check_unit(block, at, first + at).size
        except BadUnit as error:
            raise Corruption(
                f"the local log is damaged at position {first + at}: {error}; the object store has this unit, so start "
                "this broker with an empty data directory on another disk"
            ) from None
        return content

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
