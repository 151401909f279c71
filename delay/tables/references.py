"""The class References: what uses each open table. A table is closed when nothing uses it any more."""

from collections.abc import Iterable

from duolog.delay.tables.sorted_table import SortedTable


class References:
    """Counts the manifest and the views that use each table. It is used in the loop only."""

    def __init__(self) -> None:
        self._counts: dict[SortedTable, int] = {}
        self._closed_lost = 0  # The number of timers in damaged blocks of closed tables.

    @property
    def lost(self) -> int:
        """The number of pending timers in damaged blocks of all tables, as far as reads have found them."""
        return self._closed_lost + sum([table.lost for table in self._counts])

    def add(self, tables: Iterable[SortedTable]) -> None:
        for table in tables:
            self._counts[table] = self._counts.get(table, 0) + 1

    def drop(self, tables: Iterable[SortedTable]) -> None:
        """Drop a reference to each of these tables, and close those that have no other."""
        for table in tables:
            self._counts[table] -= 1
            if not self._counts[table]:
                del self._counts[table]
                self._closed_lost += table.lost
                table.close()

    def close(self) -> None:
        """Close all tables, at the end of the run."""
        for table in self._counts:
            table.close()
        self._counts = {}
