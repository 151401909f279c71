"""SEND_MESSAGE (10), SEND_MESSAGE_V2 (310), SEND_BATCH_MESSAGE (320).

The checks have RocketMQ's order, which determines the response code: name, topic (created from its template if it does
not exist), queue, then the checks of the publisher (`bridge/data/publishing/`). `half_messages.py` stores half
messages. The answer has the message id and the offset. It waits for the log unless the message has the property
`WAIT=false`. Source: SendMessageProcessor.java, AbstractSendMessageProcessor.java.
"""

import itertools
import os
import random
from collections.abc import Collection, Sequence
from typing import Final

from duolog.bridge.data.delayed.delay_headers import TIMER_NAMES
from duolog.bridge.data.delayed.pending_frames import due_of
from duolog.bridge.data.delayed.schedules import SCHEDULE_NAME
from duolog.bridge.data.publishing.refusals import IllegalMessage
from duolog.bridge.net.answers import Answer
from duolog.bridge.rocketmq.context import RocketMQContext
from duolog.bridge.rocketmq.namesrv.standby_routes import is_of_route
from duolog.bridge.rocketmq.producing import half_messages
from duolog.bridge.rocketmq.producing.gathered_decisions import append_gathered
from duolog.bridge.rocketmq.producing.priority import by_priority
from duolog.bridge.rocketmq.producing.send_batch import Target, sending
from duolog.bridge.rocketmq.requests.connection import RocketMQConnection
from duolog.bridge.rocketmq.requests.errors import RequestRefused
from duolog.bridge.rocketmq.requests.quota_check import quota_client
from duolog.bridge.rocketmq.retry import failed_attempts, retry_sends
from duolog.bridge.security.rules import Operation
from duolog.bridge.state.topic_table import Topic
from duolog.delay.recurring import AMQ_NAMES
from duolog.protocol.errors import ProtocolError
from duolog.protocol.rocketmq import remoting
from duolog.protocol.rocketmq.codes import RequestCode, ResponseCode
from duolog.protocol.rocketmq.headers import SendRequest
from duolog.protocol.rocketmq.messages import (
    batch,
    flags,
    properties,
    recall_handle,
)
from duolog.protocol.rocketmq.messages.message import PROPERTIES_BYTES_MAX, Message
from duolog.protocol.rocketmq.messages.message_id import message_id
from duolog.protocol.rocketmq.names import (
    NOT_ALLOWED_TO_SEND,
    RETRY_PREFIX,
    TIMER_TOPIC,
    check_topic,
)
from duolog.protocol.rocketmq.remoting import RemotingCommand
from duolog.store.entry import Buffer

# The property TRAN_MSG decides whether a message is a half message; the flags are ignored.
_TRANSACTION_BITS: Final = ~flags.TRANSACTION_MASK
_SCHEDULED: Final = SCHEDULE_NAME.encode()
_NO_WAIT: Final = "WAIT\x01false"
_BATCH: Final = RequestCode.SEND_BATCH_MESSAGE  # The lookup of a member of an enumeration takes as long as a call.
_NO_OTHER_DELAY: Final[dict[str, str | None]] = dict.fromkeys((*TIMER_NAMES, *AMQ_NAMES))
_NOT_IN_BATCHES: Final = {*TIMER_NAMES, properties.DELAY, properties.TRAN_MSG}


