"""Sends to a real store: the queue of a message, its stored fields, refusals, and what the answer waits for."""

import pytest

from duolog.bridge.config import Options, RocketmqOptions, TopicsOptions
from duolog.protocol.rocketmq.codes import RequestCode, ResponseCode
from duolog.protocol.rocketmq.messages import batch, message, properties
from duolog.protocol.rocketmq.messages.batch import Part
from duolog.protocol.rocketmq.messages.message import Message
from duolog.protocol.rocketmq.messages.message_id import pack_host, parse_message_id
from tests.kit.core import STORE_HOST
from tests.unit.bridge.rocketmq.broker import Client, RocketMQBroker

NAMES = (
    "producerGroup", "topic", "defaultTopic", "defaultTopicQueueNums", "queueId", "sysFlag", "bornTimestamp", "flag",
    "properties", "reconsumeTimes", "unitMode", "maxReconsumeTimes", "batch",
)  # fmt: skip
LETTERS = dict(zip(NAMES, "abcdefghijklm", strict=True))


def stored(broker: RocketMQBroker, topic: str = "orders", queue_id: int = 0) -> list[Message]:
    found = broker.topics.by_rocketmq_name(topic)
    assert found is not None
    queue = found.queues[queue_id]
    entries = broker.store.reader.read(queue, 0, max_bytes=1 << 24, until=queue.visible_end)
    return [message.decode(entry.frame) for entry in entries]


# -- What is kept, and what is answered


@pytest.mark.parametrize("json", [True, False])
@pytest.mark.parametrize("code", [RequestCode.SEND_MESSAGE, RequestCode.SEND_MESSAGE_V2])
def test_stored_record_is_the_senders_message(broker: RocketMQBroker, client: Client, code: int, json: bool) -> None:
    broker.topic()
    raw = "TAGS\x01a\x02UNIQ_KEY\x01U1\x02WAIT\x01true"
    request = {
        "producerGroup": "shop", "topic": "orders", "defaultTopic": "TBW102", "defaultTopicQueueNums": 4, "queueId": 1,
        "sysFlag": 1 | 4, "bornTimestamp": 17, "flag": 5, "properties": raw, "reconsumeTimes": 2,
    }  # fmt: skip
    if code == RequestCode.SEND_MESSAGE_V2:
        request = {LETTERS[name]: value for name, value in request.items()}
    answer = client.ask(code, b"body", json=json, **request)
    (kept,) = stored(broker, queue_id=1)
    assert (kept.topic, bytes(kept.body), kept.properties.decode()) == ("orders", b"body", raw)
    assert (kept.queue_id, kept.queue_offset, kept.flag, kept.sys_flag) == (1, 0, 5, 1)
    assert (kept.born_ms, kept.reconsume_times, kept.store_ms) == (17, 2, broker.clock.now_ms())
    assert (kept.born_host, kept.store_host) == (pack_host("192.0.2.1", 40000), STORE_HOST)
    assert answer.ext == {
        "msgId": answer.ext["msgId"], "queueId": "1", "queueOffset": "0", "transactionId": "U1",
        "MSG_REGION": "DefaultRegion", "TRACE_ON": "true",
    }  # fmt: skip
    assert parse_message_id(answer.ext["msgId"]) == (STORE_HOST, kept.physical_offset)


def test_offsets_count_up_and_ids_differ(broker: RocketMQBroker, client: Client) -> None:
    broker.topic()
    answers = [client.send() for _ in range(3)]
    assert [answer.ext["queueOffset"] for answer in answers] == ["0", "1", "2"]
    assert len({answer.ext["msgId"] for answer in answers}) == 3


def test_message_without_an_id_gets_one(broker: RocketMQBroker, client: Client) -> None:
    broker.topic()
    given = [client.send(properties=raw).ext["transactionId"] for raw in ("", "KEYS\x01k", "UNIQ_KEY\x01\x02")]
    assert [properties.get(each.properties, "UNIQ_KEY") for each in stored(broker)] == given
    assert len(set(given)) == 3
    assert all(len(each) == 32 for each in given)


