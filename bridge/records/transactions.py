"""State records of Kafka transactions."""

from collections.abc import Sequence

from duolog.bridge.records.groups import CommittedOffset
from duolog.bridge.records.layout import StateRecordBody


class TransactionalIdSettled(StateRecordBody, frozen=True, tag=55):
    """The new state of a transactional id. If it had an open transaction, this unit ends the transaction."""

    transactional_id: str
    producer_id: int
    epoch: int
    timeout_ms: int
    state: int  # A value of `txn.coordinator.State`.
    at_ms: int
    previous_id: int = -1  # The producer id before this one, whose client may repeat its last request; -1: none.
    previous_epoch: int = -1


class TransactionGrew(StateRecordBody, frozen=True, tag=56):
    """Queues, or a group with committed offsets, were added to the transaction of a producer, which is open from now
    on.

    A transactional batch adds its queue without a record, because its frame says so.
    """

    producer_id: int
    at_ms: int
    keys: Sequence[int] = ()
    group: str | None = None
    offsets: Sequence[CommittedOffset] = ()


class QueueTransactions(StateRecordBody, frozen=True, tag=57):
    """Only in snapshots: the transactions of a queue, which otherwise follow from frames and markers."""

    key: int
    open: Sequence[tuple[int, int]]  # The producer id and the first offset of each open transaction.
    # Big-endian i64 for each aborted one: offset of the marker, first offset, producer id, last stable offset at that
    # time.
    aborted: bytes
    is_continued: bool = False  # Whether `aborted` continues an earlier record of the same snapshot.


class TimersHeld(StateRecordBody, frozen=True, tag=59):
    """Only in snapshots: the delayed records of an open transaction, which become pending messages with its commit."""

    producer_id: int
    rows: bytes  # In the layout of `delay/rows.py`.


class TransactionalIdsForgotten(StateRecordBody, frozen=True, tag=58):
    """Transactional ids that expired."""

    transactional_ids: Sequence[str]
