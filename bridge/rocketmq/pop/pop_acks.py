"""ACK_MESSAGE (200051), BATCH_ACK_MESSAGE (200151), CHANGE_MESSAGE_INVISIBLETIME (200053).

    ack      acknowledges a message by the receipt that the client made from the pop's answer (`pop_answer.py`)
    change   makes a message visible at another time: its consumer has failed, or needs more time

After a pop in order, an acknowledgement moves the group's position to the first message that is not acknowledged. The
group pops from there when all messages that are left are due, and gets acknowledged messages after it again. A receipt
that is no longer valid is answered NO_MESSAGE: the message was revived, or acknowledged before.
Source: AckMessageProcessor.java, ChangeInvisibleTimeProcessor.java, ConsumerOrderInfoManager.java.
"""

from collections.abc import Collection, Sequence
from typing import Final

from duolog.bridge.net.answers import Answer
from duolog.bridge.records.codec import Record
from duolog.bridge.records.groups import CommittedOffset
from duolog.bridge.records.pop import PopDelayed
from duolog.bridge.rocketmq.context import RocketMQContext
from duolog.bridge.rocketmq.pop.pop_checkpoints import (
    INVISIBLE_MS_MAX,
    CheckpointName,
    PopCheckpoint,
    settled,
)
from duolog.bridge.rocketmq.requests.connection import RocketMQConnection
from duolog.bridge.rocketmq.requests.errors import RequestRefused
from duolog.bridge.rocketmq.requests.responses import answer, read_body
from duolog.protocol.names import group_of_rocketmq
from duolog.protocol.rocketmq.bodies import BatchAck, BatchAckRequest
from duolog.protocol.rocketmq.codes import ResponseCode
from duolog.protocol.rocketmq.headers import AckRequest, ChangeInvisibleAnswer, ChangeInvisibleRequest
from duolog.protocol.rocketmq.messages.receipt import (
    ORDER_REVIVE_QUEUE,
    REVIVE_QUEUE,
    BitSet,
    parse_receipt,
    real_topic,
)
from duolog.protocol.rocketmq.remoting import RemotingCommand
from duolog.store.entry import Promise

ACKS_MAX: Final = 4096  # Entries of one request; each entry belongs to one pop of a queue.


# -- Acks


def ack_message(context: RocketMQContext, connection: RocketMQConnection, command: RemotingCommand) -> Answer:
    request = AckRequest.parse(command.ext)
    checkpoint = _checkpoint(context, request)
    records = _acked(context, checkpoint, [request.offset])
    return answer(command, promise=_commit(context, records, [checkpoint]))


def batch_ack_message(context: RocketMQContext, connection: RocketMQConnection, command: RemotingCommand) -> Answer:
    """Acknowledge the messages of valid receipts as one unit; other receipts are ignored, as in Apache's broker."""
    acked: dict[CheckpointName, set[int]] = {}
    checkpoints: dict[CheckpointName, PopCheckpoint] = {}
    acks = read_body(command, BatchAckRequest).acks
    if len(acks) > ACKS_MAX:
        raise RequestRefused(ResponseCode.INVALID_PARAMETER, f"{len(acks)} acks in one request; {ACKS_MAX} are allowed")
    for each in acks:
        checkpoint = _checkpoint_of(context, each)
        if checkpoint is not None:
            bits, start = BitSet(each.bits), each.start_offset
            found = (offset for offset in checkpoint.pending if bits.has(offset - start))
            checkpoints[checkpoint.name] = checkpoint
            acked.setdefault(checkpoint.name, set()).update(found)
    records = [
        record
        for name, offsets in acked.items()
        if offsets
        for record in _acked(context, checkpoints[name], sorted(offsets))
    ]
    if not records:
        return answer(command, promise=context.state_log.barrier())
    return answer(command, promise=_commit(context, records, checkpoints.values()))


def _checkpoint_of(context: RocketMQContext, ack: BatchAck) -> PopCheckpoint | None:
    topic = context.topics.by_rocketmq_name(real_topic(ack.group, ack.topic, ack.retry))
    if topic is None or not 0 <= ack.queue_id < topic.queue_count:
        return None
    name = CheckpointName(group_of_rocketmq(ack.group), topic.key(ack.queue_id), ack.start_offset, ack.pop_ms)
    return context.pop.checkpoints.find(name)


