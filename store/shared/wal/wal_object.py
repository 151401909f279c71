"""The format of a WAL object: one slot of a stream's log in the object store, big-endian.

    wal/<sequence in 20 digits>
        magic u32 | crc u32 | kind u8 | flags u8 | zeros u16 | epoch u32 | sequence u64 | first u64 | end u64
        | previous u32 | payload_crc u32 | payload_size u32 | stream 16 bytes | writer 16 bytes              84 bytes
        | payload

An object is created once and never changed. Fields of the header:

    magic         "DLW1"; the digit is the version of this format
    crc           CRC-32C of the header after this field, and so, by `payload_crc`, of the whole object
    kind          UNITS: the payload is whole units of the log, byte for byte as in a segment. A heartbeat slot has an
                  empty payload.
                  FENCE: the writer takes over the stream, and the payload is its claim, which this module does not
                  interpret.
                  VOID: the slot is taken so that no other broker can use it. It never counts and has no payload.
    flags         ENDED_FLAG: the writer writes no further object, and another broker may take over at once
                  UNASKED_FLAG: no client has sent the writer a request for some time (`store/shared/uploader.py`)
    epoch         number of the run of the stream; a fence begins a new one
    sequence      number of the slot, by which an object under a wrong key is detected
    first, end    positions of the first byte of the units and of the byte after them; a fence has the same value twice
    previous      `crc` of the object that counts before this one; 0 for the first object of a stream
    payload_crc   CRC-32C of the payload
    stream        id of the stream
    writer        id of the process that wrote the object

`store/shared/wal/log_cursor.py` says which objects count.
"""

from collections.abc import Sequence
from enum import IntEnum
from struct import Struct
from typing import Final, NamedTuple

from crc32c import crc32c

from duolog.store.entry import Buffer
from duolog.store.errors import Corruption
from duolog.store.log.format import ALIGNMENT, POSITION_MAX
from duolog.store.log.unit_source import checksum

MAGIC: Final = b"DLW1"
ENDED_FLAG: Final = 1
UNASKED_FLAG: Final = 2
KNOWN_FLAGS: Final = ENDED_FLAG | UNASKED_FLAG
ID_BYTES: Final = 16
CLAIM_BYTES_MAX: Final = 1 << 16
OBJECT_BYTES_MAX: Final = 1 << 29  # The size of one object, which contains at least one unit, of any size.
SEQUENCE_MAX: Final = 1 << 62

_HEADER: Final = Struct(">4sIBBHIQQQIII16s16s")
HEADER_SIZE: Final = _HEADER.size
_CRC: Final = Struct(">I")
_CRC_AT: Final = 4
_CRC_FROM: Final = 8


class WalKind(IntEnum):
    UNITS = 1
    FENCE = 2
    VOID = 3


KINDS: Final = frozenset(WalKind)


class DamagedObject(Corruption):
    """An object of the store is not what was written. The message names the object, what is wrong, and the remedy."""


class Identity(NamedTuple):
    """Who writes: the stream, the process and the epoch that its fence has begun."""

    stream: bytes
    writer: bytes
    epoch: int


class WalHeader(NamedTuple):
    """The header of a WAL object without magic and sizes. `crc` is the `previous` of the next object."""

    kind: WalKind
    flags: int
    epoch: int
    sequence: int
    first: int
    end: int
    previous: int
    stream: bytes
    writer: bytes
    crc: int = 0  # Set by `encode` and `decode`.

    @property
    def identity(self) -> Identity:
        return Identity(self.stream, self.writer, self.epoch)


class WalObject(NamedTuple):
    """A decoded object. `payload` is a slice of the buffer that was decoded."""

    header: WalHeader
    payload: memoryview


FOLDER: Final = "wal/"


def key_of(sequence: int) -> str:
    """Return the key of a slot's object."""
    return f"{FOLDER}{sequence:020}"


def sequence_of(key: str) -> int | None:
    """Return the sequence in the key of a WAL object; None if the key is none."""
    name = key.removeprefix(FOLDER)
    return int(name) if key.startswith(FOLDER) and len(name) == 20 and name.isdecimal() else None


