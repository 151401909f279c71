"""Kafka's record batch, version 2 (magic 2): the frame that Kafka producers write and Kafka consumers read.

    base_offset i64 | batch_length i32 | leader_epoch i32 | magic i8 | crc u32 |           <- the broker stamps the
    attributes i16 | last_offset_delta i32 | base_timestamp i64 | max_timestamp i64 |         first three but length
    producer_id i64 | producer_epoch i16 | base_sequence i32 | record_count i32 | records
                                                                                      big-endian, 61 bytes + records
    attributes   0-2 codec of `records` · 3 timestamps are the broker's (LogAppendTime) · 4 transactional · 5 control
    records      record_count times, together one stream of the codec:
                 size varint | attributes i8 | timestamp delta varlong | offset delta varint |
                 key size varint, key | value size varint, value | header count varint,
                 { key size varint, key | value size varint, value }                           size -1: null

`batch_length` counts what follows it. The CRC-32C covers `attributes` to the end, so base offset and leader epoch can
be stamped without recomputing it (KIP-98). Varints are zig-zag, least significant group first. Timestamps are
milliseconds; -1 is none. One batch of n records takes n offsets, whatever its codec; compaction may leave gaps inside.

Source: Kafka's `DefaultRecordBatch.java`, `DefaultRecord.java`, `LogValidator.java`.
"""

import struct
from collections.abc import Iterable, Iterator, Sequence
from enum import Enum, auto
from typing import Final, NamedTuple

from crc32c import crc32c

from duolog.protocol.errors import ProtocolError
from duolog.protocol.kafka.compression import (
    Buffer,
    Codec,
    deflate,
    inflate,
)

HEADER_BYTES: Final = 61
MAGIC: Final = 2

# Kafka has no limit of its own on the count; librdkafka's `batch.num.messages` allows a million.
RECORDS_MAX: Final = 1 << 20

# A record of nothing: size, attributes, two deltas, null key, null value, no headers, one byte each.
RECORD_BYTES_MIN: Final = 7
_PREFIX_BYTES: Final = 12  # base_offset and batch_length, which batch_length does not count
_CRC_FROM: Final = 21

# Any two timestamps up to this are less than 2^62 apart, so that no delta overflows a varlong, nor a sum 64 bits.
TIMESTAMP_MS_MAX: Final = (1 << 62) - 2

_HEADER: Final = struct.Struct(">qiibIhiqqqhii")
_BASE_OFFSET: Final = struct.Struct(">q")
_LEADER_EPOCH: Final = struct.Struct(">i")
_LENGTH: Final = struct.Struct(">i")
_CRC: Final = struct.Struct(">I")
_ATTRIBUTES: Final = struct.Struct(">h")
_MAX_TIMESTAMP: Final = struct.Struct(">q")
_TIMESTAMPS: Final = struct.Struct(">qq")
_BASE_TIMESTAMP_AT: Final = 27
_LENGTH_AT, _LEADER_EPOCH_AT, _CRC_AT, _MAX_TIMESTAMP_AT = 8, 12, 17, 35
ATTRIBUTES_AT: Final = 22  # Their low byte, which holds all the bits that have a meaning.

_CODEC_BITS: Final = 0x07
_LOG_APPEND_TIME_BIT: Final = 0x08
TRANSACTIONAL_BIT: Final = 0x10
CONTROL_BIT: Final = 0x20

Header = tuple[str, bytes | None]


class BatchHeader(NamedTuple):
    """The 61 bytes before the records, as they stand; nothing is checked."""

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
        """Bytes of the whole batch."""
        return self.batch_length + _PREFIX_BYTES

    @property
    def codec(self) -> int:
        """A `Codec`, unless the batch is not valid."""
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
        """The sequence number of the last record; after 2^31 - 1 comes 0. -1 without a producer id."""
        return (self.base_sequence + self.last_offset_delta) & 0x7FFFFFFF if self.producer_id >= 0 else -1


class Record(NamedTuple):
    """One message, as its writer meant it."""

    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: Sequence[Header] = ()


class Reason(Enum):
    """Why a produced batch is refused; the error code that answers it is the bridge's to choose."""

    NOT_ONE_BATCH = auto()  # none, several, or of an older magic
    CORRUPT = auto()  # the only one that a retry can mend
    INVALID = auto()
    TOO_LARGE = auto()  # Java splits the batch and sends its parts
    TIMESTAMP = auto()
    COMPRESSION = auto()


