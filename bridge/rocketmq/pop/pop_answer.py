"""Encodes the answer to a pop that found messages.

The consumer makes the receipt of a message from the answer's header fields. It cannot do so for a retried message, so
such a message carries its receipt, and the topic that its consumer knows.
"""

import re
from collections.abc import Iterable
from typing import Final

from duolog.bridge.net.answers import Answer
from duolog.bridge.rocketmq.context import RocketMQContext
from duolog.bridge.rocketmq.pop.pop_unit import Popped, PoppedQueue
from duolog.bridge.rocketmq.requests.responses import answer
from duolog.bridge.state.topic_table import Topic
from duolog.bridge.tracing.tracing import Tracing
from duolog.protocol.rocketmq.codes import ResponseCode
from duolog.protocol.rocketmq.headers import PopAnswer, PopRequest
from duolog.protocol.rocketmq.messages import message, properties
from duolog.protocol.rocketmq.messages.receipt import (
    ORDER_REVIVE_QUEUE,
    REVIVE_QUEUE,
    Receipt,
    join_infos,
    queue_info,
)
from duolog.protocol.rocketmq.remoting import RemotingCommand
from duolog.store.entry import Buffer

_RECEIPT_NAME: Final = re.compile(properties.POP_CK.encode() + b"\x01")


def _trace(
    context: RocketMQContext, tracing: Tracing, command: RemotingCommand, request: PopRequest, each: PoppedQueue
) -> None:
    """Make the spans of the messages that a pop took from one queue."""
    attributes: dict[str, str | int] = {
        "messaging.system": "rocketmq", "messaging.consumer.group.name": request.consumer_group
    }  # fmt: skip
    begun_ms = context.clock.now_ms() - (context.clock.mono_ms() - command.received_mono_ms)
    first, end = each.offsets[0], each.offsets[-1] + 1
    tracing.read(each.source.queue, first, end, begun_ms, attributes, lambda: each.offsets)


def found(
    context: RocketMQContext, command: RemotingCommand, request: PopRequest, topic: Topic, popped: Popped
) -> Answer:
    """Encode the messages of all queues, and where they lie."""
    revive_queue = ORDER_REVIVE_QUEUE if request.order else REVIVE_QUEUE
    starts, lists, counts = [], [], []
    body: list[Buffer] = []
    for each in popped.queues:
        retry, queue_id = each.source.retry, each.source.queue.queue_id
        starts.append(queue_info(retry, queue_id, each.offsets[0]))
        lists.append(queue_info(retry, queue_id, ",".join(map(str, each.offsets))))
        if request.order:
            counts += _counts(each, request.attempt_id)
        size, mono_ms = sum(map(len, each.buffers)), context.server.connections.mono_ms
        context.groups.consume_counts.add(request.consumer_group, topic.number, len(each.offsets), size, mono_ms)
        if context.tracing is not None:
            _trace(context, context.tracing, command, request, each)
        if each.source.is_retry:
            receipt = Receipt(
                each.offsets[0], popped.pop_ms, request.invisible_time, revive_queue, retry,
                context.options.rocketmq.broker, 0, 0,
            )  # fmt: skip
            body += _with_receipts(each, receipt, topic.rocketmq_name)
        else:
            body += map(_without_receipt, each.buffers)
    stable_end = context.messages.isolation.stable_end
    ext = PopAnswer(
        pop_time=popped.pop_ms,
        invisible_time=request.invisible_time,
        revive_qid=revive_queue,
        rest_num=sum(stable_end(each.source.queue) - each.next_offset for each in popped.queues),
        start_offset_info=join_infos(starts),
        msg_offset_info=join_infos(lists),
        order_count_info=join_infos(counts) if request.order else None,
    ).to_ext()
    return answer(command, ResponseCode.SUCCESS, "FOUND", ext, body, popped.promise)


def _counts(popped: PoppedQueue, attempt_id: str | None) -> list[str]:
    """List how often messages of a queue failed: each that did, and the least count of all for older clients."""
    retry, queue_id, failures = popped.source.retry, popped.source.queue.queue_id, popped.failures(attempt_id)
    counts = [queue_info(retry, f"qo{queue_id}%{offset}", count) for offset, count in failures.items()]
    least = min(failures.get(offset, 0) for offset in popped.offsets)
    return [*counts, queue_info(retry, queue_id, least)]


def _with_receipts(popped: PoppedQueue, receipt: Receipt, topic: str) -> Iterable[Buffer]:
    """Give retried messages the topic that their consumer knows, and each its receipt."""
    for buffer, offset in zip(popped.buffers, popped.offsets, strict=True):
        retried = message.decode(buffer)
        text = receipt._replace(queue_id=retried.queue_id, offset=offset).text()
        retried.properties = properties.set_many(retried.properties, {properties.POP_CK: text})
        retried.topic = topic
        yield message.encode(retried)


def _without_receipt(record: Buffer) -> Buffer:
    """Return a message without the receipt of an earlier pop, which stays in a message that its consumer sends on."""
    if _RECEIPT_NAME.search(record) is None:
        return record
    forwarded = message.decode(record)
    forwarded.properties = properties.without(forwarded.properties, properties.POP_CK)
    return message.encode(forwarded)
