"""CONSUMER_SEND_MSG_BACK (36): a consumer sends back a message that it failed to consume.

    consumer fails ──┬── attempts left ──> %RETRY%group, delayed ──> the group's consumers again
                     └── none left ──────> %DLQ%group ── redrive ──> %RETRY%group, as if it had never failed

`dead_letters.py` decides between the two. The delay is that of the level in the request, or of the group's policy
(`retry_delays.py`), or of level 3 + attempts. A message that has expired becomes a dead letter at once, or is dropped
(`expired.py`). A message that will expire keeps its expiry time, also the one that follows from its topic.
Source: AbstractSendMessageProcessor.java#consumerSendMsgBack.
"""

import random
from typing import Final

from duolog.bridge.data.units import joined
from duolog.bridge.net.answers import Answer
from duolog.bridge.net.waiting import WaitingSteps
from duolog.bridge.records.expiry import MessagesExpired
from duolog.bridge.rocketmq.access.gate import Granted
from duolog.bridge.rocketmq.admin.view_message import read_record
from duolog.bridge.rocketmq.context import RocketMQContext
from duolog.bridge.rocketmq.requests.connection import RocketMQConnection
from duolog.bridge.rocketmq.requests.responses import answer
from duolog.bridge.rocketmq.requests.rocketmq_driver import answer_in_steps
from duolog.bridge.rocketmq.retry import dead_letters
from duolog.bridge.rocketmq.retry.failed_copies import copy_of, counted_failure, fixed
from duolog.bridge.rocketmq.retry.retry_delays import delay_ms_of
from duolog.protocol.names import group_of_rocketmq
from duolog.protocol.rocketmq.bodies import SubscriptionGroupConfig
from duolog.protocol.rocketmq.headers import SendBackRequest
from duolog.protocol.rocketmq.messages import message, properties
from duolog.protocol.rocketmq.messages.message import Message
from duolog.protocol.rocketmq.names import retry_topic
from duolog.protocol.rocketmq.remoting import RemotingCommand
from duolog.store.entry import Buffer, Promise

FIRST_LEVEL: Final = 3  # 10 s in the default of `delay.levels`.


def send_back(context: RocketMQContext, connection: RocketMQConnection, command: RemotingCommand) -> Answer | None:
    """Answer CONSUMER_SEND_MSG_BACK."""
    context.requests.admission.check_send()
    request = SendBackRequest.parse(command.ext)
    config = context.groups.retry_topics.group_config(request.group)
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
    expires_ms, now_ms = dead_letters.expiry_of(context.topics, failed), context.clock.now_ms()
    careful_ms = context.messages.wall_time.careful_ms(now_ms, context.clock.mono_ms())
    if expires_ms is not None and expires_ms <= careful_ms:
        return answer(command, promise=_store_expired(context, config, failed, expires_ms))
    attempts_max = dead_letters.attempts_max(command, request.max_reconsume_times, config)
    failures, is_given_up = failed.reconsume_times + 1, request.delay_level < 0
    reason = dead_letters.reason_of(failures, attempts_max, is_given_up=is_given_up)
    is_dead = reason is not None
    retry_topics = context.groups.retry_topics
    target_of = retry_topics.dead_letters_of if is_dead else retry_topics.retries_of
    topic = target_of(config, retry_topics.origins_of(failed.topic))
    delay = {} if is_dead else _delay(config, request.delay_level, failed.reconsume_times)
    changes = {**delay, **fixed(expires_ms), **counted_failure(failed, now_ms, consumer), dead_letters.REASON: reason}
    queue_id = random.randrange(topic.queue_count)
    again = copy_of(failed, changes)
    promise = context.messages.publisher.publish_messages(topic, queue_id, [again], now_ms).promise
    dead_letters.count(context.metrics, is_dead=is_dead)
    return answer(command, promise=promise)


def _delay(config: SubscriptionGroupConfig, requested_level: int, failures: int) -> dict[str, str | None]:
    """Return the property with the delay of the message."""
    delay_ms = delay_ms_of(config.group_retry_policy, failures) if not requested_level else None
    if delay_ms is not None:
        return {properties.TIMER_DELAY_MS: str(delay_ms)}
    return {properties.DELAY: str(requested_level or FIRST_LEVEL + failures)}


def _store_expired(
    context: RocketMQContext, config: SubscriptionGroupConfig, failed: Message, expires_ms: int
) -> Promise:
    """Store an expired message as a dead letter, unless it is one already or is to be dropped."""
    topic = context.topics.by_rocketmq_name(failed.topic)
    assert topic is not None, "the topic that says when it expires"
    group, key = group_of_rocketmq(config.group_name), topic.key(failed.queue_id)
    offset, now_ms = failed.queue_offset, context.clock.now_ms()
    is_dead_letter = context.groups.expired_ranges.has(group, key, offset)
    if is_dead_letter or dead_letters.drops_expired(context.topics, topic, failed.properties):
        return context.state_log.barrier()
    retry_topics = context.groups.retry_topics
    target = retry_topics.dead_letters_of(config, retry_topics.origins_of(failed.topic))
    letter = dead_letters.expired_copy(failed, expires_ms)
    publisher = context.messages.publisher
    plan = publisher.messages.plan_messages(target, 0, [letter], now_ms)
    unit = joined([plan], [MessagesExpired(group, key, [(offset, offset + 1)])])
    promise = publisher.append(unit, now_ms).promise
    dead_letters.count(context.metrics, is_dead=True)
    return promise
