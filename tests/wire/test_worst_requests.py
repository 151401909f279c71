"""The requests that once ended the broker, held its loop for seconds or filled its memory, sent to `duolog serve` while
a librdkafka producer works beside them: the broker goes on, and the producer's p99 stays within a turn's budget.

`tests/unit/adversary` makes many more of them, on a core without sockets.
"""

from __future__ import annotations

import json
import random
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer

from duolog.protocol.kafka.api_messages import ApiKey
from duolog.protocol.kafka.compression import Codec
from duolog.protocol.rocketmq.codes import RequestCode
from tests.kit.broker import Broker
from tests.unit.adversary import kafka_requests, rocketmq_requests
from tests.unit.bridge.batches import batch
from tests.wire.clients.frames import framed

P99_MS_MAX = 50  # Beyond what the machine takes when nobody attacks.
SAMPLES = 100  # The producer's samples for each attack; p99 is that of the samples of all attacks.
ROUNDS = 5  # Each attack is sent so often.
TOPIC = "quiet"


class Bystander(threading.Thread):
    """A librdkafka producer that sends one message at a time, and notes how long each took to be acknowledged."""

    def __init__(self, address: str) -> None:
        super().__init__(daemon=True)
        self.taken_ms: list[float] = []
        self.failure = ""
        self._producer = Producer({"bootstrap.servers": address, "linger.ms": 0, "message.timeout.ms": 10_000})
        self._ending = threading.Event()

    def run(self) -> None:
        while not self._ending.is_set() and not self.failure:
            begun_s = time.perf_counter()
            self._producer.produce(TOPIC, b"body", on_delivery=self._on_delivery)
            self._producer.flush()
            self.taken_ms.append((time.perf_counter() - begun_s) * 1000)
            self._ending.wait(0.002)

    def _on_delivery(self, error: Any, message: Any) -> None:
        self.failure = str(error or "")

    def wait_for(self, count: int) -> list[float]:
        """Wait until so many more messages were acknowledged; gives their times."""
        begin = len(self.taken_ms)
        while len(self.taken_ms) < begin + count and not self.failure:
            time.sleep(0.005)
        assert not self.failure, self.failure
        return self.taken_ms[begin:]

    def end(self) -> None:
        self._ending.set()
        self.join()


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    settings = {"store.flush": "async"}
    with Broker(Path(tmp_path_factory.mktemp("worst")) / "data", settings) as started:
        yield started


def p99(taken_ms: list[float]) -> float:
    return sorted(taken_ms)[int(len(taken_ms) * 0.99)]


# -- The attacks: where each is sent, and its bytes


def kafka(key: ApiKey, version: int, array: str = "", count: int = 0, **values: Any) -> tuple[str, bytes]:
    """A Kafka request in which the array of that name has its element so often."""
    request = kafka_requests.valid(key, version, values)
    if array:
        kafka_requests.repeat(request, array, count)
    return "kafka", framed(request.encode())


def rocketmq(code: RequestCode, body: bytes = b"", **fields: str) -> tuple[str, bytes]:
    request = rocketmq_requests.valid(code, random.Random(0), fields)
    request.is_binary = False
    request.ext.update({name: value.encode() for name, value in fields.items()})
    request.body = body or request.body
    return "rocketmq", framed(request.encode())


def http(method: str, path: str, body: bytes = b"", **headers: str) -> tuple[str, bytes]:
    lines = {"Host": "127.0.0.1", "Content-Type": "application/json", "Content-Length": str(len(body)), **headers}
    head = "".join(f"{name}: {value}\r\n" for name, value in lines.items())
    return "http", f"{method} {path} HTTP/1.1\r\n{head}\r\n".encode() + body


def empty_snappy() -> bytes:
    """A batch of one record whose section inflates to nothing, with the right CRC."""
    one = bytearray(batch([b"a"], codec=Codec.SNAPPY)[:61] + b"\0")
    struct.pack_into(">i", one, 8, len(one) - 12)
    return kafka_requests.with_crc(one)


def many_cron(count: int) -> bytes:
    return batch([b""] * count, headers=[("AMQ_SCHEDULED_CRON", b"* * * * *")], codec=Codec.ZSTD)


def heartbeat(groups: int) -> bytes:
    one = {"groupName": "g%d", "subscriptionDataSet": [{"topic": "t", "subString": "*", "subVersion": 1}]}
    text = json.dumps(one)
    return b'{"clientID":"c","consumerDataSet":[' + ",".join(text % n for n in range(groups)).encode() + b"]}"


def acks(count: int) -> bytes:
    one = {"c": "g", "t": TOPIC, "r": "0", "so": 0, "q": 0, "pt": 1, "b": "//8="}
    return json.dumps({"brokerName": "b", "acks": [one] * count}).encode()


