"""The class TablesView: reads all sorted tables of one manifest, by merging the reads of single tables."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from heapq import merge
from itertools import chain, pairwise

from duolog.delay.rows import TimerKey
from duolog.delay.tables.sorted_table import Found, RowRef, SortedTable
from duolog.delay.tables.table_format import TableTimer


class TablesView:
    """Tables that were current when the view was made; `close` must follow. Reads may block and raise Corruption.

    A read returns timers from the key `start` on that are due before `until_ms`.
    """

    def __init__(self, tables: Sequence[SortedTable], unpin: Callable[[Iterable[SortedTable]], None]) -> None:
        self.tables, self._unpin = tuple(tables), unpin

    def close(self) -> None:
        """Allow the files to be closed; called in the loop."""
        self._unpin(self.tables)
        self.tables = ()

    def scan(
        self, start: TimerKey, until_ms: int, topic: int | None = None, without: frozenset[int] = frozenset()
    ) -> Iterator[TableTimer]:
        """Yield the pending timers in due order: those of `topic`, or of all topics except those in `without`."""
        overlapping = self._overlapping(start, until_ms)
        return merge(*[table.scan(start, until_ms, topic, without) for table in overlapping])

    def find(self, key: TimerKey) -> Iterator[Found]:
        """Yield the timers of this key, deleted or not, table by table: at most one of them is pending."""
        return filter(None, (table.find(key) for table in self.tables))

    def named(self, topic: int, name: bytes) -> Iterator[Found]:
        """Yield all timers of this topic and sender's key, deleted or not, table by table."""
        return chain.from_iterable(table.named(topic, name) for table in self.tables)

    def refs(self, keys: Sequence[TimerKey]) -> Iterator[RowRef]:
        """Yield a RowRef for each of these ascending keys, table by table, deleted or not. Reads no messages."""
        return chain.from_iterable(table.refs(keys) for table in self.tables)

    def histogram(self, edges_ms: Sequence[int], topic: int | None = None) -> list[int]:
        """Return the number of pending timers between each two neighbours of these times, which must be ascending."""
        overlapping = self._overlapping((edges_ms[0], 0), edges_ms[-1])
        before = [sum(table.pending_before((edge_ms, 0), topic) for table in overlapping) for edge_ms in edges_ms]
        return [until - start for start, until in pairwise(before)]

    def lower(self, key: TimerKey) -> dict[int, int]:
        """Return how many timers of each table are before this key, by table number, for `Tables.with_starts`."""
        return {table.entry.number: table.lower(*key) for table in self.tables}

    def _overlapping(self, start: TimerKey, until_ms: int) -> list[SortedTable]:
        if (until_ms, 0) <= start:
            return []
        return [table for table in self.tables if start <= table.last and table.first[0] < until_ms]
