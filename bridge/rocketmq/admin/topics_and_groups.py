"""What clients and tools ask about topics, groups and the broker, and change of them.

    topics   UPDATE_AND_CREATE_TOPIC (17) and ..._LIST (18), DELETE_TOPIC_IN_BROKER (215), GET_ALL_TOPIC_CONFIG (21),
             GET_TOPIC_CONFIG (351), GET_TOPIC_STATS_INFO (202)
    groups   UPDATE_AND_CREATE_SUBSCRIPTIONGROUP (200) and ..._LIST (225), DELETE_SUBSCRIPTIONGROUP (207),
             GET_ALL_SUBSCRIPTIONGROUP_CONFIG (201), GET_SUBSCRIPTIONGROUP_CONFIG (352), GET_CONSUME_STATS (208),
             GET_CONSUMER_CONNECTION_LIST (203), GET_PRODUCER_CONNECTION_LIST (204)
    broker   GET_BROKER_CONFIG (26), UPDATE_BROKER_CONFIG (25), GET_BROKER_RUNTIME_INFO (28)

Paging is ignored: a table comes whole, which tools take. Source: AdminBrokerProcessor.java.
"""

import logging
from collections.abc import Callable, Generator, Iterable, Mapping
from functools import partial
from typing import Final

import msgspec

from duolog.bridge.config import DAY_MS, HOUR_MS
from duolog.bridge.net.answers import Answer
from duolog.bridge.rocketmq.admin.single_broker import read_properties, report_ignored
from duolog.bridge.rocketmq.consuming.consumer_group import Client
from duolog.bridge.rocketmq.context import RocketMQContext
from duolog.bridge.rocketmq.requests.admission import Kind
from duolog.bridge.rocketmq.requests.background_requests import Steps
from duolog.bridge.rocketmq.requests.connection import RocketMQConnection
from duolog.bridge.rocketmq.requests.errors import Refused
from duolog.bridge.rocketmq.requests.json_answers import Pieces, member
from duolog.bridge.rocketmq.requests.responses import answer, read_body
from duolog.bridge.rocketmq.retry.retry_policy import check_policy
from duolog.bridge.state.records import GroupDeleted
from duolog.bridge.state.topic_configs import changed as changed_configs
from duolog.bridge.state.topics import QUEUE_ID_BITS, Topic, UnknownTopic
from duolog.protocol.names import group_of_rocketmq
from duolog.protocol.rocketmq.bodies import (
    Connection,
    DataVersion,
    GroupConfigList,
    KVTable,
    OffsetWrapper,
    SubscriptionGroupConfig,
    TopicConfig,
    TopicConfigList,
    TopicOffset,
)
from duolog.protocol.rocketmq.codes import ResponseCode
from duolog.protocol.rocketmq.headers import (
    ConsumerGroupRequest,
    CreateTopicRequest,
    DeleteGroupRequest,
    GroupRequest,
    TopicRequest,
)
from duolog.protocol.rocketmq.json import fastjson
from duolog.protocol.rocketmq.json.fastjson import MessageQueue
from duolog.protocol.rocketmq.messages.flags import PERM_INHERIT, PERM_READ_WRITE
from duolog.protocol.rocketmq.names import (
    SYSTEM_GROUPS,
    check_group,
    check_topic,
    is_system_topic,
)
from duolog.protocol.rocketmq.remoting import LANGUAGES, VERSION, RemotingCommand
from duolog.store.entry import Promise
from duolog.store.index.queue import Queue

# What one step of a long request does, some two milliseconds.
QUEUES_AT_ONCE: Final = 500
TOPIC_AT_COST_OF_QUEUES: Final = 20  # A new topic with one queue, and any change of one.
GROUPS_AT_ONCE: Final = 40
STORED_AT_ONCE: Final = 4000

ATTRIBUTES_CHARACTERS_MAX: Final = 8 << 10  # Of a topic, in one request.
ATTRIBUTES_MAX: Final = 128  # Of a group or topic in a list, in one request.
GROUP_CONFIG_BYTES_MAX: Final = 8 << 10  # It is kept, with all attributes that a client invents.
WHOLE_DIGITS_MAX: Final = 18
CAPACITY_MAX: Final = 1_000_000  # Of one kind of requests.

