"""Redrive: sends dead letters again. `duolog group redrive`, POST /api/groups/{name}/redrive.

    to retry   %DLQ%group ──> %RETRY%group     only RocketMQ consumers of the group get the messages
    to topic   %DLQ%group ──> RETRY_TOPIC      the topic that each message came from; all groups that read it get them

Messages are sent as if they had never failed, from the group's committed offset in its dead-letter topic to the end of
that topic, without those that were redriven out of turn (`redriven.py`). By default they go to the retry topic if the
group has RocketMQ members; without members the request is refused, because the group may continue in Kafka.

The messages of a slice and the new committed offset are one unit of the log. So a redrive continues after a crash where
it was, and sends nothing twice, unless the group expired with its committed offsets.
"""

import asyncio
import zlib
from collections.abc import Callable, Iterable, Sequence
from typing import Final, NamedTuple

from duolog.bridge.data import expiry
from duolog.bridge.data.reading.later import Later
from duolog.bridge.data.reading.rocketmq_reader import Records
from duolog.bridge.data.units import joined
from duolog.bridge.net.futures import wait_for_callback
from duolog.bridge.records.codec import Record
from duolog.bridge.rocketmq.context import RocketMQContext
from duolog.bridge.rocketmq.retry.dead_letters import EXPIRED_AT, REASON
from duolog.bridge.rocketmq.retry.failed_attempts import FAILED_ATTEMPTS
from duolog.bridge.rocketmq.retry.failed_copies import ORIGIN_PLACE, copy_of
from duolog.bridge.rocketmq.retry.redriven import RedrivenLetters, redriven_of
from duolog.bridge.rocketmq.retry.unread_failures import count_unread_failures
from duolog.bridge.state.client_protocols import ClientProtocol
from duolog.bridge.state.topic_table import Topic
from duolog.protocol.names import group_of_rocketmq, rocketmq_group
from duolog.protocol.rocketmq.messages import message, properties
from duolog.protocol.rocketmq.messages.message import Message
from duolog.protocol.rocketmq.names import RETRY_PREFIX, dead_letter_topic
from duolog.store.entry import Buffer, Promise
from duolog.store.index.queue import Queue

SLICE_MESSAGES_MAX: Final = 64  # The number of messages in one unit.
SLICE_BYTES_MAX: Final = 1 << 20

# Properties of a failed message. A message that returns to its own topic does not have them.
_ORIGIN: Final = (properties.RETRY_TOPIC, properties.ORIGIN_MESSAGE_ID, ORIGIN_PLACE)

RETRY, TOPIC = WAYS = ("retry", "topic")


class RedriveRefused(Exception):
    """The dead letters of the group cannot be redriven now; the message says why."""


class _Back(NamedTuple):
    """A message that is sent again, and its destination."""

    topic: Topic
    queue_id: int
    message: Message


_Target = Callable[[Message], tuple[Topic, int]]


def _any_topic(topic: Topic) -> bool:
    """Let a redrive send messages to any topic."""
    return True


async def redrive(
    context: RocketMQContext,
    name: str,
    way: str | None = None,
    offsets: Sequence[int] | None = None,
    may_send: Callable[[Topic], bool] = _any_topic,
) -> tuple[int, Promise]:
    """Send all present dead letters of a group again, or those at `offsets` of the dead-letter topic.

    Return their number and the promise for the answer.
    `way` is `retry`, `topic` or None. `may_send` says whether the caller may write to the topic of a dead letter, which
    is a property that any producer may have set. Raises RedriveRefused, TopicError, RequestRefused and StoreError;
    messages that were sent before the error are not taken back.
    """
    if offsets is not None:
        return await _redrive_some(context, name, way, offsets, may_send)
    group = group_of_rocketmq(name)
    count = 0
    if count_unread_failures(context, group).dead_letters:
        target = _target(context, name, group, way, may_send)
        dead = context.topics.by_rocketmq_name(dead_letter_topic(rocketmq_group(group)))
        assert dead is not None, "it has dead letters"
        for queue in list(dead.queues):
            count += await _redrive_queue(context, group, dead, queue, target)
    return count, context.state_log.barrier()


async def _redrive_some(
    context: RocketMQContext, name: str, way: str | None, offsets: Sequence[int], may_send: Callable[[Topic], bool]
) -> tuple[int, Promise]:
    """Send the dead letters at these offsets of the dead-letter topic again; return their number and the promise.

    A letter that was redriven before is sent once more, because its offset is given. Raises what `redrive` raises, and
    RedriveRefused for an offset that has no dead letter.
    """
    group = group_of_rocketmq(name)
    dead = context.topics.by_rocketmq_name(dead_letter_topic(rocketmq_group(group)))
    target = _target(context, name, group, way, may_send)
    wanted = sorted(set(offsets))
    queue = dead.queues[0] if dead is not None else None  # A dead-letter topic has one queue.
    if dead is None or queue is None or not _are_within(queue, wanted):
        raise RedriveRefused(f"the group {name} has no dead letters at all of the offsets {wanted[:10]}")
    count, until = 0, context.messages.isolation.stable_end(queue)
    for offset in wanted:
        found = await _read(context, dead, queue, offset, min(until, offset + 1))
        again = [each for record in found.buffers for each in _again(context, dead, queue, record, target)]
        now_ms = context.clock.now_ms()
        before = redriven_of(context, group, queue)
        after = before.with_all(range(offset, offset + 1))
        _send(context, again, _records(context, group, queue, after, now_ms) if after != before else [], now_ms)
        count += len(again)
        await asyncio.sleep(0)
    return count, context.state_log.barrier()


def _are_within(queue: Queue, offsets: Sequence[int]) -> bool:
    return bool(offsets) and queue.start_offset <= offsets[0] and offsets[-1] < queue.visible_end


