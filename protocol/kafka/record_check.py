"""Check the records of a produced batch, as Kafka's `LogValidator` does, so that every reader can read what is stored.

The walk through the records is one function in C (`_records.c`). Where it could not be compiled at the installation,
`record_walk.py` does the same in Python, at fifty times the price. This module has the words for what they find.

Source: Kafka's `LogValidator.java`, `DefaultRecord.java`.
"""

from typing import Final, NamedTuple

from duolog.protocol.kafka import record_walk
from duolog.protocol.kafka.compression import Buffer
from duolog.protocol.kafka.primitive_types import new_tuple
from duolog.protocol.kafka.record_batch import BatchHeader, InvalidBatch, Reason, RecordError
from duolog.protocol.kafka.record_walk import Flaw

try:
    from duolog.protocol.kafka._records import walk
except ImportError:
    from duolog.protocol.kafka.record_walk import walk

IN_C: Final = walk is not record_walk.walk
HEADERS_MAX: Final = 1 << 18  # of one batch

# What checking a record or header costs, as bytes to inflate: a budget of both bounds a request.
COST_BYTES: Final = 16 if IN_C else 512


class Checked(NamedTuple):
    """What is known of a batch whose records are sound.

    The timestamps are those in the records, also where a reader would see LogAppendTime.
    """

    earliest_ms: int
    latest_ms: int
    has_null_key: bool
    has_name: bool  # A header key begins with one of the names that were looked for.
    cost_bytes: int


def check_records(data: Buffer, start: int, header: BatchHeader, names: tuple[bytes, ...] = ()) -> Checked:
    """Check the records of a batch, which are `data` from `start` on, inflated. Raises InvalidBatch."""
    found = walk(data, start, header.record_count, HEADERS_MAX, names)
    if len(found) == 4:
        raise _refused(found, len(data) - start, header.record_count)
    earliest, latest, headers, has_null_key, has_name = found
    base_ms = header.base_timestamp
    cost_bytes = (header.record_count + headers) * COST_BYTES
    return new_tuple(Checked, (base_ms + earliest, base_ms + latest, has_null_key, has_name, cost_bytes))


_SAID: Final = {
    Flaw.END: "the records end after {at} bytes, and the batch says {count}",
    Flaw.VARINT: "varint longer than {value} bytes at {at}",
    Flaw.OFFSET: "offset delta {value}, where the batch's offsets rise from 0 by 1",
    Flaw.KEY: "a key of {value} bytes",
    Flaw.VALUE: "a value of {value} bytes",
    Flaw.COUNT: "{value} headers",
    Flaw.HEADER_KEY: "a header key of {value} bytes",
    Flaw.HEADER_VALUE: "a header value of {value} bytes",
    Flaw.SIZE: "its fields end at {at}, and by its size it ends at {value}",
}


def _refused(found: tuple[int, int, int, int], size: int, count: int) -> InvalidBatch:
    fault, index, at, value = found
    if fault == Flaw.HEADERS:
        return InvalidBatch(Reason.TOO_LARGE, f"batch of more than {HEADERS_MAX} headers")
    if fault == Flaw.REST:
        return InvalidBatch(Reason.INVALID, f"{count} of {count} records take {at} bytes of {size}")
    message = _SAID[Flaw(fault)].format(at=at, value=value, count=count)
    return InvalidBatch(Reason.INVALID, f"record {index} of the batch: {message}", (RecordError(index, message),))
