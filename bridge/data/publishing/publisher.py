"""Appends what clients send: checks the limits of a plan, appends it as one unit, and follows what was appended.

    check     a sound batch (`produced_batches.py`) or message, within the limits of its topic and format
    plan      the frames and state records that it becomes (`kafka_plan.py`, `rocketmq_plan.py`), as a UnitPlan
    producer  a batch of an idempotent producer that is in the log already is answered with its place and not appended;
              for a batch of a Kafka transaction, its producer must be the newest and the transaction have the partition
    append    `Publisher.append`: the limits of pending messages, of all and of the client, and of schedules; then one
              unit, of which each frame gets its slot. The store stamps offsets, positions and times into the frames

Handlers that append further records with messages (retries, dead letters, checkpoints of POP, verdicts on half
messages) call `append` with plans of their own. A batch in which all records are visible at once, and a message that
asks for nothing, are appended as one frame without further steps.
"""

from collections.abc import Generator, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple, Protocol

from duolog.bridge.config import Options
from duolog.bridge.data.delayed.delay_records import cancellations_by_key
from duolog.bridge.data.delayed.delays import Delays
from duolog.bridge.data.delayed.schedules import Schedules
from duolog.bridge.data.expiry import ExpiringQueues
from duolog.bridge.data.publishing.kafka_plan import KafkaPlan, KafkaPlanner
from duolog.bridge.data.publishing.pending_quota import PendingQuota
from duolog.bridge.data.publishing.produced_batches import (
    BROKER_ORIGIN,
    BatchChecker,
    BatchOrigin,
    CheckedBatch,
    run_to_end,
)
from duolog.bridge.data.publishing.refusals import check_may_produce
from duolog.bridge.data.publishing.rocketmq_batch_plan import MessageBatchPlan, PlacedMessages
from duolog.bridge.data.publishing.rocketmq_plan import MessagePlanner, replacing_keys
from duolog.bridge.data.stamps import KafkaStamps
from duolog.bridge.data.units import SenderKey, UnitPlan
from duolog.bridge.data.unknown_headers import Sender, UnknownHeaders
from duolog.bridge.monitoring.metrics import Metrics
from duolog.bridge.records import frame_formats
from duolog.bridge.records.codec import Record as StateRecord
from duolog.bridge.records.timers import DelayedBatch, TimerRequested, TimersCancelled
from duolog.bridge.security.quotas.entity import QuotaClient
from duolog.bridge.security.quotas.quotas import Quotas
from duolog.bridge.state.idempotency_keys import IdempotencyKey
from duolog.bridge.state.producers import Producers
from duolog.bridge.state.topic_table import Topic
from duolog.bridge.state.topics import Topics
from duolog.bridge.state.wall_time import WallTime
from duolog.bridge.transactions.half_message_log import HalfMessageLog
from duolog.bridge.transactions.kafka_transactions import Transactions
from duolog.delay import entry_extra
from duolog.delay.requested_delay import RequestedDelay
from duolog.delay.rows import KEY_SIZE, TimerId
from duolog.protocol.kafka.batch_builder import encoded_headers
from duolog.protocol.kafka.record_batch import HEADER_BYTES, BatchHeader, InvalidBatch, Reason, Record
from duolog.protocol.rocketmq.messages.message import Message
from duolog.store.entry import Appended, Buffer, EntrySlot, Promise, new_tuple
from duolog.store.errors import updating_state
from duolog.store.index.queue import Queue
from duolog.store.log.format import NO_OFFSET, entry_size
from duolog.store.state_log import StateLog
from duolog.store.unit import Frame, FrameRun, Part

NO_TIME: Final = -1  # The timestamps of a published batch are those of the producer.


class AppendLog(Protocol):
    """The part of the store that the publisher uses."""

    def append(self, entries: Sequence[Part], now_ms: int) -> Appended: ...


class Published(NamedTuple):
    """Where a batch was appended; for a repeated batch, where it was appended before."""

    base_offset: int  # -1 if records of the batch are delayed or half messages.
    log_append_ms: int  # -1 if the timestamps are the producer's.
    promise: Promise


@dataclass(frozen=True, slots=True)
class PublishOwners:
    """The state owners that published units change."""

    topics: Topics
    delays: Delays
    schedules: Schedules
    half_messages: HalfMessageLog
    expiring_queues: ExpiringQueues
    producers: Producers
    transactions: Transactions
    quotas: Quotas


