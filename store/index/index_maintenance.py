"""What is done to the files of indexes while the store is open: flushes, and the removal of what nothing needs.

A thread does what blocks; the loop takes rows and forgets rows, a bounded number of indexes in each turn.
"""

from collections.abc import Callable, Collection, Iterable
from functools import partial
from itertools import islice

from duolog.store.index.index_files import IndexFiles
from duolog.store.index.queue import Queue
from duolog.store.index.queue_index import QueueIndex, RowsToWrite
from duolog.store.index.queues import Queues
from duolog.store.workers import Executor, Failure

INDEXES_IN_SLICE = 32  # with something to write or to remove
LOOKED_AT_IN_SLICE = 2048  # that may have nothing


class IndexFlush:
    """One round of flushes: the rows that some indexes have in memory only are written by a thread, in this order."""

    def __init__(self, files: IndexFiles, queues: Collection[Queue]) -> None:
        """Take the rows. `run` must follow in a thread, then `end` in the loop's."""
        self._files = files
        self._ends = [(queue.index, queue.index.end_row) for queue in queues]
        self._taken = [(queue, rows) for queue in queues if (rows := queue.index.begin_flush()) is not None]
        self._written: list[RowsToWrite] = []

    def __bool__(self) -> bool:
        return bool(self._taken)

    def run(self) -> None:
        """Blocks; raises OSError, and then nothing more was written."""
        for _, rows in self._taken:
            rows.write(self._files)
            self._written.append(rows)

    @property
    def unwritten(self) -> list[Queue]:
        return [queue for queue, _ in self._taken[len(self._written) :]]

    @property
    def is_complete(self) -> bool:
        """After `end`: all rows that there were at the beginning are in files. A flush before this may have failed."""
        return all(index.written_row >= end_row for index, end_row in self._ends)

    def end(self, before_change: Callable[[int], None]) -> None:
        """Note what was written. The rest is in memory still, and the next flush takes it again.

        `before_change` is told the key of each queue of which `written_row` is about to move.
        """
        for number, (queue, rows) in enumerate(self._taken):
            before_change(queue.key)
            rows.index.end_flush(rows.first_row, rows.end_row, is_written=number < len(self._written))


class CleanUp:
    """Removes index files that no checkpoint needs any more: of dropped queues, and of rows below log starts."""

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
        """Do a slice of it in this turn of the loop; each outcome of a thread brings the next one."""
        executor = self._executor()
        if executor is None:
            return  # The store is closed; the next start finds what is left.
        gone = [*islice(self._dropped, INDEXES_IN_SLICE)]
        if gone:
            for queue in gone:
                del self._queues.dropped[queue]
                queue.index.forget()
            directories = [queue.index.directory for queue in gone]
            self._files.release_all(directories)
            executor.submit(partial(_remove_all, self._files, directories), self._end)
            return
        looked_at = [*islice(self._starts, LOOKED_AT_IN_SLICE)]
        if looked_at:
            sealed = [(index, offset) for index, offset in looked_at if index.has_sealed_files]
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
    """Return the first row that is needed, and its offset, of the indexes that have files before it."""
    return [(index, *found) for index, offset in starts if (found := index.first_needed(offset)) is not None]