def send_message(context: RocketMQContext, connection: RocketMQConnection, command: RemotingCommand) -> Answer | None:
    """Answer SEND_MESSAGE, SEND_MESSAGE_V2 and SEND_BATCH_MESSAGE."""
    context.requests.admission.check_send()
    request = SendRequest.parse(command.ext)
    publisher, text = context.messages.publisher, request.properties
    raw = text.encode()
    if len(command.body) > publisher.messages.body_bytes_max or len(raw) > PROPERTIES_BYTES_MAX:
        raise publisher.messages.too_large(len(command.body), len(raw))
    is_batch = request.batch or command.code == _BATCH
    if request.topic.startswith(RETRY_PREFIX):
        topic, queue_id, raw = _retry(context, connection, command, request, raw, is_batch)
    else:
        topic = context.topics.by_rocketmq_name(request.topic) or _create(context, request)
        queue_id = _queue_id(context, topic, request)
    if is_batch:
        return _send_batch(context, connection, command, request, topic, queue_id, raw)
    if properties.PRIORITY in text:
        queue_id, raw = by_priority(topic, queue_id, raw)
    assert isinstance(command.body, memoryview), "decoded from a frame"
    own, unique_key = _with_unique_key(raw)
    if properties.REPLY_TO_CLIENT in text:
        # The replier takes the name of the reply topic from this property.
        own = properties.set_many(own, {properties.CLUSTER: context.options.rocketmq.cluster})
    message = _message(connection, request, request.flag, command.body, own)
    if properties.TRAN_MSG in text and half_messages.is_half(message):
        slots, promise = half_messages.prepare(
            context, connection, command, request, topic, queue_id, message, unique_key
        )
    else:
        if context.messages.halves.gathered:
            append_gathered(context.messages.halves, context.metrics, context.clock.now_ms())
        sender = None if request.topic.startswith(RETRY_PREFIX) else connection
        client = None
        if connection.context.quotas.has_any and (sender is not None or not _has_level(request)):
            client = quota_client(connection)
        slots, promise = publisher.publish_messages(topic, queue_id, [message], context.clock.now_ms(), sender, client)
    position, base_offset, _ = slots[0]
    stored_id = message_id(publisher.messages.store_host, position)
    handle = ""
    if message.topic == TIMER_TOPIC:
        handle = _recall_handle(context, request.topic, message, position, unique_key)
    buffers = remoting.encode_stored(command, stored_id, queue_id, base_offset, unique_key, handle)
    waits = _NO_WAIT not in text or _waits(raw)
    return Answer(buffers, promise if waits else None)


def _has_level(request: SendRequest) -> bool:
    """Return whether a message has a delay level, as those have that a consumer sends to its retry topic."""
    level = (properties.get(request.properties.encode(), properties.DELAY) or "").strip()
    return level.isdecimal() and bool(level.strip("0"))


def _waits(raw: bytes) -> bool:
    """Return whether the answer waits for the log."""
    return properties.get(raw, properties.WAIT) != "false"


def _recall_handle(context: RocketMQContext, topic: str, message: Message, position: int, unique_key: str) -> str:
    """Return the recall handle of a delayed message with a due time; "" for a retry and a recurring message."""
    if topic.startswith(RETRY_PREFIX) or _SCHEDULED in message.properties:
        return ""
    due_ms = due_of(message)
    timer_id = context.messages.delay_commands.text_ids.text_of((due_ms, position))
    return recall_handle.encode(topic, context.options.rocketmq.broker, due_ms, unique_key, timer_id)


# -- Destination


def _create(context: RocketMQContext, request: SendRequest) -> Topic:
    name = request.topic
    check_topic(name)
    if name in NOT_ALLOWED_TO_SEND:
        raise RequestRefused(ResponseCode.NO_PERMISSION, f"Sending message to topic[{name}] is forbidden.")
    topic = context.topics.auto_create_for_rocketmq(
        name, request.default_topic, request.default_topic_queue_nums, context.clock.now_ms()
    )
    if topic is None:
        raise RequestRefused(ResponseCode.TOPIC_NOT_EXIST, f"topic[{name}] not exist, apply first please!")
    return topic


def _retry(
    context: RocketMQContext,
    connection: RocketMQConnection,
    command: RemotingCommand,
    request: SendRequest,
    raw: bytes,
    is_batch: bool,
) -> tuple[Topic, int, bytes]:
    """Return the topic, queue id and properties for a message that a consumer sends to its retry topic."""
    check_topic(request.topic)
    if is_batch:
        raise RequestRefused(ResponseCode.MESSAGE_ILLEGAL, "a batch is not retried")
    origins = _claimed_origins(context, connection, raw)
    changes = _failure(context, connection, request, raw)
    if _has_level(request):  # The level is the delay of the retry; a dead letter has none.
        changes |= _NO_OTHER_DELAY
    raw = properties.set_many(raw, changes)
    dead = retry_sends.redirect_dead_letter(context, command, request, raw, origins)
    if dead is not None:
        return dead[0], 0, dead[1]
    retry_topics = context.groups.retry_topics
    config = retry_topics.group_config(request.topic.removeprefix(RETRY_PREFIX))
    topic = retry_topics.retries_of(config, origins)
    return (
        topic,
        _queue_id(context, topic, request),
        retry_sends.apply_policy(config, request.reconsume_times, raw),
    )


