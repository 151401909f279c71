"""The dense index of one queue: a row for each entry, in offset order.

    row   0 ..... 65535       65536 .... 131071       131072 ..........
         [     a file     ]   [     a file     ]      [   a file  : not written yet ]
                                                            [  the tail, in memory  ]

`store/index/rows.py` has the format of a row. Rows are numbered from 0 for the life of the index. All rows are derived
from the log and have no checksum. At a start only the rows that a checkpoint has counted are trusted; recovery appends
the others again.

`append` never touches the disk; it tells the caller when the tail has reached TAIL_BYTES_MAX and should be flushed. A
flush has three steps: `begin_flush` takes the rows that no file has, a thread writes them (`IndexFiles.write`), and
`end_flush` notes that. A flush leaves TAIL_BYTES_KEPT in memory for readers at the end of the queue, and nothing if no
row was appended since the previous flush: an idle queue holds no rows in memory.

Threads: all calls come from the loop's thread, where the methods with a parameter `block` never wait for the disk: they
return None instead. With `block=True` the same methods wait, and may be called in any thread.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from duolog.store.entry import Buffer
from duolog.store.index.index_files import (
    INDEX_DIRECTORY,
    PROBE_ROWS,
    ROW_SIZE,
    IndexFiles,
    NotCached,
)
from duolog.store.index.rows import (
    BASE_OFFSET,
    BEFORE_ALL_MS,
    BYTES_BEFORE,
    LATEST_MS,
    POSITION,
    ROW,
    STORED_MS,
    Column,
    Row,
    RowTail,
    is_within,
    search_rows,
    within,
)
from duolog.store.index.store_times import StepBack, stretches

TAIL_BYTES_MAX = 64 * 1024  # Rows of a queue in memory at which a flush is wanted: 1,170 rows in one write.
TAIL_BYTES_KEPT = 8 * 1024  # Rows that a flush leaves in memory.
ROWS_AT_ONCE = 32  # Rows that a read unpacks first; it then doubles the number as long as its limits allow.


@dataclass(frozen=True, slots=True)
class RowsToWrite:
    """Rows that no file has yet, taken by `begin_flush`, to be written by `IndexFiles.write`."""

    index: "QueueIndex"
    first_row: int
    rows: bytearray

    @property
    def end_row(self) -> int:
        return self.first_row + len(self.rows) // ROW_SIZE

    def write(self, files: IndexFiles) -> None:
        """Write the rows. Blocks; raises OSError."""
        files.write(self.index.directory, self.first_row, self.rows)


class QueueIndex:
    """The index of one queue; a new one has no file until its first flush.

    It has more than 20 methods because appending, flushing, dropping and searching share one state: which rows there
    are, and which of them are in memory and in files.
    """

    __slots__ = (
        "_files",
        "_flushed_row",
        "_named_to",
        "_tail",
        "_taken_row",
        "_written_row",
        "directory",
        "end_offset",
        "first_offset",
        "first_row",
        "latest_ms",
        "total_bytes",
    )

    def __init__(self, files: IndexFiles, topic: int, queue_id: int) -> None:
        self._files = files
        self.directory = f"{INDEX_DIRECTORY}/{topic}/{queue_id}"
        self._tail = RowTail(0)
        self._written_row = 0  # Invariant: first_row <= tail.first_row <= written_row <= taken_row <= end_row.
        self._taken_row = 0  # Rows below it are in files or in a flush that runs.
        self._named_to = 0  # The directory entries of files with rows below it are noted to be synced.
        self._flushed_row = 0  # `end_row` at the last flush; the queue is idle if it has not grown since.
        self.first_row = 0  # The first row that was not dropped; always the first row of a file.
        self.first_offset = 0  # Base offset of `first_row`.
        self.end_offset = 0  # The offset after the last record of the last row.
        self.latest_ms = BEFORE_ALL_MS
        self.total_bytes = 0  # Frame bytes of all rows, dropped ones included.

    @classmethod
    def open(cls, files: IndexFiles, topic: int, queue_id: int, end_row: int) -> "QueueIndex":
        """Open the index with the rows below `end_row`, which a checkpoint has counted; cut off later rows. May block.

        Raises Corruption when rows are missing; the index must then be rebuilt from the log.
        """
        index = cls(files, topic, queue_id)
        index.first_row = files.adopt(index.directory, end_row)
        index._tail = RowTail(end_row)
        index._written_row = index._taken_row = index._flushed_row = end_row
        index._named_to = index.first_row
        index._recall_ends()
        return index

    @property
    def end_row(self) -> int:
        """The number of the next row to be appended."""
        tail = self._tail
        return tail.first_row + len(tail) // ROW_SIZE

    @property
    def written_row(self) -> int:
        """The number of the first row that is not in a file."""
        return self._written_row

    @property
    def has_much_to_write(self) -> bool:
        """Whether a flush is worth a task: a flush that runs may have taken most of the tail."""
        return (self.end_row - self._taken_row) * ROW_SIZE >= TAIL_BYTES_MAX // 2

    @property
    def memory_bytes(self) -> int:
        return len(self._tail)

    @property
    def wants_flush(self) -> bool:
        """Whether rows are not in a file yet, or a flush could drop rows of an idle queue from memory."""
        return bool(self._tail)

    # -- Writing

    def append(
        self,
        base_offset: int,
        position: int,
        size: int,
        count: int,
        timestamp_ms: int,
        stored_ms: int,
        tags: int,
        form: int,
    ) -> bool:
        """Add the row of the next entry in memory. Return whether the tail has reached TAIL_BYTES_MAX."""
        assert base_offset >= self.end_offset, f"{self.directory}: row at {base_offset} is below {self.end_offset}"
        if timestamp_ms > self.latest_ms:
            self.latest_ms = timestamp_ms
        tail = self._tail
        if not tail and tail.first_row == self.first_row:
            self.first_offset = base_offset
        tail += ROW.pack(base_offset, position, size, count, self.latest_ms, stored_ms, tags, form, self.total_bytes)
        self.end_offset = base_offset + count
        self.total_bytes += size
        return len(tail) >= TAIL_BYTES_MAX

    def append_run(
        self,
        base_offset: int,
        places: Sequence[tuple[int, int]],
        timestamps_ms: Sequence[int],
        stored_ms: int,
        tags: Sequence[int],
        form: int,
    ) -> bool:
        """Add rows of entries with one record each, as `append` does; `places` has the (position, size) of each."""
        assert base_offset >= self.end_offset, f"{self.directory}: row at {base_offset} is below {self.end_offset}"
        tail, pack = self._tail, ROW.pack
        if not tail and tail.first_row == self.first_row:
            self.first_offset = base_offset
        rows: list[bytes] = []
        offset, latest_ms, total_bytes = base_offset, self.latest_ms, self.total_bytes
        for (position, size), timestamp_ms, tag in zip(places, timestamps_ms, tags, strict=True):
            if timestamp_ms > latest_ms:
                latest_ms = timestamp_ms
            rows.append(pack(offset, position, size, 1, latest_ms, stored_ms, tag, form, total_bytes))
            offset += 1
            total_bytes += size
        tail += b"".join(rows)
        self.end_offset, self.latest_ms, self.total_bytes = offset, latest_ms, total_bytes
        return len(tail) >= TAIL_BYTES_MAX

    def begin_flush(self) -> RowsToWrite | None:
        """Return the rows that no file and no running flush has; None if there are none. `end_flush` must follow."""
        end_row = self.end_row
        if self._taken_row == end_row:
            if self._written_row == end_row:
                self._shorten_tail(end_row)
            return None
        first_row, self._taken_row = self._taken_row, end_row
        return RowsToWrite(self, first_row, self._tail.slice(first_row, end_row))

    def end_flush(self, first_row: int, end_row: int, *, is_written: bool) -> None:
        """Drop the older rows of the tail, all of them if the queue is idle. Unwritten rows are taken again."""
        if not is_written:
            self._taken_row = self._written_row
        elif first_row == self._written_row:  # Otherwise rows before these could not be written.
            self._written_row = end_row
            self._named_to = self._files.note_written(self.directory, first_row, end_row, self._named_to)
            self._shorten_tail(end_row)

    def _shorten_tail(self, written_row: int) -> None:
        tail = self._tail
        is_idle = written_row == self._flushed_row == self.end_row
        kept_row = written_row if is_idle else max(tail.first_row, written_row - TAIL_BYTES_KEPT // ROW_SIZE)
        if kept_row > tail.first_row:
            self._tail = RowTail(kept_row, tail.slice(kept_row, self.end_row))
        self._flushed_row = written_row

    def flush(self) -> None:
        """Do all three steps of a flush. Blocks, so it is for recovery. Raises OSError."""
        rows = self.begin_flush()
        if rows is None:
            return
        is_written = False
        try:
            rows.write(self._files)
            is_written = True
        finally:
            self.end_flush(rows.first_row, rows.end_row, is_written=is_written)

    # -- Removing

    @property
    def has_sealed_files(self) -> bool:
        """Whether there are files besides the last one."""
        return self._files.start_of(self._tail.first_row) != self.first_row

    def first_needed(self, offset: int) -> tuple[int, int] | None:
        """Return (first row, its offset) of the first file with a row that ends above `offset`. Blocks.

        None if there is no file before that one.
        """
        first_row, last_file = self.first_row, self._files.start_of(self._tail.first_row)
        row = self.find_offset(offset, block=True)
        assert row is not None, "find_offset returned None although it may block"
        needed = min(self._files.start_of(row), last_file)
        if needed <= first_row:
            return None
        (first,) = self.rows(needed, block=True) or []
        return needed, first[0]

    def drop_before(self, row: int, offset: int) -> range:
        """Drop the files before that of `row`, which begins at `offset`; return the first rows of the dropped files."""
        old_first = self.first_row
        # `first_row` moves first: a reader thread that misses a file compares it to learn that the file was dropped.
        self.first_row, self.first_offset = row, offset
        starts = range(old_first, row, self._files.rows_per_file)
        self._files.release(self.directory, starts)
        return starts

    def forget(self) -> None:
        """Drop all rows: the topic was deleted and the files are about to be removed. No append may follow."""
        self.first_row = self._written_row = self._taken_row = self._flushed_row = self.end_row
        self._tail = RowTail(self.first_row)

    def remove(self) -> None:
        """Drop all rows and remove all files. Blocks, so it is for recovery."""
        self.forget()
        self._files.release_all([self.directory])
        self._files.remove_all(self.directory)

    # -- Reading

    def rows_from(
        self, offset: int, max_rows: int, max_bytes: int, until_offset: int, *, block: bool = False
    ) -> list[Row] | None:
        """Return the row that covers `offset` and the rows after it, of entries that end at or below `until_offset`.

        Returns at most `max_rows` rows with at most `max_bytes` bytes of frames, but the first row whatever its size.
        If no entry covers `offset`, the first row is that of the next entry. In a reader thread [] can also mean that
        the rows were dropped meanwhile: the caller must check the queue's log start again.
        """
        number = self.find_offset(offset, block=block)
        if number is None:
            return None
        rows: list[Row] = []
        # The steps grow, because most reads want few rows and each row that is unpacked costs time.
        while len(rows) < max_rows and (not rows or is_within(rows, max_bytes, until_offset)):
            more = self.rows(number, min(max_rows - len(rows), max(len(rows), ROWS_AT_ONCE)), block=block)
            if more is None and not rows:
                return None
            if not more:
                break
            number += len(more)
            if more[0][0] + more[0][3] <= offset:
                del more[0]
            rows += more
        return within(rows, max_bytes, until_offset) if rows else rows

    def rows(self, number: int, max_rows: int = 1, *, block: bool = False) -> list[Row] | None:
        """Return up to `max_rows` rows from row `number` on; fewer only at the end of the index."""
        tail = self._tail
        until = min(number + max_rows, tail.first_row + len(tail) // ROW_SIZE)
        if number >= tail.first_row:
            return list(ROW.iter_unpack(tail.slice(number, until)))
        try:
            chunk = self._read_rows(number, min(until, tail.first_row), block)
        except NotCached:
            return None
        except FileNotFoundError:
            if number >= self.first_row:
                raise
            return []  # The rows were dropped while this thread was reading.
        return list(ROW.iter_unpack(b"".join((chunk, tail.slice(tail.first_row, until)))))

    def tail_row(self, offset: int) -> Row | None:
        """Return the row that covers `offset` if one probe of the tail finds it; None may also mean that it did not."""
        number = self._tail.row_number(offset, self.end_offset)
        return None if number is None else ROW.unpack_from(self._tail, (number - self._tail.first_row) * ROW_SIZE)

    def find_offset(self, offset: int, *, block: bool = False) -> int | None:
        """Return the number of the last row with a base offset at or below `offset`; the first row if there is none."""
        if (number := self._tail.row_number(offset, self.end_offset)) is not None:
            return number
        above = self._find(BASE_OFFSET, offset + 1, block)
        return None if above is None else max(self.first_row, above - 1)

    def find_position(self, position: int, *, block: bool = False) -> int | None:
        """Return the number of the first row with an entry at or above this position; `end_row` if there is none."""
        return self._find(POSITION, position, block)

    def find_latest(self, timestamp_ms: int, *, block: bool = False) -> int | None:
        """Return the number of the first row with `latest_ms` at or above this time; `end_row` if there is none."""
        return self._find(LATEST_MS, timestamp_ms, block)

    def find_stored(self, stored_ms: int, *, block: bool = False) -> int | None:
        """Return the number of the first row that was stored at this time or later; `end_row` if there is none."""
        steps = self._files.steps
        return self._find_in_stretches(steps, stored_ms, block) if steps else self._find(STORED_MS, stored_ms, block)

    def find_bytes_before(self, total: int, *, block: bool = False) -> int | None:
        """Return the number of the first row with `bytes_before` at or above this sum; `end_row` if there is none."""
        return self._find(BYTES_BEFORE, total, block)

    # -- Searching

    def _find(self, column: Column, value: int, block: bool) -> int | None:
        """Return the number of the first row whose `column` is at least `value`, or the end."""
        tail = self._tail
        if tail and column.of(tail, 0) < value:
            return tail.first_at_least(column, value, self.end_offset)
        while True:
            first_row = self.first_row
            try:
                return self._find_in_files(column, value, first_row, tail, block)
            except NotCached:
                return None
            except FileNotFoundError:
                if self.first_row == first_row:
                    raise
                # Files were dropped while this thread was reading: search the rows that are left.

    def _find_in_stretches(self, steps: Sequence[StepBack], stored_ms: int, block: bool) -> int | None:
        """Find a store time in a log with steps back. It reads a row at a time, because this is rare."""
        end_row = self.end_row
        try:
            for start, end, bound_ms in stretches(steps):
                if bound_ms is not None and bound_ms < stored_ms:
                    continue
                first = self._row_at(start, block)
                until = end_row if end is None else min(end_row, self._row_at(end, block))
                found = search_rows(lambda row: self._stored_ms(row, block), stored_ms, first - 1, until, -1)
                if found < until:
                    return found
        except NotCached:
            return None
        return end_row

    def _row_at(self, position: int, block: bool) -> int:
        number = self.find_position(position, block=block)
        if number is None:
            raise NotCached
        return number

    def _stored_ms(self, row: int, block: bool) -> int:
        found = self.rows(row, block=block)
        if found is None:
            raise NotCached
        return found[0][5] if found else 0  # A row that was dropped meanwhile is older than the rows that are left.

    def _find_in_files(self, column: Column, value: int, first_row: int, tail: RowTail, block: bool) -> int:
        guess = -1
        if column is BASE_OFFSET and value <= self.end_offset:
            tail_offset = column.of(tail, 0) if tail else self.end_offset
            rows_below = tail.first_row - first_row
            guess = first_row + (value - self.first_offset) * rows_below // max(1, tail_offset - self.first_offset)
        start = 0
        rows: Buffer = b""  # The rows that were read last; the end of a search stays within them.

        def key(row: int) -> int:
            nonlocal start, rows
            if not start <= row < start + len(rows) // ROW_SIZE:
                start = row - row % PROBE_ROWS
                rows = self._read_rows(start, min(start + PROBE_ROWS, tail.first_row), block)
            return column.of(rows, row - start)

        return search_rows(key, value, first_row - 1, tail.first_row, guess)

    # -- Files

    def _read_rows(self, row: int, until: int, block: bool) -> Buffer:
        """Return rows from files; raises NotCached, and FileNotFoundError if the rows were dropped."""
        read = self._files.read if block else self._files.read_cached
        return read(self.directory, row, until)

    def _recall_ends(self) -> None:
        """Set the fields that follow from the first and the last row."""
        self.first_offset, self.end_offset, self.latest_ms, self.total_bytes = 0, 0, BEFORE_ALL_MS, 0
        if self.first_row < self.end_row:
            (first,) = self.rows(self.first_row, block=True) or []
            (last,) = self.rows(self.end_row - 1, block=True) or []
            self.first_offset, self.end_offset, self.latest_ms = first[0], last[0] + last[3], last[4]
            self.total_bytes = last[8] + last[2]
