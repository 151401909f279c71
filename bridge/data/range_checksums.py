"""Checksums of a range of a queue, by which a client compares its copy with the queue.

    sums      For each step of offsets: [start, end), the number of records, and the sum of their checksums
              (protocol/checksum.py).
    absent    The ranges of offsets that hold no record: transaction markers and aborted records.

The records are those that a Kafka consumer of committed records sees. They are added up batch by batch, a few records
at a time; the loop turns in between.
"""

from collections.abc import Iterator, Sequence
from typing import Any, Final, NamedTuple

from duolog.protocol.checksum import record_checksum
from duolog.protocol.errors import ProtocolError
from duolog.protocol.kafka.record_batch import Record
from duolog.protocol.kafka.record_reader import FIRST, OpenBatch, read_records, records_in_slice

SUMS_MAX: Final = 1000  # In one answer.
ABSENT_MAX: Final = 1000  # The maximum of ranges without records in an answer; the answer ends there.
BYTES_IN_SLICE: Final = 1 << 20
RECORDS_IN_SLICE: Final = 64  # This takes about half a millisecond.


class RangeChecksum(NamedTuple):
    """The records of the offsets from `start` to below `end`."""

    start: int
    end: int
    records: int
    checksum: int


class RangeChecksums:
    """Adds up the records of [start, end). The caller adds them in the order of their offsets."""

    def __init__(self, start: int, end: int, step: int) -> None:
        assert step > 0, f"sums over {step} offsets"
        self.at = start  # All records before this offset are added up.
        self.absent: list[tuple[int, int]] = []
        self._end, self._step = end, step
        self._records: dict[int, int] = {}  # By the number of the step.
        self._checksums: dict[int, int] = {}
        self._start = start

    @property
    def is_done(self) -> bool:
        """Return whether the whole range is summed, or the answer has its maximum length."""
        steps = (self.at - self._start) // self._step
        return self.at >= self._end or steps >= SUMS_MAX or len(self.absent) >= ABSENT_MAX

    def add(self, records: Sequence[Record]) -> None:
        """Add records; those outside the range are ignored."""
        for record in records:
            offset = record.offset
            if not self.at <= offset < self._end:
                continue
            self.skip_to(offset)
            number = (offset - self._start) // self._step
            self._records[number] = self._records.get(number, 0) + 1
            self._checksums[number] = self._checksums.get(number, 0) + record_checksum(record)
            self.at = offset + 1

    def skip_to(self, offset: int) -> None:
        """Note that the offsets between the last record and `offset` hold no record."""
        offset = min(offset, self._end)
        if offset > self.at:
            self.absent.append((self.at, offset))
            self.at = offset

    def answer(self) -> dict[str, Any]:
        """Return what was added up so far. A client goes on at the offset `next`."""
        return {
            "start": self._start,
            "next": self.at,
            "absent": self.absent,
            "sums": [sum_._asdict() for sum_ in self._sums()],
        }

    def _sums(self) -> Iterator[RangeChecksum]:
        for number in range(-(-(self.at - self._start) // self._step)):
            start = self._start + number * self._step
            end = min(start + self._step, self.at)
            yield RangeChecksum(start, end, self._records.get(number, 0), self._checksums.get(number, 0))


def add_batch(sums: RangeChecksums, opened: OpenBatch) -> Iterator[None]:
    """Add the records of an inflated batch; the generator yields after each slice. Raises ProtocolError."""
    header = opened.header
    mark, count = FIRST, records_in_slice(opened, RECORDS_IN_SLICE, BYTES_IN_SLICE)
    while mark.skipped < header.record_count:
        try:
            records, mark = read_records(opened, mark, count)
        except ProtocolError as error:
            raise ProtocolError(f"batch at offset {header.base_offset}: {error}") from error
        sums.add(records)
        yield
    sums.skip_to(header.last_offset + 1)
