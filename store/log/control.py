"""Control entries: what recovery must know about queues and segments besides frames and state records.

Their form is CONTROL_FORM, and their `kind` is one of these; their content is the `key` and the payload:

    QUEUE            key; payload  start_offset u64 | end_offset u64         a log start moved
    TOPIC_DROPPED    key = topic number << 16                               its queues are gone
    CLOCK_STEPS      payload  as in `store/index/store_times.py`            where store times fall in the whole log

and only in checkpoints and snapshots (`store/recovery/checkpoint.py`):

    QUEUES           payload  one row for each queue                        some of the queues; all of them together
    CHECKPOINT       payload  read_from u64 | closed u8
    SEGMENT          key = start position                                   what may be live in it, or a part of that
                     payload  queue key u64 | last offset u64 | ...
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
    """One control entry, about to be appended."""

    kind: ControlKind
    key: int = 0
    payload: bytes = b""


class QueueRow(NamedTuple):
    """A queue as a checkpoint knows it."""

    key: int
    start_offset: int
    end_offset: int
    end_row: int  # The rows below it are in files; only a checkpoint's value can be trusted.


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
