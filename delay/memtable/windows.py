"""The timers of the memtable that are not due: rows in the slots of a hierarchical timing wheel.

A *window* holds the rows of all timers that are due within it. There is one window for each slot of the wheel, by the
rule of `delay/wheel.py`: a timer is at the level of the highest byte in which its time differs from the hand. A Wheel
whose items are windows finds the window that begins next. When the hand reaches a window of more than a
millisecond, its rows move down to smaller windows; rows of one millisecond become ready, by topic
(`delay/memtable/memtable.py`):

    hand 0x0000     rows due 0x0102 and 0x0103 are in the window 0x0100..0x01ff
    hand 0x0100     the window opens: its rows now are in the windows 0x0102 and 0x0103, one millisecond each
    hand 0x0102     the first of these opens: its row is ready

So there are at most 256 windows for each of eight levels, whatever the number of timers. A bounded number of rows moves
in each call. While some rows of a window have moved and others have not, the hand is one millisecond before the window.

A window is a span of absolute time, so no row moves when the clock is set back. Only the wheel is built again. A row
may then be in a larger or smaller window than the one to which `put` would add it now, so a search looks into the
window of each level.
"""

from collections.abc import Callable, Iterator
from struct import Struct
from typing import Final

from duolog.delay.memtable.row_arrays import RowsByAddress
from duolog.delay.rows import ROW_SIZE, TOPIC_SHIFT
from duolog.delay.wheel import (
    DIGIT_BITS,
    LEVELS,
    NEVER_MS,
    Wheel,
)

_PLACED: Final = Struct(">QQQ8x")  # Of a row: due, address, queue key.

# A window's name: the time at which it begins, without the digits that are 0, and in the lowest bits its level.
_LEVEL_BITS: Final = 4
_LEVEL_MASK: Final = (1 << _LEVEL_BITS) - 1


class Window(RowsByAddress):
    """The rows that are due within 2**bits ms from `start_ms`."""

    __slots__ = ("bits", "name", "start_ms")

    def __init__(self, name: int) -> None:
        super().__init__()
        self.bits = (name & _LEVEL_MASK) * DIGIT_BITS
        self.name = name
        self.start_ms = _span_of(name)[0]


