"""The ids of rescheduled timers: an id is the first key of a timer, and it stays when the key changes.

The id and the key of any other timer are equal, and take no memory here.
"""

from collections.abc import Iterable

from duolog.delay.rows import (
    KEY,
    Timer,
    TimerId,
    TimerKey,
)


class Ids:
    """The ids and the present keys of rescheduled timers."""

    def __init__(self) -> None:
        self._ids: dict[int, TimerId] = {}  # By the address in the key, which is unique.
        self._keys: dict[TimerId, TimerKey] = {}

    def key_of(self, timer_id: TimerId) -> TimerKey:
        """Return the present key of a timer, in memory or in a sorted table."""
        return self._keys.get(timer_id, timer_id)

    def id_at(self, key: TimerKey) -> TimerId:
        """Return the id of the timer that has this key."""
        return self._ids.get(key[1], key)

    def packed(self, timers: Iterable[Timer]) -> bytes:
        """Return the ids of timers, one after the other."""
        pack = KEY.pack
        if self._ids:
            return b"".join([pack(*self.id_at(timer[:2])) for timer in timers])
        return b"".join([pack(due_ms, address) for due_ms, address, _, _, _, _ in timers])

    def set(self, timer_id: TimerId, key: TimerKey) -> None:
        self.forget(timer_id)
        if key != timer_id:
            self._ids[key[1]] = timer_id
            self._keys[timer_id] = key

    def forget(self, timer_id: TimerId) -> None:
        key = self._keys.pop(timer_id, None)
        if key is not None:
            self._ids.pop(key[1], None)

    def moved(self) -> list[tuple[TimerId, TimerKey]]:
        return list(self._keys.items())
