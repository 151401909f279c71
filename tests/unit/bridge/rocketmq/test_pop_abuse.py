"""Pops, acks and changes of the invisible time with invalid fields: each is answered with a code and changes nothing.

After each case the popped message is acked by its true receipt, so no case has lost or released it.
"""

import base64
import tracemalloc
from typing import Any, Final

import pytest

from duolog.bridge.config import Options, RocketmqOptions
from duolog.bridge.records.pop import PopTaken
from duolog.bridge.rocketmq.pop.pop_checkpoints import CheckpointName, PopCheckpoints, taken
from duolog.protocol.rocketmq.bodies import BatchAck, BatchAckRequest
from duolog.protocol.rocketmq.codes import RequestCode, ResponseCode
from tests.unit.bridge.rocketmq.broker import Client, RocketMQBroker
from tests.unit.bridge.rocketmq.popping import INVISIBLE_MS, Got, ack, bodies_of, got, nothing, pop

CHANGE: Final = RequestCode.CHANGE_MESSAGE_INVISIBLETIME
YEAR_MS: Final = 365 * 86_400_000
HUGE: Final = 1 << 62
NONE, ILLEGAL, WRONG = ResponseCode.NO_MESSAGE, ResponseCode.MESSAGE_ILLEGAL, ResponseCode.INVALID_PARAMETER
ERROR, NO_TOPIC = ResponseCode.SYSTEM_ERROR, ResponseCode.TOPIC_NOT_EXIST


@pytest.fixture
def broker() -> RocketMQBroker:
    broker = RocketMQBroker()
    broker.topic()
    broker.topic("others")
    return broker


@pytest.fixture
def one(broker: RocketMQBroker, client: Client) -> Got:
    """The only message, popped: offset 0 of queue 0."""
    broker.publish(broker.topic(), b"a")
    (found,) = got(pop(client))
    return found


def receipt(one: Got, **parts: object) -> str:
    """The receipt of the message with some of its parts replaced."""
    names = ("start", "pop_ms", "invisible_ms", "revive", "retry", "broker", "queue", "offset")
    return " ".join(map(str, (dict(zip(names, one.receipt.split(" "), strict=True)) | parts).values()))


def still_popped(broker: RocketMQBroker, client: Client, one: Got, order: bool = False) -> None:
    assert len(broker.rocketmq_context.pop.checkpoints) == 1
    assert nothing(client, order=order)
    assert ack(client, one).code == 0
    assert len(broker.rocketmq_context.pop.checkpoints) == 0


# -- Receipts

RECEIPTS: Final[list[tuple[dict[str, object], int]]] = [
    ({"start": "x"}, ERROR), ({"start": ""}, ERROR), ({"pop_ms": "1.5"}, ERROR), ({"queue": "-"}, ERROR),
    ({"start": "9" * 21}, ERROR), ({"pop_ms": "9" * 5000}, ERROR), ({"offset": "\x00"}, ERROR),
    ({"start": -1}, NONE), ({"start": HUGE}, NONE), ({"pop_ms": -HUGE}, NONE), ({"pop_ms": 0}, NONE),
    ({"start": 1 << 63}, NONE),
]  # fmt: skip


@pytest.mark.parametrize("code", [RequestCode.ACK_MESSAGE, CHANGE])
@pytest.mark.parametrize(("parts", "refusal"), RECEIPTS)
def test_receipts_that_name_nothing(
    broker: RocketMQBroker, client: Client, one: Got, code: int, parts: dict[str, object], refusal: int
) -> None:
    answer = ack(client, one, code, extraInfo=receipt(one, **parts), invisibleTime=1_000)
    assert (answer.code, len(answer.remark) < 1_000) == (refusal, True)
    still_popped(broker, client, one)


FIELDS: Final[list[tuple[dict[str, object], int]]] = [
    ({"extraInfo": ""}, ERROR), ({"extraInfo": " " * 7}, ERROR), ({"extraInfo": "x" * 100_000}, ERROR),
    ({"extraInfo": "1 " * 20_000}, NONE), ({"extraInfo": None}, ERROR),
    ({"queueId": -1}, ILLEGAL), ({"queueId": 1 << 31}, ERROR), ({"queueId": 2}, ILLEGAL), ({"queueId": 1}, NONE),
    ({"topic": "others"}, NONE), ({"topic": "%RETRY%billing_orders"}, NO_TOPIC), ({"topic": ""}, NO_TOPIC),
    ({"topic": "%RETRY%billing+orders"}, NO_TOPIC), ({"topic": "x" * 30_000}, NO_TOPIC),
    ({"consumerGroup": "other"}, NONE), ({"consumerGroup": ""}, NONE), ({"consumerGroup": "x" * 30_000}, NONE),
    ({"offset": -1}, NONE), ({"offset": 1}, NONE), ({"offset": HUGE}, NONE), ({"offset": "x"}, ERROR),
]  # fmt: skip


