"""Leaves expired messages out of what a group reads by a pull or pop, and makes them its dead letters.

    read    3  4  5  6  7            4, 5 and 6 have expired; 7 has not
    returned    3           7        the group goes on after 7
    %DLQ%group     4  5  6           appended in one unit with the record that the group has passed [4, 7), so each
    ranges        [4 .... 7)         message is a dead letter once, whichever member reads it again, also after a crash

If the topic's `message.expired` is `drop`, expired messages are only left out. For a retried message its first topic
decides. A dead letter has the properties `DEAD_LETTER_REASON` = `expired` and EXPIRED_AT_MS, and does not expire. A
message that the group's filter leaves out does not become a dead letter. Tools read expired messages too, and change
nothing.

If the group can have no dead letters (its topic may not be written, or there is no room for another topic), a read
returns the messages before the first expired one. A read that begins with an expired message is refused, with the
reason. `expired_ranges.py` keeps the ranges.
"""

import logging
from collections.abc import Iterable
from typing import Final, NamedTuple

from duolog.bridge.data import expiry
from duolog.bridge.data.publishing.refusals import IllegalMessage
from duolog.bridge.data.reading.rocketmq_reader import Records
from duolog.bridge.data.units import UnitPlan, joined
from duolog.bridge.records.expiry import MessagesExpired
from duolog.bridge.rocketmq.consuming.expired_ranges import Range
from duolog.bridge.rocketmq.context import RocketMQContext
from duolog.bridge.rocketmq.requests.errors import ANSWERABLE
from duolog.bridge.rocketmq.retry.dead_letters import drops_expired, expired_copy
from duolog.bridge.state.topic_table import Topic
from duolog.protocol.names import group_of_rocketmq
from duolog.protocol.rocketmq.messages import message
from duolog.protocol.rocketmq.messages.message import (
    Message,
    properties_of,
    queue_offset_of,
    store_ms_of,
)
from duolog.protocol.rocketmq.names import DLQ_PREFIX, SYSTEM_GROUPS
from duolog.store.entry import Buffer, Promise
from duolog.store.index.queue import Queue

DEAD_AT_ONCE: Final = 64  # Dead letters of one read, which take two milliseconds; the read ends before the next.
logger = logging.getLogger("rocketmq")


# -- Splitting what was read


class ReadWithoutExpired(NamedTuple):
    """The messages that have not expired, and the unit with the dead letters of the others; mostly None.

    `reports`: the answer shows the effect of an earlier such unit, so it must wait until that unit is durable.
    """

    found: Records
    dead: UnitPlan | None = None
    reports: bool = False


def may_expire(context: RocketMQContext, group: str, topic: Topic, queue: Queue) -> bool:
    """Return whether messages that the group reads from the queue may have expired."""
    if topic.settings.ttl_ms < 0 and queue.key not in context.messages.expiring_queues:
        return False
    return topic.may_produce and not topic.rocketmq_name.startswith(DLQ_PREFIX) and group not in SYSTEM_GROUPS


def without_expired(
    context: RocketMQContext, group: str, topic: Topic, queue: Queue, offset: int, found: Records
) -> tuple[Records, Promise | None]:
    """Leave out expired messages, and append their dead letters.

    Returns the other messages and the promise that the answer must wait for. Raises ANSWERABLE if the first message has
    expired and cannot become a dead letter.
    """
    split = split_expired(context, group, topic, queue, offset, found)
    if split.dead is None:
        return split.found, context.state_log.barrier() if split.reports else None
    promise = context.messages.publisher.append(split.dead, context.clock.now_ms()).promise
    context.metrics.dead_letters += len(split.dead.frames)
    return split.found, promise


