"""Half messages. Frames say which are prepared and decided, so these records say only what frames do not."""

from collections.abc import Mapping, Sequence

from duolog.bridge.records.layout import StateRecordBody


class HalvesLooked(StateRecordBody, frozen=True, tag=50):
    """These half messages were due, and their producers asked if any was there."""

    offsets: Sequence[int]
    at_ms: int
    put_off: Sequence[int] = ()  # Due as well, but the host to ask has no place left: no look of theirs is counted.


class HalvesOpen(StateRecordBody, frozen=True, tag=51):
    """Only in snapshots: a page of `txn.half.OpenPage`."""

    offsets: bytes
    stored_ms: bytes
    dues_ms: bytes
    checks: bytes
    askers: bytes
    asker_names: Mapping[int, str]


class HalfVerdicts(StateRecordBody, frozen=True, tag=52):
    """Only in snapshots: the verdicts of the last half messages, up to the one before `end_offset`."""

    end_offset: int
    verdicts: bytes  # a byte each, zlib


class HalfIdsKnown(StateRecordBody, frozen=True, tag=53):
    """Only in snapshots: (offset, topic, id, is decided) of half messages that Kafka producers gave ids."""

    ids: Sequence[tuple[int, str, str, bool]]
