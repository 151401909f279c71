"""Delayed messages: pending in the log or in sorted tables, delivered when they are due.

    publish --- park ---> one unit: the pending entries (bridge/data/pending_frames.py), and what of the batch is not
    delayed
                                                                                    |
    ticker ---- run ----> bridge/data/deliveries.py: one unit for each slice of what is due
    verbs ----- cancel, reschedule, deliver_now, pause, resume --> one unit each

Replay is the only code that changes the timers, so what the log does not have has not happened: a crash delivers a
message neither twice nor never. The timers themselves are `delay/`: a log-structured merge tree (`delay/tree/tree.py`).
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import chain, islice
from struct import Struct
from typing import Final, NamedTuple

from duolog.bridge.config import HOUR_MS, DelayOptions
from duolog.bridge.data import pending_frames
from duolog.bridge.data.delay_headers import DelayParser, RequestedDelay
from duolog.bridge.data.deliveries import Deliveries, Door
from duolog.bridge.monitoring.metrics import Metrics
from duolog.bridge.monitoring.poison import Poison
from duolog.bridge.records.codec import Record
from duolog.bridge.records.timers import (
    DelayPaused,
    TableTimersDeleted,
    TimerMoved,
    TimerNames,
    TimersCancelled,
    TimersCancelledBefore,
    TimersDelivered,
    TimersPending,
    TimerTablesChanged,
)
from duolog.bridge.records.topics import TopicDeleted
from duolog.bridge.records.transactions import TimersHeld
from duolog.bridge.state.deleted_topics import IsGone, in_slices
from duolog.bridge.state.topic_table import QUEUE_ID_BITS, Topic
from duolog.bridge.state.topics import Topics
from duolog.delay.cancellations import Cancelled, Verdict
from duolog.delay.memtable import scan as memtable_scan
from duolog.delay.memtable.scan import FROM_THE_LATEST, MemtableSnapshot, SweepCursor
from duolog.delay.names import Names, name_hash
from duolog.delay.pending import PendingTimers
from duolog.delay.rows import (
    KEY,
    KEY_SIZE,
    ROW,
    Timer,
    TimerId,
    TimerKey,
    pack_row,
)
from duolog.delay.tables.tables import Manifest
from duolog.delay.text_ids import TextIds
from duolog.delay.tree.jobs import TreeStore
from duolog.delay.tree.tree import TimerTree, manifest_of
from duolog.protocol.rocketmq.names import SCHEDULE_TOPIC, TIMER_TOPIC
from duolog.store.entry import Appended, EntryLocation, Promise, Slot, Stored
from duolog.store.errors import StoreError
from duolog.store.files import Files
from duolog.store.index.queue import Queue
from duolog.store.log.cold_read import ColdEntries
from duolog.store.state_log import StateLog
from duolog.store.unit import Frame, FrameRun

FILED_IN_SLICE: Final = 256  # Rows, at two or three microseconds each, for a list or a count.
SWEPT_IN_SLICE: Final = 2048  # Rows that are searched for those of deleted topics.
IN_MEMORY_MAX: Final = 4_000_000  # 32 bytes each.
WAITING_MAX: Final = 1_000_000  # Of those that are to be flushed.

_CANCELLED: Final = Struct(">QQQ")
_CANCELLED_IN_RECORD: Final = 10_000


class TooManyTimers(StoreError):
    """`delay.pending_max` is reached; senders may try again."""


class Decision(NamedTuple):
    """A verdict, and what must hold before it is answered."""

    verdict: Verdict
    promise: Promise
    messages: int | None = None  # That it is about, where it was asked for by key.


class TimerView(NamedTuple):
    """A pending timer, for people."""

    id: str
    topic: str
    queue_id: int
    due_ms: int
    form: int  # Of the frame (`bridge/records/frame_formats.py`).
    frame: memoryview  # As it lies in the log.


class Delays:
    """The delayed messages of one broker: its methods are the verbs, and the records that it replays."""

    def __init__(
        self, state_log: StateLog, topics: Topics, options: DelayOptions, metrics: Metrics, poison: Poison
    ) -> None:
        self._delay_parser = DelayParser(options)
        self._state_log, self._topics, self._metrics = state_log, topics, metrics
        self._pending_max = options.pending_max
        self.pending = PendingTimers()
        self._names = Names(self._is_pending, options.verdicts_max)
        self.tree = TimerTree(
            self.pending,
            self._names,
            self._commit_manifest,
            topics.__contains__,
            options.near_ms,
            pending_frames.HASH_AT,
        )
        self._deliveries = Deliveries(state_log, topics, self.pending, self.tree, metrics, poison)
        self._cancelled = Cancelled(options.verdicts_max, options.verdict_hours * HOUR_MS)
        self._held: dict[int, list[Timer]] = {}  # Of open transactions, by producer id; in order of their addresses.
        self._held_count = 0
        self._swept: set[int] = set()  # Deleted topics, while the memtable is searched for their timers.
        self._sweep_from: SweepCursor | None = None  # None: all was searched.
        self._snapshot: MemtableSnapshot | None = None  # While a checkpoint takes its parts.
        self._texts = TextIds("")
        state_log.own(TimersDelivered, self._replay_delivered)
        state_log.own(TimersCancelled, self._replay_cancelled)
        state_log.own(TimerMoved, self._replay_moved)
        state_log.own(DelayPaused, self._replay_paused)
        state_log.own(TimersPending, self._replay_pending)
        state_log.own(TimersCancelledBefore, self._replay_cancelled_before)
        state_log.own(TimerNames, self._replay_names)
        state_log.own(TimersHeld, self._replay_held)
        state_log.own(TopicDeleted, self._replay_topic_deleted)
        state_log.own(TimerTablesChanged, self._replay_manifest)
        state_log.own(TableTimersDeleted, self._replay_deleted)
        state_log.on_extra(pending_frames.EXTRA_KIND, self._replay_parked)
        state_log.on_extra(pending_frames.AGAIN_EXTRA_KIND, self._replay_again)
        state_log.on_sliced_snapshot(self._begin_snapshot, self._end_snapshot)

    def begin(self, now_ms: int, files: Files) -> None:
        """Say what time it is, before the log is recovered: what was due before then needs no wheel."""
        self.pending.begin(now_ms)
        self.tree.begin(files)

    def attach(self, store: TreeStore, door: Door, cluster_id: str) -> None:
        """Name the parts that stand on the recovered log. Raises Corruption."""
        self._store, self._door = store, door
        self._deliveries.attach(store, door)
        self.tree.open(store)
        self._metrics.timers["lost"] += self.tree.lost
        self._texts = TextIds(cluster_id)
        for topic in self._topics_gone():
            self._sweep_out(topic)

    def __len__(self) -> int:
        """How many are pending, or wait for a commit."""
        return len(self.pending.memtable) + len(self.tree) + self._held_count

    # -- Adding

    def queue_of(self, delay: RequestedDelay) -> Queue:
        """The queue in which a message waits."""
        topic = self._topics.by_rocketmq_name(SCHEDULE_TOPIC if delay.level else TIMER_TOPIC)
        assert topic is not None, "topics of the broker's own are made at start"
        return topic.queues[delay.level - 1 if delay.level else 0]

    def park(self, frames: Sequence[Frame | FrameRun], now_ms: int, records: Sequence[Record] = ()) -> Appended:
        """Append pending entries, and others that came with them, as one unit.

        Raises TooManyTimers and other StoreError, and then has appended nothing.
        """
        self.check_room(len(frames))
        before = len(self)
        appended = self._state_log.commit(records, now_ms, frames)
        replaced = sum([len(record.ids) // KEY_SIZE for record in records if isinstance(record, TimersCancelled)])
        self._metrics.timers["parked"] += len(self) - before + replaced
        self._metrics.timers["cancelled"] += replaced
        return appended

    def check_room(self, count: int) -> None:
        """Raise TooManyTimers if so many more cannot wait."""
        if len(self) + count > self._pending_max:
            raise TooManyTimers(f"{len(self)} messages are delayed; delay.pending_max is {self._pending_max}")
        if self.tree.flush.waiting > WAITING_MAX or len(self.pending.memtable) > IN_MEMORY_MAX:
            raise TooManyTimers(
                f"{len(self.pending.memtable)} delayed messages are in memory; "
                f"{self.tree.flush.waiting} of them wait for the disk"
            )

    # -- In transactions of Kafka

    def held_count(self, producer_id: int) -> int:
        """How many delayed records a producer's open transaction has."""
        return len(self._held.get(producer_id, ()))

    def hold(self, producer_id: int, timer: Timer) -> None:
        """Keep a delayed record until its transaction is decided; live and at recovery, as the next."""
        self._held.setdefault(producer_id, []).append(timer)
        self._held_count += 1

    def decide(self, producer_id: int, *, is_commit: bool) -> None:
        """The producer's transaction has ended: what it held are timers now, or are dropped."""
        held = self._held.pop(producer_id, [])
        self._held_count -= len(held)
        if is_commit:
            for timer in held:
                if timer.topic in self._topics:
                    self.pending.memtable.add(timer)

    # -- Ids

    def text_of(self, timer_id: TimerId) -> str:
        """Write an id as clients get it."""
        return self._texts.text_of(timer_id)

    def id_of(self, text: str) -> TimerId | None:
        """Read an id; None if this cluster never gave it."""
        return self._texts.id_of(text)

    def text_id_of(self, timer: Timer) -> str:
        return self.text_of(self.pending.ids.id_of(timer))

    # -- Verbs: the timers that they are about must be at hand

    def at_hand(self, text: str, then: Callable[[StoreError | None], None]) -> None:
        """Call `then` when the timer of this id, if it is pending, is in memory: mostly at once. It is there for as
        long as `then` takes."""
        timer_id = self.id_of(text)
        if timer_id is None or not self.tree.table_count or self.pending.is_in_memtable(timer_id):
            then(None)
        else:
            self.tree.lookups.find(timer_id, then)

    def named_at_hand(self, topic: Topic, name: bytes, then: Callable[[StoreError | None], None]) -> None:
        """Do the same for all timers of a topic that have this sender's key."""
        if self.tree.table_count:
            self.tree.lookups.find_named(topic.number, name_hash(topic.number, name), then)
        else:
            then(None)

    def cancel(self, text: str, now_ms: int) -> Decision:
        """Let a message never be delivered, if it is not yet. Raises StoreError, and then has changed nothing."""
        timer_id = self.id_of(text)
        if timer_id is None or self._find(timer_id) is None:
            return self._not_pending(timer_id)
        promise = self._state_log.commit([self.cancels([timer_id], now_ms)], now_ms).promise
        self._metrics.timers["cancelled"] += 1
        return Decision(Verdict.CANCELLED, promise)

    def reschedule(self, text: str, due_ms: int, now_ms: int) -> Decision:
        """Let a pending message be due at another time, at once if that has passed; its id stays.

        Raises DelayRefused if that is too far away, and StoreError.
        """
        timer_id = self.id_of(text)
        if timer_id is None or self._find(timer_id) is None:
            return self._not_pending(timer_id)
        self._delay_parser.parse_time(due_ms, now_ms)
        return Decision(Verdict.RESCHEDULED, self._move([timer_id], max(0, due_ms), now_ms))

    def _move(self, timer_ids: Iterable[TimerId], due_ms: int, now_ms: int) -> Promise:
        """Let pending timers be due at another time; those of tables are appended to the log again, with their ids."""
        frames: list[Frame] = []
        moves: list[Record] = []
        for timer_id in timer_ids:
            key = self.pending.ids.key_of(timer_id)
            found = self.pending.stored(key)
            if found is None:
                moves.append(TimerMoved(*timer_id, due_ms))
                continue
            extra = pending_frames.again_extra(
                found.queue_key, due_ms, int.from_bytes(found.name, "big"), timer_id, key
            )
            frames.append(self._door.parked_again(found.form, memoryview(found.frame), due_ms, extra))
        return self._state_log.commit(moves, now_ms, frames).promise

    def deliver_now(self, text: str, now_ms: int) -> Decision:
        """Let a pending message be due now: it is delivered in its turn, unless its topic is paused."""
        return self.reschedule(text, now_ms, now_ms)

    def view(self, text: str, done: Callable[[TimerView | StoreError | None], None]) -> None:
        """Give a pending message to `done`, now or when it was read; None if none has this id."""
        timer_id = self.id_of(text)
        timer = self.pending.find(timer_id) if timer_id else None
        topic = self._topics.by_number(timer.topic) if timer else None
        if timer is None or topic is None:
            done(None)
            return
        queue_id = timer.key & (1 << QUEUE_ID_BITS) - 1
        picture = partial(TimerView, text, topic.name, queue_id, timer.due_ms, timer.form)
        if (stored := self.pending.stored(timer[:2])) is not None:
            done(picture(memoryview(stored.frame)))
            return

        def read(found: list[Stored] | StoreError) -> None:
            done(found if isinstance(found, StoreError) else picture(found[0].frame))

        found = self._store.reader.read_at([EntryLocation(timer.address, timer.size, timer.form)])
        if isinstance(found, ColdEntries):
            found.start(read)
        else:
            read(found)

    def _find(self, timer_id: TimerId) -> Timer | None:
        """Return a pending timer; one of a deleted topic is none."""
        timer = self.pending.find(timer_id)
        return None if timer is None or self._topics.by_number(timer.topic) is None else timer

    def _is_pending(self, timer_id: TimerId) -> bool:
        return self.pending.find(timer_id) is not None

    def _not_pending(self, timer_id: TimerId | None) -> Decision:
        """Say what has become of a timer that is not pending."""
        verdict = Verdict.NOT_FOUND
        if timer_id is not None and self.pending.find(timer_id) is None:  # Else its topic is deleted, so it will be.
            verdict = Verdict.CANCELLED if timer_id in self._cancelled else Verdict.DELIVERED
        return Decision(verdict, self._state_log.barrier())

    # -- The same, by the sender's own key

    def named(self, topic: Topic, name: bytes) -> list[TimerId]:
        """Return the pending messages of a topic that have this key, as far as they are in memory."""
        hashed = name_hash(topic.number, name)
        in_tables = self.pending.found_named(topic.number, hashed)
        return [id for id in dict.fromkeys([*self._names.find(hashed), *in_tables]) if self._is_pending(id)]

    def replaced(self, topic: Topic, name: bytes) -> list[TimerId]:
        """Return all of them, in tables too, which are then in memory until the loop turns. Raises StoreError."""
        if self.tree.table_count:
            self.tree.lookups.find_named_now(topic.number, name_hash(topic.number, name))
        return self.named(topic, name)

    def pending_named(self, topic: Topic, name: bytes) -> list[Timer]:
        """Return those in memory as they are now."""
        return [timer for timer in map(self._find, self.named(topic, name)) if timer is not None]

    def cancel_named(self, topic: Topic, name: bytes, now_ms: int) -> Decision:
        """Cancel all pending messages of a topic that have this key."""
        found = self.named(topic, name)
        if not found:
            return self._not_pending_named(topic, name)
        promise = self._state_log.commit([self.cancels(found, now_ms)], now_ms).promise
        self._metrics.timers["cancelled"] += len(found)
        return Decision(Verdict.CANCELLED, promise, len(found))

    def reschedule_named(self, topic: Topic, name: bytes, due_ms: int, now_ms: int) -> Decision:
        """Let all pending messages of a topic that have this key be due at another time."""
        found = self.named(topic, name)
        if not found:
            return self._not_pending_named(topic, name)
        self._delay_parser.parse_time(due_ms, now_ms)
        return Decision(Verdict.RESCHEDULED, self._move(found, max(0, due_ms), now_ms), len(found))

    def cancels(self, timer_ids: Iterable[TimerId], now_ms: int) -> TimersCancelled:
        """Give the record that cancels these, for the unit of what replaces them."""
        return TimersCancelled(b"".join([KEY.pack(*timer_id) for timer_id in timer_ids]), now_ms)

    def _not_pending_named(self, topic: Topic, name: bytes) -> Decision:
        """Say what has become of the latest message with this key, of which none is pending."""
        found = self._names.find(name_hash(topic.number, name))
        return self._not_pending(found[-1] if found else None)._replace(messages=0)

    # -- Topics

    def pause(self, topic: Topic, now_ms: int) -> Promise:
        """Hold a topic's deliveries back until `resume`, over restarts too."""
        return self._set_paused(topic, now_ms, is_paused=True)

    def resume(self, topic: Topic, now_ms: int) -> Promise:
        return self._set_paused(topic, now_ms, is_paused=False)

    def _set_paused(self, topic: Topic, now_ms: int, *, is_paused: bool) -> Promise:
        if self.is_paused(topic) == is_paused:
            return self._state_log.barrier()
        return self._state_log.commit([DelayPaused(topic.number, is_paused)], now_ms).promise

    def is_paused(self, topic: Topic) -> bool:
        return topic.number in self.pending.turns.paused

    def paused(self) -> list[Topic]:
        """The topics whose deliveries are held back."""
        found = map(self._topics.by_number, sorted(self.pending.turns.paused))
        return [topic for topic in found if topic is not None]

    def count(self, topic: Topic) -> int:
        """How many are pending for a topic."""
        in_memory = self.pending.memtable.counts.by_topic.get(topic.number, 0)
        return in_memory + self.tree.deletions.by_topic.get(topic.number, 0)

    def counts(self) -> dict[int, int]:
        """How many are pending, by topic number."""
        counts = dict(self.pending.memtable.counts.by_topic)
        for topic, count in self.tree.deletions.by_topic.items():
            if count:
                counts[topic] = counts.get(topic, 0) + count
        return counts

    # -- Lists and counts of the memtable

    def file(self, topic: Topic | None, start_ms: int, until_ms: int) -> bool:
        """Prepare the next two in this time, a slice; false when all is prepared, until the loop turns."""
        prepare = partial(memtable_scan.file, self.pending.memtable)
        if topic is None and prepare(False, start_ms, until_ms, FILED_IN_SLICE):
            return True
        is_by_topic = topic is not None or bool(self._topics_gone())
        return is_by_topic and prepare(True, start_ms, until_ms, FILED_IN_SLICE)

    def near(self, topic: Topic | None, start: TimerKey, until_ms: int, count_max: int) -> list[Timer]:
        """Return the first pending timers of a topic, or of all, from this key on."""
        found = memtable_scan.due(self.pending.memtable, _number_of(topic), start, until_ms)
        return list(islice((timer for timer in found if self._topics.by_number(timer.topic) is not None), count_max))

    def histogram(self, topic: Topic | None, edges_ms: Sequence[int]) -> list[int]:
        """Count the pending timers of a topic, or of all, between each two neighbours of these times."""
        count = partial(memtable_scan.histogram, self.pending.memtable, edges_ms=edges_ms)
        counts = count(_number_of(topic))
        for gone in self._topics_gone() if topic is None else ():
            counts = [all_topics - less for all_topics, less in zip(counts, count(gone), strict=True)]
        return counts

    # -- The same of tables

    def far_page(
        self,
        topic: Topic | None,
        start: TimerKey,
        until_ms: int,
        count_max: int,
        done: Callable[[list[Timer] | StoreError], None],
    ) -> None:
        self.tree.lookups.page(_number_of(topic), start, until_ms, count_max, done)

    def far_histogram(
        self, topic: Topic | None, edges_ms: Sequence[int], done: Callable[[list[int] | StoreError], None]
    ) -> None:
        self.tree.lookups.histogram(_number_of(topic), edges_ms, done)

    def _topics_gone(self) -> list[int]:
        """The deleted topics of which the memtable has timers."""
        return [topic for topic in self.pending.memtable.counts.by_topic if self._topics.by_number(topic) is None]

    # -- Retention

    def first_kept(self, queue: Queue) -> int | None:
        """Say from which offset on retention must leave a queue alone; None: it may take all."""
        topic = self._topics.by_number(queue.topic)
        if topic is None or topic.rocketmq_name not in (SCHEDULE_TOPIC, TIMER_TOPIC):
            return None
        pins = [held[0].address for held in self._held.values()]
        pinned = self.pending.memtable.counts.pinned_from()
        if pinned is not None:
            pins.append(pinned)
        if not pins:
            return None
        pinned_from = min(pins)
        number = queue.index.find_position(pinned_from)
        rows = queue.index.rows(number) if number is not None else None
        if rows is None:
            return queue.start_offset  # It would take a read to find out; so this time nothing goes.
        return rows[0][0] if rows else None

    # -- Time

    def next_deadline_ms(self) -> int | None:
        """The wall time before which there is nothing to do."""
        return 0 if self._sweep_from else self._deliveries.next_deadline_ms()

    def run(self, now_ms: int, mono_ms: int) -> None:
        """Deliver one slice of what is due. Raises StoreError, and what was due is still due."""
        if self._sweep_from:
            self._sweep(self._sweep_from, now_ms)
        self._deliveries.run(now_ms)

    def clock_was_set_back(self, now_ms: int) -> None:
        """The clock was ahead, and is right again: nothing waits for a time that follows from the wrong one."""
        self.pending.memtable.windows.set_back(now_ms)
        self.tree.set_back()
        self._deliveries.set_back(now_ms)
        if self._sweep_from is not None:
            self._sweep_from = FROM_THE_LATEST

    # -- Deleted topics

    def _sweep_out(self, topic: int) -> None:
        """Have the messages of a deleted topic dropped: they would pin the log for years."""
        if self.pending.memtable.counts.by_topic.get(topic):
            self._swept.add(topic)
            self._sweep_from = FROM_THE_LATEST

    def _sweep(self, cursor: SweepCursor, now_ms: int) -> None:
        found, sweep_from = memtable_scan.sweep(self.pending.memtable, self._swept, cursor, SWEPT_IN_SLICE)
        if found:
            self._deliveries.drop(found, now_ms)
        self._sweep_from = sweep_from
        if sweep_from is None:
            self._swept.clear()

    def sweep(self, is_gone: IsGone) -> Iterator[int]:
        """Drop what open transactions hold for deleted topics; what is decided before is dropped then."""
        for producer_ids in in_slices(self._held):
            for producer_id in producer_ids:
                held = self._held.get(producer_id, [])
                kept = [timer for timer in held if not is_gone(timer.key)]
                self._held_count -= len(held) - len(kept)
                if kept:
                    self._held[producer_id] = kept
                else:
                    self._held.pop(producer_id, None)
                yield len(held) + 1

    # -- Replay: adding and removing

    def _replay_parked(self, slot: Slot, form: int, size: int, extra: bytes) -> None:
        key, due_ms, hashed = pending_frames.read_extra(extra)
        name_size = 0 if hashed is None else pending_frames.HASH_SIZE
        self.pending.memtable.add(Timer(due_ms, slot.position, key, size, name_size, form))
        if hashed is not None:
            self._names.add(hashed, (due_ms, slot.position))

    def _replay_again(self, slot: Slot, form: int, size: int, extra: bytes) -> None:
        key, due_ms, hashed, timer_id, table_key = pending_frames.read_again_extra(extra)
        self._delete_in_tables(table_key, key >> QUEUE_ID_BITS, slot)
        self.pending.ids.set(timer_id, (due_ms, slot.position))
        name_size = pending_frames.HASH_SIZE if hashed else 0
        self.pending.memtable.add(Timer(due_ms, slot.position, key, size, name_size, form))
        if hashed:
            self._names.add(hashed, timer_id)

    def _replay_held(self, record: TimersHeld, slot: Slot) -> None:
        for row in ROW.iter_unpack(record.rows):
            self.hold(record.producer_id, Timer(*row))

    def _replay_delivered(self, record: TimersDelivered, slot: Slot) -> None:
        for key in self.pending.delivered(record.topic, record.ids):
            self._delete_in_tables(key, record.topic, slot)

    def _replay_cancelled(self, record: TimersCancelled, slot: Slot) -> None:
        for timer_id in KEY.iter_unpack(record.ids):
            key = self.pending.ids.key_of(timer_id)
            if self.pending.remove(timer_id) is None:
                stored = self.pending.stored(key)
                self._delete_in_tables(key, 0 if stored is None else stored.topic, slot)
            self._cancelled.add(timer_id, record.at_ms)

    def _delete_in_tables(self, key: TimerKey, topic: int, slot: Slot) -> None:
        self.pending.found.pop(key, None)
        self.tree.deletions.note(key, topic, slot.position)

    def _replay_moved(self, record: TimerMoved, slot: Slot) -> None:
        timer_id = (record.given_ms, record.address)
        if record.is_restored:
            self.pending.ids.set(timer_id, (record.due_ms, record.now_address or record.address))
        else:
            self.pending.move(timer_id, record.due_ms)

    def _replay_pending(self, record: TimersPending, slot: Slot) -> None:
        self.pending.memtable.restore(record.rows)

    def _replay_names(self, record: TimerNames, slot: Slot) -> None:
        self._names.restore(record.rows)

    def _replay_cancelled_before(self, record: TimersCancelledBefore, slot: Slot) -> None:
        for due_ms, address, at_ms in _CANCELLED.iter_unpack(record.rows):
            self._cancelled.add((due_ms, address), at_ms)

    # -- Replay: topics

    def _replay_paused(self, record: DelayPaused, slot: Slot) -> None:
        if record.is_paused:
            self.tree.pause(record.topic)
        else:
            self.tree.resume(record.topic)

    def _replay_topic_deleted(self, record: TopicDeleted, slot: Slot) -> None:
        self.tree.resume(record.number)  # What is due is dropped in its turn.
        self.tree.deletions.forget_topic(record.number)
        self._sweep_out(record.number)

    # -- Replay: tables

    def _commit_manifest(
        self, manifest: Manifest, now_ms: int, *, flushed: bytes, deleted: bytes, counted_to: int
    ) -> Promise:
        rows = tuple(tuple(entry) for entry in manifest)
        return self._state_log.free([TimerTablesChanged(rows, flushed, deleted, counted_to)], now_ms).promise

    def _replay_manifest(self, record: TimerTablesChanged, slot: Slot) -> None:
        manifest = manifest_of(record.manifest)
        self.tree.replay_manifest(manifest, record.flushed, record.deleted, record.counted_to, slot.position)

    def _replay_deleted(self, record: TableTimersDeleted, slot: Slot) -> None:
        self.tree.deletions.restore(record.keys, slot.position)

    # -- Snapshots

    def _end_snapshot(self) -> None:
        if self._snapshot is not None:
            self._snapshot.close()
            self._snapshot = None

    def _begin_snapshot(self) -> Iterable[Record]:
        """Return the state of this moment; rows of timers and names are copied as they are taken or change."""
        self._end_snapshot()
        self._snapshot = MemtableSnapshot(self.pending.memtable)
        held = [(producer_id, [*timers]) for producer_id, timers in self._held.items()]
        moved, paused = self.pending.ids.moved(), sorted(self.pending.turns.paused)
        cancelled, manifest = [*self._cancelled.all()], tuple(tuple(entry) for entry in self.tree.manifest)
        return chain(
            [TimerTablesChanged(manifest, b"", b"", 0)] if manifest else [],
            map(TableTimersDeleted, self.tree.deletions.snapshot()),
            (TimersHeld(producer_id, b"".join(map(pack_row, timers))) for producer_id, timers in held),
            map(TimersPending, self._snapshot.parts()),
            map(TimerNames, self._names.snapshot()),
            (TimerMoved(*id, due_ms, is_restored=True, now_address=address) for id, (due_ms, address) in moved),
            (DelayPaused(topic, is_paused=True) for topic in paused),
            (
                TimersCancelledBefore(b"".join([_CANCELLED.pack(*timer_id, at_ms) for timer_id, at_ms in some]))
                for some in (
                    cancelled[at : at + _CANCELLED_IN_RECORD] for at in range(0, len(cancelled), _CANCELLED_IN_RECORD)
                )
            ),
        )


def _number_of(topic: Topic | None) -> int | None:
    return None if topic is None else topic.number
