"""What the background jobs of the timer tree share: the parts, the time, the workers, and the commit of a manifest."""

import logging
from collections.abc import Callable
from typing import Final, NamedTuple, Protocol, TypeVar

from duolog.delay.pending import PendingTimers
from duolog.delay.tables.tables import Manifest, Tables
from duolog.delay.tree.cursors import Cursors
from duolog.delay.tree.deletions import Deletions
from duolog.store.entry import Promise
from duolog.store.log.entry_reader import EntryReader
from duolog.store.options import StoreOptions
from duolog.store.promises import Done
from duolog.store.workers import Executor, Failure, Inline

RETRY_MS: Final = 1_000  # After a failure of the disk.

T = TypeVar("T")

log = logging.getLogger("delay")


class TreeStore(Protocol):
    """What the jobs use of the store."""

    options: StoreOptions
    reader: EntryReader

    @property
    def next_position(self) -> int: ...

    def when(self, promise: Promise, done: Done) -> None: ...


class ManifestChange(NamedTuple):
    """A new manifest, and what it changes; all keys are packed."""

    manifest: Manifest
    flushed: bytes = b""  # Keys of timers that a new table has instead of the memtable.
    deleted: bytes = b""  # Keys of timers that new tables have, and that are deleted.
    counted_to: int = 0  # Position: the tables' files have all deletions that the log has below it.


# Appends a manifest to the log at a wall time, and replays it. Raises StoreError, and then nothing has changed.
CommitManifest = Callable[[ManifestChange, int], Promise]


class Context:
    """Belongs to the loop."""

    tables: Tables
    store: TreeStore

    def __init__(self, pending: PendingTimers, commit: CommitManifest) -> None:
        self.executor: Executor = Inline()
        self.is_closed = False
        self.now_ms = self.mono_ms = 0
        self.check_mono_ms = 0  # When `TimerTree.run` next begins jobs that have become necessary.
        self._retry_mono_ms = 0  # No job begins before, because the disk has failed.
        self.pending = pending
        self.deletions = Deletions(pending.prefetch)
        self.cursors = Cursors(pending.prefetch)
        self._commit = commit

    def wake(self) -> None:
        """Let `TimerTree.run` begin jobs as soon as possible."""
        self.check_mono_ms = min(self.check_mono_ms, self._retry_mono_ms)

    def submit(self, run: Callable[[], T], done: Callable[[T | Failure], None]) -> None:
        def post(outcome: T | Failure) -> None:
            if not self.is_closed:
                done(outcome)

        self.executor.submit(run, post)

    def commit(self, change: ManifestChange) -> None:
        """Switch to other tables. Raises StoreError, and then nothing has changed."""
        promise = self._commit(change, self.now_ms)
        if removal := self.tables.removal():
            durable = Promise(promise.end, durable=True)
            self.store.when(durable, lambda error: None if error else self.submit(removal.run, log_failure))

    def failed(self, what: str, error: Exception) -> None:
        self.check_mono_ms = self._retry_mono_ms = self.mono_ms + RETRY_MS
        if not self.is_closed:
            log.warning("put off what=%s retry_ms=%d reason=%r", what, RETRY_MS, str(error))


def log_failure(outcome: Failure | None) -> None:
    if outcome is not None:
        log.warning("a file that nothing needs is left until the next start: %s", outcome)
