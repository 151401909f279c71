"""Plans what RocketMQ messages become: the frames and state records of one unit, without appending anything.

    message              frame                                                  state record
    visible at once      in its queue
    delayed              in the queue of pending messages                       TimersCancelled for those it replaces
    recurring            the same, as RocketMQ's tools expect, without a timer  ScheduleRegistered
    with an expiry       as above                                               QueuesExpire, once for each queue

Each message has one frame, in the order of the messages. The record TimersCancelled is made only when the unit is
appended, from the keys of the plan: until then, pending messages with these keys may be delivered, and others may be
stored. Half messages are planned when they are committed; until then `bridge/transactions/half_message_log.py` stores
them.
"""

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Final, NamedTuple

from duolog.bridge.config import Options
from duolog.bridge.data import expiry
from duolog.bridge.data.delayed import delay_headers, pending_frames
from duolog.bridge.data.delayed.delay_headers import DelayParser
from duolog.bridge.data.delayed.schedules import SCHEDULE_NAME, Schedules
from duolog.bridge.data.expiry import ExpiringQueues, ExpiryParser
from duolog.bridge.data.publishing.refusals import (
    IllegalMessage,
    MessageTooLarge,
    NotSupported,
    check_may_produce,
)
from duolog.bridge.data.stamps import ROCKETMQ_STAMP
from duolog.bridge.data.units import SenderKey, UnitPlan
from duolog.bridge.data.unknown_headers import AMQ_PREFIX, TIMER_PREFIX, Sender, UnknownHeaders
from duolog.bridge.records import frame_formats
from duolog.bridge.records.codec import Record as StateRecord
from duolog.bridge.records.schedules import ScheduleRegistered
from duolog.bridge.state.topic_table import Topic
from duolog.bridge.state.topics import Topics
from duolog.bridge.state.wall_time import WallTime
from duolog.delay import entry_extra
from duolog.delay.recurring import AMQ_NAMES, Run, Schedule
from duolog.delay.requested_delay import DelayRefused, RequestedDelay
from duolog.delay.schedules import DeliverySchedule, RecurringMessage
from duolog.protocol.rocketmq.messages import flags, properties, tags
from duolog.protocol.rocketmq.messages import message as rocketmq_message
from duolog.protocol.rocketmq.messages.message import Message
from duolog.protocol.rocketmq.names import RETRY_PREFIX
from duolog.store.entry import new_tuple
from duolog.store.unit import Frame

_JOINED_BYTES_MAX: Final = 4 << 10  # Below it, joining the pieces of a record costs less than storing each of them.
_SPECIAL_MARKS: Final = ("DELAY", TIMER_PREFIX, "TRAN_MSG", AMQ_PREFIX, expiry.PREFIX)
_SCHEDULE_MARK: Final = b"AMQ_SCHEDULED_"
_WRITERS_MAX: Final = 1024  # Writers of queues that are kept, because nearly all messages are for a few queues.

_writer = lru_cache(_WRITERS_MAX)(rocketmq_message.Writer)


class HalfMessageOutline(NamedTuple):
    """A stored half message, as far as its commit needs it (`protocol.rocketmq.messages.message.outline_of`)."""

    record: bytes
    born_ms: int
    sent_ms: int
    topic_at: int  # Where the topic begins in `record`.
    properties: bytes  # Those of the message itself, without what marks it as a half message.


