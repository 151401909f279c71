"""The queues of pops: priorities from high to low, retries last, and retry topics under both names."""

from typing import Any

import pytest

from duolog.bridge.config import Options, RocketmqOptions
from duolog.protocol.rocketmq.bodies import SubscriptionGroupConfig
from duolog.protocol.rocketmq.codes import RequestCode
from duolog.protocol.rocketmq.messages import message, properties
from duolog.protocol.rocketmq.messages.message import queue_offset_of
from duolog.protocol.rocketmq.messages.receipt import (
    NOT_RETRIED,
    RETRIED,
    RETRIED_V2,
    parse_receipt,
)
from tests.unit.bridge.rocketmq.broker import Client, RocketMQBroker
from tests.unit.bridge.rocketmq.popping import INVISIBLE_MS, ack, bodies_of, got, nothing, pop

BODIES = [b"%d" % number for number in range(6)]


def broker_with(*, retry_topic_v2: bool = False, disk: Any = None) -> RocketMQBroker:
    return RocketMQBroker(disk, options=Options(rocketmq=RocketmqOptions(retry_topic_v2=retry_topic_v2)))


def prioritised(client: Client, priority: object, more: str = "", **fields: object) -> Any:
    body = fields.pop("body", b"%s" % str(priority).encode())
    return client.send("urgent", body, f"{properties.PRIORITY}\x01{priority}\x02{more}", **fields)  # type: ignore[arg-type]


# -- Priorities


@pytest.fixture
def urgent(broker: RocketMQBroker) -> RocketMQBroker:
    broker.topic("urgent", queues=4, message_type="PRIORITY")
    return broker


def test_high_priorities_are_popped_before_low_ones(urgent: RocketMQBroker, client: Client) -> None:
    for priority in (0, 2, 1, 3, 0, 2):
        prioritised(client, priority)
    assert bodies_of(pop(client, topic="urgent", maxMsgNums=4)) == [b"3", b"2", b"2", b"1"]
    prioritised(client, 3)
    assert bodies_of(pop(client, topic="urgent")) == [b"3", b"0", b"0"]


def test_retries_are_the_lowest(urgent: RocketMQBroker, client: Client) -> None:
    prioritised(client, 3)
    pop(client, topic="urgent")
    urgent.pass_ms(INVISIBLE_MS)
    for _ in range(12):  # Other topics would begin with retries now and then.
        prioritised(client, 0)
        (low,) = got(pop(client, topic="urgent", maxMsgNums=1))
        assert low.body == b"0"
        assert ack(client, low).code == 0
    assert bodies_of(pop(client, topic="urgent")) == [b"3"]


def test_share_of_pops_that_go_by_priority(urgent: RocketMQBroker, client: Client) -> None:
    config = SubscriptionGroupConfig(group_name="billing", attributes={"+priority.factor": "0"})
    assert client.ask(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, config).code == 0
    for priority in range(4):
        for _ in range(4):
            prioritised(client, priority)
    firsts = {bodies_of(pop(client, topic="urgent", maxMsgNums=1))[0] for _ in range(4)}
    assert len(firsts) == 4  # They take turns.


def test_in_order_priorities_do_not_count(urgent: RocketMQBroker, client: Client) -> None:
    for body in (b"a", b"b"):
        prioritised(client, 1, body=body)
    (one,) = got(pop(client, topic="urgent", order=True, maxMsgNums=1))
    assert (one.body, one.queue_id) == (b"a", 1)


@pytest.mark.parametrize(
    ("priority", "more", "queue_id", "is_kept"),
    [
        (0, "", 0, True), (3, "", 3, True), (4, "", 3, True), ((1 << 31) - 1, "", 3, True),
        ("-1", "", 2, True), ("x", "", 2, True), (1 << 31, "", 2, True), ("٣", "", 2, True),
        (0, "__SHARDINGKEY\x01k\x02", 2, False), (0, "DELAY\x010\x02", 2, False),
    ],
)  # fmt: skip
def test_queue_of_a_priority(
    urgent: RocketMQBroker, client: Client, priority: object, more: str, queue_id: int, is_kept: bool
) -> None:
    answer = prioritised(client, priority, more, body=b"m", queueId=2)
    assert (answer.code, answer.ext["queueId"]) == (0, str(queue_id))
    (one,) = message.decode_all(bytes(client.pull(0, topic="urgent", queueId=queue_id).body))
    assert (properties.get(one.properties, properties.PRIORITY) is not None) == is_kept


def test_priority_chooses_the_queue_on_any_topic(broker: RocketMQBroker, client: Client) -> None:
    broker.topic("urgent", queues=4)
    assert prioritised(client, 3, queueId=0).ext["queueId"] == "3"


# -- Retry topics


def test_pops_make_no_topics_before_something_comes_back(broker: RocketMQBroker, client: Client) -> None:
    """Otherwise each group name in a request would create a topic."""
    broker.topic()
    count = len(broker.topics)
    for number in range(5):
        assert nothing(client, consumerGroup=f"group-{number}")
    client.send(body=b"a", queueId=0)
    assert bodies_of(pop(client)) == [b"a"]
    assert len(broker.topics) == count
    broker.pass_ms(INVISIBLE_MS)
    assert len(broker.topics) == count + 1


