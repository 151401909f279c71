"""Stored records that could not be processed: set aside, so that neither the process nor other records suffer.

    a background duty processes a stored record ──Exception──> set_aside(kind, place, error)
        the duty then goes on without the record; its file says what that means

                        set aside means
    state record        its change of state is left out of this run; the record stays in the log
    frame               the same of what follows from a frame's `extra`
    schedule            it does not run again before a restart; it can be removed or replaced
    delayed message     its timer is dropped; the parked record stays in the log until retention takes it
    half message        at its last look it is given up without a copy; before, it waits for its next look
    popped message      it is not given back; the original stays in its queue
    dead letter         a redrive passes it over; the original stays in its queue
    expired message     it is given to its reader as if it had not expired

`GET /api/poison` and `duolog poison list` show the newest of them; a restart forgets the list, not the log lines.
"""

import logging
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Final, NamedTuple

from store.errors import Fatal, StoreError

KEPT_MAX: Final = 1000  # Of the list, some 500 bytes each; the oldest go.
ERROR_CHARACTERS_MAX: Final = 300

# What says nothing about the record: a state of the store, or the end of the process.
NOT_THE_RECORD: Final = (StoreError, Fatal, MemoryError)

log = logging.getLogger("bridge")


class SetAside(NamedTuple):
    """One record that was set aside."""

    kind: str
    place: str
    error: str
    at_ms: int | None  # None: while the log was replayed.


class Poison:
    """What was set aside since the start. `now_ms` gives the wall time once the log is open."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()  # By kind.
        self.now_ms: Callable[[], int] | None = None
        self._kept: dict[tuple[str, str], SetAside] = {}  # By kind and place, the oldest first.

    def set_aside(self, kind: str, place: str, error: Exception) -> None:
        """Report a record by its place, once. Raises `error` if it says nothing about the record (NOT_THE_RECORD)."""
        if isinstance(error, NOT_THE_RECORD):
            raise error
        if (kind, place) in self._kept:
            return
        if len(self._kept) == KEPT_MAX:
            del self._kept[next(iter(self._kept))]
        self.counts[kind] += 1
        text = f"{type(error).__name__}: {error}"[:ERROR_CHARACTERS_MAX]
        at_ms = self.now_ms() if self.now_ms is not None else None
        self._kept[kind, place] = SetAside(kind, place, text, at_ms)
        log.error("record set aside kind=%r place=%r error=%r", kind, place, text, exc_info=error)

    def all(self) -> Iterable[SetAside]:
        """Give those that are remembered, the oldest first."""
        return self._kept.values()
