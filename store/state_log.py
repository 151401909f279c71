"""Where decisions become state: append the records of one decision as one unit, then replay each.

    coordinator --(records)--> StateLog.commit --> log
                                      |
    recovery ----(payloads)--> replay_state --> the owners of each record type

Replay is the only code that changes state, live and at recovery alike. An owner registers its replay function for
each record type it cares for (several may care for one: a deleted topic takes positions and producers with it), and
a snapshot function. What follows from an entry alone, by the `extra` in its header, is replayed in the same way.
Owners register before the store is opened, in an order in which snapshots may be replayed.
"""

from collections.abc import Callable, Hashable, Iterable, Sequence
from itertools import chain
from typing import Any, Protocol, TypeVar

from duolog.store.copy_on_write import CopyOnWrite
from duolog.store.entry import Appended, Promise, Slot
from duolog.store.errors import HalfApplied
from duolog.store.unit import Frame, FrameRun, Part, StateRecord

RecordT = TypeVar("RecordT")
NameT = TypeVar("NameT", bound=Hashable)
ExtraWatcher = Callable[[Slot, int, int, bytes], None]
FrameWatcher = Callable[[int, Slot, int, int, memoryview, bytes], None]


class RecordCodec(Protocol):
    """The state records, of which the state log knows nothing but that they have types."""

    def encode(self, record: Any, /) -> bytes: ...

    def decode(self, payload: bytes, /) -> Any: ...

    def name_of(self, payload: bytes, /) -> str:
        """Give the name of an encoded record's type; empty if it has none."""


class SetAside(Protocol):
    """Receives reports of entries that cannot be replayed."""

    def set_aside(self, kind: str, place: str, error: Exception) -> None:
        """Report a stored entry; raises `error` if the error says nothing about the entry."""


class UnitLog(Protocol):
    """What the state log asks of the store."""

    def append(self, entries: Sequence[Part], now_ms: int) -> Appended: ...

    def append_freeing(self, entries: Sequence[Part], now_ms: int) -> Appended: ...

    def promise(self) -> Promise: ...


