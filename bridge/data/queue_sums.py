"""What a range of a queue holds, for whoever has a copy and wants to prove it: counts, gaps, checksums.

    step of offsets      one sum: [start, end), records, checksum (protocol/checksum.py, added up)
    absent               offsets of the range that are no records: markers, and what was aborted

Computed as a Kafka reader sees the queue, batch by batch, a few records at a time; between them the loop turns.
"""

from collections.abc import Iterator, Sequence
from typing import Any, Final, NamedTuple

from duolog.protocol.checksum import record_checksum
from duolog.protocol.errors import ProtocolError
from duolog.protocol.kafka.record_batch import (
    FIRST,
    OpenBatch,
    Record,
    read_records,
    records_in_slice,
)

SUMS_MAX: Final = 1000  # of one answer
ABSENT_MAX: Final = 1000  # ranges of one answer, after which it ends
BYTES_IN_SLICE: Final = 1 << 20
RECORDS_IN_SLICE: Final = 64  # about half a millisecond


class Sum(NamedTuple):
    start: int
    end: int
    records: int
    checksum: int


class RangeSums:
    """Adds up the records of [start, end), which come in the order of their offsets."""

    def __init__(self, start: int, end: int, step: int) -> None:
        assert step > 0, f"sums over {step} offsets"
        self.at = start  # what lies before it is added up
        self.absent: list[tuple[int, int]] = []
        self._end, self._step = end, step
        self._records: dict[int, int] = {}  # by number of the step
        self._checksums: dict[int, int] = {}
        self._start = start

    @property
    def is_done(self) -> bool:
        """The range is added up, or the answer is as long as it may be."""
        steps = (self.at - self._start) // self._step
        return self.at >= self._end or steps >= SUMS_MAX or len(self.absent) >= ABSENT_MAX

    def add(self, records: Sequence[Record]) -> None:
        """Add records; those outside the range do not count."""
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
        """What lies between the last record and `offset` is no record."""
        offset = min(offset, self._end)
        if offset > self.at:
            self.absent.append((self.at, offset))
            self.at = offset

    def answer(self) -> dict[str, Any]:
        """Say what was added up so far; it goes on at `next`."""
        return {
            "start": self._start,
            "next": self.at,
            "absent": self.absent,
            "sums": [sum_._asdict() for sum_ in self._sums()],
        }

    def _sums(self) -> Iterator[Sum]:
        for number in range(-(-(self.at - self._start) // self._step)):
            start = self._start + number * self._step
            end = min(start + self._step, self.at)
            yield Sum(start, end, self._records.get(number, 0), self._checksums.get(number, 0))


def add_batch(sums: RangeSums, opened: OpenBatch) -> Iterator[None]:
    """Add an open batch, as a generator: each turn of it is one slice of work. Raises ProtocolError."""
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
