"""The wire forms of pending messages: pure functions for both protocols. `delivery_frames.py` has those of deliveries.

    RocketMQ    a record of SCHEDULE_TOPIC_XXXX (queue = level - 1) or rmq_sys_wheel_timer, as in Apache RocketMQ:
                the message's properties, then TIMER_OUT_MS (when it is due), REAL_TOPIC and REAL_QID (where it goes)
    Kafka       a batch of one record in rmq_sys_wheel_timer, as it will be delivered: uncompressed, no producer id; its
                timestamp is the due time, its own is in the header __BORN_TIMESTAMP

Each message is one entry of the log, so its delivery decodes no batch. `delay/entry_extra.py` has the layout of the
entry's `extra` field.
"""

from typing import Final

from duolog.bridge.state.topics import Topics
from duolog.delay.requested_delay import RequestedDelay
from duolog.protocol.convert import to_rocketmq
from duolog.protocol.kafka import record_reader
from duolog.protocol.kafka.batch_builder import BatchBuilder
from duolog.protocol.kafka.record_batch import Record
from duolog.protocol.rocketmq.messages import properties as names
from duolog.protocol.rocketmq.messages.message import Message
from duolog.protocol.rocketmq.names import SCHEDULE_TOPIC, TIMER_TOPIC
from duolog.store.entry import Buffer
from duolog.store.index.queue import Queue

BORN_TIMESTAMP: Final = "__BORN_TIMESTAMP"

ADDED_BYTES_MAX: Final = 64  # To the properties, by TIMER_ENQUEUE_MS and TIMER_DEQUEUE_MS

_OWN: Final = frozenset({names.TIMER_OUT_MS, names.REAL_TOPIC, names.REAL_QID})
_OWN_OF_LEVEL: Final = _OWN | {names.DELAY, names.TIMER_DELIVER_MS, names.TIMER_DELAY_SEC, names.TIMER_DELAY_MS}


def pending_queue(topics: Topics, level: int = 0) -> Queue:
    """Return the queue that holds pending messages of a delay level; 0 is for those with a time of their own."""
    topic = topics.by_rocketmq_name(SCHEDULE_TOPIC if level else TIMER_TOPIC)
    assert topic is not None, "the broker creates its own topics at the start"
    return topic.queues[level - 1 if level else 0]


# -- RocketMQ


def make_pending(
    message: Message, topic: str, queue_id: int, store_host: bytes, delay: RequestedDelay, found: dict[str, str]
) -> None:
    """Turn a message for a queue of `topic` into its pending form; `found` are its properties, parsed.

    Raises ProtocolError for properties that cannot be written.
    """
    own = f"TIMER_OUT_MS\x01{delay.due_ms}\x02REAL_TOPIC\x01{topic}\x02REAL_QID\x01{queue_id}\x02"
    level = f"DELAY\x01{delay.level}\x02" if delay.level else ""
    message.properties = names.join(_own_properties(message.properties, delay, found), (own + level).encode())
    message.store_host = store_host
    message.topic = SCHEDULE_TOPIC if delay.level else TIMER_TOPIC
    message.queue_id = delay.level - 1 if delay.level else 0


def _own_properties(raw: bytes, delay: RequestedDelay, found: dict[str, str]) -> bytes:
    """Return the properties without those of the pending form, and without the delays that a level overrides."""
    unwanted = _OWN_OF_LEVEL if delay.level else _OWN
    if unwanted.isdisjoint(found):
        return raw
    return names.encode({name: value for name, value in found.items() if name not in unwanted}).encode()


def due_of(message: Message) -> int:
    """Return when a message that `make_pending` has changed is due."""
    value = names.get(message.properties, names.TIMER_OUT_MS)
    assert value is not None, "the message is pending"
    return int(value)


# -- Kafka


def pending_batch(record: Record, due_ms: int, now_ms: int) -> bytearray:
    """Make the batch in which a delayed record is pending, and will be delivered."""
    _, timestamp_ms, key, value, headers = record
    born_ms = timestamp_ms if timestamp_ms >= 0 else now_ms
    kept = [header for header in headers if header[0] != BORN_TIMESTAMP]
    kept.append((BORN_TIMESTAMP, str(born_ms).encode()))
    builder = BatchBuilder()
    builder.append(0, due_ms, key, value, kept)
    return builder.finish(0, 0)


def properties_of_batch(batch: Buffer) -> bytes:
    """Return the properties that a RocketMQ client sees of the record in a pending batch."""
    (record,) = record_reader.records(batch, len(batch))
    return to_rocketmq.properties_of(record)