class StateLog:
    """Commits state records and replays them into their owners, live and at recovery (`Replayer`)."""

    def __init__(self, codec: RecordCodec, poison: SetAside) -> None:
        self._codec = codec
        self._poison = poison
        self._replays: dict[type[Any], list[Callable[[Any, Slot], None]]] = {}
        self._snapshots: list[Callable[[], Iterable[Any]]] = []
        self._snapshot_ends: list[Callable[[], None]] = []
        self._watchers: list[FrameWatcher] = []
        self._extras: dict[int, ExtraWatcher] = {}
        self._log: UnitLog | None = None
        self._barrier: Promise | None = None

    def attach(self, log: UnitLog) -> None:
        """Set the log to append to, once it is recovered."""
        self._log = log
        self._barrier = log.promise()

    # -- Changing state

    def commit(self, records: Sequence[Any], now_ms: int, frames: Sequence[Frame | FrameRun] = ()) -> Appended:
        """Append frames and records as one unit and replay the records; raises `StoreError` and changes nothing.

        `Appended.slots` has the frames' slots first, a run's as one, then the records'. Raises HalfApplied if state
        cannot follow what was appended.
        """
        assert self._log is not None, "the log is not open"
        entries: Sequence[Part] = frames
        if records:
            entries = [*frames, *(StateRecord(self._codec.encode(record)) for record in records)]
        appended = self._log.append(entries, now_ms)
        if frames and records:
            # The durability of the queues may be less than that of state records (`store.flush`).
            kept = self._log.promise()
            appended = Appended(appended.slots, Promise(kept.end, kept.durable or appended.promise.durable))
        self._apply(records, frames, appended)
        return appended

    def free(self, records: Sequence[Any], now_ms: int) -> Appended:
        """Commit records that free disk space, that is, deletions; they are accepted on a full disk, too.

        Raises StoreError if writing has ended, or too much waits for a full disk.
        """
        assert self._log is not None, "the log is not open"
        appended = self._log.append_freeing([StateRecord(self._codec.encode(record)) for record in records], now_ms)
        self._apply(records, (), appended)
        return appended

    def _apply(self, records: Sequence[Any], frames: Sequence[Frame | FrameRun], appended: Appended) -> None:
        """Update the state to what was appended, and let answers that report state wait for it (`barrier`)."""
        try:
            if frames:
                self._follow_frames(frames, appended.slots)
            if records:
                for record, slot in zip(records, appended.slots[len(frames) :], strict=True):
                    self._replay(record, slot)
        except Exception as error:
            raise HalfApplied(f"{[type(record).__name__ for record in records]} were appended: {error!r}") from error
        self._barrier = appended.promise

    def _follow_frames(self, frames: Sequence[Frame | FrameRun], slots: Sequence[Slot]) -> None:
        """Update the state that follows from the `extra` of the frames that were appended."""
        for frame, slot in zip(frames, slots, strict=False):
            if type(frame) is Frame and frame.extra and (watcher := self._extras.get(frame.extra[0])):
                watcher(slot, frame.form, frame.size, frame.extra)

    def barrier(self) -> Promise:
        """Return the promise that an answer which reports state must wait for: it covers every change so far."""
        assert self._barrier is not None, "the log is not open"
        return self._barrier

    # -- Owning state

    def own(self, record_type: type[RecordT], replay: Callable[[RecordT, Slot], None]) -> None:
        self._replays.setdefault(record_type, []).append(replay)

    def on_snapshot(self, snapshot: Callable[[], Iterable[Any]]) -> None:
        """Have `snapshot` asked for records that rebuild an owner's state; all are taken at once, so it is small."""
        self._snapshots.append(lambda: [*snapshot()])

    def on_sliced_snapshot(self, begin: Callable[[], Iterable[Any]], end: Callable[[], None] = lambda: None) -> None:
        """Do the same for an owner of much: the records that `begin` returns are taken some at a time.

        They must be the state at the moment of `begin` all the same, whatever changes meanwhile: `begin` copies the
        names and values of a table where values are never changed in place, for there no copy of a value is needed;
        else see `on_copied_snapshot`. `end` is called when no more are wanted.
        """
        self._snapshots.append(begin)
        self._snapshot_ends.append(end)

    def on_copied_snapshot(
        self, names: Callable[[], Iterable[NameT]], records: Callable[[NameT], Sequence[Any] | None]
    ) -> CopyOnWrite[NameT, Sequence[Any]]:
        """Do the same for a table of values that change: `records` gives those of one name, as it is then.

        Returns what must be told `before_change` of each name, and of those that are removed.
        """
        moment = CopyOnWrite(records)

        def begin() -> Iterable[Any]:
            moment.begin(names())
            return chain.from_iterable(found for _, found in moment.entries())

        self.on_sliced_snapshot(begin, moment.end)
        return moment

    def on_frame(self, watcher: FrameWatcher) -> None:
        """Have `watcher(key, slot, form, count, frame, extra)` see each frame at recovery."""
        self._watchers.append(watcher)

    def on_extra(self, kind: int, watcher: ExtraWatcher) -> None:
        """Have `watcher(slot, form, frame size, extra)` see each entry whose extra begins so, live as at recovery."""
        assert kind not in self._extras, f"two owners of extra {kind}"
        self._extras[kind] = watcher

    # -- Recovery (store.Replayer)

    def replay_state(self, payload: bytes, slot: Slot) -> None:
        """Replay a record; one of a newer version raises Corruption, any other fault is set aside."""
        try:
            record = self._codec.decode(payload)
        except Exception as error:  # noqa: BLE001 - set aside, or raised again
            name = self._codec.name_of(payload)
            what = f"{len(payload)} bytes, {name}" if name else f"{len(payload)} bytes"
            self.set_aside("state record", slot.position, what, error)
            return
        for replay in self._replays[type(record)]:
            try:
                replay(record, slot)
            except Exception as error:  # noqa: BLE001 - set aside, or raised again
                self.set_aside("state record", slot.position, type(record).__name__, error)

    def replay_frame(self, key: int, slot: Slot, form: int, count: int, frame: memoryview, extra: bytes) -> None:
        if extra and (extra_watcher := self._extras.get(extra[0])):
            try:
                extra_watcher(slot, form, len(frame), extra)
            except Exception as error:  # noqa: BLE001 - set aside, or raised again
                self._set_aside(key, slot, error)
        for watcher in self._watchers:
            try:
                watcher(key, slot, form, count, frame, extra)
            except Exception as error:  # noqa: BLE001 - set aside, or raised again
                self._set_aside(key, slot, error)

    def set_aside(self, kind: str, position: int, what: str, error: Exception) -> None:
        """Report an entry of the log that cannot be replayed; raises `error` if it says nothing about the entry."""
        self._poison.set_aside(kind, f"position {position}, {what}", error)

    def _set_aside(self, key: int, slot: Slot, error: Exception) -> None:
        place = f"position {slot.position}, topic number {key >> 16}, queue {key & 0xFFFF}, offset {slot.base_offset}"
        self._poison.set_aside("frame", place, error)

    def snapshot(self) -> "Snapshot":
        return Snapshot(self._codec, [snapshot() for snapshot in self._snapshots], self._snapshot_ends)

    def _replay(self, record: Any, slot: Slot) -> None:
        for replay in self._replays[type(record)]:
            replay(record, slot)


class Snapshot:
    """The records of all owners, encoded one by one as they are read (`StateRecords` in `store/recovery/replay.py`)."""

    def __init__(self, codec: RecordCodec, parts: Iterable[Iterable[Any]], ends: Iterable[Callable[[], None]]) -> None:
        self._encode = codec.encode
        self._records = chain.from_iterable(parts)
        self._ends = [*ends]

    def __iter__(self) -> "Snapshot":
        return self

    def __next__(self) -> bytes:
        return self._encode(next(self._records))

    def close(self) -> None:
        for end in self._ends:
            end()
        self._records, self._ends = chain(), []
