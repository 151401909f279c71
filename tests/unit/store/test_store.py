"""Proves what the store promises its users, step by step and without threads: promises, visibility, reading, retention.

`sync` here is what a flusher's thread does, cut into its steps; `background` work waits until the test runs it.
"""

import errno
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from duolog.store.entry import FIRST_FRAME_FORM, SYNCED, WRITTEN, Buffer, EntrySlot, Promise, Stored
from duolog.store.errors import (
    NO_SPACE,
    Corruption,
    DiskFull,
    EntryTooLarge,
    OffsetOutOfRange,
    StoreError,
    WritingEnded,
)
from duolog.store.index.queue import Queue, queue_key
from duolog.store.index.queue_index import ROW_SIZE
from duolog.store.log.cold_read import ColdRead
from duolog.store.log.format import COUNT_MAX, POSITION_MAX
from duolog.store.log.unit_source import Cut
from duolog.store.options import StoreOptions
from duolog.store.store import Store
from duolog.store.unit import Frame, FrameRun, Part, StateRecord
from duolog.store.workers import Failure
from tests.kit.disk import CrashDisk, FailingDisk
from tests.kit.slices import finished
from tests.unit.store.model import Deferred, Notes, read_all

OPTIONS = StoreOptions(segment_bytes=1 << 16, reserve_bytes=4096, tail_bytes=1 << 16)
SMALL_SEGMENTS = replace(OPTIONS, segment_bytes=1000, reserve_bytes=500)
KEY = queue_key(1, 0)
OTHER_KEY = queue_key(2, 0)


class Kept(list[tuple[str, StoreError | None]]):
    """The outcomes of promises, in the order in which they came."""

    def when(self, store: Store, promise: Promise, name: str) -> None:
        store.when(promise, lambda error: self.append((name, error)))

    @property
    def names(self) -> list[str]:
        return [name for name, _ in self]


def opened(disk: CrashDisk | None = None, options: StoreOptions = OPTIONS, notes: Notes | None = None) -> Store:
    return Store.open(disk or CrashDisk(), options, notes or Notes(), now_ms=1000)


def append(store: Store, body: Buffer = b"x", key: int = KEY, *, count: int = 1, now_ms: int = 1000) -> Promise:
    return store.append([Frame(store.queue(key), FIRST_FRAME_FORM, body, count, now_ms)], now_ms).promise


def sync(store: Store) -> None:
    task = store.durability.sync_wanted(background=True)
    assert task is not None
    task.run()
    store.durability.synced(task, None)


def write_and_sync(store: Store) -> None:
    store.write()
    sync(store)


def async_queue(store: Store, key: int = KEY) -> Queue:
    queue = store.queue(key)
    queue.level = WRITTEN
    return queue


def bodies(found: list[Stored] | ColdRead) -> list[bytes]:
    assert isinstance(found, list)
    return [bytes(stored.frame) for stored in found]


# -- Runs of frames

BODIES = [b"a", b"bb" * 20, b"", b"dddd" * 9]
TIMES_MS, TAGS = [5, 3, 9, 8], [0, -1, 7, 0]


def note_slot(buffer: bytearray, at: int, slot: EntrySlot) -> None:
    """Replace the byte at `at` by one that depends on the slot, unless it is 0."""
    if buffer[at]:
        buffer[at] = (slot.position + slot.base_offset + slot.stored_ms) % 251 + 1


def log_bytes(disk: CrashDisk, store: Store) -> bytes:
    (segment,) = store.segments()
    return bytes(disk.read(disk.open(segment.path), store.written - segment.start, 0))


def test_a_run_lies_in_the_log_and_in_its_index_as_its_frames_would() -> None:
    def parts(store: Store, *, as_run: bool) -> list[Part]:
        queue = async_queue(store)
        run: list[Part] = [FrameRun(queue, FIRST_FRAME_FORM, BODIES, TIMES_MS, TAGS, note_slot)]
        alone: list[Part] = [
            Frame(queue, FIRST_FRAME_FORM, body, 1, time_ms, tags, note_slot)
            for body, time_ms, tags in zip(BODIES, TIMES_MS, TAGS, strict=True)
        ]
        other = Frame(async_queue(store, OTHER_KEY), FIRST_FRAME_FORM, b"other", 2)
        return [other, *(run if as_run else alone), StateRecord(b"state"), Frame(queue, FIRST_FRAME_FORM, b"last")]

    disks = CrashDisk(), CrashDisk()
    stores = [opened(disk) for disk in disks]
    for store, as_run in zip(stores, (True, False), strict=True):
        appended = store.append(parts(store, as_run=as_run), 1000)
        assert appended.slots[1].base_offset == 0
        assert appended.slots[-1].base_offset == len(BODIES)
        store.write()
    assert log_bytes(disks[0], stores[0]) == log_bytes(disks[1], stores[1])
    found = [store.reader.read(store.queue(KEY), 0, max_bytes=1 << 20, until=len(BODIES) + 1) for store in stores]
    assert found[0] == found[1]


