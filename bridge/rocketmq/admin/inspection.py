"""Inspection by tools: members, subscriptions, message counts, index rows.

    groups     QUERY_TOPIC_CONSUME_BY_WHO (300), QUERY_TOPICS_BY_CONSUMER (343), QUERY_SUBSCRIPTION_BY_CONSUMER (345),
               GET_BROKER_CONSUME_STATS (317)
    producers  GET_ALL_PRODUCER_INFO (328)
    members    GET_CONSUMER_RUNNING_INFO (307), CONSUME_MESSAGE_DIRECTLY (309), which are sent on to the member
    topics     VIEW_BROKER_STATS_DATA (315), GET_SYSTEM_TOPIC_LIST_FROM_BROKER (305), QUERY_CONSUME_QUEUE (321)
    files      CLEAN_EXPIRED_CONSUMEQUEUE (306), CLEAN_UNUSED_TOPIC (316), DELETE_EXPIRED_COMMITLOG (329): no effect,
               because retention does this work

The number of messages that were sent to a topic in a window is computed from the index, which has the store time of
each entry. The number that a group read is counted (`consume_counts.py`). Source: AdminBrokerProcessor.java,
BrokerStatsManager.java.
"""

from collections.abc import Generator, Iterable
from functools import partial
from typing import Final

from duolog.bridge.data.reading.later import Later
from duolog.bridge.net.answers import Answer
from duolog.bridge.net.waiting import UntilCalled, WaitingSteps
from duolog.bridge.rocketmq.access.gate import Granted
from duolog.bridge.rocketmq.admin import group_stats
from duolog.bridge.rocketmq.admin.view_message import find_record
from duolog.bridge.rocketmq.context import RocketMQContext
from duolog.bridge.rocketmq.groups.consumer_group import Client
from duolog.bridge.rocketmq.requests.background_requests import Steps
from duolog.bridge.rocketmq.requests.connection import RocketMQConnection
from duolog.bridge.rocketmq.requests.errors import RequestRefused
from duolog.bridge.rocketmq.requests.json_answers import Pieces, member
from duolog.bridge.rocketmq.requests.responses import answer
from duolog.bridge.rocketmq.requests.rocketmq_driver import answer_in_steps, answer_when
from duolog.bridge.state.topic_table import Topic
from duolog.protocol.names import group_of_rocketmq
from duolog.protocol.rocketmq.bodies import (
    ConsumeQueueData,
    ConsumeQueueRow,
    GroupList,
    GroupSubscription,
    ProducerState,
    StatsData,
    StatsItem,
    TopicList,
)
from duolog.protocol.rocketmq.codes import RequestCode, ResponseCode
from duolog.protocol.rocketmq.headers import (
    ConsumeQueueRequest,
    ConsumerRequest,
    GroupRequest,
    GroupTopicRequest,
    StatsRequest,
    TopicRequest,
)
from duolog.protocol.rocketmq.json import fastjson
from duolog.protocol.rocketmq.messages.message_id import parse_message_id
from duolog.protocol.rocketmq.remoting import LANGUAGES, RemotingCommand
from duolog.store.entry import Buffer, Stored
from duolog.store.errors import StoreError
from duolog.store.index.queue import QUEUE_ID_BITS, Queue
from duolog.store.log.cold_read import ColdRead

# The work of one step of a long request, which takes some two milliseconds.
GROUPS_AT_ONCE: Final = 1000
STATS_AT_ONCE: Final = 1000
QUEUES_AT_ONCE: Final = 200

CALL_MS: Final = 5_000  # The timeout for a member's answer; tools wait as long.
ROWS_MAX: Final = 64  # The most rows in an answer to QUERY_CONSUME_QUEUE.
ROWS_BYTES_MAX: Final = 64 << 20
MINUTE_MS, HOUR_MS, DAY_MS = 60_000, 3_600_000, 86_400_000

_TOPIC_PUT_NUMS: Final = "TOPIC_PUT_NUMS"
_BROKER_PUT_NUMS: Final = "BROKER_PUT_NUMS"
_GROUP_GET_NUMS: Final = "GROUP_GET_NUMS"
_BROKER_GET_NUMS: Final = "BROKER_GET_NUMS"
_SPANS_MS: Final = (MINUTE_MS, HOUR_MS, DAY_MS)


# -- Groups