class RecordError(NamedTuple):
    """One record for which a batch is refused (KIP-467); the index counts the batch's records from 0."""

    index: int  # type: ignore[assignment]  # hides tuple.index
    message: str


class InvalidBatch(ProtocolError):
    """A produced batch that must not be appended. The connection is fine.

    `record_errors` are the records that are at fault, in order; none, if it is the batch as a whole.
    """

    def __init__(self, reason: Reason, message: str, record_errors: Sequence[RecordError] = ()) -> None:
        super().__init__(message)
        self.reason = reason
        self.record_errors = record_errors


# -- Headers


def read_header(buffer: Buffer, at: int = 0) -> BatchHeader:
    """Read the header of the batch at `buffer[at]`. Raises ProtocolError if the buffer ends before it does."""
    try:
        return tuple.__new__(BatchHeader, _HEADER.unpack_from(buffer, at))
    except struct.error:
        raise ProtocolError(f"a batch header takes {HEADER_BYTES} bytes; {len(buffer) - at} are left") from None


def max_timestamp_of(batch: Buffer) -> int:
    """Read the one field of a batch's header."""
    value: int = _MAX_TIMESTAMP.unpack_from(batch, _MAX_TIMESTAMP_AT)[0]
    return value


def split(batches: Buffer) -> list[memoryview]:
    """Cut concatenated batches, the records of one partition in a Fetch answer, into one view each.

    Raises ProtocolError unless they fill the buffer exactly.
    """
    view = memoryview(batches)
    parts = []
    at = 0
    while at < len(view):
        size = read_header(view, at).size
        if not HEADER_BYTES <= size <= len(view) - at:
            raise ProtocolError(f"batch of {size} bytes where {len(view) - at} are left")
        parts.append(view[at : at + size])
        at += size
    return parts


# -- Checking what a producer sent


def check(batch: Buffer, *, bytes_max: int = 0x7FFFFFFF, records_max: int = RECORDS_MAX) -> BatchHeader:
    """Check the records that a Produce request has for one partition: one sound batch of a client.

    Raises InvalidBatch. Records are not opened: a batch may still lie about them, and then those who open it
    (`records`, ...) raise ProtocolError. Left to the caller, because they depend on more than the batch: zstd before
    Produce 7, the topic's bounds on timestamps, the producer's sequence.
    The order of the checks is Kafka's, so that clients see the same error.
    """
    size = len(batch)
    if size < HEADER_BYTES:
        raise InvalidBatch(Reason.CORRUPT if size else Reason.NOT_ONE_BATCH, f"{size} bytes are no record batch")
    header: BatchHeader = tuple.__new__(BatchHeader, _HEADER.unpack_from(batch))
    length, magic, signed = header[1], header[3], header[4]
    if magic != MAGIC:
        raise InvalidBatch(Reason.NOT_ONE_BATCH, f"record batch of magic {magic}; only {MAGIC} is known")
    if length + _PREFIX_BYTES != size:
        reason = Reason.NOT_ONE_BATCH if HEADER_BYTES <= header.size < size else Reason.CORRUPT
        raise InvalidBatch(reason, f"a batch of {header.size} bytes in {size} bytes of records")
    if size > bytes_max:
        raise InvalidBatch(Reason.TOO_LARGE, f"batch of {size} bytes; {bytes_max} are allowed")
    crc = crc32c(memoryview(batch)[_CRC_FROM:])
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
    if codec == Codec.NONE and count * RECORD_BYTES_MIN > length + _PREFIX_BYTES - HEADER_BYTES:
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
    """Give the batch at `buffer[at]` its place in the log. Its CRC stays valid."""
    _BASE_OFFSET.pack_into(buffer, at, base_offset)
    _LEADER_EPOCH.pack_into(buffer, at + _LEADER_EPOCH_AT, leader_epoch)


def stamp_log_append_time(buffer: bytearray | memoryview, at: int, now_ms: int) -> None:
    """Say in the batch at `buffer[at]` that all its records are of `now_ms`; signs it anew."""
    (attributes,) = _ATTRIBUTES.unpack_from(buffer, at + _CRC_FROM)
    _ATTRIBUTES.pack_into(buffer, at + _CRC_FROM, attributes | _LOG_APPEND_TIME_BIT)
    _MAX_TIMESTAMP.pack_into(buffer, at + _MAX_TIMESTAMP_AT, now_ms)
    (length,) = _LENGTH.unpack_from(buffer, at + _LENGTH_AT)
    signed = memoryview(buffer)[at + _CRC_FROM : at + _PREFIX_BYTES + length]
    _CRC.pack_into(buffer, at + _CRC_AT, crc32c(signed))


