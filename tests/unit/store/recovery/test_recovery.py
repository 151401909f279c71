"""Proves the recovery of a damaged log: a torn end is truncated, and damage to what was durable raises Corruption.

The log of each case has ten units of one frame; those below DURABLE were synced before the others were appended.
"""

import errno
from collections.abc import Callable, Sequence

import pytest

from duolog.store.entry import FIRST_FRAME_FORM, Buffer
from duolog.store.errors import Corruption, DataDirectoryInUse
from duolog.store.index.queue import queue_key
from duolog.store.log.format import ALIGNMENT, UNIT_HEADER_SIZE, seal_unit
from duolog.store.log.unit_walk import BLOCK_BYTES
from duolog.store.options import StoreOptions
from duolog.store.store import Store
from duolog.store.unit import Frame, StateRecord
from tests.kit.disk import CrashDisk, FailingDisk, PowerCut
from tests.unit.store.model import Notes, read_all

UNITS, DURABLE = 10, 6
BODY = bytes(range(1, 201))
UNIT_SIZE = UNIT_HEADER_SIZE + 40 + len(BODY)
KEY = queue_key(1, 0)
ONE_SEGMENT = StoreOptions(segment_bytes=1 << 20, reserve_bytes=4096)
SMALL_SEGMENTS = StoreOptions(segment_bytes=3 * UNIT_SIZE, reserve_bytes=512)


def opened(disk: CrashDisk, options: StoreOptions = ONE_SEGMENT, notes: Notes | None = None) -> Store:
    return Store.open(disk, options, notes or Notes(), now_ms=1000)


def append(store: Store, *, count: int = 1) -> int:
    """Append one unit and return its position."""
    return (
        store.append([Frame(store.queue(KEY), FIRST_FRAME_FORM, BODY, count)], 1000).slots[0].position
        - UNIT_HEADER_SIZE
    )


def sync(store: Store) -> None:
    store.write()
    task = store.durability.sync_wanted(background=True)
    assert task is not None
    task.run()
    store.durability.synced(task, None)


def let_go(store: Store) -> None:
    """Release the directory without closing in order."""
    store._files.close(store._lock)


def log_of_ten(options: StoreOptions = ONE_SEGMENT) -> tuple[CrashDisk, list[int]]:
    disk = CrashDisk()
    store = opened(disk, options)
    positions = [append(store) for _ in range(DURABLE)]
    sync(store)
    positions += [append(store) for _ in range(UNITS - DURABLE)]
    store.write()
    return disk.after_kill(), positions


class Segment:
    """The bytes of the one segment, to be damaged."""

    def __init__(self, disk: CrashDisk, positions: list[int]) -> None:
        self.disk = disk
        self.positions = positions
        self._file = disk.open("log/00000000000000000000.log")

    def put(self, at: int, data: bytes) -> None:
        self.disk.write(self._file, [data], at)

    def flip(self, unit: int, at: int = UNIT_HEADER_SIZE + 60) -> None:
        self.disk.flip("log/00000000000000000000.log", self.positions[unit] + at, 0x10)

    def zero(self, unit: int, size: int = UNIT_SIZE) -> None:
        self.put(self.positions[unit], bytes(size))

    def cut(self, unit: int, at: int) -> None:
        self.disk.truncate(self._file, self.positions[unit] + at)

    def copy_unit(self, unit: int, to: int) -> None:
        self.put(to, self.disk.read(self._file, UNIT_SIZE, self.positions[unit]))

    def forge(self, at: int, *, epoch: int = 1, durable: int = 0, position: int | None = None) -> None:
        """Put a whole and valid unit without entries there."""
        unit = bytearray(UNIT_SIZE)
        seal_unit(memoryview(unit), epoch, at if position is None else position, durable, 1000, 0)
        self.put(at, bytes(unit))

    @property
    def end(self) -> int:
        return self.positions[-1] + UNIT_SIZE


TORN = {
    "nothing is wrong": (lambda log: None, 10),
    "a bit in the last unit": (lambda log: log.flip(9), 9),
    "a bit in the first unit that was not synced": (lambda log: log.flip(6), 6),
    "a bit in the magic": (lambda log: log.flip(7, at=0), 7),
    "a bit in the CRC": (lambda log: log.flip(7, at=4), 7),
    "a bit in the size": (lambda log: log.flip(7, at=11), 7),
    "a size beyond the file": (lambda log: log.flip(7, at=8), 7),
    "a bit in `durable`": (lambda log: log.flip(7, at=24), 7),
    "a page of zeros over a unit": (lambda log: log.zero(6), 6),
    "zeros where a header was": (lambda log: log.zero(8, UNIT_HEADER_SIZE), 8),
    "zeros over all that was not synced": (lambda log: [log.zero(unit) for unit in range(6, 10)], 6),
    "the file ends in a header": (lambda log: log.cut(8, UNIT_HEADER_SIZE - 1), 8),
    "the file ends in a frame": (lambda log: log.cut(8, UNIT_SIZE - 1), 8),
    "the file ends between two units": (lambda log: log.cut(8, 0), 8),
    "garbage behind the end": (lambda log: log.put(log.end, b"\xff" * 1000), 10),
    "a payload full of magic behind the end": (lambda log: log.put(log.end + 1, b"DLG1\0\0\0\0" * 999), 10),
    "a unit of another position behind the end": (lambda log: log.copy_unit(9, log.end), 10),
    "a unit of an earlier epoch behind the end": (lambda log: log.forge(log.end, epoch=0), 10),
    "a bad unit, and one of another position that claims much": (
        lambda log: (log.flip(6), log.forge(log.positions[8], position=1 << 30, durable=1 << 30)),
        6,
    ),
    "what was synced last, if all behind it is gone too": (lambda log: (log.flip(5), log.cut(6, 0)), 5),
}  # fmt: skip


