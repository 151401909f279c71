"""Every version of every API is decoded and encoded as kio does; malformed bytes raise ProtocolError only."""

import random
import struct
from dataclasses import Field, fields, is_dataclass
from datetime import UTC, datetime, timedelta
from io import BytesIO
from types import NoneType, UnionType
from typing import Any, get_args, get_origin
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kio.index import load_request_schema, load_response_schema
from kio.schema.index import api_key_map, schema_name_map
from kio.schema.request_header.v1.header import RequestHeader as HeaderV1
from kio.schema.request_header.v2.header import RequestHeader as HeaderV2
from kio.schema.response_header.v0.header import ResponseHeader as ResponseHeaderV0
from kio.schema.response_header.v1.header import ResponseHeader as ResponseHeaderV1
from kio.serial import entity_writer

from duolog.protocol.errors import ProtocolError
from duolog.protocol.kafka import api_messages, request_check
from duolog.protocol.kafka.api_messages import ApiKey, ErrorCode
from duolog.protocol.kafka.primitive_types import uvarint

VERSIONS = [(key, version) for key in ApiKey for version in sorted(schema_name_map[api_key_map[key]])]
# The two that this package reads by hand have tests of their own.
BY_KIO = [row for row in VERSIONS if row[0] not in (ApiKey.PRODUCE, ApiKey.FETCH)]


def written(entity: Any) -> bytes:
    buffer = BytesIO()
    entity_writer(type(entity))(buffer, entity)
    return buffer.getvalue()


# -- Any entity


def any_entity(entity_type: Any, rng: random.Random) -> Any:
    return entity_type(**{field.name: any_field(field, rng) for field in fields(entity_type)})


def any_field(field: Field[Any], rng: random.Random) -> Any:
    type_: Any = field.type
    if get_origin(type_) is UnionType:
        # A tagged field may be null only if that is its default.
        if rng.random() < 0.3 and ("tag" not in field.metadata or field.default is None):
            return None
        type_ = next(part for part in get_args(type_) if part is not NoneType)
    if get_origin(type_) is tuple:
        element = get_args(type_)[0]
        return tuple(any_value(element, field, rng) for _ in range(rng.randrange(4)))
    return any_value(type_, field, rng)


def any_value(type_: Any, field: Field[Any], rng: random.Random) -> Any:
    if is_dataclass(type_):
        return any_entity(type_, rng)
    return ANY[field.metadata["kafka_type"]](rng)


def any_bytes(rng: random.Random) -> bytes:
    return rng.randbytes(rng.choice((0, 1, 5, 200)))


ANY: dict[str, Any] = {
    "bool": lambda rng: rng.random() < 0.5,
    "int8": lambda rng: rng.choice((-128, -1, 0, 127)),
    "int16": lambda rng: rng.choice((-(1 << 15), -1, 0, (1 << 15) - 1)),
    "uint16": lambda rng: rng.choice((0, (1 << 16) - 1)),
    "int32": lambda rng: rng.choice((-(1 << 31), -1, 0, (1 << 31) - 1)),
    "uint32": lambda rng: rng.choice((0, (1 << 32) - 1)),
    "int64": lambda rng: rng.choice((-(1 << 63), -1, 0, (1 << 63) - 1)),
    "float64": lambda rng: rng.choice((0.0, -1.5, 1e300)),
    "error_code": lambda rng: rng.choice(list(ErrorCode)),
    "timedelta_i32": lambda rng: timedelta(milliseconds=rng.choice((-1, 0, 30_000))),
    "timedelta_i64": lambda rng: timedelta(milliseconds=rng.choice((-1, 0, 30_000))),
    "datetime_i64": lambda rng: datetime(2024, 5, 6, tzinfo=UTC),
    "uuid": lambda rng: UUID(bytes=rng.randbytes(16)),
    "string": lambda rng: rng.choice(("", "orders", "é" * 100)),
    "bytes": any_bytes,
    "records": any_bytes,
}


# -- Requests


