"""Stored records that could not be processed: set aside, so that neither the process nor other records suffer.

    a background duty processes a stored record ──Exception──> set_aside(kind, place, error)
        the duty then goes on without the record; its file says what that means

                        set aside means
    state record        one that does not decode, or whose replay raises: its change of state is left out, and the other
                        records and frames of its unit are replayed; the record stays in its segment
    TopicCreated        the same, and the topic's queues become a topic `recovered-<number>` (`Topics.attach`)
    control entry       a log start or a step of the clock is left out
    frame               the same of what follows from a frame's `extra`
    schedule            it does not run again before a restart; it can be removed or replaced
    delayed message     it is not delivered; its pending message stays in the log until retention removes it
    half message        at its last check it is given up without a copy; before, it waits for its next check
    popped message      it is not given back; the original stays in its queue
    dead letter         a redrive skips it; the original stays in its queue
    expired message     its reader gets it as if it had not expired

`GET /api/poison` and `duolog poison list` show the newest of them. The list is state: a background duty appends what is
new on it as a `RecordsSetAside`, and checkpoints hold it, so it survives a restart and a kill.
"""

import logging
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Final, NamedTuple

from duolog.bridge.records.broker import RecordsSetAside
from duolog.store.entry import Slot
from duolog.store.errors import Fatal, StoreError

if TYPE_CHECKING:
    from duolog.store.state_log import StateLog

KEPT_MAX: Final = 1000  # Of the list, some 500 bytes each; the oldest go.
ERROR_CHARACTERS_MAX: Final = 300
PLACE_CHARACTERS_MAX: Final = 600
ROWS_IN_RECORD: Final = 50
SAVE_RETRY_MS: Final = 1000  # After the log refused what is new on the list.

# Errors that are not caused by the record: a state of the store or the disk, or the end of the process.
NOT_THE_RECORD: Final = (StoreError, Fatal, MemoryError, OSError)

log = logging.getLogger("bridge")


class SetAsideRecord(NamedTuple):
    """One record that was set aside."""

    kind: str
    place: str
    error: str
    at_ms: int | None  # None: while the log was replayed.


_Name = tuple[str, str]  # Kind and place.


class Poison:
    """The records that were set aside, in this run and before. `now_ms` returns the wall time once the log is open."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()  # By kind.
        self.now_ms: Callable[[], int] | None = None
        self._state_log: StateLog | None = None
        self._kept: dict[_Name, SetAsideRecord] = {}  # The oldest first.
        self._reported: set[_Name] = set()  # In this run. Invariant: part of `_kept`.
        self._unsaved: dict[_Name, SetAsideRecord] = {}  # The log does not have them yet. Invariant: part of `_kept`.
        self._save_mono_ms = 0  # When to append them.

    def set_aside(self, kind: str, place: str, error: Exception) -> None:
        """Report a record by its place, once. Raises `error` if it says nothing about the record (NOT_THE_RECORD)."""
        if isinstance(error, NOT_THE_RECORD):
            raise error
        place = _storable(place, PLACE_CHARACTERS_MAX)
        name = kind, place
        if name in self._reported:
            return
        text = _storable(f"{type(error).__name__}: {error}", ERROR_CHARACTERS_MAX)
        if name not in self._kept:
            at_ms = self.now_ms() if self.now_ms is not None else None
            self._unsaved[name] = self._keep(SetAsideRecord(kind, place, text, at_ms))
        self._reported.add(name)
        log.error("record set aside kind=%r place=%r error=%r", kind, place, text, exc_info=error)

    def _keep(self, found: SetAsideRecord) -> SetAsideRecord:
        if len(self._kept) == KEPT_MAX:
            oldest = next(iter(self._kept))
            del self._kept[oldest]
            self._reported.discard(oldest)
            self._unsaved.pop(oldest, None)
        self.counts[found.kind] += 1
        self._kept[found.kind, found.place] = found
        return found

    def all(self) -> Iterable[SetAsideRecord]:
        """Give those that are remembered, the oldest first."""
        return self._kept.values()

    # -- The list as state

    def attach(self, state_log: "StateLog") -> None:
        """Register with the state log, before the log is recovered."""
        self._state_log = state_log
        state_log.own(RecordsSetAside, self._replay)
        state_log.on_snapshot(self._snapshot)

    def next_deadline_mono_ms(self) -> int | None:
        return self._save_mono_ms if self._unsaved else None

    def save(self, now_ms: int, mono_ms: int) -> None:
        """Append what the log does not have yet; raises StoreError, and then it is tried again after a second."""
        if self._unsaved and self._state_log is not None:
            self._save_mono_ms = mono_ms + SAVE_RETRY_MS
            self._state_log.commit([*_records_of(self._unsaved.values())], now_ms)

    def _replay(self, record: RecordsSetAside, slot: Slot) -> None:
        for row in record.rows:
            found = SetAsideRecord(*row)
            name = found.kind, found.place
            self._unsaved.pop(name, None)
            if name not in self._kept:
                self._keep(found)

    def _snapshot(self) -> Iterator[RecordsSetAside]:
        return _records_of(self._kept.values())


def _records_of(rows: Iterable[SetAsideRecord]) -> Iterator[RecordsSetAside]:
    left = [*rows]
    for at in range(0, len(left), ROWS_IN_RECORD):
        yield RecordsSetAside(left[at : at + ROWS_IN_RECORD])


def _storable(text: str, characters_max: int) -> str:
    """Give a text that a state record can hold: lone surrogates are replaced."""
    return text[:characters_max].encode(errors="replace").decode()
