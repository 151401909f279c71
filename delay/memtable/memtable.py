"""The memtable: all pending timers whose messages are in the log, 32 bytes for each and no object.

    add -> windows -------- the hand reaches their time --------> ready, by topic --- delivered ---> (removed)

           [ 18h ][ 4.6h ]..[ 65s ]..[ 256ms ]..[1ms][1ms]        orders   [row row row]
           rows, by address (windows.py)                          billing  [row]         by due time and address
              |                                                      |
              `-- far ------------> frozen (frozen.py) <-------------' its topic is paused
                                       |
                                       `--> written to a sorted table, then removed; after a failure put back

A ready row stays until it is delivered or deleted. The time to add or delete a timer does not depend on the number of
timers, except for the bisection of one array. If the clock is set back, ready rows wait until they are due again. A
*far* row is one that a flush may take (`delay/tree/flush_job.py`); ready rows may be far after the clock was set back.
"""

from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from itertools import chain

from duolog.delay.memtable.counts import Counts, parts_of, topics_of
from duolog.delay.memtable.frozen import Frozen, FrozenRows
from duolog.delay.memtable.row_arrays import RowsByAddress, RowsByKey
from duolog.delay.memtable.windows import Windows
from duolog.delay.rows import (
    KEY,
    KEY_SIZE,
    ROW,
    Timer,
    TimerKey,
    pack_row,
    rows_of,
)


def _ignore(topic: int, due_ms: int) -> None:
    pass