def split_expired(
    context: RocketMQContext, group: str, topic: Topic, queue: Queue, offset: int, found: Records
) -> ReadWithoutExpired:
    """Split the messages that were read from `offset` on; `group` is the group's RocketMQ name."""
    now_ms, ranges, name = context.clock.now_ms(), context.groups.expired_ranges, group_of_rocketmq(group)
    careful_ms = context.messages.wall_time.careful_ms(now_ms, context.clock.mono_ms())
    if (
        queue.key not in context.messages.expiring_queues
        and store_ms_of(found.buffers[0]) + topic.settings.ttl_ms > careful_ms
    ):
        return ReadWithoutExpired(found)  # Only the topic has a time to live, and the first message was stored first.
    alive: list[Buffer] = []
    dead: list[Message] = []
    first_dead = next_offset = found.next_offset
    reports = False
    for buffer in found.buffers:
        raw = properties_of(buffer)
        expires_ms = _expiry_of(context, topic, raw, buffer)
        if expires_ms is None or expires_ms > careful_ms:
            alive.append(buffer)
            continue
        if drops_expired(context.topics, topic, raw):
            continue
        at = queue_offset_of(buffer)
        if ranges.has(name, queue.key, at):
            reports = True
            continue
        if len(dead) == DEAD_AT_ONCE:
            next_offset = at
            break
        letter = _letter_of(context, topic, buffer, expires_ms)
        if letter is None:
            alive.append(buffer)
            continue
        if not dead:
            first_dead = at
        dead.append(letter)
    if len(alive) == len(found.buffers):
        return ReadWithoutExpired(found)
    if not dead:
        return ReadWithoutExpired(Records(alive, next_offset), reports=reports)
    try:
        plans = _plans(context, group, topic, dead, now_ms)
    except ANSWERABLE as error:
        logger.warning("dead letters of expired messages not stored group=%s reason=%r", group, str(error))
        alive = [buffer for buffer in alive if queue_offset_of(buffer) < first_dead]
        if first_dead == queue_offset_of(found.buffers[0]):
            raise
        return ReadWithoutExpired(Records(alive, first_dead), reports=reports)
    passed = MessagesExpired(name, queue.key, _gaps(offset, next_offset, map(queue_offset_of, alive)))
    return ReadWithoutExpired(Records(alive, next_offset), joined(plans, [passed]))


def _expiry_of(context: RocketMQContext, topic: Topic, raw: bytes, buffer: Buffer) -> int | None:
    try:
        return expiry.expiry_of(raw, store_ms_of(buffer), topic.settings)
    except Exception as error:  # noqa: BLE001 - set aside, or raised again
        _set_aside(context, topic, buffer, error)
        return None


def _letter_of(context: RocketMQContext, topic: Topic, buffer: Buffer, expires_ms: int) -> Message | None:
    """Return the dead letter of a message; None if the message is set aside."""
    try:
        return expired_copy(message.decode(buffer), expires_ms)
    except Exception as error:  # noqa: BLE001 - set aside, or raised again
        _set_aside(context, topic, buffer, error)
        return None


def _set_aside(context: RocketMQContext, topic: Topic, buffer: Buffer, error: Exception) -> None:
    found = message.decode(buffer)
    place = f"{topic.name} queue {found.queue_id}, offset {found.queue_offset}"
    context.poison_records.set_aside("expired message", place, error)


def _plans(context: RocketMQContext, group: str, source: Topic, dead: list[Message], now_ms: int) -> list[UnitPlan]:
    """Return the plans of the dead letters; raises ANSWERABLE if the group can have none."""
    retry_topics = context.groups.retry_topics
    config, origins = retry_topics.group_config(group), retry_topics.origins_of(source.rocketmq_name)
    topic = retry_topics.dead_letters_of(config, origins)
    plans: list[UnitPlan] = []
    for each in dead:
        try:
            plans.append(context.messages.publisher.messages.plan_messages(topic, 0, [each], now_ms))
        except IllegalMessage as error:
            # Only a Kafka record can be too large: its headers fill the format, and the copy has more properties.
            logger.warning("expired message not kept as dead letter group=%s reason=%r", group, str(error))
    return plans


def _gaps(start: int, end: int, offsets: Iterable[int]) -> list[Range]:
    """Return the ranges of [start, end) without these offsets."""
    found: list[Range] = []
    for offset in (*offsets, end):
        if start < offset:
            found.append((start, offset))
        start = offset + 1
    return found
