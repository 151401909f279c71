"""The class Replay: passes the entries of a verified log to the queues, the indexes and the state owners.

Queues and their indexes are built from all units that recovery reads. The state is taken from the checkpoint and from
the units above its position. Without a checkpoint it is taken from the newest snapshot and from the units above the
position of that snapshot: state records below it must not be replayed, because the record that revoked one of them may
have been in a segment that was removed.
"""

import struct
from collections.abc import Callable, Iterable, Iterator
from typing import Protocol

from duolog.store.entry import CONTROL_FORM, FIRST_FRAME_FORM, EntrySlot, new_tuple
from duolog.store.errors import Corruption
from duolog.store.index.queue import Queue
from duolog.store.index.queues import Queues
from duolog.store.index.store_times import read_steps
from duolog.store.log.control import ControlKind, read_queue_offsets
from duolog.store.log.format import (
    NO_OFFSET,
    Entry,
    entries_of,
    read_header,
)
from duolog.store.log.segment import Segments
from duolog.store.recovery.checkpoint import Checkpoint


class Replayer(Protocol):
    """Receives the state records and frames of the log at recovery; `StateLog` implements it."""

    def replay_state(self, payload: bytes, slot: EntrySlot) -> None:
        """Apply one state record. A record about an object that was deleted must have no effect."""

    def replay_frame(self, key: int, slot: EntrySlot, form: int, count: int, frame: memoryview, extra: bytes) -> None:
        """Update the state that is derived from frames, such as the sequence numbers of idempotent producers.

        The frame has format `form` and `count` records, in the queue with this key. It is called for each frame above
        the position of the checkpoint or, without one, of the newest snapshot. `frame` is valid during the call only.
        """

    def set_aside(self, kind: str, position: int, what: str, error: Exception) -> None:
        """Report an entry that cannot be replayed and is skipped. Raises `error` if it must not be skipped."""

    def snapshot(self) -> "StateRecords":
        """Return records that give the present state when they are replayed into an empty replayer."""


class StateRecords(Iterator[bytes], Protocol):
    """The state records of one moment. They are read a few at a time, although the state changes after that moment."""

    def close(self) -> None:
        """Release the copies that the iterator needs. To be called after the last record, too."""


def _flush(queue: Queue) -> None:
    queue.index.flush()


