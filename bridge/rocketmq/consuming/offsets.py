"""Offsets of queues, and committed offsets of groups.

    GET_MAX_OFFSET (30)              the last stable offset of a queue, which is the end for all RocketMQ readers
    GET_MIN_OFFSET (31)              the log start offset of a queue
    SEARCH_OFFSET_BY_TIMESTAMP (29)  LOWER: the first message stored at or after the time; UPPER: the last at or before
    GET_EARLIEST_MSG_STORETIME (32)  the store time of the first message; -1: the queue is empty
    QUERY_CONSUMER_OFFSET (14)       a group's committed offset; QUERY_NOT_FOUND: the client applies its default
    UPDATE_CONSUMER_OFFSET (15)      commits an offset, durably before the answer; one-way requests are collected
                                     (`bridge/state/group_offsets.py`)

Both client protocols share the committed offsets. Source: AdminBrokerProcessor.java, ConsumerManageProcessor.java.
"""

from duolog.bridge.data.reading.later import Later
from duolog.bridge.net.answers import Answer
from duolog.bridge.records.groups import CommittedOffset
from duolog.bridge.rocketmq.context import RocketMQContext
from duolog.bridge.rocketmq.requests.connection import RocketMQConnection
from duolog.bridge.rocketmq.requests.errors import RequestRefused
from duolog.bridge.rocketmq.requests.responses import answer
from duolog.bridge.rocketmq.requests.rocketmq_driver import answer_when
from duolog.bridge.state.client_protocols import ClientProtocol
from duolog.bridge.state.group_offsets import TooManyGroupOffsets
from duolog.bridge.state.topic_table import Topic
from duolog.protocol.names import group_of_rocketmq
from duolog.protocol.rocketmq.codes import ResponseCode
from duolog.protocol.rocketmq.headers import (
    QueryConsumerOffsetRequest,
    QueueRequest,
    SearchOffsetRequest,
    UpdateConsumerOffsetRequest,
)
from duolog.protocol.rocketmq.remoting import RemotingCommand
from duolog.store.errors import StoreError
from duolog.store.index.queue import Queue
from duolog.store.log.cold_read import ColdRead

_UPPER = "UPPER"


# -- Of queues


def max_offset(context: RocketMQContext, connection: RocketMQConnection, command: RemotingCommand) -> Answer:
    queue = _queue(context, QueueRequest.parse(command.ext))
    return _offset(command, context.messages.isolation.stable_end(queue) if queue is not None else 0)


def min_offset(context: RocketMQContext, connection: RocketMQConnection, command: RemotingCommand) -> Answer:
    queue = _queue(context, QueueRequest.parse(command.ext))
    return _offset(command, queue.start_offset if queue is not None else 0)


def search_offset(context: RocketMQContext, connection: RocketMQConnection, command: RemotingCommand) -> Answer | None:
    request = SearchOffsetRequest.parse(command.ext)
    queue = _queue(context, request)
    if queue is None:
        return _offset(command, 0)
    # UPPER is the message before the first one that was stored later.
    is_upper = request.boundary_type.upper() == _UPPER
    found = context.messages.reader.find_stored(
        queue, request.timestamp + is_upper, context.messages.isolation.stable_end(queue)
    )
    return answer_when(
        connection, command, found, lambda offset: _offset(command, max(offset - is_upper, queue.start_offset))
    )


def earliest_store_time(
    context: RocketMQContext, connection: RocketMQConnection, command: RemotingCommand
) -> Answer | None:
    queue = _queue(context, QueueRequest.parse(command.ext))
    found = (
        None
        if queue is None
        else context.store.reader.find_by_store_time(queue, 0, context.messages.isolation.stable_end(queue))
    )
    if isinstance(found, ColdRead):
        later: int | Later[int] = Later(found, lambda stored: stored[0].stored_ms if stored else -1)
        return answer_when(connection, command, later, lambda stored_ms: _timestamp(command, stored_ms))
    return _timestamp(command, found.stored_ms if found is not None else -1)


def _queue(context: RocketMQContext, request: QueueRequest | SearchOffsetRequest) -> Queue | None:
    """Find the queue. Clients ask about queues that do not exist yet, and get 0 rather than an error."""
    topic = context.topics.by_rocketmq_name(request.topic)
    if topic is None or not 0 <= request.queue_id < topic.queue_count:
        return None
    return topic.queues[request.queue_id]


def _offset(command: RemotingCommand, offset: int) -> Answer:
    return answer(command, ext={"offset": str(offset)})