def encode(header: WalHeader, payload: Sequence[Buffer]) -> tuple[bytes, WalHeader]:
    """Return the object, and the header with its CRC."""
    parts, header = encode_parts(header, payload, checksum(payload))
    return b"".join(parts), header


def encode_parts(
    header: WalHeader, payload: Sequence[Buffer], payload_crc: int
) -> tuple[tuple[Buffer, ...], WalHeader]:
    """Return the parts of the object, and the header with its CRC.

    The payload is not copied, because new memory for it costs more than the whole upload. It must not change.
    """
    payload_size = sum(map(len, payload))
    packed = bytearray(
        _HEADER.pack(
            MAGIC,
            0,
            header.kind,
            header.flags,
            0,
            header.epoch,
            header.sequence,
            header.first,
            header.end,
            header.previous,
            payload_crc,
            payload_size,
            header.stream,
            header.writer,
        )
    )
    crc = crc32c(memoryview(packed)[_CRC_FROM:])
    _CRC.pack_into(packed, _CRC_AT, crc)
    return (bytes(packed), *payload), header._replace(crc=crc)


def decode(data: Buffer, sequence: int) -> WalObject:
    """Verify and decode the object of slot `sequence`. Raises DamagedObject."""
    key, block = key_of(sequence), memoryview(data)
    header, payload_crc, size = decode_header(block, sequence)
    if len(block) - HEADER_SIZE != size:
        raise damaged(key, f"its payload has {len(block) - HEADER_SIZE} bytes, and its header says {size}")
    payload = block[HEADER_SIZE:].toreadonly()
    actual = crc32c(payload)
    if actual != payload_crc:
        raise damaged(key, f"the CRC of its payload is {actual:#010x}, and the header has {payload_crc:#010x}")
    return WalObject(header, payload)


def decode_header(data: Buffer, sequence: int) -> tuple[WalHeader, int, int]:
    """Verify the first HEADER_SIZE bytes of the object of slot `sequence`.

    Return the header, and the CRC and the size of the payload. Raises DamagedObject.
    """
    key, block = key_of(sequence), memoryview(data)
    if len(block) < HEADER_SIZE:
        raise damaged(key, f"it has {len(block)} bytes, and its header alone has {HEADER_SIZE}")
    magic, crc, kind, flags, zeros, epoch, own, first, end, previous, payload_crc, size, stream, writer = (
        _HEADER.unpack_from(block)
    )
    if magic != MAGIC:
        if magic[:3] == MAGIC[:3]:
            raise DamagedObject(
                f"{key} has format {magic[3:]!r}, and this version of Duolog reads {MAGIC[3:]!r}: "
                "start a newer version on this machine, too"
            )
        raise damaged(key, f"it begins with {magic!r} and not with {MAGIC!r}")
    actual = crc32c(block[_CRC_FROM:HEADER_SIZE])
    if actual != crc:
        raise damaged(key, f"the CRC of its header is {actual:#010x}, and the header has {crc:#010x}")
    if own != sequence:
        raise damaged(key, f"its header has sequence {own}")
    if kind not in KINDS or flags & ~KNOWN_FLAGS or zeros:
        raise damaged(key, f"it has kind {kind}, flags {flags:#x} and {zeros:#x}, which this version does not know")
    if first % ALIGNMENT or not first <= end <= POSITION_MAX:
        raise damaged(key, f"its units are at {first} .. {end}")
    claim_bytes_max = CLAIM_BYTES_MAX if kind == WalKind.FENCE else 0
    if end - first != (size if kind == WalKind.UNITS else 0) or (kind != WalKind.UNITS and size > claim_bytes_max):
        raise damaged(key, f"it has positions {first} .. {end} and a payload of {size} bytes")
    return (
        WalHeader(WalKind(kind), flags, epoch, sequence, first, end, previous, stream, writer, crc),
        payload_crc,
        size,
    )


def damaged(key: str, what: str) -> DamagedObject:
    """Return the exception for an object that is not as it was written."""
    return DamagedObject(
        f"the object {key} is damaged: {what}; restore this object from a backup or a version of the bucket"
    )
