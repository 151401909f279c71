"""Members of groups: HEART_BEAT (34), UNREGISTER_CLIENT (35), GET_CONSUMER_LIST_BY_GROUP (38), CHECK_CLIENT_CONFIG
(46), and the locks of orderly consumers, LOCK_BATCH_MQ (41) and UNLOCK_BATCH_MQ (42).

    a heartbeat, UNREGISTER_CLIENT, a closed connection,   GroupMembers changes, and all members of a changed group
    or CHANNEL_MS without a heartbeat                      are notified (`change_notifications.py`)

A client joins its groups before its heartbeat is answered, so its next request finds it there. A heartbeat's consumer
group is ignored if the group is active in Kafka, or if no group may have the name (Java's broker ignores it, too). Its
members then get no list of members, and the reason as the answer to a pull.

Heartbeats of the second version (fingerprints), which spare the broker the decoding of the body, are not offered. To
decode the body costs less than one message here.
"""

import logging
from contextlib import suppress
from typing import Final

from duolog.bridge.net.answers import Answer
from duolog.bridge.rocketmq.consuming.change_notifications import ChangeNotifications
from duolog.bridge.rocketmq.consuming.locks import Locks
from duolog.bridge.rocketmq.context import RocketMQContext
from duolog.bridge.rocketmq.groups.consumer_group import BROADCASTING, NAME_CHARACTERS_MAX, Client
from duolog.bridge.rocketmq.groups.heartbeat_times import CHANNEL_MS
from duolog.bridge.rocketmq.groups.members import GroupMembers
from duolog.bridge.rocketmq.requests.connection import RocketMQConnection
from duolog.bridge.rocketmq.requests.errors import RequestRefused
from duolog.bridge.rocketmq.requests.responses import answer, read_body
from duolog.bridge.state.client_protocols import ClientProtocol
from duolog.bridge.state.topics import TopicError
from duolog.protocol.names import group_of_rocketmq, is_rocketmq_group
from duolog.protocol.rocketmq.bodies import (
    CheckClientRequest,
    ConsumerData,
    ConsumerList,
    HeartbeatData,
    LockAnswer,
    LockRequest,
)
from duolog.protocol.rocketmq.codes import ResponseCode
from duolog.protocol.rocketmq.filters.subscription_filter import filter_of
from duolog.protocol.rocketmq.headers import ConsumerGroupRequest, UnregisterRequest
from duolog.protocol.rocketmq.json.fastjson import MessageQueue
from duolog.protocol.rocketmq.names import AUTO_CREATE_TOPIC, retry_topic
from duolog.protocol.rocketmq.remoting import RemotingCommand
from duolog.store.errors import StoreError

logger = logging.getLogger("rocketmq")

# An attribute of a group; see `rocketmq.refuse_other_subscriptions`.
REFUSE_ATTRIBUTE: Final = "refuse.other.subscriptions"
LOCKED_AT_ONCE_MAX: Final = 5000  # Queues in one request.
QUEUES_AT_ONCE: Final = 1000  # Queues of the topics that one heartbeat creates.
DEFAULT_QUEUES: Final = 0  # A new topic gets `topics.queues` queues.


def heart_beat(context: RocketMQContext, connection: RocketMQConnection, command: RemotingCommand) -> Answer:
    """Process a heartbeat, or refuse it as a whole before it has any effect."""
    data = read_body(command, HeartbeatData)
    _count_once(data)
    context.groups.members.check_counts(connection, data)
    data.consumer_data_set = [each for each in data.consumer_data_set if _is_admitted(context, each)]
    names = [each.group_name for each in data.consumer_data_set]
    context.groups.members.check(connection, data)
    context.groups.configs.ensure_if_writable(names, context.clock.now_ms())
    user = "" if connection.session is None else connection.session.name
    client = Client(data.client_id, command.language[:NAME_CHARACTERS_MAX], command.version, user)
    _join(context, connection, client, data)
    _make_topics(context, data)
    return answer(command)