def test_kio_knows_no_client_api_that_is_missing_here() -> None:
    between_brokers = {34, 45, *range(52, 55), 56, 58, 59, 62, 63, 64, 67, 70, 71, 72, 73, *range(80, 93)}
    delegation_tokens = {38, 39, 40, 41}
    assert {*ApiKey} == {*api_key_map} - between_brokers - delegation_tokens


@pytest.mark.parametrize("key", ApiKey)
def test_flexible_versions_are_kios(key: ApiKey) -> None:
    for version in (version for row_key, version in VERSIONS if row_key == key):
        assert api_messages.is_flexible(key, version) == load_request_schema(key, version).__flexible__, version


@pytest.mark.parametrize("key", {key: None for key, _ in BY_KIO})
def test_requests_are_read_as_written(key: ApiKey, rng: random.Random) -> None:
    for version in (version for row_key, version in BY_KIO if row_key == key):
        entity_type = load_request_schema(key, version)
        for _ in range(10):
            entity = any_entity(entity_type, rng)
            body = written(entity)
            buffer = rng.choice((bytes, bytearray, memoryview))(b"header" + body + b"trailing")
            assert api_messages.decode_request(key, version, buffer, 6) == entity
            for cut in rng.sample(range(len(body)), min(len(body), 10)):
                with pytest.raises(ProtocolError):
                    api_messages.decode_request(key, version, body[:cut])


@pytest.mark.parametrize("key", ApiKey)
def test_garbage_and_damage_raise_only_protocol_error(key: ApiKey, rng: random.Random) -> None:
    for version in (version for row_key, version in VERSIONS if row_key == key):
        body = written(any_entity(load_request_schema(key, version), rng))
        for _ in range(20):
            damaged = bytearray(body)
            for _ in range(rng.randrange(1, 4)):
                at = rng.randrange(len(damaged) + 1)
                damaged[at : at + 1] = rng.choice((b"\xff\xff\xff\x7f", b"\x7f\xff\xff\xff", b"\x80", rng.randbytes(1)))
            for buffer in (
                bytes(damaged),
                rng.randbytes(rng.randrange(40)),
                bytes(rng.choices(b"\0\1\2\xff\x7f", k=30)),
            ):
                try:
                    api_messages.decode_request(key, version, buffer)
                except ProtocolError:
                    pass


# (key, version, a body whose array claims what it does not have)
LYING_COUNTS = [
    (ApiKey.METADATA, 1, b"\x7f\xff\xff\xff"),
    (ApiKey.METADATA, 1, b"\xff\xff\xff\xfe"),
    (ApiKey.METADATA, 1, b"\x80\0\0\0"),
    (ApiKey.METADATA, 9, b"\xff\xff\xff\xff\x0f"),
    (ApiKey.METADATA, 9, b"\xff\xff\xff\xff\xff\xff\xff\xff\x7f"),
    (ApiKey.METADATA, 1, b"\0\x01\0\0" + bytes(1 << 17)),  # 65,536 empty names, which are there, are too many
    (ApiKey.LIST_OFFSETS, 1, struct.pack(">ii", -1, 1) + b"\0\x01t" + b"\x7f\xff\xff\xff"),
    (ApiKey.PRODUCE, 3, b"\xff\xff\xff\xff\0\0\0\0" + b"\x7f\xff\xff\xff"),
    (ApiKey.PRODUCE, 9, b"\0\xff\xff\0\0\0\0" + b"\xff\xff\xff\xff\x0f"),
    (ApiKey.FETCH, 4, bytes(17) + b"\x7f\xff\xff\xff"),
    (ApiKey.FETCH, 12, bytes(25) + b"\xff\xff\xff\xff\x0f"),
]


@pytest.mark.parametrize(("key", "version", "body"), LYING_COUNTS)
def test_count_that_lies_is_refused_before_room_is_made_for_it(key: ApiKey, version: int, body: bytes) -> None:
    # Without the walk kio reserves 16 GiB for the first of these; where the system refuses, the process ends.
    with pytest.raises(ProtocolError, match=r"array|varint|negative size"):
        api_messages.decode_request(key, version, body)


def compact_array(count: int, element: bytes) -> bytes:
    return uvarint(count + 1) + count * element


