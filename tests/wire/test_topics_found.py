"""What clients find out about topics: admin clients by the requests that they send unasked, consumers by subscriptions
to topics that are made while they run. Apache's broker passes the same tests (`--peers`).
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable

import confluent_kafka
import confluent_kafka.admin
import kafka
import kafka.admin
import pytest

from tests.kit.broker import Broker
from tests.kit.eventually import eventually
from tests.kit.peers import Peers
from tests.wire.clients.agent import Agent
from tests.wire.clients.jvm import Agents
from tests.wire.clients.kafka_clients import Confluent
from tests.wire.clients.members import KafkaMember
from tests.wire.clients.message import Message

_numbers = itertools.count(int(time.time()))
REFRESH_MS = 300  # How often consumers look for new topics.
QUIET_S = 1.5  # Within this time, a client that may not create a topic asks for it often.


def fresh(what: str) -> str:
    return f"{what}-{next(_numbers)}"


def all_topics(broker: Broker | Peers) -> set[str]:
    admin = confluent_kafka.admin.AdminClient({"bootstrap.servers": broker.kafka})
    return {*admin.list_topics(timeout=10).topics}


def make(broker: Broker | Peers, topic: str) -> None:
    admin = confluent_kafka.admin.AdminClient({"bootstrap.servers": broker.kafka})
    admin.create_topics([confluent_kafka.admin.NewTopic(topic, 1, 1)])[topic].result(10)


def write(broker: Broker | Peers, topic: str, text: str) -> None:
    """The first record of a topic makes it, if it is missing."""
    Confluent(broker.kafka).write(topic, [Message(text.encode())], way="single", codec="none")


# -- Admin clients


@pytest.fixture(params=["3.9", "4.3"])
def java(request: pytest.FixtureRequest, agents: Agents) -> Agent:
    return agents.kafka(request.param)


def test_java_describes_topics_page_by_page(broker: Broker | Peers, java: Agent) -> None:
    names = {fresh("pages"): count for count in (3, 1, 5)}
    for name, count in names.items():
        java.call("create_topic", bootstrap=broker.kafka, topic=name, partitions=count)
    eventually("they are known", lambda: {*names} - all_topics(broker), lambda unknown: not unknown, 10)
    expected = {name: list(range(count)) for name, count in names.items()}
    for page in (2000, 4, 1):
        assert java.call("describe_topics", bootstrap=broker.kafka, topics=[*names], page=page) == expected


def test_java_describes_the_quorum_and_lists_resources(broker: Broker | Peers, java: Agent) -> None:
    quorum = java.call("describe_quorum", bootstrap=broker.kafka)
    assert (quorum["voters"], quorum["observers"]) == ([quorum["leader"]], 0)
    assert quorum["epoch"] >= 1
    assert 0 < quorum["high_watermark"] <= quorum["log_ends"][0]
    assert java.call("list_client_metrics", bootstrap=broker.kafka) == 0


def test_kafka_python_describes_topics_resources_and_the_quorum(broker: Broker | Peers) -> None:
    topic = fresh("described")
    make(broker, topic)
    admin = kafka.admin.KafkaAdminClient(bootstrap_servers=broker.kafka)
    try:
        (found,) = admin.describe_topics([topic])
        pages = admin.describe_topic_partitions([topic])
        resources = admin.list_config_resources()
        quorum = admin.describe_metadata_quorum()
    finally:
        admin.close()
    assert (found["name"], found["error_code"], len(found["partitions"])) == (topic, 0, 1)
    assert [(each["name"], len(each["partitions"])) for each in pages["topics"]] == [(topic, 1)]
    assert topic in resources["topic"]
    assert len(resources["broker"]) == 1
    ((part,),) = [each["partitions"] for each in quorum["topics"]]
    assert part["error"] is None or part["error"].startswith("[Error 0] NoError")
    assert [voter["replica_id"] for voter in part["current_voters"]] == [part["leader_id"]]


# -- Subscriptions


@pytest.mark.parametrize("allow", [True, False])
def test_java_member_finds_topics_that_match_its_pattern(broker: Broker | Peers, java: Agent, allow: bool) -> None:
    """A pattern finds topics that an admin client or the first record creates, and creates none itself."""
    name = fresh("pattern")
    options = {"metadata_max_age_ms": REFRESH_MS, "allow_auto_create_topics": str(allow).lower()}
    with KafkaMember(java, broker.kafka, name, f"{name}-.*", **options) as member:
        make(broker, f"{name}-made")
        write(broker, f"{name}-made", "made")
        write(broker, f"{name}-auto", "auto")
        # It commits nothing, so that it reads again what it has read before it got the second topic.
        eventually("both topics", lambda: {*member.texts}, lambda texts: texts == {"auto", "made"}, 20)


@pytest.mark.parametrize("allow", [True, False])
def test_java_member_makes_a_missing_topic_if_it_may(broker: Broker | Peers, java: Agent, allow: bool) -> None:
    topic = fresh("missing")
    options = {"metadata_max_age_ms": REFRESH_MS, "allow_auto_create_topics": str(allow).lower()}
    with KafkaMember(java, broker.kafka, topic, [topic], **options) as member:
        check_making(broker, topic, allow)
        write(broker, topic, "first")
        assert member.await_texts(1, within_s=20) == ["first"]


@pytest.mark.parametrize("allow", [True, False])
def test_confluent_consumer_of_patterns_and_names(broker: Broker | Peers, allow: bool) -> None:
    """With a pattern librdkafka asks for all topics, which makes none; what is missing it reports, as with Apache."""
    name = fresh("mixed")
    make(broker, f"{name}-a")
    consumer = confluent_consumer(broker, name, allow)
    errors: set[tuple[str | None, str]] = set()
    try:
        consumer.subscribe([f"^{name}-.*", f"{name}.later"])
        write(broker, f"{name}-a", "a")
        await_texts(consumer, errors, {"a"})
        assert errors == {(f"{name}.later", "UNKNOWN_TOPIC_OR_PART")}
        write(broker, f"{name}-b", "b")
        write(broker, f"{name}.later", "later")
        await_texts(consumer, errors, {"b", "later"})
    finally:
        consumer.close()


@pytest.mark.parametrize("allow", [True, False])
def test_confluent_consumer_of_a_missing_topic_reads_it_once_it_is_made(broker: Broker | Peers, allow: bool) -> None:
    topic = fresh("plain")
    consumer = confluent_consumer(broker, topic, allow)
    try:
        consumer.subscribe([topic])
        until_s = time.monotonic() + QUIET_S
        while time.monotonic() < until_s:
            consumer.poll(0.1)
        write(broker, topic, "first")
        await_texts(consumer, set(), {"first"})
    finally:
        consumer.close()


def confluent_consumer(broker: Broker | Peers, group: str, allow: bool) -> confluent_kafka.Consumer:
    return confluent_kafka.Consumer(
        {
            "bootstrap.servers": broker.kafka,
            "group.id": group,
            "auto.offset.reset": "earliest",
            "topic.metadata.refresh.interval.ms": REFRESH_MS,
            "allow.auto.create.topics": allow,
        }
    )


def await_texts(consumer: confluent_kafka.Consumer, errors: set[tuple[str | None, str]], texts: set[str]) -> None:
    """Poll until these have come; errors are noted by topic."""
    missing = set(texts)

    def look() -> set[str]:
        message = consumer.poll(0.1)
        error = message and message.error()
        if message and error:
            errors.add((message.topic(), error.name()))
        elif message:
            missing.discard((message.value() or b"").decode())
        return missing

    eventually("messages", look, lambda left: not left, 20)


def check_making(broker: Broker | Peers, topic: str, allow: bool) -> None:
    """The topic is made within a moment, or not for a while."""
    exists: Callable[[], bool] = lambda: topic in all_topics(broker)  # noqa: E731
    if allow:
        eventually("the topic is made", exists, bool, 10)
    else:
        time.sleep(QUIET_S)
        assert not exists()
