"""Half messages of RocketMQ's producers: SEND with TRAN_MSG, END_TRANSACTION (37), CHECK_TRANSACTION_STATE (39).

    SEND, TRAN_MSG=true     the half message; the answer says where it lies, and the producer repeats that in 37
    37, commit, rollback    one unit (`bridge/transactions/half_messages.py`), with those that came by the same read of
    the socket
                            if nobody waits for an answer: clients mostly do not
    37, unknown             nothing, not even an answer
    39                      one-way to a producer of the group when a look is due; it answers by 37

A look that finds no producer, or none that takes what it is sent, counts as one: as at home, where after the last one
the message goes to TRANS_CHECK_MAX_TIME_TOPIC. Who sent a half message counts as a producer of its group from then on:
its first heartbeat may be half a minute away. A wish for a delay is judged with the half message, counts from then, and
is granted at commit: visible at the later of the two.

Ages are by the broker's clock, not by the time that the producer says. Source: EndTransactionProcessor.java,
TransactionalMessageBridge.java, AbstractTransactionalMessageCheckListener.java.
"""

import logging
from collections.abc import Callable, Sequence
from functools import cache, partial
from typing import Final

from duolog.bridge.data import frame_formats
from duolog.bridge.data.delay_headers import DelayRefused
from duolog.bridge.data.half_frames import read_half
from duolog.bridge.data.publishing.refusals import MessageTooLarge
from duolog.bridge.data.publishing.rocketmq_plan import HalfMessageOutline
from duolog.bridge.data.reading import Later
from duolog.bridge.net.answers import Answer
from duolog.bridge.rocketmq.consuming import heartbeats
from duolog.bridge.rocketmq.consuming.consumer_group import NAME_CHARACTERS_MAX
from duolog.bridge.rocketmq.context import RocketMQContext
from duolog.bridge.rocketmq.requests.connection import RocketMQConnection
from duolog.bridge.rocketmq.requests.errors import Refused
from duolog.bridge.rocketmq.requests.responses import answer
from duolog.bridge.state.records import Record
from duolog.bridge.state.topics import Topic
from duolog.bridge.transactions import half_decisions
from duolog.bridge.transactions.check_callbacks import Callbacks, host_of
from duolog.bridge.transactions.half_decisions import HalfDecisions
from duolog.bridge.transactions.half_messages import (
    Decision,
    half_properties,
    sent_properties,
    wishes_of,
)
from duolog.protocol.rocketmq.codes import RequestCode, ResponseCode
from duolog.protocol.rocketmq.headers import CheckTransactionRequest, EndTransactionRequest, SendRequest
from duolog.protocol.rocketmq.messages import flags, message, properties
from duolog.protocol.rocketmq.messages.message import PROPERTIES_BYTES_MAX, Message
from duolog.protocol.rocketmq.messages.message_id import message_id
from duolog.protocol.rocketmq.remoting import RemotingCommand
from duolog.store.entry import Appended, Promise, Stored
from duolog.store.errors import StoreError
from duolog.store.unit import Frame
from duolog.txn.half import Half, UnknownHalf, Verdict

CHECKS_AT_ONCE: Final = 64  # Half messages that are read and asked about in one turn of the loop,
LOOKS_AT_ONCE: Final = 1024  # and those that only count a look, for nobody is there to be asked.
PAUSE_MS: Final = 10  # Between two such turns, so that at most about a quarter of the loop's time goes into checks.

_VERDICTS: Final = {
    flags.TRANSACTION_COMMIT: Verdict.COMMITTED,
    flags.TRANSACTION_ROLLBACK: Verdict.ROLLED_BACK,
}
NO_ANSWER: Final = Answer(())  # To who wants none.
_NOT_FOUND: Final = "Find prepared transaction message failed"
_CHECKED_BYTES_MAX: Final = 64  # For TRANSACTION_CHECK_TIMES, which producers get with the message.

log = logging.getLogger("bridge")


# -- Sending


def is_half(sent: Message) -> bool:
    """Say whether TRAN_MSG asks for a transaction; not on a retry of a consumer's, which may still carry it."""
    raw = sent.properties
    if (properties.get(raw, properties.TRAN_MSG) or "").lower() != "true":  # Boolean.parseBoolean
        return False
    return not (sent.reconsume_times > 0 and (properties.get(raw, properties.DELAY) or "0") != "0")


