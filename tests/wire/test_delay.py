"""Delayed messages with stock clients: each way in, in order, never early, at the real topic; recalls; kills.

Order, content and outcomes are asserted, and that nothing is early on the broker's clock; how late something is depends
on the machine, so nothing here asks that.
"""

from __future__ import annotations

import base64
import itertools
import random
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import confluent_kafka
import confluent_kafka.admin
import pytest

from tests.kit.broker import Broker
from tests.wire.clients.agent import AgentError
from tests.wire.clients.jvm import Agents
from tests.wire.clients.kafka_clients import AioKafka, Confluent, KafkaJava, KafkaPython
from tests.wire.clients.message import Message, Seen
from tests.wire.clients.roles import Writer
from tests.wire.clients.topics import create_topic, end_offsets

pytestmark = pytest.mark.usefixtures("both_protocols")
BROKER_SETTINGS = {"delay.levels": "3s 5s 6s"}
WITHIN_S = 60
_numbers = itertools.count(int(time.time()))


@pytest.fixture
def topic(broker: Broker) -> str:
    name = f"delay-{next(_numbers)}"
    create_topic(broker.kafka, name, 1)
    return name


def now_ms() -> int:
    return int(time.time() * 1000)


def delayed(text: str, **delay: int) -> dict[str, Any]:
    """Return a message for the Java agent; `delay` is named as its setter."""
    return Message(text.encode(), 0).as_rocketmq_json() | delay


def send(broker: Broker, agents: Agents, topic: str, *messages: dict[str, Any]) -> list[tuple[str, str]]:
    """Send with RocketMQ 5.5; gives (msgId, recall handle) for each."""
    sent = agents.rocketmq("5.5").call("write_delayed", namesrv=broker.namesrv, topic=topic, messages=[*messages])
    return [(each[0], each[1]) for each in sent]


def read(broker: Broker, topic: str, count: int) -> list[Seen]:
    return Confluent(broker.kafka).read({topic: count}, WITHIN_S)


def texts(seen: list[Seen]) -> list[str]:
    return [each.text for each in sorted(seen, key=lambda each: each.offset)]


# -- RocketMQ


def test_levels_and_times_of_one_choice_come_in_due_order(broker: Broker, agents: Agents, topic: str) -> None:
    send(broker, agents, topic, delayed("first"))
    start_ms = now_ms()
    sent = send(
        broker,
        agents,
        topic,
        delayed("level 3", delay_level=3),
        delayed("at 4000", setDeliverTimeMs=start_ms + 4000),
        delayed("above all levels", delay_level=18),
        delayed("level 1", delay_level=1),
        delayed("in 2000", setDelayTimeMs=2000),
        delayed("in the past", setDeliverTimeMs=start_ms - 5000),
        delayed("at once"),
    )
    assert [bool(handle) for _, handle in sent] == [False, True, False, False, True, False, False]
    found = texts(read(broker, topic, 8))
    assert found == [
        "first", "in the past", "at once", "in 2000", "level 1", "at 4000", "level 3", "above all levels",
    ]  # fmt: skip


def test_delayed_message_reaches_a_push_consumer_as_it_was_sent(broker: Broker, agents: Agents, topic: str) -> None:
    due_ms = now_ms() + 3000
    one = Message(b"later", 0, b"k1 k2", (("city", b"Bern"),), tags="paid").as_rocketmq_json()
    ((message_id, _),) = send(broker, agents, topic, one | {"setDeliverTimeMs": due_ms})
    (seen,) = agents.rocketmq("5.5").call(
        "read_push", namesrv=broker.namesrv, topics={topic: 1}, timeout_ms=WITHIN_S * 1000
    )
    properties = seen["properties"]
    assert (seen["topic"], seen["queue"], seen["offset"]) == (topic, 0, 0)
    assert properties["KEYS"] == "k1 k2"
    assert (properties["TAGS"], properties["city"], properties["UNIQ_KEY"]) == ("paid", "Bern", message_id)
    assert properties["TIMER_DELIVER_MS"] == str(due_ms)
    assert "REAL_TOPIC" not in properties
    assert int(properties["TIMER_DEQUEUE_MS"]) >= due_ms
    assert due_ms <= seen["store_ms"]


