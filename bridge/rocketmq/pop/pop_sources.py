"""The queues that a pop takes from, and their order.

    most topics      queue by queue; each pop begins at another queue. The queues of the group's retry topics for the
                     topic come after the topic's own queues, and with every fifth pop before them
    PRIORITY topics  from the last queue to the first, because queue n has the messages of priority n; retry topics come
                     last (RIP-80). A group's attribute `priority.factor` is the percentage of pops with this order

A retry topic has one of two names: `%RETRY%group_topic`, or with `rocketmq.retry_topic_v2` `%RETRY%group+topic`. New
retries go to the topic that the setting selects; if the other topic exists, it is popped too.
Source: PopMessageProcessor.java, PopConsumerService.java.
"""

import itertools
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from duolog.bridge.rocketmq.context import RocketMQContext
from duolog.bridge.state.topic_table import Topic
from duolog.protocol.rocketmq.bodies import SubscriptionGroupConfig
from duolog.protocol.rocketmq.messages.receipt import (
    NOT_RETRIED,
    RETRIED,
    RETRIED_V2,
    real_topic,
)
from duolog.store.index.queue import Queue

RETRY_FIRST_EVERY: Final = 5  # One of so many pops begins with the retry topics.
PRIORITY_FACTOR: Final = "priority.factor"
PRIORITY_FACTOR_MAX: Final = 100

_rounds = itertools.count()


class PopSource(NamedTuple):
    """One queue that a pop may take from."""

    topic: Topic
    queue: Queue
    retry: str  # The retry flag in the receipts of its messages.

    @property
    def is_retry(self) -> bool:
        return self.retry != NOT_RETRIED


def sources(
    topic: Topic, queue_id: int, retries: Sequence[PopSource], config: SubscriptionGroupConfig | None
) -> Iterator[PopSource]:
    """Return the queues for the next pop of a topic; `queue_id` selects one of its own queues, -1 all of them."""
    turn = next(_rounds)
    if queue_id >= 0:
        own = [topic.queues[queue_id]]
    elif topic.settings.has_priorities and turn % 100 < _priority_factor(config):
        own = [*reversed(topic.queues)]
    else:
        at = turn % topic.queue_count
        own = [*topic.queues[at:], *topic.queues[:at]]
    found = [PopSource(topic, queue, NOT_RETRIED) for queue in own]
    is_retry_first = turn % RETRY_FIRST_EVERY == 0 and not topic.settings.has_priorities
    return iter([*retries, *found] if is_retry_first else [*found, *retries])


def _priority_factor(config: SubscriptionGroupConfig | None) -> int:
    """Return the group's percentage of pops by priority. Tools put a + before the names of attributes that they set."""
    attributes = config.attributes if config is not None else {}
    value = attributes.get(PRIORITY_FACTOR, attributes.get(f"+{PRIORITY_FACTOR}", ""))
    return int(value) if value.isascii() and value.isdigit() and len(value) <= 3 else PRIORITY_FACTOR_MAX


# -- Retry topics


def retry_sources(context: RocketMQContext, group: str, topic: Topic) -> list[PopSource]:
    """Return the queues of the group's retry topics for this topic, under both names, if they exist."""
    found: list[PopSource] = []
    for flag in (RETRIED, RETRIED_V2):
        retry = context.topics.by_rocketmq_name(real_topic(group, topic.rocketmq_name, flag))
        if retry is not None and retry is not topic:
            found += [PopSource(retry, queue, flag) for queue in retry.queues]
    return found
