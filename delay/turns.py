"""Topics that have something to deliver take turns, so that a topic with many due timers does not hold up the others.

    state      event                               next state
    idle       something is due                    waiting
    waiting    `take` gives the topic a turn       delivering
    waiting    its cursor has not read so far      blocked
    waiting    nothing of it is ready any more     idle
    blocked    its cursor has moved                waiting
    delivering `give_back`                         waiting

A paused topic is never waiting.
"""

from collections.abc import Callable
from typing import NamedTuple, Protocol

from duolog.delay.rows import Timer
from duolog.delay.wheel import NEVER_MS


class Turn(NamedTuple):
    """What a topic may deliver now, in order."""

    topic: int
    timers: list[Timer]


class Source(Protocol):
    """What topics have to deliver."""

    def first_due(self, topic: int, now_ms: int, count_max: int, bytes_max: int) -> list[Timer]: ...

    def next_ready_ms(self, topic: int) -> int | None: ...

    def is_at_limit(self, topic: int) -> bool:
        """Whether the first ready timer of a topic must wait for the topic's cursor."""
        ...


class Turns:
    def __init__(self, source: Source) -> None:
        self.paused: set[int] = set()
        self.on_blocked: Callable[[], None] | None = None  # Called when a topic must wait for its cursor.
        self._source = source
        self._waiting: dict[int, None] = {}  # In the order of their turns.
        self._delivering: set[int] = set()
        self._blocked: set[int] = set()
        self._earliest_ms = NEVER_MS  # No waiting topic has anything due before.

    def __len__(self) -> int:
        """How many topics may have something to deliver."""
        return len(self._waiting)

    def next_ms(self) -> int | None:
        return self._earliest_ms if self._waiting else None

    def offer(self, topic: int, due_ms: int) -> None:
        """A topic has something that is due then."""
        if topic not in self.paused and topic not in self._delivering and topic not in self._blocked:
            self._waiting.setdefault(topic)
            self._earliest_ms = min(self._earliest_ms, due_ms)

    def take(self, now_ms: int, count_max: int, bytes_max: int) -> Turn | None:
        """Return what the next topic may deliver: at most so many, and so many bytes unless the first has more.

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
            next_ms = self._source.next_ready_ms(topic)
            if next_ms is None:
                idle.append(topic)
            elif next_ms <= now_ms and self._source.is_at_limit(topic):
                blocked.append(topic)
            else:  # The clock was set back, or rows that are due before are not ready yet.
                earliest_ms = min(earliest_ms, next_ms)
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
        if self.on_blocked is not None:
            self.on_blocked()

    def unblock(self, topic: int | None) -> None:
        """A topic's cursor has moved, or for None that of many topics."""
        for each in [*self._blocked] if topic is None else self._blocked & {topic}:
            self._blocked.discard(each)
            self.line_up(each)

    def give_back(self, topic: int) -> None:
        """Let a topic that had its turn wait for the next one."""
        self._delivering.discard(topic)
        self.line_up(topic)

    def pause(self, topic: int) -> None:
        self.paused.add(topic)
        self._waiting.pop(topic, None)
        self._blocked.discard(topic)

    def resume(self, topic: int) -> None:
        self.paused.discard(topic)
        self.line_up(topic)

    def line_up(self, topic: int) -> None:
        """Let a topic wait for a turn if it has anything that is ready."""
        next_ms = self._source.next_ready_ms(topic)
        if next_ms is not None:
            self.offer(topic, next_ms)
