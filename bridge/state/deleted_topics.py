"""State of deleted topics (group offsets, producers, pop checkpoints and the like) is removed in slices.

A deletion itself is one state record, however much state belonged to the topic. The number of a topic is never used
again, so state that is left is never read as another topic's; a table that lists its entries leaves out those without a
topic. This duty sweeps the tables of all owners some time after a deletion, once for all topics that were deleted
meanwhile, and once after each start.

    TopicDeleted ──> sweep is due ── run, run, run: a slice each ──> all tables are swept ──> idle
                          ^──── TopicDeleted: one more sweep from the beginning, after this one ────'
"""

from collections.abc import Callable, Hashable, Iterable, Iterator
from itertools import chain, islice
from typing import Final, TypeVar

from duolog.bridge.records.topics import TopicDeleted
from duolog.store.entry import Slot
from duolog.store.index.queue import QUEUE_ID_BITS
from duolog.store.state_log import StateLog

LOOKED_AT_IN_SLICE: Final = 4096  # entries of tables, at a quarter of a microsecond each

IsGone = Callable[[int], bool]  # whether the queue of this key belongs to a topic that is gone
Sweep = Callable[[IsGone], Iterator[int]]  # yields how many entries it has looked at, LOOKED_AT_IN_SLICE at most
K = TypeVar("K", bound=Hashable)


class DeletedTopics:
    """Runs the sweeps of all owners of state."""

    def __init__(self, state_log: StateLog, knows_topic: Callable[[int], bool]) -> None:
        self._knows_topic = knows_topic
        self.sweeps: list[Sweep] = []
        self._is_wanted = True
        self._slices: Iterator[int] | None = None
        state_log.own(TopicDeleted, self._replay_deleted)

    def add(self, sweep: Sweep) -> None:
        self.sweeps.append(sweep)

    def next_deadline_mono_ms(self) -> int | None:
        return 0 if self._is_wanted or self._slices is not None else None

    def run(self) -> None:
        """Do a slice."""
        if self._slices is None:
            self._is_wanted = False
            self._slices = chain.from_iterable(sweep(self._is_gone) for sweep in self.sweeps)
        looked_at = 0
        for count in self._slices:
            looked_at += count
            if looked_at >= LOOKED_AT_IN_SLICE:
                return
        self._slices = None

    def _is_gone(self, key: int) -> bool:
        return not self._knows_topic(key >> QUEUE_ID_BITS)

    def _replay_deleted(self, record: TopicDeleted, slot: Slot) -> None:
        self._is_wanted = True


def in_slices(names: Iterable[K]) -> Iterator[list[K]]:
    """Yield the names of a table's entries some at a time."""
    left = iter([*names])
    while some := [*islice(left, LOOKED_AT_IN_SLICE)]:
        yield some
