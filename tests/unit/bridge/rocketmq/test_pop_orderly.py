"""Pops in order: the cases of Apache's PopOrderlyIT and LocalGrpcIT, in virtual time; and offset resets."""

import base64
from typing import Any

import pytest

from duolog.protocol.rocketmq.bodies import BatchAck, BatchAckRequest
from duolog.protocol.rocketmq.codes import RequestCode, ResponseCode
from duolog.protocol.rocketmq.messages import message
from duolog.protocol.rocketmq.messages.receipt import parse_receipt
from tests.unit.bridge.rocketmq.broker import Client, RocketMQBroker
from tests.unit.bridge.rocketmq.popping import INVISIBLE_MS, RETRY, ack, bodies_of, got, nothing, pop

CHANGE = RequestCode.CHANGE_MESSAGE_INVISIBLETIME


@pytest.fixture
def broker() -> RocketMQBroker:
    broker = RocketMQBroker()
    broker.topic()
    return broker


def counted(answer: Any) -> list[tuple[bytes, int]]:
    """Give body and number of failures of each message, which Java's client reads from orderCountInfo."""
    counts = dict(part.split(" ")[1:] for part in answer.ext["orderCountInfo"].split(";"))
    assert answer.code == 0, answer.remark
    found = message.decode_all(bytes(answer.body))
    return [
        (bytes(one.body), int(counts.get(f"qo{one.queue_id}%{one.queue_offset}", counts[str(one.queue_id)])))
        for one in found
    ]


def held(client: Client, **fields: object) -> int:
    """Pop with patience; give the number of the request, which is not answered yet."""
    assert pop(client, order=True, pollTime=60_000, **fields) is None
    return client._opaque


# -- As in PopOrderlyIT


def test_without_any_ack_the_same_messages_come_again_before_all_others(broker: RocketMQBroker, client: Client) -> None:
    broker.publish(broker.topic(), *(b"%d" % n for n in range(10)))
    five = [b"%d" % n for n in range(5)]
    assert counted(pop(client, order=True, maxMsgNums=5)) == [(body, 0) for body in five]
    for failures in (1, 2, 3):
        waiting = held(client, maxMsgNums=5)
        broker.pass_ms(INVISIBLE_MS - 1)
        assert client.answer_to(waiting) is None
        broker.pass_ms(1)
        broker.settle()
        assert counted(client.answer_to(waiting)) == [(body, failures) for body in five]


@pytest.mark.parametrize("maximum", [2, 5])
def test_whole_batch_at_another_time(broker: RocketMQBroker, client: Client, maximum: int) -> None:
    broker.publish(broker.topic(), *(b"%d" % n for n in range(5)))
    first = got(pop(client, order=True, maxMsgNums=maximum))
    for one in first:
        assert ack(client, one, CHANGE, invisibleTime=3_000).code == 0
    waiting = held(client, maxMsgNums=maximum)
    broker.pass_ms(2_999)
    assert client.answer_to(waiting) is None
    broker.pass_ms(1)
    broker.settle()
    answer = client.answer_to(waiting)
    assert counted(answer) == [(one.body, 1) for one in first]
    for one in got(answer):
        assert ack(client, one).code == 0
    assert broker.group_offsets.fetch("billing", broker.topic().key(0)).offset == maximum


def test_another_time_for_the_message_in_the_middle(broker: RocketMQBroker, client: Client) -> None:
    """Expect 1, 2, 3, 2, 3, 4: what was acked behind the one that is not done comes again."""
    broker.publish(broker.topic(), b"1", b"2", b"3", b"4")
    one, two, three = got(pop(client, order=True, maxMsgNums=3))
    assert ack(client, one).code == 0
    assert ack(client, two, CHANGE, invisibleTime=3_000).code == 0
    assert ack(client, three).code == 0
    waiting = held(client, maxMsgNums=3)
    broker.pass_ms(3_000)
    broker.settle()
    assert counted(client.answer_to(waiting)) == [(b"2", 1), (b"3", 1), (b"4", 0)]


def test_the_queue_waits_for_the_last_of_the_messages(broker: RocketMQBroker, client: Client) -> None:
    broker.publish(broker.topic(), b"1", b"2", b"3")
    one, two, _ = got(pop(client, order=True))
    assert ack(client, one, CHANGE, invisibleTime=1_000).code == 0
    assert ack(client, two, CHANGE, invisibleTime=2 * INVISIBLE_MS).code == 0
    waiting = held(client)
    broker.pass_ms(INVISIBLE_MS)  # The third message keeps the time of the pop.
    assert client.answer_to(waiting) is None
    assert ack(client, two).code == 0
    broker.settle()
    assert counted(client.answer_to(waiting)) == [(b"1", 1), (b"2", 1), (b"3", 1)]


def test_reentrance(broker: RocketMQBroker, client: Client) -> None:
    """The same attempt gets the same messages while it holds them, which is no failure; another one waits."""
    broker.publish(broker.topic(), b"a")
    counts = []
    for attempt, wait_ms in (
        ("", 0), ("1", INVISIBLE_MS), ("1", 0), ("2", INVISIBLE_MS), ("2", 0), ("", INVISIBLE_MS),
    ):  # fmt: skip
        if wait_ms:
            assert nothing(client, order=True, attemptId=attempt)
            broker.pass_ms(wait_ms)
        ((_, count),) = counted(pop(client, order=True, attemptId=attempt))
        counts.append(count)
    assert counts == [0, 1, 1, 2, 2, 3]


