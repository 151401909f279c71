"""The state records of the log: what each says, and their bytes.

A record is a msgpack array, first the tag, then the fields in order; a new field is appended with a default, so that
an older log still reads. Tags and field positions are never reused. Times are wall milliseconds. A queue is named by
its key, `topic number << 16 | queue id`.

The log's own CRC holds wherever a record is decoded. So bytes with a tag that is not known here are of a newer version,
which raises `Corruption` and refuses the start: the state of that version would be lost with the next checkpoint. All
other bytes that are no record were stored by a bug; they raise `Undecodable`, and are set aside
(`bridge/monitoring/poison.py`). All records are in one module, so that a new one takes an unused tag.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, get_args
from uuid import UUID

import msgspec

from duolog.store.errors import Corruption


class _Record(msgspec.Struct, array_like=True, frozen=True):
    pass


# -- The cluster


class ClusterNamed(_Record, frozen=True, tag=1):
    """The id that Kafka clients see, made once for a data directory."""

    cluster_id: str


class ClockDoubted(_Record, frozen=True, tag=2):
    """How far the wall clock was ahead of the time that the broker believed; 0: it believes the clock."""

    ahead_ms: int


class RecordsSetAside(_Record, frozen=True, tag=3):
    """Stored records that could not be processed: (kind, place, error, wall time or None) of each."""

    rows: Sequence[tuple[str, str, str, int | None]]


# -- Topics


class TopicCreated(_Record, frozen=True, tag=10):
    number: int
    name: str  # as its creator spelled it
    id: UUID
    queue_count: int
    perm: int
    configs: Mapping[str, str]
    created_ms: int


class TopicChanged(_Record, frozen=True, tag=11):
    """What is None stays as it was; `configs` replaces all overrides."""

    number: int
    queue_count: int | None = None
    configs: Mapping[str, str] | None = None
    perm: int | None = None


class TopicDeleted(_Record, frozen=True, tag=12):
    number: int


class TopicNumbersUsed(_Record, frozen=True, tag=13):
    """Only in snapshots: numbers below `next_number` were given out, also those of topics that are gone."""

    next_number: int


class EpochStart(NamedTuple):
    """From `start_offset` on, records of this queue carry this leader epoch."""

    key: int
    epoch: int
    start_offset: int


class LeaderEpochsStarted(_Record, frozen=True, tag=14):
    starts: Sequence[EpochStart]


# -- Groups


class CommittedOffset(NamedTuple):
    key: int
    offset: int  # the next one to be read
    leader_epoch: int = -1
    metadata: str = ""


class GroupOffsetsCommitted(_Record, frozen=True, tag=20):
    """Without positions it only says that the group was alive at `commit_ms`."""

    group: str
    positions: Sequence[CommittedOffset]
    commit_ms: int


class GroupOffsetsDeleted(_Record, frozen=True, tag=21):
    group: str
    keys: Sequence[int]


class GroupDeleted(_Record, frozen=True, tag=22):
    group: str


class GroupConfigured(_Record, frozen=True, tag=23):
    """The settings of a RocketMQ subscription group, by their names in SubscriptionGroupConfig."""

    group: str  # by its RocketMQ name
    settings: Mapping[str, Any]


# -- Producers


class ProducerIdsReserved(_Record, frozen=True, tag=30):
    """Producer ids below `next_id` may have been handed out."""

    next_id: int


class ProducerBatch(NamedTuple):
    """One remembered batch of an idempotent producer: a repeat of it is answered, not appended."""

    first_sequence: int
    last_sequence: int
    base_offset: int
    position: int
    stored_ms: int


class ProducerWindow(NamedTuple):
    key: int
    producer_id: int
    epoch: int
    batches: Sequence[ProducerBatch]  # that may be repeated
    stored_ms: int  # of the latest batch, or of the marker that began the epoch
    last_sequence: int  # -1: nothing was written in this epoch


class ProducerWindows(_Record, frozen=True, tag=31):
    """Only in snapshots: otherwise windows follow from the frames."""

    windows: Sequence[ProducerWindow]


# -- Kafka's transactions


class TransactionalIdSettled(_Record, frozen=True, tag=55):
    """A transactional id goes on like this; its open transaction, if it had one, has ended with this unit."""

    transactional_id: str
    producer_id: int
    epoch: int
    timeout_ms: int
    state: int  # `txn.coordinator.State`
    at_ms: int
    id_before: int = -1  # the producer that may ask again; -1: none
    epoch_before: int = -1


class TransactionGrew(_Record, frozen=True, tag=56):
    """Queues, or a group with positions, became part of a producer's transaction, which is open from then on.

    What a producer writes by itself adds the queue without a record: that follows from the frame.
    """

    producer_id: int
    at_ms: int
    keys: Sequence[int] = ()
    group: str | None = None
    positions: Sequence[CommittedOffset] = ()


class QueueTransactions(_Record, frozen=True, tag=57):
    """Only in snapshots: otherwise this follows from frames and markers."""

    key: int
    open: Sequence[tuple[int, int]]  # producer id, first offset
    aborted: bytes  # i64 each: offset of the marker, first offset, producer id, last stable offset then; big-endian
    is_continued: bool = False  # these are more aborted ones of the same snapshot


class TimersHeld(_Record, frozen=True, tag=59):
    """Only in snapshots: delayed records of a producer's open transaction; they become timers with its commit."""

    producer_id: int
    rows: bytes  # As `delay.rows` has them.


