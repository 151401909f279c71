"""Delayed messages: parked in the log, delivered when they are due; the coordinator around `delay/timers.py`.

    door ---- park ---> one unit: the parked entries (bridge/data/pending_frames.py), what of the batch is not delayed
                                                                                   |
    ticker -- run ----> Timers.advance, take --> frames read --> one unit: the messages in their queues, TimersDelivered
    verbs --- cancel, reschedule, deliver_now, pause, resume --> one unit each

Replay is the only code that changes the timers, so what the log does not have has not happened: a crash delivers a
message neither twice nor never. Deliveries are cut into slices of `DELIVERED_IN_SLICE`, one or two milliseconds each,
between which the loop turns; a slice is one read and one unit, of several topics, which take turns: one with many due
messages does not hold up the others. What lies neither in the tail nor in the page cache is read by a thread; until it
is there the topic waits, the others go on.

A timer's id for clients is 24 letters: its due time when it was parked, its address in the log, and a check sum with
the cluster's id in it, so that one that was never given is told from one whose message was delivered.
"""

import logging
from base64 import urlsafe_b64decode, urlsafe_b64encode
from binascii import Error as Base64Error
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import chain, groupby, islice
from operator import attrgetter
from struct import Struct
from typing import Final, NamedTuple, Protocol

from crc32c import crc32c

from duolog.bridge.config import HOUR_MS, DelayOptions
from duolog.bridge.data import pending_frames
from duolog.bridge.data.delay_headers import DelayParser, RequestedDelay
from duolog.bridge.data.far_timers import FarStore, FarTimers
from duolog.bridge.monitoring.metrics import Metrics
from duolog.bridge.monitoring.poison import NOT_THE_RECORD, Poison
from duolog.bridge.state.deleted_topics import IsGone, in_slices
from duolog.bridge.state.records import (
    DelayPaused,
    Record,
    TimerMoved,
    TimerNames,
    TimersCancelled,
    TimersCancelledBefore,
    TimersDelivered,
    TimersHeld,
    TimersPending,
    TopicDeleted,
)
from duolog.bridge.state.topics import QUEUE_ID_BITS, Topic, Topics
from duolog.delay.cancellations import Cancelled, Verdict
from duolog.delay.names import Names, name_hash
from duolog.delay.rows import ROW, Timer, pack_row
from duolog.delay.timers import (
    FROM_THE_LATEST,
    Cursor,
    TimerId,
    Timers,
    Turn,
)
from duolog.delay.tombstones import Fate
from duolog.protocol.rocketmq.names import SCHEDULE_TOPIC, TIMER_TOPIC
from duolog.store.entry import Appended, Buffer, EntryLocation, Promise, Slot, Stored, new_tuple
from duolog.store.errors import EntryTooLarge, StoreError
from duolog.store.files import Files
from duolog.store.index.queue import Queue
from duolog.store.log.cold_read import ColdEntries
from duolog.store.state_log import StateLog
from duolog.store.unit import Frame, FrameRun

DELIVERED_IN_SLICE: Final = 256
SHARE_OF_TOPIC_MIN: Final = 64  # of them, while there are so many: fewer at a time cost more each
DELIVERED_BYTES_IN_SLICE: Final = 1 << 20  # unless the first alone has more
MOVED_IN_SLICE: Final = 1024  # rows, at half a microsecond each
FILED_IN_SLICE: Final = 256  # rows, at two or three microseconds each, for somebody who looks
SWEPT_IN_SLICE: Final = 2048  # rows of windows, looked at for those of deleted topics
IN_MEMORY_MAX: Final = 4_000_000  # 32 bytes each
WAITING_MAX: Final = 1_000_000  # of those that are to go to buckets
GATHER_MS: Final = 2  # from one delivery to the next: it costs as much for ten messages as twice for three
RETRY_MS: Final = 1_000  # when parked messages could not be read

_ID: Final = Struct(">QQ")
_TEXT_ID: Final = Struct(">QQI")
_DUE_BYTES_CUT: Final = 2  # No time needs the first two bytes, so an id is 18 bytes: 24 letters without padding.
_TEXT_ID_LENGTH: Final = 24
_CANCELLED: Final = Struct(">QQQ")
_CANCELLED_IN_RECORD: Final = 10_000

_address_of: Final = attrgetter("address")
_form_of: Final = attrgetter("form")

log = logging.getLogger("bridge")


class TooManyTimers(StoreError):
    """`delay.pending_max` is reached; senders may try again."""


