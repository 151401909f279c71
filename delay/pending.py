"""The class PendingTimers: the pending timers in memory, which are in the memtable or prefetched from sorted tables.

Clients name a timer by its id (`delay/ids.py`); timers are ordered by their keys. `limit_of` returns the key below
which a topic may deliver, because the topic's cursor has read the tables up to it; None: there is no limit.
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
    pack_keys,
)
from duolog.delay.tables.table_format import TableTimer, row_of
from duolog.delay.tree.prefetch import Prefetch
from duolog.delay.turns import Turns


class PendingTimers:
    """The pending timers in memory; used in the loop only. About `names_max` names of past timers are stored."""

    def __init__(self, names_max: int = 0) -> None:
        self.limit_of: Callable[[int], TimerKey | None] = lambda topic: None
        self.ids = Ids()
        self.names = Names(self.is_pending, names_max)
        self.turns = Turns(self)
        self.memtable = Memtable(0, self.turns.offer)
        self.prefetch = Prefetch(self.turns.offer)
        self.found: dict[TimerKey, TableTimer] = {}  # Timers that `Lookups` has loaded for a command.

    def begin(self, now_ms: int) -> None:
        """Set the time, before timers are added. Timers that are due by then become ready at once."""
        self.memtable = Memtable(now_ms, self.turns.offer)

    # -- Single timers

    def find(self, timer_id: TimerId) -> Timer | None:
        """Return the timer of this id with its present due time, if it is in memory."""
        key = self.ids.key_of(timer_id)
        if self.ids.id_at(key) != timer_id:
            return None  # The key of a rescheduled timer, and not the id of any.
        timer = self.memtable.find(key)
        if timer is None and (found := self.stored(key)) is not None:
            timer = row_of(found)
        return timer

    def is_pending(self, timer_id: TimerId) -> bool:
        """Return whether the timer of this id is in memory."""
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
        """Return the timer of this key with its message, if it was loaded from a table."""
        return self.prefetch.get(key) or self.found.get(key)

    def move(self, timer_id: TimerId, due_ms: int) -> bool:
        """Change the due time of a timer of the memtable; its id stays. False: the memtable has no such timer."""
        timer = self.remove(timer_id)
        if timer is None:
            return False
        self.ids.set(timer_id, (due_ms, timer.address))
        self.memtable.add(timer._replace(due_ms=due_ms))
        return True

    def remove(self, timer_id: TimerId) -> Timer | None:
        """Remove a timer from the memtable, because it was cancelled, delivered or rescheduled."""
        key = self.ids.key_of(timer_id)
        if self.ids.id_at(key) != timer_id:
            return None
        self.ids.forget(timer_id)
        return self.memtable.remove(key)

    def delivered(self, topic: int, ids: bytes) -> list[TimerKey]:
        """Remove delivered timers from the memtable; return the keys of the others, which are in tables."""
        if not self.prefetch.count(topic) and self.memtable.remove_first(topic, ids):
            return []
        keys = [self.ids.key_of(timer_id) for timer_id in KEY.iter_unpack(ids)]
        in_tables = [key for key in keys if self.prefetch.get(key) is not None]
        others = [key for key in keys if self.prefetch.get(key) is None] if in_tables else keys
        if not self.memtable.remove_first(topic, pack_keys(others)):
            in_tables += [key for key in others if self.memtable.remove(key, topic) is None]
        for timer_id in KEY.iter_unpack(ids):
            self.ids.forget(timer_id)
        return in_tables

    # -- Time

    def next_ms(self) -> int:
        """Return a time before which no timer becomes ready and no topic has a turn, or NEVER_MS.

        It is asked for after each turn of the loop.
        """
        earliest_ms = self.turns.next_ms()
        for first in (self.memtable.next_key(), self.prefetch.next_key()):
            if first is not None and first[0] < earliest_ms:
                earliest_ms = first[0]
        return earliest_ms

    def first_due_ms(self) -> int | None:
        """Return the due time of the first timer in memory that a topic delivers which is not paused."""
        prefetched = self.prefetch.first_key(self.turns.paused)
        times = [self.memtable.first_due_ms(self.turns.paused), None if prefetched is None else prefetched[0]]
        return min((each for each in times if each is not None), default=None)

    def advance(self, now_ms: int, moves_max: int) -> None:
        """Make due timers ready, at most `moves_max` of the memtable and as many prefetched ones."""
        self.memtable.advance(now_ms, moves_max)
        self.prefetch.advance(now_ms, moves_max)

    # -- The timers that topics may deliver

    def first_due(self, topic: int, now_ms: int, count_max: int, bytes_max: int) -> list[Timer]:
        """Return the first timers that a topic may deliver now, within these limits; one timer even if it is larger."""
        keys = (self.limit_of(topic), self.memtable.next_key(), self.prefetch.next_key())
        limits = [key for key in keys if key is not None]
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

    def first_ready(self, topic: int) -> Timer | None:
        """Return the first ready timer of a topic; None if the topic has none."""
        return next(self._ready(topic), None)

    def _ready(self, topic: int) -> Iterator[Timer]:
        """Merge the ready timers of a topic in the memtable with the prefetched ones."""
        timers = self.memtable.ready(topic)
        return merge(timers, self.prefetch.ready(topic)) if self.prefetch.count(topic) else timers