class TransactionalIdsForgotten(_Record, frozen=True, tag=58):
    transactional_ids: Sequence[str]


# -- Half messages: prepared and decided by their frames, so only what these do not say


class HalvesLooked(_Record, frozen=True, tag=50):
    """These half messages were due, and their producers asked if any was there."""

    offsets: Sequence[int]
    at_ms: int
    put_off: Sequence[int] = ()  # Due as well, but the host to ask has no place left: no look of theirs is counted.


class HalvesOpen(_Record, frozen=True, tag=51):
    """Only in snapshots: a page of `txn.half.OpenPage`."""

    offsets: bytes
    stored_ms: bytes
    dues_ms: bytes
    checks: bytes
    askers: bytes
    asker_names: Mapping[int, str]


class HalfVerdicts(_Record, frozen=True, tag=52):
    """Only in snapshots: the verdicts of the last half messages, up to the one before `end_offset`."""

    end_offset: int
    verdicts: bytes  # a byte each, zlib


class HalfIdsKnown(_Record, frozen=True, tag=53):
    """Only in snapshots: (offset, topic, id, is decided) of half messages that Kafka producers gave ids."""

    ids: Sequence[tuple[int, str, str, bool]]


# -- Delay. An id of a timer is 16 bytes: due time u64 | address u64, big-endian.


class DelayedBatch(_Record, frozen=True, tag=40):
    """A batch of an idempotent producer with delayed records: a repeated batch is answered, not appended."""

    key: int
    producer_id: int
    epoch: int
    first_sequence: int
    last_sequence: int


class TimersDelivered(_Record, frozen=True, tag=41):
    """The frames of this unit are the messages of these timers."""

    topic: int
    ids: bytes


class TimersCancelled(_Record, frozen=True, tag=42):
    """They will never be delivered: asked for, or (`is_dropped`) because there is no such topic any more."""

    ids: bytes
    at_ms: int
    is_dropped: bool = False


class TimerMoved(_Record, frozen=True, tag=43):
    """A pending timer is due at another time; its id stays."""

    given_ms: int
    address: int
    due_ms: int
    is_restored: bool = False  # in snapshots: the timer's row says it already
    now_address: int = 0  # then: of the entry that holds it now


class DelayPaused(_Record, frozen=True, tag=44):
    """Whether the deliveries of a topic wait."""

    topic: int
    is_paused: bool


class TimersPending(_Record, frozen=True, tag=45):
    """Only in snapshots: rows as `delay/rows.py` has them."""

    rows: bytes


class TimersCancelledBefore(_Record, frozen=True, tag=46):
    """Only in snapshots: due time, address and time of each cancel, u64."""

    rows: bytes


class TimerNames(_Record, frozen=True, tag=47):
    """Only in snapshots: rows as `delay/names.py` has them."""

    rows: bytes


class TimerRequested(_Record, frozen=True, tag=82):
    """The delayed message whose entry is the one before this answered a request with an `Idempotency-Key`."""

    request: bytes  # Hash of the key.
    body: bytes  # Hash of the request's body.
    due_ms: int
    key: int  # Of the queue to which it goes.
    behind: int  # Positions from its entry to this one.
    at_ms: int


class TimerRequestsKnown(_Record, frozen=True, tag=83):
    """Snapshot: (request, body, due_ms, address, queue key, at_ms) of each."""

    rows: list[tuple[bytes, bytes, int, int, int, int]]


class TimerTablesChanged(_Record, frozen=True, tag=80):
    """From now on exactly these sorted tables count; also in snapshots, without the rest."""

    manifest: Sequence[Sequence[int]]  # The fields of `delay.table_format.TableEntry`.
    flushed: bytes  # Keys, due time u64 | address u64, of timers that a new table has instead of the memtable.
    deleted: bytes  # Keys of timers that new tables have, and that are deleted.
    counted_to: int  # Position: the tables' files have the deletions that the log has below it.


class TableTimersDeleted(_Record, frozen=True, tag=81):
    """Only in snapshots: keys of timers that are deleted, though the tables' files may not say so."""

    keys: bytes


# -- Schedules


class BurstOfRuns(NamedTuple):
    delay_ms: int
    period_ms: int
    count: int | None  # type: ignore[assignment]  # hides tuple.count


class ScheduleRegistered(_Record, frozen=True, tag=48):
    """A recurring message: either `period_ms` or `expression` and `zone` say when. Without `due_ms` it has ended."""

    name: str
    key: int  # of the queue it goes to
    form: int
    frame: bytes  # A pending message (`bridge/data/pending_frames.py`).
    number: int  # of the next run
    due_ms: int | None
    missed: str
    period_ms: int | None = None
    start_ms: int | None = None
    expression: str | None = None
    zone: str | None = None
    until_ms: int | None = None
    count: int | None = None
    burst: BurstOfRuns | None = None
    is_kept: bool = True  # when it has ended


