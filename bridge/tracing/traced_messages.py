"""The class TracedMessages: the trace contexts of messages in queues, so that the reads of these messages are found.

It is not in the log: after a restart, reads of older messages have no spans.
"""

from bisect import bisect_left
from collections import deque
from typing import NamedTuple

from duolog.bridge.tracing.trace_context import TraceContext


class TracedMessage(NamedTuple):
    """A traced message of a queue."""

    offset: int
    context: TraceContext
    visible_ms: int  # The wall time of its append.


class TracedMessages:
    """The newest `count_max` traced messages of all queues."""

    def __init__(self, count_max: int) -> None:
        self._count_max = count_max
        self._queues: dict[int, list[TracedMessage]] = {}  # By queue key, in the order of offsets.
        self._order: deque[int] = deque()  # The queue key of each message, the oldest first.

    def __len__(self) -> int:
        return len(self._order)

    def add(self, key: int, message: TracedMessage) -> None:
        """Add a message as the last one of its queue."""
        self._queues.setdefault(key, []).append(message)
        self._order.append(key)
        if len(self._order) > self._count_max:
            oldest = self._order.popleft()
            messages = self._queues[oldest]
            del messages[0]
            if not messages:
                del self._queues[oldest]

    def between(self, key: int, first: int, end: int) -> list[TracedMessage]:
        """Return the traced messages of a queue with offsets in [first, end)."""
        messages = self._queues.get(key)
        if messages is None:
            return []
        low = bisect_left(messages, first, key=_offset)
        return messages[low : bisect_left(messages, end, lo=low, key=_offset)]


def _offset(message: TracedMessage) -> int:
    return message.offset
