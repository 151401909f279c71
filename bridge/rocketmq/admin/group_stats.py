"""Statistics of groups: committed offsets with the ends of their queues, and the connections of members.

    GET_CONSUME_STATS (208), GET_CONSUMER_CONNECTION_LIST (203), GET_PRODUCER_CONNECTION_LIST (204)

Source: AdminBrokerProcessor.java.
"""

from collections.abc import Generator, Iterable

from duolog.bridge.net.answers import Answer
from duolog.bridge.rocketmq.admin.topics import message_queue
from duolog.bridge.rocketmq.context import RocketMQContext
from duolog.bridge.rocketmq.groups.consumer_group import Client
from duolog.bridge.rocketmq.requests.background_requests import Steps
from duolog.bridge.rocketmq.requests.connection import RocketMQConnection
from duolog.bridge.rocketmq.requests.errors import RequestRefused
from duolog.bridge.rocketmq.requests.json_answers import Pieces, member
from duolog.bridge.rocketmq.requests.responses import answer
from duolog.bridge.state.topic_table import Topic
from duolog.protocol.names import group_of_rocketmq
from duolog.protocol.rocketmq.bodies import (
    ConnectionBody,
    OffsetWrapper,
)
from duolog.protocol.rocketmq.codes import ResponseCode
from duolog.protocol.rocketmq.headers import (
    ConsumerGroupRequest,
)
from duolog.protocol.rocketmq.json import fastjson
from duolog.protocol.rocketmq.remoting import LANGUAGES, RemotingCommand
from duolog.store.index.queue import QUEUE_ID_BITS, Queue


def consume_stats(context: RocketMQContext, connection: RocketMQConnection, command: RemotingCommand) -> Answer | None:
    """Answer GET_CONSUME_STATS for one topic, or for all topics in which the group has committed offsets."""
    name = ConsumerGroupRequest.parse(command.ext).consumer_group
    return connection.in_slices(command, _consume_stats(context, command, name, command.ext.get("topic")))


def _consume_stats(context: RocketMQContext, command: RemotingCommand, name: str, asked: str | None) -> Steps:
    pieces = Pieces()
    yield from write_stats(context, name, stats_topics(context, name, asked), pieces)
    return answer(command, body=pieces.buffers, promise=context.state_log.barrier())


def stats_topics(context: RocketMQContext, name: str, asked: str | None = None) -> list[Topic]:
    """Return the topic in the request, or all topics in which the group has committed offsets."""
    if asked:
        topic = context.topics.by_rocketmq_name(asked)
        return [topic] if topic is not None else []
    numbers = dict.fromkeys(
        key >> QUEUE_ID_BITS for key in context.groups.group_offsets.all_of(group_of_rocketmq(name))
    )
    return [topic for topic in map(context.topics.by_number, numbers) if topic is not None]


def write_stats(
    context: RocketMQContext, name: str, topics: Iterable[Topic], pieces: Pieces
) -> Generator[None, None, int]:
    """Write the group's offsets in these topics, and return its lag in them."""
    group, lag = group_of_rocketmq(name), 0
    positions = context.groups.group_offsets.reported(group, context.clock.now_ms())

    def row(place: tuple[Topic, Queue]) -> bytes:
        nonlocal lag
        topic, queue = place
        position = positions.get(queue.key)
        offset, end = position.offset if position is not None else 0, context.messages.isolation.stable_end(queue)
        lag += end - offset
        written = OffsetWrapper(
            broker_offset=end,
            consumer_offset=offset,
            pull_offset=offset,
            last_timestamp=context.store.reader.stored_ms_at(queue, offset - 1),
        )
        return fastjson.write(message_queue(context, topic, queue.queue_id)) + b":" + fastjson.write(written)

    pieces.add(b'{"consumeTps":0.0,"offsetTable":{')
    yield from pieces.rows(((topic, queue) for topic in topics for queue in topic.queues), row)
    pieces.add(b"}}")
    return lag


def consumer_connections(
    context: RocketMQContext, connection: RocketMQConnection, command: RemotingCommand
) -> Answer | None:
    """Answer GET_CONSUMER_CONNECTION_LIST: the connections and subscriptions of a consumer group."""
    name = ConsumerGroupRequest.parse(command.ext).consumer_group
    group = context.groups.members.consumers.get(name)
    if group is None:
        raise RequestRefused(ResponseCode.CONSUMER_NOT_ONLINE, f"the consumer group[{name[:200]}] not online")
    rest = {
        "subscriptionTable": group.subscriptions, "consumeType": group.consume_type,
        "messageModel": group.message_model, "consumeFromWhere": group.consume_from_where,
    }  # fmt: skip
    after = b",".join(member(name, value) for name, value in rest.items())
    return connection.in_slices(command, _connections(command, list(group.channels.items()), b"," + after))


def producer_connections(
    context: RocketMQContext, connection: RocketMQConnection, command: RemotingCommand
) -> Answer | None:
    """Answer GET_PRODUCER_CONNECTION_LIST: the connections of a producer group."""
    name = command.ext.get("producerGroup", "")
    channels = context.groups.members.producers.groups.get(name)
    if channels is None:
        raise RequestRefused(ResponseCode.SYSTEM_ERROR, f"the producer group[{name[:200]}] not exist")
    return connection.in_slices(command, _connections(command, list(channels.items()), b""))


def _connections(command: RemotingCommand, channels: list[tuple[RocketMQConnection, Client]], rest: bytes) -> Steps:
    pieces = Pieces()
    pieces.add(b'{"connectionSet":[')
    yield from pieces.rows(channels, lambda each: fastjson.write(_connection(*each)))
    pieces.add(b"]" + rest + b"}")
    return answer(command, body=pieces.buffers)


def _connection(channel: RocketMQConnection, client: Client) -> ConnectionBody:
    host, port = channel.peer
    language = client.language if client.language in LANGUAGES else "OTHER"  # Java's tools fail on other names.
    return ConnectionBody(
        client_id=client.client_id, client_addr=f"{host}:{port}", language=language, version=client.version
    )
