"""The commitlog's bytes: units of entries, big-endian. Writer and readers import this; neither repeats a number.

    unit      magic u32 | crc u32 | size u32 | epoch u32 | position u64 | durable u64 | stored_ms u64
              | entry_count u32 | flags u32 | entry ...                                        48 bytes and the entries

    entry     frame_size u32 | form u8 | kind u8 | extra_size u16 | key u64 | base_offset i64
              | count u32 | tags i32 | timestamp_ms i64 | frame | extra | zeros                40 bytes and what follows

A unit is what one decision appended; it is kept whole or not at all. `size` is all of it, headers included. The CRC-32C
covers all that follows it, so also the unit's own `position`, the `epoch` of the run that wrote it, and `durable`: how
far the log was durable when the unit was written. So recovery can tell a torn tail from corruption, and a unit in its
place from a stale one or one inside somebody's payload (`store/recovery/recovery.py`).

An entry occupies 40 + frame_size + extra_size bytes, rounded up to 8. A record's address is the position of its entry +
its index in it, so an entry with more records than bytes is padded with zeros, but to no more than 2 * frame_size +
3 KiB: what is written stays in proportion to what was sent. Records that no address is left for share the last one.
`kind` is a control entry's (`store/log/control.py`). A zero magic ends what was written: blocks are reserved ahead, and
read as zeros.

Downsides: a large batch is in memory whole, as the length stands in front; an entry cannot be verified without its
unit; 88 bytes of headers for a small message. Compare leveldb doc/log_format.md, where records are split over blocks so
that a reader can resynchronise; here the aligned magic with position and CRC does that.
"""

from collections.abc import Iterator
from struct import Struct
from typing import Final, NamedTuple

from crc32c import crc32c

from duolog.store.entry import Buffer

MAGIC: Final = 0x444C4731  # "DLG1"; the last digit is the version of this format
MAGIC_BYTES: Final = MAGIC.to_bytes(4, "big")
ALIGNMENT: Final = 8

UNIT_HEADER: Final = Struct(">IIIIQQQII")
UNIT_HEADER_SIZE: Final = UNIT_HEADER.size
POSITION_AT: Final = 16  # of the header's `position`
ENTRY_HEADER: Final = Struct(">IBBHQqIiq")
ENTRY_HEADER_SIZE: Final = ENTRY_HEADER.size

POSITION_MAX: Final = 1 << 62
UNIT_SIZE_MAX: Final = (1 << 32) - ALIGNMENT
EXTRA_SIZE_MAX: Final = (1 << 16) - 1
NO_OFFSET: Final = -1  # base offset of what lies in no queue
COUNT_MAX: Final = (1 << 31) - 1  # Kafka counts records with a signed 32-bit number

_PADDED_MORE: Final = 3 << 10  # With the headers of unit and entry, and a row of the index, it stays below 4 KiB.

OPENED_FLAG: Final = 1  # a run begins, `epoch` is its number; no entries
CLOSED_FLAG: Final = 2  # the last unit of a run that ended in order; no entries
LAST_FLAG: Final = 4  # the last unit of a checkpoint's file; never in the log
KNOWN_FLAGS: Final = OPENED_FLAG | CLOSED_FLAG | LAST_FLAG

_CRC: Final = Struct(">I")
_CRC_AT: Final = 4
_CRC_FROM: Final = 8


class BadUnit(Exception):
    """What lies here is not a whole unit; the message says what was expected. Recovery decides what that means."""


class UnitHeader(NamedTuple):
    size: int
    epoch: int
    position: int
    durable: int
    stored_ms: int
    entry_count: int
    flags: int


class Entry(NamedTuple):
    """One entry as it lies in the log; `frame` and `extra` are slices of the buffer that was read."""

    position: int
    form: int
    kind: int
    key: int
    base_offset: int
    count: int  # type: ignore[assignment]  # hides tuple.count
    tags: int
    timestamp_ms: int
    frame: memoryview
    extra: memoryview


def entry_size(frame_size: int, extra_size: int, count: int) -> int:
    """Return the bytes, which are also the positions, that an entry occupies."""
    size = ENTRY_HEADER_SIZE + frame_size + extra_size
    if count > size:
        size = max(size, min(count, 2 * frame_size + _PADDED_MORE))
    return (size + 7) & ~7