def test_batch_is_one_unit_of_messages_with_ids_of_their_own(broker: RocketMQBroker, client: Client) -> None:
    broker.topic()
    parts = [Part(n, b"b%d" % n, b"UNIQ_KEY\x01U%d\x02" % n) for n in range(3)]
    answer = client.send(body=batch.encode(parts), properties="WAIT\x01true\x02", batch=True)
    kept = stored(broker)
    assert [(bytes(each.body), each.flag, each.queue_offset) for each in kept] == [
        (b"b0", 0, 0),
        (b"b1", 1, 1),
        (b"b2", 2, 2),
    ]
    ids = answer.ext["msgId"].split(",")
    assert [parse_message_id(each)[1] for each in ids] == [each.physical_offset for each in kept]
    assert answer.ext["queueOffset"] == "0"
    assert client.send(body=b"").code == 0  # a message may be empty, a batch not
    assert client.send(body=b"", batch=True).code == ResponseCode.SYSTEM_ERROR


# -- Where it goes


@pytest.mark.parametrize(
    ("requested", "queues"), [(1, 1), (4, 4), (8, 8), (100, 8), (0, 4), (-3, 4)], ids=lambda value: str(value)
)
def test_unknown_topic_is_made_as_its_producer_wishes(
    broker: RocketMQBroker, client: Client, requested: int, queues: int
) -> None:
    assert client.send("fresh", defaultTopicQueueNums=requested).code == 0
    topic = broker.topics.by_rocketmq_name("fresh")
    assert topic is not None
    assert (topic.queue_count, topic.perm) == (queues, 6)


def test_queue_below_zero_is_any(broker: RocketMQBroker, client: Client) -> None:
    broker.topic()
    queues = {client.send(queueId=-1).ext["queueId"] for _ in range(40)}
    assert queues == {"0", "1"}


# -- What is refused

LONG = "x" * 128


def with_part(raw: bytes) -> bytes:
    """A batch of a good message and one with these properties."""
    return batch.encode([Part(0, b"good", "K\x01Kräfte\x02".encode()), Part(0, b"", raw)])


@pytest.mark.parametrize(
    ("fields", "code", "remark"),
    [
        ({"topic": " "}, ResponseCode.INVALID_PARAMETER, "topic is blank"),
        ({"topic": "a.b"}, ResponseCode.INVALID_PARAMETER, "illegal characters"),
        ({"topic": LONG}, ResponseCode.INVALID_PARAMETER, "longer than topic max length 127"),
        ({"topic": "SCHEDULE_TOPIC_XXXX"}, ResponseCode.NO_PERMISSION, "is forbidden"),
        ({"topic": "RMQ_SYS_TRANS_HALF_TOPIC"}, ResponseCode.NO_PERMISSION, "broker's own"),
        ({"topic": "TBW102"}, ResponseCode.NO_PERMISSION, "broker's own"),
        ({"topic": "fresh", "defaultTopic": "orders"}, ResponseCode.TOPIC_NOT_EXIST, "topic[fresh] not exist"),
        ({"topic": "rmq_sys_x"}, ResponseCode.TOPIC_NOT_EXIST, "not exist"),
        ({"topic": "readonly"}, ResponseCode.NO_PERMISSION, "sending message is forbidden"),
        ({"queueId": 2}, ResponseCode.INVALID_PARAMETER, "queueId[2] is illegal"),
        ({"queueId": None}, ResponseCode.SYSTEM_ERROR, "the custom field <queueId> is null"),
        ({"bornTimestamp": "never"}, ResponseCode.SYSTEM_ERROR, "<bornTimestamp> is illegal"),
        ({"body": bytes(1001)}, ResponseCode.MESSAGE_ILLEGAL, "allowed are 1000"),
        ({"body": bytes(1001), "batch": True}, ResponseCode.MESSAGE_ILLEGAL, "allowed are 1000"),
        ({"properties": "K\x01" + "v" * 32768}, ResponseCode.MESSAGE_ILLEGAL, "32767"),
        ({"properties": "DELAY\x01soon\x02"}, ResponseCode.MESSAGE_ILLEGAL, "DELAY is no integer"),
        ({"properties": f"TIMER_DELIVER_MS\x01{1 << 62}\x02"}, ResponseCode.MESSAGE_ILLEGAL, "delay.max_days is 3650"),
        ({"properties": "TIMER_DEL_UNIQKEY\x01U\x02"}, ResponseCode.MESSAGE_ILLEGAL, "recall a delayed message"),
        ({"properties": "TRAN_MSG\x01true\x02DELAY\x01soon\x02"}, ResponseCode.MESSAGE_ILLEGAL, "no integer"),
        ({"properties": "TRAN_MSG\x01true\x02K\x01" + "v" * 32700}, ResponseCode.MESSAGE_ILLEGAL, "those of a half"),
        ({"properties": "TRAN_MSG\x01true\x02", "batch": True}, ResponseCode.MESSAGE_ILLEGAL, "a batch is not"),
        ({"properties": "DELAY\x013\x02", "batch": True}, ResponseCode.MESSAGE_ILLEGAL, "a batch is not"),
        ({"topic": "%RETRY%g", "batch": True}, ResponseCode.MESSAGE_ILLEGAL, "a batch is not retried"),
        ({"body": b"garbage", "batch": True}, ResponseCode.SYSTEM_ERROR, "message 0 of a batch"),
        ({"body": batch.encode([Part(0, b"", b"DELAY\x01x")]), "batch": True}, ResponseCode.MESSAGE_ILLEGAL, "integer"),
        ({"body": with_part(b"K\x01\xff"), "batch": True}, ResponseCode.MESSAGE_ILLEGAL, "not UTF-8"),
        ({"body": with_part(b"UNIQ_KEY\x01\xff"), "batch": True}, ResponseCode.MESSAGE_ILLEGAL, "not UTF-8"),
        ({"body": with_part(b"\xed\xa0\x80\x01v"), "batch": True}, ResponseCode.MESSAGE_ILLEGAL, "not UTF-8"),
    ],
)  # fmt: skip
def test_refusals_append_nothing(fields: dict[str, object], code: int, remark: str) -> None:
    broker = RocketMQBroker(options=Options(rocketmq=RocketmqOptions(body_bytes_max=1000)))
    client = broker.connect()
    broker.topic()
    broker.topics.permit(broker.topic("readonly"), 4, broker.clock.now_ms())
    answer = client.send(**fields)
    assert answer.code == code
    assert remark in answer.remark
    assert sum(queue.end_offset for queue in broker.store.queues()) == 0


