"""Messages that consumers failed to consume: CONSUMER_SEND_MSG_BACK (36), and sends of consumers to retry topics.

    consumer fails ──┬── attempts left ──> %RETRY%group, delayed ──> the group's consumers again
                     └── none left ──────> %DLQ%group ── redrive ──> %RETRY%group, as if it had never failed

The delay is that of the level in the request, or of the group's policy (`retry_delays.py`), or of level 3 + attempts.
The number of attempts is that in the request, or the group's `retryMaxTimes`.

Java's orderly consumers do not use request 36. When their own attempts are used up, they send the message to
%RETRY%group; because their group holds queue locks, the broker stores it as a dead letter. Other consumers send to
%RETRY%group if their request 36 failed.

Both topics are created when they are first needed. A message that has expired becomes a dead letter at once, or is
dropped (`expired.py`). A message that will expire keeps its expiry time, also the one that follows from its topic.
Source: AbstractSendMessageProcessor.java#consumerSendMsgBack, SendMessageProcessor.java.
"""

import random
from collections.abc import Collection, Iterable
from typing import Final

from duolog.bridge.data import expiry
from duolog.bridge.data.delayed.delay_headers import TIMER_REPLACE
from duolog.bridge.net.answers import Answer
from duolog.bridge.net.waiting import WaitingSteps
from duolog.bridge.records.codec import Record
from duolog.bridge.records.expiry import MessagesExpired
from duolog.bridge.rocketmq.access.gate import Granted
from duolog.bridge.rocketmq.admin.view_message import read_record
from duolog.bridge.rocketmq.context import RocketMQContext
from duolog.bridge.rocketmq.requests.connection import RocketMQConnection
from duolog.bridge.rocketmq.requests.errors import RequestRefused
from duolog.bridge.rocketmq.requests.responses import answer
from duolog.bridge.rocketmq.requests.rocketmq_driver import answer_in_steps
from duolog.bridge.rocketmq.retry import failed_attempts
from duolog.bridge.rocketmq.retry.failed_attempts import FAILED_ATTEMPTS
from duolog.bridge.rocketmq.retry.retry_delays import delay_ms_of
from duolog.bridge.state.topic_table import Topic
from duolog.bridge.state.topics import UnknownTopic
from duolog.delay.recurring import AMQ_NAMES
from duolog.protocol.names import group_of_rocketmq, kafka_name
from duolog.protocol.rocketmq.bodies import SubscriptionGroupConfig
from duolog.protocol.rocketmq.codes import ResponseCode
from duolog.protocol.rocketmq.headers import SendBackRequest, SendRequest
from duolog.protocol.rocketmq.messages import flags, message, properties
from duolog.protocol.rocketmq.messages.message import Message
from duolog.protocol.rocketmq.messages.message_id import message_id
from duolog.protocol.rocketmq.names import (
    DLQ_PREFIX,
    RETRY_PREFIX,
    dead_letter_topic,
    retry_topic,
)
from duolog.protocol.rocketmq.remoting import RemotingCommand
from duolog.store.entry import Buffer, Promise

FIRST_LEVEL: Final = 3  # 10 s in the default of `delay.levels`.
REASON: Final = "DEAD_LETTER_REASON"  # The property of a dead letter with one of the four reasons below.
ATTEMPTS: Final = "attempts"  # No attempts were left.
GIVEN_UP: Final = "given-up"  # The consumer asked for it by a delay level below 0.
TOO_LARGE: Final = "too-large"  # The properties have no room for those of another attempt.
EXPIRED: Final = "expired"
ORIGIN_PLACE: Final = "ORIGIN_PLACE"  # queue/offset of the original in RETRY_TOPIC.
EXPIRED_AT: Final = "EXPIRED_AT_MS"
OWN_LIMIT_VERSION: Final = 121  # `MQVersion.V3_4_9`: clients from this version on send their number of attempts.