# Topic configs that tools set as attributes.
ATTRIBUTES: Final = ("message.type", "message.ttl.ms", "message.expired", "delay.unknown.headers")

_NO_RATE: Final = "0.0 0.0 0.0"  # Of the last 10, 60 and 600 s; tools split it at the spaces.
_PERMS: Final = PERM_READ_WRITE | PERM_INHERIT

log = logging.getLogger("bridge")


# -- Topics


def update_topic(context: RocketMQContext, connection: RocketMQConnection, command: RemotingCommand) -> Answer:
    """Create a topic, or let one have more queues, other permissions, other ATTRIBUTES; filter types mean nothing here.

    A queue is read and written or not there at all, so the greater of the two numbers counts.
    """
    request = CreateTopicRequest.parse(command.ext)
    if len(request.attributes or "") > ATTRIBUTES_CHARACTERS_MAX:
        remark = f"attributes of {len(request.attributes or '')} characters; {ATTRIBUTES_CHARACTERS_MAX} are allowed"
        raise Refused(ResponseCode.INVALID_PARAMETER, remark)
    queue_count = max(request.read_queue_nums, request.write_queue_nums)
    attributes = _attributes(part.partition("=") for part in (request.attributes or "").split(","))
    return answer(command, promise=_update(context, connection, request.topic, queue_count, request.perm, attributes))


def update_topics(context: RocketMQContext, connection: RocketMQConnection, command: RemotingCommand) -> Answer | None:
    """Create or change several topics, one after the other; what came before one that is refused stays."""
    configs = read_body(command, TopicConfigList).topic_config_list
    return connection.in_slices(command, _update_topics(context, connection, command, configs))


def _update_topics(
    context: RocketMQContext, connection: RocketMQConnection, command: RemotingCommand, configs: list[TopicConfig]
) -> Steps:
    promise, left = context.state_log.barrier(), QUEUES_AT_ONCE
    for config in configs:
        queue_count = max(config.read_queue_nums, config.write_queue_nums)
        if len(config.attributes) > ATTRIBUTES_MAX:
            remark = f"topic config with {len(config.attributes)} attributes; {ATTRIBUTES_MAX} are allowed"
            raise Refused(ResponseCode.INVALID_PARAMETER, remark)
        attributes = _attributes((name, "=", value) for name, value in config.attributes.items())
        promise = _update(context, connection, config.topic_name, queue_count, config.perm, attributes)
        left -= queue_count + TOPIC_AT_COST_OF_QUEUES
        if left <= 0:
            left = QUEUES_AT_ONCE
            yield
    return answer(command, promise=promise)


def _attributes(signed: Iterable[tuple[str, str, str]]) -> dict[str, str | None]:
    """Read `+name=value` and `-name`; those of other names are RocketMQ's own, and mean nothing here."""
    named = ((name[:1], name[1:].strip(), value.strip()) for name, _, value in signed)
    return {name: None if sign == "-" else value for sign, name, value in named if name in ATTRIBUTES}


def _update(
    context: RocketMQContext,
    connection: RocketMQConnection,
    name: str,
    queue_count: int,
    perm: int,
    attributes: Mapping[str, str | None],
) -> Promise:
    topics, now_ms = context.topics, context.clock.now_ms()
    check_topic(name)
    topic = topics.by_rocketmq_name(name)
    is_ours = topic is not None and not (topic.may_produce and topic.is_listed)
    if is_system_topic(name) or is_ours:
        raise Refused(ResponseCode.INVALID_PARAMETER, f"The topic[{name}] is conflict with system topic.")
    perm &= _PERMS
    if topic is None:
        return topics.create(name, queue_count, changed_configs({}, attributes), now_ms, perm=perm)[1]
    changed = changed_configs(topic.configs, attributes)
    promise = context.state_log.barrier()
    if queue_count != topic.queue_count:
        promise = topics.add_queues(
            topic, queue_count, now_ms, f"UPDATE_AND_CREATE_TOPIC of {connection.peer[0]}:{connection.peer[1]}"
        )
    if perm != topic.perm:
        promise = topics.permit(topic, perm, now_ms)
    if changed != topic.configs:
        promise = topics.configure(topic, changed, now_ms)
    return promise


