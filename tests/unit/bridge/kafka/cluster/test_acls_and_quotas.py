"""Without an authorizer and without quotas the answers are those of Apache Kafka in the same case."""

import pytest

from duolog.protocol.kafka.api_messages import ApiKey, ErrorCode
from tests.unit.bridge.kafka.bench import Client

DISABLED = (ErrorCode.security_disabled, "No Authorizer is configured.")


@pytest.mark.parametrize("version", [1, 2, 3])
def test_acls_cannot_be_described_created_or_deleted(client: Client, version: int) -> None:
    described = client.ask(ApiKey.DESCRIBE_ACLS, version)
    assert (described.error_code, described.error_message, described.resources) == (*DISABLED, ())
    created = client.ask(ApiKey.CREATE_ACLS, version, creations=[{}, {}]).results
    assert [(each.error_code, each.error_message) for each in created] == [DISABLED] * 2
    deleted = client.ask(ApiKey.DELETE_ACLS, version, filters=[{}]).filter_results
    assert [(each.error_code, each.error_message, each.matching_acls) for each in deleted] == [(*DISABLED, ())]


@pytest.mark.parametrize("version", [0, 1])
def test_no_client_quota_is_set(client: Client, version: int) -> None:
    answer = client.ask(ApiKey.DESCRIBE_CLIENT_QUOTAS, version)
    assert (answer.error_code, answer.error_message, answer.entries) == (ErrorCode.none, None, ())
