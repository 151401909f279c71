"""The class Prefetch: a cache of timers that cursors have read from sorted tables before they are due.

Each prefetched timer is also in a table. So it may be dropped from the cache if the cursor that has read it goes back
(`delay/tree/cursors.py`). Timers are in a heap until they are due, then in a queue of their topic.
"""

from collections import deque
from collections.abc import Callable, Container, Iterable, Iterator
from heapq import heappop, heappush
from typing import Final

from duolog.delay.rows import Timer, TimerKey
from duolog.delay.tables.table_format import TableTimer, row_of

TIMER_COST_BYTES: Final = 500  # The memory of a prefetched timer without its frame.


class Prefetch:
    """The prefetched timers. `on_ready` is called with the topic and due time of each timer that becomes ready."""

    def __init__(self, on_ready: Callable[[int, int], None]) -> None:
        self.bytes = 0
        self._on_ready = on_ready
        self._timers: dict[TimerKey, TableTimer] = {}
        self._of_topic: dict[int, dict[TimerKey, TableTimer]] = {}  # The timers of each topic, in due order.
        self._bytes_of: dict[int, int] = {}  # By topic.
        # A dropped timer stays in `_waiting` and `_ready`. It is skipped, because `_timers` has no object, or another
        # one, for its key.
        self._waiting: list[TableTimer] = []
        self._ready: dict[int, deque[TableTimer]] = {}

    def __len__(self) -> int:
        return len(self._timers)

    def get(self, key: TimerKey) -> TableTimer | None:
        return self._timers.get(key)

    def count(self, topic: int) -> int:
        return len(self._of_topic.get(topic, ()))

    def bytes_of(self, topic: int) -> int:
        return self._bytes_of.get(topic, 0)

    def largest(self, without: Iterable[int]) -> tuple[int, int]:
        """Return (topic, bytes) of the topic that takes most bytes and is not in `without`; (0, 0) if there is none."""
        left_out = set(without)
        sizes = ((size, topic) for topic, size in self._bytes_of.items() if topic not in left_out)
        size, topic = max(sizes, default=(0, 0))
        return topic, size

    def first_key(self, without: Container[int] = ()) -> TimerKey | None:
        """Return the key of the first timer whose topic is not in `without`."""
        return min(
            (next(iter(timers)) for topic, timers in self._of_topic.items() if topic not in without), default=None
        )

    # -- Adding and dropping

    def add(self, timer: TableTimer) -> None:
        """Add a timer as the last one of its topic."""
        key, topic, size = timer[:2], timer.topic, len(timer.frame) + TIMER_COST_BYTES
        self._timers[key] = timer
        self._of_topic.setdefault(topic, {})[key] = timer
        self._bytes_of[topic] = self._bytes_of.get(topic, 0) + size
        self.bytes += size
        heappush(self._waiting, timer)

    def drop(self, key: TimerKey) -> None:
        timer = self._timers.pop(key, None)
        if timer is None:
            return
        topic, size = timer.topic, len(timer.frame) + TIMER_COST_BYTES
        self.bytes -= size
        of_topic = self._of_topic[topic]
        del of_topic[key]
        if of_topic:
            self._bytes_of[topic] -= size
        else:
            del self._of_topic[topic], self._bytes_of[topic]
            self._ready.pop(topic, None)

    def drop_topic(self, topic: int) -> TimerKey | None:
        """Drop all timers of a topic; return the key of the first one."""
        timers = self._of_topic.pop(topic, None)
        self._ready.pop(topic, None)
        if timers is None:
            return None
        for key in timers:
            del self._timers[key]
        self.bytes -= self._bytes_of.pop(topic)
        return next(iter(timers))

    def clear(self) -> None:
        self.bytes = 0
        for container in (self._timers, self._of_topic, self._bytes_of, self._waiting, self._ready):
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
            if self._has(timer):
                self._ready.setdefault(timer.topic, deque()).append(timer)
                self._on_ready(timer.topic, timer.due_ms)

    def ready(self, topic: int) -> Iterator[Timer]:
        """Return the ready timers of a topic in due order. The Prefetch must not change during the iteration."""
        queue = self._ready.get(topic)
        while queue and not self._has(queue[0]):
            queue.popleft()
        return map(row_of, filter(self._has, queue or ()))

    def _has(self, timer: TableTimer) -> bool:
        return self._timers.get(timer[:2]) is timer
