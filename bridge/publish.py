"""The one door into a queue: every message of either protocol that becomes visible comes through here.

    check     one sound batch or message, within the limits of its topic and family
    wishes    a delay, or RocketMQ's transaction: refused as not supported, never delivered at once
    repeats   an idempotent producer's batch that lies in the log already: answered with its place, appended nowhere
    txn       a batch of a Kafka transaction: its producer must be the newest, and its transaction have the queue
    append    one unit; offsets, positions and times are stamped into the frames as the store assigns them

Which of RocketMQ's properties ask for what: MessageConst.java. Kafka records ask for a delay by headers named as
RocketMQ's properties TIMER_DELIVER_MS, TIMER_DELAY_MS, TIMER_DELAY_SEC. A batch is opened only if these bytes occur in
it: one search, 0.1 to 0.5 ns a byte, is what the wish costs those who do not have it (a compressed batch is inflated
for it; the topic config `delay.headers` turns the search off).
"""

from collections.abc import Sequence
from typing import Final, NamedTuple, Protocol

from bridge import forms
from bridge.config import Options
from bridge.metrics import Metrics
from bridge.producers import Producers
from bridge.topics import Topic
from bridge.transactions import Transactions
from protocol.errors import ProtocolError
from protocol.kafka import record_batch
from protocol.kafka.compression import Codec, inflate
from protocol.kafka.record_batch import HEADER_BYTES, BatchHeader, InvalidBatch, Reason
from protocol.rocketmq import message as rocketmq_message
from protocol.rocketmq import properties, tags
from protocol.rocketmq.message import NO_HOST, Message
from store.entry import Appended, Buffer, Frame, Promise, Slot, Stamp, State

RECORDS_MAX: Final = 1 << 17  # of one batch: walking through all of them must not hold up the loop
RECORD_COST_BYTES: Final = 512  # walking through a record takes as long as inflating so much

TIMER_NAMES: Final = (properties.TIMER_DELIVER_MS, properties.TIMER_DELAY_MS, properties.TIMER_DELAY_SEC)
_TIMER_PREFIX: Final = b"TIMER_DEL"
_UNDERSCORE_AT: Final = _TIMER_PREFIX.index(b"_")
_BYTES_AN_UNDERSCORE: Final = 512  # With more of them than one in so many bytes, a search for the whole is faster.
_JOINED_BYTES_MAX: Final = 4 << 10  # Below it, joining the pieces of a record costs less than storing each of them.
_ROCKETMQ_MARKS: Final = ("DELAY", "TIMER_DEL", "TRAN_MSG")
_NO_LEVEL: Final = "0"


class NotSupported(Exception):
    """The message asks for a delay or a transaction."""


class ProduceRefused(Exception):
    """The topic is one of the broker's own."""


class MessageTooLarge(Exception):
    """A RocketMQ message exceeds `rocketmq.body_bytes_max`, or its properties exceed the format."""


class Log(Protocol):
    def append(self, entries: Sequence[Frame | State], now_ms: int) -> Appended: ...


class Published(NamedTuple):
    """Where a batch lies; of a repeated one, where it lay already."""

    base_offset: int
    log_append_ms: int  # -1: timestamps are the producer's
    promise: Promise


