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
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from itertools import groupby
from operator import attrgetter
from typing import Any, Final, Generic, NamedTuple, Protocol, TypeVar

from duolog.bridge.config import Options
from duolog.bridge.data.open_batches import OpenBatches
from duolog.bridge.monitoring.metrics import Metrics
from duolog.bridge.records import frame_formats
from duolog.bridge.state.topic_table import Topic
from duolog.protocol import convert
from duolog.protocol.convert import Batched, Place
from duolog.protocol.errors import ProtocolError
from duolog.protocol.kafka import marker, record_batch, record_reader
from duolog.protocol.kafka.batch_builder import BatchBuilder
from duolog.protocol.kafka.record_batch import Record
from duolog.protocol.rocketmq.filters.subscription_filter import Filter
from duolog.protocol.rocketmq.messages.message import NO_HOST, stored_properties_of
from duolog.store.entry import Buffer, Stored
from duolog.store.errors import Fault, StoreError
from duolog.store.index.queue import Queue
from duolog.store.index.scan import TagScan
from duolog.store.log.cold_read import ColdRead
from duolog.store.log.format import entry_size
from duolog.store.store import Store
from duolog.store.workers import Executor
from duolog.txn.isolation import Isolation, QueueIsolation

CONVERTED_BATCH_BYTES_MAX: Final = 256 << 10  # of one batch made of RocketMQ's records, unless one alone is larger
FILTERED_RECORDS_MAX: Final = 800  # opened in one pull to see whether they are wanted; at home as many index rows
FILTERED_BYTES_MAX: Final = 4 << 20
INFLATED_BYTES_MAX: Final = 8 << 20  # of the batches opened in one read, after which it ends; one may be larger
FEWEST_ENTRIES: Final = 64  # taken at a time for a condition, at first
MOST_ENTRIES: Final = 512
PASSED_ENTRIES_MAX: Final = 1000  # looked at in one pull where some were aborted
TIMES_AT_ONCE_MAX: Final = 256  # Records of a batch that are looked at for a time in the loop,
INFLATED_AT_ONCE_MAX: Final = 256 << 10  # if they are not longer than this.

_FORM: Final = attrgetter("form")

T = TypeVar("T")
U = TypeVar("U")
FoundTime = tuple[int, int]

logger = logging.getLogger("bridge")


class Records(NamedTuple):
    """What a RocketMQ client gets: one buffer for each record, and where it goes on."""

    buffers: list[Buffer]
    next_offset: int


class Reading(Protocol):
    """What a thread does: `start` has `done` called in the loop with what it found, or the StoreError."""

    def start(self, done: Callable[[Any], None]) -> None: ...


class InThread:
    """Work on what is in memory that would take long in the loop: to inflate a batch, and to look at its records."""

    def __init__(self, readers: Executor, run: Callable[[], Any]) -> None:
        self._readers, self._run = readers, run

    def start(self, done: Callable[[Any], None]) -> None:
        self._readers.submit(self._run, done)


class Later(Generic[T]):
    """A read that waits for a thread. Start it once; `done` is called in the loop with what it gives, or why not."""

    __slots__ = ("_cold", "_then")

    def __init__(self, cold: Reading, then: "Callable[[Any], T | Later[T]]") -> None:
        self._cold, self._then = cold, then

    def start(self, done: Callable[[T | StoreError], None]) -> None:
        def finish(found: Any) -> None:
            if isinstance(found, StoreError):
                done(found)
                return
            try:
                result = self._then(found)
            except StoreError as error:
                done(error)
                return
            except Exception as bug:
                done(Fault(f"what was read could not be used: {bug!r}"))
                raise
            if isinstance(result, Later):
                result.start(done)
            else:
                done(result)

        self._cold.start(finish)


