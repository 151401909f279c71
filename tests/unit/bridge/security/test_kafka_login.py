"""Logins and decisions on Kafka connections: nothing before the login, errors for each item that is refused."""

import base64
import hmac
import sys
import time
from collections.abc import Callable
from hashlib import new as new_hash
from hashlib import pbkdf2_hmac
from threading import Event
from typing import Any

import msgspec
import pytest

from duolog.bridge.config import SecurityOptions
from duolog.bridge.kafka import TABLE
from duolog.bridge.kafka.requests.access import remember
from duolog.bridge.security.logins import new_record
from duolog.bridge.security.secret_box import SecretBox
from duolog.bridge.security.session import DECISIONS_MAX
from duolog.bridge.security.tools.rule_texts import RuleText, rule_of
from duolog.bridge.security_start import THREADS, WAITING_MAX, start_workers
from duolog.protocol.kafka.api_messages import ApiKey, ErrorCode
from tests.kit.kafka_frames import frame_of
from tests.unit.bridge.batches import batch
from tests.unit.bridge.kafka.bench import Client, KafkaBench

BOX = SecretBox(b"k" * 32)
SETTINGS = SecurityOptions(enabled=True)
NAMES = {"SCRAM-SHA-256": "sha256", "SCRAM-SHA-512": "sha512"}


