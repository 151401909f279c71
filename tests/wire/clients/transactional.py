"""Transactional producers of all Kafka clients, and their readers of committed and of all records.

    producer = client.producer(transactional_id)        # its transactions are initialized
    producer.begin(); producer.send(topic, queue, "text"); producer.commit()

Every step blocks until the broker has answered, and raises whatever the client raises.
"""

from __future__ import annotations

import asyncio
import itertools
import threading
import time
from collections.abc import Coroutine, Mapping
from typing import Any, Protocol, TypeVar

import aiokafka
import aiokafka.structs
import confluent_kafka
import kafka

from tests.wire.clients.agent import Agent
from tests.wire.clients.message import Message, seen_by_kafka_json

STEP_WITHIN_S = 30
TIMEOUT_MS = 60_000
COMMITTED, ALL = "read_committed", "read_uncommitted"

Read = tuple[int, int, str]  # queue, offset, text
T = TypeVar("T")


class Producer(Protocol):
    """A producer whose transactional id is its own, until another one takes it."""

    def begin(self) -> None: ...

    def send(self, topic: str, queue: int, *texts: str) -> None: ...

    def send_offsets(self, topic: str, offsets: Mapping[int, int], group: str) -> None: ...

    def commit(self) -> None: ...

    def abort(self) -> None: ...

    def close(self) -> None: ...


class Client(Protocol):
    name: str

    def producer(self, transactional_id: str, timeout_ms: int = TIMEOUT_MS) -> Producer: ...

    def read(self, topic: str, queues: int, count: int, isolation: str) -> list[Read]:
        """Read so many records from the start on."""


# -- Java


class JavaClient:
    def __init__(self, bootstrap: str, agent: Agent, version: str) -> None:
        self.name = f"Java {version}"
        self._bootstrap, self._agent = bootstrap, agent

    def producer(self, transactional_id: str, timeout_ms: int = TIMEOUT_MS) -> JavaProducer:
        config = {"transactional.id": transactional_id, "transaction.timeout.ms": str(timeout_ms)}
        return JavaProducer(self._agent, self._bootstrap, config)

    def read(self, topic: str, queues: int, count: int, isolation: str) -> list[Read]:
        found = self._agent.call(
            "read", bootstrap=self._bootstrap, topics={topic: count}, config={"isolation.level": isolation}
        )
        seen = [seen_by_kafka_json(each) for each in found]
        return [(each.queue, each.offset, each.text) for each in seen]

    def transactions(self) -> dict[str, str]:
        """The states of all transactional ids."""
        listed: dict[str, str] = self._agent.call("list_transactions", bootstrap=self._bootstrap)
        return listed


class JavaProducer:
    _names = itertools.count()

    def __init__(self, agent: Agent, bootstrap: str, config: Mapping[str, str]) -> None:
        self._agent, self._name = agent, f"producer-{next(self._names)}"
        agent.call("open_producer", name=self._name, bootstrap=bootstrap, config=dict(config))
        self._do("init")

    def _do(self, step: str, **arguments: Any) -> Any:
        return self._agent.call("producer", name=self._name, do=step, **arguments)

    def begin(self) -> None:
        self._do("begin")

    def send(self, topic: str, queue: int, *texts: str) -> None:
        messages = [Message(text.encode(), queue=queue).as_kafka_json() for text in texts]
        self._do("send", topic=topic, messages=messages)

    def send_offsets(self, topic: str, offsets: Mapping[int, int], group: str) -> None:
        offsets_to_send = {str(queue): offset for queue, offset in offsets.items()}
        self._do("offsets", topic=topic, offsets=offsets_to_send, group=group)

    def commit(self) -> None:
        self._do("commit")

    def abort(self) -> None:
        self._do("abort")

    def close(self) -> None:
        self._do("close")


# -- librdkafka


