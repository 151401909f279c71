"""The class Lookups: searches sorted tables for the timers that a command names by id or by the sender's key."""

from collections.abc import Callable, Iterator
from typing import Final

from duolog.delay.names import name_hash
from duolog.delay.rows import TimerId, TimerKey
from duolog.delay.tables.sorted_table import Found
from duolog.delay.tables.table_format import TableTimer
from duolog.delay.tables.tables_view import TablesView
from duolog.delay.tree.flush_job import FlushJob
from duolog.delay.tree.jobs import Context
from duolog.store.errors import StoreError
from duolog.store.workers import Failure

NAMED_MAX: Final = 4_096  # Timers with one sender's key that a command may change, at 50 us each in the loop.

Then = Callable[[StoreError | None], None]


class TooManyNamed(StoreError):
    """More delayed messages have the key than one command may change."""


class Lookups:
    """Loads timers from sorted tables into memory, so that commands handle them like timers of the memtable."""

    def __init__(self, context: Context, flush: FlushJob) -> None:
        self._context, self._flush = context, flush

    def load(self, timer_id: TimerId | None, then: Then) -> None:
        """Load the timer of this id, if a table has it, and call `then`. If no table is read, `then` is called at once.

        The timer stays in memory until `then` returns.
        """
        pending = self._context.pending
        if timer_id is None or not self._context.tables.manifest or pending.is_pending(timer_id):
            then(None)
            return

        def begin() -> Callable[[TablesView], list[Found]]:
            key = pending.ids.key_of(timer_id)
            return lambda view: list(view.find(key))

        self._search(begin, then)

    def load_named(self, topic: int, name: bytes, then: Then) -> None:
        """Load all timers with this topic and sender's key from tables, and call `then`, as `load` does."""
        if not self._context.tables.manifest:
            then(None)
            return
        hashed = name_hash(topic, name)
        self._search(lambda: lambda view: list(_named(view, topic, hashed)), then)

    def load_named_now(self, topic: int, name: bytes) -> None:
        """Load all timers with this topic and sender's key. They stay until the loop turns. Raises StoreError.

        The search reads a few pages in the loop, and most of them are in the page cache.
        """
        if not self._context.tables.manifest:
            return
        view = self._context.tables.view()
        try:
            found = list(_named(view, topic, name_hash(topic, name)))
        except OSError as error:
            raise as_store_error(error) from error
        finally:
            view.close()
        self._context.pending.found.update(self._pending(found))

    def _search(self, begin: Callable[[], Callable[[TablesView], list[Found]]], then: Then) -> None:
        """Let a worker search the tables, and again if a flush or a compaction has changed them meanwhile."""
        flushes = self._flush.count

        def take(found: list[Found] | Failure) -> None:
            if isinstance(found, Exception):
                then(as_store_error(found))
            elif flushes != self._flush.count or any(not self._context.tables.has(each.table) for each in found):
                self._search(begin, then)
            else:
                self._with(found, then)

        self._context.read(begin(), take)

    def _with(self, found: list[Found], then: Then) -> None:
        timers = self._pending(found)
        in_memory = self._context.pending.found
        in_memory.update(timers)
        try:
            then(None)
        finally:
            for key in timers:
                in_memory.pop(key, None)

    def _pending(self, found: list[Found]) -> dict[TimerKey, TableTimer]:
        deletions = self._context.deletions
        return {each.timer.key: each.timer for each in found if each.timer.key not in deletions and not each.is_deleted}


def _named(view: TablesView, topic: int, hashed: int) -> Iterator[Found]:
    """Yield the timers without a tombstone whose name is this hash of topic and sender's key."""
    pending = (found for found in view.named(topic, hashed.to_bytes(8, "big")) if not found.is_deleted)
    for number, found in enumerate(pending):
        if number == NAMED_MAX:
            raise TooManyNamed(f"more than {NAMED_MAX} delayed messages with this key are due beyond delay.near_ms")
        yield found


def as_store_error(error: Exception) -> StoreError:
    """Return the error itself, or make a StoreError of an error of the disk."""
    return error if isinstance(error, StoreError) else StoreError(f"reading a table of delayed messages: {error}")
