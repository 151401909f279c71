"""Timers that are due late: the way of each from the log to a bucket, and back when it is nearly due.

    home      where its row is                 what moves it on
    near      window of the wheel, home log    due beyond `delay.near_ms`: taken in slices             -> leaving
              ready, home log                  its topic is paused: taken in slices                    -> leaving
    leaving   leaving, home log                a worker has written and synced the bucket; one record,
                                               `FarTimersChanged`, names the bucket                    -> far
                                               cancelled, moved: stays in the bucket, dead there       -> (dead)
                                               the disk failed                                         -> near
    far       none; sorted in its bucket       due in less than half of `near_ms`                      -> loaded
              and not loaded when it was due   its topic, which was paused, is resumed or deleted      -> loaded
                                               a verb asks for it: loaded until the verb is done       -> loaded
    loaded    wheel, home bucket               due, and its topic is paused                            -> far
                                               delivered, cancelled: the log says so, `fates` knows it  -> (dead)
                                               rescheduled: parked again in the log, under its old id  -> near
    (dead)    none                             the bucket's tombstones, or its start, count it: `fates` forgets it

Only the arrows that a record makes are state; what is loaded is found again by the next start. The *cursor* is a place,
(due, address): all that is far and before it is loaded, but for what waits for paused topics. Of each of these the
first such place is known, `_passed`; when it is resumed, it *catches up*: a load of its own, from there to the cursor.
Until that gets to them, the topic's later messages are held back, so that all come in due order. What leaves for a new
bucket is due behind the cursor, or of a paused topic: so nothing is loaded twice or passed by.

Workers do what blocks: `spill` (log -> bucket), `load`, `flush` (fates -> tombstones), `merge`; each comes back to the
loop, which commits. Loads and flushes take turns, and no merge begins while a flush is under way: so what a
load has read is dead only if `fates` says so, and no death is counted in a bucket that has been written anew.
"""

import logging
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import chain, islice, takewhile
from struct import Struct
from typing import Final, NamedTuple, Protocol, TypeVar

from duolog.bridge.config import DelayOptions
from duolog.bridge.data import pending_frames
from duolog.bridge.state.records import FarTimersChanged, FarTimersDead
from duolog.bridge.state.topics import Topic, Topics
from duolog.delay.bucket import (
    Bucket,
    BucketEntry,
    FarTimer,
    Here,
)
from duolog.delay.buckets import (
    Buckets,
    Manifest,
    Merge,
    View,
)
from duolog.delay.names import Names
from duolog.delay.rows import IN_BUCKET, ROW_SIZE, Timer
from duolog.delay.spill import Spill
from duolog.delay.timers import TimerId, Timers
from duolog.delay.tombstones import Fate, Flush
from duolog.store.entry import Appended, Buffer, Promise, Slot
from duolog.store.errors import StoreError
from duolog.store.files import Files
from duolog.store.log.entry_reader import EntryReader
from duolog.store.options import StoreOptions
from duolog.store.promises import Done
from duolog.store.state_log import StateLog
from duolog.store.workers import Executor, Failure, Inline

LOOK_MS: Final = 1_000  # at whether there is something to do
TAKEN_IN_SLICE: Final = 1_024  # rows that leave, or come, in one turn of the loop
LOADED_IN_SLICE: Final = 256
BURIED_IN_SLICE: Final = 512
SPILL_ROWS: Final = 1 << 16  # of one bucket; its frames are in memory while it is written
SPILL_BYTES: Final = 32 << 20
SPILL_MS: Final = 30_000  # a bucket gets fewer rows when so much time has passed since the one before
LOAD_ROWS: Final = 4_096  # read by a worker at once; of a topic that was paused, when it has fewer left
CATCH_UP_MS: Final = 10  # from one look at that to the next
FRAMES_BYTES: Final = 32 << 20  # of loaded messages in memory; others are read when they are due
FETCH_BYTES: Final = 4 << 20  # of those that are read when they are due, and their next ones
FRAME_COST_BYTES: Final = 500  # of memory, beside the frame
FLUSH_FATES: Final = 4_096
LOAD_FATES: Final = 1 << 14  # some 300 bytes each; a long load stops here to have them counted
FLUSH_MS: Final = 10_000
LATE_IN_SLICE: Final = 256  # died while their buckets were merged, at 10 us each; of more a worker finds the places
NAMED_MAX: Final = 4_096  # of one sender's key, that a verb may be about; in the door at 50 us each
RETRY_MS: Final = 1_000  # after a failure of the disk
SPILL_RETRY_MS: Final = 10_000  # a spill reads and writes some 30 MB
MERGE_RETRY_MS: Final = 60_000  # a merge reads and writes a gigabyte or two

_PLACE: Final = Struct(">QQ")
_DEAD: Final = Struct(">QQB")
_DEAD_IN_RECORD: Final = 10_000

T = TypeVar("T")

log = logging.getLogger("bridge")


class TooManyNamed(StoreError):
    """So many delayed messages have the same key that no verb may be about all of them at once."""


class FarStore(Protocol):
    """What this asks of the store."""

    options: StoreOptions
    reader: EntryReader

    @property
    def next_position(self) -> int: ...

    def when(self, promise: Promise, done: Done) -> None: ...


class _Dead(NamedTuple):
    """What has become of a far timer, since the log says so at this position."""

    fate: Fate
    position: int


class _Death(NamedTuple):
    """A timer to be buried in a bucket."""

    bucket: Bucket
    here: Here
    fate: Fate


