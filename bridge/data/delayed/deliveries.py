"""The class Deliveries: delivers due messages in slices. Each slice is one read of the log and one unit.

    PendingTimers.advance, take --> frames read --> one unit: the messages in their queues, TimersDelivered

A slice takes one or two milliseconds, and the loop turns after it. Topics take turns, so that a topic with many due
messages does not delay the other topics. Messages that are neither in the write buffer nor in the page cache are read
by a thread. The topic waits for this read, and the deliveries of other topics continue.
"""

import logging
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from itertools import groupby
from operator import attrgetter
from typing import Final

from duolog.bridge.data.delayed.delay_records import credits_of
from duolog.bridge.data.delayed.delivery_frames import DeliveryFrames
from duolog.bridge.monitoring.metrics import Metrics
from duolog.bridge.monitoring.poison import NOT_CAUSED_BY_RECORD, PoisonRecords
from duolog.bridge.records.codec import Record
from duolog.bridge.records.timers import TimersCancelled, TimersDelivered
from duolog.bridge.state.topics import Topics
from duolog.delay.rows import Timer
from duolog.delay.timers import Timers
from duolog.delay.turns import Turn
from duolog.delay.wheel import NEVER_MS
from duolog.store.entry import Buffer, EntryLocation, Stored, new_tuple
from duolog.store.errors import EntryTooLarge, StoreError
from duolog.store.index.queue import Queue
from duolog.store.log.cold_read import ColdEntries
from duolog.store.state_log import StateLog
from duolog.store.store import Store
from duolog.store.unit import FrameRun

DELIVERED_IN_SLICE: Final = 256
# The smallest share of a topic in a slice, if the topic has as many messages due. Smaller deliveries cost more for each
# message.
SHARE_OF_TOPIC_MIN: Final = 64
DELIVERED_BYTES_IN_SLICE: Final = 1 << 20  # One message may be larger.
MOVED_IN_SLICE: Final = 1024  # Rows that become ready in one slice, at half a microsecond each.
# The time between two deliveries. A delivery of ten messages costs as much as two of three messages each.
GATHER_MS: Final = 2
RETRY_MS: Final = 1_000  # The time until messages that could not be read are read again.

_address_of: Final = attrgetter("address")
_form_of: Final = attrgetter("form")

log = logging.getLogger("data")


