"""Transactions of every Kafka client: committed whole, aborted never, in order; producers fenced; readers not held up.

The same steps with each client, in transactions of version 1 (Java 3.9, librdkafka, aiokafka, kafka-python) and 2 (Java
4.3), read by the client itself. What the broker must say in each state is a table of its own, in the unit tests.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator

import pytest

from tests.kit.broker import Broker
from tests.kit.command import duolog
from tests.kit.eventually import eventually
from tests.wire.clients.jvm import Agents
from tests.wire.clients.members import KafkaMember, PushMember
from tests.wire.clients.message import Message
from tests.wire.clients.topics import committed_offsets, create_topic, end_offsets
from tests.wire.clients.transactional import (
    ALL,
    COMMITTED,
    AioKafkaClient,
    Client,
    JavaClient,
    KafkaPythonClient,
    LibrdkafkaClient,
    Producer,
)

CLIENTS = ("Java 4.3", "Java 3.9", "librdkafka", "aiokafka", "kafka-python")
WITHIN_S = 30
_numbers = itertools.count(int(time.time()))


@pytest.fixture
def topic(broker: Broker) -> str:
    name = f"txn-{next(_numbers)}"
    create_topic(broker.kafka, name, 2)
    return name


@pytest.fixture(params=CLIENTS)
def client(request: pytest.FixtureRequest, broker: Broker, agents: Agents) -> Iterator[Client]:
    name: str = request.param
    if name.startswith("Java"):
        version = name.split()[1]
        yield JavaClient(broker.kafka, agents.kafka(version), version)
    elif name == "aiokafka":
        aio = AioKafkaClient(broker.kafka)
        yield aio
        aio.close()
    else:
        yield {"librdkafka": LibrdkafkaClient, "kafka-python": KafkaPythonClient}[name](broker.kafka)


@pytest.fixture
def java(broker: Broker, agents: Agents) -> JavaClient:
    return JavaClient(broker.kafka, agents.kafka("4.3"), "4.3")


def transaction(producer: Producer, topic: str, queue: int, *texts: str, commit: bool = True) -> None:
    producer.begin()
    producer.send(topic, queue, *texts)
    if commit:
        producer.commit()
    else:
        producer.abort()


def refusal(step: str, producer: Producer) -> str:
    """What the client raises."""
    with pytest.raises(Exception) as raised:
        getattr(producer, step)()
    return f"{type(raised.value).__name__}: {raised.value}"


def test_committed_records_are_read_and_aborted_ones_are_not(broker: Broker, client: Client, topic: str) -> None:
    producer = client.producer(topic)
    producer.begin()
    producer.send(topic, 0, "a", "b")
    producer.send(topic, 1, "c")
    producer.commit()
    transaction(producer, topic, 0, "x", "y", commit=False)
    producer.begin()
    producer.send(topic, 0, "d")
    producer.send_offsets(topic, {0: 2, 1: 1}, f"group-{topic}")
    producer.commit()
    producer.close()

    committed = client.read(topic, 2, 4, COMMITTED)
    assert sorted(each[2] for each in committed if each[0] == 1) == ["c"]
    assert [each[2] for each in committed if each[0] == 0] == ["a", "b", "d"]
    assert [each[2] for each in client.read(topic, 2, 6, ALL) if each[0] == 0] == ["a", "b", "x", "y", "d"]
    assert end_offsets(broker.kafka, topic) == {0: 8, 1: 2}, "each marker takes an offset, where something was written"
    assert committed_offsets(broker.kafka, f"group-{topic}", topic, 2) == {0: 2, 1: 1}


def test_aborted_positions_are_not_kept(broker: Broker, client: Client, topic: str) -> None:
    producer = client.producer(topic)
    producer.begin()
    producer.send_offsets(topic, {0: 5}, f"group-{topic}")
    producer.abort()
    producer.close()
    assert committed_offsets(broker.kafka, f"group-{topic}", topic, 2) == {}


def test_second_producer_fences_the_first_and_aborts_what_it_left_open(client: Client, topic: str) -> None:
    first = client.producer(topic)
    first.begin()
    first.send(topic, 0, "of the first")
    second = client.producer(topic)
    transaction(second, topic, 0, "of the second")
    assert any(word in refusal("commit", first).lower() for word in ("fenced", "epoch"))
    first.close()
    assert [each[2] for each in client.read(topic, 2, 1, COMMITTED)] == ["of the second"]
    second.close()


def test_transaction_that_takes_too_long_is_aborted(
    broker: Broker, client: Client, java: JavaClient, topic: str
) -> None:
    slow = client.producer(topic, timeout_ms=1_000)
    slow.begin()
    slow.send(topic, 0, "too late")
    states = eventually(
        "state", lambda: java.transactions().get(topic), lambda state: state == "CompleteAbort", WITHIN_S
    )
    assert states == "CompleteAbort"
    refusal("commit", slow)
    slow.close()
    other = java.producer(f"{topic}-other")
    transaction(other, topic, 0, "in time")
    other.close()
    assert [each[2] for each in client.read(topic, 2, 1, COMMITTED)] == ["in time"]


def test_reader_of_committed_records_waits_for_the_commit(
    broker: Broker, agents: Agents, java: JavaClient, topic: str
) -> None:
    producer = java.producer(topic)
    group = f"group-{topic}"
    with KafkaMember(agents.kafka("4.3"), broker.kafka, group, [topic], isolation_level=COMMITTED) as reader:
        producer.begin()
        producer.send(topic, 0, "one")
        producer.send(topic, 1, "two")
        other = java.producer(f"{topic}-other")
        transaction(other, topic, 0, "behind it")
        with KafkaMember(agents.kafka("4.3"), broker.kafka, f"{group}-all", [topic]) as reader_of_all:
            reader_of_all.await_texts(3, WITHIN_S)
        assert reader.texts == [], "all of it lies behind the open transaction, or in it"
        producer.commit()
        assert sorted(reader.await_texts(3, WITHIN_S)) == ["behind it", "one", "two"]
    other.close()
    producer.close()


@pytest.mark.usefixtures("both_protocols")
@pytest.mark.parametrize("version", ["5.5", "4.9"])
def test_rocketmq_consumer_sees_committed_records_only(
    broker: Broker, agents: Agents, java: JavaClient, topic: str, version: str
) -> None:
    producer = java.producer(topic)
    with PushMember(agents.rocketmq(version), broker.namesrv, f"push-{topic}", [topic]) as push:
        expected = []
        for number in range(20):
            commit = number % 3 > 0
            transaction(producer, topic, 0, f"{number}", f"{number} again", commit=commit)
            expected += [f"{number}", f"{number} again"] if commit else []
        assert push.await_texts(len(expected), WITHIN_S) == expected
        producer.begin()
        producer.send(topic, 0, "undecided")
        write = Message(b"from RocketMQ").as_rocketmq_json()
        agents.rocketmq(version).call("write", namesrv=broker.namesrv, topic=topic, how="sync", messages=[write])
        ends = agents.rocketmq(version).call("offsets", namesrv=broker.namesrv, topic=topic)
        assert ends["0"] == 20 * 3, "the undecided record, and what lies behind it, is not there yet"
        producer.abort()
        expected += ["from RocketMQ"]
        assert push.await_texts(len(expected), WITHIN_S) == expected
    producer.close()


@pytest.mark.usefixtures("both_protocols")
def test_hanging_transaction_is_found_and_aborted(broker: Broker, agents: Agents, java: JavaClient, topic: str) -> None:
    admin, asked = agents.kafka("4.3"), {"bootstrap": broker.kafka, "topic": topic, "queue": 1}
    producer = java.producer(topic)
    producer.begin()
    producer.send(topic, 0, "zero")
    producer.send(topic, 1, "one")
    assert java.transactions()[topic] == "Ongoing"
    described = admin.call("describe_transaction", bootstrap=broker.kafka, name=topic)
    assert (described["partitions"], described["timeout_ms"], described["is_open"]) == (
        [f"{topic}-0", f"{topic}-1"],
        60_000,
        True,
    )
    assert admin.call("open_transactions", **asked) == [[described["producer_id"], 0]]

    row = next(line for line in duolog("txn", "list", "--http", broker.http).splitlines() if topic in line)
    assert row.split()[:3] == ["kafka", topic, "Ongoing"]
    assert duolog("txn", "describe", topic, "--http", broker.http).count(f"{topic} ") >= 2
    admin.call("abort_transactions", **asked)
    assert admin.call("open_transactions", **asked) == []
    assert java.transactions()[topic] == "CompleteAbort", "all of it, though one partition was named"
    assert "InvalidTxnState" in refusal("commit", producer)
    producer.close()


@pytest.mark.usefixtures("both_protocols")
def test_delayed_record_comes_after_the_commit(broker: Broker, java: JavaClient, topic: str) -> None:
    client = LibrdkafkaClient(broker.kafka)
    producer = client.producer(topic)
    for verdict in ("abort", "commit"):
        producer.begin()
        producer.send(topic, 0, f"{verdict} at once")
        producer.send(topic, 0, f"{verdict} later", headers=[("TIMER_DELAY_MS", b"300")])
        time.sleep(0.4)
        assert end_offsets(broker.kafka, topic)[0] == (0 if verdict == "abort" else 2), "due, but not decided"
        getattr(producer, verdict)()
    producer.close()
    assert [each[2] for each in client.read(topic, 2, 2, COMMITTED)] == ["commit at once", "commit later"]


@pytest.mark.usefixtures("both_protocols")
def test_operator_aborts_by_command(broker: Broker, java: JavaClient, topic: str) -> None:
    producer = java.producer(topic)
    producer.begin()
    producer.send(topic, 0, "hanging")
    assert duolog("txn", "abort", topic, "--http", broker.http) == f"aborted {topic}\n"
    assert java.transactions()[topic] == "CompleteAbort"
    producer.close()


@pytest.mark.parametrize("is_killed", [True, False], ids=["killed", "stopped"])
def test_open_transaction_outlives_a_restart(broker: Broker, client: Client, topic: str, is_killed: bool) -> None:
    producer = client.producer(topic)
    producer.begin()
    producer.send(topic, 0, "before")
    producer.send_offsets(topic, {1: 7}, f"group-{topic}")
    if is_killed:
        broker.kill()
        broker.start()
    else:
        broker.restart()
    producer.send(topic, 1, "after")
    producer.commit()
    transaction(producer, topic, 0, "next")
    producer.close()
    assert sorted(each[2] for each in client.read(topic, 2, 3, COMMITTED)) == ["after", "before", "next"]
    assert committed_offsets(broker.kafka, f"group-{topic}", topic, 2) == {1: 7}