# Properties that delayed or held back the original; the copy does not have them.
_DELAY_PROPERTIES: Final = dict.fromkeys(
    (
        properties.DELAY,
        properties.TIMER_DELIVER_MS,
        properties.TIMER_DELAY_MS,
        properties.TIMER_DELAY_SEC,
        properties.TRAN_MSG,
        TIMER_REPLACE,
        *AMQ_NAMES,
    )
)


# -- 36


def send_back(context: RocketMQContext, connection: RocketMQConnection, command: RemotingCommand) -> Answer | None:
    """Answer CONSUMER_SEND_MSG_BACK."""
    context.requests.admission.check_send()
    request = SendBackRequest.parse(command.ext)
    config = group_config(context, request.group)
    if config.retry_queue_nums <= 0:
        return answer(command)  # The group is configured without retries.
    steps = _steps(context, command, request, config, connection.packed_peer, connection.granted)
    return answer_in_steps(connection, command, steps, outlives_connection=True)


def _steps(
    context: RocketMQContext,
    command: RemotingCommand,
    request: SendBackRequest,
    config: SubscriptionGroupConfig,
    consumer: bytes,
    granted: Granted | None,
) -> WaitingSteps[Answer]:
    record = yield from read_record(context, request.offset, granted, retry_topic(request.group))
    return _give_back(context, command, request, config, consumer, record)


def _give_back(
    context: RocketMQContext,
    command: RemotingCommand,
    request: SendBackRequest,
    config: SubscriptionGroupConfig,
    consumer: bytes,
    record: Buffer,
) -> Answer:
    failed = message.decode(record)
    expires_ms, now_ms = expiry_of(context, failed), context.clock.now_ms()
    careful_ms = context.messages.wall_time.careful_ms(now_ms, context.clock.mono_ms())
    if expires_ms is not None and expires_ms <= careful_ms:
        return answer(command, promise=_store_expired(context, config, failed, expires_ms))
    attempts_max = _attempts_max(command, request.max_reconsume_times, config)
    is_dead = failed.reconsume_times >= attempts_max or request.delay_level < 0
    origins = origins_of(context, failed.topic)
    topic = dead_letters_of(context, config, origins) if is_dead else retries_of(context, config, origins)
    delay = {} if is_dead else _delay(config, request.delay_level, failed.reconsume_times)
    reason = (GIVEN_UP if request.delay_level < 0 else ATTEMPTS) if is_dead else None
    again = copy_of(failed, {**delay, **fixed(expires_ms), **counted_failure(failed, now_ms, consumer), REASON: reason})
    queue_id = random.randrange(topic.queue_count)
    promise = context.messages.publisher.publish_messages(topic, queue_id, [again], now_ms).promise
    _count(context, is_dead=is_dead)
    return answer(command, promise=promise)


def _delay(config: SubscriptionGroupConfig, requested_level: int, failures: int) -> dict[str, str | None]:
    """Return the property with the delay of the message."""
    delay_ms = delay_ms_of(config.group_retry_policy, failures) if not requested_level else None
    if delay_ms is not None:
        return {properties.TIMER_DELAY_MS: str(delay_ms)}
    return {properties.DELAY: str(requested_level or FIRST_LEVEL + failures)}


def counted_failure(failed: Message, now_ms: int, consumer: bytes = message.NO_HOST) -> dict[str, str | None]:
    """Return the change of properties for one more failed attempt, by the consumer with this packed address."""
    raw = properties.repaired(failed.properties)
    return failed_attempts.changes(failed.topic, raw, failed.reconsume_times + 1, now_ms, consumer)


