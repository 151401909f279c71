"""The encoding of Produce is byte for byte that of kio."""

from datetime import UTC, datetime, timedelta
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
from duolog.protocol.kafka import api_messages, produce
from duolog.protocol.kafka.produce import PartitionProduced
from duolog.protocol.kafka.record_batch import RecordError

VERSIONS = range(produce.VERSION_MIN, produce.VERSION_MAX + 1)

names = st.text(min_size=0, max_size=20)
i16 = st.integers(-(1 << 15), (1 << 15) - 1)
i32 = st.integers(-(1 << 31), (1 << 31) - 1)
i64 = st.integers(-(1 << 63), (1 << 63) - 1)
runs = st.lists(st.tuples(names, st.lists(st.tuples(i32, st.none() | st.binary(max_size=300)), max_size=4)), max_size=4)


def written(entity: Any) -> bytes:
    buffer = BytesIO()
    entity_writer(type(entity))(buffer, entity)
    return buffer.getvalue()


def request_body(version: int, transactional_id: str | None, acks: int, timeout_ms: int, topics: Any) -> bytes:
    types: Any = load_payload_module(0, version, EntityType.request)
    return written(
        types.ProduceRequest(
            transactional_id=transactional_id,
            acks=acks,
            timeout=timedelta(milliseconds=timeout_ms),
            topic_data=[
                types.TopicProduceData(
                    name=name, partition_data=[types.PartitionProduceData(index=i, records=r) for i, r in partitions]
                )
                for name, partitions in topics
            ],
        )
    )


@given(st.sampled_from(VERSIONS), st.none() | names, i16, i32, runs, st.binary(max_size=3))
def test_request_is_read_as_kio_writes_it(
    version: int, transactional_id: str | None, acks: int, timeout_ms: int, topics: Any, trailing: bytes
) -> None:
    body = request_body(version, transactional_id, acks, timeout_ms, topics)
    request = produce.decode_request(version, b"head" + body + trailing, 4)
    assert request == (transactional_id, acks, timeout_ms, [(name, i, r) for name, ps in topics for i, r in ps])
    for cut in {0, 5, len(body) // 2, len(body) - 1}:
        with pytest.raises(ProtocolError):
            produce.decode_request(version, body[:cut])


def test_records_are_a_part_of_the_frame_not_a_copy() -> None:
    body = request_body(9, None, 1, 30_000, [("orders", [(0, bytes(1 << 16))])])
    records = produce.decode_request(9, body).partitions[0].records
    assert records is not None
    assert records.obj is body
    assert records.readonly


@given(st.sampled_from(VERSIONS), st.binary(max_size=60))
def test_garbage_raises_only_protocol_error(version: int, body: bytes) -> None:
    try:
        produce.decode_request(version, body)
    except ProtocolError:
        pass


produced = st.builds(
    PartitionProduced,
    st.sampled_from(["", "orders", "ordérs"]),
    i32,
    st.sampled_from(api_messages.ErrorCode),
    i64,
    st.just(-1) | st.integers(0, 1 << 41),
    i64,
    st.none() | st.text(max_size=200),
    st.lists(st.builds(RecordError, i32, st.text(max_size=50)), max_size=3),
)


@given(st.sampled_from(VERSIONS), i32, st.lists(produced, max_size=8), st.integers(0, 1 << 30))
def test_answer_is_the_bytes_that_kio_writes(
    version: int, correlation_id: int, partitions: list[PartitionProduced], throttle_ms: int
) -> None:
    types = api_messages.response_types(api_messages.ApiKey.PRODUCE, version)
    response = types.ProduceResponse(
        responses=[
            types.TopicProduceResponse(
                name=topic, partition_responses=[kio_partition(types, version, partition) for partition in run]
            )
            for topic, run in groupby(partitions, lambda partition: partition.topic)
        ],
        throttle_time=timedelta(milliseconds=throttle_ms),
    )
    expected = b"".join(api_messages.encode_response(api_messages.ApiKey.PRODUCE, version, correlation_id, response))
    assert b"".join(produce.encode_response(version, correlation_id, partitions, throttle_ms)) == expected


def kio_partition(types: api_messages.ResponseTypes, version: int, partition: PartitionProduced) -> Any:
    at_ms = partition.log_append_time_ms
    return types.PartitionProduceResponse(
        index=partition.partition,
        error_code=partition.error,
        base_offset=partition.base_offset,
        log_append_time=None if at_ms < 0 else datetime.fromtimestamp(0, UTC) + timedelta(milliseconds=at_ms),
        log_start_offset=partition.log_start_offset,
        record_errors=tuple(
            types.BatchIndexAndErrorMessage(batch_index=error.index, batch_index_error_message=error.message)
            for error in (partition.record_errors if version >= 8 else ())
        ),
        error_message=partition.error_message,
    )


@pytest.mark.parametrize("version", [-1, 0, 2, 13])
def test_other_versions_are_refused(version: int) -> None:
    with pytest.raises(ProtocolError, match=str(version)):
        produce.decode_request(version, bytes(100))
