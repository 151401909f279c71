"""The official Python client (gRPC) through Apache's own proxy: the way of the Python, Node, Go, Rust, C# clients."""

from __future__ import annotations

import itertools
import json
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.kit.broker import Broker
from tests.kit.eventually import eventually
from tests.wire.clients import remoting
from tests.wire.clients.agent import Agent, AgentError
from tests.wire.clients.grpc_proxy import GrpcProxy
from tests.wire.clients.kafka_clients import Confluent
from tests.wire.clients.message import Message
from tests.wire.clients.topics import end_offsets

pytestmark = pytest.mark.usefixtures("both_protocols")

BROKER_SETTINGS = {"txn.immunity_ms": 2000, "txn.check_interval_ms": 1000}
UPDATE_GROUP = 200
WITHIN_S = 30.0

_numbers = itertools.count(int(time.time()))


class Shop:
    """A proxy in front of the broker, and clients behind it."""

    def __init__(self, broker: Broker, proxy: GrpcProxy, agent: Agent) -> None:
        self.broker, self.call = broker, agent.call
        self._endpoint = proxy.endpoint

    def topic(self, message_type: str, queues: int = 4) -> str:
        name = f"{message_type.lower()}-{next(_numbers)}"
        remoting.create_topic(self.broker.rocketmq, name, queues, f"+message.type={message_type}")
        return name

    def group(self, **settings: Any) -> str:
        name = f"group-{next(_numbers)}"
        body = json.dumps({"groupName": name, **settings}).encode()
        assert remoting.ask(self.broker.rocketmq, UPDATE_GROUP, body=body).code == 0
        return name

    def client(self, kind: str, topic: str, **options: Any) -> str:
        name = f"{kind}-{next(_numbers)}"
        if kind != "producer" and "group" not in options:
            options["group"] = f"group-{next(_numbers)}"
        self.call("start", name=name, kind=kind, endpoint=self._endpoint, topic=topic, **options)
        return name

    def send(self, topic: str, *messages: str | dict[str, Any], end: str = "") -> list[list[str]]:
        producer = self.client("producer", topic)
        bodies = [{"body": each} if isinstance(each, str) else each for each in messages]
        sent: list[list[str]] = self.call("send", name=producer, topic=topic, messages=bodies, end=end)
        return sent

    def receive(self, consumer: str, count: int, within_s: float = WITHIN_S, **options: Any) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self.call("receive", name=consumer, count=count, patience_s=within_s, **options)
        return found

    def bodies(self, consumer: str, count: int, **options: Any) -> list[str]:
        return [each["body"] for each in self.receive(consumer, count, **options)]

    def seen_by(self, consumer: str, is_right: Callable[[list[Any]], bool]) -> list[tuple[str, int]]:
        look = lambda: [(body, attempt) for body, attempt in self.call("seen", name=consumer)]  # noqa: E731
        return eventually("the consumer has seen it", look, is_right, WITHIN_S)


@pytest.fixture(scope="module")
def shop(broker: Broker, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shop]:
    home = tmp_path_factory.mktemp("grpc")
    command = ["env", f"HOME={home}", sys.executable, str(Path(__file__).parent / "clients" / "grpc_agent.py")]
    with GrpcProxy(home / "proxy", broker.namesrv) as proxy:
        agent = Agent("grpc", command, home)
        yield Shop(broker, proxy, agent)
        agent.close()


# -- Sending and receiving


def test_messages_arrive_whole_and_once(shop: Shop) -> None:
    topic = shop.topic("NORMAL")
    consumer = shop.client("simple", topic)
    shop.send(topic, {"body": "grün", "tag": "A", "keys": "k1", "headers": {"colour": "grün"}})
    Confluent(shop.broker.kafka).write(topic, [Message(b"kafka", 1)], way="single", codec="none")
    first, second = sorted(shop.receive(consumer, 2), key=lambda one: len(one["body"]))
    assert (first["body"], first["tag"], first["keys"], first["attempt"]) == ("grün", "A", ["k1"], 1)
    assert first["properties"]["colour"] == "grün"
    assert second["body"] == "kafka"
    shop.call("ack", name=consumer, bodies=["grün", "kafka"])


@pytest.mark.parametrize("filter", [{"tags": "A || C"}, {"sql": "n > 1 AND TAGS <> 'B'"}])
def test_only_what_is_wanted_arrives(shop: Shop, filter: dict[str, str]) -> None:
    topic = shop.topic("NORMAL")
    consumer = shop.client("simple", topic, **filter)
    messages = [{"body": f"{tag}{n}", "tag": tag, "headers": {"n": str(n)}} for n in (2, 3) for tag in "ABC"]
    shop.send(topic, *messages)
    assert sorted(shop.bodies(consumer, 4)) == ["A2", "A3", "C2", "C3"]


def test_what_is_not_acked_comes_again_at_the_time_that_the_consumer_wants(shop: Shop) -> None:
    topic = shop.topic("NORMAL", queues=1)
    consumer = shop.client("simple", topic)
    shop.send(topic, "a", "b", "c")
    assert sorted(shop.bodies(consumer, 3, invisible_s=3)) == ["a", "b", "c"]
    shop.call("ack", name=consumer, bodies=["a"])
    shop.call("change", name=consumer, body="b", invisible_s=1)
    again = shop.receive(consumer, 2, invisible_s=20)
    assert [(one["body"], one["attempt"]) for one in again] == [("b", 2), ("c", 2)]
    shop.call("change", name=consumer, body="c", invisible_s=1)
    (last,) = shop.receive(consumer, 1)
    assert (last["body"], last["attempt"]) == ("c", 3)
    shop.call("ack", name=consumer, bodies=["b", "c"])
    assert shop.receive(consumer, 1, within_s=2) == []


