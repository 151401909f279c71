"""Stock clients of both protocols write and read all the time, while the owner of a shared log is lost and a standby
takes over: the Java clients of both protocols, librdkafka and aiokafka.

All clients run at the same time, and each fault of the table is one test. At the end
- every record that was acknowledged is there once, at its offset; idempotent producers left no gap and no repetition;
- what a pipeline of transactions moved is there once, in order, and so is a transaction that was open;
- delayed messages were delivered once and not early; half messages are what their producer decided;
- groups have kept their positions, and their members have got every record, by themselves.
"""

from __future__ import annotations

import time
from base64 import b64encode
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path

import pytest

from tests.kit.environment import set_environment
from tests.kit.eventually import eventually
from tests.kit.object_servers import ObjectServer, moto
from tests.wire.clients.agent import Agent
from tests.wire.clients.jvm import Agents
from tests.wire.clients.shared_pair import BUCKET, Pair, status, wait_for_role
from tests.wire.clients.takeover_faults import FAULTS, FAULTS_OF_STORE, TAKEOVER_WITHIN_S, Fault
from tests.wire.clients.takeover_loads import (
    QUEUES,
    Acknowledged,
    AiokafkaConsumer,
    AiokafkaWriter,
    Consumer,
    KafkaJavaConsumer,
    KafkaJavaWriter,
    LibrdkafkaConsumer,
    LibrdkafkaWriter,
    RocketmqJavaConsumer,
    RocketmqJavaWriter,
    Timers,
    Writer,
    now_ms,
    read_all,
)
from tests.wire.clients.topics import committed_offsets, create_topic, end_offsets
from tests.wire.test_exactly_once import (
    SOURCE,
    TARGET,
    Inputs,
    LibrdkafkaWorker,
    Worker,
    check_moved,
    wait_until_moved,
)
from tests.wire.test_half_histories import TOPIC as HALVES
from tests.wire.test_half_histories import Shop, is_committed, is_left_open, open_halves

pytestmark = [pytest.mark.alone, pytest.mark.usefixtures("duolog_only"), pytest.mark.timeout(600)]

ORDERS, TIMERS, OPEN = "orders", "timers", "open"
SETTINGS = {"txn.immunity_ms": 400, "txn.check_interval_ms": 500, "txn.check_max": 200}
# Consumers of RocketMQ's Java client go on with the next route, for which it asks every 30 s, and may need two.
GOES_ON_WITHIN_S = 75.0
INPUTS_A_SECOND = 10  # The inputs of the pipeline. Its transactions take five times as long as a send under `shared`.
LOOK_S = 0.2  # Between two looks at what has come, so that the clients in this process can work meanwhile.
BEFORE, AFTER = 20, 10  # Records of each writer before the fault, and after the takeover.
IN_MAKE_TEST = ("killed",)  # `test_shared.py` has takeovers with librdkafka alone for the other faults.


@pytest.fixture(scope="module")
def store() -> Iterator[ObjectServer]:
    with moto() as running:
        running.make_bucket(BUCKET)
        yield running


@pytest.fixture
def fault(name: str) -> Fault:
    return (FAULTS | FAULTS_OF_STORE)[name]


@pytest.fixture
def pair(tmp_path: Path, store: ObjectServer, monkeypatch: pytest.MonkeyPatch, fault: Fault) -> Iterator[Pair]:
    set_environment(monkeypatch, store.environment)
    running = Pair(tmp_path, store, SETTINGS, is_proxied=fault.is_proxied)
    yield running
    running.close()


# -- All clients at a time


