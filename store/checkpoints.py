"""When a checkpoint is due, what it says, and what may go once it is in place.

    capture      in the loop's thread: the state of this moment, at position C
    wait         until the log is durable up to C
    run          in the background: sync the indexes, then write the file that counts their rows
    take over    in the loop's thread: index files of dropped topics go, and segments in which nothing is live

So a removal always finds what made it possible kept twice: in the checkpoint, for the next start, and in the log, for
a start without it. For the latter a segment goes only below a snapshot unit, which holds all state once more.

The capture is not cut into slices: it costs about 1 us for each state record, and 3 us for each queue.
"""

from dataclasses import dataclass

from store.checkpoint import Checkpoint, encode_checkpoint, write_checkpoint
from store.commitlog import CommitLog
from store.control import Control, snapshot_control
from store.entry import State
from store.files import Files
from store.options import StoreOptions
from store.queue import Queue
from store.queue_index import IndexSync, QueueIndex
from store.queues import Queues
from store.replay import Replayer
from store.segment import Segment


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
        self.running: CheckpointTask | None = None  # one at a time
        self._files = files
        self._bytes = options.checkpoint_bytes
        self._interval_ms = options.checkpoint_interval_ms
        self._log = log
        self._queues = queues
        self._replayer = replayer
        self._position = position  # of the one in place
        self._begun_mono_ms: int | None = None  # the last one; None: nobody has asked the time yet
        self._is_asked_for = False

    def is_due(self, mono_ms: int) -> bool:
        """By bytes appended, by time if anything was, or because somebody asked."""
        appended_bytes = self._log.next_position - self._position
        if self._begun_mono_ms is None:
            self._begun_mono_ms = mono_ms
        if self.running is not None or not appended_bytes:
            return False
        is_late = mono_ms - self._begun_mono_ms >= self._interval_ms
        return self._is_asked_for or appended_bytes >= self._bytes or is_late

    def ask(self) -> None:
        self._is_asked_for = True

    def note_time(self, mono_ms: int) -> None:
        self._begun_mono_ms = mono_ms

    def capture(self, stored_ms: int, *, closed: bool) -> CheckpointTask:
        """Take the present state. All that was appended must be written, and all rows of the indexes too."""
        assert self.running is None, "one checkpoint at a time"
        log = self._log
        checkpoint = Checkpoint(
            position=log.next_position,
            epoch=log.epoch,
            stored_ms=stored_ms,
            snapshot_position=self.snapshot_position,
            closed=closed,
            queues=self._queues.rows(),
            last_offsets={segment.start: dict(segment.last_offsets) for segment in log.segments if not segment.is_gap},
            records=list(self._replayer.snapshot()),
        )
        self._is_asked_for = False
        self.running = CheckpointTask(
            self._files,
            checkpoint,
            self._queues.index_files.take_unsynced(),
            dead=[segment for segment in self.dead_segments() if segment.known_end <= self.snapshot_position],
            starts=[(queue.index, queue.start_offset) for queue in self._queues],
            dropped=list(self._queues.dropped),
        )
        return self.running

    def take_over(self, task: CheckpointTask) -> None:
        """Its file is in place."""
        self._position = task.checkpoint.position

    # -- Dead segments

    def dead_segments(self) -> list[Segment]:
        return [segment for segment in self._log.segments if self._is_dead(segment)]

    def _is_dead(self, segment: Segment) -> bool:
        if not segment.is_sealed or segment.is_gap:
            return False
        for key, last_offset in segment.last_offsets.items():
            queue = self._queues.find(key)
            if queue is not None and last_offset >= queue.start_offset:
                return False
        return True

    def snapshot(self) -> list[Control | State]:
        """Return the entries of a snapshot unit: all queues, then all state."""
        return [snapshot_control(self._queues.rows()), *map(State, self._replayer.snapshot())]
