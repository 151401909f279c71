"""Check-backs: the broker asks producers for the verdict on open half messages, and gives up those that get none.

    open half message ── due ──┬── a producer can be asked ──> CHECK_TRANSACTION_STATE (39), or an HTTP request
                               ├── no producer can be asked ──> the check counts as one without an answer
                               └── it was the last check ──> a copy in TRANS_CHECK_MAX_TIME_TOPIC; the half message ends

A RocketMQ producer gets a one-way request over its own connection, and answers by END_TRANSACTION. A Kafka producer is
asked over HTTP if its half message names a URL (`bridge/transactions/check_callbacks.py`). A check without an answer
counts, as in Apache RocketMQ: after `txn.check_max` checks the half message is given up, and an operator finds it in
TRANS_CHECK_MAX_TIME_TOPIC. Ages are measured by the broker's clock.
Source: AbstractTransactionalMessageCheckListener.java, TransactionalMessageServiceImpl.java#check.
"""

import logging
from collections.abc import Callable, Sequence
from functools import cache, partial
from typing import Final

from duolog.bridge.clock import Clock
from duolog.bridge.data.half_frames import read_half
from duolog.bridge.data.publishing.half_decisions import HalfDecisions
from duolog.bridge.data.reading.later import Later
from duolog.bridge.data.units import UnitPlan
from duolog.bridge.monitoring.metrics import CheckCounts
from duolog.bridge.monitoring.poison import PoisonRecords
from duolog.bridge.net.addresses import endpoint
from duolog.bridge.records import frame_formats
from duolog.bridge.rocketmq.access.requirements import topic_needs
from duolog.bridge.rocketmq.context import RocketMQContext
from duolog.bridge.rocketmq.requests.connection import RocketMQConnection
from duolog.bridge.security.needs import first_refused
from duolog.bridge.security.rules import Operation
from duolog.bridge.state.wall_time import WallTime
from duolog.bridge.transactions.check_callbacks import CheckCallbacks, host_of
from duolog.bridge.transactions.half_message_log import HalfMessageLog
from duolog.bridge.transactions.half_properties import sent_properties
from duolog.bridge.transactions.op_messages import HalfDecision
from duolog.delay.requested_delay import DelayRefused
from duolog.protocol.rocketmq.codes import RequestCode
from duolog.protocol.rocketmq.headers import CheckTransactionRequest
from duolog.protocol.rocketmq.messages import message, properties
from duolog.protocol.rocketmq.messages.message_id import message_id
from duolog.store.entry import Stored
from duolog.store.errors import StoreError
from duolog.txn.half import Half
from duolog.txn.half_verdicts import HalfVerdict

READS_AT_ONCE: Final = 64  # Half messages that are read, for a check-back or a copy, in one turn of the loop.
CHECKS_AT_ONCE: Final = 1024  # Half messages whose check is counted in one turn, most of them without a producer.
PAUSE_MS: Final = 10  # Between two such turns, so that checks take at most about a quarter of the loop's time.

log = logging.getLogger("rocketmq")


