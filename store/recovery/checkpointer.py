"""When a checkpoint is due, what it says, and what may go once it is in place.

    begin      in the loop's thread, at position R
    flush      the indexes that have rows of entries below R in memory only: a few in each turn of the loop
    capture    the state of a moment, at position C: which segments there are, at once; queues and the replayer's
               state when they are asked for
    parts      one unit of the file is encoded in each turn of the loop, and written in the background
    wait       until the log is durable up to C
    finish     in the background: sync the indexes, then put the file in place that counts their rows
    end        in the loop's thread: index files of dropped topics go, and segments in which nothing is live

A start reads the log from R on. A removal of segments finds what made it possible kept twice: in the checkpoint for the
next start, and in a snapshot for a start without one. The snapshot is the same file once more, in the log's directory.
It is written where segments are dead that the one before does not cover.

While parts are encoded the state goes on changing. They give the state at C all the same: the owners of much state copy
what changes before it was read (`store/copy_on_write.py`), the others all of theirs at C.
"""

from collections.abc import Callable, Iterable, Iterator
from itertools import islice

from duolog.store.files import Files
from duolog.store.index.index_files import IndexSync
from duolog.store.index.index_maintenance import IndexFlush
from duolog.store.index.queue import Queue
from duolog.store.index.queue_index import QueueIndex
from duolog.store.index.queues import Queues
from duolog.store.log.commitlog import CommitLog
from duolog.store.log.control import QueueRow
from duolog.store.log.format import POSITION_MAX
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

FLUSHED_AT_ONCE = 32  # indexes in one task of the background thread
LOOKED_AT_ONCE = 8192  # queues in one turn of the loop that may have nothing to flush, at about 0.1 us each
KEYS_IN_SLICE = 20_000  # of segments, looked at in one turn of the loop, at about 0.1 us each


class CheckpointTask:
    """One checkpoint on its way. `next_part` and `close` are for the loop's thread, what blocks is for another."""

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
        self.dead = dead  # may go
        self.starts = starts  # index files of rows below these offsets may go; complete when all parts were taken
        self._end = end  # of the reading of queues
        self.dropped = dropped  # their index files may go
        self.has_snapshot = has_snapshot
        self.index_error: OSError | None = None
        self._files = files
        self._records = records
        self._parts: Iterator[bytearray] = parts_of(checkpoint, part_bytes, rows_in_entry)
        self._index_sync = index_sync
        self._file = NewFile(files, CHECKPOINT_PATH)
        self._snapshot = NewFile(files, snapshot_path(checkpoint.position)) if has_snapshot else None

    def next_part(self) -> bytearray | None:
        """Encode the next unit of the file; None when there is none."""
        return next(self._parts, None)

    def close(self) -> None:
        """No more parts are wanted, whether all were taken or not."""
        self._records.close()
        self._end()

    def write(self, part: bytearray) -> None:
        """Blocks; raises OSError."""
        self._file.write(part)
        if self._snapshot is not None:
            self._snapshot.write(part)

    def finish(self) -> None:
        """The rows first, then the files: the checkpoint counts rows, and stands for what the removal needs.

        Blocks; raises OSError.
        """
        try:
            self._index_sync.run()
        except OSError as error:
            if self._index_sync.has_failed:
                self.index_error = error  # Else the next checkpoint syncs all of it once more.
            raise
        if self._snapshot is not None:
            self._snapshot.put_in_place()
        self._file.put_in_place()
        if self._snapshot is not None:
            # Older ones go before any segment does: what is found of snapshots is then never too old for the log.
            remove_older_snapshots(self._files, self.position)


