"""The owner of a shared log reaches the store, and its clients and the standby do not reach the owner.

Brokers and store are in network namespaces. The standby takes over because clients ask it, and because the slots of the
owner say that no client asks the owner. It takes root.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import confluent_kafka
import pytest
from confluent_kafka.admin import AdminClient

from tests.kit.eventually import eventually
from tests.wire.clients.jvm import Agents
from tests.wire.clients.shared_pair import Pair, pair_in_network, status, wait_for_role
from tests.wire.clients.takeover_faults import FAULTS_OF_NETWORK
from tests.wire.clients.takeover_loads import (
    QUEUES,
    AiokafkaWriter,
    Consumer,
    KafkaJavaWriter,
    LibrdkafkaConsumer,
    LibrdkafkaWriter,
    RocketmqJavaWriter,
    Writer,
    now_ms,
)
from tests.wire.clients.topics import create_topic
from tests.wire.test_takeover import (
    AFTER,
    GOES_ON_WITHIN_S,
    ORDERS,
    check_orders,
    last_of,
    longest_silence_s,
)

pytestmark = [pytest.mark.alone, pytest.mark.usefixtures("duolog_only"), pytest.mark.timeout(300)]

WITHIN_S = 5.0  # From the fault to the next acknowledged send of a client that is told that its connection is gone.


@pytest.fixture
def pair(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Pair]:
    with pair_in_network(tmp_path, monkeypatch, is_proxied=False) as running:
        create_topic(running.bootstrap, ORDERS, QUEUES)
        admin = AdminClient({"bootstrap.servers": running.owner.kafka})
        # A client that has never heard of the standby could not ask it.
        eventually("both brokers", lambda: len(admin.list_topics(timeout=5).brokers), lambda count: count == 2, 30.0)
        running.wait_until_named(ORDERS)
        yield running


@pytest.mark.soak
def test_all_clients_go_on_with_the_standby(pair: Pair, agents: Agents) -> None:
    writers: list[Writer] = [
        LibrdkafkaWriter(pair, ORDERS),
        AiokafkaWriter(pair, ORDERS),
        KafkaJavaWriter(pair, ORDERS, agents.kafka("4.3")),
        RocketmqJavaWriter(pair, ORDERS, agents.rocketmq("5.5")),
    ]
    for name, waited_s in silences_over(pair, "cut off from clients", ORDERS, writers).items():
        assert waited_s < WITHIN_S, f"{name} waited {waited_s} s"


@pytest.mark.soak
@pytest.mark.parametrize("queues", [1, QUEUES])
def test_rocketmqs_producer_goes_on_when_packets_to_the_owner_vanish(pair: Pair, agents: Agents, queues: int) -> None:
    """A send waits for its time-out of 3 s at a queue of the owner, and the next one goes to the standby."""
    topic = f"topic-with-{queues}"
    create_topic(pair.bootstrap, topic, queues)
    pair.wait_until_named(topic)
    writers: list[Writer] = [RocketmqJavaWriter(pair, topic, agents.rocketmq("5.5"))]
    (waited_s,) = silences_over(pair, "unplugged", topic, writers).values()
    assert waited_s < FAULTS_OF_NETWORK["unplugged"].within_s


def silences_over(pair: Pair, fault_name: str, topic: str, writers: list[Writer]) -> dict[str, float]:
    """Let the standby take over; return how long each writer was without an acknowledgement, in seconds.

    Each acknowledged record must be at its offset, and the stream must have moved once.
    """
    fault, consumer = FAULTS_OF_NETWORK[fault_name], LibrdkafkaConsumer(pair, topic)
    wait_for_records(consumer, writers)
    fault_ms = now_ms()
    fault.begin(pair)
    epoch = wait_for_role(pair.standby, "owner")["epoch"]
    print(f"the standby owns the stream after {(now_ms() - fault_ms) / 1000:.1f} s")
    wait_for_records(consumer, writers)
    fault.end(pair)
    pair.wait_until_followed()
    consumer.stop()
    acknowledged = {each.name: each.stop() for each in writers}
    silent_s = {name: round(longest_silence_s(each, fault_ms), 1) for name, each in acknowledged.items()}
    print(f"{fault_name}: longest time without an acknowledgement: {silent_s}")
    check_orders(pair.bootstrap, acknowledged, {each.name: each.is_idempotent for each in writers}, topic)
    assert status(pair.standby)["epoch"] == epoch == 2, "the stream has moved once"
    return silent_s


def wait_for_records(consumer: Consumer, writers: list[Writer]) -> None:
    """Wait until some more records of each writer were read."""
    for name, last in [(each.name, last_of(consumer, each.name)) for each in writers]:
        eventually(
            f"records of {name}",
            lambda name=name: last_of(consumer, name),
            lambda found, last=last: found >= last + AFTER,
            GOES_ON_WITHIN_S,
        )


def test_a_client_that_starts_while_packets_to_the_owner_vanish_is_served_by_the_standby(pair: Pair) -> None:
    time.sleep(2.0)
    pair.cut_off_clients("DROP")
    time.sleep(6.0)
    assert status(pair.standby)["role"] == "standby", "no client has asked it, so it may be the one that is cut off"
    producer = confluent_kafka.Producer({"bootstrap.servers": pair.bootstrap})
    begun_s = time.monotonic()
    producer.produce(ORDERS, b"new")
    assert producer.flush(20.0) == 0
    waited_s = time.monotonic() - begun_s
    print(f"a new client of an owner whose packets vanish waited {waited_s:.1f} s")
    assert status(pair.standby)["role"] == "owner"
    pair.mend_clients()
    pair.wait_until_followed()
    assert waited_s < 2 * WITHIN_S
