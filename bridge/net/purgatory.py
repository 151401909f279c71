"""Requests that wait for records: the long polls of both protocols.

    hold ──> held, watched by queue ──┬── records are visible, and enough: completed
                                      ├── its time is up: expired
                                      ├── a queue is deleted: told so
                                      └── its connection has gone: released

It ends exactly once, by one of these, and nothing of it stays behind. Its memory grows with the queues that it watches,
so it is counted by them, in bytes, over all requests and for each connection. Nobody looks at a held
request unless something happened to a queue that it watches. The idea and the name are Kafka's
(DelayedOperationPurgatory.scala). Times are monotonic milliseconds.

`try_complete` and `expire` may hold, release and check as they like, also the requests that are being gone through.

One turn of the loop tells TOLD_AT_ONCE of them. Where more watch what has changed, `advance` goes on with the others,
and a queue that changes again meanwhile is gone through once more afterwards.
"""

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import Protocol

from duolog.delay.wheel import Timer, Wheel
from duolog.store.index.queue import Queue

AT_ONCE_MS = 0
HELD_UNIT_BYTES = 512  # What a held request takes, about, for each queue that it watches.
TOLD_AT_ONCE = 256  # in one turn of the loop, at 10 to 40 us each
HELD_BYTES_MAX = 256 << 20  # what `limits.held_bytes_max` says unless set otherwise,
OWNER_BYTES_MAX = 32 << 20  # and `limits.connection_held_bytes_max`


class Waiting(Protocol):
    """One request that waits."""

    def try_complete(self) -> bool:
        """Something happened to a queue that it watches: go on if that is enough. True: it waits no more."""

    def expire(self) -> None:
        """The time is up; it waits no more."""

    def deleted(self) -> None:
        """A queue that it watches was deleted; it waits no more."""

    def fail(self, error: Exception) -> None:
        """One of the two raised this: report it, and answer if that can still be; it waits no more."""


class Owner(Protocol):
    """The connection that a held request came by."""

    held_bytes: int  # Invariant: the sum over its held requests.


class Held:
    """What `hold` gives: one request in the purgatory, to release it by."""

    __slots__ = ("keys", "owner", "size", "timer", "waiting")

    def __init__(self, waiting: Waiting, keys: tuple[int, ...], owner: Owner, size: int) -> None:
        self.waiting = waiting
        self.keys = keys
        self.owner = owner
        self.size = size  # In bytes, about; what it counts against the limits.
        self.timer: Timer[Held] | None = None  # None: not held any more.


