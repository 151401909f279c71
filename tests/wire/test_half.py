"""RocketMQ's transactions with the stock Java clients, and half messages of Kafka producers, which decide over HTTP.

Readers of both protocols get each committed message once, and no other. A check-back goes to the producer or to another
member of its group, or to a URL for Kafka's producers, also after the broker was killed.
"""

from __future__ import annotations

import http.client
import itertools
import json
import socket
import threading
import time
from collections import Counter
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import confluent_kafka
import pytest

from duolog.bridge.transactions.check_callbacks import ASKED_MAX
from tests.kit.broker import Broker
from tests.kit.command import duolog
from tests.kit.eventually import eventually
from tests.wire.clients.agent import Agent
from tests.wire.clients.jvm import Agents
from tests.wire.clients.kafka_clients import Confluent
from tests.wire.clients.message import Message, Seen
from tests.wire.clients.rocketmq_clients import RocketmqReader
from tests.wire.clients.topics import create_topic, end_offsets
from tests.wire.clients.transactional import LibrdkafkaClient

CHECK_MAX = 3
BROKER_SETTINGS = {"txn.immunity_ms": 300, "txn.check_interval_ms": 200, "txn.check_max": CHECK_MAX}
GIVEN_UP = "TRANS_CHECK_MAX_TIME_TOPIC"
WITHIN_S = 40.0
VERSIONS = ["5.5", "4.9"]

pytestmark = pytest.mark.usefixtures("both_protocols")
_numbers = itertools.count(int(time.time()))


@pytest.fixture
def topic(broker: Broker) -> str:
    name = f"half-{next(_numbers)}"
    create_topic(broker.kafka, name, 1)
    return name


class Producer:
    """One TransactionMQProducer. A message is `body: local, check`: what its transaction gives, and a check of it."""

    def __init__(self, broker: Broker, agent: Agent, group: str | None = None, check: str = "") -> None:
        self._agent, self._name = agent, f"producer-{next(_numbers)}"
        self.group = group or f"shop-{next(_numbers)}"
        agent.call("tx_open", name=self._name, namesrv=broker.namesrv, group=self.group, check=check)

    def send(self, topic: str, *said: str, **properties: str) -> list[Any]:
        """Send each in a transaction of its own."""
        messages = []
        for each in said:
            body, _, verdicts = each.partition(": ")
            local, _, check = verdicts.partition(", ")
            asked = {"local": local, "check": check or "unknown", **properties}
            headers = tuple((name, value.encode()) for name, value in asked.items())
            messages.append(Message(body.encode(), headers=headers).as_rocketmq_json())
        sent: list[Any] = self._agent.call("tx_send", name=self._name, topic=topic, messages=messages)
        return sent

    def checked(self) -> list[dict[str, Any]]:
        return self._agent.call("tx_checked", name=self._name)

    def close(self) -> None:
        self._agent.call("tx_close", name=self._name)


def expect(broker: Broker, agents: Agents, topic: str, *bodies: str) -> list[Seen]:
    """Assert that clients of both protocols read these messages in this order, and no others."""
    eventually(
        f"records of {topic}", lambda: end_offsets(broker.kafka, topic), lambda ends: ends[0] >= len(bodies), WITHIN_S
    )
    kafka = Confluent(broker.kafka).read({topic: len(bodies)}, WITHIN_S)
    rocketmq = RocketmqReader(broker.namesrv, agents.rocketmq("5.5"), "5.5", "json", "pull")
    assert [each.text for each in kafka] == list(bodies)
    assert [each.text for each in rocketmq.read({topic: len(bodies)}, WITHIN_S)] == list(bodies)
    assert end_offsets(broker.kafka, topic) == {0: len(bodies)}
    return kafka


@pytest.mark.parametrize("version", VERSIONS)
def test_committed_is_seen_rolled_back_is_not(broker: Broker, agents: Agents, topic: str, version: str) -> None:
    producer = Producer(broker, agents.rocketmq(version))
    sent = producer.send(topic, "one: commit", "two: rollback", "three: commit")
    assert all(each["transaction_id"] == each["msg_id"] for each in sent)  # UNIQ_KEY
    seen = expect(broker, agents, topic, "one", "three")
    assert not {"TRAN_MSG", "REAL_TOPIC", "REAL_QID"} & {name for each in seen for name, _ in each.headers}
    assert producer.checked() == []
    producer.close()


