"""A hierarchical timing wheel: any number of timers, O(1) to add and to cancel, and no clock of its own.

A wheel is a row of slots with a hand; a timer is in the slot of its time, and is due when the hand reaches it. One
wheel with a slot for every millisecond of ten years would be too large, so there is one for each digit of the time, as
on a clock with hands for hours, minutes and seconds. Here with 4 slots for each wheel; times are written in base 4:

    now 000, after adding A at 002, B at 013, C at 111, D at 013

        level 2, 16 ms a slot     >[   ][ C ][   ][   ]
        level 1,  4 ms a slot     >[   ][B D][   ][   ]
        level 0,  1 ms a slot     >[   ][   ][ A ][   ]

A timer is at the level of the highest digit in which its time differs from now, in the slot of that digit: B at 013
and now at 000 differ first in the middle digit, which is 1 in B.

    now 010: A was due on the way. The hand of level 1 enters slot 1, and its timers move down.

        level 2                   >[   ][ C ][   ][   ]
        level 1                    [   ]>[  ][   ][   ]
        level 0                   >[   ][   ][   ][B D]      B before D: the order of adding is kept

    now 100, after B and D were due at 013: the hand of level 2 enters slot 1, and C moves down, to be due at 111.

        level 2                    [   ]>[  ][   ][   ]
        level 1                   >[   ][ C ][   ][   ]
        level 0                   >[   ][   ][   ][   ]

So timers with equal times are always in the same slot, in the order of adding. Each timer moves at most once per level,
and all timers of a level are due before those of the levels above it. The occupied slots of a level are the bits of one
number, so a jump over a year of empty slots costs as much as one millisecond.

The real wheels have 256 slots: a level is a byte of the time. The hand never goes back. If the clock is set back, no
timer is lost, and none is due too early: timers whose time the hand has passed wait in a heap until the clock reaches
their time.

The broker uses this class for its monotonic clock and for its wall clock. The owner of a wheel limits the number of its
timers. The same idea: Varghese and Lauck, "Hashed and Hierarchical Timing Wheels" (1987); Linux
kernel/time/timer.c until 4.8; tokio's time driver. The slots of Kafka's `TimingWheel` are relative to the
present, so timers with equal times lose their order.
"""

import sys
from heapq import heapify, heappop, heappush
from itertools import islice
from typing import Generic, TypeVar

Item = TypeVar("Item")

DIGIT_BITS = 8
DIGIT_MASK = (1 << DIGIT_BITS) - 1
LEVELS = 8  # Enough for times below 2**64 ms.
NEVER_MS = 1 << LEVELS * DIGIT_BITS
# The heap of late timers is built again when more of its timers are cancelled than are pending, plus this number.
DEAD_BEHIND_MAX = 64


class WheelTimer(Generic[Item]):
    """One timer, which `Wheel.add` returns and `Wheel.cancel` takes."""

    __slots__ = ("_slot", "deadline_ms", "item")

    def __init__(self, deadline_ms: int, item: Item, slot: "dict[WheelTimer[Item], None]") -> None:
        self.deadline_ms = deadline_ms
        self.item = item
        self._slot: dict[WheelTimer[Item], None] | None = slot  # The slot that has it; None: it was due or cancelled.

    @property
    def is_pending(self) -> bool:
        return self._slot is not None


# The timers of one slot in the order of adding. A dict keeps this order, and removes any of them in O(1).
WheelSlot = dict[WheelTimer[Item], None]