class Deliveries:
    """Delivers the due messages of all topics. Each call of `run` delivers one slice."""

    def __init__(
        self,
        state_log: StateLog,
        topics: Topics,
        timers: Timers,
        metrics: Metrics,
        poison_records: PoisonRecords,
    ) -> None:
        self._state_log, self._topics = state_log, topics
        self._timers, self._pending, self._tree = timers, timers.pending, timers.tree
        self._metrics, self._poison_records = metrics, poison_records
        self._unread: dict[int, int] = {}  # The times of repeated reads, by topic.
        # Messages that a thread has read for the next turns of their topics: topic -> address -> frame.
        self._was_read: dict[int, dict[int, Buffer]] = {}
        self._run_ms = 0  # The time of the last `run`.
        self._delivered_ms = 0  # The time of the last delivery.

    def attach(self, store: Store, frames: DeliveryFrames) -> None:
        self._store, self._frames = store, frames

    def next_deadline_ms(self) -> int | None:
        """Return a wall time before which `run` has nothing to do; None if no time is known."""
        deadline_ms = self._pending.next_ms()
        if 0 < deadline_ms - self._delivered_ms < GATHER_MS:
            deadline_ms = self._delivered_ms + GATHER_MS
        if self._unread:
            deadline_ms = min(deadline_ms, *self._unread.values())
        return None if deadline_ms == NEVER_MS else deadline_ms

    def run(self, now_ms: int) -> None:
        """Deliver one slice of the due messages. If it raises StoreError, they are still due."""
        self._run_ms = now_ms
        if self._unread:
            self._read_again(now_ms)
        self._pending.advance(now_ms, MOVED_IN_SLICE)
        turns = self._take_turns(now_ms)
        if turns:
            self._delivered_ms = now_ms
            self._begin(turns, now_ms)
            self._tree.read_more(now_ms)

    def set_back(self, now_ms: int) -> None:
        """Correct the times of the next delivery and of repeated reads, because the clock was ahead."""
        self._delivered_ms = 0
        self._read_again(max(self._unread.values(), default=now_ms))

    def drop(self, timers: Sequence[Timer], now_ms: int) -> None:
        """Drop messages whose topic is deleted, or that cannot be delivered."""
        dropped = TimersCancelled(self._pending.ids.packed(timers), now_ms, is_dropped=True)
        self._state_log.free([dropped, *credits_of(self._timers, timers)], now_ms)
        self._metrics.timers["dropped"] += len(timers)

    # -- Turns

    def _take_turns(self, now_ms: int) -> list[Turn]:
        """Take the due messages of one slice, about equally many of each topic."""
        turns: list[Turn] = []
        share = max(SHARE_OF_TOPIC_MIN, DELIVERED_IN_SLICE // max(1, len(self._pending.turns)))
        count_left, bytes_left = DELIVERED_IN_SLICE, DELIVERED_BYTES_IN_SLICE
        while count_left > 0 and bytes_left > 0:
            turn = self._pending.turns.take(now_ms, min(share, count_left), bytes_left)
            if turn is None:
                break
            turns.append(turn)
            count_left -= len(turn.timers)
            bytes_left -= sum([timer.size for timer in turn.timers])
        return turns

    def _begin(self, taken: list[Turn], now_ms: int) -> None:
        """Deliver messages that are in memory at once, and start a read of the others."""
        reading: set[int] = set()
        try:
            turns = [turn for turn in taken if not self._was_dropped(turn, now_ms)]
            frames = self._read(turns)
            if isinstance(frames, ColdEntries):
                turns, frames = self._read_each(turns, reading)
            if turns:
                self._deliver(turns, frames, now_ms)
        finally:
            for turn in taken:
                if turn.topic not in reading:
                    self._was_read.pop(turn.topic, None)
                    self._pending.turns.give_back(turn.topic)

    def _was_dropped(self, turn: Turn, now_ms: int) -> bool:
        """Drop the messages of a deleted topic."""
        if self._topics.by_number(turn.topic) is not None:
            return False
        self.drop(turn.timers, now_ms)
        return True

    # -- Reading

    def _read(self, turns: Sequence[Turn]) -> dict[int, Buffer] | ColdEntries:
        """Return the messages of these turns by their addresses, or the read of those that are not in memory."""
        timers = [timer for turn in turns for timer in turn.timers]
        frames: dict[int, Buffer] = {}
        if self._was_read:
            for turn in turns:
                frames |= self._was_read.get(turn.topic, {})
        if len(self._pending.prefetch):
            prefetched = map(self._pending.prefetch.get, (timer[:2] for timer in timers))
            frames |= {timer.address: timer.frame for timer in prefetched if timer is not None}
        unread = sorted([timer for timer in timers if timer.address not in frames], key=_address_of)
        places = [new_tuple(EntryLocation, (address, size, form)) for _, address, _, size, _, form in unread]
        found = self._store.reader.read_at(places) if places else []
        return found if isinstance(found, ColdEntries) else frames | _frames_at(found)

    def _read_each(self, turns: Sequence[Turn], reading: set[int]) -> tuple[list[Turn], dict[int, Buffer]]:
        """Read topic by topic, to deliver what is in memory; topics with a read under way are added to `reading`."""
        in_memory: list[Turn] = []
        frames: dict[int, Buffer] = {}
        for turn in turns:
            found = self._read([turn])
            if isinstance(found, ColdEntries):
                reading.add(turn.topic)
                found.start(partial(self._finish_read, turn.topic))
            else:
                in_memory.append(turn)
                frames |= found
        return in_memory, frames

    def _finish_read(self, topic: int, found: list[Stored] | StoreError) -> None:
        """Keep the messages that a thread has read for the topic's next turn, or plan to read them again."""
        if isinstance(found, StoreError):
            log.warning("delayed messages not read topic=%d retry_ms=%d reason=%r", topic, RETRY_MS, str(found))
            self._unread[topic] = self._run_ms + RETRY_MS
        else:
            self._was_read.setdefault(topic, {}).update(_frames_at(found))
            self._pending.turns.give_back(topic)

    def _read_again(self, now_ms: int) -> None:
        for topic in [topic for topic, at_ms in self._unread.items() if at_ms <= now_ms]:
            del self._unread[topic]
            self._pending.turns.give_back(topic)

    # -- Units

    def _deliver(self, turns: Sequence[Turn], frames_at: Mapping[int, Buffer], now_ms: int) -> None:
        """Append these messages to their queues, in order, as one unit with the records TimersDelivered.

        `frames_at` has the messages by their addresses.
        """
        try:
            runs = [run for turn in turns for run in self._runs_of(turn, frames_at, now_ms) if run.frames]
        except NOT_CAUSED_BY_RECORD:
            raise
        except Exception as error:  # noqa: BLE001 - the message that raises is set aside
            self._deliver_parts(turns, frames_at, now_ms, error)
            return
        records: list[Record] = [TimersDelivered(topic, self._pending.ids.packed(timers)) for topic, timers in turns]
        records += credits_of(self._timers, (timer for _, timers in turns for timer in timers))
        try:
            # The publisher checks no limits here, because it accepted these messages when they were sent.
            self._state_log.commit(records, now_ms, runs)
        except EntryTooLarge as error:
            self._deliver_parts(turns, frames_at, now_ms, error)
            return
        delivered = sum([len(run.frames) for run in runs])
        self._metrics.timers["delivered"] += delivered
        late_s = [(now_ms - timer.due_ms) / 1000 for _, timers in turns for timer in timers]
        self._metrics.timer_lateness_s.add_all(late_s)
        self._metrics.timers["dropped"] += sum([len(timers) for _, timers in turns]) - delivered

    def _deliver_parts(
        self, turns: Sequence[Turn], frames_at: Mapping[int, Buffer], now_ms: int, error: Exception
    ) -> None:
        """Deliver fewer messages at once, because they do not fit into a segment, or one of them raised `error`."""
        if len(turns) > 1:
            for turn in turns:
                self._deliver([turn], frames_at, now_ms)
            return
        topic, timers = turns[0]
        if len(timers) == 1:
            if isinstance(error, EntryTooLarge):
                log.error("delayed message dropped, no segment holds it topic=%d bytes=%d", topic, timers[0].size)
            else:
                self._set_aside(timers[0], error)
            self.drop(timers, now_ms)
            return
        middle = len(timers) // 2
        self._deliver([Turn(topic, timers[:middle])], frames_at, now_ms)
        self._deliver([Turn(topic, timers[middle:])], frames_at, now_ms)

    def _set_aside(self, timer: Timer, error: Exception) -> None:
        topic, queue_id = self._topics.by_number(timer.topic), Queue.split(timer.queue_key)[1]
        name = topic.name if topic is not None else str(timer.topic)
        place = f"position {timer.address}, to {name} queue {queue_id}, due at {timer.due_ms} ms"
        self._poison_records.set_aside("delayed message", place, error)

    def _runs_of(self, turn: Turn, frames_at: Mapping[int, Buffer], now_ms: int) -> Iterator[FrameRun]:
        """Make the frames of a topic's messages: one FrameRun for each queue and frame format."""
        topic = self._topics.by_number(turn.topic)
        assert topic is not None, f"topic {turn.topic} is deleted"
        queues: defaultdict[int, list[Timer]] = defaultdict(list)
        for timer in turn.timers:
            queues[timer.queue_key].append(timer)
        for key, timers in queues.items():
            _, queue_id = Queue.split(key)
            for form, group in groupby(timers, _form_of):
                run = [*group]
                frames, dues_ms = [frames_at[timer.address] for timer in run], [timer.due_ms for timer in run]
                yield self._frames.deliveries(topic, queue_id, form, frames, dues_ms, now_ms)


def _frames_at(found: Sequence[Stored]) -> dict[int, Buffer]:
    return {stored.position: stored.frame for stored in found}
