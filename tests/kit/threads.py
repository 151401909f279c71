"""Worker threads that work when the test says so: what `store.workers.Workers` is in production."""

from collections import deque
from collections.abc import Callable
from typing import TypeVar

from duolog.store.workers import Failure

T = TypeVar("T")


class ManualThreads:
    """Implements `store.workers.Executor`: tasks wait until `run`."""

    def __init__(self) -> None:
        self.waiting: deque[Callable[[], None]] = deque()

    def submit(self, run: Callable[[], T], done: Callable[[T | Failure], None]) -> None:
        self.waiting.append(lambda: done(run()))

    def run(self) -> None:
        """Do all that waits, and what comes of it."""
        while self.waiting:
            self.waiting.popleft()()
