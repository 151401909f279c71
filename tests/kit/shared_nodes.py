"""Brokers' logs over a simulated object store, in virtual time: a store with a `Replica`, and nothing else of a broker.

    world = World(seed)
    run(main(world), world.clock)
    node = world.start("a")            # joins, follows, takes over, and appends records while it is the owner
    await world.pass_s(10)
    node.kill()                        # or node.pause(30), node.faults.is_cut = True, node.lose_disk()
    world.check()                      # nothing that was acknowledged under `shared` is lost, and more

A node that owns the stream appends a record every `append_ms`, with a level by chance. The world notes what was
acknowledged and what readers saw, and checks at each acknowledgement that no other node has acknowledged another record
at the same position.
"""

import asyncio
import random
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, TypeVar

from duolog.store.entry import FIRST_FRAME_FORM, SHARED, STATE_FORM, SYNCED, EntrySlot
from duolog.store.errors import StoreError
from duolog.store.index.queue import queue_key
from duolog.store.log.format import UnitHeader, check_unit, entries_of
from duolog.store.objects.errors import ObjectStoreError
from duolog.store.objects.interface import LIST_LIMIT, Content, Creation, ObjectEntry
from duolog.store.options import StoreOptions
from duolog.store.shared.events import Deposed, Event
from duolog.store.shared.options import SharedOptions
from duolog.store.shared.replica import Replica
from duolog.store.shared.requests import RequestsStopped
from duolog.store.shared.segments.manifest import SegmentObject, decode_manifest, manifest_key
from duolog.store.shared.wal.log_cursor import LogCursor, Units
from duolog.store.shared.wal.stream import KEY, decode_stream
from duolog.store.shared.wal.wal_object import key_of
from duolog.store.store import Store, lock_directory
from duolog.store.unit import Frame, StateRecord
from duolog.store.workers import Failure, Inline
from tests.kit.clock import ManualClock
from tests.kit.disk import CrashDisk
from tests.kit.object_store import SimulatedBucket, SimulatedObjects, StoreFaults
from tests.kit.snapshot import Snapshot

T = TypeVar("T")

# A part of the reason of an owner that finds an object of a lower epoch in its slot (`store/shared/wal/slots.py`).
CANNOT_BE = "which cannot be"

SHARED_QUEUE, SYNC_QUEUE = queue_key(1, 0), queue_key(2, 0)
STORE = StoreOptions(
    segment_bytes=1 << 14, tail_bytes=1 << 14, reserve_bytes=0, checkpoint_bytes=1 << 14, spare_bytes=0, is_shared=True
)


class Sums:
    """A replayer whose state depends on every record and every frame: a count and the last positions."""

    def __init__(self) -> None:
        self.records = self.frames = 0
        self.last: dict[str, str] = {}

    def replay_state(self, payload: bytes, slot: EntrySlot) -> None:
        name, _, value = payload.decode().partition("=")
        if name == "counts":
            self.records, self.frames = map(int, value.split(","))
            return
        if name.startswith("last:"):
            self.last[name[5:]] = value
            return
        self.records += 1
        self.last[name] = f"{value}@{slot.position}"

    def replay_frame(self, key: int, slot: EntrySlot, form: int, count: int, frame: memoryview, extra: bytes) -> None:
        self.frames += 1
        self.last[str(key)] = f"{bytes(frame).decode()}@{slot.base_offset}"

    def set_aside(self, kind: str, position: int, what: str, error: Exception) -> None:
        raise error

    def snapshot(self) -> Snapshot:
        last = [f"last:{name}={value}".encode() for name, value in self.last.items()]
        return Snapshot([f"counts={self.records},{self.frames}".encode(), *last])

    @property
    def state(self) -> tuple[int, int, dict[str, str]]:
        return self.records, self.frames, self.last


@dataclass
class Acknowledged:
    """A record that was acknowledged, or that a reader was shown."""

    key: int
    offset: int
    position: int
    body: bytes
    node: str
    mono_ms: int