@pytest.mark.parametrize("version", ["5.5", "4.9"])
def test_level_with_either_client(broker: Broker, agents: Agents, topic: str, version: str) -> None:
    agents.rocketmq(version).call(
        "write", namesrv=broker.namesrv, topic=topic, how="sync", messages=[delayed("level", delay_level=1)]
    )
    assert end_offsets(broker.kafka, topic) == {0: 0}
    assert texts(read(broker, topic, 1)) == ["level"]


def test_recalled_message_is_never_delivered(broker: Broker, agents: Agents, topic: str) -> None:
    start_ms = now_ms()
    sent = send(
        broker,
        agents,
        topic,
        delayed("recalled", setDeliverTimeMs=start_ms + 5000),
        delayed("kept", setDeliverTimeMs=start_ms + 5001),
    )
    agent = agents.rocketmq("5.5")
    for _ in range(2):  # A repeated request gets the same answer.
        assert agent.call("recall", namesrv=broker.namesrv, topic=topic, handle=sent[0][1]) == sent[0][0]
    assert texts(read(broker, topic, 1)) == ["kept"]
    with pytest.raises(AgentError, match="delivered already"):
        agent.call("recall", namesrv=broker.namesrv, topic=topic, handle=sent[1][1])
    assert end_offsets(broker.kafka, topic) == {0: 1}


def test_what_lies_too_far_or_is_no_number_is_refused(broker: Broker, agents: Agents, topic: str) -> None:
    with pytest.raises(AgentError, match=r"delay\.max_days is 3650"):
        send(broker, agents, topic, delayed("never", setDeliverTimeMs=now_ms() + 3651 * 86_400_000))
    producer = confluent_kafka.Producer({"bootstrap.servers": broker.kafka, "log_level": 0})
    errors: list[Any] = []
    for value in (b"soon", b"\x01\x02"):
        producer.produce(
            topic, b"x", headers=[("TIMER_DELAY_MS", value)], on_delivery=lambda error, _: errors.append(error)
        )
        producer.flush(WITHIN_S)
    assert [error.name() for error in errors] == ["INVALID_RECORD", "INVALID_RECORD"]
    assert end_offsets(broker.kafka, topic) == {0: 0}


def test_system_topics_show_what_waits(broker: Broker, agents: Agents, topic: str) -> None:
    before = end_offsets(broker.kafka, "rmq_sys_wheel_timer")[0]
    send(broker, agents, topic, delayed("later", setDelayTimeMs=600_000))
    after = end_offsets(broker.kafka, "rmq_sys_wheel_timer")[0]
    assert after == before + 1


# -- Kafka


def kafka_writers(broker: Broker, agents: Agents) -> list[Writer]:
    java = KafkaJava(broker.kafka, agents.kafka("4.3"), "4.3")
    return [KafkaPython(broker.kafka), AioKafka(broker.kafka), Confluent(broker.kafka), java]


@pytest.mark.parametrize("codec", ["none", "zstd"])
def test_each_kafka_client_asks_by_a_header_in_its_batches(broker: Broker, agents: Agents, codec: str) -> None:
    """Idempotent where the client is so by default: a batch that is parted does not break its sequence."""
    writers = kafka_writers(broker, agents)
    topics = [f"delay-{next(_numbers)}" for _ in writers]
    for each in topics:
        create_topic(broker.kafka, each, 1)
    due_ms = now_ms() + 6_000
    at = str(due_ms).encode(), due_ms.to_bytes(8, "big")
    messages = [
        Message(b"third", headers=(("TIMER_DELIVER_MS", at[0]), ("city", b"Bern")), key=b"k"),
        Message(b"first" * 50),
        Message(b"fourth", headers=(("TIMER_DELIVER_MS", at[1]),)),
        Message(b"second" * 50),
    ]
    for writer, topic in zip(writers, topics, strict=True):
        writer.write(topic, messages, way="batch", codec=codec)
        writer.write(topic, [Message(b"next")], way="batch", codec=codec)
    for topic in topics:
        expect_order(read(broker, topic, 5), messages, due_ms)


def expect_order(seen: list[Seen], messages: list[Message], due_ms: int) -> None:
    seen = sorted(seen, key=lambda each: each.offset)
    assert [each.text[:6] for each in seen] == ["firstf", "second", "next", "third", "fourth"]
    third, fourth = seen[3:]
    assert (third.key, third.timestamp_ms, fourth.timestamp_ms) == (b"k", due_ms, due_ms)
    assert third.headers[:2] == messages[0].headers
    name, born = third.headers[2]
    assert name == "__BORN_TIMESTAMP"
    assert due_ms - 60_000 < int(born or b"") <= due_ms


