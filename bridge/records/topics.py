"""Topics, their settings, and the leader epochs of their queues."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple
from uuid import UUID

from duolog.bridge.records.layout import StateRecordBody


class TopicCreated(StateRecordBody, frozen=True, tag=10):
    number: int
    name: str  # as its creator spelled it
    id: UUID
    queue_count: int
    perm: int
    configs: Mapping[str, str]
    created_ms: int


class TopicChanged(StateRecordBody, frozen=True, tag=11):
    """What is None stays as it was; `configs` replaces all overrides."""

    number: int
    queue_count: int | None = None
    configs: Mapping[str, str] | None = None
    perm: int | None = None


class TopicDeleted(StateRecordBody, frozen=True, tag=12):
    number: int


class TopicNumbersUsed(StateRecordBody, frozen=True, tag=13):
    """Only in snapshots: numbers below `next_number` were given out, also those of topics that are gone."""

    next_number: int


class EpochStart(NamedTuple):
    """From `start_offset` on, records of this queue carry this leader epoch."""

    key: int
    epoch: int
    start_offset: int


class LeaderEpochsStarted(StateRecordBody, frozen=True, tag=14):
    starts: Sequence[EpochStart]
