"""How far a group is behind: one computation for the command, the HTTP API and the metrics.

    queue with a committed position       its end less the position, or less its log start if that is above
    queue without one ("no position yet")  all that is in it: where the group begins there is its client's choice

The queues are those of every topic in which the group has a position or to which a live member subscribes. The work is
a generator, for a group may have positions in every queue; None is a place where the loop may turn.
"""

from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from duolog.bridge.state.group_offsets import GroupOffset, GroupOffsets
from duolog.bridge.state.topics import QUEUE_ID_BITS, Topic, Topics
from duolog.store.index.queue import Queue


class QueueLag(NamedTuple):
    """What a group has not read of one queue."""

    topic: Topic
    queue: Queue
    position: GroupOffset | None  # None: it has committed none yet.

    @property
    def lag(self) -> int:
        offset = self.queue.start_offset if self.position is None else self.position.offset
        return max(0, self.queue.visible_end - max(offset, self.queue.start_offset))


@dataclass(slots=True)
class GroupLag:
    """The sum over a group's queues."""

    lag: int = 0  # In all.
    lag_without_position: int = 0  # The part of it that lies in queues without a committed position.
    queues_without_position: int = 0
    topics: set[str] = field(default_factory=set)

    def add(self, each: QueueLag) -> None:
        lag = each.lag
        self.lag += lag
        self.topics.add(each.topic.name)
        if each.position is None:
            self.lag_without_position += lag
            self.queues_without_position += 1


@dataclass(frozen=True, slots=True)
class GroupLags:
    """Computes the lag of groups; a group is named by its Kafka spelling."""

    topics: Topics
    group_offsets: GroupOffsets
    subscribed: Callable[[str], Iterator[str | None]]
    """Gives the topics that a group's live members subscribe to, some of them more than once."""

    def of_group(self, group: str) -> Generator[None, None, GroupLag]:
        """Add up the lag of a group's queues."""
        found = GroupLag()
        for each in self.of_queues(group):
            if each is not None:
                found.add(each)
            yield
        return found

    def of_queues(self, group: str) -> Iterator[QueueLag | None]:
        """Give each queue of a group, in the order of topics' numbers."""
        numbers = {key >> QUEUE_ID_BITS for key in self.group_offsets.all_of(group)}
        for name in self.subscribed(group):
            topic = None if name is None else self.topics.get(name)
            if topic is not None:
                numbers.add(topic.number)
            yield None
        for number in sorted(numbers):
            topic = self.topics.by_number(number)
            for queue in () if topic is None else topic.queues:
                assert topic is not None
                yield QueueLag(topic, queue, self.group_offsets.fetch(group, queue.key))
            yield None
