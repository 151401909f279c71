"""The class Checkpointer: decides when a checkpoint is due and what it contains.

A checkpoint takes these steps, which `CheckpointRun` (`store/recovery/checkpoint_run.py`) executes:

    begin      loop's thread        R, the end of the log, becomes `read_from` of the checkpoint
    flush      both threads         the index rows of entries below R are written to index files, some indexes in each
                                    loop turn
    capture    loop's thread        C, the end of the log, becomes the position of the checkpoint; the last offsets of
                                    the segments are copied
    parts      both threads         in each loop turn one unit of the file is encoded from the state at C, and the
                                    background thread writes it
    wait                            until the log is durable up to C
    finish     background thread    the index files are synced, then the file is renamed to its final name
    end        loop's thread        dead segments, and index files that are no longer needed, may be removed

A start with this checkpoint reads the log from R on.

The state may change while parts are encoded, and yet they contain the state at C: owners of much state copy a value
before its first change after C (`store/copy_on_write.py`), and the other owners copy all of their state at C.

Before segments are removed, the state in them is stored twice: in the checkpoint, for the next start, and in a
snapshot, for a start without a checkpoint. The snapshot is a copy of the checkpoint in the log's directory. It is
written if a segment is dead that ends above the position of the newest snapshot.
"""

from collections.abc import Callable, Iterator

from duolog.store.files import Files
from duolog.store.index.index_files import IndexSync
from duolog.store.index.index_maintenance import IndexFlush
from duolog.store.index.queue import Queue
from duolog.store.index.queue_index import QueueIndex
from duolog.store.index.queues import Queues
from duolog.store.log.commitlog import CommitLog
from duolog.store.log.control import QueueRow
from duolog.store.log.segment import Segment
from duolog.store.options import StoreOptions
from duolog.store.recovery.checkpoint import (
    CHECKPOINT_PATH,
    PART_BYTES,
    ROWS_IN_ENTRY,
    Checkpoint,
    NewFile,
    parts_of,
    remove_older_snapshots,
    snapshot_path,
)
from duolog.store.recovery.replay import Replayer, StateRecords
from duolog.store.retention.dead_segments import DeadSegments

FLUSHED_AT_ONCE = 32  # Indexes that one task of the background thread flushes.
CHECKED_AT_ONCE = 8192  # Queues that are checked for unflushed rows in one loop turn, at about 0.1 us each.


class CheckpointTask:
    """One checkpoint in progress, after its state was captured.

    `next_part` and `close` are called in the loop's thread, `write` and `finish` in the background thread.
    """

    def __init__(
        self,
        files: Files,
        checkpoint: Checkpoint,
        records: StateRecords,
        index_sync: IndexSync,
        *,
        dead: list[Segment],
        starts: list[tuple[QueueIndex, int]],
        end: Callable[[], None],
        dropped: list[Queue],
        has_snapshot: bool,
        part_bytes: int,
        rows_in_entry: int,
    ) -> None:
        checkpoint.records = records
        self.position = checkpoint.position
        self.dead = dead  # Segments that may be removed once the checkpoint is in place.
        # Log starts of indexes: index files with rows below them may be removed. Complete after the last part.
        self.starts = starts
        self.dropped = dropped  # Queues whose index files may be removed.
        self._end = end  # Releases the copies of the queues' rows.
        self.has_snapshot = has_snapshot
        self.index_error: OSError | None = None
        self._files = files
        self._records = records
        self._parts: Iterator[bytearray] = parts_of(checkpoint, part_bytes, rows_in_entry)
        self._index_sync = index_sync
        self._file = NewFile(files, CHECKPOINT_PATH)
        self._snapshot = NewFile(files, snapshot_path(checkpoint.position)) if has_snapshot else None

    def next_part(self) -> bytearray | None:
        """Encode and return the next unit of the file; None after the last one."""
        return next(self._parts, None)

    def close(self) -> None:
        """Release the captured state. `next_part` must not be called any more."""
        self._records.close()
        self._end()

    def write(self, part: bytearray) -> None:
        """Write one part to the checkpoint, and to the snapshot if one is written. Blocks; raises OSError."""
        self._file.write(part)
        if self._snapshot is not None:
            self._snapshot.write(part)

    def finish(self) -> None:
        """Sync the index files, to whose rows the checkpoint refers, then rename the file to its final name.

        Blocks; raises OSError. After a failed fsync of an index file, `index_error` is set.
        """
        try:
            self._index_sync.run()
        except OSError as error:
            if self._index_sync.has_failed:
                self.index_error = error  # After any other error the next checkpoint syncs the same files again.
            raise
        if self._snapshot is not None:
            self._snapshot.put_in_place()
        self._file.put_in_place()
        if self._snapshot is not None:
            # Older snapshots are removed before any segment, so that recovery never uses a snapshot that lacks the
            # state of a removed segment.
            remove_older_snapshots(self._files, self.position)


