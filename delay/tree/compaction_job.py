"""The class CompactionJob: the background job that merges sorted tables, and commits the manifest with the results."""

from functools import partial
from typing import Final

from duolog.delay.rows import pack_keys
from duolog.delay.tables.compaction import TableCompaction
from duolog.delay.tree.jobs import Context, ManifestChange
from duolog.store.errors import StoreError
from duolog.store.workers import Failure

# Timers that were deleted during a compaction and are searched for in the loop, at 10 us each. A worker searches for
# more.
UNMARKED_MAX: Final = 256
RETRY_MS: Final = 60_000  # A compaction reads and writes a gigabyte or two.


class CompactionJob:
    """Compacts the tables that `Tables.compaction_wanted` returns.

    Timers that are deleted during the compaction get tombstones in the results.
    """

    def __init__(self, context: Context) -> None:
        self._context = context
        self._retry_mono_ms = 0  # No compaction begins before this time.

    def begin(self) -> None:
        inputs = self._context.tables.compaction_wanted() if self._context.mono_ms >= self._retry_mono_ms else []
        if inputs:
            compaction = self._context.tables.compact(inputs)
            self._context.submit(compaction.run, partial(self._written, compaction))

    def _written(self, compaction: TableCompaction, outcome: Failure | None) -> None:
        """Copy the new tables, once a worker has written them."""
        if outcome is None:
            self._context.copy(compaction.outputs, partial(self._end, compaction))
        else:
            self._end(compaction, outcome)

    def _end(self, compaction: TableCompaction, outcome: Failure | None) -> None:
        context = self._context
        if outcome is None and compaction.unmarked_count > UNMARKED_MAX:
            context.submit(compaction.mark_deleted, partial(self._end, compaction))
            return
        if outcome is None:
            outcome = self._commit(compaction)
        else:
            context.tables.abandon_compaction()
            context.discard(compaction.outputs)
        if outcome is not None:
            self._retry_mono_ms = context.mono_ms + RETRY_MS
            context.failed("compaction of delayed messages", outcome)

    def _commit(self, compaction: TableCompaction) -> Failure | None:
        tables = self._context.tables
        try:
            manifest = tables.compacted()
        except (OSError, StoreError) as error:
            tables.abandon_compaction()
            return error
        try:
            # The results' tombstones of timers that were deleted meanwhile are in no file, so the log keeps these keys.
            self._context.commit(ManifestChange(manifest, deleted=pack_keys(compaction.deleted_meanwhile)))
        except StoreError as error:
            self._context.discard(compaction.outputs)
            return error
        return None
