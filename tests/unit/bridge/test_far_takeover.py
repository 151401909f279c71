"""Far delayed messages of a stream: none is lost, early or delivered twice, whichever broker owns the stream.

Messages that are due in more than a second are in sorted tables. The owner is killed, with and without its disk, or cut
off from the store, which is slow and loses answers. Its successor has an empty disk, or was a standby. A model knows
what was acknowledged under `shared`, and compares.
"""

import asyncio
from collections import Counter
from collections.abc import Callable, Coroutine
from contextlib import suppress
from random import Random

import pytest

from duolog.bridge.config import DelayOptions, Options, StoreSection, TopicsOptions
from duolog.delay.cancellations import TimerOutcome
from duolog.delay.tables.table_format import TIMERS_DIRECTORY
from duolog.delay.tree.tree import TimerTree
from duolog.protocol.rocketmq.messages import message as rocketmq_message
from duolog.protocol.rocketmq.messages.message import Message
from duolog.store.entry import SHARED, Promise
from duolog.store.errors import StoreError, WritingEnded
from duolog.store.options import StoreOptions
from duolog.store.shared.options import SharedOptions
from duolog.store.shared.requests import RequestsStopped
from duolog.store.shared.wal.wal_object import DamagedObject
from tests.kit.clock import ManualClock
from tests.kit.disk import CrashDisk
from tests.kit.loop import VirtualLoop, run
from tests.kit.object_store import SimulatedBucket
from tests.kit.rows import first_in_unit
from tests.kit.shared_core import SharedCore
from tests.kit.slices import finished
from tests.unit.bridge.publish_bench import now

NEAR_MS = 1_000
OPTIONS = Options(
    store=StoreSection(flush="shared"), topics=TopicsOptions(queues=1), delay=DelayOptions(near_ms=NEAR_MS)
)
STORE = StoreOptions(
    flush="shared",
    segment_bytes=1 << 15,
    reserve_bytes=0,
    tail_bytes=1 << 14,
    checkpoint_bytes=1 << 14,
    spare_bytes=0,
    is_shared=True,
)
SHARED_LOG = SharedOptions(
    object_bytes=1 << 13, segment_bytes=1 << 14, compact_slots=20, kept_slots=20, state_interval_ms=500
)
TURN_S = 0.02


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("duolog.store.shared.files.named_files.PIECE_BYTES", 1500)


class FarCore(SharedCore):
    """A broker that runs the duties of delayed messages while it serves."""

    is_serving = False
    looked_offset = 0  # `delivered` has the messages below this offset.

    def __init__(self, clock: ManualClock, bucket: SimulatedBucket, name: str, disk: CrashDisk | None = None) -> None:
        super().__init__(clock, bucket, name, disk, OPTIONS, STORE, SHARED_LOG)
        self.delivered = Counter[bytes]()
        self.living = asyncio.create_task(self._live())

    @property
    def tree(self) -> TimerTree:
        return self.delays.timers.tree

    @property
    def numbers(self) -> list[int]:
        """The numbers of the tables that the manifest names."""
        return [entry.number for entry in self.tree.context.tables.manifest]

    async def _live(self) -> None:
        await self.join()
        await self.own()
        self.is_serving = True
        while True:
            await asyncio.sleep(TURN_S)
            now_ms, mono_ms = self.clock.now_ms(), self.clock.mono_ms()
            if self.replica.may_answer(mono_ms):
                with suppress(WritingEnded):
                    self.tree.run(now_ms, mono_ms)
                    self.delays.run(now_ms, mono_ms)
                    self.settle()

    def kill(self) -> None:
        self.living.cancel()
        self.tree.context.is_closed = True
        self.is_serving = False
        if hasattr(self, "replica"):
            super().kill()

    async def stop(self) -> None:
        """Stop in order, so that the next broker takes over at once."""
        self.living.cancel()
        self.settle()
        await self.replica.end()
        self.kill()


