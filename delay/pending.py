"""The pending timers that are in memory: reads merge the memtable with what cursors have read from sorted tables.

A timer is known to clients by its id (`delay/ids.py`), and ordered by its key. `limit_of` returns the key before which
a topic may deliver, because the topic's cursor has read the tables up to there; None: there is no limit.
"""

from collections.abc import Callable, Iterator
from heapq import merge

from duolog.delay.ids import Ids
from duolog.delay.memtable.memtable import Memtable
from duolog.delay.names import Names, name_hash
from duolog.delay.rows import (
    KEY,
    Timer,
    TimerId,
    TimerKey,
)
from duolog.delay.tables.table_format import TableTimer, row_of
from duolog.delay.tree.prefetch import Prefetch
from duolog.delay.turns import Turns


def _no_limit(topic: int) -> TimerKey | None:
    return None


class PendingTimers:
    """Belongs to the loop. About `names_max` names of timers that are not pending any more are kept."""

    def __init__(self, names_max: int = 0) -> None:
        self.limit_of: Callable[[int], TimerKey | None] = _no_limit
        self.ids = Ids()
        self.names = Names(self.is_pending, names_max)
        self.turns = Turns(self)
        self.memtable = Memtable(0, self.turns.offer)
        self.prefetch = Prefetch(self.turns.offer)
        self.found: dict[TimerKey, TableTimer] = {}  # By `Lookups`, while a command acts on them.

    def begin(self, now_ms: int) -> None:
        """Say what time it is, before anything is added: what is due before is ready at once."""
        self.memtable = Memtable(now_ms, self.turns.offer)

    # -- Single timers

    def find(self, timer_id: TimerId) -> Timer | None:
        """Return the timer of this id, if it is in memory, with the time at which it is due now."""
        key = self.ids.key_of(timer_id)
        if self.ids.id_at(key) != timer_id:
            return None  # It is the key of another timer, and no id.
        timer = self.memtable.find(key)
        if timer is None and (found := self.stored(key)) is not None:
            timer = row_of(found)
        return timer

    def is_pending(self, timer_id: TimerId) -> bool:
        """Whether the timer of this id is in memory."""
        return self.find(timer_id) is not None

    def named(self, topic: int, name: bytes) -> list[TimerId]:
        """Return the ids of the timers in memory with this topic and sender's key, the latest last."""
        hashed = name_hash(topic, name)
        packed = hashed.to_bytes(8, "big")
        found = [key for key, timer in self.found.items() if (timer.topic, timer.name) == (topic, packed)]
        return [
            id for id in dict.fromkeys([*self.names.find(hashed), *map(self.ids.id_at, found)]) if self.is_pending(id)
        ]

    def stored(self, key: TimerKey) -> TableTimer | None:
        """Return the timer of this key with its message, if it is in memory and its message in a table."""
        return self.prefetch.get(key) or self.found.get(key)

    def move(self, timer_id: TimerId, due_ms: int) -> bool:
        """Let a timer of the memtable be due at another time; its id stays. False if it is not pending."""
        timer = self.remove(timer_id)
        if timer is None:
            return False
        self.ids.set(timer_id, (due_ms, timer.address))
        self.memtable.add(timer._replace(due_ms=due_ms))
        return True

    def remove(self, timer_id: TimerId) -> Timer | None:
        """Remove a timer from the memtable: it is cancelled, delivered, or moved."""
        key = self.ids.key_of(timer_id)
        if self.ids.id_at(key) != timer_id:
            return None
        self.ids.forget(timer_id)
        return self.memtable.remove(key)

    def delivered(self, topic: int, ids: bytes) -> list[TimerKey]:
        """Remove delivered timers from the memtable; returns the keys of those that are not there, but in tables."""
        in_tables: list[TimerKey] = []
        if self.prefetch.count(topic):
            keys = [self.ids.key_of(timer_id) for timer_id in KEY.iter_unpack(ids)]
            in_tables = [key for key in keys if self.prefetch.get(key) is not None]
            if in_tables:
                at = set(in_tables)
                both = zip(KEY.iter_unpack(ids), keys, strict=True)
                ids = b"".join([KEY.pack(*timer_id) for timer_id, key in both if key not in at])
        if ids and not self.memtable.remove_first(topic, ids):
            for timer_id in KEY.iter_unpack(ids):
                key = self.ids.key_of(timer_id)
                if self.memtable.remove(key, topic) is None:
                    in_tables.append(key)
                self.ids.forget(timer_id)
        for key in in_tables:
            self.ids.forget(self.ids.id_at(key))
        return in_tables

    # -- Time

    def next_ms(self) -> int | None:
        """Return a time before which there is nothing to do; None while nothing is pending or all waits for others."""
        stored = self.prefetch.next_key()
        times = (self.memtable.windows.next_ms(), None if stored is None else stored[0], self.turns.next_ms())
        return min((each for each in times if each is not None), default=None)

    def advance(self, now_ms: int, moves_max: int) -> None:
        """Let timers become ready, until about so many rows have moved or there are no more to be moved."""
        self.memtable.windows.advance(now_ms, moves_max)
        self.prefetch.advance(now_ms, moves_max)

    # -- What topics have to deliver

    def first_due(self, topic: int, now_ms: int, count_max: int, bytes_max: int) -> list[Timer]:
        """Return the first timers that a topic may deliver now, within these limits; the first may have more bytes."""
        now_ms = min(now_ms, self.memtable.windows.reached_ms)
        limits = [limit for limit in (self.limit_of(topic), self.prefetch.next_key()) if limit is not None]
        limit = min(limits) if limits else None
        found: list[Timer] = []
        for timer in self._ready(topic):
            if timer.due_ms > now_ms or len(found) >= count_max or (found and timer.size > bytes_max):
                break
            if limit is not None and timer[:2] >= limit:
                break
            found.append(timer)
            bytes_max -= timer.size
        return found

    def is_at_limit(self, topic: int) -> bool:
        limit, first = self.limit_of(topic), next(self._ready(topic), None)
        return limit is not None and (first is None or first[:2] >= limit)

    def next_ready_ms(self, topic: int) -> int | None:
        """Return the due time of the first ready timer of a topic; None if the topic has none."""
        first = next(self._ready(topic), None)
        return None if first is None else first.due_ms

    def _ready(self, topic: int) -> Iterator[Timer]:
        """Merge the ready timers of a topic in the memtable with the prefetched ones."""
        timers = self.memtable.ready(topic)
        return merge(timers, self.prefetch.ready(topic)) if self.prefetch.count(topic) else timers
