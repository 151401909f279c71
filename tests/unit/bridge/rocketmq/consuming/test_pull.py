"""Pulls from a real store: the answer for each offset, and that a held pull ends once, by data or by time."""

import pytest

from duolog.protocol.kafka import batch_builder
from duolog.protocol.kafka.record_batch import Record
from duolog.protocol.rocketmq.bodies import SubscriptionGroupConfig
from duolog.protocol.rocketmq.codes import RequestCode, ResponseCode
from tests.unit.bridge.rocketmq.broker import Client, RocketMQBroker, bodies

FOUND, NOT_FOUND = ResponseCode.SUCCESS, ResponseCode.PULL_NOT_FOUND
AGAIN, MOVED = ResponseCode.PULL_RETRY_IMMEDIATELY, ResponseCode.PULL_OFFSET_MOVED
SUSPEND, COMMIT, SUBSCRIPTION = 2, 1, 4


# -- Where the offset is


@pytest.mark.parametrize(
    ("sent", "trimmed", "offset", "code", "next_offset", "found"),
    [
        (0, 0, 0, NOT_FOUND, 0, 0),  # nothing was ever sent
        (0, 0, 7, MOVED, 0, 0),
        (0, 0, -1, MOVED, 0, 0),
        (5, 0, 0, FOUND, 5, 5),
        (5, 0, 3, FOUND, 5, 2),
        (5, 0, 5, NOT_FOUND, 5, 0),
        (5, 0, 6, MOVED, 5, 0),
        (5, 2, 0, MOVED, 2, 0),
        (5, 2, 2, FOUND, 5, 3),
        (5, 5, 4, MOVED, 5, 0),  # all has expired
        (5, 5, 5, NOT_FOUND, 5, 0),
    ],
)
def test_offset_decides_the_answer(
    broker: RocketMQBroker,
    client: Client,
    sent: int,
    trimmed: int,
    offset: int,
    code: int,
    next_offset: int,
    found: int,
) -> None:
    topic = broker.topic()
    broker.publish(topic, *(b"%d" % n for n in range(sent)))
    broker.store.retention.trim(topic.queues[0], trimmed, broker.clock.now_ms())
    answer = client.pull(offset)
    assert (answer.code, answer.ext["nextBeginOffset"], len(bodies(answer))) == (code, str(next_offset), found)
    assert (answer.ext["minOffset"], answer.ext["maxOffset"]) == (str(trimmed), str(sent))
    assert answer.ext["suggestWhichBrokerId"] == "0"


@pytest.mark.parametrize(
    ("fields", "found"),
    [
        ({"maxMsgNums": 2}, 2),
        ({"maxMsgNums": 0}, 1),
        ({"maxMsgNums": -1}, 1),
        ({"maxMsgBytes": 1}, 1),  # one always fits
        ({"maxMsgBytes": 2500}, 2),
        ({"maxMsgBytes": -1}, 5),
        ({"maxMsgNums": 2_000_000_000}, 5),
    ],
)
def test_limits_of_one_pull(broker: RocketMQBroker, client: Client, fields: dict[str, int], found: int) -> None:
    broker.publish(broker.topic(), *[bytes(1000)] * 5)
    assert len(bodies(client.pull(0, **fields))) == found


@pytest.mark.parametrize("json", [True, False])
def test_records_leave_as_they_lie_in_the_log(broker: RocketMQBroker, client: Client, json: bool) -> None:
    topic = broker.topic()
    broker.publish(topic, b"a", b"b")
    stored = b"".join(bytes(e.frame) for e in broker.store.reader.read(topic.queues[0], 0, max_bytes=1 << 20, until=2))
    assert bytes(client.pull(0, json=json).body) == stored


