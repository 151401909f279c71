"""Nothing acknowledged is lost: the broker is killed again and again while both protocols write to one topic.

The clients keep a list of the acknowledged messages outside of the broker. At the end each acknowledged message
is read at its offset by readers of both protocols; each send that an idempotent Kafka producer accepted is there once,
in its order; offsets have no holes; offsets of answered commits have not gone back.
"""

from __future__ import annotations

import random
import threading
import time
from collections import Counter, defaultdict
from pathlib import Path

import confluent_kafka
import pytest

from tests.kit.broker import Broker
from tests.wire.clients.jvm import Agents
from tests.wire.clients.kafka_clients import Confluent
from tests.wire.clients.message import Position, Seen
from tests.wire.clients.rocketmq_clients import RocketmqReader
from tests.wire.clients.topics import create_topic, end_offsets

TOPIC = "kill"
GROUP = "kill-group"
QUEUES = 4
SENDS_A_SECOND = 400
FLUSH_WITHIN_S = 60
READ_WITHIN_S = 120
FIND_AGAIN_FAST = {
    "reconnect.backoff.ms": 20,
    "reconnect.backoff.max.ms": 100,
    "retry.backoff.ms": 20,
    "metadata.recovery.strategy": "none",  # Else it waits for a second before it looks again.
    "log_level": 0,
}
NEVER_GIVE_UP = {"message.timeout.ms": 0}


class KafkaLoad:
    """An idempotent producer of librdkafka that never stops; every accepted send has to be there once, and in order."""

    def __init__(self, bootstrap: str, prefix: str) -> None:
        self.prefix = prefix
        self.acknowledged: dict[str, Position] = {}
        self.errors: list[str] = []
        self.sent = 0
        self._stopping = threading.Event()
        self._producer = confluent_kafka.Producer(
            {
                "bootstrap.servers": bootstrap,
                "enable.idempotence": True,
                "linger.ms": 2,
                **FIND_AGAIN_FAST,
                **NEVER_GIVE_UP,
            }
        )
        self._thread = threading.Thread(target=self._run, name=prefix)
        self._thread.start()

    def stop(self) -> None:
        """Stop sending, and wait until all is answered."""
        self._stopping.set()
        self._thread.join()
        left = 0 if self.errors else self._producer.flush(FLUSH_WITHIN_S)
        assert not self.errors, f"{self.prefix} failed: {Counter(self.errors).most_common(3)}"
        assert not left, f"{self.prefix}: {left} sends were not answered in {FLUSH_WITHIN_S} s"
        assert len(self.acknowledged) == self.sent

    def _run(self) -> None:
        while not self._stopping.wait(1 / SENDS_A_SECOND):
            text = f"{self.prefix}-{self.sent}"
            try:
                self._producer.produce(TOPIC, text.encode(), partition=self.sent % QUEUES, on_delivery=self._delivered)
                self.sent += 1
            except BufferError:
                self._stopping.wait(0.05)  # Its queue is full while the broker is away.
            except confluent_kafka.KafkaException as error:  # Fatal: the producer will never send again.
                self.errors.append(str(error))
                return
            self._producer.poll(0)

    def _delivered(self, error: confluent_kafka.KafkaError | None, message: confluent_kafka.Message) -> None:
        if error is not None:
            self.errors.append(str(error))
        else:
            self.acknowledged[message.value().decode()] = (message.partition(), message.offset())


class CommitLoad:
    """Commits ever higher positions of a group that has no members; `answered` is the last one that was answered."""

    def __init__(self, bootstrap: str) -> None:
        self.answered = 0
        self._stopping = threading.Event()
        self._consumer = confluent_kafka.Consumer(
            {"bootstrap.servers": bootstrap, "group.id": GROUP, "enable.auto.commit": False, **FIND_AGAIN_FAST}
        )
        self._thread = threading.Thread(target=self._run, name="commits")
        self._thread.start()

    def committed(self) -> int:
        (position,) = self._consumer.committed([confluent_kafka.TopicPartition(TOPIC, 0)], timeout=20)
        return int(position.offset)

    def stop(self) -> None:
        self._stopping.set()
        self._thread.join()

    def close(self) -> None:
        self._consumer.close()

    def _run(self) -> None:
        offset = 0
        while not self._stopping.wait(0.01):
            offset += 1
            try:
                position = confluent_kafka.TopicPartition(TOPIC, 0, offset)
                self._consumer.commit(offsets=[position], asynchronous=False)
                self.answered = offset
            except confluent_kafka.KafkaException:
                self._stopping.wait(0.05)


