"""Revives popped messages whose invisible time is over: they go to the group's retry topic, or become dead letters.

    a message of a due checkpoint                       what becomes of it
    acknowledged, also while the disk is read           nothing
    removed by retention                                nothing
    expired, and its topic drops expired messages       nothing
    failed less often than the group allows             a copy in %RETRY%group_topic
    any other                                           a copy in %DLQ%group

The copies and the end of the checkpoint are one unit of the log, so a message is revived once, also over a crash.
Source: PopReviveService.java.
"""

import logging
from collections.abc import Iterable
from functools import partial
from typing import Final

from duolog.bridge.data.publishing.refusals import IllegalMessage
from duolog.bridge.data.reading.later import Later
from duolog.bridge.data.reading.rocketmq_reader import Records
from duolog.bridge.data.units import UnitPlan, joined
from duolog.bridge.net.connection import TURN_MS
from duolog.bridge.rocketmq.context import RocketMQContext
from duolog.bridge.rocketmq.pop.pop_checkpoints import PopCheckpoint, settled
from duolog.bridge.rocketmq.pop.pop_sources import retry_name
from duolog.bridge.rocketmq.requests.errors import ANSWERABLE
from duolog.bridge.rocketmq.retry.dead_letters import REASON, drops_expired, expired_copy, expiry_of, reason_of
from duolog.bridge.rocketmq.retry.failed_copies import copy_of, counted_failure, fixed
from duolog.bridge.rocketmq.retry.retry_topics import dead_letters_of, group_config, origins_of
from duolog.bridge.state.topic_table import Topic
from duolog.bridge.state.topics import UnknownTopic
from duolog.protocol.rocketmq.bodies import SubscriptionGroupConfig
from duolog.protocol.rocketmq.messages import message, properties
from duolog.protocol.rocketmq.messages.message import Message
from duolog.store.entry import Buffer
from duolog.store.errors import StoreError
from duolog.store.index.queue import Queue

CHECKPOINTS_AT_ONCE: Final = 16  # Checkpoints in one turn of the loop.
BYTES_AT_ONCE: Final = 1 << 20
RECEIPT_BYTES_MAX: Final = 512  # The size of the receipt in the properties of a message that is popped again.
AGAIN_MS: Final = 1000  # The time until a checkpoint that failed is tried again.

logger = logging.getLogger("rocketmq")


def revive(context: RocketMQContext, now_ms: int) -> None:
    """Revive the messages of some due checkpoints; the others stay due."""
    until_mono_ms = context.clock.mono_ms() + TURN_MS
    for _ in range(CHECKPOINTS_AT_ONCE):
        for checkpoint in context.pop.checkpoints.take_due(now_ms, 1):
            if checkpoint.is_ordered:
                context.purgatory.check([checkpoint.name.key])  # Pops in order get the same messages again.
            else:
                _revive(context, checkpoint)
        due_ms = context.pop.checkpoints.next_deadline_ms()
        if due_ms is None or due_ms > now_ms or context.clock.mono_ms() > until_mono_ms:
            return  # A checkpoint may have a megabyte of messages, or a large batch to decompress.


def _revive(context: RocketMQContext, checkpoint: PopCheckpoint) -> None:
    number, queue_id = Queue.split(checkpoint.name.key)
    topic = context.topics.by_number(number)
    if topic is None:
        return  # The topic was deleted, and `sweep` will remove the checkpoint.
    queue = topic.queues[queue_id]
    pending = checkpoint.pending
    first, last = pending[0], pending[-1]
    offset = max(first, queue.start_offset)
    if offset > last:
        _give_back(context, checkpoint, topic, Records([], last + 1))
        return
    try:
        found = context.messages.reader.read_for_rocketmq(
            queue, topic, offset, last - offset + 1, BYTES_AT_ONCE, last + 1
        )
    except StoreError as error:
        _on_read(context, checkpoint, topic, error)
        return
    if isinstance(found, Later):
        found.start(partial(_on_read, context, checkpoint, topic))
    else:
        _give_back(context, checkpoint, topic, found)


def _on_read(context: RocketMQContext, checkpoint: PopCheckpoint, topic: Topic, cold: Records | StoreError) -> None:
    if isinstance(cold, StoreError):
        logger.warning("popped messages not read group=%s reason=%r", checkpoint.name.group, str(cold))
        context.pop.checkpoints.retry_at(checkpoint, context.clock.now_ms() + AGAIN_MS)
    elif context.pop.checkpoints.find(checkpoint.name) is checkpoint and topic.number in context.topics:
        _give_back(context, checkpoint, topic, cold)


