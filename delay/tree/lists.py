"""The class PendingLists: lists and counts of the pending timers in the memtable and the sorted tables at one moment.

`prepare` indexes the memtable by topic and time, one slice in each loop turn. After the last slice, in the same turn,
`page` or `histogram` reads the memtable and takes a view of the tables, which a worker reads then.
"""

from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from typing import Final, TypeVar

from duolog.delay.memtable import scan as memtable_scan
from duolog.delay.rows import Timer, TimerKey
from duolog.delay.tables.sorted_table import RowRef
from duolog.delay.tables.table_format import row_of
from duolog.delay.tables.tables_view import TablesView
from duolog.delay.tree.jobs import Context
from duolog.delay.tree.lookups import as_store_error
from duolog.store.errors import StoreError
from duolog.store.workers import Failure

INDEXED_IN_SLICE: Final = 256  # Rows that one slice indexes, at two or three microseconds each.

T = TypeVar("T")


class PendingLists:
    """Reads timers, except those of deleted topics. A topic is given by its number; None means all topics."""

    def __init__(self, context: Context, topic_exists: Callable[[int], bool]) -> None:
        self._context, self._topic_exists = context, topic_exists

    def count(self, topic: int) -> int:
        """Return the number of pending timers of a topic."""
        in_memory = self._context.pending.memtable.counts.by_topic.get(topic, 0)
        return in_memory + self._context.deletions.by_topic.get(topic, 0)

    def prepare(self, topic: int | None, start_ms: int, until_ms: int) -> bool:
        """Index the next slice of the memtable. False: all is indexed, and a read must follow in the same loop turn."""
        memtable = self._context.pending.memtable
        if topic is None and memtable_scan.prepare(memtable, False, start_ms, until_ms, INDEXED_IN_SLICE):
            return True
        is_by_topic = topic is not None or bool(self._hidden())
        return is_by_topic and memtable_scan.prepare(memtable, True, start_ms, until_ms, INDEXED_IN_SLICE)

    def page(
        self,
        topic: int | None,
        start: TimerKey,
        until_ms: int,
        count_max: int,
        done: Callable[[list[Timer] | StoreError], None],
    ) -> None:
        """Call `done` with the first timers from the key `start` on, in due order, after `prepare` returned false."""
        in_memory = memtable_scan.due(self._context.pending.memtable, topic, start, until_ms)
        first = [*islice((timer for timer in in_memory if self._topic_exists(timer.topic)), count_max)]
        deleted_topics = frozenset(self._context.deletions.deleted_topics)

        def read(view: TablesView, deleted: frozenset[TimerKey]) -> list[Timer]:
            found = view.scan(start, until_ms, topic)
            pending = (timer for timer in found if timer.key not in deleted and timer.topic not in deleted_topics)
            return sorted([*first, *map(row_of, islice(pending, count_max))])[:count_max]

        self._read(read, done)

    def histogram(
        self, topic: int | None, edges_ms: Sequence[int], done: Callable[[list[int] | StoreError], None]
    ) -> None:
        """Call `done` with the number of timers between each two neighbours of these times, which must be ascending.

        `prepare` must have returned false.
        """
        in_memory = memtable_scan.histogram(self._context.pending.memtable, topic, edges_ms)
        for hidden in self._hidden() if topic is None else ():
            in_memory = _without(in_memory, memtable_scan.histogram(self._context.pending.memtable, hidden, edges_ms))
        deleted_topics = frozenset(self._context.deletions.deleted_topics)

        def read(view: TablesView, deleted: frozenset[TimerKey]) -> list[int]:
            counts = view.histogram(edges_ms, topic)
            for hidden in deleted_topics if topic is None else ():
                counts = _without(counts, view.histogram(edges_ms, hidden))
            for ref in _without_tombstone(view, sorted(deleted)):
                is_counted = ref.topic not in deleted_topics if topic is None else ref.topic == topic
                if is_counted and edges_ms[0] <= ref.key[0] < edges_ms[-1]:
                    counts[bisect_right(edges_ms, ref.key[0]) - 1] -= 1
            return [count + far for count, far in zip(in_memory, counts, strict=True)]

        self._read(read, done)

    def _hidden(self) -> list[int]:
        """Return the deleted topics of which the memtable has timers."""
        by_topic = self._context.pending.memtable.counts.by_topic
        return [topic for topic in by_topic if not self._topic_exists(topic)]

    def _read(
        self, read: Callable[[TablesView, frozenset[TimerKey]], T], done: Callable[[T | StoreError], None]
    ) -> None:
        """Let a worker read all tables. `read` also gets the keys of timers that may be deleted without a tombstone."""
        view, deleted = self._context.tables.view(), frozenset(self._context.deletions.keys())

        def take(found: T | Failure) -> None:
            view.close()
            done(as_store_error(found) if isinstance(found, StoreError | OSError) else found)

        self._context.submit(lambda: read(view, deleted), take)


def _without(counts: Sequence[int], hidden: Sequence[int]) -> list[int]:
    return [count - less for count, less in zip(counts, hidden, strict=True)]


def _without_tombstone(view: TablesView, keys: Sequence[TimerKey]) -> Iterator[RowRef]:
    """Yield a RowRef for each of these ascending keys whose timer is in a table and has no tombstone."""
    for table in view.tables:
        yield from (ref for ref in table.refs(keys) if not table.is_deleted(ref.ordinal))
