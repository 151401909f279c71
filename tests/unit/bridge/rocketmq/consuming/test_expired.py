"""Expired messages: their times of expiry, what readers get, and one dead letter for each in a group."""

from collections import Counter
from itertools import pairwise
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from duolog.bridge.config import GroupsOptions, Options, TopicsOptions
from duolog.bridge.data.expiry import own_expiry_of
from duolog.bridge.monitoring.poison import PoisonRecords
from duolog.bridge.records import codec
from duolog.bridge.records.expiry import MessagesExpired
from duolog.bridge.records.groups import CommittedOffset
from duolog.bridge.rocketmq.consuming.expired import DEAD_AT_ONCE
from duolog.bridge.rocketmq.consuming.expired_ranges import RANGES_MAX, ExpiredRanges, merged
from duolog.bridge.rocketmq.requests.admission import Kind
from duolog.bridge.state.group_offsets import GroupOffsets
from duolog.protocol.kafka import batch_builder
from duolog.protocol.kafka.record_batch import InvalidBatch, Record
from duolog.protocol.rocketmq.codes import RequestCode, ResponseCode
from duolog.protocol.rocketmq.messages import message, properties
from duolog.protocol.rocketmq.messages.message import Message
from duolog.store.entry import EntrySlot
from duolog.store.options import StoreOptions
from duolog.store.state_log import StateLog
from tests.kit.disk import CrashDisk, EachCut
from tests.kit.memory_log import MemoryLog
from tests.unit.bridge.rocketmq.broker import Client, RocketMQBroker, bodies, read
from tests.unit.bridge.rocketmq.popping import INVISIBLE_MS, ack, bodies_of, got, nothing, pop

DEAD, RETRY = "%DLQ%billing", "%RETRY%billing"
AGAIN, SUSPEND = ResponseCode.PULL_RETRY_IMMEDIATELY, 2


def stored(broker: RocketMQBroker, name: str) -> list[Message]:
    topic = broker.topics.by_rocketmq_name(name)
    queues = topic.queues if topic is not None else []
    entries = [
        e for q in queues for e in broker.store.reader.read(q, q.start_offset, max_bytes=1 << 24, until=q.visible_end)
    ]
    return [message.decode(entry.frame) for entry in entries]


def dead(broker: RocketMQBroker, name: str = DEAD) -> list[bytes]:
    return [bytes(each.body) for each in stored(broker, name)]


def send_kafka(broker: RocketMQBroker, *bodies: bytes, topic: str = "orders", **headers: bytes) -> None:
    records = [Record(n, 1, b"key", body, tuple(headers.items())) for n, body in enumerate(bodies)]
    batch = bytes(batch_builder.build(records, base_offset=0, leader_epoch=0))
    broker.publisher.publish_batch(broker.topic(topic), 0, batch, broker.clock.now_ms())
    broker.settle()


# -- The time of expiry

FAR = 10**8  # a day, which is less than any retention
LIVES, DIES = True, False
STRIDE = 3  # `make soak` cuts the power at each operation.