class Publisher:
    """The door. `store_host` is the packed address of the RocketMQ port, known once it listens."""

    def __init__(
        self, log: Log, producers: Producers, transactions: Transactions, metrics: Metrics, options: Options
    ) -> None:
        self.store_host = NO_HOST
        self._log, self._producers, self._metrics = log, producers, metrics
        self._transactions = transactions
        self._inflate_bytes_max = options.convert.inflate_bytes_max
        # Inflated and walked through, ever; what does not inflate counts as the most that it may.
        self.opened_bytes = 0
        self._stamps: dict[tuple[int, bool], Stamp] = {}
        self._body_bytes_max = options.rocketmq.body_bytes_max

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
    ) -> Published:
        """Append what a Produce request has for one partition; for the last two see `Transactions.admit`.

        Raises InvalidBatch, NotSupported, ProduceRefused, ProducerError, TransactionError, StoreError, and then has
        appended nothing.
        """
        if not topic.may_produce:
            raise ProduceRefused(f"topic {topic.name} is the broker's own")
        settings = topic.settings
        header = record_batch.check(batch, bytes_max=settings.max_message_bytes, records_max=RECORDS_MAX)
        if header.codec == Codec.ZSTD and not allows_zstd:
            raise InvalidBatch(Reason.COMPRESSION, "zstd needs Produce version 7")
        _check_timestamps(topic, header, now_ms)
        if settings.compact or settings.delay_headers:
            self._check_records(topic, batch, header)

        queue = topic.queues[queue_id]
        log_append_time = settings.log_append_time
        if header.producer_id >= 0:
            repeated = self._producers.check(queue.key, header, now_ms)
            if repeated is not None:
                # Positions move on by whole units: what keeps the first byte of the entry keeps all of it.
                promise = Promise(repeated.position + 1, queue.durable)
                return Published(repeated.base_offset, repeated.stored_ms if log_append_time else -1, promise)
            self._transactions.admit(queue.key, header, transactional_id, adds_itself=adds_itself)
        count = header.record_count
        stamp = self._kafka_stamp(topic.leader_epoch(queue_id), log_append_time)
        timestamp_ms = now_ms if log_append_time else header.max_timestamp
        frame = Frame(queue, forms.KAFKA, batch, count, timestamp_ms, 0, stamp)
        (slot,), promise = self._log.append([frame], now_ms)
        if header.producer_id >= 0:
            self._producers.remember_header(queue.key, slot, header)
            if header.is_transactional:
                self._transactions.wrote(queue.key, header.producer_id, slot)
        self._metrics.records_in["kafka"] += count
        self._metrics.bytes_in["kafka"] += len(batch)
        return Published(slot.base_offset, slot.stored_ms if log_append_time else -1, promise)

    def _check_records(self, topic: Topic, batch: Buffer, header: BatchHeader) -> None:
        """Open the batch where that may matter; raises for a record that its topic does not take."""
        if not topic.settings.compact and not self._mentions_timer(batch, header):
            return
        self.opened_bytes += header.record_count * RECORD_COST_BYTES
        try:
            for record in record_batch.records(batch, self._inflate_bytes_max):
                if topic.settings.compact and record.key is None:
                    raise InvalidBatch(Reason.INVALID, f"record without a key for the compacted topic {topic.name}")
                if topic.settings.delay_headers and any(name in TIMER_NAMES for name, _ in record.headers):
                    raise NotSupported("delayed messages are not supported")
        except InvalidBatch:
            raise
        except ProtocolError as error:
            raise InvalidBatch(Reason.INVALID, str(error)) from error

    def _mentions_timer(self, batch: Buffer, header: BatchHeader) -> bool:
        if not header.codec:
            return _has_timer_name(bytes(batch))
        try:
            inflated = inflate(header.codec, memoryview(batch)[HEADER_BYTES:], self._inflate_bytes_max)
            self.opened_bytes += len(inflated)
            return _has_timer_name(inflated)
        except ProtocolError as error:
            self.opened_bytes += self._inflate_bytes_max
            raise InvalidBatch(Reason.INVALID, str(error)) from error

    def _kafka_stamp(self, leader_epoch: int, log_append_time: bool) -> Stamp:
        """Give the one stamp of that kind; there are a few, since epochs rise only with unclean starts."""
        stamp = self._stamps.get((leader_epoch, log_append_time))
        if stamp is None:
            make = _log_append_time_stamp if log_append_time else _create_time_stamp
            stamp = self._stamps[leader_epoch, log_append_time] = make(leader_epoch)
        return stamp

    # -- RocketMQ

    def rocketmq(self, topic: Topic, queue_id: int, messages: Sequence[Message], now_ms: int) -> Appended:
        """Append one message, or a batch as one unit with one entry for each message.

        Topic, queue and store host of a record are the door's, whatever its message says. Raises MessageTooLarge,
        NotSupported, ProduceRefused, ProtocolError, StoreError, and then has appended nothing.
        """
        return self._log.append(self.rocketmq_frames(topic, queue_id, messages), now_ms)

    def rocketmq_frames(self, topic: Topic, queue_id: int, messages: Sequence[Message]) -> list[Frame]:
        """Give what `rocketmq` would append, for who appends it in a unit of his own. Raises as it does."""
        if not topic.may_produce:
            raise ProduceRefused(f"topic {topic.name} is the broker's own")
        queue = topic.queues[queue_id]
        pieces_of = rocketmq_message.Writer(topic.rocketmq_name, queue_id, self.store_host).pieces
        frames: list[Frame] = []
        size = 0
        for message in messages:
            raw = message.properties
            text = raw.decode("latin-1")  # Byte for byte: to search in text takes a sixth of what it takes in bytes.
            self._check_message(message, text)
            tag = properties.get(raw, properties.TAGS) if properties.TAGS in text else None
            code = tags.hash_code(tag) if tag else tags.NO_TAG
            pieces = pieces_of(message)
            body_size = len(message.body)
            record = b"".join(pieces) if body_size < _JOINED_BYTES_MAX else pieces
            frames.append(Frame(queue, forms.ROCKETMQ, record, 1, message.born_ms, code, _stamp_rocketmq))
            size += body_size
        self._metrics.records_in["rocketmq"] += len(frames)
        self._metrics.bytes_in["rocketmq"] += size
        return frames

    def check_half(self, topic: Topic, message: Message) -> None:
        """Raise what `rocketmq` would for a half message if it were committed now."""
        if not topic.may_produce:
            raise ProduceRefused(f"topic {topic.name} is the broker's own")
        self._check_message(message, message.properties.decode("latin-1"), is_half=True)

    def _check_message(self, message: Message, text: str, *, is_half: bool = False) -> None:
        raw = message.properties
        if len(message.body) > self._body_bytes_max or len(raw) > rocketmq_message.PROPERTIES_BYTES_MAX:
            raise MessageTooLarge(
                f"body of {len(message.body)} bytes, properties of {len(raw)}; allowed are {self._body_bytes_max} and "
                f"{rocketmq_message.PROPERTIES_BYTES_MAX}"
            )
        for mark in _ROCKETMQ_MARKS:
            if mark in text:
                _check_wishes(raw, is_half=is_half)
                return


