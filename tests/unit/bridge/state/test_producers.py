"""Proves the rules for idempotent producers, row by row of the table in `bridge/state/producers.py`."""

import pytest

from duolog.bridge.config import KafkaOptions, Options
from duolog.bridge.state.producers import InvalidProducerEpoch, OutOfOrderSequence, ProducerError
from duolog.protocol.kafka import record_batch
from duolog.protocol.kafka.record_batch import BatchHeader
from duolog.store.entry import EntrySlot
from duolog.store.index.queue import QUEUE_ID_BITS
from tests.kit.memory_log import MemoryLog
from tests.unit.bridge.batches import batch
from tests.unit.bridge.replayed_state import NOW, State, new_state, open_state

KEY = 1 << 16
DAY = 24 * 3600 * 1000
LAST = 2**31 - 1


def opened(**kafka: int) -> State:
    return open_state(MemoryLog(), new_state(Options(kafka=KafkaOptions(**kafka))))


def header(first: int, count: int = 1, epoch: int = 0, producer_id: int = 1) -> BatchHeader:
    return record_batch.read_header(batch([b"x"] * count, producer=(producer_id, epoch, first)))


class Sender:
    """Publishes batches as `Publisher` does: check, then append and record, unless the batch is a repeat."""

    def __init__(self, state: State) -> None:
        self.producers, self.offset = state.producers, 0

    def send(self, *sent: BatchHeader, key: int = KEY, now_ms: int = NOW) -> int | None:
        """The offset of the last one."""
        found = None
        for one in sent:
            repeated = self.producers.check(key, one, now_ms)
            found = repeated.base_offset if repeated else self._append(one, key, now_ms)
        return found

    def _append(self, one: BatchHeader, key: int, now_ms: int) -> int:
        self.producers.remember_header(key, EntrySlot(self.offset * 100, self.offset, now_ms), one)
        self.offset += one.record_count
        return self.offset - one.record_count


FIVE = [header(first, 2) for first in (10, 12, 14, 16, 18)]
EMPTY: list[BatchHeader] = []
WRAP = [header(LAST - 1, 2)]

CASES = {
    "first of all, any sequence": (EMPTY, header(77), 0),
    "next": (FIVE, header(20), 10),
    "repeat of the last": (FIVE, header(18, 2), 8),
    "repeat of the oldest of five": (FIVE, header(10, 2), 0),
    "repeat of the sixth": ([*FIVE, header(20)], header(10, 2), OutOfOrderSequence),
    "repeat of a part": (FIVE, header(18), OutOfOrderSequence),
    "repeat of two in one": (FIVE, header(16, 4), OutOfOrderSequence),
    "gap": (FIVE, header(21), OutOfOrderSequence),
    "older epoch": ([header(0, epoch=3)], header(1, epoch=2), InvalidProducerEpoch),
    "newer epoch from 0": (FIVE, header(0, epoch=1), 10),
    "newer epoch not from 0": (FIVE, header(20, epoch=1), OutOfOrderSequence),
    "repeat from before the epoch": ([*FIVE, header(0, epoch=1)], header(18, 2), InvalidProducerEpoch),
    "after the greatest comes 0": (WRAP, header(0), 2),
    "the batch that wraps": ([header(LAST - 1)], header(LAST, 3), 1),
    "repeat of the batch that wraps": ([header(LAST, 3), header(2)], header(LAST, 3), 0),
    "next after the batch that wraps": ([header(LAST, 3)], header(2), 3),
    "the greatest is not followed by itself": (WRAP, header(LAST), OutOfOrderSequence),
    "another producer": (FIVE, header(77, producer_id=2), 10),
}


@pytest.mark.parametrize(("before", "sent", "expected"), CASES.values(), ids=CASES)
def test_batch_after_others(before: list[BatchHeader], sent: BatchHeader, expected: int | type[ProducerError]) -> None:
    sender = Sender(opened())
    sender.send(*before)
    if isinstance(expected, int):
        assert sender.send(sent) == expected
    else:
        with pytest.raises(expected):
            sender.send(sent)


