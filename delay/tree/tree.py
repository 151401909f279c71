"""The log-structured merge tree of pending timers, ordered by (due time, address).

    log ----------> memtable ----- flush ----> sorted tables ----- cursors ----> prefetch
                    delay/memtable/            delay/tables/                     cursors.py
                       |                          |    |                            |
                       |                          |    `-- compaction, tombstones   |
                       `----------- merged: delay/pending.py, in turns of topics ---'------> delivery

    place       event                                                                              next place
    memtable    the timer is far (due beyond `near_ms`), or is due while its topic is paused       frozen
    frozen      a worker has written the table, and a manifest names it (`ManifestChange`)         table
    frozen      the timer is deleted: the worker writes it, and it is deleted in the table         none
    frozen      the disk failed                                                                    memtable
    table       the timer is delivered or cancelled: the log has a record, later a tombstone       none
    table       the timer is rescheduled: the log has its entry again, under its old id, and it    memtable
                is deleted in the table

The state is in the log: the current tables, the timers that are in them and not in the memtable, and the deleted
timers. Cursors and prefetched timers are a cache, which is empty after a start.

The jobs are in `flush_job.py`, `read_job.py`, `tombstone_job.py` and `compaction_job.py`. `lookups.py` and `lists.py`
read tables for commands and requests.
"""

import logging
from collections.abc import Callable
from typing import Final

from duolog.delay.pending import PendingTimers
from duolog.delay.rows import KEY
from duolog.delay.tables.tables import Tables
from duolog.delay.tree.compaction_job import CompactionJob
from duolog.delay.tree.flush_job import FlushJob
from duolog.delay.tree.jobs import CommitManifest, Context, ManifestChange
from duolog.delay.tree.lists import PendingLists
from duolog.delay.tree.lookups import Lookups
from duolog.delay.tree.read_job import ReadJob
from duolog.delay.tree.tombstone_job import TombstoneJob
from duolog.store.errors import StoreError
from duolog.store.files import Files
from duolog.store.store import Store

CHECK_INTERVAL_MS: Final = 1_000  # Between two checks whether a job is necessary.

log = logging.getLogger("delay")


class TimerTree:
    """The sorted tables, the cursors over them, and the background jobs. All methods are called in the loop."""

    def __init__(
        self,
        pending: PendingTimers,
        commit: CommitManifest,
        topic_exists: Callable[[int], bool],
        near_ms: int,
    ) -> None:
        self.context = context = Context(pending, commit)
        self.pending, self.deletions, self.cursors = pending, context.deletions, context.cursors
        self.flush = FlushJob(context, near_ms)
        self.lookups = Lookups(context)
        self.lists = PendingLists(context, topic_exists)
        self._tombstones, self._compaction = TombstoneJob(context), CompactionJob(context)
        self._topic_exists = topic_exists
        self._reads = ReadJob(context, self.flush, near_ms)
        self._check_interval_ms = max(1, min(CHECK_INTERVAL_MS, self._reads.ahead_ms // 8))
        pending.limit_of, pending.turns.on_blocked = self._reads.limit_of, context.wake

    # -- Opening and closing

    def begin(self, files: Files) -> None:
        """Set the disk, before the log is recovered."""
        self.context.tables = Tables(files)

    def read_tables(self, first_number: int = 1, *, may_lose: bool = True) -> None:
        """Open the tables that the log names, and mark the deleted timers in them. Blocks; raises Corruption, OSError.

        A broker that takes over a stream calls this in a thread, before `open`, while nothing else uses the tables. It
        reads a block of each table for each deletion. There are about DELETIONS_MAX of them at most (`read_job.py`). In
        the loop that would take longer than the broker's lease.
        """
        tables = self.context.tables
        tables.open(first_number, may_lose=may_lose)
        keys = sorted(self.deletions.keys())
        view = tables.view()
        for ref in view.refs(keys):
            tables.delete(ref)
        view.close()

    def open(self, store: Store) -> None:
        """Open the tables that the log names, unless `read_tables` has done so. Blocks; raises OSError."""
        context, tables = self.context, self.context.tables
        context.store = store
        self.flush.open(store.options)
        if not tables.is_open:
            self.read_tables()
        view = tables.view()
        for table in view.tables:
            for topic, count in table.pending_by_topic():
                self.deletions.add(topic, count, is_gone=not self._topic_exists(topic))
        view.close()
        if tables.is_repaired:
            try:
                # Tombstones come first, because the next start removes files that the manifest does not name.
                for rows in tables.all_tombstones() if any(entry.tombstone_bytes for entry in tables.manifest) else ():
                    context.commit(ManifestChange(tables.manifest, tombstones=rows))
                context.commit(ManifestChange(tuple(entry._replace(tombstone_bytes=0) for entry in tables.manifest)))
            except StoreError as error:
                log.warning(
                    "damaged tables not forgotten, the next start will report them again: reason=%r", str(error)
                )

    def close(self) -> None:
        """Close the files, after the workers have ended; results that they post later are ignored."""
        self.context.is_closed = True
        self.context.tables.close()

    # -- Numbers

    def __len__(self) -> int:
        """Return the number of pending timers in tables."""
        return self.deletions.pending

    # -- Topics

    def pause(self, topic: int) -> None:
        self.pending.turns.pause(topic)
        self.cursors.stop(topic)

    def resume(self, topic: int) -> None:
        self.pending.turns.resume(topic)
        if not self.flush.has_paused:
            self.cursors.go(self.pending.turns.paused)
        self.context.wake()

    # -- Background work

    def next_deadline_ms(self) -> int:
        """Return the monotonic time at which `run` must be called next."""
        return 0 if self.flush.is_busy or self._tombstones.is_busy else self.context.check_mono_ms

    def run(self, now_ms: int, mono_ms: int) -> None:
        """Run a slice of each job that is under way, and begin the jobs that are necessary. Raises StoreError."""
        context = self.context
        context.now_ms, context.mono_ms = now_ms, mono_ms
        self.pending.found.clear()
        for job in (self.flush, self._tombstones):
            if job.is_busy:
                job.step()
        if mono_ms >= context.check_mono_ms:
            context.check_mono_ms = mono_ms + self._check_interval_ms
            if not self._tombstones.is_running:  # First, because tombstones may be necessary all the time.
                self._compaction.begin()
            self._tombstones.begin()
            self._reads.begin()
            self.flush.begin()

    def set_back(self, now_ms: int) -> None:
        """Let all cursors begin again, because the clock was set back. Rows that are far again are flushed again."""
        self.context.now_ms = now_ms
        self.cursors.reset()
        self.context.wake()

    def read_more(self, now_ms: int) -> None:
        """Read ahead after a delivery, because the prefetch may have room."""
        if self.context.tables.manifest:
            self.context.now_ms = now_ms
            self._reads.begin()

    # -- Replay

    def replay_manifest(self, change: ManifestChange, log_position: int) -> None:
        tables, memtable = self.context.tables, self.pending.memtable
        tables.switch(change.manifest)
        tables.add_tombstones(change.tombstones)
        if not change.manifest:
            self.deletions.deleted_topics.clear()
        if not tables.is_open:  # The log is being recovered.
            # A deleted timer of the table may be in the memtable under the same key, because it was rescheduled.
            memtable.forget_flushed(change.flushed, KEY.iter_unpack(change.deleted))
        elif change.flushed:
            for topic, count in memtable.clear_frozen().items():
                self.deletions.add(topic, count, is_gone=not self._topic_exists(topic))
        self.deletions.flushed(change.flushed)
        self.deletions.renew(change.deleted, log_position)
        self.deletions.counted(change.counted_to)
