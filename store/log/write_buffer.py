"""The write buffer: the end of the log in memory.

It holds all unwritten units and the units that were written last. Reads at the end of a queue are served from it
without a system call.

    chunk 0             chunk 1             chunk 2 (open)
    [unit|unit|unit..]  [unit|unit...    ]  [unit|unit|        ]
     ^ floor                  ^ written            ^ end

Units are encoded directly into the open chunk, so there is no Python object for each message. A chunk belongs to one
segment, and a unit to one chunk, so a frame is always one slice. Slices are read-only views and not copies. A slice
keeps its whole chunk in memory, CHUNK_BYTES even for a small frame, so readers must limit how long they hold slices.
"""

from bisect import bisect_right
from typing import Final

from duolog.store.log.format import POSITION_MAX

CHUNK_BYTES: Final = 1 << 20


class Chunk:
    """`size` bytes of memory for the log from position `start` on. The first `used` bytes contain units."""

    __slots__ = ("buffer", "size", "start", "used", "view", "writable")

    def __init__(self, start: int, size: int) -> None:
        self.start = start
        self.size = size
        self.used = 0
        self.buffer = bytearray(size)
        self.writable = memoryview(self.buffer)
        self.view = self.writable.toreadonly()

    @property
    def end(self) -> int:
        """The position after the last unit of the chunk."""
        return self.start + self.used


class WriteBuffer:
    """Chunks in the order of their positions; the last one is open.

    While the chunks have more than `bytes_max` bytes, the oldest written chunks are dropped, except those that
    `keep_from` keeps. Unwritten chunks are never dropped, so the appender must write before they exceed the limit.
    """

    __slots__ = ("_bytes", "_bytes_max", "_chunks", "_kept_bytes", "_kept_from", "_starts", "open")

    def __init__(self, start: int, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self.open = Chunk(start, 0)
        self._chunks = [self.open]
        self._starts = [start]
        self._bytes = 0
        self._kept_from, self._kept_bytes = POSITION_MAX, 0

    @property
    def floor(self) -> int:
        """The lowest position that the buffer holds."""
        return self._starts[0]

    def add_chunk(self, size: int, size_max: int, written: int) -> Chunk:
        """Open a new chunk with room for a unit of `size` bytes, and drop written chunks beyond `bytes_max`.

        `size_max` is the number of bytes left in the segment, `written` the position up to which the log is written.
        """
        chunk = Chunk(self.open.end, max(size, min(CHUNK_BYTES, self._bytes_max, size_max)))
        self.open = chunk
        self._chunks.append(chunk)
        self._starts.append(chunk.start)
        self._bytes += chunk.size
        self._drop(written)
        return chunk

    def keep_from(self, position: int, bytes_max: int) -> None:
        """Keep the chunks with units from `position` on in up to `bytes_max` bytes beyond the limit.

        The log must be written up to `position`.
        """
        self._kept_from, self._kept_bytes = position, bytes_max
        self._drop(position)

    def _drop(self, written: int) -> None:
        """Drop the oldest chunks beyond the limit, all of whose units are below `written`."""
        chunks = self._chunks
        while self._bytes > self._bytes_max and len(chunks) > 1 and chunks[0].end <= written:
            if chunks[0].end > self._kept_from and self._bytes <= self._bytes_max + self._kept_bytes:
                break
            self._bytes -= chunks.pop(0).size
            del self._starts[0]

    def chunk_of(self, position: int) -> Chunk | None:
        """Return the chunk that holds this position; None if it was dropped."""
        number = bisect_right(self._starts, position) - 1
        return self._chunks[number] if number >= 0 else None

    def slices(self, start: int, end: int) -> list[memoryview]:
        """Return the bytes from position `start` to `end`, which the buffer must hold, as one slice for each chunk."""
        last = self._chunks[-1]
        if last.start <= start < end <= last.start + last.used:  # This is the case for nearly every write.
            return [last.view[start - last.start : end - last.start]]
        number = bisect_right(self._starts, start) - 1
        found = []
        for chunk in self._chunks[number:]:
            if chunk.start >= end:
                break
            part = chunk.view[max(0, start - chunk.start) : min(chunk.used, end - chunk.start)]
            if part:
                found.append(part)
        return found
