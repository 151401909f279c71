"""A Faust application works: an agent, a table with a changelog, a restart that recovers the table from it.

Exactly once too, as far as Faust 0.15.3 goes, and the same on Apache Kafka 4.3.1 (`--peers`): positions and changelogs
are in its transactions. What it sends to a topic that it does not read is in none. What it sends to one that it reads
may wait for a commit for ever: a transaction belongs to a group of topics and a queue, ends with the positions of that
queue only, and nothing is read from it before. It commits a position and the change made of it at different moments, so
a worker that is killed between the two loses the change or makes it again: here the one that is killed never commits.
"""

from __future__ import annotations

import itertools
import time
from collections import Counter

import confluent_kafka
import confluent_kafka.admin
import pytest

from tests.kit.broker import Broker
from tests.kit.eventually import eventually
from tests.kit.peers import Peers
from tests.wire.clients.faust_clients import FaustApp
from tests.wire.clients.jvm import Agents
from tests.wire.clients.kafka_clients import Confluent
from tests.wire.clients.message import Message
from tests.wire.clients.rocketmq_clients import RocketmqJava
from tests.wire.clients.topics import committed_offsets, create_topic
from tests.wire.clients.transactional import ALL, COMMITTED, LibrdkafkaClient

QUEUES = 4
KEYS = ("apple", "pear", "plum")
FIRST_LINE_WITHIN_S = 60
_numbers = itertools.count(int(time.time()))


@pytest.fixture
def topic(broker: Broker | Peers) -> str:
    name = f"faust-{next(_numbers)}"
    create_topic(broker.kafka, name, QUEUES)
    create_topic(broker.kafka, f"{name}-out", 1)
    return name


def keyed(times: int) -> list[Message]:
    """Each key `times` times, always on its own queue, as the table wants it."""
    return [Message(b"x", KEYS.index(key), key.encode()) for _ in range(times) for key in KEYS]


def expect_recovered(app: FaustApp, count: int) -> None:
    """Wait until the worker has its table back; what is sent while it recovers, Faust 0.15.3 may skip."""
    assert app.next_line(FIRST_LINE_WITHIN_S) == {"recovered": dict.fromkeys(KEYS, count) if count else {}}


def expect_counts(app: FaustApp, first: int, last: int) -> None:
    counts: dict[str, list[int]] = {key: [] for key in KEYS}
    while sum(map(len, counts.values())) < len(KEYS) * (last - first + 1):
        line = app.next_line(FIRST_LINE_WITHIN_S)
        counts[line["key"]].append(line["count"])
    assert counts == {key: list(range(first, last + 1)) for key in KEYS}


def await_committed(broker: Broker | Peers, app_id: str, topic: str, total: int) -> None:
    """Wait until the application has committed all that was sent, so that nothing is processed twice."""
    eventually(
        f"offsets of {app_id}",
        lambda: committed_offsets(broker.kafka, app_id, topic, QUEUES),
        lambda offsets: sum(offsets.values()) == total,
        FIRST_LINE_WITHIN_S,
    )


def test_table_is_recovered_from_its_changelog(broker: Broker | Peers, topic: str) -> None:
    """Counted by one process, then by another that has nothing but the broker; in between the broker restarts too."""
    app_id = f"{topic}-app"
    sender = Confluent(broker.kafka)
    with FaustApp(app_id, broker.kafka, "count", topic, f"{topic}-out") as app:
        expect_recovered(app, 0)
        sender.write(topic, keyed(5), way="batch", codec="none")
        expect_counts(app, 1, 5)
        await_committed(broker, app_id, topic, 15)
        app.stop()
    broker.restart()
    with FaustApp(app_id, broker.kafka, "count", topic, f"{topic}-out") as app:
        expect_recovered(app, 5)
        sender.write(topic, keyed(3), way="batch", codec="none")
        expect_counts(app, 6, 8)
        await_committed(broker, app_id, topic, 24)
    counts = Counter((each.key or b"").decode() for each in sender.read({f"{topic}-out": 24}, 20))
    assert counts == dict.fromkeys(KEYS, 8)
    admin = confluent_kafka.admin.AdminClient({"bootstrap.servers": broker.kafka})
    changelog = confluent_kafka.admin.ConfigResource(confluent_kafka.admin.RESOURCE_TOPIC, f"{app_id}-seen-changelog")
    assert admin.describe_configs([changelog])[changelog].result(10)["cleanup.policy"].value == "compact"


def test_table_counts_each_message_once_though_its_worker_is_killed(broker: Broker | Peers, topic: str) -> None:
    """What the killed worker had written is aborted, and neither its changes nor its positions are seen again."""
    app_id = f"{topic}-app"
    changelog = f"{app_id}-seen-changelog"
    sender, reader = Confluent(broker.kafka), LibrdkafkaClient(broker.kafka)
    sender.write(topic, keyed(40), way="batch", codec="none")
    with FaustApp(app_id, broker.kafka, "count_in_one_transaction", topic, f"{topic}-out") as app:
        expect_recovered(app, 0)
        for _ in range(50):
            assert "count" in app.next_line(FIRST_LINE_WITHIN_S)
        assert len(reader.read(changelog, QUEUES, 50, ALL)) >= 50
        app.kill()
    with FaustApp(app_id, broker.kafka, "count_once", topic, f"{topic}-out"):
        await_committed(broker, app_id, topic, 120)
        # The last changes may be in the next transaction, which ends with the next position.
        sent = 40
        while len(changes := reader.read(changelog, QUEUES, sent * len(KEYS), COMMITTED)) < 40 * len(KEYS):
            assert sent < 50, changes
            sent += 1
            sender.write(topic, keyed(1), way="batch", codec="none")
            await_committed(broker, app_id, topic, sent * len(KEYS))
    for queue in range(len(KEYS)):
        counts = [int(text) for place, _, text in changes if place == queue]
        assert counts == [*range(1, len(counts) + 1)]


@pytest.mark.usefixtures("both_protocols")
def test_agent_counts_what_rocketmq_sends(broker: Broker, agents: Agents, topic: str) -> None:
    sender = RocketmqJava(broker.namesrv, agents.rocketmq("5.5"), "5.5", "json")
    with FaustApp(f"{topic}-app", broker.kafka, "count", topic, f"{topic}-out") as app:
        expect_recovered(app, 0)
        sender.write(topic, keyed(4), way="sync", codec="none")
        expect_counts(app, 1, 4)
