"""Reads a queue in the format of a client protocol, whichever protocol wrote its messages.

    written by     read by Kafka                            read by RocketMQ
    Kafka          the frame as it is stored                records, converted, from the requested offset on
    RocketMQ       each run of messages as one batch        the frame as it is stored, if its tag is wanted

Frames are slices of what the store returns, without a copy. A read that needs the disk returns a `Later`. The caller
passes the end of the read, so that one answer has one end: the queue's `visible_end`, or its last stable offset for
RocketMQ and for Kafka's read_committed. For RocketMQ, markers and aborted records are skipped; Kafka's clients do so
themselves.

A batch that RocketMQ clients read in several pulls is inflated once (`open_batches.py`), up to `convert.cache_bytes`.
A batch that cannot be inflated, or whose records are invalid, is skipped from the first invalid record on. The log
warns of the batch, and no consumer stalls. A RocketMQ message that cannot be decoded reaches Kafka clients as bytes.
"""

import logging
from itertools import groupby
from operator import attrgetter
from typing import Final

from duolog.bridge.config import Options
from duolog.bridge.data.reading.later import Later, listed, then
from duolog.bridge.data.reading.open_batches import OpenBatches
from duolog.bridge.data.reading.rocketmq_reader import PullLimits, Records, RocketMQReader
from duolog.bridge.data.reading.time_search import FoundTime, find_time_in
from duolog.bridge.monitoring.metrics import Metrics
from duolog.bridge.records import frame_formats
from duolog.bridge.state.topic_table import Topic
from duolog.protocol.convert import to_kafka
from duolog.protocol.convert.to_kafka import Batched
from duolog.protocol.errors import ProtocolError
from duolog.protocol.kafka.batch_builder import BatchBuilder
from duolog.protocol.rocketmq.filters.subscription_filter import Filter
from duolog.store.entry import Buffer, Stored, new_tuple
from duolog.store.index.queue import Queue
from duolog.store.store import Store
from duolog.txn.isolation import Isolation

CONVERTED_BATCH_BYTES_MAX: Final = 256 << 10  # A batch made of RocketMQ's records. One record may be larger.

_FORM: Final = attrgetter("form")

logger = logging.getLogger("data")


