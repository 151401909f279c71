"""The class Turns: topics with ready timers take turns, so that a topic with many does not delay the others.

    state      event                               next state
    idle       a timer becomes ready               waiting
    waiting    `take` gives the topic a turn       delivering
    waiting    its first ready timer is not below  blocked
               the position of its cursor
    waiting    it has no ready timer any more      idle
    blocked    its cursor has moved                waiting
    delivering `give_back`                         waiting

A paused topic is never waiting.
"""

from collections.abc import Callable
from typing import NamedTuple, Protocol

from duolog.delay.rows import Timer, TimerKey
from duolog.delay.wheel import NEVER_MS


class Turn(NamedTuple):
    """The timers that a topic may deliver now, in due order."""

    topic: int
    timers: list[Timer]


class Source(Protocol):
    """The ready timers of topics (`PendingTimers`)."""

    def first_due(self, topic: int, now_ms: int, count_max: int, bytes_max: int) -> list[Timer]: ...

    def first_ready(self, topic: int) -> Timer | None: ...

    @property
    def limit_of(self) -> Callable[[int], TimerKey | None]: ...


class Turns:
    """The states of the topics that have ready timers. `source` has these timers."""

    def __init__(self, source: Source) -> None:
        self.paused: set[int] = set()
        self.on_blocked: Callable[[], None] = lambda: None  # Called when a topic must wait for its cursor.
        self._source = source
        self._waiting: dict[int, None] = {}  # Topics in the order of their turns.
        self._delivering: set[int] = set()
        self._blocked: set[int] = set()
        self._earliest_ms = NEVER_MS  # No timer of a waiting topic is due before this time.

    def __len__(self) -> int:
        """Return the number of waiting topics."""
        return len(self._waiting)

    def next_ms(self) -> int:
        """Return a time before which no topic has a turn; NEVER_MS if no topic waits."""
        return self._earliest_ms if self._waiting else NEVER_MS

    def offer(self, topic: int, due_ms: int) -> None:
        """Let a topic wait for a turn, because a timer of it that is due at `due_ms` has become ready."""
        if topic not in self.paused and topic not in self._delivering and topic not in self._blocked:
            self._waiting.setdefault(topic)
            self._earliest_ms = min(self._earliest_ms, due_ms)

    def take(self, now_ms: int, count_max: int, bytes_max: int) -> Turn | None:
        """Return the timers that the next topic may deliver, within these limits; one timer even if it is larger.

        The timers stay pending until they are removed; the topic has no other turn until `give_back`.
        """
        if now_ms < self._earliest_ms:
            return None
        turn: Turn | None = None
        earliest_ms, idle, blocked = NEVER_MS, [], []
        for topic in self._waiting:
            timers = self._source.first_due(topic, now_ms, count_max, bytes_max)
            if timers:
                turn = Turn(topic, timers)
                break
            first, limit = self._source.first_ready(topic), self._source.limit_of(topic)
            if first is None:
                idle.append(topic)
            elif first.due_ms <= now_ms and limit is not None and first[:2] >= limit:
                blocked.append(topic)
            else:  # The clock was set back, or earlier rows are not ready yet.
                earliest_ms = min(earliest_ms, first.due_ms)
        for topic in idle:
            del self._waiting[topic]
        for topic in blocked:
            self._block(topic)
        if turn is None:
            self._earliest_ms = earliest_ms
        else:
            del self._waiting[turn.topic]
            self._delivering.add(turn.topic)
        return turn

    def _block(self, topic: int) -> None:
        del self._waiting[topic]
        self._blocked.add(topic)
        self.on_blocked()

    def unblock(self, topic: int | None) -> None:
        """Let a blocked topic wait for a turn, because its cursor has moved; None: all blocked topics."""
        for each in [*self._blocked] if topic is None else self._blocked & {topic}:
            self._blocked.discard(each)
            self.wait_if_ready(each)

    def give_back(self, topic: int) -> None:
        """End the turn of a topic, and let it wait for the next one."""
        self._delivering.discard(topic)
        self.wait_if_ready(topic)

    def pause(self, topic: int) -> None:
        self.paused.add(topic)
        self._waiting.pop(topic, None)
        self._blocked.discard(topic)

    def resume(self, topic: int) -> None:
        self.paused.discard(topic)
        self.wait_if_ready(topic)

    def wait_if_ready(self, topic: int) -> None:
        """Let a topic wait for a turn if one of its timers is ready."""
        first = self._source.first_ready(topic)
        if first is not None:
            self.offer(topic, first.due_ms)
