"""Messages that consumers send back: their topic, their fields, and redriving dead letters."""

import asyncio
from typing import Any

import pytest

from duolog.bridge.rocketmq.retry.redrive import RedriveRefused, redrive
from duolog.protocol.kafka import batch_builder
from duolog.protocol.kafka.record_batch import Record
from duolog.protocol.rocketmq.bodies import GroupRetryPolicy, LockRequest, SubscriptionGroupConfig
from duolog.protocol.rocketmq.codes import RequestCode, ResponseCode
from duolog.protocol.rocketmq.json.fastjson import MessageQueue
from duolog.protocol.rocketmq.messages import flags, message, properties
from duolog.protocol.rocketmq.messages.message import Message
from duolog.protocol.rocketmq.messages.message_id import message_id
from tests.kit.sockets import HOST
from tests.unit.bridge.rocketmq.broker import Client, RocketMQBroker

BACK = RequestCode.CONSUMER_SEND_MSG_BACK
RETRY, DEAD = "%RETRY%billing", "%DLQ%billing"


def stored(broker: RocketMQBroker, topic: str) -> list[Message]:
    found = broker.topics.by_rocketmq_name(topic)
    queues = found.queues if found is not None else []
    entries = [
        e for q in queues for e in broker.store.reader.read(q, q.start_offset, max_bytes=1 << 24, until=q.visible_end)
    ]
    return [message.decode(entry.frame) for entry in entries]


def give_back(client: Client, position: int, **fields: object) -> Any:
    return client.ask(BACK, **{"offset": position, "group": "billing", "delayLevel": 0, **fields})


def fail_for_good(client: Client, *bodies: bytes) -> None:
    for body in bodies:
        position = int(client.send(body=body).ext["msgId"][16:], 16)
        assert give_back(client, position, maxReconsumeTimes=0).code == 0


# -- 36


def test_dead_letter_is_the_message_with_its_origin(broker: RocketMQBroker, client: Client) -> None:
    broker.topic()
    raw = "TAGS\x01a\x02KEYS\x01k\x02UNIQ_KEY\x01U1\x02"
    sent = client.send(
        body=b"bad", properties=raw, flag=7, bornTimestamp=17, sysFlag=flags.COMPRESSED, reconsumeTimes=2
    )
    (failed,) = stored(broker, "orders")
    assert give_back(client, failed.physical_offset, maxReconsumeTimes=2).code == 0
    (dead,) = stored(broker, DEAD)
    assert (bytes(dead.body), dead.flag, dead.born_ms, dead.sys_flag) == (b"bad", 7, 17, flags.COMPRESSED)
    assert (dead.topic, dead.queue_id, dead.born_host, dead.reconsume_times) == (DEAD, 0, failed.born_host, 3)
    assert properties.parse(dead.properties) == {
        "TAGS": "a", "KEYS": "k", "UNIQ_KEY": "U1", "RETRY_TOPIC": "orders", "ORIGIN_MESSAGE_ID": sent.ext["msgId"],
        "ORIGIN_PLACE": "0/0", "DEAD_LETTER_REASON": "attempts",
        "FAILED_ATTEMPTS": f"3:{broker.clock.now_ms()}@{HOST}",
    }  # fmt: skip
    assert broker.metrics.dead_letters == 1


def test_message_of_a_kafka_producer_is_given_back(broker: RocketMQBroker, client: Client) -> None:
    topic = broker.topic()
    records = [Record(n, 1, b"key", b"v%d" % n, (("TIMER_X", b"1"), ("h", b"x"))) for n in range(3)]
    batch = bytes(batch_builder.build(records, base_offset=0, leader_epoch=0))
    broker.publisher.publish_batch(topic, 1, batch, broker.clock.now_ms())
    broker.settle()
    seen = message.decode_all(bytes(client.pull(0, queueId=1).body))
    assert give_back(client, seen[1].physical_offset, delayLevel=-1).code == 0
    (dead,) = stored(broker, DEAD)
    assert bytes(dead.body) == b"v1"
    kept = properties.parse(dead.properties)
    assert (kept["KEYS"], kept["h"], kept["RETRY_TOPIC"]) == ("key", "x", "orders")
    assert kept["ORIGIN_MESSAGE_ID"] == message_id(seen[1].store_host, seen[1].physical_offset)