def test_a_run_that_cannot_be_encoded_leaves_nothing_behind() -> None:
    def stamp(buffer: bytearray, at: int, slot: EntrySlot) -> None:
        if slot.base_offset == 2:
            raise ValueError("no stamp")

    store = opened()
    queue = async_queue(store)
    with pytest.raises(ValueError, match="no stamp"):
        store.append([FrameRun(queue, FIRST_FRAME_FORM, BODIES, TIMES_MS, TAGS, stamp)], 1000)
    assert queue.end_offset == 0
    append(store, b"next")
    store.write()
    assert bodies(store.reader.read(queue, 0, max_bytes=1 << 20, until=1)) == [b"next"]


# -- Promises and visibility


def test_one_sync_keeps_the_promises_of_all_that_were_written_before_it() -> None:
    store, kept = opened(), Kept()
    for name in "abc":
        kept.when(store, append(store), name)
    store.write()
    first = store.durability.sync_wanted()
    assert first is not None
    kept.when(store, append(store), "d")
    store.write()
    assert store.durability.sync_wanted() is None, "one sync at a time; the next one serves all who came meanwhile"
    first.run()
    assert kept == []
    store.durability.synced(first, None)
    assert kept == [("a", None), ("b", None), ("c", None)]
    second = store.durability.sync_wanted()
    assert second is not None
    second.run()
    store.durability.synced(second, None)
    assert kept.names == ["a", "b", "c", "d"]
    assert store.durability.sync_wanted(background=True) is None, "nothing is left to sync"


def test_what_is_appended_but_not_written_is_not_covered_by_a_sync() -> None:
    store, kept = opened(), Kept()
    append(store)
    store.write()
    kept.when(store, append(store), "unwritten")
    sync(store)
    assert kept == []
    write_and_sync(store)
    assert kept.names == ["unwritten"]


def test_under_sync_a_record_is_seen_when_it_is_durable_under_async_when_it_is_written() -> None:
    store = opened()
    seen: list[tuple[int, int]] = []
    store.durability.on_visible = lambda queues: seen.extend((queue.key, queue.visible_end) for queue in queues)
    synced, written = store.queue(KEY), async_queue(store, OTHER_KEY)
    store.append([Frame(synced, FIRST_FRAME_FORM, b"a", 2), Frame(written, FIRST_FRAME_FORM, b"b", 3)], 1000)
    assert (synced.end_offset, written.end_offset) == (2, 3)
    assert (synced.visible_end, written.visible_end, seen) == (0, 0, [])
    store.write()
    assert (synced.visible_end, written.visible_end, seen) == (0, 3, [(OTHER_KEY, 3)])
    append(store, count=5)  # While the sync runs; it must not be seen with it.
    sync(store)
    assert (synced.visible_end, seen) == (2, [(OTHER_KEY, 3), (KEY, 2)])
    write_and_sync(store)
    assert seen[-1] == (KEY, 7)


def test_a_queue_that_changes_its_durability_never_shows_less_than_before() -> None:
    store = opened()
    queue = async_queue(store)
    append(store)
    store.write()
    assert queue.visible_end == 1
    queue.level = SYNCED
    append(store)
    store.write()
    assert queue.visible_end == 1
    queue.level = WRITTEN
    append(store)
    store.write()
    assert queue.visible_end == 3
    sync(store)
    assert queue.visible_end == 3


def test_a_promise_asks_for_what_its_queues_promise() -> None:
    store = opened()
    lazy = async_queue(store, OTHER_KEY)
    assert append(store).level
    assert not append(store, key=OTHER_KEY).level
    assert store.append([StateRecord(b"set=a=1")], 1000).promise.level == SYNCED
    assert store.append([Frame(lazy, FIRST_FRAME_FORM, b""), StateRecord(b"set=a=1")], 1000).promise.level == WRITTEN
    assert (
        store.append([Frame(lazy, FIRST_FRAME_FORM, b""), Frame(store.queue(KEY), 2, b"")], 1000).promise.level
        == SYNCED
    )
    assert store.promise() == Promise(store.next_position, SYNCED)
    assert not opened(options=replace(OPTIONS, flush="async")).promise().level