class CheckBackLoop:
    """Checks the open half messages that are due. Deadlines are wall time."""

    def __init__(
        self,
        halves: HalfMessageLog,
        producers: "ProducerChecks",
        callbacks: CheckCallbacks,
        decisions: HalfDecisions,
        wall_time: WallTime,
        clock: Clock,
        poison_records: PoisonRecords,
        counts: CheckCounts,
    ) -> None:
        self._halves, self._producers, self._callbacks, self._decisions = halves, producers, callbacks, decisions
        self._wall_time, self._clock, self._poison_records = wall_time, clock, poison_records
        self._counts = counts
        self._not_before_ms = 0
        self._last_abandoned: Half | None = None  # The last half message that was given up and not logged yet.

    def next_deadline_ms(self) -> int | None:
        deadline_ms = self._halves.state.next_deadline_ms()
        return None if deadline_ms is None else max(deadline_ms, self._not_before_ms)

    def run(self, now_ms: int, mono_ms: int) -> None:
        """Check some of the half messages that are due; raises StoreError, and then has changed nothing."""
        self._not_before_ms = 0
        due = self._halves.state.due(now_ms, CHECKS_AT_ONCE)
        if not due:
            return
        checked, postponed, to_read = self._choose(due, self._wall_time.careful_ms(now_ms, mono_ms))
        self._not_before_ms = now_ms + PAUSE_MS
        self._halves.record_checks(checked, postponed, now_ms)
        self._counts.without_producer += len(checked) - len(to_read)
        for half, is_last in to_read:
            self._read(half, self._abandon if is_last else self._ask, is_last=is_last)
        self._log_abandoned()

    def _choose(self, due: Sequence[Half], careful_ms: int) -> tuple[list[Half], list[Half], list[tuple[Half, bool]]]:
        """Divide due half messages: those whose check counts, those postponed, those to read (with: is it the last).

        A half message is postponed if too many requests to the host of its check URL are in progress.
        """
        checked: list[Half] = []
        postponed: list[Half] = []
        to_read: list[tuple[Half, bool]] = []
        has_producer, room = cache(self._has_producer), _CallbackRoom(self._callbacks)
        for half in due:
            is_last = self._halves.state.must_give_up(half, careful_ms)
            if not is_last and _is_url(half.target) and not room.take(half.target):
                postponed.append(half)
                continue
            checked.append(half)
            if is_last or has_producer(half.target):
                to_read.append((half, is_last))
                if len(to_read) == READS_AT_ONCE:
                    break
        return checked, postponed, to_read

    def _has_producer(self, target: str) -> bool:
        return _is_url(target) or self._producers.can_ask(target)

    def _log_abandoned(self) -> None:
        last, self._last_abandoned = self._last_abandoned, None
        if last is not None:
            log.warning(
                "half messages given up without a verdict in_all=%d last=%d group=%s",
                self._counts.given_up, last.offset, last.target,
            )  # fmt: skip

    # -- Reading a half message

    def _read(self, half: Half, then: Callable[[Half, Stored], None], *, is_last: bool = False) -> None:
        """Call `then` with the stored half message, now or when a reader thread has it, if it is still open."""

        def done(found: Stored | StoreError) -> None:
            try:
                if isinstance(found, StoreError):
                    raise found
                if half.offset in self._halves.state:
                    then(half, found)
            except StoreError as error:
                log.warning("half message waits for its next check offset=%d reason=%r", half.offset, str(error))
            except Exception as error:  # noqa: BLE001 - set aside, or raised again
                self._set_aside(half, error, is_last=is_last)

        try:
            found = self._halves.read(half.offset)
        except StoreError as error:
            done(error)
            return
        if isinstance(found, Later):
            found.start(done)
        else:
            done(found)

    def _set_aside(self, half: Half, error: Exception, *, is_last: bool) -> None:
        """Report a half message that raised. After its last check it ends without a copy, to free its segment."""
        self._poison_records.set_aside("half message", f"half topic, offset {half.offset}, of {half.target}", error)
        if is_last and half.offset in self._halves.state:
            self._end_without_copy(half)

    def _end_without_copy(self, half: Half) -> None:
        try:
            self._halves.end(half.offset, HalfDecision(HalfVerdict.GIVEN_UP, "", half.stored_ms), self._clock.now_ms())
            self._counts.given_up += 1
        except StoreError as error:
            log.warning("half message waits for its next check offset=%d reason=%r", half.offset, str(error))

    # -- Check-backs

    def _ask(self, half: Half, stored: Stored) -> None:
        is_kafka = stored.form == frame_formats.KAFKA
        if self._call_back(half, stored) if is_kafka else self._producers.ask(half, stored):
            self._counts.requests += 1
        else:
            self._counts.without_producer += 1

    def _call_back(self, half: Half, stored: Stored) -> bool:
        """Ask a Kafka producer over HTTP; false if `txn.check_urls` forbids its URL or there is no room."""
        request, topic, queue_id, _ = read_half(stored.frame)
        if not self._callbacks.room(request.check_url) or not self._halves.may_ask(request.check_url):
            return False
        question = {"topic": topic, "id": request.id, "queue": queue_id, "checks": half.checks + 1}

        def done(verdict: HalfVerdict) -> None:
            if half.offset in self._halves.state:  # Otherwise it was decided meanwhile, and retention may have it.
                self._read(half, lambda _, found: self._decide(found, verdict))

        self._callbacks.ask(request.check_url, question, done)
        return True

    def _decide(self, stored: Stored, verdict: HalfVerdict) -> None:
        """Append the verdict that a callback returned."""
        try:
            if self._decisions.decide(stored, verdict) is None:
                log.warning("half message not committed, its topic was deleted offset=%d", stored.base_offset)
        except DelayRefused as error:
            log.warning("half message not committed offset=%d reason=%r", stored.base_offset, str(error))

    def _abandon(self, half: Half, stored: Stored) -> None:
        """Copy the half message to TRANS_CHECK_MAX_TIME_TOPIC and end it; raises StoreError."""
        now_ms = self._clock.now_ms()
        if stored.form == frame_formats.KAFKA:
            topic = read_half(stored.frame).topic
            frame = self._halves.given_up_kafka_frame(stored)
        else:
            copy = message.decode(stored.frame)
            topic = properties.get(copy.properties, properties.REAL_TOPIC) or ""
            copy.properties = properties.join(copy.properties, _check_times(half.checks))
            frame = self._halves.given_up_frame(copy, now_ms)
        self._halves.end(
            half.offset, HalfDecision(HalfVerdict.GIVEN_UP, topic, half.stored_ms, UnitPlan([frame])), now_ms
        )
        self._counts.given_up += 1
        self._last_abandoned = half


