"""The class TombstoneJob: the background job that gives tombstones to the deleted timers of tables."""

from functools import partial
from typing import Final, NamedTuple

from duolog.delay.rows import TimerKey
from duolog.delay.tables.sorted_table import RowRef
from duolog.delay.tables.tables_view import TablesView
from duolog.delay.tree.jobs import BackgroundJob, Context, ManifestChange, Steps

TOMBSTONES_MIN: Final = 4_096  # At this number of deletions that no manifest counts, tombstones are written.
TOMBSTONES_MS: Final = 10_000  # With fewer deletions, tombstones are written at this interval.
MARKED_IN_SLICE: Final = 512


class _Marks(NamedTuple):
    """What makes the tables have the deletions that only the log has."""

    starts: dict[int, int]  # For each table number, the ordinal below which all timers are deleted.
    tombstones: list[RowRef]


class TombstoneJob(BackgroundJob):
    """Writes tombstones for the deletions that the log has only by the keys of the timers.

    All timers below a table's `start` are deleted, so these need no tombstones.

        state       event                                                               next state
        idle        there are TOMBSTONES_MIN deletions, or TOMBSTONES_MS passed         finding
        finding     a worker has found the deleted timers in the tables                 marking
        marking     all are marked, a slice in each loop turn; a manifest is committed  idle
    """

    def __init__(self, context: Context) -> None:
        super().__init__(context, "tombstones of delayed messages")
        self._begun_mono_ms = 0

    @property
    def is_urgent(self) -> bool:
        return self.may_start and len(self._context.deletions) >= TOMBSTONES_MIN

    @property
    def is_wanted(self) -> bool:
        is_late = self._context.mono_ms - self._begun_mono_ms >= TOMBSTONES_MS
        return self.may_start and is_late and len(self._context.deletions) > 0

    def begin(self) -> None:
        self._begun_mono_ms = self._context.mono_ms
        self.start(self._run())

    def _run(self) -> Steps[None]:
        context, tables = self._context, self._context.tables
        counted_to, low = context.store.next_position, context.cursors.low(context.deletions.by_topic)
        marks: _Marks = yield partial(context.read, partial(_find_marks, context.deletions.keys(), low))
        rows: dict[tuple[int, int], list[int]] = {}
        for number, ref in enumerate(marks.tombstones):
            if not number % MARKED_IN_SLICE:
                yield None
            if not tables.has(ref.table):  # The table was compacted meanwhile, so the job begins again.
                return
            tables.delete(ref)
            rows.setdefault((ref.table.entry.number, ref.topic), []).append(ref.ordinal)
        manifest, tombstones = tables.with_deletions(marks.starts), [(*key, found) for key, found in rows.items()]
        context.commit(ManifestChange(manifest, counted_to=counted_to, tombstones=tombstones))
        context.wake()  # A cursor may wait, because no cursor reads while tombstones are written.


def _find_marks(keys: list[TimerKey], low: TimerKey, view: TablesView) -> _Marks:
    """Find the deleted timers in the tables; called in a worker.

    Timers below a table's new `start` need no tombstones, except in a table that is being compacted.
    """
    keys.sort()
    above = [key for key in keys if key >= low]
    starts = view.lower(low)
    tombstones = [
        ref
        for table in view.tables
        for ref in table.refs(above if table.deleted_meanwhile is None else keys)
    ]  # fmt: skip
    return _Marks(starts, tombstones)
