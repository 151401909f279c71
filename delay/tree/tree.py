"""The log-structured merge tree of pending timers, ordered by (due time, address).

    log ----------> memtable ----- flush ----> sorted tables ----- cursors ----> prefetch
                    delay/memtable/            delay/tables/                     cursors.py
                       |                          |    |                            |
                       |                          |    `-- compaction, tombstones   |
                       `----------- merged: delay/pending.py, in turns of topics ---'------> delivery

    where a timer is    what moves it on                                                                  to
    memtable            due beyond `near_ms`; or due, and its topic is paused                             frozen
    frozen              a worker has written the table, and one record names it (`ManifestChange`)        table
                        deleted: it is written all the same, and deleted in the table                     (deleted)
                        the disk failed                                                                   memtable
    table               delivered, cancelled: the log says so, then a tombstone or the table's start      (deleted)
                        rescheduled: pending in the log again under its old id, deleted in the table      memtable

State is what the log says: which tables count, which timers they have instead of the memtable, and which timers are
deleted. Cursors and prefetched timers are a cache, which each start fills anew.

Jobs have files of their own: `flush_job.py`, `table_jobs.py`, `lookups.py`, `lists.py`. A read of a cursor and the
writing of tombstones exclude each other; so a timer that a cursor has read is deleted only if `Deletions` has its key.
A topic's own cursor does not read while rows of paused topics are frozen, because these may belong before it.
"""

import logging
from collections.abc import Callable, Iterable
from typing import Final

from duolog.delay.pending import PendingTimers
from duolog.delay.rows import KEY, TimerKey
from duolog.delay.tables.table_format import TableEntry, TableTimer
from duolog.delay.tables.tables import Manifest, Tables
from duolog.delay.tables.tables_view import TablesView
from duolog.delay.tree.cursors import Read
from duolog.delay.tree.flush_job import FlushJob
from duolog.delay.tree.jobs import CommitManifest, Context, ManifestChange, TreeStore
from duolog.delay.tree.lists import PendingLists
from duolog.delay.tree.lookups import Lookups
from duolog.delay.tree.table_jobs import CompactionJob, TombstoneJob
from duolog.store.errors import StoreError
from duolog.store.files import Files
from duolog.store.workers import Failure

CHECK_INTERVAL_MS: Final = 1_000  # Between two checks whether a job is necessary.
DELETIONS_MAX: Final = 1 << 14  # Some 300 bytes each; cursors stop here until tombstones are written.

log = logging.getLogger("delay")


