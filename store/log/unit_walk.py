"""Reads the units of segment files: one after another, block by block, or by searching among other bytes for them.

In all functions, `first` is the position of the first byte of the file.
"""

from collections.abc import Iterator
from typing import Final, NamedTuple

from duolog.store.files import Files, ReadableFiles
from duolog.store.log.format import (
    ALIGNMENT,
    MAGIC_BYTES,
    POSITION_AT,
    UNIT_HEADER_SIZE,
    BadUnit,
    Entry,
    UnitHeader,
    check_unit,
    entries_of,
    unit_size,
)
from duolog.store.log.segment import Segment, Segments

# Size of one read, unless a single unit is larger. A buffer of 4 MiB or more would be new memory from the system each
# time (`bridge/running/allocator.py`), whose pages it clears; that was half of the time of a replay.
BLOCK_BYTES: Final = 3 << 20

# (block, index of the unit's first byte in the block, position of the unit). The block contains the whole unit.
UnitLocation = tuple[memoryview, int, int]


class Unit(NamedTuple):
    """One unit of the log. `content` is the whole unit, header included."""

    header: UnitHeader
    content: memoryview

    def entries(self) -> Iterator[Entry]:
        """Yield the entries of the unit, whose frames are slices of `content`."""
        return entries_of(self.content, self.header.position, self.header.entry_count)


def units_of_log(files: Files, segments: Segments, first: int, end: int) -> Iterator[UnitLocation]:
    """Yield the units from position `first` to `end`, all of which must have been verified."""
    for segment in segments.between(first, end):
        if not segment.is_gap:
            yield from units_of_file(
                files,
                segments.file_of(segment),
                segment.start,
                max(first, segment.start),
                min(end, segment.known_end),
            )


def units_of_file(files: ReadableFiles, handle: int, first: int, position: int, end: int) -> Iterator[UnitLocation]:
    """Yield the units of a file from `position` to `end`, by the sizes in their headers.

    Only the magic and the size of a unit are verified. Raises BadUnit if the next unit has no valid magic and size, or
    ends above `end`.
    """
    wanted = BLOCK_BYTES
    while position < end:
        block = memoryview(files.read(handle, min(wanted, end - position), position - first))
        if not block:  # The file became shorter meanwhile.
            raise BadUnit(f"the file ends below position {position}")
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


def read_unit(files: ReadableFiles, handle: int, first: int, position: int, end: int) -> Unit:
    """Read and verify the unit at this position, which must end at or below `end`. Raises BadUnit."""
    size = unit_size(memoryview(files.read(handle, UNIT_HEADER_SIZE, position - first)), 0)
    if size > end - position:
        raise BadUnit(f"the unit has {size} bytes, and only {end - position} bytes follow")
    content = memoryview(files.read(handle, size, position - first))
    return Unit(check_unit(content, 0, position), content)


def search_units(
    files: ReadableFiles, handle: int, first: int, block: bytes, position: int, end: int
) -> Iterator[UnitHeader]:
    """Yield the headers of the valid units that begin in a block of a file, among other bytes.

    `position` is the position of the block's first byte, a multiple of ALIGNMENT. The units end at or below `end`.
    """
    at = block.find(MAGIC_BYTES)
    while at >= 0:
        # A message body may contain the magic very often; comparing the position first is cheap.
        own = block[at + POSITION_AT : at + POSITION_AT + 8]
        size = 1
        if at % ALIGNMENT == 0 and (own == (position + at).to_bytes(8, "big") or len(own) < 8):
            try:
                header = read_unit(files, handle, first, position + at, end).header
            except BadUnit:
                pass
            else:
                yield header
                size = header.size
        at = block.find(MAGIC_BYTES, at + size)


def size_without_zeros(block: bytes) -> int:
    """Return the size of a block without the zeros at its end."""
    if block == bytes(len(block)):  # Compared first: most of the reserve is zeros, and `rstrip` is slow there.
        return 0
    return len(block.rstrip(b"\0"))


def readable_end(files: Files, segments: Segments, segment: Segment) -> int:
    """Return the position up to which a segment can contain units: its end, or the end of its file if that is lower."""
    return min(segment.known_end, segment.start + files.size(segments.file_of(segment)))
