"""The class PendingLists: lists and counts of the pending timers in the memtable and the sorted tables at one moment.

Views of the memtable and of the tables are made in the same turn of the loop, and a worker reads both.
"""

from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from heapq import merge
from itertools import islice
from operator import add, sub
from typing import TypeVar

from duolog.delay.rows import Timer, TimerKey
from duolog.delay.tables.table_format import row_of
from duolog.delay.tables.tables_view import TablesView
from duolog.delay.tree.jobs import Context
from duolog.delay.tree.lookups import as_store_error
from duolog.store.errors import StoreError
from duolog.store.workers import Failure

T = TypeVar("T")


class PendingLists:
    """Reads timers, except those of deleted topics. A topic is given by its number; None means all topics."""

    def __init__(self, context: Context, topic_exists: Callable[[int], bool]) -> None:
        self._context, self._topic_exists = context, topic_exists

    def count(self, topic: int) -> int:
        """Return the number of pending timers of a topic."""
        in_memory = self._context.pending.memtable.counts.by_topic.get(topic, 0)
        return in_memory + self._context.deletions.by_topic.get(topic, 0)

    def page(
        self,
        topic: int | None,
        start: TimerKey,
        until_ms: int,
        count_max: int,
        done: Callable[[list[Timer] | StoreError], None],
    ) -> None:
        """Call `done` with the first timers from the key `start` on that are due before `until_ms`, in due order."""
        memtable, hidden = self._context.pending.memtable.view(topic), self._hidden()

        def read(tables: TablesView, deleted: frozenset[TimerKey]) -> list[Timer]:
            in_tables = (each for each in tables.scan(start, until_ms, topic, hidden) if each.key not in deleted)
            in_memory = (timer for timer in memtable.timers(topic, start, until_ms) if timer.topic not in hidden)
            return [*islice(merge(in_memory, map(row_of, in_tables)), count_max)]

        self._read(read, done)

    def histogram(
        self, topic: int | None, edges_ms: Sequence[int], done: Callable[[list[int] | StoreError], None]
    ) -> None:
        """Call `done` with the number of timers between each two neighbours of these times, which must be ascending."""
        memtable, hidden = self._context.pending.memtable.view(topic), self._hidden()

        def read(tables: TablesView, deleted: frozenset[TimerKey]) -> list[int]:
            def counts_of(topic: int | None) -> Iterator[int]:
                return map(add, memtable.histogram(topic, edges_ms), tables.histogram(edges_ms, topic))

            counts = [*counts_of(topic)]
            for each in hidden if topic is None else ():
                counts = [*map(sub, counts, counts_of(each))]
            for ref in tables.refs(sorted(deleted)):
                is_counted = ref.topic not in hidden if topic is None else ref.topic == topic
                if is_counted and not ref.is_deleted and edges_ms[0] <= ref.key[0] < edges_ms[-1]:
                    counts[bisect_right(edges_ms, ref.key[0]) - 1] -= 1
            return counts

        self._read(read, done)

    def _hidden(self) -> frozenset[int]:
        """Return the deleted topics that still have timers."""
        in_memory = self._context.pending.memtable.counts.by_topic
        return frozenset(self._context.deletions.deleted_topics).union(
            topic for topic in in_memory if not self._topic_exists(topic)
        )

    def _read(
        self, read: Callable[[TablesView, frozenset[TimerKey]], T], done: Callable[[T | StoreError], None]
    ) -> None:
        """Let a worker read all tables. `read` also gets the keys of timers that may be deleted without a tombstone."""
        deleted = frozenset(self._context.deletions.keys())

        def take(found: T | Failure) -> None:
            done(as_store_error(found) if isinstance(found, StoreError | OSError) else found)

        self._context.read(lambda view: read(view, deleted), take)
