"""Kafka's requests about rules and SCRAM credentials work on the users and rules of the broker."""

from collections.abc import Sequence
from hashlib import pbkdf2_hmac
from typing import Any

import pytest

from duolog.bridge.security import needs
from duolog.bridge.security.rules import Operation
from duolog.bridge.security.tools.rule_texts import RuleText, rule_of
from duolog.protocol.kafka.api_messages import ApiKey, ErrorCode
from tests.unit.bridge.kafka.asking import JOIN_FIELDS, join
from tests.unit.bridge.kafka.bench import Client
from tests.unit.bridge.security.test_kafka_login import SecureBench, login

ANY, MATCH, LITERAL, PREFIXED = 1, 2, 3, 4
TOPIC, READ, WRITE, ALLOW = 2, 3, 4, 3
NONE = ErrorCode.none


@pytest.fixture
def bench() -> SecureBench:
    return SecureBench()


@pytest.fixture
def root(bench: SecureBench) -> Client:
    return bench.logged_in("root")


def creation(name: str, pattern: int = LITERAL, **fields: Any) -> dict[str, Any]:
    values = {"resource_type": TOPIC, "principal": "User:bob", "host": "*", "operation": READ, "permission_type": ALLOW}
    return {**values, "resource_name": name, "resource_pattern_type": pattern, **fields}


def wanted(**fields: Any) -> dict[str, Any]:
    return {
        "resource_type_filter": ANY, "resource_name_filter": None, "pattern_type_filter": ANY, "principal_filter": None,
        "host_filter": None, "operation": ANY, "permission_type": ANY, **fields,
    }  # fmt: skip


def names(root: Client, **fields: Any) -> list[str]:
    answer = root.ask(ApiKey.DESCRIBE_ACLS, 3, **wanted(**fields))
    assert answer.error_code is NONE
    return [resource.resource_name for resource in answer.resources for _ in resource.acls]


def test_rules_are_created_described_and_deleted(bench: SecureBench, root: Client) -> None:
    creations = [creation("orders"), creation("or", PREFIXED), creation("*", operation=WRITE), creation("payments")]
    bad = [
        creation("x", resource_type=6), creation("x", principal="bob"), creation("x", operation=1),
        creation("", permission_type=ALLOW), creation("x", host="nowhere"), creation("x", MATCH),
    ]  # fmt: skip
    results = root.ask(ApiKey.CREATE_ACLS, 3, creations=[*creations, *bad]).results
    assert [each.error_code for each in results] == [NONE] * 4 + [ErrorCode.invalid_request] * 6
    assert rule_of(RuleText("bob", "topic", "read", name="orders")) in bench.security.acls
    assert names(root) == ["*", "or", "orders", "payments"]
    assert names(root, resource_name_filter="orders", pattern_type_filter=MATCH) == ["*", "or", "orders"]
    assert names(root, resource_name_filter="orders") == ["orders"]
    assert names(root, pattern_type_filter=PREFIXED) == ["or"]
    assert names(root, operation=WRITE, principal_filter="User:bob") == ["*"]
    assert names(root, principal_filter="User:alice") == []
    filters = [wanted(resource_name_filter="orders", pattern_type_filter=LITERAL), wanted(resource_type_filter=7)]
    deleted = root.ask(ApiKey.DELETE_ACLS, 3, filters=filters).filter_results
    assert [each.error_code for each in deleted] == [NONE, ErrorCode.invalid_request]
    assert [each.resource_name for each in deleted[0].matching_acls] == ["orders"]
    assert names(root) == ["*", "or", "payments"]


def test_only_who_may_alter_the_cluster_changes_rules(bench: SecureBench) -> None:
    alice = bench.logged_in("alice")
    denied = ErrorCode.cluster_authorization_failed
    assert alice.ask(ApiKey.CREATE_ACLS, 3, creations=[creation("orders")]).results[0].error_code is denied
    assert alice.ask(ApiKey.DESCRIBE_ACLS, 3, **wanted()).error_code is denied
    upsertion = upserted("eve", b"x")
    answer = alice.ask(ApiKey.ALTER_USER_SCRAM_CREDENTIALS, 0, deletions=[], upsertions=[upsertion])
    assert [(each.user, each.error_code) for each in answer.results] == [("eve", denied)]
    assert len(bench.security.acls) == 0
    assert bench.security.users.get("eve") is None


def upserted(name: str, password: bytes, mechanism: int = 1, iterations: int = 4096) -> dict[str, Any]:
    salted = pbkdf2_hmac("sha256" if mechanism == 1 else "sha512", password, b"salt", iterations)
    return {
        "name": name, "mechanism": mechanism, "iterations": iterations, "salt": b"salt", "salted_password": salted,
    }  # fmt: skip


def test_who_may_alter_the_cluster_does_not_become_a_super_user(bench: SecureBench) -> None:
    bench.allow("cluster", "kafka-cluster", "alter")
    alice = bench.logged_in("alice")
    for name, error in (("root", ErrorCode.cluster_authorization_failed), ("eve", NONE)):
        row = upserted(name, b"x")
        answer = alice.ask(ApiKey.ALTER_USER_SCRAM_CREDENTIALS, 0, deletions=[], upsertions=[row])
        assert answer.results[0].error_code is error
    assert bench.logged_in("root"), "the password is as before"


