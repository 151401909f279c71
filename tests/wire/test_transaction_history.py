"""Random histories of transactions: each is committed once and whole, or never seen, in order, whatever is killed.

Writers of librdkafka (version 1 of the protocol) and of Java 4 (version 2) write to all queues of a topic at once,
commit and abort, and say what they do. Killed are the broker, and writers (SIGKILL); a writer that is stopped (SIGSTOP)
while another one takes its transactional id over, and then goes on, must change nothing. The answers to each are kept
outside of the broker, and compared with what readers of committed records see:

    it got "committed"                 all its records, in all its queues, once
    it asked, and got no answer        all of them, or none
    it aborted, or never asked         none

One reader is there from the beginning on; what it saw once is what others see at the end, in either protocol.
"""

from __future__ import annotations

import random
import signal
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

import confluent_kafka
import pytest

from tests.kit.broker import Broker
from tests.wire.clients import txn_worker
from tests.wire.clients.agent import AgentError
from tests.wire.clients.child import Child
from tests.wire.clients.jvm import Agents
from tests.wire.clients.pipe_worker import FIND_AGAIN_FAST
from tests.wire.clients.rocketmq_clients import RocketmqReader
from tests.wire.clients.topics import create_topic
from tests.wire.clients.transactional import JavaClient, JavaProducer

TOPIC, QUEUES = "history", 3
NAMES = ("one", "two", "three")
JAVA = "java"
END = "end"
READ_WITHIN_S = 60

Seen = tuple[int, int, str]  # queue, offset, text


class Writer(Child):
    """One run of a writer's program under its transactional id; what it says is in a file."""

    def __init__(self, broker: Broker, name: str, run: int, rng: random.Random, folder: Path) -> None:
        self.said = folder / f"{name}.{run}"
        arguments = [broker.kafka, name, str(run), str(rng.random()), TOPIC, str(QUEUES)]
        with self.said.open("wb") as said:
            super().__init__(txn_worker.__name__, arguments, said)

    def has_begun(self) -> bool:
        """Whether it has taken its transactional id over; a run that does so later fences those after it."""
        return self.said.stat().st_size > 0


class JavaWriter:
    """Writes in version 2 of the protocol until it is stopped, as a new producer after each error."""

    def __init__(self, broker: Broker, agents: Agents, rng: random.Random) -> None:
        self.verdicts: dict[str, str] = {}
        self._client = JavaClient(broker.kafka, agents.kafka("4.3"), "4.3")
        self._rng = rng
        self._opened: list[JavaProducer] = []
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name=JAVA)
        self._thread.start()

    def _run(self) -> None:
        number, is_sound = 0, False
        while not self._stopping.is_set():
            if not is_sound:
                self._opened.append(self._client.producer(JAVA))
            name, number = f"{JAVA}.{len(self._opened)}.{number}", number + 1
            try:
                self._transact(self._opened[-1], name)
                is_sound = True
            except AgentError:
                is_sound = False

    def _transact(self, producer: JavaProducer, name: str) -> None:
        self.verdicts[name] = "open"
        producer.begin()
        count = self._rng.randint(1, 6)
        for index in range(count):
            producer.send(TOPIC, self._rng.randrange(QUEUES), f"{name} {index} {count}")
        if self._rng.random() < 0.3:
            producer.abort()
            self.verdicts[name] = "aborted"
        else:
            self.verdicts[name] = "asked"
            producer.commit()
            self.verdicts[name] = "committed"

    def stop(self) -> None:
        self._stopping.set()
        self._thread.join()
        for each in self._opened:
            with suppress(AgentError):
                each.close()


class Reader:
    """Reads committed records from the beginning on, until it has met the end of each queue."""

    def __init__(self, bootstrap: str) -> None:
        self.seen: list[Seen] = []
        self._consumer = confluent_kafka.Consumer(
            {
                "bootstrap.servers": bootstrap,
                "group.id": "unused",
                "enable.auto.commit": False,
                "isolation.level": "read_committed",
                **FIND_AGAIN_FAST,
            }
        )
        start = confluent_kafka.OFFSET_BEGINNING
        self._consumer.assign([confluent_kafka.TopicPartition(TOPIC, queue, start) for queue in range(QUEUES)])
        self._gives_up = threading.Event()
        self._thread = threading.Thread(target=self._run, name="reader")
        self._thread.start()

    def _run(self) -> None:
        ends = 0
        while ends < QUEUES and not self._gives_up.is_set():
            for each in self._consumer.consume(500, timeout=0.1):
                if each.error() is None:
                    self.seen.append((each.partition(), each.offset(), each.value().decode()))
                    ends += self.seen[-1][2] == END
        self._consumer.close()

    def finish(self, within_s: float) -> list[Seen]:
        """All it saw, queue by queue in the order in which it came."""
        self._thread.join(within_s)
        self._gives_up.set()
        self._thread.join()
        ends = sum(text == END for _, _, text in self.seen)
        assert ends == QUEUES, f"the reader met {ends} of {QUEUES} ends within {within_s} s"
        return sorted(self.seen, key=lambda each: each[0])  # Stable: within a queue it stays as it came.


