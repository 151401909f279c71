"""The class ReadJob: the background job that reads sorted tables for the cursors, ahead of the due times."""

from collections.abc import Iterable
from functools import partial
from typing import Final

from duolog.delay.rows import TimerKey
from duolog.delay.tables.table_format import TableTimer
from duolog.delay.tree.cursors import Read
from duolog.delay.tree.flush_job import FlushJob
from duolog.delay.tree.jobs import BackgroundJob, Context, Steps
from duolog.store.errors import StoreError

# Deletions without a tombstone, of 300 bytes each. At this number no cursor reads until they have tombstones.
DELETIONS_MAX: Final = 1 << 14


class ReadJob(BackgroundJob):
    """Lets one cursor after the other read timers into the prefetch.

    A worker may read a timer that is deleted meanwhile. `Deletions` has its key, also if a manifest has counted it
    meanwhile, so it is left out. If the result were dropped instead, no read might ever be used under steady deletions.
    """

    def __init__(self, context: Context, flush: FlushJob, near_ms: int) -> None:
        super().__init__(context, "read of delayed messages")
        self.ahead_ms = max(1, near_ms // 2)
        self.is_failing = False  # The last read failed: topics are delivered from memory, without the tables.
        self._flush = flush

    def limit_of(self, topic: int) -> TimerKey | None:
        """Return the key up to which a topic may deliver."""
        context, is_flushing = self._context, self._flush.from_ms is not None
        has_own = context.cursors.has_own(topic)
        if not has_own and (self.is_failing or not (context.deletions.by_topic.get(topic) or is_flushing)):
            return None
        return context.cursors.position_of(topic)

    def begin(self) -> None:
        context, flush_ms = self._context, self._flush.from_ms
        until_ms = context.now_ms + self.ahead_ms + 1
        until_ms = until_ms if flush_ms is None else min(until_ms, flush_ms)
        if not context.tables.manifest:
            # A topic that must wait for a flush would be blocked again at once, and this would be called again at once.
            if context.cursors.skip_to(until_ms):
                context.pending.turns.unblock(None)
        elif self.may_start and len(context.deletions) < DELETIONS_MAX:
            read = context.cursors.next_read(context.now_ms, self.ahead_ms, until_ms)
            if read is not None:
                self.start(self._run(read))

    def _run(self, read: Read) -> Steps[None]:
        context, turns, deletions = self._context, self._context.pending.turns, self._context.deletions
        deletions.counted_in_read = set()
        try:
            found, is_last = yield partial(context.read, read.run)
        except (StoreError, OSError):
            deletions.counted_in_read = None
            self.is_failing = True
            turns.unblock(None)
            raise
        self.is_failing = False
        if context.cursors.take(read, found, deletions, is_last=is_last):
            self._note_names(found)
        deletions.counted_in_read = None
        context.wake()
        turns.unblock(read.topic)

    def _note_names(self, timers: Iterable[TableTimer]) -> None:
        pending = self._context.pending
        for timer in timers:
            if timer.name:
                pending.names.add(int.from_bytes(timer.name, "big"), pending.ids.id_at(timer.key))