@pytest.mark.parametrize(
    ("wire", "expiry", "ttl_ms", "delay_ms", "wait_ms", "is_live"),
    [
        ("rocketmq", {}, -1, 0, FAR, LIVES),
        ("rocketmq", {"after": 50}, -1, 0, 49, LIVES),
        ("rocketmq", {"after": 50}, -1, 0, 50, DIES),
        ("rocketmq", {"at": 50}, -1, 0, 49, LIVES),
        ("rocketmq", {"at": 50}, -1, 0, 50, DIES),
        ("rocketmq", {"at": -50}, -1, 0, 0, DIES),
        ("rocketmq", {"at": 90, "after": 50}, -1, 0, 50, DIES),  # the earliest counts
        ("rocketmq", {"at": 50, "after": 90}, -1, 0, 50, DIES),
        ("rocketmq", {}, 50, 0, 49, LIVES),
        ("rocketmq", {}, 50, 0, 50, DIES),
        ("rocketmq", {"after": 90}, 50, 0, 50, DIES),
        ("rocketmq", {"after": 50}, 90, 0, 50, DIES),
        ("rocketmq", {"after": 50}, -1, 40, 9, LIVES),  # it counts from the send, not from the delivery
        ("rocketmq", {"after": 50}, -1, 40, 10, DIES),
        ("rocketmq", {"after": 50}, -1, 70, 0, DIES),  # expired before it was due
        ("rocketmq", {}, 50, 70, 49, LIVES),  # the topic's counts from the delivery
        ("rocketmq", {}, 50, 70, 50, DIES),
        ("kafka", {}, -1, 0, FAR, LIVES),
        ("kafka", {"after": 50}, -1, 0, 49, LIVES),
        ("kafka", {"after": 50}, -1, 0, 50, DIES),
        ("kafka", {"at": 50}, -1, 0, 50, DIES),
        ("kafka", {"after": 90}, 50, 0, 50, DIES),
        ("kafka", {"after": 50}, -1, 40, 9, LIVES),
        ("kafka", {"after": 50}, -1, 40, 10, DIES),
        ("kafka", {"after": 50}, -1, 70, 0, DIES),
        ("kafka-binary", {"after": 50}, -1, 0, 49, LIVES),
        ("kafka-binary", {"after": 50}, -1, 0, 50, DIES),
        ("kafka-binary", {"at": 50}, -1, 0, 50, DIES),
        ("kafka-plain", {"after": 50}, -1, 0, FAR, LIVES),  # a topic where headers mean nothing
    ],
)
def test_earliest_of_all_counts(
    broker: RocketMQBroker,
    client: Client,
    wire: str,
    expiry: dict[str, int],
    ttl_ms: int,
    delay_ms: int,
    wait_ms: int,
    is_live: bool,
) -> None:
    broker.topic(message_ttl_ms=str(ttl_ms), delay_headers=str(wire != "kafka-plain").lower())
    now_ms = broker.clock.now_ms()
    asked = {"EXPIRE_AFTER_MS": expiry.get("after"), "EXPIRE_AT_MS": "at" in expiry and now_ms + expiry["at"]}
    if delay_ms:
        asked["TIMER_DELAY_MS"] = delay_ms
    said = {name: int(value) for name, value in asked.items() if value}
    if wire == "rocketmq":
        assert client.send(properties="".join(f"{name}\x01{value}\x02" for name, value in said.items())).code == 0
    else:
        spell = (lambda value: value.to_bytes(8, "big")) if wire == "kafka-binary" else lambda value: b"%d" % value
        send_kafka(broker, b"body", **{name: spell(value) for name, value in said.items()})
    broker.pass_ms(delay_ms)
    broker.pass_ms(wait_ms)
    answer = client.pull(0)
    assert (bodies(answer), answer.ext["nextBeginOffset"]) == ([b"body"] if is_live is LIVES else [], "1")
    assert dead(broker) == ([] if is_live is LIVES else [b"body"])


def test_dead_letter_says_why_and_expires_no_more(broker: RocketMQBroker, client: Client) -> None:
    sent_ms = broker.clock.now_ms()
    broker.topic()
    sent = client.send(properties="KEYS\x01k\x02UNIQ_KEY\x01U\x02EXPIRE_AFTER_MS\x0110\x02", reconsumeTimes=2)
    broker.pass_ms(10)
    assert (answer := client.pull(0)).code == AGAIN, answer.remark
    (letter,) = stored(broker, DEAD)
    assert letter.reconsume_times == 2
    assert properties.parse(letter.properties) == {
        "KEYS": "k", "UNIQ_KEY": "U", "RETRY_TOPIC": "orders", "ORIGIN_MESSAGE_ID": sent.ext["msgId"],
        "DEAD_LETTER_REASON": "expired", "EXPIRED_AT_MS": str(sent_ms + 10), "ORIGIN_PLACE": "0/0",
    }  # fmt: skip
    assert broker.metrics.dead_letters == 1
    assert bodies(client.pull(0, DEAD, consumerGroup="undertaker")) == [b"body"]


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("EXPIRE_AFTER_MS", "soon", "EXPIRE_AFTER_MS"),
        ("EXPIRE_AFTER_MS", "0", "EXPIRE_AFTER_MS=0: expected more than 0"),
        ("EXPIRE_AFTER_MS", str(3651 * 86_400_000), "is 3651 days from now; delay.max_days is 3650"),
        ("EXPIRE_AT_MS", str(10**17), "delay.max_days is 3650"),
        ("EXPIRE_AT_MS", "1e3", "EXPIRE_AT_MS"),
    ],
)
def test_what_cannot_be_kept_is_refused(
    broker: RocketMQBroker, client: Client, name: str, value: str, said: str
) -> None:
    broker.topic()
    refused = client.send(properties=f"{name}\x01{value}\x02")
    assert (refused.code, said in refused.remark) == (ResponseCode.MESSAGE_ILLEGAL, True), refused.remark
    with pytest.raises(InvalidBatch, match=name):
        send_kafka(broker, b"body", **{name: value.encode()})
    assert stored(broker, "orders") == []


