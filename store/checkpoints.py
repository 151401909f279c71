"""When a checkpoint is due, what it says, and what may go once it is in place.

    begin      in the loop's thread, at position R
    flush      the indexes that have rows of entries below R in memory only: a few in each turn of the loop
    capture    the state of a moment, at position C
    wait       until the log is durable up to C
    run        in the background: sync the indexes, then write the file that counts their rows
    end        in the loop's thread: index files of dropped topics go, and segments in which nothing is live

A start reads the log from R on. A removal finds what made it possible kept twice: in the checkpoint for the next start,
and in the log for a start without one. For the latter a segment goes only below a snapshot unit, which holds all
state once more.

The capture is not cut into slices: it costs the loop about 1 us for each state record and each queue.
"""

from dataclasses import dataclass

from store.checkpoint import Checkpoint, encode_checkpoint, write_checkpoint
from store.commitlog import CommitLog
from store.control import Control, snapshot_control
from store.entry import State
from store.files import Files
from store.format import POSITION_MAX
from store.options import StoreOptions
from store.queue import Queue
from store.queue_index import IndexSync, QueueIndex
from store.queues import Queues
from store.replay import Replayer
from store.segment import Segment

FLUSHED_AT_ONCE = 32  # indexes in one turn of the loop, at about 25 us each


@dataclass(slots=True)
class CheckpointTask:
    """One checkpoint on its way. `run` blocks; the rest is for the loop's thread."""

    files: Files
    checkpoint: Checkpoint
    index_sync: IndexSync
    dead: list[Segment]  # may go
    starts: list[tuple[QueueIndex, int]]  # index files of rows below these offsets may go
    dropped: list[Queue]  # their index files may go
    are_indexes_durable: bool = False

    def run(self) -> None:
        """The rows first, then the file that counts them. Raises OSError."""
        self.index_sync.run()
        self.are_indexes_durable = True
        write_checkpoint(self.files, encode_checkpoint(self.checkpoint))


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
        self.snapshot_position = snapshot_position  # of the newest snapshot unit in the log
        self.held_from = POSITION_MAX  # segments that reach beyond are read by somebody, and stay
        self.is_running = False  # one at a time
        self.task: CheckpointTask | None = None  # of the one that runs, once it is captured
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

    def flush_some(self) -> bool:
        """Flush a few indexes; true when all are. Raises OSError, and may be called again."""
        for _ in range(min(self.flushed_at_once, len(self._to_flush))):
            self._to_flush[-1].flush()
            self._to_flush.pop()
        return not self._to_flush

    def capture(self, stored_ms: int, *, closed: bool) -> CheckpointTask:
        """Take the present state. All that was appended must be written."""
        assert self.is_running, "begin comes first"
        assert not self._to_flush, "the indexes come first"
        log = self._log
        checkpoint = Checkpoint(
            position=log.next_position,
            read_from=self._read_from,
            epoch=log.epoch,
            stored_ms=stored_ms,
            snapshot_position=self.snapshot_position,
            closed=closed,
            queues=self._queues.rows(),
            last_offsets={segment.start: dict(segment.last_offsets) for segment in log.segments if not segment.is_gap},
            records=list(self._replayer.snapshot()),
        )
        limit = min(self._read_from, self.snapshot_position)
        self.task = CheckpointTask(
            self._files,
            checkpoint,
            self._queues.index_files.take_unsynced(),
            dead=[segment for segment in self.dead_segments() if segment.known_end <= limit],
            starts=[(queue.index, queue.start_offset) for queue in self._queues],
            dropped=list(self._queues.dropped),
        )
        return self.task

    def end(self, task: CheckpointTask | None) -> None:
        """The file of the task is in place; None: it came to nothing."""
        self.is_running, self.task = False, None
        if task is not None:
            self._position = task.checkpoint.position

    # -- Dead segments

    def dead_segments(self) -> list[Segment]:
        return [segment for segment in self._log.segments if self._is_dead(segment)]

    def _is_dead(self, segment: Segment) -> bool:
        if not segment.is_sealed or segment.is_gap or segment.known_end > self.held_from:
            return False
        for key, last_offset in segment.last_offsets.items():
            queue = self._queues.find(key)
            if queue is not None and last_offset >= queue.start_offset:
                return False
        return True

    def snapshot(self) -> list[Control | State]:
        """Return the entries of a snapshot unit: all queues, then all state."""
        return [snapshot_control(self._queues.rows()), *map(State, self._replayer.snapshot())]
