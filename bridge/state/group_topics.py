"""The share of the limits on topics that the retry topics of RocketMQ's groups may take, and the dead-letter topics.

A heartbeat names up to 500 groups, and each of them gets a retry topic, as in Apache RocketMQ
(`ClientManageProcessor.java#heartBeat`), which has no limit. Without a share, 40 heartbeats would take all of
`topics.topics_max`, and no client could create a topic any more.

    kind            made by                                          when its share is taken
    %RETRY%group    a heartbeat                                      the heartbeat is accepted without the topic
    %RETRY%group    a message that is sent back, or was popped       SYSTEM_ERROR; popped messages are tried again
    %DLQ%group      a message without an attempt left                SYSTEM_ERROR: the client keeps the message
    either          CreateTopics, updateTopic, HTTP                  as at `topics.topics_max`
"""

import logging
from dataclasses import dataclass
from typing import Final

from duolog.bridge.config import TopicsOptions
from duolog.protocol.rocketmq.names import DLQ_PREFIX, RETRY_PREFIX

PREFIXES: Final = (RETRY_PREFIX, DLQ_PREFIX)

logger = logging.getLogger("state")


@dataclass(slots=True)
class Taken:
    """Topics of one kind that exist, and the sum of their queues."""

    topic_count: int = 0
    queue_count: int = 0


class GroupTopics:
    """Counts the topics of both kinds. Names are in RocketMQ's spelling."""

    def __init__(self, options: TopicsOptions) -> None:
        self.topics_max = max(1, int(options.topics_max * options.group_topics_ratio))
        self.queues_max = max(1, int(options.queues_in_all_max * options.group_topics_ratio))
        self._taken = {prefix: Taken() for prefix in PREFIXES}

    def count(self, name: str, topics: int, queues: int) -> None:
        """Count topics and queues that were created, or deleted where the numbers are negative."""
        prefix = _prefix_of(name)
        if prefix is None:
            return
        taken = self._taken[prefix]
        taken.topic_count += topics
        taken.queue_count += queues
        if topics > 0 and taken.topic_count == self.topics_max:
            logger.warning(
                "too many topics of groups, further topics of this kind are refused prefix=%s topics=%d, see "
                "topics.group_topics_ratio",
                prefix, taken.topic_count,
            )  # fmt: skip

    def refusal(self, name: str, queues: int) -> str | None:
        """Say why a topic of this name with so many queues cannot be created; None: it can."""
        prefix = _prefix_of(name)
        if prefix is None:
            return None
        taken = self._taken[prefix]
        if taken.topic_count < self.topics_max and taken.queue_count + queues <= self.queues_max:
            return None
        return (
            f"{taken.topic_count} topics {prefix}* with {taken.queue_count} queues; topics.group_topics_ratio allows "
            f"{self.topics_max} with {self.queues_max}"
        )


def _prefix_of(name: str) -> str | None:
    return next((prefix for prefix in PREFIXES if name.startswith(prefix)), None)