def with_max_timestamp(batch: Buffer, max_timestamp: int) -> bytearray:
    """Give a copy of a batch that names another greatest timestamp, signed anew."""
    changed = bytearray(batch)
    _MAX_TIMESTAMP.pack_into(changed, _MAX_TIMESTAMP_AT, max_timestamp)
    _CRC.pack_into(changed, _CRC_AT, crc32c(memoryview(changed)[_CRC_FROM:]))
    return changed


def restamp_single(batch: bytearray, timestamp_ms: int) -> None:
    """Give the one record of an uncompressed batch another timestamp; signs it anew."""
    _TIMESTAMPS.pack_into(batch, _BASE_TIMESTAMP_AT, timestamp_ms, timestamp_ms)
    _CRC.pack_into(batch, _CRC_AT, crc32c(memoryview(batch)[_CRC_FROM:]))


# -- Reading records


def records(batch: Buffer, inflate_bytes_max: int) -> Iterator[Record]:
    """Open a batch and yield its records in order.

    Raises ProtocolError, maybe after some records, if they are not what the header says: wrong count, sizes that do
    not add up, offsets that do not rise, more than `inflate_bytes_max` bytes once inflated. Memory beyond the
    inflated bytes is that of a few records. Header keys that are not UTF-8 come with U+FFFD, as Java shows them.
    """
    opened = open_batch(batch, inflate_bytes_max)
    mark = FIRST
    while mark.skipped < opened.header.record_count:
        some, mark = read_records(opened, mark, _RECORDS_AT_ONCE)
        yield from some


class OpenBatch(NamedTuple):
    """A batch with its records inflated, to be read in parts."""

    header: BatchHeader
    body: bytes


class Mark(NamedTuple):
    """A place between two records of an open batch: `FIRST`, or what `read_records` or `skip_records` gave."""

    skipped: int  # how many records lie before it
    at: int
    previous: int  # the offset delta before it, doubled as zig-zag has it


FIRST: Final = Mark(0, 0, -1)
_RECORDS_AT_ONCE: Final = 32


def open_batch(batch: Buffer, inflate_bytes_max: int) -> OpenBatch:
    """Inflate a batch's records; raises ProtocolError."""
    header = read_header(batch)
    return OpenBatch(header, _inflated(batch, header, inflate_bytes_max))


