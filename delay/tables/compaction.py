"""Compaction: the choice of sorted tables, and the class TableCompaction, which writes their timers to new tables.

A compaction writes eight tables of about one size as one, or a table of which half is deleted anew. It begins another
table when a result has TABLE_BYTES.
"""

from collections.abc import Callable, Iterable

from duolog.delay.rows import TimerKey
from duolog.delay.tables.sorted_table import FOREVER_MS, SortedTable
from duolog.delay.tables.table_writer import TableWriter, write_table
from duolog.delay.tables.tables_view import TablesView

# A compaction begins another table when one has this size. Tables of at least half of it are compacted only if many of
# their timers are deleted.
TABLE_BYTES = 256 << 20
COMPACTION_WIDTH = 8  # The number of tables of about one size that are compacted into one.
DELETED_SHARE = 0.5  # A table with a greater share of deleted timers is written anew.


def tables_to_compact(tables: Iterable[SortedTable]) -> list[SortedTable]:
    """Return which of these tables to compact now; usually there are none."""
    classes: dict[int, list[SortedTable]] = {}
    for table in tables:
        entry = table.entry
        if table.tombstones.total > entry.count * DELETED_SHARE:
            return [table]
        if entry.size < TABLE_BYTES // 2:
            classes.setdefault(entry.size.bit_length() // 2, []).append(table)
    enough = (alike[: 2 * COMPACTION_WIDTH] for alike in classes.values() if len(alike) >= COMPACTION_WIDTH)
    return next(enough, [])


class TableCompaction:
    """One compaction of the tables of `view`. It is made in the loop, and a worker calls `run`; `end` must follow."""

    def __init__(self, view: TablesView, new_writers: Callable[[int], Callable[[], TableWriter]]) -> None:
        self.deleted_meanwhile: list[TimerKey] = []  # Keys of timers that were deleted since the compaction began.
        self.outputs: list[SortedTable] = []
        self._view = view
        self._new_writer = new_writers(sum(table.entry.size for table in view.tables) // TABLE_BYTES + 1)
        for table in view.tables:
            table.deleted_meanwhile = self.deleted_meanwhile

    @property
    def inputs(self) -> tuple[SortedTable, ...]:
        return self._view.tables

    def run(self) -> None:
        """Write, sync and open the results. Blocks; other threads run between two blocks of a table."""
        timers = self._view.scan((0, 0), FOREVER_MS)
        while table := write_table(timers, self._new_writer, TABLE_BYTES):
            self.outputs.append(table)

    def end(self) -> None:
        for table in self.inputs:
            table.deleted_meanwhile = None
        self._view.close()
