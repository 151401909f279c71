"""The class CheckpointRun: executes the steps of a checkpoint, in loop turns and in tasks of the background thread.

`store/recovery/checkpointer.py` lists the steps.
"""

import logging
from functools import partial

from duolog.store.durability import Durability
from duolog.store.entry import SHARED, SYNCED, Promise
from duolog.store.errors import NO_SPACE, StoreError
from duolog.store.index.index_maintenance import CleanUp, IndexFlush
from duolog.store.index.queues import Queues
from duolog.store.log.appender import Appender
from duolog.store.log.segment import Segments
from duolog.store.recovery.checkpointer import Checkpointer, CheckpointTask
from duolog.store.retention.dead_segments import DeadSegments
from duolog.store.workers import Executor, Executors, Failure
from duolog.store.write_state import WriteState

log = logging.getLogger("store")


class CheckpointRun:
    """Runs the checkpoints of one store, one at a time."""

    def __init__(
        self,
        checkpoints: Checkpointer,
        queues: Queues,
        segments: Segments,
        appender: Appender,
        durability: Durability,
        write_state: WriteState,
        executors: Executors,
        dead_segments: DeadSegments,
        *,
        is_shared: bool,
    ) -> None:
        self._is_shared = is_shared
        self._checkpoints, self._queues, self._segments = checkpoints, queues, segments
        self._appender, self._durability, self._write_state = appender, durability, write_state
        self._executors = executors
        self._dead_segments = dead_segments

    def begin(self, *, closed: bool) -> None:
        """Begin a checkpoint, unless one is in progress or the log cannot be written.

        `closed` says that this is the last checkpoint of a run that ends with `Store.close`.
        """
        if not self._checkpoints.is_running and self._durability.write_silently():
            self._checkpoints.begin()
            self._flush(closed)

    def _flush(self, closed: bool) -> None:
        """Flush some indexes. After the last ones, capture the state and encode the first part."""
        flush = self._checkpoints.flush_some()
        if flush is not None:
            self._executors.background.submit(flush.run, partial(self._flushed, closed, flush))
        elif not self._durability.write_silently():
            self._checkpoints.end(is_in_place=False)
        else:
            self._write_part(self._checkpoints.capture(self._appender.stored_ms, closed=closed))

    def _flushed(self, closed: bool, flush: IndexFlush, outcome: Failure | None) -> None:
        flush.end(self._queues.captured_rows.before_change)
        if self._write_state.is_closed and not closed:
            return
        if outcome is None and flush.is_complete:
            self._flush(closed)
            return
        self._checkpoints.end(is_in_place=False)
        if isinstance(outcome, OSError):
            self._write_state.write_failed(outcome)

    def _write_part(self, task: CheckpointTask, outcome: Failure | None = None) -> None:
        """Encode one part in this loop turn and write it in the background; after the last part wait for the log."""
        if self._write_state.is_closed or task is not self._checkpoints.task:
            return
        if outcome is not None:
            self._failed(task, outcome)
            return
        try:
            part = task.next_part()
        except Exception:
            self._checkpoints.end(is_in_place=False)  # Without it no later checkpoint could begin.
            raise
        if part is not None:
            self._executors.background.submit(partial(task.write, part), partial(self._write_part, task))
        else:
            self._durability.when(Promise(task.position, SYNCED), partial(self._synced, task))

    def _synced(self, task: CheckpointTask, error: StoreError | None) -> None:
        """Wait for the object store, if there is one, because a start may cut the log to what the store has."""
        if error is not None or not self._is_shared:
            self._finish(task, error)
        else:
            self._durability.when(Promise(task.position, SHARED), partial(self._finish, task))

    def _finish(self, task: CheckpointTask, error: StoreError | None) -> None:
        if task is not self._checkpoints.task:
            return
        if error is not None:
            self._checkpoints.end(is_in_place=False)
        else:
            self._executors.background.submit(task.finish, partial(self._end, task))

    def _end(self, task: CheckpointTask, outcome: Failure | None) -> None:
        """Process the outcome of the last step, and remove the files that only the previous checkpoint needed."""
        if self._write_state.is_closed or task is not self._checkpoints.task:
            return
        if outcome is not None:
            self._failed(task, outcome)
            return
        self._checkpoints.end(is_in_place=True)
        CleanUp(self._queues, self._executor, task.dropped, task.starts, log_removal_failure).start()
        dead = self._dead_segments.not_held(task.dead)
        if dead:
            log.info("removing segments, count=%d first=%d", len(dead), dead[0].start)
            self._dead_segments.removed_count += len(dead)
            self._executors.background.submit(self._segments.take_out(dead).run, log_removal_failure)

    def _executor(self) -> Executor | None:
        return None if self._write_state.is_closed else self._executors.background

    def abandon(self) -> None:
        """Abandon the checkpoint in progress, if any, because the store is being closed."""
        task = self._checkpoints.task
        if task is not None and task.index_error is not None:
            self._failed(task, task.index_error)
        self._checkpoints.end(is_in_place=False)

    def _failed(self, task: CheckpointTask, outcome: Failure) -> None:
        self._checkpoints.end(is_in_place=False)
        if task.index_error is None:
            log.warning("the checkpoint could not be written, a restart will read more of the log: %s", outcome)
            if isinstance(outcome, OSError) and outcome.errno in NO_SPACE:
                self._write_state.make_room()  # The next checkpoint may allow the removal of segments.
        else:
            # It is unknown which rows are on the disk, and later checkpoints would refer to these rows.
            self._write_state.end_writing(f"fsync of an index failed: {outcome}")


def log_removal_failure(outcome: Failure | None) -> None:
    """Log the error if a task that removes files has failed."""
    if outcome is not None:
        log.warning("file not removed, the next start removes it: %s", outcome)
