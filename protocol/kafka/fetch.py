"""Encodes and decodes Fetch (key 1, versions 4 to 12) without kio, so that records are sent without being copied.

    request   replica_id i32 | max_wait_ms i32 | min_bytes i32 | max_bytes i32 | isolation_level i8 |
              v7: session_id i32 | session_epoch i32 |
              [ topic | [ partition i32 | v9: current_leader_epoch i32 | fetch_offset i64 |
                          v12: last_fetched_epoch i32 | v5: log_start_offset i64 | max_bytes i32 ] ] |
              v7: forgotten [ topic | [ partition i32 ] ] | v11: rack_id string
    answer    throttle_ms i32 | v7: error i16 | session_id i32 |
              [ topic | [ partition i32 | error i16 | high_watermark i64 | last_stable_offset i64 |
                          v5: log_start_offset i64 | aborted [ producer_id i64 | first_offset i64 ]? |
                          v11: preferred_read_replica i32 | records bytes ] ]

In version 12 all fields have compact encodings, and tagged fields follow each struct. The fields of the request for
followers and fetch sessions (log_start_offset, last_fetched_epoch, forgotten topics) and the rack are ignored. Clients
discard a full response that does not contain exactly the requested partitions (KIP-227), so the caller must pass a
result for each.

Source: Kafka's `FetchRequest.json`, `FetchResponse.json`.
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

VERSION_MIN: Final = 4
VERSION_MAX: Final = 12
_COMPACT_FROM: Final = 12

# Buffers of at least this size are passed to the transport without a copy; for smaller ones joining is faster.
SLICE_BYTES_MIN: Final = 16 << 10

_REQUEST = struct.Struct(">iiiib")
_SESSION = struct.Struct(">ii")
# By version: partition, (from 9 on: current_leader_epoch,) fetch_offset, max_bytes. Ignored fields are padding.
_ASKED = {
    4: struct.Struct(">iqi"),
    **dict.fromkeys(range(5, 9), struct.Struct(">iq8xi")),
    **dict.fromkeys(range(9, 12), struct.Struct(">iiq8xi")),
    12: struct.Struct(">iiq4x8xi"),
}

_FETCHED_V4 = struct.Struct(">ihqq")
_FETCHED_V5 = struct.Struct(">ihqqq")
_ABORTED = struct.Struct(">qq")
_THROTTLE = struct.Struct(">i")
_THROTTLE_V7 = struct.Struct(">ihi")
_FRAME_HEADER = struct.Struct(">ii")
_NO_PREFERRED_REPLICA = b"\xff\xff\xff\xff"


class PartitionAsked(NamedTuple):
    """One partition in a request."""

    topic: str
    partition: int
    current_leader_epoch: int  # -1: not to be checked.
    fetch_offset: int
    max_bytes: int


class FetchRequest(NamedTuple):
    replica_id: int  # -1 for a consumer.
    max_wait_ms: int
    min_bytes: int
    max_bytes: int
    isolation_level: int  # 0: read_uncommitted, 1: read_committed.
    session_id: int
    session_epoch: int
    partitions: list[PartitionAsked]


class PartitionFetched(NamedTuple):
    """The result of one partition in a response. The default values are those of an error.

    `records` are whole batches in the order of offsets, divided into buffers in any way. `aborted` lists (producer id,
    first offset) of aborted transactions; None for read_uncommitted.
    """

    topic: str
    partition: int
    error: int = 0
    high_watermark: int = -1
    last_stable_offset: int = -1
    log_start_offset: int = -1
    records: Sequence[Buffer] = ()
    aborted: Sequence[tuple[int, int]] | None = None


# -- Request


def decode_request(version: int, buffer: Buffer, at: int = 0, elements_max: int = ELEMENTS_MAX) -> FetchRequest:
    """Decode the body of a request at `buffer[at]`. Raises ProtocolError. Bytes after the partitions are ignored.

    A partition that occurs more than once is returned once: at the place of its first occurrence, with the fields of
    the last one (FetchRequest.java#fetchData).
    """
    _check(version)
    try:
        return _decode(version, buffer, at, elements_max)
    except MALFORMED as error:
        raise ProtocolError(f"malformed Fetch request of version {version}: {error}") from None


def _decode(version: int, buffer: Buffer, at: int, elements_max: int) -> FetchRequest:
    head = _REQUEST.unpack_from(buffer, at)
    at += _REQUEST.size
    session_id, session_epoch = 0, -1
    if version >= 7:
        session_id, session_epoch = _SESSION.unpack_from(buffer, at)
        at += _SESSION.size
    replica_id, max_wait_ms, min_bytes, max_bytes, isolation_level = head
    partitions = _decode_topics(version, buffer, at, elements_max)
    return FetchRequest(
        replica_id, max_wait_ms, min_bytes, max_bytes, isolation_level, session_id, session_epoch, partitions
    )


def _decode_topics(version: int, buffer: Buffer, at: int, elements_max: int) -> list[PartitionAsked]:
    read_string, _, read_count, skip_tags, *_ = COMPACT if version >= _COMPACT_FROM else CLASSIC
    asked = _ASKED[version]
    asked_size = asked.size
    partitions: dict[tuple[str, int], PartitionAsked] = {}
    topic_count, at = read_count(buffer, at)
    elements_left = elements_max - topic_count
    if elements_left < 0:
        raise too_many_elements(elements_max)
    for _ in range(topic_count):
        topic, at = read_string(buffer, at)
        if topic is None:
            raise ProtocolError("the name of a topic is null")
        count, at = read_count(buffer, at)
        elements_left -= count
        for _ in range(count if elements_left >= 0 else 0):
            fields = asked.unpack_from(buffer, at)
            if version < 9:
                partition, fetch_offset, max_bytes = fields
                fields = partition, -1, fetch_offset, max_bytes
            partitions[topic, fields[0]] = new_tuple(PartitionAsked, (topic, *fields))
            tags_at = at + asked_size
            at = skip_tags(buffer, tags_at)
            if at > tags_at + 1:
                elements_left -= (at - tags_at) // TAGS_ELEMENT_BYTES
        tags_at = at
        at = skip_tags(buffer, at)
        elements_left -= (at - tags_at) // TAGS_ELEMENT_BYTES
        if elements_left < 0:
            raise too_many_elements(elements_max)
    return [*partitions.values()]


# -- Response


def encode_response(
    version: int,
    correlation_id: int,
    partitions: Sequence[PartitionFetched],
    *,
    throttle_ms: int = 0,
    error: int = 0,
    session_id: int = 0,
) -> list[Buffer]:
    """Encode a response as one frame, including its length, and return the buffers to send.

    Consecutive partitions of a topic are grouped. Buffers of `records` with SLICE_BYTES_MIN bytes or more are returned
    without a copy; all other bytes are joined.
    """
    _check(version)
    wire = COMPACT if version >= _COMPACT_FROM else CLASSIC
    no_tags = wire.no_tags
    topics = by_topic(partitions)
    small: list[Buffer] = [_encode_head(version, throttle_ms, error, session_id), wire.array_count(len(topics))]
    pieces: list[Buffer] = []
    for topic, fetched_of_topic in topics:
        small += (wire.string(topic), wire.array_count(len(fetched_of_topic)))
        for fetched in fetched_of_topic:
            records = fetched.records
            small.append(_encode_partition(version, fetched, sum(map(len, records))))
            for piece in records:
                if len(piece) < SLICE_BYTES_MIN:
                    small.append(piece)
                    continue
                if small:
                    pieces.append(b"".join(small))
                    small = []
                pieces.append(piece)
            small.append(no_tags)
        small.append(no_tags)
    small.append(no_tags)
    if tail := b"".join(small):
        pieces.append(tail)
    pieces[0] = _FRAME_HEADER.pack(sum(map(len, pieces)) + 4, correlation_id) + pieces[0]
    return pieces


def _encode_head(version: int, throttle_ms: int, error: int, session_id: int) -> bytes:
    if version < 7:
        return _THROTTLE.pack(throttle_ms)
    head = _THROTTLE_V7.pack(throttle_ms, error, session_id)
    # In flexible versions, the response header has tagged fields, too.
    return COMPACT.no_tags + head if version >= _COMPACT_FROM else head


def _encode_partition(version: int, fetched: PartitionFetched, records_size: int) -> bytes:
    """Encode the fields of a partition before its records, including the size of the records."""
    _, partition, error, high_watermark, last_stable_offset, log_start_offset, _, aborted = fetched
    if version < 5:
        fields = _FETCHED_V4.pack(partition, error, high_watermark, last_stable_offset)
    else:
        fields = _FETCHED_V5.pack(partition, error, high_watermark, last_stable_offset, log_start_offset)
    wire = COMPACT if version >= _COMPACT_FROM else CLASSIC
    size = wire.bytes_size(records_size)
    if version >= 11:
        size = _NO_PREFERRED_REPLICA + size
    if aborted is None:
        return fields + wire.null_array + size
    transactions = [_ABORTED.pack(*transaction) + wire.no_tags for transaction in aborted]
    return fields + wire.array_count(len(transactions)) + b"".join(transactions) + size


def _check(version: int) -> None:
    if not VERSION_MIN <= version <= VERSION_MAX:
        raise ProtocolError(f"Fetch version {version} is not supported; supported are {VERSION_MIN} to {VERSION_MAX}")
