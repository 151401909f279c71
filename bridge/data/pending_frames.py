"""How a delayed message lies in the log until it is due, and how it leaves: pure functions for both forms.

    RocketMQ    a record of SCHEDULE_TOPIC_XXXX (queue = level - 1) or rmq_sys_wheel_timer, as its own broker has it:
                the message's properties, then TIMER_OUT_MS (when it is due), REAL_TOPIC and REAL_QID (where it goes)
    Kafka       a batch of one record in rmq_sys_wheel_timer, as it will be delivered: uncompressed, no producer id, its
                timestamp the due time, its own timestamp in the header __BORN_TIMESTAMP

Each is one entry of the log, so that whoever delivers it has nothing to open. The entry's `extra` says what a timer is
made of, live and at recovery:

    extra     kind u8 = 0x44 | queue key of the destination u64 | due u64 | hash of topic and key u64 if it has one
              kind u8 = 0x54 | key | due | producer id u64       of an open Kafka transaction: no timer yet
              kind u8 = 0x46 | key | due | hash u64 or 0 | its id, 2 u64 | its place, 2 u64      parked again: it came
                                                                 from that key in a sorted table, and keeps its id

Delivered, a RocketMQ message keeps born time, hosts, key and tags. As at home, one of a level loses DELAY and what
else it asked for, and keeps REAL_TOPIC and REAL_QID; one of a chosen time loses REAL_TOPIC and REAL_QID and gets
TIMER_ENQUEUE_MS and TIMER_DEQUEUE_MS. ScheduleMessageService.java#messageTimeUp, TimerMessageStore.java#convert.
"""

from collections.abc import Callable, Iterable
from functools import lru_cache
from struct import Struct
from typing import Final, NamedTuple

from duolog.bridge.data.delay_headers import RequestedDelay
from duolog.bridge.state.topic_table import QUEUE_ID_BITS
from duolog.delay.names import name_hash
from duolog.protocol import convert
from duolog.protocol.errors import ProtocolError
from duolog.protocol.kafka import record_batch, record_reader
from duolog.protocol.kafka.batch_builder import BatchBuilder
from duolog.protocol.kafka.record_batch import Record
from duolog.protocol.rocketmq.messages import message as rocketmq_message
from duolog.protocol.rocketmq.messages import properties as names
from duolog.protocol.rocketmq.messages.message import Message
from duolog.protocol.rocketmq.names import SCHEDULE_TOPIC, TIMER_TOPIC
from duolog.store.entry import Buffer

BORN_TIMESTAMP: Final = "__BORN_TIMESTAMP"

ADDED_BYTES_MAX: Final = 64  # to the properties, by TIMER_ENQUEUE_MS and TIMER_DEQUEUE_MS

_DESTINATIONS_CACHED: Final = 1024
_EXTRA: Final = Struct(">BQQ")
_HASH: Final = Struct(">Q")
_HELD_EXTRA: Final = Struct(">BQQQ")
EXTRA_KIND: Final = 0x44  # of all entries that have an `extra`; RocketMQ's op messages begin theirs with 0 to 9
HELD_EXTRA_KIND: Final = 0x54
AGAIN_EXTRA_KIND: Final = 0x46
HASH_AT: Final = _EXTRA.size
HASH_SIZE: Final = _HASH.size
_AGAIN_EXTRA: Final = Struct(">BQQQQQQQ")
_OWN: Final = frozenset({names.TIMER_OUT_MS, names.REAL_TOPIC, names.REAL_QID})
_OWN_OF_LEVEL: Final = _OWN | {names.DELAY, names.TIMER_DELIVER_MS, names.TIMER_DELAY_SEC, names.TIMER_DELAY_MS}
_LEVEL_FROM: Final = b"\x02DELAY\x01"
_OUT_FROM: Final = b"\x02TIMER_OUT_MS\x01"
_REAL_FROM: Final = b"\x02REAL_TOPIC\x01"


def extra(key: int, due_ms: int, name: bytes = b"") -> bytes:
    """Give the extra of a timer; `name` is the sender's own key."""
    made = _EXTRA.pack(EXTRA_KIND, key, due_ms)
    return made + _HASH.pack(name_hash(key >> QUEUE_ID_BITS, name)) if name else made


def read_extra(raw: bytes) -> tuple[int, int, int | None]:
    """Give (queue key of the destination, due time, hash of the sender's key) of a parked entry."""
    _, key, due_ms = _EXTRA.unpack_from(raw)
    return key, due_ms, _HASH.unpack_from(raw, _EXTRA.size)[0] if len(raw) > _EXTRA.size else None


def again_extra(key: int, due_ms: int, hashed: int, timer_id: tuple[int, int], place: tuple[int, int]) -> bytes:
    """Give the extra of a timer that is parked again: `hashed` is 0 if it has no name."""
    return _AGAIN_EXTRA.pack(AGAIN_EXTRA_KIND, key, due_ms, hashed, *timer_id, *place)


def read_again_extra(raw: bytes) -> tuple[int, int, int, tuple[int, int], tuple[int, int]]:
    """Give (queue key of the destination, due time, hash of the sender's key, id, place that it has left)."""
    _, key, due_ms, hashed, given_ms, given, was_due_ms, was = _AGAIN_EXTRA.unpack(raw)
    return key, due_ms, hashed, (given_ms, given), (was_due_ms, was)


def held_extra(key: int, due_ms: int, producer_id: int) -> bytes:
    return _HELD_EXTRA.pack(HELD_EXTRA_KIND, key, due_ms, producer_id)


