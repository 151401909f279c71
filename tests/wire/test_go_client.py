"""The RocketMQ Go client v2: all its ways to send, and its push consumer, read and written by the others as well."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import Any

import confluent_kafka
import pytest

from tests.kit.broker import Broker
from tests.kit.eventually import eventually
from tests.wire.clients.agent import Agent
from tests.wire.clients.golang import go_agent
from tests.wire.clients.kafka_clients import Confluent
from tests.wire.clients.topics import create_topic

WITHIN_S = 30.0
_numbers = itertools.count()


@pytest.fixture(scope="module")
def go() -> Iterator[Agent]:
    agent = go_agent()
    yield agent
    agent.close()


@pytest.fixture
def topic(broker: Broker) -> str:
    name = f"go-{next(_numbers)}"
    create_topic(broker.kafka, name, 2)
    return name


class Push:
    """A push consumer of the Go client."""

    def __init__(self, go: Agent, broker: Broker, topic: str, **arguments: Any) -> None:
        self._go, self._name = go, f"push-{next(_numbers)}"
        self.seen: list[dict[str, Any]] = []
        go.call("open", name=self._name, namesrv=broker.namesrv, topic=topic, group=f"group-{self._name}", **arguments)

    def await_bodies(self, count: int) -> list[str]:
        def look() -> list[str]:
            self.seen += self._go.call("seen", name=self._name)
            return [each["body"] for each in self.seen]

        return eventually("messages seen", look, lambda bodies: len(bodies) >= count, WITHIN_S)

    def __enter__(self) -> Push:
        return self

    def __exit__(self, *_: object) -> None:
        self._go.call("close", name=self._name)


def send(go: Agent, broker: Broker, topic: str, bodies: Sequence[str], **arguments: Any) -> Any:
    return go.call("send", namesrv=broker.namesrv, topic=topic, bodies=list(bodies), **arguments)


@pytest.mark.parametrize("how", ["sync", "async", "oneway", "batch"])
def test_what_go_sends_is_read_by_go_and_by_kafka(broker: Broker, go: Agent, topic: str, how: str) -> None:
    bodies = [f"{how}-{n}" for n in range(10)]
    stored = send(go, broker, topic, bodies, how=how, tag="paid", key="k-1", headers={"shop": "Hamburg"})
    assert len(stored) == {"oneway": 0, "batch": 1}.get(how, 10)
    with Push(go, broker, topic) as push:
        assert sorted(push.await_bodies(10)) == bodies
    assert {(each["tag"], each["key"], each["properties"]["shop"]) for each in push.seen} == {
        ("paid", "k-1", "Hamburg")
    }
    seen = Confluent(broker.kafka).read({topic: 10}, WITHIN_S)
    assert sorted(each.text for each in seen) == bodies
    assert {(each.tags, each.key) for each in seen} == {("paid", b"k-1")}


def test_go_reads_what_kafka_sends(broker: Broker, go: Agent, topic: str) -> None:
    producer = confluent_kafka.Producer({"bootstrap.servers": broker.kafka, "compression.type": "zstd"})
    for n in range(10):
        producer.produce(topic, f"{n}".encode(), key=b"k", headers={"TAGS": b"a" if n % 2 else b"b"})
    assert producer.flush(WITHIN_S) == 0
    with Push(go, broker, topic, selector="a") as push:
        assert sorted(push.await_bodies(5)) == ["1", "3", "5", "7", "9"]


def test_orderly_consumer_sees_each_queue_in_its_order(broker: Broker, go: Agent, topic: str) -> None:
    send(go, broker, topic, [f"{n}" for n in range(20)])
    with Push(go, broker, topic, orderly=True) as push:
        push.await_bodies(20)
    for queue in (0, 1):
        offsets = [each["offset"] for each in push.seen if each["queue"] == queue]
        assert offsets == list(range(len(offsets))) != []


@pytest.mark.soak  # The client looks for its retry topic 20 s after its start.
def test_message_that_fails_comes_again_until_it_is_taken(broker: Broker, go: Agent, topic: str) -> None:
    send(go, broker, topic, ["again"])
    with Push(go, broker, topic, failures=1) as push:
        assert push.await_bodies(2) == ["again", "again"]
        assert [each["attempt"] for each in push.seen] == [0, 1]
