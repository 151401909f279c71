"""What is not there yet is refused in each protocol's own words; nothing that asks for a delay is delivered at once."""

from __future__ import annotations

import itertools
import time
from typing import Any

import pytest

from tests.kit.broker import Broker
from tests.wire.clients.jvm import AgentError, Agents
from tests.wire.clients.kafka_clients import Confluent, KafkaJava
from tests.wire.clients.message import Message
from tests.wire.clients.rocketmq_clients import RocketmqJava
from tests.wire.clients.topics import create_topic, end_offsets

pytestmark = pytest.mark.usefixtures("both_families")
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


@pytest.mark.parametrize("header", ["TIMER_DELIVER_MS", "TIMER_DELAY_MS", "TIMER_DELAY_SEC"])
@pytest.mark.parametrize("codec", ["none", "zstd"])
def test_delay_asked_for_by_a_kafka_header(broker: Broker, agents: Agents, topic: str, header: str, codec: str) -> None:
    messages = [Message(b"at once"), Message(b"later", headers=((header, b"9999999999999"),))]
    java = KafkaJava(broker.kafka, agents.kafka("4.3"), "4.3")
    with pytest.raises(AgentError, match="delayed messages are not supported"):
        java.write(topic, messages, way="batch", codec=codec)
    expect_nothing_else(broker, topic)


@pytest.mark.parametrize("version", ["5.5", "4.9"])
def test_delay_asked_for_by_a_rocketmq_level(broker: Broker, agents: Agents, topic: str, version: str) -> None:
    delayed: dict[str, Any] = Message(b"later").as_rocketmq_json() | {"delay_level": 3}
    with pytest.raises(AgentError, match="delayed messages are not supported"):
        agents.rocketmq(version).call("write", namesrv=broker.namesrv, topic=topic, how="sync", messages=[delayed])
    expect_nothing_else(broker, topic)


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
