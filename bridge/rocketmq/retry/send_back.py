"""What a consumer failed to consume: CONSUMER_SEND_MSG_BACK (36), and the ways of a message that is given back.

    consumer fails ──┬── attempts left ──> %RETRY%group, delayed ──> the group's consumers again
                     └── none left ──────> %DLQ%group ── redriven ──> %RETRY%group, as if it had never failed

The delay is the level that the consumer names, or what its group's policy says (`retry_policy.py`), or else level 3 +
attempts.

Java's orderly consumers do not ask: when their own attempts are used up they send the message to %RETRY%group
themselves, and because their group holds locks that means its dead letters. Other consumers do so when their 36 failed.
Either topic is made when it is first needed. What has expired when it is given back is a dead letter at once, or
dropped (`expired.py`); what will expire keeps the date, that of its topic included. The number of attempts is the
consumer's own, or else its group's `retryMaxTimes`. Source: AbstractSendMessageProcessor.java#consumerSendMsgBack,
SendMessageProcessor.java.
"""

import random
from functools import partial
from typing import Final

from duolog.bridge.data import expiry
from duolog.bridge.data.delay_headers import TIMER_REPLACE
from duolog.bridge.net.answers import Answer
from duolog.bridge.records.codec import Record
from duolog.bridge.records.expiry import MessagesExpired
from duolog.bridge.rocketmq.admin.view_message import answer_with_record
from duolog.bridge.rocketmq.context import RocketMQContext
from duolog.bridge.rocketmq.requests.connection import RocketMQConnection
from duolog.bridge.rocketmq.requests.errors import RequestRefused
from duolog.bridge.rocketmq.requests.responses import answer
from duolog.bridge.rocketmq.retry.retry_policy import delay_ms_of
from duolog.bridge.state.topics import Topic, UnknownTopic
from duolog.delay.recurring import AMQ_NAMES
from duolog.protocol.names import group_of_rocketmq
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

FIRST_LEVEL: Final = 3  # 10 s
REASON: Final = "DEAD_LETTER_REASON"  # Of a dead letter: one of the four below.
ATTEMPTS: Final = "attempts"  # None was left.
GIVEN_UP: Final = "given-up"  # Its consumer asked for it, by a delay level below 0.
TOO_LARGE: Final = "too-large"  # Its properties have no room for those of another attempt.
EXPIRED: Final = "expired"
ORIGIN_PLACE: Final = "ORIGIN_PLACE"  # queue/offset in RETRY_TOPIC, of what has failed here
EXPIRED_AT: Final = "EXPIRED_AT_MS"
OWN_LIMIT_VERSION: Final = 121  # `MQVersion.V3_4_9`: since then a client names its own number of attempts.

