"""Commands on pending messages, by id or by the sender's key: view, cancel, reschedule.

    load, load_named                    the messages are in memory, also those that only a sorted table has
    cancel, reschedule, view, ...       one unit of the log, which is durable when the promise is kept

A command must run in the same turn of the loop as the load before it: in the load's `then`.
"""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

from duolog.bridge.data.delayed.delay_records import cancellation_of
from duolog.bridge.data.delayed.delivery_frames import DeliveryFrames
from duolog.bridge.data.delayed.text_ids import TextIds
from duolog.bridge.monitoring.metrics import Metrics
from duolog.bridge.records.codec import Record
from duolog.bridge.records.timers import TimerMoved
from duolog.bridge.state.topic_table import Topic
from duolog.bridge.state.topics import Topics
from duolog.delay.cancellations import TimerOutcome
from duolog.delay.entry_extra import StoredAgain, encode_stored_again
from duolog.delay.names import name_hash
from duolog.delay.requested_delay import DelayLimits
from duolog.delay.rows import Timer, TimerId
from duolog.delay.timers import Timers
from duolog.store.entry import EntryLocation, Promise, Stored
from duolog.store.errors import StoreError
from duolog.store.index.queue import Queue
from duolog.store.log.cold_read import ColdEntries
from duolog.store.log.entry_reader import EntryReader
from duolog.store.state_log import StateLog
from duolog.store.unit import Frame


class Decision(NamedTuple):
    """An outcome, and the promise that must be kept before the outcome is answered."""

    outcome: TimerOutcome
    promise: Promise
    messages: int | None = None  # The number of messages, if the command names them by key.


class TimerView(NamedTuple):
    """A pending message as the HTTP API shows it."""

    id: str
    topic: str
    queue_id: int
    due_ms: int
    form: int  # The frame format (`bridge/records/frame_formats.py`).
    frame: memoryview  # The frame as the log has it.


