"""The class CompactionJob: the background job that merges sorted tables, and commits the manifest with the results."""

from typing import Final

from duolog.delay.rows import pack_keys
from duolog.delay.tables.sorted_table import SortedTable
from duolog.delay.tree.jobs import BackgroundJob, Context, ManifestChange, Steps
from duolog.store.errors import StoreError

# Timers that were deleted during a compaction and are searched for in the loop, at 10 us each. A worker searches for
# more.
UNMARKED_MAX: Final = 256
RETRY_MS: Final = 60_000  # A compaction reads and writes a gigabyte or two.


class CompactionJob(BackgroundJob):
    """Compacts the tables that `Tables.compaction_wanted` returns.

    Timers that are deleted during the compaction get tombstones in the results.
    """

    def __init__(self, context: Context) -> None:
        super().__init__(context, "compaction of delayed messages", RETRY_MS)

    def begin(self) -> None:
        inputs = self._context.tables.compaction_wanted() if self.may_start else []
        if inputs:
            self.start(self._run(inputs))

    def _run(self, inputs: list[SortedTable]) -> Steps[None]:
        context, tables = self._context, self._context.tables
        compaction = tables.compact(inputs)
        try:
            yield from context.in_worker(compaction.run)
            yield context.copied(compaction.outputs)
            while compaction.unmarked_count > UNMARKED_MAX:
                yield from context.in_worker(compaction.mark_deleted)
            manifest = tables.compacted()
            # The results' tombstones of timers that were deleted meanwhile are in no file, so the log keeps these keys.
            context.commit(ManifestChange(manifest, deleted=pack_keys(compaction.deleted_meanwhile)))
        except (StoreError, OSError):
            tables.abandon_compaction()
            context.discard(compaction.outputs)
            raise
