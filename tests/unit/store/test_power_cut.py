"""Proves that no kept promise is broken by a power cut, at every file operation of a long scripted history.

At each operation the disk is taken as it might be found afterwards (`CrashDisk.after_power_cut`), a store is opened on
it and compared with a model of what was appended up to where that store ends. Then all but the segments is
deleted, and what recovery makes from the log alone must be the same.
"""

import errno
from collections.abc import Sequence
from random import Random

import pytest

from duolog.store.entry import FIRST_FRAME_FORM, SYNCED, WRITTEN, Buffer
from duolog.store.errors import DiskFull
from duolog.store.index.queue import Queue, queue_key
from duolog.store.log.commitlog import SyncTask
from duolog.store.options import StoreOptions
from duolog.store.store import Store
from duolog.store.unit import Frame, StateRecord
from tests.kit.disk import CrashDisk, EachCut
from tests.kit.slices import finished
from tests.unit.store.model import Deferred, Model, Notes, Written

OPTIONS = StoreOptions(
    segment_bytes=4000, reserve_bytes=2048, tail_bytes=8192, checkpoint_bytes=10_000, open_segments_max=4
)
STEPS = 1200
PART_BYTES = 150  # of checkpoints and snapshots: each is several units, written in as many turns
QUEUES_PER_TOPIC = 2
TOPICS = 3
KEPT = queue_key(1000, 0)  # a queue that is never trimmed: what is removed around its frames leaves gaps


