"""Keeps the Kafka batches that RocketMQ clients read in several pulls inflated, so that each is inflated once."""

from collections import OrderedDict
from typing import Final

from duolog.protocol.errors import ProtocolError
from duolog.protocol.kafka import record_reader
from duolog.protocol.kafka.record_batch import Record
from duolog.protocol.kafka.record_reader import FIRST, Mark, OpenBatch
from duolog.store.entry import Stored

MARKS_MAX: Final = 64  # Marks in one batch. As many readers continue in the batch without a search for their offset.
RECORDS_WALKED: Final = 256  # Records that are read at a time on the way to an offset.


class _OpenBatch:
    """An inflated batch, and the marks from which reading can continue."""

    __slots__ = ("batch", "marks")

    def __init__(self, batch: OpenBatch) -> None:
        self.batch = batch
        self.marks: dict[int, Mark] = {batch.header.base_offset: FIRST}  # By offset, the oldest first.


class OpenBatches:
    """A cache of inflated batches in the order of their last use, limited to `bytes_max` inflated bytes.

    The batch that was used last stays even if it alone is larger, because each pull would inflate it again otherwise.
    """

    def __init__(self, bytes_max: int, inflate_bytes_max: int) -> None:
        self._bytes_max, self._inflate_bytes_max = bytes_max, inflate_bytes_max
        self._opened: OrderedDict[int, _OpenBatch] = OrderedDict()  # By the position of the entry.
        self._bytes = 0
        self.inflated_bytes = 0  # Since the start; a batch that is inflated twice counts twice.

    def read(self, entry: Stored, offset: int, max_count: int, max_bytes: int) -> tuple[list[Record], int]:
        """Read records of a batch from `offset` on; return them and the offset to continue from.

        At least one record is read if there is one; a control batch has none. Raises ProtocolError if the next
        record is invalid.
        """
        opened = self._open(entry)
        header, body = opened.batch
        if header.is_control:
            return [], entry.next_offset
        mark = opened.marks.get(offset) or _walk(opened, offset)
        count = min(max_count, max(1, max_bytes * header.record_count // max(len(body), 1)))
        records, next_mark = _read_sound(opened.batch, mark, count)
        if next_mark.skipped == header.record_count:
            return records, entry.next_offset
        next_offset = records[-1].offset + 1
        if len(opened.marks) == MARKS_MAX:
            _start, oldest, *_ = opened.marks
            del opened.marks[oldest]
        opened.marks[next_offset] = next_mark
        return records, next_offset

    def _open(self, entry: Stored) -> _OpenBatch:
        opened = self._opened.get(entry.position)
        if opened is not None:
            self._opened.move_to_end(entry.position)
            return opened
        opened = self._opened[entry.position] = _OpenBatch(
            record_reader.open_batch(entry.frame, self._inflate_bytes_max)
        )
        self._bytes += len(opened.batch.body)
        self.inflated_bytes += len(opened.batch.body)
        while self._bytes > self._bytes_max and len(self._opened) > 1:
            _, oldest = self._opened.popitem(last=False)
            self._bytes -= len(oldest.batch.body)
        return opened


def _read_sound(batch: OpenBatch, mark: Mark, count: int) -> tuple[list[Record], Mark]:
    """Read up to `count` records, fewer if one of them is invalid. Raises ProtocolError if the next one is invalid."""
    while True:
        try:
            return record_reader.read_records(batch, mark, count)
        except ProtocolError:
            if count == 1:
                raise
            count //= 2


def _walk(opened: _OpenBatch, offset: int) -> Mark:
    """Find the mark of the first record at or after `offset`, from the nearest mark before it.

    The records in between are read, at 1.5 us for each, only if one of them is invalid or their offsets have a gap.
    """
    at = max(known for known in opened.marks if known <= offset)
    mark = opened.marks[at]
    if (found_mark := record_reader.skip_records(opened.batch, mark, offset - at)) is not None:
        return found_mark
    step = RECORDS_WALKED
    while at < offset and mark.skipped < opened.batch.header.record_count:
        found, next_mark = _read_sound(opened.batch, mark, min(step, offset - at))
        if found[-1].offset < offset:
            at, mark = found[-1].offset + 1, next_mark
        elif len(found) == 1:
            break  # The offsets have a gap before this record.
        else:
            step = len(found) // 2
    return mark
