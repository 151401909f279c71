"""Counts of the messages that each RocketMQ group was given of each topic, in the last minute, hour and day.

    a pull or pop ──> added to a pending sum ── every SLOT_MS ──> slots: 6 of 10 s, 6 of 10 min, 24 of 1 h

The slots of a window are a ring: a slot is overwritten after the time of the window, so a sum is exact to one slot. The
counts are not in the log, and begin at 0 after a restart, as in Apache RocketMQ. Times are monotonic.
Source: StatsItem.java.
"""

from typing import Final, NamedTuple

SLOT_MS: Final = 10_000
# Pairs of group and topic, of some 600 bytes each. The pair that was read longest ago is dropped for a new one.
KEYS_MAX: Final = 10_000

# (width of a slot in ms, number of slots)
_WINDOWS: Final = ((10_000, 6), (600_000, 6), (3_600_000, 24))

Key = tuple[str, int]  # A group's RocketMQ name and a topic's number.


class Total(NamedTuple):
    """What a group was given of a topic since the broker started."""

    messages: int
    size: int  # Bytes of the messages in RocketMQ's format.


_NOTHING: Final = Total(0, 0)


class _Slots:
    """The counts of one window for one group and topic."""

    __slots__ = ("_last", "_sums", "_width_ms")

    def __init__(self, width_ms: int, count: int, mono_ms: int) -> None:
        self._width_ms, self._sums, self._last = width_ms, [0] * count, mono_ms // width_ms

    def add(self, count: int, mono_ms: int) -> None:
        self._turn(mono_ms)
        self._sums[self._last % len(self._sums)] += count

    def sum(self, mono_ms: int) -> int:
        self._turn(mono_ms)
        return sum(self._sums)

    def _turn(self, mono_ms: int) -> None:
        """Clear the slots that began since the last call."""
        now, count = mono_ms // self._width_ms, len(self._sums)
        for slot in range(max(self._last + 1, now - count + 1), now + 1):
            self._sums[slot % count] = 0
        self._last = now


class ConsumeCounts:
    """The counts by group and topic."""

    def __init__(self, keys_max: int = KEYS_MAX) -> None:
        self._keys_max = keys_max
        self._pending: dict[Key, list[int]] = {}  # The number and the bytes of the messages.
        self._slots: dict[Key, tuple[_Slots, ...]] = {}  # In the order of the last read.
        self._totals: dict[Key, Total] = {}  # By group and topic. Invariant: the keys of `_slots`.
        self._all_slots: tuple[_Slots, ...] = ()  # The counts of all groups and topics together.
        self._due_mono_ms: int | None = None

    def __len__(self) -> int:
        return len(self._slots)

    def add(self, group: str, topic: int, count: int, size: int, mono_ms: int) -> None:
        """Count messages of `size` bytes that a group was given. Every pull calls this method, so it only adds."""
        pending = self._pending.get((group, topic))
        if pending is None:
            self._pending[group, topic] = [count, size]
            if self._due_mono_ms is None:
                self._due_mono_ms = mono_ms + SLOT_MS
        else:
            pending[0] += count
            pending[1] += size

    def of(self, group: str, topic: int, mono_ms: int) -> list[int]:
        """Return the number of messages of a topic that a group was given in the last minute, hour and day."""
        self._add_pending(mono_ms)
        return _sums(self._slots.get((group, topic), ()), mono_ms)

    def of_all(self, mono_ms: int) -> list[int]:
        """Return the number of messages that all groups were given in the last minute, hour and day."""
        self._add_pending(mono_ms)
        return _sums(self._all_slots, mono_ms)

    def totals(self, mono_ms: int) -> list[tuple[Key, Total]]:
        """Return what each group was given of each topic.

        The total begins at 0 when the broker starts, and again after the pair of group and topic was dropped.
        """
        self._add_pending(mono_ms)
        return list(self._totals.items())

    # -- Time

    def next_deadline_mono_ms(self) -> int | None:
        """Return when pending sums are to be added to the slots; None if there are none."""
        return self._due_mono_ms

    def advance(self, mono_ms: int) -> None:
        if self._due_mono_ms is not None and mono_ms >= self._due_mono_ms:
            self._add_pending(mono_ms)

    def _add_pending(self, mono_ms: int) -> None:
        """Add the pending sums to the slots and the totals."""
        pending, self._pending, self._due_mono_ms = self._pending, {}, None
        self._all_slots = self._all_slots or _new_slots(mono_ms)
        for window in self._all_slots:
            window.add(sum(count for count, _ in pending.values()), mono_ms)
        for key, (count, size) in pending.items():
            slots = self._slots.pop(key, None) or _new_slots(mono_ms)
            if len(self._slots) >= self._keys_max:
                dropped = next(iter(self._slots))
                del self._slots[dropped], self._totals[dropped]
            self._slots[key] = slots
            before = self._totals.get(key, _NOTHING)
            self._totals[key] = Total(before.messages + count, before.size + size)
            for window in slots:
                window.add(count, mono_ms)


def _new_slots(mono_ms: int) -> tuple[_Slots, ...]:
    return tuple(_Slots(width, number, mono_ms) for width, number in _WINDOWS)


def _sums(slots: tuple[_Slots, ...], mono_ms: int) -> list[int]:
    return [window.sum(mono_ms) for window in slots] or [0] * len(_WINDOWS)
