"""The broker filters for stock RocketMQ consumers, by tags and by SQL92, messages of clients of both protocols.

An expression that it cannot read is refused with the place of the fault.
"""

from __future__ import annotations

import base64
import itertools
import time
from typing import Any

import pytest

from tests.kit.broker import Broker
from tests.kit.eventually import eventually
from tests.wire.clients import frames, remoting
from tests.wire.clients.agent import Agent, AgentError
from tests.wire.clients.jvm import Agents
from tests.wire.clients.kafka_clients import Confluent
from tests.wire.clients.message import Message
from tests.wire.clients.rocketmq_clients import RocketmqJava
from tests.wire.clients.topics import create_topic

pytestmark = pytest.mark.usefixtures("both_protocols")

PULL_MESSAGE = 11
NOT_FOUND, AGAIN = 19, 20
_numbers = itertools.count(int(time.time()))

COUNT = 200  # of each writer
# A consumer pulls by SQL92 only from a broker whose version it knows, which is in the answer to a heartbeat; should its
# first one fail, the next comes after 30 s.
WITHIN_S = 90
TAGS = ("red", "green", "blue")


@pytest.fixture(scope="module")
def topic(broker: Broker, agents: Agents) -> str:
    """A topic with COUNT messages of each protocol; number n has the tag n % 3 and the property `n`."""
    name = f"filtered-{next(_numbers)}"
    create_topic(broker.kafka, name, 1)
    messages = [
        Message(b"%d" % n, tags=TAGS[n % 3], headers=(("n", b"%d" % n), ("odd", b"true" if n % 2 else b"false")))
        for n in range(COUNT)
    ]
    java = RocketmqJava(broker.namesrv, agents.rocketmq("5.5"), "5.5", "json")
    java.write(name, messages[: COUNT // 2], way="sync", codec="none")
    Confluent(broker.kafka).write(name, messages, way="batch", codec="zstd")
    java.write(name, messages[COUNT // 2 :], way="batch", codec="none")
    return name


@pytest.fixture(params=["5.5", "4.9"])
def java(request: pytest.FixtureRequest, agents: Agents) -> Agent:
    return agents.rocketmq(request.param)


def consumed(broker: Broker, java: Agent, topic: str, count: int, **subscription: str) -> list[int]:
    """What a fresh group of one push consumer is given, until it is `count` messages and the consumer is closed."""
    name = f"filter-{next(_numbers)}"
    seen: list[dict[str, Any]] = []

    def drain() -> int:
        seen.extend(java.call("seen", name=name)["seen"])
        return len(seen)

    java.call("open", name=name, namesrv=broker.namesrv, topics={topic: 0}, group=name, **subscription)
    try:
        eventually(f"{count} messages of {subscription}", drain, lambda found: found >= count, WITHIN_S)
    finally:
        seen += java.call("close", name=name)["seen"]
    return sorted(int(base64.b64decode(each["head"])) for each in seen)


def twice(*numbers: int) -> list[int]:
    """Clients of both protocols wrote each message."""
    return sorted([*numbers, *numbers])


def test_by_tags(broker: Broker, java: Agent, topic: str) -> None:
    expected = twice(*[n for n in range(COUNT) if n % 3 != 1])
    assert consumed(broker, java, topic, len(expected), expression="red || blue") == expected


@pytest.mark.parametrize(
    ("sql", "wanted"),
    [
        ("n BETWEEN 10 AND 20 OR n = 150", [*range(10, 21), 150]),
        ("TAGS IN ('red', 'green') AND odd = TRUE AND n >= 190", [n for n in range(190, 200) if n % 3 != 2 and n % 2]),
        ("nowhere IS NULL AND NOT (n > 2.5) AND n IS NOT NULL", [0, 1, 2]),
    ],
)
def test_by_sql(broker: Broker, java: Agent, topic: str, sql: str, wanted: list[int]) -> None:
    assert consumed(broker, java, topic, 2 * len(wanted), sql=sql) == twice(*wanted)


def test_consumer_with_an_invalid_filter_fails_at_its_start(broker: Broker, java: Agent, topic: str) -> None:
    with pytest.raises(AgentError, match=r"SQL92 expression, character 5: unexpected '>'"):
        java.call("open", name="wrong", namesrv=broker.namesrv, topics={topic: 0}, group="wrong", sql="n > > 5")


def test_pull_over_what_is_not_wanted_moves_on(broker: Broker, topic: str) -> None:
    """Few answers pass over all messages, each saying where to go on; at the end the pull would be held."""
    fields = frames.pull_fields(topic, subscription="nobody", maxMsgNums=32, suspendTimeoutMillis=100)
    offset, answers = 0, 0
    while (reply := remoting.ask(broker.rocketmq, PULL_MESSAGE, fields | {"queueOffset": offset})).code == AGAIN:
        assert int(reply.fields["nextBeginOffset"]) > offset
        offset, answers = int(reply.fields["nextBeginOffset"]), answers + 1
    assert (reply.code, offset, answers < 5) == (NOT_FOUND, 2 * COUNT, True)