class Wheel(Generic[Item]):
    """Holds timers until they are due. Times are milliseconds of the owner's clock, from 0 on."""

    def __init__(self, start_ms: int = 0) -> None:
        self._hand_ms = start_ms  # Invariant: timers in slots are due later, or now and not returned yet.
        self._levels: list[_Level[Item]] = [_Level(number) for number in range(LEVELS)]
        self._moving: _Level[Item] | None = None  # The level whose first slot is being moved down.
        self._behind: _Behind[Item] = _Behind()
        self._next_ms = 0  # Invariant: no timer is due before this time.
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def next_deadline_ms(self) -> int | None:
        """Return a time before which no timer is due; None while the wheel is empty.

        It is usually the first deadline. If it is earlier, `advance` to this time makes it greater.
        """
        return self._next_ms if self._count else None

    def add(self, deadline_ms: int, item: Item) -> WheelTimer[Item]:
        """Add a timer, whose item `advance` returns at `deadline_ms`; if that has passed, the next `advance` does."""
        if deadline_ms < self._next_ms or not self._count:
            self._next_ms = deadline_ms
        self._count += 1
        hand_ms = self._hand_ms
        # A slot has the timers that are due now until they are returned, and a new one is returned after them.
        if deadline_ms < hand_ms or (deadline_ms == hand_ms and self._moving is not None):
            return self._behind.add(deadline_ms, item)
        slot = self._levels[_level_number(deadline_ms, hand_ms)].slot_of(deadline_ms)
        timer = WheelTimer(deadline_ms, item, slot)
        slot[timer] = None
        return timer

    def cancel(self, timer: WheelTimer[Item]) -> bool:
        """Cancel a timer. False: the timer was due or was cancelled before."""
        slot = timer._slot
        if slot is None:
            return False
        del slot[timer]
        timer._slot = None
        self._count -= 1
        return True

    def advance(self, to_ms: int, moves_max: int = sys.maxsize) -> list[Item]:
        """Return the items due at or before `to_ms`: by time, equal times in the order of adding.

        If `to_ms` is below that of an earlier call, the clock was set back, and timers that are due after `to_ms` wait.

        The call ends when about `moves_max` timers have moved to a lower level or were returned. All timers of one
        millisecond are returned together. While `next_deadline_ms()` is at most `to_ms`, another call may return more.
        """
        due: list[Item] = []
        self._behind.take(to_ms, due)
        moves_left = moves_max - len(due)
        while moves_left > 0:
            level = self._first_level()
            if level is None or (start_ms := level.first_ms(self._hand_ms)) > to_ms:
                self._hand_ms = max(self._hand_ms, to_ms)
                break
            if level.shift:
                moves_left -= self._move_down(level, start_ms, moves_left)
            else:
                self._hand_ms = start_ms
                moves_left -= _let_out(level.pop_first(), due)
        self._count -= len(due)
        self._next_ms = self._earliest_ms()
        return due

    # -- Moving the hand

    def _move_down(self, level: "_Level[Item]", start_ms: int, moves_max: int) -> int:
        """Move up to `moves_max` timers of the level's first slot, which begins at `start_ms`, to lower levels.

        While some timers are left in the slot, the hand is one millisecond before it. So a new timer for a time in the
        slot is added at its end, and not to a lower level, where it would be before older timers of the same time. The
        lower levels have only timers of this slot: if they had others, their slots would have been first.
        """
        self._hand_ms, self._moving = start_ms - 1, level
        slot = level.first()
        timers = list(islice(slot, moves_max))
        for timer in timers:
            deadline_ms = timer.deadline_ms
            below = timer._slot = self._levels[_level_number(deadline_ms, start_ms)].slot_of(deadline_ms)
            below[timer] = None
        if len(timers) < len(slot):
            for timer in timers:
                del slot[timer]
        else:
            level.pop_first()
            self._hand_ms, self._moving = start_ms, None
        return len(timers)

    def _first_level(self) -> "_Level[Item] | None":
        """Return the level with the earliest slot, which is the lowest level with a slot; None if there is none."""
        if self._moving is not None:
            return self._moving
        for level in self._levels:
            level.drop_cancelled()
            if level.occupied:
                return level
        return None

    def _earliest_ms(self) -> int:
        level = self._first_level()
        slot_ms = NEVER_MS if level is None else level.first_ms(self._hand_ms)
        return min(slot_ms, self._behind.earliest_ms())


class _Level(Generic[Item]):
    """The slots of one digit. All are ahead of the hand, and their higher digits are those of the hand."""

    __slots__ = ("occupied", "shift", "slots")

    def __init__(self, number: int) -> None:
        self.shift = number * DIGIT_BITS
        self.slots: dict[int, WheelSlot[Item]] = {}  # By digit. A slot is empty if all its timers were cancelled.
        self.occupied = 0  # Invariant: bit d is set if and only if slot d is there.

    def slot_of(self, deadline_ms: int) -> WheelSlot[Item]:
        digit = (deadline_ms >> self.shift) & DIGIT_MASK
        slot = self.slots.get(digit)
        if slot is None:
            slot = self.slots[digit] = {}
            self.occupied |= 1 << digit
        return slot

    def first(self) -> WheelSlot[Item]:
        return self.slots[self._first_digit()]

    def first_ms(self, hand_ms: int) -> int:
        """Return the time at which the first slot begins."""
        above = self.shift + DIGIT_BITS
        return (hand_ms >> above << above) | (self._first_digit() << self.shift)

    def pop_first(self) -> WheelSlot[Item]:
        slot = self.slots.pop(self._first_digit())
        self.occupied &= self.occupied - 1
        return slot

    def drop_cancelled(self) -> None:
        while self.occupied and not self.first():
            self.pop_first()

    def _first_digit(self) -> int:
        return (self.occupied & -self.occupied).bit_length() - 1


class _Behind(Generic[Item]):
    """The timers with deadlines before the hand: they were added too late, or while the clock was set back.

    A timer with the time of the hand is here, too, if it was added while a slot was being moved.
    """

    __slots__ = ("_added", "_heap", "_live")

    def __init__(self) -> None:
        self._heap: list[tuple[int, int, WheelTimer[Item]]] = []  # (Deadline, number, timer). Cancelled timers stay.
        self._live: WheelSlot[Item] = {}
        self._added = 0

    def add(self, deadline_ms: int, item: Item) -> WheelTimer[Item]:
        if len(self._heap) > 2 * len(self._live) + DEAD_BEHIND_MAX:
            self._heap = [entry for entry in self._heap if entry[2] in self._live]
            heapify(self._heap)
        timer = WheelTimer(deadline_ms, item, self._live)
        self._live[timer] = None
        self._added += 1
        heappush(self._heap, (deadline_ms, self._added, timer))
        return timer

    def take(self, to_ms: int, due: list[Item]) -> None:
        """Add the items of the timers that are due at or before `to_ms` to `due`."""
        while self.earliest_ms() <= to_ms:
            timer = heappop(self._heap)[2]
            del self._live[timer]
            timer._slot = None
            due.append(timer.item)

    def earliest_ms(self) -> int:
        while self._heap and self._heap[0][2] not in self._live:
            heappop(self._heap)
        return self._heap[0][0] if self._heap else NEVER_MS


def _level_number(deadline_ms: int, hand_ms: int) -> int:
    """Return the number of the highest digit in which two times differ; 0 if they are equal."""
    return ((deadline_ms ^ hand_ms | 1).bit_length() - 1) // DIGIT_BITS


def _let_out(slot: WheelSlot[Item], due: list[Item]) -> int:
    for timer in slot:
        timer._slot = None
        due.append(timer.item)
    return len(slot)
