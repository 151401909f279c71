"""The class CompactionJob: the background job that merges sorted tables, and commits the manifest with the results."""

from collections.abc import Sequence
from functools import partial
from typing import Final

from duolog.delay.rows import pack_keys
from duolog.delay.tables.compaction import compact, results_max, tables_to_compact
from duolog.delay.tables.sorted_table import SortedTable
from duolog.delay.tables.tables_view import TablesView
from duolog.delay.tree.jobs import BackgroundJob, Context, ManifestChange, Steps
from duolog.store.errors import StoreError

RETRY_MS: Final = 60_000  # A compaction reads and writes a gigabyte or two.


class CompactionJob(BackgroundJob):
    """Compacts the tables that `tables_to_compact` returns.

    Timers that are deleted during the compaction are pending in its results. So the log keeps their keys, until the
    tombstones of the results are written, as it does for a flush. A timer that moves back to one of these keys is not
    flushed before that, because it would be taken for deleted.
    """

    def __init__(self, context: Context) -> None:
        super().__init__(context, "compaction of delayed messages", RETRY_MS)

    def begin(self) -> None:
        inputs = tables_to_compact(self._context.tables.current) if self.may_start else []
        if inputs:
            self.start(self._run(inputs))

    def _run(self, inputs: Sequence[SortedTable]) -> Steps[None]:
        tables, deleted = self._context.tables, self._context.deletions.meanwhile
        view, new_writer = tables.view(inputs), tables.new_writer(results_max(inputs))
        for table in inputs:
            table.deleted_meanwhile = deleted
        try:
            yield from self._context.publish(
                partial(compact, view, new_writer),
                lambda results, _: ManifestChange(tables.added(results, inputs), deleted=pack_keys(deleted)),
            )
        except (StoreError, OSError):
            self._end(view)
            raise
        self._end(view)

    def _end(self, view: TablesView) -> None:
        for table in view.tables:
            table.deleted_meanwhile = None
        view.close()
        self._context.deletions.meanwhile.clear()
