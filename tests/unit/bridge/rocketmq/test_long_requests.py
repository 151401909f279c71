"""Long requests run in slices between which the loop turns, and lists in requests are limited.

Work is counted, not timed: a step writes ROWS_AT_ONCE rows, so an answer of many rows takes so many turns.
"""

import base64
from collections.abc import Callable

import pytest

from duolog.bridge.records.groups import CommittedOffset
from duolog.bridge.rocketmq.admin import broker_settings, groups, inspection, topics
from duolog.bridge.rocketmq.consuming import change_notifications
from duolog.bridge.rocketmq.requests import json_answers
from duolog.bridge.rocketmq.requests.admission import Kind
from duolog.protocol.rocketmq.bodies import (
    BatchAck,
    BatchAckRequest,
    LockRequest,
    SubscriptionGroupConfig,
)
from duolog.protocol.rocketmq.codes import RequestCode, ResponseCode
from duolog.protocol.rocketmq.json.fastjson import MessageQueue
from tests.unit.bridge.rocketmq.broker import Client, RocketMQBroker, read

COUNT = 30


@pytest.fixture(autouse=True)
def small_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """One row, group or queue a step, so that few of them make many steps."""
    for module, name in (
        (json_answers, "ROWS_AT_ONCE"), (inspection, "GROUPS_AT_ONCE"), (inspection, "STATS_AT_ONCE"),
        (inspection, "QUEUES_AT_ONCE"), (topics, "QUEUES_AT_ONCE"), (groups, "GROUPS_AT_ONCE"),
        (broker_settings, "STORED_AT_ONCE"),
        (change_notifications, "CONNECTIONS_AT_ONCE"),
    ):  # fmt: skip
        monkeypatch.setattr(module, name, 1)


@pytest.fixture
def broker() -> RocketMQBroker:
    broker = RocketMQBroker()
    for number in range(COUNT):
        topic, now_ms = broker.topic(f"t{number}"), broker.clock.now_ms()
        broker.rocketmq_context.groups.configs.ensure(f"g{number}", now_ms)
        broker.state_log.commit(
            broker.group_offsets.records(f"g{number}", [CommittedOffset(topic.key(0), 0)], now_ms), 0
        )
    for number in range(COUNT):
        broker.connect().beat("crowd", client_id=str(number))
    broker.settle()
    return broker


def turns_until_answered(client: Client, code: int, body: bytes = b"", **ext: object) -> int:
    turns = 0
    loop = client.broker.loop
    turn: Callable[[], None] = loop.turn
    loop.turn = lambda: None  # type: ignore[method-assign]
    answer = client.ask(code, body, **ext)
    while answer is None:
        turns += 1
        loop._soon.popleft()()
        client.broker.server.flush()
        answer = client.last_answer()
    loop.turn = turn  # type: ignore[method-assign]
    assert answer.code == 0, answer.remark
    return turns


LONG: list[tuple[int, dict[str, object]]] = [
    (RequestCode.GET_ALL_TOPIC_CONFIG, {}),
    (RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG, {}),
    (RequestCode.GET_BROKER_CONSUME_STATS, {"isOrder": "false"}),
    (RequestCode.GET_ALL_PRODUCER_INFO, {}),
    (RequestCode.GET_CONSUMER_CONNECTION_LIST, {"consumerGroup": "crowd"}),
    (RequestCode.GET_PRODUCER_CONNECTION_LIST, {"producerGroup": "shop"}),
    (RequestCode.QUERY_TOPIC_CONSUME_BY_WHO, {"topic": "t1"}),
    (RequestCode.VIEW_BROKER_STATS_DATA, {"statsName": "BROKER_PUT_NUMS", "statsKey": "DefaultCluster"}),
    (RequestCode.GET_BROKER_RUNTIME_INFO, {}),
]


@pytest.mark.parametrize(("code", "ext"), LONG)
def test_long_listings_let_others_have_their_turn(broker: RocketMQBroker, code: int, ext: dict[str, object]) -> None:
    assert turns_until_answered(broker.connect(), code, **ext) >= COUNT


def test_requests_of_a_kind_wait_for_the_long_one_and_other_kinds_do_not(broker: RocketMQBroker) -> None:
    client, other = broker.connect(), broker.connect()
    loop, turn = broker.loop, broker.loop.turn
    loop.turn = lambda: None  # type: ignore[method-assign]
    assert client.ask(RequestCode.GET_ALL_TOPIC_CONFIG) is None
    assert other.ask(RequestCode.GET_TOPIC_CONFIG, topic="t1") is None
    assert other.connection.unanswered == 1
    other.send("t1")
    assert len(broker.rocketmq_context.requests.background_queues[Kind.ADMIN]) == 1
    loop.turn = turn  # type: ignore[method-assign]
    loop.turn()
    broker.settle()
    assert (
        len(broker.rocketmq_context.requests.background_queues[Kind.ADMIN])
        == sum(broker.rocketmq_context.requests.admission.in_work)
        == 0
    )


