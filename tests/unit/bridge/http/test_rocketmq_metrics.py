"""The metrics with RocketMQ's names: a scripted client sends, reads and decides, and a scrape says what it did."""

import pytest
from prometheus_client.parser import text_string_to_metric_families

from duolog.bridge.http.metrics.exposition import parts
from duolog.bridge.http.metrics.lines import Scrape
from duolog.bridge.http.metrics.rocketmq_families import CLIENT_KINDS_MAX
from duolog.bridge.rocketmq.consuming.pulled_offsets import PulledOffsets
from duolog.bridge.transactions.op_messages import HalfDecision
from duolog.bridge.transactions.verdict_counts import VerdictCounts
from duolog.protocol.rocketmq.codes import RequestCode
from duolog.txn.half_verdicts import HalfVerdict
from tests.unit.bridge.rocketmq.broker import Client, RocketMQBroker
from tests.unit.bridge.rocketmq.popping import ack, got, pop
from tests.unit.bridge.rocketmq.producing.test_half_messages import COMMIT, ROLL_BACK, end, send_half

GROUP = {"consumer_group": "billing", "topic": "orders", "is_retry": "false"}


@pytest.fixture
def broker() -> RocketMQBroker:
    return RocketMQBroker()


@pytest.fixture
def client(broker: RocketMQBroker) -> Client:
    return broker.connect()


def value(broker: RocketMQBroker, name: str, **labels: str) -> float | None:
    """Return the value of the one series with these labels; None if there is none."""
    text = b"".join(part or b"" for part in parts(broker.http_context(), Scrape())).decode()
    found = [
        sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.name == name and labels.items() <= sample.labels.items()
    ]
    assert len(found) <= 1, "these labels name several series"
    return found[0] if found else None


def unread(broker: RocketMQBroker) -> list[float | None]:
    """Return what the group has: lag, ready and in flight; and the age in ms of the oldest of the first two."""
    names = ("lag_messages", "ready_messages", "inflight_messages", "lag_latency", "queueing_latency")
    for name in names[3:]:
        assert value(broker, f"rocketmq_consumer_{name}", **GROUP) == value(
            broker, f"rocketmq_consumer_{name}_milliseconds", **GROUP
        )
    return [value(broker, f"rocketmq_consumer_{name}", **GROUP) for name in names]


def commit(client: Client, offset: int) -> None:
    fields = {"consumerGroup": "billing", "topic": "orders", "queueId": 0, "commitOffset": offset}
    client.ask(RequestCode.UPDATE_CONSUMER_OFFSET, **fields)


@pytest.mark.slow
def test_messages_are_ready_until_a_pull_and_in_flight_until_a_commit(broker: RocketMQBroker, client: Client) -> None:
    topic = broker.topic(queues=1)
    client.beat("billing")
    for _ in range(5):
        broker.publish(topic, b"x")
        broker.clock.pass_ms(1_000)
    assert unread(broker) == [5, 5, 0, 5_000, 5_000]
    client.pull(0, maxMsgNums=3)
    assert unread(broker) == [5, 2, 3, 5_000, 2_000]
    commit(client, 2)
    assert unread(broker) == [3, 2, 1, 3_000, 2_000]
    client.pull(3)
    assert unread(broker) == [3, 0, 3, 3_000, 0]
    commit(client, 5)
    assert unread(broker) == [0, 0, 0, 0, 0]


@pytest.mark.slow
def test_popped_messages_are_in_flight_until_they_are_acknowledged(broker: RocketMQBroker, client: Client) -> None:
    broker.publish(broker.topic(queues=1), *[b"x"] * 5)
    one, *_ = got(pop(client, maxMsgNums=3))
    assert unread(broker)[:3] == [2, 2, 3]
    ack(client, one)
    assert unread(broker)[:3] == [2, 2, 2]


def test_what_a_group_was_given_is_counted_in_messages_and_bytes(broker: RocketMQBroker, client: Client) -> None:
    broker.publish(broker.topic(queues=1), *[b"x"] * 5)
    pulled = client.pull(0)
    assert value(broker, "rocketmq_messages_out_total", **GROUP) == 5
    assert value(broker, "rocketmq_throughput_out_total", **GROUP) == len(pulled.body)