class MessagePlanner:
    """Makes the plans of RocketMQ messages. `store_host` is the packed address of the RocketMQ port."""

    def __init__(
        self,
        topics: Topics,
        schedules: Schedules,
        expiring_queues: ExpiringQueues,
        unknown_headers: UnknownHeaders,
        wall_time: WallTime,
        options: Options,
        store_host: bytes,
    ) -> None:
        self.store_host = store_host
        self.body_bytes_max = options.rocketmq.body_bytes_max
        self._topics, self._schedules, self._expiring_queues = topics, schedules, expiring_queues
        self._unknown_headers, self._wall_time = unknown_headers, wall_time
        self._delay_parser, self._expiry_parser = DelayParser(options.delay), ExpiryParser(options.delay)
        self._schedules_max = options.delay.batch_schedules_max

    # -- Plans

    def plan_messages(
        self,
        topic: Topic,
        queue_id: int,
        messages: Sequence[Message],
        now_ms: int,
        *,
        sent_ms: int | None = None,
        sender: Sender | None = None,
        schedules_before: int = 0,
    ) -> UnitPlan:
        """Plan messages for a queue. The topic, queue and store host that a message names itself are ignored.

        Delays and expiry count from `sent_ms`; None stands for `now_ms`. A message that has expired between the two is
        left out if its topic drops expired messages. A delayed message is changed to the form in which it waits
        (`pending_frames.make_pending`). `schedules_before` is the number of recurring messages of the same batch that
        earlier calls have planned. Raises DelayRefused, IllegalMessage, NotSupported, ProduceRefused,
        ProtocolError, TooManySchedules.
        """
        if not topic.may_produce:
            check_may_produce(topic)
        if schedules_before + len(messages) > self._schedules_max:
            self._check_schedule_count(messages, schedules_before)
        queue = topic.queues[queue_id]
        pieces_of = _writer(topic.rocketmq_name, queue_id, self.store_host).pieces
        frames: list[Frame] = []
        records: list[StateRecord] = []
        keys: list[SenderKey] = []
        body_bytes = 0
        has_expiry = False
        # The loop is written without functions for its steps, because it runs for each message that is sent.
        for message in messages:
            raw = message.properties
            try:
                text = raw.decode()  # A search in text takes a sixth of the time that it takes in bytes.
            except UnicodeDecodeError as error:
                raise _not_utf_8(raw, error) from None
            size = len(message.body)
            if size > self.body_bytes_max or len(raw) > rocketmq_message.PROPERTIES_BYTES_MAX:
                raise self.too_large(len(message.body), len(raw))
            if _may_be_special(text):
                found = _parse_supported(raw)
                if sender is not None:
                    self._unknown_headers.check(topic, found, sender)
                from_ms = now_ms if sent_ms is None else sent_ms
                delay = self._delay_parser.parse_properties(found, from_ms)
                expires_ms = self._expiry_parser.parse_properties(found, from_ms)
                is_delayed = delay is not None and (delay.schedule is not None or delay.due_ms > now_ms)
                if expires_ms is not None:
                    has_expiry = True
                    if delay is None or delay.schedule is None:
                        found = _fix_expiry(message, expires_ms)
                        raw = message.properties
                    is_late = sent_ms is not None and expires_ms <= now_ms - self._wall_time.ahead_ms
                    if is_late and topic.settings.drops_expired and (delay is None or delay.due_ms <= now_ms):
                        continue
                if delay is not None and is_delayed:
                    key = _key_of(topic, found)
                    if key is not None:
                        keys.append(key)
                    frame, schedule = self._plan_delayed(topic, queue_id, message, delay, found, key, now_ms)
                    frames.append(frame)
                    if schedule is not None:
                        records.append(schedule)
                    body_bytes += size
                    continue
            code = tags.code_of_properties(raw, text) if properties.TAGS in text else tags.NO_TAG
            pieces = pieces_of(message)
            record = b"".join(pieces) if size < _JOINED_BYTES_MAX else pieces
            index_ms = message.born_ms
            if index_ms > now_ms:
                index_ms = topic.settings.index_ms(index_ms, now_ms)
            frames.append(Frame(queue, frame_formats.ROCKETMQ, record, 1, index_ms, code, ROCKETMQ_STAMP))
            body_bytes += size
        if has_expiry:
            records += self._expiring_queues.records_for(queue.key)
        # In the order of UnitPlan; the last seven are message_count, message_bytes, level, topic, keys, request and
        # changes_state.
        plan = (frames, records, "rocketmq", len(frames), body_bytes, queue.level, topic.number, keys, None, False)
        return new_tuple(UnitPlan, plan)

    def plan_committed(self, topic: Topic, queue_id: int, half: HalfMessageOutline, now_ms: int) -> UnitPlan:
        """Plan the message of a half message that is committed now.

        The half message was checked when it was sent, and its delay counts from that time. Raises as `plan_messages`.
        """
        raw = half.properties
        text = raw.decode("latin-1")
        if _may_be_special(text):
            message = rocketmq_message.decode(half.record)
            message.properties = properties.repaired(raw)  # An earlier version may have stored invalid UTF-8.
            message.sys_flag = message.sys_flag & ~flags.TRANSACTION_MASK | flags.TRANSACTION_COMMIT
            message.prepared_transaction_offset = message.physical_offset
            return self.plan_messages(topic, queue_id, [message], now_ms, sent_ms=half.sent_ms)
        check_may_produce(topic)
        code = tags.code_of_properties(raw, text)
        final = rocketmq_message.committed(
            half.record, half.topic_at, topic.rocketmq_name, queue_id, raw, self.store_host
        )
        index_ms = topic.settings.index_ms(half.born_ms, now_ms)
        frame = Frame(topic.queues[queue_id], frame_formats.ROCKETMQ, final, 1, index_ms, code, ROCKETMQ_STAMP)
        body_bytes = rocketmq_message.body_bytes_of(half.record)
        return new_tuple(UnitPlan, ([frame], (), "rocketmq", 1, body_bytes, None, 0, (), None, False))  # As above.

    def _plan_delayed(
        self,
        topic: Topic,
        queue_id: int,
        message: Message,
        delay: RequestedDelay,
        found: dict[str, str],
        sender_key: SenderKey | None,
        now_ms: int,
    ) -> tuple[Frame, ScheduleRegistered | None]:
        """Make the frame in which a delayed message waits, and the state record of a recurring one."""
        key = topic.queues[queue_id].key
        schedule_name = ""
        if delay.schedule is not None:
            schedule_name = self._schedules.new_name()
            changes = {SCHEDULE_NAME: schedule_name, **dict.fromkeys(AMQ_NAMES)}
            message.properties = properties.set_many(message.properties, changes)
        tag, queue = found.get(properties.TAGS), pending_frames.pending_queue(self._topics, delay.level)
        pending_frames.make_pending(message, topic.rocketmq_name, queue_id, self.store_host, delay, found)
        if len(message.properties) > rocketmq_message.PROPERTIES_BYTES_MAX - pending_frames.ADDED_BYTES_MAX:
            raise MessageTooLarge(f"properties of {len(message.properties)} bytes, with those of a delayed message")
        record = rocketmq_message.encode(message)
        extra, scheduled = b"", None  # A recurring message has no timer: its frame only shows it to RocketMQ's tools.
        if delay.schedule is None:
            extra = entry_extra.encode_pending(key, delay.due_ms, b"" if sender_key is None else sender_key.key)
        else:
            scheduled = self._scheduled(key, schedule_name, delay.schedule, delay.due_ms, record, now_ms)
        code = tags.hash_code(tag) if tag else tags.NO_TAG
        return Frame(queue, frame_formats.ROCKETMQ, record, 1, delay.due_ms, code, ROCKETMQ_STAMP, extra), scheduled

    def _scheduled(
        self, key: int, name: str, schedule: Schedule, due_ms: int, record: bytearray, now_ms: int
    ) -> ScheduleRegistered:
        kept = bytearray(record)
        rocketmq_message.stamp(kept, 0, (0, 0, now_ms))
        message = RecurringMessage(key, frame_formats.ROCKETMQ, bytes(kept))
        return self._schedules.record(DeliverySchedule(name, schedule, message, Run(1, due_ms), is_kept=False))

    # -- Checks

    def check_half(self, topic: Topic, message: Message, now_ms: int, sender: Sender) -> RequestedDelay | None:
        """Raise what `plan_messages` would raise for a half message if it were committed now; return its delay.

        The message has no TRAN_MSG any more.
        """
        check_may_produce(topic)
        raw = message.properties
        if len(message.body) > self.body_bytes_max or len(raw) > rocketmq_message.PROPERTIES_BYTES_MAX:
            raise self.too_large(len(message.body), len(raw))
        if not _may_be_special(_text_of(raw)):
            return None
        found = _parse_supported(raw)
        self._unknown_headers.check(topic, found, sender)
        self._expiry_parser.parse_properties(found, now_ms)
        return self._delay_parser.parse_properties(found, now_ms)

    def _check_schedule_count(self, messages: Sequence[Message], count_before: int) -> None:
        """Raise DelayRefused for a batch with too many schedules, before any rule of these messages is parsed."""
        count = count_before + sum([_SCHEDULE_MARK in message.properties for message in messages])
        if count > self._schedules_max:
            raise DelayRefused(
                f"batch of {count} messages with AMQ_SCHEDULED_ properties; "
                f"delay.batch_schedules_max={self._schedules_max} is the limit"
            )

    def too_large(self, body_bytes: int, properties_bytes: int) -> MessageTooLarge:
        """Return the refusal of a message of these sizes."""
        return MessageTooLarge(
            f"body of {body_bytes} bytes, properties of {properties_bytes}; allowed are {self.body_bytes_max} and "
            f"{rocketmq_message.PROPERTIES_BYTES_MAX}"
        )


