"""Proves what checkpoints and snapshots hold: the state of one moment in files of any size, written a part at a time.

`tests/unit/store/test_power_cut.py` cuts the power at every operation of writing them.
"""

from collections.abc import Callable

import pytest

from duolog.store.entry import FIRST_FRAME_FORM
from duolog.store.errors import Corruption
from duolog.store.index.index_maintenance import IndexFlush
from duolog.store.index.queue import queue_key
from duolog.store.log.control import QueueRow
from duolog.store.log.format import BadUnit
from duolog.store.options import StoreOptions
from duolog.store.recovery.checkpoint import (
    PART_BYTES,
    PART_ENTRIES,
    Checkpoint,
    decode,
    parts_of,
    snapshot_path,
)
from duolog.store.recovery.checkpointer import FLUSHED_AT_ONCE
from duolog.store.store import Store
from duolog.store.unit import Frame, StateRecord
from tests.kit.disk import CrashDisk
from tests.kit.slices import finished
from tests.unit.store.model import Deferred, Notes

KEY = queue_key(1, 0)
SMALL_SEGMENTS = StoreOptions(segment_bytes=4096, reserve_bytes=0, checkpoint_interval_ms=1000)
STATE_RECORDS = 3 * PART_ENTRIES  # of some 100 bytes each: much more than a segment holds, and several units


def append(store: Store, notes: Notes, *parts: Frame | StateRecord) -> None:
    for part, slot in zip(parts, store.append(parts, 1000).slots, strict=True):
        if isinstance(part, StateRecord):
            notes.replay_state(part.payload, slot)


def sync(store: Store) -> None:
    store.write()
    if task := store.durability.sync_wanted(background=True):
        task.run()
        store.durability.synced(task, None)


def frame(store: Store, size: int) -> Frame:
    return Frame(store.queue(KEY), FIRST_FRAME_FORM, bytes(size))


def grown(disk: CrashDisk) -> tuple[Store, Notes]:
    """Return a store with far more state than one segment takes, and dead segments below it."""
    notes = Notes()
    store = Store.open(disk, SMALL_SEGMENTS, notes, 1000)
    for number in range(STATE_RECORDS):
        append(store, notes, StateRecord(f"set={number}={'x' * 90}".encode()))
    for _ in range(10):
        append(store, notes, frame(store, 1000))
    sync(store)
    store.retention.trim(store.queue(KEY), 10, 1000)
    return store, notes


def logs(disk: CrashDisk, suffix: str = ".log") -> list[str]:
    return [path for path in disk.paths() if path.startswith("log/") and path.endswith(suffix)]


def test_segments_go_though_the_state_is_larger_than_a_segment() -> None:
    disk = CrashDisk()
    store, notes = grown(disk)
    before = len(logs(disk))
    dead = finished(store.retention.remove_dead_segments())
    assert dead == before - 1 > 50
    store.checkpoint(0)
    sync(store)
    assert len(logs(disk)) <= 2
    assert len(logs(disk, ".snapshot")) == 1

    append(store, notes, StateRecord(b"set=later=1"))
    sync(store)
    for is_checkpoint_there in (True, False):
        left = disk.after_power_cut(seed=1)
        if not is_checkpoint_there:
            left.remove("checkpoint")
        found = Notes()
        again = Store.open(left, SMALL_SEGMENTS, found, 1000)
        assert (again.recovery.checkpoint_position >= 0) == is_checkpoint_there
        assert found.values == notes.values
        assert (again.queue(KEY).start_offset, again.queue(KEY).end_offset) == (10, 10)


def test_a_newer_snapshot_takes_the_place_of_the_one_before() -> None:
    disk = CrashDisk()
    store, notes = grown(disk)
    paths = []
    for _ in range(3):
        finished(store.retention.remove_dead_segments())
        store.checkpoint(0)
        sync(store)
        paths += logs(disk, ".snapshot")
        for _ in range(10):
            append(store, notes, frame(store, 1000))
        sync(store)
        store.retention.trim(store.queue(KEY), store.queue(KEY).end_offset, 1000)
    assert len(paths) == len(set(paths)) == 3


