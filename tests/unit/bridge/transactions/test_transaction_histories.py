"""Proves that transactions are committed once and whole, aborted never, in order, whatever happens to the broker.

Random producers of both transaction versions write, commit, abort, lose their ids to newer ones and run out of time, on
a real store whose disk is in memory. Each waits for its answers, and asks again after a crash. Power is cut at every
file operation of such a history: what recovery finds is compared with what had been decided up to where the log then
ends, by a reader of each protocol; its state with the live one of that moment; and no record that was read is missing.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from typing import Any

import pytest

from duolog.bridge.config import Options, TxnOptions
from duolog.bridge.data.publishing.produced_batches import BatchOrigin
from duolog.bridge.records.groups import CommittedOffset
from duolog.bridge.state.producers import ProducerError
from duolog.bridge.state.topic_table import Topic
from duolog.protocol.kafka import marker, record_batch, record_reader
from duolog.protocol.rocketmq.messages import message
from duolog.store.entry import Promise
from duolog.store.errors import StoreError
from duolog.store.index.queue import Queue
from duolog.store.options import StoreOptions
from duolog.txn.coordinator import Producer, State
from duolog.txn.requests import TransactionError
from tests.kit.core import ManualCore
from tests.kit.disk import CrashDisk, EachCut
from tests.kit.rows import first_in_unit
from tests.kit.slices import finished
from tests.unit.bridge.batches import batch
from tests.unit.bridge.publish_bench import now

STORE = StoreOptions(segment_bytes=16_000, reserve_bytes=0, tail_bytes=8192, checkpoint_bytes=20_000)
OPTIONS = Options(txn=TxnOptions(timeout_max_ms=100_000))
QUEUES = 3
IDS = 4
GROUP = "group"
TIMEOUT_MS = 2_000
OUTSIDE = 0  # The number of the transaction of what is written outside of transactions.

Read = tuple[int, str]  # offset, text


@dataclass
class Change:
    """Something that is true once the log reaches `end`."""

    end: int
    transaction: int
    wrote: tuple[int, int, str] | None = None  # queue, offset, text
    position: int | None = None
    is_commit: bool | None = None


@dataclass
class Instance:
    """One run of a client's program: it takes the transactional id over, and goes on until it is fenced."""

    name: str
    is_version_2: bool
    producer: Producer | None = None
    sequences: dict[int, int] = field(default_factory=dict)
    added: set[int] = field(default_factory=set)
    transaction: int | None = None  # the open one, as it sees it
    retry: "Request | None" = None  # what has no answer yet
    is_over: bool = False

    def goes_on(self, producer: Producer) -> None:
        """It has learned that it is this producer now, and has nothing open."""
        if producer != self.producer:
            self.sequences.clear()
        self.producer, self.transaction = producer, None
        self.added.clear()


# What a client asks, to be asked again if need be: the promise of its answer, and what it learns from that.
Request = Callable[[], tuple[Promise, Callable[[], None]]]


