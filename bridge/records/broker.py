"""What the broker knows of itself: its name, the trust in its clock, records set aside, values of RocketMQ's tools."""

from collections.abc import Sequence

from duolog.bridge.records.layout import StateRecordBody


class ClusterNamed(StateRecordBody, frozen=True, tag=1):
    """The id that Kafka clients see, made once for a data directory."""

    cluster_id: str


class ClockDoubted(StateRecordBody, frozen=True, tag=2):
    """How far the wall clock was ahead of the time that the broker believed; 0: it believes the clock."""

    ahead_ms: int


class RecordsSetAside(StateRecordBody, frozen=True, tag=3):
    """Stored records that could not be processed: (kind, place, error, wall time or None) of each."""

    rows: Sequence[tuple[str, str, str, int | None]]


class KeyValueKept(StateRecordBody, frozen=True, tag=68):
    """What a RocketMQ tool keeps at the name server; None: it is gone."""

    namespace: str
    key: str
    value: str | None
