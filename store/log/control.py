"""Control entries: the entries that the store itself appends, for changes of queues and of the clock.

Their frame format is CONTROL_FORM. The fields `kind` and `key` of the entry's header and the payload have these
meanings; integers are big-endian:

    kind             key                     payload
    QUEUE            queue key               start_offset u64 | end_offset u64: the log start of a queue was raised
    TOPIC_DROPPED    topic number << 16      none: the queues of this topic were deleted
    CLOCK_STEPS      0                       a StepBack ... (`store/index/store_times.py`): all steps back in the log

These kinds are found in checkpoints and snapshots only (`store/recovery/checkpoint.py`):

    QUEUES           0                       a QueueRow ... of queue key u64 | start_offset u64 | end_offset u64
                                             | end_row u64: some of the queues; all QUEUES entries name all queues
    CHECKPOINT       0                       read_from u64 | closed u8
    SEGMENT          start of the segment    queue key u64 | last_offset u64 | ...: for some of the queues with entries
                                             in the segment, the last offset in it
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import IntEnum
from struct import Struct
from typing import NamedTuple

from duolog.store.entry import Buffer


class ControlKind(IntEnum):
    QUEUE = 1
    TOPIC_DROPPED = 2
    QUEUES = 3
    CHECKPOINT = 4
    SEGMENT = 5
    CLOCK_STEPS = 6


@dataclass(slots=True)
class Control:
    """One control entry, to be appended."""

    kind: ControlKind
    key: int = 0
    payload: bytes = b""


class QueueRow(NamedTuple):
    """The state of one queue in a checkpoint or snapshot."""

    key: int
    start_offset: int
    end_offset: int
    end_row: int  # The index rows below it are in files. Only the value in a checkpoint is used.


_OFFSETS = Struct(">QQ")
_QUEUE_ROW = Struct(">QQQQ")
_PAIR = Struct(">QQ")
_LOG_STATE = Struct(">QB")


def queue_control(key: int, start_offset: int, end_offset: int) -> Control:
    return Control(ControlKind.QUEUE, key, _OFFSETS.pack(start_offset, end_offset))


def read_queue_offsets(payload: Buffer) -> tuple[int, int]:
    """Return (start_offset, end_offset) of a QUEUE entry."""
    start_offset, end_offset = _OFFSETS.unpack(payload)
    return start_offset, end_offset


def queues_control(rows: Iterable[QueueRow]) -> Control:
    return Control(ControlKind.QUEUES, 0, b"".join(_QUEUE_ROW.pack(*row) for row in rows))


def read_queue_rows(payload: Buffer) -> Iterator[QueueRow]:
    return map(QueueRow._make, _QUEUE_ROW.iter_unpack(payload))


def segment_control(start: int, last_offsets: Iterable[tuple[int, int]]) -> Control:
    return Control(ControlKind.SEGMENT, start, b"".join(_PAIR.pack(*pair) for pair in last_offsets))


def read_last_offsets(payload: Buffer) -> dict[int, int]:
    return dict(_PAIR.iter_unpack(payload))


def checkpoint_control(read_from: int, closed: bool) -> Control:
    return Control(ControlKind.CHECKPOINT, 0, _LOG_STATE.pack(read_from, closed))


def read_log_state(payload: Buffer) -> tuple[int, bool]:
    """Return (read_from, closed) of a CHECKPOINT entry."""
    read_from, closed = _LOG_STATE.unpack(payload)
    return read_from, bool(closed)
