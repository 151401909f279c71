"""Kafka's record batch, version 2 (magic 2): the frame that Kafka producers write and Kafka consumers read.

    base_offset i64 | batch_length i32 | leader_epoch i32 | magic i8 | crc u32
    | attributes i16 | last_offset_delta i32 | base_timestamp i64 | max_timestamp i64
    | producer_id i64 | producer_epoch i16 | base_sequence i32 | record_count i32      61 bytes, big-endian
    | records

    attributes   bits 0-2: codec of `records`; 3: the timestamp is the broker's (LogAppendTime); 4: transactional;
                 5: control batch
    records      record_count records, compressed together as one stream of the codec; each of them:
                 size varint | attributes i8 | timestamp delta varlong | offset delta varint
                 | key size varint, key | value size varint, value
                 | header count varint, { key size varint, key | value size varint, value } ...

`batch_length` is the number of bytes after it. The CRC-32C covers the bytes from `attributes` to the end, so the broker
can set the base offset and the leader epoch without computing it again (KIP-98). Varints are zig-zag, the least
significant bits first; a size of -1 stands for null. Timestamps are milliseconds; -1 stands for none. A batch of n
records takes n offsets; after compaction some of the records may be missing.

Source: Kafka's `DefaultRecordBatch.java`, `DefaultRecord.java`, `LogValidator.java`.
"""

import struct
from collections.abc import Sequence
from enum import Enum, auto
from typing import Final, NamedTuple

from crc32c import crc32c

from duolog.protocol.errors import ProtocolError
from duolog.protocol.kafka.compression import (
    Buffer,
    Codec,
)

HEADER_BYTES: Final = 61
MAGIC: Final = 2

# Kafka has no limit of its own on the count; librdkafka's `batch.num.messages` allows a million.
RECORDS_MAX: Final = 1 << 20

# The smallest record: size, attributes, two deltas, null key, null value and header count, one byte each.
RECORD_BYTES_MIN: Final = 7
PREFIX_BYTES: Final = 12  # base_offset and batch_length, which batch_length does not include.
CRC_FROM: Final = 21

# The difference of two timestamps up to this value is below 2^62, so that no delta exceeds the range of a varlong and
# no sum exceeds 64 bits.
TIMESTAMP_MS_MAX: Final = (1 << 62) - 2

HEADER: Final = struct.Struct(">qiibIhiqqqhii")
_BASE_OFFSET: Final = struct.Struct(">q")
_LEADER_EPOCH: Final = struct.Struct(">i")
_LENGTH: Final = struct.Struct(">i")
CRC: Final = struct.Struct(">I")
_ATTRIBUTES: Final = struct.Struct(">h")
_MAX_TIMESTAMP: Final = struct.Struct(">q")
_TIMESTAMPS: Final = struct.Struct(">qq")
_BASE_TIMESTAMP_AT: Final = 27
_LENGTH_AT, _LEADER_EPOCH_AT, CRC_AT, _MAX_TIMESTAMP_AT = 8, 12, 17, 35
ATTRIBUTES_AT: Final = 22  # The low byte of the attributes, which contains all defined bits.

_CODEC_BITS: Final = 0x07
_LOG_APPEND_TIME_BIT: Final = 0x08
TRANSACTIONAL_BIT: Final = 0x10
CONTROL_BIT: Final = 0x20

Header = tuple[str, bytes | None]


class BatchHeader(NamedTuple):
    """The decoded header of a batch: the 61 bytes before the records. Its fields are not verified."""

    base_offset: int
    batch_length: int
    leader_epoch: int
    magic: int
    crc: int
    attributes: int
    last_offset_delta: int
    base_timestamp: int
    max_timestamp: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    record_count: int

    @property
    def size(self) -> int:
        """The size of the whole batch in bytes."""
        return self.batch_length + PREFIX_BYTES

    @property
    def codec(self) -> int:
        """The number of the codec: a `Codec` if the batch is valid."""
        return self.attributes & _CODEC_BITS

    @property
    def is_log_append_time(self) -> bool:
        return bool(self.attributes & _LOG_APPEND_TIME_BIT)

    @property
    def is_transactional(self) -> bool:
        return bool(self.attributes & TRANSACTIONAL_BIT)

    @property
    def is_control(self) -> bool:
        return bool(self.attributes & CONTROL_BIT)

    @property
    def last_offset(self) -> int:
        return self.base_offset + self.last_offset_delta

    @property
    def last_sequence(self) -> int:
        """The sequence number of the last record, which wraps from 2^31 - 1 to 0; -1 if there is no producer id."""
        return (self.base_sequence + self.last_offset_delta) & 0x7FFFFFFF if self.producer_id >= 0 else -1


