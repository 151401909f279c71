"""The class TombstoneJob: the background job that writes the tombstones of deleted timers to the tables' files."""

from collections.abc import Sequence
from functools import partial
from typing import Final, NamedTuple

from duolog.delay.rows import TimerKey
from duolog.delay.tables.sorted_table import RowRef, SortedTable
from duolog.delay.tables.tables_view import TablesView
from duolog.delay.tables.tombstones import TombstoneWrite
from duolog.delay.tree.jobs import Context, ManifestChange
from duolog.store.errors import StoreError
from duolog.store.workers import Failure

TOMBSTONES_MIN: Final = 4_096  # At this number of deletions that no manifest counts, tombstones are written.
TOMBSTONES_MS: Final = 10_000  # With fewer deletions, tombstones are written at this interval.
MARKED_IN_SLICE: Final = 512


class _Marks(NamedTuple):
    """What makes the tables have all deletions of the log below the position `counted_to`."""

    counted_to: int
    starts: dict[int, int]  # For each table number, the ordinal below which all timers are deleted.
    tombstones: list[tuple[SortedTable, RowRef]]


class TombstoneJob:
    """Writes the deletions that only the log has to the files of the tables.

    Where files are write-once (`TableCopies`), tables get their tombstones in the log instead. All timers below a
    table's `start` are deleted, so these need no tombstones.

        state       event                                                          next state
        idle        there are TOMBSTONES_MIN deletions, or TOMBSTONES_MS passed    finding
        finding     a worker has found the deleted timers in the tables            marking
        marking     all of them are marked, a slice in each loop turn              writing
        marking     the same, files are write-once; a manifest is committed        idle
        writing     a worker has synced the files; a manifest is committed         idle
    """

    def __init__(self, context: Context) -> None:
        self.is_running = False
        self._context = context
        self._marks: _Marks | None = None
        self._begun_mono_ms = 0

    @property
    def is_busy(self) -> bool:
        """Whether `step` has something to do."""
        return self._marks is not None

    @property
    def is_urgent(self) -> bool:
        return not self.is_running and len(self._context.deletions) >= TOMBSTONES_MIN

    @property
    def is_wanted(self) -> bool:
        is_late = self._context.mono_ms - self._begun_mono_ms >= TOMBSTONES_MS
        return not self.is_running and is_late and len(self._context.deletions) > 0

    def begin(self) -> None:
        context = self._context
        self.is_running, self._begun_mono_ms = True, context.mono_ms
        counted_to, low = context.store.next_position, context.cursors.low(context.deletions.by_topic)
        compacting, view, keys = context.tables.compacting, context.tables.view(), context.deletions.keys()

        def take(found: _Marks | Failure) -> None:
            view.close()
            if isinstance(found, Exception):
                self._end(found)
            else:
                self._marks = found
                context.wake()

        context.submit(lambda: _find_marks(view, keys, low, compacting, counted_to), take)

    def step(self) -> None:
        """Add tombstones for a slice of the deleted timers."""
        marks, tables = self._marks, self._context.tables
        assert marks is not None, "tombstones are being written"
        for _ in range(min(MARKED_IN_SLICE, len(marks.tombstones))):
            table, ref = marks.tombstones.pop()
            if not tables.has(table):  # The table was compacted meanwhile, so the job begins again.
                self._marks, self.is_running = None, False
                return
            tables.delete(table, ref)
        if not marks.tombstones:
            self._marks = None
            if self._context.table_copies.is_write_once:
                self._commit(marks, (), None)
                return
            writes = tables.tombstone_writes()
            self._context.submit(partial(_run_all, writes), partial(self._commit, marks, writes))

    def _commit(self, marks: _Marks, writes: Sequence[TombstoneWrite], outcome: Failure | None) -> None:
        if outcome is None:
            tables = self._context.tables
            manifest = tables.with_starts(marks.starts, tables.with_tombstones(writes))
            logged = tables.unlogged_tombstones() if self._context.table_copies.is_write_once else b""
            try:
                self._context.commit(ManifestChange(manifest, counted_to=marks.counted_to, tombstones=logged))
            except StoreError as error:
                outcome = error
        self._end(outcome)

    def _end(self, outcome: Failure | None) -> None:
        self.is_running = False
        if outcome is None:
            self._context.wake()  # A cursor may wait, because no cursor reads while tombstones are written.
        else:
            self._context.failed("tombstones of delayed messages", outcome)


def _find_marks(
    view: TablesView, keys: list[TimerKey], low: TimerKey, compacting: frozenset[int], counted_to: int
) -> _Marks:
    """Find the deleted timers in the tables; called in a worker.

    Timers below a table's new `start` need no tombstones, except in a table that is being compacted.
    """
    keys.sort()
    above = [key for key in keys if key >= low]
    starts = view.lower(low)
    tombstones = [
        (table, ref)
        for table in view.tables
        for ref in table.refs(keys if table.entry.number in compacting else above)
    ]  # fmt: skip
    return _Marks(counted_to, starts, tombstones)


def _run_all(writes: Sequence[TombstoneWrite]) -> None:
    for write in writes:
        write.run()