def test_promises_are_kept_in_the_order_of_their_positions() -> None:
    store, kept = opened(), Kept()
    early, late = append(store), append(store)
    kept.when(store, late, "late")
    kept.when(store, early, "early")
    kept.when(store, late, "late again")
    kept.when(store, early._replace(level=WRITTEN), "written")
    store.write()
    assert kept.names == ["written"]
    sync(store)
    assert kept.names == ["written", "early", "late", "late again"]
    kept.when(store, late, "at once")
    assert kept.names[-1] == "at once"


def test_a_kept_promise_may_append_and_promise_again() -> None:
    store, kept = opened(), Kept()
    async_queue(store)
    store.when(append(store), lambda error: kept.when(store, append(store), "second"))
    store.write()
    assert kept == []
    store.write()
    assert kept.names == ["second"]


# -- Appending


def test_a_unit_has_consecutive_offsets_and_rising_positions() -> None:
    store = opened()
    queue, other = store.queue(KEY), store.queue(OTHER_KEY)
    frames = [Frame(queue, 2, b"a", 3), Frame(other, 2, b"b", 4), Frame(queue, 2, b"c", 5)]
    slots = store.append([*frames, StateRecord(b"set=a=1")], 1000).slots
    assert [slot.base_offset for slot in slots] == [0, 0, 3, -1]
    assert (queue.end_offset, other.end_offset) == (8, 4)
    positions = [slot.position for slot in slots]
    assert positions == sorted(set(positions))


@given(st.integers(0, 20_000), st.integers(1, COUNT_MAX))
def test_a_frame_never_writes_more_than_twice_its_size_and_four_kib(size: int, count: int) -> None:
    store = opened()
    before = store.next_position
    append(store, bytes(size), count=count)
    assert store.next_position - before + ROW_SIZE <= 2 * size + 4096


def test_a_unit_that_fails_leaves_nothing_behind() -> None:
    def fail(buffer: bytearray, at: int, slot: EntrySlot) -> None:
        buffer[at] = 0xFF
        raise ZeroDivisionError

    store = opened()
    queue = store.queue(KEY)
    good, bad = Frame(queue, 2, b"good"), Frame(queue, 2, b"bad", stamp=fail)
    position = store.next_position
    with pytest.raises(ZeroDivisionError):
        store.append([good, bad], 1000)
    assert (queue.end_offset, store.next_position) == (0, position)
    append(store, b"")
    append(store, b"last")
    write_and_sync(store)
    assert bodies(store.reader.read(queue, 0, max_bytes=1000, until=2)) == [b"", b"last"]


def test_a_unit_larger_than_a_segment_is_refused_and_nothing_has_happened() -> None:
    store = opened(options=SMALL_SEGMENTS)
    with pytest.raises(EntryTooLarge):
        append(store, bytes(1000))
    assert store.queue(KEY).end_offset == 0
    append(store, bytes(1000 - 48 - 40))


def test_more_than_the_tail_holds_is_written_early_and_heard_of_in_turn() -> None:
    disk = CrashDisk()
    store, kept = opened(disk, replace(OPTIONS, tail_bytes=2000)), Kept()
    queue = async_queue(store)
    for number in range(20):
        kept.when(store, append(store, bytes([number]) * 500), str(number))
    assert sum(len(found) for path, found in disk.contents().items() if path.startswith("log/")) > 8000
    assert (kept, queue.visible_end) == ([], 0)
    store.write()
    assert (len(kept), queue.visible_end) == (20, 20)
    assert [body[0] for body in bodies(store.reader.read(queue, 0, max_bytes=1 << 20, until=20))] == list(range(20))


# -- Reading