class SecureBench(KafkaBench):
    """A core with the users alice, who is none of the super users, and root. Failed logins are answered at once."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(security=SecurityOptions(enabled=True, **{"failed_login_delay_ms": 0, **settings}))
        self.security.use(BOX)
        for record in RECORDS:
            self.security.users.set(record, self.clock.now_ms())
        self.settle()

    def allow(self, resource: str, name: str, operation: str, permission: str = "allow") -> None:
        self.security.acls.add([rule_of(RuleText("alice", resource, operation, permission, name))], self.clock.now_ms())
        self.settle()

    def logged_in(self, name: str) -> Client:
        client = self.connect()
        assert login(client, name, "secret")[-1].error_code is ErrorCode.none
        return client


RECORDS = [new_record(name, "secret", BOX, SETTINGS, 1, is_super=name == "root") for name in ("alice", "root")]


def login(client: Client, name: str, password: str, mechanism: str = "SCRAM-SHA-256") -> list[Any]:
    """Log in with SCRAM; return the answers."""
    answers = [client.ask(ApiKey.SASL_HANDSHAKE, 1, mechanism=mechanism)]
    first = f"n={name},r=nonce"
    answers.append(client.ask(ApiKey.SASL_AUTHENTICATE, 2, auth_bytes=f"n,,{first}".encode()))
    server_first = answers[-1].auth_bytes.decode()
    fields = dict(part.split("=", 1) for part in server_first.split(","))
    hash_name = NAMES[mechanism]
    salted = pbkdf2_hmac(hash_name, password.encode(), base64.b64decode(fields["s"]), int(fields["i"]))
    client_key = hmac.digest(salted, b"Client Key", hash_name)
    without_proof = f"c=biws,r={fields['r']}"
    signed = hmac.digest(
        new_hash(hash_name, client_key).digest(), f"{first},{server_first},{without_proof}".encode(), hash_name
    )
    proof = base64.b64encode(bytes(a ^ b for a, b in zip(client_key, signed, strict=True))).decode()
    answers.append(client.ask(ApiKey.SASL_AUTHENTICATE, 2, auth_bytes=f"{without_proof},p={proof}".encode()))
    return answers


@pytest.mark.parametrize("mechanism", NAMES)
def test_login_with_scram(mechanism: str) -> None:
    client = SecureBench().connect()
    assert client.ask(ApiKey.API_VERSIONS, 3, client_software_name="a", client_software_version="1") is not None
    assert [each.error_code for each in login(client, "alice", "secret", mechanism)] == [ErrorCode.none] * 3
    assert len(client.ask(ApiKey.METADATA, 12, topics=[]).brokers) == 1
    assert not client.is_closed


@pytest.mark.parametrize("name", ["alice", "nobody"])
def test_wrong_password_and_unknown_user_fail_alike(name: str) -> None:
    client = SecureBench().connect()
    answers = login(client, name, "wrong")
    assert answers[1].auth_bytes.count(b",") == 2
    assert answers[2].error_code is ErrorCode.sasl_authentication_failed
    assert answers[2].error_message == "the user name or password is wrong"
    assert client.is_closed


def test_salt_of_an_unknown_user_stays_the_same() -> None:
    bench = SecureBench()
    salts = {login(bench.connect(), "nobody", "x")[1].auth_bytes.split(b",")[1] for _ in range(2)}
    assert len(salts) == 1


def test_nothing_but_the_login_is_served_before_it() -> None:
    bench = SecureBench()
    before = bench.store.next_position
    for key in TABLE.keys() - {ApiKey.API_VERSIONS, ApiKey.SASL_HANDSHAKE}:
        client = bench.connect()
        client.send(key, TABLE[key].max_version)
        assert client.is_closed, key
    assert bench.store.next_position == before


def test_large_frame_before_the_login_closes_the_connection() -> None:
    bench = SecureBench(login_bytes_max=2048)
    client = bench.connect()
    client.connection.data_received((4096).to_bytes(4, "big"))
    assert client.is_closed


@pytest.mark.parametrize("token", [b"no SCRAM", b"\0alice\0wrong"])
def test_requests_behind_a_login_that_fails_are_not_served(token: bytes) -> None:
    bench = SecureBench(sasl_plain_without_tls=True)
    client = bench.connect()
    mechanism = "PLAIN" if token.startswith(b"\0") else "SCRAM-SHA-512"
    new_topic = {"topics": [{"name": "new", "num_partitions": 1, "replication_factor": 1}]}
    frames = (
        frame_of(ApiKey.SASL_HANDSHAKE, 1, 1, mechanism=mechanism),
        frame_of(ApiKey.SASL_AUTHENTICATE, 2, 2, auth_bytes=token),
        frame_of(ApiKey.CREATE_TOPICS, 5, 3, **new_topic),
    )
    client.connection.data_received(b"".join(frames))
    assert client.is_closed
    assert bench.topics.get("new") is None


def test_password_needs_encryption_or_the_setting() -> None:
    client = SecureBench().connect()
    answer = client.ask(ApiKey.SASL_HANDSHAKE, 1, mechanism="PLAIN")
    assert answer.error_code is ErrorCode.unsupported_sasl_mechanism
    assert answer.mechanisms == ("SCRAM-SHA-256", "SCRAM-SHA-512")
    for password, error in (("secret", ErrorCode.none), ("wrong", ErrorCode.sasl_authentication_failed)):
        client = SecureBench(sasl_plain_without_tls=True).connect()
        assert client.ask(ApiKey.SASL_HANDSHAKE, 1, mechanism="PLAIN").error_code is ErrorCode.none
        token = b"\0alice\0" + password.encode()
        assert client.ask(ApiKey.SASL_AUTHENTICATE, 2, auth_bytes=token).error_code is error


def test_login_closes_the_connection_while_so_many_wait_for_a_thread() -> None:
    bench, posted, is_over = SecureBench(sasl_plain_without_tls=True), list[Callable[[], None]](), Event()
    workers = start_workers(posted.append)
    for _ in range(THREADS):
        workers.submit(is_over.wait, lambda result: None)
    while workers._queue.qsize():
        time.sleep(0)  # The threads take what keeps them busy.
    bench.security.executor = workers
    clients = [bench.connect() for _ in range(WAITING_MAX + 1)]
    for client in clients:
        client.ask(ApiKey.SASL_HANDSHAKE, 1, mechanism="PLAIN")
        client.send(ApiKey.SASL_AUTHENTICATE, 2, auth_bytes=b"\0alice\0secret")
    assert len(posted) == 1
    posted.pop()()
    assert clients[-1].is_closed
    assert clients[-1].answer_to(2) is None, "clients do not try again after an answer"
    assert not any(client.is_closed for client in clients[:-1])
    assert bench.security.audit.logins == {("kafka", "PLAIN", "failure"): 1}
    is_over.set()
    workers.stop()


def test_topics_that_a_session_remembers_are_bounded() -> None:
    bench = SecureBench()
    session = bench.logged_in("alice").connection.session
    assert session is not None
    for readable in (session.readable, session.writable):
        for first in range(0, 3 * DECISIONS_MAX, 100):
            remember(readable, [(f"topic{first + number}",) for number in range(100)], lambda name: True)
            assert len(readable) <= DECISIONS_MAX
        assert readable, "the last topics are remembered"
        remember(readable, [(f"another{number}",) for number in range(20_000)], lambda name: True)
        assert len(readable) <= DECISIONS_MAX


def test_session_ends_unless_the_client_logs_in_again() -> None:
    bench = SecureBench(session_ms=60_000)
    client = bench.logged_in("alice")
    bench.clock.pass_ms(59_000)
    assert login(client, "alice", "secret")[-1].session_lifetime.total_seconds() == 60
    bench.clock.pass_ms(59_000)
    assert client.ask(ApiKey.METADATA, 12, topics=[]) is not None
    bench.clock.pass_ms(2_000)
    client.send(ApiKey.METADATA, 12, topics=[])
    assert client.is_closed
    client = bench.logged_in("alice")
    assert login(client, "root", "secret")[-1].error_code is ErrorCode.sasl_authentication_failed


def test_login_again_begins_with_a_handshake_and_lets_no_other_request_pass() -> None:
    bench = SecureBench()
    client = bench.logged_in("alice")
    client.send(ApiKey.SASL_AUTHENTICATE, 2, auth_bytes=b"n,,n=alice,r=nonce")
    assert client.is_closed
    client = bench.logged_in("alice")
    assert client.ask(ApiKey.SASL_HANDSHAKE, 1, mechanism="SCRAM-SHA-256").error_code is ErrorCode.none
    client.send(ApiKey.METADATA, 12, topics=[])
    assert client.is_closed


def produced(client: Client, *names: str) -> dict[str, ErrorCode]:
    records = batch([b"x"])
    asked = [{"name": name, "partition_data": [{"index": 0, "records": records}]} for name in names]
    answer = client.ask(ApiKey.PRODUCE, 9, transactional_id=None, acks=-1, topic_data=asked)
    return {topic.name: topic.partition_responses[0].error_code for topic in answer.responses}


def fetched(client: Client, *names: str) -> dict[str, ErrorCode]:
    asked = [{"topic": name, "partitions": [{"partition": 0, "partition_max_bytes": 1000}]} for name in names]
    answer = client.ask(ApiKey.FETCH, 11, max_bytes=1000, topics=asked)
    return {topic.topic: topic.partitions[0].error_code for topic in answer.responses}


DENIED, NONE = ErrorCode.topic_authorization_failed, ErrorCode.none


def test_topics_are_decided_on_one_by_one() -> None:
    bench = SecureBench()
    for name in ("orders", "payments"):
        bench.topic(name)
    client = bench.logged_in("alice")
    assert produced(client, "orders", "payments") == {"orders": DENIED, "payments": DENIED}
    bench.allow("topic", "orders", "all")
    assert produced(client, "orders", "payments") == {"orders": NONE, "payments": DENIED}
    assert fetched(client, "payments", "orders") == {"orders": NONE, "payments": DENIED}
    assert bench.topic("payments").queues[0].end_offset == 0
    listed = client.ask(ApiKey.LIST_OFFSETS, 5, topics=[
        {"name": name, "partitions": [{"partition_index": 0, "timestamp": -1}]} for name in ("orders", "payments")
    ])  # fmt: skip
    assert {topic.name: topic.partitions[0].error_code for topic in listed.topics} == {
        "orders": NONE,
        "payments": DENIED,
    }
    bench.allow("topic", "orders", "read", "deny")
    assert fetched(client, "orders") == {"orders": DENIED}
    assert fetched(bench.logged_in("root"), "payments") == {"payments": NONE}


@pytest.mark.parametrize("version", [0, 1, 8, 12])
def test_metadata_hides_topics(version: int) -> None:
    bench = SecureBench()
    for name in ("orders", "payments"):
        bench.topic(name)
    client = bench.logged_in("alice")
    bench.allow("topic", "orders", "describe")
    everything = client.ask(ApiKey.METADATA, version, topics=[] if version == 0 else None)
    assert [topic.name for topic in everything.topics] == ["orders"]
    named = client.ask(ApiKey.METADATA, version, topics=[{"name": "payments"}, {"name": "new"}])
    assert {topic.name: topic.error_code for topic in named.topics} == {"payments": DENIED, "new": DENIED}
    assert len(named.brokers) == 1
    assert bench.topics.get("new") is None


def test_group_needs_its_own_right() -> None:
    bench = SecureBench()
    bench.topic("orders")
    client = bench.logged_in("alice")
    bench.allow("topic", "orders", "read")
    asked = {"group_id": "g", "generation_id_or_member_epoch": -1, "topics": [
        {"name": "orders", "partitions": [{"partition_index": 0, "committed_offset": 1}]}
    ]}  # fmt: skip
    answer = client.ask(ApiKey.OFFSET_COMMIT, 7, **asked)
    assert answer.topics[0].partitions[0].error_code is ErrorCode.group_authorization_failed
    assert client.ask(ApiKey.HEARTBEAT, 4, group_id="g").error_code is ErrorCode.group_authorization_failed
    bench.allow("group", "g", "read")
    assert client.ask(ApiKey.OFFSET_COMMIT, 7, **asked).topics[0].partitions[0].error_code is NONE
    found = client.ask(ApiKey.OFFSET_FETCH, 8, groups=[{"group_id": each, "topics": None} for each in ("g", "h")])
    assert {each.group_id: each.error_code for each in found.groups} == {
        "g": NONE, "h": ErrorCode.group_authorization_failed,
    }  # fmt: skip
    bench.group_offsets.commit("h", [], bench.clock.now_ms())
    assert [each.group_id for each in client.ask(ApiKey.LIST_GROUPS, 4).groups] == ["g"]


def test_removed_user_loses_the_connection() -> None:
    bench = SecureBench()
    client = bench.logged_in("alice")
    bench.security.users.remove("alice", bench.clock.now_ms())
    client.send(ApiKey.METADATA, 12, topics=[])
    assert client.is_closed


# -- Decisions that a session remembers


def test_remembered_right_to_produce_ends_with_the_rule_the_group_and_the_user() -> None:
    bench = SecureBench()
    bench.topic("orders")
    client = bench.logged_in("alice")
    acls, users, now_ms = bench.security.acls, bench.security.users, bench.clock.now_ms()
    allowed = rule_of(RuleText("Group:shop", "topic", "write", name="orders"))
    acls.add([allowed], now_ms)
    alice = RECORDS[0]
    for groups, decision in ((("shop",), NONE), ((), DENIED), (("shop",), NONE)):
        users.set(msgspec.structs.replace(alice, groups=groups), now_ms)
        assert [produced(client, "orders")["orders"] for _ in range(2)] == [decision, decision]
    denied = rule_of(RuleText("alice", "topic", "write", "deny", "orders"))
    for change, decision in ((acls.add, DENIED), (acls.remove, NONE)):
        change([denied], now_ms)
        assert [produced(client, "orders")["orders"] for _ in range(2)] == [decision, decision]
    acls.remove([allowed], now_ms)
    assert produced(client, "orders") == {"orders": DENIED}
    acls.add([allowed], now_ms)
    assert produced(client, "orders") == {"orders": NONE}
    users.remove("alice", now_ms)
    end = bench.topic("orders").queues[0].end_offset
    client.connection.data_received(produce_frame("orders"))
    assert client.is_closed
    assert bench.topic("orders").queues[0].end_offset == end


def test_produce_to_a_remembered_topic_calls_two_functions_more_than_without_security() -> None:
    secured, free = SecureBench(), KafkaBench()
    secured.allow("topic", "orders", "write")
    counts = []
    for bench, client in ((secured, secured.logged_in("alice")), (free, free.connect())):
        bench.topic("orders")
        counts.append(calls(client, produce_frame("orders")))
    assert counts[0] - counts[1] == 2


def calls(client: Client, frame: bytes) -> int:
    """Count the function calls of a request that was sent before. They are the same on each machine, unlike times.

    The least of some counts is that of the request alone: a turn of the loop that took long is noted, too.
    """
    client.connection.data_received(frame)
    client.bench.loop.turn()
    return min(calls_of(client, frame) for _ in range(10))


def calls_of(client: Client, frame: bytes) -> int:
    count = 0

    def note(frame: object, event: str, argument: object) -> None:
        nonlocal count
        count += event == "call"

    sys.setprofile(note)
    try:
        client.connection.data_received(frame)
    finally:
        sys.setprofile(None)
    client.bench.loop.turn()
    return count


def produce_frame(name: str) -> bytes:
    data = [{"name": name, "partition_data": [{"index": 0, "records": batch([b"x"])}]}]
    return frame_of(ApiKey.PRODUCE, 9, 1, transactional_id=None, acks=-1, topic_data=data)
