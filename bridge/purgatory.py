"""Requests that wait for records: the long polls of both protocols.

    hold ──> held, watched by queue ──┬── records are visible, and enough: completed
                                      ├── its time is up: expired
                                      └── its connection has gone: released

It ends exactly once, by one of these. Nobody looks at a held request unless something happened to a queue that it
watches. The idea and the name are Kafka's (DelayedOperationPurgatory.scala). Times are monotonic milliseconds.
"""

from collections.abc import Iterable
from typing import Protocol

from delay.wheel import Timer, Wheel
from store.queue import Queue

HELD_MAX = 500_000  # what `limits.held_requests_max` says unless set otherwise


class Waiting(Protocol):
    """One request that waits."""

    def try_complete(self) -> bool:
        """Something happened to a queue that it watches: go on if that is enough. True: it waits no more."""

    def expire(self) -> None:
        """The time is up; it waits no more."""


class Held:
    """What `hold` gives: one request in the purgatory, to release it by."""

    __slots__ = ("keys", "timer", "waiting")

    def __init__(self, waiting: Waiting, keys: tuple[int, ...]) -> None:
        self.waiting = waiting
        self.keys = keys
        self.timer: Timer[Held] | None = None  # None: not held any more.


class Purgatory:
    """All held requests, by the keys of the queues that they watch."""

    def __init__(self, held_max: int = HELD_MAX) -> None:
        self._held_max = held_max
        self._wheel: Wheel[Held] = Wheel()
        self._watchers: dict[int, dict[Held, None]] = {}

    def __len__(self) -> int:
        return len(self._wheel)

    def hold(self, waiting: Waiting, keys: Iterable[int], deadline_ms: int) -> Held | None:
        """Let it wait; None if `held_max` requests do already: then it is to be answered at once."""
        if len(self._wheel) >= self._held_max:
            return None
        held = Held(waiting, tuple(dict.fromkeys(keys)))
        held.timer = self._wheel.add(deadline_ms, held)
        for key in held.keys:
            self._watchers.setdefault(key, {})[held] = None
        return held

    def release(self, held: Held) -> None:
        """Let it wait no more, without a word to it; nothing happens if it has ended."""
        if held.timer is not None:
            self._wheel.cancel(held.timer)
            self._forget(held)

    def on_visible(self, queues: Iterable[Queue]) -> None:
        """Records of these queues became visible (`Store.on_visible`)."""
        self.check(queue.key for queue in queues)

    def check(self, keys: Iterable[int]) -> None:
        """Something happened to these queues: ask each request that watches any of them, once."""
        watchers = self._watchers
        asked = dict.fromkeys(held for key in keys if key in watchers for held in watchers[key])
        for held in asked:
            if held.timer is not None and held.waiting.try_complete():
                self.release(held)

    # -- Time

    def next_deadline_ms(self) -> int | None:
        return self._wheel.next_deadline_ms()

    def advance(self, mono_ms: int) -> None:
        """End those whose time is up."""
        for held in self._wheel.advance(mono_ms):
            if held.timer is not None:  # Not released by one that ended before it.
                self._forget(held)
                held.waiting.expire()

    def _forget(self, held: Held) -> None:
        held.timer = None
        for key in held.keys:
            watchers = self._watchers[key]
            watchers.pop(held, None)
            if not watchers:
                del self._watchers[key]