def seal_unit(
    unit: memoryview, epoch: int, position: int, durable: int, stored_ms: int, entry_count: int, flags: int = 0
) -> None:
    """Write the header of a unit whose entries are in place; `unit` is exactly the unit."""
    UNIT_HEADER.pack_into(unit, 0, MAGIC, 0, len(unit), epoch, position, durable, stored_ms, entry_count, flags)
    _CRC.pack_into(unit, _CRC_AT, crc32c(unit[_CRC_FROM:]))


def put_entry(buffer: bytearray, at: int, form: int, kind: int, key: int, payload: Buffer) -> int:
    """Encode an entry that belongs to no offset (state, control) at `buffer[at]`; returns the place behind it.

    `buffer` must be zero there. Frames are encoded in `store/log/encode.py`.
    """
    size = len(payload)
    ENTRY_HEADER.pack_into(buffer, at, size, form, kind, 0, key, NO_OFFSET, 0, 0, -1)
    frame_at = at + ENTRY_HEADER_SIZE
    buffer[frame_at : frame_at + size] = payload
    return at + entry_size(size, 0, 0)


def check_unit(block: memoryview, at: int, position: int | None = None) -> UnitHeader:
    """Return the header of the whole and valid unit at `block[at]`, which must be the unit of `position` if given.

    Raises BadUnit with the reason otherwise; `unit_size` tells beforehand how much of the file must be in `block`.
    """
    size = unit_size(block, at)
    if size > len(block) - at:
        raise BadUnit(f"a unit of {size} bytes where {len(block) - at} are left")
    _, crc, _, epoch, own, durable, stored_ms, entry_count, flags = UNIT_HEADER.unpack_from(block, at)
    if position is not None and own != position:
        raise BadUnit(f"the unit of position {own}")
    actual = crc32c(block[at + _CRC_FROM : at + size])
    if actual != crc:
        raise BadUnit(f"CRC {actual:#010x} where the header says {crc:#010x}")
    if flags & ~KNOWN_FLAGS:
        raise BadUnit(f"flags {flags:#x} of a later version")
    return UnitHeader(size, epoch, own, durable, stored_ms, entry_count, flags)


def read_header(block: memoryview, at: int) -> UnitHeader:
    """Return the header of a unit that was checked before."""
    return UnitHeader._make(UNIT_HEADER.unpack_from(block, at)[2:])


def unit_size(block: memoryview, at: int) -> int:
    """Return the size that the header at `block[at]` claims, so that a reader can fetch the rest; raises BadUnit."""
    if len(block) - at < UNIT_HEADER_SIZE:
        raise BadUnit(f"{len(block) - at} bytes where a header of {UNIT_HEADER_SIZE} begins")
    magic, _, size, _, _, _, _, _, _ = UNIT_HEADER.unpack_from(block, at)
    if magic != MAGIC:
        raise BadUnit(f"magic {magic:#010x}")
    if size < UNIT_HEADER_SIZE or size % ALIGNMENT:
        raise BadUnit(f"a unit of {size} bytes")
    return int(size)


def entries_of(unit: memoryview, position: int, entry_count: int) -> Iterator[Entry]:
    """Yield the entries of a unit that `check_unit` has passed; raises BadUnit where their sizes lie."""
    at = UNIT_HEADER_SIZE
    end = len(unit)
    for _ in range(entry_count):
        if end - at < ENTRY_HEADER_SIZE:
            raise BadUnit(f"an entry header at {at} of a unit of {end} bytes")
        frame_size, form, kind, extra_size, key, base, count, tags, timestamp_ms = ENTRY_HEADER.unpack_from(unit, at)
        size = entry_size(frame_size, extra_size, count)
        if size > end - at:
            raise BadUnit(f"an entry of {size} bytes at {at} of a unit of {end} bytes")
        frame_at = at + ENTRY_HEADER_SIZE
        extra_at = frame_at + frame_size
        yield Entry(
            position + at, form, kind, key, base, count, tags, timestamp_ms,
            unit[frame_at:extra_at], unit[extra_at : extra_at + extra_size],
        )  # fmt: skip
        at += size
