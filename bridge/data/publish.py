"""The one door into a queue: every message of either protocol that becomes visible comes through here.

    check     one sound batch (`bridge/data/produced_batches.py`) or message, within the limits of its topic and family
    wishes    a delayed message is parked (`bridge/data/delays.py`); RocketMQ's half messages do not come this way;
              a queue that gets a message with an expiry is marked as one that may (`bridge/data/expiry.py`)
    repeats   an idempotent producer's batch that lies in the log already: answered with its place, appended nowhere
    txn       a batch of a Kafka transaction: its producer must be the newest, and its transaction have the queue
    append    one unit; offsets, positions and times are stamped into the frames as the store assigns them

All of a batch with delayed records or half messages is one unit: an entry for each of these, the rest as a new batch
without producer id, and what the producer's window needs.
"""

from collections.abc import Generator, Iterable, Mapping, Sequence
from itertools import compress
from typing import Final, NamedTuple, Protocol

from duolog.bridge.config import Options
from duolog.bridge.data import (
    delay_headers,
    frame_formats,
    pending_frames,
)
from duolog.bridge.data import (
    expiry as lifetimes,
)
from duolog.bridge.data.delay_headers import DelayRefused, Wish
from duolog.bridge.data.delays import Delays
from duolog.bridge.data.expiry import Lifetimes
from duolog.bridge.data.produced_batches import (
    RECORDS_AT_ONCE,
    Inspector,
    Parted,
    Produced,
    at_once,
)
from duolog.bridge.data.schedules import SCHEDULE_NAME, RecurringMessage, Schedules
from duolog.bridge.data.unknown_headers import AMQ_PREFIX, TIMER_PREFIX, Sender
from duolog.bridge.monitoring.metrics import Metrics
from duolog.bridge.state.idempotency_keys import IdempotencyKey
from duolog.bridge.state.producers import Producers
from duolog.bridge.state.records import DelayedBatch, ScheduleRegistered, TimerRequested
from duolog.bridge.state.records import Record as StateRecord
from duolog.bridge.state.topics import Topic
from duolog.bridge.state.wall_time import WallTime
from duolog.bridge.transactions.half_messages import Halves
from duolog.bridge.transactions.kafka_transactions import Transactions
from duolog.delay.recurring import AMQ_NAMES, Run, Schedule
from duolog.delay.timers import TimerId
from duolog.protocol.kafka import record_batch
from duolog.protocol.kafka.record_batch import (
    HEADER_BYTES,
    BatchBuilder,
    BatchHeader,
    InvalidBatch,
    Reason,
    Record,
    encoded_headers,
)
from duolog.protocol.rocketmq.messages import flags, properties, tags
from duolog.protocol.rocketmq.messages import message as rocketmq_message
from duolog.protocol.rocketmq.messages.message import NO_HOST, Message
from duolog.protocol.rocketmq.names import RETRY_PREFIX
from duolog.store.entry import Appended, Buffer, Promise, Slot, new_tuple
from duolog.store.errors import following
from duolog.store.log.format import NO_OFFSET, entry_size
from duolog.store.unit import Frame, FrameRun, Part, Stamp

REPLACING_RECORDS_MAX: Final = 1_024  # of these; each is looked for in all buckets of far timers, 10 us in each

_JOINED_BYTES_MAX: Final = 4 << 10  # Below it, joining the pieces of a record costs less than storing each of them.
_ROCKETMQ_MARKS: Final = ("DELAY", TIMER_PREFIX, "TRAN_MSG", AMQ_PREFIX, lifetimes.PREFIX)


class NotSupported(Exception):
    """The message asks for a transaction, or for a delay where there can be none."""


class ProduceRefused(Exception):
    """The topic is one of the broker's own."""


class IllegalMessage(Exception):
    """A RocketMQ message that must not be stored: who reads it could not read its properties, for one."""


class MessageTooLarge(IllegalMessage):
    """A RocketMQ message exceeds `rocketmq.body_bytes_max`, or its properties exceed the format."""


class Log(Protocol):
    def append(self, entries: Sequence[Part], now_ms: int) -> Appended: ...


class Published(NamedTuple):
    """Where a batch lies; of a repeated one, where it lay already."""

    base_offset: int  # -1: records of it are delayed
    log_append_ms: int  # -1: timestamps are the producer's
    promise: Promise


_SCHEDULE_NAME = b"AMQ_SCHEDULED_"