def records_in_slice(opened: OpenBatch, count_max: int, bytes_max: int) -> int:
    """Say how many records to read at a time: `count_max`, or fewer if they are of such a size on average."""
    record_bytes = len(opened.body) // max(1, opened.header.record_count) or 1
    return max(1, min(count_max, bytes_max // record_bytes))


def read_records(opened: OpenBatch, mark: Mark, count_max: int) -> tuple[list[Record], Mark]:
    """Read up to so many records from a place on: (records, the place behind them). Raises as `records` does."""
    header, body = opened
    base_offset = header.base_offset
    base_timestamp = _base_timestamp(header)
    log_append_time = header.is_log_append_time
    timestamp = header.max_timestamp
    last_delta = 2 * header.last_offset_delta  # Doubled, as zig-zag has it.
    index, at, previous = mark
    end_index = min(index + count_max, header.record_count)
    found: list[Record] = []
    headers: Sequence[Header]
    make = tuple.__new__
    try:
        # One varint after another, each first taken as the single byte that it mostly is: `n > 127` says that more
        # follow. Sizes and deltas of offsets are as often two bytes, so these are put together here. Zig-zag is undone
        # by `>> 1`, since all but the timestamp are even: an odd number is negative.
        for _ in range(index, end_index):
            n = body[at]
            at += 1
            if n > 127:
                if (second := body[at]) < 128:
                    n += (second << 7) - 128
                    at += 1
                else:
                    n, at = read_more(body, at, n)
            doubled_end = 2 * at + n  # Doubled, so that a negative size never comes out right.
            n = body[at + 1]  # Past the attributes, which have no meaning yet.
            at += 2
            if n > 127:
                n, at = read_more(body, at, n)
            if not log_append_time:
                timestamp = base_timestamp + ((n >> 1) ^ -(n & 1))
            delta = body[at]
            at += 1
            if delta > 127:
                if (second := body[at]) < 128:
                    delta += (second << 7) - 128
                    at += 1
                else:
                    delta, at = read_more(body, at, delta)
            if not previous < delta <= last_delta or delta & 1:
                raise ProtocolError(f"record with offset delta {delta / 2} after {previous / 2}")
            previous = delta

            key = value = None
            n = body[at]
            at += 1
            if n != 1:
                if n > 127:
                    n, at = read_more(body, at, n)
                if not n & 1:
                    start = at
                    at += n >> 1
                    key = body[start:at]
                elif n != 1:  # A null may be spelled in more bytes than it needs.
                    raise ProtocolError("record with a negative key size")
            n = body[at]
            at += 1
            if n != 1:
                if n > 127:
                    if (second := body[at]) < 128:
                        n += (second << 7) - 128
                        at += 1
                    else:
                        n, at = read_more(body, at, n)
                if not n & 1:
                    start = at
                    at += n >> 1
                    value = body[start:at]
                elif n != 1:  # A null may be spelled in more bytes than it needs.
                    raise ProtocolError("record with a negative value size")
            n = body[at]
            at += 1
            if n:
                headers, at = _headers(body, at, n)
            else:
                headers = ()
            if 2 * at != doubled_end:
                raise ProtocolError(f"record ends at {at} and says {doubled_end / 2}")
            if at > len(body):
                raise IndexError
            found.append(make(Record, (base_offset + (delta >> 1), timestamp, key, value, headers)))
    except IndexError:
        raise ProtocolError(f"records end after {len(body)} bytes, before the count of {header.record_count}") from None
    if end_index == header.record_count and at != len(body):
        raise ProtocolError(f"{header.record_count} records end at {at} of {len(body)} bytes")
    return found, Mark(end_index, at, previous)


def skip_records(opened: OpenBatch, mark: Mark, count: int) -> Mark | None:
    """Give the place `count` records behind `mark`, by the records' sizes alone: a tenth of the price of reading them.

    None unless the last record skipped has the offset delta that it has without gaps: its caller then reads on to it.
    """
    if not count:
        return mark
    body, at = opened.body, mark.at
    last_delta = mark.skipped + count - 1
    try:
        for _ in range(count):
            start = at
            size = body[at]
            at += 1
            if size > 127:
                size, at = read_more(body, at, size)
            at += size >> 1
        is_sound = at <= len(body) and _offset_delta(body, start) == last_delta
    except (IndexError, ProtocolError):
        return None
    return Mark(mark.skipped + count, at, 2 * last_delta) if is_sound else None


def _offset_delta(body: bytes, at: int) -> int:
    """Give the offset delta of the record at this place."""
    _, at = _varint(body, at)  # The record's size; its attributes and its timestamp follow.
    _, at = _varint(body, at + 1)
    return _varint(body, at)[0]


def find_timestamp(batch: Buffer, timestamp_ms: int, inflate_bytes_max: int) -> tuple[int, int] | None:
    """Find the first record of at least that timestamp: (offset, its timestamp). Raises as `records` does."""
    for found in _timestamps(batch, inflate_bytes_max):
        if found[1] >= timestamp_ms:
            return found
    return None


def max_timestamp_record(batch: Buffer, inflate_bytes_max: int) -> tuple[int, int]:
    """Find the first record with the greatest timestamp: (offset, its timestamp). Raises as `records` does."""
    return max(_timestamps(batch, inflate_bytes_max), key=lambda found: (found[1], -found[0]))


def _timestamps(batch: Buffer, inflate_bytes_max: int) -> Iterator[tuple[int, int]]:
    """Walk (offset, timestamp) without cutting keys and values out."""
    header = read_header(batch)
    if header.is_log_append_time:
        # All records have the same one, so the first is the answer to every question.
        yield header.base_offset, header.max_timestamp
        return
    body = _inflated(batch, header, inflate_bytes_max)
    base_timestamp = _base_timestamp(header)
    at = 0
    try:
        for _ in range(header.record_count):
            n, at = _varint(body, at)
            end = at + n
            delta, at = _varint(body, at + 1)
            offset_delta, at = _varint(body, at)
            if not (at < end <= len(body) and 0 <= offset_delta <= header.last_offset_delta):
                raise ProtocolError(f"record of {n} bytes with offset delta {offset_delta} before {at}")
            yield header.base_offset + offset_delta, base_timestamp + delta
            at = end
    except IndexError:
        raise ProtocolError(f"records end after {len(body)} bytes, before the count of {header.record_count}") from None


def _inflated(batch: Buffer, header: BatchHeader, inflate_bytes_max: int) -> bytes:
    """The records as plain bytes. Of `batch` itself nothing is larger than itself, so only inflation is limited."""
    if header.record_count <= 0:
        raise ProtocolError(f"batch of {header.record_count} records")
    if not HEADER_BYTES <= header.size <= len(batch):
        raise ProtocolError(f"batch of {header.size} bytes in a buffer of {len(batch)}")
    packed = memoryview(batch)[HEADER_BYTES : header.size]
    return inflate(header.codec, packed, inflate_bytes_max) if header.codec else bytes(packed)


def _base_timestamp(header: BatchHeader) -> int:
    if not -1 <= header.base_timestamp <= TIMESTAMP_MS_MAX:
        raise ProtocolError(f"batch with base timestamp {header.base_timestamp}")
    return header.base_timestamp


def _headers(body: bytes, at: int, doubled_count: int) -> tuple[list[Header], int]:
    """Read the headers of one record, whose count is known by its first byte; `at` is after that byte."""
    if doubled_count > 127:
        doubled_count, at = read_more(body, at, doubled_count)
    if doubled_count & 1:
        raise ProtocolError("record with a negative header count")
    headers: list[Header] = []
    for _ in range(doubled_count >> 1):
        n = body[at]
        at += 1
        if n > 127:
            n, at = read_more(body, at, n)
        end = at + (n >> 1)
        if n & 1 or end > len(body):
            raise ProtocolError(f"record with a header key of {n / 2} bytes")
        name = body[at:end].decode("utf-8", "replace")
        n = body[end]
        at = end + 1
        if n > 127:
            n, at = read_more(body, at, n)
        if n == 1:
            headers.append((name, None))
            continue
        if n & 1:
            raise ProtocolError("record with a negative header value size")
        end = at + (n >> 1)
        headers.append((name, body[at:end]))
        at = end
    return headers, at


# -- Building batches


class BatchBuilder:
    """A batch that grows by one record at a time; the same records always give the same bytes.

    The first record's timestamp is the base of the others'. `size` is what `finish` will give, if not compressed.
    """

    __slots__ = ("_base_timestamp", "_count", "_last_offset_delta", "_max_timestamp", "_parts", "size")

    def __init__(self) -> None:
        self._parts: list[bytes] = []
        self._count = 0
        self._base_timestamp = self._max_timestamp = -1
        self._last_offset_delta = -1
        self.size = HEADER_BYTES

    @property
    def count(self) -> int:
        """Records so far."""
        return self._count

    def append(
        self,
        offset_delta: int,
        timestamp_ms: int,
        key: bytes | None,
        value: bytes | None,
        headers: Sequence[Header] = (),
    ) -> None:
        """Add a record; offset deltas must rise. A timestamp outside -1 to TIMESTAMP_MS_MAX becomes the nearest."""
        self.append_encoded(offset_delta, timestamp_ms, key, value, encoded_headers(headers) if headers else b"\0")

    def append_encoded(
        self, offset_delta: int, timestamp_ms: int, key: bytes | None, value: Buffer | None, headers: bytes
    ) -> None:
        """The same, with headers encoded already: their count, then key and value of each, sizes as varints."""
        assert offset_delta > self._last_offset_delta, f"offset delta {offset_delta} after {self._last_offset_delta}"
        self._last_offset_delta = offset_delta
        if not -1 <= timestamp_ms <= TIMESTAMP_MS_MAX:
            timestamp_ms = min(max(timestamp_ms, -1), TIMESTAMP_MS_MAX)
        if not self._count:
            self._base_timestamp = self._max_timestamp = timestamp_ms
        elif timestamp_ms > self._max_timestamp:
            self._max_timestamp = timestamp_ms
        self._count += 1
        delta_ms = timestamp_ms - self._base_timestamp
        value_size = -1 if value is None else len(value)
        # The varints of every record are looked up here: five calls would take as long as all the rest.
        record = b"".join(
            (
                b"\0",
                _ENCODED[delta_ms] if 0 <= delta_ms < _ENCODED_MAX else _encode(delta_ms),
                _ENCODED[offset_delta] if offset_delta < _ENCODED_MAX else _encode(offset_delta),
                b"\x01" if key is None else varint(len(key)) + key,
                _ENCODED[value_size] if 0 <= value_size < _ENCODED_MAX else _encode(value_size),
                value or b"",
                headers,
            )
        )
        record_size = len(record)
        size = _ENCODED[record_size] if record_size < _ENCODED_MAX else _encode(record_size)
        self._parts += (size, record)
        self.size += len(size) + record_size

    def finish(
        self,
        base_offset: int,
        leader_epoch: int,
        *,
        codec: int = Codec.NONE,
        producer: tuple[int, int, int] = (-1, -1, -1),
        is_transactional: bool = False,
        is_control: bool = False,
        last_offset_delta: int | None = None,
    ) -> bytearray:
        """Give the batch, signed. `producer` is its id, epoch and base sequence.

        `last_offset_delta` makes the batch cover offsets after its last record. A batch without records is not allowed.
        """
        assert self._count, "a batch without records"
        if codec:
            parts = [bytes(HEADER_BYTES), deflate(codec, b"".join(self._parts))]
        else:
            parts = [bytes(HEADER_BYTES), *self._parts]
        batch = bytearray().join(parts)
        fields = (
            codec | (TRANSACTIONAL_BIT if is_transactional else 0) | (CONTROL_BIT if is_control else 0),
            self._last_offset_delta if last_offset_delta is None else last_offset_delta,
            self._base_timestamp,
            self._max_timestamp,
            *producer,
            self._count,
        )
        _HEADER.pack_into(batch, 0, base_offset, len(batch) - _PREFIX_BYTES, leader_epoch, MAGIC, 0, *fields)
        _CRC.pack_into(batch, _CRC_AT, crc32c(memoryview(batch)[_CRC_FROM:]))
        return batch


def build(
    records: Iterable[Record],
    base_offset: int,
    leader_epoch: int,
    *,
    codec: int = Codec.NONE,
    producer: tuple[int, int, int] = (-1, -1, -1),
    is_transactional: bool = False,
) -> bytearray:
    """Build one batch of records whose offsets rise from `base_offset` on; see BatchBuilder."""
    builder = BatchBuilder()
    for offset, timestamp_ms, key, value, headers in records:
        builder.append(offset - base_offset, timestamp_ms, key, value, headers)
    return builder.finish(base_offset, leader_epoch, codec=codec, producer=producer, is_transactional=is_transactional)


def encoded_headers(headers: Sequence[Header]) -> bytes:
    parts = [varint(len(headers))]
    for name, value in headers:
        key = name.encode()
        parts += (varint(len(key)), key)
        parts += (varint(-1),) if value is None else (varint(len(value)), value)
    return b"".join(parts)


# -- Varints


def _varint(body: bytes, at: int) -> tuple[int, int]:
    """Read a zig-zag varint: (value, where it ends)."""
    n = body[at]
    at += 1
    if n > 127:
        n, at = read_more(body, at, n)
    return (n >> 1) ^ -(n & 1), at


def read_more(body: bytes, at: int, first: int) -> tuple[int, int]:
    """Go on with a varint whose first byte says that there are more: (value still in zig-zag, where it ends)."""
    byte = body[at]
    if byte < 128:
        return first & 127 | byte << 7, at + 1
    value = first & 127
    shift = 7
    while byte > 127:
        value |= (byte & 127) << shift
        shift += 7
        if shift > 56:
            raise ProtocolError(f"varint longer than 9 bytes at {at}")
        at += 1
        byte = body[at]
    return value | byte << shift, at + 1


def _encode(value: int) -> bytes:
    n = value << 1 ^ value >> 63
    encoded = bytearray()
    while n > 127:
        encoded.append(n & 127 | 128)
        n >>= 7
    encoded.append(n)
    return bytes(encoded)


# Most of what is encoded are sizes and deltas below this.
_ENCODED_MAX: Final = 2048
_ENCODED: Final = tuple(map(_encode, range(_ENCODED_MAX)))


def varint(value: int) -> bytes:
    """Give `value` as a zig-zag varint."""
    return _ENCODED[value] if 0 <= value < _ENCODED_MAX else _encode(value)
