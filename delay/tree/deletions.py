"""The class Deletions: deleted timers without a tombstone in the log, and the number of pending timers in tables."""

from collections.abc import Iterator
from itertools import islice

from duolog.delay.rows import KEY, TimerKey, pack_keys
from duolog.delay.tree.prefetch import Prefetch

KEYS_IN_RECORD = 10_000


class Deletions:
    """The deletions of timers in sorted tables that no manifest counts: the log has their keys and no tombstones.

    A manifest *counts* the deletions of the log below a position (`ManifestChange.counted_to`) if the tables have
    tombstones for them. All methods are called in the loop. `log_position` is the position of the record that deletes
    the timers.
    """

    def __init__(self, prefetch: Prefetch) -> None:
        self.pending = 0  # The number of pending timers in tables. Invariant: the sum of `by_topic`.
        self.by_topic: dict[int, int] = {}
        self.deleted_topics: set[int] = set()  # Deleted topics that may have timers in tables. Reads leave these out.
        # Keys that manifests have counted since a cursor's read began; None: no read is under way.
        self.counted_in_read: set[TimerKey] | None = None
        self.meanwhile: dict[TimerKey, None] = {}  # Keys of timers that the results of a running compaction may have.
        self._prefetch = prefetch
        self._positions: dict[TimerKey, int] = {}  # Log positions by key, the lowest position first.

    def __len__(self) -> int:
        """Return the number of deletions that no manifest counts yet."""
        return len(self._positions)

    def __contains__(self, key: object) -> bool:
        return key in self._positions or key in self.meanwhile or key in (self.counted_in_read or ())

    def keys(self) -> list[TimerKey]:
        return [*self._positions]

    # -- Replay

    def note(self, key: TimerKey, topic: int, log_position: int) -> None:
        """Note that a timer of a table was delivered, cancelled, or rescheduled."""
        if key in self._positions:
            return
        self._positions[key] = log_position
        self._prefetch.drop(key)
        if self.by_topic.get(topic):
            self.by_topic[topic] -= 1
            self.pending -= 1

    def renew(self, keys: bytes, log_position: int) -> None:
        """Note deletions, perhaps again, that a manifest has with new tables, or a snapshot."""
        for key in KEY.iter_unpack(keys):
            self._positions.pop(key, None)
            self._positions[key] = log_position

    def flushed(self, keys: bytes) -> None:
        """Remove older deletions under these keys, because a new table has pending timers with them."""
        for key in KEY.iter_unpack(keys) if self._positions else ():
            self._positions.pop(key, None)

    def counted(self, to_position: int) -> None:
        """Remove the deletions below this position of the log, because the tables have tombstones for them."""
        while self._positions:
            key = next(iter(self._positions))
            if self._positions[key] >= to_position:
                return
            del self._positions[key]
            if self.counted_in_read is not None:
                self.counted_in_read.add(key)

    def snapshot(self) -> Iterator[bytes]:
        """Return the keys of this moment, packed."""
        keys = iter([*self._positions])
        return iter(lambda: pack_keys(islice(keys, KEYS_IN_RECORD)), b"")

    # -- Numbers

    def add(self, topic: int, count: int, *, is_gone: bool) -> None:
        """Add `count` pending timers of a topic in tables; `is_gone`: the topic was deleted."""
        if is_gone:
            self.deleted_topics.add(topic)
        else:
            self.by_topic[topic] = self.by_topic.get(topic, 0) + count
            self.pending += count

    def forget_topic(self, topic: int) -> None:
        """Leave out the timers of a deleted topic from now on. They are dropped when they are due."""
        if count := self.by_topic.pop(topic, 0):
            self.pending -= count
            self.deleted_topics.add(topic)