@pytest.mark.parametrize("is_cached", [True, False], ids=["page cache", "disk"])
@pytest.mark.parametrize("tail_bytes", [1 << 20, 300], ids=["tail", "files"])
def test_reads_give_whole_entries_within_their_limits(tail_bytes: int, is_cached: bool) -> None:
    disk = CrashDisk()
    store = opened(disk, replace(SMALL_SEGMENTS, tail_bytes=tail_bytes))
    queue = async_queue(store)
    for number in range(30):
        append(store, bytes([number]) * 100, count=2)
        append(store, b"another queue's", OTHER_KEY)
        store.write()
    disk.cached = is_cached

    def read(offset: int, max_bytes: int, until: int = 60, max_entries: int = 100) -> list[int]:
        found = store.reader.read(queue, offset, max_bytes=max_bytes, until=until, max_entries=max_entries)
        if isinstance(found, ColdRead):
            outcome: list[list[Stored] | StoreError] = []
            found.start(outcome.append)
            (cold,) = outcome
            assert isinstance(cold, list)
            found = cold
        assert all(bytes(stored.frame) == bytes([stored.base_offset // 2]) * 100 for stored in found)
        assert all(stored.frame.readonly for stored in found)
        return [stored.base_offset for stored in found]

    assert read(0, 300) == [0, 2, 4]
    assert read(1, 300) == [0, 2, 4]  # the entry that covers the offset comes whole
    assert read(4, 1) == [4]  # the first comes whatever its size
    assert read(10, 10_000, until=15) == [10, 12]  # none that ends above `until`
    assert read(10, 10_000, max_entries=3) == [10, 12, 14]
    assert read(60, 100) == []
    assert read(59, 100) == [58]
    at, found = 0, []
    while at < 60:
        found += read(at, 1000)
        at = found[-1] + 2
    assert found == list(range(0, 60, 2))


@pytest.mark.parametrize("offset", [-1, 4, 11])
def test_offsets_outside_the_queue_are_refused(offset: int) -> None:
    store = opened()
    queue = async_queue(store)
    for _ in range(10):
        append(store)
    store.write()
    store.retention.trim(queue, 5, 1000)
    with pytest.raises(OffsetOutOfRange, match=f"offset {offset} of 1/0 is outside 5..10"):
        store.reader.read(queue, offset, max_bytes=100, until=queue.visible_end)


def test_a_slice_of_the_tail_stays_valid_when_the_tail_has_moved_on() -> None:
    store = opened(options=replace(OPTIONS, tail_bytes=1000))
    queue = async_queue(store)
    append(store, b"first" * 20)
    store.write()
    found = store.reader.read(queue, 0, max_bytes=100, until=1)
    for _ in range(50):
        append(store, bytes(100))
        store.write()
    assert bodies(found) == [b"first" * 20]


def test_units_that_wait_for_their_upload_stay_in_memory_up_to_a_limit() -> None:
    """They are read from the disk only if the upload is behind by more than `shared.tail_bytes`."""
    store, tail_bytes = opened(options=replace(OPTIONS, tail_bytes=1000)), 4000
    source = store.unit_source()
    store.executors.uploads = uploads = Deferred()
    async_queue(store)

    def fill(count: int) -> None:
        for _ in range(count):
            append(store, bytes(100))
            store.write()

    def is_read_from_disk(first: int) -> bool:
        found: list[Cut | Failure] = []
        cut = source.cut(first, store.written, 1 << 20, found.append)
        if cut is None:
            uploads.run_one()
            (outcome,) = found
            assert isinstance(outcome, Cut)
        assert (cut or outcome).end > first
        return cut is None

    first = store.written
    fill(20)
    assert is_read_from_disk(first), "no upload has asked for these units"
    first = store.written
    source.keep_from(first, tail_bytes)
    fill(20)
    assert not is_read_from_disk(first)
    fill(40)
    assert is_read_from_disk(first)
    first = store.written
    source.keep_from(first, tail_bytes)
    fill(20)
    source.keep_from(store.written, tail_bytes)
    assert is_read_from_disk(first), "what was uploaded is dropped at once"


def test_wrong_bit_of_the_disk_is_not_uploaded() -> None:
    disk = CrashDisk()
    store = opened(disk, options=replace(OPTIONS, tail_bytes=1000))
    store.executors.uploads = uploads = Deferred()
    async_queue(store)
    first = store.written
    for _ in range(20):
        append(store, bytes(100))
        store.write()
    (segment,) = disk.list("log")
    disk.flip(f"log/{segment}", first + 100)
    found: list[Cut | Failure] = []
    assert store.unit_source().cut(first, store.written, 1 << 20, found.append) is None
    uploads.run_one()
    (outcome,) = found
    assert isinstance(outcome, Corruption)


def test_a_cold_read_that_retention_overtakes_is_out_of_range() -> None:
    disk = CrashDisk()
    store = opened(disk, replace(SMALL_SEGMENTS, tail_bytes=300))
    store.executors.readers = readers = Deferred()
    queue = async_queue(store)
    for _ in range(30):
        append(store, bytes(100))
        store.write()
    disk.cached = False
    cold = store.reader.read(queue, 0, max_bytes=1000, until=30)
    assert isinstance(cold, ColdRead)
    outcome: list[object] = []
    cold.start(outcome.append)
    store.retention.trim(queue, 30, 1000)
    finished(store.retention.remove_dead_segments())
    store.checkpoint(0)
    write_and_sync(store)
    readers.run_one()
    assert isinstance(outcome[0], OffsetOutOfRange)


@pytest.mark.parametrize("is_cached", [True, False])
def test_entries_are_found_by_record_time_and_by_store_time(is_cached: bool) -> None:
    disk = CrashDisk()
    store = opened(disk, replace(OPTIONS, tail_bytes=300))
    queue = async_queue(store)
    for stored_ms, timestamp_ms in ((1000, 70), (1010, 50), (1020, 90), (1020, -1), (1030, 80)):
        store.append([Frame(queue, FIRST_FRAME_FORM, bytes(100), 2, timestamp_ms)], stored_ms)
        store.write()
    disk.cached = is_cached

    def offset(found: Stored | ColdRead | None) -> int | None:
        if isinstance(found, ColdRead):
            outcome: list[list[Stored] | StoreError] = []
            found.start(outcome.append)
            (cold,) = outcome
            assert isinstance(cold, list)
            found = cold[0] if cold else None
        return None if found is None else found.base_offset

    by_time = [offset(store.reader.find_by_time(queue, at, until=10)) for at in (0, 70, 71, 90, 91)]
    assert by_time == [0, 0, 4, 4, None]
    by_store_time = [offset(store.reader.find_by_store_time(queue, at, until=10)) for at in (0, 1001, 1020, 1030, 1031)]
    assert by_store_time == [0, 2, 4, 8, None]
    assert offset(store.reader.find_by_time(queue, 90, until=4)) is None
    store.retention.trim(queue, 6, 2000)
    assert offset(store.reader.find_by_time(queue, 0, until=10)) == 6
    assert offset(store.reader.find_by_time(queue, 0, until=6)) is None


# -- When the disk fails


def failing(kind: str, code: int, failures: int | None = 1) -> tuple[FailingDisk, Store]:
    """A store on a disk whose next operation of this kind fails."""
    disk = FailingDisk(kind, 1 << 60, code, failures=failures)
    store = opened(disk)
    append(store, b"before")
    write_and_sync(store)
    disk._calls_until = 1
    return disk, store


@pytest.mark.parametrize("kind", ["write", "reserve"])
def test_a_full_disk_refuses_appends_until_the_same_bytes_are_written(kind: str) -> None:
    disk, store = failing(kind, errno.ENOSPC, failures=None)
    kept = Kept()
    bodies_wanted = [b"before"]
    for number in range(6):
        bodies_wanted.append(bytes([number]) * 900)
        kept.when(store, append(store, bodies_wanted[-1]), str(number))
    store.write()
    assert [type(error) for _, error in kept] == [DiskFull] * 6
    with pytest.raises(DiskFull):
        append(store)
    store.check_disk()
    with pytest.raises(DiskFull):
        append(store)
    assert store.refusal
    kept.when(store, store.promise(), "late")
    assert isinstance(kept[-1][1], DiskFull)

    disk.heal()
    store.check_disk()
    assert not store.refusal
    append(store, b"after")
    write_and_sync(store)
    queue = store.queue(KEY)
    assert [bytes(stored.frame) for stored in read_all(store, queue)] == [*bodies_wanted, b"after"]
    again = opened(disk.after_power_cut(seed=3))
    assert again.queue(KEY).end_offset == queue.end_offset


def test_a_repeated_write_that_fails_ends_writing() -> None:
    disk, store = failing("write", errno.ENOSPC, failures=None)
    append(store)
    store.write()
    disk._error = errno.EIO
    store.check_disk()
    disk.heal()
    store.check_disk()
    with pytest.raises(WritingEnded):
        append(store)


@pytest.mark.parametrize(("code", "said"), [
    (errno.ENOSPC, ["appends are refused, the disk is full", "the disk has room again"]),
    (errno.EDQUOT, ["appends are refused, the disk is full", "the disk has room again"]),
    (errno.EMFILE, ["appends are refused, no file can be opened", "files can be opened again"]),
    (errno.ENFILE, ["appends are refused, no file can be opened", "files can be opened again"]),
])  # fmt: skip
def test_log_says_what_was_lacking_and_that_it_is_there_again(
    code: int, said: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    disk, store = failing("write", code)
    append(store)
    store.write()
    assert store.refusal
    # Above the mark at which a full disk is written to again; file handles are no matter of the disk.
    disk.used_bytes = int(disk.total_bytes * (store.options.disk_resume_ratio + store.options.disk_full_ratio) / 2)
    store.check_disk()
    assert bool(store.refusal) == (code in NO_SPACE)
    disk.used_bytes = 0
    store.check_disk()
    assert not store.refusal
    lines = [record.getMessage() for record in caplog.records if "appends are" in record.getMessage()]
    assert [line.startswith(text) for line, text in zip(lines, said, strict=True)] == [True, True]


@pytest.mark.parametrize("code", [errno.EIO, errno.EROFS])
def test_any_other_failed_write_ends_writing(code: int) -> None:
    _, store = failing("write", code)
    kept = Kept()
    kept.when(store, append(store), "a")
    store.write()
    assert isinstance(kept[0][1], WritingEnded)
    assert_writing_has_ended(store)


def test_a_failed_fsync_ends_writing_though_the_next_one_would_succeed() -> None:
    disk, store = failing("sync", errno.EIO)
    kept = Kept()
    kept.when(store, append(store, b"lost"), "lost")
    store.write()
    kept.when(store, append(store), "unwritten")
    task = store.durability.sync_wanted()
    assert task is not None
    with pytest.raises(OSError):
        task.run()
    store.durability.synced(task, OSError(errno.EIO, "fsync"))
    assert [type(error) for _, error in kept] == [WritingEnded, WritingEnded]
    assert store.queue(KEY).visible_end == 1
    assert_writing_has_ended(store)
    assert opened(disk.after_power_cut(seed=1)).queue(KEY).end_offset >= 1


def assert_writing_has_ended(store: Store) -> None:
    with pytest.raises(WritingEnded):
        append(store)
    with pytest.raises(WritingEnded):
        store.drop_topic(1, 1000)
    store.write()
    store.check_disk()
    assert store.refusal
    assert store.durability.sync_wanted(background=True) is None
    queue = store.queue(KEY)
    assert bodies(store.reader.read(queue, 0, max_bytes=100, until=queue.visible_end)) == [b"before"]
    store.close(2000)


def test_a_store_opens_on_a_full_disk_to_be_read_and_trimmed() -> None:
    disk, store = failing("write", errno.ENOSPC, failures=None)
    disk._calls_until = 1 << 60
    store.close(1000)
    disk._calls_until = 1
    store = opened(disk)
    queue = store.queue(KEY)
    assert bodies(store.reader.read(queue, 0, max_bytes=100, until=1)) == [b"before"]
    with pytest.raises(DiskFull):
        append(store)
    disk.heal()
    store.check_disk()
    append(store)
    write_and_sync(store)


def test_a_run_that_began_on_a_full_disk_shows_nothing_before_its_number_is_durable() -> None:
    disk, store = failing("write", errno.ENOSPC, failures=None)
    store.close(1000)
    disk._calls_until = 1
    store = opened(disk)
    disk.heal()
    store.check_disk()
    queue = store.queue(KEY)
    queue.level = WRITTEN
    append(store)
    store.write()
    assert queue.visible_end == queue.end_offset
    again = [opened(disk.after_power_cut(seed)) for seed in range(20)]
    assert {each.epoch for each in again} == {store.epoch + 1}
    assert not any(each.clean for each in again)


@pytest.mark.parametrize(("code", "is_kept"), [(errno.EIO, False), (errno.EMFILE, True)])
def test_a_run_whose_number_cannot_be_synced_shows_nothing(code: int, *, is_kept: bool) -> None:
    disk, store = failing("write", errno.ENOSPC, failures=None)
    store.close(1000)
    disk._calls_until = 1
    store = opened(disk)
    disk._kind, disk._error, disk._calls_until, disk._failures_left = "sync", code, 1, 1
    store.check_disk()
    assert store.refusal
    assert store.durability.written == store.durable
    store.check_disk()
    assert bool(store.refusal) is not is_kept
    assert (store.durability.written == store.next_position) is is_kept


def test_a_failed_index_sync_ends_writing_a_failed_checkpoint_file_does_not() -> None:
    _, store = failing("rename", errno.ENOSPC)
    store.checkpoint(0)
    append(store)
    write_and_sync(store)
    assert not store.refusal

    disk, store = failing("sync", errno.EIO)
    disk._calls_until = 2  # the first is the log's
    append(store)
    store.checkpoint(0)
    write_and_sync(store)
    assert "sync of an index failed" in store.refusal


def test_above_the_disk_mark_retention_still_makes_room() -> None:
    disk = CrashDisk()
    store = opened(disk, SMALL_SEGMENTS)
    for _ in range(20):
        append(store, bytes(200))
    write_and_sync(store)
    disk.total_bytes = 6000
    store.check_disk()
    assert "of the disk are used" in store.refusal
    store.retention.trim(store.queue(KEY), 20, 1000)
    finished(store.retention.remove_dead_segments())
    assert store.checkpoint_due(0)
    store.checkpoint(0)
    write_and_sync(store)
    store.check_disk()
    assert not store.refusal


def test_what_a_kept_promise_appends_is_not_missed_by_a_checkpoint() -> None:
    disk = CrashDisk()
    store = opened(disk)
    async_queue(store)
    store.when(append(store), lambda error: [append(store) for _ in range(3)] and None)
    store.checkpoint(0)
    store.write()
    write_and_sync(store)
    again = opened(disk.after_power_cut(seed=1))
    assert again.queue(KEY).end_offset == 4
    assert len(read_all(again, again.queue(KEY))) == 4


def test_the_disk_mark_has_a_lower_one_for_resuming() -> None:
    disk = CrashDisk()
    store = opened(disk, replace(OPTIONS, disk_full_ratio=0.95, disk_resume_ratio=0.93))
    disk.total_bytes = 1000
    for used_bytes, is_taken in ((940, True), (951, False), (940, False), (930, True), (950, True)):
        disk.used_bytes = used_bytes
        store.check_disk()
        if is_taken:
            append(store)
        else:
            with pytest.raises(DiskFull):
                append(store)
    disk.used_bytes = 990
    store.check_disk()
    store.drop_topic(1, 1000)  # What makes room is never refused.
    write_and_sync(store)


# -- Retention


def test_limits_keep_at_least_what_they_say_in_whole_entries() -> None:
    store = opened()
    queue = async_queue(store)
    for number in range(10):
        append(store, bytes(100), count=3, now_ms=1000 + 10 * number)
    store.write()
    cases = [
        ({"keep_ms": 1000}, None), ({"keep_ms": 45}, 18), ({"keep_ms": 0}, 30),
        ({"keep_bytes": 1000}, None), ({"keep_bytes": 999}, None), ({"keep_bytes": 900}, 3), ({"keep_bytes": 899}, 3),
        ({"keep_bytes": 0}, 30), ({"keep_records": 30}, None), ({"keep_records": 29}, None), ({"keep_records": 27}, 3),
        ({"keep_records": 0}, 30), ({"keep_ms": 45, "keep_records": 6}, 24), ({}, None),
    ]  # fmt: skip
    for limits, start_offset in cases:
        now_ms = 1100 if "keep_ms" in limits else 5000
        assert store.retention.expire(queue, **limits, now_ms=now_ms) == start_offset, limits
    store.retention.trim(queue, 6, 2000)
    assert queue.size_bytes == 800
    assert store.retention.expire(queue, keep_bytes=800, now_ms=2000) is None
    assert store.retention.expire(queue, keep_records=20, now_ms=2000) == 9


def test_expiry_fetches_a_cold_index_in_the_background() -> None:
    disk = CrashDisk()
    store = opened(disk)
    queue = async_queue(store)
    for _ in range(10):
        append(store, bytes(100))
    for _ in range(2):  # At the second checkpoint the index is idle and leaves memory.
        store.checkpoint(0)
        store.write()
        sync(store) if store.durable < store.written else None
    store.executors.readers = readers = Deferred()
    disk.cached = False
    assert store.retention.expire(queue, keep_records=3, now_ms=1000) is None
    assert len(readers.waiting) == 2, "the look itself, and the file is opened for later ones"
    while readers.waiting:
        readers.run_one()
    disk.cached = True
    assert store.retention.expire(queue, keep_records=3, now_ms=1000) == 7


def test_the_log_start_only_rises_and_stays_below_the_visible_end() -> None:
    store = opened()
    queue = store.queue(KEY)
    for _ in range(5):
        append(store)
    with pytest.raises(OffsetOutOfRange):
        store.retention.trim(queue, 3, 1000)
    write_and_sync(store)
    store.retention.trim(queue, 3, 1000)
    store.retention.trim(queue, 2, 1000)
    assert queue.start_offset == 3


def test_segments_go_when_nothing_in_them_is_live_and_leave_gaps_between_others() -> None:
    disk = CrashDisk()
    notes = Notes()
    store = opened(disk, SMALL_SEGMENTS, notes)
    state = StateRecord(b"set=a=1")
    notes.replay_state(state.payload, store.append([state], 1000).slots[0])
    for number in range(30):
        append(store, bytes(200))
        if number == 10:
            append(store, b"kept", OTHER_KEY)
    write_and_sync(store)
    assert finished(store.retention.remove_dead_segments()) == 0
    store.retention.trim(store.queue(KEY), 30, 1000)
    before = log_paths(disk)
    store.retention.dead_segments.held_from = 0
    assert finished(store.retention.remove_dead_segments()) == 0, "somebody reads them"
    assert store.retention.dead_segments.held_bytes >= (len(before) - 2) * SMALL_SEGMENTS.segment_bytes // 2
    store.retention.dead_segments.held_from = POSITION_MAX
    assert store.retention.dead_segments.held_bytes == 0
    dead = finished(store.retention.remove_dead_segments())
    assert dead == len(before) - 2, "all but the one with the other queue's frame, and the active one"
    assert finished(store.retention.remove_dead_segments()) == dead, "they are found until they are removed"
    assert store.retention.dead_segments.removed_count == 0
    assert log_paths(disk) == before, "not before the snapshot is durable and a checkpoint is behind it"
    assert store.checkpoint_due(0)
    store.checkpoint(0)
    write_and_sync(store)
    logs, gaps = ([path for path in log_paths(disk) if path.endswith(suffix)] for suffix in (".log", ".gap"))
    assert (len(logs), len(gaps)) == (2, 1)
    assert store.retention.dead_segments.removed_count == dead
    assert finished(store.retention.remove_dead_segments()) == 0

    store.close(2000)
    for path in disk.paths():
        if not path.startswith("log/"):
            disk.remove(path)
    notes = Notes()
    store = opened(disk, SMALL_SEGMENTS, notes)
    assert notes.values == {"a": "1"}
    assert (store.queue(KEY).start_offset, store.queue(KEY).end_offset) == (30, 30)
    assert [bytes(stored.frame) for stored in read_all(store, store.queue(OTHER_KEY))] == [b"kept"]

    store.drop_topic(2, 1000)
    finished(store.retention.remove_dead_segments())
    store.checkpoint(0)
    write_and_sync(store)
    assert not [path for path in log_paths(disk) if path.endswith(".gap")], "nothing lies before the gap any more"


def log_paths(disk: CrashDisk) -> list[str]:
    return [path for path in disk.paths() if path.startswith("log/")]


def test_a_dropped_topic_is_gone_with_its_index_and_does_not_come_back() -> None:
    disk = CrashDisk()
    store = opened(disk)
    append(store)
    append(store, key=OTHER_KEY)
    store.checkpoint(0)
    write_and_sync(store)
    assert "index/1/0/00000000000000000000" in disk.paths()
    store.drop_topic(1, 1000)
    assert [queue.key for queue in store.queues()] == [OTHER_KEY]
    store.checkpoint(0)
    write_and_sync(store)
    assert [path for path in disk.paths() if path.startswith("index/1")] == []
    store.close(2000)
    assert [queue.key for queue in opened(disk).queues()] == [OTHER_KEY]


def test_a_checkpoint_is_due_by_bytes_by_time_and_for_dead_segments() -> None:
    store = opened(options=replace(OPTIONS, checkpoint_bytes=5000, checkpoint_interval_ms=1000))
    assert not store.checkpoint_due(0)
    append(store)
    assert not store.checkpoint_due(999)
    assert store.checkpoint_due(1000)
    store.checkpoint(1000)
    assert not store.checkpoint_due(9000), "one is on its way"
    write_and_sync(store)
    assert not store.checkpoint_due(9000), "nothing was appended"
    append(store, bytes(5000))
    assert store.checkpoint_due(1001)


def test_dead_segments_that_are_found_after_a_checkpoint_go_without_another_append() -> None:
    disk = CrashDisk()
    store = opened(disk, SMALL_SEGMENTS)
    for _ in range(30):
        append(store, bytes(200))
    write_and_sync(store)
    store.retention.trim(store.queue(KEY), 30, 1000)
    store.checkpoint(0)
    write_and_sync(store)
    assert finished(store.retention.remove_dead_segments()) > 0
    assert store.checkpoint_due(0), "on a full disk nothing is appended any more"
    store.checkpoint(0)
    assert finished(store.retention.remove_dead_segments()) == 0
    assert not store.checkpoint_due(0)
    assert len(log_paths(disk)) <= 2
    store.close(1000)
    assert opened(disk, SMALL_SEGMENTS).queue(KEY).start_offset == 30