class Replay:
    """Replays the units of a log, which must be passed in the order of their positions."""

    def __init__(
        self,
        segments: Segments,
        queues: Queues,
        replayer: Replayer,
        checkpoint: Checkpoint | None = None,
        snapshot: Checkpoint | None = None,
        *,
        is_rebuild: bool = True,
        on_full: Callable[[Queue], None] = _flush,
    ) -> None:
        """Begin at the first segment, with the state of the checkpoint or of the snapshot, if there is one.

        `is_rebuild` says whether entries may be missing because segments were removed. `on_full` is called with each
        queue whose index has many rows in memory.
        """
        self._segments = segments
        self._segment = segments.find(segments.start)
        self._on_full = on_full
        self._queues = queues
        self._replayer = replayer
        # Below this position only index rows are missing in the checkpoint: those that were in memory only.
        self._known_to = checkpoint.position if checkpoint else 0
        # The snapshot whose position is not reached yet. None if there is a checkpoint, or the snapshot was restored.
        self._snapshot = snapshot
        self._is_rebuild = is_rebuild and checkpoint is None
        self.entries = 0
        if checkpoint:
            self._restore_state(checkpoint)

    def take(self, block: memoryview, at: int, position: int) -> None:
        """Replay the unit at `block[at]`, which has this position and was verified."""
        size, _, _, _, stored_ms, entry_count, _ = read_header(block, at)
        if not entry_count:
            return
        if position >= self._segment.known_end:
            self._segment = self._segments.find(position)
        if self._snapshot is not None and position >= self._snapshot.position:
            self._take_snapshot(self._snapshot)
        entries = entries_of(block[at : at + size], position, entry_count)
        if position < self._known_to:
            self._take_rows(entries, stored_ms)
        else:
            self._take_entries(entries, stored_ms, is_old=self._snapshot is not None)
        self.entries += entry_count

    def end(self) -> None:
        """Complete the replay after the last unit."""
        if self._snapshot is not None:
            self._take_snapshot(self._snapshot)

    def _take_entries(self, entries: Iterable[Entry], stored_ms: int, *, is_old: bool) -> None:
        for entry in entries:
            if entry.form >= FIRST_FRAME_FORM:
                self._take_frame(entry, stored_ms, is_old)
            elif entry.form == CONTROL_FORM:
                try:
                    self._take_control(entry)
                except (struct.error, ValueError) as error:
                    self._replayer.set_aside("control entry", entry.position, f"kind {entry.kind}", error)
            elif not is_old:
                slot = EntrySlot(entry.position, NO_OFFSET, stored_ms)
                self._replayer.replay_state(bytes(entry.frame), slot)

    def _take_rows(self, entries: Iterable[Entry], stored_ms: int) -> None:
        """Add the index rows that are missing in the index files of the checkpoint; replay nothing else."""
        for position, form, kind, key, base_offset, count, tags, timestamp_ms, frame, _ in entries:
            if form >= FIRST_FRAME_FORM:
                queue = self._queues.get(key)
                if base_offset >= queue.index.end_offset and queue.index.append(
                    base_offset, position, len(frame), count, timestamp_ms, stored_ms, tags, form
                ):
                    self._on_full(queue)
            elif form == CONTROL_FORM and kind == ControlKind.TOPIC_DROPPED:
                # Frames of the topic below this entry have created its queues again, so they are dropped again.
                self._queues.drop_topic(Queue.split(key)[0])

    # -- Frames

    def _take_frame(self, entry: Entry, stored_ms: int, is_old: bool) -> None:
        position, form, _, key, base_offset, count, tags, timestamp_ms, frame, extra = entry
        queue = self._queues.get(key)
        if base_offset != queue.end_offset:
            queue = self._skip_to(queue, base_offset, position)
        if queue.index.append(base_offset, position, len(frame), count, timestamp_ms, stored_ms, tags, form):
            self._on_full(queue)
        queue.end_offset = base_offset + count
        self._segment.last_offsets[key] = base_offset + count - 1
        if not is_old:
            slot = new_tuple(EntrySlot, (position, base_offset, stored_ms))
            self._replayer.replay_frame(key, slot, form, count, frame, bytes(extra))

    def _skip_to(self, queue: Queue, base_offset: int, position: int) -> Queue:
        """Replace the queue by an empty one that begins at `base_offset`, which is above its end offset.

        The entries between were in dead segments that were removed, so they are below the log start. Raises Corruption
        if no removed segment can be the reason.
        """
        if base_offset < queue.end_offset or not self._is_rebuild:
            raise Corruption(
                f"the entry at position {position} has offset {base_offset} of queue {queue}, "
                f"and the next offset of this queue is {queue.end_offset}"
            )
        return self._queues.restart(queue, base_offset)

    # -- Control entries

    def _take_control(self, entry: Entry) -> None:
        if entry.kind == ControlKind.QUEUE:
            self._take_queue(entry.key, *read_queue_offsets(entry.frame))
        elif entry.kind == ControlKind.TOPIC_DROPPED:
            self._queues.drop_topic(Queue.split(entry.key)[0])
        elif entry.kind == ControlKind.CLOCK_STEPS:
            self._queues.index_files.steps = read_steps(entry.frame)
        else:
            raise Corruption(f"the control entry at position {entry.position} has the unknown kind {entry.kind}")

    def _take_queue(self, key: int, start_offset: int, end_offset: int) -> None:
        queue = self._queues.get(key)
        queue.move_start(start_offset)
        queue.end_offset = max(queue.end_offset, end_offset)

    # -- Snapshots and checkpoints

    def _take_snapshot(self, snapshot: Checkpoint) -> None:
        """Restore the queues and the state of the snapshot, whose position the replay has reached.

        Queues that are not in the snapshot are dropped: the unit that deleted their topic may have been in a segment
        that was removed.
        """
        self._snapshot = None
        keys = {row.key for row in snapshot.queues}
        for queue in [queue for queue in self._queues if queue.key not in keys]:
            self._queues.drop(queue)
        for row in snapshot.queues:
            self._take_queue(row.key, row.start_offset, row.end_offset)
        self._queues.index_files.steps = snapshot.steps
        self._restore_state(snapshot)

    def _restore_state(self, checkpoint: Checkpoint) -> None:
        slot = EntrySlot(checkpoint.position, NO_OFFSET, checkpoint.stored_ms)
        for record in checkpoint.records:
            self._replayer.replay_state(record, slot)
