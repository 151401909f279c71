"""Makes frames of pending messages: those of their queue when they are delivered, and those of another due time.

A delivered Kafka record has its due time as its timestamp. A delivered RocketMQ message keeps its born time, hosts, key
and tags. As in Apache RocketMQ, a message with a delay level loses DELAY and the other delay properties, and keeps
REAL_TOPIC and REAL_QID; a message with a time of its own loses REAL_TOPIC and REAL_QID and gets TIMER_ENQUEUE_MS and
TIMER_DEQUEUE_MS.
Source: ScheduleMessageService.java#messageTimeUp, TimerMessageStore.java#convert.
"""

from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from itertools import compress
from typing import Final, NamedTuple

from duolog.bridge.data import expiry
from duolog.bridge.data.delayed.pending_frames import pending_queue, properties_of_batch
from duolog.bridge.data.expiry import ExpiringQueues
from duolog.bridge.data.stamps import ROCKETMQ_STAMP, WAITING_STAMP, KafkaStamps
from duolog.bridge.records import frame_formats
from duolog.bridge.state.topic_table import Topic
from duolog.bridge.state.topics import Topics
from duolog.bridge.state.wall_time import WallTime
from duolog.protocol.errors import ProtocolError
from duolog.protocol.kafka import record_batch
from duolog.protocol.rocketmq.messages import message as rocketmq_message
from duolog.protocol.rocketmq.messages import properties as names
from duolog.protocol.rocketmq.messages import tags
from duolog.store.entry import Buffer
from duolog.store.unit import Frame, FrameRun

_DESTINATIONS_CACHED: Final = 1024
_LEVEL_FROM: Final = b"\x02DELAY\x01"
_OUT_FROM: Final = b"\x02TIMER_OUT_MS\x01"
_REAL_FROM: Final = b"\x02REAL_TOPIC\x01"


class DeliveryFrames:
    """The frames of pending messages. `store_host` is the packed address of the RocketMQ port."""

    def __init__(self, topics: Topics, expiring_queues: ExpiringQueues, wall_time: WallTime, store_host: bytes) -> None:
        self._topics, self._expiring_queues, self._stamps = topics, expiring_queues, KafkaStamps()
        self._wall_time, self._store_host = wall_time, store_host

    def stored_again(self, form: int, frame: memoryview, due_ms: int, extra: bytes) -> Frame:
        """Make the pending entry of a message that was read from a sorted table, with another due time."""
        stamp = WAITING_STAMP if form == frame_formats.KAFKA else ROCKETMQ_STAMP
        queue = pending_queue(self._topics)
        return Frame(queue, form, frame, 1, due_ms, tags.NO_TAG, stamp, extra)

    def deliveries(
        self, topic: Topic, queue_id: int, form: int, frames: Sequence[Buffer], dues_ms: Sequence[int], now_ms: int
    ) -> FrameRun:
        """Make the frames of a queue from pending entries of one frame format; `dues_ms` has the due time of each.

        Expired messages are left out if their topic drops them.
        """
        queue = topic.queues[queue_id]
        if topic.settings.drops_expired and queue.key in self._expiring_queues:
            alive = [not self._is_expired(form, frame, now_ms) for frame in frames]
            frames, dues_ms = [*compress(frames, alive)], [*compress(dues_ms, alive)]
        if form == frame_formats.KAFKA:
            batches = list(map(delivered_batch, frames, dues_ms))
            log_append_time = topic.settings.log_append_time
            stamp = self._stamps.of(topic.leader_epoch(queue_id), log_append_time)
            times_ms = [now_ms] * len(batches) if log_append_time else dues_ms
            return FrameRun(queue, form, batches, times_ms, [tags.NO_TAG] * len(batches), stamp)
        records, births_ms, raws = delivered_messages(frames, topic.rocketmq_name, queue_id, self._store_host, now_ms)
        times_ms = [topic.settings.index_ms(born_ms, now_ms) for born_ms in births_ms]
        codes = [tags.code_of_properties(raw, raw.decode("latin-1")) for raw in raws]
        return FrameRun(queue, form, records, times_ms, codes, ROCKETMQ_STAMP)

    def _is_expired(self, form: int, pending_frame: Buffer, now_ms: int) -> bool:
        """Return whether a message that is about to be delivered has expired, by its own properties."""
        if form == frame_formats.KAFKA:
            raw = properties_of_batch(pending_frame)
        else:
            raw = rocketmq_message.properties_of(pending_frame)
        expires_ms = expiry.own_expiry_of(raw, now_ms)
        return expires_ms is not None and expires_ms <= now_ms - self._wall_time.ahead_ms


# -- RocketMQ


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


def delivered_batch(batch: Buffer, due_ms: int) -> Buffer:
    """Return a pending batch with the timestamp `due_ms`: usually the same object, without a copy."""
    if record_batch.max_timestamp_of(batch) == due_ms:
        return batch
    stamped = bytearray(batch)
    record_batch.restamp_single(stamped, due_ms)
    return stamped
