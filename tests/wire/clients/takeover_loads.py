"""Stock clients that write and read all the time while brokers take over from each other, and what each must have seen.

    load = KafkaJavaWriter(pair, agents)      begins to write
    load.acknowledged                         where each record is, and when its answer came
    load.stop()                               waits until all is acknowledged

A client gets the addresses of both brokers, and no other settings that a takeover could need. After a failure nobody
stops the clients, because that could take as long as the brokers are away; their threads end with the process.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Coroutine
from typing import Any, NamedTuple, Protocol

import aiokafka
import confluent_kafka

from tests.kit.eventually import eventually
from tests.wire.clients.agent import Agent
from tests.wire.clients.members import KafkaMember, PushMember
from tests.wire.clients.shared_pair import Pair

QUEUES = 2
PAUSE_S = 0.02  # Between two records of one writer.
END_WITHIN_S = 90.0


class Acknowledged(NamedTuple):
    """One record that was acknowledged."""

    body: str
    queue: int
    offset: int
    at_ms: int


class Writer(Protocol):
    """A producer that writes `<name>-<number>`, one queue after the other."""

    name: str
    is_idempotent: bool  # Whether each record is there once, and in order.

    def stop(self) -> list[Acknowledged]: ...


def now_ms() -> int:
    return time.time_ns() // 1_000_000


class LibrdkafkaWriter:
    """An idempotent producer of librdkafka."""

    name, is_idempotent = "librdkafka", True

    def __init__(self, pair: Pair, topic: str) -> None:
        self._acknowledged: list[Acknowledged] = []
        self._errors: list[str] = []
        self._stopping = threading.Event()
        self._producer = confluent_kafka.Producer({"bootstrap.servers": pair.bootstrap, "enable.idempotence": True})
        self._thread = threading.Thread(target=self._run, args=[topic], name=self.name, daemon=True)
        self._thread.start()

    def _run(self, topic: str) -> None:
        number = 0
        while not self._stopping.wait(PAUSE_S):
            body = f"{self.name}-{number}"
            self._producer.produce(topic, body, partition=number % QUEUES, on_delivery=self._note)
            self._producer.poll(0)
            number += 1

    def _note(self, error: Any, message: confluent_kafka.Message) -> None:
        if error is not None:
            self._errors.append(str(error))
            return
        value, queue, offset = message.value(), message.partition(), message.offset()
        assert value is not None
        assert queue is not None
        assert offset is not None
        self._acknowledged.append(Acknowledged(value.decode(), queue, offset, now_ms()))

    def stop(self) -> list[Acknowledged]:
        self._stopping.set()
        self._thread.join()
        assert self._producer.flush(END_WITHIN_S) == 0, f"{self.name} has unacknowledged records"
        assert not self._errors, self._errors[:3]
        return self._acknowledged


class InLoop:
    """A coroutine in an event loop and a thread of its own, until `stop`."""

    def __init__(self, name: str, run: Callable[[asyncio.Event], Coroutine[Any, Any, None]]) -> None:
        self._loop = asyncio.new_event_loop()
        self._stopping = asyncio.Event()
        self._failed: BaseException | None = None
        self._thread = threading.Thread(target=self._run, args=[run], name=name, daemon=True)
        self._thread.start()

    def _run(self, run: Callable[[asyncio.Event], Coroutine[Any, Any, None]]) -> None:
        try:
            with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
                runner.run(run(self._stopping))
        except BaseException as error:  # noqa: BLE001 - raised by `stop`
            self._failed = error

    def stop(self) -> None:
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._stopping.set)
        self._thread.join(END_WITHIN_S)
        assert not self._thread.is_alive(), f"{self._thread.name} does not end"
        if self._failed is not None:
            raise self._failed


class AiokafkaWriter:
    """An idempotent producer of aiokafka."""

    name, is_idempotent = "aiokafka", True

    def __init__(self, pair: Pair, topic: str) -> None:
        self._bootstrap, self._topic = pair.bootstrap, topic
        self._acknowledged: list[Acknowledged] = []
        self._running = InLoop(self.name, self._run)

    async def _run(self, stopping: asyncio.Event) -> None:
        producer = aiokafka.AIOKafkaProducer(bootstrap_servers=self._bootstrap, enable_idempotence=True, acks="all")
        sent = []
        async with producer:
            number = 0
            while not stopping.is_set():
                body = f"{self.name}-{number}"
                future = await producer.send(self._topic, body.encode(), partition=number % QUEUES)
                sent.append(asyncio.create_task(self._note(body, future)))
                await asyncio.sleep(PAUSE_S)
                number += 1
            await asyncio.gather(*sent)

    async def _note(self, body: str, future: Any) -> None:
        stored = await future
        self._acknowledged.append(Acknowledged(body, stored.partition, stored.offset, now_ms()))

    def stop(self) -> list[Acknowledged]:
        self._running.stop()
        return self._acknowledged


class KafkaJavaWriter:
    """An idempotent producer of Kafka's Java client."""

    name, is_idempotent = "kafka-java", True

    def __init__(self, pair: Pair, topic: str, agent: Agent) -> None:
        self._agent = agent
        agent.call(
            "load_start", name=self.name, bootstrap=pair.bootstrap, topic=topic, partitions=QUEUES,
            pause_ms=PAUSE_S * 1000,
        )  # fmt: skip

    def stop(self) -> list[Acknowledged]:
        stopped = self._agent.call("load_stop", name=self.name, within_s=END_WITHIN_S)
        assert not stopped["failures"], stopped["failures"][:3]
        return [Acknowledged(*each) for each in stopped["acknowledged"]]


