"""What the RocketMQ consumers of a group failed to consume, and the group has not read since: for people, who are told
when a group moves to Kafka, whose consumers do not read it. Retries that are still delayed are not counted.
"""

from typing import NamedTuple

from duolog.bridge.rocketmq.context import RocketMQContext
from duolog.protocol.rocketmq.names import dead_letter_topic, retry_topic
from duolog.store.index.queue import Queue


class UnreadFailures(NamedTuple):
    retries: int
    dead_letters: int


def failed_of(context: RocketMQContext, group: str) -> UnreadFailures:
    """Count it; the group by its Kafka spelling."""
    spelled = context.groups.configs.name_of(group)
    return UnreadFailures(
        _unread(context, group, retry_topic(spelled)), _unread(context, group, dead_letter_topic(spelled))
    )


def position_in(context: RocketMQContext, group: str, queue: Queue) -> int:
    """Give the first offset of a queue that the group has not behind it."""
    position = context.groups.group_offsets.fetch(group, queue.key)
    return max(position.offset, queue.start_offset) if position is not None else queue.start_offset


def _unread(context: RocketMQContext, group: str, topic_name: str) -> int:
    topic = context.topics.by_rocketmq_name(topic_name)
    return sum(queue.visible_end - position_in(context, group, queue) for queue in topic.queues) if topic else 0
