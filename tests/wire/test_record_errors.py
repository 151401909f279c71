"""Of a batch with records that a topic does not take, stock clients fail these for good and the others for a new try.

KIP-467: the answer to Produce names the records at fault. librdkafka and kafka-python tell each record's sender.
"""

from __future__ import annotations

import itertools
import time
from typing import Any

import pytest
from confluent_kafka import KafkaError, Producer
from kafka import KafkaProducer
from kafka.errors import InvalidRecordError

from tests.kit.broker import Broker
from tests.wire.clients.topics import create_topic, end_offsets

KEYS = [b"a", None, b"b", None, b"c"]
LINGER_MS = 500  # All records of a test are sent well within it, and are one batch.
WITHIN_S = 30.0
_numbers = itertools.count(int(time.time()))


@pytest.fixture
def topic(broker: Broker) -> str:
    name = f"record-errors-{next(_numbers)}"
    create_topic(broker.kafka, name, 1, {"cleanup.policy": "compact"})
    return name


def by_librdkafka(address: str, topic: str, keys: list[bytes | None]) -> list[KafkaError | None]:
    """Send a batch of records with these keys; return the error of each record."""
    errors: dict[int, KafkaError | None] = {}
    producer = Producer({"bootstrap.servers": address, "linger.ms": LINGER_MS, "broker.address.family": "v4"})
    for number, key in enumerate(keys):
        producer.produce(
            topic, b"v", key, on_delivery=lambda error, _, number=number: errors.__setitem__(number, error)
        )
    until = time.monotonic() + WITHIN_S
    while len(errors) < len(keys) and time.monotonic() < until:
        producer.poll(0.1)  # `flush` would end the linger, and the first records could be a batch of their own.
    return [errors[number] for number in range(len(keys))]


def test_librdkafka_tells_culprits_from_bystanders(broker: Broker, topic: str) -> None:
    errors = by_librdkafka(broker.kafka, topic, KEYS)
    codes = [error and error.code() for error in errors]
    culprit, bystander = KafkaError.INVALID_RECORD, KafkaError._INVALID_DIFFERENT_RECORD
    assert codes == [culprit if key is None else bystander for key in KEYS]
    assert by_librdkafka(broker.kafka, topic, [key for key in KEYS if key]) == [None] * 3
    assert end_offsets(broker.kafka, topic) == {0: 3}


def test_kafka_python_tells_culprits_from_bystanders(broker: Broker, topic: str) -> None:
    producer = KafkaProducer(bootstrap_servers=broker.kafka, linger_ms=LINGER_MS, retries=0)
    sent = [producer.send(topic, b"v", key=key) for key in KEYS]
    errors: list[Any] = []
    for future in sent:
        with pytest.raises(Exception) as failure:
            future.get(WITHIN_S)
        errors.append(failure.value)
    assert [isinstance(error, InvalidRecordError) for error in errors] == [key is None for key in KEYS], errors
    assert "key" in str(errors[1])
    again = [producer.send(topic, b"v", key=key) for key in KEYS if key]
    assert sorted(future.get(WITHIN_S).offset for future in again) == [0, 1, 2]
    producer.close(10)