@pytest.mark.parametrize("sharding_key", ["", "__SHARDINGKEY\x01key\x02"])
@pytest.mark.parametrize("is_v2", [False, True])
def test_retries_go_to_the_topic_that_the_setting_names(is_v2: bool, sharding_key: str) -> None:
    broker = broker_with(retry_topic_v2=is_v2)
    client = broker.connect()
    broker.topic()
    assert client.send(body=b"a", properties=sharding_key, queueId=0).code == 0
    (one,) = got(pop(client))
    for failures in (1, 2, 3):
        broker.pass_ms(INVISIBLE_MS)
        (one,) = got(pop(client))
        receipt = parse_receipt(one.receipt)
        assert (one.topic, one.failures) == ("orders", failures)
        assert receipt.retry == (RETRIED_V2 if is_v2 else RETRIED)
    name = "%RETRY%billing" + ("+" if is_v2 else "_") + "orders"
    retry = broker.topics.by_rocketmq_name(name)
    assert retry is not None
    assert retry.queues[0].end_offset == 3
    assert ack(client, one, topic=name).code == 0
    assert len(broker.rocketmq_context.pop.checkpoints) == 0


@pytest.mark.parametrize("is_v2", [False, True])
def test_what_lies_in_the_other_retry_topic_is_popped_too(is_v2: bool) -> None:
    """The setting was changed between two runs of the broker."""
    before = broker_with(retry_topic_v2=not is_v2)
    client = before.connect()
    before.topic()
    for body in (b"a", b"b"):
        client.send(body=body, queueId=0)
    pop(client)
    before.pass_ms(INVISIBLE_MS)
    broker = broker_with(retry_topic_v2=is_v2, disk=before.disk.after_kill())
    broker.clock.set_now_ms(before.clock.now_ms())
    survivor = broker.connect()
    popped = got(pop(survivor))
    assert [(one.body, one.failures) for one in popped] == [(b"a", 1), (b"b", 1)]
    assert ack(survivor, popped[0]).code == 0
    broker.pass_ms(INVISIBLE_MS)
    assert [(one.body, one.failures) for one in got(pop(survivor))] == [(b"b", 2)]
    assert nothing(survivor)


def test_two_groups_whose_retry_topics_would_have_one_name() -> None:
    """`a` with `b_c` and `a_b` with `c`: with V2 names each gets its own messages back."""
    broker = broker_with(retry_topic_v2=True)
    client = broker.connect()
    places = [("a", "b_c"), ("a_b", "c")]
    for group, topic in places:
        broker.topic(topic)
        client.send(topic, f"{group}/{topic}".encode(), queueId=0)
        pop(client, consumerGroup=group, topic=topic)
    broker.pass_ms(INVISIBLE_MS)
    for group, topic in places:
        assert bodies_of(pop(client, consumerGroup=group, topic=topic)) == [f"{group}/{topic}".encode()]


@pytest.mark.parametrize("is_v2", [False, True])
@pytest.mark.parametrize("order", [False, True])
def test_names_that_only_messages_of_version_2_hold(is_v2: bool, order: bool) -> None:
    """A retry topic's name takes up to 255 bytes, for which version 1 of the message format has no room (127)."""
    broker = broker_with(retry_topic_v2=is_v2)
    client = broker.connect()
    group, topic = "g" * 120, "t" * 127
    fields = {"consumerGroup": group, "topic": topic}
    broker.topic(topic, queues=1)
    client.send(topic, b"a", queueId=0)
    for failures in (1, 2):
        (one,) = got(pop(client, **fields))
        assert (one.body, one.topic, one.failures) == (b"a", topic, failures - 1)
        broker.pass_ms(INVISIBLE_MS)
    (last,) = got(pop(client, order=order, **fields))
    assert (last.body, last.topic, last.failures) == (b"a", topic, 2)
    retry_topic = f"%RETRY%{group}{'+' if is_v2 else '_'}{topic}"
    assert ack(client, last, consumerGroup=group, topic=retry_topic).code == 0
    pulled = client.pull(1, topic=retry_topic, consumerGroup=group)
    (stored,) = message.decode_all(bytes(pulled.body))
    assert (bytes(stored.body), stored.topic, queue_offset_of(pulled.body)) == (b"a", retry_topic, 1)


@pytest.mark.parametrize("version", [1, 2])
def test_popped_messages_say_of_which_topic_they_are(version: int) -> None:
    broker = broker_with(retry_topic_v2=version == 2)
    client = broker.connect()
    broker.topic()
    client.send(body=b"a", queueId=0)
    (first,) = got(pop(client))
    assert parse_receipt(first.receipt).retry == NOT_RETRIED
    broker.pass_ms(INVISIBLE_MS)
    answer = pop(client)
    flag = str(version)
    assert answer.ext["startOffsetInfo"] == f"{flag} 0 0"
    assert answer.ext["msgOffsetInfo"] == f"{flag} 0 0"