def test_first_origin_stays(broker: RocketMQBroker, client: Client) -> None:
    """The failed message came from a retry topic; the group gets its first topic and its first id."""
    broker.topic(RETRY, 1)
    first = f"RETRY_TOPIC\x01orders\x02ORIGIN_MESSAGE_ID\x01{'A' * 32}\x02UNIQ_KEY\x01U\x02"
    client.send(RETRY, properties=first, reconsumeTimes=16, maxReconsumeTimes=16)
    (failed,) = stored(broker, RETRY)
    assert give_back(client, failed.physical_offset).code == 0
    (dead,) = stored(broker, DEAD)
    kept = properties.parse(dead.properties)
    assert (kept["RETRY_TOPIC"], kept["ORIGIN_MESSAGE_ID"], dead.reconsume_times) == ("orders", "A" * 32, 17)


@pytest.mark.parametrize(
    ("fields", "reconsume_times", "version", "dead"),
    [
        ({}, 16, 479, True),
        ({"maxReconsumeTimes": 3}, 3, 479, True),
        ({"maxReconsumeTimes": 3}, 4, 479, True),
        ({"maxReconsumeTimes": 3}, 16, 120, True),  # its own number means nothing: the group's 16 does
        ({"maxReconsumeTimes": 100, "delayLevel": -1}, 0, 479, True),
        ({"maxReconsumeTimes": 0}, 0, 479, True),
        ({}, (1 << 31) - 1, 479, True),  # what a sender says to be the last failure that can be counted
    ],
)
def test_when_no_attempt_is_left(
    broker: RocketMQBroker, client: Client, fields: dict[str, object], reconsume_times: int, version: int, dead: bool
) -> None:
    broker.topic()
    client.send(reconsumeTimes=reconsume_times)
    (failed,) = stored(broker, "orders")
    assert give_back(client, failed.physical_offset, **fields).code == 0
    assert len(stored(broker, DEAD)) == dead


@pytest.mark.parametrize(
    ("reconsume_times", "fields", "delay_ms"),
    [
        (0, {}, 10_000),
        (1, {}, 30_000),
        (15, {}, 2 * 3600_000),
        (0, {"delayLevel": 1}, 1_000),
        (7, {"delayLevel": 2, "maxReconsumeTimes": 8}, 5_000),
        (40, {"maxReconsumeTimes": 1000}, 2 * 3600_000),
    ],
)
def test_message_comes_back_after_a_growing_delay(
    broker: RocketMQBroker, client: Client, reconsume_times: int, fields: dict[str, object], delay_ms: int
) -> None:
    broker.topic()
    client.send(body=b"bad", properties="TAGS\x01a\x02DELAYED\x01x\x02", reconsumeTimes=reconsume_times)
    (failed,) = stored(broker, "orders")
    assert give_back(client, failed.physical_offset, **fields).code == 0
    broker.pass_ms(delay_ms - 1)
    assert stored(broker, RETRY) == []
    broker.pass_ms(1)
    (again,) = stored(broker, RETRY)
    kept = properties.parse(again.properties)
    assert (bytes(again.body), again.reconsume_times, again.born_ms) == (b"bad", reconsume_times + 1, failed.born_ms)
    assert (kept["RETRY_TOPIC"], kept["TAGS"], kept["DELAYED"]) == ("orders", "a", "x")
    assert "DELAY" not in kept
    assert (broker.metrics.retries, stored(broker, DEAD)) == (1, [])


STEPS = {"next": [1, 2, 7_000, 8_000]}
POWERS = {"initial": 1_000, "max": 10_000, "multiplier": 3}


