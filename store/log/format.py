"""The format of the commitlog: units of entries, big-endian.

    unit      magic u32 | crc u32 | size u32 | epoch u32 | position u64 | durable u64 | stored_ms u64
              | entry_count u32 | flags u32                                                    48 bytes
              | entry ...

    entry     frame_size u32 | form u8 | kind u8 | extra_size u16 | key u64 | base_offset i64
              | count u32 | tags i32 | timestamp_ms i64                                        40 bytes
              | frame | extra | zeros

A unit holds the entries that one decision appends; recovery keeps a unit whole or not at all. Fields of its header:

    magic        "DLG1". Zeros instead of it mark the end of what was written: reserved blocks read as zeros.
    crc          CRC-32C of all bytes of the unit after this field
    size         size of the unit in bytes, header included; a multiple of 8
    epoch        number of the run that wrote the unit
    position     position of the unit in the log
    durable      position up to which the log was durable when the unit was encoded
    stored_ms    store time of the entries

By `durable`, recovery distinguishes a torn end from corruption. By `position` and `epoch` it distinguishes a unit of
the log from an old one and from a copy in the payload of a message (`store/recovery/recovery.py`).

An entry occupies 40 + frame_size + extra_size bytes, rounded up to a multiple of 8. `form` is the frame format, `key`
the queue key, `tags` the tag hash, `kind` is used by control entries only (`store/log/control.py`). The address of a
record is the position of its entry + the index of the record in the entry. An entry with more records than bytes is
therefore padded with zeros, but to at most 2 * frame_size + 3 KiB, so that the size of the log stays in proportion to
what was sent. Records beyond the last address of the entry share that address.

Downsides: a large unit is in memory as a whole, because its size precedes its content; an entry cannot be verified
without its unit; a small message has 88 bytes of headers. Compare LevelDB's doc/log_format.md, which splits records
over blocks so that a reader can resynchronise; here a reader searches for an aligned magic and checks position and CRC.
"""

from collections.abc import Iterator
from struct import Struct
from typing import Final, NamedTuple

from crc32c import crc32c

from duolog.store.entry import Buffer, new_tuple

MAGIC: Final = 0x444C4731  # "DLG1". The digit is the version of this format.
MAGIC_BYTES: Final = MAGIC.to_bytes(4, "big")
ALIGNMENT: Final = 8

UNIT_HEADER: Final = Struct(">IIIIQQQII")
UNIT_HEADER_SIZE: Final = UNIT_HEADER.size
POSITION_AT: Final = 16  # Byte of the field `position` in the header.
ENTRY_HEADER: Final = Struct(">IBBHQqIiq")
ENTRY_HEADER_SIZE: Final = ENTRY_HEADER.size

POSITION_MAX: Final = 1 << 62
UNIT_SIZE_MAX: Final = (1 << 32) - ALIGNMENT
EXTRA_SIZE_MAX: Final = (1 << 16) - 1
NO_OFFSET: Final = -1  # `base_offset` of entries that belong to no queue.
COUNT_MAX: Final = (1 << 31) - 1  # Kafka counts the records of a batch with a signed 32-bit number.

_PADDED_MORE: Final = 3 << 10  # Below 4 KiB together with the headers of unit and entry and the index row.

OPENED_FLAG: Final = 1  # The first unit of a run; it has no entries.
CLOSED_FLAG: Final = 2  # The last unit of a run that ended with `Store.close`; it has no entries.
LAST_FLAG: Final = 4  # The last unit of a checkpoint or snapshot; never set in the log.
KNOWN_FLAGS: Final = OPENED_FLAG | CLOSED_FLAG | LAST_FLAG

_CRC: Final = Struct(">I")
_CRC_AT: Final = 4
_CRC_FROM: Final = 8


class BadUnit(Exception):
    """The bytes at a position are no whole and valid unit. Recovery decides whether they are a torn end or damage."""


class UnitHeader(NamedTuple):
    """The fields of a unit's header, without magic and CRC."""

    size: int
    epoch: int
    position: int
    durable: int
    stored_ms: int
    entry_count: int
    flags: int


class Entry(NamedTuple):
    """One entry that was read from the log; `frame` and `extra` are slices of the buffer that was read."""

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
    """Return how many bytes, and therefore positions, an entry occupies."""
    size = ENTRY_HEADER_SIZE + frame_size + extra_size
    if count > size:
        size = max(size, min(count, 2 * frame_size + _PADDED_MORE))
    return (size + 7) & ~7