class History:
    """Random steps against a store, and what each one promised."""

    def __init__(self, seed: int, disk: "FillingDisk") -> None:
        self.rng = Random(seed)
        self.disk = disk
        self.changes: list[tuple[int, tuple[str, *tuple[object, ...]]]] = []  # (end of the unit, what it did)
        self.boundaries = {0}  # positions where a unit ends
        self.kept_durable = 0  # promises kept: positions that power loss must not take
        self.kept_written = 0  # and kill -9 must not take
        self.visible: dict[int, int] = {}  # The end of each synchronous queue that a reader has seen.
        self.topics = list(range(1, TOPICS + 1))
        self.next_topic = TOPICS + 1
        self.now_ms = 1_000
        self.sync: SyncTask | None = None
        self.removed = 0
        self.open()

    def open(self) -> None:
        self.notes = Notes()
        self.store = Store.open(self.disk, OPTIONS, self.notes, self.now_ms)
        self.store.executors.background = self.background = Deferred()
        self.store._checkpoints.flushed_at_once = 1  # so that appends come between the flushes of a checkpoint
        self.store._checkpoints.part_bytes = PART_BYTES
        self.store._checkpoints.rows_in_entry = 1  # so that queues change while they are read
        self.sync = None
        self.boundaries |= {self.store.recovery.end_position, self.store.next_position}
        for queue in self.store.queues():
            queue.level = SYNCED if is_durable(queue) else WRITTEN

    # -- Steps

    def run(self) -> None:
        steps = [
            (self.append, 40), (self.write, 14), (self.begin_sync, 12), (self.end_sync, 12), (self.work, 80),
            (self.checkpoint, 3), (self.trim, 3), (self.expire, 2), (self.remove_dead_segments, 3),
            (self.drop_topic, 1), (self.restart, 0.7), (self.kill, 0.7),
            (self.fill_the_disk, 1), (self.make_room, 4),
        ]  # fmt: skip
        for _ in range(STEPS):
            self.now_ms += self.rng.randrange(20)
            self.rng.choices([step for step, _ in steps], [weight for _, weight in steps])[0]()
            self.note()

    def note(self) -> None:
        self.boundaries.add(self.store.next_position)
        for queue in self.store.queues():
            if queue.level:
                assert queue.visible_end >= self.visible.get(queue.key, 0), "a visible end went back"
                self.visible[queue.key] = queue.visible_end

    def append(self) -> None:
        entries = [self.entry() for _ in range(self.rng.choice((1, 1, 1, 2, 4)))]
        try:
            appended = self.store.append(entries, self.now_ms)
        except DiskFull:
            return
        done: list[tuple[str, *tuple[object, ...]]] = []
        for entry, slot in zip(entries, appended.slots, strict=True):
            if isinstance(entry, StateRecord):
                done.append(("state", entry.payload))
                self.notes.replay_state(entry.payload, slot)
            else:
                body = bytes(entry.body)
                done.append(("frame", entry.queue.key, Written(slot.base_offset, entry.count, body, slot.position)))
                self.notes.replay_frame(entry.queue.key, slot, entry.form, entry.count, memoryview(body), b"")
        self.changed(*done)

        def kept(error: object) -> None:
            if error is not None:
                assert isinstance(error, DiskFull)
                return
            if appended.promise.level == SYNCED:
                self.kept_durable = max(self.kept_durable, appended.promise.end)
            self.kept_written = max(self.kept_written, appended.promise.end)

        self.store.when(appended.promise, kept)

    def entry(self) -> Frame | StateRecord:
        rng = self.rng
        if rng.random() < 0.3:
            name = rng.randrange(12)
            return StateRecord(
                f"unset={name}=".encode() if rng.random() < 0.3 else f"set={name}={rng.random()}".encode()
            )
        body = rng.randbytes(rng.choice((0, 10, 100, 100, 700)))
        return Frame(self.any_queue(), FIRST_FRAME_FORM, body, count=rng.randint(1, 150), timestamp_ms=self.now_ms)

    def any_queue(self) -> Queue:
        if self.rng.random() < 0.03:
            return self.store.queue(KEPT)
        queue = self.store.queue(queue_key(self.rng.choice(self.topics), self.rng.randrange(QUEUES_PER_TOPIC)))
        queue.level = SYNCED if is_durable(queue) else WRITTEN
        return queue

    def write(self) -> None:
        self.store.write()

    def begin_sync(self) -> None:
        if self.sync is None:
            self.sync = self.store.durability.sync_wanted(background=self.rng.random() < 0.3)
            if self.sync is not None:
                self.sync.run()

    def end_sync(self) -> None:
        if self.sync is not None:
            task, self.sync = self.sync, None
            self.store.durability.synced(task, None)

    def work(self) -> None:
        self.background.run_one()

    def checkpoint(self) -> None:
        self.store.checkpoint(self.now_ms)

    def trim(self) -> None:
        queue = self.any_queue()
        start_offset = self.rng.randint(queue.start_offset, queue.visible_end)
        self.trim_to(queue, start_offset)

    def trim_to(self, queue: Queue, start_offset: int) -> None:
        if start_offset > queue.start_offset and queue.key != KEPT:
            self.store.retention.trim(queue, start_offset, self.now_ms)
            self.changed(("trim", queue.key, start_offset))

    def expire(self) -> None:
        for queue in list(self.store.queues()):
            limits = self.rng.choice(({"keep_ms": 300}, {"keep_bytes": 1500}, {"keep_records": 500}))
            start_offset = self.store.retention.expire(queue, **limits, now_ms=self.now_ms)
            if start_offset is not None:
                self.trim_to(queue, start_offset)

    def remove_dead_segments(self) -> None:
        self.removed += finished(self.store.retention.remove_dead_segments())
        if self.store.checkpoint_due(self.now_ms):
            self.store.checkpoint(self.now_ms)

    def drop_topic(self) -> None:
        self.make_room()
        topic = self.topics.pop(self.rng.randrange(TOPICS))
        self.topics.append(self.next_topic)
        self.next_topic += 1
        self.store.drop_topic(topic, self.now_ms)
        self.changed(("drop", topic))
        payload = f"forget={topic}=".encode()
        self.notes.replay_state(payload, self.store.append([StateRecord(payload)], self.now_ms).slots[0])
        self.changed(("state", payload))

    def fill_the_disk(self) -> None:
        self.disk.is_full = True

    def make_room(self) -> None:
        self.disk.is_full = False
        self.store.check_disk()
        assert not self.store.refusal

    def restart(self) -> None:
        self.make_room()
        self.store.close(self.now_ms)
        self.kept_durable = self.kept_written = self.store.durable
        assert self.store.durable == self.store.next_position
        self.boundaries.add(self.store.next_position)
        self.open()
        assert self.store.clean
        self.model_at(self.store.recovery.end_position).check(self.store, self.notes)

    def kill(self) -> None:
        # Whole units may have come through with a write that failed half-way: they were not kept, but are there.
        end = opened(self.disk.after_kill())[0].recovery.end_position
        assert end >= self.store.written >= self.kept_written
        self.forget_behind(end)
        survived = self.disk.after_kill()
        self.disk._root, self.disk._open, self.disk._locks = survived._root, {}, {}
        self.open()
        assert self.store.recovery.end_position == end
        self.model_at(self.store.recovery.end_position).check(self.store, self.notes)

    def changed(self, *changes: tuple[str, *tuple[object, ...]]) -> None:
        self.changes += [(self.store.next_position, change) for change in changes]
        self.boundaries.add(self.store.next_position)

    def forget_behind(self, end: int) -> None:
        self.changes = [change for change in self.changes if change[0] <= end]
        self.boundaries = {position for position in self.boundaries if position <= end}

    # -- What should be there

    def model_at(self, end: int) -> Model:
        model = Model()
        for at, (kind, *what) in self.changes:
            if at > end:
                break
            match kind:
                case "frame":
                    model.append(*what)
                case "state":
                    model.notes.replay_state(*what, None)
                case "trim":
                    model.trim(*what)
                case "drop":
                    model.drop_topic(*what)
        return model

    def check(self, disk: CrashDisk) -> None:
        """Open what is left, compare it with the model, then with what the segments alone give."""
        store, notes = opened(disk)
        end = store.recovery.end_position
        assert end in self.boundaries or end > max(self.boundaries), f"{end} lies within a unit"
        assert end >= self.kept_durable, "a kept promise was lost"
        ends = {queue.key: queue.end_offset for queue in store.queues()}
        dropped = {change[1] for at, change in self.changes if change[0] == "drop" and at <= end}
        for key, visible in self.visible.items():
            assert key >> 16 in dropped or ends.get(key, 0) >= visible, f"what was visible of {key} was lost"
        model = self.model_at(end)
        model.check(store, notes)
        rows = live_rows(store)
        store._files.close(store._lock)

        rebuilt, rebuilt_notes = opened(without_derived(disk))
        model.check(rebuilt, rebuilt_notes)
        assert live_rows(rebuilt) == rows
        assert rebuilt_notes.seen == notes.seen