@pytest.mark.parametrize(
    ("policy", "reconsume_times", "level", "delay_ms"),
    [
        (GroupRetryPolicy(customized_retry_policy=STEPS), 0, 0, 7_000),
        (GroupRetryPolicy(customized_retry_policy=STEPS), 1, 0, 8_000),
        (GroupRetryPolicy(customized_retry_policy=STEPS), 9, 0, 8_000),
        (GroupRetryPolicy(customized_retry_policy=STEPS), 0, 1, 1_000),  # The consumer names a level.
        (GroupRetryPolicy(customized_retry_policy={"next": [9_000]}), 3, 0, 9_000),
        (GroupRetryPolicy(type="EXPONENTIAL", exponential_retry_policy=POWERS), 0, 0, 1_000),
        (GroupRetryPolicy(type="EXPONENTIAL", exponential_retry_policy=POWERS), 2, 0, 9_000),
        (GroupRetryPolicy(type="EXPONENTIAL", exponential_retry_policy=POWERS), 14, 0, 10_000),
        (GroupRetryPolicy(type="EXPONENTIAL", exponential_retry_policy={}), 1, 0, 10_000),
        (GroupRetryPolicy(type="EXPONENTIAL"), 1, 0, 30_000),  # Without parameters it is the ladder of the levels.
        (GroupRetryPolicy(), 1, 0, 30_000),
    ],
)
def test_group_has_a_policy_of_its_own(
    broker: RocketMQBroker, client: Client, policy: GroupRetryPolicy, reconsume_times: int, level: int, delay_ms: int
) -> None:
    broker.topic()
    config = SubscriptionGroupConfig(group_name="billing", group_retry_policy=policy)
    assert client.ask(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, config).code == 0
    client.send(body=b"bad", reconsumeTimes=reconsume_times)
    (failed,) = stored(broker, "orders")
    assert give_back(client, failed.physical_offset, delayLevel=level).code == 0
    broker.pass_ms(delay_ms - 1)
    assert stored(broker, RETRY) == []
    broker.pass_ms(1)
    (again,) = stored(broker, RETRY)
    assert (bytes(again.body), again.reconsume_times) == (b"bad", reconsume_times + 1)


@pytest.mark.parametrize(
    "policy",
    [
        GroupRetryPolicy(type="SOMETIMES"),
        GroupRetryPolicy(customized_retry_policy={"next": []}),
        GroupRetryPolicy(customized_retry_policy={"next": [1, 0]}),
        GroupRetryPolicy(customized_retry_policy={"next": [1] * 257}),
        GroupRetryPolicy(customized_retry_policy={"next": [1 << 62]}),
        GroupRetryPolicy(type="EXPONENTIAL", exponential_retry_policy={"initial": 0}),
        GroupRetryPolicy(type="EXPONENTIAL", exponential_retry_policy={"initial": 9, "max": 8}),
        GroupRetryPolicy(type="EXPONENTIAL", exponential_retry_policy={"multiplier": 0}),
        GroupRetryPolicy(type="EXPONENTIAL", exponential_retry_policy={"max": 1 << 62}),
    ],
)
def test_policies_that_cannot_be(client: Client, policy: GroupRetryPolicy) -> None:
    config = SubscriptionGroupConfig(group_name="billing", group_retry_policy=policy)
    refused = client.ask(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, config)
    assert refused is not None
    assert refused.code == ResponseCode.INVALID_PARAMETER
    assert "groupRetryPolicy" in str(refused.remark)


def test_group_may_want_no_retries(broker: RocketMQBroker, client: Client) -> None:
    broker.topic()
    client.send()
    config = SubscriptionGroupConfig(group_name="billing", retry_queue_nums=0)
    assert client.ask(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, config).code == 0
    assert give_back(client, 1 << 40).code == 0
    assert stored(broker, DEAD) == []


@pytest.mark.parametrize(
    ("fields", "code", "remark"),
    [
        ({"offset": 1 << 40}, ResponseCode.SYSTEM_ERROR, "can not find message by the offset"),
        ({"offset": -1}, ResponseCode.SYSTEM_ERROR, "can not find message by the offset"),
        ({"group": "a.b"}, ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, "subscription group not exist"),
        ({"group": None}, ResponseCode.SYSTEM_ERROR, "the custom field <group> is null"),
        ({"group": "closed"}, ResponseCode.NO_PERMISSION, "sending message is forbidden"),
    ],
)
def test_refused(broker: RocketMQBroker, client: Client, fields: dict[str, object], code: int, remark: str) -> None:
    broker.topic()
    broker.topics.permit(broker.topic("%DLQ%closed", 1), flags.PERM_READ, broker.clock.now_ms())
    position = int(client.send().ext["msgId"][16:], 16)
    answer = give_back(client, position, **{"maxReconsumeTimes": 0, **fields})
    assert (answer.code, remark in answer.remark) == (code, True)
    assert client.connection.unanswered == 0