def run(broker: Broker, agents: Agents, rng: random.Random, folder: Path, kills: int) -> dict[str, str]:
    """Kill what chance says, so many times; gives what is known of each transaction."""
    writers: dict[str, Writer] = {}
    stopped: list[Writer] = []
    runs: Counter[str] = Counter()

    def start(name: str) -> None:
        runs[name] += 1
        writers[name] = Writer(broker, name, runs[name], rng, folder)

    java = JavaWriter(broker, agents, random.Random(rng.random()))
    try:
        for name in NAMES:
            start(name)
        for _ in range(kills):
            time.sleep(rng.uniform(0.4, 1.2))
            name = rng.choice(NAMES)
            match rng.choice(("broker", "broker", "writer", "zombie")):
                case "broker":
                    broker.kill()
                    broker.start()
                case "writer":
                    writers[name].kill()
                case "zombie" if writers[name].has_begun():
                    writers[name].signal(signal.SIGSTOP)
                    stopped.append(writers.pop(name))
            for each in NAMES:
                if each not in writers or not writers[each].is_running():
                    start(each)
            if len(stopped) > 1:
                stopped.pop(0).signal(signal.SIGCONT)  # It learns that it is fenced, and ends.
        for zombie in stopped:
            zombie.signal(signal.SIGCONT)
        time.sleep(1)
    finally:
        java.stop()
        for writer in (*writers.values(), *stopped):
            writer.kill()
    verdicts = dict(java.verdicts)
    for said in folder.iterdir():
        for line in said.read_text().splitlines():
            verdict, name = line.split()
            verdicts[name] = verdict
    return verdicts


def end_all(broker: Broker) -> None:
    """Abort what the writers left open, and mark the end of each queue."""
    for name in (*NAMES, JAVA):
        settings = {"bootstrap.servers": broker.kafka, "transactional.id": name, **FIND_AGAIN_FAST}
        last = confluent_kafka.Producer(settings)
        last.init_transactions(READ_WITHIN_S)
    last.begin_transaction()
    for queue in range(QUEUES):
        last.produce(TOPIC, END.encode(), partition=queue)
    last.commit_transaction(READ_WITHIN_S)


def check(seen: list[Seen], verdicts: Mapping[str, str]) -> None:
    found: dict[str, list[int]] = defaultdict(list)
    counts: dict[str, int] = {}
    latest: dict[tuple[int, str], tuple[int, int, int]] = {}
    for queue, offset, text in seen:
        if text == END:
            continue
        name, index, count = text.split()
        found[name].append(int(index))
        counts[name] = int(count)
        writer, run_, number = name.split(".")
        place = int(run_), int(number), int(index)
        assert latest.get((queue, writer), (-1, -1, -1)) < place, f"{text} at {queue}/{offset} is out of order"
        latest[queue, writer] = place
    torn = {name: indexes for name, indexes in found.items() if sorted(indexes) != [*range(counts[name])]}
    assert not torn, f"not whole, or more than once: {torn}"
    wrong = {name: verdict for name, verdict in verdicts.items() if verdict in ("open", "aborted") and name in found}
    assert not wrong, f"seen, though they were not committed: {wrong}"
    lost = [name for name, verdict in verdicts.items() if verdict == "committed" and name not in found]
    assert not lost, f"committed, and not seen: {lost}"
    assert found.keys() <= verdicts.keys()


@pytest.mark.parametrize("kills", [6, pytest.param(150, marks=[pytest.mark.soak, pytest.mark.timeout(1800)])])
def test_each_transaction_is_seen_once_and_whole_or_never(
    tmp_path: Path, agents: Agents, rng: random.Random, kills: int
) -> None:
    folder = tmp_path / "said"
    folder.mkdir()
    with Broker(tmp_path / "data") as broker:
        create_topic(broker.kafka, TOPIC, QUEUES)
        reader = Reader(broker.kafka)
        try:
            verdicts = run(broker, agents, rng, folder, kills)
            end_all(broker)
        finally:
            seen = reader.finish(READ_WITHIN_S)
        print(f"{kills} kills: {Counter(verdicts.values())}, {len(seen)} records")
        check(seen, verdicts)
        assert Counter(verdicts.values())["committed"] > kills
        assert Reader(broker.kafka).finish(READ_WITHIN_S) == seen, "what was seen once has changed"
        pulled = RocketmqReader(broker.namesrv, agents.rocketmq("5.5"), "5.5", "json", "pull").read(
            {TOPIC: len(seen)}, READ_WITHIN_S
        )
        assert sorted((each.queue, each.offset, each.text) for each in pulled) == sorted(seen)
