"""Verifies the records of a produced batch as Kafka's LogValidator does, so that all stored records can be decoded.

The function `walk` verifies all records of a batch. It is written in C (`_records.c`). If it could not be compiled at
the installation, the function of the same name in `record_walk.py` is used, which takes fifty times as long. This
module has the error messages for the results.

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
HEADERS_MAX: Final = 1 << 18  # Headers of all records in one batch.

# The time to verify one record or header, as the number of bytes that are decompressed in the same time. The caller
# limits the sum of both for each request.
COST_BYTES: Final = 16 if IN_C else 512


class Checked(NamedTuple):
    """The properties of a batch whose records are valid.

    The timestamps are those in the records, even if the batch has LogAppendTime.
    """

    earliest_ms: int
    latest_ms: int
    has_null_key: bool
    has_name: bool  # Whether a header key begins with one of the given names.
    cost_bytes: int  # The time of the verification in units of COST_BYTES.


def check_records(data: Buffer, start: int, header: BatchHeader, names: tuple[bytes, ...] = ()) -> Checked:
    """Verify the records of a batch, which are the decompressed bytes `data[start:]`. Raises InvalidBatch."""
    found = walk(data, start, header.record_count, HEADERS_MAX, names)
    if len(found) == 4:
        raise _refused(found, len(data) - start, header.record_count)
    earliest, latest, headers, has_null_key, has_name = found
    base_ms = header.base_timestamp
    cost_bytes = (header.record_count + headers) * COST_BYTES
    return new_tuple(Checked, (base_ms + earliest, base_ms + latest, has_null_key, has_name, cost_bytes))


_SAID: Final = {
    Flaw.END: "the records end after {at} bytes, and the batch has {count} records",
    Flaw.VARINT: "varint longer than {value} bytes at {at}",
    Flaw.OFFSET: "offset delta {value}; the offset deltas of a batch are 0, 1, 2 and so on",
    Flaw.KEY: "a key of {value} bytes",
    Flaw.VALUE: "a value of {value} bytes",
    Flaw.COUNT: "{value} headers",
    Flaw.HEADER_KEY: "a header key of {value} bytes",
    Flaw.HEADER_VALUE: "a header value of {value} bytes",
    Flaw.SIZE: "its fields end at byte {at}, and by its size it ends at byte {value}",
}


def _refused(found: tuple[int, int, int, int], size: int, count: int) -> InvalidBatch:
    fault, index, at, value = found
    if fault == Flaw.HEADERS:
        return InvalidBatch(Reason.TOO_LARGE, f"batch of more than {HEADERS_MAX} headers")
    if fault == Flaw.REST:
        return InvalidBatch(Reason.INVALID, f"{count} of {count} records take {at} bytes of {size}")
    message = _SAID[Flaw(fault)].format(at=at, value=value, count=count)
    return InvalidBatch(Reason.INVALID, f"record {index} of the batch: {message}", (RecordError(index, message),))