class QueueReader:
    """Reads queues for both protocols."""

    def __init__(self, store: Store, isolation: Isolation, metrics: Metrics, options: Options) -> None:
        self._entries, self._executors = store.reader, store.executors
        self._isolation, self._metrics = isolation, metrics
        self._inflate_bytes_max = options.convert.inflate_bytes_max
        opened = OpenBatches(options.convert.cache_bytes, options.convert.inflate_bytes_max)
        self._rocketmq = RocketMQReader(store.reader, opened, metrics)

    @property
    def store_host(self) -> bytes:
        return self._rocketmq.store_host

    def listen(self, store_host: bytes) -> None:
        """Set the packed address of the RocketMQ port, which is the store host of converted records."""
        self._rocketmq.store_host = store_host

    # -- For Kafka

    def read_for_kafka(
        self, queue: Queue, topic: Topic, offset: int, max_bytes: int, until: int, wire: str = "kafka"
    ) -> "list[Buffer] | Later[list[Buffer]]":
        """Return whole batches from the one that has `offset` on: at least one, unless `offset` is the end.

        The records count as read in `wire`. Raises `OffsetOutOfRange` and other `StoreError`.
        """
        found = self._entries.read(queue, offset, max_bytes=max_bytes, until=until)
        return then(found, lambda stored: self._batches(queue, topic, stored, max_bytes, wire))

    def _batches(self, queue: Queue, topic: Topic, stored: list[Stored], max_bytes: int, wire: str) -> list[Buffer]:
        buffers: list[Buffer] = []
        room, count = max_bytes, 0
        for form, entries in groupby(stored, _FORM):
            run = [*entries]
            if form == frame_formats.ROCKETMQ:
                made, taken, goes_on = self._made_batches(queue, topic, run, room, is_first=not buffers)
            else:
                made, taken, goes_on = [entry.frame for entry in run], sum([entry.count for entry in run]), True
            buffers += made
            room -= sum(map(len, made))
            count += taken
            if not goes_on:
                break
        self._metrics.records_out[wire] += count
        self._metrics.bytes_out[wire] += max_bytes - room
        return buffers

    def _made_batches(
        self, queue: Queue, topic: Topic, run: list[Stored], room: int, *, is_first: bool
    ) -> tuple[list[Buffer], int, bool]:
        """Convert a run of RocketMQ's records; return (batches, number of converted records, whether to continue)."""
        made: list[Buffer] = []
        at = 0
        while at < len(run) and (room > 0 or not made):
            batch, taken, met_fault = self._batch_of(queue, topic, run[at:], min(room, CONVERTED_BATCH_BYTES_MAX))
            if len(batch) > room and (made or not is_first):
                return made, at, False  # The batch is inflated, so it may be larger than the records in the log.
            made.append(batch)
            room -= len(batch)
            at += taken
            if met_fault:
                return made, at, False  # The search for the faulty record took long, so this read ends here.
        return made, at, at == len(run)

    def _batch_of(self, queue: Queue, topic: Topic, run: list[Stored], max_bytes: int) -> Batched:
        """Convert the first records of a run to one batch; a record that cannot be converted has its own batch."""
        offset = run[0].base_offset
        epoch, ends_at = topic.epoch_at(queue.queue_id, offset)
        frames = [entry.frame for entry in run if ends_at is None or entry.base_offset < ends_at]
        try:
            made = to_kafka.kafka_batch(
                frames,
                offset,
                epoch,
                bytes_max=max_bytes,
                inflate_bytes_max=self._inflate_bytes_max,
                log_append_time=topic.settings.log_append_time,
            )
        except ProtocolError as error:
            if len(run) > 1:  # One of the records is faulty, so they are converted one at a time.
                return self._batch_of(queue, topic, run[:1], max_bytes)
            logger.warning("message not converted offset=%d queue=%s reason=%r", offset, queue, str(error))
            builder = BatchBuilder()
            builder.append(0, run[0].stored_ms, None, bytes(run[0].frame))
            return Batched(builder.finish(offset, epoch), 1, met_fault=True)
        self._metrics.converted_records["kafka"] += made.record_count
        return made

    # -- For RocketMQ

    def read_for_rocketmq(
        self,
        queue: Queue,
        topic: Topic,
        offset: int,
        max_count: int,
        max_bytes: int,
        until: int,
        wanted: Filter | None = None,
    ) -> "Records | Later[Records]":
        """Return up to `max_count` records from `offset` on. There may be none if the filter wants none of those read.

        Raises `OffsetOutOfRange` and other `StoreError`.
        """
        isolation = self._isolation.get(queue.key)
        limits = new_tuple(PullLimits, (queue, topic, isolation, max_count, max_bytes, until))
        if wanted is None:
            return self._rocketmq.read(limits, offset)
        read = self._rocketmq.read_tagged if wanted.codes else self._rocketmq.read_by_condition
        return read(limits, offset, wanted)

    # -- By time

    def find_time(
        self, queue: Queue, topic: Topic, timestamp_ms: int, until: int
    ) -> "FoundTime | Later[FoundTime | None] | None":
        """Find for Kafka the first record with this timestamp or a later one: (its offset, its timestamp)."""

        def find(stored: list[Stored]) -> "FoundTime | Later[FoundTime | None] | None":
            return self._find_time_in(stored[0], topic, timestamp_ms) if stored else None

        if topic.settings.log_append_time:
            return then(listed(self._entries.find_by_store_time(queue, timestamp_ms, until)), find)
        return then(listed(self._entries.find_by_time(queue, timestamp_ms, until)), find)

    def find_latest_time(self, queue: Queue, topic: Topic, until: int) -> "FoundTime | Later[FoundTime | None] | None":
        """Find for Kafka the first record with the greatest timestamp; None in an empty queue."""
        if queue.start_offset >= until:
            return None

        def find(stored: list[Stored]) -> "FoundTime | Later[FoundTime | None] | None":
            return self.find_time(queue, topic, stored[-1].timestamp_ms, until) if stored else None

        found = self._entries.read(queue, until - 1, max_bytes=1, until=until)
        return then(found, find)

    def find_stored(self, queue: Queue, stored_ms: int, until: int) -> int | Later[int]:
        """Find for RocketMQ the first offset that was stored at this time or later; `until` if there is none."""
        found = listed(self._entries.find_by_store_time(queue, stored_ms, until))
        return then(found, lambda stored: stored[0].base_offset if stored else until)

    def _find_time_in(self, entry: Stored, topic: Topic, timestamp_ms: int) -> "FoundTime | Later[FoundTime | None]":
        return find_time_in(
            entry,
            timestamp_ms,
            self._executors.readers,
            log_append_time=topic.settings.log_append_time,
            inflate_bytes_max=self._inflate_bytes_max,
        )
