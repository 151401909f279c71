"""A dropped segment: a sealed segment of the log whose bytes are only in the object store. Its drop marker:

    log/<start>-<end>.remote

    magic u32 "DLR1" | crc u32 | start u64 | size u32 | crc u32 | object_start u64 | object_end u64 | start u64 | ...

    crc of the file          CRC-32C of all bytes after this field
    start, size, crc         a chunk: a range of positions, and the CRC-32C of its bytes in the local file
    object_start, _end       the positions of the segment object that contains the chunk

The chunks follow each other without a gap. No chunk crosses the end of an object, so the loss of one object affects
only the positions of this object.
"""

from bisect import bisect_right
from collections.abc import Callable, Generator, Sequence
from operator import attrgetter
from struct import Struct, error
from typing import Final, NamedTuple

from crc32c import crc32c

from duolog.store.errors import Corruption
from duolog.store.files import Files
from duolog.store.log.segment import LOG_DIRECTORY, REMOTE_SUFFIX, Segment
from duolog.store.recovery.damage import BadRange, scan_segment
from duolog.store.shared.segments.manifest import SegmentObject

_MAGIC: Final = 0x444C5231  # "DLR1"
_HEAD: Final = Struct(">II")
_CHUNK: Final = Struct(">QIIQQ")
_START: Final = attrgetter("start")


class RemoteChunk(NamedTuple):
    """A range of positions that is read from the object store by one request."""

    start: int
    size: int
    crc: int
    object_start: int
    object_end: int

    @property
    def key(self) -> str:
        """The key of the segment object that contains the range."""
        return SegmentObject(self.object_start, self.object_end, 0).key


class RemoteSegment:
    """A dropped segment, which has at least one chunk."""

    def __init__(self, chunks: Sequence[RemoteChunk]) -> None:
        self.chunks = chunks
        self.start, self.end = chunks[0].start, chunks[-1].start + chunks[-1].size

    @property
    def path(self) -> str:
        """The path of the segment file before the drop, which the store still uses."""
        return Segment(self.start).path

    @property
    def drop_marker_path(self) -> str:
        """The path of the drop marker."""
        return f"{LOG_DIRECTORY}/{self.start:020}-{self.end:020}{REMOTE_SUFFIX}"

    def between(self, start: int, end: int) -> Sequence[RemoteChunk]:
        """Return the chunks that contain the positions from `start` up to `end`, which must be in the segment."""
        first = bisect_right(self.chunks, start, key=_START) - 1
        last = bisect_right(self.chunks, end - 1, key=_START)
        return self.chunks[first:last]

    def read(self, at: int, size: int, read: Callable[[RemoteChunk, int, int], bytes]) -> bytes:
        """Return `size` bytes from byte `at` of the segment on, fewer only at its end.

        `read(chunk, size, at)` returns `size` bytes of a chunk from its byte `at` on.
        """
        first = self.start + at
        end = min(first + size, self.end)
        if first >= end:
            return b""
        parts: list[bytes] = []
        for chunk in self.between(first, end):
            start, limit = max(first, chunk.start), min(end, chunk.start + chunk.size)
            parts.append(read(chunk, limit - start, start - chunk.start))
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def after(self, chunk: RemoteChunk, count: int) -> Sequence[RemoteChunk]:
        """Return the next chunks of the segment."""
        number = bisect_right(self.chunks, chunk.start, key=_START)
        return self.chunks[number : number + count]

    def before(self, chunk: RemoteChunk) -> RemoteChunk | None:
        """Return the chunk before this one; None if it is the first one of the segment."""
        number = bisect_right(self.chunks, chunk.start, key=_START) - 1
        return self.chunks[number - 1] if number else None


def encode_drop_marker(segment: RemoteSegment) -> bytes:
    packed = bytearray(_HEAD.pack(_MAGIC, 0) + b"".join(_CHUNK.pack(*each) for each in segment.chunks))
    packed[4:8] = crc32c(memoryview(packed)[8:]).to_bytes(4, "big")
    return bytes(packed)


def decode_drop_marker(path: str, data: bytes) -> RemoteSegment:
    """Decode a drop marker. Raises Corruption."""
    try:
        magic, crc = _HEAD.unpack_from(data)
        chunks = [RemoteChunk._make(each) for each in _CHUNK.iter_unpack(data[8:])]
    except error:
        raise Corruption(f"{path} has {len(data)} bytes, which is no size of such a file; {_REMEDY}") from None
    if magic != _MAGIC or crc32c(data[8:]) != crc or not chunks:
        raise Corruption(f"{path} is damaged: its magic is {magic:#010x} and its CRC is {crc:#010x}; {_REMEDY}")
    return RemoteSegment(chunks)


_REMEDY: Final = "remove the data directory, and the start downloads the log again; what was not uploaded is lost"


# -- Making


def covering(objects: Sequence[SegmentObject], start: int, end: int) -> Sequence[SegmentObject] | None:
    """Return those of the objects, which are in order, that contain a range; None if they do not contain all of it."""
    found, position = list[SegmentObject](), start
    for each in objects:
        if each.end > position and each.start < end:
            if each.start > position:
                return None
            found.append(each)
            position = each.end
    return found if position >= end else None


def measure(
    files: Files, segment: Segment, objects: Sequence[SegmentObject], chunk_bytes: int
) -> Generator[RemoteChunk, None, None]:
    """Yield the chunks of a sealed segment whose file is on the disk. `objects` are those that `covering` has returned.

    Each unit of the file is verified, so that damage of the disk is not taken for what the objects have. Blocks before
    each chunk. Raises Corruption and OSError.
    """
    units, verified = scan_segment(files, segment, segment.known_end), segment.start
    handle = files.open(segment.path)
    try:
        for made in objects:
            start, end = max(made.start, segment.start), min(made.end, segment.known_end)
            for at in range(start, end, chunk_bytes):
                size = min(chunk_bytes, end - at)
                while verified < at + size:
                    unit = next(units)
                    if isinstance(unit, BadRange):
                        raise Corruption(f"{unit.path} is damaged from position {unit.start} on: {unit.reason}")
                    verified = unit.header.position + unit.header.size
                crc = crc32c(files.read(handle, size, at - segment.start))
                yield RemoteChunk(at, size, crc, made.start, made.end)
    finally:
        files.close(handle)