class World:
    """The brokers of one stream, and a model of what was acknowledged."""

    def __init__(self, seed: int, clock: ManualClock) -> None:
        self.random, self.clock, self.bucket = Random(seed), clock, SimulatedBucket(seed)
        self.brokers: list[FarCore] = []
        self.started = self.sent = 0
        self.due: dict[bytes, int] = {}  # The earliest due time that a message may have, by body.
        self.ids: dict[bytes, str] = {}
        self.kept: set[bytes] = set()  # Messages whose send was acknowledged.
        self.cancelled: set[bytes] = set()  # Messages whose cancellation was acknowledged.
        self.maybe_cancelled: set[bytes] = set()
        self.tables_max = self.removed = 0

    def start(self, disk: CrashDisk | None = None) -> FarCore:
        self.started += 1
        broker = FarCore(self.clock, self.bucket, f"broker {self.started}", disk)
        self.brokers.append(broker)
        return broker

    async def owner(self) -> FarCore:
        """Wait until a broker serves."""
        for _ in range(3_000):
            serving = [
                each for each in self.brokers if each.is_serving and each.replica.may_answer(self.clock.mono_ms())
            ]
            if serving:
                assert len(serving) == 1
                return serving[0]
            for each in [*self.brokers]:
                if each.living.done():
                    with suppress(RequestsStopped):  # It fell behind, or was deposed: it begins again.
                        await each.living
                    self.brokers.remove(each)
                    self.start(each.disk.after_kill())
            await asyncio.sleep(TURN_S)
        raise AssertionError("no broker serves")

    # -- Requests

    async def send(self, delay_ms: int = 0) -> None:
        owner, now_ms = await self.owner(), self.clock.now_ms()
        due_ms = now_ms + (delay_ms or self.random.choice((300, 3_000, 8_000, 40_000)) + self.random.randrange(500))
        body = b"%d." % self.sent + bytes(self.random.randrange(300))
        self.sent += 1
        self.due[body] = due_ms
        properties = b"TIMER_DELIVER_MS\x01%d\x02" % due_ms
        messages = [Message("", body, properties, born_ms=now_ms)]
        slots, promise = owner.publisher.publish_messages(owner.topics.get("orders"), 0, messages, now_ms)  # type: ignore[arg-type]
        self.ids[body] = owner.delays.commands.text_ids.text_of((due_ms, slots[0].position))
        self._when(owner, promise, lambda: self.kept.add(body))

    async def cancel(self) -> None:
        owner, body = await self.owner(), self._some()

        def decide(error: StoreError | None) -> None:
            if error is None and owner.is_serving:
                outcome, promise, _ = owner.delays.commands.cancel(self.ids[body], self.clock.now_ms())
                if outcome is TimerOutcome.CANCELLED:
                    self.maybe_cancelled.add(body)
                    self._when(owner, promise, lambda: self.cancelled.add(body))

        owner.delays.commands.load(self.ids[body], decide)

    async def reschedule(self) -> None:
        owner, body = await self.owner(), self._some()
        due_ms = self.clock.now_ms() + self.random.choice((500, 5_000, 30_000))

        def decide(error: StoreError | None) -> None:
            if error is None and owner.is_serving:
                outcome = owner.delays.commands.reschedule(self.ids[body], due_ms, self.clock.now_ms()).outcome
                if outcome is TimerOutcome.RESCHEDULED:
                    self.due[body] = min(self.due[body], due_ms)

        owner.delays.commands.load(self.ids[body], decide)

    def _some(self) -> bytes:
        return self.random.choice([*self.ids][-150:])

    def _when(self, owner: FarCore, promise: Promise, then: Callable[[], object]) -> None:
        def done(error: StoreError | None) -> None:
            if error is None and owner.replica.may_answer(self.clock.mono_ms()):
                then()

        assert promise.level == SHARED
        owner.store.when(promise, done)
        owner.settle()

    async def remove(self) -> None:
        """Let retention remove what is pending no more, and the dead segments."""
        owner = await self.owner()
        for topic in owner.topics.all():
            for queue in topic.queues if topic.name != "orders" else ():
                limit = owner.delays.first_kept(queue)
                start = queue.visible_end if limit is None else min(limit, queue.visible_end)
                if start > queue.start_offset:
                    owner.store.retention.trim(queue, start, self.clock.now_ms())
        self.removed += finished(owner.store.retention.remove_dead_segments())
        owner.settle()

    # -- Faults

    async def lose_owner(self) -> None:
        """End the owner in one of several ways. Its successor is a standby, or starts with an empty disk."""
        owner = await self.owner()
        if self.random.random() < 0.3:
            self.start()
            await asyncio.sleep(self.random.choice((0.1, 3)))
        way = self.random.randrange(4)
        if way == 0:
            owner.objects.faults.is_cut = True
            self.start()
            await asyncio.sleep(8)
            owner.objects.faults.is_cut = False
            await asyncio.sleep(2)
            assert not owner.replica.may_answer(self.clock.mono_ms())
            owner.kill()
        elif way == 1:
            await owner.stop()
        else:
            owner.kill()
        self.brokers.remove(owner)
        if way == 2 or not self.brokers:
            self.start(owner.disk.after_kill() if self.random.random() < 0.5 else None)
        await self.owner()

    # -- The history

    async def begin(self) -> FarCore:
        """Start the first owner."""
        self.start()
        owner = await self.owner()
        owner.topics.create("orders", 1, {"flush.mode": "shared"}, self.clock.now_ms())
        owner.settle()
        return owner

    async def run(self, steps: int) -> None:
        await self.begin()
        for _ in range(steps):
            await asyncio.sleep(self.random.choice((0.001, 0.01, 0.1, 0.4)))
            for each in self.brokers:
                faults = each.objects.faults
                faults.lost_answer = faults.busy = faults.repeated = self.random.choice((0, 0.05))
            step = self.random.random()
            if step < 0.012:
                await self.lose_owner()
            elif step < 0.05:
                await self.remove()
            elif step < 0.7 or not self.ids:
                for _ in range(self.random.randrange(1, 12)):
                    await self.send()
            else:
                await (self.cancel() if step < 0.9 else self.reschedule())
            self.look()

    def look(self) -> None:
        for each in self.brokers:
            if each.is_serving:
                self.tables_max = max(self.tables_max, len(each.numbers))
                self.check_bodies(each)

    def check_bodies(self, owner: FarCore) -> Counter[bytes]:
        """No message is delivered early or twice, or although its cancellation was acknowledged."""
        found = owner.delivered
        for each in new_messages_of(owner):
            body = bytes(each.body)
            found[body] += 1
            assert found[body] == 1
            assert each.store_ms >= self.due[body]
        assert not self.cancelled & found.keys()
        return found

    async def check_all(self) -> None:
        """Wait until all messages are due; none is lost."""
        await asyncio.sleep(60)
        owner = await self.owner()
        owner.looked_offset, owner.delivered = 0, Counter()  # The whole queue is read once more.
        found = self.check_bodies(owner)
        lost = self.kept - found.keys() - self.maybe_cancelled
        assert not lost, f"{len(lost)} of {len(self.kept)} messages are lost"
        assert not len(owner.delays.timers)

    def table_keys(self) -> list[str]:
        return [key for key in self.bucket.objects if key.startswith(f"{TIMERS_DIRECTORY}/")]

    def check_objects(self, owner: FarCore) -> None:
        """The bucket has what the manifest names, and no other table."""
        named = {entry.number: entry.size for entry in owner.tree.context.tables.manifest}
        stored: Counter[int] = Counter()
        for key in self.table_keys():
            stored[int(key.split("/")[1].partition(".")[0])] += len(self.bucket.objects[key])
        assert stored == named

    def kill_all(self) -> None:
        for each in self.brokers:
            each.kill()