@pytest.mark.parametrize("version", VERSIONS)
def test_who_does_not_know_is_asked(broker: Broker, agents: Agents, topic: str, version: str) -> None:
    producer = Producer(broker, agents.rocketmq(version))
    sent = producer.send(topic, "one: unknown, rollback", "two: unknown, commit")
    expect(broker, agents, topic, "two")
    asked = eventually("checks", producer.checked, lambda checked: len(checked) >= 1, WITHIN_S)
    assert {each["topic"] for each in asked} == {topic}
    assert {each["transaction_id"] for each in asked} <= {each["transaction_id"] for each in sent}
    producer.close()


def test_delayed_it_is_seen_at_the_later_of_commit_and_due_time(broker: Broker, agents: Agents, topic: str) -> None:
    # The client of 5.5 refuses to send such a message; that of 4.9 does not know these properties, and lets them pass.
    producer = Producer(broker, agents.rocketmq("4.9"))
    start_ms = int(time.time() * 1000)
    producer.send(topic, "never: rollback", "four: commit", TIMER_DELIVER_MS=str(start_ms + 4_000))
    producer.send(topic, "one: unknown, commit", TIMER_DELIVER_MS=str(start_ms + 1), CHECK_IMMUNITY_TIME_IN_SECONDS="1")
    producer.send(topic, "two: commit", TIMER_DELAY_SEC="2")
    seen = expect(broker, agents, topic, "one", "two", "four")
    read = agents.rocketmq("5.5").call("read_pull", namesrv=broker.namesrv, topics={topic: 3}, timeout_ms=40_000)
    stored_ms = [each["store_ms"] - start_ms for each in read]
    assert all(stored >= due for stored, due in zip(stored_ms, (1_000, 2_000, 4_000), strict=True)), stored_ms
    assert not {"TRAN_MSG", "REAL_TOPIC"} & {name for each in seen for name, _ in each.headers}
    producer.close()


def test_another_member_of_the_group_is_asked(broker: Broker, agents: Agents, topic: str) -> None:
    first = Producer(broker, agents.rocketmq("5.5"))
    second = Producer(broker, agents.rocketmq("4.9"), first.group, check="commit")
    second.send(topic, "one: commit")  # From now on the broker knows it.
    first.send(topic, "two: unknown, unknown", CHECK_IMMUNITY_TIME_IN_SECONDS="2")
    first.close()
    expect(broker, agents, topic, "one", "two")
    assert [each["properties"]["check"] for each in second.checked()] == ["unknown"]
    second.close()


def test_asked_in_vain_it_is_put_aside(broker: Broker, agents: Agents, topic: str) -> None:
    before = end_offsets(broker.kafka, GIVEN_UP)[0]
    producer = Producer(broker, agents.rocketmq("5.5"))
    (sent,) = producer.send(topic, "lost: unknown, unknown")
    eventually(GIVEN_UP, lambda: end_offsets(broker.kafka, GIVEN_UP), lambda ends: ends[0] > before, WITHIN_S)
    assert [each["properties"]["TRANSACTION_CHECK_TIMES"] for each in producer.checked()] == ["1", "2", "3"]
    reader = RocketmqReader(broker.namesrv, agents.rocketmq("5.5"), "5.5", "json", "pull")
    last = reader.read({GIVEN_UP: before + 1}, WITHIN_S)[-1]
    properties = dict(last.headers) | {name: value.encode() for name, value in last.inner.items()}
    assert last.text == "lost"
    assert properties["REAL_TOPIC"] == topic.encode()
    assert properties["UNIQ_KEY"] == sent["transaction_id"].encode()
    assert properties["TRANSACTION_CHECK_TIMES"] == str(CHECK_MAX).encode()
    assert end_offsets(broker.kafka, topic) == {0: 0}
    producer.close()


@pytest.mark.parametrize("version", VERSIONS)
def test_killed_between_half_and_commit(broker: Broker, agents: Agents, topic: str, version: str) -> None:
    producer = Producer(broker, agents.rocketmq(version))
    producer.send(topic, "one: commit", "two: rollback", CHECK_IMMUNITY_TIME_IN_SECONDS="60")
    expect(broker, agents, topic, "one")
    producer.send(topic, "three: unknown, commit", "four: unknown, rollback", CHECK_IMMUNITY_TIME_IN_SECONDS="3")
    broker.kill()
    broker.start()
    # The send connects the producer again at once. Its next heartbeat may be half a minute away.
    producer.send(topic, "five: unknown, commit")
    seen = eventually("commits", lambda: end_offsets(broker.kafka, topic), lambda ends: ends[0] == 3, WITHIN_S)
    assert seen == {0: 3}
    texts = [each.text for each in Confluent(broker.kafka).read({topic: 3}, WITHIN_S)]
    assert sorted(texts) == ["five", "one", "three"]
    producer.close()


# -- Half messages of Kafka producers


