"""Flushes index rows to index files, and removes index files that are no longer needed, while the store is open.

The background thread writes and removes files. The loop's thread processes a bounded number of indexes in each loop
turn.
"""

from collections.abc import Callable, Collection, Iterable
from functools import partial
from itertools import islice

from duolog.store.index.index_files import IndexFiles
from duolog.store.index.queue import Queue
from duolog.store.index.queue_index import QueueIndex, RowsToWrite
from duolog.store.index.queues import Queues
from duolog.store.workers import Executor, Executors, Failure

INDEXES_IN_SLICE = 32  # Indexes of dropped queues whose files are removed in one slice.
CHECKED_IN_SLICE = 2048  # Indexes that are checked for files to remove in one slice.


class IndexFlush:
    """One flush of some indexes: a thread writes their rows that are in memory only, index by index."""

    def __init__(self, files: IndexFiles, queues: Collection[Queue]) -> None:
        """Begin the flush of each index. The caller must call `run` in a thread, then `end` in the loop's thread."""
        self._files = files
        self._ends = [(queue.index, queue.index.end_row) for queue in queues]
        self._taken = [(queue, rows) for queue in queues if (rows := queue.index.begin_flush()) is not None]
        self._written: list[RowsToWrite] = []

    def __bool__(self) -> bool:
        return bool(self._taken)

    def run(self) -> None:
        """Write the rows. Blocks. After an OSError the rows of the failed index and of later ones are unwritten."""
        for _, rows in self._taken:
            rows.write(self._files)
            self._written.append(rows)

    @property
    def unwritten(self) -> list[Queue]:
        """The queues whose rows `run` has not written."""
        return [queue for queue, _ in self._taken[len(self._written) :]]

    @property
    def is_complete(self) -> bool:
        """Whether all rows that were appended before this flush are in files. Valid after `end`.

        It is false if this flush or an earlier one has failed.
        """
        return all(index.written_row >= end_row for index, end_row in self._ends)

    def end(self, before_change: Callable[[int], None]) -> None:
        """End the flush of each index. Unwritten rows stay in memory, and the next flush writes them.

        `before_change` is called with the key of each queue before its `written_row` changes.
        """
        for number, (queue, rows) in enumerate(self._taken):
            before_change(queue.key)
            rows.index.end_flush(rows.first_row, rows.end_row, is_written=number < len(self._written))


class IndexFlusher:
    """Flushes the indexes whose tail has reached `TAIL_BYTES_MAX`."""

    __slots__ = ("_executors", "_queues", "_write_failed", "wanted")

    def __init__(self, queues: Queues, executors: Executors, write_failed: Callable[[OSError], None]) -> None:
        self.wanted: dict[Queue, None] = {}  # Queues whose index is flushed at the next `flush`.
        self._queues = queues
        self._executors = executors
        self._write_failed = write_failed

    def flush(self) -> None:
        """Start one flush of the indexes in `wanted`, in the background thread."""
        wanted, self.wanted = self.wanted, {}
        flush = IndexFlush(self._queues.index_files, [queue for queue in wanted if queue.index.has_much_to_write])
        if flush:
            self._executors.background.submit(flush.run, partial(self._flushed, flush))

    def _flushed(self, flush: IndexFlush, outcome: Failure | None) -> None:
        """Process the outcome. Rows that could not be written stay in memory and are flushed again."""
        flush.end(self._queues.captured_rows.before_change)
        if outcome is not None:
            self.wanted.update(dict.fromkeys(flush.unwritten))
        if isinstance(outcome, OSError):
            self._write_failed(outcome)


class CleanUp:
    """Removes index files after a checkpoint: those of dropped queues, and those whose rows are below the log start.

    `executor` returns the executor for the removal, or None once the store is closed. `failed` is called with the error
    if a file could not be removed.
    """

    def __init__(
        self,
        queues: Queues,
        executor: Callable[[], Executor | None],
        dropped: Iterable[Queue],
        starts: Iterable[tuple[QueueIndex, int]],
        failed: Callable[[Failure], None],
    ) -> None:
        self._queues = queues
        self._files = queues.index_files
        self._executor = executor
        self._dropped = iter(dropped)
        self._starts = iter(starts)
        self._failed = failed

    def start(self) -> None:
        """Process one slice in this loop turn. The end of its task in the thread starts the next slice."""
        executor = self._executor()
        if executor is None:
            return  # The store is closed. The next start removes the remaining files.
        dropped = [*islice(self._dropped, INDEXES_IN_SLICE)]
        if dropped:
            for queue in dropped:
                del self._queues.dropped[queue]
                queue.index.forget()
            directories = [queue.index.directory for queue in dropped]
            self._files.release_all(directories)
            executor.submit(partial(_remove_all, self._files, directories), self._end)
            return
        checked = [*islice(self._starts, CHECKED_IN_SLICE)]
        if checked:
            sealed = [(index, offset) for index, offset in checked if index.has_sealed_files]
            executor.submit(partial(_find_needed, sealed), self._drop_before)

    def _drop_before(self, outcome: "list[tuple[QueueIndex, int, int]] | Failure") -> None:
        executor = self._executor()
        if executor is None:
            return
        if isinstance(outcome, list):
            found = [(index.directory, index.drop_before(row, offset)) for index, row, offset in outcome]
            executor.submit(partial(_remove, self._files, found), self._end)
        else:
            self._end(outcome)

    def _end(self, outcome: Failure | None) -> None:
        if outcome is not None:
            self._failed(outcome)
        self.start()


def _remove_all(files: IndexFiles, directories: Iterable[str]) -> None:
    for directory in directories:
        files.remove_all(directory)


def _remove(files: IndexFiles, found: Iterable[tuple[str, range]]) -> None:
    for directory, starts in found:
        files.remove(directory, starts)


def _find_needed(starts: Iterable[tuple[QueueIndex, int]]) -> list[tuple[QueueIndex, int, int]]:
    """Return (index, first row that is needed, its offset) for each index with files before that row. Blocks."""
    return [(index, *found) for index, offset in starts if (found := index.first_needed(offset)) is not None]