# -- Who is given what


def test_what_lives_is_given_and_the_rest_passed(broker: RocketMQBroker, client: Client) -> None:
    broker.topic()
    for number in range(6):
        client.send(body=b"%d" % number, properties="EXPIRE_AFTER_MS\x0110\x02" if number in (0, 2, 3, 5) else "")
    broker.pass_ms(10)
    answer = client.pull(0)
    assert (bodies(answer), answer.ext["nextBeginOffset"]) == ([b"1", b"4"], "6")
    assert dead(broker) == [b"0", b"2", b"3", b"5"]
    assert [*broker.rocketmq_context.groups.expired_ranges.ranges("billing", broker.topic().queues[0].key)] == [
        (0, 1),
        (2, 4),
        (5, 6),
    ]


def test_once_for_each_group_and_each_queue(broker: RocketMQBroker, client: Client) -> None:
    broker.topic()
    for queue_id in (0, 1):
        client.send(body=b"%d" % queue_id, properties="EXPIRE_AFTER_MS\x0110\x02", queueId=queue_id)
    broker.pass_ms(10)
    other = broker.connect()
    for _ in range(3):  # Any member, from any offset, as broadcast consumers do.
        for queue_id in (0, 1):
            for each in (client, other):
                answer = each.pull(0, queueId=queue_id)
                assert (answer.code, answer.ext["nextBeginOffset"]) == (AGAIN, "1")
    assert dead(broker) == [b"0", b"1"]
    assert client.pull(0, consumerGroup="audit").code == AGAIN
    assert (dead(broker), dead(broker, "%DLQ%audit")) == ([b"0", b"1"], [b"0"])


def test_one_pull_buries_a_slice(broker: RocketMQBroker, client: Client) -> None:
    broker.topic()
    for number in range(DEAD_AT_ONCE + 10):
        client.send(body=b"%d" % number, properties="EXPIRE_AFTER_MS\x0110\x02")
    broker.pass_ms(10)
    assert client.pull(0, maxMsgNums=1000).ext["nextBeginOffset"] == str(DEAD_AT_ONCE)
    assert len(dead(broker)) == DEAD_AT_ONCE
    assert client.pull(DEAD_AT_ONCE, maxMsgNums=1000).ext["nextBeginOffset"] == str(DEAD_AT_ONCE + 10)
    assert len(dead(broker)) == DEAD_AT_ONCE + 10


def test_topic_may_say_that_they_are_dropped(broker: RocketMQBroker, client: Client) -> None:
    broker.topic(message_expired="drop")
    client.send(body=b"bad", properties="EXPIRE_AFTER_MS\x0110\x02")
    client.send(body=b"good")
    assert bodies(client.pull(0)) == [b"bad", b"good"]
    position = broker.store.next_position
    broker.pass_ms(10)
    assert bodies(client.pull(0)) == [b"good"]
    assert (dead(broker), broker.store.next_position) == ([], position)


