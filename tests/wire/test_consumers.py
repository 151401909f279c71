"""Consumers work as with Apache's brokers: groups of both protocols with stock clients, and one group in both by turns.

Members run in the Java agents and poll all the time; the tests read their messages, their queues, and the calls of
their rebalance listeners. `pytest --peers` runs the tests of one protocol against the Apache brokers.
"""

from __future__ import annotations

import asyncio
import itertools
import subprocess
import sys
import time
from collections.abc import Sequence

import aiokafka
import confluent_kafka
import confluent_kafka.admin
import kafka
import kafka.admin
import pytest

from tests.kit.broker import Broker
from tests.kit.eventually import eventually
from tests.kit.peers import Peers
from tests.wire.clients import remoting, topics
from tests.wire.clients.agent import Agent, AgentError
from tests.wire.clients.jvm import Agents
from tests.wire.clients.kafka_clients import Confluent, KafkaJava
from tests.wire.clients.members import KafkaMember, PushMember
from tests.wire.clients.message import Message
from tests.wire.clients.rocketmq_clients import RocketmqJava

QUEUES = 4
UNASKED_MS = 10_000  # A RocketMQ client looks for members every 20 s, and for routes every 30 s.
_numbers = itertools.count(int(time.time()))


def fresh(what: str) -> str:
    """Return an unused name that both protocols allow."""
    return f"{what}-{next(_numbers)}"


def patience_s(broker: Broker | Peers) -> float:
    """How long a new RocketMQ group may take to its first message. Apache RocketMQ takes up to 44 s."""
    return 60 if isinstance(broker, Peers) else 10


# -- Kafka: one group


@pytest.fixture(params=["3.9", "4.3"])
def java(request: pytest.FixtureRequest, agents: Agents) -> Agent:
    return agents.kafka(request.param)


@pytest.fixture
def java43(agents: Agents) -> Agent:
    return agents.kafka("4.3")


def kafka_topic(broker: Broker | Peers, partitions: int = QUEUES) -> str:
    topic = fresh("consumers")
    topics.create_topic(broker.kafka, topic, partitions)
    return topic


def send(broker: Broker | Peers, topic: str, texts: Sequence[str], queues: int = QUEUES) -> None:
    """One message after the other, over the queues in turn."""
    messages = [Message(text.encode(), number % queues) for number, text in enumerate(texts)]
    Confluent(broker.kafka).write(topic, messages, way="batch", codec="none")


COOPERATIVE = "org.apache.kafka.clients.consumer.CooperativeStickyAssignor"
EAGER = "org.apache.kafka.clients.consumer.RangeAssignor"


