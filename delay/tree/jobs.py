"""What the background jobs of the timer tree are and use: the classes BackgroundJob, Context and ManifestChange."""

import logging
from collections.abc import Callable, Generator, Sequence
from functools import partial
from typing import Any, Final, NamedTuple, Protocol, TypeVar

from duolog.delay.pending import PendingTimers
from duolog.delay.tables.sorted_table import SortedTable
from duolog.delay.tables.table_format import TableEntry, TableFile, files_of
from duolog.delay.tables.tables import TableManifest, Tables
from duolog.delay.tables.tables_view import TablesView
from duolog.delay.tables.tombstones import TombstoneRow
from duolog.delay.tree.cursors import Cursors
from duolog.delay.tree.deletions import Deletions
from duolog.store.entry import Promise
from duolog.store.errors import StoreError
from duolog.store.store import Store
from duolog.store.workers import Executor, Failure, Inline

RETRY_MS: Final = 1_000  # The time after a failure of the disk in which the job does not begin again.

T = TypeVar("T")
Wait = Callable[[Callable[[Any], None]], None]  # Begins something, and calls its argument with the result or a Failure.
Steps = Generator[Wait | None, Any, T]  # What a run of a BackgroundJob consists of.

log = logging.getLogger("delay")


class TableCopies(Protocol):
    """Copies of the tables' files in the object store that has the log."""

    def copy(self, files: Sequence[TableFile], done: Callable[[Failure | None], None]) -> None:
        """Copy new files, before a manifest names them; call `done` in the loop after that."""

    def remove(self, files: Sequence[TableFile]) -> None:
        """Remove the copies of files that no manifest of the log names now or will name."""


class NoCopies:
    """The TableCopies of a broker whose log is only on its disk: it makes no copies."""

    def copy(self, files: Sequence[TableFile], done: Callable[[Failure | None], None]) -> None:
        done(None)

    def remove(self, files: Sequence[TableFile]) -> None:
        pass


class ManifestChange(NamedTuple):
    """A new manifest, and the changes that come with it. All keys are packed."""

    manifest: TableManifest
    flushed: bytes = b""  # The keys of timers that are now in a new table, and no longer in the memtable.
    deleted: bytes = b""  # The keys of timers that are in new tables and were deleted before these became current.
    counted_to: int = 0  # A log position: the tables' tombstones are all deletions that the log has below it.
    tombstones: Sequence[TombstoneRow] = ()  # New tombstones.


# Appends a manifest to the log at a wall time, and replays it. Raises StoreError, and then nothing has changed.
CommitManifest = Callable[[ManifestChange, int], Promise]


class Context:
    """The parts of the tree, the time of the last `TimerTree.run`, and the workers. It is used in the loop only."""

    tables: Tables
    store: Store

    def __init__(self, pending: PendingTimers, commit: CommitManifest) -> None:
        self.executor: Executor = Inline()
        self.table_copies: TableCopies = NoCopies()
        self.is_closed = False
        self.now_ms = self.mono_ms = 0
        self.check_mono_ms = 0  # When `TimerTree.run` next begins jobs that have become necessary.
        self.pending = pending
        self.deletions = Deletions(pending.prefetch)
        self.cursors = Cursors(pending.prefetch)
        self._commit = commit

    def wake(self) -> None:
        """Let `TimerTree.run` begin jobs as soon as possible."""
        self.check_mono_ms = 0

    def submit(self, run: Callable[[], T], done: Callable[[T | Failure], None]) -> None:
        """Let a worker call `run`, and call `done` in the loop with the result, unless the tree is closed by then."""

        def post(outcome: T | Failure) -> None:
            if not self.is_closed:
                done(outcome)

        self.executor.submit(run, post)

    def read(self, read: Callable[[TablesView], T], done: Callable[[T | Failure], None]) -> None:
        """Let a worker read the tables that are current now, and call `done` in the loop with the result."""
        view = self.tables.view()

        def take(found: T | Failure) -> None:
            view.close()
            done(found)

        self.submit(partial(read, view), take)

    # -- Files

    def publish(
        self, write: Callable[[list[SortedTable]], T], change: Callable[[list[SortedTable], T], ManifestChange]
    ) -> Steps[None]:
        """Let a worker write tables, copy them to where the log is, and commit a manifest with them.

        `write` adds each table to a list. `change` gets the list and what `write` returns. If a Failure is raised, no
        manifest names these tables, and their files are removed.
        """
        tables: list[SortedTable] = []
        try:
            written: T = yield partial(self.submit, partial(write, tables))
            yield partial(self.table_copies.copy, [file for table in tables for file in files_of(table.entry)])
            self.commit(change(tables, written))
        except (StoreError, OSError):
            for table in tables:
                table.close()
            self._remove([table.entry for table in tables])
            raise

    def commit(self, change: ManifestChange) -> None:
        """Commit a manifest. Old files are removed once it is durable. If it raises StoreError, nothing has changed."""
        before, kept = self.tables.manifest, {entry.number for entry in change.manifest}
        promise = self._commit(change, self.now_ms)
        retired = [entry for entry in before if entry.number not in kept]

        def remove(error: StoreError | None) -> None:
            if error is None:
                self._remove(retired)

        if retired:
            self.store.when(Promise(promise.end, self.store.options.level_max), remove)

    def _remove(self, entries: Sequence[TableEntry]) -> None:
        self.table_copies.remove([file for entry in entries for file in files_of(entry)])
        self.submit(partial(self.tables.remove, entries), log_failure)


def log_failure(outcome: Failure | None) -> None:
    if outcome is not None:
        log.warning("file not removed, the next start removes it: %s", outcome)


class BackgroundJob:
    """A background job. A run of it is a generator, of which one at most is under way.

        what it yields    when it continues
        None              in the next turn of the loop, in which `step` is called
        a Wait            with the result; if that is a Failure, `yield` raises it

    When a run has raised a Failure, the next one does not begin before `retry_ms` have passed.
    """

    def __init__(self, context: Context, what: str, retry_ms: int = RETRY_MS) -> None:
        self.is_busy = False  # Whether `step` has something to do.
        self._context, self._what, self._retry_ms = context, what, retry_ms
        self._retry_mono_ms = 0  # No run begins before this time.
        self._steps: Steps[None] | None = None  # The run that is under way.

    @property
    def is_running(self) -> bool:
        return self._steps is not None

    @property
    def may_start(self) -> bool:
        return not self.is_running and self._context.mono_ms >= self._retry_mono_ms

    def start(self, steps: Steps[None]) -> None:
        self._steps = steps
        self.step()

    def step(self, result: object = None) -> None:
        """Continue the run with the result of what it waits for, until it waits again."""
        if self._context.is_closed:
            return
        assert self._steps is not None, "no run is under way"
        self.is_busy = False
        try:
            wait = self._steps.throw(result) if isinstance(result, Exception) else self._steps.send(result)
        except StopIteration:
            self._steps = None
        except (StoreError, OSError) as error:
            self._steps = None
            self.failed(error)
        else:
            if wait is None:
                self.is_busy = True
            else:
                wait(self.step)

    def failed(self, error: Failure) -> None:
        """Log a failure of the disk, and start no run for a while."""
        self._retry_mono_ms = self._context.mono_ms + self._retry_ms
        reason = str(error)
        log.warning("job of delayed messages failed what=%s retry_ms=%d reason=%r", self._what, self._retry_ms, reason)
