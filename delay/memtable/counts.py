"""The class Counts: the number of timers in the memtable, in all, by topic, and by part of the log."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Final

from duolog.delay.rows import KEY, KEY_SIZE, Timer

LOG_PART_BITS: Final = 16  # A part of the log has 64 KiB. So exactly does retention know which entries are pending.


class Counts:
    def __init__(self) -> None:
        self.total = 0
        self.by_topic: dict[int, int] = {}
        self._by_part: dict[int, int] = {}

    def add(self, timer: Timer) -> None:
        self.total += 1
        _raise(self.by_topic, timer.topic, 1)
        _raise(self._by_part, timer.address >> LOG_PART_BITS, 1)

    def add_rows(self, rows: Sequence[bytes]) -> None:
        self.total += len(rows)
        for topic, count in topics_of(rows).items():
            _raise(self.by_topic, topic, count)
        for part, count in parts_of(rows).items():
            _raise(self._by_part, part, count)

    def remove(self, timer: Timer) -> None:
        self.total -= 1
        lower(self.by_topic, timer.topic, 1)
        lower(self._by_part, timer.address >> LOG_PART_BITS, 1)

    def remove_many(self, topics: Mapping[int, int], parts: Mapping[int, int]) -> None:
        for topic, count in topics.items():
            lower(self.by_topic, topic, count)
        for part, count in parts.items():
            lower(self._by_part, part, count)
        self.total -= sum(topics.values())

    def remove_keys(self, topic: int, keys: bytes) -> None:
        """Subtract timers of one topic by their keys, which are mostly in the order of the log."""
        count = len(keys) // KEY_SIZE
        self.total -= count
        lower(self.by_topic, topic, count)
        part, run = -1, 0
        for _, address in KEY.iter_unpack(keys):
            if address >> LOG_PART_BITS != part:
                if run:
                    lower(self._by_part, part, run)
                part, run = address >> LOG_PART_BITS, 0
            run += 1
        lower(self._by_part, part, run)

    def pinned_from(self) -> int | None:
        """Return a position of the log below which no message of a timer is; None if there are no timers."""
        return min(self._by_part) << LOG_PART_BITS if self._by_part else None


def topics_of(rows: Sequence[bytes]) -> Counter[int]:
    """Count rows by topic. The first bytes of a queue key are the topic number."""
    found = Counter([row[16:22] for row in rows])
    return Counter({int.from_bytes(topic, "big"): count for topic, count in found.items()})


def parts_of(rows: Sequence[bytes]) -> Counter[int]:
    """Count rows by the part of the log in which their messages are."""
    found = Counter([row[8:14] for row in rows])
    return Counter({int.from_bytes(part, "big"): count for part, count in found.items()})


def lower(counts: dict[int, int], name: int, by: int) -> None:
    left = counts[name] - by
    if left:
        counts[name] = left
    else:
        del counts[name]


def _raise(counts: dict[int, int], name: int, by: int) -> None:
    counts[name] = counts.get(name, 0) + by
