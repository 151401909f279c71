"""Replay: passes every entry of a verified log to the queues, the indexes and the owners of state.

Queues and their indexes come from all units that are read. State comes from the checkpoint and the units behind it.
Without a checkpoint it comes from the newest snapshot and the units behind that, for segments that were removed may
have held what undid an older state record.
"""

import struct
from collections.abc import Iterable, Iterator
from typing import Protocol

from duolog.store.entry import CONTROL_FORM, FIRST_FRAME_FORM, Slot, new_tuple
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

    def replay_state(self, payload: bytes, slot: Slot) -> None:
        """Apply one state record; replaying a record of something that is gone is a no-op."""

    def replay_frame(self, key: int, slot: Slot, form: int, count: int, frame: memoryview, extra: bytes) -> None:
        """See one frame (for what is derived from frames: producer windows, later timers and transactions).

        `frame` must not be kept. Only frames behind the checkpoint, or the newest snapshot, are seen.
        """

    def set_aside(self, kind: str, position: int, what: str, error: Exception) -> None:
        """Report an entry that cannot be replayed and skip it. Raises `error` if the entry must not be skipped."""

    def snapshot(self) -> "StateRecords":
        """Return records that, replayed into an empty replayer, give the state as it is at this moment."""


class StateRecords(Iterator[bytes], Protocol):
    """Records of the state of a moment. They are taken a few at a time, and the state goes on changing meanwhile."""

    def close(self) -> None:
        """Release the records; also to be called after the last one."""


class Replay:
    """Takes units in the order of their positions."""

    def __init__(
        self,
        segments: Segments,
        queues: Queues,
        replayer: Replayer,
        checkpoint: Checkpoint | None,
        snapshot: Checkpoint | None,
    ) -> None:
        self._segments = segments
        self._segment = segments.find(segments.start)
        self._queues = queues
        self._replayer = replayer
        # Below this position the checkpoint has everything but the index rows that were in memory.
        self._known_to = checkpoint.position if checkpoint else 0
        self._snapshot = snapshot  # Until its position is reached; None if there is a checkpoint.
        self._is_rebuild = checkpoint is None
        self.entries = 0
        if checkpoint:
            self._restore_state(checkpoint)

    def take(self, block: memoryview, at: int, position: int) -> None:
        """Replay the unit at `block[at]`."""
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
        """End the replay after the last unit."""
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
                slot = Slot(entry.position, NO_OFFSET, stored_ms)
                self._replayer.replay_state(bytes(entry.frame), slot)

    def _take_rows(self, entries: Iterable[Entry], stored_ms: int) -> None:
        """Add the rows that an index has not got yet, and nothing else."""
        for position, form, kind, key, base_offset, count, tags, timestamp_ms, frame, _ in entries:
            if form >= FIRST_FRAME_FORM:
                index = self._queues.get(key).index
                if base_offset >= index.end_offset and index.append(
                    base_offset, position, len(frame), count, timestamp_ms, stored_ms, tags, form
                ):
                    index.flush()
            elif form == CONTROL_FORM and kind == ControlKind.TOPIC_DROPPED:
                self._queues.drop_topic(Queue.split(key)[0])  # its frames above have made queues of it again

    # -- Frames

    def _take_frame(self, entry: Entry, stored_ms: int, is_old: bool) -> None:
        position, form, _, key, base_offset, count, tags, timestamp_ms, frame, extra = entry
        queue = self._queues.get(key)
        if base_offset != queue.end_offset:
            queue = self._skip_to(queue, base_offset, position)
        index = queue.index
        if index.append(base_offset, position, len(frame), count, timestamp_ms, stored_ms, tags, form):
            index.flush()
        queue.end_offset = base_offset + count
        self._segment.last_offsets[key] = base_offset + count - 1
        if not is_old:
            slot = new_tuple(Slot, (position, base_offset, stored_ms))
            self._replayer.replay_frame(key, slot, form, count, frame, bytes(extra))

    def _skip_to(self, queue: Queue, base_offset: int, position: int) -> Queue:
        """Go on above the queue's end: what lay between went with dead segments, so it is below the log start."""
        if base_offset < queue.end_offset or not self._is_rebuild:
            raise Corruption(
                f"the entry at {position} begins at offset {base_offset} of {queue}, where {queue.end_offset} was next"
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
            raise Corruption(f"the control entry at {entry.position} has kind {entry.kind}")

    def _take_queue(self, key: int, start_offset: int, end_offset: int) -> None:
        queue = self._queues.get(key)
        queue.move_start(start_offset)
        queue.end_offset = max(queue.end_offset, end_offset)

    # -- Snapshots and checkpoints

    def _take_snapshot(self, snapshot: Checkpoint) -> None:
        """Take all queues there were, and all state: of a queue that is not among them, the unit that dropped it may
        be gone."""
        self._snapshot = None
        keys = {row.key for row in snapshot.queues}
        for queue in [queue for queue in self._queues if queue.key not in keys]:
            self._queues.drop(queue)
        for row in snapshot.queues:
            self._take_queue(row.key, row.start_offset, row.end_offset)
        self._queues.index_files.steps = snapshot.steps
        self._restore_state(snapshot)

    def _restore_state(self, checkpoint: Checkpoint) -> None:
        slot = Slot(checkpoint.position, NO_OFFSET, checkpoint.stored_ms)
        for record in checkpoint.records:
            self._replayer.replay_state(record, slot)
