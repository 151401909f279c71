"""Deleting a topic is one record; the state of the topic is removed in slices of a counted size.

Each owner of such state has entries of a topic that is deleted and of one that stays, in more than one slice.
"""

from collections.abc import Callable

import pytest

from duolog.bridge.records.expiry import MessagesExpired
from duolog.bridge.records.groups import CommittedOffset, GroupOffsetsCommitted
from duolog.bridge.records.producers import ProducerBatch
from duolog.bridge.records.transactions import TransactionalIdSettled, TransactionGrew
from duolog.bridge.rocketmq.pop.pop_checkpoints import CheckpointName, taken
from duolog.bridge.state.deleted_topics import CHECKED_IN_SLICE
from duolog.delay.rows import Timer
from duolog.txn.coordinator import NO_EPOCH, NO_PRODUCER, State
from tests.kit.core import ManualCore

COUNT = CHECKED_IN_SLICE + 10  # of each topic
NOW = 1_000_000


def fill_positions(core: ManualCore, keys: list[int]) -> None:
    positions = [CommittedOffset(key, 1, -1, "x") for key in keys]
    core.state_log.commit([GroupOffsetsCommitted(f"group-{number}", positions, NOW) for number in range(COUNT)], NOW)


def fill_producers(core: ManualCore, keys: list[int]) -> None:
    for number in range(COUNT):
        for key in keys:
            core.producers.remember(key, number, 0, ProducerBatch(0, 0, 0, 0, NOW))


def fill_isolation(core: ManualCore, keys: list[int]) -> None:
    for number in range(COUNT):
        for key in keys:
            core.isolation.begin(key, number, number)


def fill_popped(core: ManualCore, keys: list[int]) -> None:
    records = [
        taken(CheckpointName("group", key, number, NOW), [number], NOW, 0) for number in range(COUNT) for key in keys
    ]
    core.state_log.commit(records, NOW)


def fill_expired(core: ManualCore, keys: list[int]) -> None:
    records = [MessagesExpired(f"group-{number}", key, [(0, 1)]) for number in range(COUNT) for key in keys]
    core.state_log.commit(records, NOW)


def fill_held(core: ManualCore, keys: list[int]) -> None:
    for number in range(COUNT):
        for key in keys:
            core.delays.timers.held.add(number, Timer(NOW * 2, number * 8, key, 10, 0, 1))


def fill_transactions(core: ManualCore, keys: list[int]) -> None:
    positions = [CommittedOffset(key, 1, -1, "") for key in keys]
    for number in range(COUNT):
        settled = TransactionalIdSettled(f"id-{number}", number, 0, 60_000, State.EMPTY, NOW, NO_PRODUCER, NO_EPOCH)
        grew = [TransactionGrew(number, NOW, keys), TransactionGrew(number, NOW, (), "group", positions)]
        core.state_log.commit([settled, *grew], NOW)


def positions(core: ManualCore) -> int:
    return sum(len(core.group_offsets.all_of(group)) for group in core.group_offsets.groups())


def isolation(core: ManualCore) -> int:
    return sum(len([*queue.open]) for _, queue in core.isolation)


OWNERS: dict[str, tuple[Callable[[ManualCore, list[int]], None], Callable[[ManualCore], int]]] = {
    "positions": (fill_positions, positions),
    "producers": (fill_producers, lambda core: len(core.producers._windows)),
    "isolation": (fill_isolation, isolation),
    "popped": (fill_popped, lambda core: len(core.rocketmq_context.pop.checkpoints)),
    "expired": (fill_expired, lambda core: core.rocketmq_context.groups.expired_ranges._count),
    "held timers": (fill_held, lambda core: len(core.delays.timers)),
    "transactions": (fill_transactions, lambda core: core.transactions.coordinator.queue_count),
}


@pytest.mark.parametrize("name", OWNERS)
def test_what_belonged_to_a_deleted_topic_goes_in_slices(name: str) -> None:
    fill, count = OWNERS[name]
    core = ManualCore()
    deleted, stays = core.topic("deleted", 1), core.topic("stays", 1)
    core.sweep()
    fill(core, [deleted.key(0), stays.key(0)])
    before = count(core)
    core.topics.delete(deleted, NOW)
    assert count(core) == before, "the deletion itself goes through no table"
    assert core.sweep() >= 1
    assert count(core) == before // 2
    assert core.deleted_topics.next_deadline_mono_ms() is None


@pytest.mark.parametrize("name", OWNERS)
def test_no_slice_looks_at_more_than_it_may(name: str) -> None:
    core = ManualCore()
    OWNERS[name][0](core, [core.topic("deleted", 1).key(0), core.topic("stays", 1).key(0)])
    asked = slices = 0

    def is_deleted(key: int) -> bool:
        nonlocal asked
        asked += 1
        return False

    for sweep in core.deleted_topics.sweeps:
        for count in sweep(is_deleted):
            assert asked <= count <= CHECKED_IN_SLICE
            asked, slices = 0, slices + 1
    assert slices >= 1


@pytest.mark.slow
def test_a_start_removes_what_the_log_brings_back_of_deleted_topics() -> None:
    core = ManualCore()
    deleted, stays = core.topic("deleted", 1), core.topic("stays", 1)
    fill_popped(core, [deleted.key(0), stays.key(0)])
    core.topics.delete(deleted, NOW)
    core.settle()
    again = ManualCore(disk=core.disk.after_kill())
    assert len(again.rocketmq_context.pop.checkpoints) == 2 * COUNT
    assert again.sweep() > 1
    assert len(again.rocketmq_context.pop.checkpoints) == COUNT
