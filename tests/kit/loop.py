"""An event loop with virtual time: when no task can run, time jumps to the next timer.

    clock = ManualClock()
    run(main(), clock)              # like asyncio.run, but `await asyncio.sleep(86_400)` takes no time

The loop and the broker use the same clock, so a whole broker runs through a day of deadlines in the time that its work
takes. Sockets work as usual, and their events are handled before time jumps. The loop does not know what threads do; if
they take part (the flusher's fsync), `quiet_s` makes the loop wait for that much real time without events before each
jump. Otherwise it never waits for real time. `asyncio.to_thread` runs its function at once in the loop, so that a test
does the same in every run.
"""

import asyncio
import math
import selectors
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any, TypeVar

from tests.kit.clock import ManualClock

STUCK_S = 30.0  # The real time after which a test is considered stuck.

Result = TypeVar("Result")


class Stuck(RuntimeError):
    """All tasks wait, and no timer is set."""


class VirtualLoop(asyncio.SelectorEventLoop):
    """An event loop whose time is that of the clock; it advances the clock where other loops sleep."""

    def __init__(self, clock: ManualClock, quiet_s: float = 0.0) -> None:
        self._manual_clock = clock
        super().__init__(_JumpingSelector(clock, quiet_s))
        # A test may replace it, to measure tasks.
        self.run_task: Callable[[Callable[[], Any]], Any] = lambda task: task()

    def time(self) -> float:
        return self._manual_clock.mono_us() / 1e6

    def run_in_executor(self, executor: object, func: Callable[..., Any], *args: Any) -> asyncio.Future[Any]:  # type: ignore[override]
        outcome = self.create_future()
        try:
            outcome.set_result(self.run_task(partial(func, *args)))
        except Exception as error:  # noqa: BLE001 - raised where the task is awaited
            outcome.set_exception(error)
        return outcome


class _JumpingSelector(selectors.DefaultSelector):
    """A selector that advances the clock instead of waiting for a timeout."""

    def __init__(self, clock: ManualClock, quiet_s: float) -> None:
        super().__init__()
        self._clock = clock
        self._quiet_s = quiet_s
        self._files = 0  # The number of registered files. The loop itself has one, by which threads wake it.

    def register(self, fileobj: Any, events: int, data: Any = None) -> selectors.SelectorKey:
        self._files += 1
        return super().register(fileobj, events, data)

    def unregister(self, fileobj: Any) -> selectors.SelectorKey:
        self._files -= 1
        return super().unregister(fileobj)

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is None:
            ready = super().select(STUCK_S)
            if not ready:
                raise Stuck(f"nothing happened for {STUCK_S:.0f} s, and no timer is set")
            return ready
        if self._files == 1 and not self._quiet_s:  # No socket can be ready, so the system is not asked.
            if timeout > 0:
                self._clock.pass_us(math.ceil(timeout * 1e6))
            return []
        ready = super().select(self._quiet_s if timeout > 0 else 0)
        if not ready and timeout > 0:
            self._clock.pass_us(math.ceil(timeout * 1e6))
        return ready


def run(main: Coroutine[object, object, Result], clock: ManualClock, *, quiet_s: float = 0.0) -> Result:
    """Run `main` to its end in virtual time, as `asyncio.run` does in real time."""
    with asyncio.Runner(loop_factory=lambda: VirtualLoop(clock, quiet_s)) as runner:
        return runner.run(main)
