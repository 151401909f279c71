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
from duolog.delay.tables.flush import flush_rows
from duolog.delay.tree.jobs import BackgroundJob, Context, ManifestChange, Steps
from duolog.store.entry import WRITTEN, Promise
from duolog.store.errors import StoreError
from duolog.store.options import StoreOptions

TABLE_ROWS: Final = 1 << 16  # Rows of one table. Their frames are in memory while the table is written.
FLUSH_BYTES: Final = 32 << 20
FLUSH_MS: Final = 30_000  # After this time since the last flush, a table may have fewer rows.
ROWS_IN_SLICE: Final = 1_024
FLUSH_RETRY_MS: Final = 10_000  # A flush reads and writes some 30 MB.


class FlushJob(BackgroundJob):
    """Flushes rows of the memtable, a table at a time. Rows that are due later than `near_ms` from now are far."""

    def __init__(self, context: Context, near_ms: int) -> None:
        super().__init__(context, "flush of delayed messages", FLUSH_RETRY_MS)
        self.waiting = 0  # The number of rows that a flush may take.
        # The flush takes rows due at this time or later, and ready rows of paused topics; None: no flush is under way.
        self.from_ms: int | None = None
        self.has_paused = False  # Whether rows of paused topics are frozen.
        self._near_ms = near_ms
        self._rows_max = TABLE_ROWS  # Rows of one table.
        self._begun_mono_ms = 0

    def open(self, options: StoreOptions) -> None:
        self._rows_max = min(TABLE_ROWS, max(1, options.segment_bytes // 64))

    @property
    def is_behind(self) -> bool:
        """Whether more rows arrive than are flushed, so that workers should not pause."""
        return self.waiting > 2 * self._rows_max

    def begin(self) -> None:
        """Begin a flush if rows can fill a table, or if there are any and the last flush was long ago."""
        context = self._context
        from_ms = 1 + max(context.now_ms + self._near_ms, context.cursors.read_to_ms)
        self.waiting = waiting = context.pending.memtable.flushable_count(from_ms, context.pending.turns.paused)
        is_late = context.mono_ms - self._begun_mono_ms >= min(FLUSH_MS, self._near_ms)
        if self.may_start and (waiting >= self._rows_max or (waiting and is_late)):
            self.from_ms, self._begun_mono_ms = from_ms, context.mono_ms
            self.start(self._run(from_ms))

    def _run(self, from_ms: int) -> Steps[None]:
        memtable = self._context.pending.memtable
        yield from self._freeze(from_ms)
        try:
            if len(memtable.frozen.rows):
                yield from self._write()
        except (StoreError, OSError) as error:
            self.failed(error)
        while memtable.unfreeze_some(ROWS_IN_SLICE):  # If the table was written, no row is left.
            yield None
        self.from_ms, self.has_paused = None, False
        self._context.cursors.go(self._context.pending.turns.paused)
        self._context.wake()  # There may be rows for another table.

    def _freeze(self, from_ms: int) -> Steps[None]:
        """Freeze enough rows for a table, or all."""
        frozen, message_bytes = self._context.pending.memtable.frozen, 0
        while rows := self._freeze_some(from_ms):
            message_bytes += sum([size for _, _, _, size, _, _ in ROW.iter_unpack(rows)])
            if len(frozen.rows) >= self._rows_max or message_bytes >= FLUSH_BYTES:
                return
            yield None

    def _freeze_some(self, from_ms: int) -> bytes:
        context, rows_max = self._context, min(ROWS_IN_SLICE, self._rows_max)
        memtable = context.pending.memtable
        rows = memtable.freeze_ready(context.pending.turns.paused, rows_max, context.deletions)
        if not rows:
            return memtable.freeze_far(from_ms, rows_max, context.deletions)
        due_ms, address, queue_key, _, _, _ = ROW.unpack_from(rows)
        context.cursors.stop(queue_key >> TOPIC_SHIFT, (due_ms, address))
        self.has_paused = True
        return rows

    def _write(self) -> Steps[None]:
        """Write the table and commit a manifest with it, which also deletes the timers that were deleted meanwhile."""
        context, frozen = self._context, self._context.pending.memtable.frozen
        blocks, new_writer = [*frozen.rows.blocks()], context.tables.new_writer()
        # The worker reads the log, so this must be written up to its present end.
        yield partial(context.store.when, Promise(context.store.next_position, WRITTEN))
        yield from context.publish(
            partial(flush_rows, blocks, context.store.reader.read_written, new_writer),
            lambda tables, keys: ManifestChange(context.tables.added(tables), keys, pack_keys(frozen.deleted)),
        )