# What made the message wait or be held back before: its copy starts without.
_WISHES: Final = dict.fromkeys(
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
    context.requests.admission.check_send()
    request = SendBackRequest.parse(command.ext)
    config = group_config(context, request.group)
    if config.retry_queue_nums <= 0:
        return answer(command)  # The group wants no retries.
    attempts_max = _attempts_max(command, request.max_reconsume_times, config)
    make = partial(_give_back, context, command, request, config, attempts_max)
    answer_with_record(context, connection, command, request.offset, make)
    return None


def _give_back(
    context: RocketMQContext,
    command: RemotingCommand,
    request: SendBackRequest,
    config: SubscriptionGroupConfig,
    attempts_max: int,
    record: Buffer,
) -> Answer:
    failed = message.decode(record)
    expires_ms = expiry_of(context, failed)
    careful_ms = context.messages.wall_time.careful_ms(context.clock.now_ms(), context.clock.mono_ms())
    if expires_ms is not None and expires_ms <= careful_ms:
        return answer(command, promise=_let_go(context, config, failed, expires_ms))
    is_dead = failed.reconsume_times >= attempts_max or request.delay_level < 0
    topic = dead_letters_of(context, config) if is_dead else retries_of(context, config)
    delay = {} if is_dead else _delay(config, request.delay_level, failed.reconsume_times)
    reason = (GIVEN_UP if request.delay_level < 0 else ATTEMPTS) if is_dead else None
    again = copy_of(failed, {**delay, **fixed(expires_ms), REASON: reason})
    queue_id = random.randrange(topic.queue_count)
    promise = context.messages.publisher.publish_messages(topic, queue_id, [again], context.clock.now_ms()).promise
    _count(context, is_dead=is_dead)
    return answer(command, promise=promise)


def _delay(config: SubscriptionGroupConfig, wished_level: int, failures: int) -> dict[str, str | None]:
    """Give the property that says when the message comes back."""
    delay_ms = delay_ms_of(config.group_retry_policy, failures) if not wished_level else None
    if delay_ms is not None:
        return {properties.TIMER_DELAY_MS: str(delay_ms)}
    return {properties.DELAY: str(wished_level or FIRST_LEVEL + failures)}


def copy_of(failed: Message, changes: dict[str, str | None]) -> Message:
    """Give the message to be appended to another topic of its group, which has failed once more."""
    found = properties.parse(properties.repaired(failed.properties))
    marks: dict[str, str | None] = {
        properties.RETRY_TOPIC: found.get(properties.RETRY_TOPIC, failed.topic),
        properties.ORIGIN_MESSAGE_ID: found.get(
            properties.ORIGIN_MESSAGE_ID, message_id(failed.store_host, failed.physical_offset)
        ),
        ORIGIN_PLACE: found.get(ORIGIN_PLACE),
    }
    if properties.RETRY_TOPIC not in found:
        marks[ORIGIN_PLACE] = f"{failed.queue_id}/{failed.queue_offset}"
    merged: dict[str, str | None] = {**found, **_WISHES, **marks, **changes}
    raw = properties.encode({name: value for name, value in merged.items() if value is not None})
    return Message(
        topic="",  # The publisher sets topic, queue and store host.
        body=failed.body,
        properties=raw.encode(),
        flag=failed.flag,
        sys_flag=failed.sys_flag & ~flags.TRANSACTION_MASK,
        born_ms=failed.born_ms,
        born_host=failed.born_host,
        reconsume_times=min(failed.reconsume_times + 1, message.RECONSUME_TIMES_MAX),  # A sender may name any number.
    )


# -- What expires


def expiry_of(context: RocketMQContext, failed: Message) -> int | None:
    """Say when a message that was read from its topic expires, by itself or by the topic."""
    topic = context.topics.by_rocketmq_name(failed.topic)
    if topic is None or failed.topic.startswith(DLQ_PREFIX):
        return None
    return expiry.expiry_of(failed.properties, failed.store_ms, topic.settings)


def drops_expired(context: RocketMQContext, topic: Topic, raw: bytes) -> bool:
    """Whether a message that expires leaves nothing behind: its topic says so, or the one that it was retried from."""
    if topic.rocketmq_name.startswith(RETRY_PREFIX):
        origin_name = properties.get(properties.repaired(raw), properties.RETRY_TOPIC) or ""
        origin = context.topics.by_rocketmq_name(origin_name)
        return origin is not None and origin.settings.drops_expired
    return topic.settings.drops_expired


def fixed(expires_ms: int | None) -> dict[str, str | None]:
    """Give the change of properties by which a copy expires when its original would."""
    return {} if expires_ms is None else {expiry.EXPIRE_AFTER: None, expiry.EXPIRE_AT: str(expires_ms)}


def expired_copy(found: Message, expires_ms: int) -> Message:
    """Give the dead letter of a message that has expired: it did not fail once more, and expires no more."""
    kept = expiry.without_expiry(properties.parse(properties.repaired(found.properties)))
    found.properties = properties.encode(kept).encode()
    dead = copy_of(found, {properties.DELAY: None, REASON: EXPIRED, EXPIRED_AT: str(expires_ms)})
    dead.reconsume_times = found.reconsume_times
    return dead


def _let_go(context: RocketMQContext, config: SubscriptionGroupConfig, failed: Message, expires_ms: int) -> Promise:
    """Put what has expired among the dead letters, unless it is there already, or is to be dropped."""
    topic = context.topics.by_rocketmq_name(failed.topic)
    assert topic is not None, "the topic that says when it expires"
    group, key = group_of_rocketmq(config.group_name), topic.key(failed.queue_id)
    offset, now_ms = failed.queue_offset, context.clock.now_ms()
    if drops_expired(context, topic, failed.properties) or context.groups.expired_ranges.has(group, key, offset):
        return context.state_log.barrier()
    target = dead_letters_of(context, config)
    plan = context.messages.publisher.plan_messages(target, 0, [expired_copy(failed, expires_ms)], now_ms)
    records: list[Record] = [MessagesExpired(group, key, [(offset, offset + 1)]), *plan.records]
    promise = context.state_log.commit(records, now_ms, plan.frames).promise
    _count(context, is_dead=True)
    return promise


# -- A consumer's own send to its retry topic


def redirected(
    context: RocketMQContext, command: RemotingCommand, request: SendRequest, raw: bytes
) -> tuple[Topic, bytes] | None:
    """Give the dead-letter topic and the properties for it, if no attempt is left; None: it goes where it is sent."""
    config = group_config(context, request.topic.removeprefix(RETRY_PREFIX))
    is_dead = request.reconsume_times > _attempts_max(command, request.max_reconsume_times, config)
    # In 36 it is >=, for there the attempt that failed is not counted yet.
    if not is_dead and not context.groups.locks.is_any_held(config.group_name, context.clock.mono_ms()):
        _count(context, is_dead=False)
        return None
    topic = dead_letters_of(context, config)
    _count(context, is_dead=True)
    return topic, properties.set_many(raw, {properties.DELAY: None, REASON: ATTEMPTS})


def by_policy(config: SubscriptionGroupConfig, attempts: int, raw: bytes) -> bytes:
    """Let the group's policy say what the client's own ladder says in the properties: it counts one attempt more."""
    if properties.get(raw, properties.DELAY) is None:
        return raw
    delay_ms = delay_ms_of(config.group_retry_policy, attempts - 1)
    if delay_ms is None:
        return raw
    return properties.set_many(raw, {properties.DELAY: None, properties.TIMER_DELAY_MS: str(delay_ms)})


# -- Groups and their topics


def group_config(context: RocketMQContext, group: str) -> SubscriptionGroupConfig:
    """Give the group's config, or what it would be; raises RequestRefused for a name that no group may have."""
    config = context.groups.configs.find(group)
    if config is None:
        remark = f"subscription group not exist, {group[:200]}"
        raise RequestRefused(ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, remark)
    return config


def retries_of(context: RocketMQContext, config: SubscriptionGroupConfig) -> Topic:
    """Give the group's retry topic, made if need be; raises RequestRefused, TopicError, StoreError."""
    return _writable(context, config, retry_topic(config.group_name), config.retry_queue_nums)


def dead_letters_of(context: RocketMQContext, config: SubscriptionGroupConfig) -> Topic:
    return _writable(context, config, dead_letter_topic(config.group_name), 1)


def _writable(context: RocketMQContext, config: SubscriptionGroupConfig, name: str, queue_count: int) -> Topic:
    topic = context.topics.by_rocketmq_name(name)
    if topic is None:
        context.groups.configs.ensure(config.group_name, context.clock.now_ms())  # Whose topic it is.
        topic = context.topics.auto_create_for_rocketmq(name, "", queue_count, context.clock.now_ms())
    if topic is None:
        raise UnknownTopic(f"topic[{name}] not exist")
    if not topic.perm & flags.PERM_WRITE:
        raise RequestRefused(ResponseCode.NO_PERMISSION, f"the topic[{name}] sending message is forbidden")
    return topic


def _attempts_max(command: RemotingCommand, wished: int | None, config: SubscriptionGroupConfig) -> int:
    return wished if wished is not None and command.version >= OWN_LIMIT_VERSION else config.retry_max_times


def _count(context: RocketMQContext, *, is_dead: bool) -> None:
    if is_dead:
        context.metrics.dead_letters += 1
    else:
        context.metrics.retries += 1