def _give_back(context: RocketMQContext, checkpoint: PopCheckpoint, topic: Topic, found: Records) -> None:
    """Append the copies and settle the messages that were read. A checkpoint with further messages stays due."""
    now_ms = context.clock.now_ms()
    done = [offset for offset in checkpoint.pending if offset < found.next_offset]
    try:
        pending = [buffer for buffer in found.buffers if checkpoint.is_pending(message.queue_offset_of(buffer))]
        plans = _plan_copies(context, checkpoint, topic, pending, now_ms)
        context.messages.publisher.append(joined(plans, [settled(checkpoint.name, done)]), now_ms)
    except ANSWERABLE as error:
        logger.warning("popped messages not given back group=%s reason=%r", checkpoint.name.group, str(error))
        context.pop.checkpoints.retry_at(checkpoint, now_ms + AGAIN_MS)
        return
    if checkpoint.pending_count:
        context.pop.checkpoints.retry_at(checkpoint, now_ms)


def _plan_copies(
    context: RocketMQContext, checkpoint: PopCheckpoint, topic: Topic, failed: list[Buffer], now_ms: int
) -> list[UnitPlan]:
    """Plan the copies of the messages that were not acknowledged."""
    config = group_config(context, context.groups.configs.name_of(checkpoint.name.group))
    origins = origins_of(context, topic.rocketmq_name)
    plans: list[UnitPlan] = []
    for buffer in failed:
        try:
            copy = _copy(context, checkpoint, topic, config, buffer, now_ms)
        except Exception as error:  # noqa: BLE001 - set aside, or raised again
            _, queue_id = Queue.split(checkpoint.name.key)
            place = f"{topic.name} queue {queue_id}, offset {message.queue_offset_of(buffer)}"
            context.poison_records.set_aside("popped message", place, error)
            continue
        if copy is None:
            continue
        again, is_dead = copy
        target = (
            dead_letters_of(context, config, origins)
            if is_dead
            else _retries_of(context, config.group_name, topic, origins)
        )
        try:
            plans.append(context.messages.publisher.messages.plan_messages(target, 0, [again], now_ms))
        except IllegalMessage as error:
            # Only a Kafka record can be too large: its headers fill the format, and the copy has more properties.
            logger.warning("popped message not sent again group=%s reason=%r", config.group_name, str(error))
            continue
        if is_dead:
            context.metrics.dead_letters += 1
        else:
            context.metrics.retries += 1
    return plans


def _copy(
    context: RocketMQContext,
    checkpoint: PopCheckpoint,
    topic: Topic,
    config: SubscriptionGroupConfig,
    buffer: Buffer,
    now_ms: int,
) -> tuple[Message, bool] | None:
    """Return the copy of a message, and whether it is a dead letter; None: no copy is made."""
    each = message.decode(buffer)
    raw = each.properties = properties.repaired(each.properties)
    expires_ms = expiry_of(context, each)
    has_expired = expires_ms is not None and expires_ms <= now_ms - context.messages.wall_time.ahead_ms
    if has_expired and drops_expired(context, topic, raw):
        return None
    first_ms = properties.get(raw, properties.FIRST_POP_TIME) or str(checkpoint.name.pop_ms)
    if has_expired and expires_ms:
        return expired_copy(each, expires_ms), True
    popped = {properties.FIRST_POP_TIME: first_ms, properties.POP_CK: None}
    changes = {**popped, **fixed(expires_ms), **counted_failure(each, now_ms)}
    again = copy_of(each, changes)
    # The copy gets a receipt when it is popped again. Without room for it, no pop of the queue could be answered.
    is_full = len(again.properties) > message.PROPERTIES_BYTES_MAX - RECEIPT_BYTES_MAX
    reason = reason_of(each.reconsume_times + 1, config.retry_max_times, is_full=is_full)
    return (again, False) if reason is None else (copy_of(each, {**changes, REASON: reason}), True)


def _retries_of(context: RocketMQContext, group: str, topic: Topic, origins: Iterable[str]) -> Topic:
    name = retry_name(context, group, topic.rocketmq_name)
    found = context.topics.by_rocketmq_name(name)
    if found is None:
        found = context.topics.auto_create_for_rocketmq(name, "", 1, context.clock.now_ms())
        if found is None:
            raise UnknownTopic(f"topic[{name}] not exist")
        # Held pops try again, and then watch the retry topic.
        context.purgatory.check(queue.key for queue in topic.queues)
    if "+" not in name:  # Otherwise the name says where the messages came from.
        context.topics.add_origins(found, origins, context.clock.now_ms())
    return found
