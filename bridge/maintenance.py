"""Maintenance: checkpoints, retention, removal of segments, the check of disk space, expiry of unused groups.

Each task has an interval and is a generator. `Maintenance.run` advances a due task to its next `yield`, which takes
about a millisecond; then the event loop runs before the next slice. Intervals are monotonic; what is compared with
stored times is wall time.
"""

from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from duolog.bridge.state.topic_table import Topic
from duolog.protocol.rocketmq.names import SCHEDULE_TOPIC, TIMER_TOPIC
from duolog.store.errors import StoreError
from duolog.store.index.queue import Queue

CHECK_INTERVAL_MS = 1000  # Between two checks of the disk's free space, and of whether a checkpoint is due.
EXPIRE_INTERVAL_MS = 60_000  # Between two expiries of groups. Kafka: offsets.retention.check.interval.ms, ten minutes.
QUEUES_IN_SLICE = 64

DELAY_TOPICS = (SCHEDULE_TOPIC, TIMER_TOPIC)

# The work of a task. At each `yield` the event loop may run.
Slices = Iterator[None]


class MaintainedStore(Protocol):
    """What maintenance uses of the store."""

    def checkpoint_due(self, mono_ms: int) -> bool: ...

    @property
    def refusal(self) -> str: ...

    def checkpoint(self, mono_ms: int) -> None: ...

    def check_disk(self) -> None: ...


class MaintainedRetention(Protocol):
    """What maintenance uses of the store's retention."""

    def expire(self, queue: Queue, *, keep_ms: int, keep_bytes: int, keep_records: int, now_ms: int) -> int | None: ...

    def trim(self, queue: Queue, start_offset: int, now_ms: int) -> None: ...

    def remove_dead_segments(self) -> Generator[None, None, int]: ...


@dataclass(slots=True)
class _Duty:
    interval_ms: int
    begin: Callable[[int, int], Slices]  # (now_ms, mono_ms)
    next_mono_ms: int
    slices: Slices | None = field(default=None)  # The slices of the run in progress.


class Maintenance:
    """Runs the tasks of maintenance; `next_deadline_ms` is monotonic.

    `first_kept(queue)` is the first offset that retention must keep, or None if it may remove all records.
    `expire_groups(now_ms)` removes unused groups. `contain` takes an exception that retention of one queue raised
    and that is not a StoreError; the other queues are processed all the same.
    """

    def __init__(
        self,
        store: MaintainedStore,
        retention: MaintainedRetention,
        topics: Callable[[], Sequence[Topic]],
        first_kept: Callable[[Queue], int | None],
        expire_groups: Callable[[int], Slices],
        retention_interval_ms: int,
        mono_ms: int,
        contain: Callable[[Exception], None],
    ) -> None:
        self._store, self._retention = store, retention
        self._contain = contain
        self._topics = topics
        self._first_kept = first_kept
        self._expire_groups = expire_groups
        self.trimmed_queues = 0
        self._duties = [
            _Duty(CHECK_INTERVAL_MS, self._check_disk, mono_ms),  # At once, so that the spare file is there early.
            _Duty(retention_interval_ms, self._retain, mono_ms + retention_interval_ms),
            _Duty(EXPIRE_INTERVAL_MS, self._expire, mono_ms + EXPIRE_INTERVAL_MS),
        ]
        self._next_mono_ms = min(duty.next_mono_ms for duty in self._duties)

    def next_deadline_ms(self) -> int:
        """Return the monotonic time at which the first task is due."""
        return self._next_mono_ms

    def run(self, now_ms: int, mono_ms: int) -> None:
        """Run one slice of each task that is due. After a StoreError, that task begins again at its next time."""
        try:
            for duty in self._duties:
                if duty.next_mono_ms <= mono_ms:
                    self._run_slice(duty, now_ms, mono_ms)
        finally:
            self._next_mono_ms = min(duty.next_mono_ms for duty in self._duties)

    def _run_slice(self, duty: _Duty, now_ms: int, mono_ms: int) -> None:
        slices = duty.slices or duty.begin(now_ms, mono_ms)
        duty.slices, duty.next_mono_ms = None, mono_ms + duty.interval_ms
        for _ in slices:
            duty.slices, duty.next_mono_ms = slices, mono_ms
            return

    # -- Tasks

    def _check_disk(self, now_ms: int, mono_ms: int) -> Slices:
        """Check the free space of the disk, and begin a checkpoint if one is due."""
        self._store.check_disk()
        yield
        if self._store.checkpoint_due(mono_ms):
            self._store.checkpoint(mono_ms)

    def _retain(self, now_ms: int, mono_ms: int) -> Slices:
        """Advance log start offsets by each topic's retention, then remove segments whose records are all removed."""
        checked = 0
        for topic in list(self._topics()):
            for queue in topic.queues:
                try:
                    self._retain_queue(topic, queue, now_ms)
                except StoreError:
                    raise
                except Exception as error:  # noqa: BLE001 - the other queues are kept within their limits all the same
                    self._contain(error)
                checked += 1
                if checked % QUEUES_IN_SLICE == 0:
                    yield
        yield
        yield from self._retention.remove_dead_segments()

    def _retain_queue(self, topic: Topic, queue: Queue, now_ms: int) -> None:
        settings = topic.settings
        if not settings.delete:
            return
        # While the disk is full, the delay topics keep nothing but the messages that are still pending.
        keeps_pending_only = topic.rocketmq_name in DELAY_TOPICS and self._store.refusal
        start_offset = self._retention.expire(
            queue,
            keep_ms=0 if keeps_pending_only else settings.retention_ms,
            keep_bytes=settings.retention_bytes,
            keep_records=settings.retention_records,
            now_ms=now_ms,
        )
        first_kept = self._first_kept(queue)
        if start_offset is not None and first_kept is not None:
            start_offset = min(start_offset, first_kept)
        if start_offset is not None and start_offset > queue.start_offset:
            self._retention.trim(queue, start_offset, now_ms)
            self.trimmed_queues += 1

    def _expire(self, now_ms: int, mono_ms: int) -> Slices:
        yield from self._expire_groups(now_ms)