def test_dropped_ones_never_become_visible(broker: RocketMQBroker, client: Client) -> None:
    broker.topic(message_expired="drop")
    raw = "EXPIRE_AFTER_MS\x0110\x02TIMER_DELAY_MS\x01{}\x02"
    client.send(body=b"early", properties=raw.format(9))
    client.send(body=b"late", properties=raw.format(11))
    send_kafka(broker, b"late too", EXPIRE_AFTER_MS=b"10", TIMER_DELAY_MS=b"12")
    for ms in (9, 3):
        broker.pass_ms(ms)
    assert [bytes(each.body) for each in stored(broker, "orders")] == [b"early"]
    assert len(broker.delays.timers) == 0
    assert broker.metrics.timers["dropped"] == 2


def test_filter_comes_first(broker: RocketMQBroker, client: Client) -> None:
    broker.topic()
    for tag in "abab":
        client.send(body=tag.encode(), properties=f"TAGS\x01{tag}\x02EXPIRE_AFTER_MS\x0110\x02")
    broker.pass_ms(10)
    assert client.pull(0, subscription="b").ext["nextBeginOffset"] == "4"
    assert dead(broker) == [b"b", b"b"]


def test_tools_look_and_change_nothing(broker: RocketMQBroker, client: Client) -> None:
    broker.topic(message_ttl_ms="10")
    client.send()
    broker.pass_ms(10)
    assert bodies(client.pull(0, consumerGroup="TOOLS_CONSUMER")) == [b"body"]
    assert broker.topics.by_rocketmq_name("%DLQ%TOOLS_CONSUMER") is None


def test_group_that_may_have_no_dead_letters_stops_there(broker: RocketMQBroker, client: Client) -> None:
    broker.topics.permit(broker.topic(DEAD, 1), 4, broker.clock.now_ms())
    broker.topic()
    client.send(body=b"good")
    client.send(body=b"bad", properties="EXPIRE_AFTER_MS\x0110\x02")
    client.send(body=b"later")
    broker.pass_ms(10)
    answer = client.pull(0)
    assert (bodies(answer), answer.ext["nextBeginOffset"]) == ([b"good"], "1")
    refused = client.pull(1)
    assert (refused.code, "%DLQ%billing" in refused.remark) == (ResponseCode.NO_PERMISSION, True)
    assert pop(client, queueId=0).code == 0  # what lies before it
    assert pop(client, queueId=0).code == ResponseCode.NO_PERMISSION
    broker.topics.permit(broker.topic(DEAD, 1), 6, broker.clock.now_ms())
    assert bodies(client.pull(1)) == [b"later"]
    assert dead(broker) == [b"bad"]


def test_held_pull_moves_on_over_what_comes_expired(broker: RocketMQBroker, client: Client) -> None:
    broker.topic()
    client.send(properties="EXPIRE_AFTER_MS\x0110\x02TIMER_DELAY_MS\x0120\x02")
    assert client.pull(0, sysFlag=4 | SUSPEND) is None
    broker.pass_ms(20)
    broker.loop.turn()
    broker.settle()
    answer = client.last_answer()
    assert (answer.code, answer.ext["nextBeginOffset"], dead(broker)) == (AGAIN, "1", [b"body"])
    assert client.connection.unanswered == 0


def test_held_pull_that_finds_no_reader_free_is_refused() -> None:
    """A message that was expired when it was sent is read again after the write, when memory may not have it."""
    broker = RocketMQBroker(store=StoreOptions(tail_bytes=1 << 12))
    topic, others, client = broker.topic(queues=1), broker.topic("others", queues=1), broker.connect()
    assert client.pull(0, sysFlag=4 | SUSPEND) is None
    soon = Message("", b"body", b"EXPIRE_AFTER_MS\x0110\x02")
    broker.publisher.publish_messages(topic, 0, [soon], broker.clock.now_ms())
    broker.settle_log()
    broker.disk.cached = False
    broker.rocketmq_context.requests.admission.limit(Kind.PULL, 0)
    broker.publish(others, bytes(1 << 13))
    answer = client.last_answer()
    assert (answer.code, client.connection.unanswered) == (ResponseCode.SYSTEM_BUSY, 0)


