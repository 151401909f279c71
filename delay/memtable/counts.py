"""The class Counts: the number of rows, in all, by topic, and by part of the log."""

from collections.abc import Mapping, Sequence
from typing import Final, TypeVar

from duolog.delay.rows import TOPIC_AT, TOPIC_END

LOG_PART_BITS: Final = 16  # A part of the log has 64 KiB. So exactly does retention know which entries are pending.
_PART_AT: Final = 8  # The first bytes of an address are the part of the log.
_PART_END: Final = 14

Name = TypeVar("Name")


class Counts:
    """The numbers of some rows. No number of a topic or of a part of the log is 0."""

    def __init__(self) -> None:
        self.total = 0
        self.by_topic: dict[int, int] = {}
        self._by_part: dict[bytes, int] = {}

    def add(self, rows: Sequence[bytes]) -> None:
        by_topic, by_part = self.by_topic, self._by_part
        self.total += len(rows)
        for row in rows:
            topic, part = int.from_bytes(row[TOPIC_AT:TOPIC_END], "big"), row[_PART_AT:_PART_END]
            by_topic[topic] = by_topic.get(topic, 0) + 1
            by_part[part] = by_part.get(part, 0) + 1

    def remove(self, rows: Sequence[bytes]) -> None:
        counts = Counts()
        counts.add(rows)
        self.remove_counts(counts)

    def remove_counts(self, other: "Counts") -> None:
        """Subtract the numbers of rows that were also counted apart."""
        self.total -= other.total
        _subtract(self.by_topic, other.by_topic)
        _subtract(self._by_part, other._by_part)

    def pinned_from(self) -> int | None:
        """Return a position of the log below which no message of a row is; None if there are no rows."""
        return int.from_bytes(min(self._by_part), "big") << LOG_PART_BITS if self._by_part else None


def _subtract(counts: dict[Name, int], less: Mapping[Name, int]) -> None:
    for name, count in less.items():
        counts[name] -= count
        if not counts[name]:
            del counts[name]
