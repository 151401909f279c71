"""The dense index of one queue: a row for each entry, in offset order.

    one row, 56 bytes, big-endian:
    base_offset u64 | position u64 | size u32 | count u32 | latest_ms i64 | stored_ms i64 | tags i32 | form u8 | 3 zero
    bytes_before u64

`size` counts frame bytes, `bytes_before` those of all earlier rows, `count` records (at least 1). `latest_ms` is the
greatest record timestamp of this and all earlier rows. So base_offset, latest_ms and bytes_before never fall from row
to row, and each can be searched. `stored_ms` falls only where a clock was put right; there the search goes stretch by
stretch (`store/index/store_times.py`).

    row   0 ..... 65535       65536 .... 131071       131072 ..........
         [     a file     ]   [     a file     ]      [   a file  : not written yet ]
                                                            [  the tail, in memory  ]

Rows are numbered from 0 for the life of the index. All of it is derived from the log: rows have no checksum. At a start
only rows that a checkpoint has counted are trusted; recovery appends the others again.

`append` never touches the disk; it says when the tail has grown to TAIL_BYTES_MAX and wants a flush. That is in three
steps: `begin_flush` takes the rows that no file has, a thread writes them (`IndexFiles.write`), `end_flush` notes it. A
flush leaves TAIL_BYTES_KEPT in memory for readers that follow the end, and nothing when no row came since the flush
before: an idle queue holds no rows.

Threads: all calls come from the loop's thread, where the methods with `block` never wait for the disk: they return None
instead. The same call with `block=True` waits, and may come from any thread.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from struct import Struct
from typing import NamedTuple

from duolog.store.entry import Buffer
from duolog.store.index.index_files import (
    INDEX_DIRECTORY,
    PROBE_ROWS,
    ROW_SIZE,
    IndexFiles,
    NotCached,
)
from duolog.store.index.store_times import StepBack, stretches

# (base_offset, position, size, count, latest_ms, stored_ms, tags, form, bytes_before). A plain tuple, to be unpacked
# into these names at once: every read makes one for each entry, and a named one takes three times as long.
Row = tuple[int, int, int, int, int, int, int, int, int]

ROW = Struct(">QQIIqqiB3xQ")
assert ROW.size == ROW_SIZE
TAIL_BYTES_MAX = 64 * 1024  # 1,170 rows in one write; bounds what a queue holds in memory
TAIL_BYTES_KEPT = 8 * 1024
ROWS_AT_ONCE = 32  # a read unpacks so many first, then as many again as it has, as long as its limits allow
BEFORE_ALL_MS = -1 << 63  # `latest_ms` of an index without rows


class _Tail(bytearray):
    """The rows from number `first_row` on. It only grows; what shortens it puts a new one in its place.

    So a reader thread, having taken one reference, has rows and their number fit together whatever the loop does.
    """

    __slots__ = ("first_row",)
    first_row: int


class _Column(NamedTuple):
    """A field that never falls from row to row."""

    at: int
    form: Struct

    def of(self, rows: Buffer, number: int) -> int:
        value: int = self.form.unpack_from(rows, number * ROW_SIZE + self.at)[0]
        return value


_BASE_OFFSET = _Column(0, Struct(">Q"))
_POSITION = _Column(8, Struct(">Q"))
_LATEST_MS = _Column(24, Struct(">q"))
_STORED_MS = _Column(32, Struct(">q"))
_BYTES_BEFORE = _Column(48, Struct(">Q"))


@dataclass(frozen=True, slots=True)
class RowsToWrite:
    """Rows that no file has yet: what `IndexFiles.write` takes, and `end_flush` is told of."""

    index: "QueueIndex"
    first_row: int
    rows: bytearray

    @property
    def end_row(self) -> int:
        return self.first_row + len(self.rows) // ROW_SIZE

    def write(self, files: IndexFiles) -> None:
        """Blocks; raises OSError."""
        files.write(self.index.directory, self.first_row, self.rows)


class QueueIndex:
    """The index of one queue; a new one has no file until its first flush."""

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
        self._tail = _tail_from(0)
        self._written_row = 0  # Invariant: first_row <= tail.first_row <= written_row <= taken_row <= end_row.
        self._taken_row = 0  # rows below are written, or about to be
        self._named_to = 0  # the names of the files of rows below were noted to be synced
        self._flushed_row = 0  # end_row at the last flush; no growth since means that the queue is idle
        self.first_row = 0  # the first row that is kept, always the first of a file
        self.first_offset = 0  # its base offset
        self.end_offset = 0  # behind the records of the last row
        self.latest_ms = BEFORE_ALL_MS
        self.total_bytes = 0  # of the frames of all rows, dropped ones included

    @classmethod
    def open(cls, files: IndexFiles, topic: int, queue_id: int, end_row: int) -> "QueueIndex":
        """Open the rows below `end_row`, which a checkpoint has counted; cut off what lies beyond. May block.

        Raises Corruption when rows are missing; then the index must be made again from the log.
        """
        index = cls(files, topic, queue_id)
        index.first_row = files.adopt(index.directory, end_row)
        index._tail = _tail_from(end_row)
        index._written_row = index._taken_row = index._flushed_row = end_row
        index._named_to = index.first_row
        index._recall_ends()
        return index

    @property
    def end_row(self) -> int:
        """The number of the row that will come next."""
        tail = self._tail
        return tail.first_row + len(tail) // ROW_SIZE

    @property
    def written_row(self) -> int:
        """The rows below this one are in files."""
        return self._written_row

    @property
    def has_much_to_write(self) -> bool:
        """Whether a flush is worth a task: one that is under way may have taken most of the tail."""
        return (self.end_row - self._taken_row) * ROW_SIZE >= TAIL_BYTES_MAX // 2

    @property
    def memory_bytes(self) -> int:
        return len(self._tail)

    @property
    def wants_flush(self) -> bool:
        """True while rows are not in a file yet, or rows of an idle queue could leave memory."""
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
        """Add the row of the next entry, in memory. True when the tail is full and wants a `flush()`."""
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
        """Do the same for entries of one record each that follow one another; their places are (position, size)."""
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
        """Take the rows that nobody has taken yet to write them; None if there are none. `end_flush` must follow."""
        end_row = self.end_row
        if self._taken_row == end_row:
            if self._written_row == end_row:
                self._shorten_tail(end_row)
            return None
        first_row, self._taken_row = self._taken_row, end_row
        return RowsToWrite(self, first_row, _slice(self._tail, first_row, end_row))

    def end_flush(self, first_row: int, end_row: int, *, is_written: bool) -> None:
        """Let the older part of the tail go, all of it if the queue is idle. What was not written is taken again."""
        if not is_written:
            self._taken_row = self._written_row
        elif first_row == self._written_row:  # Else rows before these could not be written.
            self._written_row = end_row
            self._named_to = self._files.note_written(self.directory, first_row, end_row, self._named_to)
            self._shorten_tail(end_row)

    def _shorten_tail(self, written_row: int) -> None:
        tail = self._tail
        is_idle = written_row == self._flushed_row == self.end_row
        kept_row = written_row if is_idle else max(tail.first_row, written_row - TAIL_BYTES_KEPT // ROW_SIZE)
        if kept_row > tail.first_row:
            self._tail = _tail_from(kept_row, _slice(tail, kept_row, self.end_row))
        self._flushed_row = written_row

    def flush(self) -> None:
        """Do all three steps. Blocks: for a start. Raises OSError."""
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
        """There are files besides the last one."""
        return self._files.start_of(self._tail.first_row) != self.first_row

    def first_needed(self, offset: int) -> tuple[int, int] | None:
        """Return the first row, and its offset, of the first file with a row that ends above `offset`. Blocks.

        None if no file lies before it.
        """
        first_row, last_file = self.first_row, self._files.start_of(self._tail.first_row)
        row = self.find_offset(offset, block=True)
        assert row is not None, "an index that may block answers"
        needed = min(self._files.start_of(row), last_file)
        if needed <= first_row:
            return None
        (first,) = self.rows(needed, block=True) or []
        return needed, first[0]

    def drop_before(self, row: int, offset: int) -> range:
        """Forget the files before the one of `row`, which begins at `offset`; returns what is to be removed of them."""
        old_first = self.first_row
        # The number moves first: a reader thread that misses a file looks at it to learn why.
        self.first_row, self.first_offset = row, offset
        starts = range(old_first, row, self._files.rows_per_file)
        self._files.release(self.directory, starts)
        return starts

    def forget(self) -> None:
        """The topic is gone, and the files are about to be removed. Nothing may be appended afterwards."""
        self.first_row = self._written_row = self._taken_row = self._flushed_row = self.end_row
        self._tail = _tail_from(self.first_row)

    def remove(self) -> None:
        """Forget and remove all files. Blocks: for a start."""
        self.forget()
        self._files.release_all([self.directory])
        self._files.remove_all(self.directory)

    # -- Reading

    def rows_from(
        self, offset: int, max_rows: int, max_bytes: int, until_offset: int, *, block: bool = False
    ) -> list[Row] | None:
        """Return the row that covers `offset` and those behind it, of entries that end at or below `until_offset`.

        At most `max_rows`, with at most `max_bytes` of frames in all, but the first whatever its size. Where no entry
        covers `offset` the rows begin at the next one. In a reader thread [] can also mean that the rows were dropped
        meanwhile: compare the queue's start again.
        """
        number = self.find_offset(offset, block=block)
        if number is None:
            return None
        rows: list[Row] = []
        # In growing steps: most reads want few rows, and each one that is unpacked costs.
        while len(rows) < max_rows and (not rows or _is_within(rows, max_bytes, until_offset)):
            more = self.rows(number, min(max_rows - len(rows), max(len(rows), ROWS_AT_ONCE)), block=block)
            if more is None and not rows:
                return None
            if not more:
                break
            number += len(more)
            if more[0][0] + more[0][3] <= offset:
                del more[0]
            rows += more
        return _within(rows, max_bytes, until_offset) if rows else rows

    def rows(self, number: int, max_rows: int = 1, *, block: bool = False) -> list[Row] | None:
        """Return up to `max_rows` rows from row `number` on; fewer only at the end of the queue."""
        tail = self._tail
        until = min(number + max_rows, tail.first_row + len(tail) // ROW_SIZE)
        if number >= tail.first_row:
            return list(ROW.iter_unpack(_slice(tail, number, until)))
        try:
            chunk = self._read_rows(number, min(until, tail.first_row), block)
        except NotCached:
            return None
        except FileNotFoundError:
            if number >= self.first_row:
                raise
            return []  # dropped while this thread was on its way
        return list(ROW.iter_unpack(b"".join((chunk, _slice(tail, tail.first_row, until)))))

    def tail_row(self, offset: int) -> Row | None:
        """Return the row that covers `offset` if it is found in memory at once; None says nothing."""
        number = self._guess(offset)
        return None if number is None else ROW.unpack_from(self._tail, (number - self._tail.first_row) * ROW_SIZE)

    def find_offset(self, offset: int, *, block: bool = False) -> int | None:
        """Return the number of the last row that begins at or below `offset`, or the first row if none does."""
        if (number := self._guess(offset)) is not None:
            return number
        above = self._find(_BASE_OFFSET, offset + 1, block)
        return None if above is None else max(self.first_row, above - 1)

    def find_position(self, position: int, *, block: bool = False) -> int | None:
        """Return the number of the first row whose entry lies at or above this position; `end_row` if there is none."""
        return self._find(_POSITION, position, block)

    def find_latest(self, timestamp_ms: int, *, block: bool = False) -> int | None:
        """Return the number of the first row with `latest_ms` at or above this time; `end_row` if there is none."""
        return self._find(_LATEST_MS, timestamp_ms, block)

    def find_stored(self, stored_ms: int, *, block: bool = False) -> int | None:
        """Return the number of the first row that was stored at this time or later; `end_row` if there is none."""
        steps = self._files.steps
        return self._find_in_stretches(steps, stored_ms, block) if steps else self._find(_STORED_MS, stored_ms, block)

    def find_bytes_before(self, total: int, *, block: bool = False) -> int | None:
        """Return the number of the first row with `bytes_before` at or above this sum; `end_row` if there is none."""
        return self._find(_BYTES_BEFORE, total, block)

    # -- Searching

    def _guess(self, offset: int) -> int | None:
        """Return the row of the tail that covers `offset`, if it lies where equal counts would put it: mostly so."""
        tail = self._tail
        if not tail:
            return None
        first_offset = _BASE_OFFSET.of(tail, 0)
        if not first_offset <= offset < self.end_offset:
            return None
        number = (offset - first_offset) * (len(tail) // ROW_SIZE) // (self.end_offset - first_offset)
        base_offset, _, _, count, _, _, _, _, _ = ROW.unpack_from(tail, number * ROW_SIZE)
        return tail.first_row + number if base_offset <= offset < base_offset + count else None

    def _find(self, column: _Column, value: int, block: bool) -> int | None:
        """Return the number of the first row whose `column` is at least `value`, or the end."""
        tail = self._tail
        if tail and column.of(tail, 0) < value:
            return self._find_in_tail(tail, column, value)
        while True:
            first_row = self.first_row
            try:
                return self._find_in_files(column, value, first_row, tail, block)
            except NotCached:
                return None
            except FileNotFoundError:
                if self.first_row == first_row:
                    raise
                # Files were dropped while this thread was reading: look among those that are left.

    def _find_in_stretches(self, steps: Sequence[StepBack], stored_ms: int, block: bool) -> int | None:
        """Find a store time where store times fall in places: a row at a time, for it is rare."""
        end_row = self.end_row
        try:
            for start, end, bound_ms in stretches(steps):
                if bound_ms is not None and bound_ms < stored_ms:
                    continue
                first = self._row_at(start, block)
                until = end_row if end is None else min(end_row, self._row_at(end, block))
                found = _search(lambda row: self._stored_ms(row, block), stored_ms, first - 1, until, -1)
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
        return found[0][5] if found else 0  # A row that was dropped meanwhile is older than what is left.

    def _find_in_tail(self, tail: _Tail, column: _Column, value: int) -> int:
        count, guess = len(tail) // ROW_SIZE, 0
        unpack_from, at = column.form.unpack_from, column.at
        if column is _BASE_OFFSET:
            first_offset = column.of(tail, 0)
            guess = (value - first_offset) * count // (self.end_offset - first_offset)
        return tail.first_row + _search(lambda row: unpack_from(tail, row * ROW_SIZE + at)[0], value, 0, count, guess)

    def _find_in_files(self, column: _Column, value: int, first_row: int, tail: _Tail, block: bool) -> int:
        guess = -1
        if column is _BASE_OFFSET and value <= self.end_offset:
            tail_offset = column.of(tail, 0) if tail else self.end_offset
            rows_below = tail.first_row - first_row
            guess = first_row + (value - self.first_offset) * rows_below // max(1, tail_offset - self.first_offset)
        start = 0
        rows: Buffer = b""  # the last rows that were read: the end of a search stays within them

        def key(row: int) -> int:
            nonlocal start, rows
            if not start <= row < start + len(rows) // ROW_SIZE:
                start = row - row % PROBE_ROWS
                rows = self._read_rows(start, min(start + PROBE_ROWS, tail.first_row), block)
            return column.of(rows, row - start)

        return _search(key, value, first_row - 1, tail.first_row, guess)

    # -- Files

    def _read_rows(self, row: int, until: int, block: bool) -> Buffer:
        """Return rows from files; raises NotCached, and FileNotFoundError when they were dropped."""
        read = self._files.read if block else self._files.read_cached
        return read(self.directory, row, until)

    def _recall_ends(self) -> None:
        """Take what is kept about the first and the last row from the rows themselves."""
        self.first_offset, self.end_offset, self.latest_ms, self.total_bytes = 0, 0, BEFORE_ALL_MS, 0
        if self.first_row < self.end_row:
            (first,) = self.rows(self.first_row, block=True) or []
            (last,) = self.rows(self.end_row - 1, block=True) or []
            self.first_offset, self.end_offset, self.latest_ms = first[0], last[0] + last[3], last[4]
            self.total_bytes = last[8] + last[2]


# -- Arithmetic of rows


def _tail_from(first_row: int, rows: Buffer = b"") -> _Tail:
    tail = _Tail(rows)
    tail.first_row = first_row
    return tail


def _slice(tail: _Tail, row: int, until: int) -> bytearray:
    first_row = tail.first_row
    return tail[max(0, row - first_row) * ROW_SIZE : max(0, until - first_row) * ROW_SIZE]


def _search(key: Callable[[int], int], value: int, low: int, high: int, guess: int) -> int:
    """Return the first row in low + 1 .. high with key(row) >= value, given that key(low) < value <= key(high).

    Neither end is asked for its key. From the guess it gallops: 1 row, 2, 4, ..., then halves. A good guess takes two
    probes, a bad one a few more than bisection, for after log2(high - low) probes the steps leave the range.
    """
    step = 1
    while high - low > 1:
        if not low < guess < high:
            guess = (low + high) // 2
        if key(guess) < value:
            low = guess
            guess += step
        else:
            high = guess
            guess -= step
        step *= 2
    return high


def _within(rows: list[Row], max_bytes: int, until_offset: int) -> list[Row]:
    """Cut the rows where they pass a limit; the first may exceed `max_bytes`."""
    if _is_within(rows, max_bytes, until_offset):
        return rows
    bytes_until = rows[0][8] + max_bytes
    for number, (base_offset, _, size, count, _, _, _, _, bytes_before) in enumerate(rows):
        if base_offset + count > until_offset or (bytes_before + size > bytes_until and number):
            return rows[:number]
    return rows


def _is_within(rows: list[Row], max_bytes: int, until_offset: int) -> bool:
    last = rows[-1]
    return last[0] + last[3] <= until_offset and last[8] + last[2] - rows[0][8] <= max_bytes
