"""The class Isolation: the last stable offset and the aborted transactions of each queue, for read_committed consumers.

    offset        4   5   6   7   8   9  10  11  12  13
    record        a   b   a   c   b   A   b   a   B   c

a, b and c are records of transactions of three producers. A is the abort marker of a, B the commit marker of b. The
first transaction of a was aborted: its records have the offsets from 4 to below 9. The record of a at offset 11 begins
its next transaction. After the marker B the last stable offset is 7, because the transaction of c, which is still open,
begins there.

The last stable offset of a queue is the first offset of its oldest open transaction, or the visible end if no
transaction is open. All transactions below it have ended, and a transaction that ends later began at or above it. Each
aborted transaction is therefore stored with the last stable offset after its end. A search for the aborted transactions
of a range stops at the first one whose last stable offset is at or above the end of the range
(LogSegment.collectAbortedTxns).

A marker that is appended but not visible yet does not end its transaction for consumers: until the marker is visible,
the transaction limits the last stable offset, as in Kafka (ProducerStateManager, unreplicatedTxns).

Only queues with open or aborted transactions have a QueueIsolation.
"""

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

from duolog.store.index.queue import Queue


class Aborted(NamedTuple):
    """One aborted transaction in a queue; its records have offsets from `first_offset` to below `marker_offset`."""

    marker_offset: int
    first_offset: int
    producer_id: int
    stable_offset: int  # The last stable offset after its end. Transactions that end later begin at or above it.


class QueueIsolation:
    """The transactions of one queue."""

    __slots__ = ("_ended", "_firsts", "_markers", "_open", "_producers", "_stables")

    def __init__(self) -> None:
        self._open: dict[int, int] = {}  # Producer id -> first offset, in the order of the first offsets.
        # (first offset, marker offset) of ended transactions whose marker may not be visible yet.
        self._ended: list[tuple[int, int]] = []
        # The columns of the aborted transactions in the order of their markers, 32 bytes each.
        self._markers, self._firsts, self._producers, self._stables = (array("q") for _ in range(4))

    # -- Reading

    def stable_end(self, start_offset: int, visible_end: int) -> int:
        """Return the last stable offset, at least the log start and at most the visible end."""
        first = next(iter(self._open.values()), visible_end)
        if self._ended:
            self._ended = [ended for ended in self._ended if ended[1] >= visible_end]
            first = min((first, *(ended[0] for ended in self._ended)))
        return max(start_offset, min(first, visible_end))

    def first_offset(self, producer_id: int) -> int | None:
        """Return the first offset of the open transaction of a producer; None if it has none."""
        return self._open.get(producer_id)

    def aborted_between(self, offset: int, until: int) -> list[tuple[int, int]]:
        """Return (producer id, first offset) of the aborted transactions that may have records in [offset, until)."""
        found = []
        for number in range(bisect_left(self._markers, offset), len(self._markers)):
            if self._firsts[number] < until:
                found.append((self._producers[number], self._firsts[number]))
            if self._stables[number] >= until:
                break
        return found

    def is_aborted(self, producer_id: int, offset: int) -> bool:
        """Return whether a transactional record was aborted. Its offset must be below the last stable offset."""
        for number in range(bisect_right(self._markers, offset), len(self._markers)):
            if self._producers[number] == producer_id and self._firsts[number] <= offset:
                return True
            if self._stables[number] > offset:
                break
        return False

    def has_aborted_from(self, offset: int) -> bool:
        """Return whether an aborted transaction may have records at or above this offset."""
        return bool(self._markers) and self._markers[-1] >= offset

    @property
    def aborted_count(self) -> int:
        """The number of aborted transactions."""
        return len(self._markers)

    @property
    def is_empty(self) -> bool:
        """Whether no transaction is open or aborted, and all markers are visible."""
        return not (self._open or self._ended or self._markers)

    @property
    def open(self) -> Iterable[tuple[int, int]]:
        """(producer id, first offset) of the open transactions, the oldest first."""
        return self._open.items()

    @property
    def aborted(self) -> Iterator[Aborted]:
        """The aborted transactions, in the order of their markers."""
        return map(Aborted, self._markers, self._firsts, self._producers, self._stables)

    def columns_of_aborted(self) -> "array[int]":
        """Return a copy of all aborted transactions as one array, with the four fields of each in `Aborted`'s order."""
        columns = (self._markers, self._firsts, self._producers, self._stables)
        found = array("q", bytes(8 * len(columns) * len(self._markers)))
        for number, column in enumerate(columns):
            found[number :: len(columns)] = column
        return found

    def copy_of_aborted(self) -> Iterator[tuple[int, int, int]]:
        """Yield (producer id, first offset, marker offset) of all aborted transactions, from a copy of the state.

        A caller may read them in several loop turns.
        """
        return zip(self._producers[:], self._firsts[:], self._markers[:], strict=True)

    # -- Changes of state, after an append and at recovery

    def begin(self, producer_id: int, offset: int) -> None:
        """Note a transactional batch at an offset, which begins a transaction unless the producer has an open one."""
        self._open.setdefault(producer_id, offset)

    def end(self, producer_id: int, marker_offset: int) -> Aborted | None:
        """End the open transaction of a producer by its marker.

        Returns the transaction in the form that is stored if it was aborted; None if the producer has no open one.
        """
        first = self._open.pop(producer_id, None)
        if first is None:
            return None
        self._ended.append((first, marker_offset))
        stable = next(iter(self._open.values()), marker_offset + 1)
        return Aborted(marker_offset, first, producer_id, stable)

    def add_aborted(self, aborted: Aborted) -> None:
        """Add an aborted transaction, whose marker must be above all others."""
        for column, value in zip((self._markers, self._firsts, self._producers, self._stables), aborted, strict=True):
            column.append(value)

    def forget_below(self, start_offset: int) -> int:
        """Remove the aborted transactions whose marker is below the log start offset; return their number."""
        count = bisect_left(self._markers, start_offset)
        for column in (self._markers, self._firsts, self._producers, self._stables):
            del column[:count]
        return count


