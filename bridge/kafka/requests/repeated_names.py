"""Names that a request repeats count once, in the order of their first occurrence; this is decided before any work.

Apache Kafka turns most lists of a request into sets and maps, so that the last of equal partitions counts. It answers
INVALID_REQUEST where the entries of a name contradict each other (ListOffsets, CreateTopics, DeleteTopics,
CreatePartitions, AlterConfigs). In both cases a name has one entry in the answer, so that repetition does not make an
answer larger.
"""

from collections import Counter
from collections.abc import Hashable, Iterable
from typing import Any, TypeVar

from duolog.bridge.kafka.requests.errors import InvalidRequest

Name = TypeVar("Name", bound=Hashable)

Partitions = dict[str, dict[int, Any]]  # The entries of partitions, by topic and index.


def unique(names: Iterable[Name]) -> list[Name]:
    """Return the names without repetitions."""
    return [*dict.fromkeys(names)]


def by_partition(asked: Iterable[tuple[str, int, Any]]) -> Partitions:
    """Group entries by topic and partition index; where a partition is repeated, its last entry counts."""
    found: Partitions = {}
    for topic, index, part in asked:
        of_topic = found.get(topic)
        if of_topic is None:
            of_topic = found[topic] = {}
        of_topic[index] = part
    return found


class Repeated(Counter[Name]):
    """Counts how often each name occurs in a request."""

    def check(self, name: Name, shown: object) -> None:
        """Raise InvalidRequest if the name is repeated; the message contains `shown`."""
        if self[name] > 1:
            raise InvalidRequest(f"{shown} occurs {self[name]} times in the request; it must occur once")
