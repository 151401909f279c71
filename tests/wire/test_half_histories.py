"""Random histories of half messages: producers of both protocols, some of them killed, the broker killed again and
again, consumers of both protocols that read along.

The verdict on a message follows from its body, so each producer gives the same verdict, and the history only records
which producers had an answer that a half message is stored, and which got check-backs. At the end nothing is open, and
- each committed message is there once, at the same offset for both protocols; one sent without an answer, at most once;
- no message that was rolled back is there, or was read at any time;
- each half message without a verdict got a check-back; consumers read what is stored, in its order.
"""

from __future__ import annotations

import http.client
import json
import random
import signal
import threading
import time
import zlib
from collections import Counter
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import confluent_kafka
import pytest

from tests.kit.broker import Broker
from tests.kit.eventually import eventually
from tests.wire.clients.agent import Agent
from tests.wire.clients.jvm import Agents
from tests.wire.clients.kafka_clients import Confluent
from tests.wire.clients.members import PushMember
from tests.wire.clients.message import Position
from tests.wire.clients.rocketmq_clients import RocketmqReader
from tests.wire.clients.topics import create_topic, end_offsets
from tests.wire.test_kill import FIND_AGAIN_FAST

TOPIC, GROUP, QUEUES = "history", "history-producers", 3
GIVEN_UP = "TRANS_CHECK_MAX_TIME_TOPIC"
WITHIN_S = 90.0


def is_committed(body: str) -> bool:
    return zlib.crc32(body.encode()) % 4 != 0  # As RocketmqAgent.java has it.


def is_left_open(body: str) -> bool:
    """Its producer says nothing by itself."""
    return zlib.crc32(body.encode()) // 8 % 3 == 0


# -- Producers


class Shop:
    """A process of Java's with transactional producers. Its notes outlive it."""

    def __init__(self, agents: Agents, namesrv: str, name: str, folder: Path) -> None:
        self._name, self.log = name, folder / f"{name}.notes"
        self._agent: Agent = agents.rocketmq_to_kill("5.5")
        self._call("tx_load_start", namesrv=namesrv, group=GROUP, topic=TOPIC, threads=2, log=str(self.log))

    def kill(self) -> None:
        self._agent.signal(signal.SIGKILL)
        self._agent.close()

    def stop(self) -> None:
        self._call("tx_load_stop")

    def close(self) -> None:
        self._agent.close()

    def noted(self, what: str) -> list[str]:
        """The bodies of "half": the broker said that it is stored; of "check": it asked."""
        lines = [line.split(" ") for line in self.log.read_text().splitlines()] if self.log.exists() else []
        return [body for kind, body in lines if kind == what]

    def _call(self, op: str, **arguments: Any) -> None:
        self._agent.call(op, name=self._name, **arguments)


class KafkaShop:
    """A Kafka producer of half messages: decides some over HTTP, is asked for others."""

    def __init__(self, broker: Broker, answering: Answering) -> None:
        self.stored: list[str] = []
        self.errors: list[str] = []
        self._broker, self._answering = broker, answering
        self._undecided: list[str] = []
        self._stopping = threading.Event()
        settings = {"bootstrap.servers": broker.kafka, "enable.idempotence": True, "linger.ms": 2, **FIND_AGAIN_FAST}
        self._producer = confluent_kafka.Producer(settings | {"message.timeout.ms": 0})
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def stop(self) -> None:
        self._stopping.set()
        self._thread.join()
        assert not self._producer.flush(60)
        self._decide_all()
        assert not self.errors, Counter(self.errors).most_common(3)

    def _run(self) -> None:
        number = 0
        while not self._stopping.wait(0.005):
            body = f"kafka-{number}"
            headers = [("TRAN_MSG_ID", body), ("TRAN_MSG_CHECK_URL", self._answering.url)]
            with suppress(BufferError):
                self._producer.produce(
                    TOPIC, body, partition=number % QUEUES, headers=headers, on_delivery=self._on_delivery
                )
                number += 1
            self._producer.poll(0)
            if number % 8 == 0:
                self._decide_all(tries=1)

    def _on_delivery(self, error: Any, message: confluent_kafka.Message) -> None:
        if error is not None:
            self.errors.append(str(error))
            return
        body = message.value().decode()
        self.stored.append(body)
        if not is_left_open(body):
            self._undecided.append(body)

    def _decide_all(self, tries: int = 600) -> None:
        while self._undecided and tries:
            body = self._undecided[-1]
            status = decide(self._broker, body, is_committed(body))
            if status == 200:
                self._undecided.pop()
            elif status:
                self.errors.append(f"{body}: {status}")
                return
            else:
                tries -= 1
                time.sleep(0.05)


def decide(broker: Broker, body: str, commits: bool) -> int:
    """The status; 0: the broker is not there."""
    host, _, port = broker.http.rpartition(":")
    connection = http.client.HTTPConnection(host, int(port), timeout=10)
    try:
        said = json.dumps({"verdict": "commit" if commits else "rollback"})
        connection.request("POST", f"/api/transactions/{TOPIC}/{body}", said, {"Content-Type": "application/json"})
        return connection.getresponse().status
    except (OSError, http.client.HTTPException):
        return 0
    finally:
        connection.close()


