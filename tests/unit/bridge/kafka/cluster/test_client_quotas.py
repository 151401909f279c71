"""Without quotas the answers are those of Apache Kafka in the same case."""

import pytest

from duolog.protocol.kafka.api_messages import ApiKey, ErrorCode
from tests.unit.bridge.kafka.bench import Client


@pytest.mark.parametrize("version", [0, 1])
def test_no_client_quota_is_set(client: Client, version: int) -> None:
    answer = client.ask(ApiKey.DESCRIBE_CLIENT_QUOTAS, version)
    assert (answer.error_code, answer.error_message, answer.entries) == (ErrorCode.none, None, ())
