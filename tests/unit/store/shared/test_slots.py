"""Proves the table of `slots.py`, and what a reader counts, on slots that two writers fill."""

import pytest

from duolog.store.log.unit_source import Cut
from duolog.store.shared.lease import OwnerLease
from duolog.store.shared.wal.log_cursor import Fence, Ignored, LogCursor, Units
from duolog.store.shared.wal.slots import WINDOW, Slots, Tail, Upload, UploadStep
from duolog.store.shared.wal.wal_object import DamagedObject, Identity, WalHeader, WalKind, encode

STREAM = b"s" * 16
OLD, NEW = Identity(STREAM, b"o" * 16, 2), Identity(STREAM, b"n" * 16, 3)
UNIT = b"8 bytes."


def fence(identity: Identity, after: Tail) -> tuple[bytes, Tail]:
    stream, writer, epoch = identity
    sequence = after.sequence + 1
    asked = WalHeader(WalKind.FENCE, 0, epoch, sequence, after.position, after.position, after.crc, stream, writer)
    data, header = encode(asked, [b"claim"])
    return data, Tail(sequence, after.position, header.crc)


def begin(slots: Slots) -> Upload:
    return slots.begin(Cut.of(slots.end + len(UNIT), [UNIT]))


def content(upload: Upload) -> bytes:
    return b"".join(upload.parts)


def pipelined(identity: Identity = OLD) -> tuple[list[bytes], Slots]:
    """Return the objects up to the end of the first window, and the slots of their writer."""
    data, tail = fence(identity, Tail(-1, 0, 0))
    objects, slots = [data], Slots(identity, tail, 1, 1 << 20)
    for _ in range(WINDOW):
        upload = begin(slots)
        objects.append(content(upload))
        assert slots.created(upload) == [upload]
    return objects, slots


def read(cursor: LogCursor, objects: list[bytes]) -> list[type]:
    return [type(cursor.take(data)) for data in objects]


def test_slot_counts_when_all_slots_before_it_count() -> None:
    _, slots = pipelined()
    first, second, third = (begin(slots) for _ in range(3))
    assert slots.created(second) == []
    assert slots.counted.sequence == WINDOW
    assert slots.created(first) == [first, second]
    assert slots.created(third) == [third]
    assert slots.counted == Tail(WINDOW + 3, (WINDOW + 3) * len(UNIT), third.header.crc)


def test_uploads_in_flight_are_bounded_in_number_and_bytes() -> None:
    _, slots = pipelined()
    for _ in range(WINDOW):
        begin(slots)
    assert not slots.has_room
    _, slots = pipelined()
    slots.begin(Cut.of(slots.end + (1 << 20), [bytes(1 << 20)]))
    assert not slots.has_room


@pytest.mark.parametrize(
    ("other", "step", "reason"),
    [
        (None, UploadStep.CREATE, ""),
        ("own", UploadStep.DONE, ""),
        (NEW, UploadStep.DEPOSED, "another broker has taken over"),
        (NEW._replace(stream=b"t" * 16), UploadStep.DEPOSED, "two clusters"),
        (OLD._replace(writer=b"x" * 16), UploadStep.DEPOSED, "which cannot be"),
        (OLD._replace(epoch=1), UploadStep.DEPOSED, "which cannot be"),
        ("damaged", UploadStep.DEPOSED, "is damaged"),
    ],
)
def test_slot_that_is_taken_is_read_back(other: Identity | str | None, step: UploadStep, reason: str) -> None:
    _, slots = pipelined()
    upload = begin(slots)
    if isinstance(other, Identity):
        data = content(begin(Slots(other, Tail(WINDOW, 8 * WINDOW, 0), WINDOW + 1, 1 << 20)))
    else:
        data = {"own": content(upload), "damaged": content(upload)[:-1], None: None}[other]
    assert slots.found(upload, data) is step
    assert reason in slots.deposed
    assert bool(slots.deposed) == (step is UploadStep.DEPOSED)
    assert not slots.deposed or not slots.has_room


def test_what_a_deposed_owner_writes_behind_the_fence_and_taken_slots_are_skipped_by_readers() -> None:
    objects, old = pipelined()
    lost, behind, second = begin(old), begin(old), begin(old)
    data, tail = fence(NEW, old.counted)
    assert tail.sequence == lost.header.sequence, "the fence takes the first slot that does not count"
    asked = second.header._replace(kind=WalKind.VOID, epoch=NEW.epoch, writer=NEW.writer, end=second.header.first)
    void, _ = encode(asked, [])
    new = Slots(NEW, tail, second.header.sequence + 1, 1 << 20)
    upload = begin(new)
    assert new.created(upload) == [upload]
    assert upload.header.sequence == second.header.sequence + 1
    for own, other in ((lost, data), (second, void)):
        assert old.found(own, other) is UploadStep.DEPOSED
    cursor = LogCursor.at_start(STREAM)
    kinds = read(cursor, [*objects, data, content(behind), void, content(upload)])
    assert kinds == [Fence, *[Units] * WINDOW, Fence, Ignored, Ignored, Units]
    assert (cursor.owner, cursor.position) == (NEW, new.counted.position)


def test_reader_notices_what_does_not_follow() -> None:
    objects, slots = pipelined()
    first, second = begin(slots), begin(slots)
    unfenced = begin(Slots(NEW, Tail(WINDOW, 8 * WINDOW, slots.counted.crc), WINDOW + 1, 1 << 20))
    double, _ = fence(OLD, slots.counted)
    moved, _ = encode(second.header._replace(sequence=first.header.sequence), [UNIT])
    unlinked, _ = encode(first.header._replace(previous=1), [UNIT])
    foreign, _ = encode(first.header._replace(stream=b"t" * 16), [UNIT])
    for data, reason in (
        (content(unfenced), "has kind UNITS and epoch 3"),
        (double, "has kind FENCE and epoch 2"),
        (moved, "begins at position"),
        (unlinked, "follows an object with checksum 0x00000001"),
        (foreign, "two clusters use one prefix"),
    ):
        cursor = LogCursor.at_start(STREAM)
        read(cursor, objects)
        with pytest.raises(DamagedObject, match=reason):
            cursor.take(data)
        assert isinstance(cursor.take(content(first)), Units), "the cursor has not moved"


def test_lease_ends_before_a_standby_may_begin() -> None:
    lease = OwnerLease(3_000, 10_000)
    assert lease.is_valid(12_699)
    assert not lease.is_valid(12_700)
    lease.renew(11_000)
    lease.renew(10_500)
    assert lease.is_valid(13_699)
    assert not lease.is_valid(13_700)
