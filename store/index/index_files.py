"""The index files of all queues: where rows lie in them, which are open, which are not durable yet.

    index/<topic number>/<queue id>/<number of its first row, 20 digits>      ROWS_PER_FILE rows each

`store/index/rows.py` has the format of a row. In the loop's thread `read_cached` reads from the page cache and open
files only; a file that is not open is opened by a reader thread for the next call. Methods that are said to block are
for other threads and for recovery: they open files for themselves, so no handle is closed during a read.
"""

from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Final

from duolog.store.entry import Buffer
from duolog.store.errors import NO_HANDLES, Corruption
from duolog.store.files import Files
from duolog.store.index.store_times import StepBack
from duolog.store.workers import Executor, Failure, Inline

ROW_SIZE: Final = 56
ROWS_PER_FILE = 65_536  # A multiple of PROBE_ROWS.
PROBE_ROWS = 64  # Rows that a search in files reads at once: most of a page, at the cost of one row.
OPEN_FILES_MAX = 256  # Of all queues together; beyond it the least recently used file is closed.
INDEX_DIRECTORY = "index"


class NotCached(Exception):
    """The page cache does not hold what was asked for, or no open file does, and the caller must not wait."""


class IndexFiles:
    """The files of all queue indexes of a store."""

    def __init__(self, files: Files, *, rows_per_file: int = ROWS_PER_FILE, open_max: int = OPEN_FILES_MAX) -> None:
        assert rows_per_file % PROBE_ROWS == 0, f"{rows_per_file} is no multiple of {PROBE_ROWS}"
        self.rows_per_file = rows_per_file
        self.opener: Callable[[], Executor] = Inline  # where files are opened
        self.is_late: Callable[[], bool] = lambda: (
            False
        )  # Whether syncs of indexes are to be left (`Store.stop_in_time`).
        self._files = files
        self._open_max = open_max
        self._open: OrderedDict[str, int] = OrderedDict()  # path -> handle, the longest unused first
        self._opening: set[str] = set()  # by a thread
        self._unsynced: dict[str, dict[int, None]] = {}  # the files' first rows, by directory
        self._unsynced_directories: dict[str, None] = {}
        self._taken: IndexSync | None = None  # the last round that was handed over
        self.steps: tuple[StepBack, ...] = ()  # of store times, in all of the log; replaced, never changed

    def start_of(self, row: int) -> int:
        """Return the first row of the file that `row` lies in."""
        return row - row % self.rows_per_file

    def take_unsynced(self) -> "IndexSync":
        """Hand over what is not durable yet; `run()` makes it so, in a thread that may block.

        When `run()` fails, a checkpoint must not count on any row written since the one before. A round that was never
        run, or has not ended, is part of the next one.
        """
        if self._taken is not None and not self._taken.is_done:
            for directory, starts in self._taken.starts.items():
                self._unsynced.setdefault(directory, {}).update(dict.fromkeys(starts))
            self._unsynced_directories.update(dict.fromkeys(self._taken.directories))
        self._taken = IndexSync(self._files, self._unsynced, self._unsynced_directories, lambda: self.is_late())
        self._unsynced, self._unsynced_directories = {}, {}
        return self._taken

    def close(self) -> None:
        while self._open:
            self._files.close(self._open.popitem()[1])

    # -- Rows

    def write(self, directory: str, row: int, rows: Buffer) -> None:
        """Write rows from number `row` on, into as many files as they reach over. Blocks; raises OSError."""
        view = memoryview(rows)
        for start, at, size in self._pieces(row, row + len(rows) // ROW_SIZE):
            handle = self._open_to_write(directory, _path(directory, start))
            try:
                self._files.write(handle, [view[:size]], at)
            finally:
                self._files.close(handle)
            view = view[size:]

    def _open_to_write(self, directory: str, path: str) -> int:
        try:
            return self._files.open(path)
        except FileNotFoundError:
            self._files.make_directory(directory)
            return self._files.open(path, create=True)

    def note_written(self, directory: str, row: int, until: int, named_to: int) -> int:
        """Take note that rows were written, so that the next sync makes them durable.

        The names of files from row `named_to` on were not noted yet in this run. Returns up to where they are now.
        """
        for start, _, _ in self._pieces(row, until):
            self._unsynced.setdefault(directory, {})[start] = None
            if start >= named_to:
                # Whether the file is new or not: the name of one that a killed process left need not be durable either.
                named = (directory, directory.rpartition("/")[0], INDEX_DIRECTORY, ".")
                self._unsynced_directories.update(dict.fromkeys(named))
                named_to = start + self.rows_per_file
        return named_to

    def read_cached(self, directory: str, row: int, until: int) -> Buffer:
        """Read rows `row` .. `until`; raises NotCached instead of waiting for the disk."""
        pieces = []
        for start, at, size in self._pieces(row, until):
            piece = self._files.read_cached(self._handle(_path(directory, start)), size, at)
            if piece is None:
                raise NotCached
            pieces.append(piece)
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def read(self, directory: str, row: int, until: int) -> Buffer:
        """Read rows `row` .. `until`. Blocks."""
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
        a power cut. Blocks.
        """
        starts = [int(name) for name in self._files.list(directory)]
        first = self.start_of(end_row - 1) if end_row else 0
        if end_row:
            self._shorten(_path(directory, first), (end_row - first) * ROW_SIZE)
        while first - self.rows_per_file in starts:
            first -= self.rows_per_file
        self.remove(directory, (start for start in starts if not first <= start < end_row))
        return first

    def release(self, directory: str, starts: Iterable[int]) -> None:
        """Close files that are about to be removed."""
        unsynced = self._unsynced.get(directory, {})
        for start in starts:
            path = _path(directory, start)
            unsynced.pop(start, None)
            self._opening.discard(path)
            handle = self._open.pop(path, None)
            if handle is not None:
                self._files.close(handle)

    def release_all(self, directories: Iterable[str]) -> None:
        """Close all files of queues that are gone."""
        gone = {*directories}
        for directory in gone:
            self._unsynced.pop(directory, None)
        for paths in (self._open.keys(), self._opening):
            for path in [path for path in paths if path.rpartition("/")[0] in gone]:
                directory, _, name = path.rpartition("/")
                self.release(directory, [int(name)])

    def remove(self, directory: str, starts: Iterable[int]) -> None:
        """Remove files. Blocks."""
        for start in starts:
            self._files.remove(_path(directory, start))

    def remove_all(self, directory: str) -> None:
        """Remove the files and the directory of a queue, and that of its topic with the last queue. Blocks."""
        self.remove(directory, [int(name) for name in self._files.list(directory)])
        while directory != INDEX_DIRECTORY and not self._files.list(directory):
            try:
                self._files.remove_directory(directory)
            except FileNotFoundError:
                pass  # no row of it was ever flushed
            directory = directory.rpartition("/")[0]

    def _shorten(self, path: str, size: int) -> None:
        try:
            handle = self._files.open(path)
        except FileNotFoundError as error:
            raise Corruption(f"{path} is missing, {size} bytes were counted") from error
        try:
            found = self._files.size(handle)
            if found < size:
                raise Corruption(f"{path} has {found} bytes, {size} were counted")
            if found > size:
                self._files.truncate(handle, size)
                directory, _, name = path.rpartition("/")
                self._unsynced.setdefault(directory, {})[int(name)] = None
        finally:
            self._files.close(handle)

    # -- Open files

    def _handle(self, path: str) -> int:
        """Return the handle of an open file; raises NotCached if it is not open, and has it opened."""
        if path not in self._open and path not in self._opening:
            self._opening.add(path)
            self.opener().submit(partial(self._files.open, path), partial(self._opened, path))
        handle = self._open.get(path)
        if handle is None:
            raise NotCached
        self._open.move_to_end(path)
        return handle

    def _opened(self, path: str, outcome: int | Failure) -> None:
        is_wanted = path in self._opening
        self._opening.discard(path)
        if not isinstance(outcome, int):
            return  # A reader thread will meet and report the same error.
        if not is_wanted:
            self._files.close(outcome)  # It is to be removed.
            return
        if len(self._open) >= self._open_max:
            self._files.close(self._open.popitem(last=False)[1])
        self._open[path] = outcome


@dataclass(slots=True)
class IndexSync:
    """One round of syncs before a checkpoint; it runs in a thread that may block."""

    files: Files
    starts: Mapping[str, Iterable[int]]  # of files: their first rows, by directory
    directories: Iterable[str]
    gives_up: Callable[[], bool]
    is_done: bool = False
    has_failed: bool = False  # An fsync did, so that another one proves nothing. A file that cannot be opened is none.

    def run(self) -> None:
        """Make all durable. A file that is gone needs nothing; any other OSError is the disk's.

        Raises InterruptedError when `gives_up()`, since thousands of files may take long.
        """
        for path in (_path(directory, start) for directory, starts in self.starts.items() for start in starts):
            if self.gives_up():
                raise InterruptedError("the store closes and cannot wait for the files of indexes")
            try:
                handle = self.files.open(path)
            except FileNotFoundError:
                continue
            try:
                self.files.sync(handle)
            except OSError:
                self.has_failed = True
                raise
            finally:
                self.files.close(handle)
        for directory in self.directories:
            try:
                self.files.sync_directory(directory)
            except FileNotFoundError:
                continue
            except OSError as error:
                self.has_failed = error.errno not in NO_HANDLES
                raise
        self.is_done = True


def _path(directory: str, start: int) -> str:
    return f"{directory}/{start:020d}"