def test_delayed_kafka_record_reaches_a_rocketmq_consumer(broker: Broker, agents: Agents, topic: str) -> None:
    one = Message(b"later", 0, b"key", (("city", b"Bern"), ("TIMER_DELAY_MS", b"1500")), tags="paid")
    Confluent(broker.kafka).write(topic, [one], way="single", codec="none")
    (seen,) = agents.rocketmq("5.5").call(
        "read_push", namesrv=broker.namesrv, topics={topic: 1}, timeout_ms=WITHIN_S * 1000
    )
    properties = seen["properties"]
    assert (properties["KEYS"], properties["TAGS"], properties["city"]) == ("key", "paid", "Bern")
    assert seen["born_ms"] <= seen["store_ms"]


def test_topic_may_take_the_header_for_a_header(broker: Broker, topic: str) -> None:
    admin = confluent_kafka.admin.AdminClient({"bootstrap.servers": broker.kafka, "log_level": 0})
    set_to = confluent_kafka.admin.AlterConfigOpType.SET
    entry = confluent_kafka.admin.ConfigEntry("delay.headers", "false", incremental_operation=set_to)
    resource = confluent_kafka.admin.ConfigResource("topic", topic, incremental_configs=[entry])
    admin.incremental_alter_configs([resource])[resource].result(WITHIN_S)
    one = Message(b"at once", headers=(("TIMER_DELAY_SEC", b"600"),))
    assert Confluent(broker.kafka).write(topic, [one], way="single", codec="none") == [(0, 0)]


# -- Kills


def test_killed_broker_delivers_each_message_once_and_none_early(tmp_path: Path, agents: Agents) -> None:
    killed_again_and_again(tmp_path, agents, kills=3)


@pytest.mark.soak
def test_broker_killed_fifty_times_delivers_each_message_once_and_none_early(tmp_path: Path, agents: Agents) -> None:
    killed_again_and_again(tmp_path, agents, kills=50)


def killed_again_and_again(tmp_path: Path, agents: Agents, kills: int) -> None:
    """Kill while clients of both protocols send messages for the next seconds; each has its due time in its body.

    What is due in more than a third of a second goes to a sorted table, and comes back.
    """
    rng = random.Random(kills)
    sent: list[str] = []
    recalled: set[str] = set()

    def delivered(text: str) -> Callable[[confluent_kafka.KafkaError | None, object], None]:
        return lambda error, _: sent.append(text) if error is None else None

    data, had_tables = tmp_path / "data", 0
    with Broker(data, {"delay.near_ms": 300}) as broker:
        create_topic(broker.kafka, "kills", 1)
        for round_number in range(kills):
            confluent = confluent_kafka.Producer(
                {"bootstrap.servers": broker.kafka, "enable.idempotence": True, "linger.ms": 1, "log_level": 0}
            )
            for number in range(150):
                due_ms = now_ms() + rng.randrange(50, 3_000)
                text = f"kafka {round_number} {number} {due_ms}"
                header = ("TIMER_DELIVER_MS", str(due_ms).encode())
                confluent.produce("kills", text, partition=0, headers=[header], on_delivery=delivered(text))
            assert confluent.flush(WITHIN_S) == 0
            texts = [f"rocketmq {round_number} {number} {now_ms() + 2_500}" for number in range(20)]
            batch = [delayed(text, setDeliverTimeMs=int(text.split()[-1])) for text in texts]
            handles = [handle for _, handle in send(broker, agents, "kills", *batch)]
            sent += texts
            if handles[0]:
                agents.rocketmq("5.5").call("recall", namesrv=broker.namesrv, topic="kills", handle=handles[0])
                recalled.add(texts[0])
            time.sleep(rng.random() * 1.5)
            broker.kill()
            had_tables += any((data / "timers").glob("*.table"))
            broker.start()
        assert had_tables > 5 or kills < 20
        expected = sorted(set(sent) - recalled)
        seen = read(broker, "kills", len(expected))
        assert sorted(each.text for each in seen) == expected
        end = end_offsets(broker.kafka, "kills")[0]
        assert end == len(expected), "delivered twice"
        stored = agents.rocketmq("5.5").call(
            "read_pull", namesrv=broker.namesrv, topics={"kills": end}, timeout_ms=WITHIN_S * 1000
        )
    for each in stored:
        assert each["store_ms"] >= int(base64.b64decode(each["head"]).decode().split()[-1]), "early"