def kill_again_and_again(broker: Broker, kills: int, rng: random.Random) -> None:
    """At random times under load; one in four while it recovers from the one before."""
    for number in range(kills):
        if number % 4 == 3:
            broker.launch()
            time.sleep(rng.uniform(0.0, 0.6))
        else:
            broker.start()
            time.sleep(rng.uniform(0.05, 0.6))
            broker.check_alive()
        broker.kill()


@pytest.mark.parametrize("flush", ["sync", "async"])
@pytest.mark.parametrize("kills", [12, pytest.param(500, marks=[pytest.mark.soak, pytest.mark.timeout(3600)])])
def test_acknowledged_messages_survive_kills(
    tmp_path: Path, agents: Agents, rng: random.Random, flush: str, kills: int
) -> None:
    broker = Broker(tmp_path / "data", {"store.flush": flush}).start()
    try:
        create_topic(broker.kafka, TOPIC, QUEUES)
        commits = CommitLoad(broker.kafka)
        kafka = [KafkaLoad(broker.kafka, f"kafka{n}") for n in range(2)]
        rocket = agents.rocketmq("5.5")
        pause_ms = 1 if kills < 100 else 10  # A JVM with a small heap holds all that it reads again.
        rocket.call("load_start", name="rocket", namesrv=broker.namesrv, topic=TOPIC, threads=2, pause_ms=pause_ms)

        broker.kill()
        kill_again_and_again(broker, kills, rng)
        broker.start()

        for load in kafka:
            load.stop()
        commits.stop()
        stopped = rocket.call("load_stop", name="rocket", within_s=60)
        acknowledged = {text: (queue, offset) for text, queue, offset, _ in stopped["acknowledged"]}
        print(f"{kills} kills; RocketMQ: {len(acknowledged)} acknowledged, {stopped['failures']}; "
              f"Kafka: {[load.sent for load in kafka]} acknowledged; commits: {commits.answered}")  # fmt: skip
        assert len(acknowledged) > kills, "hardly anything was sent between the kills"

        count = sum(end_offsets(broker.kafka, TOPIC).values())
        seen = Confluent(broker.kafka).read({TOPIC: count}, READ_WITHIN_S)
        check_history(seen, acknowledged, kafka)
        pulled = RocketmqReader(broker.namesrv, rocket, "5.5", "json", "pull").read({TOPIC: count}, READ_WITHIN_S)
        assert {each.position: each.text for each in pulled} == {each.position: each.text for each in seen}
        assert commits.committed() >= commits.answered
        commits.close()
        broker.stop()
    except BaseException:
        print(broker.log_tail())
        raise
    finally:
        broker.kill()


def check_history(seen: list[Seen], acknowledged: dict[str, Position], kafka: list[KafkaLoad]) -> None:
    at = {each.position: each.text for each in seen}
    assert len(at) == len(seen), "an offset was read twice"
    by_queue: dict[int, list[int]] = defaultdict(list)
    for queue, offset in sorted(at):
        by_queue[queue].append(offset)
    for queue, offsets in by_queue.items():
        assert offsets == list(range(len(offsets))), f"queue {queue} has holes"

    known = dict(acknowledged)
    for load in kafka:
        known |= load.acknowledged
    lost = {text: position for text, position in known.items() if at.get(position) != text}
    assert not lost, f"{len(lost)} of {len(known)} acknowledged messages are not at the acknowledged position: " + str(
        [(text, position, at.get(position)) for text, position in sorted(lost.items(), key=lambda each: each[1])[:5]]
    )
    times = Counter(at.values())
    for load in kafka:
        repeated = [text for text in load.acknowledged if times[text] != 1]
        assert not repeated, f"{len(repeated)} idempotent sends are there more than once, as {repeated[:5]}"
        for queue in range(QUEUES):
            order = [
                text for position, text in sorted(at.items()) if position[0] == queue and text in load.acknowledged
            ]
            numbers = [int(text.rpartition("-")[2]) for text in order]
            assert numbers == sorted(numbers), f"{load.prefix}: queue {queue} is out of order"
