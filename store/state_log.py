"""The class StateLog: appends state records to the log and replays them into the state owners.

    coordinator --(records)--> StateLog.commit --> log
                                      |
    recovery ----(payloads)--> replay_state --> the state owners of each record type

A *state owner* is an object that holds state. Its replay functions are the only code that changes that state: `commit`
calls them after the append, and recovery calls them with the records of the log, so both give the same state. An owner
registers a replay function for each record type that changes its state, and a snapshot function. Several owners may
register for one type: for example, the deletion of a topic also deletes its group offsets. State that follows from a
frame alone is replayed in the same way from the `extra` of its entry.

Owners register before the store is opened. Their snapshots are replayed in the order of registration.
"""

from collections.abc import Callable, Hashable, Iterable, Sequence
from itertools import chain
from typing import Any, Protocol, TypeVar

from duolog.store.copy_on_write import CopyOnWrite
from duolog.store.entry import Appended, EntrySlot, Promise
from duolog.store.errors import HalfApplied
from duolog.store.index.queue import Queue
from duolog.store.unit import Frame, FrameRun, Part, StateRecord

RecordT = TypeVar("RecordT")
NameT = TypeVar("NameT", bound=Hashable)
ExtraWatcher = Callable[[EntrySlot, int, int, bytes], None]
FrameWatcher = Callable[[int, EntrySlot, int, int, memoryview, bytes], None]


class RecordCodec(Protocol):
    """Encodes and decodes state records. The state log itself uses only the type of a record."""

    def encode(self, record: Any, /) -> bytes: ...

    def decode(self, payload: bytes, /) -> Any: ...

    def name_of(self, payload: bytes, /) -> str:
        """Return the name of the type of an encoded record; empty if the type is unknown."""


class SetAside(Protocol):
    """Receives reports of entries that cannot be replayed."""

    def set_aside(self, kind: str, place: str, error: Exception) -> None:
        """Report a stored entry that is skipped. Raises `error` if the entry itself is not the cause of the error."""


class UnitLog(Protocol):
    """The methods of the store that the state log calls; `Store` and `Appender` implement them."""

    def append(self, entries: Sequence[Part], now_ms: int) -> Appended: ...

    def append_freeing(self, entries: Sequence[Part], now_ms: int) -> Appended: ...

    def promise(self) -> Promise: ...


