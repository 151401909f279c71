"""Messages that expire, with stock clients: the messages that consumers get, and one dead letter for each other one.

What has expired is sent expired, or its topic's life time is over long before anybody asks for it: nothing here depends
on how fast the machine is.
"""

from __future__ import annotations

import itertools
import json
import random
import struct
import time
import urllib.request
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import confluent_kafka.admin
import pytest

from duolog.protocol.names import kafka_name
from tests.kit.broker import Broker
from tests.kit.eventually import eventually
from tests.wire.clients import remoting
from tests.wire.clients.agent import Agent, AgentError
from tests.wire.clients.jvm import Agents
from tests.wire.clients.kafka_clients import Confluent
from tests.wire.clients.members import PushMember
from tests.wire.clients.message import Message, Seen
from tests.wire.clients.rocketmq_clients import RocketmqJava
from tests.wire.clients.topics import create_topic, end_offsets

pytestmark = pytest.mark.usefixtures("both_protocols")

WITHIN_S = 60.0
PULL_MESSAGE, SET_REQUEST_MODE = 11, 401
PULL_RETRY_IMMEDIATELY = 20
PAST = (("EXPIRE_AT_MS", b"1700000000000"),)
HOURS = (("EXPIRE_AFTER_MS", b"36000000"),)
_numbers = itertools.count(int(time.time()))


@pytest.fixture
def rocket(agents: Agents) -> Agent:
    return agents.rocketmq("5.5")


def fresh(what: str) -> str:
    return f"{what}-{next(_numbers)}"


def configure(broker: Broker, topic: str, **configs: str) -> None:
    admin = confluent_kafka.admin.AdminClient({"bootstrap.servers": broker.kafka, "log_level": 0})
    set_to = confluent_kafka.admin.AlterConfigOpType.SET
    entries = [
        confluent_kafka.admin.ConfigEntry(name.replace("_", "."), value, incremental_operation=set_to)
        for name, value in configs.items()
    ]
    resource = confluent_kafka.admin.ConfigResource("topic", topic, incremental_configs=entries)
    admin.incremental_alter_configs([resource])[resource].result(WITHIN_S)


def write_both(broker: Broker, rocket: Agent, topic: str) -> None:
    """Clients of each protocol send an expired message between two live ones to each queue."""
    sent = [("first", ()), ("late", PAST), ("last", HOURS)]
    for queue in (0, 1):
        kafka = [Message(f"kafka {text}".encode(), queue, headers=headers) for text, headers in sent]
        Confluent(broker.kafka).write(topic, kafka, way="batch", codec="zstd" if queue else "none")
        mine = [Message(f"rocketmq {text}".encode(), queue, headers=headers) for text, headers in sent]
        RocketmqJava(broker.namesrv, rocket, "5.5", "json").write(topic, mine, way="sync", codec="none")


def dead_letters(broker: Broker, group: str, count: int) -> list[Seen]:
    topic = kafka_name(f"%DLQ%{group}")
    find = confluent_kafka.Consumer({"bootstrap.servers": broker.kafka, "group.id": "x", "log_level": 0})
    try:
        eventually(
            "dead letters", lambda: find.list_topics(topic, timeout=10).topics[topic].error,
            lambda error: error is None, WITHIN_S,
        )  # fmt: skip
    finally:
        find.close()
    seen = Confluent(broker.kafka).read({topic: count}, WITHIN_S)
    assert end_offsets(broker.kafka, topic) == {0: count}
    return seen


@pytest.mark.parametrize("mode", ["PULL", "POP"])
def test_group_is_given_what_lives_and_has_the_rest_among_its_dead_letters(
    broker: Broker, rocket: Agent, mode: str
) -> None:
    topic, group = fresh("life"), fresh("group")
    create_topic(broker.kafka, topic, 2)
    body = {"topic": topic, "consumerGroup": group, "mode": mode, "popShareQueueNum": 0}
    assert remoting.ask(broker.rocketmq, SET_REQUEST_MODE, body=json.dumps(body).encode()).code == 0
    write_both(broker, rocket, topic)
    with PushMember(rocket, broker.namesrv, group, [topic], assigned=True) as member:
        found = member.await_texts(8, WITHIN_S)
        assert Counter(found) == {f"{who} {text}": 2 for who in ("kafka", "rocketmq") for text in ("first", "last")}
        letters = dead_letters(broker, group, 4)
        assert len(member.texts) == 8
    assert Counter(each.text for each in letters) == {"kafka late": 2, "rocketmq late": 2}
    for letter in letters:
        headers = dict(letter.headers)
        assert (headers["DEAD_LETTER_REASON"], headers["EXPIRED_AT_MS"]) == (b"expired", PAST[0][1])
    whole = Confluent(broker.kafka).read({topic: 12}, WITHIN_S)
    assert sum(("EXPIRE_AT_MS", PAST[0][1]) in each.headers for each in whole) == 4, "Kafka's readers get all"


