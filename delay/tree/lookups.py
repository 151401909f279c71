"""The class Lookups: searches sorted tables for the timers that a command names by id or by the sender's key."""

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Final

from duolog.delay.names import name_hash
from duolog.delay.rows import TimerId
from duolog.delay.tables.sorted_table import Found
from duolog.delay.tables.tables_view import TablesView
from duolog.delay.tree.jobs import Context
from duolog.store.errors import StoreError
from duolog.store.workers import Failure

NAMED_MAX: Final = 4_096  # Timers with one sender's key that a command may change, at 50 us each in the loop.

Then = Callable[[StoreError | None], None]


class TooManyNamed(StoreError):
    """More delayed messages have the key than one command may change."""


class Lookups:
    """Loads timers from sorted tables into memory, so that commands handle them like timers of the memtable.

    They stay in memory until `TimerTree.run` is called.
    """

    def __init__(self, context: Context) -> None:
        self._context = context

    def load(self, timer_id: TimerId | None, then: Then) -> None:
        """Load the timer of this id, if a table has it, and call `then`: at once if no table is read."""
        pending = self._context.pending
        if timer_id is None or not self._context.tables.manifest or pending.is_pending(timer_id):
            then(None)
            return
        key = pending.ids.key_of(timer_id)
        self._search(lambda view: view.find(key), partial(self.load, timer_id, then), then)

    def load_named(self, topic: int, name: bytes, then: Then) -> None:
        """Load all timers with this topic and sender's key from tables, and call `then`, as `load` does."""
        if not self._context.tables.manifest:
            then(None)
            return
        search = partial(_named, topic, name_hash(topic, name))
        self._search(search, partial(self.load_named, topic, name, then), then)

    def load_named_now(self, topic: int, name: bytes) -> None:
        """Load all timers with this topic and sender's key. Raises StoreError.

        The search reads a few pages in the loop, and most of them are in the page cache.
        """
        if not self._context.tables.manifest:
            return
        view = self._context.tables.view()
        try:
            self._note(_named(topic, name_hash(topic, name), view))
        except OSError as error:
            raise as_store_error(error) from error
        finally:
            view.close()

    def _search(self, search: Callable[[TablesView], Iterable[Found]], again: Callable[[], None], then: Then) -> None:
        """Let a worker search the tables; begin again if other tables have become current meanwhile."""
        changes = self._context.tables.changes

        def take(found: list[Found] | Failure) -> None:
            if isinstance(found, Exception):
                then(as_store_error(found))
            elif changes != self._context.tables.changes:
                again()
            else:
                self._note(found)
                then(None)

        self._context.read(lambda view: [*search(view)], take)

    def _note(self, found: Iterable[Found]) -> None:
        deletions, in_memory = self._context.deletions, self._context.pending.found
        in_memory |= {
            each.timer.key: each.timer for each in found if each.timer.key not in deletions and not each.ref.is_deleted
        }


def _named(topic: int, hashed: int, view: TablesView) -> Iterator[Found]:
    """Yield the timers without a tombstone whose name is this hash of topic and sender's key."""
    pending = (found for found in view.named(topic, hashed.to_bytes(8, "big")) if not found.ref.is_deleted)
    for number, found in enumerate(pending):
        if number == NAMED_MAX:
            raise TooManyNamed(f"more than {NAMED_MAX} delayed messages with this key are due beyond delay.near_ms")
        yield found


def as_store_error(error: Exception) -> StoreError:
    """Return the error itself, or make a StoreError of an error of the disk."""
    return error if isinstance(error, StoreError) else StoreError(f"reading a table of delayed messages: {error}")
