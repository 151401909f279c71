"""Messages by their ids, whichever protocol wrote them."""

import pytest

from duolog.protocol.kafka import batch_builder
from duolog.protocol.kafka.record_batch import Record
from duolog.protocol.rocketmq.codes import RequestCode, ResponseCode
from duolog.protocol.rocketmq.messages import message
from tests.unit.bridge.rocketmq.broker import Client, RocketMQBroker, bodies

VIEW = RequestCode.VIEW_MESSAGE_BY_ID


def test_every_message_is_found_by_its_id(broker: RocketMQBroker, client: Client) -> None:
    topic, other = broker.topic(), broker.topic("other")
    broker.publish(topic, b"a", b"b")
    records = [Record(n, 1, None, b"k%d" % n, ()) for n in range(200)]  # more than their bytes, so that they are padded
    batch = bytes(batch_builder.build(records, base_offset=0, leader_epoch=0))
    broker.publisher.publish_batch(other, 1, batch, broker.clock.now_ms())
    broker.publish(topic, b"c")
    for name, queue_id, offset, count in (("orders", 0, 0, 3), ("other", 1, 0, 200)):
        pulled = client.pull(offset, topic=name, queueId=queue_id, maxMsgNums=1000)
        found = message.decode_all(bytes(pulled.body))
        assert len(found) == count
        for each in found:
            answer = client.ask(VIEW, offset=each.physical_offset)
            assert message.decode_all(bytes(answer.body)) == [each]


def test_what_may_not_be_read_is_not_found(broker: RocketMQBroker, client: Client) -> None:
    topic = broker.topic()
    sent = [int(client.send(body=b"%d" % n).ext["msgId"][16:], 16) for n in range(2)]
    broker.is_stalled = True
    client.send(body=b"not durable")
    unseen = broker.store.next_position - 8
    broker.store.retention.trim(topic.queues[0], 1, broker.clock.now_ms())
    for position in (sent[0], sent[1] + 8, -1, 0, unseen, 1 << 62):
        answer = client.ask(VIEW, offset=position)
        assert (answer.code, answer.remark) == (
            ResponseCode.SYSTEM_ERROR,
            f"can not find message by the offset, {position}",
        )
    assert bodies(client.ask(VIEW, offset=sent[1])) == [b"1"]
    assert client.connection.unanswered == 1  # the send


@pytest.mark.parametrize(
    ("delay", "waits_in"),
    [("DELAY\x013\x02", "SCHEDULE_TOPIC_XXXX"), ("TIMER_DELAY_MS\x015\x02", "rmq_sys_wheel_timer")],
)
def test_what_is_still_delayed_is_found(broker: RocketMQBroker, client: Client, delay: str, waits_in: str) -> None:
    """A delayed message is found by its id; and by its keys in the topic where it waits, as in Apache RocketMQ."""
    broker.topic()
    sent = client.send(body=b"later", properties=f"KEYS\x01k\x02UNIQ_KEY\x01U\x02{delay}")
    position = int(sent.ext["msgId"][16:], 16)
    assert bodies(client.ask(VIEW, offset=position)) == [b"later"]
    for key in ("k", "U"):
        where = {"topic": waits_in, "key": key, "maxNum": 9, "beginTimestamp": 0, "endTimestamp": 1 << 60}
        assert bodies(client.ask(RequestCode.QUERY_MESSAGE, **where)) == [b"later"]
