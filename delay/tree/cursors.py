"""Cursors over the sorted tables: up to where each topic's timers were read, and what is read next.

A *cursor* is a position in the order of keys: all timers that tables have before it, of the cursor's topics, are
deleted or in the prefetch. One cursor is shared by all topics; it reads ahead of the clock, as far as memory goes, so
that a timer is in memory before it is due. A topic has a cursor of its own in these cases:

    paused          its cursor stands at its first timer that is not delivered; nothing of it is prefetched
    resumed         its cursor reads on, until it reaches the shared one and the topic joins the others again; where
                    many topics are behind, the shared cursor goes back for all of them
    far behind      much of it is due, so that the shared cursor would wait for it: its own cursor goes on more slowly

A topic delivers nothing from its cursor's position on, for the tables may have something earlier: so all its
messages come in due order, wherever they are. Nothing here is state. A cursor that goes back, or to the beginning,
reads again what is not deleted; so after a start, or when the clock is set back, all cursors begin anew.

There is one read at a time. A cursor that has changed while a worker read for it is another object, and what was read
is dropped.
"""

from collections.abc import Container
from typing import Final, NamedTuple

from duolog.delay.rows import TimerKey
from duolog.delay.tables.table_format import TableTimer
from duolog.delay.tables.tables_view import TablesView
from duolog.delay.tree.prefetch import TIMER_COST_BYTES, Prefetch

PREFETCH_BYTES: Final = 32 << 20  # Of timers that the shared cursor has read.
READ_ROWS: Final = 2_048  # In one read; a topic's own cursor reads no more while it has so many prefetched.
READ_BYTES: Final = 4 << 20
FEW_ROWS: Final = 64  # Read by a topic's own cursor if nothing of the topic is prefetched, although memory is used up.
OWN_MAX: Final = 32  # Topics that read by themselves; if more are behind, one scan costs less.
BEGINNING: Final[TimerKey] = (0, 0)


class Cursor:
    __slots__ = ("is_stopped", "position")

    def __init__(self, position: TimerKey, *, is_stopped: bool = False) -> None:
        self.position = position
        self.is_stopped = is_stopped


class Read(NamedTuple):
    """What a worker is to read: `run` may be called in a thread."""

    cursor: Cursor
    topic: int | None  # None: of all but some.
    start: TimerKey
    until_ms: int
    end: TimerKey  # The cursor's position if there is no more.
    without: frozenset[int]
    rows_max: int

    def run(self, view: TablesView) -> tuple[list[TableTimer], bool]:
        """Return the next timers, and whether there are no more."""
        timers = view.scan(self.start, self.until_ms, self.topic, self.without)
        found: list[TableTimer] = []
        left_bytes = READ_BYTES
        for timer in timers:
            if timer[:2] >= self.end:
                break
            found.append(timer)
            left_bytes -= len(timer.frame) + TIMER_COST_BYTES
            if len(found) == self.rows_max or left_bytes <= 0:
                return found, False
        return found, True