class _Reckoning(NamedTuple):
    """What a flush will count."""

    counted_to: int  # position: of the deaths that the log has below it
    starts: dict[int, int]  # by bucket: the timers before are dead
    deaths: list[_Death]


class Asked(NamedTuple):
    """A pending timer that a worker has found."""

    bucket: Bucket
    here: Here
    timer: FarTimer


class _Run:
    """Places of what was loaded, in order; before the first that is pending all are dead, or passed by again."""

    def __init__(self, topic: int | None = None) -> None:
        self._topic = topic  # of all of them
        self._places = bytearray()
        self._head = 0

    def add(self, place: TimerId) -> None:
        self._places += _PLACE.pack(*place)

    def __len__(self) -> int:
        return (len(self._places) - self._head) // _PLACE.size

    def first(self, is_pending: Callable[[TimerId, int | None], bool]) -> TimerId | None:
        """Return the first that is pending, and forget those before it."""
        places, at, found = self._places, self._head, None
        while at < len(places):
            place: TimerId = _PLACE.unpack_from(places, at)
            if is_pending(place, self._topic):
                found = place
                break
            at += _PLACE.size
        if at > len(places) // 2:
            del places[:at]
            at = 0
        self._head = at
        return found


class _CatchUp:
    """A topic that was paused and is no more: what is far, from this place up to the cursor, is to be loaded."""

    def __init__(self, topic: int, start: TimerId) -> None:
        self.topic = topic
        self.start = start
        self.is_last = False  # what was read is all that there is
        self.is_stale = False  # more was passed by than a worker has seen
        self.run = _Run(topic)