class World:
    """The bucket, the nodes, and what they have promised."""

    def __init__(self, seed: int, options: SharedOptions | None = None) -> None:
        self.random = random.Random(seed)
        self.clock = ManualClock()
        self.bucket = SimulatedBucket(self.random.randrange(1 << 32))
        self.options = options or SharedOptions(
            object_bytes=1 << 13,
            in_flight_bytes=1 << 15,
            tail_bytes=(0, 1 << 14, 1 << 16)[seed % 3],
            behind_bytes_max=1 << 18,
            segment_bytes=1 << self.random.randrange(12, 18),
            compact_slots=self.random.choice((1, 10, 10_000)),
            kept_slots=self.random.choice((16, 26)),
            state_interval_ms=self.random.choice((100, 500)),
            cleanup_interval_ms=5_000,
            flush_interval_ms=self.random.choice((50, 100)),
        )
        self.nodes: dict[str, Node] = {}
        self.acknowledged: list[Acknowledged] = []
        self.by_position: dict[int, Acknowledged] = {}
        self.violations: list[str] = []
        self.numbers = 0
        self.trims = False  # Whether owners remove old records, by chance.
        self.has_threads = False  # Whether it takes time to prepare units for an upload.
        self.trimmed: dict[int, int] = {}  # Queue key -> an offset below which records may be gone.
        self.make_replica: Callable[[Replica], None] = lambda replica: None  # Plants a bug, in tests of the test.

    def start(self, name: str, faults: StoreFaults | None = None, disk: CrashDisk | None = None) -> "Node":
        """Start a node on the disk that it had, or on the given one."""
        old = self.nodes.get(name)
        disk = disk or (old.disk.after_kill() if old else CrashDisk())
        node = self.nodes[name] = Node(self, name, disk, faults or (old.faults if old else StoreFaults()))
        node.task = asyncio.create_task(node.run())
        return node

    async def pass_s(self, seconds: float) -> None:
        await asyncio.sleep(seconds)
        for node in self.nodes.values():
            if node.task is not None and node.task.done() and not node.task.cancelled():
                await node.task

    @property
    def owners(self) -> list["Node"]:
        """The nodes that would answer now."""
        return [node for node in self.nodes.values() if node.is_serving]

    def note(self, done: Acknowledged) -> None:
        """Note an acknowledgement of level SHARED: at most one node acknowledges at any position, and one record."""
        other = self.by_position.setdefault(done.position, done)
        if other.body != done.body:
            self.violations.append(f"{done} and {other}")
        if [node.name for node in self.owners] != [done.node]:
            self.violations.append(f"{done.node} acknowledges, and these answer: {[node.name for node in self.owners]}")
        self.acknowledged.append(done)

    def state(self) -> tuple[int, int, dict[str, str]]:
        """Return the state that the log in the bucket gives when it is replayed from its start."""
        sums = Sums()
        for header, unit in self.units():
            for entry in entries_of(unit, header.position, header.entry_count):
                slot = EntrySlot(entry.position, entry.base_offset, header.stored_ms)
                if entry.form >= FIRST_FRAME_FORM:
                    sums.replay_frame(entry.key, slot, entry.form, entry.count, entry.frame, b"")
                elif entry.form == STATE_FORM:
                    sums.replay_state(bytes(entry.frame), slot)
        return sums.state

    # -- What the store has

    def log(self) -> dict[tuple[int, int], tuple[int, bytes]]:
        """Read the stream in the bucket; return (queue key, offset) -> (position, body)."""
        found: dict[tuple[int, int], tuple[int, bytes]] = {}
        for header, unit in self.units():
            for entry in entries_of(unit, header.position, header.entry_count):
                if entry.form >= FIRST_FRAME_FORM:
                    place = (entry.key, entry.base_offset)
                    assert place not in found, f"{place} twice"
                    found[place] = (entry.position, bytes(entry.frame))
        return found

    def units(self) -> Iterator[tuple[UnitHeader, memoryview]]:
        """Yield the units of the stream in the bucket."""
        cursor, number = LogCursor.at_start(decode_stream(self.bucket.objects[KEY])), 0
        segments: list[SegmentObject] = []
        while (data := self.bucket.objects.get(manifest_key(number))) is not None:
            manifest = decode_manifest(data, number)
            segments = [each for each in (*segments, *manifest.segments) if each.start not in manifest.removed]
            cursor, number = LogCursor(manifest.floor.owner, manifest.floor.tail), number + 1
        for segment in segments:
            yield from _units_of(memoryview(self.bucket.objects[segment.key]), segment.start)
        while (data := self.bucket.objects.get(key_of(cursor.sequence))) is not None:
            outcome = cursor.take(data)
            if isinstance(outcome, Units):
                yield from _units_of(outcome.payload, outcome.first)

    def check(self) -> None:
        """Everything that was acknowledged under `shared` is in the store, once, at its offset."""
        assert not self.violations, self.violations
        found = self.log()
        for done in self.acknowledged:
            if done.offset < self.trimmed.get(done.key, 0):
                continue
            assert found.get((done.key, done.offset)) == (done.position, done.body), f"{done} is lost"


