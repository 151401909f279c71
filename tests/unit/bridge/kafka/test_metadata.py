"""Answers to Metadata and FindCoordinator, case by case."""

from typing import Any

import pytest

from duolog.protocol.kafka.api_messages import ApiKey, ErrorCode
from tests.unit.bridge.kafka.asking import versions_of
from tests.unit.bridge.kafka.bench import Client, KafkaBench

OK = ErrorCode.none
UNKNOWN = ErrorCode.unknown_topic_or_partition


@pytest.mark.parametrize("version", versions_of(ApiKey.METADATA))
def test_metadata_of_all_topics_leaves_system_topics_out(bench: KafkaBench, client: Client, version: int) -> None:
    bench.topic("orders", 3)
    answer = client.ask(ApiKey.METADATA, version, topics=[] if version == 0 else None)
    (topic,) = answer.topics
    assert (topic.name, len(topic.partitions), topic.error_code) == ("orders", 3, OK)
    assert [(b.node_id, b.host, b.port) for b in answer.brokers] == [(0, *bench.addresses.kafka)]
    assert {partition.leader_id for partition in topic.partitions} == {0}
    if version >= 1:
        assert client.ask(ApiKey.METADATA, version, topics=[]).topics == ()
    if version >= 10:
        assert topic.topic_id == bench.topic("orders").id


@pytest.mark.parametrize(
    ("version", "name", "allows", "error", "creates"),
    [
        (0, "new", None, OK, True),
        (3, "new", None, OK, True),
        (5, "new", True, OK, True),
        (5, "new", False, UNKNOWN, False),
        (12, "%RETRY%billing", True, ErrorCode.invalid_topic_exception, False),
        (12, "", True, ErrorCode.invalid_topic_exception, False),
        (12, "__consumer_offsets", True, UNKNOWN, False),
        (12, "TBW102", True, OK, False),  # a template is not listed, but there
    ],
)
def test_metadata_of_a_missing_topic(
    bench: KafkaBench, client: Client, version: int, name: str, allows: bool | None, error: ErrorCode, creates: bool
) -> None:
    before = len(bench.topics)
    asked = {"allow_auto_topic_creation": allows} if allows is not None else {}
    topic_id = {"topic_id": None} if version >= 10 else {}
    (topic,) = client.ask(ApiKey.METADATA, version, topics=[{"name": name, **topic_id}], **asked).topics
    assert (topic.name, topic.error_code) == (name, error)
    assert len(bench.topics) - before == creates


def test_metadata_by_id_and_after_each_change(bench: KafkaBench, client: Client) -> None:
    topic = bench.topic("orders", 2)
    by_id: list[dict[str, Any]] = [{"topic_id": topic.id, "name": None}]
    assert len(client.ask(ApiKey.METADATA, 12, topics=by_id).topics[0].partitions) == 2
    bench.topics.add_queues(topic, 5, bench.clock.now_ms(), "a test")
    assert len(client.ask(ApiKey.METADATA, 12, topics=by_id).topics[0].partitions) == 5
    bench.topics.delete(topic, bench.clock.now_ms())
    (gone,) = client.ask(ApiKey.METADATA, 12, topics=by_id).topics
    assert (gone.error_code, gone.name) == (ErrorCode.unknown_topic_id, None)


def test_metadata_tells_of_a_new_topic_only_when_the_log_keeps_it(bench: KafkaBench, client: Client) -> None:
    bench.is_stalled = True
    number = client.send(ApiKey.METADATA, 5, topics=[{"name": "new"}], allow_auto_topic_creation=True)
    assert client.answer_to(number) is None
    bench.settle()
    assert client.answer_to(number).topics[0].error_code is OK


@pytest.mark.parametrize(
    ("version", "key_type", "error"),
    [
        (0, 0, OK),
        (2, 1, OK),
        (4, 0, OK),
        (6, 1, OK),
        (6, 2, ErrorCode.invalid_request),
    ],
)
def test_coordinator_is_this_broker_for_groups_and_transactional_ids(
    client: Client, version: int, key_type: int, error: ErrorCode
) -> None:
    asked = {"coordinator_keys": ["g"], "key": "g", "key_type": key_type}
    answer = client.ask(ApiKey.FIND_COORDINATOR, version, **asked)
    found = answer.coordinators[0] if version >= 4 else answer
    assert found.error_code is error
    assert (found.node_id, found.port) == ((0, 9092) if error is OK else (-1, -1))