@pytest.mark.parametrize("way", ["pull", "pop"])
def test_answer_waits_for_dead_letters_that_it_tells_of(broker: RocketMQBroker, client: Client, way: str) -> None:
    """Also the answer to who reads on before they are durable: it would never come back for them."""
    broker.topic(queues=1)
    client.send(properties="EXPIRE_AFTER_MS\x0110\x02")
    client.send(body=b"alive")
    broker.pass_ms(10)
    other = broker.connect()
    broker.is_stalled = True
    assert client.pull(0) is None
    assert (other.pull(0) if way == "pull" else pop(other)) is None
    broker.is_stalled = False
    broker.settle()
    assert bodies(client.last_answer()) == bodies(other.last_answer()) == [b"alive"]
    assert dead(broker) == [b"body"]


def test_others_do_not_pay(broker: RocketMQBroker, client: Client) -> None:
    """A queue is looked into from its first expiring message on; its neighbour is not."""
    topic = broker.topic()
    client.send(properties="EXPIRE_AFTER_MS\x0110\x02", queueId=1)
    send_kafka(broker, b"body", topic="receipts", EXPIRE_AFTER_MS=b"10")
    for core in (broker, RocketMQBroker(broker.disk.after_kill())):
        assert [queue.key in core.expiring_queues for queue in core.topic().queues] == [False, True]
        assert core.topic("receipts").queues[0].key in core.expiring_queues
    position = broker.store.next_position
    client.send(body=b"", properties="EXPIRE_AFTER_MS\x0110\x02", queueId=1)
    one_more = broker.store.next_position - position
    client.send(body=b"", properties="EXPIRE_AFTER_MS\x0110\x02", queueId=1)
    assert broker.store.next_position - position == 2 * one_more, "the queue is marked once"
    broker.topics.delete(topic, broker.clock.now_ms())
    assert topic.queues[1].key not in broker.expiring_queues


# -- Retries


def give_back(client: Client, found: Message, **fields: object) -> Any:
    fields = {"offset": found.physical_offset, "group": "billing", "delayLevel": 0, **fields}
    return client.ask(RequestCode.CONSUMER_SEND_MSG_BACK, **fields)


@pytest.mark.parametrize(
    ("configs", "raw", "wait_ms", "retry_wait_ms", "outcome"),
    [
        ({}, "EXPIRE_AFTER_MS\x0120000\x02", 0, 10_000, "given"),  # first retry after 10 s
        ({}, "EXPIRE_AFTER_MS\x0120000\x02", 0, 20_000, "dead"),
        ({}, "EXPIRE_AFTER_MS\x015000\x02", 0, 10_000, "dead"),
        ({}, "EXPIRE_AFTER_MS\x015000\x02", 5_000, 0, "dead at once"),
        ({"message_ttl_ms": "20000"}, "", 0, 10_000, "given"),
        ({"message_ttl_ms": "20000"}, "", 0, 20_000, "dead"),
        ({"message_ttl_ms": "20000"}, "", 15_000, 10_000, "dead"),
        ({"message_ttl_ms": "5000"}, "", 5_000, 0, "dead at once"),
        ({"message_ttl_ms": "5000", "message_expired": "drop"}, "", 5_000, 0, "dropped"),
        ({"message_expired": "drop"}, "EXPIRE_AFTER_MS\x015000\x02", 0, 10_000, "dropped"),
    ],
)
def test_what_expires_on_the_ladder_of_retries(
    broker: RocketMQBroker,
    client: Client,
    configs: dict[str, str],
    raw: str,
    wait_ms: int,
    retry_wait_ms: int,
    outcome: str,
) -> None:
    broker.topic(**configs)
    client.send(properties=raw)
    (found,) = message.decode_all(bytes(client.pull(0).body))
    broker.pass_ms(wait_ms)
    assert give_back(client, found).code == 0
    broker.settle()
    assert dead(broker) == ([b"body"] if outcome == "dead at once" else [])
    broker.pass_ms(retry_wait_ms)
    retried = client.pull(0, RETRY) if retry_wait_ms else None
    assert (bodies(retried) if retried is not None else []) == ([b"body"] if outcome == "given" else [])
    assert dead(broker) == ([b"body"] if outcome.startswith("dead") else [])
    if not retry_wait_ms:  # Who died before it committed reads it again.
        assert client.pull(0).code == AGAIN
        assert dead(broker) == ([b"body"] if outcome == "dead at once" else [])


# -- POP