def _target(
    context: RocketMQContext, name: str, group: str, way: str | None, may_send: Callable[[Topic], bool]
) -> _Target:
    """Determine the destination of the messages."""
    active = context.groups.client_protocols.active(group)
    if way == TOPIC:
        return lambda dead: _checked_origin(context, dead, may_send)
    if active is ClientProtocol.KAFKA:
        raise RedriveRefused(
            f"the group {name} is active in Kafka, whose consumers do not read its retry topic; "
            "use --to topic to send its dead letters to the topics that they came from, for every group that reads them"
        )
    if way is None and active is None:
        raise RedriveRefused(
            f"the group {name} has no members now, and Kafka consumers would not read its retry topic; use --to retry "
            "(only RocketMQ consumers of the group get its dead letters) or --to topic (they go back to their own "
            "topics, for every group that reads these)"
        )
    retry_topics = context.groups.retry_topics
    config = retry_topics.group_config(rocketmq_group(group))
    retries = retry_topics.retries_of(config, retry_topics.origins_of(dead_letter_topic(config.group_name)))
    return lambda dead: (retries, 0)


def _checked_origin(context: RocketMQContext, dead: Message, may_send: Callable[[Topic], bool]) -> tuple[Topic, int]:
    topic, queue_id = _origin_of(context, dead)
    if not may_send(topic):
        raise RedriveRefused(
            f"the dead letter at offset {dead.queue_offset} names the topic {topic.rocketmq_name}, to which the user "
            "may not write"
        )
    return topic, queue_id


def _origin_of(context: RocketMQContext, dead: Message) -> tuple[Topic, int]:
    """Return the topic that a dead letter came from, and its queue there if it is known, else a queue by its key."""
    found = properties.parse(properties.repaired(dead.properties))
    name = found.get(properties.RETRY_TOPIC, "")
    topic = context.topics.by_rocketmq_name(name)
    if topic is None:
        raise RedriveRefused(
            f"the dead letter at offset {dead.queue_offset} came from the topic {name or '-'}, which does not exist; "
            "create it, or use --to retry"
        )
    queue_id = found.get(ORIGIN_PLACE, "").partition("/")[0]
    if queue_id.isdecimal() and len(queue_id) < 6 and int(queue_id) < topic.queue_count:
        return topic, int(queue_id)
    return topic, zlib.crc32(found.get(properties.KEYS, "").encode()) % topic.queue_count


async def _redrive_queue(context: RocketMQContext, group: str, dead: Topic, queue: Queue, target: _Target) -> int:
    until = context.messages.isolation.stable_end(queue)
    count = 0
    while (offset := redriven_of(context, group, queue).position) < until:
        found = await _read(context, dead, queue, offset, until)
        redriven = redriven_of(context, group, queue)
        if redriven.position != offset:
            continue  # Another redrive sent these messages while this one waited for the disk.
        left = [record for record in found.buffers if message.queue_offset_of(record) not in redriven]
        again = [each for record in left for each in _again(context, dead, queue, record, target)]
        now_ms = context.clock.now_ms()
        after = redriven.with_all(range(offset, found.next_offset))
        count += _send(context, again, _records(context, group, queue, after, now_ms), now_ms)
        await asyncio.sleep(0)
    return count


def _records(
    context: RocketMQContext, group: str, queue: Queue, redriven: RedrivenLetters, now_ms: int
) -> Sequence[Record]:
    """Return the records that say which letters were redriven."""
    position = redriven.committed(queue.key, context.options.groups.metadata_bytes_max)
    return context.groups.group_offsets.records(group, [position], now_ms)


def _send(context: RocketMQContext, again: Iterable[_Back], positions: Sequence[Record], now_ms: int) -> int:
    """Append messages and these records as one unit; return the number of messages."""
    publisher = context.messages.publisher
    plans = [publisher.messages.plan_messages(topic, queue_id, [each], now_ms) for topic, queue_id, each in again]
    unit = joined(plans, positions)
    if unit.frames or unit.records:
        publisher.append(unit._replace(changes_state=True), now_ms)  # The caller waits for the state log's barrier.
    return len(unit.frames)


def _again(context: RocketMQContext, dead: Topic, queue: Queue, record: Buffer, target: _Target) -> list[_Back]:
    """Return the message to send for a dead letter, and its destination; none if the record is set aside."""
    try:
        letter = message.decode(record)
        topic, queue_id = target(letter)
        marks = {} if topic.rocketmq_name.startswith(RETRY_PREFIX) else dict.fromkeys(_ORIGIN)
        return [_Back(topic, queue_id, _alive(letter, marks))]
    except RedriveRefused:
        raise
    except Exception as error:  # noqa: BLE001 - set aside, or raised again
        place = f"{dead.rocketmq_name} queue {queue.queue_id}, offset {message.queue_offset_of(record)}"
        context.poison_records.set_aside("dead letter", place, error)
        return []


def _alive(dead: Message, marks: dict[str, None]) -> Message:
    """Return a dead letter as a message that has not failed, does not expire, and has none of the `marks`."""
    kept = expiry.without_expiry(properties.parse(properties.repaired(dead.properties)))
    dead.properties = properties.encode(kept).encode()
    again = copy_of(dead, {properties.DELAY: None, REASON: None, EXPIRED_AT: None, FAILED_ATTEMPTS: None, **marks})
    again.reconsume_times = 0
    return again


async def _read(context: RocketMQContext, topic: Topic, queue: Queue, offset: int, until: int) -> Records:
    found = context.messages.reader.read_for_rocketmq(queue, topic, offset, SLICE_MESSAGES_MAX, SLICE_BYTES_MAX, until)
    return await wait_for_callback(found.start) if isinstance(found, Later) else found
