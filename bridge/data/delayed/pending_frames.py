"""The wire forms of pending messages, and those in which they are delivered: pure functions for both protocols.

    RocketMQ    a record of SCHEDULE_TOPIC_XXXX (queue = level - 1) or rmq_sys_wheel_timer, as in Apache RocketMQ:
                the message's properties, then TIMER_OUT_MS (when it is due), REAL_TOPIC and REAL_QID (where it goes)
    Kafka       a batch of one record in rmq_sys_wheel_timer, as it will be delivered: uncompressed, no producer id; its
                timestamp is the due time, its own is in the header __BORN_TIMESTAMP

Each message is one entry of the log, so its delivery decodes no batch. `delay/entry_extra.py` has the layout of the
entry's `extra` field.

A delivered RocketMQ message keeps its born time, hosts, key and tags. As in Apache RocketMQ, a message with a delay
level loses DELAY and the other delay properties, and keeps REAL_TOPIC and REAL_QID; a message with a time of its own
loses REAL_TOPIC and REAL_QID and gets TIMER_ENQUEUE_MS and TIMER_DEQUEUE_MS.
Source: ScheduleMessageService.java#messageTimeUp, TimerMessageStore.java#convert.
"""

from collections.abc import Callable, Iterable
from functools import lru_cache
from typing import Final, NamedTuple

from duolog.bridge.state.topics import Topics
from duolog.delay.requested_delay import RequestedDelay
from duolog.protocol.convert import to_rocketmq
from duolog.protocol.errors import ProtocolError
from duolog.protocol.kafka import record_batch, record_reader
from duolog.protocol.kafka.batch_builder import BatchBuilder
from duolog.protocol.kafka.record_batch import Record
from duolog.protocol.rocketmq.messages import message as rocketmq_message
from duolog.protocol.rocketmq.messages import properties as names
from duolog.protocol.rocketmq.messages.message import Message
from duolog.protocol.rocketmq.names import SCHEDULE_TOPIC, TIMER_TOPIC
from duolog.store.entry import Buffer
from duolog.store.index.queue import Queue

BORN_TIMESTAMP: Final = "__BORN_TIMESTAMP"

ADDED_BYTES_MAX: Final = 64  # To the properties, by TIMER_ENQUEUE_MS and TIMER_DEQUEUE_MS

_DESTINATIONS_CACHED: Final = 1024
_OWN: Final = frozenset({names.TIMER_OUT_MS, names.REAL_TOPIC, names.REAL_QID})
_OWN_OF_LEVEL: Final = _OWN | {names.DELAY, names.TIMER_DELIVER_MS, names.TIMER_DELAY_SEC, names.TIMER_DELAY_MS}
_LEVEL_FROM: Final = b"\x02DELAY\x01"
_OUT_FROM: Final = b"\x02TIMER_OUT_MS\x01"
_REAL_FROM: Final = b"\x02REAL_TOPIC\x01"


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


class Delivered(NamedTuple):
    """RocketMQ records in the form of their queue; each list has one item for each record."""

    records: list[bytes]
    born_ms: list[int]
    properties: list[bytes]


def delivered_messages(
    frames: Iterable[Buffer], topic: str, queue_id: int, store_host: bytes, now_ms: int
) -> Delivered:
    """Make records of a queue from pending records."""
    write, real = _destination(topic, queue_id, store_host)
    times: dict[int, bytes] = {}  # By store time: the properties that a message with a time of its own gets.
    delivered = Delivered([], [], [])
    records, births_ms, properties = delivered
    for frame in frames:
        record = bytes(frame)
        born_ms, stored_ms, topic_at, properties_at = rocketmq_message.outline_of(record)
        if record.endswith(real):
            raw, is_of_level = record[properties_at : -len(real)], False
        else:
            raw, is_of_level = _without_own(record[properties_at:])
        if not is_of_level:
            added = times.get(stored_ms)
            if added is None:
                added = times[stored_ms] = _times(stored_ms, now_ms)
            raw += added
        records.append(write(record, topic_at, raw))
        births_ms.append(born_ms)
        properties.append(raw)
    return delivered


@lru_cache(_DESTINATIONS_CACHED)
def _destination(topic: str, queue_id: int, store_host: bytes) -> tuple[Callable[[bytes, int, bytes], bytes], bytes]:
    """Return a function that writes records of this queue, and how the properties of its pending records end."""
    real = f"{names.REAL_TOPIC}\x01{topic}\x02{names.REAL_QID}\x01{queue_id}\x02"
    return rocketmq_message.Readdresser(topic, queue_id, store_host).write, real.encode()


def _times(stored_ms: int, now_ms: int) -> bytes:
    return b"TIMER_ENQUEUE_MS\x01%d\x02TIMER_DEQUEUE_MS\x01%d\x02" % (stored_ms, now_ms)


def _without_own(raw: bytes) -> tuple[bytes, bool]:
    """Remove the properties of the pending form; return the others, and whether the message had a delay level."""
    real_at = raw.rfind(_REAL_FROM)
    if real_at < 0:
        raise ProtocolError(f"a pending message without {names.REAL_TOPIC}: {raw[-100:]!r}")
    level_at = raw.find(_LEVEL_FROM, real_at)
    if level_at < 0:
        return raw[: real_at + 1], False
    # TIMER_OUT_MS may be the first of all.
    return raw[: raw.rfind(_OUT_FROM, 0, real_at) + 1] + raw[real_at + 1 : level_at + 1], True


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


def delivered_batch(batch: Buffer, due_ms: int) -> Buffer:
    """Return a pending batch with the timestamp `due_ms`: mostly the same bytes, without a copy."""
    if record_batch.max_timestamp_of(batch) == due_ms:
        return batch
    stamped = bytearray(batch)
    record_batch.restamp_single(stamped, due_ms)
    return stamped
