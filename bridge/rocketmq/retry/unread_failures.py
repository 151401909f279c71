"""The numbers of a group's retries and dead letters that it has not read.

They are reported when a group moves to Kafka, because Kafka consumers do not read them. Retries that are still delayed
are not counted.
"""

from typing import NamedTuple

from duolog.bridge.rocketmq.context import RocketMQContext
from duolog.bridge.rocketmq.retry.redriven import redriven_of
from duolog.protocol.rocketmq.names import dead_letter_topic, retry_topic


class UnreadFailures(NamedTuple):
    """The numbers of retries and dead letters that a group has not read."""

    retries: int
    dead_letters: int


def count_unread_failures(context: RocketMQContext, group: str) -> UnreadFailures:
    """Count the unread retries and dead letters of a group, named by its Kafka name."""
    spelled = context.groups.configs.name_of(group)
    return UnreadFailures(
        _unread(context, group, retry_topic(spelled)), _unread(context, group, dead_letter_topic(spelled))
    )


def _unread(context: RocketMQContext, group: str, topic_name: str) -> int:
    topic = context.topics.by_rocketmq_name(topic_name)
    queues = topic.queues if topic is not None else ()
    return sum(redriven_of(context, group, queue).unread(queue.visible_end) for queue in queues)
