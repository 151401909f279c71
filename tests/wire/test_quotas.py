"""Quotas and the audit log of a running broker, with stock clients and the commands."""

import json
import os
import signal
import statistics
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException, Producer
from confluent_kafka.admin import AdminClient, NewTopic

from tests.kit.broker import Broker
from tests.kit.command import run_duolog
from tests.kit.eventually import eventually
from tests.wire.clients.agent import AgentError
from tests.wire.clients.jvm import Agents
from tests.wire.clients.message import Message
from tests.wire.test_security import PASSWORDS, add_user, settings

NOISY_RATE = 2_000_000
ROUND_S = 3.0


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Broker]:
    with Broker(tmp_path / "data") as broker:
        yield broker


def new_topic(broker: Broker, name: str) -> None:
    admin = AdminClient({"bootstrap.servers": broker.kafka})
    for made in admin.create_topics([NewTopic(name, 1)]).values():
        made.result(10)


class Noisy:
    """A producer that sends as much as it may."""

    def __init__(self, broker: Broker) -> None:
        self.throttled_ms: list[float] = []
        self.sent_bytes = 0
        self._producer = Producer(
            {
                "bootstrap.servers": broker.kafka,
                "client.id": "noisy",
                "linger.ms": 0,
                "queue.buffering.max.kbytes": 4096,
                "throttle_cb": lambda event: self.throttled_ms.append(event.throttle_time * 1000),
            }
        )

    def run(self, until_s: float) -> None:
        """Send until a time, as fast as the broker takes it."""
        while time.monotonic() < until_s:
            self.send()

    def send(self) -> None:
        try:
            self._producer.produce("orders", b"x" * 20_000, on_delivery=self._delivered)
        except BufferError:
            self._producer.poll(0.005)
        self._producer.poll(0)

    def close(self) -> None:
        """Drop what is not sent, and end the client."""
        self._producer.purge()
        self._producer.flush(1)

    def _delivered(self, error: Any, message: Any) -> None:
        if error is None:
            self.sent_bytes += len(message.value())


def test_noisy_client_is_kept_at_its_rate(broker: Broker) -> None:
    new_topic(broker, "orders")
    environment = {"DUOLOG_HTTP": broker.http}
    done = run_duolog("quota", "set", "--client-id", "noisy", f"producer_byte_rate={NOISY_RATE}", **environment)
    assert done.stdout == f"producer_byte_rate={NOISY_RATE}\n", done.stderr
    listed = json.loads(run_duolog("quota", "list", "--json", **environment).stdout)
    assert listed == [{"user": None, "client_id": "noisy", "limits": {"producer_byte_rate": NOISY_RATE}}]
    noisy, begun_s = Noisy(broker), time.monotonic()
    noisy.run(begun_s + ROUND_S)
    noisy.close()
    seconds = time.monotonic() - begun_s
    assert 0.4 * NOISY_RATE * seconds < noisy.sent_bytes < 1.2 * NOISY_RATE * (seconds + 1)
    assert any(noisy.throttled_ms)
    removals = [
        run_duolog("quota", "remove", "--client-id", "noisy", "producer_byte_rate", **environment) for _ in "ab"
    ]
    assert (removals[0].returncode, removals[0].stdout) == (0, "removed producer_byte_rate\n")
    assert (removals[1].returncode, removals[1].stdout) == (1, "")
    assert "there is no quota producer_byte_rate of client-id=noisy" in removals[1].stderr
    assert json.loads(run_duolog("quota", "list", "--json", **environment).stdout) == []
    refused = run_duolog("quota", "set", "--client-id", "noisy", "controller_mutation_rate=1", **environment)
    assert (refused.returncode, "is not supported" in refused.stderr) == (1, True)


@pytest.mark.soak
def test_noisy_client_at_its_quota_leaves_the_latency_of_others(broker: Broker) -> None:
    new_topic(broker, "orders")
    run_duolog("quota", "set", "--client-id", "noisy", f"producer_byte_rate={NOISY_RATE}", DUOLOG_HTTP=broker.http)
    quiet = Producer({"bootstrap.servers": broker.kafka, "linger.ms": 0, "acks": 1})
    noisy = Noisy(broker)
    noisy.run(time.monotonic() + ROUND_S)  # Uses up the burst that a pause allows.
    beside: list[float] = []
    alone: list[float] = []
    for _ in range(5):
        beside.append(_p99_ms(quiet, noisy.send))
        time.sleep(3)  # The messages that the noisy client has buffered are sent.
        alone.append(_p99_ms(quiet, lambda: None))
    noisy.close()
    assert statistics.median(beside) <= 1.5 * statistics.median(alone), (beside, alone)


def _p99_ms(quiet: Producer, beside: Any) -> float:
    took_ms = []
    until_s = time.monotonic() + ROUND_S
    while time.monotonic() < until_s:
        beside()
        begun_s = time.monotonic()
        quiet.produce("orders", b"x" * 100)
        assert quiet.flush(10) == 0
        took_ms.append((time.monotonic() - begun_s) * 1000)
        time.sleep(0.002)
    return statistics.quantiles(took_ms, n=100)[98]


