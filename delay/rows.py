"""Pending timers as rows of bytes, sorted and searched without an object for each.

    due u64 | address u64 | queue key u64 | frame size u32 | name size u16 | form u8 | 0    32 bytes, big-endian

`address` is the position of the pending entry in the log: unique, and rising with the order of arrival. (due, address)
is the *key* of a timer in the ordered map: timers are delivered in the order of their keys. As the fields are
big-endian, rows sort as bytes. A queue key of 0 marks a deleted row.
"""

from struct import Struct
from typing import Final, NamedTuple

ROW: Final = Struct(">QQQIHBx")
ROW_SIZE: Final = ROW.size
KEY: Final = Struct(">QQ")  # A timer's key, or its id: the key that it was first given.
KEY_SIZE: Final = KEY.size
QUEUE_KEY_AT: Final = 16
QUEUE_KEY_END: Final = 24
NO_QUEUE_KEY: Final = bytes(8)
TOPIC_SHIFT: Final = 16  # Of a queue key: topic number << 16 | queue id.

TimerKey = tuple[int, int]  # due_ms, address
TimerId = tuple[int, int]


class Timer(NamedTuple):
    """One pending message."""

    due_ms: int
    address: int  # Of the entry that holds it.
    key: int  # Of the queue to which it goes.
    size: int  # Of its frame.
    name_size: int  # Of the hash of the sender's own key; 0: the sender gave none.
    form: int  # Of its frame.

    @property
    def topic(self) -> int:
        return self.key >> TOPIC_SHIFT


def pack_row(timer: Timer) -> bytes:
    return ROW.pack(*timer)


def rows_of(rows: bytes) -> list[bytes]:
    """Split rows that come joined."""
    return [rows[at : at + ROW_SIZE] for at in range(0, len(rows), ROW_SIZE)]
