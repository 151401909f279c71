"""Requests that wait for records: the long polls of both protocols.

    hold ──> held, watched by queue ──┬── enough records are visible: try_complete
                                      ├── its time is up: expire
                                      ├── a queue is deleted: deleted
                                      └── its connection has closed: released

A held request ends exactly once, in one of these ways, and nothing of it stays in memory. Its memory grows with the
queues that it watches, so it is counted by them, in bytes, over all requests and for each connection. A held request
costs no work unless a queue that it watches changes. The idea and the name are Kafka's
(DelayedOperationPurgatory.scala). Times are monotonic milliseconds.

`try_complete` and `expire` may call `hold`, `release` and `check`, also for requests that are being processed.

One turn of the loop notifies at most NOTIFIED_AT_ONCE requests. A request that watches many queues checks all of
them, so it counts as several. `advance` notifies the others in later turns. The requests that watch a queue which
changes again meanwhile are notified once more afterwards.
"""

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Protocol

from duolog.delay.wheel import Wheel, WheelTimer
from duolog.store.index.queue import Queue

AT_ONCE_MS = 0
HELD_REQUEST_BYTES = 1024  # About the memory of a held request without the queues that it watches.
HELD_QUEUE_BYTES = 512  # About the memory of each queue that a held request watches.
NOTIFIED_AT_ONCE = 256  # Requests in one turn of the loop, at 10 to 40 us each.
QUEUES_OF_REQUEST = 25  # A request that watches more queues counts as one more for each so many, at 1.5 us a queue.
HELD_BYTES_MAX = 256 << 20  # The default of `limits.held_bytes_max`.
CONNECTION_BYTES_MAX = 32 << 20  # The default of `limits.connection_held_bytes_max`.


class Waiting(Protocol):
    """One request that waits."""

    def try_complete(self) -> bool:
        """Answer if there is enough now, because a queue that the request watches has changed. False: wait on."""

    def expire(self) -> None:
        """Answer, because the time of the request is up. It is no longer held."""

    def deleted(self) -> None:
        """Answer, because a queue that the request watches was deleted. It is no longer held."""

    def fail(self, error: Exception) -> None:
        """Report an error that another method raised, and answer if possible. The request is no longer held."""


class HoldingConnection(Protocol):
    """The connection of a held request."""

    held_bytes: int  # Invariant: the sum over its held requests.


class Held:
    """One request in the purgatory, as `hold` returns it."""

    __slots__ = ("connection", "keys", "size", "timer", "waiting", "weight")

    def __init__(self, waiting: Waiting, keys: tuple[int, ...], connection: HoldingConnection, size: int) -> None:
        self.waiting = waiting
        self.keys = keys
        self.connection = connection
        self.size = size  # The bytes that count towards the limits.
        self.weight = 1 + len(keys) // QUEUES_OF_REQUEST  # It counts as so many requests of NOTIFIED_AT_ONCE.
        self.timer: WheelTimer[Held] | None = None  # None: not held any more.


