"""The dense index of one queue: a row for each entry, in offset order.

    index/<topic number>/<queue id>/<number of its first row, 20 digits>      ROWS_PER_FILE rows each

    one row, 56 bytes, big-endian:
    base_offset u64 | position u64 | size u32 | count u32 | latest_ms i64 | stored_ms i64 | tags i32 | form u8 | 3 zero
    bytes_before u64

`size` counts frame bytes, `bytes_before` those of all earlier rows, `count` records (at least 1). `latest_ms` is the
greatest record timestamp of this and all earlier rows. So base_offset, latest_ms, stored_ms and bytes_before never fall
from row to row, and each can be searched.

    row   0 ..... 65535       65536 .... 131071       131072 ..........
         [     a file     ]   [     a file     ]      [   a file  : not written yet ]
                                                            [  the tail, in memory  ]

Rows are numbered from 0 for the life of the index. All of it is derived from the log: rows have no checksum. At a start
only rows that a checkpoint has counted are trusted; recovery appends the others again.

`append` never touches the disk; it says when the tail has grown to TAIL_BYTES_MAX and wants a `flush()`. A flush leaves
TAIL_BYTES_KEPT in memory for readers that follow the end, and nothing when no row came since the flush before: an idle
queue holds no rows.

Threads: all calls come from the loop's thread, where the methods with `block` never wait for the disk: they return None
instead. The same call with `block=True` waits, and may come from any thread.
"""

from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from struct import Struct
from typing import NamedTuple

from store.entry import Buffer
from store.errors import Corruption
from store.files import Files

# (base_offset, position, size, count, latest_ms, stored_ms, tags, form, bytes_before). A plain tuple, to be unpacked
# into these names at once: every read makes one for each entry, and a named one takes three times as long.
Row = tuple[int, int, int, int, int, int, int, int, int]

ROW = Struct(">QQIIqqiB3xQ")
ROW_SIZE = ROW.size
ROWS_PER_FILE = 65_536  # a multiple of PROBE_ROWS
TAIL_BYTES_MAX = 64 * 1024  # 1,170 rows in one write; bounds what a queue holds in memory
TAIL_BYTES_KEPT = 8 * 1024
OPEN_FILES_MAX = 256  # by all queues together; beyond, the file unused for longest is closed
ROWS_AT_ONCE = 32  # a read unpacks so many first, then as many again as it has, as long as its limits allow
PROBE_ROWS = 64  # a search in files reads this many at once: most of a page, for the price of one row
INDEX_DIRECTORY = "index"
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


class _NotCached(Exception):
    """The page cache does not hold what was asked for, and the caller must not wait."""


