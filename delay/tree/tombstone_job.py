"""The class TombstoneJob: the background job that gives tombstones to the deleted timers of tables."""

from collections.abc import Container
from functools import partial
from itertools import chain
from typing import Final

from duolog.delay.rows import TimerKey
from duolog.delay.tables.sorted_table import RowRef, SortedTable
from duolog.delay.tables.tables_view import TablesView
from duolog.delay.tree.jobs import BackgroundJob, Context, ManifestChange, Steps

TOMBSTONES_MIN: Final = 4_096  # At this number of deletions that no manifest counts, tombstones are written.
TOMBSTONES_MS: Final = 10_000  # With fewer deletions, tombstones are written at this interval.
MARKED_IN_SLICE: Final = 512  # Tombstones of one manifest, which must fit into the smallest segment.


class TombstoneJob(BackgroundJob):
    """Writes tombstones for the deletions that the log has only by the keys of the timers.

    All timers below a table's `start` are deleted, so these need no tombstones.

        state       event                                                               next state
        idle        there are TOMBSTONES_MIN deletions, or TOMBSTONES_MS passed         finding
        finding     a worker has found the deleted timers in the tables                 marking
        marking     each loop turn marks a slice, and commits a manifest with it; all   idle
                    are marked, and a manifest counts them
    """

    def __init__(self, context: Context) -> None:
        super().__init__(context, "tombstones of delayed messages")
        self._begun_mono_ms = 0

    def begin(self) -> None:
        """Begin if there are many deletions, or if there are any and the last run was long ago."""
        context, count = self._context, len(self._context.deletions)
        is_late = context.mono_ms - self._begun_mono_ms >= TOMBSTONES_MS
        if self.may_start and (count >= TOMBSTONES_MIN or (count and is_late)):
            self._begun_mono_ms = context.mono_ms
            self.start(self._run())

    def _run(self) -> Steps[None]:
        context, tables = self._context, self._context.tables
        counted_to, low = context.store.next_position, context.cursors.low(context.deletions.by_topic)
        compacted = {table for table in tables.current if table.deleted_meanwhile is not None}
        starts, refs = yield partial(context.read, partial(_find, context.deletions.keys(), low, compacted))
        for at in range(0, len(refs), MARKED_IN_SLICE):
            yield None
            rows: dict[tuple[int, int], list[int]] = {}
            for ref in refs[at : at + MARKED_IN_SLICE]:
                if not tables.has(ref.table):  # The table was compacted meanwhile, so the job begins again.
                    return
                tables.delete(ref)
                rows.setdefault((ref.table.entry.number, ref.topic), []).append(ref.ordinal)
            tombstones = [(*key, found) for key, found in rows.items()]
            context.commit(ManifestChange(tables.manifest, tombstones=tombstones))
        context.commit(ManifestChange(tables.with_deletions(starts), counted_to=counted_to))
        context.wake()  # A cursor may wait, because there were DELETIONS_MAX deletions.


def _find(
    keys: list[TimerKey], low: TimerKey, compacted: Container[SortedTable], view: TablesView
) -> tuple[dict[int, int], list[RowRef]]:
    """Return a new `start` for each table number, and the deleted timers that need tombstones; called in a worker.

    Timers below a table's new `start` need no tombstones, except in a table that was being compacted when the job
    began: the compaction may have ended since then, and its results have these timers.
    """
    keys.sort()
    above = [key for key in keys if key >= low]
    refs = (table.refs(keys if table in compacted else above) for table in view.tables)
    return view.lower(low), [*chain.from_iterable(refs)]