def test_records_of_kafka_come_in_rocketmqs_form(broker: RocketMQBroker, client: Client) -> None:
    topic = broker.topic()
    records = [Record(n, 1, b"k", b"v%d" % n, [("TAGS", b"ab"[n : n + 1])]) for n in range(2)]
    batch = bytes(batch_builder.build(records, base_offset=0, leader_epoch=0))
    broker.publisher.publish_batch(topic, 0, batch, broker.clock.now_ms())
    broker.settle()
    assert bodies(client.pull(0)) == [b"v0", b"v1"]
    assert bodies(client.pull(1)) == [b"v1"]
    assert bodies(client.pull(0, subscription="b")) == [b"v1"]


def test_what_is_not_in_memory_is_answered_when_it_is_read(broker: RocketMQBroker, client: Client) -> None:
    broker.publish(broker.topic(), b"a", b"b")
    cold = RocketMQBroker(broker.disk.after_kill())
    cold.disk.cached = False
    reads: list[object] = []
    cold.store.executors.readers = Reads(reads)
    reader = cold.connect()
    assert reader.pull(0) is None
    assert reader.connection.unanswered == 1
    cold.store.executors.readers.run()
    cold.settle()
    answer = reader.last_answer()
    assert bodies(answer) == [b"a", b"b"]
    assert reader.connection.unanswered == 0


def test_pull_whose_topic_is_deleted_while_it_is_read_is_refused(broker: RocketMQBroker, client: Client) -> None:
    broker.publish(broker.topic(), b"a")
    cold = RocketMQBroker(broker.disk.after_kill())
    cold.disk.cached = False
    cold.store.executors.readers = Reads([])
    reader = cold.connect()
    assert reader.pull(0) is None
    cold.topics.delete(cold.topic(), cold.clock.now_ms())
    cold.store.executors.readers.run()
    cold.settle()
    assert reader.last_answer().code == ResponseCode.TOPIC_NOT_EXIST


class Reads:
    """An executor that runs its work when the test calls it."""

    def __init__(self, waiting: list) -> None:
        self.waiting = waiting

    def submit(self, run, done) -> None:
        self.waiting.append((run, done))

    def run(self) -> None:
        while self.waiting:
            run, done = self.waiting.pop()
            done(run())


@pytest.mark.parametrize(
    "subscription", [{"subscription": "b"}, {"expressionType": "SQL92", "subscription": "TAGS = 'b'"}]
)
def test_held_pull_sleeps_on_over_what_is_not_wanted(
    broker: RocketMQBroker, client: Client, subscription: dict[str, str]
) -> None:
    topic = broker.topic()
    assert client.pull(0, sysFlag=SUSPEND | SUBSCRIPTION, **subscription) is None
    broker.publish(topic, b"1", b"2", tag="a")
    assert client.last_answer() is None
    broker.publish(topic, b"3", tag="b")
    answer = client.last_answer()
    assert (answer.code, bodies(answer), answer.ext["nextBeginOffset"]) == (FOUND, [b"3"], "3")


# -- Who may read what


@pytest.mark.parametrize(
    ("fields", "code", "remark"),
    [
        ({"topic": "nowhere"}, ResponseCode.TOPIC_NOT_EXIST, "topic[nowhere] not exist"),
        ({"queueId": 2}, ResponseCode.INVALID_PARAMETER, "queueId[2] is illegal"),
        ({"queueId": -1}, ResponseCode.INVALID_PARAMETER, "queueId[-1] is illegal"),
        ({"consumerGroup": "a.b"}, ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, "[a.b] does not exist"),
        ({"consumerGroup": "closed"}, ResponseCode.NO_PERMISSION, "subscription group no permission"),
        ({"topic": "writeonly"}, ResponseCode.NO_PERMISSION, "pulling message is forbidden"),
        ({"subscription": "||"}, ResponseCode.SUBSCRIPTION_PARSE_FAILED, "names no tag"),
        (
            {"expressionType": "SQL92", "subscription": "price > > 5"},
            ResponseCode.SUBSCRIPTION_PARSE_FAILED,
            "SQL92 expression, character 9: unexpected '>'",
        ),
        (
            {"expressionType": "GROOVY", "subscription": "x"},
            ResponseCode.SYSTEM_ERROR,
            "does not support consumer to filter message by GROOVY",
        ),
        ({"queueOffset": None}, ResponseCode.SYSTEM_ERROR, "the custom field <queueOffset> is null"),
        ({"queueOffset": "x"}, ResponseCode.SYSTEM_ERROR, "the custom field <queueOffset> is illegal"),
        ({"sysFlag": 0}, ResponseCode.SUBSCRIPTION_NOT_EXIST, "the consumer's subscription not exist"),
    ],
)
def test_refusals(broker: RocketMQBroker, client: Client, fields: dict[str, object], code: int, remark: str) -> None:
    broker.topic()
    broker.topics.permit(broker.topic("writeonly"), 2, broker.clock.now_ms())
    broker.rocketmq_context.groups.configs.configure(
        SubscriptionGroupConfig(group_name="closed", consume_enable=False), broker.clock.now_ms()
    )
    answer = client.pull(0, **fields)
    assert answer.code == code
    assert remark in answer.remark