class ProducerChecks:
    """Sends CHECK_TRANSACTION_STATE to the RocketMQ producers of a group, to another one of them each time.

    A check-back contains the message, and any client may name any producer group. `may_decide` returns whether the
    client of a connection may write to the topic of the message, whose name is in RocketMQ's spelling. `note` gets each
    half message with the connection over which its check-back is sent.
    """

    def __init__(
        self,
        connections: Callable[[str], Sequence[RocketMQConnection]],
        may_decide: Callable[[RocketMQConnection, str], bool],
        note: Callable[[Half, RocketMQConnection], None],
        broker_name: str,
        unsent_bytes_max: int,
    ) -> None:
        self._connections, self._may_decide, self._note = connections, may_decide, note
        self._broker_name, self._unsent_bytes_max = broker_name, unsent_bytes_max
        self._request_count = 0

    def can_ask(self, group: str) -> bool:
        """Return whether a producer of the group is connected and reads its answers."""
        return any(map(self._is_ready, self._connections(group)))

    def ask(self, half: Half, stored: Stored) -> bool:
        """Ask a producer of the half message's group; false if none of them can be asked."""
        sent = message.decode(stored.frame)
        raw, (_, name, _) = sent.properties, sent_properties(sent.properties)
        connection = self._next(half.target, name)
        if connection is None:
            return False
        sent.topic = name
        sent.queue_id = int(properties.get(raw, properties.REAL_QID) or 0)
        sent.properties = properties.join(raw, _check_times(half.checks + 1))
        unique_key = properties.get(raw, properties.UNIQ_KEY)
        header = CheckTransactionRequest(
            topic=sent.topic,
            tran_state_table_offset=stored.base_offset,
            commit_log_offset=stored.position,
            msg_id=unique_key,
            transaction_id=unique_key,
            offset_msg_id=message_id(sent.store_host, stored.position),
            broker_name=self._broker_name,
        )
        self._note(half, connection)
        connection.calls.notify(RequestCode.CHECK_TRANSACTION_STATE, header.to_ext(), bytes(message.encode(sent)))
        return True

    def _next(self, group: str, topic: str) -> RocketMQConnection | None:
        self._request_count += 1
        connections = self._connections(group)
        start = self._request_count % len(connections) if connections else 0
        for connection in (*connections[start:], *connections[:start]):
            if self._is_ready(connection) and self._may_decide(connection, topic):
                return connection
        return None

    def _is_ready(self, connection: RocketMQConnection) -> bool:
        """Return whether the client is connected and reads its answers."""
        return not connection.closed and connection.answers.pending_bytes <= self._unsent_bytes_max


class _CallbackRoom:
    """The number of callbacks that may still begin in this turn of the loop, by host."""

    def __init__(self, callbacks: CheckCallbacks) -> None:
        self._callbacks = callbacks
        self._left: dict[str, int] = {}

    def take(self, url: str) -> bool:
        """Take room for one callback; return False if there is none."""
        host = host_of(url)
        left = self._left.get(host)
        if left is None:
            left = self._callbacks.room(url)
        self._left[host] = left - 1
        return left > 0


def check_back_loop(context: RocketMQContext, decisions: HalfDecisions, callbacks: CheckCallbacks) -> CheckBackLoop:
    """Make the check-back loop of a broker."""
    options = context.options
    return CheckBackLoop(
        context.messages.halves,
        ProducerChecks(
            context.groups.members.producers.channels,
            partial(_may_decide, context),
            partial(_note_asked, context),
            options.rocketmq.broker,
            options.limits.unsent_bytes_max,
        ),
        callbacks,
        decisions,
        context.messages.wall_time,
        context.clock,
        context.poison_records,
        context.metrics.check_backs,
    )


def _may_decide(context: RocketMQContext, connection: RocketMQConnection, topic: str) -> bool:
    """Return whether the user of a connection may decide half messages of a topic, as END_TRANSACTION asks."""
    security, session = context.security, connection.session
    if not security.is_enabled:
        return True
    needs = topic_needs(context, topic, Operation.WRITE)
    return session is not None and first_refused(security.authorizer, session, needs) is None


def _note_asked(context: RocketMQContext, half: Half, connection: RocketMQConnection) -> None:
    """Note the client id and the address to which a check-back is sent."""
    client = context.groups.members.producers.groups[half.target][connection]
    context.messages.halves.asked.note(half.offset, f"{client.client_id} {endpoint(*connection.peer)}".strip())


def _is_url(target: str) -> bool:
    """Return whether a half message belongs to a Kafka producer with a check URL, not to a producer group."""
    return "://" in target


def _check_times(count: int) -> bytes:
    return f"{properties.TRANSACTION_CHECK_TIMES}\x01{count}\x02".encode()
