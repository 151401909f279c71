"""Retention: raises the log start of queues, and has segments removed in which nothing is live any more."""

from collections.abc import Callable, Generator
from functools import partial

from duolog.store.errors import OffsetOutOfRange
from duolog.store.index.queue import Queue
from duolog.store.index.queues import Queues
from duolog.store.log.appender import Appender
from duolog.store.log.control import queue_control
from duolog.store.retention.dead_segments import DeadSegments
from duolog.store.retention.log_start import NO_LIMIT, RetentionLimits, log_start_within
from duolog.store.workers import Executors, Failure
from duolog.store.write_state import WriteState


class Retention:
    """Moves log starts, each by a unit of its own, so that recovery finds the same log start.

    `ask_for_checkpoint` is called when segments were found that can be removed behind a checkpoint.
    """

    def __init__(
        self,
        appender: Appender,
        queues: Queues,
        write_state: WriteState,
        executors: Executors,
        dead_segments: DeadSegments,
        ask_for_checkpoint: Callable[[], None],
    ) -> None:
        self.dead_segments = dead_segments
        self._appender = appender
        self._queues = queues
        self._write_state = write_state
        self._executors = executors
        self._ask_for_checkpoint = ask_for_checkpoint

    def trim(self, queue: Queue, start_offset: int, now_ms: int) -> None:
        """Raise the log start of a queue; an offset below the log start changes nothing.

        Raises OffsetOutOfRange above the visible end, and WritingEnded.
        """
        if start_offset > queue.visible_end:
            raise OffsetOutOfRange(str(queue), start_offset, queue.start_offset, queue.visible_end)
        if start_offset > queue.start_offset:
            self._write_state.raise_if_ended()
            self._appender.append_unit([queue_control(queue.key, start_offset, queue.end_offset)], now_ms)
            self._queues.moment.before_change(queue.key)
            queue.move_start(start_offset)
            self._count_bytes(queue)

    def _count_bytes(self, queue: Queue) -> None:
        """Count the bytes below the log start, in a thread if the index rows are not in memory."""
        offset = queue.start_offset
        found = queue.bytes_below(offset, block=False)
        if found is not None:
            queue.bytes_below_start = found
            return

        def counted(outcome: int | Failure) -> None:
            if isinstance(outcome, int) and queue.start_offset == offset:
                queue.bytes_below_start = outcome

        self._executors.readers.submit(partial(queue.bytes_below_blocking, offset), counted)

    def expire(
        self,
        queue: Queue,
        *,
        keep_ms: int = NO_LIMIT,
        keep_bytes: int = NO_LIMIT,
        keep_records: int = NO_LIMIT,
        now_ms: int,
    ) -> int | None:
        """Return the log start that these limits ask for, to be passed to `trim`; None if it need not move.

        A negative value is no limit. None also while index rows have to be read from the disk: a thread reads them, and
        the next call finds them.
        """
        limits = RetentionLimits(keep_ms, keep_bytes, keep_records)
        start_offset = log_start_within(queue, limits, now_ms, block=False)
        if start_offset is None:
            self._executors.readers.submit(partial(log_start_within, queue, limits, now_ms, block=True), _ignore)
            return None
        return start_offset if start_offset > queue.start_offset else None

    def remove_dead_segments(self) -> Generator[None, None, int]:
        """Look for dead segments in slices; return how many will be removed behind the next checkpoint.

        If there are any, a checkpoint is asked for: behind it the state in these segments is kept in a snapshot, and
        the entries that made them dead are durable.
        """
        yield from self.dead_segments.find()
        dead = self.dead_segments.removable()
        if dead:
            self._ask_for_checkpoint()
        return len(dead)


def _ignore(_: object) -> None:
    pass
