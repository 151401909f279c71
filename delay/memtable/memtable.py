"""The memtable: all pending timers whose messages are in the log, 32 bytes for each and no object.

    add -> waiting -------- the hand reaches their time --------> ready, by topic --- delivered ---> (removed)

           [row row row row row row ...]                          orders   [row row row]
              |                                                   billing  [row]
              |                                                      |
              `-- far ------------> frozen <-------------------------' its topic is paused
                                       |
                                       `--> written to a sorted table, then removed; after a failure put back

All rows are in the order of their keys (`sorted_rows.py`). A new row that waits is sorted in later, together with
others: when ADDED_IN_TURNS of them are there at the end of a turn of the loop, or when the memtable is read. A recovery
adds most rows before it reads one. The *hand* is the time up to which rows are ready. A ready
row stays until it is delivered or deleted. If the clock is set back, no row moves, and ready rows wait until they are
due again. A *far* row is one that a flush may take (`delay/tree/flush_job.py`); ready rows may be far after the clock
was set back.
"""

import sys
from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from functools import partial
from itertools import chain
from typing import Final

from duolog.delay.memtable.counts import Counts
from duolog.delay.memtable.sorted_rows import BEGINNING, END, SortedRows
from duolog.delay.memtable.view import MemtableView
from duolog.delay.rows import (
    KEY,
    KEY_SIZE,
    ROW,
    TOPIC_AT,
    TOPIC_END,
    Timer,
    TimerKey,
    rows_of,
)
from duolog.store.entry import new_tuple

ROWS_IN_PART: Final = 1 << 13  # Rows in one part of a snapshot, which has 256 KiB.
ADDED_MAX: Final = 1 << 17  # The greatest number of new rows, of 73 bytes each, that are not sorted in yet.
ADDED_IN_TURNS: Final = 128  # The number of new rows that `next_key` sorts in, which takes half a millisecond.


class Frozen:
    """The rows that a flush writes to a sorted table, the immutable memtable of an LSM tree.

    Until the table is current, the rows are found and deleted in memory. A row that is deleted meanwhile may be in the
    table nevertheless, so its key is stored in `deleted`, and its timer is deleted in the table.
    """

    def __init__(self) -> None:
        self.rows = SortedRows()
        self.counts = Counts()
        self.deleted: dict[TimerKey, None] = {}