class Publisher:
    """The door. `store_host` is the packed address of the RocketMQ port, known once it listens."""

    def __init__(
        self,
        log: Log,
        producers: Producers,
        transactions: Transactions,
        delays: Delays,
        schedules: Schedules,
        halves: Halves,
        lifetimes: Lifetimes,
        metrics: Metrics,
        wall_time: WallTime,
        options: Options,
    ) -> None:
        self._wall_time = wall_time
        self.store_host = NO_HOST
        self._schedules = schedules
        self._log, self._producers, self._delays, self._metrics = log, producers, delays, metrics
        self._transactions, self._halves, self._lifetimes = transactions, halves, lifetimes
        self.inspector = Inspector(delays, lifetimes, options)
        self._stamps: dict[tuple[int, bool], Stamp] = {}
        self.body_bytes_max = options.rocketmq.body_bytes_max
        self._schedules_max = options.delay.batch_schedules_max

    # -- Kafka

    def kafka(
        self,
        topic: Topic,
        queue_id: int,
        batch: Buffer,
        now_ms: int,
        *,
        allows_zstd: bool = True,
        transactional_id: str | None = None,
        adds_itself: bool = False,
        sender: Sender | None = None,
    ) -> Published:
        """Append what a Produce request has for one partition; for the two before the last see `Transactions.admit`.

        Raises InvalidBatch, DelayRefused, NotSupported, ProduceRefused, ProducerError, TransactionError, StoreError,
        and then has appended nothing.
        """
        if not topic.may_produce:
            raise ProduceRefused(f"sending to topic {topic.name} is forbidden, it is the broker's own")
        produced = self.inspector.check(topic, batch, now_ms, sender, allows_zstd=allows_zstd)
        parted = produced.parted
        if parted is not None and (parted.later or parted.half):
            return at_once(self._park_batch(topic, queue_id, produced, parted, now_ms, transactional_id, adds_itself))
        return self._append_batch(topic, queue_id, produced, now_ms, transactional_id, adds_itself)

    def kafka_in_slices(
        self,
        topic: Topic,
        queue_id: int,
        batch: Buffer,
        now_ms: int,
        *,
        allows_zstd: bool,
        transactional_id: str | None,
        adds_itself: bool,
        sender: Sender,
    ) -> Generator[None, None, Published]:
        """Do the same for a batch of many records; whenever it yields the loop may turn, but the topic must remain.

        What other requests do meanwhile comes first: the batch is appended, and counts, at its last step.
        """
        if not topic.may_produce:
            raise ProduceRefused(f"sending to topic {topic.name} is forbidden, it is the broker's own")
        produced = self.inspector.check(topic, batch, now_ms, sender, allows_zstd=allows_zstd, sorts=False)
        if produced.unsorted is not None:
            yield
            parted = yield from self.inspector.sort(topic, produced.unsorted, now_ms, sender)
            produced = Produced(produced.batch, produced.header, parted, None)
            if parted is not None and (parted.later or parted.half):
                return (
                    yield from self._park_batch(
                        topic, queue_id, produced, parted, now_ms, transactional_id, adds_itself
                    )
                )
        return self._append_batch(topic, queue_id, produced, now_ms, transactional_id, adds_itself)

    def _append_batch(
        self,
        topic: Topic,
        queue_id: int,
        produced: Produced,
        now_ms: int,
        transactional_id: str | None,
        adds_itself: bool,
    ) -> Published:
        """Append a batch of which nothing is delayed."""
        batch, header, parted, _ = produced
        queue = topic.queues[queue_id]
        log_append_time = topic.settings.log_append_time
        if header.producer_id >= 0:
            repeated = self._admit(topic, queue_id, header, now_ms, transactional_id, adds_itself)
            if repeated is not None:
                return repeated
        count = header.record_count
        stamp = self._kafka_stamp(topic.leader_epoch(queue_id), log_append_time)
        timestamp_ms = now_ms if log_append_time else header.max_timestamp
        frame = Frame(queue, frame_formats.KAFKA, batch, count, timestamp_ms, 0, stamp)
        if parted is None or queue.key in self._lifetimes:
            (slot,), promise = self._log.append([frame], now_ms)
        else:
            (slot, *_), promise = self._delays.park([frame], now_ms, self._lifetimes.records(queue.key))
            promise = Promise(promise.end, queue.durable)
        if header.producer_id >= 0:
            with following("a batch of an idempotent producer"):
                self._producers.remember_header(queue.key, slot, header)
                if header.is_transactional:
                    self._transactions.wrote(queue.key, header.producer_id, slot)
        self._metrics.records_in["kafka"] += count
        self._metrics.bytes_in["kafka"] += len(batch)
        return new_tuple(Published, (slot.base_offset, slot.stored_ms if log_append_time else -1, promise))

    def _admit(
        self,
        topic: Topic,
        queue_id: int,
        header: BatchHeader,
        now_ms: int,
        transactional_id: str | None,
        adds_itself: bool,
    ) -> Published | None:
        """Hold a batch to what is known of its producer; gives the place of one that was appended before."""
        queue = topic.queues[queue_id]
        repeated = self._producers.check(queue.key, header, now_ms)
        if repeated is not None:
            # Positions move on by whole units: what keeps the first byte of the entry keeps all of it.
            promise = Promise(repeated.position + 1, queue.durable)
            log_append_time = topic.settings.log_append_time
            return Published(repeated.base_offset, repeated.stored_ms if log_append_time else -1, promise)
        self._transactions.admit(queue.key, header, transactional_id, adds_itself=adds_itself)
        return None

    def _park_batch(
        self,
        topic: Topic,
        queue_id: int,
        produced: Produced,
        parted: Parted,
        now_ms: int,
        transactional_id: str | None,
        adds_itself: bool,
    ) -> Generator[None, None, Published]:
        """Park the delayed records of a batch, append the rest, and note the batch for its producer: one unit.

        In a transaction the rest belongs to it, and what is parked waits for its commit. Yields while frames are made.
        """
        queue, header = topic.queues[queue_id], produced.header
        holder = header.producer_id if header.is_transactional else None
        stamp = self.half_stamp()
        half_frames: list[Frame] = []
        for number, (_, record) in enumerate(parted.half):
            if number and not number % RECORDS_AT_ONCE:
                yield
            half_frames.append(self._halves.kafka_frame(topic, queue_id, record, stamp))
        made: list[tuple[list[Frame], list[StateRecord]]] = []
        for number, (wish, record) in enumerate(parted.later):
            if number and not number % RECORDS_AT_ONCE:
                yield
            own: list[StateRecord] = []
            made.append((self._parked_record(topic, queue_id, record, wish, now_ms, own, held_by=holder), own))
        others: list[Frame] = []
        if parted.now:
            others.append((yield from self._rest_of(topic, queue_id, header, parted.now, now_ms)))
        if len(made) + len(half_frames) > RECORDS_AT_ONCE:
            yield
        if header.producer_id >= 0:
            repeated = self._admit(topic, queue_id, header, now_ms, transactional_id, adds_itself)
            if repeated is not None:
                return repeated
        if header.is_transactional:
            self._transactions.check_delayed(header.producer_id, len(parted.later))
            if any(wish.schedule or delay_headers.replaces_header(record.headers) for wish, record in parted.later):
                raise NotSupported("a record of a transaction does not recur, and replaces none")
        self._halves.check_kafka(topic, [wish for wish, _ in parted.half])
        kept, replaced = self._without_replaced(topic, parted.later)
        records: list[StateRecord] = [self._delays.cancels(replaced, now_ms)] if replaced else []
        if parted.expiring:
            records += self._lifetimes.records(queue.key)
        parked_frames: list[Frame] = []
        for number in kept:
            frames, own = made[number]
            parked_frames += frames
            records += own
        self._schedules.check_room(records)
        if header.producer_id >= 0:
            first, last = header.base_sequence, header.last_sequence
            records.append(DelayedBatch(queue.key, header.producer_id, header.producer_epoch, first, last))
        slots, promise = self._delays.park([*half_frames, *parked_frames, *others], now_ms, records)
        for (half, _), slot in zip(parted.half, slots, strict=False):
            self._halves.prepared_kafka(topic, half, slot)
        if others and header.is_transactional:
            self._transactions.wrote(queue.key, header.producer_id, slots[len(half_frames) + len(parked_frames)])
        self._metrics.records_in["kafka"] += header.record_count
        self._metrics.bytes_in["kafka"] += header.size
        return Published(
            NO_OFFSET, now_ms if topic.settings.log_append_time else -1, Promise(promise.end, queue.durable)
        )

    def kafka_frames(
        self, topic: Topic, queue_id: int, record: Record, now_ms: int, records: list[StateRecord], *, sent_ms: int
    ) -> list[Frame]:
        """Give what a single record becomes in its queue, or parked until it is due; a delay counts from `sent_ms`.

        Nothing, if it has expired and its topic drops such ones. What belongs into the same unit is added to `records`.
        """
        wish = expires_ms = None
        if topic.settings.delay_headers:
            wish = self._delays.wishes.of_headers(record.headers, sent_ms)
            expires_ms = self._lifetimes.of_headers(record.headers, sent_ms)
        if expires_ms is not None:
            records += self._lifetimes.records(topic.queues[queue_id].key)
            if wish is None or wish.schedule is None:
                record = record._replace(headers=lifetimes.fixed_headers(record.headers, expires_ms))
        if wish is not None and (wish.schedule is not None or wish.due_ms > now_ms):
            _, replaced = self._without_replaced(topic, [(wish, record)])
            if replaced:
                records.append(self._delays.cancels(replaced, now_ms))
            return self._parked_record(topic, queue_id, record, wish, now_ms, records)
        if expires_ms is not None and self._is_over(expires_ms, now_ms) and topic.settings.drops_expired:
            return []
        builder = BatchBuilder()
        builder.append(0, record.timestamp_ms, record.key, record.value, record.headers)
        return [self._kafka_frame(topic, queue_id, builder.finish(0, 0), 1, record.timestamp_ms, now_ms)]

    def half_stamp(self) -> Stamp:
        """Give the stamp of Kafka's half messages: their own timestamps."""
        return self._kafka_stamp(0, log_append_time=False)

    def _parked_record(
        self,
        topic: Topic,
        queue_id: int,
        record: Record,
        wish: Wish,
        now_ms: int,
        records: list[StateRecord],
        *,
        held_by: int | None = None,
    ) -> list[Frame]:
        """Give the frame in which a record waits; one that recurs has none, but is registered by `records`.

        `held_by` is the producer id of the transaction whose commit it waits for; then its key does not name it.
        """
        key = topic.queues[queue_id].key
        if wish.schedule is not None:
            records.append(self._scheduled_record(key, wish.schedule, wish.due_ms, record, now_ms))
            return []
        expires_ms = self._lifetimes.of_headers(record.headers, now_ms)
        if expires_ms is not None:
            record = record._replace(headers=lifetimes.fixed_headers(record.headers, expires_ms))
        body = pending_frames.parked_record(record, wish.due_ms, now_ms)
        if held_by is None:
            extra = pending_frames.extra(key, wish.due_ms, record.key or b"")
        else:
            extra = pending_frames.held_extra(key, wish.due_ms, held_by)
        return [
            Frame(self._delays.queue_of(wish), frame_formats.KAFKA, body, 1, wish.due_ms, 0, self.half_stamp(), extra)
        ]

    def _scheduled_record(
        self, key: int, schedule: Schedule, due_ms: int, record: Record, now_ms: int
    ) -> ScheduleRegistered:
        name = self._schedules.new_name()
        headers = [header for header in record.headers if header[0] not in AMQ_NAMES]
        named = record._replace(headers=[*headers, (SCHEDULE_NAME, name.encode())])
        message = RecurringMessage(key, frame_formats.KAFKA, bytes(pending_frames.parked_record(named, due_ms, now_ms)))
        return self._schedules.record(name, schedule, message, Run(1, due_ms), is_kept=False)

    def _without_replaced(self, topic: Topic, later: list[tuple[Wish, Record]]) -> tuple[Iterable[int], list[TimerId]]:
        """Give the numbers of those that no later record of the batch replaces, and the pending timers that one does.

        Raises InvalidBatch if too many records do.
        """
        replaces = [delay_headers.replaces_header(record.headers) for _, record in later]
        replacing = sum(replaces)
        if not replacing:
            return range(len(later)), []
        if replacing > REPLACING_RECORDS_MAX:
            raise InvalidBatch(
                Reason.TOO_LARGE,
                f"batch of {replacing} records that replace others; {REPLACING_RECORDS_MAX} are allowed",
            )
        kept = dict.fromkeys(range(len(later)))
        numbers: dict[bytes, list[int]] = {}  # of those kept so far, by key
        replaced: dict[TimerId, None] = {}
        for number, (_, record) in enumerate(later):
            if not record.key:
                continue
            if replaces[number]:
                for earlier in numbers.pop(record.key, ()):
                    del kept[earlier]
                replaced |= dict.fromkeys(self._delays.replaced(topic, record.key))
            numbers.setdefault(record.key, []).append(number)
        return kept, list(replaced)

    def _rest_of(
        self, topic: Topic, queue_id: int, header: BatchHeader, rest: list[Record], now_ms: int
    ) -> Generator[None, None, Frame]:
        """Make a new batch of the records that are not delayed."""
        builder = BatchBuilder()
        for number, record in enumerate(rest):
            if number and not number % RECORDS_AT_ONCE:
                yield
            builder.append(number, record.timestamp_ms, record.key, record.value, record.headers)
        # Without a sequence, for that of the whole batch has been noted.
        producer = (header.producer_id, header.producer_epoch, -1) if header.is_transactional else (-1, -1, -1)
        body = builder.finish(0, 0, codec=header.codec, producer=producer, is_transactional=header.is_transactional)
        return self._kafka_frame(topic, queue_id, body, len(rest), max(record.timestamp_ms for record in rest), now_ms)

    def _kafka_frame(
        self, topic: Topic, queue_id: int, body: Buffer, count: int, timestamp_ms: int, now_ms: int
    ) -> Frame:
        log_append_time = topic.settings.log_append_time
        stamp = self._kafka_stamp(topic.leader_epoch(queue_id), log_append_time)
        if log_append_time:
            timestamp_ms = now_ms
        return Frame(topic.queues[queue_id], frame_formats.KAFKA, body, count, timestamp_ms, 0, stamp)

    def _kafka_stamp(self, leader_epoch: int, log_append_time: bool) -> Stamp:
        """Give the one stamp of that kind; there are a few, since epochs rise only with unclean starts."""
        stamp = self._stamps.get((leader_epoch, log_append_time))
        if stamp is None:
            make = _log_append_time_stamp if log_append_time else _create_time_stamp
            stamp = self._stamps[leader_epoch, log_append_time] = make(leader_epoch)
        return stamp

    # -- RocketMQ

    def rocketmq(
        self, topic: Topic, queue_id: int, messages: Sequence[Message], now_ms: int, sender: Sender | None = None
    ) -> Appended:
        """Append one message, or a batch as one unit with one entry for each message.

        Topic, queue and store host of a record are the door's, whatever its message says. A delayed message is turned
        into the form in which it waits (`parked.park_message`). Raises DelayRefused, IllegalMessage, NotSupported,
        ProduceRefused, ProtocolError, StoreError, and then has appended nothing.
        """
        records: list[StateRecord] = []
        frames = self.rocketmq_frames(topic, queue_id, messages, now_ms, records, sender=sender)
        return self.append_rocketmq(topic, queue_id, frames, records, now_ms)

    def append_rocketmq(
        self,
        topic: Topic,
        queue_id: int,
        frames: Sequence[Frame],
        records: Sequence[StateRecord],
        now_ms: int,
    ) -> Appended:
        """Append what `rocketmq_frames` gave as one unit. Raises StoreError, and then has appended nothing."""
        if records or frames[0].extra or (len(frames) > 1 and any(frame.extra for frame in frames)):
            slots, promise = self._delays.park(frames, now_ms, records)
            return Appended(slots[: len(frames)], Promise(promise.end, topic.queues[queue_id].durable))
        return self._log.append(frames, now_ms)

    def append_run(self, run: FrameRun, now_ms: int) -> Appended:
        """Append frames of which none is delayed as one unit. Raises StoreError, and then has appended nothing."""
        return self._log.append([run], now_ms)

    def rocketmq_frames(
        self,
        topic: Topic,
        queue_id: int,
        messages: Sequence[Message],
        now_ms: int,
        records: list[StateRecord],
        *,
        sent_ms: int | None = None,
        sender: Sender | None = None,
        is_part: bool = False,
    ) -> list[Frame]:
        """Give what `rocketmq` would append, for who commits it in a unit of his own. Raises as it does.

        What belongs into the same unit is added to `records`: timers that are replaced, schedules, that its queue has
        messages that expire. Of what was sent earlier than now, at `sent_ms`, a delay and an expiry count from then;
        nothing is given for one that has expired meanwhile if its topic drops such ones. Of a batch that is read in
        parts the caller counts the messages when it appends them, and holds the records to `check_room`.
        """
        if not topic.may_produce:
            raise ProduceRefused(f"sending to topic {topic.name} is forbidden, it is the broker's own")
        if len(messages) > self._schedules_max:
            self.check_schedule_count(messages)
        queue = topic.queues[queue_id]
        pieces_of = rocketmq_message.Writer(topic.rocketmq_name, queue_id, self.store_host).pieces
        frames: list[Frame] = []
        size = 0
        expire = False
        for message in messages:
            raw = message.properties
            text = _text_of(raw)  # To search in text takes a sixth of what it takes in bytes.
            found = self._check_message(message, text)
            wish = None
            if found is not None:
                if sender is not None:
                    self.inspector.unknown_names.check(topic, found, sender)
                from_ms = now_ms if sent_ms is None else sent_ms
                wish = self._delays.wishes.of_properties(found, from_ms)
                expires_ms = self._lifetimes.of_properties(found, from_ms)
                if expires_ms is not None:
                    expire = True
                    if wish is None or wish.schedule is None:
                        found = _fix_expiry(message, expires_ms)
                        raw = message.properties
                    is_late = sent_ms is not None and self._is_over(expires_ms, now_ms)
                    is_over = is_late and topic.settings.drops_expired
                    if is_over and (wish is None or wish.due_ms <= now_ms):
                        continue
            if wish is not None and found is not None and (wish.schedule is not None or wish.due_ms > now_ms):
                frames.append(self._parked_message(topic, queue_id, message, wish, found, records, now_ms))
                size += len(message.body)
                continue
            code = _tag_code(raw, text)
            pieces = pieces_of(message)
            body_size = len(message.body)
            record = b"".join(pieces) if body_size < _JOINED_BYTES_MAX else pieces
            index_ms = message.born_ms
            if index_ms > now_ms:
                index_ms = topic.settings.index_ms(index_ms, now_ms)
            frames.append(Frame(queue, frame_formats.ROCKETMQ, record, 1, index_ms, code, _stamp_rocketmq))
            size += body_size
        if expire:
            records += self._lifetimes.records(queue.key)
        if is_part:
            return frames
        if len(records) > 1:
            self._schedules.check_room(records)
        self._metrics.records_in["rocketmq"] += len(frames)
        self._metrics.bytes_in["rocketmq"] += size
        return frames

    def count_rocketmq(self, records: int, body_bytes: int) -> None:
        """Count what was appended of a batch that was read in parts."""
        self._metrics.records_in["rocketmq"] += records
        self._metrics.bytes_in["rocketmq"] += body_bytes

    def check_schedule_count(self, messages: Sequence[Message], before: int = 0) -> int:
        """Refuse a batch of more schedules than may be made at once, before any of them is read; gives their count.

        `before` were in the parts of the batch that were read before these messages.
        """
        count = before + sum([_SCHEDULE_NAME in message.properties for message in messages])
        if count > self._schedules_max:
            raise DelayRefused(
                f"batch of {count} messages with AMQ_SCHEDULED_ properties; "
                f"delay.batch_schedules_max={self._schedules_max} is the limit"
            )
        return count - before

    def committed_half(
        self,
        topic: Topic,
        queue_id: int,
        record: bytes,
        outline: tuple[int, int, int, int],
        raw: bytes,
        now_ms: int,
        records: list[StateRecord],
    ) -> list[Frame]:
        """Give what a half message becomes in its queue, or parked until it is due; `raw` are its own properties.

        It was checked when it was sent, and a delay counts from then; else as `rocketmq_frames`.
        """
        born_ms, sent_ms, topic_at, _ = outline
        text = raw.decode("latin-1")
        if _mentions_wish_of_rocketmq(text):
            half = rocketmq_message.decode(record)
            half.properties = properties.repaired(raw)  # An earlier version may have stored what is not UTF-8.
            half.sys_flag = half.sys_flag & ~flags.TRANSACTION_MASK | flags.TRANSACTION_COMMIT
            half.prepared_transaction_offset = half.physical_offset
            return self.rocketmq_frames(topic, queue_id, [half], now_ms, records, sent_ms=sent_ms)
        if not topic.may_produce:
            raise ProduceRefused(f"sending to topic {topic.name} is forbidden, it is the broker's own")
        code = _tag_code(raw, text)
        final = rocketmq_message.committed(record, topic_at, topic.rocketmq_name, queue_id, raw, self.store_host)
        self._metrics.records_in["rocketmq"] += 1
        self._metrics.bytes_in["rocketmq"] += rocketmq_message.body_bytes_of(record)
        index_ms = topic.settings.index_ms(born_ms, now_ms)
        return [Frame(topic.queues[queue_id], frame_formats.ROCKETMQ, final, 1, index_ms, code, _stamp_rocketmq)]

    def check_half(self, topic: Topic, message: Message, now_ms: int, sender: Sender) -> None:
        """Raise what `rocketmq` would for a half message, by now without its mark, if it were committed now."""
        if not topic.may_produce:
            raise ProduceRefused(f"sending to topic {topic.name} is forbidden, it is the broker's own")
        found = self._check_message(message, _text_of(message.properties))
        if found is not None:
            self.inspector.unknown_names.check(topic, found, sender)
            self._delays.wishes.of_properties(found, now_ms)
            self._lifetimes.of_properties(found, now_ms)

    def _parked_message(
        self,
        topic: Topic,
        queue_id: int,
        message: Message,
        wish: Wish,
        found: dict[str, str],
        records: list[StateRecord],
        now_ms: int,
    ) -> Frame:
        key = topic.queues[queue_id].key
        # Who retries sends the message as it came: that must not replace other retries.
        name = b"" if topic.rocketmq_name.startswith(RETRY_PREFIX) else found.get(properties.KEYS, "").encode()
        if name and delay_headers.replaces(found) and (replaced := self._delays.replaced(topic, name)):
            records.append(self._delays.cancels(replaced, now_ms))
        schedule_name = ""
        if wish.schedule is not None:
            schedule_name = self._schedules.new_name()
            changes = {SCHEDULE_NAME: schedule_name, **dict.fromkeys(AMQ_NAMES)}
            message.properties = properties.set_many(message.properties, changes)
        tag, where = found.get(properties.TAGS), self._delays.queue_of(wish)
        pending_frames.park_message(message, topic.rocketmq_name, queue_id, self.store_host, wish, found)
        if len(message.properties) > rocketmq_message.PROPERTIES_BYTES_MAX - pending_frames.ADDED_BYTES_MAX:
            raise MessageTooLarge(f"properties of {len(message.properties)} bytes, with those of a delayed message")
        record = rocketmq_message.encode(message)
        extra = b""  # What recurs lies in the timer topic only to show that it came.
        if wish.schedule is None:
            extra = pending_frames.extra(key, wish.due_ms, name)
        else:
            records.append(self._scheduled_message(key, schedule_name, wish.schedule, wish.due_ms, record, now_ms))
        code = tags.hash_code(tag) if tag else tags.NO_TAG
        return Frame(where, frame_formats.ROCKETMQ, record, 1, wish.due_ms, code, _stamp_rocketmq, extra)

    def _scheduled_message(
        self, key: int, name: str, schedule: Schedule, due_ms: int, record: bytearray, now_ms: int
    ) -> ScheduleRegistered:
        kept = bytearray(record)
        rocketmq_message.stamp(kept, 0, (0, 0, now_ms))
        message = RecurringMessage(key, frame_formats.ROCKETMQ, bytes(kept))
        return self._schedules.record(name, schedule, message, Run(1, due_ms), is_kept=False)

    def _check_message(self, message: Message, text: str) -> dict[str, str] | None:
        """Check size and wishes; gives the properties, parsed, where one of them may ask for a delay."""
        raw = message.properties
        if len(message.body) > self.body_bytes_max or len(raw) > rocketmq_message.PROPERTIES_BYTES_MAX:
            raise MessageTooLarge(
                f"body of {len(message.body)} bytes, properties of {len(raw)}; allowed are {self.body_bytes_max} and "
                f"{rocketmq_message.PROPERTIES_BYTES_MAX}"
            )
        if not _mentions_wish_of_rocketmq(text):
            return None
        found = properties.parse(raw)
        _refuse_unknown(found)
        return found

    # -- From the HTTP port

    def timer(
        self,
        topic: Topic,
        queue_id: int,
        record: Record,
        wish: Wish,
        now_ms: int,
        *,
        replaces: bool,
        request: IdempotencyKey | None = None,
    ) -> tuple[TimerId, Promise]:
        """Park one record; gives the timer's id, which is remembered as the answer to `request`.

        Raises InvalidBatch, ProduceRefused, StoreError.
        """
        check_record(topic, record)
        queue = topic.queues[queue_id]
        replaced = self._delays.replaced(topic, record.key) if replaces and record.key else []
        records: list[StateRecord] = [self._delays.cancels(replaced, now_ms)] if replaced else []
        expires_ms = self._lifetimes.of_headers(record.headers, now_ms)
        if expires_ms is not None:
            record = record._replace(headers=lifetimes.fixed_headers(record.headers, expires_ms))
            records += self._lifetimes.records(queue.key)
        body = pending_frames.parked_record(record, wish.due_ms, now_ms)
        extra = pending_frames.extra(queue.key, wish.due_ms, record.key or b"")
        stamp = self._kafka_stamp(0, log_append_time=False)
        frame = Frame(self._delays.queue_of(wish), frame_formats.KAFKA, body, 1, wish.due_ms, 0, stamp, extra)
        if request is not None:
            behind = entry_size(len(body), len(extra), 1)  # The record comes next to the frame.
            records.insert(0, TimerRequested(*request, wish.due_ms, queue.key, behind, now_ms))
        slots, promise = self._delays.park([frame], now_ms, records)
        self._metrics.records_in["kafka"] += 1
        self._metrics.bytes_in["kafka"] += len(body)
        return (wish.due_ms, slots[0].position), promise

    # -- What was parked

    def parked_again(self, form: int, frame: memoryview, due_ms: int, extra: bytes) -> Frame:
        """Give the entry in which a message that came from a bucket waits for another time."""
        stamp = self.half_stamp() if form == frame_formats.KAFKA else _stamp_rocketmq
        return Frame(self._delays.queue_of(Wish(due_ms)), form, frame, 1, due_ms, tags.NO_TAG, stamp, extra)

    def deliveries(
        self, topic: Topic, queue_id: int, form: int, frames: Sequence[Buffer], dues_ms: Sequence[int], now_ms: int
    ) -> FrameRun:
        """Make parked entries of one form, with the times at which they are due, frames of their queue.

        Without those that have expired, if their topic drops such ones.
        """
        queue = topic.queues[queue_id]
        if topic.settings.drops_expired and queue.key in self._lifetimes:
            alive = [self._lives_on(form, frame, now_ms) for frame in frames]
            frames, dues_ms = [*compress(frames, alive)], [*compress(dues_ms, alive)]
        if form == frame_formats.KAFKA:
            batches = list(map(pending_frames.delivered_batch, frames, dues_ms))
            log_append_time = topic.settings.log_append_time
            stamp = self._kafka_stamp(topic.leader_epoch(queue_id), log_append_time)
            times_ms = [now_ms] * len(batches) if log_append_time else dues_ms
            return FrameRun(queue, form, batches, times_ms, [tags.NO_TAG] * len(batches), stamp)
        records, births_ms, raws = pending_frames.delivered_messages(
            frames, topic.rocketmq_name, queue_id, self.store_host, now_ms
        )
        times_ms = [topic.settings.index_ms(born_ms, now_ms) for born_ms in births_ms]
        return FrameRun(
            queue, form, records, times_ms, [_tag_code(raw, raw.decode("latin-1")) for raw in raws], _stamp_rocketmq
        )

    def _lives_on(self, form: int, parked_frame: Buffer, now_ms: int) -> bool:
        """Whether a message that is about to be delivered has not expired."""
        is_kafka = form == frame_formats.KAFKA
        raw = (
            pending_frames.properties_of_batch(parked_frame)
            if is_kafka
            else rocketmq_message.properties_of(parked_frame)
        )
        expires_ms = lifetimes.own_expiry_of(raw, now_ms)
        return expires_ms is None or not self._is_over(expires_ms, now_ms)

    def _is_over(self, expires_ms: int, now_ms: int) -> bool:
        """Whether that time has passed, by a clock that is believed."""
        return expires_ms <= now_ms - self._wall_time.ahead_ms