def test_without_its_own_subscription_a_pull_uses_the_heartbeats(broker: RocketMQBroker, client: Client) -> None:
    broker.publish(broker.topic(), b"a")
    client.beat("billing", expression="b")
    assert client.pull(0, sysFlag=0, subVersion=1).code == AGAIN
    assert client.pull(0, sysFlag=0, subVersion=2).code == ResponseCode.SUBSCRIPTION_NOT_LATEST
    client.beat("billing", version=2)
    assert client.pull(0, sysFlag=0, subVersion=2).code == FOUND
    assert client.pull(0, sysFlag=0, subVersion=3).code == FOUND  # an older one that wants all
    assert client.pull(0, sysFlag=0, topic="TBW102").code == ResponseCode.SUBSCRIPTION_NOT_EXIST


# -- Tags


def test_only_wanted_tags_come_and_the_rest_is_passed(broker: RocketMQBroker, client: Client) -> None:
    topic = broker.topic()
    for body, tag in ((b"1", "a"), (b"2", "b"), (b"3", ""), (b"4", "a")):
        broker.publish(topic, body, tag=tag)
    answer = client.pull(0, subscription="a || c")
    assert (bodies(answer), answer.ext["nextBeginOffset"]) == ([b"1", b"4"], "4")
    answer = client.pull(0, subscription="c")
    assert (answer.code, answer.ext["nextBeginOffset"]) == (AGAIN, "4")


# -- Long polls


def test_held_pull_is_answered_by_the_first_message(broker: RocketMQBroker, client: Client) -> None:
    topic = broker.topic()
    assert client.pull(0, sysFlag=SUSPEND | SUBSCRIPTION) is None
    broker.publish(topic, b"other", queue_id=1)
    assert client.last_answer() is None
    broker.publish(topic, b"a")
    assert bodies(client.last_answer()) == [b"a"]
    assert (len(broker.purgatory), client.connection.unanswered, client.connection.held) == (0, 0, set())


def test_held_pull_ends_with_its_time(broker: RocketMQBroker, client: Client) -> None:
    broker.topic()
    assert client.pull(0, sysFlag=SUSPEND | SUBSCRIPTION, suspendTimeoutMillis=15_000) is None
    broker.pass_ms(14_999)
    assert client.last_answer() is None
    broker.pass_ms(1)
    answer = client.last_answer()
    assert (answer.code, answer.ext["nextBeginOffset"], bytes(answer.body)) == (NOT_FOUND, "0", b"")
    assert (client.connection.unanswered, client.connection.held) == (0, set())


def test_held_pull_sleeps_on_over_unwanted_messages(broker: RocketMQBroker, client: Client) -> None:
    topic = broker.topic()
    assert client.pull(0, sysFlag=SUSPEND | SUBSCRIPTION, subscription="a") is None
    broker.publish(topic, b"1", b"2", tag="b")
    assert client.last_answer() is None
    broker.pass_ms(15_000)
    answer = client.last_answer()
    assert (answer.code, answer.ext["nextBeginOffset"]) == (AGAIN, "2")
    assert client.pull(2, sysFlag=SUSPEND | SUBSCRIPTION, subscription="a") is None
    broker.publish(topic, b"3", tag="b")
    broker.publish(topic, b"4", tag="a")
    assert bodies(client.last_answer()) == [b"4"]


