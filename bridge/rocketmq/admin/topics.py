"""Topics, which clients and tools read, create, change and delete.

    UPDATE_AND_CREATE_TOPIC (17) and ..._LIST (18), DELETE_TOPIC_IN_BROKER (215), GET_ALL_TOPIC_CONFIG (21),
    GET_TOPIC_CONFIG (351), GET_TOPIC_STATS_INFO (202)

The paging fields of requests are ignored: an answer has the whole table, which tools accept.
Source: AdminBrokerProcessor.java.
"""

from collections.abc import Iterable, Mapping
from typing import Final

from duolog.bridge.net.answers import Answer
from duolog.bridge.rocketmq.context import RocketMQContext
from duolog.bridge.rocketmq.requests.background_requests import Steps
from duolog.bridge.rocketmq.requests.connection import RocketMQConnection
from duolog.bridge.rocketmq.requests.errors import RequestRefused
from duolog.bridge.rocketmq.requests.json_answers import Pieces, member
from duolog.bridge.rocketmq.requests.responses import answer, read_body
from duolog.bridge.state.topic_configs import changed as changed_configs
from duolog.bridge.state.topic_table import Topic
from duolog.bridge.state.topics import UnknownTopic
from duolog.protocol.rocketmq.bodies import (
    DataVersion,
    TopicConfig,
    TopicConfigList,
    TopicOffset,
)
from duolog.protocol.rocketmq.codes import ResponseCode
from duolog.protocol.rocketmq.headers import (
    CreateTopicRequest,
    TopicRequest,
)
from duolog.protocol.rocketmq.json import fastjson
from duolog.protocol.rocketmq.json.fastjson import MessageQueue
from duolog.protocol.rocketmq.messages.flags import PERM_INHERIT, PERM_READ_WRITE
from duolog.protocol.rocketmq.names import (
    check_topic,
    is_system_topic,
)
from duolog.protocol.rocketmq.remoting import RemotingCommand
from duolog.store.entry import Promise
from duolog.store.index.queue import Queue

# The work of one step of a long request, which takes about two milliseconds.
QUEUES_AT_ONCE: Final = 500
# The cost of creating a topic with one queue, or of changing a topic, measured in queues.
TOPIC_AT_COST_OF_QUEUES: Final = 20

ATTRIBUTES_CHARACTERS_MAX: Final = 8 << 10  # Attributes of one topic in UPDATE_AND_CREATE_TOPIC.
ATTRIBUTES_MAX: Final = 128  # Attributes of one topic in UPDATE_AND_CREATE_TOPIC_LIST.

# Topic configs that tools set as attributes.
ATTRIBUTES: Final = ("message.type", "message.ttl.ms", "message.expired", "delay.unknown.headers")
_PERMS: Final = PERM_READ_WRITE | PERM_INHERIT


def update_topic(context: RocketMQContext, connection: RocketMQConnection, command: RemotingCommand) -> Answer:
    """Create a topic, or change its number of queues, its permission, or its ATTRIBUTES; other attributes are ignored.

    The greater one of readQueueNums and writeQueueNums counts, because each queue is both read and written.
    """
    request = CreateTopicRequest.parse(command.ext)
    if len(request.attributes or "") > ATTRIBUTES_CHARACTERS_MAX:
        remark = f"attributes of {len(request.attributes or '')} characters; {ATTRIBUTES_CHARACTERS_MAX} are allowed"
        raise RequestRefused(ResponseCode.INVALID_PARAMETER, remark)
    queue_count = max(request.read_queue_nums, request.write_queue_nums)
    attributes = _attributes(part.partition("=") for part in (request.attributes or "").split(","))
    return answer(command, promise=_update(context, connection, request.topic, queue_count, request.perm, attributes))


def update_topics(context: RocketMQContext, connection: RocketMQConnection, command: RemotingCommand) -> Answer | None:
    """Create or change several topics in order. If one is refused, the changes before it remain."""
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
            raise RequestRefused(ResponseCode.INVALID_PARAMETER, remark)
        attributes = _attributes((name, "=", value) for name, value in config.attributes.items())
        promise = _update(context, connection, config.topic_name, queue_count, config.perm, attributes)
        left -= queue_count + TOPIC_AT_COST_OF_QUEUES
        if left <= 0:
            left = QUEUES_AT_ONCE
            yield
    return answer(command, promise=promise)


def _attributes(signed: Iterable[tuple[str, str, str]]) -> dict[str, str | None]:
    """Return the changes of ATTRIBUTES in `+name=value` and `-name`; RocketMQ's own attributes are ignored."""
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
        raise RequestRefused(ResponseCode.INVALID_PARAMETER, f"The topic[{name}] is conflict with system topic.")
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
    """Delete a topic. An unknown topic is no error."""
    topic = context.topics.by_rocketmq_name(TopicRequest.parse(command.ext).topic)
    if topic is None:
        return answer(command, promise=context.state_log.barrier())
    return answer(command, promise=context.topics.delete(topic, context.clock.now_ms()))


def topic_config(context: RocketMQContext, connection: RocketMQConnection, command: RemotingCommand) -> Answer:
    """Answer GET_TOPIC_CONFIG."""
    topic = _topic(context, TopicRequest.parse(command.ext).topic)
    return answer(command, body=config_of(topic), promise=context.state_log.barrier())


def topic_configs(context: RocketMQContext, connection: RocketMQConnection, command: RemotingCommand) -> Answer | None:
    """Answer GET_ALL_TOPIC_CONFIG."""
    return connection.in_slices(command, _topic_configs(context, command))


def _topic_configs(context: RocketMQContext, command: RemotingCommand) -> Steps:
    topics, version, pieces = list(context.topics.all()), context.topics.version, Pieces()
    pieces.add(b'{"topicConfigTable":{')
    yield from pieces.rows(topics, lambda topic: member(topic.rocketmq_name, config_of(topic)))
    pieces.add(b"}," + member("dataVersion", DataVersion(counter=version)) + b"}")
    ext = {"totalTopicNum": str(len(topics))}
    return answer(command, ext=ext, body=pieces.buffers, promise=context.state_log.barrier())


def topic_stats(context: RocketMQContext, connection: RocketMQConnection, command: RemotingCommand) -> Answer | None:
    """Answer GET_TOPIC_STATS_INFO: the offsets of each queue, and the time of its last message."""
    topic = _topic(context, TopicRequest.parse(command.ext).topic)
    return connection.in_slices(command, _topic_stats(context, command, topic))


def _topic_stats(context: RocketMQContext, command: RemotingCommand, topic: Topic) -> Steps:
    def row(queue: Queue) -> bytes:
        offsets = TopicOffset(
            min_offset=queue.start_offset,
            max_offset=context.messages.isolation.stable_end(queue),
            last_update_timestamp=context.store.reader.last_stored_ms(queue),
        )
        return fastjson.write(message_queue(context, topic, queue.queue_id)) + b":" + fastjson.write(offsets)

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
    """Return the config of a topic in RocketMQ's format."""
    count = topic.queue_count
    attributes = {name: value for name, value in topic.configs.items() if name in ATTRIBUTES}
    return TopicConfig(
        topic_name=topic.rocketmq_name,
        read_queue_nums=count,
        write_queue_nums=count,
        perm=topic.perm,
        attributes=attributes,
    )


def message_queue(context: RocketMQContext, topic: Topic, queue_id: int) -> MessageQueue:
    """Return the name of a queue in RocketMQ's format."""
    return MessageQueue(topic.rocketmq_name, context.options.rocketmq.broker, queue_id)