class Answering(ThreadingHTTPServer):
    """A producer's callback: says what each id is to become, and remembers who was asked about.

    A way to go wrong is named by the path behind /checks/.
    """

    daemon_threads = True
    request_queue_size = 128

    def __init__(self, verdicts: dict[str, str] | None = None, elsewhere: str = "") -> None:
        super().__init__(("127.0.0.1", 0), AnswerHandler)
        self.verdicts, self.elsewhere, self.asked = verdicts or {}, elsewhere, list[str]()
        self.ending = threading.Event()
        threading.Thread(target=self.serve_forever, daemon=True).start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/checks/"

    def end(self) -> None:
        self.ending.set()
        self.shutdown()
        self.server_close()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """The broker hung up; that is what some of them are for."""


COMMIT = b'{"verdict": "commit"}'
ANSWERS = {  # status, body
    "error": (500, COMMIT),
    "no-content": (204, b""),
    "garbage": (200, b"\x1f\x8b commit"),
    "number": (200, b'{"verdict": 8}'),
    "maybe": (200, b'{"verdict": "maybe"}'),
    "more": (200, b'{"verdict": "commit", "why": "so"}'),
    "list": (200, b"[" * 1000),
    "huge": (200, COMMIT + b" " * (64 << 20)),
    "redirect": (302, COMMIT),
    "short": (200, b'{"verdict": "com'),
}
PATIENCE_S = 5.0  # Far more than the broker has.


class AnswerHandler(BaseHTTPRequestHandler):
    server: Answering

    def do_POST(self) -> None:
        question = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.asked.append(question["id"])
        way = self.path.removeprefix("/checks/")
        if way == "silent":
            return
        if way == "slow":
            self.server.ending.wait(PATIENCE_S)
        verdict = self.server.verdicts.get(question["id"], "commit")
        status, body = ANSWERS.get(way, (200, json.dumps({"verdict": verdict}).encode()))
        self.send_response(status)
        self.send_header("Location", self.server.elsewhere)
        self.send_header("Content-Length", str(len(body) + 10 * (way == "short")))
        self.end_headers()
        for at in range(0, len(body), 1 if way == "drip" else 1 << 20):
            self.wfile.write(body[at : at + (1 if way == "drip" else 1 << 20)])
            if way == "drip" and self.server.ending.wait(PATIENCE_S / len(body)):
                return

    def log_message(self, format: str, *args: object) -> None:
        pass


def produce_half(broker: Broker, topic: str, *ids: str, refused: str | None = None, **headers: str) -> None:
    producer = confluent_kafka.Producer({"bootstrap.servers": broker.kafka, "log_level": 0})
    errors: list[Any] = []
    for id in ids:
        sent = [("TRAN_MSG_ID", id), *headers.items()]
        producer.produce(topic, id.encode(), headers=sent, on_delivery=lambda error, _: errors.append(error))
    producer.flush(WITHIN_S)
    assert [None if error is None else error.name() for error in errors] == [refused] * len(ids)


JSON = {"Content-Type": "application/json"}


def decide(broker: Broker, topic: str, id: str, verdict: str) -> int:
    host, _, port = broker.http.rpartition(":")
    connection = http.client.HTTPConnection(host, int(port), timeout=10)
    connection.request("POST", f"/api/transactions/{topic}/{id}", json.dumps({"verdict": verdict}), JSON)
    return connection.getresponse().status


def test_kafka_producer_decides_its_half_messages_over_http(broker: Broker, agents: Agents, topic: str) -> None:
    produce_half(broker, topic, "order 1", "order/2", "order-3")
    shown = [line for line in duolog("txn", "list", "--http", broker.http).splitlines() if topic in line]
    assert [line.split()[0] for line in shown] == ["kafka"] * 3
    assert decide(broker, topic, "order-3", "commit") == 200
    assert "state: half" in duolog("txn", "describe", f"{topic}/order/2", "--http", broker.http)
    assert "rolled back" in duolog("txn", "rollback", f"{topic}/order/2", "--http", broker.http)
    assert decide(broker, topic, "order%2F2", "rollback") == 200
    assert "committed" in duolog("txn", "commit", topic, "order 1", "--http", broker.http)
    broker.kill()
    broker.start()
    assert decide(broker, topic, "order-3", "commit") == 200
    assert decide(broker, topic, "order-3", "rollback") == 409
    assert decide(broker, topic, "nobody", "commit") == 404
    expect(broker, agents, topic, "order-3", "order 1")


