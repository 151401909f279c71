"""Proves of all state owners that a snapshot is the state of one moment, and that little is done in its turn.

A core is filled by records, a snapshot is begun, then everything changes; what is read afterwards must be what a
snapshot that is read at once has. Work is counted in calls of functions.
"""

import sys
from array import array
from collections.abc import Callable, Sequence
from types import FrameType

import pytest

from duolog.bridge.records.codec import Record
from duolog.bridge.records.expiry import MessagesExpired, QueuesExpire
from duolog.bridge.records.groups import (
    CommittedOffset,
    GroupConfigured,
    GroupDeleted,
    GroupOffsetsCommitted,
    RequestModeSet,
)
from duolog.bridge.records.half_messages import HalfIdsKnown, HalvesChecked, HalvesOpen
from duolog.bridge.records.pop import PopDelayed, PopSettled, PopTaken
from duolog.bridge.records.schedules import ScheduleRegistered, ScheduleStepped
from duolog.bridge.records.timers import (
    QuotaEntityKnown,
    TimerRequested,
    TimerRequestsKnown,
    TimersCredited,
    TimerTablesChanged,
)
from duolog.bridge.records.topics import EpochStart, LeaderEpochsStarted, OriginsAdded, TopicChanged, TopicDeleted
from duolog.bridge.records.transactions import (
    QueueTransactions,
    TransactionalIdSettled,
    TransactionalIdsForgotten,
    TransactionGrew,
)
from duolog.bridge.rocketmq.pop.pop_checkpoints import CheckpointName
from duolog.delay.recurring import Missed
from duolog.store.entry import SYNCED
from duolog.store.index.queue import Queue, queue_key
from duolog.txn.half_pages import COLUMN_CODES
from duolog.txn.half_verdicts import HalfVerdict
from duolog.txn.isolation import Aborted
from tests.kit.core import ManualCore

NOW = 1_700_000_000_000
LATER = NOW + 1_000_000
COUNT = 8
PER_RECORD_MAX = 200  # function calls for one record of this test, be there 8 or 80 of each thing


def filled(count: int) -> ManualCore:
    """Give a core with so many of each thing; names and numbers are 0 and up."""
    core = ManualCore(now_ms=NOW)
    for number in range(count):
        core.topic(f"t{number}", queues=2)
    records: list[Record] = [
        TimerRequestsKnown([(b"%d" % number, b"b", 1, 2, 3, NOW) for number in range(count)]),
        HalvesOpen(*halves(range(10_000, 10_000 + count)), {0: "target"}),
        HalfIdsKnown([(10_000 + number, "topic", str(number), False) for number in range(count)]),
        TimerTablesChanged((), deleted=b"".join(b"%016d" % number for number in range(count))),
    ]
    for number in range(count):
        key, group = key_of(core, number), f"g{number}"
        records += [
            LeaderEpochsStarted([EpochStart(key, 1, 0)]),
            GroupOffsetsCommitted(group, [CommittedOffset(key, 5)], NOW),
            QueuesExpire([key]),
            QuotaEntityKnown(1 + number, f"user{number}", None, [(key >> 16, 3)]),
            TransactionalIdSettled(f"id{number}", number, 0, 60_000, 0, NOW),
            TransactionalIdSettled(f"empty{number}", number + 500, 0, 60_000, 0, NOW),
            TransactionGrew(number, NOW, [key], "g0", [CommittedOffset(key, 7)]),
            QueueTransactions(key, [(number, 3)], bytes(31) + b"\1"),
            PopTaken(group, key, 0, NOW, [0, 1, 2], LATER, 3),
            RequestModeSet(group, "topic", "POP", number),
            MessagesExpired(group, key, [(1, 2)], is_restored=True),
            GroupConfigured(group, {"retryMaxTimes": 3}),
            ScheduleRegistered(f"s{number}", key, 1, b"frame", 1, LATER, Missed.ALL.value, period_ms=60_000,
                               start_ms=LATER),
        ]  # fmt: skip
    core.state_log.commit(records, NOW)
    return core


def halves(offsets: Sequence[int]) -> list[bytes]:
    rows = [(offset, NOW, LATER, 0, 0) for offset in offsets]
    return [array(code, column).tobytes() for code, column in zip(COLUMN_CODES, zip(*rows, strict=True), strict=True)]


def key_of(core: ManualCore, number: int) -> int:
    topic = core.topics.get(f"t{number}")
    assert topic is not None
    return queue_key(topic.number, 0)