def test_answer_waits_for_the_log(broker: RocketMQBroker, client: Client) -> None:
    broker.topic()
    position = int(client.send().ext["msgId"][16:], 16)
    broker.topic(DEAD, 1)
    broker.settle()
    broker.is_stalled = True
    assert give_back(client, position, maxReconsumeTimes=0) is None
    broker.settle()
    answer = client.last_answer()
    assert answer is not None
    assert answer.code == 0


def attempts_of(found: Message) -> str | None:
    return properties.get(found.properties, "FAILED_ATTEMPTS")


def test_retries_and_the_dead_letter_carry_the_time_of_each_attempt(broker: RocketMQBroker, client: Client) -> None:
    broker.topic()
    forged = "FAILED_ATTEMPTS\x019:9\x02"
    position = int(client.send(properties=forged).ext["msgId"][16:], 16)
    failed_ms = []
    for _ in range(2):
        failed_ms.append(broker.clock.now_ms())
        assert give_back(client, position, delayLevel=1, maxReconsumeTimes=2).code == 0
        broker.pass_ms(1_000)
        again = stored(broker, RETRY)[-1]
        position = again.physical_offset
    assert attempts_of(again) == f"1:{failed_ms[0]}@{HOST} 2:{failed_ms[1]}@{HOST}"
    assert give_back(client, position, maxReconsumeTimes=2).code == 0
    (dead,) = stored(broker, DEAD)
    assert (dead.reconsume_times, attempts_of(dead)) == (3, f"{attempts_of(again)} 3:{broker.clock.now_ms()}@{HOST}")
    assert drive(broker) == 1
    assert [attempts_of(each) for each in stored(broker, RETRY)][-1] is None


# -- A consumer's own send


def test_own_send_adds_its_attempt(broker: RocketMQBroker, client: Client) -> None:
    now_ms = broker.clock.now_ms()
    assert client.send(RETRY, reconsumeTimes=3, properties="FAILED_ATTEMPTS\x012:7\x02").code == 0
    assert client.send(RETRY, reconsumeTimes=17, maxReconsumeTimes=16).code == 0
    ((again,), (dead,)) = stored(broker, RETRY), stored(broker, DEAD)
    assert (attempts_of(again), attempts_of(dead)) == (f"2:7 3:{now_ms}@{HOST}", f"17:{now_ms}@{HOST}")


def test_own_send_without_attempts_left_is_a_dead_letter(broker: RocketMQBroker, client: Client) -> None:
    raw = "DELAY\x0119\x02K\x01v\x02"
    answer = client.send(RETRY, b"bad", properties=raw, reconsumeTimes=17, maxReconsumeTimes=16)
    assert (answer.code, answer.ext["queueId"]) == (0, "0")
    (dead,) = stored(broker, DEAD)
    kept = properties.parse(dead.properties)
    assert (bytes(dead.body), dead.reconsume_times, kept["K"], "DELAY" in kept) == (b"bad", 17, "v", False)
    assert client.send(RETRY, reconsumeTimes=16, maxReconsumeTimes=16).code == 0  # This one has its last attempt.
    assert (len(stored(broker, DEAD)), len(stored(broker, RETRY))) == (1, 1)


@pytest.mark.parametrize(("delay", "delay_ms"), [("DELAY\x014\x02", 3_000), ("", 0)])
def test_own_send_waits_as_the_policy_of_its_group_says(
    broker: RocketMQBroker, client: Client, delay: str, delay_ms: int
) -> None:
    policy = GroupRetryPolicy(type="EXPONENTIAL", exponential_retry_policy=POWERS)
    config = SubscriptionGroupConfig(group_name="billing", group_retry_policy=policy)
    assert client.ask(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, config).code == 0
    assert client.send(RETRY, b"bad", properties=f"{delay}K\x01v\x02", reconsumeTimes=2, maxReconsumeTimes=16).code == 0
    broker.pass_ms(max(delay_ms - 1, 0))
    assert bool(stored(broker, RETRY)) is not bool(delay)
    broker.pass_ms(1)
    (again,) = stored(broker, RETRY)
    assert (bytes(again.body), properties.get(again.properties, "K")) == (b"bad", "v")