@pytest.mark.parametrize("code", [RequestCode.ACK_MESSAGE, CHANGE])
@pytest.mark.parametrize(("fields", "refusal"), FIELDS)
def test_fields_that_name_nothing(
    broker: RocketMQBroker, client: Client, one: Got, code: int, fields: dict[str, object], refusal: int
) -> None:
    answer = ack(client, one, code, **{"invisibleTime": 1_000, **fields})
    assert (answer.code, len(answer.remark) < 1_000) == (refusal, True)
    still_popped(broker, client, one)


@pytest.mark.parametrize("code", [RequestCode.ACK_MESSAGE, CHANGE])
def test_receipt_is_good_once_and_in_time(broker: RocketMQBroker, client: Client, one: Got, code: int) -> None:
    assert ack(client, one).code == 0
    assert ack(client, one, code, invisibleTime=1_000).code == NONE
    broker.publish(broker.topic(), b"b")
    (late,) = got(pop(client))
    broker.pass_ms(INVISIBLE_MS)
    assert ack(client, late, code, invisibleTime=1_000).code == NONE
    assert bodies_of(pop(client)) == [b"b"]


# -- Times


@pytest.mark.parametrize("order", [False, True])
@pytest.mark.parametrize("invisible_ms", [-1, -HUGE, 12 * 3_600_000 + 1, YEAR_MS, HUGE])
def test_times_that_are_refused(broker: RocketMQBroker, client: Client, invisible_ms: int, order: bool) -> None:
    broker.publish(broker.topic(), b"a")
    assert pop(client, invisibleTime=invisible_ms).code == WRONG
    (one,) = got(pop(client, order=order))
    assert ack(client, one, CHANGE, invisibleTime=invisible_ms).code == WRONG
    still_popped(broker, client, one, order)


@pytest.mark.parametrize("order", [False, True])
def test_no_time_at_all_gives_the_message_back_at_once(broker: RocketMQBroker, client: Client, order: bool) -> None:
    broker.publish(broker.topic(), b"a")
    for _ in range(3):
        (one,) = got(pop(client, order=order))
        assert ack(client, one, CHANGE, invisibleTime=0).code == 0
        broker.pass_ms(1)


# -- Batches of acks


def batch(one: Got, bits: str = "AQ==", **fields: Any) -> BatchAck:
    """The ack of one message that was popped from queue 0, with some fields replaced."""
    start, pop_ms, *_ = one.receipt.split(" ")
    known = {"group": "billing", "topic": "orders", "start_offset": int(start), "pop_ms": int(pop_ms), "bits": bits}
    return BatchAck(**{**known, **fields})


@pytest.mark.parametrize(
    "bits", ["", "AA==", "Ag==", base64.b64encode(b"\x00" * 1024).decode(), base64.b64encode(b"\xfe" * 1024).decode()]
)
def test_bits_of_no_popped_message(broker: RocketMQBroker, client: Client, one: Got, bits: str) -> None:
    assert client.ask(RequestCode.BATCH_ACK_MESSAGE, BatchAckRequest(acks=[batch(one, bits)])).code == 0
    still_popped(broker, client, one)


@pytest.mark.parametrize("bits", ["A", "****", "AQ==AQ==", "é", "A" * 2_052])
def test_bits_that_are_none(broker: RocketMQBroker, client: Client, one: Got, bits: str) -> None:
    acks = [batch(one), batch(one, bits)]
    assert client.ask(RequestCode.BATCH_ACK_MESSAGE, BatchAckRequest(acks=acks)).code == ERROR
    still_popped(broker, client, one)


@pytest.mark.parametrize(
    "fields",
    [
        {"queue_id": -1}, {"queue_id": 7}, {"queue_id": HUGE}, {"topic": "none"}, {"topic": ""}, {"group": "none"},
        {"group": ""}, {"start_offset": -1}, {"start_offset": HUGE}, {"pop_ms": 0}, {"retry": "1"}, {"retry": "2"},
    ],
)  # fmt: skip
def test_batch_of_receipts_of_which_one_names_nothing(
    broker: RocketMQBroker, client: Client, one: Got, fields: dict[str, Any]
) -> None:
    assert client.ask(RequestCode.BATCH_ACK_MESSAGE, BatchAckRequest(acks=[batch(one, **fields)])).code == 0
    assert len(broker.rocketmq_context.pop.checkpoints) == 1
    both = BatchAckRequest(acks=[batch(one, **fields), batch(one), batch(one)])
    assert client.ask(RequestCode.BATCH_ACK_MESSAGE, both).code == 0
    assert len(broker.rocketmq_context.pop.checkpoints) == 0