class LibrdkafkaClient:
    name = "librdkafka"

    def __init__(self, bootstrap: str) -> None:
        self._bootstrap = bootstrap

    def producer(self, transactional_id: str, timeout_ms: int = TIMEOUT_MS) -> LibrdkafkaProducer:
        return LibrdkafkaProducer(self._bootstrap, transactional_id, timeout_ms)

    def read(self, topic: str, queues: int, count: int, isolation: str) -> list[Read]:
        consumer = confluent_kafka.Consumer(
            {
                "bootstrap.servers": self._bootstrap,
                "group.id": "unused",
                "enable.auto.commit": False,
                "isolation.level": isolation,
            }
        )
        try:
            start = confluent_kafka.OFFSET_BEGINNING
            consumer.assign([confluent_kafka.TopicPartition(topic, queue, start) for queue in range(queues)])
            found: list[Read] = []
            until = time.monotonic() + STEP_WITHIN_S
            while len(found) < count and time.monotonic() < until:
                for each in consumer.consume(500, timeout=0.05):
                    assert each.error() is None, each.error()
                    found.append((each.partition() or 0, each.offset() or 0, (each.value() or b"").decode()))
            return found
        finally:
            consumer.close()


class LibrdkafkaProducer:
    def __init__(self, bootstrap: str, transactional_id: str, timeout_ms: int = TIMEOUT_MS, **config: Any) -> None:
        self._producer = confluent_kafka.Producer(
            {
                "bootstrap.servers": bootstrap,
                "transactional.id": transactional_id,
                "transaction.timeout.ms": timeout_ms,
                "message.timeout.ms": timeout_ms,
                "linger.ms": 1,
                "log_level": 0,
                **config,
            }
        )
        self._producer.init_transactions(STEP_WITHIN_S)

    def begin(self) -> None:
        self._producer.begin_transaction()

    def send(self, topic: str, queue: int, *texts: str, headers: list[tuple[str, bytes]] | None = None) -> None:
        errors: list[Any] = []

        def delivered(error: Any, _: Any) -> None:
            if error is not None:
                errors.append(error)

        for text in texts:
            self._producer.produce(topic, text.encode(), partition=queue, headers=headers or [], on_delivery=delivered)
        left = self._producer.flush(STEP_WITHIN_S)
        if errors or left:
            raise confluent_kafka.KafkaException(errors[0] if errors else f"{left} messages are left")

    def send_offsets(self, topic: str, offsets: Mapping[int, int], group: str) -> None:
        positions = [confluent_kafka.TopicPartition(topic, queue, offset) for queue, offset in offsets.items()]
        consumer = confluent_kafka.Consumer({"bootstrap.servers": "127.0.0.1:1", "group.id": group, "log_level": 0})
        try:
            metadata = consumer.consumer_group_metadata()
        finally:
            consumer.close()
        self._producer.send_offsets_to_transaction(positions, metadata, STEP_WITHIN_S)

    def commit(self) -> None:
        self._producer.commit_transaction(STEP_WITHIN_S)

    def abort(self) -> None:
        self._producer.abort_transaction(STEP_WITHIN_S)

    def close(self) -> None:
        self._producer.purge()


# -- aiokafka


class AioKafkaClient:
    """Its event loop runs in a thread of its own; `close` ends it."""

    name = "aiokafka"

    def __init__(self, bootstrap: str) -> None:
        self._bootstrap = bootstrap
        self._loop = asyncio.new_event_loop()
        threading.Thread(target=self._loop.run_forever, name="aiokafka", daemon=True).start()

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(STEP_WITHIN_S)

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)

    def producer(self, transactional_id: str, timeout_ms: int = TIMEOUT_MS) -> AioKafkaProducer:
        return AioKafkaProducer(self, self._bootstrap, transactional_id, timeout_ms)

    def read(self, topic: str, queues: int, count: int, isolation: str) -> list[Read]:
        return self.run(self._read(topic, count, isolation))

    async def _read(self, topic: str, count: int, isolation: str) -> list[Read]:
        consumer = aiokafka.AIOKafkaConsumer(
            topic, bootstrap_servers=self._bootstrap, auto_offset_reset="earliest", isolation_level=isolation
        )
        async with consumer:
            found: list[Read] = []
            until = time.monotonic() + STEP_WITHIN_S
            while len(found) < count and time.monotonic() < until:
                for records in (await consumer.getmany(timeout_ms=100)).values():
                    found += [(each.partition, each.offset, each.value.decode()) for each in records]
            return found


