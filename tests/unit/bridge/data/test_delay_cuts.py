"""A power cut at any moment loses no delayed message, delivers none twice and none early.

A long random history of delayed messages, deliveries, cancellations, changes of due times, checkpoints and removed
segments runs on a disk in memory. Messages due in more than a tenth of a second go to sorted tables, which are
compacted. At each operation of the disk, a broker recovers from a state in which a power cut may leave the disk, and
delivers all messages. The test compares the queue with the answers from before the cut.
"""

from collections import Counter
from random import Random

import pytest

from duolog.bridge.config import DelayOptions, Options, TopicsOptions
from duolog.delay.cancellations import TimerOutcome
from duolog.protocol.rocketmq.messages import message as rocketmq_message
from duolog.protocol.rocketmq.messages import properties as names
from duolog.store.entry import Promise
from duolog.store.errors import StoreError
from duolog.store.options import StoreOptions
from tests.kit.core import ManualCore
from tests.kit.disk import CrashDisk, EachCut
from tests.kit.slices import finished
from tests.unit.bridge.batches import batch
from tests.unit.bridge.data.test_far_timers import is_behind
from tests.unit.bridge.publish_bench import NOW, message, now

SMALL = StoreOptions(
    segment_bytes=1 << 15, reserve_bytes=4096, tail_bytes=1 << 14, checkpoint_bytes=1 << 14, open_segments_max=4
)
NEAR_MS = 100
FEW = Options(topics=TopicsOptions(queues=1), delay=DelayOptions(near_ms=NEAR_MS))
STEPS = 1_000
STRIDE = 4  # `make soak` cuts the power at each operation.
FOREVER_MS = NOW + 10**12


