"""Delayed messages of one broker: appended as pending, delivered when they are due.

    publisher   append ──────> one unit: the pending entries, and the visible ones of the same request
    HTTP, RPC   commands ────> `delay_commands.py`: cancel, reschedule, view
    ticker      run ─────────> `deliveries.py`: one unit for each slice of what is due
                                       │
    state log   replay ──────> `delay_records.py` ──> `delay/timers.py`

Replay is the only code that changes which messages are pending. So a change that the log does not have has not
happened, and a crash delivers each message exactly once.
"""

from collections.abc import Iterator
from functools import partial
from typing import Final

from duolog.bridge.config import HOUR_MS, DelayOptions
from duolog.bridge.data.delayed.delay_commands import DelayCommands
from duolog.bridge.data.delayed.delay_records import DelayRecords, commit_manifest
from duolog.bridge.data.delayed.deliveries import Deliveries
from duolog.bridge.data.delayed.delivery_frames import DeliveryFrames
from duolog.bridge.data.delayed.text_ids import TextIds
from duolog.bridge.monitoring.metrics import Metrics
from duolog.bridge.monitoring.poison import PoisonRecords
from duolog.bridge.records.timers import DelayPaused
from duolog.bridge.state.deleted_topics import IsDeleted, in_slices
from duolog.bridge.state.topic_table import Topic
from duolog.bridge.state.topics import Topics
from duolog.delay.requested_delay import DelayLimits
from duolog.delay.timers import Timers
from duolog.protocol.rocketmq.names import SCHEDULE_TOPIC, TIMER_TOPIC
from duolog.store.entry import Promise
from duolog.store.index.queue import Queue
from duolog.store.state_log import StateLog
from duolog.store.store import Store

SWEPT_IN_SLICE: Final = 2048  # Rows that are searched for those of deleted topics.


class Delays:
    """The pending messages and their commands; pauses topics and runs deliveries."""

    commands: DelayCommands

    def __init__(
        self,
        state_log: StateLog,
        topics: Topics,
        options: DelayOptions,
        limits: DelayLimits,
        metrics: Metrics,
        poison_records: PoisonRecords,
    ) -> None:
        self._state_log, self._topics, self._limits, self._metrics = state_log, topics, limits, metrics
        self.timers = Timers(
            partial(commit_manifest, state_log),
            topics.__contains__,
            near_ms=options.near_ms,
            pending_max=options.pending_max,
            cancelled_max=options.cancelled_max,
            cancelled_keep_ms=options.cancelled_hours * HOUR_MS,
        )
        self._records = DelayRecords(state_log, self.timers)
        self._deliveries = Deliveries(state_log, topics, self.timers, metrics, poison_records)

    def attach(self, store: Store, frames: DeliveryFrames, cluster_id: str) -> None:
        """Open the sorted tables, after the log is recovered. Raises Corruption and OSError."""
        self._deliveries.attach(store, frames)
        self.timers.open(store)
        self.commands = DelayCommands(
            self._state_log,
            self._topics,
            self.timers,
            self._limits,
            self._metrics,
            store.reader,
            frames,
            TextIds(cluster_id),
        )

    # -- Topics

    def pause(self, topic: Topic, now_ms: int) -> Promise:
        """Deliver no messages of a topic until `resume`, also after a restart."""
        return self._set_paused(topic, now_ms, is_paused=True)

    def resume(self, topic: Topic, now_ms: int) -> Promise:
        return self._set_paused(topic, now_ms, is_paused=False)

    def _set_paused(self, topic: Topic, now_ms: int, *, is_paused: bool) -> Promise:
        if self.is_paused(topic) == is_paused:
            return self._state_log.barrier()
        return self._state_log.commit([DelayPaused(topic.number, is_paused)], now_ms).promise

    def is_paused(self, topic: Topic) -> bool:
        return topic.number in self.timers.pending.turns.paused

    def paused(self) -> list[Topic]:
        """Return the paused topics."""
        found = map(self._topics.by_number, sorted(self.timers.pending.turns.paused))
        return [topic for topic in found if topic is not None]

    def sweep(self, is_deleted: IsDeleted) -> Iterator[int]:
        """Drop the messages of open transactions for deleted topics (`DeletedTopics`)."""
        held = self.timers.held
        for producer_ids in in_slices(held.producer_ids()):
            for producer_id in producer_ids:
                yield held.drop(producer_id, is_deleted) + 1

    # -- Retention

    def first_kept(self, queue: Queue) -> int | None:
        """Return the first offset of a queue that retention must keep; None if retention may remove any record."""
        topic = self._topics.by_number(queue.topic)
        if topic is None or topic.rocketmq_name not in (SCHEDULE_TOPIC, TIMER_TOPIC):
            return None
        position = self.timers.first_kept()
        if position is None:
            return None
        number = queue.index.find_position(position)
        rows = queue.index.rows(number) if number is not None else None
        if rows is None:
            return queue.start_offset  # The index row is not in memory, so this time nothing is removed.
        return rows[0][0] if rows else None

    # -- Time

    def next_deadline_ms(self) -> int | None:
        """Return the wall time before which `run` has nothing to do."""
        return 0 if self.timers.sweep.is_running else self._deliveries.next_deadline_ms()

    def run(self, now_ms: int, mono_ms: int) -> None:
        """Deliver one slice of the due messages. If it raises StoreError, they are still due."""
        if self.timers.sweep.is_running:
            self.timers.sweep.step(
                self.timers.pending.memtable, SWEPT_IN_SLICE, lambda found: self._deliveries.drop(found, now_ms)
            )
        self._deliveries.run(now_ms)

    def clock_was_set_back(self, now_ms: int) -> None:
        """Lower the times that were computed while the clock was ahead."""
        self.timers.pending.memtable.set_back(now_ms)
        self.timers.tree.set_back(now_ms)
        self._deliveries.set_back(now_ms)
