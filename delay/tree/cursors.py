"""Cursors over the sorted tables: the key up to which each topic's timers were read, and the next read.

A *cursor* is a key. All timers of its topics that are in tables and have smaller keys are deleted or prefetched. All
topics share one cursor. It reads ahead of the clock until PREFETCH_BYTES of memory are used, so that a timer is in
memory before it is due. A topic has its own cursor in these cases:

    paused     The cursor is at the topic's first timer that is not delivered. No timer of the topic is prefetched.
    resumed    The cursor reads until it reaches the shared cursor. Then the topic shares that cursor again. If many
               topics are behind, the shared cursor goes back to the first of them instead.
    behind     So many timers of the topic are due that the shared cursor would have to wait for them. The topic's own
               cursor continues more slowly.

A topic delivers no timer at or above its cursor's position, because a table may have one with a smaller key. So all
its messages are delivered in due order, whether they are in the memtable or in tables. Cursors are no state: a cursor
that goes back reads the timers again that are not deleted. After a start, and when the clock is set back, all cursors
begin at the first key.

Only one read is under way at a time. If a cursor changes during a read, another Cursor object replaces it, and the
result of the read is dropped.
"""

from collections.abc import Container
from typing import Final, NamedTuple

from duolog.delay.rows import TimerKey
from duolog.delay.tables.table_format import TableTimer
from duolog.delay.tables.tables_view import TablesView
from duolog.delay.tree.prefetch import TIMER_COST_BYTES, Prefetch

PREFETCH_BYTES: Final = 32 << 20  # The memory of timers that the shared cursor has read.
READ_ROWS: Final = 2_048  # Rows of one read. A topic's own cursor does not read while as many are prefetched.
READ_BYTES: Final = 4 << 20
# Rows that a topic's own cursor reads although the memory is used up, if no timer of the topic is prefetched.
FEW_ROWS: Final = 64
OWN_MAX: Final = 32  # Topics whose own cursors read. If more are behind, one scan for all of them costs less.
BEGINNING: Final[TimerKey] = (0, 0)


class Cursor:
    """The position of one cursor, which is stopped while its topic is paused or a flush has taken its ready rows."""

    __slots__ = ("is_stopped", "position")

    def __init__(self, position: TimerKey, *, is_stopped: bool = False) -> None:
        self.position = position
        self.is_stopped = is_stopped


