"""Counts of a group's retries and dead letters that it has not read.

They are reported when a group moves to Kafka, because Kafka consumers do not read them. Retries that are still delayed
are not counted.
"""

from typing import NamedTuple

from duolog.bridge.rocketmq.context import RocketMQContext
from duolog.protocol.rocketmq.names import dead_letter_topic, retry_topic
from duolog.store.index.queue import Queue


class UnreadFailures(NamedTuple):
    """The numbers of retries and dead letters that a group has not read."""

    retries: int
    dead_letters: int


def failed_of(context: RocketMQContext, group: str) -> UnreadFailures:
    """Count the unread retries and dead letters of a group, named by its Kafka name."""
    spelled = context.groups.configs.name_of(group)
    return UnreadFailures(
        _unread(context, group, retry_topic(spelled)), _unread(context, group, dead_letter_topic(spelled))
    )


def position_in(context: RocketMQContext, group: str, queue: Queue) -> int:
    """Return the first offset of a queue that the group has not consumed."""
    position = context.groups.group_offsets.fetch(group, queue.key)
    return max(position.offset, queue.start_offset) if position is not None else queue.start_offset


def _unread(context: RocketMQContext, group: str, topic_name: str) -> int:
    topic = context.topics.by_rocketmq_name(topic_name)
    return sum(queue.visible_end - position_in(context, group, queue) for queue in topic.queues) if topic else 0