def prepare(
    context: RocketMQContext,
    connection: RocketMQConnection,
    command: RemotingCommand,
    request: SendRequest,
    topic: Topic,
    queue_id: int,
    sent: Message,
    unique_key: str,
) -> Appended:
    """Append a half message for that queue; raises what `Publisher.publish_messages` does, and TooManyHalves.

    Its answer promises what the queue that it is meant for does.
    """
    now_ms = context.clock.now_ms()
    context.messages.halves.check_room()
    added = f"{properties.TRANSACTION_ID}\x01{unique_key}\x02"
    group, immunity_ms = wishes_of(sent.properties)
    if not group:
        group = request.producer_group
        added += f"{properties.PGROUP}\x01{group}\x02"
    if len(group) > NAME_CHARACTERS_MAX:
        raise MessageTooLarge(f"producer group of {len(group)} characters; {NAME_CHARACTERS_MAX} are allowed")
    sent.properties = properties.without(sent.properties, properties.TRAN_MSG)
    context.messages.publisher.messages.check_half(topic, sent, now_ms, connection)
    sent.properties = half_properties(sent.properties, added, topic.rocketmq_name, queue_id)
    if len(sent.properties) > PROPERTIES_BYTES_MAX - _CHECKED_BYTES_MAX:
        raise MessageTooLarge(f"properties of {len(sent.properties)} bytes, with those of a half message")
    if connection not in context.groups.members.producers.get(group, ()):
        heartbeats.note_producer(context, connection, command, group)
    slots, promise = context.messages.halves.prepare(sent, group, immunity_ms, now_ms)
    return Appended(slots, Promise(promise.end, topic.queues[queue_id].durable))


# -- Deciding


def end_transaction(
    context: RocketMQContext, connection: RocketMQConnection, command: RemotingCommand
) -> Answer | None:
    request = EndTransactionRequest.parse(command.ext)
    verdict = _VERDICTS.get(request.commit_or_rollback)
    if verdict is None:
        return None  # Not known yet, or no verdict at all: at home neither is answered.
    found = context.messages.halves.read(request.tran_state_table_offset)
    if not isinstance(found, Later):
        return _end(context, command, request, verdict, found, gathers=connection.is_receiving and command.is_oneway)
    return connection.answer_when(command, found, partial(_end, context, command, request, verdict))


def _end(
    context: RocketMQContext,
    command: RemotingCommand,
    request: EndTransactionRequest,
    verdict: Verdict,
    stored: Stored,
    *,
    gathers: bool = False,
) -> Answer:
    if stored.form != frame_formats.ROCKETMQ:
        raise UnknownHalf(_NOT_FOUND)
    now_ms = context.clock.now_ms()
    half = bytes(stored.frame)  # Slices of bytes are cheaper than those of a view.
    outline = message.outline_of(half)
    raw, name, queue_id = sent_properties(half[outline[-1] :])
    group, immunity_ms = wishes_of(raw)
    _check(request, stored, group)
    halves = context.messages.halves
    if not halves.judge(stored.base_offset, verdict, now_ms):
        return _done(command, context.store.promise())  # The same verdict once more.
    if immunity_ms is not None and not request.from_transaction_check and now_ms - stored.stored_ms > immunity_ms:
        # Whoever has waited for so long does not know whether it was asked meanwhile: it is to wait for that.
        remark = f"half message {stored.base_offset} is older than its immunity of {immunity_ms} ms"
        raise Refused(ResponseCode.ILLEGAL_OPERATION, remark)
    records: Sequence[Record] = ()
    frames: Sequence[Frame] = ()
    if verdict is Verdict.COMMITTED:
        topic = context.topics.by_rocketmq_name(name)
        if topic is None:
            raise Refused(ResponseCode.TOPIC_NOT_EXIST, f"topic[{name}] not exist, apply first please!")
        queue_id %= topic.queue_count  # A topic that was made again may have fewer queues.
        born_ms, sent_ms, topic_at, _ = outline
        committed = HalfMessageOutline(half, born_ms, sent_ms, topic_at, raw)
        plan = context.messages.publisher.plan_committed_message(topic, queue_id, committed, now_ms)
        frames, records = plan.frames, plan.records
    if gathers and not records and not (frames and frames[0].extra):
        halves.gather(stored.base_offset, Decision(verdict, name, stored.stored_ms, frames), now_ms)
        return NO_ANSWER
    decision = Decision(verdict, name, stored.stored_ms, frames)
    return _done(command, halves.end(stored.base_offset, decision, now_ms, records))


