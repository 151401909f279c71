"""Counts the work of one turn of the loop, such that the figure is the same on a busy machine.

A work unit is one call of a Python function or of a C function from Python. Work inside one C call does not count, so
the processor time of the thread is checked as well, against a limit that only runaway work reaches. The garbage
collector waits meanwhile, because it would go through all that the tests of this process have made.
"""

import gc
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

from duolog.store.workers import Failure, Inline

T = TypeVar("T")

# What the loop does in 50 ms on the machine that the limits were set on: about 7 million calls a second.
UNITS_MAX = 350_000
# Processor time: five times the 50 ms of a request, which a noisy machine does not reach without a fault of ours.
CPU_MS_MAX = 250


_uncounted_ns = 0  # The time of tasks within the counted turn that run in threads in a broker.


def uncounted(run: Callable[[], T]) -> T:
    """Run a task that a broker runs in a thread; only the loop's work with its outcome counts."""
    global _uncounted_ns
    counter = sys.getprofile()
    sys.setprofile(None)
    begun_ns = time.thread_time_ns()
    try:
        return run()
    finally:
        _uncounted_ns += time.thread_time_ns() - begun_ns
        sys.setprofile(counter)


class OffTheLoop(Inline):
    """An executor whose tasks do not count."""

    def submit(self, run: Callable[[], T], done: Callable[[T | Failure], None]) -> None:
        super().submit(lambda: uncounted(run), done)


class Work:
    """The work of one turn, once `counted` has ended."""

    units = 0
    cpu_ms = 0.0


@contextmanager
def counted(*, calls: bool) -> Iterator[Work]:
    """Count the work of the block; without `calls` only its processor time, which costs nothing."""
    global _uncounted_ns
    work = Work()
    units = 0

    def on_event(_frame: object, event: str, _arg: object) -> None:
        nonlocal units
        if event in ("call", "c_call"):
            units += 1

    if calls:
        sys.setprofile(on_event)
    gc.disable()
    _uncounted_ns = 0
    begun_ns = time.thread_time_ns()
    try:
        yield work
    finally:
        work.cpu_ms = (time.thread_time_ns() - begun_ns - _uncounted_ns) / 1e6
        if calls:
            sys.setprofile(None)
        gc.enable()
        work.units = units
