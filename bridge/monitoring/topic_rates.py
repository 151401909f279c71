"""Messages in a second by topic, from samples of the queues' end offsets every INTERVAL_MS.

A round over all topics is cut into slices of QUEUES_IN_SLICE queues. Topics beyond TOPICS_MAX have no rate.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from typing import Final, NamedTuple, Protocol

INTERVAL_MS: Final = 10_000
QUEUES_IN_SLICE: Final = 4_000  # At 0.1 microseconds each.
TOPICS_MAX: Final = 10_000


class CountedQueue(Protocol):
    """A queue of a topic."""

    @property
    def visible_end(self) -> int: ...


class CountedTopic(Protocol):
    """A topic with its number."""

    @property
    def number(self) -> int: ...

    @property
    def queues(self) -> Sequence[CountedQueue]: ...


class _Counted(NamedTuple):
    mono_ms: int
    messages: int
    per_second: float | None  # None: it was counted once.


class TopicRates:
    """The rates of the last interval. `topics` returns all topics."""

    def __init__(self, topics: Callable[[], Iterable[CountedTopic]]) -> None:
        self._topics = topics
        self._counted: dict[int, _Counted] = {}
        self._round: Iterator[CountedTopic] | None = None
        self._next: dict[int, _Counted] = {}  # What the round has counted.
        self._begun_mono_ms = -INTERVAL_MS

    def next_deadline_ms(self) -> int:
        """Return the monotonic time of the next slice."""
        return self._begun_mono_ms if self._round is not None else self._begun_mono_ms + INTERVAL_MS

    def run(self, mono_ms: int) -> None:
        """Count the topics of one slice."""
        if self._round is None:
            self._begun_mono_ms = mono_ms
            self._round = islice(list(self._topics()), TOPICS_MAX)
        room = QUEUES_IN_SLICE
        for topic in self._round:
            self._next[topic.number] = self._count(topic, mono_ms)
            room -= len(topic.queues) + 1
            if room <= 0:
                return
        self._counted, self._next, self._round = self._next, {}, None

    def per_second(self, number: int) -> float | None:
        """Return the rate of the topic with this number; None if it is not known yet."""
        found = self._counted.get(number)
        return None if found is None else found.per_second

    def _count(self, topic: CountedTopic, mono_ms: int) -> _Counted:
        count, before = sum([queue.visible_end for queue in topic.queues]), self._counted.get(topic.number)
        if before is None:
            return _Counted(mono_ms, count, None)
        seconds = max(1, mono_ms - before.mono_ms) / 1000
        return _Counted(mono_ms, count, round(max(0, count - before.messages) / seconds, 3))
