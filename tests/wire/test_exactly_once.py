"""Exactly once: a pipeline whose broker and workers are killed again and again moves each input to the output once.

Each transaction of a worker moves some records and the group's positions. At the end a reader of committed records
finds every input once, in its queue, in its order. Killed are the broker, and workers (SIGKILL); a worker that is
stopped (SIGSTOP) while another one takes its transactional id over, and then goes on, must change nothing.
"""

from __future__ import annotations

import random
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

import confluent_kafka
import pytest

from tests.kit.broker import Broker
from tests.wire.clients import pipe_worker
from tests.wire.clients.agent import Agent
from tests.wire.clients.child import Child
from tests.wire.clients.jvm import Agents
from tests.wire.clients.topics import create_topic, end_offsets
from tests.wire.clients.transactional import COMMITTED, LibrdkafkaClient

SOURCE, TARGET, GROUP = "source", "target", "pipeline"
QUEUES = 2
INPUTS_A_SECOND = 150
END_WITHIN_S = 90


class Worker(Protocol):
    """One run of a pipeline's program."""

    def is_running(self) -> bool: ...

    def signal(self, number: signal.Signals) -> None: ...

    def kill(self) -> None: ...


class LibrdkafkaWorker(Child):
    def __init__(self, bootstrap: str, transactional_id: str) -> None:
        super().__init__(pipe_worker.__name__, [bootstrap, GROUP, transactional_id, SOURCE, TARGET])


class JavaWorker:
    """A JVM of its own, in which the pipeline runs until it fails."""

    def __init__(self, bootstrap: str, transactional_id: str, version: str) -> None:
        self._agents = Agents()
        self._agent: Agent = self._agents.kafka(version)
        self._call = self._agent.start(
            "pipe", bootstrap=bootstrap, group=GROUP, transactional_id=transactional_id, source=SOURCE, target=TARGET
        )

    def is_running(self) -> bool:
        return not self._call.is_over

    def signal(self, number: signal.Signals) -> None:
        self._agent.signal(number)

    def kill(self) -> None:
        self._agent.signal(signal.SIGKILL)
        self._agents.close()


class Inputs:
    """Writes numbers to the source, one queue after the other, until `stop` is set; each number is written once."""

    def __init__(self, bootstrap: str, a_second: float = INPUTS_A_SECOND) -> None:
        self.count = 0
        self._pause_s = 1 / a_second
        self._stopping = threading.Event()
        self._producer = confluent_kafka.Producer(
            {
                "bootstrap.servers": bootstrap,
                "enable.idempotence": True,
                "message.timeout.ms": 0,
                **pipe_worker.FIND_AGAIN_FAST,
            }
        )
        self._thread = threading.Thread(target=self._run, name="inputs", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._stopping.wait(self._pause_s):
            self._producer.produce(SOURCE, str(self.count).encode(), partition=self.count % QUEUES)
            self._producer.poll(0)
            self.count += 1

    def stop(self) -> int:
        self._stopping.set()
        self._thread.join()
        assert self._producer.flush(60) == 0
        return self.count


def run(broker: Broker, start: Callable[[str], Worker], rng: random.Random, kills: int, pause_s: float) -> None:
    """Kill what chance says, so many times; then wait until all inputs have come through, and compare."""
    create_topic(broker.kafka, SOURCE, QUEUES)
    create_topic(broker.kafka, TARGET, QUEUES)
    inputs = Inputs(broker.kafka)
    workers = {f"worker-{number}": start(f"worker-{number}") for number in range(QUEUES)}
    stopped: list[Worker] = []
    try:
        for _ in range(kills):
            time.sleep(pause_s * rng.uniform(0.5, 1.5))
            name = rng.choice(sorted(workers))
            match rng.choice(("broker", "broker", "worker", "zombie")):
                case "broker":
                    broker.kill()
                    broker.start()
                case "worker":
                    workers.pop(name).kill()
                case "zombie":
                    zombie = workers.pop(name)
                    zombie.signal(signal.SIGSTOP)
                    stopped.append(zombie)
            for gone in [name for name, worker in workers.items() if not worker.is_running()]:
                workers.pop(gone).kill()
            for missing in {f"worker-{number}" for number in range(QUEUES)} - workers.keys():
                workers[missing] = start(missing)
            if len(stopped) > 1:
                stopped[0].signal(signal.SIGCONT)
                time.sleep(pause_s / 2)
                stopped.pop(0).kill()
        for zombie in stopped:
            zombie.signal(signal.SIGCONT)
        count = inputs.stop()
        wait_until_moved(broker.kafka, workers, start, count)
    finally:
        inputs.stop()
        for worker in (*workers.values(), *stopped):
            worker.kill()
    check_moved(broker.kafka, count)


def check_moved(bootstrap: str, count: int) -> None:
    """Check that each input was moved once, in order."""
    moved = LibrdkafkaClient(bootstrap).read(TARGET, QUEUES, count, COMMITTED)
    for queue in range(QUEUES):
        found = [int(text) for place, _, text in moved if place == queue]
        assert found == [*range(queue, count, QUEUES)], f"queue {queue}: not each input once, in order"


def wait_until_moved(bootstrap: str, workers: dict[str, Worker], start: Callable[[str], Worker], count: int) -> None:
    """Until the group has read all inputs; workers that end meanwhile are started again."""
    consumer = confluent_kafka.Consumer({"bootstrap.servers": bootstrap, "group.id": GROUP})
    ends = end_offsets(bootstrap, SOURCE)
    assert sum(ends.values()) == count
    asked = [confluent_kafka.TopicPartition(SOURCE, queue) for queue in range(QUEUES)]
    until = time.monotonic() + END_WITHIN_S
    try:
        while {each.partition: each.offset for each in consumer.committed(asked, timeout=20)} != ends:
            assert time.monotonic() < until, f"not all moved within {END_WITHIN_S} s"
            for name, worker in workers.items():
                if not worker.is_running():
                    worker.kill()
                    workers[name] = start(name)
            time.sleep(0.1)
    finally:
        consumer.close()


def test_librdkafka(tmp_path: Path, rng: random.Random) -> None:
    with Broker(tmp_path / "data") as broker:
        run(broker, lambda name: LibrdkafkaWorker(broker.kafka, name), rng, kills=5, pause_s=0.8)


def test_java(tmp_path: Path, rng: random.Random) -> None:
    with Broker(tmp_path / "data") as broker:
        run(broker, lambda name: JavaWorker(broker.kafka, name, "4.3"), rng, kills=3, pause_s=2)


@pytest.mark.soak
@pytest.mark.parametrize("flush", ["sync", "async"])
def test_librdkafka_is_killed_many_times(tmp_path: Path, rng: random.Random, flush: str) -> None:
    with Broker(tmp_path / "data", {"store.flush": flush}) as broker:
        run(broker, lambda name: LibrdkafkaWorker(broker.kafka, name), rng, kills=60, pause_s=1)


@pytest.mark.soak
@pytest.mark.parametrize("version", ["4.3", "3.9"])
def test_java_is_killed_many_times(tmp_path: Path, rng: random.Random, version: str) -> None:
    with Broker(tmp_path / "data") as broker:
        run(broker, lambda name: JavaWorker(broker.kafka, name, version), rng, kills=40, pause_s=3)