class Door(Protocol):
    """Makes what leaves fit for its queue (`bridge/data/publishing/delivery_frames.py`)."""

    def deliveries(
        self, topic: Topic, queue_id: int, form: int, frames: Sequence[Buffer], dues_ms: Sequence[int], now_ms: int
    ) -> FrameRun: ...

    def parked_again(self, form: int, frame: memoryview, due_ms: int, extra: bytes) -> Frame: ...


class Decision(NamedTuple):
    """A verdict, and what must hold before anybody hears it."""

    verdict: Verdict
    promise: Promise
    messages: int | None = None  # that it is about, where it was asked for by key


class TimerView(NamedTuple):
    """A pending timer, for people."""

    id: str
    topic: str
    queue_id: int
    due_ms: int
    form: int  # of the frame (`bridge/data/frame_formats.py`)
    frame: memoryview  # as it is parked


class Delays:
    """The delayed messages of one broker."""

    def __init__(
        self, state_log: StateLog, topics: Topics, options: DelayOptions, metrics: Metrics, poison: Poison
    ) -> None:
        self._delay_parser = DelayParser(options)
        self._state_log, self._topics, self._metrics, self._poison = state_log, topics, metrics, poison
        self._pending_max = options.pending_max
        self._timers = Timers()
        self._cancelled = Cancelled(options.verdicts_max, options.verdict_hours * HOUR_MS)
        self._names = Names(self._is_pending, options.verdicts_max)
        self.far = FarTimers(state_log, topics, self._names, options)
        self._held: dict[int, list[Timer]] = {}  # of open transactions, by producer id; in order of their addresses
        self._held_count = 0
        self._unread: dict[int, int] = {}  # topics whose messages could not be read -> when to try again
        self._dead: set[int] = set()  # deleted topics, while their messages are swept out
        self._sweep_from: Cursor | None = None  # what is not looked at yet for them; None: nothing
        self._run_ms = 0  # when `run` ran last
        self._delivered_ms = 0  # when it delivered last
        self._was_read: list[tuple[Turn, list[Stored]]] = []  # by a thread, to be delivered by the next `run`
        self._store: FarStore | None = None
        self._door: Door | None = None
        self._id_salt = b""
        state_log.own(TimersDelivered, self._replay_delivered)
        state_log.own(TimersCancelled, self._replay_cancelled)
        state_log.own(TimerMoved, self._replay_moved)
        state_log.own(DelayPaused, self._replay_paused)
        state_log.own(TimersPending, self._replay_pending)
        state_log.own(TimersCancelledBefore, self._replay_cancelled_before)
        state_log.own(TimerNames, self._replay_names)
        state_log.own(TimersHeld, self._replay_held)
        state_log.own(TopicDeleted, self._replay_topic_deleted)
        state_log.on_extra(pending_frames.EXTRA_KIND, self._replay_parked)
        state_log.on_extra(pending_frames.AGAIN_EXTRA_KIND, self._replay_again)
        state_log.on_sliced_snapshot(self._begin_snapshot, self._end_snapshot)

    def begin(self, now_ms: int, files: Files) -> None:
        """Say what time it is, before the log is recovered: what was due before then needs no wheel."""
        self._timers = Timers(now_ms)
        self.far.begin(files, self._timers)

    def attach(self, store: FarStore, door: Door, cluster_id: str) -> None:
        """Name the parts that stand on the recovered log. Raises Corruption."""
        self._store, self._door = store, door
        self.far.open(store)
        self._metrics.timers["lost"] += self.far.lost
        self._id_salt = cluster_id.encode()
        for topic in self._topics_gone():
            self._sweep_out(topic)

    def __len__(self) -> int:
        """How many are pending, or wait for a commit."""
        return len(self._timers) + len(self.far) + self._held_count

    # -- Parking

    def queue_of(self, delay: RequestedDelay) -> Queue:
        """The queue in which a message waits."""
        topic = self._topics.by_rocketmq_name(SCHEDULE_TOPIC if delay.level else TIMER_TOPIC)
        assert topic is not None, "topics of the broker's own are made at start"
        return topic.queues[delay.level - 1 if delay.level else 0]

    def park(self, frames: Sequence[Frame], now_ms: int, records: Sequence[Record] = ()) -> Appended:
        """Append parked entries, and others that came with them, as one unit.

        Raises TooManyTimers and other StoreError, and then has appended nothing.
        """
        self.check_room(len(frames))
        before = len(self)
        appended = self._state_log.commit(records, now_ms, frames)
        replaced = sum([len(record.ids) // _ID.size for record in records if isinstance(record, TimersCancelled)])
        self._metrics.timers["parked"] += len(self) - before + replaced
        self._metrics.timers["cancelled"] += replaced
        return appended

    def check_room(self, count: int) -> None:
        """Raise TooManyTimers if so many more cannot wait."""
        if len(self) + count > self._pending_max:
            raise TooManyTimers(f"{len(self)} messages are delayed; delay.pending_max is {self._pending_max}")
        if self.far.waiting > WAITING_MAX or len(self._timers) > IN_MEMORY_MAX:
            raise TooManyTimers(
                f"{len(self._timers)} delayed messages are in memory; {self.far.waiting} of them wait for the disk"
            )

    # -- In transactions of Kafka

    def held_count(self, producer_id: int) -> int:
        """How many delayed records a producer's open transaction has."""
        return len(self._held.get(producer_id, ()))

    def hold(self, producer_id: int, timer: Timer) -> None:
        """Keep a parked record until its transaction is decided; live and at recovery, as the next."""
        self._held.setdefault(producer_id, []).append(timer)
        self._held_count += 1

    def decide(self, producer_id: int, *, is_commit: bool) -> None:
        """The producer's transaction has ended: what it held are timers now, or are dropped."""
        held = self._held.pop(producer_id, [])
        self._held_count -= len(held)
        if is_commit:
            for timer in held:
                if timer.topic in self._topics:
                    self._timers.add(timer)

    # -- Ids

    def text_of(self, timer_id: TimerId) -> str:
        """Write an id as clients get it."""
        raw = _ID.pack(*timer_id)
        return urlsafe_b64encode((raw + self._check(raw))[_DUE_BYTES_CUT:]).decode()

    def id_of(self, text: str) -> TimerId | None:
        """Read an id; None if this cluster never gave it."""
        if len(text) != _TEXT_ID_LENGTH:
            return None
        try:
            raw = bytes(_DUE_BYTES_CUT) + urlsafe_b64decode(text)
        except (Base64Error, ValueError):
            return None
        if len(raw) != _TEXT_ID.size or raw[16:] != self._check(raw[:16]):
            return None
        due_ms, address = _ID.unpack_from(raw)
        return due_ms, address

    def _check(self, raw: bytes) -> bytes:
        return crc32c(self._id_salt + raw).to_bytes(4, "big")

    # -- Verbs: what they ask for must be at hand

    def at_hand(self, text: str, then: Callable[[StoreError | None], None]) -> None:
        """Call `then` when the timer of this id, if it is pending, is in memory: mostly at once. It is as long as
        `then` takes."""
        timer_id = self.id_of(text)
        timer = self._timers.find(*timer_id) if timer_id else None
        if timer_id is None or not self.far.has_any or (timer is not None and not timer.home):
            then(None)
        else:
            self.far.bring(timer_id, then)

    def named_at_hand(self, topic: Topic, name: bytes, then: Callable[[StoreError | None], None]) -> None:
        """Do the same for all timers of a topic that have this sender's key."""
        if self.far.has_any:
            self.far.bring_named(topic.number, name_hash(topic.number, name), then)
        else:
            then(None)

    def cancel(self, text: str, now_ms: int) -> Decision:
        """Let a message never be delivered, if it is not yet. Raises StoreError, and then has changed nothing."""
        timer_id = self.id_of(text)
        if timer_id is None or self._find(timer_id) is None:
            return self._past(timer_id)
        promise = self._state_log.commit([TimersCancelled(_ID.pack(*timer_id), now_ms)], now_ms).promise
        self._metrics.timers["cancelled"] += 1
        return Decision(Verdict.CANCELLED, promise)

    def reschedule(self, text: str, due_ms: int, now_ms: int) -> Decision:
        """Let a pending message be due at another time, at once if that has passed; its id stays.

        Raises DelayRefused if that is too far away, and StoreError.
        """
        timer_id = self.id_of(text)
        if timer_id is None or self._find(timer_id) is None:
            return self._past(timer_id)
        self._delay_parser.parse_time(due_ms, now_ms)
        return Decision(Verdict.RESCHEDULED, self._move([timer_id], max(0, due_ms), now_ms))

    def _move(self, timer_ids: Iterable[TimerId], due_ms: int, now_ms: int) -> Promise:
        """Let pending timers be due at another time; those of buckets are parked again, and keep their ids."""
        assert self._door is not None, "the door is not open"
        frames: list[Frame] = []
        moves: list[Record] = []
        for timer_id in timer_ids:
            timer = self._timers.find(*timer_id)
            assert timer is not None, "it is pending"
            if not timer.home:
                moves.append(TimerMoved(*timer_id, due_ms))
                continue
            place = (timer.due_ms, timer.address)
            extra = pending_frames.again_extra(timer.key, due_ms, self.far.hash_of(timer), timer_id, place)
            frames.append(self._door.parked_again(timer.form, self.far.frame_of(timer), due_ms, extra))
        return self._state_log.commit(moves, now_ms, frames).promise

    def deliver_now(self, text: str, now_ms: int) -> Decision:
        """Let a pending message be due now: it is delivered in its turn, unless its topic is paused."""
        return self.reschedule(text, now_ms, now_ms)

    def view(self, text: str, done: Callable[[TimerView | StoreError | None], None]) -> None:
        """Give a pending message to `done`, now or when it was read; None if none has this id."""
        timer_id = self.id_of(text)
        timer = self._timers.find(*timer_id) if timer_id else None
        topic = self._topics.by_number(timer.topic) if timer else None
        if timer is None or topic is None:
            done(None)
            return
        queue_id = timer.key & (1 << QUEUE_ID_BITS) - 1
        picture = partial(TimerView, text, topic.name, queue_id, timer.due_ms, timer.form)
        if timer.home:
            done(picture(self.far.frame_of(timer)))
            return

        def read(found: list[Stored] | StoreError) -> None:
            done(found if isinstance(found, StoreError) else picture(found[0].frame))

        assert self._store is not None, "the store is not open"
        found = self._store.reader.read_at([EntryLocation(timer.address, timer.size, timer.form)])
        if isinstance(found, ColdEntries):
            found.start(read)
        else:
            read(found)

    # -- The same, by the sender's own key

    def named(self, topic: Topic, name: bytes) -> list[TimerId]:
        """Return the pending messages of a topic that have this key, as far as they are in memory."""
        found = self._names.find(name_hash(topic.number, name))
        return [timer_id for timer_id in dict.fromkeys(found) if self._is_pending(timer_id)]

    def replaced(self, topic: Topic, name: bytes) -> list[TimerId]:
        """Return all of them, in buckets too."""
        found = self.named(topic, name)
        if self.far.has_any:
            places = self.far.named_now(topic.number, name_hash(topic.number, name))
            found = list(dict.fromkeys([*found, *map(self._timers.id_at, places)]))
        return found

    def pending_named(self, topic: Topic, name: bytes) -> list[Timer]:
        """Return those in memory as they are now."""
        return [timer for timer in map(self._find, self.named(topic, name)) if timer is not None]

    def cancel_named(self, topic: Topic, name: bytes, now_ms: int) -> Decision:
        """Cancel all pending messages of a topic that have this key."""
        found = self.named(topic, name)
        if not found:
            return self._past_named(topic, name)
        promise = self._state_log.commit([self.cancels(found, now_ms)], now_ms).promise
        self._metrics.timers["cancelled"] += len(found)
        return Decision(Verdict.CANCELLED, promise, len(found))

    def reschedule_named(self, topic: Topic, name: bytes, due_ms: int, now_ms: int) -> Decision:
        """Let all pending messages of a topic that have this key be due at another time."""
        found = self.named(topic, name)
        if not found:
            return self._past_named(topic, name)
        self._delay_parser.parse_time(due_ms, now_ms)
        return Decision(Verdict.RESCHEDULED, self._move(found, max(0, due_ms), now_ms), len(found))

    def cancels(self, timer_ids: Iterable[TimerId], now_ms: int) -> TimersCancelled:
        """Give the record that cancels these, for the unit of what replaces them."""
        return TimersCancelled(b"".join([_ID.pack(*timer_id) for timer_id in timer_ids]), now_ms)

    def _past_named(self, topic: Topic, name: bytes) -> Decision:
        """Say what has become of the latest message with this key, of which none is pending."""
        found = self._names.find(name_hash(topic.number, name))
        return self._past(found[-1] if found else None)._replace(messages=0)

    # -- Topics

    def pause(self, topic: Topic, now_ms: int) -> Promise:
        """Hold a topic's deliveries back until `resume`, over restarts too."""
        return self._set_paused(topic, now_ms, is_paused=True)

    def resume(self, topic: Topic, now_ms: int) -> Promise:
        return self._set_paused(topic, now_ms, is_paused=False)

    def is_paused(self, topic: Topic) -> bool:
        return topic.number in self._timers.paused

    def paused(self) -> list[Topic]:
        """The topics whose deliveries are held back."""
        found = map(self._topics.by_number, sorted(self._timers.paused))
        return [topic for topic in found if topic is not None]

    def count(self, topic: Topic) -> int:
        """How many are pending for a topic."""
        return self._timers.count(topic.number) + self.far.count(topic.number)

    def counts(self) -> dict[int, int]:
        """How many are pending, by topic number."""
        counts = self._timers.counts()
        for topic, count in self.far.counts().items():
            counts[topic] = counts.get(topic, 0) + count
        return counts

    # -- Many, of those that are in no bucket

    def file(self, topic: Topic | None, start_ms: int, until_ms: int) -> bool:
        """Make ready for the next two in this time, a slice; false when all is, until the loop turns."""
        if topic is None and self._timers.file(False, start_ms, until_ms, FILED_IN_SLICE):
            return True
        is_by_topic = topic is not None or bool(self._topics_gone())
        return is_by_topic and self._timers.file(True, start_ms, until_ms, FILED_IN_SLICE)

    def near(self, topic: Topic | None, start: TimerId, until_ms: int, count_max: int) -> list[Timer]:
        """Return the first pending timers of a topic, or of all, from this place on."""
        found = self._timers.due(None if topic is None else topic.number, start, until_ms)
        return list(islice((timer for timer in found if self._topics.by_number(timer.topic) is not None), count_max))

    def histogram(self, topic: Topic | None, edges_ms: Sequence[int]) -> list[int]:
        """Count the pending timers of a topic, or of all, between each two neighbours of these times."""
        if topic is not None:
            return self._timers.histogram(topic.number, edges_ms)
        counts = self._timers.histogram(None, edges_ms)
        for gone in self._topics_gone():
            of_topic = self._timers.histogram(gone, edges_ms)
            counts = [count - less for count, less in zip(counts, of_topic, strict=True)]
        return counts

    def _topics_gone(self) -> list[int]:
        """The deleted topics that timers still wait for."""
        return [topic for topic in self._timers.topics() if self._topics.by_number(topic) is None]

    def text_id_of(self, timer: Timer) -> str:
        return self.text_of(self._timers.id_of(timer))

    def _find(self, timer_id: TimerId) -> Timer | None:
        """Return a pending timer; what waits for a topic that is gone is none."""
        timer = self._timers.find(*timer_id)
        return None if timer is None or self._topics.by_number(timer.topic) is None else timer

    def _is_pending(self, timer_id: TimerId) -> bool:
        return self._timers.find(*timer_id) is not None

    def _set_paused(self, topic: Topic, now_ms: int, *, is_paused: bool) -> Promise:
        if self.is_paused(topic) == is_paused:
            return self._state_log.barrier()
        return self._state_log.commit([DelayPaused(topic.number, is_paused)], now_ms).promise

    def _past(self, timer_id: TimerId | None) -> Decision:
        """Say what has become of a timer that is not pending."""
        verdict = Verdict.NOT_FOUND
        if timer_id is not None and self._timers.find(*timer_id) is None:  # Else its topic is gone, and it will be.
            verdict = Verdict.CANCELLED if timer_id in self._cancelled else Verdict.DELIVERED
        return Decision(verdict, self._state_log.barrier())

    # -- Retention

    def first_kept(self, queue: Queue) -> int | None:
        """Say from which offset on retention must leave a queue alone; None: it may take all."""
        topic = self._topics.by_number(queue.topic)
        if topic is None or topic.rocketmq_name not in (SCHEDULE_TOPIC, TIMER_TOPIC):
            return None
        pins = [held[0].address for held in self._held.values()]
        pinned = self._timers.pinned_from()
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

    # -- Delivering

    def next_deadline_ms(self) -> int | None:
        """The wall time before which there is nothing to do."""
        if self._was_read or self._sweep_from:
            return 0
        deadline_ms = self._timers.next_deadline_ms()
        if deadline_ms is not None and 0 < deadline_ms - self._delivered_ms < GATHER_MS:
            deadline_ms = self._delivered_ms + GATHER_MS
        if self._unread:
            retry_ms = min(self._unread.values())
            return retry_ms if deadline_ms is None else min(deadline_ms, retry_ms)
        return deadline_ms

    def run(self, now_ms: int, mono_ms: int) -> None:
        """Deliver one slice of what is due. Raises StoreError, and what was due is still due."""
        self._run_ms = now_ms
        if self._unread:
            self._read_again(now_ms)
        if self._sweep_from:
            self._sweep(self._sweep_from, now_ms)
        while self._was_read:
            self._deliver_read(*self._was_read.pop(), now_ms)
        self._timers.advance(now_ms, MOVED_IN_SLICE)
        turns = self._take_turns(now_ms)
        if turns:
            self._delivered_ms = now_ms
            self._begin(turns, now_ms)

    def clock_was_set_back(self, now_ms: int) -> None:
        """The clock was ahead, and is right again: nothing waits for a time that was reckoned from the wrong one."""
        self._timers.set_back(now_ms)
        self.far.set_back()
        self._delivered_ms = 0
        self._read_again(max(self._unread.values(), default=now_ms))
        if self._sweep_from is not None:
            self._sweep_from = FROM_THE_LATEST

    def _take_turns(self, now_ms: int) -> list[Turn]:
        """Take what is due for one slice: an equal share of each topic, as far as that goes."""
        turns: list[Turn] = []
        share = max(SHARE_OF_TOPIC_MIN, DELIVERED_IN_SLICE // max(1, self._timers.topics_in_turn))
        count_left, bytes_left = DELIVERED_IN_SLICE, DELIVERED_BYTES_IN_SLICE
        while count_left > 0 and bytes_left > 0:
            turn = self._timers.take(now_ms, min(share, count_left), bytes_left)
            if turn is None:
                break
            turns.append(turn)
            count_left -= len(turn.timers)
            bytes_left -= sum([timer.size for timer in turn.timers])
        return turns

    def _begin(self, taken: list[Turn], now_ms: int) -> None:
        """Deliver at once what is in memory, and have the rest read."""
        reading: set[int] = set()
        try:
            turns = [turn for turn in taken if not (self._was_dropped(turn, now_ms) or self._is_fetched(turn, reading))]
            found = self._read(turns) if turns else []
            if isinstance(found, ColdEntries):
                turns, found = self._read_each(turns, reading)
            if turns:
                self._deliver(turns, found, now_ms)
        finally:
            for turn in taken:
                if turn.topic not in reading:
                    self._timers.give_back(turn.topic)

    def _was_dropped(self, turn: Turn, now_ms: int) -> bool:
        """Drop what waits for a topic that is gone."""
        if self._topics.by_number(turn.topic) is not None:
            return False
        self._drop(turn.timers, now_ms)
        return True

    def _read(self, turns: Sequence[Turn]) -> list[Stored] | ColdEntries:
        """Read what the log has, of all these topics along it: what came together lies together."""
        assert self._store is not None, "the store is not open"
        timers = sorted([timer for turn in turns for timer in turn.timers if not timer.home], key=_address_of)
        places = [new_tuple(EntryLocation, (address, size, form)) for _, address, _, size, _, form, _ in timers]
        return self._store.reader.read_at(places) if places else []

    def _read_each(self, turns: Sequence[Turn], reading: set[int]) -> tuple[list[Turn], list[Stored]]:
        """Read topic by topic, so that those in memory need not wait for the others, which are added to `reading`."""
        in_memory: list[Turn] = []
        found_in_all: list[Stored] = []
        for turn in turns:
            found = self._read([turn])
            if isinstance(found, ColdEntries):
                reading.add(turn.topic)
                found.start(partial(self._finish_read, turn))
            else:
                in_memory.append(turn)
                found_in_all += found
        return in_memory, found_in_all

    def _is_fetched(self, turn: Turn, reading: set[int]) -> bool:
        """Have messages read that are in buckets and not in memory; their topic is added to `reading` then."""
        lacking = self.far.lacking(turn.timers)
        if lacking:
            reading.add(turn.topic)
            self.far.fetch(lacking, partial(self._finish_fetch, turn))
        return bool(lacking)

    def _finish_fetch(self, turn: Turn, error: StoreError | None) -> None:
        """The messages of this turn that buckets have are in memory now."""
        if error is not None:
            self._finish_read(turn, error)
        else:
            self._timers.give_back(turn.topic)

    def _finish_read(self, turn: Turn, found: list[Stored] | StoreError) -> None:
        """Take what a thread has read."""
        if isinstance(found, StoreError):
            log.warning("delayed messages not read topic=%d retry_ms=%d reason=%r", turn.topic, RETRY_MS, str(found))
            self._unread[turn.topic] = self._run_ms + RETRY_MS
        else:
            self._was_read.append((turn, found))

    def _deliver_read(self, turn: Turn, found: list[Stored], now_ms: int) -> None:
        """Deliver of a turn what is still pending, and still due: it took a while to be read."""
        try:
            find, id_of = self._timers.find, self._timers.id_of
            timers = [timer for timer in turn.timers if timer.due_ms <= now_ms and find(*id_of(timer)) == timer]
            if timers and self._topics.by_number(turn.topic) is not None:
                self._deliver([Turn(turn.topic, timers)], found, now_ms)
        finally:
            self._timers.give_back(turn.topic)

    def _read_again(self, now_ms: int) -> None:
        for topic in [topic for topic, at_ms in self._unread.items() if at_ms <= now_ms]:
            del self._unread[topic]
            self._timers.give_back(topic)

    def _deliver(self, turns: Sequence[Turn], found: list[Stored], now_ms: int) -> None:
        """Append these messages to their queues, in order, as one unit with what says so."""
        try:
            frames_at: dict[int, Buffer] = {stored.position: stored.frame for stored in found}
            frames_at |= self.far.frames_of(timer for turn in turns for timer in turn.timers if timer.home)
            runs = [run for turn in turns for run in self._runs_of(turn, frames_at, now_ms) if run.frames]
        except NOT_THE_RECORD:
            raise
        except Exception as error:  # noqa: BLE001 - the one that raises is set aside
            self._deliver_parts(turns, found, now_ms, error)
            return
        records = [TimersDelivered(topic, self._timers.ids_of(timers)) for topic, timers in turns]
        try:
            self._state_log.commit(records, now_ms, runs)
        except EntryTooLarge as error:
            self._deliver_parts(turns, found, now_ms, error)
            return
        delivered = sum([len(run.frames) for run in runs])
        self._metrics.timers["delivered"] += delivered
        self._metrics.timers["dropped"] += sum([len(timers) for _, timers in turns]) - delivered

    def _deliver_parts(self, turns: Sequence[Turn], found: list[Stored], now_ms: int, error: Exception) -> None:
        """Deliver less at once: together they do not fit into a segment, or one of them raised `error`."""
        if len(turns) > 1:
            for turn in turns:
                self._deliver([turn], found, now_ms)
            return
        topic, timers = turns[0]
        if len(timers) == 1:
            if isinstance(error, EntryTooLarge):
                log.error("delayed message dropped, no segment holds it topic=%d bytes=%d", topic, timers[0].size)
            else:
                self._set_aside(timers[0], error)
            self._drop(timers, now_ms)
            return
        middle = len(timers) // 2
        self._deliver([Turn(topic, timers[:middle])], found, now_ms)
        self._deliver([Turn(topic, timers[middle:])], found, now_ms)

    def _set_aside(self, timer: Timer, error: Exception) -> None:
        topic, queue_id = self._topics.by_number(timer.topic), timer.key & (1 << QUEUE_ID_BITS) - 1
        name = topic.name if topic is not None else str(timer.topic)
        place = f"position {timer.address}, to {name} queue {queue_id}, due at {timer.due_ms} ms"
        self._poison.set_aside("delayed message", place, error)

    def _runs_of(self, turn: Turn, frames_at: Mapping[int, Buffer], now_ms: int) -> Iterator[FrameRun]:
        """Make a topic's messages what they are in their queues: a run for each, or more where the form changes."""
        assert self._door is not None, "the door is not open"
        topic, mask = self._topics.by_number(turn.topic), (1 << QUEUE_ID_BITS) - 1
        assert topic is not None, f"topic {turn.topic} is gone"
        queues: defaultdict[int, list[Timer]] = defaultdict(list)
        for timer in turn.timers:
            queues[timer.key].append(timer)
        for key, timers in queues.items():
            for form, group in groupby(timers, _form_of):
                run = [*group]
                frames, dues_ms = [frames_at[timer.address] for timer in run], [timer.due_ms for timer in run]
                yield self._door.deliveries(topic, key & mask, form, frames, dues_ms, now_ms)

    def _sweep_out(self, topic: int) -> None:
        """Have the messages of a deleted topic dropped: they would pin the log for years."""
        if self._timers.count(topic):
            self._dead.add(topic)
            self._sweep_from = FROM_THE_LATEST

    def _sweep(self, cursor: Cursor, now_ms: int) -> None:
        found, sweep_from = self._timers.sweep(self._dead, cursor, SWEPT_IN_SLICE)
        if found:
            self._drop(found, now_ms)
        self._sweep_from = sweep_from
        if sweep_from is None:
            self._dead.clear()

    def _drop(self, timers: Sequence[Timer], now_ms: int) -> None:
        self._state_log.commit([TimersCancelled(self._timers.ids_of(timers), now_ms, is_dropped=True)], now_ms)
        self._metrics.timers["dropped"] += len(timers)

    # -- Replay

    def _replay_parked(self, slot: Slot, form: int, size: int, extra: bytes) -> None:
        key, due_ms, hashed = pending_frames.read_extra(extra)
        name_size = 0 if hashed is None else pending_frames.HASH_SIZE
        self._timers.add(Timer(due_ms, slot.position, key, size, name_size, form))
        if hashed is not None:
            self._names.add(hashed, (due_ms, slot.position))

    def _replay_again(self, slot: Slot, form: int, size: int, extra: bytes) -> None:
        key, due_ms, hashed, timer_id, place = pending_frames.read_again_extra(extra)
        self._timers.remove_at(place)
        self.far.note(place, Fate.MOVED, key >> QUEUE_ID_BITS, slot.position)
        self._timers.restore_moved(timer_id, (due_ms, slot.position))
        name_size = pending_frames.HASH_SIZE if hashed else 0
        self._timers.add(Timer(due_ms, slot.position, key, size, name_size, form))
        if hashed:
            self._names.add(hashed, timer_id)

    def _replay_held(self, record: TimersHeld, slot: Slot) -> None:
        for row in ROW.iter_unpack(record.rows):
            self.hold(record.producer_id, Timer(*row))

    def _replay_delivered(self, record: TimersDelivered, slot: Slot) -> None:
        for place in self._timers.delivered(record.topic, record.ids):
            self.far.note(place, Fate.DELIVERED, record.topic, slot.position)

    def _replay_cancelled(self, record: TimersCancelled, slot: Slot) -> None:
        for timer_id in _ID.iter_unpack(record.ids):
            place = self._timers.place_of(timer_id)
            timer = self._timers.remove(*timer_id)
            if timer is None or timer.home:
                self._timers.forget_place(timer_id)
                self.far.cancelled(place, None if timer is None else timer.topic, slot.position)
            self._cancelled.add(timer_id, record.at_ms)

    def _replay_moved(self, record: TimerMoved, slot: Slot) -> None:
        if record.is_restored:
            timer_id = (record.given_ms, record.address)
            self._timers.restore_moved(timer_id, (record.due_ms, record.now_address or record.address))
        else:
            self._timers.move(record.given_ms, record.address, record.due_ms)

    def _replay_paused(self, record: DelayPaused, slot: Slot) -> None:
        if record.is_paused:
            self._timers.pause(record.topic)
            self.far.pause(record.topic)
        else:
            self._timers.resume(record.topic)
            self.far.resume(record.topic)

    def _replay_topic_deleted(self, record: TopicDeleted, slot: Slot) -> None:
        self._timers.resume(record.number)  # What is due is dropped in its turn.
        self.far.resume(record.number)
        self.far.forget_topic(record.number)
        self._sweep_out(record.number)

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

    def _replay_pending(self, record: TimersPending, slot: Slot) -> None:
        self._timers.restore(record.rows)

    def _replay_names(self, record: TimerNames, slot: Slot) -> None:
        self._names.restore(record.rows)

    def _replay_cancelled_before(self, record: TimersCancelledBefore, slot: Slot) -> None:
        for due_ms, address, at_ms in _CANCELLED.iter_unpack(record.rows):
            self._cancelled.add((due_ms, address), at_ms)

    def _end_snapshot(self) -> None:
        self._timers.end_snapshot()

    def _begin_snapshot(self) -> Iterable[Record]:
        """Return the state of this moment; rows of timers and names are copied as they are taken or change."""
        held = [(producer_id, [*timers]) for producer_id, timers in self._held.items()]
        moved, paused, cancelled = self._timers.moved(), sorted(self._timers.paused), [*self._cancelled.all()]
        return chain(
            (TimersHeld(producer_id, b"".join(map(pack_row, timers))) for producer_id, timers in held),
            map(TimersPending, self._timers.snapshot()),
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
