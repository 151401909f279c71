"""Drives a checkpoint from its beginning to its end, in turns of the loop and tasks of the background thread.

`store/recovery/checkpointer.py` says what the steps are and what each of them finds.
"""

import logging
from functools import partial
from typing import Protocol

from duolog.store.entry import Promise
from duolog.store.errors import NO_SPACE, StoreError
from duolog.store.index.index_maintenance import CleanUp, IndexFlush
from duolog.store.index.queues import Queues
from duolog.store.log.segment import Segments
from duolog.store.promises import Done
from duolog.store.recovery.checkpointer import Checkpointer, CheckpointTask
from duolog.store.workers import Executor, Failure

log = logging.getLogger("store")


class Host(Protocol):
    """What this asks of the store."""

    background: Executor

    @property
    def is_closed(self) -> bool: ...

    @property
    def last_stored_ms_of_log(self) -> int: ...

    def when(self, promise: Promise, done: Done) -> None: ...

    def write_silently(self) -> bool: ...

    def write_failed(self, error: OSError) -> None: ...

    def make_room(self) -> None: ...

    def end_writing(self, reason: str) -> None: ...


class CheckpointRun:
    """Makes one checkpoint after the other."""

    def __init__(self, host: Host, checkpoints: Checkpointer, queues: Queues, segments: Segments) -> None:
        self._host, self._checkpoints, self._queues, self._segments = host, checkpoints, queues, segments

    def begin(self, *, closed: bool) -> None:
        if not self._checkpoints.is_running and self._host.write_silently():
            self._checkpoints.begin()
            self._flush(closed)

    def _flush(self, closed: bool) -> None:
        """Have some indexes flushed; behind the last ones capture the state."""
        flush = self._checkpoints.flush_some()
        if flush is not None:
            self._host.background.submit(flush.run, partial(self._flushed, closed, flush))
        elif not self._host.write_silently():
            self._checkpoints.end(is_in_place=False)
        else:
            self._write_part(self._checkpoints.capture(self._host.last_stored_ms_of_log, closed=closed))

    def _flushed(self, closed: bool, flush: IndexFlush, outcome: Failure | None) -> None:
        flush.end(self._queues.moment.before_change)
        if self._host.is_closed and not closed:
            return
        if outcome is None and flush.is_complete:
            self._flush(closed)
            return
        self._checkpoints.end(is_in_place=False)
        if isinstance(outcome, OSError):
            self._host.write_failed(outcome)

    def _write_part(self, task: CheckpointTask, outcome: Failure | None = None) -> None:
        """Encode a part of the checkpoint in this turn of the loop, and have it written; behind the last one finish."""
        if self._host.is_closed or task is not self._checkpoints.task:
            return
        if outcome is not None:
            self._failed(task, outcome)
            return
        try:
            part = task.next_part()
        except Exception:
            self._checkpoints.end(is_in_place=False)  # Else no other one could ever begin.
            raise
        if part is not None:
            self._host.background.submit(partial(task.write, part), partial(self._write_part, task))
        else:
            self._host.when(Promise(task.position, durable=True), partial(self._finish, task))

    def _finish(self, task: CheckpointTask, error: StoreError | None) -> None:
        if task is not self._checkpoints.task:
            return
        if error is not None:
            self._checkpoints.end(is_in_place=False)
        else:
            self._host.background.submit(task.finish, partial(self._end, task))

    def _end(self, task: CheckpointTask, outcome: Failure | None) -> None:
        """Take the outcome; what only the checkpoint before needed may go."""
        if self._host.is_closed or task is not self._checkpoints.task:
            return
        if outcome is not None:
            self._failed(task, outcome)
            return
        self._checkpoints.end(is_in_place=True)
        CleanUp(self._queues, self._executor, task.dropped, task.starts, log_left).start()
        dead = self._checkpoints.still_removable(task.dead)
        if dead:
            log.info("removing segments=%d first=%d", len(dead), dead[0].start)
            self._host.background.submit(self._segments.take_out(dead).run, log_left)

    def _executor(self) -> Executor | None:
        return None if self._host.is_closed else self._host.background

    def abandon(self) -> None:
        """Forget the one that runs, if any does: the store closes, and nobody will hear of what its threads did."""
        task = self._checkpoints.task
        if task is not None and task.index_error is not None:
            self._failed(task, task.index_error)
        self._checkpoints.end(is_in_place=False)

    def _failed(self, task: CheckpointTask, outcome: Failure) -> None:
        self._checkpoints.end(is_in_place=False)
        if task.index_error is None:
            log.warning("no checkpoint could be written, a restart will read more: %s", outcome)
            if isinstance(outcome, OSError) and outcome.errno in NO_SPACE:
                self._host.make_room()  # The next checkpoint may let segments go.
        else:
            # The rows that were to be synced are in an unknown state, and later checkpoints would count on them.
            self._host.end_writing(f"sync of an index failed: {outcome}")


def log_left(outcome: Failure | None) -> None:
    """Report that a removal failed."""
    if outcome is not None:
        log.warning("a file that nothing needs is left until the next start: %s", outcome)
