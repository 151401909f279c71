"""The callbacks that wait until the log is written, or durable, up to a position."""

from collections import deque
from collections.abc import Callable

from duolog.store.errors import StoreError

Done = Callable[[StoreError | None], None]


class Promises:
    """The callbacks of promises that wait, in the order of their positions.

    Positions are added almost in order, so `add` and `keep` take constant time for each promise. The number of promises
    is not limited in this class: each belongs to an unsent answer, and the number of unsent answers is limited. A
    callback may add promises. An exception that a callback raises is passed to `contain`, and the other callbacks are
    called all the same.
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
        """Call the callbacks of the promises up to this position."""
        waiting = self._waiting
        while waiting and waiting[0][0] <= position:
            done = waiting.popleft()[1]
            try:
                done(None)
            except Exception as error:  # noqa: BLE001 - the other callbacks must be called
                self._contain(error)

    def fail(self, beyond: int, error: StoreError) -> None:
        """Call the callbacks of the promises above position `beyond` with the error."""
        waiting = self._waiting
        failed: list[Done] = []
        while waiting and waiting[-1][0] > beyond:
            failed.append(waiting.pop()[1])
        for done in reversed(failed):
            try:
                done(error)
            except Exception as fault:  # noqa: BLE001 - the other callbacks must be called
                self._contain(fault)
