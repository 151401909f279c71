"""Messages that expire."""

from collections.abc import Sequence

from duolog.bridge.records.layout import StateRecordBody


class QueuesExpire(StateRecordBody, frozen=True, tag=64):
    """From now on messages of these queues may have an expiry of their own."""

    keys: Sequence[int]


class MessagesExpired(StateRecordBody, frozen=True, tag=65):
    """A RocketMQ group has behind it what expired at these offsets: its dead letters are in the same unit."""

    group: str  # by its Kafka spelling
    key: int
    ranges: Sequence[tuple[int, int]]  # from, up to and without
    is_restored: bool = False  # in snapshots: these are all
