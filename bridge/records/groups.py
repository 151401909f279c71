"""State records of consumer groups: committed offsets and configs."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from duolog.bridge.records.layout import StateRecordBody


class CommittedOffset(NamedTuple):
    """The committed offset of a group in one queue."""

    key: int
    offset: int  # The offset of the next record to be read.
    leader_epoch: int = -1
    metadata: str = ""


class GroupOffsetsCommitted(StateRecordBody, frozen=True, tag=20):
    """Committed offsets of a group. Without positions, it says only that the group had members at `commit_ms`."""

    group: str
    positions: Sequence[CommittedOffset]
    commit_ms: int


class GroupOffsetsDeleted(StateRecordBody, frozen=True, tag=21):
    """Committed offsets of a group were deleted."""

    group: str
    keys: Sequence[int]


class GroupDeleted(StateRecordBody, frozen=True, tag=22):
    """A group was deleted with its committed offsets."""

    group: str


class GroupConfigured(StateRecordBody, frozen=True, tag=23):
    """The settings of a RocketMQ subscription group, by their names in SubscriptionGroupConfig."""

    group: str  # The RocketMQ name of the group.
    settings: Mapping[str, Any]


class RequestModeSet(StateRecordBody, frozen=True, tag=63):
    """Whether the consumers of a group pull or pop a topic for which the broker assigns queues."""

    group: str  # The RocketMQ name of the group; `topic` is a RocketMQ name, too.
    topic: str
    mode: str
    shared_queues: int
