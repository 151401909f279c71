"""Half messages of RocketMQ producers: SEND_MESSAGE with the property TRAN_MSG, and END_TRANSACTION (37).

    SEND, TRAN_MSG=true   appends the half message; the answer has its position, which the producer repeats in 37
    37, commit, rollback  appends the verdict; one-way verdicts of one read of the socket are appended together
    37, unknown           has no effect and no answer; the broker will send a check-back (`check_backs.py`)

The sender of a half message counts as a producer of its group at once, because its first heartbeat may come half a
minute later. The delay of a half message is checked when it is sent, and counts from then on; a committed message
becomes visible at its due time or at its commit, whichever is later. Ages are measured by the broker's clock, not by
times in requests.
Source: EndTransactionProcessor.java, TransactionalMessageBridge.java.
"""

from functools import partial
from typing import Final, NamedTuple

from duolog.bridge.data.publishing.refusals import MessageTooLarge
from duolog.bridge.data.publishing.rocketmq_plan import HalfMessageOutline
from duolog.bridge.data.reading.later import Later
from duolog.bridge.data.units import NOTHING, UnitPlan
from duolog.bridge.net.answers import Answer
from duolog.bridge.net.futures import wait_for_callback
from duolog.bridge.records import frame_formats
from duolog.bridge.rocketmq.access.gate import Granted
from duolog.bridge.rocketmq.consuming import heartbeats
from duolog.bridge.rocketmq.context import RocketMQContext
from duolog.bridge.rocketmq.groups.consumer_group import NAME_CHARACTERS_MAX
from duolog.bridge.rocketmq.requests.connection import RocketMQConnection
from duolog.bridge.rocketmq.requests.errors import RequestRefused
from duolog.bridge.rocketmq.requests.quota_check import quota_client
from duolog.bridge.rocketmq.requests.responses import answer
from duolog.bridge.rocketmq.requests.rocketmq_driver import answer_when
from duolog.bridge.security.quotas.entity import QuotaClient
from duolog.bridge.security.rules import Operation
from duolog.bridge.state.topic_table import Topic
from duolog.bridge.transactions.half_properties import check_back_of, half_properties, sent_properties
from duolog.bridge.transactions.op_messages import HalfDecision
from duolog.protocol.rocketmq.codes import ResponseCode
from duolog.protocol.rocketmq.headers import EndTransactionRequest, SendRequest
from duolog.protocol.rocketmq.messages import flags, message, properties
from duolog.protocol.rocketmq.messages.message import PROPERTIES_BYTES_MAX, Message
from duolog.protocol.rocketmq.remoting import RemotingCommand
from duolog.store.entry import Appended, Promise, Stored, new_tuple
from duolog.txn.half import UnknownHalf
from duolog.txn.half_verdicts import HalfVerdict

_VERDICTS: Final = {
    flags.TRANSACTION_COMMIT: HalfVerdict.COMMITTED,
    flags.TRANSACTION_ROLLBACK: HalfVerdict.ROLLED_BACK,
}
NO_ANSWER: Final = Answer(())  # For one-way requests.
_NOT_FOUND: Final = "Find prepared transaction message failed"
_CHECK_TIMES_BYTES_MAX: Final = 64  # The size of the property TRANSACTION_CHECK_TIMES, which check-backs add.
_find_tran_msg: Final = properties.finder(properties.TRAN_MSG)


# -- Sending


def is_half(sent: Message) -> bool:
    """Return whether a sent message is a half message: TRAN_MSG is true, and it is not a consumer's retry."""
    raw = sent.properties
    if (_find_tran_msg(raw) or b"").lower() != b"true":  # Boolean.parseBoolean
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
    """Append a half message for that queue; raises what `Publisher.publish_messages` raises, and TooManyHalves.

    A delayed one must have room in the quota of pending messages. It counts there when it is committed, for whoever
    commits it; the commit is refused only if it cannot be counted (`PendingQuota.charge`).

    The promise is durable if the promises of the message's own queue are.
    """
    now_ms = context.clock.now_ms()
    context.messages.halves.check_room()
    added = f"{properties.TRANSACTION_ID}\x01{unique_key}\x02"
    group, immunity_ms = check_back_of(sent.properties)
    if not group:
        group = request.producer_group
        added += f"{properties.PGROUP}\x01{group}\x02"
    if len(group) > NAME_CHARACTERS_MAX:
        raise MessageTooLarge(f"producer group of {len(group)} characters; {NAME_CHARACTERS_MAX} are allowed")
    sent.properties = properties.without(sent.properties, properties.TRAN_MSG)
    delay = context.messages.publisher.messages.check_half(topic, sent, now_ms, connection)
    if delay is not None and delay.schedule is None:
        context.messages.publisher.pending_quota.check_room(quota_client(connection), 1)
    sent.properties = half_properties(sent.properties, added, topic.rocketmq_name, queue_id)
    if len(sent.properties) > PROPERTIES_BYTES_MAX - _CHECK_TIMES_BYTES_MAX:
        raise MessageTooLarge(f"properties of {len(sent.properties)} bytes, with those of a half message")
    # The connection of a standby has many producers, whose own connections to this broker get the check-backs.
    if not command.is_forwarded and connection not in context.groups.members.producers.groups.get(group, ()):
        heartbeats.note_producer(context, connection, command, group)
    return context.messages.halves.prepare(sent, group, immunity_ms, now_ms, topic.queues[queue_id].level)


# -- Deciding


class _Sender(NamedTuple):
    """What the sender of END_TRANSACTION may do, and whose quotas hold for it."""

    granted: Granted | None
    client: QuotaClient | None


