"""State records of topics: their configs, and the leader epochs of their queues."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple
from uuid import UUID

from duolog.bridge.records.layout import StateRecordBody


class TopicCreated(StateRecordBody, frozen=True, tag=10):
    """A topic was created."""

    number: int
    name: str  # In the spelling of the request that created the topic.
    id: UUID
    queue_count: int
    perm: int
    configs: Mapping[str, str]
    created_ms: int


class TopicChanged(StateRecordBody, frozen=True, tag=11):
    """A change of a topic. A field that is None leaves its value unchanged; `configs` replaces all overrides."""

    number: int
    queue_count: int | None = None
    configs: Mapping[str, str] | None = None
    perm: int | None = None


class TopicDeleted(StateRecordBody, frozen=True, tag=12):
    """A topic was deleted with its records and all other state of its queues."""

    number: int


class TopicNumbersUsed(StateRecordBody, frozen=True, tag=13):
    """Only in snapshots: topic numbers below `next_number` were used, by existing or deleted topics."""

    next_number: int


class OriginsAdded(StateRecordBody, frozen=True, tag=15):
    """Messages of further topics were put into a retry or dead-letter topic; to read it needs READ on them."""

    number: int
    origins: Sequence[str]  # Names in Kafka's spelling, also of topics that do not exist any more; `*` for all topics.


class EpochStart(NamedTuple):
    """From `start_offset` on, the records of a queue have this leader epoch."""

    key: int
    epoch: int
    start_offset: int


class LeaderEpochsStarted(StateRecordBody, frozen=True, tag=14):
    """New leader epochs of queues."""

    starts: Sequence[EpochStart]
