"""SEND_BATCH_MESSAGE: the messages of one request, checked in slices of the loop and appended as one unit.

    read       slices of MESSAGES_AT_ONCE messages become frames; an error in one message refuses the batch
    append     all messages are appended in one slice as one unit: all of them are stored, or none
    answer     has the ids of all messages, and waits for the promise of the append

A small batch is complete after its first slice. A connection with a larger batch handles no further request until the
batch is stored, so that messages of a client keep the order in which it sent them. If several connections send large
batches, each turn of the loop runs a slice of one of them. The batches in progress have at most BYTES_MAX in all; a
further one is answered SYSTEM_BUSY, after which clients try again or use another broker.
"""

from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from duolog.bridge.data.publishing.rocketmq_batch_plan import MessageBatchPlan
from duolog.bridge.net.answers import Answer
from duolog.bridge.rocketmq.context import RocketMQContext
from duolog.bridge.rocketmq.producing.batches_in_progress import Sending
from duolog.bridge.rocketmq.producing.gathered_decisions import append_gathered
from duolog.bridge.rocketmq.requests.connection import RocketMQConnection
from duolog.bridge.rocketmq.requests.errors import RequestRefused
from duolog.bridge.rocketmq.requests.quota_check import quota_client
from duolog.bridge.state.topic_table import Topic
from duolog.delay.requested_delay import DelayRefused
from duolog.protocol.rocketmq.codes import ResponseCode
from duolog.protocol.rocketmq.messages import batch
from duolog.protocol.rocketmq.messages.message import Message
from duolog.protocol.rocketmq.messages.message_id import message_ids
from duolog.protocol.rocketmq.remoting import RemotingCommand, encode_stored

# Apache RocketMQ limits only the size of a batch, to 4 MiB; its example of batches sends about 20,000 messages at once.
BATCH_MESSAGES_MAX: Final = 32_768
# For batches with delayed messages: 10,000 delayed messages are appended in some 40 ms, 10,000 others in 11 ms.
MIXED_MESSAGES_MAX: Final = 16_384
MESSAGES_AT_ONCE: Final = 128  # Processing them takes about a millisecond.

# Makes messages of parts of the body, of which the first has this number in the batch; returns them and the UNIQ_KEY of
# the first. Raises IllegalMessage.
Make = Callable[[Sequence[batch.Part], int], tuple[list[Message], str]]


class Target(NamedTuple):
    """The destination of a batch."""

    topic: Topic
    queue_id: int
    waits: bool  # The answer waits for the log.
    make: Make


def sending(
    context: RocketMQContext, connection: RocketMQConnection, command: RemotingCommand, target: Target
) -> Sending:
    """Store the messages of a request, and return its answer. Raises what `Publisher.publish_messages` raises."""
    body = command.body
    assert isinstance(body, memoryview), "decoded from a frame"
    topic, queue_id, _, make = target
    publisher, now_ms = context.messages.publisher, context.clock.now_ms()
    plan, unique_key = MessageBatchPlan(topic, queue_id), ""
    for parts in batch.read(body, MESSAGES_AT_ONCE, BATCH_MESSAGES_MAX):
        if plan.count:
            yield False
        messages, key = make(parts, plan.count)
        unique_key = unique_key or key
        before = plan.schedule_count
        plan.add(
            publisher.messages.plan_messages(
                topic, queue_id, messages, now_ms, sender=connection, schedules_before=before
            )
        )
        if plan.delayed_count:
            _check_delayed(plan, context.options.delay.batch_delayed_max)
    is_large = plan.count > MESSAGES_AT_ONCE
    if is_large:
        yield True
    if context.messages.halves.gathered:
        append_gathered(context.messages.halves, context.metrics, context.clock.now_ms())
    if topic.number not in context.topics:
        raise RequestRefused(ResponseCode.TOPIC_NOT_EXIST, f"topic[{topic.rocketmq_name}] was deleted meanwhile")
    positions, base_offset, promise = publisher.publish_message_batch(plan, now_ms, quota_client(connection))
    if is_large:
        yield True
    ids = message_ids(publisher.messages.store_host, positions)
    buffers = encode_stored(command, ids, queue_id, base_offset, unique_key, "")
    return Answer(buffers, promise if target.waits else None)


def _check_delayed(plan: MessageBatchPlan, delayed_max: int) -> None:
    """Raise DelayRefused for a batch of too many messages, some of which are delayed."""
    if plan.delayed_count > delayed_max:
        raise DelayRefused(f"batch of more than {delayed_max} delayed messages; delay.batch_delayed_max is the limit")
    if plan.count > MIXED_MESSAGES_MAX:
        raise DelayRefused(f"batch of more than {MIXED_MESSAGES_MAX} messages, of which some are delayed")