@pytest.mark.parametrize("order", [False, True])
def test_pop_leaves_out_what_has_expired(broker: RocketMQBroker, client: Client, order: bool) -> None:
    broker.topic(queues=1)
    for number in range(4):
        client.send(body=b"%d" % number, properties="EXPIRE_AFTER_MS\x0110\x02" if number in (0, 2) else "")
    broker.pass_ms(10)
    first, second = got(pop(client, order=order))
    assert [first.body, second.body] == [b"1", b"3"]
    assert dead(broker) == [b"0", b"2"]
    for one in (first, second):
        assert ack(client, one).code == 0
    broker.settle()
    assert nothing(client, order=order)
    assert broker.group_offsets.fetch("billing", broker.topic().queues[0].key).offset == 4
    assert dead(broker) == [b"0", b"2"]


@pytest.mark.parametrize("order", [False, True])
def test_pop_of_nothing_else_moves_on(broker: RocketMQBroker, client: Client, order: bool) -> None:
    broker.topic(queues=1, message_ttl_ms="10")
    client.send(body=b"a")
    broker.pass_ms(10)
    assert nothing(client, order=order)
    client.send(body=b"b")
    assert bodies_of(pop(client, order=order)) == [b"b"]
    assert dead(broker) == [b"a"]


@pytest.mark.parametrize(
    ("configs", "order", "letters"),
    [({}, False, [b"a"]), ({"message_expired": "drop"}, False, []), ({}, True, [b"a"]),
     ({"message_expired": "drop"}, True, [])],
)  # fmt: skip
def test_what_expires_while_it_is_popped(
    broker: RocketMQBroker, client: Client, configs: dict[str, str], order: bool, letters: list[bytes]
) -> None:
    broker.topic(queues=1, message_ttl_ms=str(INVISIBLE_MS), **configs)
    client.send(body=b"a")
    assert bodies_of(pop(client, order=order)) == [b"a"]
    broker.pass_ms(INVISIBLE_MS)
    assert nothing(client, order=order)
    assert dead(broker) == letters
    assert len(broker.rocketmq_context.pop.checkpoints) == 0
    client.send(body=b"b")
    assert bodies_of(pop(client, order=order)) == [b"b"]


def test_popped_copy_keeps_its_date(broker: RocketMQBroker, client: Client) -> None:
    broker.topic(queues=1, message_ttl_ms=str(INVISIBLE_MS + 5))
    client.send(body=b"a")
    got(pop(client))
    broker.pass_ms(INVISIBLE_MS)  # It is given back to the retry topic.
    broker.pass_ms(5)
    assert nothing(client)
    assert dead(broker) == [b"a"]


# -- Tools


def test_attributes_of_a_topic(broker: RocketMQBroker, client: Client) -> None:
    def update(attributes: str) -> Any:
        return client.ask(
            RequestCode.UPDATE_AND_CREATE_TOPIC, topic="orders", defaultTopic="TBW102", readQueueNums=2,
            writeQueueNums=2, perm=6, topicFilterType="SINGLE_TAG", topicSysFlag=0, order=False, attributes=attributes,
        )  # fmt: skip

    def attributes() -> dict[str, str]:
        return read(client.ask(RequestCode.GET_TOPIC_CONFIG, topic="orders"))["attributes"]

    assert update("+message.ttl.ms=5000,+message.expired=drop,+queue.type=SimpleCQ").code == 0
    assert attributes() == {"message.ttl.ms": "5000", "message.expired": "drop"}
    settings = broker.topic().settings
    assert (settings.ttl_ms, settings.drops_expired) == (5000, True)
    assert update("-message.expired").code == 0
    assert attributes() == {"message.ttl.ms": "5000"}
    refused = update("+message.ttl.ms=0")
    assert (refused.code, "allowed are 1 to" in refused.remark) == (ResponseCode.INVALID_PARAMETER, True)
    assert attributes() == {"message.ttl.ms": "5000"}
    for message_type in ("FIFO", "DELAY", "TRANSACTION", "PRIORITY", "MIXED", "UNSPECIFIED", "NORMAL"):
        assert update(f"+message.type={message_type}").code == 0
        assert attributes() == {"message.ttl.ms": "5000", "message.type": message_type}
    assert update("+message.type=fifo").code == ResponseCode.INVALID_PARAMETER
    assert update("-message.type").code == 0
    assert attributes() == {"message.ttl.ms": "5000"}