class TimerTree:
    """Belongs to the loop. It has one method for each part of its life, and one for each record that it replays."""

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
        self.lookups = Lookups(context, self.flush)
        self.lists = PendingLists(context, topic_exists)
        self._tombstones, self._compaction = TombstoneJob(context), CompactionJob(context)
        self._topic_exists = topic_exists
        self._ahead_ms = max(1, near_ms // 2)
        self._check_interval_ms = max(1, min(CHECK_INTERVAL_MS, self._ahead_ms // 8))
        self._is_reading = False
        self._is_failing = False  # The last read failed: topics are delivered from memory, without the tables.
        self._is_set_back = False
        pending.limit_of, pending.turns.on_blocked = self._limit_of, context.wake

    # -- Opening and closing

    def begin(self, files: Files) -> None:
        """Set the disk, before the log is recovered."""
        self.context.tables = Tables(files)

    def open(self, store: TreeStore) -> None:
        """Open the tables that the log names. Blocks; raises OSError."""
        context, tables = self.context, self.context.tables
        context.store = store
        self.pending.memtable.clear_flushed()
        self.flush.open(store.options.segment_bytes)
        tables.open()
        view, keys = tables.view(), sorted(self.deletions.keys())
        for table in view.tables:
            for ref in table.refs(keys):
                tables.delete(table, ref)
            for topic, count in table.pending_by_topic():
                self.deletions.add(topic, count, is_gone=not self._topic_exists(topic))
        view.close()
        if tables.is_repaired:
            try:
                context.commit(ManifestChange(tables.manifest))
            except StoreError as error:
                log.warning("the next start will report the damaged tables again reason=%r", str(error))

    def close(self) -> None:
        """Close the files, after the workers have ended; results that they post later are ignored."""
        self.context.is_closed = True
        self.context.tables.close()

    def pause_with(self, pause: Callable[[], object]) -> None:
        """Let workers call this with each block that they write."""
        self.context.tables.pause = pause

    # -- Numbers

    def __len__(self) -> int:
        """How many are pending in tables."""
        return self.deletions.pending

    # -- Topics

    def pause(self, topic: int) -> None:
        self.pending.turns.pause(topic)
        self.cursors.stop(topic)

    def resume(self, topic: int) -> None:
        self.cursors.go(topic, may_join=not (self.flush.has_paused or self._is_reading))
        self.pending.turns.resume(topic)
        self.context.wake()

    def _limit_of(self, topic: int) -> TimerKey | None:
        """Return the key up to which a topic may deliver."""
        has_own = self.cursors.has_own(topic)
        if not has_own and (self._is_failing or not (self.deletions.by_topic.get(topic) or self.flush.from_ms)):
            return None
        return self.cursors.position_of(topic)

    # -- Background work

    def next_deadline_ms(self) -> int:
        """When `run` has something to do; monotonic."""
        return 0 if self.flush.is_busy or self._tombstones.is_busy else self.context.check_mono_ms

    def run(self, now_ms: int, mono_ms: int) -> None:
        """Do a slice of what is under way, and begin what is wanted. Raises StoreError."""
        context = self.context
        context.now_ms, context.mono_ms = now_ms, mono_ms
        self.pending.found.clear()
        for job in (self.flush, self._tombstones):
            if job.is_busy:
                job.step()
        if mono_ms >= context.check_mono_ms:
            context.check_mono_ms = mono_ms + self._check_interval_ms
            if self._is_set_back:
                self._is_set_back = False
                self.cursors.reset()
            if self._tombstones.is_urgent and not self._is_reading:
                self._tombstones.begin()
            self._begin_read()
            if self._tombstones.is_wanted and not self._is_reading:
                self._tombstones.begin()
            self.flush.begin()
            if not self._tombstones.is_under_way:
                self._compaction.begin()

    def set_back(self) -> None:
        """Read the tables anew, because the clock was ahead: rows that are due late again are flushed again."""
        self._is_set_back = True
        self.context.wake()

    # -- Reading

    def read_more(self, now_ms: int) -> None:
        """Read ahead after a delivery, because the prefetch may have room."""
        if self.context.tables.manifest and not self._is_reading and not self._is_failing and not self._is_set_back:
            self.context.now_ms = now_ms
            self._begin_read()

    def _begin_read(self) -> None:
        now_ms, flush_ms = self.context.now_ms, self.flush.from_ms
        until_ms = now_ms + self._ahead_ms + 1
        until_ms = until_ms if flush_ms is None else min(until_ms, flush_ms)
        if not self.context.tables.manifest:
            self.cursors.skip_to(until_ms, may_join=flush_ms is None)
            self.pending.turns.unblock(None)
            return
        if self._is_reading or self._tombstones.is_under_way or len(self.deletions) >= DELETIONS_MAX:
            return
        read = self.cursors.next_read(now_ms, self._ahead_ms, until_ms, may_read_own=not self.flush.has_paused)
        if read is not None:
            self._is_reading = True
            view = self.context.tables.view()
            self.context.submit(lambda: read.run(view), lambda outcome: self._end_read(read, view, outcome))

    def _end_read(self, read: Read, view: TablesView, outcome: tuple[list[TableTimer], bool] | Failure) -> None:
        view.close()
        self._is_reading = False
        self._is_failing = isinstance(outcome, Exception)
        if isinstance(outcome, Exception):
            self.context.failed("read of delayed messages", outcome)
            self.pending.turns.unblock(None)
        else:
            found, is_last = outcome
            if self.cursors.take(read, found, self.deletions, is_last=is_last):
                self._note_names(found)
            self.context.wake()
            self.pending.turns.unblock(read.topic)

    def _note_names(self, timers: Iterable[TableTimer]) -> None:
        for timer in timers:
            if timer.name and timer.key not in self.deletions:
                self.pending.names.add(int.from_bytes(timer.name, "big"), self.pending.ids.id_at(timer.key))

    # -- Replay

    def replay_manifest(self, change: ManifestChange, log_position: int) -> None:
        self.context.tables.switch(change.manifest)
        if not change.manifest:
            self.deletions.deleted_topics.clear()
        if change.flushed and self.flush.is_of(change.flushed):
            self.flush.count += 1
            for topic, count in self.pending.memtable.clear_frozen().items():
                self.deletions.add(topic, count, is_gone=not self._topic_exists(topic))
        else:
            stay = KEY.iter_unpack(change.deleted)  # They may be in the memtable again, because they were moved back.
            self.pending.memtable.forget_flushed(change.flushed, stay)
        self.deletions.flushed(change.flushed)
        self.deletions.note_late(change.deleted, log_position)
        self.deletions.counted(change.counted_to)


def manifest_of(rows: Iterable[Iterable[int]]) -> Manifest:
    """Read a manifest as a record holds it."""
    return tuple(TableEntry(*row) for row in rows)