class QueueReader:
    """Reads queues for both protocols. `store_host` is the packed address of the RocketMQ port, once it listens."""

    def __init__(self, store: Store, isolation: Isolation, metrics: Metrics, options: Options) -> None:
        self.store_host = NO_HOST
        self._entries, self._executors = store.reader, store.executors
        self._isolation, self._metrics = isolation, metrics
        self._inflate_bytes_max = options.convert.inflate_bytes_max
        self._opened = OpenBatches(options.convert.cache_bytes, options.convert.inflate_bytes_max)

    # -- For Kafka

    def kafka(
        self, queue: Queue, topic: Topic, offset: int, max_bytes: int, until: int
    ) -> "list[Buffer] | Later[list[Buffer]]":
        """Give whole batches from the one that covers `offset` on, at least one unless that is the end.

        Raises `OffsetOutOfRange` and other `StoreError`.
        """
        found = self._entries.read(queue, offset, max_bytes=max_bytes, until=until)
        return _then(found, lambda stored: self._batches(queue, topic, stored, max_bytes))

    def _batches(self, queue: Queue, topic: Topic, stored: list[Stored], max_bytes: int) -> list[Buffer]:
        buffers: list[Buffer] = []
        room, count = max_bytes, 0
        for form, entries in groupby(stored, _FORM):
            run = [*entries]
            if form == frame_formats.ROCKETMQ:
                made, taken, goes_on = self._made_batches(queue, topic, run, room, is_first=not buffers)
            else:
                made, taken, goes_on = [entry.frame for entry in run], len(run), True
            buffers += made
            room -= sum(map(len, made))
            count += taken
            if not goes_on:
                break
        self._metrics.frames_out["kafka"] += count
        self._metrics.bytes_out["kafka"] += max_bytes - room
        return buffers

    def _made_batches(
        self, queue: Queue, topic: Topic, run: list[Stored], room: int, *, is_first: bool
    ) -> tuple[list[Buffer], int, bool]:
        """Make batches of a run of RocketMQ's records: (batches, records taken, whether there is room for more)."""
        made: list[Buffer] = []
        at = 0
        while at < len(run) and (room > 0 or not made):
            batch, taken, met_fault = self._batch_of(queue, topic, run[at:], min(room, CONVERTED_BATCH_BYTES_MAX))
            if len(batch) > room and (made or not is_first):
                return made, at, False  # Inflated it is larger than it was in the log.
            made.append(batch)
            room -= len(batch)
            at += taken
            if met_fault:
                return made, at, False  # It was dear to find: the next read goes on behind it.
        return made, at, at == len(run)

    def _batch_of(self, queue: Queue, topic: Topic, run: list[Stored], max_bytes: int) -> Batched:
        """Make a batch of the first records of a run."""
        offset = run[0].base_offset
        epoch, ends_at = topic.epoch_at(queue.queue_id, offset)
        frames = [entry.frame for entry in run if ends_at is None or entry.base_offset < ends_at]
        try:
            made = convert.kafka_batch(
                frames,
                offset,
                epoch,
                bytes_max=max_bytes,
                inflate_bytes_max=self._inflate_bytes_max,
                log_append_time=topic.settings.log_append_time,
            )
        except ProtocolError as error:
            if len(run) > 1:  # One of them: find it by taking them one at a time.
                return self._batch_of(queue, topic, run[:1], max_bytes)
            logger.warning("no message offset=%d queue=%s reason=%r", offset, queue, str(error))
            builder = BatchBuilder()
            builder.append(0, run[0].stored_ms, None, bytes(run[0].frame))
            return Batched(builder.finish(offset, epoch), 1, met_fault=True)
        self._metrics.converted_records["kafka"] += made.record_count
        return made

    # -- For RocketMQ

    def rocketmq(
        self,
        queue: Queue,
        topic: Topic,
        offset: int,
        max_count: int,
        max_bytes: int,
        until: int,
        wanted: Filter | None = None,
    ) -> "Records | Later[Records]":
        """Give up to `max_count` records from `offset` on; none if none is wanted of those looked at.

        Raises `OffsetOutOfRange` and other `StoreError`.
        """
        # As of now, like `until`: while a thread reads, the topic may go, and what was known of it.
        isolation = self._isolation.get(queue.key)
        if wanted is None:
            is_sparse = isolation is not None and isolation.has_aborted_from(offset)
            entries = PASSED_ENTRIES_MAX if is_sparse else max_count
            found = self._entries.read(queue, offset, max_bytes=max_bytes, until=until, max_entries=entries)
            return _then(
                found, lambda stored: self._records(queue, topic, isolation, stored, offset, max_count, max_bytes)
            )
        if not wanted.codes:
            return self._by_condition(queue, topic, isolation, offset, max_count, max_bytes, until, wanted)
        scan = TagScan(frame_formats.ROCKETMQ, wanted.codes)
        found = self._entries.read(queue, offset, max_bytes=max_bytes, until=until, max_entries=max_count, scan=scan)
        return _then(
            found,
            lambda stored: self._wanted(queue, topic, isolation, stored, offset, max_count, max_bytes, wanted, scan),
        )

    def _by_condition(
        self,
        queue: Queue,
        topic: Topic,
        isolation: QueueIsolation | None,
        offset: int,
        max_count: int,
        max_bytes: int,
        until: int,
        wanted: Filter,
    ) -> "Records | Later[Records]":
        """Look into entries, a few at a time, until enough are wanted or the disk would have to be waited for."""
        start, buffers, room = offset, list[Buffer](), max_bytes
        entries = max(max_count, FEWEST_ENTRIES)
        inflated_until = self._opened.inflated_bytes + INFLATED_BYTES_MAX
        while True:
            found = self._entries.read(queue, offset, max_bytes=FILTERED_BYTES_MAX, until=until, max_entries=entries)
            if isinstance(found, ColdRead):
                if offset > start:
                    return Records(buffers, offset)
                return Later(
                    found,
                    lambda stored: self._wanted(
                        queue, topic, isolation, stored, start, max_count, max_bytes, wanted, None
                    ),
                )
            more = self._wanted(queue, topic, isolation, found, offset, max_count - len(buffers), room, wanted, None)
            is_stuck, offset = more.next_offset == offset, more.next_offset
            buffers += more.buffers
            room -= sum(map(len, more.buffers))
            is_enough = len(buffers) >= max_count or room <= 0 or self._opened.inflated_bytes >= inflated_until
            if is_enough or is_stuck or offset >= until or offset - start >= FILTERED_RECORDS_MAX:
                return Records(buffers, offset)
            # As many more as will do, if they are like those before; each one that is fetched costs.
            per_wanted = (offset - start) / max(len(buffers), 1)
            entries = min(max(int((max_count - len(buffers)) * per_wanted) + 1, max_count), MOST_ENTRIES)

    def _records(
        self,
        queue: Queue,
        topic: Topic,
        isolation: QueueIsolation | None,
        stored: list[Stored],
        offset: int,
        max_count: int,
        max_bytes: int,
    ) -> Records:
        # Mostly RocketMQ wrote them all; then the store has kept to the limits already.
        buffers: list[Buffer] = [entry.frame for entry in stored if entry.form == frame_formats.ROCKETMQ]
        if len(buffers) == len(stored) and 0 < len(stored) <= max_count:
            return self._counted(buffers, stored[-1].next_offset)
        buffers, room, inflated_until = [], max_bytes, self._opened.inflated_bytes + INFLATED_BYTES_MAX
        for entry in stored:
            if entry.form == frame_formats.ROCKETMQ:
                room -= len(entry.frame)
                if buffers and (room < 0 or len(buffers) == max_count):
                    break
                buffers.append(entry.frame)
                offset = entry.next_offset
            else:
                found = self._opened_records(queue, isolation, entry, offset, max_count - len(buffers), room)
                if found is None:
                    offset = entry.next_offset
                    break
                records, offset = found
                converted = self._converted(queue, topic, entry, records)
                buffers += converted
                room -= sum(map(len, converted))
                if offset < entry.next_offset or self._opened.inflated_bytes >= inflated_until:
                    break
            if room <= 0 or len(buffers) >= max_count:
                break
        return self._counted(buffers, offset)

    def _wanted(
        self,
        queue: Queue,
        topic: Topic,
        isolation: QueueIsolation | None,
        stored: list[Stored],
        offset: int,
        max_count: int,
        max_bytes: int,
        wanted: Filter,
        scan: TagScan | None,
    ) -> Records:
        """Give those of the records that a filter wants; what it passed over is passed for good."""
        buffers: list[Buffer] = []
        room, opened_until, is_wanted = max_bytes, offset + FILTERED_RECORDS_MAX, wanted.wants
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
                offset = max(offset, entry.base_offset)  # The scan may have passed over what lies before it.
                found = self._opened_records(queue, isolation, entry, offset, FILTERED_RECORDS_MAX, FILTERED_BYTES_MAX)
                if found is None:
                    offset = entry.next_offset
                    break
                records, offset = found
                records = [record for record in records if is_wanted(convert.properties_of(record))]
                if len(records) > max_count - len(buffers):
                    offset = records[max_count - len(buffers)].offset
                    del records[max_count - len(buffers) :]
                for record, converted in zip(records, self._converted(queue, topic, entry, records), strict=True):
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
        self._metrics.frames_out["rocketmq"] += len(buffers)
        self._metrics.bytes_out["rocketmq"] += sum(map(len, buffers))
        return Records(buffers, next_offset)

    def _opened_records(
        self,
        queue: Queue,
        isolation: QueueIsolation | None,
        entry: Stored,
        offset: int,
        max_count: int,
        max_bytes: int,
    ) -> tuple[list[Record], int] | None:
        """Read records of a batch: (records, the offset to go on from); None: the next one is faulty.

        That was dear to find, so the read ends there, and the next one goes on behind the batch. A marker, and what was
        aborted, has no records.
        """
        if is_hidden(entry.frame, entry.base_offset, isolation):
            return [], entry.next_offset
        try:
            return self._opened.read(entry, offset, max_count, max_bytes)
        except ProtocolError as error:
            logger.warning(
                "batch passed over from=%d to=%d queue=%s reason=%r", offset, entry.next_offset, queue, str(error)
            )
            return None

    def _converted(self, queue: Queue, topic: Topic, entry: Stored, records: list[Record]) -> list[bytes]:
        place = place_of(topic, queue, entry, self.store_host)
        self._metrics.converted_records["rocketmq"] += len(records)
        return convert.rocketmq_records(records, place)

    # -- By time

    def find_time(
        self, queue: Queue, topic: Topic, timestamp_ms: int, until: int
    ) -> "FoundTime | Later[FoundTime | None] | None":
        """Find for Kafka the first record of at least that timestamp: (its offset, its timestamp)."""

        def find(stored: list[Stored]) -> "FoundTime | Later[FoundTime | None] | None":
            return self._find_time_in(stored[0], topic, timestamp_ms) if stored else None

        if topic.settings.log_append_time:
            return _then(_listed(self._entries.find_by_store_time(queue, timestamp_ms, until)), find)
        return _then(_listed(self._entries.find_by_time(queue, timestamp_ms, until)), find)

    def _find_time_in(self, entry: Stored, topic: Topic, timestamp_ms: int) -> "FoundTime | Later[FoundTime | None]":
        """Find the record in its batch: at once in a small one, in a reader thread in any other."""
        if entry.form == frame_formats.ROCKETMQ:
            return entry.base_offset, entry.stored_ms if topic.settings.log_append_time else entry.timestamp_ms
        if entry.count <= TIMES_AT_ONCE_MAX and len(entry.frame) <= INFLATED_AT_ONCE_MAX:
            with suppress(ProtocolError):  # The thread inflates more, and reports what is wrong.
                found = record_reader.find_timestamp(entry.frame, timestamp_ms, INFLATED_AT_ONCE_MAX)
                return found or _start_of(entry)
        run = partial(record_reader.find_timestamp, entry.frame, timestamp_ms, self._inflate_bytes_max)
        return Later(InThread(self._executors.readers, partial(_sound, entry, run)), lambda found: found)

    def find_latest_time(self, queue: Queue, topic: Topic, until: int) -> "FoundTime | Later[FoundTime | None] | None":
        """Find for Kafka the first record with the greatest timestamp; None in an empty queue."""
        if queue.start_offset >= until:
            return None

        def find(stored: list[Stored]) -> "FoundTime | Later[FoundTime | None] | None":
            return self.find_time(queue, topic, stored[-1].timestamp_ms, until) if stored else None

        found = self._entries.read(queue, until - 1, max_bytes=1, until=until)
        return _then(found, find)

    def find_stored(self, queue: Queue, stored_ms: int, until: int) -> int | Later[int]:
        """Find for RocketMQ the first offset that was stored at that time or later; `until` if there is none."""
        found = _listed(self._entries.find_by_store_time(queue, stored_ms, until))
        return _then(found, lambda stored: stored[0].base_offset if stored else until)


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


def place_of(topic: Topic, queue: Queue, entry: Stored, store_host: bytes) -> Place:
    """Say what RocketMQ's records tell of the entry that their batch lies in."""
    last_position = entry.position + entry_size(len(entry.frame), 0, entry.count) - 1
    name = topic.rocketmq_name.encode()
    return Place(name, queue.queue_id, entry.base_offset, entry.position, last_position, entry.stored_ms, store_host)


def is_hidden(frame: Buffer, base_offset: int, isolation: QueueIsolation | None) -> bool:
    """Tell whether a batch of Kafka is a marker, or was aborted."""
    if not marker.is_transactional(frame):
        return False
    if marker.is_marker(frame):
        return True
    producer_id = record_batch.read_header(frame).producer_id
    return isolation is not None and isolation.is_aborted(producer_id, base_offset)


def _then(found: list[Stored] | ColdRead, go_on: "Callable[[list[Stored]], U | Later[U]]") -> "U | Later[U]":
    return Later(found, go_on) if isinstance(found, ColdRead) else go_on(found)


def _listed(found: Stored | ColdRead | None) -> list[Stored] | ColdRead:
    if found is None:
        return []
    return found if isinstance(found, ColdRead) else [found]