class Checkpointer:
    """Prepares the checkpoints of one store; `CheckpointRun` executes them.

    The class has more than 15 fields because it decides when a checkpoint is due, and captures all parts of the store
    for it.
    """

    def __init__(
        self,
        files: Files,
        options: StoreOptions,
        log: CommitLog,
        queues: Queues,
        replayer: Replayer,
        dead_segments: DeadSegments,
        *,
        position: int,
        snapshot_position: int,
        read_from: int,
    ) -> None:
        self.needed_from = read_from  # A start with the checkpoint in place reads the log from here on.
        self.is_running = False  # At most one checkpoint is in progress.
        self.task: CheckpointTask | None = None  # The checkpoint in progress, once its state is captured.
        self.part_bytes, self.rows_in_entry = PART_BYTES, ROWS_IN_ENTRY
        self.flushed_at_once = FLUSHED_AT_ONCE
        self._dead_segments = dead_segments
        self._snapshot_position = snapshot_position  # Position of the newest snapshot; -1 if there is none.
        self._files = files
        self._bytes = options.checkpoint_bytes
        self._interval_ms = options.checkpoint_interval_ms
        self._log = log
        self._queues = queues
        self._replayer = replayer
        self._position = position  # Position of the checkpoint in place.
        self._begun_mono_ms: int | None = None  # When the last checkpoint began; None until the first `is_due`.
        self._is_asked_for = False  # Whether `ask` was called since the last checkpoint began.
        self._read_from = 0  # Position R of the checkpoint in progress.
        self._to_flush: Iterator[Queue] = iter(())

    def is_due(self, mono_ms: int) -> bool:
        """Return whether a checkpoint is due: by appended bytes, by time if anything was appended, or after `ask`.

        After `ask` a checkpoint is due even if nothing was appended since the last one. The dead segments may have been
        found after it, and while the disk is full nothing is appended.
        """
        appended_bytes = self._log.next_position - self._position
        if self._begun_mono_ms is None:
            self._begun_mono_ms = mono_ms
        if self.is_running or self._is_asked_for:
            return not self.is_running
        is_late = mono_ms - self._begun_mono_ms >= self._interval_ms
        return appended_bytes > 0 and (is_late or appended_bytes >= self._bytes)

    def ask(self) -> None:
        """Make a checkpoint due at once, because dead segments can be removed after it."""
        self._is_asked_for = True

    def note_time(self, mono_ms: int) -> None:
        """Set the time from which `store.checkpoint_interval_ms` is counted."""
        self._begun_mono_ms = mono_ms

    def begin(self) -> None:
        """Begin a checkpoint. All appended units must be written."""
        assert not self.is_running, "one checkpoint at a time"
        self.is_running = True
        self._is_asked_for = False
        self._read_from = self._log.next_position
        self._to_flush = iter([*self._queues])

    def flush_some(self) -> IndexFlush | None:
        """Return a flush of the next indexes, which may be empty; None after the last queue.

        Each flush must be complete before `capture` is called.
        """
        some: list[Queue] = []
        checked = 0
        for queue in self._to_flush:
            checked += 1
            if queue.index.wants_flush:
                some.append(queue)
            if len(some) == self.flushed_at_once or checked == CHECKED_AT_ONCE:
                break
        return IndexFlush(self._queues.index_files, some) if checked else None

    def capture(self, stored_ms: int, *, closed: bool) -> CheckpointTask:
        """Capture the present state. All appended units must be written, and all indexes flushed."""
        assert self.is_running, "Checkpointer.begin comes first"
        log = self._log
        starts: list[tuple[QueueIndex, int]] = []
        checkpoint = Checkpoint(
            position=log.next_position,
            read_from=self._read_from,
            epoch=log.epoch,
            stored_ms=stored_ms,
            closed=closed,
            queues=self._rows(starts),
            last_offsets=self._last_offsets(),
            steps=self._queues.index_files.steps,
        )
        dead = [segment for segment in self._dead_segments.removable() if segment.known_end <= self._read_from]
        # The IndexSync of `take_unsynced` covers the rows that are in index files at this moment.
        self.task = CheckpointTask(
            self._files,
            checkpoint,
            self._replayer.snapshot(),
            self._queues.index_files.take_unsynced(),
            dead=dead,
            starts=starts,
            end=self._queues.captured_rows.end,
            dropped=list(self._queues.dropped),
            has_snapshot=bool(dead) and dead[-1].known_end > self._snapshot_position,
            part_bytes=self.part_bytes,
            rows_in_entry=self.rows_in_entry,
        )
        return self.task

    def _rows(self, starts: list[tuple[QueueIndex, int]]) -> Iterator[QueueRow]:
        """Yield the rows of the queues at this moment; add the log starts of indexes with sealed files to `starts`."""
        return (self._noting_start(row, starts) for row in self._queues.capture())

    def _noting_start(self, row: QueueRow, starts: list[tuple[QueueIndex, int]]) -> QueueRow:
        queue = self._queues.find(row.key)
        if queue is not None and queue.index.has_sealed_files:
            starts.append((queue.index, row.start_offset))
        return row

    def _last_offsets(self) -> dict[int, dict[int, int]]:
        """Return the last offsets in each segment. Those of sealed segments no longer change and are not copied."""
        return {
            segment.start: segment.last_offsets if segment.is_sealed else dict(segment.last_offsets)
            for segment in self._log.segments
            if not segment.is_gap
        }

    def end(self, *, is_in_place: bool) -> None:
        """End the checkpoint in progress: its file is in place, or the checkpoint was abandoned."""
        task = self.task
        self.is_running, self.task = False, None
        if task is None:
            return
        task.close()
        if is_in_place:
            self._position, self.needed_from = task.position, self._read_from
            if task.has_snapshot:
                self._snapshot_position = task.position