class Record(NamedTuple):
    """One decoded record."""

    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: Sequence[Header] = ()


class Reason(Enum):
    """Why a produced batch is refused. `bridge/kafka` maps the reasons to error codes."""

    NOT_ONE_BATCH = auto()  # The bytes are no batch, several batches, or a batch with an older magic.
    CORRUPT = auto()  # The bytes were damaged on the way, so the same request may succeed when it is sent again.
    INVALID = auto()
    TOO_LARGE = auto()  # Kafka's Java producer splits the batch and sends its parts.
    TIMESTAMP = auto()
    COMPRESSION = auto()


class RecordError(NamedTuple):
    """One record because of which a batch is refused (KIP-467). `index` counts the records of the batch from 0."""

    index: int  # type: ignore[assignment]  # This field hides tuple.index.
    message: str


class InvalidBatch(ProtocolError):
    """A produced batch is not valid and must not be appended. The connection may stay open.

    `record_errors` lists the invalid records in order; it is empty if the error concerns the batch as a whole.
    """

    def __init__(self, reason: Reason, message: str, record_errors: Sequence[RecordError] = ()) -> None:
        super().__init__(message)
        self.reason = reason
        self.record_errors = record_errors


# -- Headers


def read_header(buffer: Buffer, at: int = 0) -> BatchHeader:
    """Decode the header of the batch at `buffer[at]`. Raises ProtocolError if fewer than 61 bytes follow."""
    try:
        return tuple.__new__(BatchHeader, HEADER.unpack_from(buffer, at))
    except struct.error:
        raise ProtocolError(
            f"a batch header has {HEADER_BYTES} bytes, and only {len(buffer) - at} bytes follow"
        ) from None


def max_timestamp_of(batch: Buffer) -> int:
    """Return the field `max_timestamp` of a batch."""
    value: int = _MAX_TIMESTAMP.unpack_from(batch, _MAX_TIMESTAMP_AT)[0]
    return value


def split(batches: Buffer) -> list[memoryview]:
    """Split concatenated batches, such as the records of one partition in a Fetch answer, into one view for each.

    Raises ProtocolError if the last batch does not end with the buffer.
    """
    view = memoryview(batches)
    parts = []
    at = 0
    while at < len(view):
        size = read_header(view, at).size
        if not HEADER_BYTES <= size <= len(view) - at:
            raise ProtocolError(f"the batch has {size} bytes, and only {len(view) - at} bytes follow")
        parts.append(view[at : at + size])
        at += size
    return parts


# -- Verifying produced batches


def check(batch: Buffer, *, bytes_max: int = 0x7FFFFFFF, records_max: int = RECORDS_MAX) -> BatchHeader:
    """Verify the field `records` of one partition in a Produce request, which must be one valid batch of a client.

    Returns the header of the batch; raises InvalidBatch. Only the header and the CRC are verified; `record_check.py`
    verifies the records. The caller must check what depends on more than the batch: zstd before Produce version 7, the
    limits of the topic for timestamps, and the sequence number. The checks have the same order as in Kafka, so that
    clients receive the same errors.
    """
    size = len(batch)
    if size < HEADER_BYTES:
        raise InvalidBatch(Reason.CORRUPT if size else Reason.NOT_ONE_BATCH, f"{size} bytes are no record batch")
    header: BatchHeader = tuple.__new__(BatchHeader, HEADER.unpack_from(batch))
    length, magic, signed = header[1], header[3], header[4]
    if magic != MAGIC:
        raise InvalidBatch(Reason.NOT_ONE_BATCH, f"record batch of magic {magic}; only {MAGIC} is known")
    if length + PREFIX_BYTES != size:
        reason = Reason.NOT_ONE_BATCH if HEADER_BYTES <= header.size < size else Reason.CORRUPT
        raise InvalidBatch(reason, f"a batch of {header.size} bytes in {size} bytes of records")
    if size > bytes_max:
        raise InvalidBatch(Reason.TOO_LARGE, f"batch of {size} bytes; {bytes_max} are allowed")
    crc = crc32c(memoryview(batch)[CRC_FROM:])
    if crc != signed:
        raise InvalidBatch(Reason.CORRUPT, f"batch has CRC {crc:#010x} and says {signed:#010x}")
    _check_fields(header, records_max)
    return header


