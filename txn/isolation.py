"""The last stable offset and the aborted transactions of each queue, for consumers of committed records.

    offset        4   5   6   7   8   9  10  11  12  13
    record        a   b   a   c   b   A   b   a   B   c       a, b, c: batches of three producers' transactions
                                      │           │           A: abort marker of a; B: commit marker of b
    first offset of a: 4, b: 5, c: 7  │           └ last stable offset: 7, for c is open
    aborted: (a, 4 to 9) ─────────────┘             the a at 11 begins a new one

The last stable offset is the first offset of the oldest open transaction; without one it is the end of the visible
records. Every transaction below it has ended, and a transaction that ends later began at or above it. So each aborted
transaction is stored with the last stable offset at its end, and a search for the aborted transactions of a range stops
at the first one whose last stable offset lies behind the range (LogSegment.collectAbortedTxns).

A marker that was appended but is not visible yet (with flush.mode=sync: not on disk) does not end its transaction for
consumers. Until then the transaction limits the last stable offset, as in Kafka (ProducerStateManager,
unreplicatedTxns).

Only queues with open or aborted transactions have an entry. For all others one look-up finds that there is none.
"""

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

from duolog.store.index.queue import Queue


class Aborted(NamedTuple):
    """One aborted transaction in a queue; its records lie from `first_offset` to below `marker_offset`."""

    marker_offset: int
    first_offset: int
    producer_id: int
    stable_offset: int  # The last stable offset after its end. Transactions that ended later began there or above.


class QueueIsolation:
    """The transactions of one queue."""

    __slots__ = ("_ended", "_firsts", "_markers", "_open", "_producers", "_stables")

    def __init__(self) -> None:
        self._open: dict[int, int] = {}  # First offset by producer id, in rising order.
        # (first offset, offset of the marker) of transactions whose marker may not be visible yet.
        self._ended: list[tuple[int, int]] = []
        # The columns of the aborted transactions in the order of their markers, 32 bytes each.
        self._markers, self._firsts, self._producers, self._stables = (array("q") for _ in range(4))

    # -- Reading

    def stable_end(self, start_offset: int, visible_end: int) -> int:
        """Return the end of the records that consumers of committed records may read."""
        first = next(iter(self._open.values()), visible_end)
        if self._ended:
            self._ended = [ended for ended in self._ended if ended[1] >= visible_end]
            first = min((first, *(ended[0] for ended in self._ended)))
        return max(start_offset, min(first, visible_end))

    def first_offset(self, producer_id: int) -> int | None:
        """Return where the open transaction of a producer begins, or None."""
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
        """Tell whether the transactional record at an offset below the last stable offset was aborted."""
        for number in range(bisect_right(self._markers, offset), len(self._markers)):
            if self._producers[number] == producer_id and self._firsts[number] <= offset:
                return True
            if self._stables[number] > offset:
                break
        return False

    def has_aborted_from(self, offset: int) -> bool:
        return bool(self._markers) and self._markers[-1] >= offset

    @property
    def aborted_count(self) -> int:
        return len(self._markers)

    @property
    def is_empty(self) -> bool:
        return not (self._open or self._ended or self._markers)

    @property
    def open(self) -> Iterable[tuple[int, int]]:
        """Return (producer id, first offset) of the open transactions, the oldest first."""
        return self._open.items()

    @property
    def aborted(self) -> Iterator[Aborted]:
        return map(Aborted, self._markers, self._firsts, self._producers, self._stables)

    def columns_of_aborted(self) -> "array[int]":
        """Copy the fields of all aborted transactions into one array, in the order of `Aborted`."""
        columns = (self._markers, self._firsts, self._producers, self._stables)
        found = array("q", bytes(8 * len(columns) * len(self._markers)))
        for number, column in enumerate(columns):
            found[number :: len(columns)] = column
        return found

    def copy_of_aborted(self) -> Iterator[tuple[int, int, int]]:
        """Copy (producer id, first offset, marker offset) of all, for callers that go through them in several turns."""
        return zip(self._producers[:], self._firsts[:], self._markers[:], strict=True)

    # -- Following the log

    def begin(self, producer_id: int, offset: int) -> None:
        self._open.setdefault(producer_id, offset)

    def end(self, producer_id: int, marker_offset: int) -> Aborted | None:
        """End a transaction by its marker; return it as aborted, or None if the producer had none open."""
        first = self._open.pop(producer_id, None)
        if first is None:
            return None
        self._ended.append((first, marker_offset))
        stable = next(iter(self._open.values()), marker_offset + 1)
        return Aborted(marker_offset, first, producer_id, stable)

    def add_aborted(self, aborted: Aborted) -> None:
        for column, value in zip((self._markers, self._firsts, self._producers, self._stables), aborted, strict=True):
            column.append(value)

    def forget_below(self, start_offset: int) -> int:
        """Remove the aborted transactions that ended below the log start offset; return how many."""
        gone = bisect_left(self._markers, start_offset)
        for column in (self._markers, self._firsts, self._producers, self._stables):
            del column[:gone]
        return gone


