"""Those who wait until the log is kept up to a position."""

from collections import deque
from collections.abc import Callable

from duolog.store.errors import StoreError

Done = Callable[[StoreError | None], None]


class Promises:
    """Ordered by position. Promises come almost in order, so adding and keeping one costs the same however many wait.

    Not bounded here: each is held by an answer, and all answers in flight share one limit. Callbacks may add promises.
    What a callback raises goes to `contain`, so that the others are called all the same.
    """

    __slots__ = ("_contain", "_waiting")

    def __init__(self, contain: Callable[[Exception], None]) -> None:
        self._contain = contain
        self._waiting: deque[tuple[int, Done]] = deque()  # Invariant: positions rise.

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, end: int, done: Done) -> None:
        """Call `done` once the log is kept up to `end`."""
        waiting = self._waiting
        at = len(waiting)
        while at and waiting[at - 1][0] > end:
            at -= 1
        if at == len(waiting):
            waiting.append((end, done))
        else:
            waiting.insert(at, (end, done))

    def keep(self, position: int) -> None:
        """The log is kept up to here: call those who waited for no more."""
        waiting = self._waiting
        while waiting and waiting[0][0] <= position:
            done = waiting.popleft()[1]
            try:
                done(None)
            except Exception as error:  # noqa: BLE001 - the others wait for the log as well
                self._contain(error)

    def fail(self, beyond: int, error: StoreError) -> None:
        """Call those who wait for more than position `beyond` with the error."""
        waiting = self._waiting
        failed: list[Done] = []
        while waiting and waiting[-1][0] > beyond:
            failed.append(waiting.pop()[1])
        for done in reversed(failed):
            try:
                done(error)
            except Exception as fault:  # noqa: BLE001 - the others wait for the log as well
                self._contain(fault)
