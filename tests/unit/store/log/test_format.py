"""Proves the format of the log: encoded units are decoded, and any other bytes raise BadUnit only."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from duolog.store.entry import CONTROL_FORM, FIRST_FRAME_FORM, STATE_FORM, SYNCED, EntrySlot
from duolog.store.errors import EntryTooLarge
from duolog.store.files import Files
from duolog.store.index.queue import Queue
from duolog.store.index.queue_index import IndexFiles, QueueIndex
from duolog.store.log.control import (
    ControlKind,
    QueueRow,
    queue_control,
    queues_control,
    read_queue_offsets,
    read_queue_rows,
)
from duolog.store.log.encode import put_frame, put_other, sizes_of
from duolog.store.log.format import (
    ALIGNMENT,
    COUNT_MAX,
    ENTRY_HEADER_SIZE,
    EXTRA_SIZE_MAX,
    MAGIC_BYTES,
    UNIT_HEADER_SIZE,
    BadUnit,
    check_unit,
    entries_of,
    entry_size,
    seal_unit,
)
from duolog.store.log.write_buffer import Chunk
from duolog.store.unit import Frame, StateRecord
from tests.kit.disk import CrashDisk

POSITION = 1 << 40
U64 = st.integers(0, (1 << 63) - 1)


def queue(key: int, files: Files | None = None) -> Queue:
    return Queue(key, QueueIndex(IndexFiles(files or CrashDisk()), 0, 0), level=SYNCED)


def encoded(entries: list[Frame | StateRecord], *, slots: list[EntrySlot] | None = None, flags: int = 0) -> Chunk:
    sizes = [sizes_of(entry) for entry in entries]
    chunk = Chunk(POSITION, UNIT_HEADER_SIZE + sum(occupied for _, occupied in sizes))
    at = UNIT_HEADER_SIZE
    for number, (entry, (size, occupied)) in enumerate(zip(entries, sizes, strict=True)):
        if isinstance(entry, Frame):
            put_frame(chunk, at, entry, size, slots[number] if slots else EntrySlot(POSITION + at, number, 0))
        else:
            put_other(chunk, at, entry)
        at += occupied
    seal_unit(chunk.writable, 7, POSITION, POSITION - 8, 123, len(entries), flags)
    return chunk


frames = st.builds(
    Frame,
    queue=U64.map(queue),
    form=st.integers(FIRST_FRAME_FORM, 255),
    body=st.binary(max_size=100) | st.lists(st.binary(max_size=20), max_size=3).map(tuple),
    count=st.integers(1, 300),
    timestamp_ms=st.integers(-1, 1 << 50),
    tags=st.integers(-(1 << 31), (1 << 31) - 1),
    extra=st.binary(max_size=20),
)


@given(st.lists(frames | st.builds(StateRecord, st.binary(max_size=50)), max_size=4))
def test_entries_read_back(entries: list[Frame | StateRecord]) -> None:
    unit = encoded(entries)
    header = check_unit(unit.view, 0, POSITION)
    assert header[1:] == (7, POSITION, POSITION - 8, 123, len(entries), 0)
    assert header.size == len(unit.buffer)
    found = list(entries_of(unit.view, POSITION, header.entry_count))
    for number, (entry, read) in enumerate(zip(entries, found, strict=True)):
        if isinstance(entry, StateRecord):
            assert (read.form, bytes(read.frame)) == (STATE_FORM, entry.payload)
            continue
        body = entry.body if isinstance(entry.body, bytes) else b"".join(entry.body)
        assert read[1:8] == (
            entry.form, 0, entry.queue.key, number, entry.count, entry.tags, entry.timestamp_ms,
        )  # fmt: skip
        assert (bytes(read.frame), bytes(read.extra)) == (body, entry.extra)


@given(st.lists(frames, min_size=2, max_size=6))
def test_no_two_records_share_an_address(entries: list[Frame | StateRecord]) -> None:
    unit = encoded(entries)
    found = entries_of(unit.view, POSITION, len(entries))
    addresses = [entry.position + index for entry in found for index in range(entry.count)]
    assert len(set(addresses)) == len(addresses)
    assert max(addresses) < POSITION + len(unit.buffer)


@given(st.lists(frames, max_size=3), st.data())
def test_any_changed_bit_is_noticed(entries: list[Frame | StateRecord], data: st.DataObject) -> None:
    unit = encoded(entries)
    bit = data.draw(st.integers(0, 8 * len(unit.buffer) - 1))
    unit.buffer[bit // 8] ^= 1 << bit % 8
    with pytest.raises(BadUnit):
        check_unit(unit.view, 0, POSITION)


def test_a_unit_is_valid_at_its_own_position_only() -> None:
    unit = encoded([StateRecord(b"here")])
    with pytest.raises(BadUnit, match=f"the unit has position {POSITION}"):
        check_unit(unit.view, 0, POSITION + ALIGNMENT)


@given(st.binary(max_size=200), st.booleans(), st.integers(0, 50))
def test_arbitrary_bytes_raise_only_bad_unit(found: bytes, has_magic: bool, at: int) -> None:
    block = memoryview(found[:at] + (MAGIC_BYTES if has_magic else b"") + found[at:])
    with pytest.raises(BadUnit):
        check_unit(block, min(at, len(block)), POSITION)


@given(st.binary(max_size=300), st.integers(0, 10))
def test_entries_that_lie_about_their_size_raise_only_bad_unit(found: bytes, entry_count: int) -> None:
    unit = memoryview(bytes(UNIT_HEADER_SIZE) + found)
    try:
        entries = list(entries_of(unit, POSITION, entry_count))
    except BadUnit:
        return
    assert len(entries) == entry_count


@pytest.mark.parametrize(
    ("frame_size", "extra_size", "count", "occupied"),
    [
        (0, 0, 0, ENTRY_HEADER_SIZE),
        (1, 0, 1, ENTRY_HEADER_SIZE + 8),
        (8, 8, 1, ENTRY_HEADER_SIZE + 16),
        (100, 0, 1000, 1000),  # so many records in a compressed batch: padded to an address for each
        (100, 0, 1001, 1008),
        (100, 0, 100_000, 3272),  # but never out of proportion to what was sent
    ],
)
def test_size_of_an_entry(frame_size: int, extra_size: int, count: int, occupied: int) -> None:
    assert entry_size(frame_size, extra_size, count) == occupied


@pytest.mark.parametrize(
    "frame",
    [
        Frame(queue(0), FIRST_FRAME_FORM, b"", count=0),
        Frame(queue(0), FIRST_FRAME_FORM, b"", count=COUNT_MAX + 1),
        Frame(queue(0), FIRST_FRAME_FORM, b"", extra=bytes(EXTRA_SIZE_MAX + 1)),
    ],
)
def test_what_no_header_can_say_is_refused(frame: Frame) -> None:
    with pytest.raises(EntryTooLarge):
        sizes_of(frame)


def test_a_frame_takes_note_of_its_slot_before_the_unit_is_sealed() -> None:
    def stamp(buffer: bytearray, at: int, slot: EntrySlot) -> None:
        buffer[at : at + 8] = slot.base_offset.to_bytes(8, "big")

    unit = encoded([Frame(queue(1), FIRST_FRAME_FORM, bytes(8), stamp=stamp)], slots=[EntrySlot(POSITION, 99, 5)])
    check_unit(unit.view, 0, POSITION)
    (entry,) = entries_of(unit.view, POSITION, 1)
    assert bytes(entry.frame) == (99).to_bytes(8, "big")


@given(st.lists(st.builds(QueueRow, U64, U64, U64, U64)), U64, U64)
def test_control_entries_read_back(rows: list[QueueRow], start_offset: int, end_offset: int) -> None:
    assert list(read_queue_rows(queues_control(rows).payload)) == rows
    control = queue_control(5, start_offset, end_offset)
    assert (control.kind, control.key) == (ControlKind.QUEUE, 5)
    assert read_queue_offsets(control.payload) == (start_offset, end_offset)
    assert CONTROL_FORM < STATE_FORM < FIRST_FRAME_FORM
