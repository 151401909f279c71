"""Decodes the records of a batch: all of them, some at a time, or only their timestamps.

Batches are stored as producers have sent them. Records are decoded only for RocketMQ consumers, for searches by time,
and for batches whose headers ask for a delay. `record_batch.py` has the format of a record.
"""

from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from duolog.protocol.errors import ProtocolError
from duolog.protocol.kafka.compression import Buffer, inflate
from duolog.protocol.kafka.record_batch import HEADER_BYTES, TIMESTAMP_MS_MAX, BatchHeader, Header, Record, read_header
from duolog.protocol.kafka.varint import read_more, read_varint


def records(batch: Buffer, inflate_bytes_max: int) -> Iterator[Record]:
    """Decompress a batch and yield its records in order.

    Raises ProtocolError, possibly after some records, if the records contradict the header: their number or sizes are
    wrong, their offsets do not increase, or they have more than `inflate_bytes_max` bytes. Besides the decompressed
    bytes, only a few records are in memory. In header keys that are not UTF-8, U+FFFD replaces the invalid bytes, as in
    Kafka's Java client.
    """
    opened = open_batch(batch, inflate_bytes_max)
    mark = FIRST
    while mark.skipped < opened.header.record_count:
        some, mark = read_records(opened, mark, _RECORDS_AT_ONCE)
        yield from some


class OpenBatch(NamedTuple):
    """A batch with decompressed records, which can be decoded in parts."""

    header: BatchHeader
    body: bytes


class Mark(NamedTuple):
    """A boundary between two records of an OpenBatch: `FIRST`, or a result of `read_records` or `skip_records`."""

    skipped: int  # The number of records before it.
    at: int  # The index in `OpenBatch.body`.
    previous: int  # The offset delta of the record before it in zig-zag encoding, that is, doubled.


FIRST: Final = Mark(0, 0, -1)
_RECORDS_AT_ONCE: Final = 32


def open_batch(batch: Buffer, inflate_bytes_max: int) -> OpenBatch:
    """Decompress the records of a batch. Raises ProtocolError."""
    header = read_header(batch)
    return OpenBatch(header, _inflated(batch, header, inflate_bytes_max))


def records_in_slice(opened: OpenBatch, count_max: int, bytes_max: int) -> int:
    """Return how many records to decode in one slice: at most `count_max`, with about `bytes_max` bytes on average."""
    record_bytes = len(opened.body) // max(1, opened.header.record_count) or 1
    return max(1, min(count_max, bytes_max // record_bytes))


def read_records(opened: OpenBatch, mark: Mark, count_max: int) -> tuple[list[Record], Mark]:
    """Decode up to `count_max` records from a mark on; return (records, the mark after them). Raises ProtocolError."""
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
        # Most varints have one byte; `n > 127` means that more bytes follow. Sizes and offset deltas often have two
        # bytes, so these are decoded here, too. In zig-zag encoding odd numbers are negative. Only timestamp deltas may
        # be negative, so all other numbers are even and are decoded by `>> 1`.
        for _ in range(index, end_index):
            n = body[at]
            at += 1
            if n > 127:
                if (second := body[at]) < 128:
                    n += (second << 7) - 128
                    at += 1
                else:
                    n, at = read_more(body, at, n)
            doubled_end = 2 * at + n  # Doubled, so that a negative size never equals the end of the record.
            n = body[at + 1]  # Skip the attributes, which Kafka does not use yet.
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
                raise ProtocolError(f"a record has offset delta {delta / 2}, and the one before it {previous / 2}")
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
                elif n != 1:  # A null (-1) may be encoded in more bytes than necessary.
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
                elif n != 1:  # A null (-1) may be encoded in more bytes than necessary.
                    raise ProtocolError("record with a negative value size")
            n = body[at]
            at += 1
            if n:
                headers, at = _headers(body, at, n)
            else:
                headers = ()
            if 2 * at != doubled_end:
                raise ProtocolError(f"the fields of a record end at byte {at}, and by its size at {doubled_end / 2}")
            if at > len(body):
                raise IndexError
            found.append(make(Record, (base_offset + (delta >> 1), timestamp, key, value, headers)))
    except IndexError:
        raise ProtocolError(f"records end after {len(body)} bytes, before the count of {header.record_count}") from None
    if end_index == header.record_count and at != len(body):
        raise ProtocolError(f"{header.record_count} records end at {at} of {len(body)} bytes")
    return found, Mark(end_index, at, previous)


def skip_records(opened: OpenBatch, mark: Mark, count: int) -> Mark | None:
    """Return the mark `count` records after `mark`, by the sizes of the records, in a tenth of the time of decoding.

    Returns None if the offset delta of the last skipped record shows that records are missing; the caller must then
    decode the records.
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
    """Return the offset delta of the record at this index."""
    _, at = read_varint(body, at)  # The size; the attributes and the timestamp delta follow.
    _, at = read_varint(body, at + 1)
    return read_varint(body, at)[0]


def find_timestamp(batch: Buffer, timestamp_ms: int, inflate_bytes_max: int) -> tuple[int, int] | None:
    """Return (offset, timestamp) of the first record with a timestamp at or above this one; None if there is none.

    Raises as `records` does.
    """
    for found in _timestamps(batch, inflate_bytes_max):
        if found[1] >= timestamp_ms:
            return found
    return None


def max_timestamp_record(batch: Buffer, inflate_bytes_max: int) -> tuple[int, int]:
    """Return (offset, timestamp) of the first record with the greatest timestamp. Raises as `records` does."""
    return max(_timestamps(batch, inflate_bytes_max), key=lambda found: (found[1], -found[0]))


def _timestamps(batch: Buffer, inflate_bytes_max: int) -> Iterator[tuple[int, int]]:
    """Yield (offset, timestamp) of each record without decoding keys and values."""
    header = read_header(batch)
    if header.is_log_append_time:
        # All records have the same timestamp, so the first record answers every search.
        yield header.base_offset, header.max_timestamp
        return
    body = _inflated(batch, header, inflate_bytes_max)
    base_timestamp = _base_timestamp(header)
    at = 0
    try:
        for _ in range(header.record_count):
            n, at = read_varint(body, at)
            end = at + n
            delta, at = read_varint(body, at + 1)
            offset_delta, at = read_varint(body, at)
            if not (at < end <= len(body) and 0 <= offset_delta <= header.last_offset_delta):
                raise ProtocolError(f"record of {n} bytes with offset delta {offset_delta} before {at}")
            yield header.base_offset + offset_delta, base_timestamp + delta
            at = end
    except IndexError:
        raise ProtocolError(f"records end after {len(body)} bytes, before the count of {header.record_count}") from None


def _inflated(batch: Buffer, header: BatchHeader, inflate_bytes_max: int) -> bytes:
    """Return the decompressed records of a batch. The limit applies to compressed batches only."""
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
    """Decode the headers of one record. The first byte of their count was read; `at` is the index after it."""
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
