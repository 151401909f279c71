"""Sends of consumers to a retry topic.

Java's orderly consumers do not use CONSUMER_SEND_MSG_BACK (`send_back.py`). When their own attempts are used up, they
send the message to %RETRY%group. Their group holds queue locks, so the broker stores the message as a dead letter.
Other consumers send to %RETRY%group if their request 36 failed.
Source: SendMessageProcessor.java.
"""

from collections.abc import Iterable

from duolog.bridge.rocketmq.context import RocketMQContext
from duolog.bridge.rocketmq.retry import dead_letters
from duolog.bridge.rocketmq.retry.retry_delays import delay_ms_of
from duolog.bridge.state.topic_table import Topic
from duolog.protocol.rocketmq.bodies import SubscriptionGroupConfig
from duolog.protocol.rocketmq.headers import SendRequest
from duolog.protocol.rocketmq.messages import properties
from duolog.protocol.rocketmq.names import RETRY_PREFIX
from duolog.protocol.rocketmq.remoting import RemotingCommand


def redirect_dead_letter(
    context: RocketMQContext, command: RemotingCommand, request: SendRequest, raw: bytes, origins: Iterable[str]
) -> tuple[Topic, bytes] | None:
    """Return the dead-letter topic and properties for it if no attempt is left; None: to the retry topic."""
    config = context.groups.retry_topics.group_config(request.topic.removeprefix(RETRY_PREFIX))
    attempts_max = dead_letters.attempts_max(command, request.max_reconsume_times, config)
    reason = dead_letters.reason_of(request.reconsume_times, attempts_max)
    if reason is None and not context.groups.locks.is_any_held(config.group_name, context.clock.mono_ms()):
        dead_letters.count(context.metrics, is_dead=False)
        return None
    retry_topics = context.groups.retry_topics
    topic = retry_topics.dead_letters_of(config, {*origins, *retry_topics.origins_of(request.topic)})
    dead_letters.count(context.metrics, is_dead=True)
    return topic, properties.set_many(raw, {properties.DELAY: None, dead_letters.REASON: dead_letters.ATTEMPTS})


def apply_policy(config: SubscriptionGroupConfig, attempts: int, raw: bytes) -> bytes:
    """Replace the delay that the client chose by that of the group's policy, which counts one attempt more."""
    if properties.get(raw, properties.DELAY) is None:
        return raw
    delay_ms = delay_ms_of(config.group_retry_policy, attempts - 1)
    if delay_ms is None:
        return raw
    return properties.set_many(raw, {properties.DELAY: None, properties.TIMER_DELAY_MS: str(delay_ms)})
