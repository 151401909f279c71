"""Members of groups: HEART_BEAT (34), UNREGISTER_CLIENT (35), GET_CONSUMER_LIST_BY_GROUP (38), CHECK_CLIENT_CONFIG
(46), and the locks of orderly consumers, LOCK_BATCH_MQ (41) and UNLOCK_BATCH_MQ (42).

    heartbeat, unregister, closed, silent ──> Members ──> every member of a changed group is told at once (40)

A client in a group is registered before its heartbeat is answered, so that its next request finds it there. A consumer
group that is active in Kafka is left out of the heartbeat, and so is a name that no group may have (Java's broker skips
it, too): its members find no list, and their pulls are answered with the reason.

Heartbeats of the second version (fingerprints) are not offered, so clients send the first. They are made to spare the
broker the decoding of the body, which costs it less than a message here.
"""

import logging
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from duolog.bridge.net.answers import Answer
from duolog.bridge.rocketmq.consuming.consumer_group import BROADCASTING, NAME_CHARACTERS_MAX, Client
from duolog.bridge.rocketmq.consuming.members import CHANNEL_MS
from duolog.bridge.rocketmq.requests.errors import Refused
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

logger = logging.getLogger("bridge")

REFUSE_ATTRIBUTE: Final = "refuse.other.subscriptions"  # Of a group; see `rocketmq.refuse_other_subscriptions`.
LOCKED_AT_ONCE_MAX: Final = 5000  # Queues of one request.
QUEUES_AT_ONCE: Final = 1000  # Of the topics that one heartbeat makes.
NO_WISH: Final = 0  # How many queues a new topic should have: `topics.queues`.

if TYPE_CHECKING:
    from duolog.bridge.broker import Broker
    from duolog.bridge.rocketmq.requests.connection import RocketMQConnection


def heart_beat(broker: "Broker", connection: "RocketMQConnection", command: RemotingCommand) -> Answer:
    """Take a heartbeat whole, or refuse it before anything of it is done."""
    data = read_body(command, HeartbeatData)
    _count_once(data)
    broker.rocketmq_members.check_counts(connection, data)
    data.consumer_data_set = [each for each in data.consumer_data_set if _is_admitted(broker, each)]
    names = [each.group_name for each in data.consumer_data_set]
    broker.rocketmq_members.check(connection, data)
    broker.rocketmq_groups.welcome(names, broker.clock.now_ms())
    _join(broker, connection, Client(data.client_id, command.language[:NAME_CHARACTERS_MAX], command.version), data)
    _make_topics(broker, data)
    return answer(command)


def _count_once(data: HeartbeatData) -> None:
    """Leave the last of what is named more than once: groups, and topics that a group subscribes to."""
    if len(data.producer_data_set) > 1:
        data.producer_data_set = list({each.group_name: each for each in data.producer_data_set}.values())
    if len(data.consumer_data_set) > 1:
        data.consumer_data_set = list({each.group_name: each for each in data.consumer_data_set}.values())
    for consumer in data.consumer_data_set:
        told = consumer.subscription_data_set
        if len(told) > 1:
            consumer.subscription_data_set = list({each.topic: each for each in told}.values())


def _is_admitted(broker: "Broker", data: ConsumerData) -> bool:
    name = data.group_name
    if not is_rocketmq_group(name):
        return False
    return data.message_model == BROADCASTING or broker.client_protocols.admits(
        group_of_rocketmq(name), ClientProtocol.ROCKETMQ
    )


def _join(broker: "Broker", connection: "RocketMQConnection", client: Client, data: HeartbeatData) -> None:
    members = broker.rocketmq_members
    refusing = {each.group_name for each in data.consumer_data_set if _refuses_others(broker, each.group_name)}
    changed = members.heartbeat(connection, client, data, broker.clock.mono_ms(), refusing)
    for group, client_id in members.take_refusals():
        logger.warning(
            "member refused, for it subscribes to other messages than the group's members group=%s client=%s",
            group, client_id,
        )  # fmt: skip
    for group, client_id in members.take_differences():
        logger.warning(
            "members of a group subscribe to different messages; the newest subscription counts group=%s client=%s",
            group, client_id,
        )  # fmt: skip
    _watch(broker, connection)
    broker.rocketmq_change_notifications.tell(broker, changed)


def _refuses_others(broker: "Broker", group: str) -> bool:
    config = broker.rocketmq_groups.get(group)
    said = config.attributes.get(REFUSE_ATTRIBUTE) if config is not None else None
    return broker.options.rocketmq.refuse_other_subscriptions if said is None else said.lower() == "true"


def _make_topics(broker: "Broker", data: HeartbeatData) -> None:
    """Make the retry topics of the groups, and the topics whose consumers came first.

    Members subscribe to the retry topic, so that needs a route; without it they can still consume all others.
    """
    left = QUEUES_AT_ONCE
    for consumer in data.consumer_data_set:
        config = broker.rocketmq_groups.get(consumer.group_name)
        retry = retry_topic(consumer.group_name)
        if config is not None and broker.topics.by_rocketmq_name(retry) is None:
            left -= _make(broker, retry, "", config.retry_queue_nums)
        for subscription in consumer.subscription_data_set:
            left -= _make_expected(broker, subscription.topic)
            if left <= 0:
                return  # The next heartbeat goes on.