def _count_once(data: HeartbeatData) -> None:
    """Keep the last entry of each group, and of each topic that a group subscribes to."""
    if len(data.producer_data_set) > 1:
        data.producer_data_set = list({each.group_name: each for each in data.producer_data_set}.values())
    if len(data.consumer_data_set) > 1:
        data.consumer_data_set = list({each.group_name: each for each in data.consumer_data_set}.values())
    for consumer in data.consumer_data_set:
        subscriptions = consumer.subscription_data_set
        if len(subscriptions) > 1:
            consumer.subscription_data_set = list({each.topic: each for each in subscriptions}.values())


def _is_admitted(context: RocketMQContext, data: ConsumerData) -> bool:
    name = data.group_name
    if not is_rocketmq_group(name):
        return False
    return data.message_model == BROADCASTING or context.groups.client_protocols.admits(
        group_of_rocketmq(name), ClientProtocol.ROCKETMQ
    )


def _join(context: RocketMQContext, connection: RocketMQConnection, client: Client, data: HeartbeatData) -> None:
    members = context.groups.members
    refusing = {each.group_name for each in data.consumer_data_set if _refuses_others(context, each.group_name)}
    changed = members.heartbeat(connection, client, data, context.clock.mono_ms(), refusing)
    for group, client_id in members.take_refusals():
        logger.warning(
            "subscription refused, for the group's members subscribe to other messages group=%s client=%s",
            group, client_id,
        )  # fmt: skip
    for group, client_id in members.take_differences():
        logger.warning(
            "subscriptions differ, members of a group subscribe to different messages; the newest subscription counts "
            "group=%s client=%s",
            group, client_id,
        )  # fmt: skip
    _watch(context, connection)
    context.groups.change_notifications.notify(changed)


def _refuses_others(context: RocketMQContext, group: str) -> bool:
    config = context.groups.configs.get(group)
    said = config.attributes.get(REFUSE_ATTRIBUTE) if config is not None else None
    return context.options.rocketmq.refuse_other_subscriptions if said is None else said.lower() == "true"


def _make_topics(context: RocketMQContext, data: HeartbeatData) -> None:
    """Create the retry topics of the groups, and topics whose consumers started before their producers.

    Members subscribe to the retry topic, so it needs a route; without the route they can still consume other topics.
    """
    left = QUEUES_AT_ONCE
    for consumer in data.consumer_data_set:
        config = context.groups.configs.get(consumer.group_name)
        retry = retry_topic(consumer.group_name)
        if config is not None and context.topics.by_rocketmq_name(retry) is None:
            left -= _make(context, retry, "", config.retry_queue_nums)
        for subscription in consumer.subscription_data_set:
            left -= _make_expected(context, subscription.topic)
            if left <= 0:
                return  # The next heartbeat creates further topics.


def note_producer(
    context: RocketMQContext, connection: RocketMQConnection, command: RemotingCommand, group: str
) -> None:
    """Add a connection to the producers of a group before its first heartbeat."""
    client = Client("", command.language[:NAME_CHARACTERS_MAX], command.version)
    context.groups.members.note_producer(connection, client, group)
    _watch(context, connection)


def _watch(context: RocketMQContext, connection: RocketMQConnection) -> None:
    """Remove the connection from its groups when it closes."""
    if not connection.is_member:
        connection.is_member = True
        connection.on_close.append(lambda: _leave(context, connection))


def _make_expected(context: RocketMQContext, name: str) -> int:
    """Create a topic whose consumers started first, as for Kafka's consumers; return the number of its queues."""
    if context.topics.by_rocketmq_name(name) is None and context.names.expected_topics.has(
        name, context.clock.mono_ms()
    ):
        return _make(context, name, AUTO_CREATE_TOPIC, DEFAULT_QUEUES)
    return 0


def _make(context: RocketMQContext, name: str, template: str, requested_queues: int) -> int:
    with suppress(TopicError, StoreError):
        topic = context.topics.auto_create_for_rocketmq(name, template, requested_queues, context.clock.now_ms())
        return topic.queue_count if topic is not None else 0
    return 0


