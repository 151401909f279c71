"""The class Prefetch: a cache of timers that cursors have read from sorted tables before they are due.

Each prefetched timer is also in a table. So it may be dropped from the cache if the cursor that has read it goes back
(`delay/tree/cursors.py`). A heap has the timers that are not ready.
"""

from collections import deque
from collections.abc import Callable, Container, Iterator
from heapq import heappop, heappush
from itertools import takewhile
from typing import Final

from duolog.delay.rows import Timer, TimerKey
from duolog.delay.tables.table_format import TableTimer, row_of

TIMER_COST_BYTES: Final = 500  # The memory of a prefetched timer without its frame.
_BEGINNING: Final[TimerKey] = (0, 0)


class Prefetch:
    """The prefetched timers. `on_ready` is called with the topic and due time of each timer that becomes ready."""

    def __init__(self, on_ready: Callable[[int, int], None]) -> None:
        self.bytes = 0
        self.bytes_of: dict[int, int] = {}  # By topic, for those with prefetched timers.
        self._on_ready = on_ready
        self._timers: dict[TimerKey, TableTimer] = {}
        # The timers of each topic in due order, and a heap of the timers of all topics that are not ready. A dropped
        # timer may stay in both, but no queue begins with it. It is skipped, because `_timers` has no object, or
        # another one, for its key.
        self._of_topic: dict[int, deque[TableTimer]] = {}
        self._waiting: list[TableTimer] = []
        self._hand = _BEGINNING  # Timers up to this key are ready.

    def __len__(self) -> int:
        return len(self._timers)

    def get(self, key: TimerKey) -> TableTimer | None:
        return self._timers.get(key)

    def count(self, topic: int) -> int:
        return len(self._of_topic.get(topic, ()))

    def first_key(self, without: Container[int] = ()) -> TimerKey | None:
        """Return the key of the first timer whose topic is not in `without`."""
        return min((timers[0][:2] for topic, timers in self._of_topic.items() if topic not in without), default=None)

    # -- Adding and dropping

    def add(self, timer: TableTimer) -> None:
        """Add a timer as the last one of its topic."""
        key, topic, size = timer[:2], timer.topic, len(timer.frame) + TIMER_COST_BYTES
        self._timers[key] = timer
        self._of_topic.setdefault(topic, deque()).append(timer)
        self.bytes_of[topic] = self.bytes_of.get(topic, 0) + size
        self.bytes += size
        heappush(self._waiting, timer)

    def drop(self, key: TimerKey) -> None:
        timer = self._timers.pop(key, None)
        if timer is None:
            return
        topic, size = timer.topic, len(timer.frame) + TIMER_COST_BYTES
        self.bytes -= size
        self.bytes_of[topic] -= size
        of_topic = self._of_topic[topic]
        while of_topic and not self._has(of_topic[0]):
            of_topic.popleft()
        if not of_topic:
            del self._of_topic[topic], self.bytes_of[topic]

    def drop_topic(self, topic: int) -> TimerKey | None:
        """Drop all timers of a topic; return the key of the first one."""
        timers = self._of_topic.pop(topic, ())
        for timer in filter(self._has, timers):
            del self._timers[timer[:2]]
        self.bytes -= self.bytes_of.pop(topic, 0)
        return timers[0][:2] if timers else None

    def clear(self) -> None:
        self.bytes, self._hand = 0, _BEGINNING
        for container in (self._timers, self._of_topic, self.bytes_of, self._waiting):
            container.clear()

    # -- Delivering

    def next_key(self) -> TimerKey | None:
        """Return a key at or below that of the first timer that is not ready; None if all timers are ready."""
        return self._waiting[0][:2] if self._waiting else None

    def advance(self, now_ms: int, moves_max: int) -> None:
        """Make up to `moves_max` timers ready that are due."""
        while self._waiting and self._waiting[0].due_ms <= now_ms and moves_max > 0:
            timer = heappop(self._waiting)
            moves_max -= 1
            self._hand = max(self._hand, timer[:2])
            if self._has(timer):
                self._on_ready(timer.topic, timer.due_ms)

    def ready(self, topic: int) -> Iterator[Timer]:
        """Return the ready timers of a topic in due order. The Prefetch must not change during the iteration."""
        timers = filter(self._has, self._of_topic.get(topic, ()))
        return map(row_of, takewhile(lambda timer: timer[:2] <= self._hand, timers))

    def _has(self, timer: TableTimer) -> bool:
        return self._timers.get(timer[:2]) is timer