class Publisher:
    """Appends batches, messages and single records, each as one unit.

    `store_host` is the packed address of the RocketMQ port.
    """

    def __init__(
        self,
        log: AppendLog,
        state_log: StateLog,
        owners: PublishOwners,
        metrics: Metrics,
        wall_time: WallTime,
        options: Options,
        store_host: bytes,
    ) -> None:
        self._log, self._state_log, self._metrics, self._stamps = log, state_log, metrics, KafkaStamps()
        self._delays, self._schedules, self._half_messages = owners.delays, owners.schedules, owners.half_messages
        self.pending_quota = PendingQuota(owners.quotas, owners.delays.timers.quota_entities)
        self._expiring_queues = owners.expiring_queues
        self._producers, self._transactions = owners.producers, owners.transactions
        unknown_headers = UnknownHeaders()
        self.checker = BatchChecker(owners.delays.timers, unknown_headers, options)
        self.batches = KafkaPlanner(
            owners.topics, self._schedules, self._half_messages, self._stamps, wall_time, options
        )
        self.messages = MessagePlanner(
            owners.topics,
            self._schedules,
            self._expiring_queues,
            unknown_headers,
            wall_time,
            options,
            store_host,
        )

    # -- Kafka batches

    def publish_batch(
        self, topic: Topic, queue_id: int, batch: Buffer, now_ms: int, origin: BatchOrigin = BROKER_ORIGIN
    ) -> Published:
        """Append the batch that a Produce request has for one partition.

        Raises InvalidBatch, DelayRefused, NotSupported, PendingQuotaReached, ProduceRefused, ProducerError,
        TransactionError, StoreError, and then nothing was appended.
        """
        checked = self.checker.check(topic, batch, now_ms, origin)
        requested = checked.requested
        if requested is not None and requested.needs_plan:
            plan = run_to_end(self.batches.plan_batch(topic, queue_id, checked.header, requested, now_ms))
            return self._append_plan(plan, checked.header, now_ms, origin)
        return self._append_whole(topic, queue_id, checked, now_ms, origin)

    def publish_batch_in_slices(
        self, topic: Topic, queue_id: int, batch: Buffer, now_ms: int, origin: BatchOrigin
    ) -> Generator[None, None, Published]:
        """Do the same for a batch of many records. The loop may turn where it yields; the topic must still exist then.

        The batch is appended in the last step, after the requests that other clients make in the meantime.
        """
        checked = self.checker.check(topic, batch, now_ms, origin, sorts=False)
        if checked.unsorted is not None:
            yield
            requested = yield from self.checker.sort(topic, checked.unsorted, now_ms, origin.sender)
            checked = CheckedBatch(checked.batch, checked.header, requested, None)
            if requested is not None and requested.needs_plan:
                plan = yield from self.batches.plan_batch(topic, queue_id, checked.header, requested, now_ms)
                return self._append_plan(plan, checked.header, now_ms, origin)
        return self._append_whole(topic, queue_id, checked, now_ms, origin)

    def _append_whole(
        self, topic: Topic, queue_id: int, checked: CheckedBatch, now_ms: int, origin: BatchOrigin
    ) -> Published:
        """Append a batch as it came, because all its records are visible at once."""
        batch, header, requested, _ = checked
        queue = topic.queues[queue_id]
        log_append_time = topic.settings.log_append_time
        if header.producer_id >= 0:
            repeated = self._check_producer(topic, queue, header, now_ms, origin)
            if repeated is not None:
                return repeated
        count = header.record_count
        stamp = self._stamps.of(topic.leader_epoch(queue_id), log_append_time)
        timestamp_ms = now_ms if log_append_time else header.max_timestamp
        frame = Frame(queue, frame_formats.KAFKA, batch, count, timestamp_ms, 0, stamp)
        # Records that ask for something and need no plan have an expiry.
        records = () if requested is None else self._expiring_queues.records_for(queue.key)
        unit = ([frame], records, origin.wire, count, len(batch), queue.level, 0, (), None, False)
        plan = new_tuple(UnitPlan, unit)
        (slot,), promise = self.append(plan, now_ms)
        if header.producer_id >= 0:
            with updating_state("a batch of an idempotent producer"):
                self._producers.remember_header(queue.key, slot, header)
                if header.is_transactional:
                    self._transactions.wrote(queue.key, header.producer_id, slot)
        return new_tuple(Published, (slot.base_offset, slot.stored_ms if log_append_time else NO_TIME, promise))

    def _check_producer(
        self, topic: Topic, queue: Queue, header: BatchHeader, now_ms: int, origin: BatchOrigin
    ) -> Published | None:
        """Check a batch against what is known of its producer; return where a repeated batch was appended before."""
        repeated = self._producers.check(queue.key, header, now_ms)
        if repeated is not None:
            # A promise covers whole units, so the position after the entry's first byte is enough.
            promise = Promise(repeated.position + 1, queue.level)
            log_append_time = topic.settings.log_append_time
            return Published(repeated.base_offset, repeated.stored_ms if log_append_time else NO_TIME, promise)
        self._transactions.admit(queue.key, header, origin.transactional_id, adds_itself=origin.adds_partition)
        return None

    def _append_plan(self, plan: KafkaPlan, header: BatchHeader, now_ms: int, origin: BatchOrigin) -> Published:
        """Append the plan of a batch, and what the window of its producer needs, as one unit.

        In a transaction the visible records belong to it, and the delayed ones wait for its commit.
        """
        topic, queue = plan.topic, plan.topic.queues[plan.queue_id]
        if header.producer_id >= 0:
            repeated = self._check_producer(topic, queue, header, now_ms, origin)
            if repeated is not None:
                return repeated
        if header.is_transactional:
            self._transactions.check_delayed(header.producer_id, plan.delayed_count)
        self._half_messages.check_kafka(topic, plan.half_requests)
        self.pending_quota.check_room(origin.client, sum(half.is_delayed for half in plan.half_requests))
        unit = self.unit_of(plan)
        if header.producer_id >= 0:
            first, last = header.base_sequence, header.last_sequence
            window = DelayedBatch(queue.key, header.producer_id, header.producer_epoch, first, last)
            unit = unit._replace(records=[*unit.records, window])
        unit = unit._replace(
            wire=origin.wire,
            message_count=header.record_count,
            message_bytes=header.size,
            level=queue.level,
            changes_state=True,
        )
        slots, promise = self.append(unit, now_ms, origin.client)
        for planned, slot in zip(plan.frames, slots, strict=True):
            if planned.half is not None:
                self._half_messages.follow_kafka(topic, planned.half, slot)
            elif planned.is_visible and header.is_transactional:
                self._transactions.wrote(queue.key, header.producer_id, slot)
        return Published(NO_OFFSET, now_ms if topic.settings.log_append_time else NO_TIME, promise)

    def unit_of(self, plan: KafkaPlan) -> UnitPlan:
        """Return the unit of a plan, with the schedules and the mark of expiry that it needs as of now."""
        records: list[StateRecord] = [*plan.schedules]
        if plan.has_expiry:
            records += self._expiring_queues.records_for(plan.topic.queues[plan.queue_id].key)
        keys = [SenderKey(key, replaces=True) for key in plan.replacing_keys]
        return UnitPlan([planned.frame for planned in plan.frames], records, topic=plan.topic.number, keys=keys)

    # -- Single records, over HTTP

    def publish_delayed(
        self,
        topic: Topic,
        queue_id: int,
        record: Record,
        delay: RequestedDelay,
        now_ms: int,
        *,
        replaces: bool,
        request: IdempotencyKey | None = None,
        client: QuotaClient | None = None,
    ) -> tuple[TimerId, Promise]:
        """Append one delayed record; return its timer's id, which is recorded as the answer to `request`.

        `client` is whose quota the record counts in. Raises InvalidBatch, DelayRefused, PendingQuotaReached,
        ProduceRefused, StoreError.
        """
        check_record(topic, record)
        plan = self.batches.plan_delayed(topic, queue_id, record, delay, now_ms, replaces=replaces)
        unit = self.unit_of(plan)
        unit = unit._replace(wire="http", message_count=1, message_bytes=plan.frames[0].frame.size, request=request)
        (slot,), promise = self.append(unit, now_ms, client)
        return (delay.due_ms, slot.position), promise

    # -- RocketMQ messages

    def publish_messages(
        self,
        topic: Topic,
        queue_id: int,
        messages: Sequence[Message],
        now_ms: int,
        sender: Sender | None = None,
        client: QuotaClient | None = None,
    ) -> Appended:
        """Append messages as one unit; the slots are those of the messages.

        `client` is whose quota delayed messages count in. Raises DelayRefused, IllegalMessage, NotSupported,
        PendingQuotaReached, ProduceRefused, ProtocolError, StoreError, and then nothing was appended.
        """
        return self.append(
            self.messages.plan_messages(topic, queue_id, messages, now_ms, sender=sender), now_ms, client
        )

    def publish_message_batch(
        self, plan: MessageBatchPlan, now_ms: int, client: QuotaClient | None = None
    ) -> PlacedMessages:
        """Append a batch that was planned in parts as one unit. Raises what `append` raises."""
        return plan.placed(self.append(plan.unit(), now_ms, client))

    # -- Units

    def append(
        self, plan: UnitPlan, now_ms: int, client: QuotaClient | None = None, *, is_accepted: bool = False
    ) -> Appended:
        """Check the limits of a plan, and append it as one unit; the slots are those of its frames, in order.

        `client` is whose quota the delayed messages count in. If they were accepted before, as half messages, they
        count also above the limits, and are refused only if they cannot be counted. Raises DelayRefused,
        PendingQuotaReached and StoreError, and appends nothing.
        """
        frames, records, wire, count, size, level, _, keys, _, changes_state = plan
        if records or keys or len(frames) != 1 or frames[0].extra:
            appended = self._append_checked(plan, now_ms, client, is_accepted=is_accepted)
        elif changes_state:  # A half message.
            slots, promise = self._state_log.commit((), now_ms, frames)
            appended = _promised(slots, promise, level)
        else:  # This is so for nearly all messages: one frame that asks for nothing.
            appended = self._log.append(frames, now_ms)
        if count:
            metrics = self._metrics
            metrics.records_in[wire] += count
            metrics.bytes_in[wire] += size
            metrics.records_of_size[(size // count - 1).bit_length()] += count
        return appended

    def append_accepted(self, plan: UnitPlan, now_ms: int, client: QuotaClient | None = None) -> Appended:
        """Append a plan of half messages, whose limits were checked before, or of the messages that they become."""
        return self.append(plan, now_ms, client, is_accepted=True)

    def _append_checked(
        self, plan: UnitPlan, now_ms: int, client: QuotaClient | None, *, is_accepted: bool
    ) -> Appended:
        """Append a plan with state records, delayed messages or frames that change state."""
        timers, frames, owned = self._delays.timers, plan.frames, plan.records
        if owned or plan.keys:
            cancelled = cancellations_by_key(timers, plan.topic, replacing_keys(plan.keys), now_ms)
            owned = [*owned, *cancelled]
            self._schedules.check_room(owned)
        pending_count = sum([entry_extra.is_pending(frame.extra) for frame in frames if frame.extra])
        if pending_count:
            frames, owned = self.pending_quota.charge(frames, pending_count, owned, client, refuses=not is_accepted)
            if not is_accepted:
                timers.check_room(pending_count)
        if plan.request is not None:
            owned = [_answer_record(plan.request, frames[0], now_ms), *owned]
        slots, promise = self._state_log.commit(owned, now_ms, frames)
        if pending_count:
            self._count_delayed(pending_count, owned)
        return _promised(slots[: len(frames)] if owned else slots, promise, plan.level)

    def _count_delayed(self, accepted: int, records: Sequence[StateRecord]) -> None:
        """Count delayed messages that were accepted, and those that they replace."""
        timers = self._metrics.timers
        timers["accepted"] += accepted
        if records:
            cancelled = [record for record in records if isinstance(record, TimersCancelled)]
            timers["cancelled"] += sum([len(record.ids) // KEY_SIZE for record in cancelled])


def _promised(slots: Sequence[EntrySlot], promise: Promise, level: int | None) -> Appended:
    """Return what was appended, with a promise of this level; None: the level of `promise`."""
    kept = promise if level is None else new_tuple(Promise, (promise.end, level))
    return new_tuple(Appended, (slots, kept))


def check_record(topic: Topic, record: Record) -> None:
    """Raise ProduceRefused or InvalidBatch for a record that its topic does not take."""
    check_may_produce(topic)
    if topic.settings.compact and record.key is None:
        raise InvalidBatch(Reason.INVALID, f"record without a key for the compacted topic {topic.name}")
    size = len(record.key or b"") + len(record.value or b"") + len(encoded_headers(record.headers)) + HEADER_BYTES
    if size > topic.settings.max_message_bytes:
        raise InvalidBatch(
            Reason.TOO_LARGE, f"message of {size} bytes; {topic.settings.max_message_bytes} are allowed in {topic.name}"
        )


def _answer_record(request: IdempotencyKey, frame: Frame | FrameRun, now_ms: int) -> TimerRequested:
    """Make the record of the answer to a request. It must follow the frame, whose position it is relative to."""
    assert isinstance(frame, Frame), "a delayed message"
    distance = entry_size(frame.size, len(frame.extra), 1)
    return TimerRequested(*request, frame.timestamp_ms, entry_extra.destination_of(frame.extra), distance, now_ms)
