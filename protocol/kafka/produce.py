"""Encodes and decodes Produce (key 0, versions 3 to 12) without kio, whose objects would cost more than the append.

    request   transactional_id string? | acks i16 | timeout_ms i32 | [ topic | [ partition i32 | records bytes? ] ]
    answer    [ topic | [ partition i32 | error i16 | base_offset i64 | log_append_time i64 |
                          v5: log_start_offset i64 |
                          v8: record errors [ batch_index i32 | message string? ] | error_message string? ] ]
              | throttle_ms i32

From version 9 on all fields have compact encodings, and tagged fields follow each struct. The tagged fields of version
10 (current leader, node endpoints) are about other brokers and are never written. Versions 0 to 2 have message sets
with older magics. ApiVersions lists them, so that old versions of librdkafka compress, but requests with them are
refused.

Source: Kafka's `ProduceRequest.json`, `ProduceResponse.json`.
"""

import struct
from collections.abc import Sequence
from typing import Final, NamedTuple

from duolog.protocol.errors import ProtocolError
from duolog.protocol.kafka.primitive_types import (
    CLASSIC,
    COMPACT,
    ELEMENTS_MAX,
    MALFORMED,
    TAGS_ELEMENT_BYTES,
    Buffer,
    by_topic,
    new_tuple,
    too_many_elements,
)
from duolog.protocol.kafka.record_batch import RecordError

VERSION_MIN: Final = 3
VERSION_MAX: Final = 12
_COMPACT_FROM: Final = 9
_ONE_COMPACT: Final = COMPACT.array_count(1)
_ONE_CLASSIC: Final = CLASSIC.array_count(1)

_ACKS_TIMEOUT = struct.Struct(">hi")
_I32 = struct.Struct(">i")
_PRODUCED = struct.Struct(">ihqq")
_PRODUCED_V5 = struct.Struct(">ihqqq")
_FRAME_HEADER = struct.Struct(">ii")


class PartitionRecords(NamedTuple):
    """The records of one partition in a request."""

    topic: str
    partition: int
    records: memoryview | None  # A slice of the request's buffer.


class ProduceRequest(NamedTuple):
    transactional_id: str | None
    acks: int
    timeout_ms: int
    partitions: list[PartitionRecords]


class PartitionProduced(NamedTuple):
    """The result of one partition in a response. The default values are those of an error."""

    topic: str
    partition: int
    error: int = 0
    base_offset: int = -1
    log_append_time_ms: int = -1
    log_start_offset: int = -1
    error_message: str | None = None
    record_errors: Sequence[RecordError] = ()  # The invalid records; sent from version 8 on.


def decode_request(version: int, buffer: Buffer, at: int = 0, elements_max: int = ELEMENTS_MAX) -> ProduceRequest:
    """Decode the body of a request at `buffer[at]`. Raises ProtocolError.

    Bytes after the body are ignored, as in Kafka. A topic or partition that occurs twice in the request occurs twice in
    the result.
    """
    _check(version)
    try:
        return _decode(version, memoryview(buffer), at, elements_max)
    except MALFORMED as error:
        raise ProtocolError(f"malformed Produce request of version {version}: {error}") from None


def _decode(version: int, view: memoryview, at: int, elements_max: int) -> ProduceRequest:
    read_string, read_bytes, read_count, skip_tags, *_ = COMPACT if version >= _COMPACT_FROM else CLASSIC
    transactional_id, at = read_string(view, at)
    acks, timeout_ms = _ACKS_TIMEOUT.unpack_from(view, at)
    topic_count, at = read_count(view, at + _ACKS_TIMEOUT.size)
    partitions: list[PartitionRecords] = []
    elements_left = elements_max - topic_count
    if elements_left < 0:
        raise too_many_elements(elements_max)
    for _ in range(topic_count):
        topic, at = read_string(view, at)
        if topic is None:
            raise ProtocolError("the name of a topic is null")
        count, at = read_count(view, at)
        elements_left -= count
        for _ in range(count if elements_left >= 0 else 0):
            (partition,) = _I32.unpack_from(view, at)
            records, tags_at = read_bytes(view, at + 4)
            at = skip_tags(view, tags_at)
            if at > tags_at + 1:
                elements_left -= (at - tags_at) // TAGS_ELEMENT_BYTES
            partitions.append(new_tuple(PartitionRecords, (topic, partition, records)))
        tags_at = at
        at = skip_tags(view, at)
        elements_left -= (at - tags_at) // TAGS_ELEMENT_BYTES
        if elements_left < 0:
            raise too_many_elements(elements_max)
    skip_tags(view, at)
    return new_tuple(ProduceRequest, (transactional_id, acks, timeout_ms, partitions))


def encode_response(
    version: int, correlation_id: int, partitions: Sequence[PartitionProduced], throttle_ms: int = 0
) -> list[bytes]:
    """Encode a response as one frame, including its length. Consecutive partitions of a topic are grouped."""
    _check(version)
    wire = COMPACT if version >= _COMPACT_FROM else CLASSIC
    no_tags = wire.no_tags
    if len(partitions) == 1:  # Most requests have one partition; this takes half of the time of the general form.
        produced = partitions[0]
        one = _ONE_COMPACT if version >= _COMPACT_FROM else _ONE_CLASSIC
        partition = _encode_partition(version, produced)
        parts = [no_tags, one, wire.string(produced.topic), one, partition, no_tags, _I32.pack(throttle_ms), no_tags]
    else:
        topics = by_topic(partitions)
        parts = [no_tags, wire.array_count(len(topics))]
        for topic, produced_of_topic in topics:
            parts += (wire.string(topic), wire.array_count(len(produced_of_topic)))
            parts += [_encode_partition(version, produced) for produced in produced_of_topic]
            parts.append(no_tags)
        parts += (_I32.pack(throttle_ms), no_tags)
    # In flexible versions, the response header has tagged fields, too.
    body = b"".join(parts)
    return [_FRAME_HEADER.pack(len(body) + 4, correlation_id) + body]


def _encode_partition(version: int, produced: PartitionProduced) -> bytes:
    _, partition, error, base_offset, log_append_time_ms, log_start_offset, message, record_errors = produced
    if version < 5:
        return _PRODUCED.pack(partition, error, base_offset, log_append_time_ms)
    fields = _PRODUCED_V5.pack(partition, error, base_offset, log_append_time_ms, log_start_offset)
    if version < 8:
        return fields
    if not record_errors and message is None:  # This is the case for nearly all results.
        return fields + (b"\x01\0\0" if version >= _COMPACT_FROM else b"\0\0\0\0\xff\xff")
    wire = COMPACT if version >= _COMPACT_FROM else CLASSIC
    parts = [fields, wire.array_count(len(record_errors))]
    for index, text in record_errors:
        parts += (_I32.pack(index), wire.string(text), wire.no_tags)
    return b"".join((*parts, wire.string(message), wire.no_tags))


def _check(version: int) -> None:
    if not VERSION_MIN <= version <= VERSION_MAX:
        raise ProtocolError(f"Produce version {version} is not supported; supported are {VERSION_MIN} to {VERSION_MAX}")