class Memtable:
    """The rows of pending timers. `on_ready` is called with a topic that has new ready rows, and with a due time.

    The class has more than 20 methods because each row waits, is ready or is frozen, and every operation must look
    into all three.
    """

    def __init__(self, start_ms: int = 0, on_ready: Callable[[int, int], None] = lambda topic, due_ms: None) -> None:
        self._counts = Counts()
        self._waiting = SortedRows()
        self._added: list[bytes] = []  # Rows that are not in `_waiting` and `_counts` yet.
        self._added_first = END  # The least of these rows; END if there are none.
        self.frozen = Frozen()
        self._ready: dict[int, SortedRows] = {}  # By topic.
        self._on_ready = on_ready
        self._hand_ms = start_ms  # Invariant: no row that waits is due by then.
        self._ready_max_ms = start_ms  # Invariant: no ready row is due later.

    def __len__(self) -> int:
        return self._counts.total + len(self._added)

    @property
    def waiting(self) -> SortedRows:
        """The rows that wait, sorted."""
        if self._added:
            self._sort_added()
        return self._waiting

    @property
    def counts(self) -> Counts:
        """The numbers of all rows."""
        if self._added:
            self._sort_added()
        return self._counts

    def _sort_added(self) -> None:
        """Add the rows that were added since the last reading to those that wait, and count them."""
        rows, self._added, self._added_first = self._added, [], END
        rows.sort()
        self._counts.add(rows)
        self._waiting.add(b"".join(rows))

    # -- Single timers

    def add(self, timer: Timer) -> None:
        row = ROW.pack(*timer)
        if timer.due_ms > self._hand_ms:
            self._added.append(row)
            if row < self._added_first:
                self._added_first = row
            if len(self._added) >= ADDED_MAX:
                self._sort_added()
        else:
            self._counts.add([row])
            self._release(timer.topic, row, timer.due_ms)

    def find(self, key: TimerKey, topic: int | None = None) -> Timer | None:
        """Return the timer of this key; the search is quicker if its topic is known."""
        packed = KEY.pack(*key)
        for rows in self._where(key, topic):
            if (row := rows.get(packed)) is not None:
                return new_tuple(Timer, ROW.unpack(row))
        return None

    def remove(self, key: TimerKey, topic: int | None = None) -> Timer | None:
        packed = KEY.pack(*key)
        for rows in self._where(key, topic):
            if (row := rows.pop(packed)) is not None:
                self.counts.remove([row])
                if rows is self.frozen.rows:
                    self.frozen.counts.remove([row])
                    self.frozen.deleted[key] = None
                return new_tuple(Timer, ROW.unpack(row))
        return None

    def _where(self, key: TimerKey, topic: int | None) -> Iterable[SortedRows]:
        """Return the rows among which the timer of this key may be."""
        return self._arrays(topic) if key[0] <= self._ready_max_ms else (self.waiting, self.frozen.rows)

    # -- Ready rows

    def next_key(self) -> TimerKey | None:
        """Return the key of the first row that waits; None if no row waits.

        The method is called after each turn of the loop, so it does not sort in a few new rows.
        """
        if len(self._added) >= ADDED_IN_TURNS:
            self._sort_added()
        if not self._added:
            return self._waiting.first_key()
        added, first = KEY.unpack_from(self._added_first), self._waiting.first_key()
        return added if first is None or added < first else first

    def advance(self, now_ms: int, rows_max: int) -> None:
        """Move the hand towards `now_ms`, until `rows_max` rows have become ready or no more need to."""
        if now_ms > self._hand_ms:
            self._release_due(now_ms, rows_max)
            following = self.next_key()
            self._hand_ms = now_ms if following is None else min(now_ms, following[0] - 1)

    def set_back(self, now_ms: int) -> None:
        """Move the hand back to `now_ms`, because the clock was set back. No row moves."""
        self._hand_ms = min(self._hand_ms, now_ms)

    def _release_due(self, until_ms: int, rows_max: int) -> None:
        """Make rows ready that are due by this time."""
        by_topic: dict[bytes, list[bytes]] = {}
        end = KEY.pack(until_ms + 1, 0)
        waiting = self.waiting if self._added_first < end else self._waiting  # No new row is due in the second case.
        for row in rows_of(waiting.take(BEGINNING, end, rows_max)):
            by_topic.setdefault(row[TOPIC_AT:TOPIC_END], []).append(row)
        for topic, rows in by_topic.items():
            self._release(int.from_bytes(topic, "big"), b"".join(rows), int.from_bytes(rows[-1][:8], "big"))

    def _release(self, topic: int, rows: bytes, last_due_ms: int) -> None:
        array = self._ready.get(topic)
        if array is None:
            array = self._ready[topic] = SortedRows()
        array.add(rows)
        self._ready_max_ms = max(self._ready_max_ms, last_due_ms)
        self._on_ready(topic, int.from_bytes(rows[:8], "big"))

    def first_due_ms(self, without: Container[int]) -> int | None:
        """Return the due time of the first timer that waits or is ready, and whose topic is not in `without`.

        Timers that wait behind one of such a topic do not count.
        """
        ready = (rows.first_key() for topic, rows in self._ready.items() if topic not in without)
        times = [key[0] for key in ready if key is not None]
        waiting = self.waiting.first()
        if waiting is not None and waiting.topic not in without:
            times.append(waiting.due_ms)
        return min(times, default=None)

    def ready(self, topic: int) -> Iterator[Timer]:
        """Return the ready timers of a topic in due order. The Memtable must not change during the iteration."""
        rows = self._ready.get(topic)
        if not rows:
            self._ready.pop(topic, None)
            return iter(())
        return rows.timers()

    def remove_first(self, topic: int, keys: bytes) -> bool:
        """Remove the first ready rows of a topic if they have exactly these keys; otherwise return False."""
        ready = self._ready.get(topic)
        if ready is None:
            return False
        taken = rows_of(ready.take(BEGINNING, END, len(keys) // KEY_SIZE))
        if b"".join([row[:KEY_SIZE] for row in taken]) == keys:
            self._counts.remove(taken)  # Ready rows are counted.
            return True
        ready.add(b"".join(taken))
        return False

    # -- The flush

    def flushable_count(self, from_ms: int, topics: Iterable[int]) -> int:
        """Return the number of rows that `freeze_far(from_ms)` and `freeze_ready(topics)` may take."""
        start = KEY.pack(from_ms, 0)
        far = sum([rows.count_from(start) for rows in self._far(from_ms)])
        return far + sum([len(self._ready[topic]) for topic in topics if topic in self._ready])

    def freeze_far(self, from_ms: int, rows_max: int, stay: Container[TimerKey]) -> bytes:
        """Freeze up to `rows_max` rows that are due at `from_ms` or later; return them in due order.

        Rows with keys in `stay` are not frozen, because a table has a deleted timer with the same key.
        """
        return self._freeze(self._far(from_ms), KEY.pack(from_ms, 0), rows_max, stay)

    def _far(self, from_ms: int) -> list[SortedRows]:
        """Return the rows of which some may be due at `from_ms` or later."""
        # Ready rows may be, if the clock was set back.
        ready = self._ready.values() if max(from_ms, self._hand_ms + 1) <= self._ready_max_ms else ()
        return [self.waiting, *ready]

    def freeze_ready(self, topics: Iterable[int], rows_max: int, stay: Container[TimerKey]) -> bytes:
        """Freeze up to `rows_max` ready rows of one of these topics; return them in due order."""
        ready = [self._ready[topic] for topic in topics if topic in self._ready]
        return self._freeze(ready, BEGINNING, rows_max, stay)

    def _freeze(self, arrays: Iterable[SortedRows], start: bytes, rows_max: int, stay: Container[TimerKey]) -> bytes:
        """Freeze up to `rows_max` rows of one of these arrays, from the key `start` on."""
        for array in arrays:
            frozen: list[bytes] = []
            staying: list[bytes] = []
            for row in rows_of(array.take(start, END, rows_max)):
                key = KEY.unpack_from(row)
                (staying if key in stay or key in self.frozen.deleted else frozen).append(row)
            array.add(b"".join(staying))
            if frozen:
                self.frozen.counts.add(frozen)
                self.frozen.rows.add(b"".join(frozen))
                return b"".join(frozen)
        return b""

    def clear_frozen(self) -> Mapping[int, int]:
        """Remove the frozen rows, because they are in a table now; return their number by topic."""
        counts = self.frozen.counts
        self.frozen = Frozen()
        self.counts.remove_counts(counts)
        return counts.by_topic

    def unfreeze_some(self, rows_max: int) -> bool:
        """Put up to `rows_max` frozen rows back, because the flush has failed; False: none are left."""
        rows = self.frozen.rows.take(BEGINNING, END, rows_max)
        self._put_back(rows)
        self.frozen.counts.remove(rows_of(rows))
        self.frozen.deleted.clear()
        return bool(rows)

    def _put_back(self, rows: bytes) -> None:
        """Add sorted rows, which are already counted, to those that wait, or make them ready if they are due."""
        self.waiting.add(rows)
        self._release_due(self._hand_ms, len(rows))

    # -- Recovery

    def forget_flushed(self, keys: bytes, stay: Iterable[TimerKey]) -> None:
        """Remove the rows with these keys, except those in `stay`, because a table has them."""
        flushed = {keys[at : at + KEY_SIZE] for at in range(0, len(keys), KEY_SIZE)}
        flushed.difference_update([KEY.pack(*key) for key in stay])
        first, end = min(flushed, default=END), max(flushed, default=BEGINNING) + b"\0"
        for rows in self._arrays():
            taken = rows_of(rows.take(first, end, sys.maxsize))
            rows.add(b"".join([row for row in taken if row[:KEY_SIZE] not in flushed]))
            self.counts.remove([row for row in taken if row[:KEY_SIZE] in flushed])

    def restore(self, rows: bytes) -> None:
        """Add rows of a snapshot. Earlier versions of Duolog wrote them in the order of their addresses."""
        found = sorted(rows_of(rows))
        self.counts.add(found)
        self._put_back(b"".join(found))

    # -- All rows

    def _arrays(self, topic: int | None = None) -> Iterator[SortedRows]:
        """Yield the rows of the memtable; of the ready rows only those of a topic, if one is given."""
        ready = self._ready.values() if topic is None else filter(None, [self._ready.get(topic)])
        return chain([self.waiting, self.frozen.rows], ready)

    def view(self, topic: int | None = None) -> MemtableView:
        """Return a view of the rows of this moment, of which a caller reads only those of `topic` if one is given."""
        return MemtableView([SortedRows(rows) for rows in self._arrays(topic)])

    def snapshot(self) -> Iterator[bytes]:
        """Return all rows of this moment in parts, for `restore`. The Memtable may change during the iteration."""
        copies = [SortedRows(rows) for rows in self._arrays()]
        parts = (iter(partial(rows.take, BEGINNING, END, ROWS_IN_PART), b"") for rows in copies)
        return chain.from_iterable(parts)
