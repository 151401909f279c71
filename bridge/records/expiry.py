"""State records about messages that expire."""

from collections.abc import Sequence

from duolog.bridge.records.layout import StateRecordBody


class QueuesExpire(StateRecordBody, frozen=True, tag=64):
    """From now on messages of these queues may have an expiry time of their own."""

    keys: Sequence[int]


class MessagesExpired(StateRecordBody, frozen=True, tag=65):
    """Messages that expired before a RocketMQ group got them. Their dead letters are in the same unit."""

    group: str  # The Kafka name of the group.
    key: int
    ranges: Sequence[tuple[int, int]]  # Pairs of first offset and end offset (exclusive).
    is_restored: bool = False  # Only in snapshots: these are all ranges of the group and queue.
