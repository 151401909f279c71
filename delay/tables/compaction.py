"""The class TableCompaction: writes the timers of several sorted tables, except the deleted ones, to new tables."""

from collections.abc import Callable, Sequence

from duolog.delay.rows import TimerKey
from duolog.delay.tables.sorted_table import FOREVER_MS, SortedTable
from duolog.delay.tables.table_format import TableTimer
from duolog.delay.tables.table_writer import TableWriter
from duolog.delay.tables.tables_view import in_order
from duolog.store.errors import Corruption
from duolog.store.files import Files

# A compaction begins another table when one has this size. Tables of at least half of it are compacted only if many of
# their timers are deleted (`Tables.compaction_wanted`).
TABLE_BYTES = 256 << 20


class TableCompaction:
    """One compaction. It is made in the loop, and a worker calls `run`."""

    def __init__(
        self, files: Files, inputs: Sequence[SortedTable], first_number: int, pause: Callable[[], object]
    ) -> None:
        self.inputs = tuple(inputs)
        self._pause = pause
        self.outputs: list[SortedTable] = []
        self.deleted_meanwhile: list[TimerKey] = []  # Keys of timers that were deleted since the compaction began.
        self._marked = 0  # How many of these have tombstones in the results already.
        self._files, self._number = files, first_number
        self._writer: TableWriter | None = None

    def run(self) -> None:
        """Write, sync and open the results. Blocks; other threads run between two blocks of a table."""
        try:
            for timer in in_order([table.scan((0, 0), FOREVER_MS) for table in self.inputs]):
                self._add(timer)
            self._finish()
        except (OSError, Corruption):
            self._clean_up()
            raise

    @property
    def unmarked_count(self) -> int:
        """The number of timers that were deleted since the compaction began and have no tombstone in the results."""
        return len(self.deleted_meanwhile) - self._marked

    def mark_deleted(self) -> None:
        """Add tombstones for these timers to the results. Blocks; a worker calls it if there are many."""
        until = len(self.deleted_meanwhile)
        unmarked = sorted(set(self.deleted_meanwhile[self._marked : until]))
        try:
            for table in self.outputs:
                for ref in table.refs(unmarked):
                    table.tombstones.add(ref.ordinal, ref.topic)
        except (OSError, Corruption):
            self._clean_up()
            raise
        self._marked = until

    def _add(self, timer: TableTimer) -> None:
        if self._writer is None:
            self._writer = TableWriter(self._files, self._number, pause=self._pause)
            self._number += 1
        self._writer.add(timer)
        if self._writer.size >= TABLE_BYTES:
            self._finish()

    def _finish(self) -> None:
        if self._writer is not None:
            self.outputs.append(self._writer.finish())
            self._writer = None

    def _clean_up(self) -> None:
        if self._writer is not None:
            self._writer.abandon()
            self._writer = None
        while self.outputs:
            table = self.outputs.pop()
            table.close()
            self._files.remove(table.path)