def test_while_a_group_holds_locks_its_own_sends_are_dead_letters(broker: RocketMQBroker, client: Client) -> None:
    broker.topic()
    request = LockRequest(consumer_group="billing", client_id="c", mq_set=[MessageQueue("orders", "duolog", 0)])
    client.ask(RequestCode.LOCK_BATCH_MQ, request)
    assert client.send(RETRY, b"in order", reconsumeTimes=1, maxReconsumeTimes=1).code == 0
    client.ask(RequestCode.UNLOCK_BATCH_MQ, request)
    assert client.send(RETRY, b"concurrent", reconsumeTimes=1, maxReconsumeTimes=1).code == 0
    assert [bytes(each.body) for each in stored(broker, DEAD)] == [b"in order"]
    assert [bytes(each.body) for each in stored(broker, RETRY)] == [b"concurrent"]


# -- Redrive


def drive(broker: RocketMQBroker, name: str = "billing", way: str | None = "retry") -> int:
    count, _promise = asyncio.run(redrive(broker.rocketmq_context, name, way))
    broker.settle()
    return count


def test_dead_letters_go_back_once_as_if_they_had_never_failed(broker: RocketMQBroker, client: Client) -> None:
    broker.topic()
    fail_for_good(client, *(b"%d" % n for n in range(150)))  # Three slices.
    assert drive(broker) == 150
    back = stored(broker, RETRY)
    assert [bytes(each.body) for each in back] == [b"%d" % n for n in range(150)]
    assert {each.reconsume_times for each in back} == {0}
    assert {properties.get(each.properties, "RETRY_TOPIC") for each in back} == {"orders"}
    assert drive(broker) == 0
    assert len(stored(broker, DEAD)) == 150  # They stay in the dead letter topic.


def test_redrive_goes_on_after_a_restart(broker: RocketMQBroker, client: Client) -> None:
    broker.topic()
    fail_for_good(client, b"a", b"b")
    assert drive(broker) == 2
    again = RocketMQBroker(broker.disk.after_power_cut(0))
    other = again.connect()
    assert drive(again) == 0
    fail_for_good(other, b"c")
    assert drive(again) == 1
    assert [bytes(each.body) for each in stored(again, RETRY)] == [b"a", b"b", b"c"]


def test_redrive_of_a_group_that_kafka_consumers_are_in_is_refused(broker: RocketMQBroker, client: Client) -> None:
    broker.topic()
    fail_for_good(client, b"a")
    broker.kafka_groups_with_members.add("billing")
    for way in ("retry", None):
        with pytest.raises(RedriveRefused, match="active in Kafka"):
            drive(broker, way=way)
    assert stored(broker, RETRY) == []


def test_redrive_of_a_group_without_members_needs_a_topic(broker: RocketMQBroker, client: Client) -> None:
    broker.topic()
    fail_for_good(client, b"a")
    with pytest.raises(RedriveRefused, match=r"no members now.*--to retry.*--to topic"):
        drive(broker, way=None)
    client.beat("billing")
    assert drive(broker, way=None) == 1
    assert [bytes(each.body) for each in stored(broker, RETRY)] == [b"a"]


def test_redrive_to_the_topic_gives_every_group_the_message_as_a_new_one(
    broker: RocketMQBroker, client: Client
) -> None:
    broker.topic(queues=4)
    position = int(client.send(body=b"a", queueId=3, properties="KEYS\x01k\x02").ext["msgId"][16:], 16)
    assert give_back(client, position, maxReconsumeTimes=0).code == 0
    broker.kafka_groups_with_members.add("billing")
    assert drive(broker, way="topic") == 1
    first, again = stored(broker, "orders")
    assert (bytes(again.body), again.queue_id, again.reconsume_times) == (b"a", first.queue_id, 0)
    assert properties.parse(again.properties).keys() == properties.parse(first.properties).keys()
    assert stored(broker, RETRY) == []
    assert drive(broker, way="topic") == 0


def test_redrive_to_a_deleted_topic_names_it(broker: RocketMQBroker, client: Client) -> None:
    topic = broker.topic()
    fail_for_good(client, b"a")
    broker.topics.delete(topic, broker.clock.now_ms())
    with pytest.raises(RedriveRefused, match="came from the topic orders, which does not exist"):
        drive(broker, way="topic")
    assert drive(broker) == 1, "it is still a dead letter"


def test_group_without_dead_letters_has_none_to_take_back(broker: RocketMQBroker) -> None:
    assert drive(broker) == 0
    assert broker.rocketmq_context.groups.configs.get("billing") is None
