"""The Kafka clients, each as a Writer and a Reader: kafka-python, aiokafka, confluent-kafka, Java.

Ways to send: `single` waits for each message, `batch` sends all and lets the client fill its batches, `oneway` is
acks=0.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from typing import Any

import aiokafka
import confluent_kafka
import kafka

from tests.wire.clients.agent import Agent
from tests.wire.clients.jvm import KAFKA_VERSIONS
from tests.wire.clients.message import Message, Position, Seen, seen_by_kafka, seen_by_kafka_json
from tests.wire.clients.roles import Missing, TooFew

WAYS = ("single", "batch", "oneway")
CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
REQUEST_BYTES_MAX = 8 << 20  # Room for the largest message that the broker takes.
SEND_WITHIN_S = 30
LINGER_MS = 30


class KafkaPython:
    """kafka-python."""

    ways, codecs = WAYS, CODECS

    def __init__(self, bootstrap: str) -> None:
        self.name = "kafka-python"
        self._bootstrap = bootstrap

    def write(self, topic: str, messages: Sequence[Message], *, way: str, codec: str) -> list[Position | None]:
        oneway: dict[str, Any] = {"acks": 0, "enable_idempotence": False} if way == "oneway" else {}
        producer = kafka.KafkaProducer(
            bootstrap_servers=self._bootstrap,
            compression_type=None if codec == "none" else codec,
            max_request_size=REQUEST_BYTES_MAX,
            linger_ms=LINGER_MS if way == "batch" else 0,
            **oneway,
        )
        try:
            sent = []
            for each in messages:
                future = producer.send(
                    topic, each.body, each.key, each.kafka_headers, partition=each.queue, timestamp_ms=each.timestamp_ms
                )
                sent.append(future)
                if way == "single":
                    future.get(SEND_WITHIN_S)
            producer.flush(SEND_WITHIN_S)
            if way == "oneway":
                return [None for _ in sent]
            stored = [future.get(SEND_WITHIN_S) for future in sent]
            return [(each.partition, each.offset) for each in stored]
        finally:
            producer.close(timeout=5)

    def read(self, topics: Mapping[str, int], within_s: float) -> list[Seen]:
        missing = Missing(self.name, topics, within_s)
        consumer = kafka.KafkaConsumer(bootstrap_servers=self._bootstrap, max_partition_fetch_bytes=REQUEST_BYTES_MAX)
        try:
            partitions = [
                kafka.TopicPartition(topic, each) for topic in topics for each in consumer.partitions_for_topic(topic)
            ]
            consumer.assign(partitions)
            consumer.seek_to_beginning()
            until = time.monotonic() + within_s
            while missing:
                if time.monotonic() > until:
                    raise missing.fail()
                for records in consumer.poll(timeout_ms=100).values():
                    for each in records:
                        missing.take(_seen_by_record(each))
            return missing.seen
        finally:
            consumer.close()


class AioKafka:
    """aiokafka, each call in an event loop of its own."""

    ways, codecs = WAYS, CODECS

    def __init__(self, bootstrap: str) -> None:
        self.name = "aiokafka"
        self._bootstrap = bootstrap

    def write(self, topic: str, messages: Sequence[Message], *, way: str, codec: str) -> list[Position | None]:
        return asyncio.run(asyncio.wait_for(self._write(topic, messages, way, codec), SEND_WITHIN_S))

    async def _write(self, topic: str, messages: Sequence[Message], way: str, codec: str) -> list[Position | None]:
        producer = aiokafka.AIOKafkaProducer(
            bootstrap_servers=self._bootstrap,
            compression_type=None if codec == "none" else codec,
            max_request_size=REQUEST_BYTES_MAX,
            linger_ms=LINGER_MS if way == "batch" else 0,
            acks=0 if way == "oneway" else "all",
            enable_idempotence=way != "oneway",
        )
        async with producer:
            sent = []
            for each in messages:
                future = await producer.send(
                    topic,
                    each.body,
                    each.key,
                    partition=each.queue,
                    timestamp_ms=each.timestamp_ms,
                    headers=each.kafka_headers,
                )
                sent.append(future)
                if way == "single":
                    await future
            await producer.flush()
            if way == "oneway":
                return [None for _ in sent]
            return [(stored.partition, stored.offset) for stored in await asyncio.gather(*sent)]

    def read(self, topics: Mapping[str, int], within_s: float) -> list[Seen]:
        return asyncio.run(self._read(topics, within_s))

    async def _read(self, topics: Mapping[str, int], within_s: float) -> list[Seen]:
        missing = Missing(self.name, topics, within_s)
        consumer = aiokafka.AIOKafkaConsumer(  # Without a group it takes every partition of its topics.
            *topics,
            bootstrap_servers=self._bootstrap,
            max_partition_fetch_bytes=REQUEST_BYTES_MAX,
            auto_offset_reset="earliest",
        )
        async with consumer:
            until = time.monotonic() + within_s
            while missing:
                if time.monotonic() > until:
                    raise missing.fail()
                for records in (await consumer.getmany(timeout_ms=100)).values():
                    for each in records:
                        missing.take(_seen_by_record(each))
        return missing.seen


class Confluent:
    """confluent-kafka, which is librdkafka."""

    ways, codecs = WAYS, CODECS

    def __init__(self, bootstrap: str) -> None:
        self.name = "confluent-kafka"
        self._bootstrap = bootstrap

    def write(self, topic: str, messages: Sequence[Message], *, way: str, codec: str) -> list[Position | None]:
        producer = confluent_kafka.Producer(
            {
                "bootstrap.servers": self._bootstrap,
                "compression.type": codec,
                "message.max.bytes": REQUEST_BYTES_MAX,
                "linger.ms": LINGER_MS if way == "batch" else 0,
                "acks": 0 if way == "oneway" else "all",
                "enable.idempotence": way != "oneway",
            }
        )
        stored: dict[int, Position | None] = {}
        errors: list[str] = []

        def delivered(number: int, error: confluent_kafka.KafkaError | None, message: confluent_kafka.Message) -> None:
            if error is not None:
                errors.append(str(error))
            stored[number] = None if way == "oneway" else (message.partition(), message.offset())

        for number, each in enumerate(messages):
            producer.produce(
                topic,
                each.body,
                each.key,
                each.queue,
                timestamp=each.timestamp_ms or 0,
                headers=each.kafka_headers,
                on_delivery=lambda error, message, number=number: delivered(number, error, message),
            )
            if way == "single":
                producer.flush(SEND_WITHIN_S)
        left = producer.flush(SEND_WITHIN_S)
        assert not errors, f"{self.name} could not send to {topic}: {errors}"
        assert not left, f"{self.name} still holds {left} messages for {topic} after {SEND_WITHIN_S} s"
        return [stored[number] for number in range(len(messages))]

    def read(self, topics: Mapping[str, int], within_s: float) -> list[Seen]:
        missing = Missing(self.name, topics, within_s)
        consumer = confluent_kafka.Consumer(
            {"bootstrap.servers": self._bootstrap, "group.id": "unused", "enable.auto.commit": False}
        )
        try:
            cluster = consumer.list_topics(timeout=10).topics
            consumer.assign(
                [
                    confluent_kafka.TopicPartition(topic, partition, confluent_kafka.OFFSET_BEGINNING)
                    for topic in topics
                    for partition in cluster[topic].partitions
                ]
            )
            until = time.monotonic() + within_s
            while missing:
                if time.monotonic() > until:
                    raise missing.fail()
                for each in consumer.consume(500, timeout=0.05):
                    if each.error() is not None:
                        raise TooFew(f"{self.name}: {each.error()}")
                    missing.take(_seen_by_confluent(each))
            return missing.seen
        finally:
            consumer.close()


def _seen_by_record(record: Any) -> Seen:
    """A record of kafka-python or aiokafka: both give the same fields."""
    return seen_by_kafka(
        record.topic,
        record.partition,
        record.offset,
        record.key,
        record.value,
        record.headers,
        record.timestamp,
    )


def _seen_by_confluent(message: confluent_kafka.Message) -> Seen:
    return seen_by_kafka(
        message.topic() or "",
        message.partition(),
        message.offset(),
        message.key(),
        message.value(),
        message.headers() or [],
        message.timestamp()[1],
    )


class KafkaJava:
    """Apache Kafka's own Java client."""

    ways, codecs = WAYS, CODECS

    def __init__(self, bootstrap: str, agent: Agent, version: str) -> None:
        self.name = f"Java kafka-clients {KAFKA_VERSIONS[version]}"
        self._bootstrap, self._agent = bootstrap, agent

    def write(self, topic: str, messages: Sequence[Message], *, way: str, codec: str) -> list[Position | None]:
        config: dict[str, object] = {"compression.type": codec, "max.request.size": REQUEST_BYTES_MAX}
        config["linger.ms"] = LINGER_MS if way == "batch" else 0
        if way == "oneway":
            config |= {"acks": "0", "enable.idempotence": "false"}
        stored = self._agent.call(
            "write",
            bootstrap=self._bootstrap,
            topic=topic,
            config=config,
            together=way != "single",
            messages=[each.as_kafka_json() for each in messages],
        )
        return [None if way == "oneway" else (queue, offset) for queue, offset, _timestamp in stored]

    def read(self, topics: Mapping[str, int], within_s: float) -> list[Seen]:
        seen = self._agent.call(
            "read",
            within_s=within_s + 10,
            bootstrap=self._bootstrap,
            topics=dict(topics),
            timeout_ms=int(within_s * 1000),
        )
        return [seen_by_kafka_json(each) for each in seen]
