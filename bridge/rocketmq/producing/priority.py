"""Message priorities (RIP-80): the priority of a message selects its queue.

    _SYS_MSG_PRIORITY_=3, topic of 8 queues ──> queue 3; priorities above 7 share queue 7
    half, delayed, or with a sharding key   ──> the queue in the request; the priority is ignored

POP reads the last queues of a topic with `message.type=PRIORITY` first (`pop_sources.py`). On other topics the priority
only selects the queue. Source: SendMessageProcessor.java, TopicMessageType.java#parseFromMessageProperty.
"""

from typing import Final

from duolog.bridge.state.topic_table import Topic
from duolog.protocol.rocketmq.messages import properties

PRIORITY_MAX: Final = (1 << 31) - 1

_OTHER_TYPES: Final = (
    properties.DELAY,
    properties.TIMER_DELIVER_MS,
    properties.TIMER_DELAY_SEC,
    properties.TIMER_DELAY_MS,
    properties.SHARDING_KEY,
)


def by_priority(topic: Topic, queue_id: int, raw: bytes) -> tuple[int, bytes]:
    """Return the queue id and the properties of a message; an invalid or negative priority is ignored."""
    found = properties.parse(raw)
    priority = _number(found.get(properties.PRIORITY, ""))
    if priority is None:
        return queue_id, raw
    if found.get(properties.TRAN_MSG, "").lower() == "true" or any(name in found for name in _OTHER_TYPES):
        del found[properties.PRIORITY]
        return queue_id, properties.encode(found).encode()
    return min(priority, topic.queue_count - 1), raw


def _number(text: str) -> int | None:
    is_number = text.isascii() and text.isdecimal() and len(text) <= len(str(PRIORITY_MAX))
    return int(text) if is_number and int(text) <= PRIORITY_MAX else None
