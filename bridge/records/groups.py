"""Consumer groups: committed offsets and settings."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from duolog.bridge.records.layout import StateRecordBody


class CommittedOffset(NamedTuple):
    key: int
    offset: int  # the next one to be read
    leader_epoch: int = -1
    metadata: str = ""


class GroupOffsetsCommitted(StateRecordBody, frozen=True, tag=20):
    """Without positions it only says that the group was alive at `commit_ms`."""

    group: str
    positions: Sequence[CommittedOffset]
    commit_ms: int


class GroupOffsetsDeleted(StateRecordBody, frozen=True, tag=21):
    group: str
    keys: Sequence[int]


class GroupDeleted(StateRecordBody, frozen=True, tag=22):
    group: str


class GroupConfigured(StateRecordBody, frozen=True, tag=23):
    """The settings of a RocketMQ subscription group, by their names in SubscriptionGroupConfig."""

    group: str  # by its RocketMQ name
    settings: Mapping[str, Any]


class RequestModeSet(StateRecordBody, frozen=True, tag=63):
    """Whether a group's consumers pull or pop a topic, where the broker assigns their queues."""

    group: str  # by its RocketMQ name; so the topic
    topic: str
    mode: str
    shared_queues: int
