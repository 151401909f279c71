"""A log in memory that implements what the state of `bridge` uses of a store, for tests of appends and replay.

It keeps each unit, so that `replay` can pass all of them, or those after a snapshot, to a new `Replayer`. Frames are
copied and stamped as by the store. Everything is visible at once.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from duolog.store.entry import SYNCED, Appended, EntrySlot, Promise
from duolog.store.index.queue import Queue
from duolog.store.recovery.replay import Replayer
from duolog.store.unit import Frame, StateRecord

ENTRY_BYTES = 64  # The size of each entry in this log, in addition to its bytes.


@dataclass
class MemoryQueue:
    key: int
    start_offset: int = 0
    end_offset: int = 0
    visible_end: int = 0
    level: int = SYNCED
    size_bytes: int = 0

    def __post_init__(self) -> None:
        self.topic, self.queue_id = Queue.split(self.key)


@dataclass
class _Kept:
    key: int | None  # None: a state record.
    slot: EntrySlot
    form: int
    count: int
    body: bytes
    extra: bytes


@dataclass
class MemoryLog:
    kept: list[_Kept] = field(default_factory=list)
    end: int = 0
    units: int = 0
    level_max: int = SYNCED
    epoch: int = 1

    def __post_init__(self) -> None:
        self._queues: dict[int, MemoryQueue] = {}
        self._now_ms = 0

    def queue(self, key: int) -> MemoryQueue:
        return self._queues.setdefault(key, MemoryQueue(key))

    def queues(self) -> Iterable[MemoryQueue]:
        return list(self._queues.values())

    def drop_topic(self, number: int, now_ms: int) -> None:
        for key in [key for key, queue in self._queues.items() if queue.topic == number]:
            del self._queues[key]

    def append(self, entries: Sequence[Frame | StateRecord], now_ms: int) -> Appended:
        self._now_ms = max(self._now_ms, now_ms)
        slots = [self._append_one(entry) for entry in entries]
        self.units += 1
        level = max((entry.queue.level for entry in entries if isinstance(entry, Frame)), default=SYNCED)
        return Appended(slots, Promise(self.end, level))

    append_freeing = append

    def _append_one(self, entry: Frame | StateRecord) -> EntrySlot:
        if isinstance(entry, StateRecord):
            slot = EntrySlot(self.end, -1, self._now_ms)
            self.kept.append(_Kept(None, slot, 1, 0, entry.payload, b""))
            self.end += ENTRY_BYTES + len(entry.payload)
            return slot
        queue = entry.queue
        slot = EntrySlot(self.end, queue.end_offset, self._now_ms)
        pieces = [entry.body] if isinstance(entry.body, bytes | bytearray | memoryview) else entry.body
        body = bytearray(b"".join(pieces))
        if entry.stamp is not None:
            entry.stamp(body, 0, slot)
        self.kept.append(_Kept(queue.key, slot, entry.form, entry.count, bytes(body), entry.extra))
        queue.end_offset += entry.count
        queue.visible_end = queue.end_offset
        self.end += ENTRY_BYTES + max(len(body), entry.count)
        return slot

    def promise(self) -> Promise:
        return Promise(self.end, SYNCED)

    def replay(self, replayer: Replayer, since: int = 0) -> None:
        """Pass the entries from number `since` on to `replayer`, as recovery does."""
        for kept in self.kept[since:]:
            if kept.key is None:
                replayer.replay_state(kept.body, kept.slot)
            else:
                replayer.replay_frame(kept.key, kept.slot, kept.form, kept.count, memoryview(kept.body), kept.extra)
