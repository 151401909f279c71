"""RocketMQ's stock clients while routes name a standby of a shared log: it sends half of the messages on to the owner.

The queues that a route gives to the standby get as many messages as those of the owner. RocketMQ's tools are run, too.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import confluent_kafka
import pytest

from tests.kit.environment import set_environment
from tests.kit.object_servers import moto
from tests.wire.clients.agent import Agent
from tests.wire.clients.golang import go_agent
from tests.wire.clients.jvm import Agents
from tests.wire.clients.message import Message
from tests.wire.clients.remoting import ask
from tests.wire.clients.rocketmq_clients import RocketmqJava, RocketmqReader
from tests.wire.clients.shared_pair import BUCKET, Pair
from tests.wire.clients.topics import create_topic
from tests.wire.test_admin_tools import CASES, check_subcommand, open_shop

pytestmark = [pytest.mark.usefixtures("duolog_only")]

QUEUES = 4
COUNT = 80
WITHIN_S = 40.0
SEND_MESSAGE, PULL_MESSAGE = 10, 11
SERVICE_NOT_AVAILABLE = 14
STANDBY = 1  # Its number.
_numbers = itertools.count()


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    with moto() as store, pytest.MonkeyPatch.context() as patch:
        store.make_bucket(BUCKET)
        set_environment(patch, store.environment)
        running = Pair(tmp_path_factory.mktemp("pair"), store, {"store.flush": "shared"}, is_proxied=False)
        create_topic(running.bootstrap, "first", QUEUES)
        running.wait_until_named("first")
        yield running
        running.close()


@pytest.fixture
def topic(pair: Pair) -> str:
    name = f"orders-{next(_numbers)}"
    create_topic(pair.bootstrap, name, QUEUES)
    pair.wait_until_named(name)
    return name


def stored(pair: Pair, topic: str, count: int) -> dict[tuple[int, int], str]:
    """Return the body at each queue and offset."""
    consumer = confluent_kafka.Consumer({"bootstrap.servers": pair.bootstrap, "group.id": "unused"})
    consumer.assign([confluent_kafka.TopicPartition(topic, queue, 0) for queue in range(QUEUES)])
    found: dict[tuple[int, int], str] = {}
    while len(found) < count and (records := consumer.consume(count, timeout=WITHIN_S)):
        for each in records:
            value, queue, offset = each.value(), each.partition(), each.offset()
            assert value is not None
            assert queue is not None
            assert offset is not None
            found[queue, offset] = value.decode()
    assert not consumer.consume(1, timeout=0.5), "more than was sent"
    consumer.close()
    return found


def test_a_standby_answers_a_send_with_its_place_and_does_not_serve_pulls(pair: Pair, topic: str) -> None:
    fields = {
        "producerGroup": "shop", "topic": topic, "defaultTopic": "TBW102", "defaultTopicQueueNums": 4, "queueId": 1,
        "sysFlag": 0, "bornTimestamp": 0, "flag": 0,
    }  # fmt: skip
    for offset in range(3):
        reply = ask(pair.standby.rocketmq, SEND_MESSAGE, fields, b"body %d" % offset)
        assert (reply.code, reply.fields["queueId"], reply.fields["queueOffset"]) == (0, "1", str(offset))
    assert stored(pair, topic, 3) == {(1, offset): f"body {offset}" for offset in range(3)}
    assert ask(pair.standby.rocketmq, PULL_MESSAGE).code == SERVICE_NOT_AVAILABLE


@pytest.mark.parametrize(
    ("version", "header", "way"),
    [("5.5", "json", "sync"), ("5.5", "binary", "async"), ("4.9", "json", "sync"), ("4.9", "json", "batch")],
)
def test_all_messages_of_javas_producers_are_there_once_at_their_offsets(
    pair: Pair, topic: str, agents: Agents, version: str, header: str, way: str
) -> None:
    agent = agents.rocketmq(version, header)
    messages = [Message(b"%d" % number, -1) for number in range(COUNT)]
    places = RocketmqJava(pair.namesrv, agent, version, header).write(topic, messages, way=way, codec="none")
    expected = {place: str(number) for number, place in enumerate(places)}
    assert len(expected) == COUNT, "two messages have one place"
    assert stored(pair, topic, COUNT) == expected
    per_queue = Counter(queue for queue, _ in places)
    assert way == "batch" or max(per_queue.values()) - min(per_queue.values()) <= QUEUES, "queues are preferred"
    seen = RocketmqReader(pair.namesrv, agent, version, header, "push").read({topic: COUNT}, WITHIN_S)
    assert sorted(int(each.text) for each in seen) == [*range(COUNT)]


def test_all_messages_of_gos_producer_are_there_once_at_their_offsets(pair: Pair, topic: str) -> None:
    agent: Agent = go_agent()
    try:
        bodies = [str(number) for number in range(COUNT)]
        places = agent.call("send", namesrv=pair.owner.namesrv, topic=topic, bodies=bodies)
        assert len({(queue, offset) for queue, offset, *_ in places}) == COUNT
        assert stored(pair, topic, COUNT) == {
            (queue, offset): body for (queue, offset, *_), body in zip(places, bodies, strict=True)
        }
    finally:
        agent.close()


PRINT_A_BROKER: Final = {"sendMessage", "checkMsgSendRT"}  # They print the name to which they happened to send.


def test_tools_that_ask_the_brokers_of_a_route_say_what_they_say_without_a_standby(
    pair: Pair, agents: Agents, tmp_path: Path
) -> None:
    with open_shop(pair.owner, agents, tmp_path) as shop:
        assert f"-standby-{STANDBY}" in shop.run("topicRoute -t {topic}")
        for line, expected in CASES:
            if line.split()[0] not in PRINT_A_BROKER:
                check_subcommand(shop, line, expected)