def copy_of(failed: Message, changes: dict[str, str | None]) -> Message:
    """Return the message for another topic of the group, with one more failure."""
    found = properties.parse(properties.repaired(failed.properties))
    marks: dict[str, str | None] = {
        properties.RETRY_TOPIC: found.get(properties.RETRY_TOPIC, failed.topic),
        properties.ORIGIN_MESSAGE_ID: found.get(
            properties.ORIGIN_MESSAGE_ID, message_id(failed.store_host, failed.physical_offset)
        ),
        ORIGIN_PLACE: found.get(ORIGIN_PLACE),
        FAILED_ATTEMPTS: failed_attempts.kept(failed.topic, found.get(FAILED_ATTEMPTS)),
    }
    if properties.RETRY_TOPIC not in found:
        marks[ORIGIN_PLACE] = f"{failed.queue_id}/{failed.queue_offset}"
    merged: dict[str, str | None] = {**found, **_DELAY_PROPERTIES, **marks, **changes}
    raw = properties.encode({name: value for name, value in merged.items() if value is not None})
    return Message(
        topic="",  # The publisher sets topic, queue and store host.
        body=failed.body,
        properties=raw.encode(),
        flag=failed.flag,
        sys_flag=failed.sys_flag & ~flags.TRANSACTION_MASK,
        born_ms=failed.born_ms,
        born_host=failed.born_host,
        # Limited, because a sender may set any number.
        reconsume_times=min(failed.reconsume_times + 1, message.RECONSUME_TIMES_MAX),
    )


# -- Expiry


def expiry_of(context: RocketMQContext, failed: Message) -> int | None:
    """Return the time when a message expires, by its own property or by its topic; None: never."""
    topic = context.topics.by_rocketmq_name(failed.topic)
    if topic is None or failed.topic.startswith(DLQ_PREFIX):
        return None
    return expiry.expiry_of(failed.properties, failed.store_ms, topic.settings)


def drops_expired(context: RocketMQContext, topic: Topic, raw: bytes) -> bool:
    """Return whether an expired message is dropped, as configured for its topic or the topic it was retried from."""
    if topic.rocketmq_name.startswith(RETRY_PREFIX):
        origin_name = properties.get(properties.repaired(raw), properties.RETRY_TOPIC) or ""
        origin = context.topics.by_rocketmq_name(origin_name)
        return origin is not None and origin.settings.drops_expired
    return topic.settings.drops_expired


def fixed(expires_ms: int | None) -> dict[str, str | None]:
    """Return the change of properties that gives a copy the expiry time of its original."""
    return {} if expires_ms is None else {expiry.EXPIRE_AFTER: None, expiry.EXPIRE_AT: str(expires_ms)}


def expired_copy(found: Message, expires_ms: int) -> Message:
    """Return the dead letter for an expired message: without one more failure, and without an expiry time."""
    kept = expiry.without_expiry(properties.parse(properties.repaired(found.properties)))
    found.properties = properties.encode(kept).encode()
    dead = copy_of(found, {properties.DELAY: None, REASON: EXPIRED, EXPIRED_AT: str(expires_ms)})
    dead.reconsume_times = found.reconsume_times
    return dead


def _store_expired(
    context: RocketMQContext, config: SubscriptionGroupConfig, failed: Message, expires_ms: int
) -> Promise:
    """Store an expired message as a dead letter, unless it is one already or is to be dropped."""
    topic = context.topics.by_rocketmq_name(failed.topic)
    assert topic is not None, "the topic that says when it expires"
    group, key = group_of_rocketmq(config.group_name), topic.key(failed.queue_id)
    offset, now_ms = failed.queue_offset, context.clock.now_ms()
    if drops_expired(context, topic, failed.properties) or context.groups.expired_ranges.has(group, key, offset):
        return context.state_log.barrier()
    target = dead_letters_of(context, config, origins_of(context, failed.topic))
    plan = context.messages.publisher.plan_messages(target, 0, [expired_copy(failed, expires_ms)], now_ms)
    records: list[Record] = [MessagesExpired(group, key, [(offset, offset + 1)]), *plan.records]
    promise = context.state_log.commit(records, now_ms, plan.frames).promise
    _count(context, is_dead=True)
    return promise


# -- Sends of consumers to a retry topic