def _units_of(units: memoryview, position: int) -> Iterator[tuple[UnitHeader, memoryview]]:
    at = 0
    while at < len(units):
        header = check_unit(units, at, position + at)
        yield header, units[at : at + header.size]
        at += header.size


@dataclass
class NodeClients:
    """What a node knows of its clients; a test changes it."""

    heard_mono_ms: int = 0
    is_owner_cut_off: bool = False


@dataclass
class Node:
    """One broker. `run` lives until it is killed; a deposed node joins again."""

    world: World
    name: str
    disk: CrashDisk
    faults: StoreFaults
    append_ms: int = 20
    filler_bytes: tuple[int, ...] = (0, 10, 500)  # How much longer a body may be than its name.
    task: asyncio.Task[None] | None = None
    replica: Replica | None = None
    replayer: Sums = field(default_factory=Sums)
    store: Store | None = None
    is_begun: bool = False
    deposed: list[str] = field(default_factory=list)
    lost_units: int = 0
    paused_until_mono_ms: int = 0
    create_pause_s: float = 0  # The length of the pause that begins when this node sends its next create; 0 for none.
    clients: NodeClients = field(default_factory=NodeClients)

    @property
    def is_serving(self) -> bool:
        replica = self.replica
        return replica is not None and self.is_begun and replica.may_answer(self.world.clock.mono_ms())

    def kill(self) -> None:
        """End the process as `kill -9` does; `World.start` starts it again on its disk."""
        assert self.task is not None
        self.task.cancel()
        if self.replica is not None:
            self.replica.stop()
            if self.replica.uploader is not None:
                for task in [*self.replica.uploader._tasks]:
                    task.cancel()
        self.is_begun, self.replica = False, None

    def lose_disk(self) -> None:
        """Let the next start find an empty disk. The node must have been killed."""
        self.disk = CrashDisk()

    def pause(self, seconds: float) -> None:
        """Stop the process for a time, as SIGSTOP does: it notices nothing, and its requests in flight go on."""
        self.paused_until_mono_ms = self.world.clock.mono_ms() + int(seconds * 1000)

    # -- Living

    async def run(self) -> None:
        while True:
            self.replayer = Sums()
            self.is_begun = False
            replica = self.replica = await Replica.join(
                _Gated(self.world.bucket.client(self.name, self.faults), self),
                self.disk,
                lock_directory(self.disk),
                writer=self.world.random.randbytes(16),
                new_stream=self.world.random.randbytes(16),
                claim=self.name.encode(),
                options=self.world.options,
                mono_ms=self.world.clock.mono_ms,
                on_event=self._on_event,
                on_progress=self._sync,
                clients=self.clients,
            )
            self.lost_units += replica.joined.lost.units
            self.world.make_replica(replica)
            store = self.store = replica.open(STORE, self.replayer)
            if self.world.has_threads:
                store.executors.uploads = _UploadThread(self, store)
            duties = asyncio.create_task(self._duties(replica, store))
            try:
                await replica.follow()
                await replica.begin(self.world.clock.now_ms())
                store.queue(SHARED_QUEUE).level, store.queue(SYNC_QUEUE).level = SHARED, SYNCED
                self.is_begun = True
                await self._serve(replica, store)
            except RequestsStopped:
                continue
            except StoreError:
                if not (replica.uploader is not None and replica.uploader.slots.deposed):
                    raise
            finally:
                has_answered, self.is_begun = self.is_begun, False
                if has_answered and replica.uploader is not None and replica.uploader.slots.deposed:
                    with suppress(ObjectStoreError):
                        await replica.release()
                duties.cancel()
                replica.stop()
                store.executors.readers = store.executors.background = Inline(lambda: True)
                if self.store is store:
                    store.close_without_writing()
                self.disk = self.disk.after_kill()

    async def _serve(self, replica: Replica, store: Store) -> None:
        while replica.is_owner:
            await self.if_running()
            self._append(store, replica)
            if self.world.trims and self.world.random.random() < 0.02:
                self._trim(store)
            self._turn(replica, store)
            await self._pause(replica)

    async def _pause(self, replica: Replica) -> None:
        """Wait until the next append, or until this node is deposed."""
        left_ms = self.append_ms
        while replica.is_owner and left_ms > 0:
            await asyncio.sleep(min(left_ms, 50) / 1000)
            left_ms -= 50

    def _append(self, store: Store, replica: Replica) -> None:
        if store.refusal:
            return
        world = self.world
        key = SHARED_QUEUE if world.random.random() < 0.7 else SYNC_QUEUE
        world.numbers += 1
        body = f"{self.name}-{world.numbers}-".encode() + bytes(world.random.choice(self.filler_bytes))
        parts: list[Frame | StateRecord] = [Frame(store.queue(key), FIRST_FRAME_FORM, body.replace(b"\0", b"."))]
        if world.random.random() < 0.3:
            parts.append(StateRecord(f"n{world.random.randrange(9)}={world.numbers}".encode()))
        (slot, *others), promise = store.append(parts, world.clock.now_ms())
        # A broker's StateLog replays its own records, too.
        frame = parts[0]
        assert isinstance(frame, Frame)
        content = bytes(frame.body) if isinstance(frame.body, bytes) else b""
        self.replayer.replay_frame(key, slot, FIRST_FRAME_FORM, 1, memoryview(content), b"")
        for part, other in zip(parts[1:], others, strict=True):
            assert isinstance(part, StateRecord)
            self.replayer.replay_state(part.payload, other)

        def done(error: StoreError | None) -> None:
            if error is None and promise.level == SHARED and replica.may_answer(world.clock.mono_ms()):
                world.note(
                    Acknowledged(key, slot.base_offset, slot.position, content, self.name, world.clock.mono_ms())
                )

        store.when(promise, done)

    def _trim(self, store: Store) -> None:
        """Remove most records of both queues, and the segments that have no others."""
        if store.refusal:
            return
        for key in (SHARED_QUEUE, SYNC_QUEUE):
            queue = store.queue(key)
            start = max(queue.start_offset, queue.visible_end - 20)
            self.world.trimmed[key] = max(start, self.world.trimmed.get(key, 0))
            store.retention.trim(queue, start, self.world.clock.now_ms())
        for _ in store.retention.remove_dead_segments():
            pass

    def _turn(self, replica: Replica, store: Store) -> None:
        store.write()
        self._sync()
        replica.begin_due_uploads(self.world.clock.mono_ms())

    def _sync(self) -> None:
        store = self.store
        if store is None or store.write_state.is_closed:
            return
        while task := store.durability.sync_wanted(background=True):
            task.run()
            store.durability.synced(task, None)

    async def _duties(self, replica: Replica, store: Store) -> None:
        while True:
            await asyncio.sleep(0.025)
            await self.if_running()
            mono_ms = self.world.clock.mono_ms()
            deadline = replica.next_deadline_ms()
            if deadline <= mono_ms:
                replica.advance(mono_ms)
            if store.checkpoint_due(mono_ms):
                store.checkpoint(mono_ms)
                self._sync()

    async def if_running(self) -> None:
        left_ms = self.paused_until_mono_ms - self.world.clock.mono_ms()
        if left_ms > 0:
            await asyncio.sleep(left_ms / 1000)

    def _on_event(self, event: Event) -> None:
        if isinstance(event, Deposed):
            self.deposed.append(event.reason)
            if CANNOT_BE in event.reason:
                self.world.violations.append(f"{self.name} is deposed: {event.reason}")