def _done(command: RemotingCommand, promise: Promise) -> Answer:
    """Answer whoever listens: Java's and Go's producers do not."""
    return NO_ANSWER if command.is_oneway else answer(command, promise=promise)


def _check(request: EndTransactionRequest, stored: Stored, group: str) -> None:
    """EndTransactionProcessor.java#checkPrepareMessage"""
    if group != request.producer_group:
        raise Refused(ResponseCode.SYSTEM_ERROR, "The producer group wrong")
    if stored.position != request.commit_log_offset:
        raise Refused(ResponseCode.SYSTEM_ERROR, "The commit log offset wrong")


# -- Checking


class CheckBackLoop:
    """Looks at open half messages when they are due: asks a producer, or gives up. Deadlines are wall time."""

    def __init__(self, context: RocketMQContext, decisions: HalfDecisions, callbacks: Callbacks) -> None:
        self._context, self._decisions, self._callbacks = context, decisions, callbacks
        self._not_before_ms = 0
        self._turn = 0  # Producers of a group are asked in turn.
        self.asked = self.unheard = self.given_up = 0  # Since the start: asked, nobody there to be, in vain.
        self._last_given_up: Half | None = None  # of those that the log has no line about yet

    def next_deadline_ms(self) -> int | None:
        deadline_ms = self._context.messages.halves.state.next_deadline_ms()
        return None if deadline_ms is None else max(deadline_ms, self._not_before_ms)

    def run(self, now_ms: int, mono_ms: int) -> None:
        """Look at some of those that are due; raises StoreError, and has then done nothing."""
        halves = self._context.messages.halves
        self._not_before_ms = 0
        due = halves.state.due(now_ms, LOOKS_AT_ONCE)
        if not due:
            return
        to_read: list[tuple[Half, bool]] = []
        put_off: list[Half] = []
        looked: list[Half] = []
        careful_ms = self._context.messages.wall_time.careful_ms(now_ms, mono_ms)
        has_producer, room = cache(self._can_ask), _Room(self._callbacks)
        for half in due:
            is_last = halves.state.is_last_look(half, careful_ms)
            if not is_last and "://" in half.asker and not room.take(half.asker):
                put_off.append(half)
                continue
            looked.append(half)
            if is_last or has_producer(half.asker):
                to_read.append((half, is_last))
                if len(to_read) == CHECKS_AT_ONCE:
                    break
        self._not_before_ms = now_ms + PAUSE_MS
        halves.looked(looked, put_off, now_ms)
        self.unheard += len(looked) - len(to_read)
        for half, is_last in to_read:
            self._read(half, self._give_up if is_last else self._ask, is_last=is_last)
        if self._last_given_up is not None:
            last, self._last_given_up = self._last_given_up, None
            log.warning("half messages given up in_all=%d last=%d group=%s", self.given_up, last.offset, last.asker)

    def _read(self, half: Half, then: Callable[[Half, Stored], None], *, is_last: bool = False) -> None:
        def done(found: Stored | StoreError) -> None:
            try:
                if isinstance(found, StoreError):
                    raise found
                if half.offset in self._context.messages.halves.state:
                    then(half, found)
            except StoreError as error:
                log.warning("half message put off to its next look offset=%d reason=%r", half.offset, str(error))
            except Exception as error:  # noqa: BLE001 - set aside, or raised again
                self._set_aside(half, error, is_last=is_last)

        try:
            found = self._context.messages.halves.read(half.offset)
        except StoreError as error:
            done(error)
            return
        if isinstance(found, Later):
            found.start(done)
        else:
            done(found)

    def _set_aside(self, half: Half, error: Exception, *, is_last: bool) -> None:
        """Report a half message that raised; at its last look it ends without a copy, for it would hold its segment."""
        context = self._context
        context.poison.set_aside("half message", f"half topic, offset {half.offset}, of {half.asker}", error)
        if is_last and half.offset in context.messages.halves.state:
            self._end_without_copy(half)

    def _end_without_copy(self, half: Half) -> None:
        try:
            decision = Decision(Verdict.GIVEN_UP, "", half.stored_ms)
            self._context.messages.halves.end(half.offset, decision, self._context.clock.now_ms())
            self.given_up += 1
        except StoreError as error:
            log.warning("half message put off to its next look offset=%d reason=%r", half.offset, str(error))

    def _can_ask(self, asker: str) -> bool:
        return "://" in asker or any(map(self._takes, self._channels(asker)))

    def _channels(self, group: str) -> Sequence[RocketMQConnection]:
        return self._context.groups.members.producer_channels(group)

    def _takes(self, channel: RocketMQConnection) -> bool:
        """Say whether the channel takes what it is sent."""
        return not channel.closed and channel.answers.pending_bytes <= self._context.options.limits.unsent_bytes_max

    def _producer(self, group: str) -> RocketMQConnection | None:
        """Give a producer of the group, another one each time."""
        self._turn += 1
        channels = self._channels(group)
        start = self._turn % len(channels) if channels else 0
        return next(filter(self._takes, (*channels[start:], *channels[:start])), None)

    def _ask(self, half: Half, stored: Stored) -> None:
        if stored.form == frame_formats.KAFKA:
            self._call_back(half, stored)
            return
        channel = self._producer(half.asker)
        if channel is None:
            self.unheard += 1
            return
        self.asked += 1
        asked = message.decode(stored.frame)
        raw = asked.properties
        asked.topic = properties.get(raw, properties.REAL_TOPIC) or ""
        asked.queue_id = int(properties.get(raw, properties.REAL_QID) or 0)
        asked.properties = properties.join(raw, _checked(half.checks + 1))
        unique_key = properties.get(raw, properties.UNIQ_KEY)
        header = CheckTransactionRequest(
            topic=asked.topic,
            tran_state_table_offset=stored.base_offset,
            commit_log_offset=stored.position,
            msg_id=unique_key,
            transaction_id=unique_key,
            offset_msg_id=message_id(asked.store_host, stored.position),
            broker_name=self._context.options.rocketmq.broker,
        )
        channel.notify(RequestCode.CHECK_TRANSACTION_STATE, header.to_ext(), bytes(message.encode(asked)))

    def _call_back(self, half: Half, stored: Stored) -> None:
        """Ask a Kafka producer over HTTP; what is not allowed any more is not asked."""
        request, topic, queue_id, _ = read_half(stored.frame)
        if not self._callbacks.room(request.check_url) or not self._context.messages.halves.may_ask(request.check_url):
            self.unheard += 1
            return
        self.asked += 1
        question = {"topic": topic, "id": request.id, "queue": queue_id, "checks": half.checks + 1}

        def done(verdict: Verdict) -> None:
            if half.offset in self._context.messages.halves.state:  # Else it was decided meanwhile, and may be gone.
                self._read(half, lambda _, found: self._decided(found, verdict))

        self._callbacks.ask(request.check_url, question, done)

    def _decided(self, stored: Stored, verdict: Verdict) -> None:
        try:
            if half_decisions.decide(self._decisions, stored, verdict) is None:
                log.warning("half message of a topic that is gone offset=%d", stored.base_offset)
        except DelayRefused as error:
            log.warning("half message not committed offset=%d reason=%r", stored.base_offset, str(error))

    def _give_up(self, half: Half, stored: Stored) -> None:
        """Put it where operators look for those that nobody decided; raises StoreError."""
        context = self._context
        if stored.form == frame_formats.KAFKA:
            topic = read_half(stored.frame).topic
            frame = context.messages.halves.given_up_kafka_frame(stored)
        else:
            kept = message.decode(stored.frame)
            topic = properties.get(kept.properties, properties.REAL_TOPIC) or ""
            kept.properties = properties.join(kept.properties, _checked(half.checks))
            frame = context.messages.halves.given_up_frame(kept, context.clock.now_ms())
        context.messages.halves.end(
            half.offset, Decision(Verdict.GIVEN_UP, topic, half.stored_ms, [frame]), context.clock.now_ms()
        )
        self.given_up += 1
        self._last_given_up = half


class _Room:
    """How many callbacks may still be made in this turn, by host."""

    def __init__(self, callbacks: Callbacks) -> None:
        self._callbacks = callbacks
        self._left: dict[str, int] = {}

    def take(self, url: str) -> bool:
        host = host_of(url)
        left = self._left.get(host)
        if left is None:
            left = self._callbacks.room(url)
        self._left[host] = left - 1
        return left > 0


def _checked(count: int) -> bytes:
    return f"{properties.TRANSACTION_CHECK_TIMES}\x01{count}\x02".encode()
