"""The class CompactionJob: the background job that merges sorted tables, and commits the manifest with the results."""

from typing import Final

from duolog.delay.rows import pack_keys
from duolog.delay.tables.compaction import TableCompaction, tables_to_compact
from duolog.delay.tree.jobs import BackgroundJob, Context, ManifestChange, Steps
from duolog.store.errors import StoreError

RETRY_MS: Final = 60_000  # A compaction reads and writes a gigabyte or two.


class CompactionJob(BackgroundJob):
    """Compacts the tables that `tables_to_compact` returns.

    Timers that are deleted during the compaction are pending in its results. So the log keeps their keys, until the
    tombstones of the results are written, as it does for a flush.
    """

    def __init__(self, context: Context) -> None:
        super().__init__(context, "compaction of delayed messages", RETRY_MS)

    def begin(self) -> None:
        inputs = tables_to_compact(self._context.tables.current) if self.may_start else []
        if inputs:
            tables = self._context.tables
            self.start(self._run(TableCompaction(tables.view(inputs), tables.new_writer)))

    def _run(self, compaction: TableCompaction) -> Steps[None]:
        context = self._context
        try:
            yield from context.in_worker(compaction.run)
            yield context.copied(compaction.outputs)
            manifest = context.tables.added(compaction.outputs, compaction.inputs)
            context.commit(ManifestChange(manifest, deleted=pack_keys(compaction.deleted_meanwhile)))
        except (StoreError, OSError):
            compaction.end()
            context.discard(compaction.outputs)
            raise
        compaction.end()
