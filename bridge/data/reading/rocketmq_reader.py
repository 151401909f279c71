"""The class RocketMQReader: reads the records of a queue for RocketMQ clients, all or those that match a filter.

filter          entries that the store reads                     entries that are decoded
none            entries from the offset on                       Kafka's batches
by tag          Kafka's batches, and RocketMQ's entries whose    all of these, because tags may have the same hash
                tag hash in the index matches
by condition    a few entries at a time                          all of these
"""

import logging
from typing import Final, NamedTuple

from duolog.bridge.data.reading.later import Later, then
from duolog.bridge.data.reading.open_batches import OpenBatches
from duolog.bridge.monitoring.metrics import Metrics
from duolog.bridge.records import frame_formats
from duolog.bridge.state.topic_table import Topic
from duolog.protocol.convert import to_rocketmq
from duolog.protocol.convert.to_rocketmq import Place
from duolog.protocol.errors import ProtocolError
from duolog.protocol.kafka import marker, record_batch
from duolog.protocol.kafka.record_batch import Record
from duolog.protocol.rocketmq.filters.subscription_filter import Filter
from duolog.protocol.rocketmq.messages.message import NO_HOST, stored_properties_of
from duolog.store.entry import Buffer, Stored
from duolog.store.index.queue import Queue
from duolog.store.index.scan import TagScan
from duolog.store.log.cold_read import ColdRead
from duolog.store.log.entry_reader import EntryReader
from duolog.store.log.format import entry_size
from duolog.txn.isolation import QueueIsolation

# Records that one pull decodes for a filter. Apache RocketMQ reads as many index rows (`maxFilterMessageSize`).
FILTERED_RECORDS_MAX: Final = 800
FILTERED_BYTES_MAX: Final = 4 << 20
INFLATED_BYTES_MAX: Final = 8 << 20  # Inflated bytes after which a read ends. One batch may be larger.
FEWEST_ENTRIES: Final = 64  # Entries of the first read for a condition; the later reads have up to MOST_ENTRIES.
MOST_ENTRIES: Final = 512
PASSED_ENTRIES_MAX: Final = 1000  # Entries of one pull, if some of them may be aborted.

logger = logging.getLogger("data")


class Records(NamedTuple):
    """The result of a read: one buffer for each record, and the offset of the next read."""

    buffers: list[Buffer]
    next_offset: int


class PullLimits(NamedTuple):
    """The queue of a read, and the limits of the result."""

    queue: Queue
    topic: Topic
    # Taken at the start of the read, like `until`, because the topic may be deleted while a thread reads.
    isolation: QueueIsolation | None
    max_count: int
    max_bytes: int
    until: int  # The offset at which the read ends.


