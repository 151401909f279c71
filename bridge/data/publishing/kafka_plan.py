"""Plans the frames and state records of one unit for Kafka records, without appending anything.

    record                     frame                                              state record
    visible at once            in the partition, all of a batch in one frame
    delayed                    in the queue of pending messages                   TimersCancelled for those it replaces
    delayed, in a transaction  the same, held until the transaction commits
    recurring                                                                     ScheduleRegistered
    half message               in RMQ_SYS_TRANS_HALF_TOPIC
    with an expiry             as above                                           QueuesExpire, once for each queue

A batch in which all records are visible at once needs no plan: `Publisher` appends the bytes that the producer sent.
"""

from collections.abc import Generator, Sequence
from dataclasses import dataclass, field

from duolog.bridge.config import Options
from duolog.bridge.data import expiry
from duolog.bridge.data.delayed import pending_frames
from duolog.bridge.data.delayed.delay_headers import REPLACING_MAX, DelayParser, replaces_header
from duolog.bridge.data.delayed.schedules import SCHEDULE_NAME, Schedules
from duolog.bridge.data.expiry import ExpiryParser
from duolog.bridge.data.half_frames import HalfRequest
from duolog.bridge.data.publishing.produced_batches import (
    RECORDS_AT_ONCE,
    RequestedRecords,
)
from duolog.bridge.data.publishing.refusals import NotSupported
from duolog.bridge.data.stamps import WAITING_STAMP, KafkaStamps
from duolog.bridge.records import frame_formats
from duolog.bridge.records.schedules import ScheduleRegistered
from duolog.bridge.state.topic_table import Topic
from duolog.bridge.state.topics import Topics
from duolog.bridge.state.wall_time import WallTime
from duolog.bridge.transactions.half_message_log import HalfMessageLog
from duolog.delay import entry_extra
from duolog.delay.recurring import AMQ_NAMES, Run, Schedule
from duolog.delay.requested_delay import RequestedDelay
from duolog.delay.schedules import DeliverySchedule, RecurringMessage
from duolog.protocol.kafka.batch_builder import BatchBuilder
from duolog.protocol.kafka.record_batch import BatchHeader, InvalidBatch, Reason, Record
from duolog.store.entry import Buffer
from duolog.store.unit import Frame


@dataclass(slots=True)
class PlannedFrame:
    """A frame of a plan. `half` is set for a half message; `is_visible` is set for a batch of the partition."""

    frame: Frame
    half: HalfRequest | None = None
    is_visible: bool = False


@dataclass(slots=True)
class KafkaPlan:
    """The frames and state records of one unit for Kafka records. The order of `frames` is their order in the log."""

    topic: Topic
    queue_id: int
    frames: list[PlannedFrame] = field(default_factory=list)
    schedules: list[ScheduleRegistered] = field(default_factory=list)
    replacing_keys: list[bytes] = field(default_factory=list)  # The pending messages with these keys are cancelled.
    has_expiry: bool = False  # The queue must be marked as one whose messages may expire.
    delayed_count: int = 0

    @property
    def half_requests(self) -> list[HalfRequest]:
        """The requests of the half messages of the plan."""
        return [planned.half for planned in self.frames if planned.half is not None]