def test_topics_are_not_made_where_that_is_off() -> None:
    broker = RocketMQBroker(options=Options(topics=TopicsOptions(auto_create=False)))
    client = broker.connect()
    assert client.send("fresh").code == ResponseCode.TOPIC_NOT_EXIST


@pytest.mark.parametrize("raw", ["DELAY\x010\x02", "TRAN_MSG\x01false\x02", "MYDELAY\x013\x02", "K\x01DELAY\x02"])
def test_what_only_looks_like_a_wish_is_sent(broker: RocketMQBroker, client: Client, raw: str) -> None:
    broker.topic()
    assert client.send(properties=raw).code == 0


# -- What the answer waits for


@pytest.mark.parametrize(
    ("raw", "waits"),
    [
        ("", True),
        ("WAIT\x01true\x02", True),
        ("WAIT\x01false\x02", False),
        ("A\x01b\x02WAIT\x01false", False),
        ("MYWAIT\x01false\x02", True),
    ],
)
def test_answer_waits_for_the_log_unless_the_message_says_otherwise(
    broker: RocketMQBroker, client: Client, raw: str, waits: bool
) -> None:
    broker.topic()
    broker.settle()
    broker.is_stalled = True
    answer = client.send(properties=raw)
    assert (answer is None, client.connection.unanswered) == (waits, int(waits))
    broker.settle()
    assert (answer or client.last_answer()).code == 0
    assert client.connection.unanswered == 0


def test_one_way_send_is_kept_and_not_answered(broker: RocketMQBroker, client: Client) -> None:
    broker.topic()
    assert client.send(oneway=True) is None
    assert client.send(topic="a.b", oneway=True) is None
    assert len(stored(broker)) == 1
    assert not client.heard


@pytest.mark.parametrize(("body", "raw"), [(b"", "TRAN_MSG\x01true\x02" * 2500), (b"x" * 1001, "")])
def test_message_over_a_limit_makes_no_topic(broker: RocketMQBroker, body: bytes, raw: str) -> None:
    broker.publisher.messages.body_bytes_max = 1000
    before = len(broker.topics)
    answer = broker.connect().send("new", body, raw)
    assert (answer.code, "allowed are 1000 and 32767" in answer.remark) == (ResponseCode.MESSAGE_ILLEGAL, True)
    assert len(broker.topics) == before