def test_what_is_not_durable_wakes_nobody(broker: RocketMQBroker, client: Client) -> None:
    broker.topic()
    assert client.pull(0, sysFlag=SUSPEND | SUBSCRIPTION) is None
    broker.is_stalled = True
    assert broker.connect().send() is None
    assert client.last_answer() is None
    broker.settle()
    assert bodies(client.last_answer()) == [b"body"]


def test_pull_whose_start_is_removed_is_answered_with_the_new_start(broker: RocketMQBroker, client: Client) -> None:
    topic = broker.topic()
    broker.publish(topic, b"1", b"2")
    assert client.pull(2, sysFlag=SUSPEND | SUBSCRIPTION, subscription="a") is None
    broker.publish(topic, b"3", tag="b")
    broker.store.retention.trim(topic.queues[0], 3, broker.clock.now_ms())
    broker.publish(topic, b"4", tag="a")
    assert bodies(client.last_answer()) == [b"4"]  # It had passed on to 3 by itself.


def test_closed_connection_lets_its_pulls_go(broker: RocketMQBroker, client: Client) -> None:
    broker.topic()
    client.pull(0, sysFlag=SUSPEND | SUBSCRIPTION)
    client.pull(0, sysFlag=SUSPEND | SUBSCRIPTION, queueId=1)
    assert len(broker.purgatory) == 2
    client.close()
    assert len(broker.purgatory) == 0


def test_nothing_waits_behind_a_held_pull(broker: RocketMQBroker, client: Client) -> None:
    broker.topic()
    assert client.pull(0, sysFlag=SUSPEND | SUBSCRIPTION) is None
    assert client.ask(RequestCode.GET_MAX_OFFSET, topic="orders", queueId=0).code == 0


# -- Positions that come along


def test_position_comes_along_once(broker: RocketMQBroker, client: Client) -> None:
    topic = broker.topic()
    assert client.pull(0, sysFlag=SUSPEND | SUBSCRIPTION | COMMIT, commitOffset=0) is None
    asked = {"consumerGroup": "billing", "topic": "orders", "queueId": 0}
    client.ask(RequestCode.UPDATE_CONSUMER_OFFSET, **asked, commitOffset=1)
    broker.publish(topic, b"a", b"b")
    assert client.ask(RequestCode.QUERY_CONSUMER_OFFSET, **asked).ext["offset"] == "1"
    assert client.pull(7, sysFlag=SUBSCRIPTION | COMMIT, commitOffset=2).code == MOVED
    assert client.ask(RequestCode.QUERY_CONSUMER_OFFSET, **asked).ext["offset"] == "2"


def test_position_of_a_group_that_is_active_in_kafka_is_dropped(broker: RocketMQBroker, client: Client) -> None:
    topic = broker.topic()
    broker.kafka_groups_with_members.add("billing")
    client.pull(0, sysFlag=SUBSCRIPTION | COMMIT, commitOffset=2)
    broker.pass_ms(2000)
    assert broker.group_offsets.fetch("billing", topic.key(0)) is None
    assert broker.metrics.dropped_commits["rocketmq"] == 1


# -- Bounds


def test_too_many_requests_in_work_are_answered_busy(broker: RocketMQBroker, client: Client) -> None:
    broker.topic()
    answers = [client.pull(0, sysFlag=SUSPEND | SUBSCRIPTION) for _ in range(10)]
    assert [answer and answer.code for answer in answers] == [None] * 8 + [ResponseCode.SYSTEM_BUSY] * 2


def test_full_purgatory_answers_at_once(broker: RocketMQBroker, client: Client) -> None:
    broker.purgatory._bytes_max = 2048
    broker.topic()
    assert client.pull(0, sysFlag=SUSPEND | SUBSCRIPTION) is None
    assert client.pull(0, sysFlag=SUSPEND | SUBSCRIPTION).code == NOT_FOUND