class Purgatory:
    """All held requests, by the keys of the queues that they watch."""

    def __init__(
        self,
        bytes_max: int = HELD_BYTES_MAX,
        owner_bytes_max: int = OWNER_BYTES_MAX,
        contain: Callable[[Exception], None] | None = None,
    ) -> None:
        self._contain = contain or _reraise  # Takes what `Waiting.fail` itself raises.
        self._bytes_max, self._owner_bytes_max = bytes_max, owner_bytes_max
        self.held_bytes = 0  # Invariant: the sum over held requests.
        self._wheel: Wheel[Held] = Wheel()
        self._due: deque[Held] = deque()  # out of the wheel, and not told yet
        self._watchers: dict[int, dict[Held, None]] = {}  # only keys that somebody watches
        self._to_ask: dict[int, Iterator[Held]] = {}  # by key: those that were not asked yet since it changed
        self._changed_again: dict[int, None] = {}  # keys in `_to_ask`, after some of their requests were asked
        self._to_end: deque[Held] = deque()  # a queue of theirs was deleted

    def __len__(self) -> int:
        return len(self._wheel) + len(self._due)

    def hold(
        self, waiting: Waiting, keys: Iterable[int], deadline_ms: int, owner: Owner, *, extra_bytes: int = 0
    ) -> Held | None:
        """Let it wait; None if that exceeds a limit, of all or of its owner: then it is to be answered at once.

        `extra_bytes` is what it keeps besides itself and the queues that it watches.
        """
        unique = tuple(dict.fromkeys(keys))
        size = max(1, len(unique)) * HELD_UNIT_BYTES + extra_bytes
        if self.held_bytes + size > self._bytes_max or owner.held_bytes + size > self._owner_bytes_max:
            return None
        self.held_bytes += size
        owner.held_bytes += size
        held = Held(waiting, unique, owner, size)
        held.timer = self._wheel.add(deadline_ms, held)
        for key in held.keys:
            self._watchers.setdefault(key, {})[held] = None
        return held

    def watching(self, key: int) -> list[Waiting]:
        """Name those that watch a queue."""
        return [held.waiting for held in self._watchers.get(key, ())]

    def release(self, held: Held) -> None:
        """Let it wait no more, without a word to it; nothing happens if it has ended."""
        if held.timer is not None:
            self._wheel.cancel(held.timer)
            self._forget(held)

    def on_visible(self, queues: Iterable[Queue]) -> None:
        """Records of these queues became visible (`Store.on_visible`)."""
        if self._watchers:
            self.check([queue.key for queue in queues])

    def check(self, keys: Iterable[int]) -> None:
        """Something happened to these queues: ask each request that watches any of them, once."""
        asked: dict[Held, None] = {}
        for key in keys:
            watchers = self._watchers.get(key, {})
            if key in self._to_ask:
                self._changed_again[key] = None
            elif len(asked) + len(watchers) <= TOLD_AT_ONCE:
                asked.update(watchers)
            else:
                self._to_ask[key] = iter([*watchers])
        for held in asked:
            self._ask(held)

    def _ask(self, held: Held) -> None:
        if held.timer is not None and self._is_complete(held):
            self.release(held)

    def _ask_some(self, left: int) -> None:
        while self._to_ask and left > 0:
            key, requests = next(iter(self._to_ask.items()))
            for held in islice(requests, left):
                left -= 1
                self._ask(held)
            if left > 0:  # None is left of them.
                del self._to_ask[key]
                if key in self._changed_again:
                    del self._changed_again[key]
                    self._to_ask[key] = iter([*self._watchers.get(key, ())])

    def on_deleted(self, keys: Iterable[int]) -> None:
        """These queues were deleted: end each request that watches any of them."""
        for key in keys:
            self._to_end.extend(self._watchers.get(key, ()))
        self._end_some(TOLD_AT_ONCE)

    def _end_some(self, left: int) -> None:
        while self._to_end and left > 0:
            held = self._to_end.popleft()
            left -= 1
            if held.timer is not None:
                self.release(held)
                try:
                    held.waiting.deleted()
                except Exception as error:  # noqa: BLE001 - the others hear of it as well
                    self._fail(held, error)

    def _is_complete(self, held: Held) -> bool:
        try:
            return held.waiting.try_complete()
        except Exception as error:  # noqa: BLE001 - the others are asked as well
            self._fail(held, error)
            return True

    def _fail(self, held: Held, error: Exception) -> None:
        try:
            held.waiting.fail(error)
        except Exception as fault:  # noqa: BLE001 - contained
            self._contain(fault)

    # -- Time

    def next_deadline_ms(self) -> int | None:
        return AT_ONCE_MS if self._due or self._to_ask or self._to_end else self._wheel.next_deadline_ms()

    def advance(self, mono_ms: int) -> None:
        """End some of those whose time is up, and go on with what was left of earlier turns."""
        self._end_some(TOLD_AT_ONCE)
        self._ask_some(TOLD_AT_ONCE)
        if not self._due:
            self._due.extend(self._wheel.advance(mono_ms, TOLD_AT_ONCE))
        for _ in range(min(TOLD_AT_ONCE, len(self._due))):
            held = self._due.popleft()
            if held.timer is not None:  # Not ended meanwhile, by one that was told before it.
                self._forget(held)
                try:
                    held.waiting.expire()
                except Exception as error:  # noqa: BLE001 - the time of the others is up as well
                    self._fail(held, error)

    def _forget(self, held: Held) -> None:
        held.timer = None
        self.held_bytes -= held.size
        held.owner.held_bytes -= held.size
        for key in held.keys:
            watchers = self._watchers[key]
            del watchers[held]
            if not watchers:
                del self._watchers[key]


def _reraise(error: Exception) -> None:
    raise error