class StateLog:
    """Commits state records and replays them into their owners, live and at recovery (`Replayer`)."""

    def __init__(self, codec: RecordCodec, poison_records: SetAside) -> None:
        self._codec = codec
        self._poison_records = poison_records
        self._replays: dict[type[Any], list[Callable[[Any, EntrySlot], None]]] = {}
        self._snapshots: list[Callable[[], Iterable[Any]]] = []
        self._snapshot_ends: list[Callable[[], None]] = []
        self._watchers: list[FrameWatcher] = []
        self._extras: dict[int, ExtraWatcher] = {}
        self._log: UnitLog | None = None
        self._barrier: Promise | None = None

    def attach(self, log: UnitLog) -> None:
        """Set the log that `commit` appends to. To be called after recovery."""
        self._log = log
        self._barrier = log.promise()

    # -- Changing state

    def commit(self, records: Sequence[Any], now_ms: int, frames: Sequence[Frame | FrameRun] = ()) -> Appended:
        """Append frames and state records as one unit, then replay the records into their owners.

        `Appended.slots` has one slot for each item of `frames`, then one for each record. If StoreError is raised,
        neither the log nor the state has changed. Raises HalfApplied if a replay function fails after the append.
        """
        assert self._log is not None, "the log is not open"
        entries: Sequence[Part] = frames
        if records:
            entries = [*frames, *(StateRecord(self._codec.encode(record)) for record in records)]
        appended = self._log.append(entries, now_ms)
        if frames and records:
            # State records have the durability of `store.flush`; that of the queues may be less.
            appended = Appended(appended.slots, appended.promise.and_also(self._log.promise()))
        self._apply(records, frames, appended)
        return appended

    def free(self, records: Sequence[Any], now_ms: int) -> Appended:
        """Commit records that free disk space, such as deletions. They are also accepted while the disk is full.

        Raises WritingEnded, and DiskFull if `FREEING_BYTES_MAX` bytes wait to be written already.
        """
        assert self._log is not None, "the log is not open"
        appended = self._log.append_freeing([StateRecord(self._codec.encode(record)) for record in records], now_ms)
        self._apply(records, (), appended)
        return appended

    def _apply(self, records: Sequence[Any], frames: Sequence[Frame | FrameRun], appended: Appended) -> None:
        """Replay the appended records and frames. After that, `barrier` returns the promise of this unit."""
        try:
            if frames:
                self._follow_frames(frames, appended.slots)
            if records:
                for record, slot in zip(records, appended.slots[len(frames) :], strict=True):
                    self._replay(record, slot)
        except Exception as error:
            raise HalfApplied(f"{[type(record).__name__ for record in records]} were appended: {error!r}") from error
        self._barrier = appended.promise

    def _follow_frames(self, frames: Sequence[Frame | FrameRun], slots: Sequence[EntrySlot]) -> None:
        """Call the watchers of `extra` for the frames that were appended."""
        for frame, slot in zip(frames, slots, strict=False):
            if frame.extra and isinstance(frame, Frame) and (watcher := self._extras.get(frame.extra[0])):
                watcher(slot, frame.form, frame.size, frame.extra)

    def barrier(self) -> Promise:
        """Return the promise that covers every change of state so far. An answer that reports state waits for it."""
        assert self._barrier is not None, "the log is not open"
        return self._barrier

    # -- Owning state

    def own(self, record_type: type[RecordT], replay: Callable[[RecordT, EntrySlot], None]) -> None:
        """Register a replay function: it is called with each record of this type and its slot."""
        self._replays.setdefault(record_type, []).append(replay)

    def on_snapshot(self, snapshot: Callable[[], Iterable[Any]]) -> None:
        """Register a function that returns the records which rebuild an owner's state. All are encoded in one turn.

        An owner of much state must register `on_sliced_snapshot` or `on_copied_snapshot` instead.
        """
        self._snapshots.append(lambda: [*snapshot()])

    def on_sliced_snapshot(self, begin: Callable[[], Iterable[Any]], end: Callable[[], None] = lambda: None) -> None:
        """Register a snapshot of much state: the records that `begin` returns are read a few in each loop turn.

        The records must describe the state at the moment of `begin`, although the state may change before they are
        read. A table whose values are never changed in place is copied by `begin` without its values; other tables need
        `on_copied_snapshot`. `end` is called after the last record was read or the snapshot was abandoned.
        """
        self._snapshots.append(begin)
        self._snapshot_ends.append(end)

    def on_copied_snapshot(
        self, names: Callable[[], Iterable[NameT]], records: Callable[[NameT], Sequence[Any] | None]
    ) -> CopyOnWrite[NameT, Sequence[Any]]:
        """Register a snapshot of a table whose values change in place.

        `names` returns the names in the table, and `records(name)` the records that rebuild the present value of that
        name. The owner must call `before_change` of the returned CopyOnWrite before it changes or removes a value.
        """
        moment = CopyOnWrite(records)

        def begin() -> Iterable[Any]:
            moment.begin(names())
            return chain.from_iterable(found for _, found in moment.entries())

        self.on_sliced_snapshot(begin, moment.end)
        return moment

    def on_frame(self, watcher: FrameWatcher) -> None:
        """Register a function that is called with (queue key, slot, frame format, record count, frame, extra) of each
        frame that recovery reads."""
        self._watchers.append(watcher)

    def on_extra(self, kind: int, watcher: ExtraWatcher) -> None:
        """Register a function for the entries whose `extra` begins with the byte `kind`.

        It is called with (slot, frame format, frame size, extra) after each append and at recovery.
        """
        assert kind not in self._extras, f"two owners of extra {kind}"
        self._extras[kind] = watcher

    # -- Recovery (store.Replayer)

    def replay_state(self, payload: bytes, slot: EntrySlot) -> None:
        """Replay one state record. A record that cannot be replayed is set aside.

        Raises Corruption for a record of a later version of Duolog.
        """
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

    def replay_frame(self, key: int, slot: EntrySlot, form: int, count: int, frame: memoryview, extra: bytes) -> None:
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
        """Report an entry of the log that cannot be replayed. Raises `error` if the entry itself is not its cause."""
        self._poison_records.set_aside(kind, f"position {position}, {what}", error)

    def _set_aside(self, key: int, slot: EntrySlot, error: Exception) -> None:
        number, queue_id = Queue.split(key)
        place = f"position {slot.position}, topic number {number}, queue {queue_id}, offset {slot.base_offset}"
        self._poison_records.set_aside("frame", place, error)

    def snapshot(self) -> "Snapshot":
        """Return the records of the present state of all owners; the caller must close it."""
        return Snapshot(self._codec, [snapshot() for snapshot in self._snapshots], self._snapshot_ends)

    def _replay(self, record: Any, slot: EntrySlot) -> None:
        for replay in self._replays[type(record)]:
            replay(record, slot)


class Snapshot:
    """The encoded state records of all state owners at one moment (`StateRecords` in `store/recovery/replay.py`).

    Each record is encoded when the iterator reaches it.
    """

    def __init__(self, codec: RecordCodec, parts: Iterable[Iterable[Any]], ends: Iterable[Callable[[], None]]) -> None:
        self._encode = codec.encode
        self._records = chain.from_iterable(parts)
        self._ends = [*ends]

    def __iter__(self) -> "Snapshot":
        return self

    def __next__(self) -> bytes:
        return self._encode(next(self._records))

    def close(self) -> None:
        """Release the copies of state that the owners hold for this snapshot."""
        for end in self._ends:
            end()
        self._records, self._ends = chain(), []