def replacing_keys(keys: Sequence[SenderKey]) -> list[bytes]:
    """Return the keys whose pending messages a batch replaces, each once; `keys` are those of all its messages.

    Raises DelayRefused if a message cannot replace others.
    """
    replacing: dict[bytes, None] = {}
    earlier: set[bytes] = set()
    for key, replaces in keys:
        if replaces:
            if key in earlier:
                raise DelayRefused(
                    f"message of a batch with {delay_headers.TIMER_REPLACE} and the key {key[:100]!r} of an earlier "
                    "message of the same batch; only messages that are stored can be replaced"
                )
            replacing[key] = None
        earlier.add(key)
    if len(replacing) > delay_headers.REPLACING_MAX:
        raise DelayRefused(
            f"batch of more than {delay_headers.REPLACING_MAX} messages with {delay_headers.TIMER_REPLACE}"
        )
    return list(replacing)


def _key_of(topic: Topic, found: Mapping[str, str]) -> SenderKey | None:
    """Return the key of a delayed message.

    A message of a retry topic has no key. A consumer sends it there with all its properties, so TIMER_REPLACE would
    replace other messages of the retry topic.
    """
    key = found.get(properties.KEYS, "")
    if not key or topic.rocketmq_name.startswith(RETRY_PREFIX):
        return None
    return SenderKey(key.encode(), delay_headers.replaces(found))