class Checkpointer:
    """Makes the checkpoints of one store; the store says when, and appends and waits for it."""

    def __init__(
        self,
        files: Files,
        options: StoreOptions,
        log: CommitLog,
        queues: Queues,
        replayer: Replayer,
        *,
        position: int,
        snapshot_position: int,
    ) -> None:
        self.held_from = POSITION_MAX  # segments that reach beyond are read by somebody, and stay
        self.is_running = False  # one at a time
        self.task: CheckpointTask | None = None  # of the one that runs, once it is captured
        self.part_bytes, self.rows_in_entry = PART_BYTES, ROWS_IN_ENTRY
        self._snapshot_position = snapshot_position  # of the newest snapshot; -1: there is none
        self._files = files
        self._bytes = options.checkpoint_bytes
        self._interval_ms = options.checkpoint_interval_ms
        self._log = log
        self._queues = queues
        self._replayer = replayer
        self._position = position  # of the one in place
        self._begun_mono_ms: int | None = None  # the last one; None: nobody has asked the time yet
        self._is_asked_for = False
        self._read_from = 0  # of the one that runs
        self._to_flush: Iterator[Queue] = iter(())
        self.flushed_at_once = FLUSHED_AT_ONCE

    def is_due(self, mono_ms: int) -> bool:
        """By bytes appended, by time if anything was, or because somebody asked.

        Segments may be found dead after the checkpoint that followed their deletion. So one that is asked for needs no
        append: on a full disk there would be none.
        """
        appended_bytes = self._log.next_position - self._position
        if self._begun_mono_ms is None:
            self._begun_mono_ms = mono_ms
        if self.is_running or self._is_asked_for:
            return not self.is_running
        is_late = mono_ms - self._begun_mono_ms >= self._interval_ms
        return appended_bytes > 0 and (is_late or appended_bytes >= self._bytes)

    def ask(self) -> None:
        self._is_asked_for = True

    def note_time(self, mono_ms: int) -> None:
        self._begun_mono_ms = mono_ms

    def begin(self) -> None:
        """All that was appended must be written."""
        assert not self.is_running, "one checkpoint at a time"
        self.is_running = True
        self._is_asked_for = False
        self._read_from = self._log.next_position
        self._to_flush = iter([*self._queues])

    def flush_some(self) -> IndexFlush | None:
        """Take the rows of a few indexes to be written, of none if it takes long to find any; None when all were.

        Each must be complete before the state is captured.
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
        """Take the present state. All that was appended must be written, and the indexes flushed."""
        assert self.is_running, "begin comes first"
        log = self._log
        starts: list[tuple[QueueIndex, int]] = []
        # What an index had in files at this moment: `take_unsynced` makes no later row durable.
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
        dead = [segment for segment in self.removable() if segment.known_end <= self._read_from]
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
        """Yield the queues of this moment; what is yielded adds to `starts` where files of its index may go."""
        return (self._noting_start(row, starts) for row in self._queues.capture())

    def _noting_start(self, row: QueueRow, starts: list[tuple[QueueIndex, int]]) -> QueueRow:
        queue = self._queues.find(row.key)
        if queue is not None and queue.index.has_sealed_files:
            starts.append((queue.index, row.start_offset))
        return row

    def _last_offsets(self) -> dict[int, dict[int, int]]:
        """Return what may be live in each segment. Nothing is added any more to what a sealed one has."""
        return {
            segment.start: segment.last_offsets if segment.is_sealed else dict(segment.last_offsets)
            for segment in self._log.segments
            if not segment.is_gap
        }

    def end(self, *, is_in_place: bool) -> None:
        """The file of the one that runs is in place, or it came to nothing."""
        task = self.task
        self.is_running, self.task = False, None
        if task is None:
            return
        task.close()
        if is_in_place:
            self._position = task.position
            if task.has_snapshot:
                self._snapshot_position = task.position

    # -- Dead segments

    def look_for_dead(self) -> Iterator[None]:
        """Find the sealed segments in which nothing is live, a slice in each turn of the loop."""
        left = KEYS_IN_SLICE
        for segment in [*self._log.segments]:
            if segment.is_dead or not segment.is_sealed or segment.is_gap:
                continue
            keys = iter(segment.last_offsets)
            while some := [*islice(keys, max(1, left))]:
                left -= len(some)
                if any(self._is_live(key, segment) for key in some):
                    break
                if left <= 0:
                    yield
                    left = KEYS_IN_SLICE
            else:
                segment.is_dead = True
            left -= 1

    def _is_live(self, key: int, segment: Segment) -> bool:
        queue = self._queues.find(key)
        return queue is not None and segment.last_offsets[key] >= queue.start_offset

    def still_removable(self, dead: Iterable[Segment]) -> list[Segment]:
        """Return those of dead segments that nobody reads."""
        return [segment for segment in dead if segment.known_end <= self.held_from]

    def removable(self) -> list[Segment]:
        """Return the dead segments that were found, and that nobody reads."""
        return self.still_removable(segment for segment in self._log.segments if segment.is_dead)

    @property
    def held_bytes(self) -> int:
        """Bytes of segments that were found dead and stay because somebody reads them."""
        return sum(
            segment.known_end - segment.start
            for segment in self._log.segments
            if segment.is_dead and segment.known_end > self.held_from
        )
