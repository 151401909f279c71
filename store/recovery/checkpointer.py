"""When a checkpoint is due, and what it contains.

    begin      in the loop's thread, at position R
    flush      the index rows of entries below R that are in memory only are written, some indexes in each turn
    capture    the state at position C is fixed: the list of segments is copied at once; queues and the replayer's
               state are read later, while the parts are encoded
    parts      one unit of the file is encoded in each turn of the loop, and written by the background thread
    wait       until the log is durable up to C
    finish     by the background thread: the indexes are synced, then the file is renamed to its final name
    end        in the loop's thread: index files of dropped topics and dead segments may be removed

`CheckpointRun` (`store/recovery/checkpoint_run.py`) drives these steps. A start with the checkpoint reads the log from
R on.

Before segments are removed, the state in them is stored twice: in the checkpoint, for the next start, and in a
snapshot, for a start without a checkpoint. The snapshot is a second copy of the same file in the log's directory; it is
written if segments are dead that the newest snapshot does not cover.

The state goes on changing while parts are encoded, yet the parts contain the state at C: owners of much state copy
what changes before it was read (`store/copy_on_write.py`); the other owners copy all of their state at C.
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
LOOKED_AT_ONCE = 8192  # Queues that are checked for unflushed rows in one turn of the loop, at about 0.1 us each.


class CheckpointTask:
    """One checkpoint in progress. `next_part` and `close` belong in the loop's thread, what blocks in another."""

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
        self.starts = starts  # Index files of rows below these offsets may be removed. Complete with the last part.
        self.dropped = dropped  # Queues whose index files may be removed.
        self._end = end  # Ends the reading of the queues.
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
        """Release the captured state; no more parts are taken."""
        self._records.close()
        self._end()

    def write(self, part: bytearray) -> None:
        """Write a part. Blocks; raises OSError."""
        self._file.write(part)
        if self._snapshot is not None:
            self._snapshot.write(part)

    def finish(self) -> None:
        """Sync the index rows, then put the files in place: the checkpoint counts on these rows.

        Blocks; raises OSError.
        """
        try:
            self._index_sync.run()
        except OSError as error:
            if self._index_sync.has_failed:
                self.index_error = error  # Without a failed fsync the next checkpoint syncs all of it again.
            raise
        if self._snapshot is not None:
            self._snapshot.put_in_place()
        self._file.put_in_place()
        if self._snapshot is not None:
            # Older snapshots are removed before any segment: no start can then find one that is too old for the log.
            remove_older_snapshots(self._files, self.position)


class Checkpointer:
    """Prepares the checkpoints of one store; `CheckpointRun` drives them."""

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
    ) -> None:
        self.is_running = False  # At most one checkpoint is in progress.
        self.task: CheckpointTask | None = None  # The one in progress, once the state is captured.
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
        self._begun_mono_ms: int | None = None  # When the last checkpoint began; None until `is_due` is first called.
        self._is_asked_for = False
        self._read_from = 0  # Position R of the checkpoint in progress.
        self._to_flush: Iterator[Queue] = iter(())

    def is_due(self, mono_ms: int) -> bool:
        """Tell whether a checkpoint is due: by bytes appended, by time if anything was appended, or because of `ask`.

        Segments may be found dead after the checkpoint that followed the deletions. So a checkpoint that is asked for
        needs no append: on a full disk there would be none.
        """
        appended_bytes = self._log.next_position - self._position
        if self._begun_mono_ms is None:
            self._begun_mono_ms = mono_ms
        if self.is_running or self._is_asked_for:
            return not self.is_running
        is_late = mono_ms - self._begun_mono_ms >= self._interval_ms
        return appended_bytes > 0 and (is_late or appended_bytes >= self._bytes)

    def ask(self) -> None:
        """Make the next checkpoint due at once: segments can be removed behind it."""
        self._is_asked_for = True

    def note_time(self, mono_ms: int) -> None:
        self._begun_mono_ms = mono_ms

    def begin(self) -> None:
        """Begin a checkpoint. Everything appended must be written."""
        assert not self.is_running, "one checkpoint at a time"
        self.is_running = True
        self._is_asked_for = False
        self._read_from = self._log.next_position
        self._to_flush = iter([*self._queues])

    def flush_some(self) -> IndexFlush | None:
        """Return a flush of some indexes, possibly an empty one; None when every queue was looked at.

        Each flush must be complete before the state is captured.
        """
        some: list[Queue] = []
        looked_at = 0
        for queue in self._to_flush:
            looked_at += 1
            if queue.index.wants_flush:
                some.append(queue)
            if len(some) == self.flushed_at_once or looked_at == LOOKED_AT_ONCE:
                break
        return IndexFlush(self._queues.index_files, some) if looked_at else None

    def capture(self, stored_ms: int, *, closed: bool) -> CheckpointTask:
        """Capture the present state. Everything appended must be written, and the indexes flushed."""
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
        # `take_unsynced` makes the rows durable that the files have at this moment, and no later ones.
        self.task = CheckpointTask(
            self._files,
            checkpoint,
            self._replayer.snapshot(),
            self._queues.index_files.take_unsynced(),
            dead=dead,
            starts=starts,
            end=self._queues.moment.end,
            dropped=list(self._queues.dropped),
            has_snapshot=bool(dead) and dead[-1].known_end > self._snapshot_position,
            part_bytes=self.part_bytes,
            rows_in_entry=self.rows_in_entry,
        )
        return self.task

    def _rows(self, starts: list[tuple[QueueIndex, int]]) -> Iterator[QueueRow]:
        """Yield the queues as they are now; each adds to `starts` if its index has files that may be removed."""
        return (self._noting_start(row, starts) for row in self._queues.capture())

    def _noting_start(self, row: QueueRow, starts: list[tuple[QueueIndex, int]]) -> QueueRow:
        queue = self._queues.find(row.key)
        if queue is not None and queue.index.has_sealed_files:
            starts.append((queue.index, row.start_offset))
        return row

    def _last_offsets(self) -> dict[int, dict[int, int]]:
        """Return the last offsets in each segment. Those of a sealed segment need no copy: none are added."""
        return {
            segment.start: segment.last_offsets if segment.is_sealed else dict(segment.last_offsets)
            for segment in self._log.segments
            if not segment.is_gap
        }

    def end(self, *, is_in_place: bool) -> None:
        """End the checkpoint in progress: its file is in place, or it was given up."""
        task = self.task
        self.is_running, self.task = False, None
        if task is None:
            return
        task.close()
        if is_in_place:
            self._position = task.position
            if task.has_snapshot:
                self._snapshot_position = task.position