TAG = b"\x63\0"
LIMIT = 50
MANY = [
    pytest.param(ApiKey.METADATA, 1, struct.pack(">i", LIMIT + 1) + b"\0\x01t" * (LIMIT + 1), id="elements"),
    pytest.param(
        ApiKey.LIST_OFFSETS,
        1,
        struct.pack(">ii", -1, 10) + 10 * (b"\0\x01t" + struct.pack(">i", 5) + bytes(12 * 5)),
        id="nested elements",
    ),
    pytest.param(ApiKey.OFFSET_FETCH, 9, b"\x02\x02g\0\0\0\0\0" + compact_array(60, b"\x02t\x01\0"), id="fixed ones"),
    pytest.param(ApiKey.METADATA, 12, b"\x01\x01\0" + uvarint(60) + TAG * 60, id="tags"),
    pytest.param(ApiKey.FETCH, 12, bytes(25) + compact_array(60, b"\x02t\x01\0"), id="topics of Fetch"),
    pytest.param(ApiKey.FETCH, 4, bytes(17) + b"\0\0\0\x01\0\x01t\0\0\0\x3c" + bytes(960), id="partitions of Fetch"),
    pytest.param(
        ApiKey.FETCH, 12, bytes(25) + b"\x02\x02t\x01" + uvarint(400) + TAG * 400, id="tags of a topic of Fetch"
    ),
    pytest.param(
        ApiKey.PRODUCE,
        9,
        b"\0\xff\xff\0\0\0\0" + b"\x02\x02t" + compact_array(40, bytes(5) + b"\x08" + TAG * 8) + b"\0\0",
        id="tags of Produce",
    ),
    pytest.param(ApiKey.PRODUCE, 9, b"\0\xff\xff\0\0\0\0" + compact_array(60, b"\x02t\x01\0"), id="topics of Produce"),
]  # fmt: skip


@pytest.mark.parametrize(("key", "version", "body"), MANY)
def test_elements_of_a_request_are_limited(key: ApiKey, version: int, body: bytes) -> None:
    with pytest.raises(ProtocolError, match=f"kafka.elements_max={LIMIT}"):
        api_messages.decode_request(key, version, body, 0, LIMIT)


@pytest.mark.parametrize("key", [ApiKey.METADATA, ApiKey.FETCH])
def test_strings_are_as_long_as_kafka_reads_them(key: ApiKey) -> None:
    def body(size: int) -> bytes:
        name = uvarint(size + 1) + b"t" * size
        if key == ApiKey.FETCH:
            return bytes(25) + b"\x02" + name + b"\x01\0" + b"\x01\x01\0"
        return b"\x02" + bytes(16) + name + b"\0" + b"\x01\0\0"

    api_messages.decode_request(key, 12, body((1 << 15) - 1))
    with pytest.raises(ProtocolError, match="a string of 32768 bytes"):
        api_messages.decode_request(key, 12, body(1 << 15))


def test_partition_that_a_fetch_names_twice_counts_once_as_it_was_named_last() -> None:
    ask = struct.Struct(">iqi")
    topic = b"\0\x01t" + struct.pack(">i", 3) + ask.pack(0, 1, 9) + ask.pack(1, 2, 9) + ask.pack(0, 3, 9)
    request = api_messages.decode_request(ApiKey.FETCH, 4, bytes(17) + struct.pack(">i", 2) + topic + topic)
    assert request.partitions == [("t", 0, -1, 3, 9), ("t", 1, -1, 2, 9)]


def test_unknown_tags_are_skipped_wherever_they_are() -> None:
    unknown = b"\x02\x07\x03abc\x63\x00"  # tags 7 and 99
    topic = bytes(16) + b"\x07orders"
    plain = b"\x03" + (topic + b"\0") * 2 + b"\x01\0" + b"\0"
    tagged = b"\x03" + (topic + unknown) * 2 + b"\x01\0" + unknown
    assert api_messages.decode_request(ApiKey.METADATA, 12, tagged) == api_messages.decode_request(
        ApiKey.METADATA, 12, plain
    )
    for cut in range(len(tagged)):
        with pytest.raises(ProtocolError):
            api_messages.decode_request(ApiKey.METADATA, 12, tagged[:cut])


