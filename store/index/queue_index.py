"""The class QueueIndex: the dense index of one queue, with one row for each entry, in the order of offsets.

    row   0 ..... 65535       65536 .... 131071       131072 ..........
         [     a file     ]   [     a file     ]      [   a file  : not written yet ]
                                                            [  the tail, in memory  ]

`store/index/rows.py` describes the format of a row. Rows are numbered from 0, and a number is never used again. Rows
are derived from the log and have no checksum. At a start only the rows below `end_row` of the checkpoint are used;
recovery appends the others again.

`append` never accesses the disk. It returns true when the tail has TAIL_BYTES_MAX bytes and should be flushed. A flush
has three steps: `begin_flush` returns the rows that are in no file, a thread writes them (`IndexFiles.write`), and
`end_flush` removes older rows from the tail. TAIL_BYTES_KEPT bytes remain in memory for reads at the end of the queue.
If no row was appended since the previous flush, no row remains, so an idle queue has no rows in memory.

All methods are called in the loop's thread. The methods with a parameter `block` return None instead of waiting for the
disk; with `block=True` they wait, and may be called in any thread.
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

TAIL_BYTES_MAX = 64 * 1024  # Size of the tail at which it is flushed: 1,170 rows are written by one call.
TAIL_BYTES_KEPT = 8 * 1024  # Size of the tail after a flush.
ROWS_AT_ONCE = 32  # Rows that the first step of a read unpacks; each later step doubles the number.


@dataclass(frozen=True, slots=True)
class RowsToWrite:
    """Rows that are in no file yet; `QueueIndex.begin_flush` returns them and `IndexFiles.write` writes them."""

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
    """The index of one queue. A new index has no file until its first flush.

    The class has more than 20 methods because appending, flushing, dropping and searching share one state: which rows
    exist, and which of them are in memory and in files.
    """

    __slots__ = (
        "_files",
        "_flushed_row",
        "_named_to",
        "_next_read",
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
        self._taken_row = 0  # Rows below it are in files or in the flush in progress.
        self._named_to = 0  # IndexFiles has noted the directory entries of files with rows below it for the next sync.
        self._flushed_row = 0  # `end_row` at the last flush; the queue is idle if `end_row` is still the same.
        # The offset after the last record that `rows_from` returned, and the number of the row of the next entry. A
        # client that reads on needs no search.
        self._next_read = (-1, 0)
        self.first_row = 0  # The first row that was not dropped; always the first row of a file.
        self.first_offset = 0  # Base offset of `first_row`.
        self.end_offset = 0  # The offset after the last record of the last row.
        self.latest_ms = BEFORE_ALL_MS
        self.total_bytes = 0  # Frame bytes of all rows, dropped ones included.

    @classmethod
    def open(cls, files: IndexFiles, topic: int, queue_id: int, end_row: int) -> "QueueIndex":
        """Open the index with the rows below `end_row`, the value in the checkpoint, and truncate later rows. Blocks.

        Raises Corruption if rows are missing; the index must then be built again from the log.
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
        """Whether enough rows are neither in a file nor in the flush in progress to make another flush worthwhile."""
        return (self.end_row - self._taken_row) * ROW_SIZE >= TAIL_BYTES_MAX // 2

    @property
    def memory_bytes(self) -> int:
        """The size of the tail in bytes."""
        return len(self._tail)

    @property
    def wants_flush(self) -> bool:
        """Whether the tail has rows: they are in no file yet, or a flush could drop them from memory."""
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
        """Add the row of the next entry to the tail. Return whether the tail has TAIL_BYTES_MAX bytes or more."""
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
        locations: Sequence[tuple[int, int]],
        timestamps_ms: Sequence[int],
        stored_ms: int,
        tags: Sequence[int],
        form: int,
    ) -> bool:
        """Add the rows of entries with one record each, as `append` does.

        `locations` has (position of the entry, size of the frame) of each.
        """
        assert base_offset >= self.end_offset, f"{self.directory}: row at {base_offset} is below {self.end_offset}"
        tail, pack = self._tail, ROW.pack
        if not tail and tail.first_row == self.first_row:
            self.first_offset = base_offset
        rows: list[bytes] = []
        offset, latest_ms, total_bytes = base_offset, self.latest_ms, self.total_bytes
        for (position, size), timestamp_ms, tag in zip(locations, timestamps_ms, tags, strict=True):
            if timestamp_ms > latest_ms:
                latest_ms = timestamp_ms
            rows.append(pack(offset, position, size, 1, latest_ms, stored_ms, tag, form, total_bytes))
            offset += 1
            total_bytes += size
        tail += b"".join(rows)
        self.end_offset, self.latest_ms, self.total_bytes = offset, latest_ms, total_bytes
        return len(tail) >= TAIL_BYTES_MAX

    def begin_flush(self) -> RowsToWrite | None:
        """Return the rows that are neither in a file nor in the flush in progress; None if there are none.

        If rows are returned, `end_flush` must be called for them.
        """
        end_row = self.end_row
        if self._taken_row == end_row:
            if self._written_row == end_row:
                self._shorten_tail(end_row)
            return None
        first_row, self._taken_row = self._taken_row, end_row
        return RowsToWrite(self, first_row, self._tail.slice(first_row, end_row))

    def end_flush(self, first_row: int, end_row: int, *, is_written: bool) -> None:
        """Drop the older rows of the tail, or all rows if the queue is idle.

        Rows that could not be written stay in the tail, and the next `begin_flush` returns them again.
        """
        if not is_written:
            self._taken_row = self._written_row
        elif first_row == self._written_row:  # Otherwise an earlier flush failed, and rows before these are missing.
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
        """Do all three steps of a flush. Blocks; used by recovery. Raises OSError."""
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
        """Whether the index has more than one file."""
        return self._files.start_of(self._tail.first_row) != self.first_row

    def first_needed(self, offset: int) -> tuple[int, int] | None:
        """Return (first row, its offset) of the first file with an entry that ends above `offset`. Blocks.

        Returns None if no file precedes that file, so that no file can be dropped.
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
        """Drop the rows before `row`, which is the first row of a file and has base offset `offset`.

        Returns the first rows of the dropped files, which the caller must remove.
        """
        old_first = self.first_row
        # `first_row` must change before the files are removed: a reader thread that finds no file compares it with the
        # old value to learn whether the file was dropped.
        self.first_row, self.first_offset = row, offset
        starts = range(old_first, row, self._files.rows_per_file)
        self._files.release(self.directory, starts)
        return starts

    def forget(self) -> None:
        """Drop all rows, because the topic was deleted. The caller must remove the files. No append may follow."""
        self.first_row = self._written_row = self._taken_row = self._flushed_row = self.end_row
        self._tail = RowTail(self.first_row)

    def remove(self) -> None:
        """Drop all rows and remove all files. Blocks; used by recovery."""
        self.forget()
        self._files.release_all([self.directory])
        self._files.remove_all(self.directory)

    # -- Reading

    def rows_from(
        self, offset: int, max_rows: int, max_bytes: int, until_offset: int, *, block: bool = False
    ) -> list[Row] | None:
        """Return the row of the entry that contains `offset`, and the rows after it.

        Only entries that end at or below `until_offset` are returned, at most `max_rows` of them with at most
        `max_bytes` bytes of frames. The first entry is returned even if it is larger. If no entry contains `offset`,
        the first row is that of the next entry. Returns None if rows must be read from the disk and `block` is false.

        In a reader thread [] can also mean that the rows were dropped during the read, so the caller must check the log
        start of the queue again.
        """
        next_offset, next_row = self._next_read
        is_next = offset == next_offset and next_row >= self.first_row
        number = next_row if is_next else self.find_offset(offset, block=block)
        if number is None:
            return None
        rows: list[Row] = []
        # Each step reads more rows than the one before, because most reads need few rows and unpacking costs time.
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
        found = within(rows, max_bytes, until_offset) if rows else rows
        if found:
            base_offset, _, _, count, _, _, _, _, _ = found[-1]
            self._next_read = base_offset + count, number - len(rows) + len(found)
        return found

    def rows(self, number: int, max_rows: int = 1, *, block: bool = False) -> list[Row] | None:
        """Return `max_rows` rows from row `number` on, or fewer at the end of the index."""
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
            return []  # The rows were dropped during the read.
        return list(ROW.iter_unpack(b"".join((chunk, tail.slice(tail.first_row, until)))))

    def tail_row(self, offset: int) -> Row | None:
        """Return the row of the entry that contains `offset` if one probe of the tail finds it; None otherwise.

        None does not mean that the row does not exist.
        """
        number = self._tail.row_number(offset, self.end_offset)
        return None if number is None else ROW.unpack_from(self._tail, (number - self._tail.first_row) * ROW_SIZE)

    def find_offset(self, offset: int, *, block: bool = False) -> int | None:
        """Return the number of the last row with a base offset at or below `offset`; `first_row` if there is none."""
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
        """Return the number of the first row whose effective store time is at or above this time (`store_times.py`).

        Returns `end_row` if there is none.
        """
        steps = self._files.steps
        return self._find_in_stretches(steps, stored_ms, block) if steps else self._find(STORED_MS, stored_ms, block)

    def find_bytes_before(self, total: int, *, block: bool = False) -> int | None:
        """Return the number of the first row with `bytes_before` at or above this sum; `end_row` if there is none."""
        return self._find(BYTES_BEFORE, total, block)

    # -- Searching

    def _find(self, column: Column, value: int, block: bool) -> int | None:
        """Return the number of the first row whose `column` is at least `value`; `end_row` if there is none."""
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
                # Files were dropped during the search, so search the remaining rows.

    def _find_in_stretches(self, steps: Sequence[StepBack], stored_ms: int, block: bool) -> int | None:
        """Find an effective store time in a log with steps back, stretch by stretch.

        The search reads one row at a time, because such logs are rare.
        """
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
        return found[0][5] if found else 0  # A row that was dropped during the search is older than all other rows.

    def _find_in_files(self, column: Column, value: int, first_row: int, tail: RowTail, block: bool) -> int:
        guess = -1
        if column is BASE_OFFSET and value <= self.end_offset:
            tail_offset = column.of(tail, 0) if tail else self.end_offset
            rows_below = tail.first_row - first_row
            guess = first_row + (value - self.first_offset) * rows_below // max(1, tail_offset - self.first_offset)
        start = 0
        rows: Buffer = b""  # The rows that were read last. The last steps of a search find their rows in them.

        def key(row: int) -> int:
            nonlocal start, rows
            if not start <= row < start + len(rows) // ROW_SIZE:
                start = row - row % PROBE_ROWS
                rows = self._read_rows(start, min(start + PROBE_ROWS, tail.first_row), block)
            return column.of(rows, row - start)

        return search_rows(key, value, first_row - 1, tail.first_row, guess)

    # -- Files

    def _read_rows(self, row: int, until: int, block: bool) -> Buffer:
        """Return rows from files. Raises NotCached if `block` is false, FileNotFoundError if the rows were dropped."""
        read = self._files.read if block else self._files.read_cached
        return read(self.directory, row, until)

    def _recall_ends(self) -> None:
        """Set the fields whose values follow from the first and the last row."""
        self.first_offset, self.end_offset, self.latest_ms, self.total_bytes = 0, 0, BEFORE_ALL_MS, 0
        if self.first_row < self.end_row:
            (first,) = self.rows(self.first_row, block=True) or []
            (last,) = self.rows(self.end_row - 1, block=True) or []
            self.first_offset, self.end_offset, self.latest_ms = first[0], last[0] + last[3], last[4]
            self.total_bytes = last[8] + last[2]