def test_batch_of_acks_looks_at_no_more_than_what_was_popped(broker: RocketMQBroker, client: Client, one: Got) -> None:
    """Hundreds of sets of thousands of bits are one look-up each; they are decoded for a popped message only."""
    bits = base64.b64encode(b"\xff" * 1024).decode()
    acks = [batch(one, bits, pop_ms=number) for number in range(100)] + [batch(one, bits)]
    assert client.ask(RequestCode.BATCH_ACK_MESSAGE, BatchAckRequest(acks=acks)).code == 0
    assert len(broker.rocketmq_context.pop.checkpoints) == 0


# -- Pops


@pytest.mark.parametrize(
    ("fields", "refusal"),
    [
        ({"maxMsgNums": 0}, WRONG), ({"maxMsgNums": -1}, WRONG), ({"maxMsgNums": 33}, WRONG),
        ({"maxMsgNums": (1 << 31) - 1}, WRONG), ({"maxMsgNums": HUGE}, ERROR), ({"maxMsgNums": ""}, ERROR),
        ({"invisibleTime": 0}, WRONG), ({"queueId": -2}, WRONG), ({"queueId": HUGE}, ERROR),
        ({"topic": "none"}, NO_TOPIC), ({"topic": "x" * 30_000}, NO_TOPIC),
        ({"consumerGroup": "x" * 30_000}, ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST),
        ({"attemptId": "x" * 30_000}, WRONG),
    ],
)  # fmt: skip
@pytest.mark.parametrize("order", [False, True])
def test_pops_that_are_refused(
    broker: RocketMQBroker, client: Client, fields: dict[str, object], refusal: int, order: bool
) -> None:
    broker.publish(broker.topic(), b"a")
    answer = pop(client, order=order, **fields)
    assert (answer.code, len(answer.remark) < 1_000) == (refusal, True)
    assert len(broker.rocketmq_context.pop.checkpoints) == 0
    assert bodies_of(pop(client, order=order)) == [b"a"]


@pytest.mark.parametrize("poll_ms", [0, -1, -HUGE])
def test_pop_without_patience_is_answered_at_once(client: Client, poll_ms: int) -> None:
    assert pop(client, pollTime=poll_ms).code == ResponseCode.POLLING_TIMEOUT


def test_pop_with_endless_patience_is_held_for_a_minute(broker: RocketMQBroker, client: Client) -> None:
    assert pop(client, pollTime=HUGE) is None
    broker.pass_ms(60_000)
    assert client.last_answer().code == ResponseCode.POLLING_TIMEOUT  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("code", "extra"), [(RequestCode.POLLING_INFO, {}), (RequestCode.NOTIFICATION, {"pollTime": 0, "bornTime": 0})]
)
@pytest.mark.parametrize(
    ("fields", "refusal"),
    [
        ({"queueId": -2}, WRONG), ({"queueId": 2}, WRONG), ({"queueId": HUGE}, ERROR), ({"topic": "none"}, NO_TOPIC),
        ({"topic": ""}, NO_TOPIC), ({"consumerGroup": "a b"}, ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST),
    ],
)  # fmt: skip
def test_questions_that_are_refused(
    client: Client, code: int, extra: dict[str, object], fields: dict[str, object], refusal: int
) -> None:
    request = {"consumerGroup": "billing", "topic": "orders", "queueId": -1, **extra, **fields}
    assert client.ask(code, **request).code == refusal


# -- Memory


def test_pops_that_are_not_acked_have_a_limit_in_bytes() -> None:
    broker = RocketMQBroker(options=Options(rocketmq=RocketmqOptions(popped_bytes_max=3_500)))
    client = broker.connect()
    broker.publish(broker.topic(), *(b"%d" % n for n in range(10)))
    popped = [one for _ in range(3) for one in got(pop(client, maxMsgNums=2))]
    assert ack(client, popped[0], CHANGE, invisibleTime=1_000).code == 0  # Now it has a checkpoint of its own.
    assert pop(client).code == ResponseCode.POLLING_FULL
    assert ack(client, popped[2], CHANGE, invisibleTime=1_000).code == ResponseCode.POLLING_FULL
    assert ack(client, popped[1], CHANGE, invisibleTime=1_000).code == 0  # It has one already.
    for one in popped[2:]:
        assert ack(client, one).code == 0
    assert bodies_of(pop(client)) == [b"6", b"7", b"8", b"9"]


@pytest.mark.parametrize("step", [1, 3])
@pytest.mark.parametrize("count", [1, 32])
def test_checkpoints_take_no_more_than_they_are_counted_for(step: int, count: int) -> None:
    popped = PopCheckpoints(RocketMQBroker().state_log, 1 << 40)
    tracemalloc.start()
    try:
        for number in range(500):
            name = CheckpointName(f"group-{number % 50}", 7 << 16 | number, 1_000_000 * number, 1_795_375_528_519)
            offsets = range(name.start_offset, name.start_offset + step * count, step)
            record: PopTaken = taken(name, offsets, name.pop_ms + number, offsets[-1] + 1)
            popped._replay_taken(record, None)  # type: ignore[arg-type]
        used, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert 0.5 * popped._bytes < used < 1.1 * popped._bytes