def _check_fields(header: BatchHeader, records_max: int) -> None:
    (
        base_offset, length, _, _, _, attributes, last_offset_delta, base_timestamp, max_timestamp,
        producer_id, producer_epoch, base_sequence, count,
    ) = header  # fmt: skip
    codec = attributes & _CODEC_BITS
    if base_offset != 0:
        raise InvalidBatch(Reason.INVALID, f"batch of a client with base offset {base_offset}")
    if count <= 0 or last_offset_delta != count - 1:
        raise InvalidBatch(Reason.INVALID, f"batch of {count} records with last offset delta {last_offset_delta}")
    if count > records_max:
        raise InvalidBatch(Reason.TOO_LARGE, f"batch of {count} records; {records_max} are allowed")
    if codec == Codec.NONE and count * RECORD_BYTES_MIN > length + PREFIX_BYTES - HEADER_BYTES:
        raise InvalidBatch(Reason.INVALID, f"batch claims {count} records in {length} bytes")
    if attributes & CONTROL_BIT:
        raise InvalidBatch(Reason.INVALID, "control batch of a client")
    if producer_id >= 0 and (base_sequence < 0 or producer_epoch < 0):
        raise InvalidBatch(
            Reason.INVALID, f"producer {producer_id} with epoch {producer_epoch} and sequence {base_sequence}"
        )
    if attributes & TRANSACTIONAL_BIT and producer_id < 0:
        raise InvalidBatch(Reason.INVALID, "transactional batch without a producer id")
    if attributes & _LOG_APPEND_TIME_BIT:
        raise InvalidBatch(Reason.TIMESTAMP, "a client chose LogAppendTime")
    if not (-1 <= base_timestamp <= TIMESTAMP_MS_MAX and -1 <= max_timestamp <= TIMESTAMP_MS_MAX):
        raise InvalidBatch(Reason.TIMESTAMP, f"batch with timestamps {base_timestamp} and {max_timestamp}")
    if codec > Codec.ZSTD:
        raise InvalidBatch(Reason.COMPRESSION, f"unknown compression codec {codec}")


# -- Stamping on append


def stamp(buffer: bytearray | memoryview, at: int, base_offset: int, leader_epoch: int) -> None:
    """Set the base offset and the leader epoch of the batch at `buffer[at]`. Its CRC stays valid."""
    _BASE_OFFSET.pack_into(buffer, at, base_offset)
    _LEADER_EPOCH.pack_into(buffer, at + _LEADER_EPOCH_AT, leader_epoch)


def stamp_log_append_time(buffer: bytearray | memoryview, at: int, now_ms: int) -> None:
    """Set LogAppendTime and the timestamp `now_ms` in the batch at `buffer[at]`, and compute its CRC again."""
    (attributes,) = _ATTRIBUTES.unpack_from(buffer, at + CRC_FROM)
    _ATTRIBUTES.pack_into(buffer, at + CRC_FROM, attributes | _LOG_APPEND_TIME_BIT)
    _MAX_TIMESTAMP.pack_into(buffer, at + _MAX_TIMESTAMP_AT, now_ms)
    (length,) = _LENGTH.unpack_from(buffer, at + _LENGTH_AT)
    signed = memoryview(buffer)[at + CRC_FROM : at + PREFIX_BYTES + length]
    CRC.pack_into(buffer, at + CRC_AT, crc32c(signed))


def with_max_timestamp(batch: Buffer, max_timestamp: int) -> bytearray:
    """Return a copy of a batch with another `max_timestamp` and its CRC."""
    changed = bytearray(batch)
    _MAX_TIMESTAMP.pack_into(changed, _MAX_TIMESTAMP_AT, max_timestamp)
    CRC.pack_into(changed, CRC_AT, crc32c(memoryview(changed)[CRC_FROM:]))
    return changed


def restamp_single(batch: bytearray, timestamp_ms: int) -> None:
    """Set the timestamp of the only record of an uncompressed batch, and compute the CRC again."""
    _TIMESTAMPS.pack_into(batch, _BASE_TIMESTAMP_AT, timestamp_ms, timestamp_ms)
    CRC.pack_into(batch, CRC_AT, crc32c(memoryview(batch)[CRC_FROM:]))
