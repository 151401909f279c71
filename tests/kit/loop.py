"""An event loop whose time jumps: when nothing is left to do, the next timer's time has come.

    clock = ManualClock()
    run(main(), clock)              # asyncio.run, but `await asyncio.sleep(86_400)` takes no time

The clock that the broker is given and the loop's own time are one, so a whole broker runs through a day of deadlines
in the time that its work takes. Sockets work as ever, and what they have to say is heard before time jumps. Of threads
the loop knows nothing: where they take part (the flusher's fsync), `quiet_s` makes it wait for so much real silence
before each jump. Nothing ever waits for real time to pass. What asyncio would give to a thread of its own
(`asyncio.to_thread`) runs at once in the loop, so that a test does the same in every run.
"""

import asyncio
import math
import selectors
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any, TypeVar

from tests.kit.clock import ManualClock

STUCK_S = 30.0  # of real time

Result = TypeVar("Result")


class Stuck(RuntimeError):
    """Everything waits, and no timer is set that could end it."""


class VirtualLoop(asyncio.SelectorEventLoop):
    """Its time is the clock's; it moves the clock when it would sleep."""

    def __init__(self, clock: ManualClock, quiet_s: float = 0.0) -> None:
        self._manual_clock = clock
        super().__init__(_JumpingSelector(clock, quiet_s))
        self.run_task: Callable[[Callable[[], Any]], Any] = lambda task: task()  # A test may count what tasks take.

    def time(self) -> float:
        return self._manual_clock.mono_us() / 1e6

    def run_in_executor(self, executor: object, func: Callable[..., Any], *args: Any) -> asyncio.Future[Any]:  # type: ignore[override]
        outcome = self.create_future()
        try:
            outcome.set_result(self.run_task(partial(func, *args)))
        except Exception as error:  # noqa: BLE001 - handed to whoever awaits it
            outcome.set_exception(error)
        return outcome


class _JumpingSelector(selectors.DefaultSelector):
    """Where a selector waits for a time, this one lets it pass."""

    def __init__(self, clock: ManualClock, quiet_s: float) -> None:
        super().__init__()
        self._clock = clock
        self._quiet_s = quiet_s

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is None:
            ready = super().select(STUCK_S)
            if not ready:
                raise Stuck(f"nothing happened for {STUCK_S:.0f} s, and no timer is set")
            return ready
        ready = super().select(self._quiet_s if timeout > 0 else 0)
        if not ready and timeout > 0:
            self._clock.pass_us(math.ceil(timeout * 1e6))
        return ready


def run(main: Coroutine[object, object, Result], clock: ManualClock, *, quiet_s: float = 0.0) -> Result:
    """Run `main` to its end in virtual time, as `asyncio.run` does in real time."""
    with asyncio.Runner(loop_factory=lambda: VirtualLoop(clock, quiet_s)) as runner:
        return runner.run(main)
