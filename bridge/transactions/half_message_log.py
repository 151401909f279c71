"""Half messages in the log: appends half messages, their verdicts, and the messages that result from verdicts.

    event       queue                           entries of the unit
    send        RMQ_SYS_TRANS_HALF_TOPIC/0      the message, with its destination in REAL_TOPIC and REAL_QID
    commit      the destination, and            the message as its consumers get it,
                RMQ_SYS_TRANS_OP_HALF_TOPIC/0   and an op message for all half messages decided together
    roll back   RMQ_SYS_TRANS_OP_HALF_TOPIC/0   the op message
    give up     TRANS_CHECK_MAX_TIME_TOPIC/0    a copy of the half message, and an op message

The state of half messages (`txn.half`) follows from these frames (`half_replay.py`). Only check-backs have a state
record of their own, HalvesChecked. Retention keeps open half messages: see `first_kept`.

A half message may be read before it is durable, because all entries that depend on it follow it in the log.
"""

from collections.abc import Iterable, Sequence
from typing import Final

from duolog.bridge.config import TxnOptions
from duolog.bridge.config.check_urls import CheckUrls
from duolog.bridge.data.half_frames import CHECK_URL, ID, HalfRequest, half_batch
from duolog.bridge.data.reading.later import Later
from duolog.bridge.data.stamps import WAITING_STAMP
from duolog.bridge.data.units import AppendUnit, UnitPlan, joined
from duolog.bridge.records import frame_formats
from duolog.bridge.records.half_messages import HalvesChecked
from duolog.bridge.state.topic_table import Topic
from duolog.bridge.state.topics import Topics
from duolog.bridge.transactions.asked_clients import AskedClients
from duolog.bridge.transactions.half_replay import HalfMessageReplay
from duolog.bridge.transactions.op_messages import HalfDecision, OpMessages, message_frame
from duolog.bridge.transactions.verdict_counts import VerdictCounts
from duolog.protocol.kafka.record_batch import InvalidBatch, Reason
from duolog.protocol.kafka.record_batch import Record as KafkaRecord
from duolog.protocol.rocketmq.messages import tags
from duolog.protocol.rocketmq.messages.message import NO_HOST, Message, Writer
from duolog.protocol.rocketmq.names import HALF_TOPIC, OP_HALF_TOPIC, TRANS_CHECK_MAX_TIME_TOPIC
from duolog.store.entry import Appended, EntrySlot, Promise, Stored, new_tuple
from duolog.store.errors import updating_state
from duolog.store.index.queue import Queue
from duolog.store.state_log import StateLog
from duolog.store.store import Store
from duolog.store.unit import Frame
from duolog.txn.half import Half, HalfMessages, UnknownHalf
from duolog.txn.half_ids import HalfIds
from duolog.txn.half_verdicts import HalfVerdict

GATHERED_MAX: Final = 128  # The verdicts in one unit. An op message of Apache RocketMQ has 4096 characters at most.
GATHERED_BYTES_MAX: Final = 1 << 20  # The bytes of the messages in one unit.
VERDICT_BYTES_MAX: Final = 24_000  # The bytes of TRAN_VERDICTS in one op message, which must fit into its properties.
_VERDICT_BYTES: Final = 64  # The size of one verdict in a unit, without its names.


class TooManyHalves(Exception):
    """`txn.half_max` half messages are open."""