def redirected(
    context: RocketMQContext, command: RemotingCommand, request: SendRequest, raw: bytes, origins: Iterable[str]
) -> tuple[Topic, bytes] | None:
    """Return the dead-letter topic and properties for it if no attempt is left; None: to the retry topic."""
    config = group_config(context, request.topic.removeprefix(RETRY_PREFIX))
    is_dead = request.reconsume_times > _attempts_max(command, request.max_reconsume_times, config)
    # Request 36 compares with >=, because there the failed attempt is not counted yet.
    if not is_dead and not context.groups.locks.is_any_held(config.group_name, context.clock.mono_ms()):
        _count(context, is_dead=False)
        return None
    topic = dead_letters_of(context, config, {*origins, *origins_of(context, request.topic)})
    _count(context, is_dead=True)
    return topic, properties.set_many(raw, {properties.DELAY: None, REASON: ATTEMPTS})


def by_policy(config: SubscriptionGroupConfig, attempts: int, raw: bytes) -> bytes:
    """Replace the delay that the client chose by that of the group's policy, which counts one attempt more."""
    if properties.get(raw, properties.DELAY) is None:
        return raw
    delay_ms = delay_ms_of(config.group_retry_policy, attempts - 1)
    if delay_ms is None:
        return raw
    return properties.set_many(raw, {properties.DELAY: None, properties.TIMER_DELAY_MS: str(delay_ms)})


# -- Groups and their topics


def group_config(context: RocketMQContext, group: str) -> SubscriptionGroupConfig:
    """Return the group's config, or its default. Raises RequestRefused if the name of the group is invalid."""
    config = context.groups.configs.find(group)
    if config is None:
        remark = f"subscription group not exist, {group[:200]}"
        raise RequestRefused(ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, remark)
    return config


def retries_of(context: RocketMQContext, config: SubscriptionGroupConfig, origins: Iterable[str]) -> Topic:
    """Return the group's retry topic for messages of `origins_of`, and create it if necessary.

    Raises RequestRefused, TopicError, StoreError.
    """
    return _writable(context, config, retry_topic(config.group_name), config.retry_queue_nums, origins)


def dead_letters_of(context: RocketMQContext, config: SubscriptionGroupConfig, origins: Iterable[str]) -> Topic:
    """Return the group's dead-letter topic, and create it if necessary. Arguments and errors are as of `retries_of`."""
    return _writable(context, config, dead_letter_topic(config.group_name), 1, origins)


def origins_of(context: RocketMQContext, name: str) -> Collection[str]:
    """Return the topics, in Kafka's spelling, from which the messages in a topic came; RETRY_TOPIC may be forged.

    A retry topic of POP names its topic itself. The name is in RocketMQ's spelling.
    """
    if not name.startswith((RETRY_PREFIX, DLQ_PREFIX)):
        return (kafka_name(name),)
    _, plus, origin = name.partition("+")
    if plus:
        return (kafka_name(origin),)
    topic = context.topics.by_rocketmq_name(name)
    return () if topic is None else topic.origins


def _writable(
    context: RocketMQContext, config: SubscriptionGroupConfig, name: str, queue_count: int, origins: Iterable[str]
) -> Topic:
    topic = context.topics.by_rocketmq_name(name)
    if topic is None:
        # The group that owns the topic must exist.
        context.groups.configs.ensure(config.group_name, context.clock.now_ms())
        topic = context.topics.auto_create_for_rocketmq(name, "", queue_count, context.clock.now_ms())
    if topic is None:
        raise UnknownTopic(f"topic[{name}] not exist")
    if not topic.perm & flags.PERM_WRITE:
        raise RequestRefused(ResponseCode.NO_PERMISSION, f"the topic[{name}] sending message is forbidden")
    context.topics.add_origins(topic, origins, context.clock.now_ms())
    return topic


def _attempts_max(command: RemotingCommand, requested: int | None, config: SubscriptionGroupConfig) -> int:
    return requested if requested is not None and command.version >= OWN_LIMIT_VERSION else config.retry_max_times


def _count(context: RocketMQContext, *, is_dead: bool) -> None:
    if is_dead:
        context.metrics.dead_letters += 1
    else:
        context.metrics.retries += 1
