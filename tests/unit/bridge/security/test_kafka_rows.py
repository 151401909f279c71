"""Every Kafka API in its lowest and highest version, by a user without any right: an authorization error, no effect.


The requests are made from the schemas, so a new row is covered by itself.
"""

from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from typing import Any

import pytest
from kio.index import load_request_schema

from duolog.bridge.kafka import TABLE
from duolog.bridge.kafka.requests.access import ERRORS
from duolog.protocol.kafka.api_messages import ApiKey, ErrorCode
from tests.unit.bridge.kafka.bench import Client
from tests.unit.bridge.kafka.filled import filled
from tests.unit.bridge.security.test_kafka_login import SecureBench

OF_THE_LOGIN = {ApiKey.API_VERSIONS, ApiKey.SASL_HANDSHAKE, ApiKey.SASL_AUTHENTICATE}
SHOW_LESS = {ApiKey.LIST_GROUPS, ApiKey.LIST_TRANSACTIONS, ApiKey.DESCRIBE_CLUSTER}  # What is not allowed is left out.
REFUSALS = {*ERRORS.values()}


@pytest.fixture(scope="module")
def bench() -> SecureBench:
    bench = SecureBench()
    bench.topic("orders")
    bench.group_offsets.commit("orders", [], bench.clock.now_ms())
    bench.settle()
    return bench


def ask(client: Client, key: ApiKey, version: int) -> Any:
    entity = filled(
        load_request_schema(key, version),
        "orders",
        1,
        acks=-1,
        resource_type=2,
        session_id=0,
        state_filters=(),
        states_filter=(),
        types_filter=(),
    )
    asked = {field.name: getattr(entity, field.name) for field in fields(entity)}
    return client.ask(key, version, **asked)


def errors_in(found: Any) -> Iterator[ErrorCode]:
    if isinstance(found, ErrorCode):
        yield found
    elif is_dataclass(found):
        for field in fields(found):
            yield from errors_in(getattr(found, field.name))
    elif isinstance(found, tuple):
        for each in found:
            yield from errors_in(each)


def test_user_without_rights_changes_and_sees_nothing(bench: SecureBench) -> None:
    client = bench.logged_in("alice")
    for key in TABLE.keys() - OF_THE_LOGIN:
        for version in {TABLE[key].min_version, TABLE[key].max_version}:
            before = bench.store.next_position
            answer = ask(client, ApiKey(key), version)
            assert answer is not None, f"{ApiKey(key).name} {version} has no answer"
            assert bench.store.next_position == before, f"{ApiKey(key).name} {version} has changed something"
            found = {*errors_in(answer)} - {ErrorCode.none}
            if key in SHOW_LESS:
                assert not found, f"{ApiKey(key).name} {version}: {found}"
                assert "orders" not in repr(answer), f"{ApiKey(key).name} {version} shows what is hidden"
            else:
                assert found & REFUSALS, f"{ApiKey(key).name} {version} is not refused: {answer}"


@pytest.mark.slow
def test_super_user_is_never_refused(bench: SecureBench) -> None:
    # The handler of WriteTxnMarkers refuses all but the tool that aborts a transaction.
    for key in TABLE.keys() - OF_THE_LOGIN - {ApiKey.WRITE_TXN_MARKERS}:
        client = bench.logged_in("root")
        answer = ask(client, ApiKey(key), TABLE[key].max_version)
        assert not REFUSALS & {*errors_in(answer)}, ApiKey(key).name
