"""State records of delayed messages. The key of a pending message: due time u64 | address u64, big-endian."""

from collections.abc import Sequence

from duolog.bridge.records.layout import StateRecordBody
from duolog.delay.tables.table_format import TableEntry
from duolog.delay.tables.tombstones import TombstoneRow


class DelayedBatch(StateRecordBody, frozen=True, tag=40):
    """A batch of an idempotent producer with delayed records. A repetition of it is answered and not appended."""

    key: int
    producer_id: int
    epoch: int
    first_sequence: int
    last_sequence: int


class TimersDelivered(StateRecordBody, frozen=True, tag=41):
    """The pending messages that this unit delivers; the frames of the unit are their messages."""

    topic: int
    ids: bytes


class TimersCancelled(StateRecordBody, frozen=True, tag=42):
    """Pending messages that are never delivered: cancelled by a client, or dropped (`is_dropped`) with their topic."""

    ids: bytes
    at_ms: int
    is_dropped: bool = False


class TimerMoved(StateRecordBody, frozen=True, tag=43):
    """A pending message gets another due time; its id stays the same."""

    given_ms: int
    address: int
    due_ms: int
    is_restored: bool = False  # Only in snapshots: the row of the pending message has the new due time already.
    now_address: int = 0  # Only in snapshots: the address of the entry that holds the message now.


class DelayPaused(StateRecordBody, frozen=True, tag=44):
    """Whether deliveries of pending messages of a topic are paused."""

    topic: int
    is_paused: bool


class TimersPending(StateRecordBody, frozen=True, tag=45):
    """Only in snapshots: pending messages in the layout of `delay/rows.py`."""

    rows: bytes


class TimersCancelledBefore(StateRecordBody, frozen=True, tag=46):
    """Only in snapshots: due time, address and time of each cancellation, u64 each."""

    rows: bytes


class TimerNames(StateRecordBody, frozen=True, tag=47):
    """Only in snapshots: names of pending messages in the layout of `delay/names.py`."""

    rows: bytes


class TimersCredited(StateRecordBody, frozen=True, tag=84):
    """Messages that this unit delivers or cancels no longer count for their quota entities."""

    credits: Sequence[tuple[int, int, int]]  # (topic number, number of the quota entity, count) of each credit.


class QuotaEntityKnown(StateRecordBody, frozen=True, tag=85):
    """The number of a quota entity, valid until the entity has no pending message. The unit has its first message.

    The user or the client id is None if the quota does not depend on it.
    """

    number: int
    user: str | None
    client_id: str | None
    pending: Sequence[tuple[int, int]] = ()  # Only in snapshots: (topic number, count) of its pending messages.


class TimerRequested(StateRecordBody, frozen=True, tag=82):
    """The delayed message in the entry before this one belongs to a request with an `Idempotency-Key`."""

    request: bytes  # The BLAKE2 hash of the key.
    body: bytes  # The BLAKE2 hash of the body of the request.
    due_ms: int
    key: int  # The key of the destination queue.
    behind: int  # The position of this entry minus the position of the message's entry.
    at_ms: int


class TimerRequestsKnown(StateRecordBody, frozen=True, tag=83):
    """Only in snapshots: (request, body, due_ms, address, queue key, at_ms) of each remembered idempotency key."""

    rows: list[tuple[bytes, bytes, int, int, int, int]]


class TableTimersDeleted(StateRecordBody, frozen=True, tag=81):
    """Keys of deleted messages for which tables have no tombstones, in snapshots of earlier versions."""

    keys: bytes


class TableTombstones(StateRecordBody, frozen=True, tag=86):
    """Tombstones in logs of earlier versions: table number u64 | ordinal u32 | topic number u64, 20 bytes each."""

    rows: bytes


class TimerTablesChanged(StateRecordBody, frozen=True, tag=80):
    """A new table manifest. A snapshot has several: each with a part of all tombstones, or of all deleted messages."""

    manifest: tuple[TableEntry, ...]
    flushed: bytes = b""  # Keys (due time u64 | address u64) of messages that moved from the memtable to a new table.
    deleted: bytes = b""  # Keys of deleted messages for which new tables have no tombstones; in a snapshot, all tables.
    counted_to: int = 0  # The position up to which the tables have tombstones for the deletions in the log.
    tombstones: Sequence[TombstoneRow] = ()  # New tombstones.