def _timestamp(command: RemotingCommand, stored_ms: int) -> Answer:
    return answer(command, ext={"timestamp": str(stored_ms)})


# -- Of groups


def query_consumer_offset(context: RocketMQContext, connection: RocketMQConnection, command: RemotingCommand) -> Answer:
    request = QueryConsumerOffsetRequest.parse(command.ext)
    topic = _topic(context, request.topic, request.queue_id)
    group, key = group_of_rocketmq(request.consumer_group), topic.key(request.queue_id)
    position = context.groups.group_offsets.reported(group, context.clock.now_ms()).get(key)
    start_offset = topic.queues[request.queue_id].start_offset
    if position is not None:
        # A pull below the log start offset would cost a client of 4.9 ten seconds and a rebalance (OFFSET_ILLEGAL).
        offset = max(position.offset, start_offset)
    elif request.set_zero_if_not_found is not False and start_offset == 0:
        # No message was removed, so the group counts as one that has read the queue from the start. Otherwise a
        # consumer "from last" would miss messages that were sent between the queue's creation and its first rebalance.
        offset = 0
    elif context.groups.members.begins_at_first(request.consumer_group):
        offset = start_offset  # By itself the client would pull at 0, below the log start offset.
    else:
        raise RequestRefused(ResponseCode.QUERY_NOT_FOUND, "Not found, maybe this group consumer boot first")
    return answer(command, ext={"offset": str(offset)}, promise=context.state_log.barrier())


def update_consumer_offset(
    context: RocketMQContext, connection: RocketMQConnection, command: RemotingCommand
) -> Answer | None:
    request = UpdateConsumerOffsetRequest.parse(command.ext)
    topic = _topic(context, request.topic, request.queue_id)
    if request.commit_offset < 0:
        raise RequestRefused(
            ResponseCode.INVALID_PARAMETER, f"commit offset {request.commit_offset} of {request.topic}"
        )
    if context.groups.configs.find(request.consumer_group) is None:
        raise RequestRefused(
            ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, f"Group {request.consumer_group[:200]} not exist!"
        )
    group = group_of_rocketmq(request.consumer_group)
    positions = [CommittedOffset(topic.key(request.queue_id), request.commit_offset)]
    if context.groups.reset_marks.find(request.consumer_group, topic.key(request.queue_id)) is not None:
        # A tool moved the group, and the member sent this commit before it knew.
        return answer(command, remark="Offset has been previously reset", promise=context.state_log.barrier())
    now_ms = context.clock.now_ms()
    if command.is_oneway:
        if context.groups.client_protocols.admits(group, ClientProtocol.ROCKETMQ):
            context.groups.configs.ensure_if_writable((request.consumer_group,), now_ms)
        commit_one_way(context, group, positions[0])
        return None
    if not context.groups.client_protocols.admits(group, ClientProtocol.ROCKETMQ):
        raise RequestRefused(ResponseCode.NO_PERMISSION, f"the group {request.consumer_group} is active in Kafka")
    context.groups.configs.ensure(request.consumer_group, now_ms)
    # A group that pops in order moves by its acknowledgements, so a tool sends this.
    settled = context.pop.checkpoints.settling_records(group, [position.key for position in positions])
    records = [*settled, *context.groups.group_offsets.records(group, positions, now_ms)]
    promise = context.state_log.commit(records, now_ms).promise
    if settled:
        context.purgatory.check(position.key for position in positions)  # Pops in order may go on.
    return answer(command, promise=promise)


def commit_one_way(context: RocketMQContext, group: str, position: CommittedOffset) -> None:
    """Commit an offset that no answer confirms. A commit that fails is counted; the group reads some messages again."""
    if not context.groups.client_protocols.admits(group, ClientProtocol.ROCKETMQ):
        context.metrics.dropped_commits["rocketmq"] += 1
        return
    try:
        context.groups.group_offsets.commit_later(group, [position], context.clock.mono_ms(), context.clock.now_ms())
    except (StoreError, TooManyGroupOffsets):
        context.metrics.refused_commits["rocketmq"] += 1


def _topic(context: RocketMQContext, name: str, queue_id: int) -> Topic:
    topic = context.topics.by_rocketmq_name(name)
    if topic is None:
        raise RequestRefused(ResponseCode.TOPIC_NOT_EXIST, f"Topic {name[:300]} not exist!")
    if not 0 <= queue_id < topic.queue_count:
        raise RequestRefused(
            ResponseCode.INVALID_PARAMETER,
            f"queueId[{queue_id}] is illegal, topic {name} has {topic.queue_count} queues",
        )
    return topic
