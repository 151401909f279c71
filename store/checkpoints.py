"""When a checkpoint is due, what it says, and what may go once it is in place.

    begin      in the loop's thread, at position R
    flush      the indexes that have rows of entries below R in memory only: a few in each turn of the loop
    capture    the state of a moment, at position C: queues and segments at once, the replayer's state when it is asked
    parts      one unit of the file is encoded in each turn of the loop, and written in the background
    wait       until the log is durable up to C
    finish     in the background: sync the indexes, then put the file in place that counts their rows
    end        in the loop's thread: index files of dropped topics go, and segments in which nothing is live

A start reads the log from R on. A removal of segments finds what made it possible kept twice: in the checkpoint for the
next start, and in a snapshot for a start without one. The snapshot is the same file once more, in the log's directory.
It is written where segments are dead that the one before does not cover.

While parts are encoded the state goes on changing. They give the state at C all the same: the owners of much state copy
what changes before it was read (`bridge/copy_on_write.py`), the others all of theirs at C.
"""

from collections.abc import Iterable, Iterator
from itertools import islice

from store.checkpoint import (
    CHECKPOINT_PATH,
    PART_BYTES,
    Checkpoint,
    NewFile,
    parts_of,
    remove_older_snapshots,
    snapshot_path,
)
from store.commitlog import CommitLog
from store.files import Files
from store.format import POSITION_MAX
from store.index_files import IndexSync
from store.index_work import Flush
from store.options import StoreOptions
from store.queue import Queue
from store.queue_index import QueueIndex
from store.queues import Queues
from store.replay import Replayer, StateRecords
from store.segment import Segment

FLUSHED_AT_ONCE = 32  # indexes in one task of the background thread
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
        dropped: list[Queue],
        has_snapshot: bool,
        part_bytes: int,
    ) -> None:
        checkpoint.records = records
        self.position = checkpoint.position
        self.dead = dead  # may go
        self.starts = starts  # index files of rows below these offsets may go
        self.dropped = dropped  # their index files may go
        self.has_snapshot = has_snapshot
        self.index_error: OSError | None = None
        self._files = files
        self._records = records
        self._parts: Iterator[bytearray] = parts_of(checkpoint, part_bytes)
        self._index_sync = index_sync
        self._file = NewFile(files, CHECKPOINT_PATH)
        self._snapshot = NewFile(files, snapshot_path(checkpoint.position)) if has_snapshot else None

    def next_part(self) -> bytearray | None:
        """Encode the next unit of the file; None when there is none."""
        return next(self._parts, None)

    def close(self) -> None:
        """No more parts are wanted, whether all were taken or not."""
        self._records.close()

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


class Checkpoints:
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
        self.part_bytes = PART_BYTES
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
        self._to_flush: list[QueueIndex] = []
        self._flushed_to: list[tuple[QueueIndex, int]] = []  # the same with their ends at the beginning
        self.flushed_at_once = FLUSHED_AT_ONCE

    def is_due(self, mono_ms: int) -> bool:
        """By bytes appended, by time if anything was, or because somebody asked."""
        appended_bytes = self._log.next_position - self._position
        if self._begun_mono_ms is None:
            self._begun_mono_ms = mono_ms
        if self.is_running or not appended_bytes:
            return False
        is_late = mono_ms - self._begun_mono_ms >= self._interval_ms
        return self._is_asked_for or appended_bytes >= self._bytes or is_late

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
        self._to_flush = [queue.index for queue in self._queues if queue.index.wants_flush]
        self._flushed_to = [(index, index.end_row) for index in self._to_flush]

    def flush_some(self) -> Flush | None:
        """Take the rows of a few indexes to be written; None when all were."""
        while self._to_flush:
            some = self._to_flush[-self.flushed_at_once :]
            del self._to_flush[-self.flushed_at_once :]
            flush = Flush(self._queues.index_files, some)
            if flush:
                return flush
        return None

    @property
    def is_flushed(self) -> bool:
        """All rows of entries below the beginning are in files; false where another flush has failed meanwhile."""
        return all(index.written_row >= end_row for index, end_row in self._flushed_to)

    def capture(self, stored_ms: int, *, closed: bool) -> CheckpointTask:
        """Take the present state. All that was appended must be written."""
        assert self.is_running, "begin comes first"
        assert self.is_flushed, "the indexes come first"
        log = self._log
        # What an index had in files at this moment: `take_unsynced` makes no later row durable.
        checkpoint = Checkpoint(
            position=log.next_position,
            read_from=self._read_from,
            epoch=log.epoch,
            stored_ms=stored_ms,
            closed=closed,
            queues=self._queues.rows(),
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
            starts=[(queue.index, queue.start_offset) for queue in self._queues],
            dropped=list(self._queues.dropped),
            has_snapshot=bool(dead) and dead[-1].known_end > self._snapshot_position,
            part_bytes=self.part_bytes,
        )
        return self.task

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