def test_unknown_tag_beside_a_known_one() -> None:
    # Fetch 13, which is kio's to read, knows tag 0, the cluster id.
    entity_type = load_request_schema(1, 13)
    body = bytes(25) + b"\x01\x01\x01" + b"\x02" + b"\x00\x05\x05main" + b"\x09\x01x"
    assert (
        bytes(request_check.checked(entity_type, body)) == bytes(25) + b"\x01\x01\x01" + b"\x01" + b"\x00\x05\x05main"
    )


@pytest.mark.parametrize(("key", "version"), [(99, 0), (-1, 0), (3, 14), (3, -1), (0, 2), (0, 13), (1, 3), (1, 13)])
def test_versions_without_a_schema_are_refused(key: int, version: int) -> None:
    with pytest.raises(ProtocolError, match=str(version)):
        api_messages.decode_request(key, version, bytes(100))


def test_duration_that_no_timedelta_holds_is_refused() -> None:
    body = b"\0\x01g" + struct.pack(">i", 1) + b"\0\x01m" + struct.pack(">q", (1 << 63) - 1) + bytes(4)
    with pytest.raises(ProtocolError, match="overflow"):
        api_messages.decode_request(ApiKey.OFFSET_COMMIT, 2, body)


# -- Headers


@given(st.sampled_from(VERSIONS), st.integers(-(1 << 31), (1 << 31) - 1), st.none() | st.text(max_size=30), st.binary())
def test_request_header_is_read_as_kio_writes_it(
    row: tuple[ApiKey, int], correlation_id: int, client_id: str | None, body: bytes
) -> None:
    key, version = row
    header_type: Any = HeaderV2 if api_messages.is_flexible(key, version) else HeaderV1
    frame = written(
        header_type(
            request_api_key=key, request_api_version=version, correlation_id=correlation_id, client_id=client_id
        )
    )
    header = api_messages.decode_header(frame + body)
    assert header == (key, version, correlation_id, client_id or "", len(frame))


def test_header_tags_are_skipped() -> None:
    frame = struct.pack(">hhih", 18, 3, 5, -1) + b"\x01\x07\x03abc" + b"body"
    assert api_messages.decode_header(frame).body_at == len(frame) - 4


@given(st.binary(max_size=30) | st.builds(lambda tail: b"\0\x12\0\x03\0\0\0\0" + tail, st.binary(max_size=12)))
def test_garbage_as_header_raises_only_protocol_error(frame: bytes) -> None:
    try:
        assert api_messages.decode_header(frame).body_at <= len(frame)
    except ProtocolError:
        pass


# -- Responses


@pytest.mark.parametrize("key", ApiKey)
def test_responses_are_written_as_kio_writes_them(key: ApiKey, rng: random.Random) -> None:
    for version in (version for row_key, version in VERSIONS if row_key == key):
        entity = any_entity(load_response_schema(key, version), rng)
        tagged = api_messages.is_flexible(key, version) and key != ApiKey.API_VERSIONS
        header: Any = ResponseHeaderV1 if tagged else ResponseHeaderV0
        payload = written(header(correlation_id=77)) + written(entity)
        frame = b"".join(api_messages.encode_response(key, version, 77, entity))
        assert frame == struct.pack(">i", len(payload)) + payload


def test_constructors_drop_what_a_version_lacks() -> None:
    for version in (0, 1, 3):
        types = api_messages.response_types(ApiKey.FIND_COORDINATOR, version)
        response = types.FindCoordinatorResponse(
            throttle_time=api_messages.NO_THROTTLE,
            error_code=ErrorCode.none,
            error_message="fine",
            node_id=0,
            host="localhost",
            port=9092,
        )
        assert response.port == 9092
        assert hasattr(response, "error_message") == (version >= 1)
        assert "Coordinator" not in types
    assert "Coordinator" in api_messages.response_types(ApiKey.FIND_COORDINATOR, 4)
    with pytest.raises(AttributeError):
        _ = types.Coordinator


def test_milliseconds_of_a_duration() -> None:
    assert [api_messages.milliseconds(timedelta(milliseconds=ms)) for ms in (0, -1, 300_000)] == [0, -1, 300_000]