def test_orderly_and_broadcast_groups(broker: Broker, rocket: Agent) -> None:
    topic, orderly, broadcast = fresh("life"), fresh("orderly"), fresh("broadcast")
    create_topic(broker.kafka, topic, 2)
    write_both(broker, rocket, topic)
    with PushMember(rocket, broker.namesrv, orderly, [topic], orderly=True) as member:
        assert len(member.await_texts(8, WITHIN_S)) == 8
    with (
        PushMember(rocket, broker.namesrv, broadcast, [topic], broadcast=True) as one,
        PushMember(rocket, broker.namesrv, broadcast, [topic], broadcast=True) as two,
    ):
        assert [len(member.await_texts(8, WITHIN_S)) for member in (one, two)] == [8, 8]
    for group in (orderly, broadcast):
        assert len(dead_letters(broker, group, 4)) == 4


def test_topic_says_how_long_and_what_then(broker: Broker, rocket: Agent) -> None:
    topic, group = fresh("life"), fresh("group")
    create_topic(broker.kafka, topic, 1)
    Confluent(broker.kafka).write(topic, [Message(b"old", 0)], way="single", codec="none")
    configure(broker, topic, message_ttl_ms="1", message_expired="drop")
    time.sleep(0.05)
    with PushMember(rocket, broker.namesrv, group, [topic]) as member:
        assert _passed(broker, group, topic) == 1
        configure(broker, topic, message_ttl_ms="-1")
        Confluent(broker.kafka).write(topic, [Message(b"new", 0)], way="single", codec="none")
        assert member.await_texts(1, WITHIN_S) == ["new"]
    with pytest.raises(confluent_kafka.KafkaException, match="allowed are 1 to"):
        configure(broker, topic, message_ttl_ms="0")
    mine = [Message(b"x", 0, headers=(("EXPIRE_AFTER_MS", b"soon"),))]
    with pytest.raises(AgentError, match="EXPIRE_AFTER_MS"):
        RocketmqJava(broker.namesrv, rocket, "5.5", "json").write(topic, mine, way="sync", codec="none")


def _passed(broker: Broker, group: str, topic: str) -> int:
    """Wait until the group has the first message of a topic behind it."""

    def position() -> int:
        with urllib.request.urlopen(f"http://{broker.http}/api/groups/{group}", timeout=10) as answer:
            found = json.load(answer)["positions"]
        return max((each["position"] or 0 for each in found if each["topic"] == topic), default=0)

    return eventually("position", position, lambda at: at > 0, WITHIN_S)


def test_killed_broker_buries_each_once(tmp_path: Path) -> None:
    killed_among_expired(tmp_path, kills=2)


@pytest.mark.soak
def test_broker_killed_thirty_times_buries_each_once(tmp_path: Path) -> None:
    killed_among_expired(tmp_path, kills=30)


def killed_among_expired(tmp_path: Path, kills: int) -> None:
    """Kill the broker while members of two groups read expired messages: each message becomes a dead letter once."""
    count, rng, topic = 500 * kills, random.Random(kills), "kills"
    groups = fresh("one"), fresh("two")
    with Broker(tmp_path / "data") as broker:
        create_topic(broker.kafka, topic, 1)
        sent = [Message(b"%d" % number, 0, headers=PAST) for number in range(count)]
        Confluent(broker.kafka).write(topic, sent, way="batch", codec="none")
        with ThreadPoolExecutor(len(groups)) as members:
            for is_last in (*[False] * kills, True):
                asked = [members.submit(go_through, broker.rocketmq, group, topic, count) for group in groups]
                if not is_last:
                    time.sleep(rng.random() * 0.3)
                    broker.kill()
                went = [each.result(WITHIN_S) for each in asked]
                if not is_last:
                    broker.start()
        assert went == [count, count]
        for group in groups:
            letters = dead_letters(broker, group, count)
            assert Counter(each.text for each in letters) == {str(number): 1 for number in range(count)}


def go_through(rocketmq: str, group: str, topic: str, count: int) -> int:
    """Pull from the beginning to the end, or until the broker has ended; return the next offset."""
    offset = 0
    request = {
        "consumerGroup": group, "topic": topic, "queueId": 0, "maxMsgNums": 32, "sysFlag": 4, "commitOffset": 0,
        "suspendTimeoutMillis": 0, "subVersion": 0, "subscription": "*", "expressionType": "TAG",
    }  # fmt: skip
    with suppress(OSError, struct.error):
        while offset < count:
            answer = remoting.ask(rocketmq, PULL_MESSAGE, {**request, "queueOffset": offset})
            assert answer.code == PULL_RETRY_IMMEDIATELY, answer.remark
            offset = int(answer.fields["nextBeginOffset"])
    return offset
