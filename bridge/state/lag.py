"""Lag of groups: the number of records that a group has not read. The CLI, the HTTP API and the metrics use it.

    queue with a committed offset      end offset - committed offset (or - log start offset, if that is greater)
    queue without a committed offset   all records of the queue; the client decides where the group will begin

The queues are those of every topic in which the group has a committed offset or to which a member subscribes. The
computation is a generator, because a group may have offsets in every queue: at each None the event loop may run.
"""

from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from duolog.bridge.state.group_offsets import GroupOffset, GroupOffsets
from duolog.bridge.state.topic_table import Topic
from duolog.bridge.state.topics import Topics
from duolog.store.index.queue import QUEUE_ID_BITS, Queue

QUEUES_IN_SLICE = 256  # At two microseconds each.


class QueueLag(NamedTuple):
    """The lag of a group in one queue."""

    topic: Topic
    queue: Queue
    position: GroupOffset | None  # None: the group has committed no offset for this queue.

    @property
    def lag(self) -> int:
        """The number of records that the group has not read."""
        offset = self.queue.start_offset if self.position is None else self.position.offset
        return max(0, self.queue.visible_end - max(offset, self.queue.start_offset))


@dataclass(slots=True)
class GroupLag:
    """The sum of a group's lag over its queues."""

    lag: int = 0  # Over all queues.
    lag_without_position: int = 0  # Over the queues without a committed offset.
    queues_without_position: int = 0
    topics: set[str] = field(default_factory=set)

    def add(self, each: QueueLag) -> None:
        """Add the lag of one queue."""
        lag = each.lag
        self.lag += lag
        self.topics.add(each.topic.name)
        if each.position is None:
            self.lag_without_position += lag
            self.queues_without_position += 1


@dataclass(frozen=True, slots=True)
class GroupLags:
    """Computes the lag of groups; a group is identified by its Kafka name."""

    topics: Topics
    group_offsets: GroupOffsets
    subscribed: Callable[[str], Iterator[str | None]]
    """Yields the topics to which a group's members subscribe; a topic may come more than once."""

    def of_group(self, group: str) -> Generator[None, None, GroupLag]:
        """Return the sum over a group's queues, after yielding None between slices."""
        found = GroupLag()
        for each in self.of_queues(group):
            if each is not None:
                found.add(each)
            yield
        return found

    def in_topic(self, group: str, topic: Topic) -> Generator[None, None, GroupLag | None]:
        """Return the sum over the queues of one topic, after yielding None between slices.

        The result is None for a group that has no committed offset in the topic and no member that subscribes to it.
        """
        positions = self.group_offsets.all_of(group)
        reads = any(queue.key in positions for queue in topic.queues)
        for name in () if reads else self.subscribed(group):
            yield
            if name is not None and self.topics.get(name) is topic:
                reads = True
                break
        if not reads:
            return None
        found = GroupLag()
        for queue in topic.queues:
            found.add(QueueLag(topic, queue, self.group_offsets.fetch(group, queue.key)))
            if queue.queue_id % QUEUES_IN_SLICE == QUEUES_IN_SLICE - 1:
                yield
        return found

    def of_queues(self, group: str) -> Iterator[QueueLag | None]:
        """Yield the lag of each queue of a group, in the order of topic numbers, and None between slices."""
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
                if queue.queue_id % QUEUES_IN_SLICE == QUEUES_IN_SLICE - 1:
                    yield None
            yield None