def seal_unit(
    unit: memoryview, epoch: int, position: int, durable: int, stored_ms: int, entry_count: int, flags: int = 0
) -> None:
    """Write the header of a unit whose entries are already encoded. `unit` is the buffer of the whole unit."""
    UNIT_HEADER.pack_into(unit, 0, MAGIC, 0, len(unit), epoch, position, durable, stored_ms, entry_count, flags)
    _CRC.pack_into(unit, _CRC_AT, crc32c(unit[_CRC_FROM:]))


def put_entry(
    buffer: bytearray, at: int, form: int, kind: int, key: int, payload: Buffer, base: int = NO_OFFSET, count: int = 0
) -> int:
    """Encode an entry without extra, tags and timestamp at `buffer[at]`; return the index of the byte after the entry.

    The buffer must contain zeros there. By default the entry belongs to no queue, as state records and control entries
    do. The messages of clients are encoded in `store/log/encode.py`.
    """
    size = len(payload)
    ENTRY_HEADER.pack_into(buffer, at, size, form, kind, 0, key, base, count, 0, -1)
    frame_at = at + ENTRY_HEADER_SIZE
    buffer[frame_at : frame_at + size] = payload
    return at + entry_size(size, 0, count)


def check_unit(block: memoryview, at: int, position: int | None = None) -> UnitHeader:
    """Verify the unit at `block[at]` and return its header. With `position`, the unit must have this position.

    `block` must contain the whole unit; `unit_size` returns its size beforehand. Raises BadUnit with the reason if the
    unit is not whole or not valid.
    """
    size = unit_size(block, at)
    if size > len(block) - at:
        raise BadUnit(f"the unit has {size} bytes, and only {len(block) - at} bytes follow")
    _, crc, _, epoch, own, durable, stored_ms, entry_count, flags = UNIT_HEADER.unpack_from(block, at)
    if position is not None and own != position:
        raise BadUnit(f"the unit has position {own} in its header")
    actual = crc32c(block[at + _CRC_FROM : at + size])
    if actual != crc:
        raise BadUnit(f"the CRC is {actual:#010x}, and the header has {crc:#010x}")
    if flags & ~KNOWN_FLAGS:
        raise BadUnit(f"the unit has flags {flags:#x}, which this version does not know")
    return UnitHeader(size, epoch, own, durable, stored_ms, entry_count, flags)


def read_header(block: memoryview, at: int) -> UnitHeader:
    """Return the header of a unit that `check_unit` has verified."""
    return UnitHeader._make(UNIT_HEADER.unpack_from(block, at)[2:])


def unit_size(block: memoryview, at: int) -> int:
    """Return the size in bytes that the header at `block[at]` states. Nothing else of the unit is verified.

    Raises BadUnit if the header is incomplete, or its magic or size is not valid.
    """
    if len(block) - at < UNIT_HEADER_SIZE:
        raise BadUnit(f"a header has {UNIT_HEADER_SIZE} bytes, and only {len(block) - at} bytes follow")
    magic, _, size, _, _, _, _, _, _ = UNIT_HEADER.unpack_from(block, at)
    if magic != MAGIC:
        raise BadUnit(f"the magic is {magic:#010x}, not {MAGIC:#010x}")
    if size < UNIT_HEADER_SIZE or size % ALIGNMENT:
        raise BadUnit(f"the header has a size of {size} bytes, which is not possible")
    return int(size)


def entries_of(unit: memoryview, position: int, entry_count: int) -> Iterator[Entry]:
    """Yield the entries of a unit that `check_unit` has verified. Raises BadUnit if an entry exceeds the unit."""
    at = UNIT_HEADER_SIZE
    end = len(unit)
    for _ in range(entry_count):
        if end - at < ENTRY_HEADER_SIZE:
            raise BadUnit(f"the entry header at byte {at} exceeds the unit of {end} bytes")
        frame_size, form, kind, extra_size, key, base, count, tags, timestamp_ms = ENTRY_HEADER.unpack_from(unit, at)
        size = entry_size(frame_size, extra_size, count)
        if size > end - at:
            raise BadUnit(f"the entry of {size} bytes at byte {at} exceeds the unit of {end} bytes")
        frame_at = at + ENTRY_HEADER_SIZE
        extra_at = frame_at + frame_size
        yield new_tuple(
            Entry,
            (
                position + at, form, kind, key, base, count, tags, timestamp_ms,
                unit[frame_at:extra_at], unit[extra_at : extra_at + extra_size],
            ),
        )  # fmt: skip
        at += size