def groups_of_topic(
    context: RocketMQContext, connection: RocketMQConnection, command: RemotingCommand
) -> Answer | None:
    """Answer QUERY_TOPIC_CONSUME_BY_WHO: the groups that consume a topic."""
    topic = context.topics.by_rocketmq_name(TopicRequest.parse(command.ext).topic)
    return connection.in_slices(command, _groups_of_topic(context, command, topic))


def _groups_of_topic(context: RocketMQContext, command: RemotingCommand, topic: Topic | None) -> Steps:
    found = set[str]()
    if topic is not None:
        keys = {queue.key for queue in topic.queues}
        for number, group in enumerate(list(context.groups.group_offsets.groups())):
            if not context.groups.group_offsets.all_of(group).keys().isdisjoint(keys):
                found.add(context.groups.configs.name_of(group))
            if not number % GROUPS_AT_ONCE:
                yield
        for number, (name, members) in enumerate(list(context.groups.members.consumers.items())):
            if topic.rocketmq_name in members.subscriptions:
                found.add(name)
            if not number % GROUPS_AT_ONCE:
                yield
    return answer(command, body=GroupList(group_list=sorted(found)), promise=context.state_log.barrier())


def topics_of_group(context: RocketMQContext, connection: RocketMQConnection, command: RemotingCommand) -> Answer:
    """Answer QUERY_TOPICS_BY_CONSUMER."""
    name = GroupRequest.parse(command.ext).group
    numbers = {key >> QUEUE_ID_BITS for key in context.groups.group_offsets.all_of(group_of_rocketmq(name))}
    topics = {topic.rocketmq_name for topic in map(context.topics.by_number, numbers) if topic is not None}
    topics |= (context.groups.members.subscriptions(name) or {}).keys()
    return answer(command, body=TopicList(topic_list=sorted(topics)), promise=context.state_log.barrier())


def subscription_of_group(context: RocketMQContext, connection: RocketMQConnection, command: RemotingCommand) -> Answer:
    """Answer QUERY_SUBSCRIPTION_BY_CONSUMER."""
    request = GroupTopicRequest.parse(command.ext)
    found = (context.groups.members.subscriptions(request.group) or {}).get(request.topic)
    return answer(command, body=GroupSubscription(group=request.group, topic=request.topic, subscription_data=found))


def stats_of_groups(
    context: RocketMQContext, connection: RocketMQConnection, command: RemotingCommand
) -> Answer | None:
    """Return the lag of every group, in all topics in which it has committed offsets."""
    return connection.in_slices(command, _stats_of_groups(context, command))


def _stats_of_groups(context: RocketMQContext, command: RemotingCommand) -> Steps:
    host, port = context.node.addresses.rocketmq
    pieces, total, comma, left = Pieces(), 0, b"", STATS_AT_ONCE
    pieces.add(b'{"consumeStatsList":[')
    for config in list(context.groups.configs.all()):
        topics = group_stats.stats_topics(context, config.group_name)
        left -= 1 + sum(topic.queue_count for topic in topics)
        if left <= 0:
            left = STATS_AT_ONCE
            yield
        if topics:
            pieces.add(comma + b"{" + fastjson.write(config.group_name) + b":[")
            total += yield from group_stats.write_stats(context, config.group_name, topics, pieces)
            pieces.add(b"]}")
            comma = b","
    rest = {"brokerAddr": f"{host}:{port}", "totalDiff": total, "totalInflightDiff": 0}
    pieces.add(b"]," + b",".join(member(name, value) for name, value in rest.items()) + b"}")
    return answer(command, body=pieces.buffers, promise=context.state_log.barrier())


# -- Producers


def producers(context: RocketMQContext, connection: RocketMQConnection, command: RemotingCommand) -> Answer | None:
    """Answer GET_ALL_PRODUCER_INFO."""
    return connection.in_slices(command, _producers(context, command))