class Memtable:
    """The rows of pending timers. `on_ready` is called with a topic that has new ready rows, and with a due time.

    The class has more than 20 methods, because each timer is in a window, in an array of ready rows or in a flush, and
    every operation must look into all three.
    """

    def __init__(self, start_ms: int = 0, on_ready: Callable[[int, int], None] = _ignore) -> None:
        self.counts = Counts()
        self.windows = Windows(start_ms, self._release)
        self.frozen = Frozen()
        self._on_ready = on_ready
        self._ready: dict[int, RowsByKey] = {}  # By topic.
        # During recovery: packed keys of rows whose timers are in tables, according to a later manifest.
        self._flushed: set[bytes] = set()

    def __len__(self) -> int:
        return self.counts.total

    # -- Single timers

    def add(self, timer: Timer) -> None:
        self.windows.put(pack_row(timer), timer.due_ms, timer.key)
        self.counts.add(timer)

    def find(self, key: TimerKey, topic: int | None = None) -> Timer | None:
        """Return the timer of this key; the search is quicker if its topic is known."""
        found = self._find(key, topic)
        return None if found is None else found[0].at(found[1])

    def remove(self, key: TimerKey, topic: int | None = None) -> Timer | None:
        found = self._find(key, topic)
        if found is None:
            return None
        array, at = found
        timer = array.at(at)
        array.delete(at)
        self.counts.remove(timer)
        if isinstance(array, FrozenRows):
            self.frozen.note_deleted(array, timer)
        return timer

    def _find(self, key: TimerKey, topic: int | None) -> tuple[RowsByAddress | RowsByKey, int] | None:
        if self._flushed and KEY.pack(*key) in self._flushed:
            return None
        due_ms, address = key
        if due_ms <= self.windows.hand_max_ms:
            arrays = self._ready.values() if topic is None else filter(None, [self._ready.get(topic)])
            for array in arrays:
                if (at := array.find(due_ms, address)) >= 0:
                    return array, at
        return self.windows.find(due_ms, address) or self.frozen.find(due_ms, address)

    # -- Ready rows

    def _release(self, rows: bytes, due_ms: int, topic: int) -> None:
        array = self._ready.get(topic)
        if array is None:
            array = self._ready[topic] = RowsByKey()
        array.extend(rows)
        self._on_ready(topic, due_ms)

    def ready(self, topic: int) -> Iterator[Timer]:
        """Return the ready timers of a topic in due order. The Memtable must not change during the iteration."""
        array = self._ready.get(topic)
        if array is None:
            return iter(())
        if not len(array):
            del self._ready[topic]
            return iter(())
        return array.timers()

    def remove_first(self, topic: int, keys: bytes) -> bool:
        """Remove the first ready rows of a topic if they have exactly these keys; otherwise return False."""
        array = self._ready.get(topic)
        if array is None or array.deleted_count or self._flushed or not array.drop_first(keys):
            return False
        self.counts.remove_keys(topic, keys)
        if not len(array):
            del self._ready[topic]
        return True

    # -- The flush

    def flushable_count(self, from_ms: int, topics: Iterable[int]) -> int:
        """Return the number of rows that `freeze_far(from_ms)` and `freeze_ready(topics)` may take."""
        far = sum(map(len, self.windows.later(from_ms)))
        far += sum([len(array) for array in self._far_ready(from_ms)])
        return far + sum([len(self._ready[topic]) for topic in topics if topic in self._ready])

    def freeze_far(self, from_ms: int, rows_max: int, stay: Container[TimerKey]) -> bytes:
        """Freeze up to `rows_max` rows of one window or topic that are due at `from_ms` or later.

        Returns them in due order. Rows with keys in `stay` are not frozen, because a table has a deleted timer with the
        same key.
        """
        for window in self.windows.later(from_ms):
            if frozen := self._freeze(window.take_tail(rows_max), stay):
                return frozen
        for array in self._far_ready(from_ms):
            if frozen := self._freeze(array.take_later(from_ms, rows_max), stay):
                return frozen
        return b""

    def _far_ready(self, from_ms: int) -> Iterator[RowsByKey]:
        """Yield the arrays with ready rows that are due at `from_ms` or later, because the clock was set back."""
        if self.windows.is_set_back and self.windows.hand_max_ms >= from_ms:
            yield from (array for array in [*self._ready.values()] if array.last_due_ms() >= from_ms)

    def freeze_ready(self, topics: Iterable[int], rows_max: int, stay: Container[TimerKey]) -> bytes:
        """Freeze up to `rows_max` ready rows of one of these topics; return them in due order."""
        for topic in topics:
            array = self._ready.get(topic)
            if array is not None and len(array) and (frozen := self._freeze(array.take_tail(rows_max), stay)):
                return frozen
        return b""

    def _freeze(self, taken: bytes, stay: Container[TimerKey]) -> bytes:
        rows, staying = [], []
        for row in rows_of(taken):
            due_ms, address, queue_key, _, _, _ = ROW.unpack(row)
            key = (due_ms, address)
            if key in stay or key in self.frozen.deleted:
                staying.append(row)
            elif queue_key:
                rows.append(row)
        if staying:
            self.windows.put_rows(b"".join(staying))
        if rows:
            self.frozen.add(rows)
        return b"".join(rows)

    def clear_frozen(self) -> Mapping[int, int]:
        """Remove the frozen rows, because they are in a table now; return their number by topic."""
        topics, parts = self.frozen.clear()
        self.counts.remove_many(topics, parts)
        return topics

    def unfreeze_some(self) -> bool:
        """Put some frozen rows back, because the flush has failed; False: none are left."""
        rows = self.frozen.unfreeze()
        self.windows.put_rows(rows)
        return bool(rows)

    # -- Recovery

    def forget_flushed(self, keys: bytes, stay: Iterable[TimerKey]) -> None:
        """Note that rows with these keys, except those in `stay`, are in a table; `clear_flushed` removes them."""
        flushed = {keys[at : at + KEY_SIZE] for at in range(0, len(keys), KEY_SIZE)}
        flushed.difference_update([KEY.pack(*key) for key in stay])
        self._flushed |= flushed

    def clear_flushed(self) -> None:
        if self._flushed:
            taken = [row for array in self.arrays() for row in array.take_out(self._flushed)]
            self._flushed = set()
            self.counts.remove_many(topics_of(taken), parts_of(taken))

    def restore(self, rows: bytes) -> None:
        """Add rows of a snapshot."""
        self.windows.put_rows(rows)
        self.counts.add_rows(rows_of(rows))

    # -- All arrays

    def arrays(self) -> Iterator[RowsByAddress | RowsByKey]:
        return chain(self.windows, self._ready.values(), self.frozen)

    def ready_arrays(self, topic: int | None) -> list[tuple[int, RowsByKey]]:
        """Return (topic, its ready rows) of one topic or of all."""
        return [(number, array) for number, array in self._ready.items() if topic in (None, number)]
