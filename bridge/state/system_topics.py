"""The topics that the broker creates at its start, and the topic names that clients may not create."""

from collections.abc import Collection
from typing import NamedTuple

from duolog.protocol import names
from duolog.protocol.rocketmq.messages.flags import PERM_INHERIT, PERM_READ_WRITE
from duolog.protocol.rocketmq.names import (
    AUTO_CREATE_TOPIC,
    HALF_TOPIC,
    NOT_ALLOWED_TO_SEND,
    OP_HALF_TOPIC,
    REPLY_SUFFIX,
    SCHEDULE_TOPIC,
    SYSTEM_PREFIX,
    TIMER_TOPIC,
    TRACE_TOPIC,
    TRANS_CHECK_MAX_TIME_TOPIC,
)

# TopicConfigManager.java: the number of queues of TBW102 limits the queues that a producer may ask for.
AUTO_CREATED_QUEUES_MAX = 8

_KAFKA_INTERNAL = frozenset({"__consumer_offsets", "__transaction_state"})


class SystemTopic(NamedTuple):
    """A topic that the broker creates at its start. All clients may read it; producers only with `may_produce`."""

    name: str
    queue_count: int
    perm: int = PERM_READ_WRITE
    may_produce: bool = False


def system_topics(cluster: str, broker: str, delay_levels: int = 18) -> Collection[SystemTopic]:
    """Return the topics that RocketMQ clients and tools expect, and the topics of delayed messages."""
    return (
        SystemTopic(AUTO_CREATE_TOPIC, AUTO_CREATED_QUEUES_MAX, PERM_READ_WRITE | PERM_INHERIT),
        # RocketMQ's tools send to this topic to measure a cluster.
        SystemTopic(cluster, 16, PERM_READ_WRITE | PERM_INHERIT, may_produce=True),
        SystemTopic(broker, 1, PERM_READ_WRITE | PERM_INHERIT, may_produce=True),
        SystemTopic(cluster + REPLY_SUFFIX, 1, may_produce=True),
        SystemTopic(TRACE_TOPIC, 1, may_produce=True),
        SystemTopic(HALF_TOPIC, 1),
        SystemTopic(OP_HALF_TOPIC, 1),
        SystemTopic(TRANS_CHECK_MAX_TIME_TOPIC, 1),
        SystemTopic(SCHEDULE_TOPIC, delay_levels),
        SystemTopic(TIMER_TOPIC, 1),
    )


def is_reserved(name: str) -> bool:
    """Return whether clients may not create a topic of this name."""
    spelled = names.rocketmq_name(name)
    return name in _KAFKA_INTERNAL or spelled in NOT_ALLOWED_TO_SEND or spelled.startswith(SYSTEM_PREFIX)
