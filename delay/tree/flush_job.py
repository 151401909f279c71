"""The class FlushJob: the background job that writes far rows, and ready rows of paused topics, to a sorted table.

A row is *far* if it is due later than `delay.near_ms` from now, and later than all that the cursors have read.

state        event                                                          next state
idle         a table can be filled, or the last flush was long ago          freezing
freezing     enough rows are frozen, a slice in each turn, or all           writing
writing      a worker has written the table, and a manifest names it        idle
writing      the disk failed                                                unfreezing
unfreezing   all rows are put back, a slice in each turn                    idle
"""

from functools import partial
from typing import Final

from duolog.delay.rows import ROW, TOPIC_SHIFT, pack_keys
from duolog.delay.tables.flush import MemtableFlush
from duolog.delay.tree.jobs import Context, ManifestChange
from duolog.store.entry import WRITTEN, Promise
from duolog.store.errors import StoreError
from duolog.store.options import StoreOptions
from duolog.store.workers import Failure

TABLE_ROWS: Final = 1 << 16  # Rows of one table. Their frames are in memory while the table is written.
FLUSH_BYTES: Final = 32 << 20
FLUSH_MS: Final = 30_000  # After this time since the last flush, a table may have fewer rows.
ROWS_IN_SLICE: Final = 1_024
FLUSH_RETRY_MS: Final = 10_000  # A flush reads and writes some 30 MB.


class FlushJob:
    """Flushes rows of the memtable, a table at a time. Rows that are due later than `near_ms` from now are far."""

    def __init__(self, context: Context, near_ms: int) -> None:
        self.waiting = 0  # The number of rows that a flush may take.
        self.is_behind = False  # Whether more rows arrive than are flushed, so that workers should not pause.
        # The flush takes rows due at this time or later, and ready rows of paused topics; None: no flush is under way.
        self.from_ms: int | None = None
        self.has_paused = False  # Whether rows of paused topics are frozen.
        self.count = 0  # The number of flushes that have ended.
        self._context, self._near_ms = context, near_ms
        self._bytes = 0  # The size of the messages of all frozen rows.
        self._flush: MemtableFlush | None = None  # Set while a worker writes the table.
        self._is_unfreezing = False
        self._begun_mono_ms = 0
        self._retry_mono_ms = 0  # No flush begins before this time.

    def open(self, options: StoreOptions) -> None:
        self._rows_max = min(TABLE_ROWS, max(1, options.segment_bytes // 64))

    @property
    def is_busy(self) -> bool:
        """Whether `step` has something to do."""
        return self._is_unfreezing or (self.from_ms is not None and self._flush is None)

    def is_of(self, flushed: bytes) -> bool:
        """Return whether these keys of a replayed manifest are those of the flush that is under way."""
        return self._flush is not None and self._flush.keys is flushed

    def begin(self) -> None:
        """Begin a flush if rows can fill a table, or if there are any and the last flush was long ago."""
        context, turns = self._context, self._context.pending.turns
        from_ms = 1 + max(context.now_ms + self._near_ms, context.cursors.read_to_ms)
        self.waiting = waiting = context.pending.memtable.flushable_count(from_ms, turns.paused)
        self.is_behind = waiting > 2 * self._rows_max
        is_late = context.mono_ms - self._begun_mono_ms >= min(FLUSH_MS, self._near_ms)
        if self.from_ms is not None or self._is_unfreezing or context.mono_ms < self._retry_mono_ms:
            return
        if waiting >= self._rows_max or (waiting and is_late):
            self.from_ms, self._begun_mono_ms = from_ms, context.mono_ms
            self.step()

    def step(self) -> None:
        """Freeze, or unfreeze, a slice of rows."""
        if self._is_unfreezing:
            self._is_unfreezing = self._context.pending.memtable.unfreeze_some(ROWS_IN_SLICE)
            self.has_paused = self.has_paused and self._is_unfreezing
            self._context.wake()
            return
        rows, frozen = self._freeze_some(), self._context.pending.memtable.frozen
        self._bytes += sum([size for _, _, _, size, _, _ in ROW.iter_unpack(rows)])
        if rows and len(frozen.rows) < self._rows_max and self._bytes < FLUSH_BYTES:
            return
        self._bytes = 0
        if len(frozen.rows):
            self._write()
        else:
            frozen.deleted.clear()
            self.from_ms = None

    def _freeze_some(self) -> bytes:
        context, rows_max = self._context, min(ROWS_IN_SLICE, self._rows_max)
        memtable, from_ms = context.pending.memtable, self.from_ms
        assert from_ms is not None, "a flush is under way"
        rows = memtable.freeze_ready(context.pending.turns.paused, rows_max, context.deletions)
        if rows:
            due_ms, address, queue_key, _, _, _ = ROW.unpack_from(rows)
            context.cursors.go_back(queue_key >> TOPIC_SHIFT, (due_ms, address))
            self.has_paused = True
            return rows
        return memtable.freeze_far(from_ms, rows_max, context.deletions)

    def _write(self) -> None:
        """Let a worker write the table once the log is written up to its present end, because the worker reads it."""
        context = self._context
        frozen = [*context.pending.memtable.frozen.rows.blocks()]
        self._flush = flush = MemtableFlush(frozen, context.store.reader.read_written, context.tables.new_writer())

        def run(error: StoreError | None) -> None:
            if error is not None:
                self._end(flush, error)
            else:
                context.submit(flush.run, partial(self._written, flush))

        context.store.when(Promise(context.store.next_position, WRITTEN), run)

    def _written(self, flush: MemtableFlush, outcome: Failure | None) -> None:
        """Copy the table, once a worker has written it."""
        if outcome is None:
            assert flush.table is not None, "the flush has run"
            self._context.copy([flush.table], partial(self._end, flush))
        else:
            self._end(flush, outcome)

    def _end(self, flush: MemtableFlush, outcome: Failure | None) -> None:
        """Commit a manifest with the table, or put its rows back if that fails."""
        context = self._context
        if outcome is None:
            outcome = self._commit(flush)
        if outcome is not None and flush.table is not None:
            context.discard([flush.table])
        self._flush = self.from_ms = None
        if outcome is None:
            self.has_paused = False
            context.wake()  # There may be rows for another table.
        else:
            self._is_unfreezing = True
            self._retry_mono_ms = context.mono_ms + FLUSH_RETRY_MS
            context.failed("flush of delayed messages", outcome)

    def _commit(self, flush: MemtableFlush) -> StoreError | None:
        """Commit a manifest with the table; it also deletes the timers that were deleted or rescheduled meanwhile."""
        context = self._context
        assert flush.table is not None, "the flush has run"
        deleted = pack_keys(context.pending.memtable.frozen.deleted)
        try:
            context.commit(ManifestChange(context.tables.added([flush.table]), flush.keys, deleted))
        except StoreError as error:
            return error
        return None
