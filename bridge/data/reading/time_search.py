"""Finds the record with a timestamp in a batch: in the loop if the batch is small, otherwise in a reader thread."""

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

# A batch with at most so many records and inflated bytes is searched in the loop.
TIMES_AT_ONCE_MAX: Final = 256
INFLATED_AT_ONCE_MAX: Final = 256 << 10

FoundTime = tuple[int, int]  # Offset and timestamp.

logger = logging.getLogger("data")


def find_time_in(
    entry: Stored, timestamp_ms: int, readers: Executor, *, log_append_time: bool, inflate_bytes_max: int
) -> "FoundTime | Later[FoundTime | None]":
    """Find the first record of the entry with this timestamp or a later one; the batch's first if there is none."""
    if entry.form == frame_formats.ROCKETMQ:
        return entry.base_offset, entry.stored_ms if log_append_time else entry.timestamp_ms
    if entry.count <= TIMES_AT_ONCE_MAX and len(entry.frame) <= INFLATED_AT_ONCE_MAX:
        with suppress(ProtocolError):  # The thread inflates more, and logs the error.
            found = record_reader.find_timestamp(entry.frame, timestamp_ms, INFLATED_AT_ONCE_MAX)
            return found or _start_of(entry)
    run = partial(record_reader.find_timestamp, entry.frame, timestamp_ms, inflate_bytes_max)
    return Later(InThread(readers, partial(_sound, entry, run)), lambda found: found)


def _start_of(entry: Stored) -> FoundTime:
    """Return (base offset, base timestamp) of a batch, for a timestamp that no record has: an offset never too high."""
    return entry.base_offset, record_batch.read_header(entry.frame).base_timestamp


def _sound(entry: Stored, find: Callable[[], FoundTime | None]) -> FoundTime:
    try:
        found = find()
    except ProtocolError as error:
        logger.warning("timestamps of a batch not read offset=%d reason=%r", entry.base_offset, str(error))
        found = None
    return found or _start_of(entry)
