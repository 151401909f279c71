"""Proves that replay gives the live state: from the whole log, from a snapshot, from a snapshot and later records."""

import random

import pytest

from duolog.bridge.records.groups import CommittedOffset
from duolog.bridge.records.producers import ProducerBatch
from duolog.bridge.records.topics import TopicDeleted
from duolog.bridge.state.topics import TopicError
from duolog.store.entry import WRITTEN, EntrySlot
from duolog.store.errors import Corruption
from duolog.store.unit import Frame
from tests.kit.memory_log import MemoryLog
from tests.unit.bridge.batches import batch
from tests.unit.bridge.replayed_state import NOW, State, new_state, open_state, replayed

CONFIGS = [{}, {"flush.mode": "async"}, {"retention.ms": "5"}, {"cleanup.policy": "compact", "max.message.bytes": "9"}]
NAMES = ["orders", "orders.eu", "orders|eu", "%RETRY%g", "x" * 200]
GROUPS = ["g", "my group", "a.b"]


class History:
    """One random operation after another against a live state."""

    def __init__(self, state: State, log: MemoryLog, seed: int) -> None:
        self.state, self.log, self.random = state, log, random.Random(seed)
        self.now_ms = NOW

    def step(self) -> None:
        self.now_ms += self.random.randrange(100_000_000)
        self.random.choice(
            [self.create, self.change, self.delete, self.commit, self.commit, self.forget, self.produce, self.produce]
        )()

    def topic(self):
        return self.random.choice([*self.state.topics.all()])

    def create(self) -> None:
        name, configs = self.random.choice(NAMES), self.random.choice(CONFIGS)
        try:
            self.state.topics.create(name, self.random.randrange(1, 4), configs, self.now_ms)
        except TopicError:
            assert self.state.topics.get(name)

    def change(self) -> None:
        topic, topics = self.topic(), self.state.topics
        match self.random.randrange(4):
            case 0:
                topics.configure(topic, self.random.choice(CONFIGS), self.now_ms)
            case 1 if topic.queue_count < 30:
                topics.add_queues(topic, topic.queue_count + 1, self.now_ms, "a test")
            case 2:
                topics.permit(topic, self.random.randrange(8), self.now_ms)
            case _:
                topics._begin_epochs(self.now_ms, WRITTEN)

    def delete(self) -> None:
        topic = self.topic()
        if topic.is_listed:
            self.state.topics.delete(topic, self.now_ms)

    def commit(self) -> None:
        group, topic, positions = self.random.choice(GROUPS), self.topic(), self.state.group_offsets
        part = [
            CommittedOffset(topic.key(queue_id), self.random.randrange(100), 0, self.random.choice(["", "note"]))
            for queue_id in range(topic.queue_count)
        ]
        if self.random.random() < 0.5:
            positions.commit(group, part, self.now_ms)
        else:
            positions.commit_later(group, part, self.now_ms, self.now_ms)
        if self.random.random() < 0.5:
            positions.advance(self.now_ms + 1000, self.now_ms)

    def forget(self) -> None:
        group, positions = self.random.choice(GROUPS), self.state.group_offsets
        match self.random.randrange(3):
            case 0:
                positions.delete(group, [*positions.all_of(group)][:1], self.now_ms)
            case 1:
                positions.delete_group(group, self.now_ms)
            case _:
                list(positions.expire(self.now_ms, lambda group: group == "g"))

    def produce(self) -> None:
        producers, queue = self.state.producers, self.random.choice(self.topic().queues)
        producer_id = producers.allocate(self.now_ms)[0] if self.random.random() < 0.2 else self.random.randrange(3)
        count = self.random.randrange(1, 4)
        body = batch([b"x"] * count, producer=(producer_id, 0, self.random.randrange(5)))
        (slot,), _ = self.log.append([Frame(queue, 2, body, count)], self.now_ms)
        producers.replay_frame(queue.key, slot, 2, count, memoryview(body), b"")


@pytest.mark.parametrize("seed", range(8))
def test_replay_gives_the_live_state_again(seed: int) -> None:
    log = MemoryLog()
    live = open_state(log)
    history = History(live, log, seed)
    for _ in range(60):
        history.step()
    snapshot, since = [*live.state_log.snapshot()], len(log.kept)
    assert replayed(log).picture() == live.picture()
    assert replayed(log, since, snapshot).picture() == live.picture()
    for _ in range(60):
        history.step()
    assert replayed(log, since, snapshot).picture() == live.picture()
    assert replayed(log).picture() == live.picture()


@pytest.mark.parametrize("seed", range(8))
def test_snapshot_is_the_state_at_its_beginning_though_the_state_goes_on_changing(seed: int) -> None:
    log = MemoryLog()
    live = open_state(log)
    history = History(live, log, seed)
    for _ in range(60):
        history.step()
    since, expected = len(log.kept), [*live.state_log.snapshot()]
    records, taken = live.state_log.snapshot(), []
    for record in records:
        taken.append(record)
        if history.random.random() < 0.7:
            history.step()
    records.close()
    assert not live.group_offsets._snapshot.is_active
    assert sorted(taken) == sorted(expected)
    assert replayed(log, since, taken).picture() == live.picture()


def test_snapshot_appended_again_changes_nothing() -> None:
    log = MemoryLog()
    live = open_state(log)
    history = History(live, log, seed=99)
    for _ in range(100):
        history.step()
    before = live.picture()
    for payload in [*live.state_log.snapshot()]:
        live.state_log.replay_state(payload, EntrySlot(log.end, -1, NOW))
    assert live.picture() == before


def test_records_about_what_is_gone_change_nothing() -> None:
    log = MemoryLog()
    live = open_state(log)
    topic, _ = live.topics.create("orders", 2, {}, NOW)
    live.group_offsets.commit("g", [CommittedOffset(topic.key(0), 5)], NOW)
    live.producers.remember(topic.key(0), 1, 0, ProducerBatch(0, 0, 0, 0, NOW))
    live.topics.add_queues(topic, 3, NOW, "a test")
    live.topics.delete(topic, NOW)
    before, kept = live.picture(), [*log.kept]
    for entry in kept:
        if b"orders" not in entry.body:  # Creation apart: that number is used and would come back.
            live.state_log.replay_state(entry.body, entry.slot)
    assert live.picture() == before
    assert live.topics.create("orders", 2, {}, NOW)[0].number > topic.number


def test_unknown_record_is_corruption() -> None:
    with pytest.raises(Corruption):
        new_state().state_log.replay_state(b"\x92\xcd\x27\x0f\x01", EntrySlot(0, -1, NOW))


def test_refused_append_changes_nothing() -> None:
    log = MemoryLog()
    live = open_state(log)

    class Refused(Exception):
        pass

    def refuse(*_: object) -> None:
        raise Refused

    before = live.picture()
    log.append = refuse  # type: ignore[method-assign, assignment]
    with pytest.raises(Refused):
        live.state_log.commit([TopicDeleted(1)], NOW)
    assert live.picture() == before