class Isolation:
    """The queues with open or aborted transactions, by key."""

    def __init__(self) -> None:
        self._queues: dict[int, QueueIsolation] = {}
        self.aborted_count = 0  # Invariant: the sum over all queues.
        # Called with the key of a queue before its entry changes.
        self.before_change: Callable[[int], object] = _ignore

    # -- Reading

    def get(self, key: int) -> QueueIsolation | None:
        return self._queues.get(key)

    def stable_end(self, queue: Queue) -> int:
        """Return the end of the records of a queue that consumers of committed records may read."""
        found = self._queues.get(queue.key)
        if found is None:
            return queue.visible_end
        return found.stable_end(queue.start_offset, queue.visible_end)

    def is_open(self, key: int, producer_id: int) -> bool:
        found = self._queues.get(key)
        return found is not None and found.first_offset(producer_id) is not None

    def __iter__(self) -> Iterator[tuple[int, QueueIsolation]]:
        return iter(self._queues.items())

    @property
    def keys(self) -> Iterable[int]:
        return self._queues

    # -- Following the log

    def begin(self, key: int, producer_id: int, offset: int) -> None:
        """Note a transactional batch. The transaction begins in the queue there, unless it began before."""
        self.before_change(key)
        self._of(key).begin(producer_id, offset)

    def end(self, key: int, producer_id: int, marker_offset: int, *, is_aborted: bool) -> None:
        """Note the marker at an offset, which ends the producer's transaction in the queue."""
        self.before_change(key)
        ended = self._of(key).end(producer_id, marker_offset)
        if ended is not None and is_aborted:
            self.add_aborted(key, ended)

    def add_aborted(self, key: int, aborted: Aborted) -> None:
        self.before_change(key)
        self._of(key).add_aborted(aborted)
        self.aborted_count += 1

    def restore(self, key: int, open_offsets: Iterable[tuple[int, int]], aborted: Iterable[Aborted]) -> None:
        """Replace the entry of a queue by that of a snapshot, in the order of `open` and `aborted`."""
        self.before_change(key)
        replaced = self._queues.pop(key, None)
        if replaced is not None:
            self.aborted_count -= replaced.aborted_count
        for producer_id, first_offset in open_offsets:
            self.begin(key, producer_id, first_offset)
        for each in aborted:
            self.add_aborted(key, each)

    def forget(self, key: int) -> None:
        """Remove the entry of a deleted queue."""
        self.before_change(key)
        found = self._queues.pop(key, None)
        if found is not None:
            self.aborted_count -= found.aborted_count

    def forget_below(self, queue: Queue) -> None:
        """Remove what lies below the log start offset of a queue, and the entry itself if it is empty then."""
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
