"""Answers of the APIs that describe and change configs, case by case."""

from typing import Any

import pytest

from duolog.protocol.kafka.api_messages import ApiKey, ErrorCode
from tests.unit.bridge.kafka.bench import Client, KafkaBench

OK = ErrorCode.none
UNKNOWN = ErrorCode.unknown_topic_or_partition


def configs_of(client: Client, resource_type: int, name: str, *keys: str) -> Any:
    resources = [{"resource_type": resource_type, "resource_name": name, "configuration_keys": keys or None}]
    (result,) = client.ask(ApiKey.DESCRIBE_CONFIGS, 4, resources=resources).results
    if result.error_code is not OK:
        return result.error_code
    return {config.name: (config.value, config.config_source, config.read_only) for config in result.configs}


def test_configs_are_described_with_their_sources(bench: KafkaBench, client: Client) -> None:
    bench.topic(retention_ms="1000")
    found = configs_of(client, 2, "orders", "retention.ms", "cleanup.policy", "max.message.bytes")
    assert found == {
        "retention.ms": ("1000", 1, False),
        "cleanup.policy": ("delete", 5, False),
        "max.message.bytes": (str(bench.options.topics.message_bytes_max), 4, False),
    }
    listeners = configs_of(client, 4, "0")["advertised.listeners"]
    assert listeners == ("PLAINTEXT://broker.example:9092", 4, True)
    assert configs_of(client, 4, "") == {}
    assert configs_of(client, 4, "7") is ErrorCode.invalid_request
    assert configs_of(client, 2, "absent") is UNKNOWN


SET, DELETE, APPEND, SUBTRACT = range(4)


@pytest.mark.parametrize(
    ("operation", "name", "value", "error", "now"),
    [
        (SET, "retention.ms", "5", OK, "5"),
        (SET, "retention.ms", "soon", ErrorCode.invalid_config, "1000"),
        (DELETE, "retention.ms", None, OK, "604800000"),
        (APPEND, "cleanup.policy", "compact", OK, "delete,compact"),
        (SUBTRACT, "cleanup.policy", "delete", OK, ""),
        (APPEND, "retention.ms", "5", ErrorCode.invalid_config, "1000"),
        (7, "retention.ms", "5", ErrorCode.invalid_request, "1000"),
        (SET, "nonsense", "5", ErrorCode.invalid_config, None),
    ],
)
def test_single_configs_are_changed(
    bench: KafkaBench, client: Client, operation: int, name: str, value: str | None, error: ErrorCode, now: str | None
) -> None:
    bench.topic(retention_ms="1000")
    changes = [{"name": name, "config_operation": operation, "value": value}]
    resources = [{"resource_type": 2, "resource_name": "orders", "configs": changes}]
    (result,) = client.ask(ApiKey.INCREMENTAL_ALTER_CONFIGS, 1, resources=resources).responses
    assert result.error_code is error, result.error_message
    if now is not None:
        assert configs_of(client, 2, "orders", name)[name][0] == now


def test_alter_configs_replaces_all_overrides(bench: KafkaBench, client: Client) -> None:
    topic = bench.topic(retention_ms="1000")

    def alter(resource_type: int, name: str, *, validate_only: bool = False) -> ErrorCode:
        configs = [{"name": "cleanup.policy", "value": "compact"}]
        resources = [{"resource_type": resource_type, "resource_name": name, "configs": configs}]
        answer = client.ask(ApiKey.ALTER_CONFIGS, 2, resources=resources, validate_only=validate_only)
        error: ErrorCode = answer.responses[0].error_code
        return error

    assert alter(2, "orders", validate_only=True) is OK
    assert dict(topic.configs) == {"retention.ms": "1000"}
    assert alter(2, "orders") is OK
    assert dict(topic.configs) == {"cleanup.policy": "compact"}
    assert alter(4, "0") is ErrorCode.invalid_request


# -- ListConfigResources


@pytest.mark.parametrize(
    ("types", "expected"),
    [
        ((), [(4, "0"), (2, "b"), (2, "a")]),
        ((2,), [(2, "b"), (2, "a")]),
        ((2, 2), [(2, "b"), (2, "a")]),
        ((4,), [(4, "0")]),
        ((8, 16, 32), []),
    ],
)
def test_resources_with_configs_are_listed(
    client_of_two_topics: Client, types: tuple[int, ...], expected: list[tuple[int, str]]
) -> None:
    answer = client_of_two_topics.ask(ApiKey.LIST_CONFIG_RESOURCES, 1, resource_types=types)
    assert answer.error_code is ErrorCode.none
    assert [(each.resource_type, each.resource_name) for each in answer.config_resources] == expected


@pytest.mark.parametrize("types", [(99,), (0,), (-1,), (2, 99)])
def test_unknown_type_of_resource_is_refused(client_of_two_topics: Client, types: tuple[int, ...]) -> None:
    answer = client_of_two_topics.ask(ApiKey.LIST_CONFIG_RESOURCES, 1, resource_types=types)
    assert (answer.error_code, answer.config_resources) == (ErrorCode.unsupported_version, ())


def test_first_version_asks_for_client_metrics_only(client_of_two_topics: Client) -> None:
    answer = client_of_two_topics.ask(ApiKey.LIST_CONFIG_RESOURCES, 0)
    assert (answer.error_code, answer.config_resources) == (ErrorCode.none, ())


def test_each_resource_that_is_listed_is_described(client_of_two_topics: Client) -> None:
    listed = client_of_two_topics.ask(ApiKey.LIST_CONFIG_RESOURCES, 1).config_resources
    asked = [{"resource_type": each.resource_type, "resource_name": each.resource_name} for each in listed]
    results = client_of_two_topics.ask(ApiKey.DESCRIBE_CONFIGS, 4, resources=asked).results
    assert [(each.error_code, bool(each.configs)) for each in results] == [(ErrorCode.none, True)] * 3
