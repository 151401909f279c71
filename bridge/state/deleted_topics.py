"""Removal of the state of deleted topics (committed offsets, producers, pop checkpoints), in slices.

A deletion itself is one state record, independent of how much state belongs to the topic. The number of a topic is
never used again, so remaining state is never taken for that of another topic, and listings leave out entries without a
topic. This duty sweeps the tables of all owners some time after a deletion, once for all topics that were deleted in
the meantime, and once after each start.

    TopicDeleted ──> a sweep is due ──> run() for each slice ──> all tables are swept ──> idle
                          ^──── TopicDeleted during a sweep: one more sweep follows ────'
"""

from collections.abc import Callable, Hashable, Iterable, Iterator
from itertools import chain, islice
from typing import Final, TypeVar

from duolog.bridge.records.topics import TopicDeleted
from duolog.store.entry import EntrySlot
from duolog.store.index.queue import QUEUE_ID_BITS
from duolog.store.state_log import StateLog

CHECKED_IN_SLICE: Final = 4096  # Processing an entry takes about a quarter of a microsecond.

IsDeleted = Callable[[int], bool]  # Returns whether the queue with a queue key belongs to a deleted topic.
# Yields the number of entries that it processed since the last yield: CHECKED_IN_SLICE at most.
Sweep = Callable[[IsDeleted], Iterator[int]]
K = TypeVar("K", bound=Hashable)


class DeletedTopics:
    """Runs the sweeps of all state owners."""

    def __init__(self, state_log: StateLog, knows_topic: Callable[[int], bool]) -> None:
        self._knows_topic = knows_topic
        self.sweeps: list[Sweep] = []
        self._is_wanted = True
        self._slices: Iterator[int] | None = None
        state_log.own(TopicDeleted, self._replay_deleted)

    def add(self, sweep: Sweep) -> None:
        self.sweeps.append(sweep)

    def next_deadline_mono_ms(self) -> int | None:
        """Return a time in the past while a sweep is due, else None."""
        return 0 if self._is_wanted or self._slices is not None else None

    def run(self) -> None:
        """Run one slice."""
        if self._slices is None:
            self._is_wanted = False
            self._slices = chain.from_iterable(sweep(self._is_deleted) for sweep in self.sweeps)
        if run_slice(self._slices):
            self._slices = None

    def _is_deleted(self, key: int) -> bool:
        return not self._knows_topic(key >> QUEUE_ID_BITS)

    def _replay_deleted(self, record: TopicDeleted, slot: EntrySlot) -> None:
        self._is_wanted = True


def run_slice(counts: Iterator[int]) -> bool:
    """Run sweeps until they have processed CHECKED_IN_SLICE entries; return whether they are complete."""
    checked = 0
    for count in counts:
        checked += count
        if checked >= CHECKED_IN_SLICE:
            return False
    return True


def in_slices(names: Iterable[K]) -> Iterator[list[K]]:
    """Yield the keys of a table in lists of limited length; the table may change between two yields."""
    left = iter([*names])
    while some := [*islice(left, CHECKED_IN_SLICE)]:
        yield some
