"""The class BatchBuilder: encodes records as a record batch (`record_batch.py`)."""

from collections.abc import Iterable, Sequence

from crc32c import crc32c

from duolog.protocol.kafka.compression import Buffer, Codec, deflate
from duolog.protocol.kafka.record_batch import (
    CONTROL_BIT,
    CRC,
    CRC_AT,
    CRC_FROM,
    HEADER,
    HEADER_BYTES,
    MAGIC,
    PREFIX_BYTES,
    TIMESTAMP_MS_MAX,
    TRANSACTIONAL_BIT,
    Header,
    Record,
)
from duolog.protocol.kafka.varint import ENCODED, ENCODED_MAX, encode_varint, varint


class BatchBuilder:
    """Encodes one batch, record by record. The same records always give the same bytes.

    The timestamp of the first record is the base timestamp. `size` is the size in bytes of the uncompressed batch so
    far.
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
        """The number of records so far."""
        return self._count

    def append(
        self,
        offset_delta: int,
        timestamp_ms: int,
        key: bytes | None,
        value: bytes | None,
        headers: Sequence[Header] = (),
    ) -> None:
        """Add a record. Its offset delta must be above that of the record before it.

        A timestamp outside -1 .. TIMESTAMP_MS_MAX is replaced by the nearest limit.
        """
        self.append_encoded(offset_delta, timestamp_ms, key, value, encoded_headers(headers) if headers else b"\0")

    def append_encoded(
        self, offset_delta: int, timestamp_ms: int, key: bytes | None, value: Buffer | None, headers: bytes
    ) -> None:
        """Add a record as `append` does, with headers that `encoded_headers` has encoded."""
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
        # The varints are looked up without a call of `varint`: five calls would double the time of this method.
        record = b"".join(
            (
                b"\0",
                ENCODED[delta_ms] if 0 <= delta_ms < ENCODED_MAX else encode_varint(delta_ms),
                ENCODED[offset_delta] if offset_delta < ENCODED_MAX else encode_varint(offset_delta),
                b"\x01" if key is None else varint(len(key)) + key,
                ENCODED[value_size] if 0 <= value_size < ENCODED_MAX else encode_varint(value_size),
                value or b"",
                headers,
            )
        )
        record_size = len(record)
        size = ENCODED[record_size] if record_size < ENCODED_MAX else encode_varint(record_size)
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
        """Return the encoded batch with its CRC. `producer` is (producer id, producer epoch, base sequence).

        `last_offset_delta` may exceed the offset delta of the last record, as after compaction. At least one record
        must have been added.
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
        HEADER.pack_into(batch, 0, base_offset, len(batch) - PREFIX_BYTES, leader_epoch, MAGIC, 0, *fields)
        CRC.pack_into(batch, CRC_AT, crc32c(memoryview(batch)[CRC_FROM:]))
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
    """Encode records in ascending order of their offsets, from `base_offset` on, as one batch (BatchBuilder)."""
    builder = BatchBuilder()
    for offset, timestamp_ms, key, value, headers in records:
        builder.append(offset - base_offset, timestamp_ms, key, value, headers)
    return builder.finish(base_offset, leader_epoch, codec=codec, producer=producer, is_transactional=is_transactional)


def encoded_headers(headers: Sequence[Header]) -> bytes:
    """Encode the headers of a record: their count, then size and bytes of each key and value."""
    parts = [varint(len(headers))]
    for name, value in headers:
        key = name.encode()
        parts += (varint(len(key)), key)
        parts += (varint(-1),) if value is None else (varint(len(value)), value)
    return b"".join(parts)


def with_header(headers: bytes, name: str, value: bytes) -> bytes:
    """Return encoded headers with one more header at the end."""
    count, at = _header_count(headers)
    encoded = name.encode()
    return b"".join((varint(count + 1), headers[at:], varint(len(encoded)), encoded, varint(len(value)), value))


def _header_count(headers: bytes) -> tuple[int, int]:
    """Return (number of headers, index after this number) of encoded headers."""
    doubled = shift = at = 0
    while True:
        byte = headers[at]
        doubled |= (byte & 127) << shift
        at, shift = at + 1, shift + 7
        if byte < 128:
            return doubled >> 1, at
