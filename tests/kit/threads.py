"""Worker threads that run when the test says so; they replace `store.workers.Workers`."""

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
        """Run the waiting tasks and their callbacks."""
        while self.waiting:
            self.waiting.popleft()()
