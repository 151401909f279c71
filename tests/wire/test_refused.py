"""Requests that are not supported are refused with the errors of each protocol."""

from __future__ import annotations

import itertools
import time

import pytest

from tests.kit.broker import Broker
from tests.wire.clients.agent import AgentError
from tests.wire.clients.jvm import Agents
from tests.wire.clients.kafka_clients import Confluent, KafkaJava
from tests.wire.clients.message import Message
from tests.wire.clients.rocketmq_clients import RocketmqJava
from tests.wire.clients.topics import create_topic, end_offsets

pytestmark = pytest.mark.usefixtures("both_protocols")
_numbers = itertools.count(int(time.time()))


@pytest.fixture
def topic(broker: Broker) -> str:
    name = f"refused-{next(_numbers)}"
    create_topic(broker.kafka, name, 1)
    return name


def expect_nothing_else(broker: Broker, topic: str) -> None:
    """Write one more message, and see that it is all there is."""
    Confluent(broker.kafka).write(topic, [Message(b"the only one")], way="single", codec="none")
    assert end_offsets(broker.kafka, topic) == {0: 1}


def test_message_over_the_limit(broker: Broker, agents: Agents, topic: str) -> None:
    kafka = KafkaJava(broker.kafka, agents.kafka("4.3"), "4.3")
    rocketmq = RocketmqJava(broker.namesrv, agents.rocketmq("5.5"), "5.5", "json")
    with pytest.raises(AssertionError, match="MSG_SIZE_TOO_LARGE"):
        Confluent(broker.kafka).write(topic, [Message(bytes(6 << 20))], way="single", codec="none")
    with pytest.raises(AgentError, match="RecordTooLargeException"):
        kafka.write(topic, [Message(bytes(6 << 20))], way="single", codec="none")
    with pytest.raises(AgentError, match="the message body size over max value"):
        rocketmq.write(topic, [Message(bytes((4 << 20) + 1))], way="sync", codec="none")
    expect_nothing_else(broker, topic)
