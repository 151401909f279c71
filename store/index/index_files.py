"""The class IndexFiles: reads, writes and removes the index files of all queues, and notes which are not durable yet.

    index/<topic number>/<queue id>/<number of its first row, 20 digits>      ROWS_PER_FILE rows each

`store/index/rows.py` describes the format of a row. In the loop's thread, `read_cached` reads from the page cache and
from open files only; a reader thread opens a file that is not open, for the next call. Methods whose docstring says
that they block are called by other threads and by recovery. They open files for themselves, so that the loop cannot
close a handle during a read.
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
OPEN_FILES_MAX = 256  # Open files of all queues; beyond it the least recently used file is closed.
INDEX_DIRECTORY = "index"


class NotCached(Exception):
    """The rows are not in the page cache, or their file is not open, and the caller must not wait for the disk."""


class IndexFiles:
    """The files of all queue indexes of a store."""

    def __init__(self, files: Files, *, rows_per_file: int = ROWS_PER_FILE, open_max: int = OPEN_FILES_MAX) -> None:
        assert rows_per_file % PROBE_ROWS == 0, f"{rows_per_file} is no multiple of {PROBE_ROWS}"
        self.rows_per_file = rows_per_file
        self.opener: Callable[[], Executor] = Inline  # Returns the executor that opens files for `read_cached`.
        # Whether the store has no more time to sync index files (`Store.abandon_checkpoint_when`).
        self.is_late: Callable[[], bool] = lambda: False
        self._files = files
        self._open_max = open_max
        self._open: OrderedDict[str, int] = OrderedDict()  # Path -> handle, the least recently used one first.
        self._opening: set[str] = set()  # Paths of files that a thread is opening.
        self._unsynced: dict[str, dict[int, None]] = {}  # Directory -> first rows of files that are not durable.
        self._unsynced_directories: dict[str, None] = {}  # Directories whose entries are not durable.
        self._taken: IndexSync | None = None  # The IndexSync that `take_unsynced` returned last.
        self.steps: tuple[StepBack, ...] = ()  # All steps back in the log; the tuple is replaced, never changed.

    def start_of(self, row: int) -> int:
        """Return the first row of the file that contains `row`."""
        return row - row % self.rows_per_file

    def take_unsynced(self) -> "IndexSync":
        """Return an IndexSync for all files and directories that are not durable yet. A thread must run it.

        If the IndexSync fails, a checkpoint must not refer to rows that were written after the previous checkpoint. An
        IndexSync that was not run, or has not succeeded, is included in the next one.
        """
        if self._taken is not None and not self._taken.is_done:
            for directory, starts in self._taken.starts.items():
                self._unsynced.setdefault(directory, {}).update(dict.fromkeys(starts))
            self._unsynced_directories.update(dict.fromkeys(self._taken.directories))
        self._taken = IndexSync(self._files, self._unsynced, self._unsynced_directories, lambda: self.is_late())
        self._unsynced, self._unsynced_directories = {}, {}
        return self._taken

    def close(self) -> None:
        """Close all open files."""
        while self._open:
            self._files.close(self._open.popitem()[1])

    # -- Rows

    def write(self, directory: str, row: int, rows: Buffer) -> None:
        """Write rows from number `row` on into one or several files. Blocks; raises OSError."""
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
        """Note that the rows from `row` to `until` were written, so that the next IndexSync makes them durable.

        The directory entries of files that begin below row `named_to` were already noted in this run. Returns the new
        value of `named_to`.
        """
        for start, _, _ in self._pieces(row, until):
            self._unsynced.setdefault(directory, {})[start] = None
            if start >= named_to:
                # The name is noted even if the file existed: a killed process may have created it without a sync.
                named = (directory, directory.rpartition("/")[0], INDEX_DIRECTORY, ".")
                self._unsynced_directories.update(dict.fromkeys(named))
                named_to = start + self.rows_per_file
        return named_to

    def read_cached(self, directory: str, row: int, until: int) -> Buffer:
        """Read the rows from `row` to `until`. Raises NotCached instead of waiting for the disk."""
        pieces = []
        for start, at, size in self._pieces(row, until):
            piece = self._files.read_cached(self._handle(_path(directory, start)), size, at)
            if piece is None:
                raise NotCached
            pieces.append(piece)
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def read(self, directory: str, row: int, until: int) -> Buffer:
        """Read the rows from `row` to `until`. Blocks; raises OSError, and Corruption if a file is too short."""
        return b"".join([self._read_piece(directory, *piece) for piece in self._pieces(row, until)])

    def _read_piece(self, directory: str, start: int, at: int, size: int) -> bytes:
        path = _path(directory, start)
        handle = self._files.open(path)
        try:
            piece = self._files.read(handle, size, at)
        finally:
            self._files.close(handle)
        if len(piece) != size:
            raise Corruption(f"{path} has {len(piece)} bytes from byte {at} on, and {size} bytes were written there")
        return piece

    def _pieces(self, row: int, until: int) -> Iterator[tuple[int, int, int]]:
        """Yield (first row of the file, first byte in the file, number of bytes) for each file that has rows."""
        while row < until:
            start = self.start_of(row)
            end = min(until, start + self.rows_per_file)
            yield start, (row - start) * ROW_SIZE, (end - row) * ROW_SIZE
            row = end

    # -- Whole files

    def adopt(self, directory: str, end_row: int) -> int:
        """Use the files whose rows precede `end_row` without a gap, and remove the others. Blocks.

        Returns the first row of the first file. Files before a gap were dropped by the previous run, and a power
        failure has undone their removal. Raises Corruption if a file is missing or too short.
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
        """Close the files with these first rows, which the caller is about to remove."""
        unsynced = self._unsynced.get(directory, {})
        for start in starts:
            path = _path(directory, start)
            unsynced.pop(start, None)
            self._opening.discard(path)
            handle = self._open.pop(path, None)
            if handle is not None:
                self._files.close(handle)

    def release_all(self, directories: Iterable[str]) -> None:
        """Close all files in these directories, because their queues were deleted."""
        removed = {*directories}
        for directory in removed:
            self._unsynced.pop(directory, None)
        for paths in (self._open.keys(), self._opening):
            for path in [path for path in paths if path.rpartition("/")[0] in removed]:
                directory, _, name = path.rpartition("/")
                self.release(directory, [int(name)])

    def remove(self, directory: str, starts: Iterable[int]) -> None:
        """Remove the files with these first rows. Blocks; raises OSError."""
        for start in starts:
            self._files.remove(_path(directory, start))

    def remove_all(self, directory: str) -> None:
        """Remove the files and the directory of a queue, and the directory of its topic if it is empty. Blocks."""
        self.remove(directory, [int(name) for name in self._files.list(directory)])
        while directory != INDEX_DIRECTORY and not self._files.list(directory):
            try:
                self._files.remove_directory(directory)
            except FileNotFoundError:
                pass  # The queue never had a file, because no row of it was flushed.
            directory = directory.rpartition("/")[0]

    def _shorten(self, path: str, size: int) -> None:
        try:
            handle = self._files.open(path)
        except FileNotFoundError as error:
            raise Corruption(f"{path} is missing; according to the checkpoint it has {size} bytes") from error
        try:
            found = self._files.size(handle)
            if found < size:
                raise Corruption(f"{path} has {found} bytes; according to the checkpoint it has {size} bytes")
            if found > size:
                self._files.truncate(handle, size)
                directory, _, name = path.rpartition("/")
                self._unsynced.setdefault(directory, {})[int(name)] = None
        finally:
            self._files.close(handle)

    # -- Open files

    def _handle(self, path: str) -> int:
        """Return the handle of an open file. If it is not open, start opening it in a thread and raise NotCached."""
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
            return  # The cold read of the same rows reports the error.
        if not is_wanted:
            self._files.close(outcome)  # The file is about to be removed.
            return
        if len(self._open) >= self._open_max:
            self._files.close(self._open.popitem(last=False)[1])
        self._open[path] = outcome


@dataclass(slots=True)
class IndexSync:
    """Makes index files and their directory entries durable before a checkpoint. `run` is called in a thread."""

    files: Files
    starts: Mapping[str, Iterable[int]]  # Directory -> first rows of the files to sync.
    directories: Iterable[str]  # Directories to sync.
    gives_up: Callable[[], bool]  # Whether `run` must stop, because the store has no more time.
    is_done: bool = False
    has_failed: bool = False  # Whether an fsync failed, so that a later fsync proves nothing.

    def run(self) -> None:
        """Sync all files and directories. Blocks. Files that were removed are skipped.

        Raises OSError, and InterruptedError once `gives_up()` returns true: syncing thousands of files may take long.
        """
        for path in (_path(directory, start) for directory, starts in self.starts.items() for start in starts):
            if self.gives_up():
                raise InterruptedError("the store is being closed and has no more time to sync index files")
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
