"""The class Frames: reads the frames that index rows locate, from the write buffer or from segment files.

The entries of a queue are interleaved with those of other queues. Entries with small gaps between them are read by one
call, because reading a small gap costs less than another call.
"""

from collections.abc import Callable, Iterator
from functools import partial

from duolog.store.entry import Buffer, Stored, new_tuple
from duolog.store.errors import Corruption
from duolog.store.files import Files, NotOnDisk
from duolog.store.index.rows import Row
from duolog.store.log.commitlog import CommitLog
from duolog.store.log.format import ENTRY_HEADER_SIZE
from duolog.store.log.segment import Segment

CACHED_GAP_BYTES = 16 * 1024  # Largest gap in reads from the page cache: copying it costs as much as another call.
DISK_GAP_BYTES = 64 * 1024  # Largest gap in reads from the disk: the kernel would read most of it ahead anyway.
SPAN_BYTES_MAX = 1 << 20  # Size of one read, unless a single frame is larger.

# read(segment, size, at) reads `size` bytes at byte `at` of the segment's file; it returns None if it would block.
ReadSegment = Callable[[Segment, int, int], Buffer | None]
ReadHandle = Callable[[int, int, int], Buffer]  # `Files.read`, or `Files.read_on_disk`


class Frames:
    """Reads frames of one log. `cached` is called in the loop's thread, `from_disk` in reader threads."""

    def __init__(self, files: Files, log: CommitLog) -> None:
        self._files = files
        self._log = log

    def cached(self, rows: list[Row]) -> list[Stored]:
        """Return the entries of the first rows, up to the first that cannot be read without waiting for the disk.

        `rows` must not be empty.
        """
        floor = self._log.write_buffer.floor
        if rows[0][1] >= floor:
            return self._from_write_buffer(rows)
        in_files = [row for row in rows if row[1] < floor]
        found = self._from_files(in_files, self._read_cached, CACHED_GAP_BYTES)
        if len(found) == len(in_files) < len(rows):
            found += self._from_write_buffer(rows[len(found) :])
        return found

    def from_disk(self, rows: list[Row]) -> list[Stored]:
        """Return the entries of all rows, waiting for the disk. The rows must be of written entries.

        Waits for the object store, too, if entries are there only. Raises OSError, and StoreError if a segment was
        removed.
        """
        return self._from_files(rows, partial(self._read_blocking, self._files.read), DISK_GAP_BYTES)

    def on_disk(self, rows: list[Row]) -> list[Stored]:
        """Return the entries of the first rows, up to the first that is in the object store only.

        Waits for the disk. Raises NotOnDisk if the first row's entry is not on the disk, and what `from_disk` raises.
        """
        found: list[Stored] = []
        try:
            self._from_files(rows, partial(self._read_blocking, self._files.read_on_disk), DISK_GAP_BYTES, found)
        except NotOnDisk:
            if not found:
                raise
        return found

    # -- The write buffer

    def in_write_buffer(self, row: Row) -> Stored | None:
        """Return one entry if the write buffer holds it."""
        base_offset, position, size, count, latest_ms, stored_ms, tags, form, _ = row
        chunk = self._log.write_buffer.chunk_of(position)
        if chunk is None:
            return None
        at = position + ENTRY_HEADER_SIZE - chunk.start
        fields = (base_offset, count, form, position, stored_ms, latest_ms, tags, chunk.view[at : at + size])
        return new_tuple(Stored, fields)

    def _from_write_buffer(self, rows: list[Row]) -> list[Stored]:
        chunk = self._log.write_buffer.chunk_of(rows[0][1])
        assert chunk is not None, f"position {rows[0][1]} is not in the write buffer"
        end = chunk.end
        if rows[-1][1] < end:
            return _cut(rows, chunk.view, chunk.start)
        here = [row for row in rows if row[1] < end]
        return _cut(here, chunk.view, chunk.start) + self._from_write_buffer(rows[len(here) :])

    # -- Files

    def _from_files(
        self, rows: list[Row], read: ReadSegment, gap_bytes: int, found: list[Stored] | None = None
    ) -> list[Stored]:
        """Append the entries of the rows to `found`, and return it."""
        found = [] if found is None else found
        for segment, span in self._spans(rows, gap_bytes):
            start = span[0][1] + ENTRY_HEADER_SIZE
            size = span[-1][1] + ENTRY_HEADER_SIZE + span[-1][2] - start
            piece = read(segment, size, start - segment.start)
            if piece is None:
                break
            if len(piece) < size:
                raise Corruption(f"{segment.path} ends before the end of the entry at position {span[-1][1]}")
            found += _cut(span, memoryview(piece).toreadonly(), start)
        return found

    def _spans(self, rows: list[Row], gap_bytes: int) -> Iterator[tuple[Segment, list[Row]]]:
        """Group neighbouring rows into spans; one call reads a span."""
        first = end = limit = 0  # The span's first row, the end of its last frame, and the limit of that end.
        segment: Segment | None = None
        for number, (_, position, size, *_) in enumerate(rows):
            frame_end = position + ENTRY_HEADER_SIZE + size
            if segment is None or position > end + gap_bytes or frame_end > limit:
                if segment is not None:
                    yield segment, rows[first:number]
                first = number
                segment = self._log.segments.find(position)
                limit = min(segment.known_end, position + SPAN_BYTES_MAX)
            end = frame_end
        if segment is not None:
            yield segment, rows[first:]

    def _read_cached(self, segment: Segment, size: int, at: int) -> Buffer | None:
        file = self._log.segments.open_file_of(segment)
        if file is None:
            return None
        return self._files.read_cached(file, size, at)

    def _read_blocking(self, read: ReadHandle, segment: Segment, size: int, at: int) -> Buffer:
        # The thread opens its own handle, because the loop's thread may close a shared one during the read.
        handle = self._files.open(segment.path)
        try:
            return read(handle, size, at)
        finally:
            self._files.close(handle)


def _cut(rows: list[Row], view: memoryview, start: int) -> list[Stored]:
    """Return the entries of rows, with frames that are slices of `view`, the bytes of the log from `start` on."""
    start -= ENTRY_HEADER_SIZE
    return [
        new_tuple(
            Stored,
            (
                base_offset, count, form, position, stored_ms, latest_ms, tags,
                view[position - start : position - start + size],
            ),
        )
        for base_offset, position, size, count, latest_ms, stored_ms, tags, form, _ in rows
    ]  # fmt: skip