@pytest.mark.parametrize(("damage", "kept"), TORN.values(), ids=TORN.keys())
def test_torn_tail_is_cut_at_the_first_unit_that_is_not_whole(damage: Callable[[Segment], object], kept: int) -> None:
    disk, positions = log_of_ten()
    damage(Segment(disk, positions))
    disk = disk.after_kill()
    store = opened(disk)
    queue = store.queue(KEY)
    assert (queue.start_offset, queue.visible_end, queue.end_offset) == (0, kept, kept)
    assert [bytes(stored.frame) for stored in read_all(store, queue)] == [BODY] * kept
    assert store.recovery.end_position == (positions[kept] if kept < UNITS else positions[-1] + UNIT_SIZE)

    append(store)  # And it goes on from there, over what was cut.
    sync(store)
    again = opened(disk.after_power_cut(seed=1))
    assert again.queue(KEY).end_offset == kept + 1
    assert again.recovery.cut_bytes == 0


CORRUPT = {
    "a bit in the first unit": lambda log: log.flip(0),
    "a bit in the last unit that was synced": lambda log: log.flip(5),
    "zeros over a unit": lambda log: log.zero(3),
    "a bad size": lambda log: log.flip(2, at=11),
    "a bit, and the proof is behind another bad unit": lambda log: (log.flip(5), log.flip(6), log.flip(7)),
}


@pytest.mark.parametrize("damage", CORRUPT.values(), ids=CORRUPT.keys())
def test_what_was_durable_and_is_damaged_is_reported_and_left_alone(damage: Callable[[Segment], object]) -> None:
    disk, positions = log_of_ten()
    damage(Segment(disk, positions))
    before = {path: found for path, found in disk.contents().items() if path.startswith("log/")}
    with pytest.raises(
        Corruption, match=r"00000000000000000000\.log has no whole unit at byte \d+: .*; but according to the unit at"
    ) as caught:
        opened(disk)
    assert str(positions[DURABLE]) in str(caught.value), "the message says how far the log was durable"
    assert {path: found for path, found in disk.contents().items() if path.startswith("log/")} == before
    with pytest.raises(Corruption):
        opened(disk)


@pytest.mark.slow
def test_a_bit_in_any_byte_is_either_cut_or_reported() -> None:
    pristine, positions = log_of_ten()
    for at in range(0, positions[-1] + UNIT_SIZE, 7):
        disk = pristine.after_kill()
        disk.flip("log/00000000000000000000.log", at, 1 << at % 8)
        if at < positions[DURABLE]:
            with pytest.raises(Corruption):
                opened(disk)
        else:
            assert opened(disk).queue(KEY).end_offset == (at - positions[0]) // UNIT_SIZE


# -- Files that are missing


@pytest.mark.parametrize("missing", [1, 2])
def test_a_missing_segment_is_corruption(missing: int) -> None:
    disk = CrashDisk()
    store = opened(disk, SMALL_SEGMENTS)
    for _ in range(UNITS):
        append(store)
        sync(store)
    segments = [path for path in disk.paths() if path.startswith("log/")]
    assert len(segments) == 4
    disk.remove(segments[missing])
    with pytest.raises(Corruption):
        opened(disk.after_kill(), SMALL_SEGMENTS)


def test_a_checkpoint_without_a_log_is_corruption() -> None:
    disk = CrashDisk()
    store = opened(disk)
    append(store)
    store.close(2000)
    for path in disk.paths():
        if path.startswith("log/"):
            disk.remove(path)
    with pytest.raises(Corruption, match="but the checkpoint was written at position"):
        opened(disk)


def test_a_log_shorter_than_its_checkpoint_is_corruption() -> None:
    disk = CrashDisk()
    store = opened(disk)
    for _ in range(3):
        append(store)
    store.close(2000)
    disk.truncate(disk.open("log/00000000000000000000.log"), 2 * UNIT_SIZE)
    with pytest.raises(Corruption, match="but according to the checkpoint the log was durable up to position"):
        opened(disk)