def records_of(core: ManualCore, number: int) -> dict[str, list[Record]]:
    """Give what may happen to things of this number, each by itself."""
    key, group, number_after = key_of(core, number), f"g{number}", number + 1
    return {
        "a topic goes": [TopicDeleted(key >> 16)],
        "an origin": [OriginsAdded(key >> 16, ["orders"])],
        "a topic changes": [TopicChanged(key >> 16, configs={"retention.ms": "1"})],
        "an epoch": [LeaderEpochsStarted([EpochStart(key, 2, 1)])],
        "a group goes": [GroupDeleted(group)],
        "a group changes": [GroupConfigured(group, {})],
        "positions": [GroupOffsetsCommitted(group, [CommittedOffset(key, 6)], LATER)],
        "a queue with expiry": [QueuesExpire([key + 1])],
        "ranges": [MessagesExpired(group, key, [(7, 9)])],
        "a mode": [RequestModeSet(group, "topic", "PULL", 0)],
        "pops acked": [PopSettled(group, key, 0, NOW, [1])],
        "pops settled": [PopSettled(group, key, 0, NOW, [0, 1, 2])],
        "pops delayed": [PopDelayed(group, key, 0, NOW, 1, LATER, LATER)],
        "a schedule steps": [ScheduleStepped(f"s{number}", 2, LATER)],
        "a schedule goes": [ScheduleStepped(f"s{number}", is_removed=True)],
        "a request's key": [TimerRequested(b"%d" % number, b"c", 1, 2, 3, NOW)],
        "a timer of a table is deleted": [TimerTablesChanged((), deleted=b"%016d" % (1000 + number_after))],
        "messages of a quota entity go": [TimersCredited([(key >> 16, 1 + number, 1)])],
        "a quota entity has none": [TimersCredited([(key >> 16, 1 + number, 3)])],
        "a number of another entity": [QuotaEntityKnown(1 + number, "other", None, [(key >> 16, 1)])],
        "an id ends": [TransactionalIdSettled(f"id{number}", number, 1, 60_000, 5, LATER)],
        "an id is forgotten": [TransactionalIdsForgotten([f"id{number}"])],
        "a transaction begins": [TransactionGrew(number + 500, NOW)],
        "queues of a transaction": [TransactionGrew(number, NOW, [key + 1])],
        "offsets of a transaction": [TransactionGrew(number, NOW, (), "g1", [CommittedOffset(key, 8)])],
        "a look": [HalvesChecked([10_000 + number], LATER)],
        "transactions of a queue": [QueueTransactions(key, [(number, 4)], b"")],
    }


def give_verdicts(core: ManualCore) -> None:
    for number in range(COUNT):
        if number % 3:
            core.halves.state.decided(10_000 + number, HalfVerdict.COMMITTED)
            core.halves.ids.decided(10_000 + number)


def each_queue(work: Callable[[ManualCore, int, int], object]) -> Callable[[ManualCore], None]:
    return lambda core: [work(core, key_of(core, number), number) for number in range(COUNT)] and None


CHANGES: dict[str, Callable[[ManualCore], object]] = {
    "half messages decided": give_verdicts,
    "half messages sent": lambda core: core.halves.state.prepared(20_000, "new", NOW),
    "half messages, the clock back": lambda core: [*core.halves.state.clock_was_set_back(NOW - 5_000_000)],
    "pops, the clock back": lambda core: [*core.rocketmq_context.pop.checkpoints.clock_was_set_back(NOW - 5_000_000)],
    "transactions, the clock on": lambda core: core.transactions.clock_stepped(1000),
    "transactions, the clock back": lambda core: [*core.transactions.clock_was_set_back(NOW - 5000)],
    "a batch": each_queue(lambda core, key, number: core.isolation.begin(key, 600 + number, 9)),
    "a marker": each_queue(lambda core, key, number: core.isolation.end(key, number, 20, is_aborted=False)),
    "an aborted one": each_queue(lambda core, key, number: core.isolation.add_aborted(key, Aborted(30, 25, 1, 31))),
    "aborted ones expired": each_queue(
        lambda core, key, number: core.isolation.forget_below(
            Queue(key, core.store.queue(key).index, level=SYNCED, start_offset=9)
        )
    ),
    "a queue goes": each_queue(lambda core, key, number: core.isolation.forget(key)),
    "a transaction's queue goes": each_queue(
        lambda core, key, number: core.transactions.coordinator.forget_queues(number, lambda queue: queue == key)
    ),
    "pops put off": each_queue(
        lambda core, key, number: core.rocketmq_context.pop.checkpoints.retry_at(
            core.rocketmq_context.pop.checkpoints._checkpoints[CheckpointName(f"g{number}", key, 0, NOW)], LATER + 1
        )
    ),
}  # fmt: skip


def change(core: ManualCore, what: str) -> None:
    if what in CHANGES:
        CHANGES[what](core)
        return
    for number in range(COUNT):
        core.state_log.commit(records_of(core, number)[what], NOW)
    core.sweep()


@pytest.mark.parametrize("what", [*records_of(filled(1), 0), *CHANGES])
@pytest.mark.parametrize("taken_before", [0, 60])
def test_snapshot_is_the_state_at_its_beginning_whatever_changes_before_it_is_read(
    what: str, taken_before: int
) -> None:
    core = filled(COUNT)
    expected = [*core.state_log.snapshot()]
    snapshot = core.state_log.snapshot()
    taken = [next(snapshot) for _ in range(taken_before)]
    change(core, what)
    taken += snapshot
    snapshot.close()
    assert taken == expected
    assert [*core.state_log.snapshot()] != expected


def calls_of(work: Callable[[], object]) -> int:
    count = 0

    def profile(frame: FrameType, event: str, arg: object) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    before = sys.getprofile()
    sys.setprofile(profile)
    try:
        work()
    finally:
        sys.setprofile(before)
    return count


def test_the_turn_of_a_capture_does_the_same_work_however_much_state_there_is() -> None:
    work = []
    for count in (8, 80):
        core = filled(count)
        work.append(calls_of(core.state_log.snapshot))
        record_count = len([*core.state_log.snapshot()])
        snapshot = core.state_log.snapshot()
        most = max(calls_of(snapshot.__next__) for _ in range(record_count))
        assert most < PER_RECORD_MAX, "records are made one at a time"
    assert work[1] <= work[0] + 20, f"calls for 8 and for 80 of each kind: {work}"