def test_delayed_message_above_the_quota_is_reported_at_once(broker: Broker) -> None:
    new_topic(broker, "orders")
    environment = {"DUOLOG_HTTP": broker.http}
    done = run_duolog("quota", "set", "--user", "<default>", "delayed_messages_pending=1", **environment)
    assert done.stdout == "delayed_messages_pending=1\n", done.stderr
    producer = Producer({"bootstrap.servers": broker.kafka, "linger.ms": 0, "enable.idempotence": True})
    codes: list[int | None] = []
    for headers in ({"TIMER_DELAY_MS": b"600000"}, {"TIMER_DELAY_MS": b"600000"}, {}):
        producer.produce(
            "orders", b"x", headers=headers, on_delivery=lambda error, _: codes.append(error and error.code())
        )
        assert producer.flush(10) == 0
    assert codes == [None, KafkaError.POLICY_VIOLATION, None]


def test_java_application_sees_a_policy_violation_and_its_producer_goes_on(broker: Broker, agents: Agents) -> None:
    """`docs/operating/quotas.md` says what the client does: no retry, and no end of the producer."""
    new_topic(broker, "orders")
    run_duolog("quota", "set", "--user", "<default>", "delayed_messages_pending=1", DUOLOG_HTTP=broker.http)
    java, delayed = agents.kafka("4.3"), Message(b"x", headers=(("TIMER_DELAY_MS", b"600000"),)).as_kafka_json()
    refused = "PolicyViolationException: .*quota delayed_messages_pending of ANONYMOUS: 1 delayed messages are pending"
    for name, config in (("plain", {}), ("transactional", {"transactional.id": "id"})):
        java.call("open_producer", name=name, bootstrap=broker.kafka, config=config)

    def do(name: str, what: str, *messages: object) -> Any:
        return java.call("producer", name=name, topic="orders", do=what, messages=messages)

    def send_error() -> str:
        try:
            do("transactional", "send", Message(b"x").as_kafka_json())
        except AgentError as error:
            return str(error)
        return ""

    do("plain", "send", delayed)
    with pytest.raises(AgentError, match=refused):
        do("plain", "send", delayed)
    do("plain", "send", Message(b"x").as_kafka_json())
    metrics = do("plain", "metrics")
    assert (metrics["record-error-total"], metrics["record-retry-total"]) == (1, 0)

    do("transactional", "init")
    do("transactional", "begin")
    with pytest.raises(AgentError, match=refused):
        do("transactional", "send", delayed)
    # The client reports the error of a message before it notes it as that of the transaction.
    eventually("no further message can be sent", send_error, lambda text: "KafkaException" in text, 10)
    with pytest.raises(AgentError, match="KafkaException"):
        do("transactional", "commit")
    do("transactional", "abort")
    do("transactional", "begin")
    do("transactional", "send", Message(b"x").as_kafka_json())
    do("transactional", "commit")
    for name in ("plain", "transactional"):
        do(name, "close")


def test_audit_file_tells_who_did_what_and_is_rotated(tmp_path: Path) -> None:
    data, file = tmp_path / "data", tmp_path / "audit.jsonl"
    add_user(data, "root", "--super")
    add_user(data, "alice")
    with Broker(data, {"security.enabled": "true", "security.audit_file": str(file)}) as broker:
        as_root = {"DUOLOG_HTTP": broker.http, "DUOLOG_USER": "root", "DUOLOG_PASSWORD": PASSWORDS["root"]}
        assert run_duolog("topic", "create", "orders", **as_root).returncode == 0
        admin = AdminClient(settings(broker, "alice"))
        made = admin.create_topics([NewTopic("mine", 1)])["mine"]
        with pytest.raises(KafkaException):
            made.result(10)
        assert run_duolog("topic", "list", **(as_root | {"DUOLOG_PASSWORD": "very wrong"})).returncode == 1
        expected = [
            ("login", "http", "User:root", "success"), ("change", "http", "User:root", "POST /api/topics"),
            ("login", "kafka", "User:alice", "success"), ("refusal", "kafka", "User:alice", "CREATE_TOPICS"),
            ("login", "http", "User:root", "failure"),
        ]  # fmt: skip
        eventually("the events", lambda: _logged_events(file), lambda found: set(expected) <= set(found), 10)
        assert "very wrong" not in file.read_text()
        file.rename(tmp_path / "audit.1")
        os.kill(broker.pid, signal.SIGHUP)
        eventually("the file is opened again", file.exists, bool, 10)
        assert run_duolog("topic", "delete", "orders", **as_root).returncode == 0
    assert ("change", "http", "User:root", "DELETE /api/topics/orders") in _logged_events(file)


def _logged_events(file: Path) -> list[tuple[str, str, str, str]]:
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    return [
        (line["event"], line["protocol"], line["principal"], line.get("result") or line["request"]) for line in lines
    ]
