"""The class Retention: raises the log start of queues, and has dead segments removed."""

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
    """Raises log starts. Each change is appended as a unit, so that recovery finds the same log start.

    `ask_for_checkpoint` is called when dead segments were found, which are removed after the next checkpoint.
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
        """Raise the log start of a queue to `start_offset`. Does nothing if it is not above the present log start.

        Raises WritingEnded, and OffsetOutOfRange if `start_offset` is above the visible end.
        """
        if start_offset > queue.visible_end:
            raise OffsetOutOfRange(str(queue), start_offset, queue.start_offset, queue.visible_end)
        if start_offset > queue.start_offset:
            self._write_state.raise_if_ended()
            self._appender.append_unit([queue_control(queue.key, start_offset, queue.end_offset)], now_ms)
            self._queues.captured_rows.before_change(queue.key)
            queue.move_start(start_offset)
            self._count_bytes(queue)

    def _count_bytes(self, queue: Queue) -> None:
        """Update `queue.bytes_below_start`, in a thread if index rows must be read from the disk."""
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
        """Return the log start according to these limits (`RetentionLimits`), which the caller passes to `trim`.

        Returns None if the log start need not move. Returns None, too, if index rows must be read from the disk: a
        thread reads them, so that the next call finds them in the page cache.
        """
        limits = RetentionLimits(keep_ms, keep_bytes, keep_records)
        start_offset = log_start_within(queue, limits, now_ms, block=False)
        if start_offset is None:
            self._executors.readers.submit(partial(log_start_within, queue, limits, now_ms, block=True), _ignore)
            return None
        return start_offset if start_offset > queue.start_offset else None

    def remove_dead_segments(self) -> Generator[None, None, int]:
        """Find dead segments in slices, and return how many of them will be removed after the next checkpoint.

        If there are any, a checkpoint becomes due. Once it is in place, a snapshot has the state that was in these
        segments, and the entries that made them dead are durable.
        """
        yield from self.dead_segments.find()
        dead = self.dead_segments.removable()
        if dead:
            self._ask_for_checkpoint()
        return len(dead)


def _ignore(_: object) -> None:
    pass