class AioKafkaProducer:
    def __init__(self, client: AioKafkaClient, bootstrap: str, transactional_id: str, timeout_ms: int) -> None:
        self._run = client.run
        self._producer = self._run(self._open(bootstrap, transactional_id, timeout_ms))

    async def _open(self, bootstrap: str, transactional_id: str, timeout_ms: int) -> aiokafka.AIOKafkaProducer:
        producer = aiokafka.AIOKafkaProducer(
            bootstrap_servers=bootstrap, transactional_id=transactional_id, transaction_timeout_ms=timeout_ms
        )
        await producer.start()
        return producer

    def begin(self) -> None:
        self._run(self._producer.begin_transaction())

    def send(self, topic: str, queue: int, *texts: str) -> None:
        for text in texts:
            self._run(self._producer.send_and_wait(topic, text.encode(), partition=queue))

    def send_offsets(self, topic: str, offsets: Mapping[int, int], group: str) -> None:
        offsets_to_send = {aiokafka.structs.TopicPartition(topic, queue): offset for queue, offset in offsets.items()}
        self._run(self._producer.send_offsets_to_transaction(offsets_to_send, group))

    def commit(self) -> None:
        self._run(self._producer.commit_transaction())

    def abort(self) -> None:
        self._run(self._producer.abort_transaction())

    def close(self) -> None:
        self._run(self._producer.stop())


# -- kafka-python


class KafkaPythonClient:
    name = "kafka-python"

    def __init__(self, bootstrap: str) -> None:
        self._bootstrap = bootstrap

    def producer(self, transactional_id: str, timeout_ms: int = TIMEOUT_MS) -> KafkaPythonProducer:
        return KafkaPythonProducer(self._bootstrap, transactional_id, timeout_ms)

    def read(self, topic: str, queues: int, count: int, isolation: str) -> list[Read]:
        consumer = kafka.KafkaConsumer(bootstrap_servers=self._bootstrap, isolation_level=isolation)
        try:
            consumer.assign([kafka.TopicPartition(topic, queue) for queue in range(queues)])
            consumer.seek_to_beginning()
            found: list[Read] = []
            until = time.monotonic() + STEP_WITHIN_S
            while len(found) < count and time.monotonic() < until:
                for records in consumer.poll(timeout_ms=100).values():
                    found += [(each.partition, each.offset, each.value.decode()) for each in records]
            return found
        finally:
            consumer.close()


class KafkaPythonProducer:
    def __init__(self, bootstrap: str, transactional_id: str, timeout_ms: int) -> None:
        self._producer = kafka.KafkaProducer(
            bootstrap_servers=bootstrap, transactional_id=transactional_id, transaction_timeout_ms=timeout_ms
        )
        self._producer.init_transactions()

    def begin(self) -> None:
        self._producer.begin_transaction()

    def send(self, topic: str, queue: int, *texts: str) -> None:
        sent = [self._producer.send(topic, text.encode(), partition=queue) for text in texts]
        for each in sent:
            each.get(STEP_WITHIN_S)

    def send_offsets(self, topic: str, offsets: Mapping[int, int], group: str) -> None:
        offsets_to_send = {
            kafka.TopicPartition(topic, queue): kafka.structs.OffsetAndMetadata(offset, "", -1)
            for queue, offset in offsets.items()
        }
        self._producer.send_offsets_to_transaction(offsets_to_send, group)

    def commit(self) -> None:
        self._producer.commit_transaction()

    def abort(self) -> None:
        self._producer.abort_transaction()

    def close(self) -> None:
        self._producer.close(timeout=1)