def is_durable(queue: Queue) -> bool:
    return queue.topic % 3 != 0


def opened(disk: CrashDisk) -> tuple[Store, Notes]:
    notes = Notes()
    return Store.open(disk, OPTIONS, notes, 0), notes


def without_derived(disk: CrashDisk) -> CrashDisk:
    for path in disk.paths():
        if not path.startswith("log/"):
            disk.remove(path)
    return disk


def live_rows(store: Store) -> dict[int, list[tuple[int, ...]]]:
    """Index rows from the log start on, but for the sum of bytes, which counts from wherever the index began."""
    found = {}
    for queue in store.queues():
        rows = queue.index.rows_from(queue.start_offset, 1 << 30, 1 << 60, queue.end_offset, block=True) or []
        if rows:
            found[queue.key] = [row[:8] for row in rows]
    return found


class FillingDisk(EachCut):
    """Has no room for anything more while `is_full`."""

    is_full = False
    snapshots = 0  # that were put in place, of several units

    def rename(self, old: str, new: str) -> None:
        if new.endswith(".snapshot"):
            handle = self.open(old)
            self.snapshots += self.size(handle) > 2 * PART_BYTES
            self.close(handle)
        super().rename(old, new)

    def write(self, file: int, buffers: Sequence[Buffer], at: int) -> None:
        if self.is_full:  # Half of it comes through, as an operating system would have it.
            half = b"".join(buffers)
            super().write(file, [half[: len(half) // 2]], at)
            raise OSError(errno.ENOSPC, "write")
        super().write(file, buffers, at)

    def reserve(self, file: int, size: int) -> None:
        if self.is_full:
            raise OSError(errno.ENOSPC, "reserve")
        super().reserve(file, size)


def cut_at_each(seed: int, stride: int = 1, phase: int = 0, cut_seed: int = 0) -> None:
    disk = FillingDisk(stride, cut_seed, phase)
    history = History(seed, disk)
    disk.check = history.check
    history.run()
    assert disk.operations > 500
    assert history.removed > 5, "segments were to be removed on the way"
    assert disk.snapshots > 0, "and their state to be kept in snapshots of several units"


@pytest.mark.slow
@pytest.mark.parametrize(("seed", "stride"), [(0, 4), (1, 7), (2, 7), (3, 7)])
def test_power_cut_at_any_operation_loses_nothing_that_was_kept(seed: int, stride: int, rng: Random) -> None:
    cut_at_each(seed, stride, rng.randrange(stride))


@pytest.mark.soak
@pytest.mark.parametrize("cut_seed", range(4))
@pytest.mark.parametrize("seed", range(24))
def test_power_cut_at_each_operation_of_many_histories(seed: int, cut_seed: int) -> None:
    cut_at_each(seed, cut_seed=cut_seed)
