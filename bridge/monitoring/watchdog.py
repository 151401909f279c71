"""Watchdog: measures how long each turn of the event loop takes, and reports long turns.

    the loop ──> an entry point of the broker: received bytes, a duty, the result of a thread, the end of a turn,
                 one step of an HTTP handler, a callback
                 begun_s = seconds()  ...  watchdog.turned(kind, begun_s)

    duolog_loop_turn_seconds          histogram of all turns
    duolog_long_loop_turns_total      turns of LONG_S and more, by kind; the log has a line for some of them

A turn costs two readings of the clock, for any number of requests. The kind of a connection's turn is that of its last
request, which is usually the long one, because a connection yields to others after a request that used up its time.
Pauses of the garbage collector and of the process count as part of the turn that they interrupt.
"""

import logging
from collections import Counter
from collections.abc import Callable, Coroutine, Generator
from functools import partial
from time import perf_counter
from types import coroutine
from typing import Any, Final, TypeVar

from duolog.bridge.monitoring.histogram import Histogram

T = TypeVar("T")

BOUNDS_S: Final = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 5.0)
NOTED_S: Final = BOUNDS_S[0]  # Shorter turns are only counted and summed.
LONG_S: Final = 0.1
QUIET_S: Final = 5.0  # Between two log lines of one kind.

log = logging.getLogger("bridge")


class Watchdog:
    """The turns since the start. `seconds` is a monotonic clock with a resolution of microseconds."""

    def __init__(self, seconds: Callable[[], float] = perf_counter) -> None:
        self.seconds = seconds
        self.count = 0  # The number of all turns.
        self.total_s = 0.0  # The duration of all turns.
        self.long: Counter[str] = Counter()  # Turns of LONG_S and more, by kind.
        # The longest turn since the last `reset`, by kind; only turns of NOTED_S and more.
        self.longest_s: dict[str, float] = {}
        self._noted = Histogram(BOUNDS_S)  # Turns of NOTED_S and more.
        self._next_warning_s: dict[str, float] = {}

    def turned(self, kind: str | Callable[..., object], begun_s: float) -> float:
        """Record the end of a turn that began at `begun_s`, and return how long it took.

        A turn with a thread's result is named by its callback.
        """
        took_s = self.seconds() - begun_s
        self.count += 1
        self.total_s += took_s
        if took_s >= NOTED_S:
            self._note(kind if isinstance(kind, str) else f"outcome {_name_of(kind)}", took_s, begun_s + took_s)
        return took_s

    def buckets(self) -> list[tuple[str, int]]:
        """Return the histogram for Prometheus: each upper bound with the number of turns up to it."""
        noted = self._noted.buckets()
        shorter = self.count - noted[-1][1]
        return [(bound, shorter + count) for bound, count in noted]

    def reset(self) -> None:
        """Clear the longest turns; the counters continue."""
        self.longest_s.clear()

    def _note(self, kind: str, took_s: float, now_s: float) -> None:
        self._noted.add(took_s)
        if took_s > self.longest_s.get(kind, 0.0):
            self.longest_s[kind] = took_s
        if took_s < LONG_S:
            return
        self.long[kind] += 1
        if now_s >= self._next_warning_s.get(kind, now_s):
            self._next_warning_s[kind] = now_s + QUIET_S
            log.warning("loop turn was long kind=%r ms=%.0f in_all=%d", kind, took_s * 1000, self.long[kind])


@coroutine
def measured(
    work: Coroutine[Any, Any, T], watchdog: Watchdog, kind: str, use: Callable[[float], None] | None = None
) -> Generator[Any, Any, T]:
    """Await `work`, and measure each of its steps between two awaits; `use` gets the seconds of each."""
    step: Callable[[], Any] = partial(work.send, None)
    while True:
        begun_s = watchdog.seconds()
        try:
            awaited = step()
        except StopIteration as end:
            result: T = end.value
            return result
        finally:
            took_s = watchdog.turned(kind, begun_s)
            if use is not None:
                use(took_s)
        try:
            step = partial(work.send, (yield awaited))
        except BaseException as error:  # noqa: BLE001 - it is raised where `work` waits
            step = partial(work.throw, error)


def _name_of(callback: Callable[..., object]) -> str:
    """Return the name of the function that a callback calls in the end."""
    while isinstance(callback, partial):
        callback = callback.func
    return str(getattr(callback, "__qualname__", type(callback).__qualname__))
