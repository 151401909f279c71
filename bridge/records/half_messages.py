"""State records of half messages. Frames say which half messages are prepared and decided; these say the rest."""

from collections.abc import Mapping, Sequence

from duolog.bridge.records.layout import StateRecordBody


class HalvesChecked(StateRecordBody, frozen=True, tag=50):
    """Check-backs of these half messages were due, and were sent if a producer was connected."""

    offsets: Sequence[int]
    at_ms: int
    # Half messages whose check-back is postponed, because too many requests to its host are in progress; it is not
    # counted.
    postponed: Sequence[int] = ()


class HalvesOpen(StateRecordBody, frozen=True, tag=51):
    """Only in snapshots: open half messages in the layout of `txn.half_pages.OpenPage`."""

    offsets: bytes
    stored_ms: bytes
    dues_ms: bytes
    checks: bytes
    targets: bytes
    target_names: Mapping[int, str]


class HalfVerdicts(StateRecordBody, frozen=True, tag=52):
    """Only in snapshots: the verdicts of the last half messages before `end_offset`."""

    end_offset: int
    verdicts: bytes  # One byte for each half message, compressed with zlib.


class HalfIdsKnown(StateRecordBody, frozen=True, tag=53):
    """Only in snapshots: (offset, topic, id, is decided) of half messages to which Kafka producers gave ids."""

    ids: Sequence[tuple[int, str, str, bool]]
