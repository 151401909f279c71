"""The class Timers: all pending messages, those of open transactions, and the ids of cancelled ones.

    entry or record in the log                        method that replays it
    a pending entry                                   stored
    a pending entry that was in a sorted table        stored_again
    an entry of an open transaction, and its end      hold, transaction_ended
    messages were delivered, cancelled, moved         delivered, cancelled, moved
    a topic was paused, resumed, deleted              tree.pause, tree.resume, topic_deleted
    a quota entity has its number; messages go        quota_entities.named, quota_entities.credit
    a manifest                                        tree.replay_manifest

Only these methods change which messages are pending, live and at recovery. A *timer* is what this package stores of a
pending message: its due time, the address of its entry, and the queue to which it is delivered.
"""

from collections.abc import Callable
from typing import Final

from duolog.delay.cancellations import Cancelled, TimerOutcome
from duolog.delay.entry_extra import StoredAgain
from duolog.delay.held import HeldTimers
from duolog.delay.memtable.sweep import Sweep
from duolog.delay.pending import PendingTimers
from duolog.delay.quota_entities import QuotaEntities
from duolog.delay.rows import KEY, NAME_SIZE, TOPIC_SHIFT, Timer, TimerId, TimerKey, entity_of, marks_of
from duolog.delay.tree.jobs import CommitManifest
from duolog.delay.tree.tree import TimerTree
from duolog.store.entry import new_tuple
from duolog.store.errors import StoreError
from duolog.store.files import Files
from duolog.store.store import Store

IN_MEMORY_MAX: Final = 4_000_000  # Timers in the memtable, of 32 bytes each.
WAITING_MAX: Final = 1_000_000  # Timers in the memtable that wait for a flush.


class TooManyTimers(StoreError):
    """`delay.pending_max` is reached; senders may try again."""