def new_messages_of(core: FarCore) -> list[Message]:
    """Return the messages of the queue that were not returned before."""
    topic = core.topics.get("orders")
    assert topic is not None
    queue = topic.queues[0]
    assert queue.start_offset == 0
    if core.looked_offset == queue.visible_end:
        return []
    records = now(core.reader.read_for_rocketmq(queue, topic, core.looked_offset, 1 << 20, 1 << 30, queue.visible_end))
    core.looked_offset = queue.visible_end
    return [rocketmq_message.decode(buffer) for buffer in records.buffers]


def in_world(seed: int, main: Callable[[World], Coroutine[object, object, None]]) -> None:
    clock = ManualClock()

    async def checked() -> None:
        world = World(seed, clock)
        try:
            await main(world)
        finally:
            world.kill_all()

    run(checked(), clock)


# -- One takeover


async def owner_with_table(world: World, delay_ms: int = 40_000) -> FarCore:
    """Return an owner with 20 messages in a sorted table, whose objects are stored."""
    owner = await world.begin()
    for _ in range(20):
        await world.send(delay_ms)
    await asyncio.sleep(3)
    assert len(owner.numbers) == 1
    assert len(owner.tree) == 20
    return owner


@pytest.mark.slow
def test_a_broker_with_an_empty_disk_delivers_far_messages_on_time() -> None:
    async def main(world: World) -> None:
        owner = await owner_with_table(world)
        owner.kill()
        world.brokers = []
        world.start()
        successor = await world.owner()
        assert successor.numbers == owner.numbers
        assert (len(successor.tree), len(successor.delays.timers)) == (20, 20)
        world.check_objects(successor)
        await world.check_all()
        await asyncio.sleep(20)
        assert successor.numbers == []
        world.check_objects(successor)

    in_world(1, main)


