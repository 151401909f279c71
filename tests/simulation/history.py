"""What clients were promised and what readers saw, and whether both are true at the end.

    history.sending(value)                      before a send: the value may be stored, once
    history.stored(value, place)                after its answer: it is there exactly once, at this place
    history.never(value)                        a rollback was answered: committed readers never see it
    history.cancelling(value)                   before the request; then one of the next two, if it is answered
    history.cancelled(value)                    nobody ever sees it
    history.not_cancelled(value)                it is still there, or was delivered
    history.saw(place, epoch, value, now_ms)    a committed reader got it
    history.check()                             the violations

A *place* is topic, partition and offset. Each value is sent under one name only: a client that sends it again after no
answer either repeats the same request (idempotent) or makes a new value.
"""

from collections import defaultdict
from typing import Final

Place = tuple[str, int, int]

SHARED: Final = "orders"  # Its `flush.mode` is `shared`: what was answered survives the loss of a machine.
LOCAL: Final = "local"  # Its `flush.mode` is `sync`: a takeover may lose what was answered.


class History:
    """The promises to all clients."""

    def __init__(self) -> None:
        self.violations: list[str] = []
        self.acknowledged = 0
        self._sent: set[bytes] = set()
        self._stored: dict[bytes, Place | None] = {}  # None: the client did not learn the place.
        self._never: set[bytes] = set()
        self._due_ms: dict[bytes, int] = {}
        self._maybe_cancelled: set[bytes] = set()  # The cancellation may have been stored, or not.
        self._seen: dict[tuple[Place, int], bytes] = {}
        self._places: dict[bytes, set[Place]] = defaultdict(set)
        self._positions: dict[int, bytes] = {}

    # -- What clients were promised

    def sending(self, value: bytes, due_ms: int = 0) -> None:
        self._sent.add(value)
        self._due_ms[value] = due_ms

    def stored(self, value: bytes, place: Place | None) -> None:
        self.acknowledged += 1
        self._stored[value] = place

    def never(self, value: bytes) -> None:
        self._never.add(value)

    def cancelling(self, value: bytes) -> None:
        self._maybe_cancelled.add(value)

    def cancelled(self, value: bytes) -> None:
        self._never.add(value)

    def not_cancelled(self, value: bytes) -> None:
        self._maybe_cancelled.discard(value)

    def appended_at(self, position: int, value: bytes) -> None:
        """Note the position in the log of an answered send: at most one owner acknowledges at any position."""
        other = self._positions.setdefault(position, value)
        if other != value:
            self.violations.append(f"position {position} was answered for {value!r} and for {other!r}")

    # -- What readers saw

    def saw(self, place: Place, epoch: int, value: bytes, now_ms: int) -> None:
        # A local topic may have another record at the same offset, but only with a higher leader epoch.
        other = self._seen.setdefault((place, epoch if place[0] == LOCAL else 0), value)
        if other != value:
            self.violations.append(f"{place} of epoch {epoch} had {other!r}, and has {value!r}")
        if now_ms < self._due_ms.get(value, 0):
            self.violations.append(f"{value!r} is early by {self._due_ms[value] - now_ms} ms")
        self._places[value].add(place)

    # -- The end

    @property
    def last_due_ms(self) -> int:
        return max(self._due_ms.values(), default=0)

    def unseen(self) -> list[bytes]:
        """Return the values that must be there and that no reader has seen."""
        return [value for value in self._stored if value not in self._places and value not in self._maybe_cancelled]

    def check(self) -> list[str]:
        """Return all violations, also those of what the readers saw as a whole."""
        found = [*self.violations]
        for value, places in self._places.items():
            of_shared = {each for each in places if each[0] == SHARED}
            if len(of_shared) > 1:
                found.append(f"{value!r} is stored more than once: {sorted(of_shared)}")
            if value in self._never:
                found.append(f"{value!r} was rolled back or cancelled, and is at {places}")
            if value not in self._sent:
                found.append(f"{value!r} was never sent")
        found += [f"{value!r} was acknowledged at {self._stored[value]}, and is lost" for value in self.unseen()]
        for value, place in self._stored.items():
            if place is not None and value in self._places and place not in self._places[value]:
                found.append(f"{value!r} was acknowledged at {place}, and is at {self._places[value]}")
        return found
