"""Half messages in the log: how they lie there, and how `txn.half` follows what is appended.

    send        RMQ_SYS_TRANS_HALF_TOPIC/0      the message, with where it is to go in REAL_TOPIC and REAL_QID
    commit      its queue, and                  one unit: the message as its consumers get it,
                RMQ_SYS_TRANS_OP_HALF_TOPIC/0   and an op message: "these are decided", of all that came together
    roll back   RMQ_SYS_TRANS_OP_HALF_TOPIC/0   the op message alone
    give up     TRANS_CHECK_MAX_TIME_TOPIC/0    the half message once more, and an op message, in one unit

An op message has tag `d` and the half messages' offsets as its text, `17,18,`, as at home; which verdicts they were is
in the entry's header, a byte for each. So the state follows from frames; only looks have records of their own. What is
open is never trimmed: `first_kept` is what retention asks.
For who reads the topics an op message says more in its property TRAN_TOLD, which it has not at home; for each offset

    C 2 1795231843000 orders orders/1/17,      verdict (C, R, G: given up), how often its producer was to be asked, when
                                               it was stored, its topic, and topic/queue/offset of what the verdict
                                               appended (`-`: nothing; a delayed one: where it is parked)

Reading a half message does not wait until it is durable: what is appended because of it lies behind it in the log.
"""

import zlib
from collections.abc import Iterable, Sequence
from itertools import chain, starmap
from typing import Final, NamedTuple

from duolog.bridge.config import TxnOptions
from duolog.bridge.data import frame_formats
from duolog.bridge.data.half_frames import (
    CHECK_URL,
    ID,
    HalfRequest,
    half_batch,
    read_half,
)
from duolog.bridge.data.publishing.stamps import WAITING_STAMP
from duolog.bridge.data.reading import Later
from duolog.bridge.state.records import (
    HalfIdsKnown,
    HalfVerdicts,
    HalvesLooked,
    HalvesOpen,
    Record,
    TopicCreated,
)
from duolog.bridge.state.topics import QUEUE_ID_BITS, Topic, Topics
from duolog.bridge.transactions.check_urls import CheckUrls
from duolog.protocol.kafka.record_batch import InvalidBatch, Reason
from duolog.protocol.kafka.record_batch import Record as KafkaRecord
from duolog.protocol.names import kafka_name
from duolog.protocol.rocketmq.messages import message as rocketmq_message
from duolog.protocol.rocketmq.messages import properties, tags
from duolog.protocol.rocketmq.messages.message import NO_HOST, Message, Writer
from duolog.protocol.rocketmq.names import HALF_TOPIC, OP_HALF_TOPIC, TRANS_CHECK_MAX_TIME_TOPIC
from duolog.store.entry import Appended, Promise, Slot, Stored
from duolog.store.errors import following
from duolog.store.index.queue import Queue
from duolog.store.state_log import StateLog
from duolog.store.store import Store
from duolog.store.unit import Frame
from duolog.txn.half import (
    Half,
    HalfMessages,
    OpenPage,
    UnknownHalf,
    Verdict,
)
from duolog.txn.half_ids import HalfIds

OP_TAG: Final = "d"  # TransactionalMessageUtil.java#REMOVE_TAG
IDS_IN_RECORD: Final = 1000
GATHERED_MAX: Final = 128  # Verdicts of one unit; an op message of RocketMQ's has 4096 characters at most.
GATHERED_BYTES_MAX: Final = 1 << 20  # Of their messages,
TOLD_BYTES_MAX: Final = 24_000  # and of what is told of them: one property holds it.
_TOLD_BYTES: Final = 64  # Of one, names aside.
PATHS_CACHED_MAX: Final = 4096  # Then the cache starts anew.

_IMMUNITY: Final = properties.CHECK_IMMUNITY_TIME_IN_SECONDS
_IMMUNITY_BYTES: Final = _IMMUNITY.encode()
# What only a half message has begins with this, and ends its properties: so it is taken off by one cut.
_PREPARED: Final = f"{properties.TRAN_MSG}\x01true\x02{properties.REAL_TOPIC}\x01"
_PREPARED_BYTES: Final = _PREPARED.encode()
_LETTERS: Final = "-CRG"  # By verdict.
_GIVEN_UP: Final = Verdict.GIVEN_UP
_OP_CODE: Final = tags.hash_code(OP_TAG)


class TooManyHalves(Exception):
    """`txn.half_max` half messages are open."""


class Decision(NamedTuple):
    """A verdict, and what it is about."""

    verdict: Verdict
    topic: str  # where the half message was to go, in either spelling
    stored_ms: int  # when it was stored
    frames: Sequence[Frame] = ()  # what becomes of it: none, or its message first


