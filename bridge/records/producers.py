"""State records of idempotent producers: their ids, and the batches that they may repeat."""

from collections.abc import Sequence
from typing import NamedTuple

from duolog.bridge.records.layout import StateRecordBody


class ProducerIdsReserved(StateRecordBody, frozen=True, tag=30):
    """Producer ids below `next_id` may be in use."""

    next_id: int


class ProducerBatch(NamedTuple):
    """A batch of an idempotent producer that is answered, not appended, if it is repeated."""

    first_sequence: int
    last_sequence: int
    base_offset: int
    position: int
    stored_ms: int


class ProducerWindow(NamedTuple):
    """The window of one producer id in one queue (`bridge/state/producers.py`)."""

    key: int
    producer_id: int
    epoch: int
    batches: Sequence[ProducerBatch]  # The batches that may be repeated.
    stored_ms: int  # The store time of the latest batch, or of the marker that began the epoch.
    last_sequence: int  # -1: nothing was written in this epoch.


class ProducerWindows(StateRecordBody, frozen=True, tag=31):
    """Only in snapshots: the windows of idempotent producers, which otherwise follow from the frames."""

    windows: Sequence[ProducerWindow]