@pytest.mark.parametrize("path", ["checkpoint", "index/1/0/00000000000000000000"])
@pytest.mark.parametrize("is_there", [True, False])
def test_damaged_or_missing_derived_files_come_back_from_the_log(path: str, is_there: bool) -> None:
    disk = CrashDisk()
    store = opened(disk)
    for _ in range(UNITS):
        append(store)
    store.append([StateRecord(b"set=a=1")], 1000)
    store.close(2000)
    if is_there:
        disk.truncate(disk.open(path), 20)
    else:
        disk.remove(path)
    notes = Notes()
    store = opened(disk, notes=notes)
    assert notes.values == {"a": "1"}
    assert len(read_all(store, store.queue(KEY))) == UNITS
    assert store.recovery.checkpoint_position == -1


# -- Ordinary starts


def test_units_may_be_larger_than_what_is_read_at_a_time_and_lie_across_its_ends() -> None:
    options = StoreOptions(segment_bytes=4 * BLOCK_BYTES)
    disk = CrashDisk()
    store = opened(disk, options)
    sizes = [1000, BLOCK_BYTES + 1000, BLOCK_BYTES - 2000, 3000, 1000, 2 * BLOCK_BYTES, 10]
    for size in sizes:
        store.append([Frame(store.queue(KEY), FIRST_FRAME_FORM, bytes([size % 255]) * size)], 1000)
    sync(store)
    store = opened(disk.after_kill(), options)
    assert [len(stored.frame) for stored in read_all(store, store.queue(KEY))] == sizes


def test_a_start_reads_only_what_lies_behind_the_checkpoint() -> None:
    disk = CrashDisk()
    store = opened(disk)
    for _ in range(100):
        append(store)
    store.checkpoint(0)
    sync(store)
    for _ in range(3):
        append(store)
    store.write()
    store = opened(disk.after_kill())
    assert (store.recovery.units, store.recovery.entries) == (3, 3)
    assert store.queue(KEY).end_offset == 103


def test_each_run_has_an_epoch_and_says_whether_the_one_before_ended_in_order() -> None:
    disk = CrashDisk()
    store = opened(disk)
    assert (store.epoch, store.clean) == (1, True)
    store.close(1000)
    store = opened(disk)
    assert (store.epoch, store.clean, store.recovery.units) == (2, True, 0)
    append(store)
    sync(store)
    store = opened(disk.after_kill())
    assert (store.epoch, store.clean) == (3, False)
    store = opened(disk.after_kill())
    assert (store.epoch, store.clean) == (3, False)
    assert store.next_position % ALIGNMENT == 0


def test_a_directory_is_opened_once() -> None:
    disk = CrashDisk()
    store = opened(disk)
    with pytest.raises(DataDirectoryInUse):
        opened(disk)
    store.close(1000)
    opened(disk)


def test_time_of_the_log_never_falls() -> None:
    disk = CrashDisk()
    store = opened(disk)
    queue = store.queue(KEY)
    for now_ms in (5000, 4000):
        slot = store.append([Frame(queue, FIRST_FRAME_FORM, BODY)], now_ms).slots[0]
        assert slot.stored_ms == 5000
    store.close(1000)
    store = Store.open(disk, ONE_SEGMENT, Notes(), 3000)
    assert store.append([Frame(store.queue(KEY), FIRST_FRAME_FORM, BODY)], 3000).slots[0].stored_ms == 5000


# -- After a failed fsync


@pytest.mark.parametrize("options", [ONE_SEGMENT, SMALL_SEGMENTS], ids=["one segment", "several segments"])
@pytest.mark.parametrize("failed_sync", range(1, 7))
def test_after_a_failed_fsync_and_a_restart_a_power_cut_loses_nothing_that_was_shown(
    options: StoreOptions, failed_sync: int
) -> None:
    """The kernel forgets the dirty pages of a failed fsync but goes on reading them: the restart sees them whole."""
    failed = FailingDisk("sync", failed_sync, errno.EIO)
    acknowledged = 0
    try:
        store = opened(failed, options)
        for count in range(1, 6):
            append(store)
            append(store)
            sync(store)
            acknowledged = 2 * count
    except OSError:
        pass
    for cut_at in range(1, 60):
        disk = failed.after_kill()
        disk.cut_at = cut_at
        shown = acknowledged
        try:
            store = opened(disk, options)
            shown = store.queue(KEY).visible_end
            assert shown >= acknowledged
            for _ in range(3):
                append(store)
                sync(store)
                shown += 1
        except PowerCut:
            pass
        for seed in range(3):
            queue = opened(disk.after_power_cut(seed), options).queue(KEY)
            assert queue.visible_end >= shown, f"cut at {cut_at}, seed {seed}"
        if disk.operations < cut_at:
            return
    raise AssertionError("the history has more operations than were cut")


class NotingDisk(CrashDisk):
    """Notes where writes begin."""

    def __init__(self) -> None:
        super().__init__()
        self.written_at: list[int] = []

    def write(self, file: int, buffers: Sequence[Buffer], at: int) -> None:
        self.written_at.append(at)
        super().write(file, buffers, at)


def test_a_start_after_an_orderly_end_writes_nothing_of_the_log_again() -> None:
    disk = NotingDisk()
    store = opened(disk)
    append(store)
    store.close(1000)
    before = disk.contents()["log/00000000000000000000.log"]
    disk.written_at.clear()
    opened(disk)
    assert min(disk.written_at) >= len(before.rstrip(b"\0"))