def _has_timer_name(data: bytes) -> bool:
    """Tell whether the prefix of the timers' names occurs.

    A search for one byte (memchr) is twenty times as fast as one for nine. So the underscores are looked at one by one
    while they are few, as they mostly are; where there are many, what is left is searched as a whole.
    """
    at = data.find(b"_", _UNDERSCORE_AT)
    for _ in range(1 + len(data) // _BYTES_AN_UNDERSCORE):
        if at < 0:
            return False
        if data.startswith(_TIMER_PREFIX, at - _UNDERSCORE_AT):
            return True
        at = data.find(b"_", at + 1)
    return at >= 0 and data.find(_TIMER_PREFIX, at - _UNDERSCORE_AT) >= 0


def _check_wishes(raw: bytes, *, is_half: bool) -> None:
    """Refuse properties that ask for a delay or a transaction; a level of 0 and TRAN_MSG=false ask for nothing.

    Half messages do not come this way, except to be checked.
    """
    found = properties.parse(raw)
    level = found.get(properties.DELAY, _NO_LEVEL)
    if level.strip() != _NO_LEVEL or any(name in found for name in TIMER_NAMES):
        raise NotSupported("delayed messages are not supported")
    if found.get(properties.TRAN_MSG, "").lower() == "true" and not is_half:  # Boolean.parseBoolean
        raise NotSupported("transactional messages are not supported")


def _check_timestamps(topic: Topic, header: BatchHeader, now_ms: int) -> None:
    """Hold the batch to the topic's bounds, by its header: -1 is no timestamp. LogValidator.java#validateTimestamp"""
    settings = topic.settings
    if settings.log_append_time or header.max_timestamp < 0:
        return
    earliest, latest = now_ms - settings.timestamp_before_max_ms, now_ms + settings.timestamp_after_max_ms
    if header.max_timestamp > latest or 0 <= header.base_timestamp < earliest:
        raise InvalidBatch(
            Reason.TIMESTAMP,
            f"timestamps {header.base_timestamp} to {header.max_timestamp} are outside {earliest} to {latest}",
        )


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
