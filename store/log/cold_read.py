"""Cold reads: reads that must wait for the disk. `EntryReader` returns one instead of blocking the loop.

No thread waits for the object store: what a read lacks on the disk is fetched in the loop, and the read is run again.
"""

from collections.abc import Callable
from functools import partial

from duolog.store.entry import Stored
from duolog.store.errors import OffsetOutOfRange, StoreError
from duolog.store.files import NotOnDisk
from duolog.store.index.queue import Queue
from duolog.store.index.rows import Row
from duolog.store.log.frames import Frames
from duolog.store.workers import Executor, Failure

# Returns the index rows to read; it may wait for the disk.
FindRows = Callable[[], list[Row]]


class ColdRead:
    """A read of a queue that must wait for the disk.

    The caller calls `start` once. `done` is then called in the loop's thread with the entries or an error.
    """

    __slots__ = ("_executor", "_find_rows", "_frames", "_offset", "_queue")

    def __init__(self, executor: Executor, frames: Frames, queue: Queue, offset: int, find_rows: FindRows) -> None:
        self._executor = executor
        self._frames = frames
        self._queue = queue
        self._offset = offset
        self._find_rows = find_rows

    def start(self, done: Callable[[list[Stored] | StoreError], None]) -> None:
        def finish(found: list[Stored] | Failure) -> None:
            queue = self._queue
            if self._offset < queue.start_offset:
                # Retention has raised the log start during the read, so the entries must not be returned.
                done(OffsetOutOfRange(str(queue), self._offset, queue.start_offset, queue.visible_end))
            elif isinstance(found, OSError):
                done(StoreError(f"queue {queue} could not be read at offset {self._offset}: {found}"))
            else:
                done(found)

        _run_with_fetches(self._executor, self._run, finish)

    def _run(self) -> list[Stored]:
        return self._frames.on_disk(self._find_rows())


class ColdEntries:
    """A read of entries by their locations that must wait for the disk. It is used like a ColdRead."""

    __slots__ = ("_executor", "_found", "_frames", "_in_memory", "_rows")

    def __init__(self, executor: Executor, frames: Frames, rows: list[Row], in_memory: list[Stored]) -> None:
        self._executor = executor
        self._frames = frames
        self._rows = rows
        self._found: list[Stored] = []  # Entries of the first rows, which were read.
        self._in_memory = in_memory  # Entries from the write buffer, to be returned after those of `rows`.

    def start(self, done: Callable[[list[Stored] | StoreError], None]) -> None:
        def finish(found: list[Stored] | Failure) -> None:
            if isinstance(found, OSError):
                first = self._rows[0][1]
                done(StoreError(f"{len(self._rows)} entries from position {first} on could not be read: {found}"))
            elif isinstance(found, StoreError):
                done(found)
            else:
                done(found + self._in_memory)

        _run_with_fetches(self._executor, self._run, finish)

    def _run(self) -> list[Stored]:
        while len(self._found) < len(self._rows):
            self._found += self._frames.on_disk(self._rows[len(self._found) :])
        return self._found


def _run_with_fetches(
    executor: Executor,
    run: Callable[[], list[Stored]],
    finish: Callable[[list[Stored] | Failure], None],
    fetched: NotOnDisk | None = None,
) -> None:
    """Run a read in a thread until it lacks nothing on the disk, or has failed, and pass the outcome to `finish`.

    `fetched` is what the last run lacked. Each run gets further than the one before.
    """

    def again(lacking: NotOnDisk, error: Failure | None) -> None:
        if error is None:
            _run_with_fetches(executor, run, finish, lacking)
        else:
            lacking.range.release()
            finish(error)

    def ended(outcome: list[Stored] | Failure) -> None:
        if fetched is not None:
            fetched.range.release()
        if isinstance(outcome, NotOnDisk):
            outcome.range.fetch(partial(again, outcome))
        else:
            finish(outcome)

    executor.submit(run, ended)