@pytest.mark.slow
def test_the_log_need_not_keep_what_a_table_has() -> None:
    async def main(world: World) -> None:
        owner = await owner_with_table(world, 80_000)
        assert owner.delays.timers.first_kept() is None
        noise, _ = owner.topics.create("noise", 1, {}, world.clock.now_ms())
        for number in range(140):
            size = 4_000 if number < 60 else 10
            message = Message("", bytes(size), b"", born_ms=world.clock.now_ms())
            owner.publisher.publish_messages(noise, 0, [message], world.clock.now_ms())
            owner.settle()
            await asyncio.sleep(0.15)
            if number < 60:
                await world.remove()
        assert world.removed
        assert "snapshot" in {key.partition("/")[0] for key in world.bucket.objects}
        owner.kill()
        world.brokers = []
        world.start()
        assert len((await world.owner()).tree) == 20
        await world.check_all()

    in_world(2, main)


@pytest.mark.slow
def test_a_cancelled_message_stays_cancelled_when_only_a_tombstone_says_so() -> None:
    async def main(world: World) -> None:
        owner = await owner_with_table(world)
        for _ in range(5):
            await world.cancel()
        await asyncio.sleep(15)
        assert world.cancelled
        assert not len(owner.tree.deletions)
        assert len(owner.tree) == 20 - len(world.cancelled)
        owner.kill()
        world.brokers = []
        world.start()
        successor = await world.owner()
        assert len(successor.tree) == 20 - len(world.cancelled)
        await world.check_all()

    in_world(3, main)


@pytest.mark.slow
def test_a_standby_downloads_tables_and_removes_those_that_are_named_no_more() -> None:
    async def main(world: World) -> None:
        owner = await owner_with_table(world)
        standby = world.start()
        await asyncio.sleep(3)
        assert set(tables_on(standby.disk)) == {f"{TIMERS_DIRECTORY}/{number:010d}.table" for number in owner.numbers}
        await asyncio.sleep(60)
        assert owner.numbers == []
        assert tables_on(standby.disk) == []

    in_world(4, main)


def tables_on(disk: CrashDisk) -> list[str]:
    return [path for path in disk.paths() if path.startswith(f"{TIMERS_DIRECTORY}/")]


@pytest.mark.slow
def test_a_table_that_is_damaged_on_the_disk_is_downloaded_again() -> None:
    async def main(world: World) -> None:
        owner = await owner_with_table(world)
        await owner.stop()
        world.brokers = []
        disk = owner.disk.after_kill()
        (path,) = tables_on(disk)
        disk.flip(path, len(disk.contents()[path]) - 1)
        world.start(disk)
        assert len((await world.owner()).tree) == 20
        await world.check_all()

    in_world(5, main)


@pytest.mark.slow
@pytest.mark.parametrize("is_missing", [True, False])
def test_a_table_that_the_store_lacks_is_named_and_no_message_is_given_up(is_missing: bool) -> None:
    async def main(world: World) -> None:
        owner = await owner_with_table(world)
        owner.kill()
        world.brokers = []
        key = max(world.table_keys())
        content = world.bucket.objects.pop(key)
        if not is_missing:
            world.bucket.objects[key] = content[:-1] + bytes([content[-1] ^ 1])
        broker = world.start()
        with pytest.raises(DamagedObject, match=f"{TIMERS_DIRECTORY}/{owner.numbers[0]}"):
            await broker.living
        broker.kill()
        world.brokers = []
        world.bucket.objects[key] = content
        world.start()
        await world.owner()
        await world.check_all()

    in_world(6, main)