def delete_topic(context: RocketMQContext, connection: RocketMQConnection, command: RemotingCommand) -> Answer:
    """Delete a topic; one that is not there is deleted, too."""
    topic = context.topics.by_rocketmq_name(TopicRequest.parse(command.ext).topic)
    if topic is None:
        return answer(command, promise=context.state_log.barrier())
    return answer(command, promise=context.topics.delete(topic, context.clock.now_ms()))


def topic_config(context: RocketMQContext, connection: RocketMQConnection, command: RemotingCommand) -> Answer:
    topic = _topic(context, TopicRequest.parse(command.ext).topic)
    return answer(command, body=config_of(topic), promise=context.state_log.barrier())


def topic_configs(context: RocketMQContext, connection: RocketMQConnection, command: RemotingCommand) -> Answer | None:
    return connection.in_slices(command, _topic_configs(context, command))


def _topic_configs(context: RocketMQContext, command: RemotingCommand) -> Steps:
    topics, version, pieces = list(context.topics.all()), context.topics.version, Pieces()
    pieces.add(b'{"topicConfigTable":{')
    yield from pieces.rows(topics, lambda topic: member(topic.rocketmq_name, config_of(topic)))
    pieces.add(b"}," + member("dataVersion", DataVersion(counter=version)) + b"}")
    ext = {"totalTopicNum": str(len(topics))}
    return answer(command, ext=ext, body=pieces.buffers, promise=context.state_log.barrier())


def topic_stats(context: RocketMQContext, connection: RocketMQConnection, command: RemotingCommand) -> Answer | None:
    topic = _topic(context, TopicRequest.parse(command.ext).topic)
    return connection.in_slices(command, _topic_stats(context, command, topic))


def _topic_stats(context: RocketMQContext, command: RemotingCommand, topic: Topic) -> Steps:
    def row(queue: Queue) -> bytes:
        offsets = TopicOffset(
            min_offset=queue.start_offset,
            max_offset=context.messages.isolation.stable_end(queue),
            last_update_timestamp=context.store.reader.last_stored_ms(queue),
        )
        return fastjson.write(_message_queue(context, topic, queue.queue_id)) + b":" + fastjson.write(offsets)

    pieces = Pieces()
    pieces.add(b'{"offsetTable":{')
    yield from pieces.rows(list(topic.queues), row)
    pieces.add(b'},"topicPutTps":0.0}')
    return answer(command, body=pieces.buffers)


def _topic(context: RocketMQContext, name: str) -> Topic:
    topic = context.topics.by_rocketmq_name(name)
    if topic is None:
        raise UnknownTopic(f"No topic in this broker. topic: {name[:300]}")
    return topic


def config_of(topic: Topic) -> TopicConfig:
    count = topic.queue_count
    attributes = {name: value for name, value in topic.configs.items() if name in ATTRIBUTES}
    return TopicConfig(
        topic_name=topic.rocketmq_name,
        read_queue_nums=count,
        write_queue_nums=count,
        perm=topic.perm,
        attributes=attributes,
    )


def _message_queue(context: RocketMQContext, topic: Topic, queue_id: int) -> MessageQueue:
    return MessageQueue(topic.rocketmq_name, context.options.rocketmq.broker, queue_id)


# -- Groups


def update_group(context: RocketMQContext, connection: RocketMQConnection, command: RemotingCommand) -> Answer:
    config = _altered(context, read_body(command, SubscriptionGroupConfig))
    _check_group_config(context, config)
    return answer(command, promise=context.groups.configs.configure(config, context.clock.now_ms()))


