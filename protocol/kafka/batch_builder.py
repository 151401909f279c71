"""Builds batches out of records."""

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


def with_header(headers: bytes, name: str, value: bytes) -> bytes:
    """Return encoded headers with one header more at the end."""
    count, at = _header_count(headers)
    encoded = name.encode()
    return b"".join((varint(count + 1), headers[at:], varint(len(encoded)), encoded, varint(len(value)), value))


def _header_count(headers: bytes) -> tuple[int, int]:
    """Read the count before encoded headers: (count, where it ends)."""
    doubled = shift = at = 0
    while True:
        byte = headers[at]
        doubled |= (byte & 127) << shift
        at, shift = at + 1, shift + 7
        if byte < 128:
            return doubled >> 1, at
