"""Requests about messages that could be popped: NOTIFICATION, PEEK_MESSAGE and POLLING_INFO."""

import gc
import tracemalloc
from typing import Any

import pytest

from duolog.bridge.config import LimitsOptions, Options
from duolog.protocol.rocketmq import remoting
from duolog.protocol.rocketmq.bodies import SubscriptionGroupConfig
from duolog.protocol.rocketmq.codes import RequestCode, ResponseCode
from tests.unit.bridge.rocketmq.broker import Client, RocketMQBroker, bodies

WAIT_MS = 5_000


@pytest.fixture
def broker() -> RocketMQBroker:
    broker = RocketMQBroker()
    broker.topic()
    return broker


def ask(client: Client, code: int, **fields: object) -> Any:
    request = {"consumerGroup": "billing", "topic": "orders", "queueId": -1, **fields}
    return client.ask(code, **request)


def pop(client: Client, **fields: object) -> Any:
    defaults = {"maxMsgNums": 32, "invisibleTime": 10_000, "pollTime": 0, "bornTime": 0, "initMode": 0, "order": False}
    return ask(client, RequestCode.POP_MESSAGE, **{**defaults, **fields})


def notify(client: Client, **fields: object) -> Any:
    return ask(client, RequestCode.NOTIFICATION, **{"pollTime": 0, "bornTime": 0, **fields})


def has_message(answer: Any) -> bool:
    assert answer is not None
    assert answer.code == 0, answer.remark
    return bool(answer.ext["hasMsg"] == "true")


def peek(client: Client, **fields: object) -> list[bytes]:
    answer = ask(client, RequestCode.PEEK_MESSAGE, **{"maxMsgNums": 32, **fields})
    assert answer.code in (0, ResponseCode.PULL_NOT_FOUND)
    assert (answer.code == 0) == bool(bodies(answer))
    return bodies(answer)


def polling(client: Client, **fields: object) -> int:
    return int(ask(client, RequestCode.POLLING_INFO, **fields).ext["pollingNum"])


def test_peeked_messages_stay_where_they_are(broker: RocketMQBroker, client: Client) -> None:
    topic = broker.topic()
    broker.publish(topic, b"a", b"b")
    broker.publish(topic, b"c", queue_id=1)
    for _ in range(2):
        assert sorted(peek(client)) == [b"a", b"b", b"c"]
    assert peek(client, queueId=0, maxMsgNums=1) == [b"a"]
    pop(client, queueId=0)
    assert peek(client) == [b"c"]
    broker.pass_ms(10_000)
    assert sorted(peek(client)) == [b"a", b"b", b"c"]  # They came back by the retry topic.
    answer = ask(client, RequestCode.PEEK_MESSAGE, maxMsgNums=1)
    assert (len(bodies(answer)), answer.ext["restNum"]) == (1, "3")


def test_notification_says_whether_there_is_anything(broker: RocketMQBroker, client: Client) -> None:
    assert not has_message(notify(client))
    broker.publish(broker.topic(), b"a", queue_id=1)
    assert has_message(notify(client))
    assert not has_message(notify(client, queueId=0))
    pop(client)
    assert not has_message(notify(client))


def test_held_notification_hears_of_what_comes(broker: RocketMQBroker) -> None:
    clients = [broker.connect() for _ in range(3)]
    for each in clients:
        assert notify(each, pollTime=WAIT_MS) is None
    clients[2].close()
    broker.publish(broker.topic(), b"a")
    assert [has_message(each.last_answer()) for each in clients[:2]] == [True, True]
    assert [each.connection.unanswered for each in clients[:2]] == [0, 0]
    assert len(broker.purgatory) == 0


def test_held_notification_hears_of_what_comes_back(broker: RocketMQBroker, client: Client) -> None:
    broker.publish(broker.topic(), b"a")
    assert pop(client, invisibleTime=1_000).code == 0
    assert notify(client, pollTime=WAIT_MS) is None
    broker.pass_ms(1_000)
    assert has_message(client.last_answer())


def test_held_notification_ends_with_its_time(broker: RocketMQBroker, client: Client) -> None:
    assert notify(client, pollTime=WAIT_MS) is None
    broker.pass_ms(WAIT_MS)
    assert not has_message(client.last_answer())


def test_without_room_to_hold_it_the_notification_says_so() -> None:
    broker = RocketMQBroker(options=Options(limits=LimitsOptions(held_bytes_max=1536)))
    broker.topic()
    answer = notify(broker.connect(), pollTime=WAIT_MS)
    assert (answer.ext["hasMsg"], answer.ext["pollingFull"]) == ("false", "true")


def test_in_order_there_is_nothing_until_all_is_acked_or_due(broker: RocketMQBroker, client: Client) -> None:
    broker.publish(broker.topic(), b"a", b"b")
    pop(client, order=True, maxMsgNums=1, attemptId="x")
    assert not has_message(notify(client, order=True))
    assert has_message(notify(client, order=True, attemptId="x"))
    broker.pass_ms(10_000)
    assert has_message(notify(client, order=True))


def test_held_pops_are_counted_by_group_and_queue(broker: RocketMQBroker, client: Client) -> None:
    for fields in ({}, {}, {"queueId": 0}, {"consumerGroup": "others"}):
        assert pop(client, pollTime=WAIT_MS, **fields) is None
    notify(client, pollTime=WAIT_MS)
    assert polling(client) == 2
    assert [polling(client, queueId=queue_id) for queue_id in (0, 1)] == [1, 0]
    broker.pass_ms(WAIT_MS)
    assert polling(client) == 0


