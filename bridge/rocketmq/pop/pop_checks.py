"""The checks of POP requests: whether a group may pop a topic now."""

from typing import Final

from duolog.bridge.rocketmq.consuming.pull import no_topic
from duolog.bridge.rocketmq.context import RocketMQContext
from duolog.bridge.rocketmq.requests.errors import RequestRefused
from duolog.bridge.state.client_protocols import ClientProtocol
from duolog.bridge.state.topic_table import Topic
from duolog.protocol.names import group_of_rocketmq
from duolog.protocol.rocketmq.codes import ResponseCode
from duolog.protocol.rocketmq.messages import flags

ATTEMPT_ID_CHARACTERS_MAX: Final = 255  # Stored with each checkpoint of a pop in order; clients send a UUID.


def check_attempt(attempt_id: str | None) -> None:
    """Raise RequestRefused for an attempt id that is too long to be stored."""
    if len(attempt_id or "") > ATTEMPT_ID_CHARACTERS_MAX:
        remark = f"attemptId of {len(attempt_id or '')} characters; {ATTEMPT_ID_CHARACTERS_MAX} are allowed"
        raise RequestRefused(ResponseCode.INVALID_PARAMETER, remark)


def poppable(context: RocketMQContext, name: str, queue_id: int) -> Topic:
    """Return the topic; raises RequestRefused unless it may be read and has the queue. Queue -1 is all queues."""
    topic = context.topics.by_rocketmq_name(name)
    if topic is None:
        raise no_topic(name)
    if not topic.perm & flags.PERM_READ:
        raise RequestRefused(ResponseCode.NO_PERMISSION, f"the topic[{name}] peeking message is forbidden")
    if not -1 <= queue_id < topic.queue_count:
        remark = f"queueId[{queue_id}] is illegal, topic:[{name}] has {topic.queue_count} queues"
        raise RequestRefused(ResponseCode.INVALID_PARAMETER, remark)
    return topic


def check_popper(context: RocketMQContext, group: str) -> None:
    """Raise RequestRefused if the group may not consume, or is active in Kafka."""
    config = context.groups.configs.find(group)
    if config is None:
        remark = f"subscription group [{group[:200]}] does not exist"
        raise RequestRefused(ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, remark)
    if not config.consume_enable:
        raise RequestRefused(ResponseCode.NO_PERMISSION, f"subscription group no permission, {group}")
    if not context.groups.client_protocols.admits(group_of_rocketmq(group), ClientProtocol.ROCKETMQ):
        raise RequestRefused(ResponseCode.SUBSCRIPTION_NOT_EXIST, f"the consumer's group {group} is active in Kafka")