class FarTimers:
    """The timers in buckets. Belongs to the loop; `executor` has the threads for what blocks."""

    def __init__(self, state_log: StateLog, topics: Topics, names: Names, options: DelayOptions) -> None:
        self.executor: Executor = Inline()
        self._state_log, self._topics, self._names = state_log, topics, names
        self._near_ms = options.near_ms
        self._ahead_ms = max(1, options.near_ms // 2)
        self._look_ms = max(1, min(LOOK_MS, self._ahead_ms // 8))
        self.waiting = 0  # in memory, though due late
        self.is_behind = False  # More comes than goes to buckets: workers should not pause.
        self._timers = Timers()
        self._fates: dict[TimerId, _Dead] = {}  # that no manifest counts yet; the oldest first
        self._counts: dict[int, int] = {}  # pending, by topic
        self._count = 0  # Invariant: of all topics; each message that comes asks for it.
        self._gone: set[int] = set()  # deleted topics that may have rows in buckets, which nobody sees any more
        self._messages: dict[int, FarTimer] = {}  # of loaded timers, by address
        self._messages_bytes = 0
        self._cursor: TimerId = (0, 0)
        self._loaded_to_ms = -1  # all that is due by then is before the cursor
        self._loaded_before: TimerId = (0, 0)  # Before it some may be loaded that are behind the cursor.
        self._is_set_back = False  # The cursor is to be lowered, as soon as nothing is under way that goes by it.
        self._loaded = _Run()  # up to the cursor
        self._caught_up: list[_Run] = []  # by others, of which something may be pending
        self._passed: dict[int, TimerId] = {}  # paused topics -> the first place before the cursor that is far
        self._catch_ups: dict[int, _CatchUp] = {}  # by topic, in the order of their turns
        self._catching_up: _CatchUp | None = None  # what a worker reads for, or was read for
        self._found_now: dict[TimerId, int] = {}  # topics of what the door asks for, until it has decided
        self._packs: list[bytes] = []  # of the spill that is under way
        self._spill_from_ms: int | None = None  # none but paused ones is due before; None: no spill is under way
        self._has_shed = False  # rows of paused topics are leaving
        self._spill: Spill | None = None  # once a worker has it
        self._spills = 0  # that are over
        self._is_returning = False  # what was leaving is put back, a slice at a time
        self._spilled_mono_ms = 0
        self._spill_mono_ms = 0  # no spill begins before
        self._load_to_ms: int | None = None  # of the load that is under way
        self._read: list[FarTimer] = []  # by a load, not in the wheel yet; the first one last
        self._reckoning: _Reckoning | None = None
        self._is_flushing = False
        self._flushed_mono_ms = 0
        self._merge_mono_ms = 0  # no merge begins before
        self._look_mono_ms = 0
        self._now_ms = self._mono_ms = 0  # when `run` ran last
        self._is_open = False
        self._is_closed = False
        state_log.own(FarTimersChanged, self._replay_changed)
        state_log.own(FarTimersDead, self._replay_dead)
        state_log.on_sliced_snapshot(self._snapshot)

    # -- Opening and closing

    def begin(self, files: Files, timers: Timers) -> None:
        """Name the disk and the near timers, before the log is recovered."""
        self._timers = timers
        self._buckets = Buckets(files)

    def open(self, store: FarStore) -> None:
        """Open what the log names. Blocks; raises OSError."""
        self._store = store
        self._timers.clear_away()
        self._spill_rows = min(SPILL_ROWS, max(1, store.options.segment_bytes // 64))
        self._buckets.open()
        view = self._buckets.view()
        ids = sorted(self._fates)
        for bucket in view.buckets:
            for here in bucket.places(ids):
                self._buckets.bury(bucket, here, self._fates[here.id].fate)
            for topic, count in bucket.pending_by_topic():
                self._count_in(topic, count)
        view.close()
        self._is_open = True
        if self._buckets.is_repaired:
            try:
                self._commit(self._buckets.manifest)
            except StoreError as error:
                log.warning("the next start will report the damaged buckets again reason=%r", str(error))

    @property
    def lost(self) -> int:
        """How many timers the buckets held that were damaged or missing at the start."""
        return self._buckets.lost

    def pause_with(self, pause: Callable[[], object]) -> None:
        """Let workers call this with each block that they write."""
        self._buckets.pause = pause

    def close(self) -> None:
        """Close the files, after the workers have ended; what they post from then on does nothing."""
        self._is_closed = True
        self._buckets.close()

    # -- Numbers

    def __len__(self) -> int:
        """How many are pending in buckets, loaded or not."""
        return self._count

    def count(self, topic: int) -> int:
        return self._counts.get(topic, 0)

    def counts(self) -> dict[int, int]:
        return {topic: count for topic, count in self._counts.items() if count}

    @property
    def bucket_count(self) -> int:
        return len(self._buckets.manifest)

    @property
    def has_any(self) -> bool:
        """Whether a timer that is not in memory may be in a bucket."""
        return bool(self._buckets.manifest)

    # -- Dying

    def note(self, place: TimerId, fate: Fate, topic: int, position: int) -> None:
        """A timer in a bucket is dead: what replaying its delivery, cancel or move does."""
        if place in self._fates:
            return
        self._fates[place] = _Dead(fate, position)
        self._drop_message(place[1])
        if self._counts.get(topic):
            self._counts[topic] -= 1
            self._count -= 1

    def cancelled(self, place: TimerId, topic: int | None, position: int) -> None:
        """The same for a cancel; without a topic, the one that `named_now` found."""
        self.note(place, Fate.CANCELLED, self._found_now.get(place, 0) if topic is None else topic, position)

    def pause(self, topic: int) -> None:
        """A topic is paused: what is due of it needs no memory."""
        behind = self._catch_ups.pop(topic, None)
        if behind is not None:
            self._timers.hold_back(topic, None)
            self._passed[topic] = behind.start

    def resume(self, topic: int) -> None:
        """A topic is paused no more: what was passed by is loaded, and the rest waits for that."""
        place = self._passed.pop(topic, None)
        if place is not None:
            behind = self._catching_up
            is_under_way = behind is not None and (behind.topic, behind.start) == (topic, place) and not behind.is_stale
            self._begin_behind(behind if behind is not None and is_under_way else _CatchUp(topic, place))

    def _pass_by(self, topic: int, place: TimerId) -> None:
        """Something far, of a topic that is paused or was a moment ago, is not loaded though before the cursor."""
        if self._catching_up is not None and self._catching_up.topic == topic:
            self._catching_up.is_stale = True
        if self._timers.is_paused(topic):
            self._passed[topic] = min(place, self._passed.get(topic, place))
        else:
            behind = self._catch_ups.pop(topic, None)
            self._begin_behind(_CatchUp(topic, place if behind is None else min(place, behind.start)))

    def _begin_behind(self, behind: _CatchUp) -> None:
        self._catch_ups[behind.topic] = behind
        self._timers.hold_back(behind.topic, behind.start)
        self._look_mono_ms = self._mono_ms

    def forget_topic(self, topic: int) -> None:
        """A topic is gone: what waits for it is seen no more, and dropped when it is due."""
        if count := self._counts.pop(topic, 0):
            self._count -= count
            self._gone.add(topic)

    def _count_in(self, topic: int, count: int) -> None:
        """Some timers of a topic, which may be gone by now, are in a bucket."""
        if self._topics.by_number(topic) is None:
            self._gone.add(topic)
        else:
            self._counts[topic] = self._counts.get(topic, 0) + count
            self._count += count

    # -- Messages of loaded timers

    def lacking(self, timers: Iterable[Timer]) -> list[Timer]:
        """Return those of these loaded timers whose messages are not in memory."""
        messages = self._messages
        return [timer for timer in timers if timer.home and timer.address not in messages]

    def frames_of(self, timers: Iterable[Timer]) -> dict[int, Buffer]:
        """Return the messages of loaded timers, as they were parked, by address."""
        messages = self._messages
        return {timer.address: messages[timer.address].frame for timer in timers}

    def frame_of(self, timer: Timer) -> memoryview:
        """Return the message of a loaded timer, as it was parked."""
        return memoryview(self._messages[timer.address].frame)

    def hash_of(self, timer: Timer) -> int:
        """Return the hash of the sender's key of a loaded timer; 0: it gave none."""
        return int.from_bytes(self._messages[timer.address].name, "big")

    def fetch(self, timers: Sequence[Timer], done: Callable[[StoreError | None], None]) -> None:
        """Have messages of loaded timers of one topic in memory, then call `done`.

        Those that are due next come with them, as far as there is room: a block holds hundreds, of a few milliseconds
        or of minutes, and would be read again for each slice of a delivery.
        """
        topic, wanted = timers[0].topic, {(timer.due_ms, timer.address) for timer in timers}
        first, last = min(wanted), max(wanted)
        room_bytes, until_ms = min(FETCH_BYTES, FRAMES_BYTES - self._messages_bytes), max(self._cursor[0], last[0] + 1)
        view, manifest = self._buckets.view(), self._buckets.manifest

        def is_kept(timer: FarTimer) -> bool:
            """Whether its message may still be wanted: who is dead is in `fates`, or a later manifest counts it."""
            if timer.id in wanted:
                return self._timers.is_at(timer.id, topic)
            is_known = self._buckets.manifest is manifest and not self._timers.is_paused(topic)
            return is_known and timer.id not in self._fates

        def read() -> list[FarTimer]:
            found: list[FarTimer] = []
            left_bytes = room_bytes
            for timer in view.of_topic(topic, first, until_ms):
                if timer.id > last and left_bytes <= 0:
                    break
                if timer.id in wanted or left_bytes > 0:
                    found.append(timer)
                    left_bytes -= len(timer.frame) + FRAME_COST_BYTES
            return found

        def take(found: list[FarTimer] | Failure) -> None:
            view.close()
            if isinstance(found, Exception):
                done(_as_store_error(found))
                return
            for timer in found:
                if is_kept(timer):
                    self._keep_message(timer)
            done(None)

        self._submit(read, take)

    def _keep_message(self, timer: FarTimer) -> None:
        if timer.address not in self._messages:
            self._messages[timer.address] = timer
            self._messages_bytes += len(timer.frame) + FRAME_COST_BYTES

    def _drop_message(self, address: int) -> None:
        timer = self._messages.pop(address, None)
        if timer is not None:
            self._messages_bytes -= len(timer.frame) + FRAME_COST_BYTES

    # -- What verbs ask for

    def bring(self, timer_id: TimerId, then: Callable[[StoreError | None], None]) -> None:
        """Load the timer that has this id, if it is pending in a bucket, for as long as `then` takes."""

        def look(view: View, place: TimerId) -> list[Asked]:
            found = (next(bucket.places([place]), None) for bucket in view.buckets)
            pairs = [(bucket, here) for bucket, here in zip(view.buckets, found, strict=True) if here is not None]
            return [_asked(bucket, here) for bucket, here in pairs if bucket.fate(here.ordinal) is Fate.PENDING]

        self._look_for(lambda: partial(look, place=self._timers.place_of(timer_id)), then)

    def bring_named(self, topic: int, hashed: int, then: Callable[[StoreError | None], None]) -> None:
        """Do the same for all that have a sender's key with this hash."""
        self._look_for(lambda: lambda view: list(_named(view, topic, hashed)), then)

    def named_now(self, topic: int, hashed: int) -> list[TimerId]:
        """Return the places of all that have this key. Reads a few pages, mostly cached ones, in the loop.

        Raises StoreError.
        """
        view = self._buckets.view()
        try:
            found = [asked.timer.id for asked in _named(view, topic, hashed) if self._is_pending(asked)]
            self._found_now.update(dict.fromkeys(found, topic))
            return found
        except OSError as error:
            raise _as_store_error(error) from error
        finally:
            view.close()

    def _look_for(
        self, begin: Callable[[], Callable[[View], list[Asked]]], then: Callable[[StoreError | None], None]
    ) -> None:
        """Have a worker look; again if what is asked for may have gone to another bucket meanwhile."""
        view, spills = self._buckets.view(), self._spills

        def take(found: list[Asked] | Failure) -> None:
            view.close()
            if isinstance(found, Exception):
                then(_as_store_error(found))
            elif spills != self._spills or any(not self._buckets.has(asked.bucket) for asked in found):
                self._look_for(begin, then)
            else:
                self._with_loaded([asked.timer for asked in found if self._is_pending(asked)], then)

        self._submit(partial(begin(), view), take)

    def _is_pending(self, asked: Asked) -> bool:
        return asked.timer.id not in self._fates and asked.bucket.fate(asked.here.ordinal) is Fate.PENDING

    def _with_loaded(self, found: list[FarTimer], then: Callable[[StoreError | None], None]) -> None:
        brought = [timer for timer in found if not self._timers.is_at(timer.id, timer.topic)]
        for timer in found:
            self._keep_message(timer)
        for timer in brought:
            self._timers.add(_near(timer))
            self._note_name(timer)
        try:
            then(None)
        finally:
            for timer in brought:
                if self._timers.is_at(timer.id):
                    self._timers.remove_at(timer.id)
                    self._drop_message(timer.address)

    def _note_name(self, timer: FarTimer) -> None:
        if timer.name:
            self._names.add(int.from_bytes(timer.name, "big"), self._timers.id_at(timer.id))

    # -- Lists

    def page(
        self,
        topic: Topic | None,
        start: TimerId,
        until_ms: int,
        count_max: int,
        done: Callable[[list[Timer] | StoreError], None],
    ) -> None:
        """Give the first pending timers of a topic, or of all, from this place on; without their messages."""

        gone = frozenset(self._gone)

        def read(view: View, dead: frozenset[TimerId]) -> list[Timer]:
            found = view.scan(start, until_ms) if topic is None else view.of_topic(topic.number, start, until_ms)
            pending = (timer for timer in found if timer.id not in dead and timer.topic not in gone)
            return [_near(timer) for timer in islice(pending, count_max)]

        self._look_over(read, done)

    def histogram(
        self, topic: Topic | None, edges_ms: Sequence[int], done: Callable[[list[int] | StoreError], None]
    ) -> None:
        """Count the pending timers of a topic, or of all, between each two neighbours of these times."""
        number, gone = None if topic is None else topic.number, frozenset(self._gone)

        def read(view: View, dead: frozenset[TimerId]) -> list[int]:
            counts = view.histogram(edges_ms, number)
            for unseen in gone if number is None else ():
                of_topic = view.histogram(edges_ms, unseen)
                counts = [count - less for count, less in zip(counts, of_topic, strict=True)]
            for here in _not_buried(view, sorted(dead)):
                is_counted = here.topic not in gone if number is None else here.topic == number
                if is_counted and edges_ms[0] <= here.id[0] < edges_ms[-1]:
                    counts[bisect_right(edges_ms, here.id[0]) - 1] -= 1
            return counts

        self._look_over(read, done)

    def _look_over(self, read: Callable[[View, frozenset[TimerId]], T], done: Callable[[T | StoreError], None]) -> None:
        """Have a worker look over all buckets; it gets the places that are dead, though no tombstone may say so."""
        view, dead = self._buckets.view(), frozenset(self._fates)

        def take(found: T | Failure) -> None:
            view.close()
            done(_as_store_error(found) if isinstance(found, StoreError | OSError) else found)

        self._submit(lambda: read(view, dead), take)

    # -- Background work

    def next_deadline_ms(self) -> int:
        """When `run` has something to do; monotonic."""
        is_busy = self._read or self._is_returning or self._is_taking or self._has_deaths
        return 0 if is_busy else self._look_mono_ms

    @property
    def _is_taking(self) -> bool:
        return self._spill_from_ms is not None and self._spill is None

    @property
    def _has_deaths(self) -> bool:
        return self._reckoning is not None and bool(self._reckoning.deaths)

    def run(self, now_ms: int, mono_ms: int) -> None:
        """Do a slice of what is under way, and begin what is wanted. Raises StoreError."""
        self._now_ms, self._mono_ms = now_ms, mono_ms
        self._found_now.clear()
        if self._read:
            self._take_in()
        if self._is_returning:
            self._is_returning = self._has_shed = self._timers.stay()
        elif self._is_taking:
            self._take_out()
        if self._has_deaths:
            self._bury()
        if mono_ms >= self._look_mono_ms:
            self._look_mono_ms = mono_ms + self._look_ms
            if self._is_set_back and not (self._is_loading or self._is_flushing or self._spill_from_ms is not None):
                self._lower_cursor()
            self._begin_load()
            self._begin_spill()
            self._begin_flush()
            self._begin_merge()

    def _submit(self, run: Callable[[], T], done: Callable[[T | Failure], None]) -> None:
        def post(outcome: T | Failure) -> None:
            if not self._is_closed:
                done(outcome)

        self.executor.submit(run, post)

    def _commit(self, manifest: Manifest, *, left: bytes = b"", dead: bytes = b"", counted_to: int = 0) -> Appended:
        """Switch to other buckets. Raises StoreError, and then nothing has changed."""
        record = FarTimersChanged(tuple(tuple(entry) for entry in manifest), left, dead, counted_to)
        appended = self._state_log.commit([record], self._now_ms)
        if removal := self._buckets.removal():
            durable = Promise(appended.promise.end, durable=True)
            self._store.when(durable, lambda error: None if error else self._submit(removal.run, _log_failure))
        return appended

    def _failed(self, what: str, error: Exception) -> None:
        self._look_mono_ms = self._mono_ms + RETRY_MS
        if not self._is_closed:
            log.warning("put off what=%s retry_ms=%d reason=%r", what, RETRY_MS, str(error))

    # -- When the clock was ahead

    def set_back(self) -> None:
        """The clock was ahead, and is right again: what is due between the two times shall be far again.

        What is far and before the cursor would never be loaded, so nothing that is due before it leaves for a bucket.
        """
        self._is_set_back = True
        self._look_mono_ms = self._mono_ms

    def _lower_cursor(self) -> None:
        """Put the cursor back to what is nearly due. Some of what lies behind it is loaded: it is passed over then."""
        self._is_set_back = False
        until_ms = self._now_ms + self._ahead_ms
        place = (until_ms + 1, 0)
        if place >= self._cursor:
            return
        self._loaded_before = max(self._loaded_before, self._cursor)
        self._cursor, self._loaded_to_ms = place, min(self._loaded_to_ms, until_ms)
        if len(self._loaded):
            self._caught_up.append(self._loaded)  # A run has places that rise.
            self._loaded = _Run()
        # The load finds these again when it gets there, and with them what has left for a bucket meanwhile.
        self._passed = {topic: first for topic, first in self._passed.items() if first < place}
        for topic in [topic for topic, behind in self._catch_ups.items() if behind.start >= place]:
            del self._catch_ups[topic]
            self._timers.hold_back(topic, None)

    # -- Loading

    def _begin_load(self) -> None:
        """Read what is due soon; again when a quarter of that is left, for each look at the buckets has its price."""
        until_ms = self._now_ms + self._ahead_ms
        if self._spill_from_ms is not None:
            until_ms = min(until_ms, self._spill_from_ms - 1)
        is_wanted = until_ms > self._loaded_to_ms and self._loaded_to_ms < self._now_ms + self._ahead_ms * 3 // 4
        if not self.has_any:
            self._cursor, self._loaded_to_ms = max(self._cursor, (until_ms, 0)), max(until_ms, self._loaded_to_ms)
        elif is_wanted and not self._is_loading and not self._is_flushing:
            self._load_to_ms = until_ms
            self._load()
        if self._catch_ups:
            self._begin_catch_up()

    def _begin_catch_up(self) -> None:
        """Read some for the next topic that has little left of what was read before."""
        self._look_mono_ms = self._mono_ms + min(self._look_ms, CATCH_UP_MS)
        if self._is_loading or self._is_flushing or self._has_shed:
            return
        for behind in self._catch_ups.values():
            behind.run.first(self._is_near)
            if len(behind.run) < LOAD_ROWS:
                self._catching_up = behind
                self._catch_up(behind)
                return

    @property
    def _is_loading(self) -> bool:
        return self._load_to_ms is not None or self._catching_up is not None

    def _load(self) -> None:
        assert self._load_to_ms is not None, "a load is under way"
        view, cursor, until_ms = self._buckets.view(), self._cursor, self._load_to_ms + 1
        paused = self._timers.paused
        unknown = paused - self._passed.keys()

        def read() -> tuple[list[FarTimer], list[FarTimer]]:
            """Return what is to be loaded, and what is the first of each paused topic that had none before."""
            firsts = (next(view.of_topic(topic, cursor, until_ms), None) for topic in unknown)
            passed = [first for first in firsts if first is not None]
            return list(islice(view.scan(cursor, until_ms, paused), LOAD_ROWS)), passed

        def take(outcome: tuple[list[FarTimer], list[FarTimer]] | Failure) -> None:
            view.close()
            if isinstance(outcome, Exception):
                self._load_to_ms = None
                self._failed("load of delayed messages", outcome)
                return
            found, passed = outcome
            for timer in passed:
                self._pass_by(timer.topic, timer.id)
            self._read = found[::-1]
            if len(found) < LOAD_ROWS:
                self._cursor = (until_ms, 0)
            else:
                self._cursor = (found[-1].due_ms, found[-1].address + 1)
            if not found:
                self._end_load()

        self._submit(read, take)

    def _catch_up(self, behind: _CatchUp) -> None:
        """Read what was passed by while a topic was paused."""
        view, start, end = self._buckets.view(), behind.start, self._cursor

        def read() -> list[FarTimer]:
            found = takewhile(lambda timer: timer.id < end, view.of_topic(behind.topic, start, end[0] + 1))
            return list(islice(found, LOAD_ROWS))

        def take(found: list[FarTimer] | Failure) -> None:
            view.close()
            if isinstance(found, Exception):
                self._catching_up = None
                self._failed("load of delayed messages", found)
                return
            self._read, behind.is_last = found[::-1], len(found) < LOAD_ROWS
            if not found:
                self._end_catch_up(behind)

        self._submit(read, take)

    def _take_in(self) -> None:
        """Put a slice of what was read into the wheel."""
        behind = self._catching_up
        if behind is not None and not self._is_current(behind):
            self._read.clear()
            self._end_catch_up(behind)
            return
        some = [self._read.pop() for _ in range(min(LOADED_IN_SLICE, len(self._read)))]
        if behind is None:
            self._take_in_next(some)
        else:
            self._take_in_passed(behind, some)
        if self._read:
            return
        if behind is None:
            self._end_load()
        else:
            self._end_catch_up(behind)

    def _take_in_next(self, some: Iterable[FarTimer]) -> None:
        wanted = []
        for timer in some:
            if self._timers.is_paused(timer.topic):
                self._pass_by(timer.topic, timer.id)
            elif not (self._is_dead_or_near(timer) if timer.id < self._loaded_before else timer.id in self._fates):
                self._timers.add(_near(timer))
                wanted.append(timer)
        self._note_loaded(self._loaded, wanted)

    def _take_in_passed(self, behind: _CatchUp, some: Sequence[FarTimer]) -> None:
        """Let the topic go on up to what is in memory again."""
        wanted = [timer for timer in some if not self._is_dead_or_near(timer)]
        self._timers.add_loaded([*map(_near, wanted)])
        self._note_loaded(behind.run, wanted)
        if wanted and behind.run not in self._caught_up:
            self._caught_up.append(behind.run)
        behind.start = (some[-1].due_ms, some[-1].address + 1)
        self._timers.hold_back(behind.topic, behind.start)

    def _is_current(self, behind: _CatchUp) -> bool:
        """Whether its topic was not paused meanwhile."""
        return not behind.is_stale and self._catch_ups.get(behind.topic) is behind

    def _is_dead_or_near(self, timer: FarTimer) -> bool:
        return timer.id in self._fates or self._timers.is_at(timer.id, timer.topic)

    def _note_loaded(self, run: _Run, timers: Iterable[FarTimer]) -> None:
        for timer in timers:
            run.add(timer.id)
            self._note_name(timer)
            if self._messages_bytes < FRAMES_BYTES:
                self._keep_message(timer)

    def _end_load(self) -> None:
        assert self._load_to_ms is not None, "a load is under way"
        if self._cursor[0] > self._load_to_ms:
            self._loaded_to_ms, self._load_to_ms = self._load_to_ms, None
            if self._catch_ups:
                self._begin_catch_up()
        elif len(self._fates) >= LOAD_FATES:
            self._loaded_to_ms, self._load_to_ms = max(self._loaded_to_ms, self._cursor[0] - 1), None
            self._begin_flush()
        else:
            self._load()

    def _end_catch_up(self, behind: _CatchUp) -> None:
        """The others have their turns before this topic has its next, if it needs one."""
        self._catching_up = None
        if self._is_current(behind):
            del self._catch_ups[behind.topic]
            if behind.is_last:
                self._timers.hold_back(behind.topic, None)
            else:
                self._catch_ups[behind.topic] = behind
        self._look_mono_ms = self._mono_ms
        if len(self._fates) >= LOAD_FATES:
            self._begin_flush()

    # -- Spilling

    def _begin_spill(self) -> None:
        """Take what is due late, if that makes a bucket, or waits for long."""
        from_ms = 1 + max(self._now_ms + self._near_ms, self._loaded_to_ms, self._load_to_ms or 0, self._cursor[0])
        waiting = self._timers.beyond(from_ms)
        self.waiting, self.is_behind = waiting, waiting > 2 * self._spill_rows
        is_late = self._mono_ms - self._spilled_mono_ms >= min(SPILL_MS, self._near_ms)
        if self._spill_from_ms is not None or self._is_returning or self._mono_ms < self._spill_mono_ms:
            return
        if waiting >= self._spill_rows or (waiting and is_late):
            self._spill_from_ms, self._spilled_mono_ms = from_ms, self._mono_ms
            self._take_out()

    def _take_out(self) -> None:
        """Take a slice; when there is enough, or no more, give it to a worker once all of it is written."""
        assert self._spill_from_ms is not None, "a spill is under way"
        rows_max = min(TAKEN_IN_SLICE, self._spill_rows)
        shed = self._timers.detach_paused(rows_max, self._fates)
        if shed is None:
            pack = self._timers.detach(self._spill_from_ms, rows_max, self._fates)
        else:
            pack, away = shed
            self._pass_by(away[0].topic, min(timer[:2] for timer in away))
            for timer in away:
                if timer.home:
                    self._drop_message(timer.address)
            self._has_shed = self._has_shed or bool(pack)
        if pack:
            self._packs.append(pack)
        is_enough = sum(map(len, self._packs)) >= self._spill_rows * ROW_SIZE
        if (pack or shed) and not is_enough and self._timers.leaving_bytes < SPILL_BYTES:
            return
        if not self._packs:
            self._spill_from_ms = None
            return
        spill = Spill(self._packs, self._store.reader.read_written, self._buckets.new_writer(), pending_frames.HASH_AT)
        self._spill, self._packs = spill, []
        self._store.when(Promise(self._store.next_position, durable=False), partial(self._write_spill, spill))

    def _write_spill(self, spill: Spill, error: StoreError | None) -> None:
        if error is not None:
            self._end_spill(spill, error)
        else:
            self._submit(spill.run, partial(self._end_spill, spill))

    def _end_spill(self, spill: Spill, outcome: Failure | None) -> None:
        """Let the bucket count, and the rows go; what was cancelled or moved meanwhile is dead in it."""
        if outcome is None:
            assert spill.bucket is not None, "it has run"
            dead = b"".join([_DEAD.pack(*place, Fate.MOVED) for place in self._timers.lost])
            try:
                self._commit(self._buckets.added([spill.bucket]), left=spill.places, dead=dead)
            except StoreError as error:
                self._submit(self._buckets.discard([spill.bucket]), _log_failure)
                outcome = error
        if outcome is not None:
            self._is_returning = True
            self._spill_mono_ms = self._mono_ms + SPILL_RETRY_MS
            self._failed("delayed messages to a bucket", outcome)
        self._spill = self._spill_from_ms = None
        if outcome is None:
            self._has_shed = False
            self._look_mono_ms = self._mono_ms  # There may be more.

    # -- Counting the dead

    def _begin_flush(self) -> None:
        """Have the deaths that only the log has counted by a manifest, before there are many."""
        count = len(self._fates)
        is_late = count and self._mono_ms - self._flushed_mono_ms >= FLUSH_MS
        if self._is_flushing or self._is_loading or not (count >= FLUSH_FATES or is_late):
            return
        self._is_flushing, self._flushed_mono_ms = True, self._mono_ms
        counted_to, low, merging = self._store.next_position, self._low(), self._buckets.merging
        view, fates = self._buckets.view(), list(self._fates.items())

        def reckon() -> _Reckoning:
            fates.sort()
            starts = {bucket.entry.number: bucket.lower(*low) for bucket in view.buckets}
            deaths = [
                death for bucket in view.buckets
                for death in _deaths(bucket, fates, (0, 0) if bucket.entry.number in merging else low)
            ]  # fmt: skip
            return _Reckoning(counted_to, starts, deaths)

        def take(found: _Reckoning | Failure) -> None:
            view.close()
            if isinstance(found, Exception):
                self._is_flushing = False
                self._failed("count of delivered messages", found)
            elif not found.deaths:
                self._write_flush(found)
            else:
                self._reckoning = found

        self._submit(reckon, take)

    def _low(self) -> TimerId:
        """Return the place before which all far timers are dead."""
        firsts = {run: run.first(self._is_near) for run in (self._loaded, *self._caught_up)}
        self._caught_up = [run for run in self._caught_up if firsts[run] is not None]
        behind = [each.start for each in self._catch_ups.values()]
        return min([self._cursor, *filter(None, firsts.values()), *self._passed.values(), *behind])

    def _is_near(self, place: TimerId, topic: int | None) -> bool:
        return place not in self._fates and self._timers.is_at(place, topic)

    def _bury(self) -> None:
        """Note a slice of the dead in their buckets' tombstones."""
        reckoning = self._reckoning
        assert reckoning is not None, "a flush is under way"
        for _ in range(min(BURIED_IN_SLICE, len(reckoning.deaths))):
            bucket, here, fate = reckoning.deaths.pop()
            if not self._buckets.has(bucket):
                self._reckoning, self._is_flushing = None, False  # Merged meanwhile: it is looked for again.
                return
            self._buckets.bury(bucket, here, fate)
        if not reckoning.deaths:
            self._reckoning = None
            self._write_flush(reckoning)

    def _write_flush(self, reckoning: _Reckoning) -> None:
        flushes = self._buckets.flushes()

        def write() -> None:
            for flush in flushes:
                flush.run()

        self._submit(write, partial(self._end_flush, reckoning, flushes))

    def _end_flush(self, reckoning: _Reckoning, flushes: Sequence[Flush], outcome: Failure | None) -> None:
        self._is_flushing = False
        if outcome is None:
            manifest = self._buckets.finished(reckoning.starts, self._buckets.flushed(flushes))
            try:
                self._commit(manifest, counted_to=reckoning.counted_to)
            except StoreError as error:
                outcome = error
        if outcome is not None:
            self._failed("count of delivered messages", outcome)
        elif len(self._fates) < FLUSH_FATES:
            self._look_mono_ms = self._mono_ms  # A load may have stopped for it.

    # -- Merging

    def _begin_merge(self) -> None:
        is_time = not self._is_flushing and self._mono_ms >= self._merge_mono_ms
        inputs = self._buckets.merge_wanted() if is_time else []
        if inputs:
            merge = self._buckets.merge(inputs)
            self._submit(merge.run, partial(self._end_merge, merge))

    def _end_merge(self, merge: Merge, outcome: Failure | None) -> None:
        if outcome is None and merge.late_count > LATE_IN_SLICE:
            self._submit(merge.bury_late, partial(self._end_merge, merge))
            return
        if outcome is None:
            outcome = self._commit_merge(merge)
        else:
            self._buckets.abandon_merge()
            self._submit(self._buckets.discard(merge.outputs), _log_failure)  # It may have been refused a worker.
        if outcome is not None:
            self._merge_mono_ms = self._mono_ms + MERGE_RETRY_MS
            self._failed("merge of delayed messages", outcome)

    def _commit_merge(self, merge: Merge) -> Failure | None:
        """Let the results count."""
        try:
            manifest = self._buckets.merged()
        except (OSError, StoreError) as error:
            self._buckets.abandon_merge()
            return error
        # The tombstones that came since it began are in the results, but in no file: so the log says it once more.
        dead = b"".join([_DEAD.pack(*place, fate) for place, fate in merge.buried_late])
        try:
            self._commit(manifest, dead=dead)
        except StoreError as error:
            self._submit(self._buckets.discard(merge.outputs), _log_failure)
            return error
        return None

    # -- Replay

    def _replay_changed(self, record: FarTimersChanged, slot: Slot) -> None:
        self._buckets.switch(tuple(BucketEntry(*entry) for entry in record.manifest))
        if not record.manifest:
            self._gone.clear()
        if record.left and self._spill is not None and record.left is self._spill.places:
            self._let_go()
        else:
            stay = [(due_ms, address) for due_ms, address, _ in _DEAD.iter_unpack(record.dead)]  # moved back, perhaps
            self._timers.have_left(record.left, stay)
            for place in _PLACE.iter_unpack(record.left) if self._fates else ():
                self._fates.pop(place, None)  # of an earlier stay in a bucket
        for due_ms, address, fate in _DEAD.iter_unpack(record.dead):
            # Behind the others, for it must be counted anew.
            self._fates.pop((due_ms, address), None)
            self._fates[due_ms, address] = _Dead(Fate(fate), slot.position)
        while self._fates:
            place = next(iter(self._fates))
            if self._fates[place].position >= record.counted_to:
                break
            del self._fates[place]

    def _let_go(self) -> None:
        self._spills += 1
        for topic, count in self._timers.let_go().items():
            self._count_in(topic, count)

    def _replay_dead(self, record: FarTimersDead, slot: Slot) -> None:
        for due_ms, address, fate in _DEAD.iter_unpack(record.rows):
            self._fates.setdefault((due_ms, address), _Dead(Fate(fate), slot.position))

    def _snapshot(self) -> Iterator[FarTimersChanged | FarTimersDead]:
        manifest = tuple(tuple(entry) for entry in self._buckets.manifest)
        changed = [FarTimersChanged(manifest, b"", b"", 0)] if manifest else []
        table = zip([*self._fates], [*self._fates.values()], strict=True)
        dead = (_DEAD.pack(*place, fate) for place, (fate, _) in table)
        parts = iter(lambda: b"".join(islice(dead, _DEAD_IN_RECORD)), b"")
        return chain(changed, map(FarTimersDead, parts))


def _near(timer: FarTimer) -> Timer:
    """Give the row of a timer whose message is in a bucket."""
    due_ms, address, key, form, name, frame = timer
    return Timer(due_ms, address, key, len(frame), len(name), form, IN_BUCKET)


# -- For workers


def _not_buried(view: View, places: Sequence[TimerId]) -> Iterator[Here]:
    """Yield those at these places, which must rise, that have no tombstone."""
    for bucket in view.buckets:
        yield from (here for here in bucket.places(places) if bucket.fate(here.ordinal) is Fate.PENDING)


def _asked(bucket: Bucket, here: Here) -> Asked:
    found = bucket.find(here.id)
    assert found is not None, f"{here} is in {bucket.path}"
    return Asked(bucket, here, found.timer)


def _named(view: View, topic: int, hashed: int) -> Iterator[Asked]:
    """Yield the pending timers with this key; a bucket's name is the hash of the sender's. Raises TooManyNamed."""
    pending = (found for found in view.named(topic, hashed.to_bytes(8, "big")) if found.fate is Fate.PENDING)
    for number, found in enumerate(pending):
        if number == NAMED_MAX:
            raise TooManyNamed(f"more than {NAMED_MAX} delayed messages with this key are due beyond delay.near_ms")
        yield Asked(found.bucket, Here(found.timer.id, found.ordinal, topic), found.timer)


def _deaths(bucket: Bucket, fates: Sequence[tuple[TimerId, _Dead]], low: TimerId) -> Iterator[_Death]:
    """Yield which of the dead, sorted by place, are in a bucket, from this place on."""
    fate_of = dict(fates)
    for here in bucket.places([place for place, _ in fates if place >= low]):
        yield _Death(bucket, here, fate_of[here.id].fate)


def _as_store_error(error: Exception) -> StoreError:
    return error if isinstance(error, StoreError) else StoreError(f"reading a bucket of delayed messages: {error}")


def _log_failure(outcome: Failure | None) -> None:
    if outcome is not None:
        log.warning("a file that nothing needs is left until the next start: %s", outcome)