def _producers(context: RocketMQContext, command: RemotingCommand) -> Steps:
    now_ms, mono_ms = context.clock.now_ms(), context.clock.mono_ms()

    def row(each: tuple[RocketMQConnection, Client]) -> bytes:
        channel, client = each
        beat_mono_ms = context.groups.members.heartbeats.last_mono_ms(channel)
        state = ProducerState(
            client_id=client.client_id,
            remote_ip=f"{channel.peer[0]}:{channel.peer[1]}",
            language=client.language if client.language in LANGUAGES else "OTHER",
            version=client.version,
            last_update_timestamp=now_ms if beat_mono_ms is None else now_ms - (mono_ms - beat_mono_ms),
        )
        return fastjson.write(state)

    pieces, comma = Pieces(), b""
    pieces.add(b'{"data":{')
    for number, (name, channels) in enumerate(list(context.groups.members.producers.groups.items()), 1):
        pieces.add(comma + fastjson.write(name) + b":[")
        yield from pieces.rows(list(channels.items()), row)
        pieces.add(b"]")
        comma = b","
        if not number % GROUPS_AT_ONCE:
            yield
    pieces.add(b"}}")
    return answer(command, body=pieces.buffers)


# -- Members


def running_info(context: RocketMQContext, connection: RocketMQConnection, command: RemotingCommand) -> Answer | None:
    """Answer GET_CONSUMER_RUNNING_INFO with the answer of the member."""
    request = ConsumerRequest.parse(command.ext)
    steps = _ask_member(context, command, request, command.ext, b"")
    return answer_in_steps(connection, command, steps, outlives_connection=True)


def consume_directly(
    context: RocketMQContext, connection: RocketMQConnection, command: RemotingCommand
) -> Answer | None:
    """Make a member consume one message, which the request names by its offsetMsgId, independent of offsets."""
    request = ConsumerRequest.parse(command.ext)
    _member(context, request)
    _, position = parse_message_id(request.msg_id or "")
    ext = {**command.ext, "brokerName": context.options.rocketmq.broker}
    steps = _have_consumed(context, command, request, ext, position, connection.granted)
    return answer_in_steps(connection, command, steps, outlives_connection=True)


def _have_consumed(
    context: RocketMQContext,
    command: RemotingCommand,
    request: ConsumerRequest,
    ext: dict[str, str],
    position: int,
    granted: Granted | None,
) -> WaitingSteps[Answer]:
    record = yield from find_record(context, position, granted)
    if record is None:
        raise RequestRefused(ResponseCode.SYSTEM_ERROR, f"no message has the id {request.msg_id}")
    return (yield from _ask_member(context, command, request, ext, record))


def _member(context: RocketMQContext, request: ConsumerRequest) -> RocketMQConnection:
    group = context.groups.members.consumers.get(request.consumer_group)
    for channel, client in group.channels.items() if group is not None else ():
        if client.client_id == request.client_id:
            return channel
    remark = f"The Consumer <{request.consumer_group[:200]}> <{request.client_id[:200]}> not online"
    raise RequestRefused(ResponseCode.SYSTEM_ERROR, remark)


def _ask_member(
    context: RocketMQContext, command: RemotingCommand, request: ConsumerRequest, ext: dict[str, str], body: Buffer
) -> WaitingSteps[Answer]:
    """Send the request on to the member, and return the member's answer."""
    calls = _member(context, request).calls
    ask = partial(calls.ask, RequestCode(command.code), ext, body, timeout_ms=CALL_MS)
    return _member_answer(command, request, (yield UntilCalled(ask)))


def _member_answer(command: RemotingCommand, request: ConsumerRequest, given: RemotingCommand | None) -> Answer:
    """Return a member's answer in the encoding that the tool asked for. Raises ProtocolError if that is impossible."""
    if given is None:
        remark = f"consumer <{request.consumer_group}> <{request.client_id}> Timeout: {CALL_MS} ms"
        return answer(command, ResponseCode.CONSUME_MSG_TIMEOUT, remark)
    return answer(command, given.code, given.remark, given.ext, given.body)


# -- Topics


def stats_data(context: RocketMQContext, connection: RocketMQConnection, command: RemotingCommand) -> Answer | None:
    """Return the number of messages sent to one or all topics, or read by a group, in the last minute, hour and day."""
    return connection.in_slices(command, _stats_data(context, command, StatsRequest.parse(command.ext)))


def _stats_data(context: RocketMQContext, command: RemotingCommand, request: StatsRequest) -> Steps:
    counts = yield from _stats_of(context, request)
    if counts is None:
        remark = f"The stats <{request.stats_name[:80]}> <{request.stats_key[:200]}> not exist"
        raise RequestRefused(ResponseCode.SYSTEM_ERROR, remark)
    minute, hour, day = (
        StatsItem(sum=count, tps=count * 1000 / ms, avgpt=float(count > 0))
        for count, ms in zip(counts, _SPANS_MS, strict=True)
    )
    return answer(command, body=StatsData(stats_minute=minute, stats_hour=hour, stats_day=day))


