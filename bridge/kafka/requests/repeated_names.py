"""Names that a request repeats count once: in the order in which it names them first, before any work.

Apache Kafka makes sets and maps of most lists in requests, so that the last of equal partitions counts; and it answers
INVALID_REQUEST where a repeated name contradicts itself (ListOffsets, CreateTopics, DeleteTopics, CreatePartitions,
AlterConfigs). In both cases a name has one place in the answer, so the answer is never larger than what was asked
without repeating.
"""

from collections import Counter
from collections.abc import Hashable, Iterable
from typing import Any, TypeVar

from duolog.bridge.kafka.requests.errors import InvalidRequest

Name = TypeVar("Name", bound=Hashable)

Partitions = dict[str, dict[int, Any]]  # Whatever belongs to each partition, by topic and index.


def unique(names: Iterable[Name]) -> list[Name]:
    """Leave out what was named before."""
    return [*dict.fromkeys(names)]


def by_partition(asked: Iterable[tuple[str, int, Any]]) -> Partitions:
    """Group what is asked of (topic, partition index); where a partition is repeated, the last one counts."""
    found: Partitions = {}
    for topic, index, part in asked:
        of_topic = found.get(topic)
        if of_topic is None:
            of_topic = found[topic] = {}
        of_topic[index] = part
    return found


class Repeated(Counter[Name]):
    """How often each name occurs in a request; `check` refuses one that occurs more than once."""

    def check(self, name: Name, shown: object) -> None:
        """Raise InvalidRequest if the name is repeated; `shown` is how the message calls it."""
        if self[name] > 1:
            raise InvalidRequest(f"{shown} is named {self[name]} times")