class Cursors:
    """How far the sorted tables were read: a cursor that topics share, and cursors of topics that were paused.

    The class has more than 20 methods, because all cursors take turns to read into one prefetch.
    """

    def __init__(self, prefetch: Prefetch) -> None:
        self._prefetch = prefetch
        self._shared = Cursor(BEGINNING)
        self._own: dict[int, Cursor] = {}  # By topic, in the order of their turns to read.
        self._target_ms = 0  # The shared cursor reads on until it is there.
        self._was_shared = False  # The last read.

    @property
    def shared_ms(self) -> int:
        """Where the shared cursor is."""
        return self._shared.position[0]

    @property
    def read_to_ms(self) -> int:
        """What is due later was not read, and is not being read."""
        return max(self.shared_ms, self._target_ms)

    def position_of(self, topic: int) -> TimerKey:
        return self._own.get(topic, self._shared).position

    def has_own(self, topic: int) -> bool:
        return topic in self._own

    def behind(self, topics: Container[int]) -> list[int]:
        """Return which of these topics have a cursor of their own that is behind the shared one."""
        end = self._shared.position
        return [topic for topic, cursor in self._own.items() if cursor.position < end and topic in topics]

    def low(self, topics: Container[int]) -> TimerKey:
        """Return the key before which tables have nothing pending; `topics` are those of which they have any."""
        keys = [self._shared.position, *(own.position for topic, own in self._own.items() if topic in topics)]
        first = self._prefetch.first_key()
        return min(keys if first is None else [*keys, first])

    # -- Topics with a cursor of their own

    def stop(self, topic: int) -> None:
        """The topic is paused."""
        self._begin_own(topic, self.position_of(topic), is_stopped=True)

    def go_back(self, topic: int, key: TimerKey) -> None:
        """A table is about to have something of a topic, which has a cursor of its own, from this key on."""
        own = self._own[topic]
        self._begin_own(topic, min(own.position, key), is_stopped=own.is_stopped)

    def _begin_own(self, topic: int, position: TimerKey, *, is_stopped: bool) -> None:
        first = self._prefetch.drop_topic(topic)
        self._own[topic] = Cursor(position if first is None else min(position, first), is_stopped=is_stopped)

    def go(self, topic: int, *, may_join: bool) -> None:
        """The topic is paused no more; `may_join`: no read is under way, and no flush of paused topics."""
        own = self._own.get(topic)
        if own is not None:
            own.is_stopped = False
            if may_join and own.position >= self._shared.position:
                del self._own[topic]

    def reset(self) -> None:
        """The clock was set back: read anew what is due soon."""
        self._prefetch.clear()
        self._shared, self._target_ms = Cursor(BEGINNING), 0
        for topic, own in self._own.items():
            self._own[topic] = Cursor(BEGINNING, is_stopped=own.is_stopped)

    # -- Reading

    def skip_to(self, until_ms: int, *, may_join: bool) -> None:
        """There are no tables: nothing has to be read that is due before, unless a flush is under way."""
        if until_ms > self.shared_ms:
            self._shared.position = (until_ms, 0)
        if may_join:
            self._own = {topic: own for topic, own in self._own.items() if own.is_stopped}

    def next_read(self, now_ms: int, ahead_ms: int, until_ms: int, *, may_read_own: bool) -> Read | None:
        """Say what is to be read now, if anything: what is due in `ahead_ms` or before, and before `until_ms`.

        Topics with cursors of their own do not read if they may not.
        """
        if may_read_own and len(self._own) > OWN_MAX and len(self._moving()) > OWN_MAX:
            self._join_all()
        own = self._next_own(now_ms) if may_read_own else None
        if own is not None and (self._was_shared or not self._is_shared_wanted(now_ms, ahead_ms, until_ms)):
            self._was_shared = False
            return own
        if not self._is_shared_wanted(now_ms, ahead_ms, until_ms):
            return None
        self._was_shared = True
        self._target_ms = min(now_ms + ahead_ms + 1, until_ms)
        start, end = self._shared.position, (self._target_ms, 0)
        return Read(self._shared, None, start, self._target_ms, end, frozenset(self._own), READ_ROWS)

    def _moving(self) -> list[int]:
        """Return the topics whose cursors are behind the shared one and are not stopped."""
        end = self._shared.position
        return [topic for topic, own in self._own.items() if not own.is_stopped and own.position < end]

    def _join_all(self) -> None:
        """Let the shared cursor go back for all topics that are behind: one scan costs less than many."""
        positions = [own.position for own in self._own.values() if not own.is_stopped]
        first = self._prefetch.first_key()
        self._prefetch.clear()
        self._shared = Cursor(min(self._shared.position, *positions, *([] if first is None else [first])))
        self._own = {topic: own for topic, own in self._own.items() if own.is_stopped}

    def _is_shared_wanted(self, now_ms: int, ahead_ms: int, until_ms: int) -> bool:
        """Each read has its price, so the cursor reads ahead when a quarter of what lies ahead is left to be read."""
        if not self._has_room() and not self._split():
            return False
        is_on_its_way = self.shared_ms < min(self._target_ms, until_ms)
        return is_on_its_way or self.shared_ms < min(now_ms + ahead_ms * 3 // 4 + 1, until_ms)

    def _has_room(self) -> bool:
        if self._prefetch.bytes < PREFETCH_BYTES:
            return True
        held = self._prefetch.bytes - sum([self._prefetch.bytes_of(topic) for topic in self._own])
        return not held or held < PREFETCH_BYTES

    def _split(self) -> bool:
        """Give the topic of which most is prefetched a cursor of its own; false if that would not help."""
        topic, size = self._prefetch.largest(self._own)
        if size < max(1, PREFETCH_BYTES // 8):
            return False
        self._own[topic] = Cursor(self._shared.position)  # It falls behind as the shared cursor goes on.
        return self._has_room()

    def _next_own(self, now_ms: int) -> Read | None:
        is_full, end = self._prefetch.bytes >= 2 * PREFETCH_BYTES, self._shared.position
        for topic in self._moving():
            own, count = self._own[topic], self._prefetch.count(topic)
            if count >= READ_ROWS or self._prefetch.bytes_of(topic) >= READ_BYTES:
                continue
            if is_full and (count or own.position[0] > now_ms):
                continue
            self._own[topic] = self._own.pop(topic)  # The others have their turns first.
            rows_max = FEW_ROWS if is_full else READ_ROWS
            return Read(own, topic, own.position, end[0] + 1, end, frozenset(), rows_max)
        return None

    def take(self, read: Read, found: list[TableTimer], deleted: Container[TimerKey], *, is_last: bool) -> bool:
        """Prefetch what was read, but for what was deleted meanwhile; false if the cursor is another one by now."""
        topic = read.topic
        current = self._shared if topic is None else self._own.get(topic)
        if current is not read.cursor or current.is_stopped:
            return False
        for timer in found:
            if timer[:2] not in deleted and (topic is not None or timer.topic not in self._own):
                self._prefetch.add(timer)
        read.cursor.position = read.end if is_last else (found[-1].due_ms, found[-1].address + 1)
        if topic is not None and is_last:
            del self._own[topic]
        return True