def note_producer(broker: "Broker", connection: "RocketMQConnection", command: RemotingCommand, group: str) -> None:
    """Count a connection among the producers of a group before its first heartbeat says so."""
    client = Client("", command.language[:NAME_CHARACTERS_MAX], command.version)
    broker.rocketmq_members.note_producer(connection, client, group)
    _watch(broker, connection)


def _watch(broker: "Broker", connection: "RocketMQConnection") -> None:
    """Take the connection out of its groups when it closes."""
    if not connection.is_member:
        connection.is_member = True
        connection.on_close.append(lambda: _leave(broker, connection))


def _make_expected(broker: "Broker", name: str) -> int:
    """Make a topic whose consumers came first, as Kafka's consumers have theirs made; give how many queues it has."""
    if broker.topics.by_rocketmq_name(name) is None and broker.rocketmq_expected_topics.has(
        name, broker.clock.mono_ms()
    ):
        return _make(broker, name, AUTO_CREATE_TOPIC, NO_WISH)
    return 0


def _make(broker: "Broker", name: str, template: str, wished_queues: int) -> int:
    with suppress(TopicError, StoreError):
        topic = broker.topics.auto_create_for_rocketmq(name, template, wished_queues, broker.clock.now_ms())
        return topic.queue_count if topic is not None else 0
    return 0


def unregister_client(broker: "Broker", connection: "RocketMQConnection", command: RemotingCommand) -> Answer:
    request = UnregisterRequest.parse(command.ext)
    client_id = dict(broker.rocketmq_members.consuming(connection)).get(request.consumer_group or "")
    if client_id is not None:
        # Java's client unlocks all before, but until it is out of the list its rebalancing may lock once more.
        broker.rocketmq_locks.unlock_all(request.consumer_group or "", client_id)
    changed = broker.rocketmq_members.unregister(
        connection, consumer_group=request.consumer_group or "", producer_group=request.producer_group or ""
    )
    broker.rocketmq_change_notifications.tell(broker, changed)
    return answer(command)


def consumer_list(broker: "Broker", connection: "RocketMQConnection", command: RemotingCommand) -> Answer:
    group = ConsumerGroupRequest.parse(command.ext).consumer_group
    client_ids = broker.rocketmq_members.client_ids(group)
    if not client_ids:
        raise Refused(ResponseCode.SYSTEM_ERROR, f"no consumer for this group, {group[:200]}")
    return answer(command, body=ConsumerList(consumer_id_list=client_ids))


def check_client_config(broker: "Broker", connection: "RocketMQConnection", command: RemotingCommand) -> Answer:
    """Say at a consumer's start whether its subscription can be understood; clients ask when it is not one to tags."""
    subscription = read_body(command, CheckClientRequest).subscription_data
    filter_of(subscription.expression_type, subscription.sub_string)
    return answer(command)


# -- Members that come and go


def _leave(broker: "Broker", connection: "RocketMQConnection") -> None:
    """A member's connection has gone."""
    members = broker.rocketmq_members
    was = members.consuming(connection)
    changed = members.closed(connection)
    for group, client_id in was:
        if client_id not in members.client_ids(group):  # Else it has come back over another connection.
            broker.rocketmq_locks.left(group, client_id, broker.clock.mono_ms())
    broker.rocketmq_change_notifications.tell(broker, changed)


def sweep(broker: "Broker", mono_ms: int) -> None:
    """Close the connections of members that fell silent; let expired locks go, and others lock these queues."""
    for connection in broker.rocketmq_members.silent(mono_ms):
        connection.close(f"a member without a heartbeat for {CHANNEL_MS} ms")
    broker.rocketmq_change_notifications.tell(broker, broker.rocketmq_locks.advance(mono_ms))


# -- Locks of orderly consumers


def lock_queues(broker: "Broker", connection: "RocketMQConnection", command: RemotingCommand) -> Answer:
    request = read_body(command, LockRequest)
    queues = _by_key(broker, request)
    held: list[int] = []
    if broker.client_protocols.admits(group_of_rocketmq(request.consumer_group), ClientProtocol.ROCKETMQ):
        held = broker.rocketmq_locks.lock(request.consumer_group, request.client_id, queues, broker.clock.mono_ms())
    return answer(command, body=LockAnswer(queues=[queues[key] for key in held]))


def unlock_queues(broker: "Broker", connection: "RocketMQConnection", command: RemotingCommand) -> Answer:
    request = read_body(command, LockRequest)
    broker.rocketmq_locks.unlock(request.consumer_group, request.client_id, _by_key(broker, request))
    return answer(command)


def _by_key(broker: "Broker", request: LockRequest) -> dict[int, MessageQueue]:
    """Give the queues that are there, by their keys; others are nobody's."""
    if len(request.mq_set) > LOCKED_AT_ONCE_MAX:
        raise Refused(ResponseCode.INVALID_PARAMETER, f"{len(request.mq_set)} queues; {LOCKED_AT_ONCE_MAX} are allowed")
    found = {}
    for queue in request.mq_set:
        topic = broker.topics.by_rocketmq_name(queue.topic)
        if topic is not None and 0 <= queue.queue_id < topic.queue_count:
            found[topic.key(queue.queue_id)] = queue
    return found