def read_held_extra(raw: bytes) -> tuple[int, int, int]:
    """Give (queue key of the destination, due time, producer id) of an entry that waits for a commit."""
    _, key, due_ms, producer_id = _HELD_EXTRA.unpack(raw)
    return key, due_ms, producer_id


# -- RocketMQ


def park_message(
    message: Message, topic: str, queue_id: int, store_host: bytes, delay: RequestedDelay, found: dict[str, str]
) -> None:
    """Turn a message for a queue of `topic` into its parked form; `found` are its properties, parsed.

    Raises ProtocolError for properties that cannot be written.
    """
    own = f"TIMER_OUT_MS\x01{delay.due_ms}\x02REAL_TOPIC\x01{topic}\x02REAL_QID\x01{queue_id}\x02"
    level = f"DELAY\x01{delay.level}\x02" if delay.level else ""
    message.properties = names.join(_own_properties(message.properties, delay, found), (own + level).encode())
    message.store_host = store_host
    message.topic = SCHEDULE_TOPIC if delay.level else TIMER_TOPIC
    message.queue_id = delay.level - 1 if delay.level else 0


def _own_properties(raw: bytes, delay: RequestedDelay, found: dict[str, str]) -> bytes:
    """Give the properties without those that the parked form has for itself, and the wishes that a level overrules."""
    unwanted = _OWN_OF_LEVEL if delay.level else _OWN
    if unwanted.isdisjoint(found):
        return raw
    return names.encode({name: value for name, value in found.items() if name not in unwanted}).encode()


def due_of(message: Message) -> int:
    """Say when a message that `park_message` was given is due."""
    value = names.get(message.properties, names.TIMER_OUT_MS)
    assert value is not None, "a parked message"
    return int(value)


class Delivered(NamedTuple):
    """Parked records as those of their queue; each list has one item for each."""

    records: list[bytes]
    born_ms: list[int]
    properties: list[bytes]


def delivered_messages(
    frames: Iterable[Buffer], topic: str, queue_id: int, store_host: bytes, now_ms: int
) -> Delivered:
    """Give parked records as those of their queue."""
    write, real = _destination(topic, queue_id, store_host)
    times: dict[int, bytes] = {}  # what those of a chosen time get, by store time: neighbours were parked together
    delivered = Delivered([], [], [])
    records, births_ms, properties = delivered
    for frame in frames:
        record = bytes(frame)
        born_ms, parked_ms, topic_at, properties_at = rocketmq_message.outline_of(record)
        if record.endswith(real):
            raw, is_of_level = record[properties_at : -len(real)], False
        else:
            raw, is_of_level = _without_own(record[properties_at:])
        if not is_of_level:
            added = times.get(parked_ms)
            if added is None:
                added = times[parked_ms] = _times(parked_ms, now_ms)
            raw += added
        records.append(write(record, topic_at, raw))
        births_ms.append(born_ms)
        properties.append(raw)
    return delivered


@lru_cache(_DESTINATIONS_CACHED)
def _destination(topic: str, queue_id: int, store_host: bytes) -> tuple[Callable[[bytes, int, bytes], bytes], bytes]:
    """Give what writes records for this queue, and what the properties of those that wait for it end with."""
    real = f"{names.REAL_TOPIC}\x01{topic}\x02{names.REAL_QID}\x01{queue_id}\x02"
    return rocketmq_message.Readdresser(topic, queue_id, store_host).write, real.encode()


def _times(parked_ms: int, now_ms: int) -> bytes:
    return b"TIMER_ENQUEUE_MS\x01%d\x02TIMER_DEQUEUE_MS\x01%d\x02" % (parked_ms, now_ms)


def _without_own(raw: bytes) -> tuple[bytes, bool]:
    """Take out what only the parked form has; and tell whether it waited by a level."""
    real_at = raw.rfind(_REAL_FROM)
    if real_at < 0:
        raise ProtocolError(f"a parked message without {names.REAL_TOPIC}: {raw[-100:]!r}")
    level_at = raw.find(_LEVEL_FROM, real_at)
    if level_at < 0:
        return raw[: real_at + 1], False
    # TIMER_OUT_MS may be the first of all.
    return raw[: raw.rfind(_OUT_FROM, 0, real_at) + 1] + raw[real_at + 1 : level_at + 1], True


# -- Kafka


def parked_record(record: Record, due_ms: int, now_ms: int) -> bytearray:
    """Give a delayed record as the batch that will be delivered."""
    _, timestamp_ms, key, value, headers = record
    born_ms = timestamp_ms if timestamp_ms >= 0 else now_ms
    kept = [header for header in headers if header[0] != BORN_TIMESTAMP]
    kept.append((BORN_TIMESTAMP, str(born_ms).encode()))
    builder = BatchBuilder()
    builder.append(0, due_ms, key, value, kept)
    return builder.finish(0, 0)


def properties_of_batch(batch: Buffer) -> bytes:
    """Give the properties by which a RocketMQ client knows a parked record."""
    (record,) = record_reader.records(batch, len(batch))
    return convert.properties_of(record)


def delivered_batch(batch: Buffer, due_ms: int) -> Buffer:
    """Give a parked batch as it is delivered at `due_ms`: mostly as it lies there."""
    if record_batch.max_timestamp_of(batch) == due_ms:
        return batch
    stamped = bytearray(batch)
    record_batch.restamp_single(stamped, due_ms)
    return stamped
