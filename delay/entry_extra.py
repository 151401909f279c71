"""The layout of the `extra` field of pending entries: what a timer has besides its message.

    pending           kind u8 = 0x44 | queue key of the destination u64 | due u64 | hash u64 if it has a name
    in a transaction  kind u8 = 0x54 | key | due | producer id u64      a timer after the transaction's commit
    stored again      kind u8 = 0x46 | key | due | hash u64 or 0 | id, 2 u64 | table key, 2 u64
                      a rescheduled message that was in a sorted table under its table key, and keeps its id

All fields are big-endian. `hash` is `name_hash` of the destination's topic and the sender's own key. Each layout ends
with `entity u16` if the timer has a quota entity (`delay/quota_entities.py`).
"""

from struct import Struct
from typing import Final, NamedTuple

from duolog.delay.names import name_hash
from duolog.delay.rows import NAME_SIZE, TOPIC_SHIFT, TimerId, TimerKey

PENDING_KIND: Final = 0x44  # Differs from all kinds in the `extra` of RocketMQ's op messages, which are 0 to 9.
HELD_KIND: Final = 0x54
STORED_AGAIN_KIND: Final = 0x46

_KINDS: Final = frozenset(bytes([kind]) for kind in (PENDING_KIND, HELD_KIND, STORED_AGAIN_KIND))
_PENDING: Final = Struct(">BQQ")
_HASH: Final = Struct(">Q")
_HELD: Final = Struct(">BQQQ")
_STORED_AGAIN: Final = Struct(">BQQQQQQQ")
HASH_AT: Final = _PENDING.size  # The byte of the hash, in a pending entry and in one that was stored again.
_ENTITY: Final = Struct(">H")


class StoredAgain(NamedTuple):
    """The fields in the extra of an entry that was stored again."""

    queue_key: int  # The key of the destination.
    due_ms: int
    hashed: int  # 0: the sender gave no key.
    timer_id: TimerId
    table_key: TimerKey
    entity: int = 0


def encode_pending(queue_key: int, due_ms: int, name: bytes = b"") -> bytes:
    """Make the extra of a pending entry; `name` is the sender's own key."""
    extra = _PENDING.pack(PENDING_KIND, queue_key, due_ms)
    return extra + _HASH.pack(name_hash(queue_key >> TOPIC_SHIFT, name)) if name else extra


def is_pending(extra: bytes) -> bool:
    """Return whether the `extra` of an entry is that of a pending one."""
    return extra[:1] in _KINDS


def destination_of(extra: bytes) -> int:
    """Return the queue key of the destination of a pending entry."""
    return int.from_bytes(extra[1:9], "big")


def due_ms_of(extra: bytes) -> int:
    """Return the due time of a pending entry."""
    return int.from_bytes(extra[9:17], "big")


def with_entity(extra: bytes, entity: int) -> bytes:
    """Add the number of the entity to the extra of a pending entry."""
    return extra + _ENTITY.pack(entity)


def _entity_at(extra: bytes, at: int) -> int:
    return int(_ENTITY.unpack_from(extra, at)[0]) if len(extra) > at else 0


def decode_pending(extra: bytes) -> tuple[int, int, int, int]:
    """Return (queue key of the destination, due time, hash of topic and the sender's key or 0, entity or 0)."""
    _, queue_key, due_ms = _PENDING.unpack_from(extra)
    if len(extra) == HASH_AT:
        return queue_key, due_ms, 0, 0
    if len(extra) < HASH_AT + NAME_SIZE:
        return queue_key, due_ms, 0, _entity_at(extra, HASH_AT)
    return queue_key, due_ms, _HASH.unpack_from(extra, HASH_AT)[0], _entity_at(extra, HASH_AT + NAME_SIZE)


def encode_stored_again(found: StoredAgain) -> bytes:
    """Make the extra of a pending entry whose message comes from a sorted table."""
    extra = _STORED_AGAIN.pack(STORED_AGAIN_KIND, *found[:3], *found.timer_id, *found.table_key)
    return with_entity(extra, found.entity) if found.entity else extra


def decode_stored_again(extra: bytes) -> StoredAgain:
    _, queue_key, due_ms, hashed, *keys = _STORED_AGAIN.unpack_from(extra)
    given_ms, given_address, table_ms, table_address = keys
    entity = _entity_at(extra, _STORED_AGAIN.size)
    return StoredAgain(queue_key, due_ms, hashed, (given_ms, given_address), (table_ms, table_address), entity)


def encode_held(queue_key: int, due_ms: int, producer_id: int) -> bytes:
    """Make the extra of an entry that waits for the commit of a Kafka transaction."""
    return _HELD.pack(HELD_KIND, queue_key, due_ms, producer_id)


def decode_held(extra: bytes) -> tuple[int, int, int, int]:
    """Return (queue key of the destination, due time, producer id, entity or 0)."""
    _, queue_key, due_ms, producer_id = _HELD.unpack_from(extra)
    return queue_key, due_ms, producer_id, _entity_at(extra, _HELD.size)
