"""The encoding of Fetch is byte for byte that of kio, and large records are not copied."""

from datetime import timedelta
from io import BytesIO
from itertools import groupby
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kio.index import load_payload_module
from kio.serial import entity_writer
from kio.static.constants import EntityType

from duolog.protocol.errors import ProtocolError
from duolog.protocol.kafka import api_messages, fetch
from duolog.protocol.kafka.fetch import SLICE_BYTES_MIN, PartitionAsked, PartitionFetched

VERSIONS = range(fetch.VERSION_MIN, fetch.VERSION_MAX + 1)

topics = st.sampled_from(["", "orders", "ordérs"])
i16 = st.integers(-(1 << 15), (1 << 15) - 1)
i32 = st.integers(-(1 << 31), (1 << 31) - 1)
i64 = st.integers(-(1 << 63), (1 << 63) - 1)
asked = st.builds(PartitionAsked, topics, i32, i32, i64, i32)


def written(entity: Any) -> bytes:
    buffer = BytesIO()
    entity_writer(type(entity))(buffer, entity)
    return buffer.getvalue()


# -- Requests


def request_body(version: int, head: list[int], partitions: list[PartitionAsked]) -> bytes:
    """What kio writes; fields that are passed over have values all the same."""
    types = api_messages.ResponseTypes(load_payload_module(1, version, EntityType.request))
    return written(
        types.FetchRequest(
            replica_id=head[0],
            max_wait=timedelta(milliseconds=head[1]),
            min_bytes=head[2],
            max_bytes=head[3],
            isolation_level=head[4],
            session_id=head[5],
            session_epoch=head[6],
            topics=[
                types.FetchTopic(topic=topic, partitions=[kio_asked(types, partition) for partition in run])
                for topic, run in groupby(partitions, lambda partition: partition.topic)
            ],
            forgotten_topics_data=[types.ForgottenTopic(topic="old", partitions=(1, 2))] if version >= 7 else (),
            rack_id="rack",
            cluster_id="cluster",
        )
    )


def kio_asked(types: api_messages.ResponseTypes, partition: PartitionAsked) -> Any:
    return types.FetchPartition(
        partition=partition.partition,
        current_leader_epoch=partition.current_leader_epoch,
        fetch_offset=partition.fetch_offset,
        last_fetched_epoch=77,
        log_start_offset=88,
        partition_max_bytes=partition.max_bytes,
    )


@given(
    st.sampled_from(VERSIONS),
    st.tuples(i32, i32, i32, i32, st.integers(-128, 127), i32, i32).map(list),
    st.lists(asked, max_size=8),
)
def test_request_is_read_as_kio_writes_it(version: int, head: list[int], partitions: list[PartitionAsked]) -> None:
    body = request_body(version, head, partitions)
    if version < 7:
        head[5:] = [0, -1]
    if version < 9:
        partitions = [partition._replace(current_leader_epoch=-1) for partition in partitions]
    once = {(partition.topic, partition.partition): partition for partition in partitions}
    assert fetch.decode_request(version, b"head" + body, 4) == (*head, [*once.values()])


@pytest.mark.parametrize("version", VERSIONS)
def test_request_that_ends_early_is_refused(version: int) -> None:
    body = request_body(version, [0] * 7, [PartitionAsked("orders", n, 0, 0, 0) for n in range(2)])
    needed = len(body) - (0 if version < 7 else len(b"\x04old") + 8)
    for cut in range(needed - 24):
        with pytest.raises(ProtocolError):
            fetch.decode_request(version, body[:cut])


@given(st.sampled_from(VERSIONS), st.binary(max_size=100))
def test_garbage_raises_only_protocol_error(version: int, body: bytes) -> None:
    try:
        fetch.decode_request(version, body)
    except ProtocolError:
        pass


@pytest.mark.parametrize("version", [-1, 0, 3, 13])
def test_other_versions_are_refused(version: int) -> None:
    with pytest.raises(ProtocolError, match=str(version)):
        fetch.decode_request(version, bytes(100))


# -- Answers

LARGE = bytes(SLICE_BYTES_MIN)
pieces = st.lists(st.binary(max_size=100) | st.sampled_from([LARGE, memoryview(LARGE), LARGE[1:]]), max_size=3)
fetched = st.builds(
    PartitionFetched,
    topics,
    i32,
    st.sampled_from(api_messages.ErrorCode),
    i64,
    i64,
    i64,
    pieces,
    st.none() | st.lists(st.tuples(i64, i64), max_size=3),
)


@given(
    st.sampled_from(VERSIONS),
    i32,
    st.lists(fetched, max_size=6),
    st.integers(0, 1 << 30),
    st.sampled_from(api_messages.ErrorCode),
    i32,
)
def test_answer_is_the_bytes_that_kio_writes(
    version: int,
    correlation_id: int,
    partitions: list[PartitionFetched],
    throttle_ms: int,
    error: api_messages.ErrorCode,
    session_id: int,
) -> None:
    types = api_messages.response_types(api_messages.ApiKey.FETCH, version)
    response = types.FetchResponse(
        throttle_time=timedelta(milliseconds=throttle_ms),
        error_code=error,
        session_id=session_id,
        responses=[
            types.FetchableTopicResponse(topic=topic, partitions=[kio_fetched(types, partition) for partition in run])
            for topic, run in groupby(partitions, lambda partition: partition.topic)
        ],
    )
    expected = b"".join(api_messages.encode_response(api_messages.ApiKey.FETCH, version, correlation_id, response))
    found = fetch.encode_response(
        version, correlation_id, partitions, throttle_ms=throttle_ms, error=error, session_id=session_id
    )
    assert b"".join(found) == expected


def kio_fetched(types: api_messages.ResponseTypes, partition: PartitionFetched) -> Any:
    aborted = partition.aborted
    return types.PartitionData(
        partition_index=partition.partition,
        error_code=partition.error,
        high_watermark=partition.high_watermark,
        last_stable_offset=partition.last_stable_offset,
        log_start_offset=partition.log_start_offset,
        aborted_transactions=None
        if aborted is None
        else [types.AbortedTransaction(producer_id=producer_id, first_offset=at) for producer_id, at in aborted],
        records=b"".join(partition.records),
    )


@pytest.mark.parametrize("version", [4, 11, 12])
def test_large_records_are_passed_through_and_small_ones_joined(version: int) -> None:
    large = [memoryview(bytes(SLICE_BYTES_MIN + n)) for n in range(3)]
    small = b"x" * (SLICE_BYTES_MIN - 1)
    partitions = [
        PartitionFetched("orders", 0, records=[small, large[0], large[1]]),
        PartitionFetched("orders", 1, records=[]),
        PartitionFetched("orders", 2, records=[small, small]),
        PartitionFetched("payments", 0, records=[large[2]]),
    ]
    found = fetch.encode_response(version, 1, partitions)
    passed = [piece for piece in found if isinstance(piece, memoryview)]
    assert list(map(id, passed)) == list(map(id, large))
    assert all(found)