class ScheduleStepped(_Record, frozen=True, tag=49):
    """The next run; without `due_ms` there is none, and `is_removed` says that it was taken away."""

    name: str
    number: int | None = None
    due_ms: int | None = None
    is_removed: bool = False


# -- Messages that expire


class QueuesExpire(_Record, frozen=True, tag=64):
    """From now on messages of these queues may have an expiry of their own."""

    keys: Sequence[int]


class MessagesExpired(_Record, frozen=True, tag=65):
    """A RocketMQ group has behind it what expired at these offsets: its dead letters are in the same unit."""

    group: str  # by its Kafka spelling
    key: int
    ranges: Sequence[tuple[int, int]]  # from, up to and without
    is_restored: bool = False  # in snapshots: these are all


# -- RocketMQ's POP consumers


class PopTaken(_Record, frozen=True, tag=60):
    """A group popped messages of a queue; they come back at `due_ms` unless they are settled before."""

    group: str  # by its Kafka spelling
    key: int
    start_offset: int
    pop_ms: int
    deltas: Sequence[int]  # of the messages' offsets, from the first
    due_ms: int
    next_offset: int
    is_ordered: bool = False
    failures: Sequence[int] = ()  # In order: how often each message came due before; empty if none did.
    attempt_id: str = ""


class PopSettled(_Record, frozen=True, tag=61):
    """Some of these messages were acked, or given back to the group's retry topic in the same unit."""

    group: str
    key: int
    start_offset: int
    pop_ms: int
    deltas: Sequence[int]


class PopDelayed(_Record, frozen=True, tag=62):
    """The consumer of one of these messages asked for more time; it is another pop then, but in order."""

    group: str
    key: int
    start_offset: int
    pop_ms: int
    offset: int
    new_pop_ms: int
    due_ms: int


class RequestModeSet(_Record, frozen=True, tag=63):
    """Whether a group's consumers pull or pop a topic, where the broker assigns their queues."""

    group: str  # by its RocketMQ name; so the topic
    topic: str
    mode: str
    shared_queues: int


# -- Name server


class KeyValueKept(_Record, frozen=True, tag=68):
    """What a RocketMQ tool keeps at the name server; None: it is gone."""

    namespace: str
    key: str
    value: str | None


Record = (
    ClusterNamed
    | ClockDoubted
    | RecordsSetAside
    | TopicCreated
    | TopicChanged
    | TopicDeleted
    | TopicNumbersUsed
    | LeaderEpochsStarted
    | GroupOffsetsCommitted
    | GroupOffsetsDeleted
    | GroupDeleted
    | GroupConfigured
    | ProducerIdsReserved
    | ProducerWindows
    | QueuesExpire
    | MessagesExpired
    | PopTaken
    | PopSettled
    | PopDelayed
    | RequestModeSet
    | KeyValueKept
    | TransactionalIdSettled
    | TransactionGrew
    | QueueTransactions
    | TransactionalIdsForgotten
    | TimersHeld
    | HalvesLooked
    | HalvesOpen
    | HalfVerdicts
    | HalfIdsKnown
    | DelayedBatch
    | TimersDelivered
    | TimersCancelled
    | TimerMoved
    | TimerRequested
    | TimerRequestsKnown
    | DelayPaused
    | TimersPending
    | TimersCancelledBefore
    | TimerNames
    | TimerTablesChanged
    | TableTimersDeleted
    | ScheduleRegistered
    | ScheduleStepped
)

_encoder = msgspec.msgpack.Encoder(uuid_format="bytes")
_decoder: msgspec.msgpack.Decoder[Record] = msgspec.msgpack.Decoder(Record)

encode = _encoder.encode

TYPES: Mapping[int, type[Record]] = {each.__struct_config__.tag: each for each in get_args(Record)}  # By tag.


class Undecodable(ValueError):
    """The bytes of a stored record are not what its tag promises."""


def decode(payload: bytes) -> Record:
    """Read one record; raises `Undecodable`, and `Corruption` for one of a newer version."""
    try:
        return _decoder.decode(payload)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:  # ValidationError is the first
        tag = tag_of(payload)
        if tag is not None and tag not in TYPES:
            raise Corruption(
                f"a state record has tag {tag}, which this version does not know: "
                "the log was written by a newer version of Duolog; start that version"
            ) from error
        name = TYPES[tag].__name__ if tag is not None else "state record"
        raise Undecodable(f"{name} of {len(payload)} bytes: {error}") from error


def tag_of(payload: bytes) -> int | None:
    """Give the tag of an encoded record; None if there is none: the bytes are no array that begins with a number."""
    unpacker = msgspec.msgpack.Decoder(list[msgspec.Raw])
    try:
        tag = msgspec.msgpack.decode(unpacker.decode(payload)[0])
    except (msgspec.DecodeError, IndexError):
        return None
    return tag if type(tag) is int else None


def name_of(payload: bytes) -> str:
    """Give the name of an encoded record's type; empty if it has none."""
    record_type = TYPES.get(tag_of(payload) or 0)
    return "" if record_type is None else record_type.__name__