class QueueIndex:
    """The index of one queue; a new one has no file until its first flush."""

    __slots__ = (
        "_directory",
        "_files",
        "_flushed_row",
        "_tail",
        "_written_row",
        "end_offset",
        "first_offset",
        "first_row",
        "latest_ms",
        "total_bytes",
    )

    def __init__(self, files: "IndexFiles", topic: int, queue_id: int) -> None:
        self._files = files
        self._directory = f"{INDEX_DIRECTORY}/{topic}/{queue_id}"
        self._tail = _tail_from(0)
        self._written_row = 0  # Invariant: first_row <= tail.first_row <= written_row <= end_row.
        self._flushed_row = 0  # end_row at the last flush; no growth since means that the queue is idle
        self.first_row = 0  # the first row that is kept, always the first of a file
        self.first_offset = 0  # its base offset
        self.end_offset = 0  # behind the records of the last row
        self.latest_ms = BEFORE_ALL_MS
        self.total_bytes = 0  # of the frames of all rows, dropped ones included

    @classmethod
    def open(cls, files: "IndexFiles", topic: int, queue_id: int, end_row: int) -> "QueueIndex":
        """Open the rows below `end_row`, which a checkpoint has counted; cut off what lies beyond. May block.

        Raises Corruption when rows are missing; then the index must be made again from the log.
        """
        index = cls(files, topic, queue_id)
        index.first_row = files.adopt(index._directory, end_row)
        index._tail = _tail_from(end_row)
        index._written_row = index._flushed_row = end_row
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
        assert base_offset >= self.end_offset, f"{self._directory}: row at {base_offset} is below {self.end_offset}"
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
        assert base_offset >= self.end_offset, f"{self._directory}: row at {base_offset} is below {self.end_offset}"
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

    def flush(self) -> None:
        """Write the rows that no file has yet and let the older part of the tail go, all of it if the queue is idle.

        Raises OSError as the disk does. Then no row is lost, and the next flush writes the same ones again.
        """
        tail, end_row = self._tail, self.end_row
        if self._written_row < end_row:
            self._files.write(self._directory, self._written_row, _slice(tail, self._written_row, end_row))
            self._written_row = end_row
        idle = end_row == self._flushed_row
        kept_row = end_row if idle else max(tail.first_row, end_row - TAIL_BYTES_KEPT // ROW_SIZE)
        if kept_row > tail.first_row:
            self._tail = _tail_from(kept_row, _slice(tail, kept_row, end_row))
        self._flushed_row = end_row

    def drop_before(self, offset: int) -> None:
        """Remove the files in which every row ends at or below `offset`. Blocks for a few pages when a file can go."""
        last_file = self._files.start_of(self._tail.first_row)
        if last_file == self.first_row:
            return
        row = self.find_offset(offset, block=True)
        assert row is not None
        old_first, new_first = self.first_row, min(self._files.start_of(row), last_file)
        if new_first > old_first:
            (first,) = self.rows(new_first, block=True) or []
            # The number moves first: a reader thread that misses a file looks at it to learn why.
            self.first_row, self.first_offset = new_first, first[0]
            self._files.remove(self._directory, range(old_first, new_first, self._files.rows_per_file))

    def remove(self) -> None:
        """Remove all files, for the topic is gone. Nothing may be appended afterwards."""
        self.first_row = self._written_row = self._flushed_row = self.end_row
        self._tail = _tail_from(self.first_row)
        self._files.remove_all(self._directory)

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
        except _NotCached:
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
        """Return the number of the first row with `stored_ms` at or above this time; `end_row` if there is none."""
        return self._find(_STORED_MS, stored_ms, block)

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
            except _NotCached:
                return None
            except FileNotFoundError:
                if self.first_row == first_row:
                    raise
                # Files were dropped while this thread was reading: look among those that are left.

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
        """Return rows from files; raises _NotCached, and FileNotFoundError when they were dropped."""
        read = self._files.read if block else self._files.read_cached
        return read(self._directory, row, until)

    def _recall_ends(self) -> None:
        """Take what is kept about the first and the last row from the rows themselves."""
        self.first_offset, self.end_offset, self.latest_ms, self.total_bytes = 0, 0, BEFORE_ALL_MS, 0
        if self.first_row < self.end_row:
            (first,) = self.rows(self.first_row, block=True) or []
            (last,) = self.rows(self.end_row - 1, block=True) or []
            self.first_offset, self.end_offset, self.latest_ms = first[0], last[0] + last[3], last[4]
            self.total_bytes = last[8] + last[2]


class IndexFiles:
    """The files of all queue indexes of a store: where rows lie in them, a bounded number of open ones, and which of
    them are not durable yet.

    Only `read` may be called by other threads than the loop's; it opens for itself, so no handle is closed under it.
    """

    def __init__(self, files: Files, *, rows_per_file: int = ROWS_PER_FILE, open_max: int = OPEN_FILES_MAX) -> None:
        assert rows_per_file % PROBE_ROWS == 0, f"{rows_per_file} is no multiple of {PROBE_ROWS}"
        self.rows_per_file = rows_per_file
        self._files = files
        self._open_max = open_max
        self._open: OrderedDict[str, int] = OrderedDict()  # path -> handle, the longest unused first
        self._unsynced: set[str] = set()
        self._unsynced_directories: set[str] = set()
        self._taken: IndexSync | None = None  # the last round that was handed over

    def start_of(self, row: int) -> int:
        """Return the first row of the file that `row` lies in."""
        return row - row % self.rows_per_file

    def take_unsynced(self) -> "IndexSync":
        """Hand over what is not durable yet; `run()` makes it so, in a thread that may block.

        When `run()` fails, a checkpoint must not count on any row written since the one before. A round that was never
        run, or has not ended, is part of the next one.
        """
        if self._taken is not None and not self._taken.is_done:
            self._unsynced.update(self._taken.paths)
            self._unsynced_directories.update(self._taken.directories)
        self._taken = IndexSync(self._files, sorted(self._unsynced), sorted(self._unsynced_directories))
        self._unsynced, self._unsynced_directories = set(), set()
        return self._taken

    def close(self) -> None:
        while self._open:
            self._files.close(self._open.popitem()[1])

    # -- Rows

    def write(self, directory: str, row: int, rows: Buffer) -> None:
        """Write rows from number `row` on, into as many files as they reach over."""
        view = memoryview(rows)
        for start, at, size in self._pieces(row, row + len(rows) // ROW_SIZE):
            path = _path(directory, start)
            self._files.write(self._handle(path, create_in=directory), [view[:size]], at)
            self._unsynced.add(path)
            view = view[size:]

    def read_cached(self, directory: str, row: int, until: int) -> Buffer:
        """Read rows `row` .. `until`; raises _NotCached instead of waiting for the disk."""
        pieces = []
        for start, at, size in self._pieces(row, until):
            # Opening may read an inode from the disk: once per file and eviction, which is accepted.
            piece = self._files.read_cached(self._handle(_path(directory, start)), size, at)
            if piece is None:
                raise _NotCached
            pieces.append(piece)
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def read(self, directory: str, row: int, until: int) -> Buffer:
        """Read rows `row` .. `until`, from any thread; waits for the disk."""
        return b"".join([self._read_piece(directory, *piece) for piece in self._pieces(row, until)])

    def _read_piece(self, directory: str, start: int, at: int, size: int) -> bytes:
        path = _path(directory, start)
        handle = self._files.open(path)
        try:
            piece = self._files.read(handle, size, at)
        finally:
            self._files.close(handle)
        if len(piece) != size:
            raise Corruption(f"{path} has {len(piece)} bytes at {at}, {size} were written")
        return piece

    def _pieces(self, row: int, until: int) -> Iterator[tuple[int, int, int]]:
        """Yield (first row of the file, byte in the file, bytes) for each file that the rows reach over."""
        while row < until:
            start = self.start_of(row)
            end = min(until, start + self.rows_per_file)
            yield start, (row - start) * ROW_SIZE, (end - row) * ROW_SIZE
            row = end

    # -- Whole files

    def adopt(self, directory: str, end_row: int) -> int:
        """Keep the files whose rows reach without a gap up to `end_row`, remove the others; return the first row kept.

        Raises Corruption when a file ends too early. What lies before a gap was dropped once, and its removal undone by
        a power cut.
        """
        starts = [int(name) for name in self._files.list(directory)]
        first = self.start_of(end_row - 1) if end_row else 0
        if end_row:
            self._shorten(_path(directory, first), (end_row - first) * ROW_SIZE)
        while first - self.rows_per_file in starts:
            first -= self.rows_per_file
        self.remove(directory, (start for start in starts if not first <= start < end_row))
        return first

    def remove(self, directory: str, starts: Iterable[int]) -> None:
        for start in starts:
            path = _path(directory, start)
            handle = self._open.pop(path, None)
            if handle is not None:
                self._files.close(handle)
            self._unsynced.discard(path)
            self._files.remove(path)

    def remove_all(self, directory: str) -> None:
        """Remove the files and the directory of a queue, and that of its topic with the last queue."""
        self.remove(directory, [int(name) for name in self._files.list(directory)])
        while directory != INDEX_DIRECTORY and not self._files.list(directory):
            try:
                self._files.remove_directory(directory)
            except FileNotFoundError:
                pass  # no row of it was ever flushed
            directory = directory.rpartition("/")[0]

    def _shorten(self, path: str, size: int) -> None:
        try:
            handle = self._handle(path)
        except FileNotFoundError as error:
            raise Corruption(f"{path} is missing, {size} bytes were counted") from error
        found = self._files.size(handle)
        if found < size:
            raise Corruption(f"{path} has {found} bytes, {size} were counted")
        if found > size:
            self._files.truncate(handle, size)
            self._unsynced.add(path)

    # -- Handles

    def _handle(self, path: str, create_in: str | None = None) -> int:
        handle = self._open.get(path)
        if handle is not None:
            self._open.move_to_end(path)
            return handle
        if len(self._open) >= self._open_max:
            self._files.close(self._open.popitem(last=False)[1])
        handle = self._open[path] = self._open_file(path, create_in)
        return handle

    def _open_file(self, path: str, create_in: str | None) -> int:
        if create_in is None:
            return self._files.open(path)
        # Whether the file is new or not: the name of one that a killed process left need not be durable either.
        directory = create_in
        while directory:
            self._unsynced_directories.add(directory)
            directory = directory.rpartition("/")[0]
        self._unsynced_directories.add(".")
        try:
            return self._files.open(path)
        except FileNotFoundError:
            self._files.make_directory(create_in)
            return self._files.open(path, create=True)


@dataclass(slots=True)
class IndexSync:
    """One round of syncs before a checkpoint; it runs in a thread that may block."""

    files: Files
    paths: list[str]
    directories: list[str]
    is_done: bool = False

    def run(self) -> None:
        """Make all durable. A file that is gone needs nothing; any other OSError is the disk's."""
        for path in self.paths:
            try:
                handle = self.files.open(path)
            except FileNotFoundError:
                continue
            try:
                self.files.sync(handle)
            finally:
                self.files.close(handle)
        for directory in self.directories:
            try:
                self.files.sync_directory(directory)
            except FileNotFoundError:
                continue
        self.is_done = True


# -- Arithmetic of rows


def _tail_from(first_row: int, rows: Buffer = b"") -> _Tail:
    tail = _Tail(rows)
    tail.first_row = first_row
    return tail


def _slice(tail: _Tail, row: int, until: int) -> bytearray:
    first_row = tail.first_row
    return tail[max(0, row - first_row) * ROW_SIZE : max(0, until - first_row) * ROW_SIZE]


def _path(directory: str, start: int) -> str:
    return f"{directory}/{start:020d}"


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