def _altered(context: RocketMQContext, config: SubscriptionGroupConfig) -> SubscriptionGroupConfig:
    """Give the config with the group's attributes after `+name`, `-name` and `name` were set, removed, and set."""
    if len(config.attributes) > ATTRIBUTES_MAX:
        remark = f"group config with {len(config.attributes)} attributes; {ATTRIBUTES_MAX} are allowed"
        raise Refused(ResponseCode.INVALID_PARAMETER, remark)
    known = context.groups.configs.get(config.group_name)
    attributes = dict(known.attributes) if known is not None else {}
    for signed, value in config.attributes.items():
        if signed.startswith("-"):
            attributes.pop(signed[1:], None)
        else:
            attributes[signed.removeprefix("+")] = value
    return msgspec.structs.replace(config, attributes=attributes)


def _check_group_config(context: RocketMQContext, config: SubscriptionGroupConfig) -> None:
    check_group(config.group_name)
    size = len(fastjson.write(config))
    if size > GROUP_CONFIG_BYTES_MAX:
        remark = f"group config of {size} bytes; {GROUP_CONFIG_BYTES_MAX} are allowed"
        raise Refused(ResponseCode.INVALID_PARAMETER, remark)
    check_policy(config.group_retry_policy, context.options.delay.max_days * DAY_MS)


def group_config(context: RocketMQContext, connection: RocketMQConnection, command: RemotingCommand) -> Answer:
    """Give the config of a group, which is created if need be: Apache's gRPC proxy asks before anybody pops."""
    name = GroupRequest.parse(command.ext).group
    context.groups.configs.welcome((name,), context.clock.now_ms())
    config = context.groups.configs.find(name)
    if config is None:
        raise Refused(ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, f"No group in this broker. group: {name[:200]}")
    return answer(command, body=config, promise=context.state_log.barrier())


def group_configs(context: RocketMQContext, connection: RocketMQConnection, command: RemotingCommand) -> Answer | None:
    return connection.in_slices(command, _group_configs(context, command))


def _group_configs(context: RocketMQContext, command: RemotingCommand) -> Steps:
    configs, version, pieces = list(context.groups.configs.all()), context.groups.configs.version, Pieces()
    pieces.add(b'{"subscriptionGroupTable":{')
    yield from pieces.rows(configs, lambda config: member(config.group_name, config))
    # Java's tools do not ask whether the last one is there.
    pieces.add(b"}," + member("dataVersion", DataVersion(counter=version)) + b',"forbiddenTable":{}}')
    ext = {"totalGroupNum": str(len(configs))}
    return answer(command, ext=ext, body=pieces.buffers, promise=context.state_log.barrier())


def update_groups(context: RocketMQContext, connection: RocketMQConnection, command: RemotingCommand) -> Answer | None:
    """Configure several groups, one after the other; what came before one that is refused stays."""
    configs = read_body(command, GroupConfigList).group_config_list
    return connection.in_slices(command, _update_groups(context, command, configs))


def _update_groups(context: RocketMQContext, command: RemotingCommand, configs: list[SubscriptionGroupConfig]) -> Steps:
    promise = context.state_log.barrier()
    for number, config in enumerate(configs, 1):
        altered = _altered(context, config)
        _check_group_config(context, altered)
        promise = context.groups.configs.configure(altered, context.clock.now_ms())
        if not number % GROUPS_AT_ONCE:
            yield
    return answer(command, promise=promise)


def delete_group(context: RocketMQContext, connection: RocketMQConnection, command: RemotingCommand) -> Answer:
    """Forget a group's config, and its positions if that is wished. One that is not there is deleted, too."""
    request = DeleteGroupRequest.parse(command.ext)
    if request.group_name in SYSTEM_GROUPS:
        raise Refused(ResponseCode.INVALID_PARAMETER, f"{request.group_name} is a group of the system's own")
    group, now_ms = group_of_rocketmq(request.group_name), context.clock.now_ms()
    if request.clean_offset:
        return answer(command, promise=context.groups.positions.delete_group(group, now_ms))
    context.groups.positions.settle(group, now_ms)
    records = [GroupDeleted(group), *context.groups.positions.kept(group)]
    return answer(command, promise=context.state_log.commit(records, now_ms).promise)


