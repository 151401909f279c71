"""The row of a pending timer: 32 bytes, which are sorted and searched without an object for each timer.

    due u64 | address u64 | queue key u64 | frame size u32 | marks u16 | form u8 | 0        32 bytes, big-endian

`marks` has the number of the timer's quota entity (`delay/quota_entities.py`) and the size of its name, which is 0 or
8: the bit of 8 is set if there is a name, and the other 15 bits are the number. `address` is the position of the
pending entry in the log. It is unique, and ascending in the order of arrival. (due, address) is the *key* of a timer;
timers are delivered in the order of their keys. Fields are big-endian, so rows are sorted by their bytes.
"""

from collections.abc import Iterable
from struct import Struct
from typing import Final, NamedTuple

from duolog.store.index.queue import QUEUE_ID_BITS

ROW: Final = Struct(">QQQIHBx")
ROW_SIZE: Final = ROW.size
KEY: Final = Struct(">QQ")  # A timer's key, or its id, which is the first key that the timer had.
KEY_SIZE: Final = KEY.size
TOPIC_AT: Final = 16  # The first bytes of a queue key are the topic number.
TOPIC_END: Final = 22
TOPIC_SHIFT: Final = QUEUE_ID_BITS  # A queue key is topic number << 16 | queue id.
NAME_SIZE: Final = 8  # The size of a name in an entry and in a sorted table; also the bit of `marks` for a name.
ENTITIES_MAX: Final = (1 << 15) - 1

TimerKey = tuple[int, int]  # due_ms, address
TimerId = tuple[int, int]


class Timer(NamedTuple):
    """One pending message."""

    due_ms: int
    address: int  # The position of its entry in the log.
    queue_key: int  # The key of the queue to which it is delivered.
    size: int  # The size of its frame.
    marks: int  # Its quota entity's number, and the size of its name, the hash of topic and sender's key (`marks_of`).
    form: int  # Its frame format.

    @property
    def topic(self) -> int:
        return self.queue_key >> TOPIC_SHIFT


def marks_of(entity: int, name_size: int) -> int:
    """Return the marks of a timer; entity 0 means that the timer counts for no quota."""
    return (entity & ~7) << 1 | entity & 7 | name_size


def entity_of(marks: int) -> int:
    return marks >> 1 & ~7 | marks & 7


def pack_row(timer: Timer) -> bytes:
    return ROW.pack(*timer)


def pack_keys(keys: Iterable[TimerKey]) -> bytes:
    """Join the keys, or the ids, of timers."""
    return b"".join([KEY.pack(*key) for key in keys])


def rows_of(rows: bytes) -> list[bytes]:
    """Split joined rows into single rows."""
    return [rows[at : at + ROW_SIZE] for at in range(0, len(rows), ROW_SIZE)]


def lower(rows: bytes, key: bytes) -> int:
    """Return the byte at which the first row with this packed key or a greater one begins; the rows are sorted."""
    if key <= rows[:KEY_SIZE]:
        return 0
    if rows[-ROW_SIZE : KEY_SIZE - ROW_SIZE] < key:
        return len(rows)
    if key <= rows[ROW_SIZE : ROW_SIZE + KEY_SIZE]:  # Often one row is before the key: one timer is due.
        return ROW_SIZE
    low, high = 2, len(rows) // ROW_SIZE
    while low < high:
        middle = (low + high) // 2
        at = middle * ROW_SIZE
        if rows[at : at + KEY_SIZE] < key:
            low = middle + 1
        else:
            high = middle
    return low * ROW_SIZE