class RocketMQReader:
    """Reads queues for RocketMQ clients. All methods raise `OffsetOutOfRange` and other `StoreError`.

    `store_host` is the packed address of the RocketMQ port, once the port listens.
    """

    def __init__(self, entries: EntryReader, opened: OpenBatches, metrics: Metrics) -> None:
        self.store_host = NO_HOST
        self._entries, self._opened, self._metrics = entries, opened, metrics

    # -- Without a filter

    def read(self, limits: PullLimits, offset: int) -> "Records | Later[Records]":
        """Return the records from `offset` on."""
        isolation = limits.isolation
        is_sparse = isolation is not None and isolation.has_aborted_from(offset)
        found = self._entries.read(
            limits.queue,
            offset,
            max_bytes=limits.max_bytes,
            until=limits.until,
            max_entries=PASSED_ENTRIES_MAX if is_sparse else limits.max_count,
        )
        return then(found, lambda stored: self._records(limits, stored, offset))

    def _records(self, limits: PullLimits, stored: list[Stored], offset: int) -> Records:
        # Usually all entries are RocketMQ's. Then the store's read has already applied the limits.
        max_count = limits.max_count
        buffers: list[Buffer] = [entry.frame for entry in stored if entry.form == frame_formats.ROCKETMQ]
        if len(buffers) == len(stored) and 0 < len(stored) <= max_count:
            return self._counted(buffers, stored[-1].next_offset)
        buffers, room, inflated_until = [], limits.max_bytes, self._opened.inflated_bytes + INFLATED_BYTES_MAX
        for entry in stored:
            if entry.form == frame_formats.ROCKETMQ:
                room -= len(entry.frame)
                if buffers and (room < 0 or len(buffers) == max_count):
                    break
                buffers.append(entry.frame)
                offset = entry.next_offset
            else:
                found = self._opened_records(limits, entry, offset, max_count - len(buffers), room)
                if found is None:
                    offset = entry.next_offset
                    break
                records, offset = found
                converted = self._converted(limits, entry, records)
                buffers += converted
                room -= sum(map(len, converted))
                if offset < entry.next_offset or self._opened.inflated_bytes >= inflated_until:
                    break
            if room <= 0 or len(buffers) >= max_count:
                break
        return self._counted(buffers, offset)

    # -- With a filter

    def read_tagged(self, limits: PullLimits, offset: int, wanted: Filter) -> "Records | Later[Records]":
        """Return the records from `offset` on that match a tag filter. There may be none among those that are read."""
        scan = TagScan(frame_formats.ROCKETMQ, wanted.codes)
        found = self._entries.read(
            limits.queue,
            offset,
            max_bytes=limits.max_bytes,
            until=limits.until,
            max_entries=limits.max_count,
            scan=scan,
        )
        return then(found, lambda stored: self._matching(limits, stored, offset, wanted, scan))

    def read_by_condition(self, limits: PullLimits, offset: int, wanted: Filter) -> "Records | Later[Records]":
        """Return records that match a condition. Reads a few entries at a time, until enough match or one is cold."""
        queue, until, max_count = limits.queue, limits.until, limits.max_count
        start, buffers, room = offset, list[Buffer](), limits.max_bytes
        entries = max(max_count, FEWEST_ENTRIES)
        inflated_until = self._opened.inflated_bytes + INFLATED_BYTES_MAX
        while True:
            found = self._entries.read(queue, offset, max_bytes=FILTERED_BYTES_MAX, until=until, max_entries=entries)
            if isinstance(found, ColdRead):
                if offset > start:
                    return Records(buffers, offset)
                return Later(found, lambda stored: self._matching(limits, stored, start, wanted))
            left = limits._replace(max_count=max_count - len(buffers), max_bytes=room)
            more = self._matching(left, found, offset, wanted)
            is_stuck, offset = more.next_offset == offset, more.next_offset
            buffers += more.buffers
            room -= sum(map(len, more.buffers))
            is_enough = len(buffers) >= max_count or room <= 0 or self._opened.inflated_bytes >= inflated_until
            if is_enough or is_stuck or offset >= until or offset - start >= FILTERED_RECORDS_MAX:
                return Records(buffers, offset)
            # As many entries as suffice if the same share of them matches, because each entry that is read costs time.
            per_wanted = (offset - start) / max(len(buffers), 1)
            entries = min(max(int((max_count - len(buffers)) * per_wanted) + 1, max_count), MOST_ENTRIES)

    def _matching(
        self, limits: PullLimits, stored: list[Stored], offset: int, wanted: Filter, scan: TagScan | None = None
    ) -> Records:
        """Return the records that match a filter. `next_offset` follows the records that do not match."""
        buffers: list[Buffer] = []
        room, max_count, is_wanted = limits.max_bytes, limits.max_count, wanted.wants
        opened_until = offset + FILTERED_RECORDS_MAX
        inflated_until = self._opened.inflated_bytes + INFLATED_BYTES_MAX
        for entry in stored:
            if entry.form == frame_formats.ROCKETMQ:
                if is_wanted(stored_properties_of(entry.frame)):
                    room -= len(entry.frame)
                    if buffers and room < 0:
                        break
                    buffers.append(entry.frame)
                offset = entry.base_offset + entry.count
            else:
                offset = max(offset, entry.base_offset)  # The scan may have skipped the entries before this one.
                found = self._matching_records(limits, entry, offset, max_count - len(buffers), wanted)
                if found is None:
                    offset = entry.next_offset
                    break
                records, offset = found
                for record, converted in zip(records, self._converted(limits, entry, records), strict=True):
                    room -= len(converted)
                    if buffers and room < 0:
                        offset = record.offset
                        break
                    buffers.append(converted)
                is_spent = offset >= opened_until or self._opened.inflated_bytes >= inflated_until
                if offset < entry.next_offset or is_spent:
                    break
            if room <= 0 or len(buffers) >= max_count:
                break
        else:
            if scan is not None and len(stored) == scan.count:
                offset = scan.next_offset
        return self._counted(buffers, offset)

    def _counted(self, buffers: list[Buffer], next_offset: int) -> Records:
        self._metrics.records_out["rocketmq"] += len(buffers)
        self._metrics.bytes_out["rocketmq"] += sum(map(len, buffers))
        return Records(buffers, next_offset)

    # -- Kafka's batches

    def _matching_records(
        self, limits: PullLimits, entry: Stored, offset: int, max_count: int, wanted: Filter
    ) -> tuple[list[Record], int] | None:
        """Return up to `max_count` records of a batch that match a filter, as `_opened_records` does."""
        found = self._opened_records(limits, entry, offset, FILTERED_RECORDS_MAX, FILTERED_BYTES_MAX)
        if found is None:
            return None
        records, offset = found
        records = [record for record in records if wanted.wants(to_rocketmq.properties_of(record))]
        if len(records) > max_count:
            offset = records[max_count].offset
            del records[max_count:]
        return records, offset

    def _opened_records(
        self, limits: PullLimits, entry: Stored, offset: int, max_count: int, max_bytes: int
    ) -> tuple[list[Record], int] | None:
        """Return (records of a batch, the offset of the next read); None if the next record is faulty.

        After None, the read of the queue must end, because finding the fault took long, and the next read begins after
        the batch. A marker and an aborted batch have no records.
        """
        if is_hidden(entry.frame, entry.base_offset, limits.isolation):
            return [], entry.next_offset
        try:
            return self._opened.read(entry, offset, max_count, max_bytes)
        except ProtocolError as error:
            end, queue = entry.next_offset, limits.queue
            logger.warning("batch not converted from=%d to=%d queue=%s reason=%r", offset, end, queue, str(error))
            return None

    def _converted(self, limits: PullLimits, entry: Stored, records: list[Record]) -> list[bytes]:
        place = place_of(limits.topic, limits.queue, entry, self.store_host)
        self._metrics.converted_records["rocketmq"] += len(records)
        return to_rocketmq.rocketmq_records(records, place)


def place_of(topic: Topic, queue: Queue, entry: Stored, store_host: bytes) -> Place:
    """Return the fields of RocketMQ's records that come from the queue and from the entry of their batch."""
    last_position = entry.position + entry_size(len(entry.frame), 0, entry.count) - 1
    name = topic.rocketmq_name.encode()
    return Place(name, queue.queue_id, entry.base_offset, entry.position, last_position, entry.stored_ms, store_host)


def is_hidden(frame: Buffer, base_offset: int, isolation: QueueIsolation | None) -> bool:
    """Return whether a Kafka batch is a marker or was aborted."""
    if not marker.is_transactional(frame):
        return False
    if marker.is_marker(frame):
        return True
    producer_id = record_batch.read_header(frame).producer_id
    return isolation is not None and isolation.is_aborted(producer_id, base_offset)
