"""Delayed messages. The id of a timer is 16 bytes: due time u64 | address u64, big-endian."""

from collections.abc import Sequence

from duolog.bridge.records.layout import StateRecordBody


class DelayedBatch(StateRecordBody, frozen=True, tag=40):
    """A batch of an idempotent producer with delayed records: a repeated batch is answered, not appended."""

    key: int
    producer_id: int
    epoch: int
    first_sequence: int
    last_sequence: int


class TimersDelivered(StateRecordBody, frozen=True, tag=41):
    """The frames of this unit are the messages of these timers."""

    topic: int
    ids: bytes


class TimersCancelled(StateRecordBody, frozen=True, tag=42):
    """They will never be delivered: asked for, or (`is_dropped`) because there is no such topic any more."""

    ids: bytes
    at_ms: int
    is_dropped: bool = False


class TimerMoved(StateRecordBody, frozen=True, tag=43):
    """A pending timer is due at another time; its id stays."""

    given_ms: int
    address: int
    due_ms: int
    is_restored: bool = False  # in snapshots: the timer's row says it already
    now_address: int = 0  # then: of the entry that holds it now


class DelayPaused(StateRecordBody, frozen=True, tag=44):
    """Whether the deliveries of a topic wait."""

    topic: int
    is_paused: bool


class TimersPending(StateRecordBody, frozen=True, tag=45):
    """Only in snapshots: rows as `delay/rows.py` has them."""

    rows: bytes


class TimersCancelledBefore(StateRecordBody, frozen=True, tag=46):
    """Only in snapshots: due time, address and time of each cancel, u64."""

    rows: bytes


class TimerNames(StateRecordBody, frozen=True, tag=47):
    """Only in snapshots: rows as `delay/names.py` has them."""

    rows: bytes


class TimerRequested(StateRecordBody, frozen=True, tag=82):
    """The delayed message whose entry is the one before this answered a request with an `Idempotency-Key`."""

    request: bytes  # Hash of the key.
    body: bytes  # Hash of the request's body.
    due_ms: int
    key: int  # Of the queue to which it goes.
    behind: int  # Positions from its entry to this one.
    at_ms: int


class TimerRequestsKnown(StateRecordBody, frozen=True, tag=83):
    """Snapshot: (request, body, due_ms, address, queue key, at_ms) of each."""

    rows: list[tuple[bytes, bytes, int, int, int, int]]


class TimerTablesChanged(StateRecordBody, frozen=True, tag=80):
    """From now on exactly these sorted tables count; also in snapshots, without the rest."""

    manifest: Sequence[Sequence[int]]  # The fields of `delay.table_format.TableEntry`.
    flushed: bytes  # Keys, due time u64 | address u64, of timers that a new table has instead of the memtable.
    deleted: bytes  # Keys of timers that new tables have, and that are deleted.
    counted_to: int  # Position: the tables' files have the deletions that the log has below it.


class TableTimersDeleted(StateRecordBody, frozen=True, tag=81):
    """Only in snapshots: keys of timers that are deleted, though the tables' files may not say so."""

    keys: bytes