def _stats_of(context: RocketMQContext, request: StatsRequest) -> Generator[None, None, list[int] | None]:
    name, key, mono_ms = request.stats_name, request.stats_key, context.clock.mono_ms()
    if name == _GROUP_GET_NUMS:
        topic_name, _, group = key.partition("@")
        topic = context.topics.by_rocketmq_name(topic_name)
        return context.groups.consume_counts.of(group, topic.number, mono_ms) if topic is not None else None
    if name == _TOPIC_PUT_NUMS:
        topic = context.topics.by_rocketmq_name(key)
        return (yield from _put_counts(context, [topic])) if topic is not None else None
    if key == context.options.rocketmq.cluster:
        if name == _BROKER_PUT_NUMS:
            return (yield from _put_counts(context, list(context.topics.all())))
        if name == _BROKER_GET_NUMS:
            return context.groups.consume_counts.of_all(mono_ms)
    return None


def _put_counts(context: RocketMQContext, topics: Iterable[Topic]) -> Generator[None, None, list[int]]:
    now_ms, counts, left = context.clock.now_ms(), [0] * len(_SPANS_MS), QUEUES_AT_ONCE
    for topic in topics:
        for queue in list(topic.queues):
            for number, span_ms in enumerate(_SPANS_MS):
                counts[number] += _count_since(context, queue, now_ms - span_ms)
            left -= 1
            if left <= 0:
                left = QUEUES_AT_ONCE
                yield
    return counts


def _count_since(context: RocketMQContext, queue: Queue, stored_ms: int) -> int:
    """Return the number of messages stored since `stored_ms`; 0 if rows are not in memory, which loads them."""
    if queue.visible_end > queue.start_offset and context.store.reader.last_stored_ms(queue) >= stored_ms:
        found = context.store.reader.find_by_store_time(queue, stored_ms, queue.visible_end)
        if isinstance(found, ColdRead):
            found.start(_ignore)
        elif found is not None:
            return queue.visible_end - found.base_offset
    return 0


def _ignore(_: list[Stored] | StoreError) -> None:
    """Do nothing: the index rows are in the page cache now, for the next request."""


def system_topics(context: RocketMQContext, connection: RocketMQConnection, command: RemotingCommand) -> Answer:
    """Answer GET_SYSTEM_TOPIC_LIST_FROM_BROKER."""
    names = sorted(topic.rocketmq_name for topic in context.topics.all() if not topic.is_listed)
    host, port = context.node.addresses.rocketmq
    return answer(command, body=TopicList(topic_list=names, broker_addr=f"{host}:{port}"))


def consume_queue(context: RocketMQContext, connection: RocketMQConnection, command: RemotingCommand) -> Answer | None:
    """Return rows of a queue's index. A row stands for one message, or for a whole batch of a Kafka producer."""
    request = ConsumeQueueRequest.parse(command.ext)
    topic = context.topics.by_rocketmq_name(request.topic)
    if topic is None or not 0 <= request.queue_id < topic.queue_count:
        remark = f"{request.queue_id}@{request.topic[:200]} is not exist!"
        raise RequestRefused(ResponseCode.SYSTEM_ERROR, remark)
    queue = topic.queues[request.queue_id]
    start, until = queue.start_offset, context.messages.isolation.stable_end(queue)

    def make(stored: list[Stored]) -> Answer:
        rows = [
            ConsumeQueueRow(physic_offset=entry.position, physic_size=len(entry.frame), tags_code=entry.tags)
            for entry in stored
        ]
        return answer(command, body=ConsumeQueueData(queue_data=rows, max_queue_index=until, min_queue_index=start))

    offset = min(max(request.index, start), until)
    count = min(max(request.count, 1), ROWS_MAX)
    found = context.store.reader.read(queue, offset, max_bytes=ROWS_BYTES_MAX, until=until, max_entries=count)
    later: list[Stored] | Later[list[Stored]] = Later(found, _same) if isinstance(found, ColdRead) else found
    return answer_when(connection, command, later, make)


def _same(stored: list[Stored]) -> list[Stored]:
    return stored


# -- Files


def clean(context: RocketMQContext, connection: RocketMQConnection, command: RemotingCommand) -> Answer:
    """Answer requests to clean files: with success, because retention does this work."""
    return answer(command)