class Everyone:
    """All clients of both protocols, on the same topics."""

    def __init__(self, pair: Pair, agents: Agents, folder: Path) -> None:
        self._pair, self._kafka, self._rocketmq = pair, agents.kafka("4.3"), agents.rocketmq("5.5")
        for topic in (ORDERS, TIMERS, OPEN, SOURCE, TARGET, HALVES):
            create_topic(pair.bootstrap, topic, QUEUES)
        pair.wait_until_named(ORDERS)
        self.writers: list[Writer] = [
            LibrdkafkaWriter(pair, ORDERS),
            AiokafkaWriter(pair, ORDERS),
            KafkaJavaWriter(pair, ORDERS, self._kafka),
            RocketmqJavaWriter(pair, ORDERS, self._rocketmq),
        ]
        self.consumers: list[Consumer] = [
            LibrdkafkaConsumer(pair, ORDERS),
            AiokafkaConsumer(pair, ORDERS),
            KafkaJavaConsumer(pair, ORDERS, self._kafka),
            RocketmqJavaConsumer(pair, ORDERS, self._rocketmq),
        ]
        self._timers = Timers(pair, TIMERS)
        self._timed = LibrdkafkaConsumer(pair, TIMERS)
        self._transaction = OpenTransaction(pair, self._kafka)
        self._inputs = Inputs(pair.bootstrap, INPUTS_A_SECOND)
        self._pipe: dict[str, Worker] = {"worker-0": self._start_pipe("worker-0")}
        self._shop = Shop(agents, pair.namesrv, "shop", folder)

    def _start_pipe(self, name: str) -> Worker:
        return LibrdkafkaWorker(self._pair.bootstrap, name)

    # -- Steps

    def wait_for_records(self, more: int, *, of_kafka_alone: bool = False) -> None:
        """Wait until each consumer has got so many more records of each writer."""
        slow = RocketmqJavaWriter.name if of_kafka_alone else ""
        for consumer in [each for each in self.consumers if each.name != slow]:
            before = {each.name: last_of(consumer, each.name) for each in self.writers if each.name != slow}
            for writer, last in before.items():
                eventually(
                    f"{more} more records of {writer} at the consumer {consumer.name}",
                    lambda consumer=consumer, writer=writer: (time.sleep(LOOK_S), last_of(consumer, writer))[1],
                    lambda found, last=last: found >= last + more,
                    GOES_ON_WITHIN_S,
                )

    def collect_and_restart(self) -> None:
        """Take what has come from the agents, which keep it in their memory, and start ended workers again."""
        for consumer in self.consumers:
            assert consumer.arrived, f"nothing has come to {consumer.name}"
        for name, worker in self._pipe.items():
            if not worker.is_running():
                print(f"worker {name} has ended", flush=True)
                worker.kill()
                self._pipe[name] = self._start_pipe(name)

    def commit(self) -> dict[str, set[str]]:
        """Return what each consumer has got once the positions behind all of it are committed."""
        got = {each.name: {arrived.body for arrived in each.arrived} for each in self.consumers}
        ends = end_offsets(self._pair.bootstrap, ORDERS)
        for each in self.consumers:
            eventually(
                f"positions of {each.name}",
                lambda name=each.name: committed_offsets(self._pair.bootstrap, f"group-{name}", ORDERS, QUEUES),
                lambda found: all(found.get(queue, 0) >= end for queue, end in ends.items()),
                GOES_ON_WITHIN_S,
            )
        return got

    def send_timers(self, count: int) -> None:
        self._timers.send(count, 12_000)

    def commit_transaction(self) -> None:
        """Commit the transaction that was open over the last takeover."""
        self._transaction.commit()

    def stop(self) -> dict[str, list[Acknowledged]]:
        """Stop the writers; return what was acknowledged."""
        self._shop.stop()
        self.commit_transaction()
        self._transaction.end()
        return {each.name: each.stop() for each in self.writers}

    # -- What must be true at the end

    def check(
        self, acknowledged: dict[str, list[Acknowledged]], before: dict[str, set[str]], fault_ms: int, late_ms: int
    ) -> None:
        bootstrap = self._pair.bootstrap
        is_idempotent = {each.name: each.is_idempotent for each in self.writers}
        check_orders(bootstrap, acknowledged, is_idempotent)
        for consumer in self.consumers:
            check_consumer(consumer, acknowledged, before[consumer.name], fault_ms)
        self._check_timers(late_ms)
        self._transaction.check()
        count = self._inputs.stop()
        wait_until_moved(bootstrap, self._pipe, self._start_pipe, count)
        check_moved(bootstrap, count)
        self._check_halves()

    def _check_timers(self, late_ms: int) -> None:
        due_ms = sorted(self._timers.due_ms)
        eventually("timers", lambda: len(self._timed.arrived), lambda count: count >= len(due_ms), GOES_ON_WITHIN_S)
        found = sorted(int(body) for _, _, body in read_all(self._pair.bootstrap, TIMERS, len(due_ms)))
        assert found == due_ms, "a delayed message is lost, or was delivered twice"
        early = [each for each in self._timed.arrived if each.at_ms < int(each.body)]
        assert early == []
        late = max(each.at_ms - int(each.body) for each in self._timed.arrived)
        assert late < late_ms, f"a delayed message was {late} ms late"

    def _check_halves(self) -> None:
        owner = next(each for each in (self._pair.owner, self._pair.standby) if status(each)["role"] == "owner")
        eventually("open halves", lambda: open_halves(owner), lambda count: count == 0, GOES_ON_WITHIN_S)
        stored, asked = self._shop.noted("half"), set(self._shop.noted("check"))
        assert len(stored) > BEFORE
        times = Counter(body for _, _, body in read_all(self._pair.bootstrap, HALVES, 1))
        assert [body for body in stored if times[body] != is_committed(body)] == [], "not what was decided"
        assert [body for body in times if not is_committed(body) or times[body] > 1] == []
        assert [body for body in stored if is_left_open(body) and body not in asked] == [], "nobody was asked"

    def stop_consumers(self) -> None:
        for each in [*self.consumers, self._timed]:
            each.stop()

    def kill_children(self) -> None:
        """End the processes that are this test's alone."""
        for worker in self._pipe.values():
            worker.kill()
        self._shop.kill()