@pytest.mark.parametrize("assignor", [EAGER, COOPERATIVE], ids=["eager", "cooperative"])
def test_members_share_the_partitions_and_inherit_from_one_that_leaves(
    broker: Broker | Peers, java: Agent, assignor: str
) -> None:
    topic, group = kafka_topic(broker), fresh("group")
    config = {"partition_assignment_strategy": assignor, "heartbeat_interval_ms": 200}
    with KafkaMember(java, broker.kafka, group, [topic], **config) as first:
        first.await_assignment(QUEUES)
        with KafkaMember(java, broker.kafka, group, [topic], **config) as second:
            owned = second.await_assignment(QUEUES // 2) + first.await_assignment(QUEUES // 2)
            assert sorted(owned) == [f"{topic}-{queue}" for queue in range(QUEUES)]
            send(broker, topic, [f"m{n}" for n in range(40)])
            texts = eventually("shared", lambda: first.texts + second.texts, lambda seen: len(seen) >= 40, 10)
            assert sorted(texts) == sorted(f"m{n}" for n in range(40))
            for member in (first, second):  # Else `first` reads its own again, because the eager assignor revokes all.
                member.act("commit_sync")
        first.await_assignment(QUEUES)
        before = len(first.texts)
        send(broker, topic, ["last0", "last1", "last2", "last3"])
        assert sorted(first.await_texts(before + 4)[before:]) == ["last0", "last1", "last2", "last3"]
    revoked = [partition for event in first.events if event.what == "revoked" for partition in event.partitions]
    if assignor == COOPERATIVE:  # What it kept was never taken from it, until it left.
        assert len(revoked) == QUEUES // 2 + QUEUES, first.events


def test_static_member_that_comes_back_finds_its_partitions_and_disturbs_nobody(
    broker: Broker | Peers, java: Agent
) -> None:
    topic, group = kafka_topic(broker), fresh("group")
    with KafkaMember(java, broker.kafka, group, [topic], group_instance_id="one", heartbeat_interval_ms=200) as first:
        second = KafkaMember(java, broker.kafka, group, [topic], group_instance_id="two", heartbeat_interval_ms=200)
        first.await_assignment(QUEUES // 2)
        owned = second.await_assignment(QUEUES // 2)
        generation = first.act("group")[0]
        second.leave()  # A static member does not say so.
        with KafkaMember(
            java, broker.kafka, group, [topic], group_instance_id="two", heartbeat_interval_ms=200
        ) as again:
            assert again.await_assignment(QUEUES // 2) == owned
            assert first.act("group")[0] == generation


def test_paused_partition_gives_nothing_and_seek_gives_it_again(broker: Broker | Peers, java: Agent) -> None:
    topic, group = kafka_topic(broker, 1), fresh("group")
    with KafkaMember(java, broker.kafka, group, [topic]) as member:
        member.await_assignment(1)
        send(broker, topic, ["a", "b", "c"], 1)
        assert member.await_texts(3) == ["a", "b", "c"]
        assert member.act("pause") == [f"{topic}-0"]
        send(broker, topic, ["d"], 1)
        assert member.act("end_offsets") == {f"{topic}-0": 4}
        assert member.texts == ["a", "b", "c"]
        member.act("resume")
        assert member.await_texts(4) == ["a", "b", "c", "d"]
        member.act("seek", topic=topic, queue=0, offset=1)
        assert member.await_texts(7) == ["a", "b", "c", "d", "b", "c", "d"]


def test_committed_positions_are_where_the_next_member_goes_on(broker: Broker | Peers, java: Agent) -> None:
    topic, group = kafka_topic(broker, 1), fresh("group")
    send(broker, topic, ["a", "b", "c", "d"], 1)
    with KafkaMember(java, broker.kafka, group, [topic]) as member:
        member.await_texts(4)
        assert member.act("commit_async") == {f"{topic}-0": 4}
        assert member.act("commit_sync", topic=topic, queue=0, offset=2) == {f"{topic}-0": 2}
    assert java.call("group_offsets", bootstrap=broker.kafka, name=group) == {f"{topic}-0": 2}
    with KafkaMember(java, broker.kafka, group, [topic]) as member:
        assert member.await_texts(2) == ["c", "d"]
        described = java.call("describe_group", bootstrap=broker.kafka, name=group)
        assert [each["partitions"] for each in described["members"]] == [[f"{topic}-0"]]
    assert group in java.call("list_groups", bootstrap=broker.kafka)
    java.call("set_group_offsets", bootstrap=broker.kafka, name=group, topic=topic, queue=0, offset=3)
    with KafkaMember(java, broker.kafka, group, [topic]) as member:
        assert member.await_texts(1) == ["d"]
    java.call("delete_group", bootstrap=broker.kafka, name=group)
    assert group not in java.call("list_groups", bootstrap=broker.kafka)


def test_offsets_for_times_end_offsets_and_lag(broker: Broker | Peers, java: Agent) -> None:
    topic, group = kafka_topic(broker, 1), fresh("group")
    now_ms = int(time.time() * 1000)
    messages = [Message(b"%d" % n, 0, timestamp_ms=now_ms - 10_000 + n * 1000) for n in range(5)]
    KafkaJava(broker.kafka, java, "4.3").write(topic, messages, way="batch", codec="zstd")
    with KafkaMember(java, broker.kafka, group, [topic]) as member:
        member.await_texts(5)
        partition = f"{topic}-0"
        assert member.act("offsets_for_time", timestamp_ms=now_ms - 7_500) == {partition: [3, now_ms - 7_000]}
        assert member.act("offsets_for_time", timestamp_ms=now_ms) == {partition: None}
        assert member.act("end_offsets") == {partition: 5}
        assert member.act("lag") == {partition: 0}
        member.act("pause")
        member.act("seek", topic=topic, queue=0, offset=1)
        assert eventually("lag", lambda: member.act("lag"), lambda lag: lag == {partition: 4}, 5)
    for at, offset in (("earliest", 0), ("latest", 5), (str(now_ms - 9_500), 1)):
        assert java.call("offsets", bootstrap=broker.kafka, topic=topic, at=at)[partition][0] == offset


DIES_WITHOUT_A_WORD = """
import confluent_kafka, sys, time
bootstrap, group, topic = sys.argv[1:]
consumer = confluent_kafka.Consumer(
    {"bootstrap.servers": bootstrap, "group.id": group, "session.timeout.ms": 6000, "heartbeat.interval.ms": 500}
)
consumer.subscribe([topic])
while True:
    consumer.poll(0.05)
    print(len(consumer.assignment()), flush=True)
"""


def test_member_that_dies_is_replaced_after_its_session(broker: Broker | Peers, java43: Agent) -> None:
    topic, group = kafka_topic(broker, 2), fresh("group")
    command = [sys.executable, "-c", DIES_WITHOUT_A_WORD, broker.kafka, group, topic]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as dying:
        assert dying.stdout is not None
        eventually("assigned", dying.stdout.readline, lambda line: line == "2\n", 10)
        dying.kill()
    config = {"session_timeout_ms": 6000, "heartbeat_interval_ms": 500}
    with KafkaMember(java43, broker.kafka, group, [topic], **config) as member:
        member.await_assignment(2, within_s=15)


# -- Kafka: the other clients' groups


def test_kafka_python_group_goes_on_where_it_committed(broker: Broker | Peers) -> None:
    topic, group = kafka_topic(broker), fresh("group")
    send(broker, topic, [f"m{n}" for n in range(8)])

    def consume(count: int) -> list[str]:
        consumer = kafka.KafkaConsumer(
            topic,
            bootstrap_servers=broker.kafka,
            group_id=group,
            auto_offset_reset="earliest",
            enable_auto_commit=False,
        )
        texts: list[str] = []
        until = time.monotonic() + 15
        while len(texts) < count and time.monotonic() < until:
            texts += [each.value.decode() for records in consumer.poll(100).values() for each in records]
        consumer.commit()
        consumer.close()
        return sorted(texts)

    assert consume(8) == sorted(f"m{n}" for n in range(8))
    send(broker, topic, ["next"])
    assert consume(1) == ["next"]


def test_aiokafka_group_goes_on_where_it_committed(broker: Broker | Peers) -> None:
    topic, group = kafka_topic(broker), fresh("group")
    send(broker, topic, [f"m{n}" for n in range(8)])

    async def consume(count: int) -> list[str]:
        consumer = aiokafka.AIOKafkaConsumer(
            topic,
            bootstrap_servers=broker.kafka,
            group_id=group,
            auto_offset_reset="earliest",
            enable_auto_commit=False,
        )
        texts: list[str] = []
        async with consumer, asyncio.timeout(15):
            while len(texts) < count:
                for records in (await consumer.getmany(timeout_ms=100)).values():
                    texts += [each.value.decode() for each in records]
            await consumer.commit()
        return sorted(texts)

    assert asyncio.run(consume(8)) == sorted(f"m{n}" for n in range(8))
    send(broker, topic, ["next"])
    assert asyncio.run(consume(1)) == ["next"]


@pytest.mark.parametrize("assignor", ["range", "cooperative-sticky"])
def test_confluent_members_share_a_topic(broker: Broker | Peers, assignor: str) -> None:
    topic, group = kafka_topic(broker), fresh("group")
    config = {
        "bootstrap.servers": broker.kafka,
        "group.id": group,
        "auto.offset.reset": "earliest",
        "partition.assignment.strategy": assignor,
        "heartbeat.interval.ms": 200,
    }
    members = [confluent_kafka.Consumer(config) for _ in range(2)]
    texts: list[str] = []

    def poll() -> list[int]:
        for member in members:
            texts.extend(
                (each.value() or b"").decode() for each in member.consume(100, timeout=0.02) if not each.error()
            )
        return [len(member.assignment()) for member in members]

    for member in members:
        member.subscribe([topic])
    eventually("shared", poll, lambda owned: owned == [QUEUES // 2, QUEUES // 2], 20)
    send(broker, topic, [f"m{n}" for n in range(8)])
    eventually("seen", lambda: (poll(), len(texts))[1], lambda count: count >= 8, 10)
    members.pop().close()
    eventually("inherited", poll, lambda owned: owned == [QUEUES], 20)
    members.pop().close()
    assert sorted(texts) == sorted(f"m{n}" for n in range(8))


# -- Kafka: producers and topics


def test_idempotent_producer_goes_on_over_a_restart(broker: Broker | Peers, java: Agent) -> None:
    """Each message waits for the one before it; the broker stops and comes back in the middle."""
    topic = kafka_topic(broker, 1)
    texts = [f"{n}" for n in range(3000)]
    messages = [Message(text.encode()).as_kafka_json() for text in texts]
    config = {"max.in.flight.requests.per.connection": "5", "linger.ms": "1", "batch.size": "100"}
    call = java.start("write", bootstrap=broker.kafka, topic=topic, config=config, together=True, messages=messages)
    time.sleep(0.2)  # Some are stored by now, most are not; the outcome is the same whatever the moment.
    broker.restart()
    stored = call.wait(60)
    assert [offset for _queue, offset, _time in stored] == list(range(3000))
    seen = KafkaJava(broker.kafka, java, "4.3").read({topic: 3000}, 20)
    assert [each.text for each in seen] == texts


def test_topic_is_made_when_first_written_to(broker: Broker | Peers, java: Agent) -> None:
    topic = fresh("auto")
    KafkaJava(broker.kafka, java, "4.3").write(topic, [Message(b"first")], way="single", codec="none")
    described = java.call("describe_topic", bootstrap=broker.kafka, topic=topic)
    assert described["partitions"] == list(range(QUEUES))
    assert not described["internal"]


def test_topics_are_made_described_grown_configured_and_deleted(broker: Broker | Peers, java: Agent) -> None:
    topic = fresh("admin")
    reach = {"bootstrap": broker.kafka, "topic": topic}
    java.call("create_topic", **reach, partitions=2, topic_config={"retention.ms": "3600000"})
    with pytest.raises(AgentError, match="TopicExistsException"):
        java.call("create_topic", **reach, partitions=2)
    first = java.call("describe_topic", **reach)
    assert first["partitions"] == [0, 1]
    assert topic in java.call("list_topics", bootstrap=broker.kafka)

    config = java.call("topic_config", **reach)
    assert config["retention.ms"] == "3600000"
    assert config["cleanup.policy"] == "delete"
    java.call("set_topic_config", **reach, topic_config={"retention.ms": "7200000", "cleanup.policy": "compact"})
    config = java.call("topic_config", **reach)
    assert (config["retention.ms"], config["cleanup.policy"]) == ("7200000", "compact")
    with pytest.raises(AgentError, match="InvalidConfigurationException"):
        java.call("set_topic_config", **reach, topic_config={"retention.ms": "soon"})
    java.call("set_topic_config", **reach, topic_config={"cleanup.policy": "delete"})

    java.call("create_partitions", **reach, partitions=5)
    assert eventually(
        "grown", lambda: java.call("describe_topic", **reach), lambda seen: len(seen["partitions"]) == 5, 5
    )
    with pytest.raises(AgentError, match="InvalidPartitionsException"):
        java.call("create_partitions", **reach, partitions=3)

    send(broker, topic, ["a", "b", "c", "d", "e", "f"], 5)
    java.call("delete_records", **reach, queue=0, offset=1)
    assert java.call("offsets", **reach, at="earliest")[f"{topic}-0"][0] == 1

    java.call("delete_topic", **reach)
    eventually("gone", lambda: java.call("list_topics", bootstrap=broker.kafka), lambda names: topic not in names, 5)
    with pytest.raises(AgentError, match="UnknownTopicOrPartitionException"):
        java.call("describe_topic", **reach)
    java.call("create_topic", **reach, partitions=2)
    eventually("back", lambda: java.call("list_topics", bootstrap=broker.kafka), lambda names: topic in names, 5)
    again = java.call("describe_topic", **reach)
    assert again["id"] != first["id"]
    assert java.call("offsets", **reach, at="latest")[f"{topic}-0"][0] == 0


def test_admins_of_the_python_clients(broker: Broker | Peers) -> None:
    topic = fresh("python-admin")
    librdkafka = confluent_kafka.admin.AdminClient({"bootstrap.servers": broker.kafka})
    new = confluent_kafka.admin.NewTopic(topic, 2, 1, config={"retention.bytes": "1000000"})
    librdkafka.create_topics([new])[topic].result(10)
    librdkafka.create_partitions([confluent_kafka.admin.NewPartitions(topic, 3)])[topic].result(10)
    resource = confluent_kafka.admin.ConfigResource(confluent_kafka.admin.RESOURCE_TOPIC, topic)
    config = librdkafka.describe_configs([resource])[resource].result(10)
    assert config["retention.bytes"].value == "1000000"

    python = kafka.KafkaAdminClient(bootstrap_servers=broker.kafka)
    eventually("grown", lambda: python.describe_topics([topic]), lambda seen: len(seen[0]["partitions"]) == 3, 5)
    python.create_partitions({topic: kafka.admin.NewPartitions(4)})
    eventually("grown", lambda: python.describe_topics([topic]), lambda seen: len(seen[0]["partitions"]) == 4, 5)
    python.delete_topics([topic])
    eventually("gone", lambda: python.list_topics(), lambda topics: topic not in str(topics), 5)
    python.close()


# -- RocketMQ: push consumers


@pytest.fixture(params=[("5.5", "json"), ("4.9", "binary")], ids=["5.5.0-json", "4.9.8-binary"])
def rocket(request: pytest.FixtureRequest, agents: Agents) -> Agent:
    return agents.rocketmq(*request.param)


@pytest.fixture
def rocket55(agents: Agents) -> Agent:
    return agents.rocketmq("5.5")


def rocketmq_topic(broker: Broker | Peers, queues: int = QUEUES) -> str:
    topic = fresh("consumers")
    if isinstance(broker, Peers):
        remoting.create_topic(broker.rocketmq, topic, queues)
    else:
        topics.create_topic(broker.kafka, topic, queues)
    return topic


def push(agent: Agent, broker: Broker | Peers, topic: str, texts: Sequence[str], queues: int = QUEUES) -> None:
    messages = [Message(text.encode(), number % queues) for number, text in enumerate(texts)]
    RocketmqJava(broker.namesrv, agent, "5.5", "json").write(topic, messages, way="sync", codec="none")


def test_fresh_group_sees_its_first_message_before_its_client_asks_again(broker: Broker | Peers, rocket: Agent) -> None:
    topic = rocketmq_topic(broker)
    push(rocket, broker, topic, ["first"])
    for _ in range(3):
        with PushMember(rocket, broker.namesrv, fresh("group"), [topic]) as member:
            assert member.await_texts(1, within_s=patience_s(broker)) == ["first"]
        took_ms = member.arrivals[0].at_ms - member.started_ms
        assert isinstance(broker, Peers) or took_ms < UNASKED_MS, f"the first message took {took_ms} ms"


@pytest.mark.usefixtures("both_protocols")
def test_group_that_came_before_its_topic_sees_the_first_message_before_its_client_asks_again(
    broker: Broker, rocket: Agent
) -> None:
    """The client asks for a route every 30 s only, so the broker has to make the topic's coming known by itself."""
    topic = fresh("later")
    with PushMember(rocket, broker.namesrv, fresh("group"), [topic]) as member:
        sent_ms = int(time.time() * 1000)
        auto = [Message(b"first", -1).as_rocketmq_json()]
        rocket.call("write", namesrv=broker.namesrv, topic=topic, how="sync", messages=auto)
        assert member.await_texts(1, within_s=45) == ["first"]
    took_ms = member.arrivals[0].at_ms - sent_ms
    assert took_ms < UNASKED_MS, f"the first message took {took_ms} ms"


def test_push_members_share_the_queues_before_their_clients_ask_again(broker: Broker | Peers, rocket: Agent) -> None:
    topic, group = rocketmq_topic(broker), fresh("group")
    with PushMember(rocket, broker.namesrv, group, [topic]) as first:
        first.await_queues(QUEUES)
        with PushMember(rocket, broker.namesrv, group, [topic]) as second:
            owned = second.await_queues(2) + first.await_queues(2)
            assert sorted(owned) == list(range(QUEUES))
            push(rocket, broker, topic, [f"m{n}" for n in range(20)])
            texts = eventually("shared", lambda: first.texts + second.texts, lambda seen: len(seen) >= 20, 10)
            assert sorted(set(texts)) == sorted(f"m{n}" for n in range(20))
        first.await_queues(QUEUES)


def test_push_group_goes_on_where_it_was_also_after_a_restart(broker: Broker | Peers, rocket: Agent) -> None:
    topic, group = rocketmq_topic(broker), fresh("group")
    push(rocket, broker, topic, ["a", "b", "c", "d"])
    with PushMember(rocket, broker.namesrv, group, [topic]) as member:
        assert sorted(member.await_texts(4)) == ["a", "b", "c", "d"]
    committed = eventually(
        "offsets stored",
        lambda: rocket.call("committed", namesrv=broker.namesrv, topic=topic, group=group),
        lambda offsets: set(offsets.values()) == {1},
        10,
    )
    broker.restart()
    assert rocket.call("committed", namesrv=broker.namesrv, topic=topic, group=group) == committed
    push(rocket, broker, topic, ["e", "f"])
    with PushMember(rocket, broker.namesrv, group, [topic]) as member:
        assert sorted(member.await_texts(2)) == ["e", "f"]


def test_push_member_rides_out_a_restart_of_the_broker(broker: Broker | Peers, rocket55: Agent) -> None:
    topic, group = rocketmq_topic(broker), fresh("group")
    with PushMember(rocket55, broker.namesrv, group, [topic]) as member:
        push(rocket55, broker, topic, ["before"])
        member.await_texts(1)
        broker.restart()
        push(rocket55, broker, topic, ["after"])
        assert member.await_texts(2, within_s=40)[-1] == "after"


STARTS = ("first", "last", "timestamp")


def seen_by_new_group(rocket: Agent, broker: Broker | Peers, topic: str, start: str, **arguments: str) -> list[str]:
    """What a group sees that begins at `start`, up to a message that is sent when it has begun."""
    mark = fresh("mark")
    with PushMember(rocket, broker.namesrv, fresh("group"), [topic], **{"from": start}, **arguments) as member:
        member.await_queues(1)
        time.sleep(0.3)  # Owning a queue is not yet knowing where to begin; nothing tells when it does.
        push(rocket, broker, topic, [mark], 1)
        texts = eventually("the mark", lambda: member.texts, lambda texts: mark in texts, patience_s(broker))
    return [text for text in texts if not text.startswith("mark")]


def test_new_group_of_a_young_topic_begins_at_its_first_message(broker: Broker | Peers, rocket: Agent) -> None:
    """As in Apache RocketMQ, a new group reads a queue from the beginning while no message of the queue was removed."""
    topic = rocketmq_topic(broker, 1)
    push(rocket, broker, topic, ["a", "b"], 1)
    for start in STARTS:
        assert seen_by_new_group(rocket, broker, topic, start) == ["a", "b"], start


@pytest.mark.usefixtures("both_protocols")
def test_new_group_begins_at_first_last_or_timestamp(broker: Broker, agents: Agents, rocket: Agent) -> None:
    topic = rocketmq_topic(broker, 1)
    push(rocket, broker, topic, ["gone", "a"], 1)
    java = agents.kafka("4.3")
    java.call("delete_records", bootstrap=broker.kafka, topic=topic, queue=0, offset=1)
    time.sleep(2.1)  # consumeTimestamp counts whole seconds.
    moment = time.strftime("%Y%m%d%H%M%S")
    push(rocket, broker, topic, ["b"], 1)
    assert seen_by_new_group(rocket, broker, topic, "first") == ["a", "b"]
    assert seen_by_new_group(rocket, broker, topic, "timestamp", timestamp=moment) == ["b"]
    assert seen_by_new_group(rocket, broker, topic, "last") == []


def test_offsets_that_a_rocketmq_client_asks_for(broker: Broker | Peers, rocket: Agent) -> None:
    topic = rocketmq_topic(broker, 1)
    reach = {"namesrv": broker.namesrv, "topic": topic}
    assert rocket.call("offsets", **reach, at="max") == {"0": 0}
    push(rocket, broker, topic, ["a", "b"], 1)
    time.sleep(0.01)
    moment_ms = int(time.time() * 1000)
    push(rocket, broker, topic, ["c"], 1)
    assert rocket.call("offsets", **reach, at="max") == {"0": 3}
    assert rocket.call("offsets", **reach, at="min") == {"0": 0}
    assert rocket.call("offsets", **reach, at=str(moment_ms)) == {"0": 2}


def test_ids_in_the_answers_to_senders_are_those_that_readers_see(broker: Broker | Peers, rocket: Agent) -> None:
    topic = rocketmq_topic(broker, 1)
    messages = [Message(b"%d" % n).as_rocketmq_json() for n in range(5)]
    answered = []
    for how in ("sync", "batch", "async"):
        stored = rocket.call("write", namesrv=broker.namesrv, topic=topic, how=how, messages=messages)
        answered += [(offset, offset_id) for _queue, offset, _id, offset_id in stored]
    seen = rocket.call("read_pull", namesrv=broker.namesrv, topics={topic: 15})
    assert sorted((each["offset"], each["offset_msg_id"]) for each in seen) == sorted(answered)
    assert len({offset_id for _offset, offset_id in answered}) == 15


def test_orderly_member_sees_each_queue_in_its_order(broker: Broker | Peers, rocket: Agent) -> None:
    """And when it goes, its locks go with it: the next one need not wait for them to expire."""
    topic, group = rocketmq_topic(broker), fresh("group")
    for start in (0, 40):
        push(rocket, broker, topic, [f"{n}" for n in range(start, start + 40)])
        with PushMember(rocket, broker.namesrv, group, [topic], orderly=True) as member:
            texts = member.await_texts(40, within_s=patience_s(broker))
        assert sorted(texts, key=int) == [f"{n}" for n in range(start, start + 40)]
        for queue in range(QUEUES):
            offsets = [each.seen.offset for each in member.arrivals if each.seen.queue == queue]
            assert offsets == sorted(offsets)


# -- One group, both protocols


@pytest.mark.usefixtures("both_protocols")
def test_group_moves_from_one_protocol_to_the_other_and_back(broker: Broker, agents: Agents, rocket: Agent) -> None:
    java = agents.kafka("4.3")
    topic, group = kafka_topic(broker, 1), fresh("group")
    send(broker, topic, ["a", "b"], 1)
    with KafkaMember(java, broker.kafka, group, [topic]) as member:
        assert member.await_texts(2) == ["a", "b"]
        member.act("commit_sync")
    push(rocket, broker, topic, ["c", "d"], 1)
    with PushMember(rocket, broker.namesrv, group, [topic]) as pushed:
        assert pushed.await_texts(2) == ["c", "d"]
    eventually(
        "positions stored",
        lambda: java.call("group_offsets", bootstrap=broker.kafka, name=group),
        lambda offsets: offsets.get(f"{topic}-0") == 4,  # There is one of its retry topic, too.
        5,
    )
    send(broker, topic, ["e"], 1)
    with KafkaMember(java, broker.kafka, group, [topic]) as member:
        assert member.await_texts(1) == ["e"]


@pytest.mark.usefixtures("both_protocols")
def test_group_active_in_one_protocol_refuses_members_of_the_other(
    broker: Broker, agents: Agents, rocket55: Agent
) -> None:
    java = agents.kafka("4.3")
    topic, group = kafka_topic(broker, 1), fresh("group")
    with KafkaMember(java, broker.kafka, group, [topic]) as member:
        member.await_assignment(1)
        with PushMember(rocket55, broker.namesrv, group, [topic]) as pushed:
            send(broker, topic, ["for kafka"], 1)
            assert member.await_texts(1) == ["for kafka"]
            assert pushed.texts == []
        member.act("commit_sync")
    with PushMember(rocket55, broker.namesrv, group, [topic]) as pushed:
        pushed.await_queues(1)
        with KafkaMember(java, broker.kafka, group, [topic]) as member:
            push(rocket55, broker, topic, ["for rocketmq"], 1)
            assert pushed.await_texts(1) == ["for rocketmq"]
            with pytest.raises(AgentError, match=r"InconsistentGroupProtocol|GroupAuthorization"):
                eventually("refused", lambda: member.assignment, lambda owned: bool(owned), 5)


# -- Long polls

LONG_POLLS = 20  # The number of messages. Each one is sent after the previous one has arrived.
HOLD_MS = 10_000  # The longest wait that the Kafka member requests; the RocketMQ client requests 15 s.


@pytest.mark.usefixtures("both_protocols")
@pytest.mark.parametrize("sender", ["kafka", "rocketmq"])
def test_message_ends_a_long_poll_of_either_protocol(
    broker: Broker, agents: Agents, rocket55: Agent, sender: str
) -> None:
    """Not the poll's own time. `make bench` measures the milliseconds."""
    java = agents.kafka("4.3")
    topic = kafka_topic(broker, 1)
    with (
        KafkaMember(java, broker.kafka, fresh("group"), [topic], fetch_max_wait_ms=HOLD_MS) as member,
        PushMember(rocket55, broker.namesrv, fresh("group"), [topic]) as pushed,
    ):
        member.await_assignment(1)
        pushed.await_queues(1)
        for n in range(LONG_POLLS):
            if sender == "kafka":
                KafkaJava(broker.kafka, java, "4.3").write(topic, [Message(b"%d" % n)], way="single", codec="none")
            else:
                push(rocket55, broker, topic, [f"{n}"], 1)
            member.await_texts(n + 1, within_s=HOLD_MS / 2000)
            pushed.await_texts(n + 1, within_s=HOLD_MS / 2000)
        member.act("pause")  # With one more message its last poll ends, for which its close would wait.
        send(broker, topic, ["last"], 1)