# -- Ranges


@given(st.lists(st.tuples(st.integers(0, 60), st.integers(1, 9)).map(lambda each: (each[0], sum(each)))))
def test_ranges_are_the_set_of_their_offsets(ranges: list[tuple[int, int]]) -> None:
    found = merged(ranges)
    assert {n for r in found for n in range(*r)} == {n for r in ranges for n in range(*r)}
    assert all(a[1] < b[0] for a, b in pairwise(found))


def test_ranges_are_bounded_and_close_below_the_position(broker: RocketMQBroker) -> None:
    key = broker.topic().queues[0].key
    ranges = [(2 * n, 2 * n + 1) for n in range(RANGES_MAX + 2)]
    broker.state_log.commit([MessagesExpired("billing", key, ranges)], broker.clock.now_ms())
    found = broker.rocketmq_context.groups.expired_ranges.ranges("billing", key)
    assert (len(found), found[0]) == (RANGES_MAX, (0, 5))
    broker.group_offsets.commit("billing", [CommittedOffset(key, 100)], broker.clock.now_ms())
    broker.state_log.commit([MessagesExpired("billing", key, [(99, 100)])], broker.clock.now_ms())
    assert broker.rocketmq_context.groups.expired_ranges.ranges("billing", key)[0] == (0, 101)
    broker.group_offsets.commit("billing", [CommittedOffset(key, 200)], broker.clock.now_ms())
    for payload in broker.state_log.snapshot():  # As it is appended before segments go.
        broker.state_log.replay_state(payload, EntrySlot(0, -1, 0))
    assert broker.rocketmq_context.groups.expired_ranges.ranges("billing", key)[0] == (0, 101)
    broker.settle()
    again = RocketMQBroker(broker.disk.after_kill())
    assert again.rocketmq_context.groups.expired_ranges.ranges(
        "billing", key
    ) == broker.rocketmq_context.groups.expired_ranges.ranges("billing", key)
    again.group_offsets.delete_group("billing", 0)
    assert not again.rocketmq_context.groups.expired_ranges.has("billing", key, 0)


def test_ranges_of_all_and_queues_are_bounded() -> None:
    state_log = StateLog(codec, PoisonRecords())
    positions = GroupOffsets(state_log, lambda number: True, GroupsOptions())
    expired = ExpiredRanges(state_log, positions, queues_max=2, ranges_in_all_max=4)
    log = MemoryLog()
    state_log.attach(log)
    for key in (1, 2):
        state_log.commit([MessagesExpired("billing", key, [(5, 6), (7, 8), (9, 10)])], 0)
    assert [*expired.ranges("billing", 1)] == [(5, 6), (7, 8), (9, 10)]
    assert [*expired.ranges("billing", 2)] == [(5, 10)]
    state_log.commit([MessagesExpired("billing", 3, [(1, 2), (3, 4), (5, 6)])], 0)
    assert [len(expired.ranges("billing", key)) for key in (1, 2, 3)] == [0, 1, 1]
    state_log.commit([MessagesExpired("billing", 3, [(8, 9), (11, 12)])], 0)
    assert [*expired.ranges("billing", 3)] == [(1, 6), (8, 9), (11, 12)]


def test_headers_that_mean_nothing_are_passed_over() -> None:
    assert own_expiry_of(b"EXPIRE_AFTER_MS\x01soon\x02", 0) is None
    assert own_expiry_of(b"NOT_EXPIRE_AT_MS\x011\x02", 0) is None


# -- Crashes


@pytest.mark.slow
def test_power_cut_at_any_operation(rng: Random) -> None:
    """A group that goes on from its position has each message: given, or a dead letter once."""
    cut_at_each(4, STRIDE, rng.randrange(STRIDE))


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(4, 40))
def test_power_cut_at_every_operation_of_many_histories(seed: int) -> None:
    cut_at_each(seed)