class DelayCommands:
    """Decides on commands and appends the decisions. `text_ids` converts ids to the text that clients get."""

    def __init__(
        self,
        state_log: StateLog,
        topics: Topics,
        timers: Timers,
        limits: DelayLimits,
        metrics: Metrics,
        reader: EntryReader,
        frames: DeliveryFrames,
        text_ids: TextIds,
    ) -> None:
        self.text_ids = text_ids
        self._state_log, self._topics, self._timers, self._limits = state_log, topics, timers, limits
        self._metrics, self._reader, self._frames = metrics, reader, frames

    # -- By id

    def load(self, text: str, then: Callable[[StoreError | None], None]) -> None:
        """Call `then` when the message of this id, if it is pending, is in memory: usually at once."""
        self._timers.tree.lookups.load(self.text_ids.id_of(text), then)

    def topic_of(self, text: str) -> Topic | None:
        """Return the topic of the pending message of this id, which is in memory; None: it is not pending."""
        timer = self._timers.find(self.text_ids.id_of(text))
        return None if timer is None else self._topics.by_number(timer.topic)

    def cancel(self, text: str, now_ms: int) -> Decision:
        """Cancel the delivery of a pending message. Raises StoreError; nothing has changed then."""
        timer_id = self.text_ids.id_of(text)
        if timer_id is None or self._timers.find(timer_id) is None:
            return self._not_pending(timer_id)
        return Decision(TimerOutcome.CANCELLED, self._cancel([timer_id], now_ms))

    def reschedule(self, text: str, due_ms: int, now_ms: int) -> Decision:
        """Change the due time of a pending message, which keeps its id; a time that has passed means now.

        Raises DelayRefused if the time is too far away, and StoreError.
        """
        timer_id = self.text_ids.id_of(text)
        if timer_id is None or self._timers.find(timer_id) is None:
            return self._not_pending(timer_id)
        return Decision(TimerOutcome.RESCHEDULED, self._reschedule([timer_id], due_ms, now_ms))

    def view(self, text: str, done: Callable[[TimerView | StoreError | None], None]) -> None:
        """Call `done` with the pending message of this id, or None if there is none, at once or after a read."""
        timer = self._timers.find(self.text_ids.id_of(text))
        topic = None if timer is None else self._topics.by_number(timer.topic)
        if timer is None or topic is None:
            done(None)
            return
        queue_id = Queue.split(timer.queue_key)[1]
        view = partial(TimerView, text, topic.name, queue_id, timer.due_ms, timer.form)
        if (stored := self._timers.pending.stored(timer[:2])) is not None:
            done(view(memoryview(stored.frame)))
            return

        def take(found: list[Stored] | StoreError) -> None:
            done(found if isinstance(found, StoreError) else view(found[0].frame))

        found = self._reader.read_at([EntryLocation(timer.address, timer.size, timer.form)])
        if isinstance(found, ColdEntries):
            found.start(take)
        else:
            take(found)

    # -- By the sender's key

    def load_named(self, topic: Topic, name: bytes, then: Callable[[StoreError | None], None]) -> None:
        """Call `then` when all pending messages of a topic with this key are in memory."""
        self._timers.tree.lookups.load_named(topic.number, name, then)

    def named(self, topic: Topic, name: bytes) -> list[Timer]:
        """Return the pending messages of a topic with this key that are in memory."""
        found = map(self._timers.find, self._timers.pending.named(topic.number, name))
        return [timer for timer in found if timer is not None]

    def cancel_named(self, topic: Topic, name: bytes, now_ms: int) -> Decision:
        """Cancel all pending messages of a topic with this key. Raises StoreError."""
        found = self._timers.pending.named(topic.number, name)
        if not found:
            return self._not_pending_named(topic, name)
        return Decision(TimerOutcome.CANCELLED, self._cancel(found, now_ms), len(found))

    def reschedule_named(self, topic: Topic, name: bytes, due_ms: int, now_ms: int) -> Decision:
        """Change the due time of all pending messages of a topic with this key. Raises DelayRefused, StoreError."""
        found = self._timers.pending.named(topic.number, name)
        if not found:
            return self._not_pending_named(topic, name)
        return Decision(TimerOutcome.RESCHEDULED, self._reschedule(found, due_ms, now_ms), len(found))

    # -- Units

    def _cancel(self, timer_ids: list[TimerId], now_ms: int) -> Promise:
        promise = self._state_log.commit(cancellation_of(self._timers, timer_ids, now_ms), now_ms).promise
        self._metrics.timers["cancelled"] += len(timer_ids)
        return promise

    def _reschedule(self, timer_ids: list[TimerId], due_ms: int, now_ms: int) -> Promise:
        """Change due times; a message that is in a sorted table is appended to the log again, under its id."""
        self._limits.check_due_time(due_ms, now_ms)
        due_ms = max(0, due_ms)
        frames: list[Frame] = []
        moves: list[Record] = []
        for timer_id in timer_ids:
            key = self._timers.pending.ids.key_of(timer_id)
            found = self._timers.pending.stored(key)
            if found is None:
                moves.append(TimerMoved(*timer_id, due_ms))
                continue
            hashed = int.from_bytes(found.name, "big")
            extra = encode_stored_again(StoredAgain(found.queue_key, due_ms, hashed, timer_id, key, found.entity))
            frames.append(self._frames.stored_again(found.form, memoryview(found.frame), due_ms, extra))
        # The publisher checks no limits here, because these messages are pending already.
        return self._state_log.commit(moves, now_ms, frames).promise

    def _not_pending(self, timer_id: TimerId | None) -> Decision:
        return Decision(self._timers.outcome_of(timer_id), self._state_log.barrier())

    def _not_pending_named(self, topic: Topic, name: bytes) -> Decision:
        """Answer with the state of the latest message with this key, because none is pending."""
        found = self._timers.pending.names.find(name_hash(topic.number, name))
        return self._not_pending(found[-1] if found else None)._replace(messages=0)