def consume_stats(context: RocketMQContext, connection: RocketMQConnection, command: RemotingCommand) -> Answer | None:
    """Say how far the group is, in one topic or in all where it has positions."""
    name = ConsumerGroupRequest.parse(command.ext).consumer_group
    return connection.in_slices(command, _consume_stats(context, command, name, command.ext.get("topic")))


def _consume_stats(context: RocketMQContext, command: RemotingCommand, name: str, asked: str | None) -> Steps:
    pieces = Pieces()
    yield from write_stats(context, name, stats_topics(context, name, asked), pieces)
    return answer(command, body=pieces.buffers, promise=context.state_log.barrier())


def stats_topics(context: RocketMQContext, name: str, asked: str | None = None) -> list[Topic]:
    """Give the topic that is asked for, or all where the group has positions."""
    if asked:
        topic = context.topics.by_rocketmq_name(asked)
        return [topic] if topic is not None else []
    numbers = dict.fromkeys(key >> QUEUE_ID_BITS for key in context.groups.positions.all_of(group_of_rocketmq(name)))
    return [topic for topic in map(context.topics.by_number, numbers) if topic is not None]


def write_stats(
    context: RocketMQContext, name: str, topics: Iterable[Topic], pieces: Pieces
) -> Generator[None, None, int]:
    """Write how far a group is in these topics, and give how many messages it has before it."""
    group, behind = group_of_rocketmq(name), 0
    positions = context.groups.positions.reported(group, context.clock.now_ms())

    def row(place: tuple[Topic, Queue]) -> bytes:
        nonlocal behind
        topic, queue = place
        position = positions.get(queue.key)
        offset, end = position.offset if position is not None else 0, context.messages.isolation.stable_end(queue)
        behind += end - offset
        written = OffsetWrapper(
            broker_offset=end,
            consumer_offset=offset,
            pull_offset=offset,
            last_timestamp=context.store.reader.stored_ms_at(queue, offset - 1),
        )
        return fastjson.write(_message_queue(context, topic, queue.queue_id)) + b":" + fastjson.write(written)

    pieces.add(b'{"consumeTps":0.0,"offsetTable":{')
    yield from pieces.rows(((topic, queue) for topic in topics for queue in topic.queues), row)
    pieces.add(b"}}")
    return behind


def consumer_connections(
    context: RocketMQContext, connection: RocketMQConnection, command: RemotingCommand
) -> Answer | None:
    name = ConsumerGroupRequest.parse(command.ext).consumer_group
    group = context.groups.members.consumers.get(name)
    if group is None:
        raise Refused(ResponseCode.CONSUMER_NOT_ONLINE, f"the consumer group[{name[:200]}] not online")
    rest = {
        "subscriptionTable": group.subscriptions, "consumeType": group.consume_type,
        "messageModel": group.message_model, "consumeFromWhere": group.consume_from_where,
    }  # fmt: skip
    after = b",".join(member(name, value) for name, value in rest.items())
    return connection.in_slices(command, _connections(command, list(group.channels.items()), b"," + after))


def producer_connections(
    context: RocketMQContext, connection: RocketMQConnection, command: RemotingCommand
) -> Answer | None:
    name = command.ext.get("producerGroup", "")
    channels = context.groups.members.producers.get(name)
    if channels is None:
        raise Refused(ResponseCode.SYSTEM_ERROR, f"the producer group[{name[:200]}] not exist")
    return connection.in_slices(command, _connections(command, list(channels.items()), b""))


def _connections(command: RemotingCommand, channels: list[tuple[RocketMQConnection, Client]], rest: bytes) -> Steps:
    pieces = Pieces()
    pieces.add(b'{"connectionSet":[')
    yield from pieces.rows(channels, lambda each: fastjson.write(_connection(*each)))
    pieces.add(b"]" + rest + b"}")
    return answer(command, body=pieces.buffers)