def cut_at_each(seed: int, stride: int = 1, phase: int = 0) -> None:
    disk = EachCut(stride, phase=phase)
    history = History(Random(seed), disk)
    disk.check = history.check
    history.run()
    assert disk.checks > 150 // stride
    assert history.dead_letters > 20


OPTIONS = Options(topics=TopicsOptions(queues=1))
SMALL = StoreOptions(segment_bytes=1 << 15, reserve_bytes=4096, tail_bytes=1 << 14, checkpoint_bytes=1 << 13)


class History:
    """Sends, pulls of two members that remember nothing, commits and time, against one queue."""

    def __init__(self, rng: Random, disk: EachCut) -> None:
        self.rng = rng
        self.broker = RocketMQBroker(disk, OPTIONS, SMALL)
        self.broker.topic("orders", 1)
        self.clients = [self.broker.connect(), self.broker.connect()]
        self.given: set[int] = set()  # and its member heard so
        self.offset = self.heard = self.dead_letters = (
            0  # `heard`: the offset at which a member continues after a restart.
        )

    def run(self) -> None:
        steps = [
            (self.send, 10), (self.pull, 8), (self.commit, 2), (self.wait, 5), (self.checkpoint, 1), (self.stall, 3),
        ]  # fmt: skip
        for _ in range(400):
            self.rng.choices([step for step, _ in steps], [weight for _, weight in steps])[0]()
        self.dead_letters = len(dead(self.broker))

    def send(self) -> None:
        properties = f"EXPIRE_AFTER_MS\x01{self.rng.choice((5, 20, 80))}\x02" if self.rng.random() < 0.8 else ""
        number = self.broker.topic("orders", 1).queues[0].end_offset  # None, if too much of the client's is unanswered.
        self.rng.choice(self.clients).send(body=b"%d" % number, properties=properties, queueId=0)

    def stall(self) -> None:
        """Have nothing answered that waits for the disk; or all that has waited, and who pulled goes on from there."""
        self.broker.is_stalled = not self.broker.is_stalled
        self.broker.settle()

    def pull(self) -> None:
        answer = self.rng.choice(self.clients).pull(self.offset, maxMsgNums=self.rng.randint(1, 8))
        if answer is not None and answer.code in (0, AGAIN):
            self.given.update(int(body) for body in bodies(answer))
            self.offset = int(answer.ext["nextBeginOffset"])
            self.heard = max(self.heard, self.offset)

    def commit(self) -> None:
        if self.rng.random() < 0.5:
            position = self.broker.group_offsets.fetch("billing", self.broker.topic().queues[0].key)
            self.offset = position.offset if position is not None else 0  # Its member died, and another begins there.
        else:
            self.clients[0].ask(
                RequestCode.UPDATE_CONSUMER_OFFSET, consumerGroup="billing", topic="orders", queueId=0,
                commitOffset=self.offset,
            )  # fmt: skip

    def wait(self) -> None:
        self.broker.pass_ms(self.rng.choice((1, 4, 30)))

    def checkpoint(self) -> None:
        self.broker.store.checkpoint(self.broker.clock.now_ms())

    def check(self, disk: CrashDisk) -> None:
        broker = RocketMQBroker(disk, OPTIONS, SMALL)
        broker.clock.pass_ms(10**9)
        client = broker.connect()
        queue = broker.topic("orders", 1).queues[0]
        behind = self.given.union(map(int, dead(broker)))
        assert behind.issuperset(range(self.heard)), "a member's offset has passed these"
        position = broker.group_offsets.fetch("billing", queue.key)
        offset = begin = position.offset if position is not None else 0
        given: Counter[int] = Counter()
        while offset < queue.visible_end:
            answer = client.pull(offset, maxMsgNums=32)
            given.update(int(body) for body in bodies(answer)) if answer.code == 0 else None
            offset = int(answer.ext["nextBeginOffset"])
        letters = Counter(int(body) for body in dead(broker))
        assert not [body for body, count in letters.items() if count > 1], "a dead letter twice"
        for number in range(queue.visible_end):
            seen = given[number] + letters[number] + (number in self.given)
            assert seen, f"{number} is nowhere; the group began at {begin}"
