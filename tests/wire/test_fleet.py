"""Brokers that join Apache RocketMQ's name server: routes come and go with them, and clients with the routes.

Two brokers serve one topic; one is killed, and producers and consumers go on with the other.
"""

from __future__ import annotations

import base64
import itertools
import time
from collections.abc import Iterator
from typing import Any

import pytest

from tests.kit.broker import Broker
from tests.kit.eventually import eventually
from tests.wire.clients import remoting
from tests.wire.clients.jvm import Agents, require_java
from tests.wire.clients.message import Message
from tests.wire.clients.name_server import NameServer
from tests.wire.clients.topics import create_topic

DELETE_TOPIC = 215
WITHIN_S = 60
_numbers = itertools.count(int(time.time()))


@pytest.fixture(scope="module")
def name_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NameServer]:
    require_java()
    running = NameServer(tmp_path_factory.mktemp("namesrv"))
    running.start()
    yield running
    running.end()


@pytest.fixture(scope="module")
def late_name_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NameServer]:
    """Another one that the brokers are to join, and that is not there yet."""
    later = NameServer(tmp_path_factory.mktemp("late"))
    yield later
    later.end()


@pytest.fixture
def east_and_west(
    name_server: NameServer, late_name_server: NameServer, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[list[Broker]]:
    brokers = []
    both = f"{name_server.address};{late_name_server.address}"
    for name in ("east", "west"):
        settings = {"rocketmq.join_namesrv": both, "rocketmq.broker": name, "topics.auto_create": False}
        brokers.append(Broker(tmp_path_factory.mktemp(name) / "data", settings).start())
    eventually("both are registered", name_server.brokers, lambda names: names >= {"east", "west"}, WITHIN_S)
    yield brokers
    for broker in brokers:
        broker.delete()


def test_routes_come_and_go_with_topics_and_brokers(name_server: NameServer, east_and_west: list[Broker]) -> None:
    east, west = east_and_west
    topic = f"fleet-{next(_numbers)}"
    remoting.create_topic(east.rocketmq, topic, 3)
    create_topic(west.kafka, topic, 2)
    expect(name_server, topic, {"east": (3, 6), "west": (2, 6)})
    assert name_server.route("TBW102") == {}, "without topics.auto_create producers of new topics go elsewhere"
    assert remoting.ask(west.rocketmq, DELETE_TOPIC, {"topic": topic}).code == 0
    eventually(
        "nobody is to use the deleted one",
        lambda: name_server.route(topic),
        lambda route: route["east"] == (3, 6) and route["west"][1] == 0,
        WITHIN_S,
    )
    west.stop()
    expect(name_server, topic, {"east": (3, 6)})
    assert "west" not in name_server.brokers()
    east.kill()
    expect(name_server, topic, {})


def test_a_name_server_that_starts_late_or_again_gets_all_routes(
    name_server: NameServer, late_name_server: NameServer, east_and_west: list[Broker]
) -> None:
    east, _ = east_and_west
    topic = f"fleet-{next(_numbers)}"
    remoting.create_topic(east.rocketmq, topic, 1)
    expect(name_server, topic, {"east": (1, 6)})
    name_server.end()
    name_server.start()
    late_name_server.start()
    for each in (name_server, late_name_server):
        expect(each, topic, {"east": (1, 6)})
    east.check_alive()


def expect(name_server: NameServer, topic: str, route: dict[str, tuple[int, int]]) -> None:
    eventually(
        f"the route of {topic} is {route}", lambda: name_server.route(topic), lambda seen: seen == route, WITHIN_S
    )


def test_clients_go_on_with_the_other_broker(
    name_server: NameServer, east_and_west: list[Broker], agents: Agents
) -> None:
    _, west = east_and_west
    java, topic = agents.rocketmq("5.5"), f"fleet-{next(_numbers)}"
    for broker in east_and_west:
        remoting.create_topic(broker.rocketmq, topic, 2)
    expect(name_server, topic, {"east": (2, 6), "west": (2, 6)})
    java.call("open", name=topic, namesrv=name_server.address, topics={topic: 0}, group=topic)
    seen: set[str] = set()

    def drain() -> set[str]:
        seen.update(base64.b64decode(each["head"]).decode() for each in java.call("seen", name=topic)["seen"])
        return seen

    def send(texts: list[str]) -> None:
        messages: list[Any] = [Message(text.encode(), -1).as_rocketmq_json() for text in texts]
        java.call("write", namesrv=name_server.address, topic=topic, how="sync", messages=messages)

    def expect_seen(texts: set[str]) -> None:
        eventually("the consumer has all", drain, lambda found: found >= texts, WITHIN_S)

    before = [f"before-{n}" for n in range(40)]
    send(before)
    for broker in east_and_west:
        assert ends(broker, topic) > 0, "both brokers serve the topic"
    expect_seen(set(before))
    west.kill()
    after = [f"after-{n}" for n in range(40)]
    send(after)  # Each is tried again with the other broker, if need be.
    expect_seen({*before, *after})
    west.start()
    eventually("it is back", name_server.brokers, lambda names: "west" in names, WITHIN_S)
    java.call("close", name=topic)


def ends(broker: Broker, topic: str) -> int:
    """How many messages a broker has of the topic."""
    fields = [{"topic": topic, "queueId": queue} for queue in range(2)]
    return sum(int(remoting.ask(broker.rocketmq, 30, each).fields["offset"]) for each in fields)