def test_long_request_whose_client_leaves_is_dropped(broker: RocketMQBroker) -> None:
    client = broker.connect()
    loop, turn = broker.loop, broker.loop.turn
    loop.turn = lambda: None  # type: ignore[method-assign]
    assert client.ask(RequestCode.GET_ALL_TOPIC_CONFIG) is None
    client.connection.close("")
    loop.turn = turn  # type: ignore[method-assign]
    loop.turn()
    assert sum(broker.rocketmq_context.requests.admission.in_work) == 0
    answer = broker.connect().ask(RequestCode.GET_ALL_TOPIC_CONFIG)
    assert answer is not None
    assert len(read(answer)["topicConfigTable"]) == len(broker.topics)


def test_answer_over_the_limit_is_refused(broker: RocketMQBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(json_answers, "ANSWER_BYTES_MAX", 1000)
    answer = broker.connect().ask(RequestCode.GET_ALL_TOPIC_CONFIG)
    assert answer is not None
    assert (answer.code, "more than 1000 bytes" in answer.remark) == (ResponseCode.SYSTEM_ERROR, True)


def test_lists_of_topics_are_made_in_steps(broker: RocketMQBroker) -> None:
    topics = ",".join(f'{{"topicName":"n{number}"}}' for number in range(COUNT))
    groups = ",".join(f'{{"groupName":"n{number}"}}' for number in range(COUNT))
    for code, body in (
        (RequestCode.UPDATE_AND_CREATE_TOPIC_LIST, f'{{"topicConfigList":[{topics}]}}'),
        (RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST, f'{{"groupConfigList":[{groups}]}}'),
    ):
        assert turns_until_answered(broker.connect(), code, body.encode()) >= COUNT
    assert broker.topics.get(f"n{COUNT - 1}") is not None
    assert broker.rocketmq_context.groups.configs.get(f"n{COUNT - 1}") is not None


def test_members_of_a_large_group_are_notified_in_slices_and_once_of_many_changes(broker: RocketMQBroker) -> None:
    member = broker.connect()
    member.beat("crowd", client_id="first")
    member.notified()
    loop, turn = broker.loop, broker.loop.turn
    loop.turn = lambda: None  # type: ignore[method-assign]
    for number in range(5):
        broker.connect().beat("crowd", client_id=f"more{number}")
    loop.turn = turn  # type: ignore[method-assign]
    loop.turn()
    broker.settle()
    assert member.notified() == ["crowd"] * 2  # The round that was on its way, and one more.


@pytest.mark.parametrize(
    ("code", "body", "says"),
    [
        (
            RequestCode.BATCH_ACK_MESSAGE,
            BatchAckRequest(acks=[BatchAck(group="g", topic="t1", bits="AQ==")] * 4097),
            "4097 acks in one request; 4096 are allowed",
        ),
        (
            RequestCode.LOCK_BATCH_MQ,
            LockRequest(consumer_group="g", client_id="c", mq_set=[MessageQueue("t1")] * 5001),
            "5001 queues; 5000 are allowed",
        ),
        (
            RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP,
            SubscriptionGroupConfig(group_name="g", attributes={f"+{number}": "" for number in range(129)}),
            "129 attributes; 128 are allowed",
        ),
    ],
)
def test_long_lists_in_requests_are_refused_before_they_are_parsed(
    broker: RocketMQBroker, code: int, body: BatchAckRequest, says: str
) -> None:
    answer = broker.connect().ask(code, body)
    assert answer is not None
    assert (answer.code, says in answer.remark) == (ResponseCode.INVALID_PARAMETER, True)


def test_bits_of_acks_cost_what_is_pending_and_not_what_they_say(broker: RocketMQBroker) -> None:
    """8,192 bits of each of 300 acks that name no pop: they are not processed, which took a second."""
    bits = base64.b64encode(b"\xff" * 1024).decode()
    acks = [BatchAck(group="g", topic="t1", bits=bits)] * 300
    tried = broker.rocketmq_context.pop.checkpoints.find
    asked = []
    broker.rocketmq_context.pop.checkpoints.find = lambda name: asked.append(name) or tried(name)  # type: ignore[method-assign,func-returns-value]
    answer = broker.connect().ask(RequestCode.BATCH_ACK_MESSAGE, BatchAckRequest(acks=acks))
    assert answer is not None
    assert (answer.code, len(asked)) == (0, 300)
