"""The audit log: who logged in, what was refused and by which rule, who changed what; bounded, without secrets."""

import asyncio
import json
from pathlib import Path
from typing import Any, cast

import pytest

from duolog.bridge.config import ConfigError
from duolog.bridge.http.connections import HttpConnection
from duolog.bridge.kafka import TABLE
from duolog.bridge.net.tls.peer import TlsPeer
from duolog.bridge.security.audit.audit_file import AuditFile
from duolog.bridge.security.audit.audit_log import CHANGES
from duolog.bridge.security.oauth.key_sets import KeySet
from duolog.bridge.security.oauth.tokens import Tokens
from duolog.bridge.security.rules import Operation
from duolog.protocol.kafka.api_messages import ApiKey
from tests.kit.http import HEADERS, HttpDialogue, encoded, parsed
from tests.kit.sockets import HOST
from tests.unit.bridge.security import test_http_paths
from tests.unit.bridge.security.test_kafka_login import SecureBench, fetched, login, produced
from tests.unit.bridge.security.test_tokens import KEY, Source, token


class Lines:
    """A sink in memory, with room for `room` lines."""

    lost_lines = 0

    def __init__(self, room: int = 1000) -> None:
        self.room, self.lines = room, [b""][:0]

    def write(self, line: bytes) -> bool:
        if len(self.lines) >= self.room:
            return False
        self.lines.append(line)
        return True

    def reopen(self) -> None: ...

    def stop(self) -> None: ...

    def take(self, event: str) -> list[dict[str, Any]]:
        every = [json.loads(line) for line in self.lines]
        self.lines = []
        return [line for line in every if line["event"] == event]


def bench_with(lines: Lines, **settings: Any) -> SecureBench:
    bench = SecureBench(**settings)
    bench.security.audit.sink = lines
    return bench


def test_logins_are_told_with_mechanism_address_and_result() -> None:
    lines = Lines()
    bench = bench_with(lines, sasl_plain_without_tls=True)
    login(bench.connect(), "alice", "secret")
    login(bench.connect(), "alice", "very wrong")
    client = bench.connect()
    client.ask(ApiKey.SASL_HANDSHAKE, 1, mechanism="PLAIN")
    client.ask(ApiKey.SASL_AUTHENTICATE, 2, auth_bytes=b"\0nobody\0very wrong")
    assert b"wrong" not in b"".join(lines.lines).replace(b"password is wrong", b"")
    assert b"secret" not in b"".join(lines.lines)
    logged = lines.take("login")
    assert [(each["mechanism"], each["principal"], each["result"]) for each in logged] == [
        ("SCRAM-SHA-256", "User:alice", "success"),
        ("SCRAM-SHA-256", "User:alice", "failure"),
        ("PLAIN", "User:nobody", "failure"),
    ]
    assert logged[1]["reason"] == "the user name or password is wrong"
    assert logged[0]["address"] == client.connection.peer[0]
    assert bench.security.audit.logins["kafka", "SCRAM-SHA-256", "failure"] == 1


def test_refusals_name_the_rule_that_decided() -> None:
    lines = Lines()
    bench = bench_with(lines)
    for name in ("orders", "payments"):
        bench.topic(name)
    client = bench.logged_in("alice")
    bench.allow("topic", "orders", "write")
    bench.allow("topic", "orders", "read", "deny")
    lines.lines = []
    produced(client, "orders", "payments")
    fetched(client, "orders")
    logged = [(each["request"], each["operation"], each["name"], each["rule"]) for each in lines.take("refusal")]
    assert logged == [
        ("PRODUCE", "write", "payments", "no rule allows it"),
        ("FETCH", "read", "orders", "deny User:alice read on topic orders from *"),
    ]
    assert bench.security.audit.refusals == {("kafka",): 2}


def test_changes_name_who_and_what_and_allowed_data_requests_write_nothing() -> None:
    lines = Lines()
    bench = bench_with(lines)
    client = bench.logged_in("root")
    lines.lines = []
    client.ask(ApiKey.CREATE_TOPICS, 5, topics=[{"name": "new", "num_partitions": 1, "replication_factor": 1}])
    (change,) = lines.take("change")
    assert (change["principal"], change["request"]) == ("User:root", "CREATE_TOPICS")
    assert change["resources"] == [{"operation": "create", "resource": "topic", "name": "new"}]
    produced(client, "new")
    fetched(client, "new")
    assert lines.lines == []