class Purgatory:
    """All held requests, by the keys of the queues that they watch."""

    def __init__(
        self,
        bytes_max: int = HELD_BYTES_MAX,
        connection_bytes_max: int = CONNECTION_BYTES_MAX,
        contain: Callable[[Exception], None] | None = None,
    ) -> None:
        self._contain = contain or _reraise  # Takes what `Waiting.fail` itself raises.
        self._bytes_max, self._connection_bytes_max = bytes_max, connection_bytes_max
        self.held_bytes = 0  # Invariant: the sum over held requests.
        self._wheel: Wheel[Held] = Wheel()
        self._due: deque[Held] = deque()  # Due requests that are not expired yet.
        self._watchers: dict[int, dict[Held, None]] = {}  # Only keys of queues that a request watches.
        # By queue key: the requests that were not checked since the queue changed.
        self._to_check: dict[int, Iterator[Held]] = {}
        self._changed_again: dict[int, None] = {}  # Keys in `_to_check` that changed after some requests were checked.
        self._to_end: deque[Held] = deque()  # Requests that watch a deleted queue.
        self._heavy_count = 0  # Invariant: the number of held requests with a weight above 1.

    def __len__(self) -> int:
        return len(self._wheel) + len(self._due)

    def hold(
        self,
        waiting: Waiting,
        keys: Iterable[int],
        deadline_ms: int,
        connection: HoldingConnection,
        *,
        extra_bytes: int = 0,
    ) -> Held | None:
        """Hold a request. Returns None if that exceeds a limit; then the caller must answer at once.

        `extra_bytes` is the memory of the request besides itself and the queues that it watches.
        """
        unique = tuple(keys)
        if len(unique) > 1:
            unique = tuple(dict.fromkeys(unique))
        size = HELD_REQUEST_BYTES + len(unique) * HELD_QUEUE_BYTES + extra_bytes
        if self.held_bytes + size > self._bytes_max or connection.held_bytes + size > self._connection_bytes_max:
            return None
        self.held_bytes += size
        connection.held_bytes += size
        held = Held(waiting, unique, connection, size)
        held.timer = self._wheel.add(deadline_ms, held)
        self._heavy_count += held.weight > 1
        for key in held.keys:
            self._watchers.setdefault(key, {})[held] = None
        return held

    def watching(self, key: int) -> list[Waiting]:
        """List the requests that watch a queue."""
        return [held.waiting for held in self._watchers.get(key, ())]

    def release(self, held: Held) -> None:
        """Remove a request without calling its methods. Does nothing if the request has ended."""
        if held.timer is not None:
            self._wheel.cancel(held.timer)
            self._forget(held)

    def on_visible(self, queues: Iterable[Queue]) -> None:
        """Check the requests that watch these queues, whose records became visible (`Store.on_visible`)."""
        if self._watchers:
            self.check([queue.key for queue in queues])

    def check(self, keys: Iterable[int]) -> None:
        """Let each request that watches any of these queues check once whether it has enough now."""
        found: dict[Held, None] = {}
        for key in keys:
            watchers = self._watchers.get(key, {})
            if key in self._to_check:
                self._changed_again[key] = None
            elif self._weight(found) + self._weight(watchers) <= NOTIFIED_AT_ONCE:
                found.update(watchers)
            else:
                self._to_check[key] = iter([*watchers])
        for held in found:
            self._try(held)

    def _weight(self, requests: dict[Held, None]) -> int:
        return sum([held.weight for held in requests]) if self._heavy_count else len(requests)

    def _try(self, held: Held) -> None:
        if held.timer is not None and self._is_complete(held):
            self.release(held)

    def _check_some(self, left: int) -> int:
        while self._to_check and left > 0:
            key, requests = next(iter(self._to_check.items()))
            for held in requests:
                left -= held.weight
                self._try(held)
                if left <= 0:
                    break
            if left > 0:  # No request is left.
                del self._to_check[key]
                if key in self._changed_again:
                    del self._changed_again[key]
                    self._to_check[key] = iter([*self._watchers.get(key, ())])
        return left

    def on_deleted(self, keys: Iterable[int]) -> None:
        """End each request that watches any of these queues, because they were deleted."""
        for key in keys:
            self._to_end.extend(self._watchers.get(key, ()))
        self._end_some(NOTIFIED_AT_ONCE)

    def _end_some(self, left: int) -> int:
        while self._to_end and left > 0:
            held = self._to_end.popleft()
            left -= held.weight
            if held.timer is not None:
                self.release(held)
                try:
                    held.waiting.deleted()
                except Exception as error:  # noqa: BLE001 - the other requests are notified as well
                    self._fail(held, error)
        return left

    def _is_complete(self, held: Held) -> bool:
        try:
            return held.waiting.try_complete()
        except Exception as error:  # noqa: BLE001 - the other requests are tried as well
            self._fail(held, error)
            return True

    def _fail(self, held: Held, error: Exception) -> None:
        try:
            held.waiting.fail(error)
        except Exception as fault:  # noqa: BLE001 - contained
            self._contain(fault)

    # -- Time

    def next_deadline_ms(self) -> int | None:
        return AT_ONCE_MS if self._due or self._to_check or self._to_end else self._wheel.next_deadline_ms()

    def advance(self, mono_ms: int) -> None:
        """Notify requests that earlier turns left, and expire requests whose time is up, up to NOTIFIED_AT_ONCE."""
        left = self._check_some(self._end_some(NOTIFIED_AT_ONCE))
        if not self._due:
            self._due.extend(self._wheel.advance(mono_ms, NOTIFIED_AT_ONCE))
        while self._due and left > 0:
            held = self._due.popleft()
            if held.timer is not None:  # No request that expired before it has ended it.
                left -= held.weight
                self._forget(held)
                try:
                    held.waiting.expire()
                except Exception as error:  # noqa: BLE001 - the other requests expire as well
                    self._fail(held, error)

    def _forget(self, held: Held) -> None:
        held.timer = None
        self._heavy_count -= held.weight > 1
        self.held_bytes -= held.size
        held.connection.held_bytes -= held.size
        for key in held.keys:
            watchers = self._watchers[key]
            del watchers[held]
            if not watchers:
                del self._watchers[key]


def _reraise(error: Exception) -> None:
    raise error