def _acked(context: RocketMQContext, checkpoint: PopCheckpoint, offsets: Sequence[int]) -> list[Record]:
    """Settle these messages; in order the group goes on at the first one that is not acknowledged, or after the pop."""
    records: list[Record] = [settled(checkpoint.name, offsets)]
    if checkpoint.is_ordered:
        left = next((offset for offset in checkpoint.pending if offset not in offsets), checkpoint.next_offset)
        position = CommittedOffset(checkpoint.name.key, left)
        records += context.groups.group_offsets.records(checkpoint.name.group, [position], context.clock.now_ms())
    return records


def _commit(context: RocketMQContext, records: Sequence[Record], checkpoints: Collection[PopCheckpoint]) -> Promise:
    promise = context.state_log.commit(records, context.clock.now_ms()).promise
    if ordered := [each.name.key for each in checkpoints if each.is_ordered]:
        context.purgatory.check(ordered)  # Pops in order may go on.
    return promise


# -- Changes of the invisible time


def change_invisible_time(context: RocketMQContext, connection: RocketMQConnection, command: RemotingCommand) -> Answer:
    request = ChangeInvisibleRequest.parse(command.ext)
    if not 0 <= request.invisible_time <= INVISIBLE_MS_MAX:
        remark = f"invisibleTime {request.invisible_time}; 0 to {INVISIBLE_MS_MAX} are allowed"
        raise RequestRefused(ResponseCode.INVALID_PARAMETER, remark)
    checkpoint = _checkpoint(context, request)
    now_ms = context.clock.now_ms()
    change = _in_order if checkpoint.is_ordered else _alone
    changed, ext = change(context, checkpoint, request.offset, now_ms, now_ms + request.invisible_time)
    promise = _commit(context, [changed], [checkpoint])
    return answer(command, ext=ext.to_ext(), promise=promise)


def _in_order(
    context: RocketMQContext, checkpoint: PopCheckpoint, offset: int, now_ms: int, due_ms: int
) -> tuple[PopDelayed, ChangeInvisibleAnswer]:
    """Make the message due at another time; the client makes a receipt with that time from the answer."""
    pop_ms = checkpoint.name.pop_ms
    changed = PopDelayed(*checkpoint.name, offset, pop_ms, due_ms)
    return changed, ChangeInvisibleAnswer(pop_ms, due_ms - pop_ms, ORDER_REVIVE_QUEUE)


def _alone(
    context: RocketMQContext, checkpoint: PopCheckpoint, offset: int, now_ms: int, due_ms: int
) -> tuple[PopDelayed, ChangeInvisibleAnswer]:
    """Return the record of a checkpoint for this message alone, which counts as popped now."""
    if checkpoint.pending_count > 1:
        context.pop.checkpoints.check_room()
    name = checkpoint.name
    pop_ms = context.pop.checkpoints.unused_pop_ms(name.group, [(name.key, offset)], now_ms)
    return PopDelayed(*name, offset, pop_ms, due_ms), ChangeInvisibleAnswer(pop_ms, due_ms - now_ms, REVIVE_QUEUE)


def _checkpoint(context: RocketMQContext, request: AckRequest) -> PopCheckpoint:
    """Find the checkpoint of a receipt; raises RequestRefused unless the message is popped and not acknowledged."""
    topic = context.topics.by_rocketmq_name(request.topic)
    if topic is None:
        raise RequestRefused(
            ResponseCode.TOPIC_NOT_EXIST, f"topic[{request.topic[:300]}] not exist, apply first please!"
        )
    if not 0 <= request.queue_id < topic.queue_count:
        remark = f"queueId[{request.queue_id}] is illegal, topic:[{request.topic}] has {topic.queue_count} queues"
        raise RequestRefused(ResponseCode.MESSAGE_ILLEGAL, remark)
    receipt = parse_receipt(request.extra_info)
    key = topic.key(request.queue_id)
    name = CheckpointName(group_of_rocketmq(request.consumer_group), key, receipt.start_offset, receipt.pop_ms)
    checkpoint = context.pop.checkpoints.find(name)
    if checkpoint is None or not checkpoint.is_pending(request.offset):
        remark = f"offset {request.offset} is not popped with this receipt any more: {request.extra_info[:200]}"
        raise RequestRefused(ResponseCode.NO_MESSAGE, remark)
    return checkpoint