class Read(NamedTuple):
    """A read of a cursor. A worker calls `run`."""

    cursor: Cursor
    topic: int | None  # None: all topics except those in `without`.
    start: TimerKey
    end: TimerKey  # The cursor's position after the read, if there are no further timers.
    without: frozenset[int]
    rows_max: int

    def run(self, view: TablesView) -> tuple[list[TableTimer], bool]:
        """Return the next timers, and whether they are all timers up to `end`."""
        timers = view.scan(self.start, self.end[0] + 1, self.topic, self.without)
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
    """The shared cursor, and the topics' own cursors.

    The class has more than 20 methods because all cursors take turns to read into one prefetch.
    """

    def __init__(self, prefetch: Prefetch) -> None:
        self._prefetch = prefetch
        self._shared = Cursor(BEGINNING)
        self._own: dict[int, Cursor] = {}  # By topic, in the order of their turns to read.
        self._target_ms = 0  # The shared cursor reads up to this due time.
        self._was_shared = False  # Whether the last read was one of the shared cursor.

    @property
    def shared_ms(self) -> int:
        """The due time of the shared cursor's position."""
        return self._shared.position[0]

    @property
    def read_to_ms(self) -> int:
        """No cursor has read a timer that is due later than this, or is reading one.

        Paused topics may have read further than the shared cursor, if it went back for other topics.
        """
        return max(self.shared_ms, self._target_ms, *(own.position[0] for own in self._own.values()))

    def position_of(self, topic: int) -> TimerKey:
        return self._own.get(topic, self._shared).position

    def has_own(self, topic: int) -> bool:
        return topic in self._own

    def low(self, topics: Container[int]) -> TimerKey:
        """Return a key below which tables have no pending timer. `topics` are the topics that have any in tables."""
        keys = [self._shared.position, *(own.position for topic, own in self._own.items() if topic in topics)]
        first = self._prefetch.first_key()
        return min(keys if first is None else [*keys, first])

    def unread_ms(self) -> int:
        """Return a time before which tables have no timer that a cursor has yet to read, except of paused topics."""
        own = [cursor.position[0] for cursor in self._own.values() if not cursor.is_stopped]
        return min([self.shared_ms, *own])

    # -- Topics with a cursor of their own

    def stop(self, topic: int, flushed_from: TimerKey | None = None) -> None:
        """Stop the cursor of a paused topic. A flush may write timers of the topic, from this key on."""
        keys = (self.position_of(topic), self._prefetch.drop_topic(topic), flushed_from)
        self._own[topic] = Cursor(min(key for key in keys if key is not None), is_stopped=True)

    def go(self, paused: Container[int]) -> None:
        """Let the cursors of all topics that are not paused read again; no flush of ready rows is under way.

        Topics that are not behind share the cursor again. The result of a read of that cursor is dropped then, because
        the read has left these topics out, or the tables that were flushed since it began.
        """
        for topic, own in self._own.items():
            own.is_stopped = topic in paused
        end, count = self._shared.position, len(self._own)
        self._own = {topic: own for topic, own in self._own.items() if own.is_stopped or own.position < end}
        if len(self._own) < count:
            self._shared = Cursor(end)

    def reset(self) -> None:
        """Move all cursors to the first key, because the clock was set back."""
        self._prefetch.clear()
        self._shared, self._target_ms = Cursor(BEGINNING), 0
        for topic, own in self._own.items():
            self._own[topic] = Cursor(BEGINNING, is_stopped=own.is_stopped)

    # -- Reading

    def skip_to(self, until_ms: int) -> bool:
        """Move the shared cursor to this due time without a read, because there are no tables.

        Topics whose cursors are not stopped share it again. Return whether a topic may deliver further than before.
        """
        has_moved = until_ms > self.shared_ms
        if has_moved:
            self._shared = Cursor((until_ms, 0))
        count = len(self._own)
        self._own = {topic: own for topic, own in self._own.items() if own.is_stopped}
        return has_moved or len(self._own) < count

    def next_read(self, now_ms: int, ahead_ms: int, until_ms: int) -> Read | None:
        """Return the next read, of timers due by `now_ms + ahead_ms` and before `until_ms`; None if none is wanted."""
        if len(self._own) > OWN_MAX and len(self._moving()) > OWN_MAX:
            self._join_all()
        own, is_shared_wanted = self._next_own(now_ms), self._is_shared_wanted(now_ms, ahead_ms, until_ms)
        self._was_shared = is_shared_wanted and (own is None or not self._was_shared)
        if not self._was_shared:
            return own
        self._target_ms = min(now_ms + ahead_ms + 1, until_ms)
        end = (self._target_ms, 0)
        return Read(self._shared, None, self._shared.position, end, frozenset(self._own), READ_ROWS)

    def _moving(self) -> list[int]:
        """Return the topics whose cursors are behind the shared one and are not stopped."""
        end = self._shared.position
        return [topic for topic, own in self._own.items() if not own.is_stopped and own.position < end]

    def _join_all(self) -> None:
        """Move the shared cursor back for all topics that are behind, because one scan costs less than many."""
        positions = [own.position for own in self._own.values() if not own.is_stopped]
        first = self._prefetch.first_key()
        self._prefetch.clear()
        self._shared = Cursor(min(self._shared.position, *positions, *([] if first is None else [first])))
        self._own = {topic: own for topic, own in self._own.items() if own.is_stopped}

    def _is_shared_wanted(self, now_ms: int, ahead_ms: int, until_ms: int) -> bool:
        """Return whether the shared cursor must read on.

        It must if it has not reached its target, or if less than 3/4 of `ahead_ms` is read. So a read is never small.
        """
        if not self._has_room() and not self._split():
            return False
        is_on_its_way = self.shared_ms < min(self._target_ms, until_ms)
        return is_on_its_way or self.shared_ms < min(now_ms + ahead_ms * 3 // 4 + 1, until_ms)

    def _has_room(self) -> bool:
        """Return whether the timers of the topics that share the cursor take at most PREFETCH_BYTES."""
        of_others = sum([self._prefetch.bytes_of.get(topic, 0) for topic in self._own])
        return self._prefetch.bytes - of_others <= PREFETCH_BYTES

    def _split(self) -> bool:
        """Give the topic with most prefetched bytes a cursor of its own; return whether there is room then."""
        sizes = ((size, topic) for topic, size in self._prefetch.bytes_of.items() if topic not in self._own)
        size, topic = max(sizes, default=(0, 0))
        if size < max(1, PREFETCH_BYTES // 8):
            return False
        self._own[topic] = Cursor(self._shared.position)  # The shared cursor continues, so this one is behind soon.
        return self._has_room()

    def _next_own(self, now_ms: int) -> Read | None:
        is_full, end = self._prefetch.bytes >= 2 * PREFETCH_BYTES, self._shared.position
        for topic in self._moving():
            own, count = self._own[topic], self._prefetch.count(topic)
            if count >= READ_ROWS or self._prefetch.bytes_of.get(topic, 0) >= READ_BYTES:
                continue
            if is_full and (count or own.position[0] > now_ms):
                continue
            self._own[topic] = self._own.pop(topic)  # Behind all others, so that these have their turns first.
            rows_max = FEW_ROWS if is_full else READ_ROWS
            return Read(own, topic, own.position, end, frozenset(), rows_max)
        return None

    def take(self, read: Read, found: list[TableTimer], deleted: Container[TimerKey], *, is_last: bool) -> bool:
        """Prefetch the timers of a read, except those in `deleted`. False: the cursor has changed meanwhile."""
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