def test_connections_are_counted_by_kind_of_client(broker: RocketMQBroker, client: Client) -> None:
    client.beat("billing", consume_type="CONSUME_PASSIVELY")
    broker.connect().beat("billing", client_id="second", consume_type="CONSUME_PASSIVELY")
    labels = {"language": "python", "version": str(client.version), "protocol_type": "remoting"}
    assert value(broker, "rocketmq_producer_connections", **labels) == 2
    consumers = labels | {"consumer_group": "billing", "consume_mode": "push", "is_system": "false"}
    assert value(broker, "rocketmq_consumer_connections", **consumers) == 2


def test_clients_cannot_make_series_without_limit(broker: RocketMQBroker) -> None:
    for number in range(CLIENT_KINDS_MAX + 5):
        one = broker.connect()
        one.version = number
        one.beat("billing", client_id=f"client-{number}")
    assert value(broker, "rocketmq_producer_connections", language="other", version="other") == 5
    assert value(broker, "rocketmq_consumer_connections", language="other", version="other") == 5


def test_verdicts_are_counted_by_topic(broker: RocketMQBroker, client: Client) -> None:
    broker.topic()
    for verdict in (COMMIT, COMMIT, ROLL_BACK):
        sent = send_half(client)
        broker.clock.pass_ms(90_000)
        end(client, sent, verdict)
    assert value(broker, "rocketmq_commit_messages_total", topic="orders") == 2
    assert value(broker, "rocketmq_rollback_messages_total", topic="orders") == 1
    assert value(broker, "rocketmq_finish_message_latency_bucket", le="60.0") == 0
    assert value(broker, "rocketmq_finish_message_latency_bucket", le="600.0") == 2
    assert value(broker, "rocketmq_finish_message_latency_sum") == 180


def test_dead_letters_are_counted_by_group(broker: RocketMQBroker, client: Client) -> None:
    broker.publish(broker.topic("%DLQ%billing", 1), b"x", b"y")
    assert value(broker, "rocketmq_send_to_dlq_messages_total", consumer_group="billing") == 2


def test_sizes_of_messages_are_counted_up_to_rocketmqs_bounds(broker: RocketMQBroker, client: Client) -> None:
    broker.topic()
    for size in (1, 1024, 1025, 4096, 600 << 10):
        assert client.send(body=bytes(size)).code == 0
    bounds = (1024, 4096, 512 << 10, 1 << 20)
    found = [value(broker, "rocketmq_message_size_bucket", le=str(float(bound))) for bound in bounds]
    assert found == [2, 4, 4, 5]
    assert value(broker, "rocketmq_message_size_count") == 5
    assert value(broker, "rocketmq_message_size_sum") == sum((1, 1024, 1025, 4096, 600 << 10))


def test_latency_of_requests_ends_with_the_answer(broker: RocketMQBroker, client: Client) -> None:
    topic = broker.topic(queues=1)
    broker.publish(topic, b"x")
    client.pull(0)
    assert client.pull(1, sysFlag=6) is None  # It waits for messages.
    broker.pass_ms(50)
    broker.publish(topic, b"y")
    broker.settle()
    for name in ("rocketmq_rpc_latency", "rocketmq_rpc_latency_milliseconds"):
        at_once = {"request_code": "pull_message", "is_long_polling": "false"}
        held = at_once | {"is_long_polling": "true"}
        assert value(broker, f"{name}_bucket", le="1.0", **at_once) == 1
        assert value(broker, f"{name}_bucket", le="10.0", **held) == 0
        assert value(broker, f"{name}_bucket", le="100.0", **held) == 1
        assert value(broker, f"{name}_sum", **held) == 50


def test_tables_of_metrics_are_bounded() -> None:
    pulled, verdicts = PulledOffsets(places_max=2), VerdictCounts(topics_max=2)
    for number in range(3):
        pulled.note("billing", number, 7)
        verdicts.add(HalfDecision(HalfVerdict.COMMITTED, f"topic-{number}", 0), 1)
    assert (len(pulled), len(verdicts)) == (2, 2)
    assert [pulled.find("billing", number) for number in range(3)] == [0, 7, 7]
    assert [*verdicts.of(HalfVerdict.COMMITTED)] == [("topic-1", 1), ("topic-2", 1)]
