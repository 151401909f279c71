"""Deletions that the files of sorted tables may not have yet, and the number of pending timers in tables by topic."""

from collections.abc import Iterable, Iterator
from itertools import islice

from duolog.delay.rows import KEY, KEY_SIZE, TimerKey
from duolog.delay.tree.prefetch import Prefetch

KEYS_IN_RECORD = 10_000


class Deletions:
    """Belongs to the loop. `log_position` is the position of the record that deletes the timers."""

    def __init__(self, prefetch: Prefetch) -> None:
        self.pending = 0  # Timers of tables that are not deleted. Invariant: the sum of `by_topic`.
        self.by_topic: dict[int, int] = {}
        self.deleted_topics: set[int] = set()  # Those of which tables may have timers; these timers are hidden.
        self._prefetch = prefetch
        self._positions: dict[TimerKey, int] = {}  # Log positions, the lowest first.

    def __len__(self) -> int:
        """Return the number of deletions that no manifest counts yet."""
        return len(self._positions)

    def __contains__(self, key: object) -> bool:
        return key in self._positions

    def keys(self) -> list[TimerKey]:
        return [*self._positions]

    # -- Replay

    def note(self, key: TimerKey, topic: int, log_position: int) -> None:
        """A timer of a table is delivered, cancelled, or moved."""
        if key in self._positions:
            return
        self._positions[key] = log_position
        self._prefetch.drop(key)
        if self.by_topic.get(topic):
            self.by_topic[topic] -= 1
            self.pending -= 1

    def note_late(self, keys: bytes, log_position: int) -> None:
        """These are deleted in tables that a manifest names for the first time; their deletion must be counted anew."""
        for key in KEY.iter_unpack(keys):
            self._positions.pop(key, None)
            self._positions[key] = log_position

    def restore(self, keys: bytes, log_position: int) -> None:
        for key in KEY.iter_unpack(keys):
            self._positions.setdefault(key, log_position)

    def flushed(self, keys: bytes) -> None:
        """Timers of these keys are in a new table; what was deleted under such a key was in another one."""
        for at in range(0, len(keys) if self._positions else 0, KEY_SIZE):
            self._positions.pop(KEY.unpack_from(keys, at), None)

    def counted(self, to_position: int) -> None:
        """The tables' files have what the log says below this position."""
        while self._positions:
            key = next(iter(self._positions))
            if self._positions[key] >= to_position:
                return
            del self._positions[key]

    def snapshot(self) -> Iterator[bytes]:
        """Return the keys of this moment, packed."""
        keys = (KEY.pack(*key) for key in [*self._positions])
        return iter(lambda: b"".join(islice(keys, KEYS_IN_RECORD)), b"")

    # -- Numbers

    def add(self, topic: int, count: int, *, is_gone: bool) -> None:
        """Tables have so many more timers of a topic."""
        if is_gone:
            self.deleted_topics.add(topic)
        else:
            self.by_topic[topic] = self.by_topic.get(topic, 0) + count
            self.pending += count

    def forget_topic(self, topic: int) -> None:
        """Hide the timers of a deleted topic; they are dropped when they are due."""
        if count := self.by_topic.pop(topic, 0):
            self.pending -= count
            self.deleted_topics.add(topic)


def packed(keys: Iterable[TimerKey]) -> bytes:
    return b"".join([KEY.pack(*key) for key in keys])
