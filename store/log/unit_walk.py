"""Iterates over the units of segment files, which are read block by block. Recovery uses it."""

from collections.abc import Iterator

from duolog.store.files import Files
from duolog.store.log.format import UNIT_HEADER_SIZE, BadUnit, unit_size
from duolog.store.log.segment import Segment, Segments

BLOCK_BYTES = 4 << 20  # Size of one read, unless a single unit is larger.

# (block, index of the unit's first byte in the block, position of the unit). The block contains the whole unit.
UnitLocation = tuple[memoryview, int, int]


def units_of_log(files: Files, segments: Segments, first: int, end: int) -> Iterator[UnitLocation]:
    """Yield the units from position `first` to `end`, all of which must have been verified."""
    for segment in segments.between(first, end):
        if not segment.is_gap:
            yield from units_of_segment(
                files, segments, segment, max(first, segment.start), min(end, segment.known_end)
            )


def units_of_segment(
    files: Files, segments: Segments, segment: Segment, position: int, end: int
) -> Iterator[UnitLocation]:
    """Yield the units of one segment from `position` to `end`, by the sizes in their headers.

    Only the magic and the size of a unit are verified. Raises BadUnit if the next unit has no valid magic and size, or
    ends above `end`.
    """
    handle = segments.file_of(segment)
    wanted = BLOCK_BYTES
    while position < end:
        block = memoryview(files.read(handle, min(wanted, end - position), position - segment.start))
        at, wanted = 0, BLOCK_BYTES
        while at < len(block):
            if at and len(block) - at < UNIT_HEADER_SIZE:
                break
            size = unit_size(block, at)
            if size > end - position - at:
                raise BadUnit(f"the unit has {size} bytes, and only {end - position - at} bytes follow")
            if size > len(block) - at:
                wanted = max(wanted, size)
                break
            yield block, at, position + at
            at += size
        position += at


def readable_end(files: Files, segments: Segments, segment: Segment) -> int:
    """Return the position up to which a segment can contain units: its end, or the end of its file if that is lower."""
    return min(segment.known_end, segment.start + files.size(segments.file_of(segment)))
