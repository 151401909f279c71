"""Compaction: the choice of sorted tables, and `compact`, which writes their timers to new tables.

A compaction writes eight tables of about one size as one, or a table of which half is deleted anew. It begins another
table when a result has TABLE_BYTES.
"""

from collections.abc import Callable, Iterable

from duolog.delay.tables.sorted_table import FOREVER_MS, SortedTable
from duolog.delay.tables.table_writer import TableWriter, write_tables
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


def compact(view: TablesView, new_writer: Callable[[], TableWriter], results: list[SortedTable]) -> None:
    """Write the pending timers of a view to new tables, which are added to `results`. Blocks.

    Other threads run between two blocks of a table.
    """
    write_tables(view.scan((0, 0), FOREVER_MS), new_writer, results, TABLE_BYTES)


def results_max(inputs: Iterable[SortedTable]) -> int:
    """Return the greatest number of tables that a compaction writes."""
    return sum(table.entry.size for table in inputs) // TABLE_BYTES + 1