@pytest.mark.parametrize("message_type", ["FIFO", "DELAY", "TRANSACTION"])
def test_topic_takes_its_own_type_of_messages(shop: Shop, message_type: str) -> None:
    with pytest.raises(AgentError, match="message type not match"):
        shop.send(shop.topic(message_type), "normal")
    shop.send(shop.topic("NORMAL"), "normal")


# -- Types of messages


def test_order_within_a_message_group(shop: Shop) -> None:
    topic, group = shop.topic("FIFO"), shop.group(consumeMessageOrderly=True)
    consumer = shop.client("simple", topic, group=group)
    shop.send(topic, *({"body": str(n), "message_group": "one"} for n in range(5)))
    assert shop.bodies(consumer, 2, most=2, invisible_s=2) == ["0", "1"]
    shop.call("ack", name=consumer, bodies=["0"])
    again = shop.receive(consumer, 2, most=2)  # Nothing but the same in the meantime.
    assert [(one["body"], one["attempt"]) for one in again] == [("1", 2), ("2", 1)]
    shop.call("ack", name=consumer, bodies=["1", "2"])
    assert shop.bodies(consumer, 2) == ["3", "4"]


def test_delayed_message_arrives_in_time_unless_it_is_recalled(shop: Shop) -> None:
    topic = shop.topic("DELAY")
    consumer, due_s = shop.client("simple", topic), int(time.time()) + 3
    kept, recalled = shop.send(
        topic, {"body": "kept", "delivery_timestamp": due_s}, {"body": "recalled", "delivery_timestamp": due_s}
    )
    assert kept[1]
    producer = shop.client("producer", topic)
    assert shop.call("recall", name=producer, topic=topic, handle=recalled[1]) == recalled[0]
    assert shop.bodies(consumer, 1) == ["kept"]
    assert time.time() >= due_s
    assert shop.receive(consumer, 1, within_s=1) == []


def test_transactions_end_as_their_producer_says(shop: Shop) -> None:
    topic = shop.topic("TRANSACTION")
    consumer = shop.client("simple", topic)
    for end in ("commit", "rollback"):
        shop.send(topic, f"{end}ted", end=end)
    producer = shop.client("producer", topic)
    messages = [{"body": "asked: commit"}, {"body": "asked: rollback"}]
    shop.call("send", name=producer, topic=topic, messages=messages, end="nothing")
    assert sorted(shop.bodies(consumer, 2, invisible_s=60)) == ["asked: commit", "committed"]
    assert shop.receive(consumer, 1, within_s=1) == []


def test_priorities_are_received_from_high_to_low(shop: Shop) -> None:
    topic = shop.topic("PRIORITY")
    shop.send(topic, *({"body": str(n), "priority": n} for n in (0, 2, 1, 3, 7)))
    found = shop.receive(shop.client("simple", topic), 5)
    assert [one["priority"] for one in found] == [3, 7, 2, 1, 0]  # Queue 3 has all from 3 on.


# -- Push consumers


def test_push_consumer_gets_again_what_it_failed(shop: Shop) -> None:
    topic = shop.topic("NORMAL")
    consumer = shop.client("push", topic, failures={"b": 1})
    shop.send(topic, "a", "b", "c")
    seen = shop.seen_by(consumer, lambda seen: len(seen) >= 4)
    assert sorted(seen) == [("a", 1), ("b", 1), ("b", 2), ("c", 1)]
    shop.call("close", name=consumer)


def test_push_consumer_gives_up_after_the_attempts_of_its_group(shop: Shop) -> None:
    topic, group = shop.topic("NORMAL"), shop.group(retryMaxTimes=1)
    consumer = shop.client("push", topic, group=group, failures={"bad": 9})
    shop.send(topic, "bad")
    shop.seen_by(consumer, lambda seen: seen == [("bad", 1), ("bad", 2)])
    dead_letters(shop, group)
    shop.call("close", name=consumer)


def test_push_consumer_in_order_puts_aside_what_fails_for_good(shop: Shop) -> None:
    topic, group = shop.topic("FIFO"), shop.group(consumeMessageOrderly=True, retryMaxTimes=1)
    consumer = shop.client("push", topic, group=group, failures={"1": 9})
    shop.send(topic, *({"body": str(n), "message_group": "one"} for n in range(3)))
    seen = shop.seen_by(consumer, lambda seen: seen[-1:] == [("2", 1)])
    assert [body for body, _ in seen] == ["0", "1", "1", "2"]
    dead_letters(shop, group)
    shop.call("close", name=consumer)


def dead_letters(shop: Shop, group: str) -> None:
    """Wait until the group has one."""

    def count() -> int:
        try:
            return sum(end_offsets(shop.broker.kafka, f"..DLQ..{group}").values())
        except KeyError:
            return 0

    eventually("there is a dead letter", count, lambda found: found == 1, WITHIN_S)