def unregister_client(context: RocketMQContext, connection: RocketMQConnection, command: RemotingCommand) -> Answer:
    request = UnregisterRequest.parse(command.ext)
    client_id = dict(context.groups.members.consuming(connection)).get(request.consumer_group or "")
    if client_id is not None:
        # Java's client has unlocked its queues, but its rebalance may lock some again until it has left the group.
        context.groups.locks.unlock_all(request.consumer_group or "", client_id)
    changed = context.groups.members.unregister(
        connection, consumer_group=request.consumer_group or "", producer_group=request.producer_group or ""
    )
    context.groups.change_notifications.notify(changed)
    return answer(command)


def consumer_list(context: RocketMQContext, connection: RocketMQConnection, command: RemotingCommand) -> Answer:
    group = ConsumerGroupRequest.parse(command.ext).consumer_group
    client_ids = context.groups.members.client_ids(group)
    if not client_ids:
        raise RequestRefused(ResponseCode.SYSTEM_ERROR, f"no consumer for this group, {group[:200]}")
    return answer(command, body=ConsumerList(consumer_id_list=client_ids))


def check_client_config(context: RocketMQContext, connection: RocketMQConnection, command: RemotingCommand) -> Answer:
    """Check a consumer's subscription when it starts; clients send this for subscriptions that are not to tags."""
    subscription = read_body(command, CheckClientRequest).subscription_data
    filter_of(subscription.expression_type, subscription.sub_string)
    return answer(command)


# -- Members that leave


def _leave(context: RocketMQContext, connection: RocketMQConnection) -> None:
    """Remove a member whose connection has closed."""
    members = context.groups.members
    was = members.consuming(connection)
    changed = members.closed(connection)
    for group, client_id in was:
        if client_id not in members.client_ids(group):  # Otherwise it has another connection.
            context.groups.locks.left(group, client_id, context.clock.mono_ms())
    context.groups.change_notifications.notify(changed)


def sweep(
    members: GroupMembers[RocketMQConnection], locks: Locks, notifications: ChangeNotifications, mono_ms: int
) -> None:
    """Close the connections of members without heartbeats, and free expired locks."""
    for connection in members.heartbeats.silent(mono_ms):
        connection.close(f"a member without a heartbeat for {CHANNEL_MS} ms")
    notifications.notify(locks.advance(mono_ms))


# -- Locks of orderly consumers


def lock_queues(context: RocketMQContext, connection: RocketMQConnection, command: RemotingCommand) -> Answer:
    request = read_body(command, LockRequest)
    queues = _by_key(context, request)
    held: list[int] = []
    if context.groups.client_protocols.admits(group_of_rocketmq(request.consumer_group), ClientProtocol.ROCKETMQ):
        held = context.groups.locks.lock(request.consumer_group, request.client_id, queues, context.clock.mono_ms())
    return answer(command, body=LockAnswer(queues=[queues[key] for key in held]))


def unlock_queues(context: RocketMQContext, connection: RocketMQConnection, command: RemotingCommand) -> Answer:
    request = read_body(command, LockRequest)
    context.groups.locks.unlock(request.consumer_group, request.client_id, _by_key(context, request))
    return answer(command)


def _by_key(context: RocketMQContext, request: LockRequest) -> dict[int, MessageQueue]:
    """Return the queues that exist, by their keys."""
    if len(request.mq_set) > LOCKED_AT_ONCE_MAX:
        raise RequestRefused(
            ResponseCode.INVALID_PARAMETER, f"{len(request.mq_set)} queues; {LOCKED_AT_ONCE_MAX} are allowed"
        )
    found = {}
    for queue in request.mq_set:
        topic = context.topics.by_rocketmq_name(queue.topic)
        if topic is not None and 0 <= queue.queue_id < topic.queue_count:
            found[topic.key(queue.queue_id)] = queue
    return found
