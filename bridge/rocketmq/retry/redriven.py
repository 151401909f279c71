"""Which dead letters of a group were redriven: those before its committed offset, and those that its metadata names.

    offset 12, metadata "redriven 15-17 20-20"      0 to 11, 15 to 17, and 20

A redrive of some letters leaves gaps, for which an offset has no room. The first RANGES_MAX ranges are kept; a redrive
of all sends the later letters once more. If a client of the group commits an offset in the dead-letter topic, or an
operator resets it, the metadata is gone, and only the offset counts.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from duolog.bridge.records.groups import CommittedOffset
from duolog.bridge.rocketmq.context import RocketMQContext
from duolog.store.index.queue import Queue

RANGES_MAX: Final = 32
_NAME: Final = "redriven"
_RANGE: Final = re.compile(r" ([0-9]{1,18})-([0-9]{1,18})")  # A client may commit any text: `len` takes no more.
_METADATA: Final = re.compile(rf"{_NAME}(?:{_RANGE.pattern})+")


@dataclass(frozen=True, slots=True)
class RedrivenLetters:
    """The offsets of redriven letters: all before `position`, and `ranges` after it, in order, with gaps between."""

    position: int
    ranges: tuple[range, ...] = ()

    def __contains__(self, offset: int) -> bool:
        return offset < self.position or any(offset in each for each in self.ranges)

    def unread(self, end: int) -> int:
        """Return the number of letters before `end` that were not redriven."""
        return max(0, end - self.position - sum(map(len, self.ranges)))

    def with_all(self, offsets: range) -> "RedrivenLetters":
        """Return the letters with those at more offsets."""
        return _joined(self.position, [*self.ranges, offsets])

    def committed(self, key: int, characters_max: int) -> CommittedOffset:
        """Return the committed offset that says the same, with as many ranges as its metadata has room for."""
        metadata = _NAME
        for each in self.ranges:
            text = f" {each.start}-{each.stop - 1}"
            if len(metadata) + len(text) > characters_max:
                break
            metadata += text
        return CommittedOffset(key, self.position, metadata="" if metadata == _NAME else metadata)


def redriven_of(context: RocketMQContext, group: str, queue: Queue) -> RedrivenLetters:
    """Return the letters of a group, named by its Kafka name, that were redriven from a queue of its dead letters."""
    found = context.groups.group_offsets.fetch(group, queue.key)
    if found is None:
        return RedrivenLetters(queue.start_offset)
    named = _RANGE.findall(found.metadata) if _METADATA.fullmatch(found.metadata) else []
    ranges = (range(int(first), int(last) + 1) for first, last in named)
    return _joined(max(found.offset, queue.start_offset), filter(None, ranges))


def _joined(position: int, ranges: Iterable[range]) -> RedrivenLetters:
    """Return these letters with the fewest ranges: those that overlap, or follow each other, are one."""
    joined: list[range] = []
    for each in sorted(ranges, key=lambda each: each.start):
        if each.start <= position:
            position = max(position, each.stop)
        elif joined and each.start <= joined[-1].stop:
            joined[-1] = range(joined[-1].start, max(joined[-1].stop, each.stop))
        else:
            joined.append(each)
    return RedrivenLetters(position, tuple(joined[:RANGES_MAX]))