class Isolation:
    """The QueueIsolation of each queue that has one, by queue key."""

    def __init__(self) -> None:
        self._queues: dict[int, QueueIsolation] = {}
        self.aborted_count = 0  # Invariant: the number of aborted transactions of all queues.
        # Called with the key of a queue before its QueueIsolation changes.
        self.before_change: Callable[[int], object] = _ignore

    # -- Reading

    def get(self, key: int) -> QueueIsolation | None:
        """Return the QueueIsolation of a queue, if it has one."""
        return self._queues.get(key)

    def stable_end(self, queue: Queue) -> int:
        """Return the last stable offset of a queue."""
        found = self._queues.get(queue.key)
        if found is None:
            return queue.visible_end
        return found.stable_end(queue.start_offset, queue.visible_end)

    def is_open(self, key: int, producer_id: int) -> bool:
        """Return whether the producer has an open transaction in the queue with this key."""
        found = self._queues.get(key)
        return found is not None and found.first_offset(producer_id) is not None

    def __iter__(self) -> Iterator[tuple[int, QueueIsolation]]:
        return iter(self._queues.items())

    @property
    def keys(self) -> Iterable[int]:
        """The keys of the queues that have a QueueIsolation."""
        return self._queues

    # -- Changes of state, after an append and at recovery

    def begin(self, key: int, producer_id: int, offset: int) -> None:
        """Note a transactional batch at an offset, which begins a transaction unless the producer has an open one."""
        self.before_change(key)
        self._of(key).begin(producer_id, offset)

    def end(self, key: int, producer_id: int, marker_offset: int, *, is_aborted: bool) -> None:
        """Note a marker at an offset, which ends the transaction of the producer in the queue."""
        self.before_change(key)
        ended = self._of(key).end(producer_id, marker_offset)
        if ended is not None and is_aborted:
            self.add_aborted(key, ended)

    def add_aborted(self, key: int, aborted: Aborted) -> None:
        """Add an aborted transaction of a queue."""
        self.before_change(key)
        self._of(key).add_aborted(aborted)
        self.aborted_count += 1

    def restore(self, key: int, open_offsets: Iterable[tuple[int, int]], aborted: Iterable[Aborted]) -> None:
        """Replace the QueueIsolation of a queue by that of a snapshot, in the order of `open` and `aborted`."""
        self.before_change(key)
        replaced = self._queues.pop(key, None)
        if replaced is not None:
            self.aborted_count -= replaced.aborted_count
        for producer_id, first_offset in open_offsets:
            self.begin(key, producer_id, first_offset)
        for each in aborted:
            self.add_aborted(key, each)

    def forget(self, key: int) -> None:
        """Remove the QueueIsolation of a deleted queue."""
        self.before_change(key)
        found = self._queues.pop(key, None)
        if found is not None:
            self.aborted_count -= found.aborted_count

    def forget_below(self, queue: Queue) -> None:
        """Remove the aborted transactions below the log start offset, and the QueueIsolation if it is then empty."""
        found = self._queues.get(queue.key)
        if found is not None:
            self.before_change(queue.key)
            self.aborted_count -= found.forget_below(queue.start_offset)
            found.stable_end(queue.start_offset, queue.visible_end)
            if found.is_empty:
                del self._queues[queue.key]

    def _of(self, key: int) -> QueueIsolation:
        found = self._queues.get(key)
        if found is None:
            found = self._queues[key] = QueueIsolation()
        return found


def _ignore(name: object) -> None:
    pass