def _text_of(raw: bytes) -> str:
    """Decode a message's properties. Raises IllegalMessage if they are not UTF-8."""
    try:
        return raw.decode()
    except UnicodeDecodeError as error:
        raise _not_utf_8(raw, error) from None


def _not_utf_8(raw: bytes, error: UnicodeDecodeError) -> IllegalMessage:
    return IllegalMessage(f"properties of {len(raw)} bytes are not UTF-8: {error}")


def _may_be_special(text: str) -> bool:
    """Return whether properties may ask for a delay, an expiry or a transaction; nearly all messages ask for none."""
    for mark in _SPECIAL_MARKS:  # noqa: SIM110  # `any` of a generator takes three times as long.
        if mark in text:
            return True
    return False


def _parse_supported(raw: bytes) -> dict[str, str]:
    """Parse properties. Raises NotSupported if they ask for what Duolog does not support and must not ignore.

    TRAN_MSG=false asks for nothing. The properties of half messages come here without TRAN_MSG.
    """
    found = properties.parse(raw)
    if properties.TIMER_DEL_UNIQKEY in found:
        raise NotSupported("TIMER_DEL_UNIQKEY is not supported; recall a delayed message by its recallHandle")
    if found.get(properties.TRAN_MSG, "").lower() == "true":  # Boolean.parseBoolean
        raise NotSupported("transactional messages are not supported")
    return found


def _fix_expiry(message: Message, expires_ms: int) -> dict[str, str]:
    """Set EXPIRE_AT_MS in a message; return its properties, parsed."""
    message.properties = expiry.fixed_properties(message.properties, expires_ms)
    if len(message.properties) > rocketmq_message.PROPERTIES_BYTES_MAX:
        raise MessageTooLarge(f"properties of {len(message.properties)} bytes, with {expiry.EXPIRE_AT}")
    return properties.parse(message.properties)
