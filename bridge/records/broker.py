"""State records of the broker itself: cluster id, trust in the clock, records set aside, values of RocketMQ's tools."""

from collections.abc import Sequence

from duolog.bridge.records.layout import StateRecordBody


class ClusterNamed(StateRecordBody, frozen=True, tag=1):
    """The cluster id that Kafka clients see, made at the first start of a data directory."""

    cluster_id: str


class ClockDoubted(StateRecordBody, frozen=True, tag=2):
    """How far the wall clock is ahead of the trusted time (`wall_time.py`); 0: the wall clock is trusted."""

    ahead_ms: int


class RecordsSetAside(StateRecordBody, frozen=True, tag=3):
    """Stored records that could not be processed: (kind, place, error, wall time or None) for each."""

    rows: Sequence[tuple[str, str, str, int | None]]


class RecordsAcknowledged(StateRecordBody, frozen=True, tag=4):
    """Records set aside that an operator has dealt with: (kind, place) for each."""

    names: Sequence[tuple[str, str]]


class KeyValueKept(StateRecordBody, frozen=True, tag=68):
    """A key and value that a RocketMQ tool stored at the name server; None: the key was deleted."""

    namespace: str
    key: str
    value: str | None