CRON_FOR_EVER = "AMQ_SCHEDULED_CRON\x01* * * * * *\x02AMQ_SCHEDULED_DELAY\x01250000000000000\x02"
ATTACKS: dict[str, Callable[[], tuple[str, bytes]]] = {
    "a schedule beyond the calendar": lambda: rocketmq(RequestCode.SEND_MESSAGE, b"x", properties=CRON_FOR_EVER),
    "a batch that inflates to nothing": lambda: kafka(ApiKey.PRODUCE, 7, name=TOPIC, records=empty_snappy()),
    "a pull of what was just sent": lambda: rocketmq(RequestCode.PULL_MESSAGE, topic=TOPIC, queueOffset="0"),
    "a JSON text without its end": lambda: rocketmq(RequestCode.HEART_BEAT, b'{"clientID":"' + b"\\" * 500_000),
    "TRAN_MSG 70,000 times": lambda: rocketmq(
        RequestCode.SEND_MESSAGE, b"x", properties="TRAN_MSG\x01true\x02" * 70_000
    ),
    "16,500 cron records in 16 KB": lambda: kafka(ApiKey.PRODUCE, 7, name=TOPIC, records=many_cron(16_500)),
    "4,000 cron records": lambda: kafka(ApiKey.PRODUCE, 7, name=TOPIC, records=many_cron(4_000)),
    "Metadata of one name 50,000 times": lambda: kafka(ApiKey.METADATA, 4, "topics", 50_000, name=TOPIC),
    "OffsetFetch of one topic 8,000 times": lambda: kafka(ApiKey.OFFSET_FETCH, 5, "topics", 8_000),
    "DescribeConfigs of one topic 10,000 times": lambda: kafka(ApiKey.DESCRIBE_CONFIGS, 1, "resources", 10_000),
    "DescribeGroups of one group 20,000 times": lambda: kafka(ApiKey.DESCRIBE_GROUPS, 0, "groups", 20_000),
    "DescribeProducers of one topic 10,000 times": lambda: kafka(ApiKey.DESCRIBE_PRODUCERS, 0, "topics", 10_000),
    "Fetch of 50,000 partitions": lambda: kafka(ApiKey.FETCH, 4, "partitions", 50_000),
    "ListOffsets of 50,000 partitions": lambda: kafka(ApiKey.LIST_OFFSETS, 1, "partitions", 50_000),
    "a BATCH_ACK of 1 MB": lambda: rocketmq(RequestCode.BATCH_ACK_MESSAGE, acks(12_000)),
    "a heartbeat of 8,000 groups": lambda: rocketmq(RequestCode.HEART_BEAT, heartbeat(8_000)),
    "timers after an id beyond 64 bits": lambda: http("GET", "/api/timers?after=99999999999999999999999-1"),
    "a lease of one topic 200 times": lambda: http(
        "POST", "/api/leases", json.dumps({"topics": [TOPIC] * 200}).encode()
    ),
    "a body that never comes": lambda: (
        "http",
        b"".join(
            (
                http("GET", f"/api/topics/{TOPIC}")[1],
                http("POST", "/api/timers", **{"Content-Length": "10"})[1],
            )
        ),
    ),
    "a scrape of all metrics": lambda: http("GET", "/metrics"),
}


def attack(broker: Broker, port: str, sent: bytes) -> None:
    """Send the bytes, and take what comes for a moment; the connection then ends without warning."""
    host, number = getattr(broker, port).rsplit(":", 1)
    with socket.create_connection((host, int(number)), timeout=10) as peer, suppress(OSError):
        peer.sendall(sent)
        peer.settimeout(0.002 if port == "http" else 0.1)
        peer.recv(1 << 16)


@pytest.mark.alone
def test_the_worst_requests_do_not_hold_up_another_client(broker: Broker) -> None:
    bystander = Bystander(broker.kafka)
    bystander.start()
    bystander.wait_for(SAMPLES)  # The first bring the topic and the connections.
    quiet_ms = p99(bystander.wait_for(3 * SAMPLES))
    by_attack: dict[str, list[float]] = {}
    for name, make in ATTACKS.items():
        port, sent = make()
        done = threading.Event()

        def send_all(port: str = port, sent: bytes = sent, done: threading.Event = done) -> None:
            for _ in range(ROUNDS):
                attack(broker, port, sent)
            done.set()

        begin = len(bystander.taken_ms)
        sender = threading.Thread(target=send_all, daemon=True)
        sender.start()
        bystander.wait_for(SAMPLES)
        sender.join(60)
        by_attack[name] = bystander.taken_ms[begin:]
        assert done.is_set(), f"{name}: not taken within a minute"
        broker.check_alive()
    bystander.end()
    for name, taken_ms in by_attack.items():
        print(f"{name}: p99 {p99(taken_ms):.0f} ms, longest {max(taken_ms):.0f} ms")
    attacked_ms = p99([each for taken_ms in by_attack.values() for each in taken_ms])
    print(f"p99 {attacked_ms:.0f} ms; {quiet_ms:.0f} ms before")
    assert attacked_ms < P99_MS_MAX + quiet_ms, f"p99 {attacked_ms:.0f} ms; {quiet_ms:.0f} ms before"