@contextmanager
def all_clients(pair: Pair, agents: Agents, folder: Path) -> Iterator[Everyone]:
    """Run all clients. Print the ends of the brokers' logs if the test fails, and end the clients' processes."""
    everyone = Everyone(pair, agents, folder)
    try:
        yield everyone
    except BaseException:
        print(pair.log_tails())
        raise
    finally:
        everyone.kill_children()


class OpenTransaction:
    """A producer of Kafka's Java client whose transaction is open over each takeover; the last one is aborted."""

    def __init__(self, pair: Pair, agent: Agent) -> None:
        self._pair, self._agent = pair, agent
        self._count = 0  # Records that are committed, or will be.
        config = {"transactional.id": "open", "transaction.timeout.ms": "600000"}
        agent.call("open_producer", name="open", bootstrap=pair.bootstrap, config=config)
        self._do("init")
        self._begin()

    def _begin(self) -> None:
        self._do("begin")
        self._send("committed", range(self._count, self._count + 10))
        self._count += 10

    def commit(self) -> None:
        """Go on with the open transaction, commit it, and begin another."""
        self._send("committed", range(self._count, self._count + 10))
        self._count += 10
        self._do("commit")
        self._begin()

    def end(self) -> None:
        """Commit the open transaction, and abort another."""
        self._do("commit")
        self._do("begin")
        self._send("aborted", range(10))
        self._do("abort")
        self._do("close")

    def _send(self, name: str, numbers: Sequence[int]) -> None:
        messages = [{"body": base64(f"{name}-{number}"), "queue": number % QUEUES, "headers": []} for number in numbers]
        self._do("send", topic=OPEN, messages=messages)

    def _do(self, what: str, **arguments: object) -> None:
        self._agent.call("producer", name="open", do=what, within_s=GOES_ON_WITHIN_S, **arguments)

    def check(self) -> None:
        found = [(queue, body) for queue, _, body in sorted(read_all(self._pair.bootstrap, OPEN, self._count))]
        whole = [(queue, number) for queue in range(QUEUES) for number in range(queue, self._count, QUEUES)]
        assert found == [(queue, f"committed-{number}") for queue, number in whole]


def base64(text: str) -> str:
    return b64encode(text.encode()).decode()


def last_of(consumer: Consumer, writer: str) -> int:
    """Return the number of the last record of a writer that a consumer has got; -1 without any."""
    bodies = [each.body for each in consumer.arrived]
    return max((int(body.rpartition("-")[2]) for body in bodies if body.startswith(f"{writer}-")), default=-1)


def check_orders(
    bootstrap: str, acknowledged: dict[str, list[Acknowledged]], is_idempotent: dict[str, bool], topic: str = ORDERS
) -> None:
    """Check that each acknowledged record is at its offset, and that idempotent producers left no gap."""
    expected = {(each.queue, each.offset): each.body for places in acknowledged.values() for each in places}
    assert len(expected) == sum(len(places) for places in acknowledged.values()), "two records have one offset"
    found = read_all(bootstrap, topic, len(expected))
    at = {(queue, offset): body for queue, offset, body in found}
    assert len(at) == len(found), "an offset was read twice"
    wrong = {place: (body, at.get(place)) for place, body in expected.items() if at.get(place) != body}
    assert not wrong, f"{len(wrong)} acknowledged records are not there: {sorted(wrong.items())[:5]}"
    for name in [each for each, is_so in is_idempotent.items() if is_so]:
        for queue in range(QUEUES):
            numbers = [
                int(body.rpartition("-")[2])
                for place, _, body in sorted(found)
                if place == queue and body.startswith(f"{name}-")
            ]
            whole = [*range(queue, QUEUES * len(numbers) + queue, QUEUES)]
            assert numbers == whole, f"{name}: a gap, or a record twice, in queue {queue}"