class History:
    """Random steps against a core, and the answers to them."""

    def __init__(self, seed: int, disk: EachCut) -> None:
        self.rng = Random(seed)
        self.core = ManualCore(FEW, disk, SMALL)
        self.core.topic("orders", 1)
        self.core.settle()
        self.due: dict[bytes, int] = {}  # Due times by body, as of the last durable change.
        self.timers: dict[bytes, str] = {}
        self.kept: set[bytes] = set()  # Messages whose send was answered.
        self.cancelled: set[bytes] = set()  # Messages whose cancellation was answered.
        self.touched: set[bytes] = set()  # Messages with a command that may not have been answered.
        self.seen = 0  # The offset up to which a reader has read.
        self.archived: dict[int, tuple[bytes, int]] = {}  # Messages that retention removed.
        self.removed = 0
        self.spilled = self.merged = self.passed = 0

    # -- Steps

    def run(self) -> None:
        steps = [
            (self.send, 10), (self.send_batch, 3), (self.cancel, 4), (self.move, 3), (self.deliver, 20),
            (self.settle, 10), (self.write, 6), (self.pause_or_resume, 3), (self.move_far, 40),
            (self.checkpoint, 2), (self.remove, 2), (self.pass_time, 10),
        ]  # fmt: skip
        for _ in range(STEPS):
            self.rng.choices([step for step, _ in steps], [weight for _, weight in steps])[0]()
            self.seen = max(self.seen, self.queue.visible_end)

    @property
    def queue(self):
        return self.core.topic("orders", 1).queues[0]

    def now_ms(self) -> int:
        return self.core.clock.now_ms()

    def when(self, promise: Promise, done) -> None:
        self.core.store.when(promise, lambda error: done())

    def new_body(self, due_ms: int) -> bytes:
        body = b"%d-%s" % (len(self.due), bytes(self.rng.randrange(1500)))
        self.due[body] = due_ms
        return body

    def some_delay(self) -> int:
        return self.rng.choice((5, 40, 300, 3_000, 30_000))

    def send(self) -> None:
        due_ms = self.now_ms() + self.some_delay()
        body = self.new_body(due_ms)
        one = message(body, b"TIMER_DELIVER_MS\x01%d\x02" % due_ms)
        topic = self.core.topic("orders", 1)
        slots, promise = self.core.publisher.publish_messages(topic, 0, [one], self.now_ms())
        self.timers[body] = self.core.delays.commands.text_ids.text_of((due_ms, slots[0].position))
        self.when(promise, lambda: self.kept.add(body))

    def send_batch(self) -> None:
        delay = self.some_delay()
        due_ms = self.now_ms() + delay
        bodies = [self.new_body(due_ms) for _ in range(self.rng.randint(1, 4))]
        sent = batch(bodies, headers=[("TIMER_DELAY_MS", b"%d" % delay)])
        promise = self.core.publisher.publish_batch(self.core.topic("orders", 1), 0, sent, self.now_ms()).promise
        self.when(promise, lambda: self.kept.update(bodies))

    def cancel(self) -> None:
        body = self.any_timer()

        def decide(error: StoreError | None) -> None:
            assert error is None
            outcome, promise, _ = self.core.delays.commands.cancel(self.timers[body], self.now_ms())
            if outcome is TimerOutcome.CANCELLED:
                self.touched.add(body)
                self.when(promise, lambda: self.cancelled.add(body))

        self.core.delays.commands.load(self.timers[body], decide)

    def move(self) -> None:
        body = self.any_timer()
        due_ms = self.now_ms() + self.some_delay()

        def decide(error: StoreError | None) -> None:
            assert error is None
            outcome = self.core.delays.commands.reschedule(self.timers[body], due_ms, self.now_ms()).outcome
            if outcome is TimerOutcome.RESCHEDULED:
                # Until the change is durable, a cut may leave either due time.
                self.due[body] = min(self.due[body], due_ms)

        self.core.delays.commands.load(self.timers[body], decide)

    def any_timer(self) -> bytes:
        if not self.timers:
            self.send()
        return self.rng.choice([*self.timers][-40:])

    def move_far(self) -> None:
        """Run one slice of flushes and reads of tables."""
        before = len(self.core.delays.timers.tree.context.tables.manifest)
        self.core.delays.timers.tree.run(self.now_ms(), self.core.clock.mono_ms())
        now = len(self.core.delays.timers.tree.context.tables.manifest)
        self.spilled += now > before
        self.merged += now < before - 2
        self.passed += is_behind(self.core.delays.timers.tree)

    def pass_time(self) -> None:
        self.core.clock.pass_ms(self.rng.choice((1, 10, 200, 5_000)))

    def deliver(self) -> None:
        self.core.delays.run(self.now_ms(), self.core.clock.mono_ms())

    def pause_or_resume(self) -> None:
        """Let due messages wait for a paused topic, over checkpoints and in tables."""
        delays, topic = self.core.delays, self.core.topic("orders", 1)
        change = delays.resume if delays.is_paused(topic) else delays.pause
        change(topic, self.now_ms())

    def write(self) -> None:
        self.core.store.write()

    def settle(self) -> None:
        self.core.settle()

    def checkpoint(self) -> None:
        if self.core.store.checkpoint_due(self.core.clock.mono_ms()):
            self.core.store.checkpoint(self.core.clock.mono_ms())

    def remove(self) -> None:
        """Let retention remove all records that were read, and the dead segments."""
        for topic in self.core.topics.all():
            for queue in topic.queues:
                limit = self.core.delays.first_kept(queue)
                start = queue.visible_end if limit is None else min(limit, queue.visible_end)
                if topic.name == "orders":
                    start = queue.visible_end - self.rng.randrange(10)
                    self.archived.update(delivered(self.core))
                if start > queue.start_offset:
                    self.core.store.retention.trim(queue, start, self.now_ms())
        self.removed += finished(self.core.store.retention.remove_dead_segments())
        self.core.settle()
        self.checkpoint()

    # -- Invariants

    def check(self, disk: CrashDisk) -> None:
        core = ManualCore(FEW, disk, SMALL, self.now_ms())
        topic = core.topics.get("orders")
        assert topic is not None
        found = self.archived | delivered(core)
        assert len(found) >= self.seen, "a record that a reader saw is missing"
        for body, stored_ms in found.values():
            assert stored_ms >= self.due[body], "early"
        pending = len(core.delays.timers)
        core.clock.set_now_ms(FOREVER_MS)
        core.delays.resume(topic, FOREVER_MS)
        while len(core.delays.timers):
            core.clock.pass_ms(1_000)
            core.delays.timers.tree.run(FOREVER_MS, core.clock.mono_ms())
            core.delays.run(FOREVER_MS, core.clock.mono_ms())
            core.settle()
        everything = Counter(body for body, _ in (found | delivered(core)).values())
        assert len(everything) == everything.total() == len(found) + pending, "delivered twice"
        missing = self.kept - everything.keys() - self.touched
        assert not missing, f"lost: {[body[:10] for body in missing]}"
        assert not self.cancelled & everything.keys(), "cancelled, and delivered"


def delivered(core: ManualCore) -> dict[int, tuple[bytes, int]]:
    """Return the bodies in the queue by offset, each with its store time."""
    topic = core.topic("orders", 1)
    queue = topic.queues[0]
    records = now(core.reader.read_for_rocketmq(queue, topic, queue.start_offset, 1 << 20, 1 << 30, queue.visible_end))
    messages = [rocketmq_message.decode(buffer) for buffer in records.buffers]
    for each in messages:
        assert names.parse(each.properties).get("REAL_TOPIC") is None
    return {each.queue_offset: (bytes(each.body), each.store_ms) for each in messages}


def cut_at_each(seed: int, stride: int = 1, phase: int = 0) -> EachCut:
    disk = EachCut(stride, phase=phase)
    history = History(seed, disk)
    disk.check = history.check
    history.run()
    assert history.removed > 2, "segments were to be removed on the way"
    assert history.cancelled
    assert history.spilled > 10
    assert history.merged
    assert history.passed > 10
    assert history.seen > 80
    return disk


@pytest.mark.slow
def test_power_cut_at_any_operation_loses_no_delayed_message_and_delivers_none_twice(rng: Random) -> None:
    disk = cut_at_each(0, STRIDE, rng.randrange(STRIDE))
    assert disk.checks > 500 // STRIDE


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(60))
def test_power_cut_at_any_operation_of_many_histories(seed: int) -> None:
    cut_at_each(seed)
