"""Walking the units of segment files, block by block."""

from collections.abc import Iterator

from duolog.store.files import Files
from duolog.store.log.format import UNIT_HEADER_SIZE, BadUnit, unit_size
from duolog.store.log.segment import Segment, Segments

BLOCK_BYTES = 4 << 20  # Size of one read, unless a single unit is larger.

# (block, byte offset in it, position of the log) of the start of a unit that lies whole in the block.
Place = tuple[memoryview, int, int]


def units_of_log(files: Files, segments: Segments, first: int, end: int) -> Iterator[Place]:
    """Yield the place of each unit of a range that is known to be whole."""
    for segment in segments.between(first, end):
        if not segment.is_gap:
            yield from units_of_segment(
                files, segments, segment, max(first, segment.start), min(end, segment.known_end)
            )


def units_of_segment(files: Files, segments: Segments, segment: Segment, position: int, end: int) -> Iterator[Place]:
    """Yield the place of each unit from `position` to `end`, going by the sizes that their headers claim.

    Raises BadUnit where no header is, or a unit would end behind `end`; nothing else of it has been checked.
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
                raise BadUnit(f"a unit of {size} bytes where {end - position - at} are left")
            if size > len(block) - at:
                wanted = max(wanted, size)
                break
            yield block, at, position + at
            at += size
        position += at


def readable_end(files: Files, segments: Segments, segment: Segment) -> int:
    """Return the position where a segment's units end at the latest: at its end, or with its file."""
    return min(segment.known_end, segment.start + files.size(segments.file_of(segment)))
