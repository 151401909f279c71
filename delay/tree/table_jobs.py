"""Two jobs that keep the sorted tables small: writing tombstones, and compaction."""

from collections.abc import Sequence
from functools import partial
from typing import Final, NamedTuple

from duolog.delay.rows import TimerKey
from duolog.delay.tables.compaction import Compaction
from duolog.delay.tables.sorted_table import RowRef, SortedTable
from duolog.delay.tables.tables_view import TablesView
from duolog.delay.tables.tombstones import TombstoneWrite
from duolog.delay.tree.deletions import packed
from duolog.delay.tree.jobs import Context, ManifestChange, log_failure
from duolog.store.errors import StoreError
from duolog.store.workers import Failure

TOMBSTONES_MIN: Final = 4_096  # Deletions that no manifest counts, from which on they are written at once.
TOMBSTONES_MS: Final = 10_000  # After which fewer are written.
MARKED_IN_SLICE: Final = 512
LATE_IN_SLICE: Final = 256  # Deleted during a compaction, at 10 us each; if there are more, a worker finds them.
COMPACTION_RETRY_MS: Final = 60_000  # A compaction reads and writes a gigabyte or two.


class _Marks(NamedTuple):
    """The deletions that the next manifest will count."""

    counted_to: int  # Position: of the deletions that the log has below it.
    starts: dict[int, int]  # By table: the timers before are deleted.
    tombstones: list[tuple[SortedTable, RowRef]]


class TombstoneJob:
    """Writes deletions that only the log has to the tables' files.

    A table's start says that all timers before it are deleted, so these need no tombstones.

        idle        many deletions, or late ones            -> finding
        finding     a worker knows where they lie           -> marking
        marking     a slice in each turn; all are marked    -> writing
        writing     files are synced, the manifest counts   -> idle
    """

    def __init__(self, context: Context) -> None:
        self.is_under_way = False
        self._context = context
        self._marks: _Marks | None = None
        self._begun_mono_ms = 0

    @property
    def is_busy(self) -> bool:
        """Whether `step` has something to do."""
        return self._marks is not None

    @property
    def is_urgent(self) -> bool:
        return not self.is_under_way and len(self._context.deletions) >= TOMBSTONES_MIN

    @property
    def is_wanted(self) -> bool:
        is_late = self._context.mono_ms - self._begun_mono_ms >= TOMBSTONES_MS
        return not self.is_under_way and is_late and len(self._context.deletions) > 0

    def begin(self) -> None:
        context = self._context
        self.is_under_way, self._begun_mono_ms = True, context.mono_ms
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
        """Mark a slice of timers as deleted."""
        marks, tables = self._marks, self._context.tables
        assert marks is not None, "tombstones are being written"
        for _ in range(min(MARKED_IN_SLICE, len(marks.tombstones))):
            table, ref = marks.tombstones.pop()
            if not tables.has(table):  # It was compacted meanwhile: all begins anew.
                self._marks, self.is_under_way = None, False
                return
            tables.delete(table, ref)
        if not marks.tombstones:
            self._marks = None
            writes = tables.tombstone_writes()
            self._context.submit(partial(_run_all, writes), partial(self._commit, marks, writes))

    def _commit(self, marks: _Marks, writes: Sequence[TombstoneWrite], outcome: Failure | None) -> None:
        if outcome is None:
            tables = self._context.tables
            manifest = tables.with_starts(marks.starts, tables.with_tombstones(writes))
            try:
                self._context.commit(ManifestChange(manifest, counted_to=marks.counted_to))
            except StoreError as error:
                outcome = error
        self._end(outcome)

    def _end(self, outcome: Failure | None) -> None:
        self.is_under_way = False
        if outcome is None:
            self._context.wake()  # A read may wait.
        else:
            self._context.failed("tombstones of delayed messages", outcome)


def _find_marks(
    view: TablesView, keys: list[TimerKey], low: TimerKey, compacting: frozenset[int], counted_to: int
) -> _Marks:
    """Find where deleted timers lie, for a worker; in tables that are being compacted all of them need tombstones."""
    keys.sort()
    above = [key for key in keys if key >= low]
    starts = {table.entry.number: table.lower(*low) for table in view.tables}
    tombstones = [
        (table, ref)
        for table in view.tables
        for ref in table.refs(keys if table.entry.number in compacting else above)
    ]  # fmt: skip
    return _Marks(counted_to, starts, tombstones)


def _run_all(writes: Sequence[TombstoneWrite]) -> None:
    for write in writes:
        write.run()


class CompactionJob:
    """Compacts the tables that `Tables` names; timers that are deleted meanwhile are deleted in the results."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._retry_mono_ms = 0  # No compaction begins before.

    def begin(self) -> None:
        inputs = self._context.tables.compaction_wanted() if self._context.mono_ms >= self._retry_mono_ms else []
        if inputs:
            compaction = self._context.tables.compact(inputs)
            self._context.submit(compaction.run, partial(self._end, compaction))

    def _end(self, compaction: Compaction, outcome: Failure | None) -> None:
        context = self._context
        if outcome is None and compaction.late_count > LATE_IN_SLICE:
            context.submit(compaction.delete_late, partial(self._end, compaction))
            return
        if outcome is None:
            outcome = self._commit(compaction)
        else:
            context.tables.abandon_compaction()
            context.submit(context.tables.discard(compaction.outputs), log_failure)
        if outcome is not None:
            self._retry_mono_ms = context.mono_ms + COMPACTION_RETRY_MS
            context.failed("compaction of delayed messages", outcome)

    def _commit(self, compaction: Compaction) -> Failure | None:
        tables = self._context.tables
        try:
            manifest = tables.compacted()
        except (OSError, StoreError) as error:
            tables.abandon_compaction()
            return error
        try:
            # The results have tombstones that came since it began, but in no file: so the log says it once more.
            self._context.commit(ManifestChange(manifest, deleted=packed(compaction.deleted_late)))
        except StoreError as error:
            self._context.submit(tables.discard(compaction.outputs), log_failure)
            return error
        return None
