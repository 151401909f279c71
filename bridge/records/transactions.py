"""Kafka's transactions."""

from collections.abc import Sequence

from duolog.bridge.records.groups import CommittedOffset
from duolog.bridge.records.layout import StateRecordBody


class TransactionalIdSettled(StateRecordBody, frozen=True, tag=55):
    """A transactional id goes on like this; its open transaction, if it had one, has ended with this unit."""

    transactional_id: str
    producer_id: int
    epoch: int
    timeout_ms: int
    state: int  # `txn.coordinator.State`
    at_ms: int
    id_before: int = -1  # the producer that may ask again; -1: none
    epoch_before: int = -1


class TransactionGrew(StateRecordBody, frozen=True, tag=56):
    """Queues, or a group with positions, became part of a producer's transaction, which is open from then on.

    What a producer writes by itself adds the queue without a record: that follows from the frame.
    """

    producer_id: int
    at_ms: int
    keys: Sequence[int] = ()
    group: str | None = None
    positions: Sequence[CommittedOffset] = ()


class QueueTransactions(StateRecordBody, frozen=True, tag=57):
    """Only in snapshots: otherwise this follows from frames and markers."""

    key: int
    open: Sequence[tuple[int, int]]  # producer id, first offset
    aborted: bytes  # i64 each: offset of the marker, first offset, producer id, last stable offset then; big-endian
    is_continued: bool = False  # these are more aborted ones of the same snapshot


class TimersHeld(StateRecordBody, frozen=True, tag=59):
    """Only in snapshots: delayed records of a producer's open transaction; they become timers with its commit."""

    producer_id: int
    rows: bytes  # As `delay.rows` has them.


class TransactionalIdsForgotten(StateRecordBody, frozen=True, tag=58):
    transactional_ids: Sequence[str]
