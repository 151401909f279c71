"""The callbacks that wait until the log is written, or durable, up to a position."""

from collections import deque
from collections.abc import Callable

from duolog.store.errors import StoreError

Done = Callable[[StoreError | None], None]


class Promises:
    """Waiting callbacks in the order of their positions.

    They are added almost in order, so adding and keeping a promise takes constant time. Their number is not limited
    here: each belongs to an unsent answer, and the unsent answers share a limit. Callbacks may add promises. An error
    that a callback raises is passed to `contain`, and the other callbacks are called.
    """

    __slots__ = ("_contain", "_waiting")

    def __init__(self, contain: Callable[[Exception], None]) -> None:
        self._contain = contain
        self._waiting: deque[tuple[int, Done]] = deque()  # Invariant: positions rise.

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, end: int, done: Done) -> None:
        """Call `done` once the log is written, or durable, up to `end`."""
        waiting = self._waiting
        at = len(waiting)
        while at and waiting[at - 1][0] > end:
            at -= 1
        if at == len(waiting):
            waiting.append((end, done))
        else:
            waiting.insert(at, (end, done))

    def keep(self, position: int) -> None:
        """Call the callbacks that waited for this position or a lower one."""
        waiting = self._waiting
        while waiting and waiting[0][0] <= position:
            done = waiting.popleft()[1]
            try:
                done(None)
            except Exception as error:  # noqa: BLE001 - the other callbacks wait for the log, too
                self._contain(error)

    def fail(self, beyond: int, error: StoreError) -> None:
        """Call the callbacks that wait for a position above `beyond` with the error."""
        waiting = self._waiting
        failed: list[Done] = []
        while waiting and waiting[-1][0] > beyond:
            failed.append(waiting.pop()[1])
        for done in reversed(failed):
            try:
                done(error)
            except Exception as fault:  # noqa: BLE001 - the other callbacks wait for the log, too
                self._contain(fault)