def check_consumer(
    consumer: Consumer, acknowledged: dict[str, list[Acknowledged]], before: set[str], fault_ms: int
) -> None:
    """Check that a consumer gets every record, and none again whose offset was committed before the fault."""
    expected = {each.body for places in acknowledged.values() for each in places}
    eventually(
        f"all records at the consumer {consumer.name}",
        lambda: expected - {each.body for each in consumer.arrived},
        lambda missing: not missing,
        GOES_ON_WITHIN_S,
    )
    again = [each.body for each in consumer.arrived if each.at_ms > fault_ms and each.body in before]
    assert again == [], f"{consumer.name} has got {len(again)} records again that it had committed"


def longest_silence_s(places: list[Acknowledged], since_ms: int) -> float:
    """Return the longest time between two acknowledgements, from `since_ms` on."""
    times = [since_ms, *sorted(each.at_ms for each in places if each.at_ms > since_ms)]
    return max((later - earlier for earlier, later in pairwise(times)), default=0) / 1000


# -- Tests


def take_over(pair: Pair, everyone: Everyone, fault: Fault) -> tuple[dict[str, set[str]], int]:
    """Let the standby take over. Return what each consumer had committed before the fault, and when that began."""
    everyone.wait_for_records(BEFORE)
    before = everyone.commit()
    fault_ms = now_ms()
    fault.begin(pair)
    wait_for_role(pair.standby, "owner")
    fault.end(pair)
    everyone.wait_for_records(AFTER)
    pair.wait_until_followed()
    return before, fault_ms


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[] if name in IN_MAKE_TEST else [pytest.mark.soak]) for name in FAULTS]
)
def test_all_clients_go_on(pair: Pair, agents: Agents, tmp_path: Path, name: str, fault: Fault) -> None:
    with all_clients(pair, agents, tmp_path) as everyone:
        everyone.send_timers(300)
        before, fault_ms = take_over(pair, everyone, fault)
        acknowledged = everyone.stop()
        silent_s = {writer: round(longest_silence_s(each, fault_ms), 1) for writer, each in acknowledged.items()}
        print(f"{name}: longest time without an acknowledgement: {silent_s}")
        everyone.check(acknowledged, before, fault_ms, int((fault.within_s + TAKEOVER_WITHIN_S) * 1000))
        everyone.stop_consumers()
    for writer, waited_s in silent_s.items():
        assert waited_s < fault.within_s, f"{writer} waited {waited_s} s"


@pytest.mark.soak
@pytest.mark.parametrize("name", FAULTS_OF_STORE)
def test_all_clients_go_on_with_an_owner_whose_store_has_faults(
    pair: Pair, agents: Agents, tmp_path: Path, fault: Fault
) -> None:
    with all_clients(pair, agents, tmp_path) as everyone:
        everyone.send_timers(300)
        everyone.wait_for_records(BEFORE)
        before, fault_ms, epoch = everyone.commit(), now_ms(), status(pair.owner)["epoch"]
        fault.begin(pair)
        everyone.wait_for_records(BEFORE)
        fault.end(pair)
        acknowledged = everyone.stop()
        silent_s = {writer: round(longest_silence_s(each, fault_ms), 1) for writer, each in acknowledged.items()}
        print(f"longest time without an acknowledgement: {silent_s}")
        assert (status(pair.owner)["role"], status(pair.owner)["epoch"]) == ("owner", epoch), "a standby took over"
        everyone.check(acknowledged, before, fault_ms, int(GOES_ON_WITHIN_S * 1000))
        everyone.stop_consumers()
    late = {writer: waited_s for writer, waited_s in silent_s.items() if waited_s >= fault.within_s}
    assert not late, "writers waited longer than a request to the store explains"
