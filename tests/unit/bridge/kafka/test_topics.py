"""Answers of the APIs that create, change and delete topics, case by case."""

from typing import Any

import pytest

from duolog.protocol.kafka.api_messages import ApiKey, ErrorCode
from tests.unit.bridge.kafka.bench import Client, KafkaBench

OK = ErrorCode.none
UNKNOWN = ErrorCode.unknown_topic_or_partition


@pytest.mark.parametrize(
    ("fields", "error"),
    [
        ({}, OK),
        ({"num_partitions": -1}, OK),
        ({"replication_factor": 3}, OK),
        ({"num_partitions": 0}, ErrorCode.invalid_partitions),
        ({"name": "old"}, ErrorCode.topic_already_exists),
        ({"name": "bad name"}, ErrorCode.invalid_topic_exception),
        ({"configs": [{"name": "cleanup.policy", "value": "compact"}]}, OK),
        ({"configs": [{"name": "nonsense", "value": "1"}]}, ErrorCode.invalid_config),
        ({"configs": [{"name": "retention.ms", "value": None}]}, ErrorCode.invalid_config),
        ({"assignments": [{"partition_index": 0, "broker_ids": (5,)}]}, ErrorCode.invalid_request),
        (
            {
                "assignments": [{"partition_index": 0, "broker_ids": (5,)}],
                "num_partitions": -1,
                "replication_factor": -1,
            },
            OK,
        ),
    ],
)
@pytest.mark.parametrize("validate_only", [False, True])
def test_create_topics(
    bench: KafkaBench, client: Client, fields: dict[str, Any], error: ErrorCode, validate_only: bool
) -> None:
    bench.topic("old")
    before = len(bench.topics)
    topics = [{"name": "new", "num_partitions": 3, "replication_factor": 1, **fields}]
    answer = client.ask(ApiKey.CREATE_TOPICS, 7, topics=topics, timeout=1_000, validate_only=validate_only)
    (result,) = answer.topics
    assert result.error_code is error, result.error_message
    assert len(bench.topics) - before == (error is OK and not validate_only)
    if error is OK:
        assert {config.name for config in result.configs} >= {"retention.ms", "cleanup.policy"}
        assert result.num_partitions == {-1: 1 if "assignments" in fields else 4}.get(fields.get("num_partitions"), 3)


def test_topic_named_twice_is_created_by_neither(bench: KafkaBench, client: Client) -> None:
    fields = {"name": "new", "num_partitions": 1, "replication_factor": 1}
    (result,) = client.ask(ApiKey.CREATE_TOPICS, 7, topics=[fields, fields]).topics
    assert result.error_code is ErrorCode.invalid_request
    assert bench.topics.get("new") is None


def test_topics_are_deleted_by_name_or_id_and_grown(bench: KafkaBench, client: Client) -> None:
    first, second = bench.topic("first"), bench.topic("second", 2)

    def grow(count: int, **values: Any) -> ErrorCode:
        topics = [{"name": "second", "count": count, **values}]
        error: ErrorCode = client.ask(ApiKey.CREATE_PARTITIONS, 3, topics=topics).results[0].error_code
        return error

    assert grow(2) is ErrorCode.invalid_partitions
    assert grow(4, assignments=[{"broker_ids": (0,)}, {"broker_ids": (7,)}]) is OK
    assert second.queue_count == 4
    (result,) = client.ask(ApiKey.DELETE_TOPICS, 3, topic_names=("first",)).responses
    assert result.error_code is OK
    topics = [{"name": None, "topic_id": second.id}, {"name": "first", "topic_id": None}]
    results = client.ask(ApiKey.DELETE_TOPICS, 6, topics=topics).responses
    assert [(each.name, each.error_code) for each in results] == [("second", OK), ("first", UNKNOWN)]
    assert bench.topics.by_id(first.id) is None
