"""A connection answers every version of every API, and is closed by requests that are malformed or above a limit.

Requests and answers are written and read by kio, so its schemas judge ours.
"""

from typing import Any

import pytest

from duolog.bridge.config import KafkaOptions
from duolog.bridge.kafka import TABLE
from duolog.bridge.kafka.requests.api import KafkaApi
from duolog.protocol.kafka.api_messages import ApiKey, ErrorCode
from tests.kit.kafka_frames import frame_of
from tests.kit.rows import named_row
from tests.unit.bridge.batches import batch
from tests.unit.bridge.kafka.bench import Client, KafkaBench


@pytest.fixture(scope="module")
def shared_bench() -> KafkaBench:
    return KafkaBench()


@pytest.mark.parametrize("count", [300, 10])
def test_request_above_its_size_closes_the_connection(count: int) -> None:
    bench = KafkaBench(kafka=KafkaOptions(request_bytes_max=2048))
    bench.topic("orders", 1)
    client = bench.connect()
    produce = {
        "acks": 1,
        "topic_data": [{"name": "orders", "partition_data": [{"records": bytes(batch([bytes(9000)]))}]}],
    }
    assert client.ask(ApiKey.PRODUCE, 9, **produce).responses[0].partition_responses[0].error_code is ErrorCode.none
    client.send(ApiKey.DELETE_TOPICS, 1, topic_names=tuple(f"topic-{number}" for number in range(count)))
    assert client.is_closed is (count == 300)


@pytest.mark.parametrize("api", TABLE.values(), ids=lambda api: api.key.name)
def test_every_version_is_answered(shared_bench: KafkaBench, api: KafkaApi) -> None:
    empty = {"acks": 1, "client_software_name": "a", "client_software_version": "1"}
    for version in range(api.min_version, api.max_version + 1):
        client = shared_bench.connect()
        with named_row(version=version):
            assert client.ask(api.key, version, **empty) is not None
            assert not client.is_closed


@pytest.mark.parametrize(
    "frame",
    [
        frame_of(ApiKey.METADATA, 13, 1)[:-2],  # cut, its length not adapted: the rest is waited for
        b"\0\0\0\x03\0\x03\0",
        b"\0\0\0\x0a\x7f\xff\0\0\0\0\0\x01\xff\xff",  # no such key
        b"\0\0\0\x0a\0\x00\0\x02\0\0\0\x01\xff\xff",  # Produce 2 is advertised but not served
        b"\0\0\0\x0b\0\x0b\0\x00\0\0\0\x01\xff\xff\xff",  # a JoinGroup of one byte
    ],
)
def test_garbage_closes_the_connection(client: Client, frame: bytes) -> None:
    client.connection.data_received(frame)
    client.bench.loop.turn()
    assert client.is_closed is (len(frame) == 4 + int.from_bytes(frame[:4], "big"))


@pytest.mark.parametrize(
    ("key", "version", "values"),
    [
        (ApiKey.SYNC_GROUP, 4, {"assignments": [{"member_id": "m", "assignment": bytes(1 << 23)}]}),
        (ApiKey.DESCRIBE_GROUPS, 5, {"groups": ("g",) * 20_001}),
    ],
)
def test_request_beyond_its_limits_closes_the_connection(
    client: Client, key: ApiKey, version: int, values: dict[str, Any]
) -> None:
    client.send(key, version, **values)
    assert client.is_closed