def test_rule_in_the_spelling_of_rocketmq_is_about_the_same_topic_and_group(bench: SecureBench, root: Client) -> None:
    bench.allow("topic", "*", "all")
    bench.allow("group", "*", "all")
    group, deny = 3, 2
    rules = [
        creation("orders|eu", permission_type=deny),
        creation("crew|eu", resource_type=group, permission_type=deny),
    ]
    results = root.ask(ApiKey.CREATE_ACLS, 3, creations=[{**each, "principal": "User:alice"} for each in rules]).results
    assert [each.error_code for each in results] == [NONE, NONE]
    assert names(root, resource_type_filter=TOPIC, resource_name_filter="orders|eu") == ["orders.eu"]
    session = bench.logged_in("alice").connection.session
    assert session is not None
    for need in (needs.topic("orders.eu", Operation.READ), needs.group("crew|eu", Operation.READ)):
        assert not needs.has_one(bench.security.authorizer, session, need)


def test_credentials_are_set_described_and_removed(bench: SecureBench, root: Client) -> None:
    def alter(*upsertions: dict[str, Any], deletions: Sequence[Any] = ()) -> list[Any]:
        asked = {"upsertions": [*upsertions], "deletions": [*deletions]}
        return [
            (each.user, each.error_code) for each in root.ask(ApiKey.ALTER_USER_SCRAM_CREDENTIALS, 0, **asked).results
        ]

    bad = upserted("bad", b"x") | {"iterations": 10}
    assert alter(upserted("bob", b"bob's"), upserted("bob", b"bob's", 2), bad) == [
        ("bob", NONE),
        ("bad", ErrorCode.unacceptable_credential),
    ]
    for mechanism in ("SCRAM-SHA-256", "SCRAM-SHA-512"):
        assert login(bench.connect(), "bob", "bob's", mechanism)[-1].error_code is NONE
    described = root.ask(ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS, 0, users=[{"name": "bob"}, {"name": "eve"}]).results
    assert [(each.user, each.error_code, len(each.credential_infos)) for each in described] == [
        ("bob", NONE, 2),
        ("eve", ErrorCode.resource_not_found, 0),
    ]
    everybody = root.ask(ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS, 0, users=None).results
    assert [each.user for each in everybody] == ["alice", "root", "bob"]
    removed = [{"name": "bob", "mechanism": 1}]
    assert alter(deletions=[*removed, *removed]) == [("bob", ErrorCode.duplicate_resource)]
    assert alter(deletions=removed) == [("bob", NONE)]
    assert alter(deletions=removed) == [("bob", ErrorCode.resource_not_found)]
    assert alter(deletions=[{"name": "bob", "mechanism": 2}]) == [("bob", NONE)]
    assert bench.security.users.get("bob") is None


@pytest.mark.slow
def test_held_fetch_returns_no_records_after_the_right_was_taken(bench: SecureBench) -> None:
    topic = bench.topic("orders")
    bench.allow("topic", "orders", "read")
    alice = bench.logged_in("alice")
    asked = [{"topic": "orders", "partitions": [{"partition": 0, "partition_max_bytes": 1000}]}]
    number = alice.send(ApiKey.FETCH, 11, max_bytes=1000, min_bytes=1, max_wait=10_000, topics=asked)
    assert alice.answer_to(number) is None
    bench.allow("topic", "orders", "read", "deny")
    bench.write(topic, b"secret")
    partition = alice.answer_to(number).responses[0].partitions[0]
    assert (partition.error_code, partition.records) == (ErrorCode.topic_authorization_failed, b"")


@pytest.mark.parametrize("held", ["JoinGroup", "SyncGroup"])
def test_held_request_of_a_group_gets_nothing_after_the_right_was_taken(
    bench: SecureBench, root: Client, held: str
) -> None:
    bench.allow("group", "g", "read")
    leader, alice = join(root, 3), bench.logged_in("alice")
    sync = {"group_id": "g", "member_id": leader.member_id}
    root.ask(ApiKey.SYNC_GROUP, 3, generation_id=1, **sync)
    number = alice.send(ApiKey.JOIN_GROUP, 3, **JOIN_FIELDS)
    if held == "JoinGroup":
        bench.allow("group", "g", "read", "deny")
        assert alice.answer_to(number) is None
        assert join(root, 3, leader.member_id).generation_id == 2
        refused = alice.answer_to(number)
        assert (refused.generation_id, refused.leader, refused.members) == (-1, "", ())
    else:
        assert join(root, 3, leader.member_id).generation_id == 2
        member_id = alice.answer_to(number).member_id
        number = alice.send(ApiKey.SYNC_GROUP, 3, group_id="g", generation_id=2, member_id=member_id)
        bench.allow("group", "g", "read", "deny")
        assert alice.answer_to(number) is None
        assignments = [{"member_id": each, "assignment": b"secret"} for each in (leader.member_id, member_id)]
        assert root.ask(ApiKey.SYNC_GROUP, 3, generation_id=2, assignments=assignments, **sync).assignment == b"secret"
        refused = alice.answer_to(number)
        assert refused.assignment == b""
    assert refused.error_code is ErrorCode.group_authorization_failed
