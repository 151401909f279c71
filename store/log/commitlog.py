"""The class CommitLog: units are appended to the write buffer, written to segments, and synced.

    durable <= written <= next_position

    begin, commit  encode a unit into the write buffer         the positions below `next_position` are assigned
    write          writes all appended units by one pwrite     a killed process loses nothing below `written`
    SyncTask       fdatasync in the flusher's thread           a power failure loses nothing below `durable`

If a write raises an OSError, the unwritten bytes remain in the write buffer, and the next `write` writes the same bytes
at the same positions. `store/write_state.py` decides what the error means for appends and promises.
"""

from dataclasses import dataclass

from duolog.store.errors import EntryTooLarge
from duolog.store.files import Files
from duolog.store.log.format import UNIT_SIZE_MAX, UnitHeader, seal_unit
from duolog.store.log.segment import LOG_DIRECTORY, Segment, Segments
from duolog.store.log.write_buffer import Chunk, WriteBuffer
from duolog.store.options import StoreOptions


class CommitLog:
    """The log of one run of the broker, whose number is `epoch`."""

    def __init__(self, files: Files, options: StoreOptions, segments: Segments, next_position: int, epoch: int) -> None:
        """Continue the log at `next_position`. Recovery must have synced everything below it."""
        assert segments.active.start <= next_position, f"{segments.active} begins after {next_position}"
        self.segments = segments
        self.epoch = epoch
        self.next_position = next_position
        self.written = next_position
        self.durable = next_position
        self.write_buffer = WriteBuffer(next_position, options.tail_bytes)
        self._files = files
        self._segment_bytes = min(options.segment_bytes, UNIT_SIZE_MAX)
        self._reserve_bytes = options.reserve_bytes
        # Start of the newest segment file that this run has created; -1 if there is none. The first SyncTask for that
        # segment also syncs the directory.
        self._created = -1
        # A unit that ends at or below this position fits into the open chunk and the active segment.
        self._room_end = next_position

    # -- Appending

    def begin(self, size: int) -> Chunk:
        """Return a chunk with room for a unit of `size` bytes. The caller encodes the unit at byte `used` of the chunk.

        The log does not change before `commit`. Raises EntryTooLarge.
        """
        if self.next_position + size > self._room_end:
            self._make_room(size)
        return self.write_buffer.open

    def commit(self, chunk: Chunk, size: int, stored_ms: int, entry_count: int, flags: int = 0) -> None:
        """Write the header of the unit that was encoded at byte `used` of the chunk, and make it part of the log."""
        at = chunk.used
        unit = chunk.writable[at : at + size]
        seal_unit(unit, self.epoch, self.next_position, self.durable, stored_ms, entry_count, flags)
        chunk.used = at + size
        self.next_position += size

    def take(self, chunk: Chunk, header: UnitHeader) -> None:
        """Make a whole unit of another broker, which is at byte `used` of the chunk, part of the log."""
        self.epoch = header.epoch
        chunk.used += header.size
        self.next_position += header.size

    def _make_room(self, size: int) -> None:
        if size > self._segment_bytes:
            raise EntryTooLarge(f"the unit has {size} bytes, the limit is {self._segment_bytes} (store.segment_bytes)")
        segment = self.segments.active
        if self.next_position + size > segment.start + self._segment_bytes:
            segment = self.segments.add(self.next_position)
        segment_end = segment.start + self._segment_bytes
        chunk = self.write_buffer.add_chunk(size, segment_end - self.next_position, self.written)
        self._room_end = min(segment_end, chunk.start + chunk.size)

    @property
    def unwritten_bytes(self) -> int:
        """The number of bytes that were appended and not written yet."""
        return self.next_position - self.written

    # -- Writing

    def write(self) -> None:
        """Write all appended units, by one pwrite for each segment. Raises OSError."""
        while self.written < self.next_position:
            segment = self.segments.find(self.written)
            end = self.next_position if segment.end is None else segment.end
            file = self._file_with_room(segment, end - segment.start)
            self._files.write(file, self.write_buffer.slices(self.written, end), self.written - segment.start)
            self.written = end

    def _file_with_room(self, segment: Segment, size: int) -> int:
        """Return the handle of the segment's file, with blocks for `size` bytes allocated.

        On a full disk the allocation fails, and not the write in the middle of a unit.
        """
        if not segment.exists:
            self._give_back_reserve(segment.start)
            self.segments.create_file(segment)
            self._created = segment.start
        file = self.segments.file_of(segment)
        if size > segment.reserved:
            reserve = min(max(self._segment_bytes, size), size + self._reserve_bytes)
            self._files.reserve(file, reserve)
            segment.reserved = reserve
        return file

    def _give_back_reserve(self, end: int) -> None:
        """Truncate the segment that ends at `end` to its content, which is written."""
        for segment in self.segments.between(end - 1, end):
            if segment.reserved > end - segment.start:
                self._files.truncate(self.segments.file_of(segment), end - segment.start)
                segment.reserved = end - segment.start

    # -- Syncing

    def sync_task(self, end: int) -> "SyncTask":
        """Return the task that makes the log durable up to `end`, which must be at or below `written`.

        At most one task may be in progress. Raises OSError if a file cannot be opened.
        """
        assert self.durable < end <= self.written, f"sync to {end}, {self.durable} .. {self.written}"
        segments = self.segments.between(self.durable, end)
        handles = [self.segments.file_of(segment) for segment in segments]
        for segment in segments:
            segment.in_sync = True
        return SyncTask(self._files, segments, handles, self._created >= self.durable, end)

    def synced(self, task: "SyncTask") -> None:
        """Move `durable` to the end of a task that has succeeded."""
        assert self.durable < task.end <= self.written, f"synced to {task.end}, {self.durable} .. {self.written}"
        self.durable = task.end
        for segment in task.segments:
            segment.in_sync = False


@dataclass(slots=True)
class SyncTask:
    """Makes the log durable up to `end`. `run` blocks, so the flusher's thread calls it."""

    files: Files
    segments: list[Segment]
    handles: list[int]  # Handles of the segments' files.
    names: bool  # Whether the directory must be synced, too, because a segment file is new.
    end: int

    def run(self) -> None:
        """Sync the files. Raises OSError; the content of the disk is unknown after it."""
        for handle in self.handles:
            self.files.sync(handle)
        if self.names:
            self.files.sync_directory(LOG_DIRECTORY)