def _connection(channel: RocketMQConnection, client: Client) -> Connection:
    host, port = channel.peer
    language = client.language if client.language in LANGUAGES else "OTHER"  # Java's tools fail on other names.
    return Connection(
        client_id=client.client_id, client_addr=f"{host}:{port}", language=language, version=client.version
    )


# -- The broker


def broker_config(context: RocketMQContext, connection: RocketMQConnection, command: RemotingCommand) -> Answer:
    options = context.options
    host, port = context.node.addresses.rocketmq
    settings = {
        "brokerName": options.rocketmq.broker,
        "brokerClusterName": options.rocketmq.cluster,
        "brokerId": "0",
        "brokerIP1": host,
        "listenPort": str(port),
        "brokerPermission": str(PERM_READ_WRITE),
        "autoCreateTopicEnable": str(context.topics.auto_create).lower(),
        "autoCreateSubscriptionGroup": "true",
        "enablePropertyFilter": "true",
        "traceTopicEnable": "true",
        "flushDiskType": "SYNC_FLUSH" if options.store.flush == "sync" else "ASYNC_FLUSH",
        "storePathRootDir": options.store.directory,
        "maxMessageSize": str(context.messages.publisher.messages.body_bytes_max),
        "fileReservedTime": str(options.retention.ms // HOUR_MS),
        **{name: str(context.requests.admission.limit_of(kind)) for name, kind in _CAPACITIES.items()},
    }
    version = fastjson.write(DataVersion()).decode()
    body = "".join(f"{name}={value}\n" for name, value in settings.items()).encode()
    return answer(command, ext={"version": version}, body=body)


def update_broker_config(context: RocketMQContext, connection: RocketMQConnection, command: RemotingCommand) -> Answer:
    """Change what may change while the broker runs, until it ends: its file says what it begins with.

    Other properties are accepted and reported: tools send whole sets of them to brokers of several versions.
    """
    asked = read_properties(command)
    known = {name: value for name, value in asked.items() if name in _CHANGES}
    changes = [_CHANGES[name](context, value) for name, value in known.items()]
    for change in changes:
        change()
    for name, value in known.items():
        log.info("setting changed until the broker ends name=%s value=%s", name, value)
    return answer(command, remark=report_ignored("broker", asked.keys() - known.keys()))


def _change_auto_create(context: RocketMQContext, value: str) -> Callable[[], None]:
    if value.lower() not in ("true", "false"):
        raise Refused(ResponseCode.INVALID_PARAMETER, f"autoCreateTopicEnable: true or false, got {value[:80]!r}")
    return lambda: setattr(context.topics, "auto_create", value.lower() == "true")


def _change_body_bytes(context: RocketMQContext, value: str) -> Callable[[], None]:
    count = _whole("maxMessageSize", value, context.options.rocketmq.frame_bytes_max)
    return lambda: setattr(context.messages.publisher.messages, "body_bytes_max", count)


def _change_capacity(name: str, kind: Kind, context: RocketMQContext, value: str) -> Callable[[], None]:
    count = _whole(name, value, CAPACITY_MAX)
    return lambda: context.requests.admission.limit(kind, count)


def _whole(name: str, value: str, most: int) -> int:
    """Read a whole number; of more than 4300 digits Python reads none at all."""
    is_number = value.isascii() and value.isdecimal() and len(value) <= WHOLE_DIGITS_MAX
    if not is_number or not 0 < int(value) <= most:
        raise Refused(ResponseCode.INVALID_PARAMETER, f"{name}: 1 to {most}, got {value[:80]!r}")
    return int(value)


_CAPACITIES: Final = {
    "sendThreadPoolQueueCapacity": Kind.SEND,
    "endTransactionPoolQueueCapacity": Kind.TRANSACTION,
    "ackThreadPoolQueueCapacity": Kind.ACK,
    "pullThreadPoolQueueCapacity": Kind.PULL,
    "queryThreadPoolQueueCapacity": Kind.QUERY,
    "heartbeatThreadPoolQueueCapacity": Kind.CLIENT,
    "adminBrokerThreadPoolQueueCapacity": Kind.ADMIN,
}

# What makes a change of a value, once all that are asked for are found to be good.
_CHANGES: Final[dict[str, Callable[[RocketMQContext, str], Callable[[], None]]]] = {
    "autoCreateTopicEnable": _change_auto_create,
    "maxMessageSize": _change_body_bytes,
    **{name: partial(_change_capacity, name, kind) for name, kind in _CAPACITIES.items()},
}


def broker_runtime(context: RocketMQContext, connection: RocketMQConnection, command: RemotingCommand) -> Answer | None:
    """Give the keys without which tools fail, and what there is to say."""
    return connection.in_slices(command, _broker_runtime(context, command))


def _broker_runtime(context: RocketMQContext, command: RemotingCommand) -> Steps:
    first_stored_ms = yield from _first_stored_ms(context)
    metrics, store, now_ms, mono_ms = context.metrics, context.store, context.clock.now_ms(), context.clock.mono_ms()
    written, read = (" ".join(f"{rate:.2f}" for rate in rates) for rates in context.node.rates.per_second(mono_ms))
    used, total = store.write_state.usage
    admission, rates = context.requests.admission, context.node.rates
    morning, yesterday = rates.this_morning, rates.yesterday_morning
    table = {
        "brokerVersionDesc": "V5_3_3",
        "brokerVersion": str(VERSION),
        "brokerActive": "true",
        "bootTimestamp": str(now_ms - mono_ms + context.node.started_mono_ms),
        "runtime": f"[ {(mono_ms - context.node.started_mono_ms) // 1000} seconds ]",
        "msgPutTotalTodayMorning": str(morning.written),
        "msgPutTotalYesterdayMorning": str(yesterday.written),
        "msgPutTotalTodayNow": str(sum(metrics.records_in.values())),
        "msgGetTotalTodayMorning": str(morning.read),
        "msgGetTotalYesterdayMorning": str(yesterday.read),
        "msgGetTotalTodayNow": str(sum(metrics.frames_out.values())),
        "putTps": written,
        "getTotalTps": read,
        "getFoundTps": read,
        "getMissTps": _NO_RATE,
        "getTransferredTps": read,
        "commitLogMinOffset": str(next(iter(store.segments())).start),
        "commitLogMaxOffset": str(store.next_position),
        "commitLogDiskRatio": f"{used / max(total, 1):.4f}",
        "consumeQueueDiskRatio": f"{used / max(total, 1):.4f}",
        "earliestMessageTimeStamp": str(first_stored_ms or now_ms),
        "dispatchBehindBytes": "0",
        "pageCacheLockTimeMills": "0",
        "sendThreadPoolQueueSize": str(admission.in_work[Kind.SEND]),
        "sendThreadPoolQueueCapacity": str(admission.limit_of(Kind.SEND)),
        "pullThreadPoolQueueSize": str(admission.in_work[Kind.PULL]),
        "pullThreadPoolQueueCapacity": str(admission.limit_of(Kind.PULL)),
        "queryThreadPoolQueueSize": str(admission.in_work[Kind.QUERY]),
        "queryThreadPoolQueueCapacity": str(admission.limit_of(Kind.QUERY)),
        "sendThreadPoolQueueHeadWaitTimeMills": "0",
        "pullThreadPoolQueueHeadWaitTimeMills": "0",
        "queryThreadPoolQueueHeadWaitTimeMills": "0",
        "remainHowManyDataToFlush": f"{store.next_position - store.durable} B",
    }
    return answer(command, body=KVTable(table=table))


def _first_stored_ms(context: RocketMQContext) -> Generator[None, None, int]:
    """Say when the oldest message that may be read was stored; 0 if there is none, or it is not in memory."""
    first, left = 0, STORED_AT_ONCE
    for topic in list(context.topics.all()):
        stored = [context.store.reader.stored_ms_at(queue, queue.start_offset) for queue in topic.queues]
        first = min(filter(None, (first, *stored)), default=0)
        left -= len(stored)
        if left <= 0:
            left = STORED_AT_ONCE
            yield
    return first