class KafkaPlanner:
    """Makes the plans of Kafka records."""

    def __init__(
        self,
        topics: Topics,
        schedules: Schedules,
        half_messages: HalfMessageLog,
        stamps: KafkaStamps,
        wall_time: WallTime,
        options: Options,
    ) -> None:
        self._topics, self._schedules, self._half_messages = topics, schedules, half_messages
        self._stamps, self._wall_time = stamps, wall_time
        self._delay_parser, self._expiry_parser = DelayParser(options.delay), ExpiryParser(options.delay)

    def plan_batch(
        self, topic: Topic, queue_id: int, header: BatchHeader, requested: RequestedRecords, now_ms: int
    ) -> Generator[None, None, KafkaPlan]:
        """Plan the records of a produced batch, which were sorted by what they ask for.

        The generator yields after RECORDS_AT_ONCE records, so that the loop may turn. It reads no state that the
        requests of others change, except for the early check of the limits of schedules. Raises InvalidBatch,
        NotSupported, TooManySchedules.
        """
        if header.is_transactional and any(
            delay.schedule or replaces_header(record.headers) for delay, record in requested.delayed
        ):
            raise NotSupported("a record of a transaction does not recur, and replaces none")
        plan = KafkaPlan(topic, queue_id, has_expiry=bool(requested.expiring), delayed_count=len(requested.delayed))
        for number, (half, record) in enumerate(requested.half):
            if number and not number % RECORDS_AT_ONCE:
                yield
            plan.frames.append(PlannedFrame(self._half_messages.kafka_frame(topic, queue_id, record), half))
        kept, plan.replacing_keys = _without_replaced(requested.delayed)
        holder = header.producer_id if header.is_transactional else None
        for number, (delay, record) in enumerate(kept):
            if number and not number % RECORDS_AT_ONCE:
                yield
            self._add_delayed(plan, record, delay, now_ms, holder)
        if requested.visible:
            frame = yield from self._rest_of(topic, queue_id, header, requested.visible, now_ms)
            plan.frames.append(PlannedFrame(frame, is_visible=True))
        if len(plan.frames) > RECORDS_AT_ONCE:
            yield
        return plan

    def plan_committed(self, topic: Topic, queue_id: int, record: Record, now_ms: int, *, sent_ms: int) -> KafkaPlan:
        """Plan the record of a half message that is committed now; its delay and expiry count from `sent_ms`.

        The plan has no frames if the record has expired and its topic drops expired messages. Raises DelayRefused,
        TooManySchedules.
        """
        plan = KafkaPlan(topic, queue_id)
        delay = expires_ms = None
        if topic.settings.delay_headers:
            delay = self._delay_parser.parse_headers(record.headers, sent_ms)
            expires_ms = self._expiry_parser.parse_headers(record.headers, sent_ms)
        if expires_ms is not None:
            plan.has_expiry = True
            if delay is None or delay.schedule is None:
                record = record._replace(headers=expiry.fixed_headers(record.headers, expires_ms))
        if delay is not None and (delay.schedule is not None or delay.due_ms > now_ms):
            _, plan.replacing_keys = _without_replaced([(delay, record)])
            plan.delayed_count = 1
            self._add_delayed(plan, record, delay, now_ms)
            return plan
        is_expired = expires_ms is not None and expires_ms <= now_ms - self._wall_time.ahead_ms
        if not (is_expired and topic.settings.drops_expired):
            builder = BatchBuilder()
            builder.append(0, record.timestamp_ms, record.key, record.value, record.headers)
            frame = self._frame(topic, queue_id, builder.finish(0, 0), 1, record.timestamp_ms, now_ms)
            plan.frames.append(PlannedFrame(frame, is_visible=True))
        return plan

    def plan_delayed(
        self, topic: Topic, queue_id: int, record: Record, delay: RequestedDelay, now_ms: int, *, replaces: bool
    ) -> KafkaPlan:
        """Plan one record whose delay is given beside it, as over HTTP. Raises DelayRefused."""
        plan = KafkaPlan(topic, queue_id, delayed_count=1)
        plan.has_expiry = self._expiry_parser.parse_headers(record.headers, now_ms) is not None
        if replaces and record.key:
            plan.replacing_keys = [record.key]
        self._add_delayed(plan, record, delay, now_ms)
        return plan

    def _add_delayed(
        self, plan: KafkaPlan, record: Record, delay: RequestedDelay, now_ms: int, holder: int | None = None
    ) -> None:
        """Add a delayed or recurring record to a plan.

        `holder` is the producer id of the transaction whose commit the record waits for. The key of such a record does
        not name it.
        """
        key = plan.topic.queues[plan.queue_id].key
        if delay.schedule is not None:
            plan.schedules.append(self._scheduled_record(key, delay.schedule, delay.due_ms, record, now_ms))
            return
        expires_ms = self._expiry_parser.parse_headers(record.headers, now_ms)
        if expires_ms is not None:
            record = record._replace(headers=expiry.fixed_headers(record.headers, expires_ms))
        body = pending_frames.pending_batch(record, delay.due_ms, now_ms)
        if holder is None:
            extra = entry_extra.encode_pending(key, delay.due_ms, record.key or b"")
        else:
            extra = entry_extra.encode_held(key, delay.due_ms, holder)
        queue = pending_frames.pending_queue(self._topics, delay.level)
        plan.frames.append(
            PlannedFrame(Frame(queue, frame_formats.KAFKA, body, 1, delay.due_ms, 0, WAITING_STAMP, extra))
        )

    def _scheduled_record(
        self, key: int, schedule: Schedule, due_ms: int, record: Record, now_ms: int
    ) -> ScheduleRegistered:
        name = self._schedules.new_name()
        headers = [header for header in record.headers if header[0] not in AMQ_NAMES]
        named = record._replace(headers=[*headers, (SCHEDULE_NAME, name.encode())])
        message = RecurringMessage(key, frame_formats.KAFKA, bytes(pending_frames.pending_batch(named, due_ms, now_ms)))
        return self._schedules.record(DeliverySchedule(name, schedule, message, Run(1, due_ms), is_kept=False))

    def _rest_of(
        self, topic: Topic, queue_id: int, header: BatchHeader, rest: Sequence[Record], now_ms: int
    ) -> Generator[None, None, Frame]:
        """Make a new batch of the records that are visible at once."""
        builder = BatchBuilder()
        for number, record in enumerate(rest):
            if number and not number % RECORDS_AT_ONCE:
                yield
            builder.append(number, record.timestamp_ms, record.key, record.value, record.headers)
        # The new batch has no sequence numbers, because those of the whole batch are recorded by DelayedBatch.
        producer = (header.producer_id, header.producer_epoch, -1) if header.is_transactional else (-1, -1, -1)
        body = builder.finish(0, 0, codec=header.codec, producer=producer, is_transactional=header.is_transactional)
        return self._frame(topic, queue_id, body, len(rest), max(record.timestamp_ms for record in rest), now_ms)

    def _frame(self, topic: Topic, queue_id: int, body: Buffer, count: int, timestamp_ms: int, now_ms: int) -> Frame:
        log_append_time = topic.settings.log_append_time
        stamp = self._stamps.of(topic.leader_epoch(queue_id), log_append_time)
        if log_append_time:
            timestamp_ms = now_ms
        return Frame(topic.queues[queue_id], frame_formats.KAFKA, body, count, timestamp_ms, 0, stamp)


def _without_replaced(
    delayed: Sequence[tuple[RequestedDelay, Record]],
) -> tuple[list[tuple[RequestedDelay, Record]], list[bytes]]:
    """Return the records that no later record of the batch replaces, and the keys whose pending messages are replaced.

    Raises InvalidBatch if too many records replace others.
    """
    replaces = [replaces_header(record.headers) for _, record in delayed]
    replacing_count = sum(replaces)
    if not replacing_count:
        return [*delayed], []
    if replacing_count > REPLACING_MAX:
        raise InvalidBatch(
            Reason.TOO_LARGE,
            f"batch of {replacing_count} records that replace others; {REPLACING_MAX} are allowed",
        )
    kept = dict.fromkeys(range(len(delayed)))
    numbers: dict[bytes, list[int]] = {}  # The numbers of the records kept so far, by key.
    replacing_keys: dict[bytes, None] = {}
    for number, (_, record) in enumerate(delayed):
        if not record.key:
            continue
        if replaces[number]:
            for earlier in numbers.pop(record.key, ()):
                del kept[earlier]
            replacing_keys[record.key] = None
        numbers.setdefault(record.key, []).append(number)
    return [delayed[number] for number in kept], list(replacing_keys)