DAMAGE: dict[str, Callable[[CrashDisk, str], object]] = {
    "a bit of its first unit": lambda disk, path: disk.flip(path, 60),
    "a bit of a later unit": lambda disk, path: disk.flip(path, PART_BYTES // 2),
    "its last byte is missing": lambda disk, path: cut(disk, path, 1),
    "its last unit is missing": lambda disk, path: cut(disk, path, last_unit_size(disk, path)),
    "it is empty": lambda disk, path: disk.truncate(disk.open(path), 0),
    "it is gone": lambda disk, path: disk.remove(path),
}


def cut(disk: CrashDisk, path: str, size: int) -> None:
    handle = disk.open(path)
    disk.truncate(handle, disk.size(handle) - size)


def last_unit_size(disk: CrashDisk, path: str) -> int:
    content = disk.contents()[path]
    return len(content) - content.rindex(b"DLG1")


@pytest.mark.parametrize("damage", DAMAGE.values(), ids=DAMAGE.keys())
@pytest.mark.parametrize("is_removed", [True, False])
def test_a_damaged_snapshot_is_reported_where_the_log_cannot_do_without(
    damage: Callable[[CrashDisk, str], object], is_removed: bool
) -> None:
    disk = CrashDisk()
    store, notes = grown(disk)
    store.executors.background = background = Deferred()
    finished(store.retention.remove_dead_segments())
    store.checkpoint(0)
    sync(store)
    while not logs(disk, ".snapshot"):
        background.run_one()
    if is_removed:
        while background.waiting:
            background.run_one()
    left = disk.after_kill()
    damage(left, logs(left, ".snapshot")[0])
    if "checkpoint" in left.paths():
        left.remove("checkpoint")
    found = Notes()
    if is_removed:
        with pytest.raises(Corruption, match="snapshot"):
            Store.open(left, SMALL_SEGMENTS, found, 1000)
    else:
        Store.open(left, SMALL_SEGMENTS, found, 1000)
        assert found.values == notes.values


def test_a_checkpoint_holds_the_state_of_the_moment_at_which_it_was_captured() -> None:
    disk = CrashDisk()
    store, notes = grown(disk)
    store.executors.background = background = Deferred()
    store.checkpoint(0)
    values = dict(notes.values)
    turns = 0
    while background.waiting:
        background.run_one()
        append(store, notes, StateRecord(f"set={turns}=changed".encode()), frame(store, 10))
        turns += 1
    assert turns > 3
    sync(store)
    while background.waiting:
        background.run_one()
    left = disk.after_power_cut(seed=3)
    found = decode(units(left))
    assert {record.split(b"=")[1].decode(): record.split(b"=")[2].decode() for record in found.records} == values
    again = Notes()
    Store.open(left, SMALL_SEGMENTS, again, 1000)
    assert again.values == notes.values, "and what came behind it is in the log"


def test_a_checkpoint_holds_the_queues_of_the_moment_though_each_changes_before_it_is_read() -> None:
    disk, count = CrashDisk(), 12
    store = Store.open(disk, StoreOptions(), Notes(), 1000)
    queues = [store.queue(queue_key(topic, queue_id)) for topic in (1, 2, 3) for queue_id in range(4)]
    for queue in queues:
        store.append([Frame(queue, FIRST_FRAME_FORM, b"x") for _ in range(3)], 1000)
    sync(store)
    store.retention.trim(queues[5], 1, 1000)
    store.append([Frame(queues[6], FIRST_FRAME_FORM, b"x")], 1000)  # In the same turn as the capture.
    store._checkpoints.part_bytes = store._checkpoints.rows_in_entry = 1
    store._checkpoints.flushed_at_once = count
    store.executors.background = background = Deferred()
    store.checkpoint(0)
    store.append([Frame(queues[4], FIRST_FRAME_FORM, b"x")], 1000)  # Not flushed by the checkpoint.
    sync(store)
    expected = {queue.key: (queue.start_offset, queue.end_offset) for queue in queues}
    background.run_one()  # The flush; behind it the state is captured.
    assert store._queues.captured_rows.is_active
    flush = IndexFlush(store._queues.index_files, [queues[4]])
    flush.run()
    flush.end(store._queues.captured_rows.before_change)
    store.append([Frame(queues[6], FIRST_FRAME_FORM, b"x"), Frame(queues[6], FIRST_FRAME_FORM, b"x")], 1000)
    store.append([Frame(queues[7], FIRST_FRAME_FORM, b"x")], 1000)
    sync(store)
    store.retention.trim(queues[5], 2, 1000)
    store.retention.trim(queues[7], 2, 1000)
    store.drop_topic(3, 1000)
    store.append([Frame(store.queue(queue_key(4, 0)), FIRST_FRAME_FORM, b"x")], 1000)
    taken = len(background.waiting)
    while background.waiting:
        background.run_one()
        sync(store)
        taken += 1
    assert taken > count, "the rows were read one in each turn"
    found = decode(units(disk))
    assert {row.key: (row.start_offset, row.end_offset) for row in found.queues} == expected
    flushed = {row.key: row.end_row for row in found.queues}
    assert flushed == dict.fromkeys(expected, 3) | {queues[6].key: 4}, "the flush before the moment, not that behind it"
    assert not store._queues.captured_rows.is_active


def test_a_checkpoint_looks_at_so_many_queues_in_a_turn_for_what_is_to_be_flushed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("duolog.store.recovery.checkpointer.CHECKED_AT_ONCE", 10)
    store = Store.open(CrashDisk(), StoreOptions(), Notes(), 1000)
    queues = [store.queue(queue_key(1, queue_id)) for queue_id in range(95)]
    store.append([Frame(queues[94], FIRST_FRAME_FORM, b"x")], 1000)
    sync(store)
    store.executors.background = background = Deferred()
    store.checkpoint(0)
    for _ in range(9):
        assert not store._queues.captured_rows.is_active
        background.run_one()
    assert queues[94].index.written_row == 0
    background.run_one()
    assert queues[94].index.written_row == 1
    assert store._queues.captured_rows.is_active


def units(disk: CrashDisk) -> list[bytes]:
    content = disk.contents()["checkpoint"]
    starts = [at for at in range(0, len(content), 8) if content[at : at + 4] == b"DLG1"]
    return [content[start:end] for start, end in zip(starts, [*starts[1:], len(content)], strict=True)]


def test_no_part_is_more_work_than_its_limits_say() -> None:
    """A slice of the loop encodes one part; what it costs is counted in entries and bytes."""
    rows = [QueueRow(key, 0, 1, 1) for key in range(20_000)]
    records = [b"r" * 100] * 5000 + [b"R" * 100_000] * 7 + [b""] * 5000
    checkpoint = Checkpoint(8, 0, 1, 1, closed=False, queues=rows, records=iter(records))
    taken = 0

    def counted(source: list[bytes]):  # type: ignore[no-untyped-def]
        nonlocal taken
        for record in source:
            taken += 1
            yield record

    checkpoint.records = counted(records)
    before, parts = 0, []
    for part in parts_of(checkpoint):
        assert taken - before <= PART_ENTRIES + 1
        assert len(part) <= PART_BYTES + 140_000, "the limit, and the entry that passed it"
        before = taken
        parts.append(bytes(part))
    found = decode(parts)
    assert (found.queues, list(found.records)) == (rows, records)
    for broken in (parts[:-1], parts[:1], [], [*parts[:-1], parts[-1][:-8]]):
        with pytest.raises(BadUnit):
            decode(broken)


def test_the_snapshots_name_is_its_position() -> None:
    assert snapshot_path(4096) == "log/00000000000000004096.snapshot"


@pytest.mark.parametrize("late_after", [0, 10, 300, 700, 1 << 30])
def test_store_that_closes_leaves_its_last_checkpoint_when_its_time_is_over(late_after: int) -> None:
    disk, notes, queues = CrashDisk(), Notes(), 200
    store = Store.open(disk, StoreOptions(), notes, 1000)
    for queue_id in range(queues):
        append(store, notes, Frame(store.queue(queue_key(1, queue_id)), FIRST_FRAME_FORM, b"x"))
    sync(store)
    begun = disk.operations
    store.abandon_checkpoint_when(lambda: disk.operations - begun >= late_after)
    store.close(2000)
    done = disk.operations - begun
    assert done <= late_after + 4 * FLUSHED_AT_ONCE  # What is begun is finished: one round of indexes.
    assert late_after < 1 << 30 or done > 2 * queues, "all files of indexes were written and synced"
    again = Store.open(disk, StoreOptions(), Notes(), 3000)
    assert again.clean
    assert [again.queue(queue_key(1, queue_id)).end_offset for queue_id in range(queues)] == [1] * queues
    again.close(4000)
