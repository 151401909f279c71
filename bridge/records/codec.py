"""The codec of state records, and the union of all their types.

Each type has its own tag: a new type takes an unused one, and msgspec refuses two types with the same tag. The checksum
of a log entry is verified before its record is decoded. So an unknown tag means that a newer version wrote the record;
`decode` raises `Corruption`, and the broker does not start, because the next checkpoint would lose the state of that
version. Other bytes that are not a record were written by a bug; `decode` raises `Undecodable`, and the record is set
aside (`bridge/monitoring/poison.py`).
"""

from collections.abc import Mapping
from typing import get_args

import msgspec

from duolog.bridge.records.broker import ClockDoubted, ClusterNamed, KeyValueKept, RecordsAcknowledged, RecordsSetAside
from duolog.bridge.records.expiry import MessagesExpired, QueuesExpire
from duolog.bridge.records.groups import (
    GroupConfigured,
    GroupDeleted,
    GroupOffsetsCommitted,
    GroupOffsetsDeleted,
    RequestModeSet,
)
from duolog.bridge.records.half_messages import HalfIdsKnown, HalfVerdicts, HalvesChecked, HalvesOpen
from duolog.bridge.records.pop import PopDelayed, PopSettled, PopTaken
from duolog.bridge.records.producers import ProducerIdsReserved, ProducerWindows
from duolog.bridge.records.schedules import ScheduleRegistered, ScheduleStepped
from duolog.bridge.records.security import QuotasSet, RulesAdded, RulesRemoved, UserRemoved, UserSet
from duolog.bridge.records.timers import (
    DelayedBatch,
    DelayPaused,
    QuotaEntityKnown,
    TableTimersDeleted,
    TableTombstones,
    TimerMoved,
    TimerNames,
    TimerRequested,
    TimerRequestsKnown,
    TimersCancelled,
    TimersCancelledBefore,
    TimersCredited,
    TimersDelivered,
    TimersPending,
    TimerTablesChanged,
)
from duolog.bridge.records.topics import (
    LeaderEpochsStarted,
    OriginsAdded,
    TopicChanged,
    TopicCreated,
    TopicDeleted,
    TopicNumbersUsed,
)
from duolog.bridge.records.transactions import (
    QueueTransactions,
    TimersHeld,
    TransactionalIdSettled,
    TransactionalIdsForgotten,
    TransactionGrew,
)
from duolog.store.errors import Corruption

Record = (
    ClusterNamed
    | ClockDoubted
    | RecordsSetAside
    | RecordsAcknowledged
    | TopicCreated
    | TopicChanged
    | TopicDeleted
    | TopicNumbersUsed
    | LeaderEpochsStarted
    | OriginsAdded
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
    | HalvesChecked
    | HalvesOpen
    | HalfVerdicts
    | HalfIdsKnown
    | DelayedBatch
    | TimersDelivered
    | TimersCancelled
    | TimersCredited
    | QuotaEntityKnown
    | TimerMoved
    | TimerRequested
    | TimerRequestsKnown
    | DelayPaused
    | TimersPending
    | TimersCancelledBefore
    | TimerNames
    | TimerTablesChanged
    | TableTimersDeleted
    | TableTombstones
    | ScheduleRegistered
    | ScheduleStepped
    | UserSet
    | UserRemoved
    | RulesAdded
    | RulesRemoved
    | QuotasSet
)

_encoder = msgspec.msgpack.Encoder(uuid_format="bytes")
_decoder: msgspec.msgpack.Decoder[Record] = msgspec.msgpack.Decoder(Record)

encode = _encoder.encode

TYPES: Mapping[int, type[Record]] = {each.__struct_config__.tag: each for each in get_args(Record)}  # By tag.


class Undecodable(ValueError):
    """The bytes of a stored record do not decode as the type of its tag."""


def decode(payload: bytes) -> Record:
    """Decode one record. Raises `Undecodable`, and `Corruption` for a record of a newer version."""
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
    """Return the tag of an encoded record, or None if the bytes are not an array that begins with a number."""
    unpacker = msgspec.msgpack.Decoder(list[msgspec.Raw])
    try:
        tag = msgspec.msgpack.decode(unpacker.decode(payload)[0])
    except (msgspec.DecodeError, IndexError):
        return None
    return tag if type(tag) is int else None


def name_of(payload: bytes) -> str:
    """Return the name of an encoded record's type, or "" if the tag is unknown."""
    record_type = TYPES.get(tag_of(payload) or 0)
    return "" if record_type is None else record_type.__name__