class History:
    def __init__(self, seed: int, disk: CrashDisk) -> None:
        self.rng = Random(seed)
        self.changes: list[Change] = []
        self.pictures: dict[int, object] = {}
        self.read: dict[int, list[Read]] = {queue: [] for queue in range(QUEUES)}
        self.open_of: dict[str, int] = {}  # transactional id: its open transaction, as the broker has it
        self.names: dict[int, str] = {}  # of all transactions: their transactional ids
        self.kept = 0
        self.removed = 0
        self.instances: list[Instance] = []
        self.outcomes: set[str] = set()
        self.open(disk)

    def open(self, disk: CrashDisk) -> None:
        self.core = ManualCore(OPTIONS, disk, STORE)
        self.core.is_stalled = True
        self.topic = self.core.topic("orders", QUEUES)
        self.core.settle()
        self.note()

    def note(self) -> None:
        self.pictures[self.core.store.next_position] = picture(self.core)

    # -- Steps

    def run(self, steps: int) -> None:
        choices = [
            (self.act, 60), (self.write, 12), (self.sync, 14), (self.read_all, 8), (self.start_instance, 3),
            (self.pass_time, 3), (self.plain_write, 4), (self.keep_house, 2),
        ]  # fmt: skip
        for _ in range(steps):
            self.rng.choices([step for step, _ in choices], [weight for _, weight in choices])[0]()
            self.note()

    def write(self) -> None:
        self.core.store.write()

    def sync(self) -> None:
        self.core.settle()

    def start_instance(self) -> None:
        name = f"id-{self.rng.randrange(IDS)}"
        self.instances.append(Instance(name, is_version_2=self.rng.random() < 0.5))
        if len(self.instances) > 3 * IDS:
            del self.instances[0]

    def pass_time(self) -> None:
        self.core.clock.pass_ms(self.rng.randrange(TIMEOUT_MS // 2))
        self.core.transactions.expire(self.core.clock.now_ms())
        for name, number in [*self.open_of.items()]:
            found = self.core.transactions.coordinator.get(name)
            assert found is not None
            if found.state is not State.ONGOING:
                self.ended(name, number, is_commit=False)
                self.outcomes.add("timeout")

    def plain_write(self) -> None:
        self.append(batch([b"plain"]), self.rng.randrange(QUEUES), OUTSIDE, "plain", None)

    def keep_house(self) -> None:
        store, rng = self.core.store, self.rng
        if rng.random() < 0.5:
            store.checkpoint(0)
        for queue in self.topic.queues:
            if queue.visible_end - queue.start_offset > 20:
                store.retention.trim(queue, queue.visible_end - rng.randrange(20), self.core.clock.now_ms())
        list(self.core.transactions.tidy(self.core.clock.now_ms()))
        self.removed += finished(store.retention.remove_dead_segments())

    # -- What an instance does

    def act(self) -> None:
        waiting = [each for each in self.instances if each.retry is None and not each.is_over]
        if not waiting:
            return
        instance = self.rng.choice(waiting)
        if instance.producer is None:
            self.ask(instance, lambda: self.init(instance))
        elif instance.transaction is None:
            instance.transaction = len(self.names) + 1
            self.names[instance.transaction] = instance.name
        else:
            queue, share = self.rng.randrange(QUEUES), self.rng.random()
            if share < 0.65:
                text = f"{instance.name}/{instance.transaction}/{len(self.changes)}"
                self.ask(instance, lambda: self.produce(instance, queue, text))
            elif share < 0.75:
                offset = len(self.changes)
                self.ask(instance, lambda: self.commit_position(instance, queue, offset))
            else:
                is_commit = self.rng.random() < 0.6
                self.ask(instance, lambda: self.end(instance, is_commit))

    def ask(self, instance: Instance, request: "Request") -> None:
        """Send a request; it may be sent again after a crash, unless its answer came before."""
        try:
            promise, learn = request()
        except (TransactionError, ProducerError) as refusal:
            self.refused(instance, refusal)
            return

        def answered(error: StoreError | None) -> None:
            assert error is None
            instance.retry = None
            self.kept = max(self.kept, promise.end)
            learn()

        instance.retry = request
        self.core.store.when(promise, answered)

    def refused(self, instance: Instance, refusal: Exception) -> None:
        found = self.core.transactions.coordinator.get(instance.name)
        assert found is not None
        is_newest = found.producer == instance.producer
        assert not is_newest or instance.transaction not in self.open_of.values(), f"{instance}: {refusal}"
        instance.is_over, instance.retry = True, None
        self.outcomes.add(type(refusal).__name__)

    def init(self, instance: Instance) -> tuple[Promise, Callable[[], None]]:
        number = self.open_of.get(instance.name)
        producer, promise = self.core.transactions.init(instance.name, TIMEOUT_MS, None, self.core.clock.now_ms())
        if number is not None:
            self.ended(instance.name, number, is_commit=False)
        return promise, lambda: instance.goes_on(producer)

    def produce(self, instance: Instance, queue: int, text: str) -> tuple[Promise, Callable[[], None]]:
        assert instance.producer is not None
        assert instance.transaction is not None
        core, key = self.core, self.topic.key(queue)
        if not instance.is_version_2 and key not in instance.added:
            core.transactions.add_queues(instance.name, instance.producer, [key], core.clock.now_ms())
            self.open_of[instance.name] = instance.transaction
            self.changed(instance.transaction)
            self.note()
        sequence = instance.sequences.get(queue, 0)
        frame = batch([text.encode()], producer=(*instance.producer, sequence), is_transactional=True)
        promise = self.append(frame, queue, instance.transaction, text, instance)

        def learn() -> None:
            instance.added.add(key)
            instance.sequences[queue] = sequence + 1

        return promise, learn

    def append(self, frame: bytes, queue: int, transaction: int, text: str, instance: Instance | None) -> Promise:
        core = self.core
        end = self.topic.queues[queue].end_offset
        published = core.publisher.publish_batch(
            self.topic,
            queue,
            frame,
            core.clock.now_ms(),
            BatchOrigin(
                transactional_id=instance.name if instance is not None else None,
                adds_partition=instance is not None and instance.is_version_2,
            ),
        )
        if published.base_offset == end:  # Not a repetition.
            self.changed(transaction, wrote=(queue, end, text))
            if instance is not None:
                self.open_of[instance.name] = transaction
        return published.promise

    def commit_position(self, instance: Instance, queue: int, offset: int) -> tuple[Promise, Callable[[], None]]:
        assert instance.producer is not None
        assert instance.transaction is not None
        core, position = self.core, CommittedOffset(self.topic.key(queue), offset)
        if not instance.is_version_2:
            core.transactions.add_group(instance.name, instance.producer, GROUP, core.clock.now_ms())
            self.open_of[instance.name] = instance.transaction
            self.changed(instance.transaction)
            self.note()
        promise = core.transactions.add_offsets(
            instance.name, instance.producer, GROUP, [position], core.clock.now_ms(), adds_itself=instance.is_version_2
        )
        self.changed(instance.transaction, position=offset)
        self.open_of[instance.name] = instance.transaction
        return promise, lambda: None

    def end(self, instance: Instance, is_commit: bool) -> tuple[Promise, Callable[[], None]]:
        number, core = instance.transaction, self.core
        assert instance.producer is not None
        assert number is not None
        producer = instance.producer
        if instance.name not in self.open_of and not self.is_ended(number):  # Clients do not end what they never began.
            return core.state_log.barrier(), lambda: instance.goes_on(producer)
        next_producer, promise = core.transactions.end(
            instance.name,
            instance.producer,
            core.clock.now_ms(),
            is_commit=is_commit,
            renews=instance.is_version_2,
        )
        if instance.name in self.open_of:
            assert self.open_of[instance.name] == number
            self.ended(instance.name, number, is_commit=is_commit)
            self.outcomes.add("commit" if is_commit else "abort")
        return promise, lambda: instance.goes_on(next_producer)

    def is_ended(self, number: int) -> bool:
        return any(each.transaction == number and each.is_commit is not None for each in self.changes)

    def ended(self, name: str, number: int, *, is_commit: bool) -> None:
        del self.open_of[name]
        self.changed(number, is_commit=is_commit)

    def changed(self, transaction: int, **what: Any) -> None:
        self.changes.append(Change(self.core.store.next_position, transaction, **what))

    # -- Readers

    def read_all(self) -> None:
        for number, queue in enumerate(self.topic.queues):
            seen = committed_for_kafka(self.core, self.topic, queue)
            assert committed_for_rocketmq(self.core, self.topic, queue) == seen
            before = [each for each in self.read[number] if each[0] >= queue.start_offset]
            assert seen[: len(before)] == before, "what was read once has changed"
            self.read[number] = seen

    # -- What a crash leaves

    def crash(self, disk: CrashDisk) -> None:
        """Go on with what is left: the model forgets what the log has lost, the clients ask again."""
        self.open(disk)
        end = self.core.store.recovery.end_position
        self.changes = [change for change in self.changes if change.end <= end]
        ended = {change.transaction for change in self.changes if change.is_commit is not None}
        begun = {change.transaction for change in self.changes} - ended - {OUTSIDE}
        self.open_of = {self.names[number]: number for number in begun}
        for instance in self.instances:
            retry, instance.retry = instance.retry, None
            if retry is not None and self.rng.random() < 0.6:
                self.ask(instance, retry)
                self.note()
            elif retry is not None:
                instance.is_over = True  # It went with the broker.
        self.instances = [each for each in self.instances if not each.is_over]
        for name, number in [*self.open_of.items()]:
            if not any(each.name == name and each.transaction == number for each in self.instances):
                self.instances.append(Instance(name, is_version_2=True))

    def check(self, disk: CrashDisk) -> None:
        """Compare what is left of the disk with what had been decided up to there."""
        core = ManualCore(OPTIONS, disk, STORE)
        end = core.store.recovery.end_position
        assert end >= self.kept, "what was answered is lost"
        if end in self.pictures:  # The run's own first unit is in none.
            assert picture(core) == self.pictures[end]
        topic = core.topics.get("orders")
        if topic is None:
            return
        done = [change for change in self.changes if change.end <= end]
        for number, queue in enumerate(topic.queues):
            expected = committed_by(done, number, queue.start_offset)
            assert committed_for_kafka(core, topic, queue) == expected
            assert committed_for_rocketmq(core, topic, queue) == expected
            read = [each for each in self.read[number] if each[0] >= queue.start_offset]
            from_there = [each for each in expected if read and each[0] >= read[0][0]]
            assert from_there[: len(read)] == read, "what was read once is lost"
        committed = {change.transaction for change in done if change.is_commit}
        positions = {each.position for each in done if each.position is not None and each.transaction in committed}
        kept = {position.offset for position in core.group_offsets.all_of(GROUP).values()}
        assert kept <= positions, "a position of a transaction that was not committed"
        assert bool(kept) == bool(positions)


def committed_by(done: list[Change], queue: int, start_offset: int) -> list[Read]:
    """What a reader of committed records has to see, by what was written and decided."""
    verdicts = {change.transaction: change.is_commit for change in done if change.is_commit is not None}
    verdicts[OUTSIDE] = True
    found: list[Read] = []
    for change in done:
        if change.wrote is None or change.wrote[0] != queue:
            continue
        if change.transaction not in verdicts:
            break  # The oldest open one: all behind it waits.
        if verdicts[change.transaction] and change.wrote[1] >= start_offset:
            found.append(change.wrote[1:])
    return found


def committed_for_kafka(core: ManualCore, topic: Topic, queue: Queue) -> list[Read]:
    """Read as Kafka's clients do: up to the last stable offset, dropping what the list of aborted ones says."""
    end = core.isolation.stable_end(queue)
    isolation = core.isolation.get(queue.key)
    found: list[Read] = []
    offset = queue.start_offset
    while offset < end:
        buffers: Any = now(core.reader.read_for_kafka(queue, topic, offset, 400, end))
        until = record_batch.read_header(buffers[-1]).last_offset + 1
        pending = sorted(isolation.aborted_between(offset, until), key=lambda each: each[1]) if isolation else []
        aborted: set[int] = set()
        for buffer in buffers:
            header = record_batch.read_header(buffer)
            while pending and pending[0][1] <= header.last_offset:
                aborted.add(pending.pop(0)[0])
            if header.is_control:
                if not marker.is_commit(buffer):
                    aborted.discard(header.producer_id)
            elif not (header.is_transactional and header.producer_id in aborted):
                records = record_reader.records(buffer, 1 << 20)
                found += [(each.offset, (each.value or b"").decode()) for each in records if each.offset >= offset]
        offset = until
    return found


def committed_for_rocketmq(core: ManualCore, topic: Topic, queue: Queue) -> list[Read]:
    end = core.isolation.stable_end(queue)
    found: list[Read] = []
    offset = queue.start_offset
    while offset < end:
        records: Any = now(core.reader.read_for_rocketmq(queue, topic, offset, 3, 1000, end))
        assert records.next_offset > offset, "a pull that goes nowhere"
        for buffer in records.buffers:
            read = message.decode(bytes(buffer))
            found.append((read.queue_offset, bytes(read.body).decode()))
        offset = records.next_offset
    return found


def picture(core: ManualCore) -> object:
    """The state of all transactions, in values that compare; without the parts that no reader can see."""
    queues = {}
    for key, isolation in core.isolation:
        start = core.store.queue(key).start_offset
        aborted = [each for each in isolation.aborted if each.marker_offset >= start]
        if aborted or isolation.open:
            queues[key] = ([*isolation.open], aborted)
    return (
        {
            each.name: (
                each.producer, each.previous, each.timeout_ms, each.started_ms, sorted(each.keys),
                {group: dict(offsets) for group, offsets in each.offsets.items()},
                each.state,
            )
            for each in core.transactions.coordinator
        },
        queues,
        {name: (each.epoch, each.next_sequence, [*each.batches]) for name, each in core.producers._windows.items()},
        dict(core.group_offsets.all_of(GROUP)),
    )  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize(("seed", "stride", "steps"), [(0, 4, 1100), (1, 9, 1500), (2, 9, 1500)])
def test_power_cut_at_any_operation_leaves_each_transaction_whole_or_absent(
    seed: int, stride: int, steps: int, rng: Random
) -> None:
    cut_at_each(seed, steps, stride, rng.randrange(stride))


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(12))
def test_power_cut_at_each_operation_of_many_histories(seed: int) -> None:
    cut_at_each(seed, 1500)


def cut_at_each(seed: int, steps: int, stride: int = 1, phase: int = 0) -> None:
    disk = EachCut(stride, phase=phase)
    history = History(seed, disk)
    disk.check = history.check
    history.run(steps)
    assert disk.operations > 500
    assert history.removed > 3, "segments, and with them the snapshot's past, were to go on the way"
    wanted = {"commit", "abort", "timeout", "ProducerFenced", "InvalidProducerEpoch"}
    assert wanted <= history.outcomes, history.outcomes


@pytest.mark.slow
@pytest.mark.parametrize("seed", first_in_unit(range(6), 2))
def test_history_with_crashes_commits_once_and_in_order(seed: int) -> None:
    history = History(seed, CrashDisk())
    for crash in range(8):
        history.run(120)
        disk: Any = history.core.disk
        history.check(disk.after_power_cut(crash))
        history.crash(disk.after_kill() if crash % 2 else disk.after_power_cut(crash))
        history.read_all()