class _UploadThread:
    """An executor whose tasks take up to 20 ms, do not run while the process is paused, and end with the process."""

    def __init__(self, node: Node, store: Store) -> None:
        self._node, self._store = node, store

    def submit(self, run: Callable[[], T], done: Callable[[T | Failure], None]) -> None:
        wait_s = self._node.world.random.random() * 0.02
        asyncio.get_running_loop().call_later(wait_s, self._run, run, done)

    def _run(self, run: Callable[[], T], done: Callable[[T | Failure], None]) -> None:
        node = self._node
        if node.replica is None or node.store is not self._store or self._store.write_state.is_closed:
            return
        paused_ms = node.paused_until_mono_ms - node.world.clock.mono_ms()
        if paused_ms > 0:
            asyncio.get_running_loop().call_later(paused_ms / 1000, self._run, run, done)
        else:
            Inline().submit(run, done)


class _Gated:
    """The store of a node, which neither sends requests nor notices answers while it is paused."""

    def __init__(self, objects: SimulatedObjects, node: Node) -> None:
        self._objects, self._node = objects, node

    async def create(self, key: str, content: Content) -> Creation:
        node = self._node
        if node.create_pause_s:
            node.pause(node.create_pause_s)
            node.create_pause_s = 0
        return await self._run(lambda: self._objects.create(key, content))

    async def get(self, key: str, bytes_max: int) -> bytes | None:
        return await self._run(lambda: self._objects.get(key, bytes_max))

    async def get_range(self, key: str, start: int, length: int) -> bytes | None:
        return await self._run(lambda: self._objects.get_range(key, start, length))

    async def list(self, prefix: str, start_after: str = "", limit: int = LIST_LIMIT) -> Sequence[ObjectEntry]:
        return await self._run(lambda: self._objects.list(prefix, start_after, limit))

    async def delete(self, keys: Sequence[str]) -> None:
        await self._run(lambda: self._objects.delete(keys))

    async def _run(self, request: Callable[[], Coroutine[Any, Any, T]]) -> T:
        await self._node.if_running()
        try:
            return await request()
        finally:
            await self._node.if_running()


async def until(condition: Callable[[], bool], world: World, seconds: float = 60) -> None:
    """Let time pass until the condition holds."""
    end = world.clock.mono_ms() + seconds * 1000
    while not condition():
        assert world.clock.mono_ms() < end, f"not within {seconds} s"
        await world.pass_s(0.05)


async def serving(world: World, faults: StoreFaults | None = None) -> Node:
    """Start the broker a, and return it when it serves."""
    owner = world.start("a", faults)
    await until(lambda: owner.is_serving, world)
    return owner


async def stop_all(world: World) -> None:
    """End all nodes."""
    for node in world.nodes.values():
        if node.task is not None and not node.task.done():
            node.kill()
            with suppress(asyncio.CancelledError, RequestsStopped):
                await node.task
