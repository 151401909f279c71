"""Stored records that could not be processed: they are set aside, so that the broker and other records go on.

    a duty or the recovery processes a stored record ──Exception──> set_aside(kind, place, error)

    kind of record      what happens to a record that is set aside
    state record        its change of state is missing; the other records and frames of its unit are replayed
    TopicCreated        the same, and the queues of the topic become a topic `recovered-<number>` (`Topics.attach`)
    control entry       its log start offset or step of the clock is missing
    frame               the state that follows from the `extra` of its entry is missing
    schedule            it does not run before the next restart; it can be removed or replaced
    delayed message     it is not delivered; its pending message stays in the log until retention removes it
    half message        it waits for its next check-back; at its last one it is given up without a copy
    popped message      it does not return to its group; the original stays in its queue
    dead letter         a redrive skips it; the original stays in its queue
    expired message     its reader gets it as if it had not expired

`GET /api/poison` and `duolog poison list` show the newest of these records. The list is state: a duty appends its new
rows as `RecordsSetAside`, and checkpoints contain it, so it survives restarts and crashes. A record that an operator
has acknowledged stays in the list, so that it is not reported again when the next start meets it.
"""

import logging
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Final, NamedTuple

from duolog.bridge.records.broker import RecordsAcknowledged, RecordsSetAside
from duolog.store.entry import EntrySlot, Promise
from duolog.store.errors import Fatal, StoreError

if TYPE_CHECKING:
    from duolog.store.state_log import StateLog

KEPT_MAX: Final = 1000  # Rows of the list, of about 500 bytes each. The oldest row is dropped for a new one.
ERROR_CHARACTERS_MAX: Final = 300
PLACE_CHARACTERS_MAX: Final = 600
ROWS_IN_RECORD: Final = 50
SAVE_RETRY_MS: Final = 1000  # The time until the next attempt after the store refused new rows.

# Exceptions that the record did not cause: a state of the store or disk, or the end of the process.
NOT_CAUSED_BY_RECORD: Final = (StoreError, Fatal, MemoryError, OSError)

log = logging.getLogger("bridge")


class SetAsideRecord(NamedTuple):
    """One record that was set aside."""

    kind: str
    place: str
    error: str
    at_ms: int | None  # None: during recovery.
    is_acknowledged: bool = False


_Name = tuple[str, str]  # Kind and place.


class PoisonRecords:
    """The list of records that were set aside, in this run and before. `now_ms` is set when the log is open."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()  # By kind.
        self.now_ms: Callable[[], int] | None = None
        self._state_log: StateLog | None = None
        self._kept: dict[_Name, SetAsideRecord] = {}  # The oldest first.
        self._reported: set[_Name] = set()  # Records that this run reported. Invariant: a subset of `_kept`.
        # Records that are not in the log yet. Invariant: a subset of `_kept`.
        self._unsaved: dict[_Name, SetAsideRecord] = {}
        self._save_mono_ms = 0  # The monotonic time at which to append `_unsaved`.

    def set_aside(self, kind: str, place: str, error: Exception) -> None:
        """Add a record to the list and report it, once for each place.

        Raises `error` if it is in NOT_CAUSED_BY_RECORD.
        """
        if isinstance(error, NOT_CAUSED_BY_RECORD):
            raise error
        place = _storable(place, PLACE_CHARACTERS_MAX)
        name = kind, place
        if name in self._reported or self._is_acknowledged(name):
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

    def _is_acknowledged(self, name: _Name) -> bool:
        return name in self._kept and self._kept[name].is_acknowledged

    def all(self) -> Iterable[SetAsideRecord]:
        """Return the rows of the list, the oldest first."""
        return self._kept.values()

    def acknowledge(self, kind: str | None, place: str | None, now_ms: int) -> tuple[int, Promise]:
        """Acknowledge the records of this kind and at this place; None stands for all.

        Returns how many there were, and the promise of the log. Raises StoreError and changes nothing.
        """
        assert self._state_log is not None, "the log is open"
        names = [
            name
            for name, row in self._kept.items()
            if not row.is_acknowledged and kind in (None, row.kind) and place in (None, row.place)
        ]
        if names:
            self._state_log.commit([*_records_of(self._unsaved.values()), *_acknowledged(names)], now_ms)
        return len(names), self._state_log.barrier()

    # -- The list as state

    def attach(self, state_log: "StateLog") -> None:
        """Register with the state log, before the log is recovered."""
        self._state_log = state_log
        state_log.own(RecordsSetAside, self._replay)
        state_log.own(RecordsAcknowledged, self._replay_acknowledged)
        state_log.on_snapshot(self._snapshot)

    def next_deadline_mono_ms(self) -> int | None:
        """Return when to append new rows of the list; None if the log has all rows."""
        return self._save_mono_ms if self._unsaved else None

    def save(self, now_ms: int, mono_ms: int) -> None:
        """Append the rows that are not in the log yet. Raises StoreError; the next attempt follows after a second."""
        if self._unsaved and self._state_log is not None:
            self._save_mono_ms = mono_ms + SAVE_RETRY_MS
            self._state_log.commit([*_records_of(self._unsaved.values())], now_ms)

    def _replay(self, record: RecordsSetAside, slot: EntrySlot) -> None:
        for row in record.rows:
            found = SetAsideRecord(*row, is_acknowledged=False)
            name = found.kind, found.place
            self._unsaved.pop(name, None)
            if name not in self._kept:
                self._keep(found)

    def _replay_acknowledged(self, record: RecordsAcknowledged, slot: EntrySlot) -> None:
        for kind, place in record.names:
            row = self._kept.get((kind, place))
            if row is not None:
                self._kept[kind, place] = row._replace(is_acknowledged=True)

    def _snapshot(self) -> Iterator[RecordsSetAside | RecordsAcknowledged]:
        yield from _records_of(self._kept.values())
        yield from _acknowledged([name for name, row in self._kept.items() if row.is_acknowledged])


def _records_of(rows: Iterable[SetAsideRecord]) -> Iterator[RecordsSetAside]:
    left = [(row.kind, row.place, row.error, row.at_ms) for row in rows]
    for at in range(0, len(left), ROWS_IN_RECORD):
        yield RecordsSetAside(left[at : at + ROWS_IN_RECORD])


def _acknowledged(names: list[_Name]) -> Iterator[RecordsAcknowledged]:
    for at in range(0, len(names), ROWS_IN_RECORD):
        yield RecordsAcknowledged(names[at : at + ROWS_IN_RECORD])


def _storable(text: str, characters_max: int) -> str:
    """Return a text that a state record can store: lone surrogates are replaced."""
    return text[:characters_max].encode(errors="replace").decode()
