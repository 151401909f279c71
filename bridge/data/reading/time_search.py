"""Finds the record of a timestamp inside a batch: at once in a small one, in a reader thread in any other."""

import logging
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Final

from duolog.bridge.data.reading.later import InThread, Later
from duolog.bridge.records import frame_formats
from duolog.protocol.errors import ProtocolError
from duolog.protocol.kafka import record_batch, record_reader
from duolog.store.entry import Stored
from duolog.store.workers import Executor

TIMES_AT_ONCE_MAX: Final = 256  # Records of a batch that are looked at for a time in the loop,
INFLATED_AT_ONCE_MAX: Final = 256 << 10  # if they are not longer than this.

FoundTime = tuple[int, int]  # Offset and timestamp.

logger = logging.getLogger("bridge")


def find_time_in(
    entry: Stored, timestamp_ms: int, readers: Executor, *, log_append_time: bool, inflate_bytes_max: int
) -> "FoundTime | Later[FoundTime | None]":
    """Find the first record of the entry with at least that timestamp; the start of its batch if there is none."""
    if entry.form == frame_formats.ROCKETMQ:
        return entry.base_offset, entry.stored_ms if log_append_time else entry.timestamp_ms
    if entry.count <= TIMES_AT_ONCE_MAX and len(entry.frame) <= INFLATED_AT_ONCE_MAX:
        with suppress(ProtocolError):  # The thread inflates more, and reports what is wrong.
            found = record_reader.find_timestamp(entry.frame, timestamp_ms, INFLATED_AT_ONCE_MAX)
            return found or _start_of(entry)
    run = partial(record_reader.find_timestamp, entry.frame, timestamp_ms, inflate_bytes_max)
    return Later(InThread(readers, partial(_sound, entry, run)), lambda found: found)


def _start_of(entry: Stored) -> FoundTime:
    """Give the start of a batch: retention took the record that was looked for, or the header lied; never later."""
    return entry.base_offset, record_batch.read_header(entry.frame).base_timestamp


def _sound(entry: Stored, find: Callable[[], FoundTime | None]) -> FoundTime:
    try:
        found = find()
    except ProtocolError as error:
        logger.warning("no timestamps in batch offset=%d reason=%r", entry.base_offset, str(error))
        found = None
    return found or _start_of(entry)