class Windows:
    """All windows. `release` is called with rows that are due, the due time of the first and their topic."""

    def __init__(self, start_ms: int, release: Callable[[bytes, int, int], None]) -> None:
        self.hand_ms = start_ms  # Invariant: all windows begin later.
        self.hand_max_ms = start_ms  # The latest time at which the hand has been: no row is ready that is due later.
        self._release = release
        self._windows: dict[int, Window] = {}  # By name.
        self._calendar: Wheel[Window] = Wheel(start_ms)
        self._moving: Window | None = None  # The window that is half moved down.

    def __iter__(self) -> Iterator[Window]:
        return iter(self._windows.values())

    # -- Rows

    def put(self, row: bytes, due_ms: int, queue_key: int) -> None:
        if due_ms <= self.hand_ms:
            self._release(row, due_ms, queue_key >> TOPIC_SHIFT)
        else:
            self._put_in_window(row, _name_of(due_ms, self.hand_ms))

    def put_rows(self, rows: bytes, hand_ms: int | None = None) -> int:
        """Put rows into windows, or release them, as `put` does with the hand at `hand_ms`.

        Deleted rows are dropped; returns their number. Neighbouring rows of one window or topic are added in one step.
        """
        hand_ms = self.hand_ms if hand_ms is None else hand_ms
        deleted = 0
        place = begin = at = 0  # A place is a window's name, or a negative topic number, or 0 for none.
        first_due_ms = last_due_ms = last_address = 0
        start_ms = end_ms = 0  # The span of the window.
        for due_ms, address, key in _PLACED.iter_unpack(rows):
            if not key:
                deleted += 1
                to = 0
            elif start_ms <= due_ms < end_ms:
                to = place
            elif due_ms <= hand_ms:
                to = -(key >> TOPIC_SHIFT)
            else:
                to = _name_of(due_ms, hand_ms)
            # A run is in the order of the array to which it goes: by address, or by due time and address.
            if to != place or (address <= last_address if to > 0 or due_ms == last_due_ms else due_ms < last_due_ms):
                self._put_run(rows[begin:at], place, first_due_ms)
                place, begin, first_due_ms = to, at, due_ms
                start_ms, end_ms = _span_of(to) if to > 0 else (0, 0)
            last_due_ms, last_address = due_ms, address
            at += ROW_SIZE
        self._put_run(rows[begin:], place, first_due_ms)
        return deleted

    def _put_run(self, rows: bytes, place: int, due_ms: int) -> None:
        if place > 0:
            self._put_in_window(rows, place)
        elif place < 0:
            self._release(rows, due_ms, -place)

    def _put_in_window(self, rows: bytes, name: int) -> None:
        window = self._windows.get(name)
        if window is None:
            window = self._windows[name] = Window(name)
            self._calendar.add(window.start_ms, window)
        window.extend(rows)

    def find(self, due_ms: int, address: int) -> tuple[Window, int] | None:
        """Return the window and the byte at which the row of this key begins."""
        for level in range(LEVELS if due_ms > self.hand_ms else 0):
            window = self._windows.get(due_ms >> level * DIGIT_BITS << _LEVEL_BITS | level)
            if window is not None and (at := window.find(due_ms, address)) >= 0:
                return window, at
        return None

    # -- The hand

    def next_ms(self) -> int | None:
        """Return the time at which the next window begins, or an earlier one; None if there is no window."""
        return self._calendar.next_deadline_ms() if self._moving is None else self._moving.start_ms

    def advance(self, now_ms: int, moves_max: int) -> None:
        """Move the hand towards `now_ms`, until about `moves_max` rows have moved or no more need to."""
        while moves_max > 0 and (self._moving is not None or self._open_next(now_ms)):
            moves_max -= self.move_some(moves_max)

    def _open_next(self, now_ms: int) -> bool:
        """Let the hand reach the next window; false if no window begins by `now_ms`."""
        calendar = self._calendar
        while (opens_ms := calendar.next_deadline_ms()) is not None and opens_ms <= now_ms:
            opened = calendar.advance(opens_ms)
            if opened:
                self._moving = max(opened, key=_bits_of)
                self._reach(self._moving.start_ms - 1)
                for window in opened:
                    if window is not self._moving:  # The clock was set back, and small windows are inside a large one.
                        window.sort()
                        self._moving.extend(window.bytes_from_head())
                        del self._windows[window.name]
                return True
        if now_ms > self.hand_ms:
            self._reach(now_ms)
            calendar.advance(now_ms)
        return False

    def _reach(self, hand_ms: int) -> None:
        self.hand_ms, self.hand_max_ms = hand_ms, max(hand_ms + 1, self.hand_max_ms)

    @property
    def reached_ms(self) -> int:
        """All rows that are due by this time are ready, except rows of a window that is being moved."""
        return self.hand_ms if self.is_set_back else self.hand_max_ms

    @property
    def is_set_back(self) -> bool:
        """Whether the hand was farther once. If so, ready rows may be due later, and windows may be inside others."""
        return self.hand_ms + 1 < self.hand_max_ms

    @property
    def is_moving(self) -> bool:
        return self._moving is not None

    def move_some(self, moves_max: int) -> int:
        """Move rows of the open window to smaller windows, or release them; return about how many were examined."""
        window = self._moving
        assert window is not None, "no window is open"
        window.indexes = ()
        window.sort()
        start_ms, rows = window.start_ms, window.rows
        end = min(len(rows), window.head + moves_max * ROW_SIZE)
        chunk = bytes(memoryview(rows)[window.head : end])
        window.deleted_count -= self.put_rows(chunk, start_ms)
        if end < len(rows):
            window.drop_head(end)
        else:
            del self._windows[window.name]
            self._moving = None
            self._reach(start_ms)
        return len(chunk) // ROW_SIZE + 1

    def set_back(self, now_ms: int) -> None:
        """Move the hand back to `now_ms`, because the clock was set back. No row moves."""
        if now_ms < self.hand_ms:
            self.hand_ms, self._calendar, self._moving = now_ms, Wheel(now_ms), None
            for window in self._windows.values():
                self._calendar.add(window.start_ms, window)

    # -- For a flush, and for deleted topics

    def later(self, from_ms: int) -> list[Window]:
        """Return the windows that begin at `from_ms` or later and are not empty."""
        return [w for w in self._windows.values() if w.start_ms >= from_ms and w is not self._moving and w.has_rows]

    def from_the_latest(self, until_ms: int = NEVER_MS) -> list[Window]:
        """Return the windows that begin at `until_ms` or earlier, the latest first."""
        return sorted((w for w in self if w.start_ms <= until_ms), key=start_of, reverse=True)


def start_of(window: Window) -> int:
    return window.start_ms


def _bits_of(window: Window) -> int:
    return window.bits


def _name_of(due_ms: int, hand_ms: int) -> int:
    """Return the name of the window of a due time after the hand. It is never 0."""
    level = ((due_ms ^ hand_ms).bit_length() - 1) // DIGIT_BITS
    return (due_ms >> level * DIGIT_BITS) << _LEVEL_BITS | level


def _span_of(name: int) -> tuple[int, int]:
    """Return the times at which a window begins and ends."""
    shift = (name & _LEVEL_MASK) * DIGIT_BITS
    start_ms = name >> _LEVEL_BITS << shift
    return start_ms, start_ms + (1 << shift)