def end_transaction(
    context: RocketMQContext, connection: RocketMQConnection, command: RemotingCommand
) -> Answer | None:
    """Answer END_TRANSACTION: append the verdict on a half message."""
    request = EndTransactionRequest.parse(command.ext)
    verdict = _VERDICTS.get(request.commit_or_rollback)
    if verdict is None:
        # The producer does not know the verdict, or sent an unknown value; Apache RocketMQ answers neither.
        return None
    found = context.messages.halves.read(request.tran_state_table_offset)
    sender = new_tuple(_Sender, (connection.granted, quota_client(connection)))
    if not isinstance(found, Later):
        gathers = connection.is_receiving and command.is_oneway
        return _end(context, command, request, verdict, sender, found, gathers=gathers)
    decide = partial(_end, context, command, request, verdict, sender)
    return answer_when(connection, command, found, decide, outlives_connection=True)


def _end(
    context: RocketMQContext,
    command: RemotingCommand,
    request: EndTransactionRequest,
    verdict: HalfVerdict,
    sender: _Sender,
    stored: Stored,
    *,
    gathers: bool = False,
) -> Answer:
    if stored.form != frame_formats.ROCKETMQ:
        raise UnknownHalf(_NOT_FOUND)
    now_ms = context.clock.now_ms()
    half = bytes(stored.frame)  # Slices of bytes cost less than slices of a memoryview.
    outline = message.outline_of(half)
    raw, name, queue_id = sent_properties(half[outline[-1] :])
    group, immunity_ms = check_back_of(raw)
    _check(request, stored, group)
    topic = context.topics.by_rocketmq_name(name)
    if sender.granted is not None and topic is not None:
        sender.granted.check_topic(topic, Operation.WRITE)
    halves = context.messages.halves
    if not halves.judge(stored.base_offset, verdict, now_ms):
        return _done(command, context.store.promise())  # The half message was decided in the same way before.
    if immunity_ms is not None and not request.from_transaction_check and now_ms - stored.stored_ms > immunity_ms:
        # The broker may have asked another producer of the group meanwhile; this producer has to wait for a check-back.
        remark = f"half message {stored.base_offset} is older than its immunity of {immunity_ms} ms"
        raise RequestRefused(ResponseCode.ILLEGAL_OPERATION, remark)
    plan = NOTHING
    if verdict is HalfVerdict.COMMITTED:
        committed = new_tuple(HalfMessageOutline, (half, *outline[:3], raw))
        plan = _plan_commit(context, committed, topic, name, queue_id, now_ms)
    decision = new_tuple(HalfDecision, (verdict, name, stored.stored_ms, plan))
    if gathers and not plan.records and not (plan.frames and plan.frames[0].extra):
        halves.gather(stored.base_offset, decision, now_ms)
        return NO_ANSWER
    append = partial(context.messages.publisher.append_accepted, client=sender.client)
    return _done(command, halves.end(stored.base_offset, decision, now_ms, append))


def _plan_commit(
    context: RocketMQContext,
    committed: HalfMessageOutline,
    topic: Topic | None,
    name: str,
    queue_id: int,
    now_ms: int,
) -> UnitPlan:
    """Return what makes a committed message visible. Raises RequestRefused if its topic was deleted."""
    if topic is None:
        raise RequestRefused(ResponseCode.TOPIC_NOT_EXIST, f"topic[{name}] not exist, apply first please!")
    queue_id %= topic.queue_count  # A topic that was deleted and created again may have fewer queues.
    return context.messages.publisher.messages.plan_committed(topic, queue_id, committed, now_ms)


async def decide(context: RocketMQContext, offset: int, verdict: HalfVerdict) -> Promise:
    """Append the verdict of an operator on the half message of a RocketMQ producer at an offset of the half topic.

    Raises UnknownHalf, AlreadyDecided, RequestRefused if the topic of the message was deleted, and StoreError.
    """
    found = context.messages.halves.read(offset)
    stored: Stored = await wait_for_callback(found.start) if isinstance(found, Later) else found
    if stored.form != frame_formats.ROCKETMQ:
        raise UnknownHalf(f"the half message {offset} is not one of a RocketMQ producer")
    now_ms = context.clock.now_ms()
    if not context.messages.halves.judge(offset, verdict, now_ms):
        return context.store.promise()  # It was decided in the same way before.
    half = bytes(stored.frame)
    outline = message.outline_of(half)
    raw, name, queue_id = sent_properties(half[outline[-1] :])
    plan = NOTHING
    if verdict is HalfVerdict.COMMITTED:
        committed = HalfMessageOutline(half, *outline[:3], raw)
        topic = context.topics.by_rocketmq_name(name)
        plan = _plan_commit(context, committed, topic, name, queue_id, now_ms)
    return context.messages.halves.end(offset, HalfDecision(verdict, name, stored.stored_ms, plan), now_ms)


def _done(command: RemotingCommand, promise: Promise) -> Answer:
    """Answer a request that is not one-way; the Java and Go clients send one-way requests."""
    return NO_ANSWER if command.is_oneway else answer(command, promise=promise)


def _check(request: EndTransactionRequest, stored: Stored, group: str) -> None:
    """Raise RequestRefused if the request is about another message (`checkPrepareMessage`)."""
    if group != request.producer_group:
        raise RequestRefused(ResponseCode.SYSTEM_ERROR, "The producer group wrong")
    if stored.position != request.commit_log_offset:
        raise RequestRefused(ResponseCode.SYSTEM_ERROR, "The commit log offset wrong")