def _text_of(raw: bytes) -> str:
    """Give a message's properties as text. Raises IllegalMessage for what is not UTF-8."""
    try:
        return raw.decode()
    except UnicodeDecodeError as error:
        raise IllegalMessage(f"properties of {len(raw)} bytes are not UTF-8: {error}") from None


def _tag_code(raw: bytes, text: str) -> int:
    """Give the hash of the tag that a message's properties have; `text` are the same.

    To search in text takes a quarter of what it takes in bytes.
    """
    tag = properties.get(raw, properties.TAGS) if properties.TAGS in text else None
    return tags.hash_code(tag) if tag else tags.NO_TAG


def _fix_expiry(message: Message, expires_ms: int) -> dict[str, str]:
    """Have a message say for good when it expires; gives its properties, parsed."""
    message.properties = lifetimes.fixed_properties(message.properties, expires_ms)
    if len(message.properties) > rocketmq_message.PROPERTIES_BYTES_MAX:
        raise MessageTooLarge(f"properties of {len(message.properties)} bytes, with {lifetimes.EXPIRE_AT}")
    return properties.parse(message.properties)


def check_record(topic: Topic, record: Record) -> None:
    """Raise ProduceRefused or InvalidBatch for a record that its topic does not take."""
    if not topic.may_produce:
        raise ProduceRefused(f"sending to topic {topic.name} is forbidden, it is the broker's own")
    if topic.settings.compact and record.key is None:
        raise InvalidBatch(Reason.INVALID, f"record without a key for the compacted topic {topic.name}")
    size = len(record.key or b"") + len(record.value or b"") + len(encoded_headers(record.headers)) + HEADER_BYTES
    if size > topic.settings.max_message_bytes:
        raise InvalidBatch(
            Reason.TOO_LARGE, f"message of {size} bytes; {topic.settings.max_message_bytes} are allowed in {topic.name}"
        )