def test_only_the_last_receipt_of_an_attempt_is_good(broker: RocketMQBroker, client: Client) -> None:
    broker.publish(broker.topic(), b"a", b"b")
    (lost,) = got(pop(client, order=True, attemptId="x", maxMsgNums=1))
    again = got(pop(client, order=True, attemptId="x"))  # Within the same millisecond.
    assert ack(client, lost).code == ResponseCode.NO_MESSAGE
    assert [ack(client, one).code for one in again] == [0, 0]
    assert nothing(client, order=True)


def test_receipt_after_a_change_says_until_when_it_is_good(broker: RocketMQBroker, client: Client) -> None:
    broker.publish(broker.topic(), b"a")
    (one,) = got(pop(client, order=True))
    broker.pass_ms(4_000)
    changed = ack(client, one, CHANGE, invisibleTime=INVISIBLE_MS).ext
    until_ms = int(changed["popTime"]) + int(changed["invisibleTime"])
    assert until_ms == broker.clock.now_ms() + INVISIBLE_MS
    broker.pass_ms(INVISIBLE_MS - 1)
    assert ack(client, one).code == 0


def test_order_goes_on_after_a_restart(broker: RocketMQBroker, client: Client) -> None:
    broker.publish(broker.topic(), b"1", b"2", b"3")
    one, two, _ = got(pop(client, order=True))
    ack(client, two)
    ack(client, one, CHANGE, invisibleTime=3 * INVISIBLE_MS)
    again = RocketMQBroker(broker.disk.after_kill())
    again.clock.set_now_ms(broker.clock.now_ms())
    survivor = again.connect()
    assert nothing(survivor, order=True)
    again.pass_ms(3 * INVISIBLE_MS)
    assert counted(pop(survivor, order=True)) == [(b"1", 1), (b"2", 1), (b"3", 1)]


# -- The group's position


def test_in_order_a_queue_gives_nothing_until_all_is_acked(broker: RocketMQBroker, client: Client) -> None:
    topic = broker.topic()
    broker.publish(topic, b"a", b"b", b"c")
    a, b = got(pop(client, order=True, maxMsgNums=2))
    assert parse_receipt(a.receipt).revive_queue == 999
    assert nothing(client, order=True)
    assert pop(client, order=True, pollTime=5000) is None
    ack(client, b)
    assert client.answer_to(client._opaque - 1) is None
    ack(client, a)
    broker.settle()
    assert bodies_of(client.answer_to(client._opaque - 2)) == [b"c"]


def test_in_order_what_is_not_acked_comes_again_in_place(broker: RocketMQBroker, client: Client) -> None:
    broker.publish(broker.topic(), b"a", b"b")
    first = got(pop(client, order=True))
    ack(client, first[0])
    broker.pass_ms(INVISIBLE_MS)
    answer = pop(client, order=True)
    assert bodies_of(answer) == [b"b"]
    assert answer.ext["orderCountInfo"] == "0 qo0%1 1;0 0 1"
    for one in got(answer):
        assert ack(client, one).code == 0
    assert nothing(client, order=True)
    assert broker.topics.by_rocketmq_name(RETRY) is None


def test_in_order_more_time_holds_the_queue(broker: RocketMQBroker, client: Client) -> None:
    broker.publish(broker.topic(), b"a")
    (one,) = got(pop(client, order=True))
    assert ack(client, one, RequestCode.CHANGE_MESSAGE_INVISIBLETIME, invisibleTime=3 * INVISIBLE_MS).code == 0
    broker.pass_ms(2 * INVISIBLE_MS)
    assert nothing(client, order=True)
    broker.pass_ms(INVISIBLE_MS)
    assert bodies_of(pop(client, order=True)) == [b"a"]


def test_in_order_acks_of_one_pop_may_come_in_parts_of_a_batch(broker: RocketMQBroker, client: Client) -> None:
    broker.publish(broker.topic(), b"a", b"b")
    receipt = parse_receipt(got(pop(client, order=True))[0].receipt)
    acks = [
        BatchAck(
            group="billing", topic="orders", queue_id=0, pop_ms=receipt.pop_ms, start_offset=receipt.start_offset,
            bits=base64.b64encode(bytes((1 << number,))).decode(),
        )
        for number in range(2)
    ]  # fmt: skip
    assert client.ask(RequestCode.BATCH_ACK_MESSAGE, BatchAckRequest(acks=acks)).code == 0
    assert nothing(client, order=True)


@pytest.mark.parametrize("code", [RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, RequestCode.UPDATE_CONSUMER_OFFSET])
def test_in_order_acks_of_the_past_do_not_undo_a_reset(broker: RocketMQBroker, client: Client, code: int) -> None:
    broker.publish(broker.topic(), b"a", b"b", b"c", b"d")
    for one in got(pop(client, order=True, maxMsgNums=2)):
        ack(client, one)
    old = got(pop(client, order=True))
    assert pop(client, order=True, pollTime=5000) is None
    names = {"group": "billing", "consumerGroup": "billing", "topic": "orders", "queueId": 0}
    moved = broker.connect().ask(code, timestamp=0, isForce=True, offset=1, commitOffset=1, **names)
    assert moved is not None
    assert moved.code == 0
    assert [ack(client, one).code for one in old] == [ResponseCode.NO_MESSAGE] * 2
    assert bodies_of(client.answer_to(client._opaque - 2)) == [b"b", b"c", b"d"]