@pytest.mark.slow
def test_a_deposed_owner_s_table_is_never_named_and_goes() -> None:
    async def main(world: World) -> None:
        owner = await owner_with_table(world)
        for _ in range(20):
            await world.send(40_000)
        before = len(world.table_keys())
        for _ in range(5_000):
            if len(world.table_keys()) > before:
                break
            await asyncio.sleep(0.001)
        assert len(owner.numbers) == 1
        owner.objects.faults.is_cut = True  # Some of the table's pieces are stored.
        successor = world.start()
        await asyncio.sleep(8)
        assert successor.is_serving
        world.check_objects(successor)
        owner.objects.faults.is_cut = False
        await asyncio.sleep(5)
        owner.kill()
        world.brokers.remove(owner)
        await world.check_all()

    in_world(7, main)


@pytest.mark.slow
def test_a_broker_that_was_deposed_before_it_had_its_tables_begins_again() -> None:
    async def main(world: World) -> None:
        owner = await owner_with_table(world, 10_000)
        owner.kill()
        world.brokers = []
        paused = world.start()
        while not (hasattr(paused, "replica") and paused.replica.uploader is not None):
            for path in tables_on(paused.disk):
                paused.disk.remove(path)
            await asyncio.sleep(0.001)
        paused.objects.faults.is_cut = True  # It owns the stream, and has no table.
        successor = world.start()
        await asyncio.sleep(30)
        assert successor.is_serving
        assert world.table_keys() == []
        assert not paused.is_serving
        paused.objects.faults.is_cut = False
        await asyncio.sleep(10)
        with pytest.raises(RequestsStopped):
            await paused.living
        await world.check_all()

    in_world(8, main)


class WatchedDisk(CrashDisk):
    """A disk that knows how often tables are read in the loop, which then waits."""

    def __init__(self) -> None:
        super().__init__()
        self.tables: set[int] = set()
        self.reads_in_thread = self.reads_in_loop = 0
        self.is_in_thread = False

    def open(self, path: str, *, create: bool = False) -> int:
        file = super().open(path, create=create)
        (self.tables.add if path.endswith(".table") else self.tables.discard)(file)
        return file

    def read(self, file: int, size: int, at: int) -> bytes:
        if file in self.tables:
            self.reads_in_thread += self.is_in_thread
            self.reads_in_loop += not self.is_in_thread
        return super().read(file, size, at)

    def run_task(self, task: Callable[[], object]) -> object:
        self.is_in_thread = True
        try:
            return task()
        finally:
            self.is_in_thread = False


@pytest.mark.slow
def test_a_takeover_reads_tables_in_a_thread() -> None:
    async def main(world: World) -> None:
        owner = await owner_with_table(world)
        for _ in range(5):
            await world.cancel()
            await asyncio.sleep(0.5)
        assert len(owner.tree.deletions) > 0, "the log has no tombstones yet"
        owner.kill()
        world.brokers = []
        loop, disk = asyncio.get_running_loop(), WatchedDisk()
        assert isinstance(loop, VirtualLoop)
        loop.run_task = disk.run_task
        successor = world.start(disk)
        assert await world.owner() is successor
        assert len(successor.tree) == 20 - len(world.cancelled)
        assert (disk.reads_in_loop, disk.reads_in_thread > 0) == (0, True)
        await world.check_all()

    in_world(9, main)


# -- Many


@pytest.mark.slow
@pytest.mark.parametrize("seed", first_in_unit(range(4), 1))
def test_no_far_message_is_lost_early_or_delivered_twice(seed: int) -> None:
    whole_history(seed)


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(4, 12))
def test_no_far_message_of_many_histories_is_lost_early_or_delivered_twice(seed: int) -> None:
    whole_history(seed)


def whole_history(seed: int) -> None:
    async def main(world: World) -> None:
        await world.run(400)
        await world.check_all()
        assert world.tables_max > 2
        assert len(world.kept) > 500

    in_world(seed, main)
