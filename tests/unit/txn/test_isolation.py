"""Isolation of queues: the example of its docstring, then random histories against a list of all records."""

from dataclasses import dataclass, field
from typing import Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from duolog.store.entry import WRITTEN
from duolog.store.index.queue import Queue
from duolog.txn.isolation import Aborted, Isolation, QueueIsolation

A, B, C = 1, 2, 3
KEY: Final = 7 << 16


def test_picture_of_the_docstring() -> None:
    queue = QueueIsolation()
    for producer, first in ((A, 4), (B, 5), (C, 7)):
        queue.begin(producer, first)
    queue.begin(A, 6)  # A transaction that has begun does not begin again.
    aborted = queue.end(A, 9)
    assert aborted == Aborted(9, 4, A, stable_offset=5)
    queue.add_aborted(aborted)
    queue.begin(A, 11)
    assert queue.end(B, 12) == Aborted(12, 5, B, stable_offset=7)
    assert queue.stable_end(0, visible_end=14) == 7
    assert queue.first_offset(A) == 11
    assert [queue.is_aborted(A, offset) for offset in (4, 6, 11)] == [True, True, False]
    assert queue.aborted_between(0, 4) == []
    assert queue.aborted_between(6, 20) == [(A, 4)]
    assert queue.aborted_between(10, 20) == []


def test_marker_without_a_transaction_aborts_nothing() -> None:
    assert QueueIsolation().end(A, 3) is None


@pytest.mark.parametrize(("visible_end", "stable_end"), [(3, 3), (5, 4), (7, 4), (8, 8), (9, 9)])
def test_marker_that_is_not_visible_ends_nothing_for_consumers(visible_end: int, stable_end: int) -> None:
    queue = QueueIsolation()
    queue.begin(A, 4)
    queue.end(A, 7)
    assert queue.stable_end(0, visible_end) == stable_end


# -- Against all records


@dataclass
class History:
    """A queue of records: `outcomes` has for each transaction its producer, offsets, and marker."""

    queue: QueueIsolation = field(default_factory=QueueIsolation)
    records: list[tuple[int, int]] = field(default_factory=list)  # (producer, number of its transaction)
    open: dict[int, int] = field(default_factory=dict)
    markers: dict[int, tuple[int, bool]] = field(default_factory=dict)  # (offset, is aborted) by transaction
    transactions: int = 0

    def do(self, producer: int, what: str) -> None:
        offset = len(self.records)
        if what == "write":
            if producer not in self.open:
                self.open[producer] = self.transactions
                self.transactions += 1
            self.queue.begin(producer, offset)
            self.records.append((producer, self.open[producer]))
            return
        ended = self.queue.end(producer, offset)
        assert (ended is None) is (producer not in self.open)
        self.records.append((producer, -1))
        if ended is not None:
            is_aborted = what == "abort"
            self.markers[self.open.pop(producer)] = (offset, is_aborted)
            if is_aborted:
                self.queue.add_aborted(ended)

    def stable_end(self, visible_end: int) -> int:
        """The first record of a transaction whose marker is not visible."""
        for offset, (_, number) in enumerate(self.records[:visible_end]):
            if number >= 0 and (number not in self.markers or self.markers[number][0] >= visible_end):
                return offset
        return visible_end

    def is_aborted(self, offset: int) -> bool:
        number = self.records[offset][1]
        return number in self.markers and self.markers[number][1]


ACTIONS = ["write", "write", "write", "commit", "abort", "abort"]
STEPS = st.lists(st.tuples(st.sampled_from([A, B, C]), st.sampled_from(ACTIONS)), min_size=12, max_size=40)


def played(steps: list[tuple[int, str]]) -> History:
    history = History()
    for producer, what in steps:
        history.do(producer, what)
    return history


@given(STEPS, st.data())
def test_stable_end_is_the_first_record_that_is_undecided(steps: list[tuple[int, str]], data: st.DataObject) -> None:
    """The visible end never goes back, so the ends are asked for in rising order."""
    history = played(steps)
    ends = data.draw(st.lists(st.integers(0, len(history.records)), max_size=4).map(sorted))
    for visible_end in ends:
        assert history.queue.stable_end(0, visible_end) == history.stable_end(visible_end)


@given(STEPS, st.data())
def test_consumers_skip_exactly_the_aborted_records(steps: list[tuple[int, str]], data: st.DataObject) -> None:
    """By both ways: record by record, and as a Kafka consumer does with the aborted transactions of a fetched range."""
    history = played(steps)
    queue, end = history.queue, history.stable_end(len(history.records))
    decided = [offset for offset in range(end) if history.records[offset][1] >= 0]
    for offset in decided:
        assert queue.is_aborted(history.records[offset][0], offset) is history.is_aborted(offset)
    start = data.draw(st.integers(0, end))
    until = data.draw(st.integers(start, end))
    begins = sorted(queue.aborted_between(start, until), key=lambda found: found[1])
    skipping: set[int] = set()
    for offset in range(start, until):
        producer, number = history.records[offset]
        while begins and begins[0][1] <= offset:
            skipping.add(begins.pop(0)[0])
        if number < 0:
            skipping.discard(producer)
        else:
            assert (producer in skipping) is history.is_aborted(offset)


@given(STEPS, st.data())
def test_what_lies_below_the_log_start_is_removed_and_the_rest_answers_as_before(
    steps: list[tuple[int, str]], data: st.DataObject
) -> None:
    history = played(steps)
    queue, start = history.queue, data.draw(st.integers(0, len(history.records)))
    before, count = queue.aborted_between(start, len(history.records)), queue.aborted_count
    removed = queue.forget_below(start)
    assert queue.aborted_between(start, len(history.records)) == before
    assert all(marker >= start for marker, *_ in queue.aborted)
    assert queue.aborted_count == count - removed


@given(STEPS, STEPS)
def test_snapshot_restores_a_queue_and_the_total_stays_the_sum(
    steps: list[tuple[int, str]], replaced: list[tuple[int, str]]
) -> None:
    history, isolation, changed = played(steps), Isolation(), list[int]()
    isolation.before_change = changed.append
    isolation.restore(KEY, played(replaced).queue.open, played(replaced).queue.aborted)
    isolation.restore(KEY, history.queue.open, history.queue.aborted)
    found = isolation.get(KEY)
    if found is None:
        assert history.queue.aborted_count == 0
        assert not [*history.queue.open]
    else:
        assert ([*found.open], [*found.aborted]) == ([*history.queue.open], [*history.queue.aborted])
    assert isolation.aborted_count == history.queue.aborted_count
    assert set(changed) == {KEY}
    isolation.forget(KEY)
    assert (isolation.aborted_count, [*isolation.keys]) == (0, [])


def test_queue_without_transactions_ends_where_it_is_visible() -> None:
    isolation, queue = Isolation(), Queue(KEY, None, level=WRITTEN)  # type: ignore[arg-type]
    queue.visible_end = queue.end_offset = 5
    assert isolation.stable_end(queue) == 5
    isolation.begin(KEY, A, 2)
    assert (isolation.stable_end(queue), isolation.is_open(KEY, A), isolation.is_open(KEY, B)) == (2, True, False)
    isolation.end(KEY, A, 4, is_aborted=True)
    assert (isolation.stable_end(queue), isolation.aborted_count) == (5, 1)
    queue.start_offset = 5
    isolation.forget_below(queue)
    assert (isolation.aborted_count, isolation.get(KEY)) == (0, None)