@pytest.mark.parametrize("is_restarted", [False, True], ids=["live", "from a snapshot"])
def test_end_of_a_transaction_leaves_nothing_to_repeat(*, is_restarted: bool) -> None:
    """What an abort took back is never sent again: who has its sequences has other records."""
    state = opened()
    Sender(state).send(*FIVE)
    state.producers.take_marker(KEY, 1, 0, NOW)
    if is_restarted:
        before, state = state, opened()
        for payload in before.state_log.snapshot():
            state.state_log.replay_state(payload, EntrySlot(0, 0, NOW))
    sender = Sender(state)
    for one in FIVE:
        with pytest.raises(OutOfOrderSequence):
            sender.send(one)
    assert sender.send(header(20)) == 0
    assert sender.send(header(20)) == 0, "of the transaction that is open now, it is a repeat"
    assert sender.offset == 1


def test_queues_do_not_know_each_other() -> None:
    sender = Sender(opened())
    sender.send(*FIVE)
    assert sender.send(header(77), key=KEY + 1) == 10


def test_all_in_flight_may_be_sent_again_in_order() -> None:
    sender = Sender(opened())
    sender.send(*FIVE)
    assert [sender.send(one) for one in FIVE] == [0, 2, 4, 6, 8]
    assert sender.offset == 10


def test_silent_producer_is_forgotten() -> None:
    state = opened(producer_id_expiration_ms=DAY)
    sender = Sender(state)
    sender.send(header(0))
    with pytest.raises(OutOfOrderSequence):
        sender.send(header(5), now_ms=NOW + DAY - 1)
    sender.send(header(0, producer_id=2), now_ms=NOW + DAY - 1)
    assert len(state.producers._windows) == 2
    assert sender.send(header(5), now_ms=NOW + DAY) == 2
    sender.send(header(0, producer_id=3), now_ms=NOW + 2 * DAY)
    assert [name[0] for name in state.producers._windows] == [3]


def test_longest_silent_goes_when_there_are_too_many() -> None:
    state = opened(producers_max=3)
    sender = Sender(state)
    for producer_id in (1, 2, 3):
        sender.send(header(0, producer_id=producer_id))
    sender.send(header(1, producer_id=1), header(0, producer_id=4))
    assert [name[0] for name in state.producers._windows] == [3, 1, 4]


def test_ids_are_never_given_twice() -> None:
    log, seen = MemoryLog(), set()
    for _ in range(3):
        producers = open_state(log).producers
        for _ in range(1500):
            producer_id, promise = producers.allocate(NOW)
            assert promise.end == log.end
            assert producer_id not in seen
            seen.add(producer_id)
    assert max(seen) < 6000


def test_id_waits_for_its_block_to_be_reserved() -> None:
    log = MemoryLog()
    producers = open_state(log).producers
    units = log.units
    for _ in range(1000):
        producers.allocate(NOW)
    assert log.units == units + 1
    producers.allocate(NOW)
    assert log.units == units + 2


@pytest.mark.parametrize("form", [2, 3])
def test_only_batches_of_idempotent_producers_are_remembered(form: int) -> None:
    state = opened()
    for producer in ((-1, -1, -1), (-1, -1, 0), (5, 0, 0)):
        frame = memoryview(batch([b"x"], producer=producer))
        state.producers.replay_frame(KEY, EntrySlot(0, 0, NOW), form, 1, frame, b"")
    assert [*state.producers._windows] == ([(5, KEY)] if form == 2 else [])


def test_windows_go_with_their_topic() -> None:
    state = opened()
    topic, _ = state.topics.create("orders", 2, {}, NOW)
    sender = Sender(state)
    sender.send(*FIVE, key=topic.key(1))
    sender.send(header(0), key=KEY)
    state.topics.delete(topic, NOW)
    list(state.producers.sweep(lambda key: key >> QUEUE_ID_BITS not in state.topics))
    assert [*state.producers._windows] == [(1, KEY)]