@pytest.mark.parametrize("code", [RequestCode.PULL_MESSAGE, RequestCode.POP_MESSAGE, RequestCode.NOTIFICATION])
def test_held_requests_keep_little_of_what_they_came_with(broker: RocketMQBroker, code: RequestCode) -> None:
    """A client may have thousands of them, and any of their texts may be as long as a frame."""
    client, long = broker.connect(), "x" * 100_000
    defaults = {
        "consumerGroup": "billing", "topic": "orders", "queueId": "0", "queueOffset": "0", "maxMsgNums": "32",
        "sysFlag": "6", "commitOffset": "0", "suspendTimeoutMillis": str(WAIT_MS), "subVersion": "0",
        "subscription": "*", "invisibleTime": "10000", "pollTime": str(WAIT_MS), "exp": "*",
    }  # fmt: skip
    gc.disable()  # So that all objects of the test are of the youngest generation, and `collect` takes no longer.
    tracemalloc.start()
    try:
        for where in ("remark", "language", "attemptId", "expType", "noSuchField"):
            asked = remoting.request(code, 1, {**defaults, where: long})
            if where in ("remark", "language"):
                setattr(asked, where, long)
            client.say(asked)
        del asked
        gc.collect(0)
        held = sum(each.size for each in tracemalloc.take_snapshot().traces if each.size > len(long) // 2)
    finally:
        tracemalloc.stop()
        gc.enable()
    assert held == 0


@pytest.mark.parametrize("code", [RequestCode.PULL_MESSAGE, RequestCode.POP_MESSAGE, RequestCode.NOTIFICATION])
def test_one_connection_holds_only_so_many_bytes_of_requests(code: RequestCode) -> None:
    broker = RocketMQBroker(options=Options(limits=LimitsOptions(connection_held_bytes_max=3072)))
    broker.topic()
    defaults = {"queueId": 0, "queueOffset": 0, "sysFlag": 6, "maxMsgNums": 32, "commitOffset": 0, "subVersion": 0}
    waits = {"suspendTimeoutMillis": WAIT_MS, "pollTime": WAIT_MS, "bornTime": 0, "invisibleTime": 60_000}
    client = broker.connect()
    held = [ask(client, code, **defaults, **waits, initMode=0, subscription="*") for _ in range(3)]
    assert held[0] is None
    assert held[2] is not None
    assert ask(broker.connect(), code, **defaults, **waits, initMode=0, subscription="*") is None
    broker.pass_ms(WAIT_MS + 1)
    assert client.connection.held_bytes == broker.purgatory.held_bytes == len(client.connection.held) == 0
    waits["bornTime"] = broker.clock.now_ms()
    assert ask(client, code, **defaults, **waits, initMode=0, subscription="*") is None


@pytest.mark.parametrize("code", [RequestCode.PULL_MESSAGE, RequestCode.POP_MESSAGE, RequestCode.NOTIFICATION])
def test_held_requests_hear_at_once_that_their_topic_is_deleted(broker: RocketMQBroker, code: RequestCode) -> None:
    client, defaults = (
        broker.connect(),
        {"queueId": 0, "queueOffset": 0, "sysFlag": 6, "maxMsgNums": 32, "commitOffset": 0},
    )
    broker.topic()
    broker.topic("other")
    waits = {
        "suspendTimeoutMillis": WAIT_MS,
        "pollTime": WAIT_MS,
        "bornTime": 0,
        "invisibleTime": 60_000,
        "initMode": 0,
    }
    assert ask(client, code, **defaults, **waits, subVersion=0, subscription="*") is None
    broker.connect().ask(RequestCode.DELETE_TOPIC_IN_BROKER, topic="other")
    assert client.last_answer() is None
    broker.connect().ask(RequestCode.DELETE_TOPIC_IN_BROKER, topic="orders")
    broker.settle()
    answer = client.last_answer()
    assert answer is not None
    assert (answer.code, "topic[orders] not exist" in answer.remark) == (ResponseCode.TOPIC_NOT_EXIST, True)
    assert (client.connection.unanswered, len(broker.purgatory), len(client.connection.held)) == (0, 0, 0)


@pytest.mark.parametrize("code", [RequestCode.NOTIFICATION, RequestCode.PEEK_MESSAGE, RequestCode.POLLING_INFO])
@pytest.mark.parametrize(
    ("fields", "refusal"),
    [
        ({"topic": "none"}, ResponseCode.TOPIC_NOT_EXIST),
        ({"topic": "unread"}, ResponseCode.NO_PERMISSION),
        ({"queueId": 2}, ResponseCode.INVALID_PARAMETER),
        ({"queueId": -2}, ResponseCode.INVALID_PARAMETER),
        ({"consumerGroup": "a b"}, ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST),
        ({"consumerGroup": "stopped"}, ResponseCode.NO_PERMISSION),
        ({"consumerGroup": "kafkas"}, ResponseCode.SUBSCRIPTION_NOT_EXIST),
    ],
)
def test_refused(broker: RocketMQBroker, client: Client, code: int, fields: dict[str, object], refusal: int) -> None:
    broker.topics.permit(broker.topic("unread"), 2, broker.clock.now_ms())
    broker.rocketmq_context.groups.configs.configure(
        SubscriptionGroupConfig(group_name="stopped", consume_enable=False), broker.clock.now_ms()
    )
    broker.kafka_groups_with_members.add("kafkas")
    defaults = {"pollTime": 0, "bornTime": 0, "maxMsgNums": 1, **fields}
    assert ask(client, code, **defaults).code == refusal


@pytest.mark.parametrize("count", [0, -1, 33])
def test_so_many_are_not_peeked(client: Client, count: int) -> None:
    assert ask(client, RequestCode.PEEK_MESSAGE, maxMsgNums=count).code == ResponseCode.INVALID_PARAMETER
