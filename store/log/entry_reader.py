"""The class EntryReader: reads entries of queues by offset, by location, by time, by position and by key.

    EntryReader.read(queue, offset) -> rows of the index -> the write buffer has the entries    returned at once
                                                         -> the page cache has the entries      returned at once
                                                         -> neither                             ColdRead, in a thread

No method waits for the disk in the loop's thread.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple, Protocol, TypeVar

from duolog.store.entry import EntryLocation, Stored
from duolog.store.errors import OffsetOutOfRange
from duolog.store.index.key_index import KeyIndex, Search
from duolog.store.index.queue import Queue
from duolog.store.index.queues import Queues
from duolog.store.index.rows import Row
from duolog.store.index.scan import TagScan
from duolog.store.log.cold_read import ColdEntries, ColdRead
from duolog.store.log.commitlog import CommitLog
from duolog.store.log.format import NO_OFFSET
from duolog.store.log.frames import Frames
from duolog.store.workers import Executors, Failure

READ_ENTRIES_MAX = 1024  # Default limit for the entries that one read returns.

T = TypeVar("T")


class FindRow(Protocol):
    """Returns the number of an index row; None if `block` is false and the search would wait for the disk."""

    def __call__(self, *, block: bool) -> int | None: ...


class RecordAddress(NamedTuple):
    """The queue and the offset of one record."""

    queue: Queue
    offset: int


class EntryReader:
    """Reads the entries of one log."""

    def __init__(self, frames: Frames, log: CommitLog, queues: Queues, keys: KeyIndex, executors: Executors) -> None:
        self._frames = frames
        self._log = log
        self._queues = queues
        self._keys = keys
        self._executors = executors

    # -- By offset

    def read(
        self,
        queue: Queue,
        offset: int,
        *,
        max_bytes: int,
        until: int,
        max_entries: int = READ_ENTRIES_MAX,
        scan: TagScan | None = None,
    ) -> list[Stored] | ColdRead:
        """Return whole entries, from the one that contains `offset` on, that end at or below offset `until`.

        At most `max_entries` entries with at most `max_bytes` bytes of frames are returned, and there may be fewer. The
        first entry is returned even if it is larger than `max_bytes`. `until` must not exceed `queue.visible_end`.

        With a `scan`, only the entries that it finds are returned; there may be none, and `scan.next_offset` says how
        far the scan has read. Without a `scan`, [] is returned only if `offset` equals `until`.

        Returns a ColdRead if the first entry is neither in the write buffer nor in the page cache. Raises
        OffsetOutOfRange if `offset` is below the log start or above `until`.
        """
        if not queue.start_offset <= offset <= until:
            raise OffsetOutOfRange(str(queue), offset, queue.start_offset, until)
        if offset == until:
            return []
        find = queue.index.rows_from if scan is None else partial(scan.rows, queue.index)
        rows = find(offset, max_entries, max_bytes, until)
        if rows is not None:
            found = self._frames.cached(rows) if rows else []
            if found or not rows:
                return found

        def find_rows() -> list[Row]:
            return find(offset, max_entries, max_bytes, until, block=True) or []

        return ColdRead(self._executors.readers, self._frames, queue, offset, find_rows)

    def read_one(self, queue: Queue, offset: int, *, until: int) -> Stored | ColdRead:
        """Return the entry that contains `offset`, as `read` does, in a third of the time if the entry is recent."""
        row = queue.index.tail_row(offset)
        if row is not None and queue.start_offset <= offset < until:
            found = self._frames.in_write_buffer(row)
            if found is not None:
                return found
        entries = self.read(queue, offset, max_bytes=1, max_entries=1, until=until)
        return entries[0] if isinstance(entries, list) else entries

    def stored_ms_at(self, queue: Queue, offset: int) -> int:
        """Return the store time of the entry that contains `offset`.

        Returns 0 if there is no such entry, or if reading its index row would wait for the disk.
        """
        if not queue.start_offset <= offset < queue.end_offset:
            return 0
        number = queue.index.find_offset(offset)
        rows = queue.index.rows(number) if number is not None else None
        return rows[0][5] if rows else 0

    def last_stored_ms(self, queue: Queue) -> int:
        """Return the store time of the queue's last entry, or 0 as `stored_ms_at` does."""
        return self.stored_ms_at(queue, queue.end_offset - 1)

    # -- By location

    def read_at(self, locations: Sequence[EntryLocation]) -> list[Stored] | ColdEntries:
        """Return the frames at these locations, which must be in the order of their positions and must still exist.

        The frames need not be visible. Only `position`, `form` and `frame` of each Stored are set to valid values.
        Returns ColdEntries if a frame is neither in the write buffer nor in the page cache.
        """
        rows = _rows_at(locations)
        floor = self._log.write_buffer.floor
        if rows[0][1] >= floor:
            return self._frames.cached(rows)
        in_files = [row for row in rows if row[1] < floor]
        in_memory = self._frames.cached(rows[len(in_files) :]) if len(in_files) < len(rows) else []
        found = self._frames.cached(in_files)
        if len(found) == len(in_files):
            return found + in_memory
        return ColdEntries(self._executors.readers, self._frames, in_files, in_memory)

    def read_written(self, locations: Sequence[EntryLocation]) -> list[Stored]:
        """Return the frames at these locations from the segment files. Blocks, so worker threads call it.

        Raises OSError or StoreError.
        """
        return self._frames.from_disk(_rows_at(locations))

    # -- By time

    def find_by_time(self, queue: Queue, timestamp_ms: int, until: int) -> Stored | ColdRead | None:
        """Return the first entry with a record timestamp at or above this time; None if there is no such entry.

        The ColdRead passes a list of one entry or an empty list.
        """
        return self._find_entry(queue, until, partial(queue.index.find_latest, timestamp_ms))

    def find_by_store_time(self, queue: Queue, stored_ms: int, until: int) -> Stored | ColdRead | None:
        """Return the first entry whose store time is at or above this time; None if there is no such entry."""
        return self._find_entry(queue, until, partial(queue.index.find_stored, stored_ms))

    def _find_entry(self, queue: Queue, until: int, find: FindRow) -> Stored | ColdRead | None:
        start_offset = queue.start_offset
        if start_offset >= until:
            return None
        rows = _rows_found(queue, find, start_offset, until, block=False)
        if rows is not None:
            found = self._frames.cached(rows) if rows else []
            if found or not rows:
                return found[0] if found else None

        def find_rows() -> list[Row]:
            return _rows_found(queue, find, start_offset, until, block=True) or []

        return ColdRead(self._executors.readers, self._frames, queue, start_offset, find_rows)

    # -- By position, by key

    def find_address(self, position: int, done: Callable[[RecordAddress | Failure | None], None]) -> None:
        """Find the visible record whose address is `position`: the position of its entry + its index in the entry.

        `done` is called with None if there is no such record. A reader thread searches the index of every queue that
        has entries in the segment, so the method is meant for single messages.
        """
        queues: list[Queue] = []
        if self._log.segments.start <= position < self._log.written:
            keys = self._log.segments.find(position).last_offsets
            queues = [queue for queue in map(self._queues.find, keys) if queue is not None]
        self._executors.readers.submit(partial(_find_address, queues, position), done)

    def search(
        self, where: Sequence[tuple[Queue, int]], search: Search[T], done: Callable[[Search[T] | Failure], None]
    ) -> None:
        """Search these queues, each up to an offset, for records with a key. The search thread may need seconds."""
        self._executors.searches.submit(partial(self._keys.search, where, self._log.durable, search), done)


def _rows_at(locations: Sequence[EntryLocation]) -> list[Row]:
    return [(NO_OFFSET, position, size, 1, 0, 0, 0, form, 0) for position, size, form in locations]


def _rows_found(queue: Queue, find: FindRow, start_offset: int, until: int, *, block: bool) -> list[Row] | None:
    """Return the row that `find` returns, or the row of the log start if that is later.

    Returns [] if the entry of the row ends above offset `until`, and None if the read would wait for the disk.
    """
    number = find(block=block)
    first = queue.index.find_offset(start_offset, block=block)
    if number is None or first is None:
        return None
    rows = queue.index.rows(max(number, first), block=block)
    return rows if rows is None else [row for row in rows if row[0] + row[3] <= until]


def _find_address(queues: list[Queue], position: int) -> RecordAddress | None:
    for queue in queues:
        index = queue.index
        above = index.find_position(position + 1, block=True)
        if above is None or above <= index.first_row:
            continue
        for base_offset, start, _, count, *_ in index.rows(above - 1, block=True) or []:
            offset = base_offset + position - start
            if offset < base_offset + count and queue.start_offset <= offset < queue.visible_end:
                return RecordAddress(queue, offset)
    return None
