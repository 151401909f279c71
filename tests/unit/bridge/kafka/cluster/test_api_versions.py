"""Walks the dispatch table: each advertised version can be read and answered; ApiVersions says what the table says."""

import pytest
from kio.index import load_request_schema
from kio.serial import entity_reader

from duolog.bridge.kafka import ADVERTISED_VERSIONS, TABLE, api_versions
from duolog.bridge.kafka.requests.api import KafkaApi
from duolog.protocol.kafka import fetch, produce
from duolog.protocol.kafka.api_messages import (
    FLEXIBLE_FROM,
    ApiKey,
    ErrorCode,
    is_flexible,
    response_types,
)
from tests.kit.kafka_frames import frame_of
from tests.unit.bridge.kafka.bench import Client

ROWS = [pytest.param(api, id=api.key.name) for api in TABLE.values()]

# What clients would try to use if it were advertised, though nothing is behind it.
ABSENT = (
    ApiKey.CONSUMER_GROUP_HEARTBEAT,
    ApiKey.SHARE_FETCH,
)
TELEMETRY = (71, 72)


@pytest.mark.parametrize("api", ROWS)
def test_every_version_of_a_row_has_a_schema_and_a_handler(api: KafkaApi) -> None:
    assert callable(api.handler)
    for version in range(api.min_version, api.max_version + 1):
        assert load_request_schema(api.key, version).__flexible__ is is_flexible(api.key, version)
        assert response_types(api.key, version) is not None


def test_hot_codecs_cover_their_rows() -> None:
    for codec, api in ((produce, TABLE[ApiKey.PRODUCE]), (fetch, TABLE[ApiKey.FETCH])):
        assert codec.VERSION_MIN <= api.min_version <= api.max_version <= codec.VERSION_MAX


def test_minimums_are_those_that_old_librdkafka_looks_for() -> None:
    single_versions = {
        ApiKey.PRODUCE: (0, 3, 7), ApiKey.FETCH: (4, 10), ApiKey.LIST_OFFSETS: (1,), ApiKey.OFFSET_COMMIT: (2,),
        ApiKey.OFFSET_FETCH: (1,), ApiKey.FIND_COORDINATOR: (0,), ApiKey.JOIN_GROUP: (0,), ApiKey.SYNC_GROUP: (0,),
        ApiKey.HEARTBEAT: (0,), ApiKey.LEAVE_GROUP: (0,), ApiKey.INIT_PRODUCER_ID: (0,), ApiKey.API_VERSIONS: (0,),
        ApiKey.SASL_HANDSHAKE: (0,),
    }  # fmt: skip
    for key, wanted in single_versions.items():
        low, high = TABLE[key].advertised
        assert all(low <= version <= high for version in wanted), key.name


def test_apis_that_are_not_served_are_not_advertised() -> None:
    assert TABLE.keys().isdisjoint({*ABSENT, *TELEMETRY})
    assert TABLE[ApiKey.ADD_PARTITIONS_TO_TXN].max_version < 4  # from there on it is between brokers
    assert TABLE[ApiKey.PRODUCE].max_version < 13  # from there on topics have ids only
    assert TABLE[ApiKey.FETCH].max_version < 13  # from there on topics have ids only


def test_api_versions_of_an_unknown_version_is_answered_in_version_0() -> None:
    (frame,) = api_versions.unsupported(ADVERTISED_VERSIONS, correlation_id=7).buffers
    entity, size = entity_reader(load_response(0))(bytes(frame), 8)
    assert frame[4:8] == b"\0\0\0\x07"
    assert 8 + size == len(frame)
    assert entity.error_code is ErrorCode.unsupported_version
    assert {key.api_key: (key.min_version, key.max_version) for key in entity.api_keys} == {
        api.key: api.advertised for api in TABLE.values()
    }


def load_response(version: int) -> type:
    from kio.index import load_response_schema

    return load_response_schema(ApiKey.API_VERSIONS, version)


def test_flexible_versions_are_known_for_every_row() -> None:
    never = {ApiKey.SASL_HANDSHAKE, ApiKey.OFFSET_DELETE}
    assert TABLE.keys() - FLEXIBLE_FROM.keys() == never


def test_api_versions_are_answered_in_version_0_when_the_version_is_unknown(client: Client) -> None:
    frame = frame_of(ApiKey.API_VERSIONS, 4, 7, client_software_name="a", client_software_version="1")
    client._asked.append((7, ApiKey.API_VERSIONS, 0))
    client.connection.data_received(frame[:6] + b"\0\x63" + frame[8:])
    client.bench.loop.turn()
    assert client.answer_to(7).error_code is ErrorCode.unsupported_version
    assert not client.is_closed


@pytest.mark.parametrize(
    ("name", "error"), [("librdkafka", ErrorCode.none), ("a-b.c", ErrorCode.none), ("a b", ErrorCode.invalid_request)]
)
def test_client_software_must_have_a_plain_name(client: Client, name: str, error: ErrorCode) -> None:
    answer = client.ask(ApiKey.API_VERSIONS, 3, client_software_name=name, client_software_version="1.0")
    assert answer.error_code is error
    assert bool(answer.api_keys) is (error is ErrorCode.none)
