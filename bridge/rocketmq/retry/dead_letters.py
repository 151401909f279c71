"""What the RocketMQ consumers of a group failed to consume, and the group has not read since: for people, who are told
when a group moves to Kafka, whose consumers do not read it. Retries that are still delayed are not counted.
"""

from typing import TYPE_CHECKING, NamedTuple

from duolog.protocol.rocketmq.names import dead_letter_topic, retry_topic
from duolog.store.index.queue import Queue

if TYPE_CHECKING:
    from duolog.bridge.broker import Broker


class Failed(NamedTuple):
    retries: int
    dead_letters: int


def failed_of(broker: "Broker", group: str) -> Failed:
    """Count it; the group by its Kafka spelling."""
    spelled = broker.rocketmq_groups.name_of(group)
    return Failed(_unread(broker, group, retry_topic(spelled)), _unread(broker, group, dead_letter_topic(spelled)))


def position_in(broker: "Broker", group: str, queue: Queue) -> int:
    """Give the first offset of a queue that the group has not behind it."""
    position = broker.positions.fetch(group, queue.key)
    return max(position.offset, queue.start_offset) if position is not None else queue.start_offset


def _unread(broker: "Broker", group: str, topic_name: str) -> int:
    topic = broker.topics.by_rocketmq_name(topic_name)
    return sum(queue.visible_end - position_in(broker, group, queue) for queue in topic.queues) if topic else 0