class HalfMessageLog:
    """All half messages of a broker. `store_host` is the packed address of the RocketMQ port.

    `unit_bytes_max`: of messages of several verdicts that become one unit, which a segment must take.
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
        self._half_key = self._op_key = -1
        self._store: Store | None = None
        self.gathered: dict[int, Decision] = {}  # Not appended yet: of requests that came by one read of a socket.
        self._gathered_bytes = self._told_bytes = 0
        self._unit_bytes_max = unit_bytes_max
        self._paths: dict[int, str] = {}  # "topic/queue/" by the queue's key; no key is ever another queue's
        self.ids = HalfIds()
        self._ids_max = options.half_ids_max
        self._immunity_max_ms = options.half_ms
        self._check_urls = CheckUrls(options.check_urls)
        state_log.own(HalfIdsKnown, self._replay_ids)
        state_log.own(TopicCreated, self._replay_topic)
        state_log.own(HalvesLooked, self._replay_looked)
        state_log.own(HalvesOpen, self._replay_open)
        state_log.own(HalfVerdicts, self._replay_verdicts)
        state_log.on_frame(self.replay_frame)
        state_log.on_sliced_snapshot(self._snapshot, self.state.end_snapshot)

    def attach(self, store: Store, topics: Topics, store_host: bytes) -> None:
        """Name the log, once it is recovered."""
        self.store_host = store_host
        self._store, self._topics = store, topics
        self.half_queue, self._op_queue, self._given_up_queue = (
            _first_queue(topics, name) for name in (HALF_TOPIC, OP_HALF_TOPIC, TRANS_CHECK_MAX_TIME_TOPIC)
        )
        self._half_writer = Writer(HALF_TOPIC, 0, store_host)
        self._op_writer = Writer(OP_HALF_TOPIC, 0, store_host)
        self._given_up_writer = Writer(TRANS_CHECK_MAX_TIME_TOPIC, 0, store_host)

    # -- Reading

    def read(self, offset: int) -> Stored | Later[Stored]:
        """Give a half message, decided or not; raises UnknownHalf and StoreError."""
        queue = self.half_queue
        if not queue.start_offset <= offset < queue.end_offset:
            raise UnknownHalf(f"there is no half message {offset}")
        assert self._store is not None, "the log is not open"
        found = self._store.reader.read_one(queue, offset, until=queue.end_offset)
        return found if isinstance(found, Stored) else Later(found, lambda stored: stored[0])

    def first_kept(self, queue: Queue) -> int | None:
        """Say from which offset on retention must leave a queue alone; None: it may take all."""
        return self.state.first_offset if queue.key == self._half_key else None

    # -- Changing

    def check_room(self) -> None:
        if len(self.state) >= self._open_max:
            raise TooManyHalves(f"{len(self.state)} half messages are open; txn.half_max={self._open_max}")

    def prepare(self, message: Message, asker: str, immunity_ms: int | None, now_ms: int) -> Appended:
        """Append a half message of a RocketMQ producer; raises StoreError, ProtocolError."""
        frame = _frame(self.half_queue, self._half_writer, message, now_ms)
        appended = self._state_log.commit([], now_ms, [frame])
        slot = appended.slots[0]
        with following("a half message"):
            self.state.prepared(slot.base_offset, asker, slot.stored_ms, immunity_ms)
        return appended

    def check_kafka(self, topic: Topic, requests: Sequence[HalfRequest]) -> None:
        """Raise what forbids these half messages: InvalidBatch, TooManyHalves."""
        if len(self.ids) + len(requests) > self._ids_max:
            raise TooManyHalves(f"{len(self.ids)} half messages are open; txn.half_ids_max={self._ids_max}")
        taken = {request.id for request in requests if self.ids.offset_of(topic.name, request.id) is not None}
        if taken or len({request.id for request in requests}) < len(requests):
            raise InvalidBatch(Reason.INVALID, f"{ID} is taken in topic {topic.name}: {(*sorted(taken)[:3], '')[0]!r}")
        for request in requests:
            if request.check_url and not self.may_ask(request.check_url):
                raise InvalidBatch(Reason.INVALID, f"{CHECK_URL} {request.check_url[:200]!r} is none of txn.check_urls")

    def may_ask(self, url: str) -> bool:
        return self._check_urls.allow(url)

    def kafka_frame(self, topic: Topic, queue_id: int, record: KafkaRecord) -> Frame:
        """Give the half message that a Kafka record becomes, to be appended with others of its batch."""
        body = half_batch(record, topic.name, queue_id)
        return Frame(self.half_queue, frame_formats.KAFKA, body, 1, record.timestamp_ms, tags.NO_TAG, WAITING_STAMP)

    def follow_kafka(self, topic: Topic, request: HalfRequest, slot: Slot) -> None:
        """Follow what was appended of `kafka_frame`, live and at recovery alike."""
        with following("a half message"):
            self._prepared_kafka(topic.name, request, slot)

    def _prepared_kafka(self, topic: str, request: HalfRequest, slot: Slot) -> None:
        # Nobody can be asked where no URL is: then it waits for its verdict until it is given up.
        immunity_ms = request.immunity_ms if request.check_url else self._immunity_max_ms
        self.state.prepared(slot.base_offset, request.check_url, slot.stored_ms, immunity_ms)
        self.ids.prepared(slot.base_offset, topic, request.id)

    def end(self, offset: int, decision: Decision, now_ms: int, records: Sequence[Record] = ()) -> Promise:
        """Append a verdict that `judge` has approved, and what becomes of the message, as one unit."""
        if self.gathered:
            self.settle(now_ms)
        return self._end({offset: decision}, now_ms, records)

    def judge(self, offset: int, verdict: Verdict, now_ms: int) -> bool:
        """Do as `state.judge`, with what is gathered taken into account."""
        if offset in self.gathered:
            self.settle(now_ms)
        return self.state.judge(offset, verdict)

    def gather(self, offset: int, decision: Decision, now_ms: int) -> None:
        """Take what `end` would, to be appended by `settle` together with others: one unit, and one op message.

        Nobody but `judge` knows of it before: whoever gathers settles before he returns to the loop.
        """
        size, told_bytes = 0, _TOLD_BYTES + 2 * len(decision.topic)
        for frame in decision.frames:
            size += frame.size
        if self._gathered_bytes + self._told_bytes + size + told_bytes > self._unit_bytes_max and self.gathered:
            self.settle(now_ms)
        self.gathered[offset] = decision
        self._gathered_bytes += size
        self._told_bytes += told_bytes
        is_full = self._gathered_bytes >= GATHERED_BYTES_MAX or self._told_bytes >= TOLD_BYTES_MAX
        if is_full or len(self.gathered) >= GATHERED_MAX:
            self.settle(now_ms)

    def settle(self, now_ms: int) -> None:
        """Append what was gathered. Raises StoreError: then it is as if nobody had said anything."""
        decisions = self.gathered
        self.gathered, self._gathered_bytes, self._told_bytes = {}, 0, 0
        self._end(decisions, now_ms, ())

    def _end(self, decisions: dict[int, Decision], now_ms: int, records: Sequence[Record]) -> Promise:
        text = b"".join([b"%d," % offset for offset in decisions])
        told = f"TAGS\x01{OP_TAG}\x02TRAN_TOLD\x01{self._told(decisions)}\x02".encode()
        op = Message("", text, told, born_ms=now_ms, born_host=self.store_host)
        verdicts = bytes([decision.verdict for decision in decisions.values()])
        op_frame = _frame(self._op_queue, self._op_writer, op, now_ms, _OP_CODE, verdicts)
        frames = [frame for decision in decisions.values() for frame in decision.frames]
        promise = self._state_log.commit(records, now_ms, [*frames, op_frame]).promise
        with following("verdicts of half messages"):
            for offset, decision in decisions.items():
                self._decided(offset, decision.verdict)
        return promise

    def _told(self, decisions: dict[int, Decision]) -> str:
        """Say what an op message tells of each, with the places that the frames are about to get."""
        told: list[str] = []
        ahead: dict[int, int] = {}  # of the queue's end: frames of the same unit
        for offset, (verdict, topic, stored_ms, frames) in decisions.items():
            checks = self.state.checks_of(offset)
            checks -= verdict is _GIVEN_UP and checks > 0  # The look that gives up asks nobody.
            place = "-"
            for frame in frames:
                queue = frame.queue
                at = ahead.get(queue.key, 0)
                ahead[queue.key] = at + 1
                if place == "-":
                    place = f"{self._path_of(queue)}{queue.end_offset + at}"
            told.append(f"{_LETTERS[verdict]} {checks} {stored_ms} {kafka_name(topic)} {place},")
        return "".join(told)

    def _path_of(self, queue: Queue) -> str:
        path = self._paths.get(queue.key)
        if path is None:
            topic = self._topics.by_number(queue.topic)
            assert topic is not None, "a topic of which a frame was made"
            if len(self._paths) >= PATHS_CACHED_MAX:
                self._paths.clear()
            path = self._paths[queue.key] = f"{topic.kafka_name}/{queue.queue_id}/"
        return path

    def _decided(self, offset: int, verdict: Verdict) -> None:
        self.state.decided(offset, verdict)
        self.ids.decided(offset)

    def given_up_frame(self, message: Message, now_ms: int) -> Frame:
        return _frame(self._given_up_queue, self._given_up_writer, message, now_ms)

    def given_up_kafka_frame(self, half: Stored) -> Frame:
        queue, stamp = self._given_up_queue, WAITING_STAMP
        return Frame(queue, frame_formats.KAFKA, half.frame, 1, half.timestamp_ms, tags.NO_TAG, stamp)

    def looked(self, halves: Iterable[Half], put_off: Iterable[Half], now_ms: int) -> None:
        """Take note that these are looked at now, and that those are not, but an interval later."""
        offsets, later = [half.offset for half in halves], [half.offset for half in put_off]
        self._state_log.commit([HalvesLooked(offsets, now_ms, later)], now_ms)

    # -- Replay

    def replay_frame(self, key: int, slot: Slot, form: int, count: int, frame: memoryview, extra: bytes) -> None:
        if key == self._half_key and form == frame_formats.KAFKA:
            half = read_half(frame)
            self._prepared_kafka(half.topic, half.request, slot)
        elif key == self._half_key:
            asker, immunity_ms = wishes_of(rocketmq_message.properties_of(frame))
            self.state.prepared(slot.base_offset, asker, slot.stored_ms, immunity_ms)
        elif key == self._op_key:
            offsets = bytes(rocketmq_message.body_of(frame))[:-1].split(b",")
            for offset, number in zip(offsets, extra, strict=True):
                self._decided(int(offset), Verdict(number))

    def _replay_topic(self, record: TopicCreated, slot: Slot) -> None:
        if record.name == HALF_TOPIC:
            self._half_key = record.number << QUEUE_ID_BITS
        elif record.name == OP_HALF_TOPIC:
            self._op_key = record.number << QUEUE_ID_BITS

    def _replay_looked(self, record: HalvesLooked, slot: Slot) -> None:
        self.state.looked(record.offsets, record.at_ms)
        self.state.looked(record.put_off, record.at_ms, counts=False)

    def _replay_open(self, record: HalvesOpen, slot: Slot) -> None:
        self.state.restore(
            OpenPage(
                record.offsets,
                record.stored_ms,
                record.dues_ms,
                record.checks,
                record.askers,
                dict(record.asker_names),
            )
        )

    def _replay_verdicts(self, record: HalfVerdicts, slot: Slot) -> None:
        self.state.restore_verdicts(record.end_offset, zlib.decompress(record.verdicts))

    def _replay_ids(self, record: HalfIdsKnown, slot: Slot) -> None:
        self.ids.restore(record.ids)

    def _snapshot(self) -> Iterable[Record]:
        end_offset, verdicts = self.state.verdicts()
        decided = HalfVerdicts(end_offset, zlib.compress(verdicts, 1))
        pages = starmap(HalvesOpen, self.state.snapshot())
        return chain([decided], pages, map(HalfIdsKnown, self.ids.snapshot(IDS_IN_RECORD)))


def _first_queue(topics: Topics, name: str) -> Queue:
    topic = topics.by_rocketmq_name(name)
    assert topic is not None, f"{name} is made at every start"
    return topic.queues[0]


def _frame(
    queue: Queue, writer: Writer, message: Message, now_ms: int, code: int = tags.NO_TAG, extra: bytes = b""
) -> Frame:
    record = b"".join(writer.pieces(message))
    index_ms = min(message.born_ms, now_ms)  # The client sets the born time: see `TopicSettings.index_ms`.
    return Frame(queue, frame_formats.ROCKETMQ, record, 1, index_ms, code, rocketmq_message.stamp, extra)


def wishes_of(raw: bytes) -> tuple[str, int | None]:
    """Say whom a half message's properties name to be asked, and the immunity that they want, if any.

    What is no number wants none, and so does -1. TransactionalMessageServiceImpl.java#getImmunityTime
    """
    group = properties.get(raw, properties.PGROUP) or ""
    seconds = properties.get(raw, _IMMUNITY) if _IMMUNITY_BYTES in raw else None
    try:
        immunity_s = -1 if seconds is None else int(seconds)
    except ValueError:
        immunity_s = -1
    return group, None if immunity_s == -1 else max(0, immunity_s) * 1000


def half_properties(raw: bytes, added: str, topic: str, queue_id: int) -> bytes:
    """Give the properties of a half message: its own without TRAN_MSG and `added`, then what only such a one has."""
    own = f"{added}{_PREPARED}{topic}\x02{properties.REAL_QID}\x01{queue_id}\x02"
    return properties.join(raw, own.encode())


def sent_properties(raw: bytes) -> tuple[bytes, str, int]:
    """Take apart what `half_properties` gave: the properties of the message itself, its topic and queue."""
    at = raw.rfind(_PREPARED_BYTES)
    assert at >= 0, "a half message"
    topic, _, queue = raw[at + len(_PREPARED_BYTES) : -1].decode().partition("\x02")
    return raw[:at], topic, int(queue.partition("\x01")[2])