class Timers:
    """All timers; used in the loop only. `topic_exists` says whether the topic with a number exists."""

    def __init__(
        self,
        commit: CommitManifest,
        topic_exists: Callable[[int], bool],
        *,
        near_ms: int,
        pending_max: int,
        cancelled_max: int,
        cancelled_keep_ms: int,
    ) -> None:
        self.pending = PendingTimers(cancelled_max)
        self.tree = TimerTree(self.pending, commit, topic_exists, near_ms)
        self.held = HeldTimers()
        self.quota_entities = QuotaEntities()
        self.cancelled_ids = Cancelled(cancelled_max, cancelled_keep_ms)
        # Removes timers of deleted topics, because their entries would keep segments of the log for years.
        self.sweep = Sweep(topic_exists)
        self._topic_exists, self._pending_max = topic_exists, pending_max
        self._begun_ms = 0

    def begin(self, now_ms: int, files: Files) -> None:
        """Set the time and the disk, before the log is recovered. Timers that are due by then become ready at once."""
        self._begun_ms = now_ms
        self.pending.begin(now_ms)
        self.tree.begin(files)

    def open(self, store: Store) -> None:
        """Open the sorted tables that the recovered log names. Blocks; raises Corruption and OSError."""
        self.tree.open(store)
        if not all(map(self._topic_exists, self.pending.memtable.counts.by_topic)):
            self.sweep.begin()

    # -- Reading

    def __len__(self) -> int:
        """Return the number of pending messages and of those in open transactions."""
        return len(self.pending.memtable) + len(self.tree) + self.held.total

    def check_room(self, count: int) -> None:
        """Raise TooManyTimers if there is no room for `count` more timers."""
        if len(self) + count > self._pending_max:
            raise TooManyTimers(f"{len(self)} messages are delayed; delay.pending_max is {self._pending_max}")
        if self.tree.flush.waiting > WAITING_MAX or len(self.pending.memtable) > IN_MEMORY_MAX:
            raise TooManyTimers(
                f"{len(self.pending.memtable)} delayed messages are in memory; "
                f"{self.tree.flush.waiting} of them wait for the disk"
            )

    def overdue_ms(self, now_ms: int) -> int:
        """Return for how long the earliest due message waits for its delivery; 0 if none does.

        Messages of paused topics do not count. While tables cannot be read, the time up to which they were read counts
        as that of a message, or the start of the broker if nothing was read since.
        """
        times = [self.pending.first_due_ms()]
        if len(self.tree):
            times.append(max(self._begun_ms, self.tree.cursors.unread_ms()))
        return max(0, now_ms - min((each for each in times if each is not None), default=now_ms))

    @property
    def lost(self) -> int:
        """The number of messages that were lost since the start with damaged parts of tables, as far as it is known."""
        return self.tree.context.tables.lost

    def find(self, timer_id: TimerId | None) -> Timer | None:
        """Return the timer of this id if it is in memory and its topic exists. `tree.lookups` loads it before."""
        timer = None if timer_id is None else self.pending.find(timer_id)
        return None if timer is None or not self._topic_exists(timer.topic) else timer

    def outcome_of(self, timer_id: TimerId | None) -> TimerOutcome:
        """Return why `find` returns no timer of this id."""
        if timer_id is None or self.pending.is_pending(timer_id):  # In the second case its topic is deleted.
            return TimerOutcome.NOT_FOUND
        return TimerOutcome.CANCELLED if timer_id in self.cancelled_ids else TimerOutcome.DELIVERED

    def replaced(self, topic: int, name: bytes) -> list[TimerId]:
        """Return the pending messages with this topic and sender's key, which a new message replaces.

        They are in memory until the loop turns, so the new message must be appended before that. Raises StoreError.
        """
        self.tree.lookups.load_named_now(topic, name)
        return self.pending.named(topic, name)

    def first_kept(self) -> int | None:
        """Return a position of the log below which no entry is needed for a delivery; None if none is needed at all."""
        positions = (self.pending.memtable.counts.pinned_from(), self.held.first_address())
        return min((each for each in positions if each is not None), default=None)

    # -- Following the log

    def stored(
        self, address: int, queue_key: int, due_ms: int, size: int, form: int, hashed: int, entity: int = 0
    ) -> None:
        """Add the timer of a pending entry; `hashed` is the hash of topic and the sender's key, 0 without a key."""
        marks = NAME_SIZE if hashed else 0
        if entity:
            self.quota_entities.add(queue_key >> TOPIC_SHIFT, entity)
            marks = marks_of(entity, marks)
        self._add(new_tuple(Timer, (due_ms, address, queue_key, size, marks, form)), hashed)

    def _add(self, timer: Timer, hashed: int) -> None:
        self.pending.memtable.add(timer)
        if hashed:
            self.pending.names.add(hashed, self.pending.ids.id_at(timer[:2]))

    def stored_again(self, address: int, size: int, form: int, found: StoredAgain) -> None:
        """Add a rescheduled timer under its old id, and delete it in its sorted table."""
        queue_key, due_ms, hashed, timer_id, table_key, entity = found
        self._delete_in_tables(table_key, queue_key >> TOPIC_SHIFT, address)
        self.pending.ids.set(timer_id, (due_ms, address))
        marks = marks_of(entity, NAME_SIZE if hashed else 0)
        self._add(Timer(due_ms, address, queue_key, size, marks, form), hashed)

    def hold(self, producer_id: int, timer: Timer) -> None:
        """Add a delayed record of a producer's open transaction."""
        self.held.add(producer_id, timer)
        if entity := entity_of(timer.marks):
            self.quota_entities.add(timer.topic, entity)

    def transaction_ended(self, producer_id: int, *, is_commit: bool) -> None:
        """Make the delayed records of a transaction pending if it was committed, and drop them if not."""
        for timer in self.held.take(producer_id):
            if is_commit and self._topic_exists(timer.topic):
                self.pending.memtable.add(timer)
            elif entity := entity_of(timer.marks):
                self.quota_entities.credit(timer.topic, entity, 1)

    def delivered(self, topic: int, ids: bytes, log_position: int) -> None:
        """Remove timers of a topic by their packed ids."""
        for key in self.pending.delivered(topic, ids):
            self._delete_in_tables(key, topic, log_position)

    def cancelled(self, ids: bytes, at_ms: int, log_position: int) -> None:
        """Remove timers by their packed ids, and remember that they were cancelled."""
        for timer_id in KEY.iter_unpack(ids):
            key = self.pending.ids.key_of(timer_id)
            if self.pending.remove(timer_id) is None:
                stored = self.pending.stored(key)
                self._delete_in_tables(key, 0 if stored is None else stored.topic, log_position)
            self.cancelled_ids.add(timer_id, at_ms)

    def topic_deleted(self, topic: int) -> None:
        """Leave out the timers of a deleted topic. The sweep drops them, or the delivery when they are due."""
        self.tree.resume(topic)
        self.tree.deletions.forget_topic(topic)
        self.quota_entities.topic_deleted(topic)
        if topic in self.pending.memtable.counts.by_topic:
            self.sweep.begin()

    def _delete_in_tables(self, key: TimerKey, topic: int, log_position: int) -> None:
        self.pending.found.pop(key, None)
        self.tree.deletions.note(key, topic, log_position)
