"""Searches in sorted tables, by workers: for the timers that a verb is about, and for lists and counts."""

from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import islice
from typing import Final, TypeVar

from duolog.delay.pending import row_of
from duolog.delay.rows import Timer, TimerId, TimerKey
from duolog.delay.tables.sorted_table import Found, RowRef
from duolog.delay.tables.tables_view import TablesView
from duolog.delay.tree.flush_job import FlushJob
from duolog.delay.tree.jobs import Context
from duolog.store.errors import StoreError
from duolog.store.workers import Failure

NAMED_MAX: Final = 4_096  # Timers of one sender's key that a verb may be about; 50 us each in the loop.

T = TypeVar("T")
Then = Callable[[StoreError | None], None]


class TooManyNamed(StoreError):
    """So many delayed messages have the same key that no verb may be about all of them at once."""


class Lookups:
    def __init__(self, context: Context, flush: FlushJob) -> None:
        self._context, self._flush = context, flush

    # -- What verbs are about

    def find(self, timer_id: TimerId, then: Then) -> None:
        """Have the timer of this id in `PendingTimers.found`, if a table has it, for as long as `then` takes."""

        def search(view: TablesView, key: TimerKey) -> list[Found]:
            found = (table.find(key) for table in view.tables)
            return [each for each in found if each is not None and not each.is_deleted]

        self._search(lambda: partial(search, key=self._context.pending.ids.key_of(timer_id)), then)

    def find_named(self, topic: int, hashed: int, then: Then) -> None:
        """Do the same for all timers that have a sender's key with this hash."""
        self._search(lambda: lambda view: list(_named(view, topic, hashed)), then)

    def find_named_now(self, topic: int, hashed: int) -> list[TimerKey]:
        """Do the same until the next turn of the jobs; returns the keys. Raises StoreError.

        Reads a few pages, mostly cached ones, in the loop.
        """
        view = self._context.tables.view()
        try:
            found = [each.timer for each in _named(view, topic, hashed) if self._is_pending(each)]
        except OSError as error:
            raise _as_store_error(error) from error
        finally:
            view.close()
        self._context.pending.found.update((timer.key, timer) for timer in found)
        return [timer.key for timer in found]

    def _search(self, begin: Callable[[], Callable[[TablesView], list[Found]]], then: Then) -> None:
        """Have a worker search; again if what is searched for may be in another table by now."""
        view, flushes = self._context.tables.view(), self._flush.count

        def take(found: list[Found] | Failure) -> None:
            view.close()
            if isinstance(found, Exception):
                then(_as_store_error(found))
            elif flushes != self._flush.count or any(not self._context.tables.has(each.table) for each in found):
                self._search(begin, then)
            else:
                self._with(found, then)

        self._context.submit(partial(begin(), view), take)

    def _with(self, found: list[Found], then: Then) -> None:
        timers = {each.timer.key: each.timer for each in found if self._is_pending(each)}
        present = self._context.pending.found
        present.update(timers)
        try:
            then(None)
        finally:
            for key in timers:
                present.pop(key, None)

    def _is_pending(self, found: Found) -> bool:
        return found.timer.key not in self._context.deletions and not found.is_deleted

    # -- Lists

    def page(
        self,
        topic: int | None,
        start: TimerKey,
        until_ms: int,
        count_max: int,
        done: Callable[[list[Timer] | StoreError], None],
    ) -> None:
        """Give the first pending timers of a topic, or of all, from this key on; without their messages."""
        gone = frozenset(self._context.deletions.gone)

        def read(view: TablesView, deleted: frozenset[TimerKey]) -> list[Timer]:
            found = view.scan(start, until_ms) if topic is None else view.of_topic(topic, start, until_ms)
            pending = (timer for timer in found if timer.key not in deleted and timer.topic not in gone)
            return [row_of(timer) for timer in islice(pending, count_max)]

        self._read(read, done)

    def histogram(
        self, topic: int | None, edges_ms: Sequence[int], done: Callable[[list[int] | StoreError], None]
    ) -> None:
        """Count the pending timers of a topic, or of all, between each two neighbours of these times."""
        gone = frozenset(self._context.deletions.gone)

        def read(view: TablesView, deleted: frozenset[TimerKey]) -> list[int]:
            counts = view.histogram(edges_ms, topic)
            for unseen in gone if topic is None else ():
                of_topic = view.histogram(edges_ms, unseen)
                counts = [count - less for count, less in zip(counts, of_topic, strict=True)]
            for ref in _without_tombstone(view, sorted(deleted)):
                is_counted = ref.topic not in gone if topic is None else ref.topic == topic
                if is_counted and edges_ms[0] <= ref.key[0] < edges_ms[-1]:
                    counts[bisect_right(edges_ms, ref.key[0]) - 1] -= 1
            return counts

        self._read(read, done)

    def _read(
        self, read: Callable[[TablesView, frozenset[TimerKey]], T], done: Callable[[T | StoreError], None]
    ) -> None:
        """Have a worker read all tables; it gets the keys of what is deleted, though no tombstone may say so."""
        view, deleted = self._context.tables.view(), frozenset(self._context.deletions.keys())

        def take(found: T | Failure) -> None:
            view.close()
            done(_as_store_error(found) if isinstance(found, StoreError | OSError) else found)

        self._context.submit(lambda: read(view, deleted), take)


def _without_tombstone(view: TablesView, keys: Sequence[TimerKey]) -> Iterator[RowRef]:
    """Yield where these keys lie, which must rise, but for those that have tombstones."""
    for table in view.tables:
        yield from (ref for ref in table.refs(keys) if not table.is_deleted(ref.ordinal))


def _named(view: TablesView, topic: int, hashed: int) -> Iterator[Found]:
    """Yield the timers with this key that have no tombstone; a table's name is the hash of the sender's key."""
    pending = (found for found in view.named(topic, hashed.to_bytes(8, "big")) if not found.is_deleted)
    for number, found in enumerate(pending):
        if number == NAMED_MAX:
            raise TooManyNamed(f"more than {NAMED_MAX} delayed messages with this key are due beyond delay.near_ms")
        yield found


def _as_store_error(error: Exception) -> StoreError:
    return error if isinstance(error, StoreError) else StoreError(f"reading a table of delayed messages: {error}")