def test_operators_see_both_kinds_in_one_table(broker: Broker, agents: Agents, topic: str) -> None:
    half = Producer(broker, agents.rocketmq("5.5"))
    half.send(topic, "half: unknown, commit", CHECK_IMMUNITY_TIME_IN_SECONDS="60")
    open_one = LibrdkafkaClient(broker.kafka).producer(f"{topic}-kafka")
    open_one.begin()
    open_one.send(topic, 0, "open")
    produce_half(broker, topic, "of Kafka")
    table = [line for line in duolog("txn", "list", "--http", broker.http).splitlines() if topic in line]
    kinds = {" ".join(line.split()[:2]).replace(topic, "T"): line for line in table}
    assert "Ongoing" in kinds.pop("kafka T-kafka")
    assert "a verdict" in kinds.pop("kafka T/of")
    ((kind, row),) = kinds.items()
    assert kind.startswith("rocketmq T/")
    assert half.group in row
    assert "its producer's verdict, asked for in" in row
    open_one.abort()
    half.close()


def test_kafka_producer_is_asked_back(agents: Agents, tmp_path: Path) -> None:
    answering = Answering({"yes": "commit", "no": "rollback", "perhaps": "unknown"})
    with Broker(tmp_path / "data", BROKER_SETTINGS | {"txn.check_urls": answering.url}) as broker:
        create_topic(broker.kafka, "asked", 1)
        produce_half(broker, "asked", "no", "yes", "perhaps", TRAN_MSG_CHECK_URL=answering.url + "orders")
        eventually(GIVEN_UP, lambda: end_offsets(broker.kafka, GIVEN_UP), lambda ends: ends[0] == 1, WITHIN_S)
        expect(broker, agents, "asked", "yes")
    assert sorted(answering.asked) == ["no", *["perhaps"] * CHECK_MAX, "yes"]
    answering.end()


def test_callback_that_fails_decides_nothing_and_holds_up_nobody(agents: Agents, tmp_path: Path) -> None:
    forbidden, answering, slow = Answering(), Answering(), Answering()
    answering.elsewhere = forbidden.url
    nobody = closed_url()
    allowed = " ".join((answering.url, slow.url, nobody))
    failing = [*ANSWERS, "silent", "drip"]
    settings = BROKER_SETTINGS | {"txn.check_urls": allowed, "txn.check_timeout_ms": 500}
    with Broker(tmp_path / "data", settings) as broker:
        create_topic(broker.kafka, "asked", 1)
        late = [f"slow-{number}" for number in range(ASKED_MAX + 8)]
        produce_half(broker, "asked", *late, TRAN_MSG_CHECK_URL=slow.url + "slow")
        produce_half(broker, "asked", "nobody", TRAN_MSG_CHECK_URL=nobody + "orders")
        for way in failing:
            produce_half(broker, "asked", way, TRAN_MSG_CHECK_URL=answering.url + way)
        produce_half(broker, "asked", "forbidden", refused="INVALID_RECORD", TRAN_MSG_CHECK_URL=forbidden.url)
        producer = Producer(broker, agents.rocketmq("5.5"))
        producer.send("asked", "by RocketMQ: unknown, commit")
        produce_half(broker, "asked", "sound", TRAN_MSG_CHECK_URL=answering.url + "sound")
        expect_in_any_order(broker, "asked", "by RocketMQ", "sound")
        vain = {*late, *failing, "nobody"}
        eventually(GIVEN_UP, lambda: end_offsets(broker.kafka, GIVEN_UP), lambda ends: ends[0] == len(vain), WITHIN_S)
        reader = RocketmqReader(broker.namesrv, agents.rocketmq("5.5"), "5.5", "json", "pull")
        assert {each.text for each in reader.read({GIVEN_UP: len(vain)}, WITHIN_S)} == vain
        assert end_offsets(broker.kafka, "asked") == {0: 2}
        assert "half" not in duolog("txn", "list", "--http", broker.http)
        broker.check_alive()
        producer.close()
    asked = Counter(answering.asked)
    assert asked.pop("sound") >= 1, "asked again if the answer took longer than the broker waits"
    assert asked == Counter(dict.fromkeys(failing, CHECK_MAX))
    assert Counter(slow.asked) == Counter(dict.fromkeys(late, CHECK_MAX)), "each was asked at each of its looks"
    assert forbidden.asked == []
    for server in (forbidden, answering, slow):
        server.end()


def closed_url() -> str:
    """A URL at which nobody listens."""
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        return f"http://127.0.0.1:{bound.getsockname()[1]}/"


def expect_in_any_order(broker: Broker, topic: str, *bodies: str) -> None:
    eventually(
        f"records of {topic}", lambda: end_offsets(broker.kafka, topic), lambda ends: ends[0] >= len(bodies), WITHIN_S
    )
    seen = Confluent(broker.kafka).read({topic: len(bodies)}, WITHIN_S)
    assert sorted(each.text for each in seen) == sorted(bodies)
