"""Connections that are not read from for a time, because their clients have used up a quota (KIP-219)."""

from heapq import heappop, heappush
from itertools import count
from typing import Protocol


class Mutable(Protocol):
    """A connection that may be muted."""

    is_muted: bool
    closed: bool

    def hold(self) -> None: ...

    def go_on_soon(self) -> None: ...


class Muted:
    """The muted connections by the times at which they are read from again. A connection is in it once at most."""

    def __init__(self) -> None:
        self._until: list[tuple[int, int, Mutable]] = []
        self._numbers = count()

    def mute(self, connection: Mutable, until_mono_ms: int) -> None:
        """Stop reading from a connection until a time; a muted one stays muted until its earlier time."""
        if not connection.is_muted and not connection.closed:
            connection.is_muted = True
            connection.hold()
            heappush(self._until, (until_mono_ms, next(self._numbers), connection))

    def next_deadline_mono_ms(self) -> int | None:
        return self._until[0][0] if self._until else None

    def release(self, mono_ms: int) -> None:
        """Read again from the connections whose time has come."""
        while self._until and self._until[0][0] <= mono_ms:
            connection = heappop(self._until)[2]
            connection.is_muted = False
            connection.go_on_soon()
