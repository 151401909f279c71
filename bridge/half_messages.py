"""Half messages in the log: how they lie there, and how `txn.half` follows what is appended.

    send        RMQ_SYS_TRANS_HALF_TOPIC/0      the message, with where it is to go in REAL_TOPIC and REAL_QID
    commit      its queue, and                  one unit: the message as its consumers get it,
                RMQ_SYS_TRANS_OP_HALF_TOPIC/0   and an op message: "this one is decided"
    roll back   RMQ_SYS_TRANS_OP_HALF_TOPIC/0   the op message alone
    give up     TRANS_CHECK_MAX_TIME_TOPIC/0    the half message once more, and an op message, in one unit

An op message has tag `d` and the half message's offset as its text, `17,`, as at home; which verdict it was is in the
entry's header. So the state follows from frames; only looks have records of their own. What is open is never trimmed:
`first_kept` is what retention asks.

Reading a half message does not wait until it is durable: what is appended because of it lies behind it in the log.
"""

import zlib
from collections.abc import Iterable, Sequence
from typing import Final

from bridge import forms
from bridge.config import TxnOptions
from bridge.ledger import Ledger
from bridge.reading import Later
from bridge.records import HalfVerdicts, HalvesLooked, HalvesOpen, Record, TopicCreated
from bridge.topics import QUEUE_ID_BITS, Topics
from protocol.rocketmq import message as rocketmq_message
from protocol.rocketmq import properties, tags
from protocol.rocketmq.message import NO_HOST, Message, Writer
from protocol.rocketmq.names import HALF_TOPIC, OP_HALF_TOPIC, TRANS_CHECK_MAX_TIME_TOPIC
from store.entry import Appended, Frame, Promise, Slot, Stored
from store.queue import Queue
from store.store import Store
from txn.half import Half, HalfMessages, OpenPage, UnknownHalf, Verdict

OP_TAG: Final = "d"  # TransactionalMessageUtil.java#REMOVE_TAG
_OP_PROPERTIES: Final = f"TAGS\x01{OP_TAG}\x02".encode()
_OP_CODE: Final = tags.hash_code(OP_TAG)


class TooManyHalves(Exception):
    """`txn.half_max` half messages are open."""


class Halves:
    """All half messages of a broker. `store_host` is the packed address of the RocketMQ port."""

    def __init__(self, ledger: Ledger, options: TxnOptions) -> None:
        self.store_host = NO_HOST
        self.state = HalfMessages(
            immunity_ms=options.immunity_ms,
            interval_ms=options.check_interval_ms,
            checks_max=options.check_max,
            open_ms_max=options.half_ms,
        )
        self._ledger = ledger
        self._open_max = options.half_max
        self._half_key = self._op_key = -1
        self._store: Store | None = None
        ledger.own(TopicCreated, self._replay_topic)
        ledger.own(HalvesLooked, self._replay_looked)
        ledger.own(HalvesOpen, self._replay_open)
        ledger.own(HalfVerdicts, self._replay_verdicts)
        ledger.on_frame(self.replay_frame)
        ledger.on_snapshot(self._snapshot)

    def attach(self, store: Store, topics: Topics, store_host: bytes) -> None:
        """Name the log, once it is recovered."""
        self.store_host = store_host
        self._store = store
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
        found = self._store.read(queue, offset, max_bytes=1, max_entries=1, until=queue.end_offset)
        return found[0] if isinstance(found, list) else Later(found, lambda stored: stored[0])

    def first_kept(self, queue: Queue) -> int | None:
        """Say from which offset on retention must leave a queue alone; None: it may take all."""
        return self.state.first_offset if queue.key == self._half_key else None

    # -- Changing

    def check_room(self) -> None:
        if len(self.state) >= self._open_max:
            raise TooManyHalves(f"{len(self.state)} half messages are open; txn.half_max={self._open_max}")

    def prepare(self, message: Message, asker: str, immunity_ms: int | None, now_ms: int) -> Appended:
        """Append a half message of a RocketMQ producer; raises StoreError, ProtocolError."""
        frame = _frame(self.half_queue, self._half_writer, message)
        appended = self._ledger.commit([], now_ms, [frame])
        slot = appended.slots[0]
        self.state.prepared(slot.base_offset, asker, slot.stored_ms, immunity_ms)
        return appended

    def end(self, offset: int, verdict: Verdict, frames: Sequence[Frame], now_ms: int) -> Promise:
        """Append a verdict that `state.judge` has approved, and what becomes of the message, as one unit."""
        op = Message("", f"{offset},".encode(), _OP_PROPERTIES, born_ms=now_ms, born_host=self.store_host)
        op_frame = _frame(self._op_queue, self._op_writer, op, _OP_CODE, bytes((verdict,)))
        promise = self._ledger.commit([], now_ms, [*frames, op_frame]).promise
        self.state.decided(offset, verdict)
        return promise

    def given_up_frame(self, message: Message) -> Frame:
        return _frame(self._given_up_queue, self._given_up_writer, message)

    def looked(self, halves: Iterable[Half], now_ms: int) -> None:
        """Take note that these are looked at now."""
        self._ledger.commit([HalvesLooked([half.offset for half in halves], now_ms)], now_ms)

    # -- Replay

    def replay_frame(self, key: int, slot: Slot, form: int, count: int, frame: memoryview, extra: bytes) -> None:
        if key == self._half_key:
            asker, immunity_ms = wishes_of(rocketmq_message.properties_of(frame))
            self.state.prepared(slot.base_offset, asker, slot.stored_ms, immunity_ms)
        elif key == self._op_key:
            self.state.decided(int(bytes(rocketmq_message.body_of(frame))[:-1]), Verdict(extra[0]))

    def _replay_topic(self, record: TopicCreated, slot: Slot) -> None:
        if record.name == HALF_TOPIC:
            self._half_key = record.number << QUEUE_ID_BITS
        elif record.name == OP_HALF_TOPIC:
            self._op_key = record.number << QUEUE_ID_BITS

    def _replay_looked(self, record: HalvesLooked, slot: Slot) -> None:
        self.state.looked(record.offsets, record.at_ms)

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

    def _snapshot(self) -> Iterable[Record]:
        end_offset, verdicts = self.state.verdicts()
        yield HalfVerdicts(end_offset, zlib.compress(verdicts, 1))
        for page in self.state.snapshot():
            yield HalvesOpen(*page)


def _first_queue(topics: Topics, name: str) -> Queue:
    topic = topics.by_rocketmq_name(name)
    assert topic is not None, f"{name} is made at every start"
    return topic.queues[0]


def _frame(queue: Queue, writer: Writer, message: Message, code: int = tags.NO_TAG, extra: bytes = b"") -> Frame:
    record = b"".join(writer.pieces(message))
    return Frame(queue, forms.ROCKETMQ, record, 1, message.born_ms, code, rocketmq_message.stamp, extra)


def wishes_of(raw: bytes) -> tuple[str, int | None]:
    """Say whom a half message's properties name to be asked, and the immunity that they want, if any.

    What is no number wants none, and so does -1. TransactionalMessageServiceImpl.java#getImmunityTime
    """
    seconds = properties.get(raw, properties.CHECK_IMMUNITY_TIME_IN_SECONDS)
    try:
        immunity_s = -1 if seconds is None else int(seconds)
    except ValueError:
        immunity_s = -1
    return properties.get(raw, properties.PGROUP) or "", None if immunity_s == -1 else max(0, immunity_s) * 1000