class HalfMessageLog:
    """All half messages of a broker. `store_host` is the packed address of the RocketMQ port.

    `unit_bytes_max` limits the bytes of several verdicts in one unit, which must fit into a segment. The class has more
    than 15 fields because `attach` sets the queue and the writer of each of three topics.
    """

    def __init__(self, state_log: StateLog, options: TxnOptions, unit_bytes_max: int) -> None:
        self.store_host = NO_HOST
        self.state = HalfMessages(
            immunity_ms=options.immunity_ms,
            interval_ms=options.check_interval_ms,
            checks_max=options.check_max,
            open_ms_max=options.half_ms,
        )
        self._state_log = state_log
        self._open_max = options.half_max
        self._store: Store | None = None
        self.gathered: dict[int, HalfDecision] = {}  # Decisions that are not appended yet.
        self._gathered_bytes = self._verdict_bytes = 0
        self._unit_bytes_max = unit_bytes_max
        self.verdict_counts = VerdictCounts()
        self.ids = HalfIds()
        self.asked = AskedClients()
        self._ids_max = options.half_ids_max
        self._check_urls = CheckUrls(options.check_urls)
        self._replay = HalfMessageReplay(state_log, self.state, self.ids, options.half_ms)

    def attach(self, store: Store, topics: Topics, store_host: bytes, append: AppendUnit) -> None:
        """Set the recovered log, the queues of the transaction topics, and the function that appends units."""
        self.store_host = store_host
        self._append = append
        self._store = store
        self.half_queue, op_queue, self._given_up_queue = (
            _first_queue(topics, name) for name in (HALF_TOPIC, OP_HALF_TOPIC, TRANS_CHECK_MAX_TIME_TOPIC)
        )
        self._half_writer = Writer(HALF_TOPIC, 0, store_host)
        self._op_messages = OpMessages(op_queue, topics, self.state, store_host)
        self._given_up_writer = Writer(TRANS_CHECK_MAX_TIME_TOPIC, 0, store_host)

    # -- Reading

    def read(self, offset: int) -> Stored | Later[Stored]:
        """Read a half message, decided or not. Raises UnknownHalf, StoreError."""
        queue = self.half_queue
        if not queue.start_offset <= offset < queue.end_offset:
            raise UnknownHalf(f"there is no half message {offset}")
        assert self._store is not None, "the log is not open"
        found = self._store.reader.read_one(queue, offset, until=queue.end_offset)
        return found if isinstance(found, Stored) else Later(found, lambda stored: stored[0])

    def first_kept(self, queue: Queue) -> int | None:
        """Return the offset from which retention must keep a queue, or None if it may remove all."""
        return self.state.first_offset if queue.key == self._replay.half_key else None

    # -- Changing

    def check_room(self) -> None:
        """Raise TooManyHalves if `txn.half_max` half messages are open."""
        if len(self.state) >= self._open_max:
            raise TooManyHalves(f"{len(self.state)} half messages are open; txn.half_max={self._open_max}")

    def prepare(
        self, message: Message, target: str, immunity_ms: int | None, now_ms: int, level: int | None = None
    ) -> Appended:
        """Append a half message of a RocketMQ producer. Raises StoreError, ProtocolError.

        `level` is the level of the promise; None: that of the half topic.
        """
        frame = message_frame(self.half_queue, self._half_writer, message, now_ms)
        plan = new_tuple(UnitPlan, ([frame], (), "", 0, 0, level, 0, (), None, True))
        appended = self._append(plan, now_ms)
        slot = appended.slots[0]
        with updating_state("a half message"):
            self.state.prepared(slot.base_offset, target, slot.stored_ms, immunity_ms)
        return appended

    def check_kafka(self, topic: Topic, requests: Sequence[HalfRequest]) -> None:
        """Raise InvalidBatch or TooManyHalves if these half messages of a Kafka producer are not allowed."""
        if len(self.ids) + len(requests) > self._ids_max:
            raise TooManyHalves(f"{len(self.ids)} half messages are open; txn.half_ids_max={self._ids_max}")
        taken = {request.id for request in requests if self.ids.offset_of(topic.name, request.id) is not None}
        if taken or len({request.id for request in requests}) < len(requests):
            raise InvalidBatch(Reason.INVALID, f"{ID} is taken in topic {topic.name}: {(*sorted(taken)[:3], '')[0]!r}")
        for request in requests:
            if request.check_url and not self.may_ask(request.check_url):
                raise InvalidBatch(Reason.INVALID, f"{CHECK_URL} {request.check_url[:200]!r} is none of txn.check_urls")

    def may_ask(self, url: str) -> bool:
        """Return whether `txn.check_urls` allows check-backs to a URL."""
        return self._check_urls.allow(url)

    def kafka_frame(self, topic: Topic, queue_id: int, record: KafkaRecord) -> Frame:
        """Make the frame of a half message from a Kafka record; the unit of its batch appends the frame."""
        body = half_batch(record, topic.name, queue_id)
        return Frame(self.half_queue, frame_formats.KAFKA, body, 1, record.timestamp_ms, tags.NO_TAG, WAITING_STAMP)

    def follow_kafka(self, topic: Topic, request: HalfRequest, slot: EntrySlot) -> None:
        """Follow an appended frame of `kafka_frame`."""
        with updating_state("a half message"):
            self._replay.follow_kafka(topic.name, request, slot)

    def end(self, offset: int, decision: HalfDecision, now_ms: int, append: AppendUnit | None = None) -> Promise:
        """Append a verdict that `judge` has approved, and its message, as one unit. Raises what `append` raises.

        `append` counts a delayed message in a quota of the client that decides; None: it counts in none.
        """
        if self.gathered:
            self.append_gathered(now_ms)
        return self._end({offset: decision}, now_ms, append or self._append)

    def judge(self, offset: int, verdict: HalfVerdict, now_ms: int) -> bool:
        """Raise what `HalfMessages.judge` raises; gathered verdicts count as given."""
        if offset in self.gathered:
            self.append_gathered(now_ms)
        return self.state.judge(offset, verdict)

    def gather(self, offset: int, decision: HalfDecision, now_ms: int) -> None:
        """Gather a verdict, which `append_gathered` appends together with others in one unit with one op message.

        Until then only `judge` takes the verdict into account. So the caller must call `append_gathered` before it
        returns to the loop.
        """
        size, verdict_bytes = 0, _VERDICT_BYTES + 2 * len(decision.topic)
        for frame in decision.plan.frames:
            assert isinstance(frame, Frame), "of one message"
            size += frame.size
        if self._gathered_bytes + self._verdict_bytes + size + verdict_bytes > self._unit_bytes_max and self.gathered:
            self.append_gathered(now_ms)
        self.gathered[offset] = decision
        self._gathered_bytes += size
        self._verdict_bytes += verdict_bytes
        is_full = self._gathered_bytes >= GATHERED_BYTES_MAX or self._verdict_bytes >= VERDICT_BYTES_MAX
        if is_full or len(self.gathered) >= GATHERED_MAX:
            self.append_gathered(now_ms)

    def append_gathered(self, now_ms: int) -> None:
        """Append the gathered verdicts as one unit. After a StoreError none of them is given."""
        decisions = self.gathered
        self.gathered, self._gathered_bytes, self._verdict_bytes = {}, 0, 0
        self._end(decisions, now_ms, self._append)

    def _end(self, decisions: dict[int, HalfDecision], now_ms: int, append: AppendUnit) -> Promise:
        op_message = self._op_messages.frame(decisions, now_ms)
        unit = joined([decision.plan for decision in decisions.values()], frames=[op_message], changes_state=True)
        promise = append(unit, now_ms).promise
        with updating_state("verdicts of half messages"):
            for offset, decision in decisions.items():
                self._replay.follow_verdict(offset, decision.verdict)
                self.verdict_counts.add(decision, now_ms)
        return promise

    def given_up_frame(self, message: Message, now_ms: int) -> Frame:
        """Make the copy of a RocketMQ half message that the broker gives up."""
        return message_frame(self._given_up_queue, self._given_up_writer, message, now_ms)

    def given_up_kafka_frame(self, half: Stored) -> Frame:
        """Make the copy of a Kafka half message that the broker gives up."""
        queue, stamp = self._given_up_queue, WAITING_STAMP
        return Frame(queue, frame_formats.KAFKA, half.frame, 1, half.timestamp_ms, tags.NO_TAG, stamp)

    def record_checks(self, halves: Iterable[Half], postponed: Iterable[Half], now_ms: int) -> None:
        """Record that check-backs of `halves` are sent now, and those of `postponed` are postponed by an interval."""
        offsets, later = [half.offset for half in halves], [half.offset for half in postponed]
        self._state_log.commit([HalvesChecked(offsets, now_ms, later)], now_ms)


def _first_queue(topics: Topics, name: str) -> Queue:
    topic = topics.by_rocketmq_name(name)
    assert topic is not None, f"{name} is made at every start"
    return topic.queues[0]