class RocketmqJavaWriter:
    """A producer of RocketMQ's Java client. It has no idempotence: a send without an answer may be there, too."""

    name, is_idempotent = "rocketmq-java", False

    def __init__(self, pair: Pair, topic: str, agent: Agent) -> None:
        self._agent = agent
        agent.call(
            "load_start", name=self.name, namesrv=pair.namesrv, topic=topic, threads=1, pause_ms=PAUSE_S * 1000
        )  # fmt: skip

    def stop(self) -> list[Acknowledged]:
        stopped = self._agent.call("load_stop", name=self.name, within_s=END_WITHIN_S)
        return [Acknowledged(*each) for each in stopped["acknowledged"]]


# -- Consumers


class Arrived(NamedTuple):
    """A record as a consumer got it."""

    body: str
    at_ms: int


class Consumer(Protocol):
    """A member of a consumer group that commits by itself."""

    name: str

    @property
    def arrived(self) -> list[Arrived]: ...

    def stop(self) -> None: ...


class LibrdkafkaConsumer:
    name = "librdkafka"

    def __init__(self, pair: Pair, topic: str) -> None:
        self.arrived: list[Arrived] = []
        self._stopping = threading.Event()
        self._consumer = confluent_kafka.Consumer(
            {
                "bootstrap.servers": pair.bootstrap,
                "group.id": f"group-{self.name}",
                "auto.offset.reset": "earliest",
                "auto.commit.interval.ms": 500,
            }
        )
        self._consumer.subscribe([topic])
        self._thread = threading.Thread(target=self._run, name=f"{self.name} consumer", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._stopping.is_set():
            message = self._consumer.poll(0.1)
            if message is not None and message.error() is None:
                value = message.value()
                assert value is not None
                self.arrived.append(Arrived(value.decode(), now_ms()))
        self._consumer.close()

    def stop(self) -> None:
        self._stopping.set()
        self._thread.join()


class AiokafkaConsumer:
    name = "aiokafka"

    def __init__(self, pair: Pair, topic: str) -> None:
        self.arrived: list[Arrived] = []
        self._bootstrap, self._topic = pair.bootstrap, topic
        self._running = InLoop(f"{self.name} consumer", self._run)

    async def _run(self, stopping: asyncio.Event) -> None:
        consumer = aiokafka.AIOKafkaConsumer(
            self._topic,
            bootstrap_servers=self._bootstrap,
            group_id=f"group-{self.name}",
            auto_offset_reset="earliest",
            auto_commit_interval_ms=500,
        )
        async with consumer:
            while not stopping.is_set():
                for records in (await consumer.getmany(timeout_ms=100)).values():
                    self.arrived += [Arrived(each.value.decode(), now_ms()) for each in records]

    def stop(self) -> None:
        self._running.stop()


class KafkaJavaConsumer:
    name = "kafka-java"

    def __init__(self, pair: Pair, topic: str, agent: Agent) -> None:
        self._member = KafkaMember(
            agent, pair.bootstrap, f"group-{self.name}", [topic], enable_auto_commit="true", auto_commit_interval_ms=500
        )

    @property
    def arrived(self) -> list[Arrived]:
        assert self._member.texts is not None
        return [Arrived(each.text, each.at_ms) for each in self._member.arrivals]

    def stop(self) -> None:
        self._member.leave()


class RocketmqJavaConsumer:
    """A push consumer."""

    name = "rocketmq-java"

    def __init__(self, pair: Pair, topic: str, agent: Agent) -> None:
        self._member = PushMember(agent, pair.namesrv, f"group-{self.name}", [topic], persist_ms=500)

    @property
    def arrived(self) -> list[Arrived]:
        assert self._member.texts is not None
        return [Arrived(each.text, each.at_ms) for each in self._member.arrivals]

    def stop(self) -> None:
        self._member.close()


# -- Timers


class Timers:
    """Delayed messages, sent by librdkafka with due times in the next seconds; each body is its due time."""

    def __init__(self, pair: Pair, topic: str) -> None:
        self.due_ms: list[int] = []
        self._producer = confluent_kafka.Producer({"bootstrap.servers": pair.bootstrap, "enable.idempotence": True})
        self._topic = topic

    def send(self, count: int, spread_ms: int) -> None:
        """Send messages whose due times are spread evenly; return when they are acknowledged."""
        first_ms = now_ms() + 2_000
        for number in range(count):
            due_ms = first_ms + number * spread_ms // count
            self.due_ms.append(due_ms)
            headers: list[tuple[str, str | bytes | None]] = [("TIMER_DELIVER_MS", str(due_ms).encode())]
            self._producer.produce(self._topic, str(due_ms), partition=number % QUEUES, headers=headers)
        assert self._producer.flush(END_WITHIN_S) == 0


def read_all(bootstrap: str, topic: str, count: int) -> list[tuple[int, int, str]]:
    """Read queue, offset and body of each record of a topic, which has at least `count`."""
    consumer = confluent_kafka.Consumer(
        {"bootstrap.servers": bootstrap, "group.id": "unused", "enable.auto.commit": False}
    )
    queues = consumer.list_topics(topic, timeout=10).topics[topic].partitions
    consumer.assign([confluent_kafka.TopicPartition(topic, queue, 0) for queue in queues])
    found: list[tuple[int, int, str]] = []

    def read() -> int:
        before = len(found)
        for each in consumer.consume(10_000, timeout=0.5):
            value, queue, offset = each.value(), each.partition(), each.offset()
            if each.error() is None and value is not None and queue is not None and offset is not None:
                found.append((queue, offset, value.decode()))
        return len(found) - before

    try:
        eventually(f"records of {topic}", lambda: (read(), len(found))[1], lambda seen: seen >= count, END_WITHIN_S)
        while read():
            pass
    finally:
        consumer.close()
    return found
