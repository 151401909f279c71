"""A broker that stands still for seconds, requests in flight: clients purge, give up and connect again meanwhile, and
once it goes on every connection is answered, those that were made before and during the stall.
"""

from __future__ import annotations

import os
import signal
import struct
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from confluent_kafka import KafkaError, Message, Producer

from tests.kit.broker import Broker
from tests.kit.eventually import eventually
from tests.wire.clients.frames import API_VERSIONS, Wire, kafka_request

STALL_S = 4.0  # Longer than the broker takes for a hiccup.
FIRST_REQUEST_MS = 2_000  # Shorter than the stall.
IDLE_S = 1.0  # Before the stall, so that the broker wakes up with its timers and not with a request.
ASKED = kafka_request(API_VERSIONS, 0, b"")
TOPIC = "stalled"


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Broker]:
    with Broker(tmp_path / "data", {"limits.first_request_ms": FIRST_REQUEST_MS}) as running:
        yield running


@contextmanager
def stalled(broker: Broker) -> Iterator[float]:
    """Stop the broker's process until the block has ended and `STALL_S` have passed."""
    begun_s = time.monotonic()
    os.kill(broker.pid, signal.SIGSTOP)
    try:
        yield begun_s
        time.sleep(max(0.0, begun_s + STALL_S - time.monotonic()))
    finally:
        os.kill(broker.pid, signal.SIGCONT)


def test_purge_while_the_broker_is_slow_and_every_connection_is_answered(broker: Broker) -> None:
    outcomes: list[tuple[bytes | None, int]] = []

    def note(error: KafkaError | None, message: Message) -> None:
        outcomes.append((message.value(), error.code() if error else 0))

    producer = Producer(
        {
            "bootstrap.servers": broker.kafka,
            "socket.timeout.ms": 1_000,  # So that it gives up, and connects again, during the stall.
            "socket.connection.setup.timeout.ms": 1_000,
            "reconnect.backoff.max.ms": 200,
            "linger.ms": 0,
        }
    )
    producer.produce(TOPIC, b"before", on_delivery=note)
    assert producer.flush(20) == 0
    with ExitStack() as opened:
        early = [opened.enter_context(Wire(broker.kafka)) for _ in range(3)]
        heard = opened.enter_context(Wire(broker.kafka))
        heard.send(ASKED)
        answered(heard)
        time.sleep(IDLE_S)
        with stalled(broker):
            late = [opened.enter_context(Wire(broker.kafka)) for _ in range(3)]
            for each in (*early, heard, *late):
                each.send(ASKED)
            for _ in range(20):
                with Wire(broker.kafka) as gone:
                    gone.send(ASKED)
            for n in range(5):
                producer.produce(TOPIC, b"stalled %d" % n, on_delivery=note)
            producer.poll(0.5)
            producer.purge(in_queue=True, in_flight=True)
            eventually("all are purged", lambda: [producer.poll(0.1), len(outcomes)][1], lambda count: count == 6, 2)
        for each in (*early, heard, *late):
            answered(each)
    purged = {KafkaError._PURGE_INFLIGHT, KafkaError._PURGE_QUEUE}
    assert {code for _, code in outcomes[1:]} <= purged
    producer.produce(TOPIC, b"after", on_delivery=note)
    assert producer.flush(20) == 0
    assert outcomes[-1] == (b"after", 0)


def answered(client: Wire) -> None:
    assert struct.unpack_from(">ih", client.receive()) == (1, 0)