class Answering(ThreadingHTTPServer):
    """The callback of the Kafka producers."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), AnswerHandler)
        self.asked: list[str] = []
        threading.Thread(target=self.serve_forever, daemon=True).start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/"

    def handle_error(self, request: Any, client_address: Any) -> None:
        """The broker was killed."""


class AnswerHandler(BaseHTTPRequestHandler):
    server: Answering

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))["id"]
        self.server.asked.append(body)
        said = json.dumps({"verdict": "commit" if is_committed(body) else "rollback"}).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(said)))
        self.end_headers()
        self.wfile.write(said)

    def log_message(self, format: str, *args: object) -> None:
        pass


# -- Consumers


class Reader:
    """A consumer of librdkafka that reads along, and notes what it saw where."""

    def __init__(self, broker: Broker) -> None:
        self.seen: dict[Position, str] = {}
        self.changed: list[str] = []
        self._stopping = threading.Event()
        settings = {"bootstrap.servers": broker.kafka, "group.id": "unused", "enable.auto.commit": False}
        self._consumer = confluent_kafka.Consumer(settings | FIND_AGAIN_FAST)
        self._consumer.assign([confluent_kafka.TopicPartition(TOPIC, queue, 0) for queue in range(QUEUES)])
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        while not self._stopping.is_set():
            message = self._consumer.poll(0.1)
            if message is None or message.error():
                continue
            position, text = (message.partition(), message.offset()), message.value().decode()
            if self.seen.setdefault(position, text) != text:
                self.changed.append(f"{position}: {self.seen[position]} became {text}")

    def stop(self) -> None:
        self._stopping.set()
        self._thread.join()
        self._consumer.close()


# -- The history


@pytest.mark.parametrize(
    ("flush", "steps"),
    [("sync", 4), pytest.param("async", 150, marks=[pytest.mark.soak, pytest.mark.timeout(1800)]),
     pytest.param("sync", 150, marks=[pytest.mark.soak, pytest.mark.timeout(1800)])],
)  # fmt: skip
def test_history_of_half_messages(tmp_path: Path, agents: Agents, rng: random.Random, flush: str, steps: int) -> None:
    answering = Answering()
    settings = {
        "store.flush": flush, "txn.immunity_ms": 400, "txn.check_interval_ms": 500, "txn.check_max": 200,
        "txn.check_urls": answering.url,
    }  # fmt: skip
    broker = Broker(tmp_path / "data", settings).start()
    shops: list[Shop] = []
    try:
        create_topic(broker.kafka, TOPIC, QUEUES)
        watcher = PushMember(agents.rocketmq("5.5"), broker.namesrv, "watchers", [TOPIC])
        reader, kafka = Reader(broker), KafkaShop(broker, answering)
        shops += [Shop(agents, broker.namesrv, f"shop-{number}", tmp_path) for number in range(2)]
        open_ones = shops.copy()
        kills = Counter[str]()
        for step in range(steps):
            time.sleep(rng.uniform(0.1, 0.8))
            broker.check_alive()
            what = rng.choice(("broker", "broker", "producer", "both")) if step % 4 else "both"
            kills[what] += 1
            if what != "broker":
                killed = open_ones.pop(rng.randrange(len(open_ones)))
                killed.kill()
            if what != "producer":
                broker.kill()
                broker.start()
            if what != "broker":
                shops.append(Shop(agents, broker.namesrv, f"shop-{len(shops)}", tmp_path))
                open_ones.append(shops[-1])
        time.sleep(1.0)
        for shop in open_ones:
            shop.stop()
        kafka.stop()
        eventually("nothing is open", lambda: open_halves(broker), lambda count: count == 0, WITHIN_S)
        stored = [body for shop in shops for body in shop.noted("half")]
        asked = {body for shop in shops for body in shop.noted("check")} | set(answering.asked)
        print(f"{dict(kills)}; stored: {len(stored)} by RocketMQ, {len(kafka.stored)} by Kafka; asked: {len(asked)}")
        check_history(broker, agents, stored + kafka.stored, asked, reader, watcher)
        for shop in open_ones:
            shop.close()
    except BaseException:
        print(broker.log_tail())
        raise
    finally:
        broker.kill()
        answering.shutdown()


def open_halves(broker: Broker) -> int:
    host, _, port = broker.http.rpartition(":")
    connection = http.client.HTTPConnection(host, int(port), timeout=10)
    connection.request("GET", "/api/transactions")
    return sum(row["state"] == "half" for row in json.loads(connection.getresponse().read()))


def check_history(
    broker: Broker, agents: Agents, stored: list[str], asked: set[str], reader: Reader, watcher: PushMember
) -> None:
    assert len(stored) > 100, "hardly anything was sent between the kills"
    ends = end_offsets(broker.kafka, TOPIC)
    count = sum(ends.values())
    found = Confluent(broker.kafka).read({TOPIC: count}, WITHIN_S)
    lies = {each.position: each.text for each in found}
    assert sorted(lies) == [(queue, offset) for queue, end in sorted(ends.items()) for offset in range(end)]
    times = Counter(lies.values())
    assert [body for body in stored if times[body] != is_committed(body)] == [], "not what was decided"
    assert [body for body in times if not is_committed(body) or times[body] > 1] == []
    assert [body for body in stored if is_left_open(body) and body not in asked] == [], "nobody was asked"
    assert end_offsets(broker.kafka, GIVEN_UP)[0] == 0, "given up"
    pulled = RocketmqReader(broker.namesrv, agents.rocketmq("5.5"), "5.5", "json", "pull")
    assert {each.position: each.text for each in pulled.read({TOPIC: count}, WITHIN_S)} == lies

    eventually("the reader has all", lambda: len(reader.seen), lambda seen: seen >= count, WITHIN_S)
    reader.stop()
    assert reader.changed == []
    assert reader.seen == lies, "what was seen on the way is not what lies there"
    eventually("the push consumer has all", lambda: set(watcher.texts), lambda seen: len(seen) >= len(times), WITHIN_S)
    assert set(watcher.texts) == set(times)
    watcher.close()