def test_login_over_http_by_certificate_or_token_is_told_once_a_minute() -> None:
    lines, bench = Lines(), test_http_paths.Bench()
    bench.core.security.audit.sink = lines
    bench.core.security.tokens = Tokens(KeySet(Source(one=KEY).read), bench.core.security.options)
    expires_s = bench.core.clock.now_ms() // 1000 + 600

    async def ask(headers: dict[str, str], peer: TlsPeer | None) -> int:
        port = bench.port()
        await port.start()
        dialogue = HttpDialogue(bench.core, port)
        cast(HttpConnection, dialogue.connection).tls = peer
        for _ in range(2):
            dialogue.send(encoded("GET", "/api/cron", b"", HEADERS | {"Connection": "keep-alive"} | headers))
            await dialogue.turn(50)
        status = parsed(bytes(dialogue.transport.taken))[0]
        await dialogue.close()
        await port.stop()
        return status

    peer = TlsPeer("TLSv1.3", "TLS_AES_256_GCM_SHA384", "alice", "CN=alice")
    bearer = {"Authorization": f"Bearer {token(sub='root', exp=expires_s)}"}
    assert asyncio.run(ask({}, peer)) == asyncio.run(ask(bearer, None)) == 400, "a schedule is missing"
    told = [{**line, "time": ""} for line in lines.take("login")]
    assert told == [
        {
            "time": "", "event": "login", "protocol": "http", "mechanism": mechanism, "principal": principal,
            "address": HOST, "result": "success",
        }
        for mechanism, principal in (("certificate", "User:alice"), ("bearer", "User:root"))
    ]  # fmt: skip


def test_a_flood_is_cut_and_counted_and_hides_no_change() -> None:
    lines = Lines()
    bench = bench_with(lines, audit_lines_max=3)
    bench.topic("orders")
    client, root = bench.logged_in("alice"), bench.logged_in("root")
    bench.clock.pass_ms(2_000)
    lines.lines = []
    for _ in range(10):
        produced(client, "orders")
    root.ask(ApiKey.DELETE_TOPICS, 5, topic_names=("orders",))
    events = [json.loads(line)["event"] for line in lines.lines]
    assert events == ["refusal"] * 3 + ["change"]
    audit = bench.security.audit
    deadline = audit.next_deadline_mono_ms()
    assert deadline is not None
    lines.lines = []
    audit.report(deadline)
    (logged,) = lines.take("left_out")
    assert (logged["kind"], logged["count"]) == ("refusal", 7)
    assert audit.next_deadline_mono_ms() is None


def test_lines_without_room_are_counted() -> None:
    bench = bench_with(Lines(room=0))
    login(bench.connect(), "alice", "secret")
    assert bench.security.audit.counts()["left_out",] == 1


def test_declarations_say_whether_they_are_administrative() -> None:
    changing = {ApiKey(key).name for key, api in TABLE.items() if api.access.is_change}
    assert Operation.READ not in CHANGES
    assert {"CREATE_TOPICS", "DELETE_RECORDS", "INCREMENTAL_ALTER_CONFIGS", "CREATE_ACLS", "OFFSET_DELETE"} <= changing
    assert not {"PRODUCE", "FETCH", "METADATA", "OFFSET_COMMIT", "DESCRIBE_CONFIGS"} & changing


def test_file_is_bounded_is_opened_again_and_is_private(tmp_path: Path) -> None:
    path, audit_queue_bytes = tmp_path / "audit.jsonl", 100
    file = AuditFile(str(path), audit_queue_bytes)
    assert file.write(b"first\n")
    assert not file.write(b"x" * 101)
    file.stop()
    path.rename(tmp_path / "old")
    file = AuditFile(str(path), audit_queue_bytes)
    path.rename(tmp_path / "older")
    file.reopen()
    file.write(b"second\n")
    file.stop()
    assert (tmp_path / "old").read_text() == "first\n"
    assert path.read_text() == "second\n"
    assert path.stat().st_mode & 0o777 == 0o600
    with pytest.raises(ConfigError, match=r"security\.audit_file"):
        AuditFile(str(tmp_path / "none" / "file"), 100)