def _failure(
    context: RocketMQContext, connection: RocketMQConnection, request: SendRequest, raw: bytes
) -> dict[str, str | None]:
    """Return the changed properties that record the failed attempt after which the consumer sends the message."""
    number, now_ms = request.reconsume_times, context.clock.now_ms()
    return failed_attempts.changes(request.topic, raw, number, now_ms, connection.packed_peer)


def _claimed_origins(context: RocketMQContext, connection: RocketMQConnection, raw: bytes) -> Collection[str]:
    """Return the topics from which a consumer's message came, according to its properties.

    Raises RequestRefused if the consumer may not read them, because an origin that the members of the group may not
    read would deny them their retry topic.
    """
    origin = context.topics.by_rocketmq_name(properties.get(raw, properties.RETRY_TOPIC) or "")
    if origin is None:
        return ()
    if connection.granted is not None:
        connection.granted.check_topic(origin, Operation.READ)
    return context.groups.retry_topics.origins_of(origin.rocketmq_name)


def _queue_id(context: RocketMQContext, topic: Topic, request: SendRequest) -> int:
    if not topic.perm & flags.PERM_WRITE:
        raise RequestRefused(ResponseCode.NO_PERMISSION, f"the topic[{request.topic}] sending message is forbidden")
    queue_id = request.queue_id
    if queue_id < 0:
        return random.randrange(topic.queue_count)
    if queue_id >= topic.queue_count:
        # A topic is expected if a client got its route before the topic was created.
        if is_of_route(queue_id, topic.queue_count, context.options) or context.names.expected_topics.has(
            request.topic, context.clock.mono_ms()
        ):
            return queue_id % topic.queue_count
        raise RequestRefused(
            ResponseCode.INVALID_PARAMETER,
            f"request queueId[{queue_id}] is illegal, topic[{request.topic}] has {topic.queue_count} queues",
        )
    return queue_id


# -- Storing


def _send_batch(
    context: RocketMQContext,
    connection: RocketMQConnection,
    command: RemotingCommand,
    request: SendRequest,
    topic: Topic,
    queue_id: int,
    raw: bytes,
) -> Answer | None:
    """Store the messages of a batch.

    Of the properties of the batch itself only WAIT counts; none may ask for a delay.
    """
    if _NOT_IN_BATCHES & properties.parse(raw).keys():
        raise RequestRefused(ResponseCode.MESSAGE_ILLEGAL, "a batch is not delayed or sent in a transaction")

    def make(parts: Sequence[batch.Part], number: int) -> tuple[list[Message], str]:
        messages, first_key = list[Message](), ""
        try:
            for flag, body, own in parts:
                own_with_key, unique_key = _with_unique_key(own)
                messages.append(_message(connection, request, flag, body, own_with_key))
                first_key = first_key or unique_key
        except ProtocolError as error:
            raise IllegalMessage(f"message {number + len(messages)} of a batch: {error}") from None
        return messages, first_key

    target = Target(topic, queue_id, _waits(raw), make)
    return context.requests.batches.begin(connection, command, sending(context, connection, command, target))


def _message(connection: RocketMQConnection, request: SendRequest, flag: int, body: Buffer, raw: bytes) -> Message:
    return Message(
        topic="",  # The publisher sets topic, queue and store host.
        body=body,
        properties=raw,
        flag=flag,
        sys_flag=request.sys_flag & _TRANSACTION_BITS,
        born_ms=request.born_timestamp,
        born_host=connection.packed_peer,
        reconsume_times=request.reconsume_times,
    )


_process_digits = os.urandom(8).hex().upper()
_numbers = itertools.count()
_find_unique_key: Final = properties.finder(properties.UNIQ_KEY)


def _with_unique_key(raw: bytes) -> tuple[bytes, str]:
    """Return the properties with a UNIQ_KEY, made here if the sender set none: 32 hexadecimal digits."""
    found = _find_unique_key(raw)
    if found is not None:
        return raw, properties.as_text(found)
    unique_key = f"{_process_digits}{next(_numbers):016X}"
    return properties.join(raw, f"UNIQ_KEY\x01{unique_key}\x02".encode()), unique_key