def _mentions_wish_of_rocketmq(text: str) -> bool:
    for mark in _ROCKETMQ_MARKS:  # noqa: SIM110  # `any` of a generator takes three times as long.
        if mark in text:
            return True
    return False


def _refuse_unknown(found: Mapping[str, str]) -> None:
    """Refuse what is not there yet, rather than do something else at once; TRAN_MSG=false asks for nothing.

    Half messages do not come this way.
    """
    if properties.TIMER_DEL_UNIQKEY in found:
        raise NotSupported("TIMER_DEL_UNIQKEY is not supported; recall a delayed message by its recallHandle")
    if found.get(properties.TRAN_MSG, "").lower() == "true":  # Boolean.parseBoolean
        raise NotSupported("transactional messages are not supported")


# -- Stamps


def _create_time_stamp(leader_epoch: int) -> Stamp:
    def stamp(buffer: bytearray, at: int, slot: Slot) -> None:
        record_batch.stamp(buffer, at, slot.base_offset, leader_epoch)

    return stamp


def _log_append_time_stamp(leader_epoch: int) -> Stamp:
    def stamp(buffer: bytearray, at: int, slot: Slot) -> None:
        record_batch.stamp(buffer, at, slot.base_offset, leader_epoch)
        record_batch.stamp_log_append_time(buffer, at, slot.stored_ms)

    return stamp


_stamp_rocketmq: Final[Stamp] = rocketmq_message.stamp  # A slot is what it calls a place.
