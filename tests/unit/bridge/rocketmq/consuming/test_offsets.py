"""The requests about offsets of queues and committed offsets of groups."""

import pytest

from duolog.protocol.rocketmq.codes import RequestCode, ResponseCode
from tests.unit.bridge.rocketmq.broker import Client, RocketMQBroker

MAX, MIN, SEARCH = RequestCode.GET_MAX_OFFSET, RequestCode.GET_MIN_OFFSET, RequestCode.SEARCH_OFFSET_BY_TIMESTAMP
EARLIEST, QUERY = RequestCode.GET_EARLIEST_MSG_STORETIME, RequestCode.QUERY_CONSUMER_OFFSET
UPDATE = RequestCode.UPDATE_CONSUMER_OFFSET
AT = {"topic": "orders", "queueId": 0}
POSITION = {**AT, "consumerGroup": "billing"}


# -- Of queues


def test_ends_of_a_queue(broker: RocketMQBroker, client: Client) -> None:
    topic = broker.topic()
    assert (client.ask(MIN, **AT).ext, client.ask(MAX, **AT).ext) == ({"offset": "0"}, {"offset": "0"})
    broker.publish(topic, b"a", b"b", b"c")
    broker.store.retention.trim(topic.queues[0], 1, broker.clock.now_ms())
    assert (client.ask(MIN, **AT).ext, client.ask(MAX, **AT).ext) == ({"offset": "1"}, {"offset": "3"})


@pytest.mark.parametrize("where", [{"topic": "nowhere", "queueId": 0}, {"topic": "orders", "queueId": 9}])
def test_queue_that_is_not_there_is_empty(broker: RocketMQBroker, client: Client, where: dict[str, object]) -> None:
    broker.topic()
    answers = [client.ask(code, **where) for code in (MIN, MAX)] + [client.ask(SEARCH, **where, timestamp=1)]
    assert [(answer.code, answer.ext) for answer in answers] == [(0, {"offset": "0"})] * 3
    assert client.ask(EARLIEST, **where).ext == {"timestamp": "-1"}


@pytest.mark.parametrize(
    ("at", "lower", "upper"),
    [(-1000, 1, 1), (0, 1, 1), (10, 1, 1), (11, 2, 1), (20, 2, 2), (25, 3, 2), (30, 3, 3), (31, 4, 3), (10**15, 4, 3)],
)
def test_offset_by_store_time(broker: RocketMQBroker, client: Client, at: int, lower: int, upper: int) -> None:
    """Messages 0 to 3 are stored at 0, 10, 20 and 30 ms; the first was removed."""
    topic, start_ms = broker.topic(), broker.clock.now_ms()
    for body in (b"a", b"b", b"c", b"d"):
        broker.publish(topic, body)
        broker.clock.pass_ms(10)
    broker.store.retention.trim(topic.queues[0], 1, broker.clock.now_ms())
    found = [client.ask(SEARCH, **AT, timestamp=start_ms + at, boundaryType=kind) for kind in ("LOWER", "UPPER", None)]
    assert [answer.ext["offset"] for answer in found] == [str(lower), str(upper), str(lower)]
    assert client.ask(EARLIEST, **AT).ext == {"timestamp": str(start_ms + 10)}


# -- Of groups


def test_position_is_given_back_and_survives(broker: RocketMQBroker, client: Client) -> None:
    broker.topic()
    assert client.ask(UPDATE, **POSITION, commitOffset=7).code == 0
    assert client.ask(QUERY, **POSITION).ext == {"offset": "7"}
    again = RocketMQBroker(broker.disk.after_kill())
    assert again.connect().ask(QUERY, **POSITION).ext == {"offset": "7"}


def test_answered_position_is_durable_first_and_a_one_way_one_is_collected(
    broker: RocketMQBroker, client: Client
) -> None:
    topic = broker.topic()
    client.ask(UPDATE, **POSITION, commitOffset=1)
    broker.is_stalled = True
    assert client.ask(UPDATE, **POSITION, commitOffset=2) is None
    broker.settle()
    assert client.last_answer().code == 0
    units = broker.store.next_position
    client.ask(UPDATE, **POSITION, commitOffset=3, oneway=True)
    client.ask(UPDATE, **POSITION, commitOffset=4, oneway=True)
    assert (broker.store.next_position, broker.group_offsets.fetch("billing", topic.key(0)).offset) == (units, 2)
    assert client.ask(QUERY, **POSITION) is None  # what it reports is not durable yet
    broker.settle()
    assert client.last_answer().ext == {"offset": "4"}


@pytest.mark.parametrize(
    ("trimmed", "fields", "code"),
    [
        (0, {}, 0),
        (0, {"setZeroIfNotFound": False}, ResponseCode.QUERY_NOT_FOUND),
        (0, {"setZeroIfNotFound": True}, 0),
        (1, {}, ResponseCode.QUERY_NOT_FOUND),
        (1, {"setZeroIfNotFound": True}, ResponseCode.QUERY_NOT_FOUND),
        (0, {"topic": "nowhere"}, ResponseCode.TOPIC_NOT_EXIST),
        (0, {"queueId": 2}, ResponseCode.INVALID_PARAMETER),
    ],
)
def test_new_group_counts_as_old_as_a_queue_that_lost_nothing(
    broker: RocketMQBroker, client: Client, trimmed: int, fields: dict[str, object], code: int
) -> None:
    topic = broker.topic()
    broker.publish(topic, b"a", b"b")
    broker.store.retention.trim(topic.queues[0], trimmed, broker.clock.now_ms())
    answer = client.ask(QUERY, **{**POSITION, **fields})
    assert (answer.code, answer.ext) == (code, {} if code else {"offset": "0"})


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"topic": "nowhere"}, ResponseCode.TOPIC_NOT_EXIST),
        ({"queueId": -1}, ResponseCode.INVALID_PARAMETER),
        ({"commitOffset": -1}, ResponseCode.INVALID_PARAMETER),
        ({"commitOffset": None}, ResponseCode.SYSTEM_ERROR),
        ({"consumerGroup": "a b"}, ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST),
        ({"consumerGroup": "of-kafka"}, ResponseCode.NO_PERMISSION),
    ],
)
def test_positions_that_are_refused(
    broker: RocketMQBroker, client: Client, fields: dict[str, object], code: int
) -> None:
    broker.topic()
    broker.kafka_groups_with_members.add("of-kafka")
    request = {**POSITION, "commitOffset": 1, **fields}
    assert client.ask(UPDATE, **request).code == code
    assert client.ask(UPDATE, **request, oneway=True) is None
    assert broker.metrics.dropped_commits["rocketmq"] == (request["consumerGroup"] == "of-kafka")


def test_positions_are_one_table_with_kafka(broker: RocketMQBroker, client: Client) -> None:
    topic = broker.topic()
    client.ask(UPDATE, **{**POSITION, "consumerGroup": "team%billing"}, commitOffset=5)
    assert broker.group_offsets.fetch("team..billing", topic.key(0)).offset == 5
