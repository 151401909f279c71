"""The connection of a RocketMQ client: decodes requests, calls the handler from the table, and sends the answers.

    malformed frame or header            the connection is closed, as by Java's decoder
    unknown code                         REQUEST_CODE_NOT_SUPPORTED
    signature with a wrong secret key    NO_PERMISSION, after `security.failed_login_delay_ms`; so it is before the
                                         request waits in a queue or for hooks
    larger than `first_request_bytes_max`, before a request that proves who the client is    the connection is closed
    too many unanswered requests         SYSTEM_BUSY; `rocketmq.unanswered_max`, `admission.py`
    the client is above a quota          the request waits for a moment, or SYSTEM_BUSY; `quota_check.py`
    the handler returns an Answer        the answer is sent when the log keeps its promise; clients match answers by
                                         `opaque`, so they may be sent in any order
    the handler returns None             the answer is sent later: the request waits (`rocketmq_driver.py`)
    the handler raises an ANSWERABLE     the answer has the error's code and text
    the handler raises anything else     the error is reported as a fault; the answer is SYSTEM_ERROR
    one-way request                      no answer

The ports of the broker and of the name server serve the same table, because no code has two meanings.
"""

import logging
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Final

from duolog.bridge.data.publishing.pending_quota import PendingQuotaReached
from duolog.bridge.monitoring.histogram import Histogram
from duolog.bridge.monitoring.metrics import Metrics
from duolog.bridge.net.addresses import endpoint
from duolog.bridge.net.answers import Answer
from duolog.bridge.net.connection import BUG, Connection, Log
from duolog.bridge.net.purgatory import Purgatory
from duolog.bridge.net.server import Server
from duolog.bridge.rocketmq.access.failed_logins import FailedLogins, drop_content
from duolog.bridge.rocketmq.access.gate import Gate, Granted, WrongSignature
from duolog.bridge.rocketmq.namesrv.expected_topics import RouteMisses
from duolog.bridge.rocketmq.producing.gathered_decisions import GATHERING, append_gathered
from duolog.bridge.rocketmq.requests.admission import Admission, Kind
from duolog.bridge.rocketmq.requests.background_requests import BackgroundQueue, Steps
from duolog.bridge.rocketmq.requests.client_calls import ClientCalls
from duolog.bridge.rocketmq.requests.errors import (
    ANSWERABLE,
    RequestRefused,
    code_of,
    remark_of,
)
from duolog.bridge.rocketmq.requests.quota_check import (
    Delayed,
    ReadPause,
    check_quotas,
    count_pulled,
    count_time,
    pause_refused,
)
from duolog.bridge.rocketmq.requests.request_row import Row
from duolog.bridge.rocketmq.requests.responses import answer
from duolog.bridge.security.quotas.quotas import Meter, Quotas
from duolog.bridge.security.session import Session
from duolog.bridge.transactions.half_message_log import HalfMessageLog
from duolog.protocol.rocketmq import remoting
from duolog.protocol.rocketmq.codes import ResponseCode
from duolog.protocol.rocketmq.json.fastjson import IllegalJson
from duolog.protocol.rocketmq.messages.message import NO_HOST
from duolog.protocol.rocketmq.messages.message_id import pack_host
from duolog.protocol.rocketmq.remoting import FLAG_ONEWAY, FLAG_RESPONSE, RemotingCommand
from duolog.store.entry import Buffer, Promise
from duolog.store.errors import StoreError

if TYPE_CHECKING:
    import asyncio


# Answers that wait for the log: the promise, the frame, the kind of the request, the histogram of its latency, and when
# it was received.
Promised = deque[tuple[Promise, Sequence[Buffer], Kind, Histogram, int]]

log = logging.getLogger("rocketmq")

_BUSY: Final = "[OVERLOAD]system busy, start flow control for a while"


@dataclass(frozen=True, slots=True)
class ConnectionContext:
    """What connections of the RocketMQ port and of the name server's port use."""

    server: Server
    store: Log
    purgatory: Purgatory
    metrics: Metrics
    admission: Admission
    background_queues: Mapping[Kind, BackgroundQueue]
    halves: HalfMessageLog
    table: Mapping[int, Row]
    gate: Gate | None  # None: security is off.
    quotas: Quotas
    first_request_bytes_max: int  # The largest request before one that proves who the client is.
    inflate_bytes_max: int  # `convert.inflate_bytes_max`, for hooks.
    handlers: object  # The `RocketMQContext` that the table's handlers get.


class RocketMQConnection(Connection):
    """The connection of one client to the RocketMQ port or the name server's port.

    `unanswered` counts requests whose answers wait: long polls, reads, and answers that wait for the log. The class has
    more than 20 methods and 15 fields because it extends Connection, and answers out of order.
    """

    wire = "rocketmq"

    __slots__ = (
        "_failed_logins",
        "_promised",
        "calls",
        "context",
        "granted",
        "is_member",
        "meter",
        "packed_peer",
        "pause",
        "route_misses",
        "session",
        "waiting_bytes",
    )  # fmt: skip

    def __init__(self, context: ConnectionContext) -> None:
        super().__init__(context.server, context.store)
        self.context = context
        self.granted: Granted | None = None  # What the request in work was allowed; None: security is off.
        self.meter: Meter | None = None  # How much the client may use; None: no quota was set yet.
        self.pause = ReadPause()
        self.session: Session | None = None  # The session of the last request; None if security is off.
        self.route_misses = RouteMisses()  # Topics that the client asked for and that did not exist.
        self.calls = ClientCalls(self, context.purgatory)  # The requests of the broker to this client.
        # The connection belongs to a group, from which `heartbeats` removes it when it is closed.
        self.is_member = False
        self.waiting_bytes = 0  # Bytes of the client's requests in background queues.
        self._failed_logins = FailedLogins(self, 0 if context.gate is None else context.gate.failed_login_delay_ms)
        self.packed_peer = NO_HOST  # The packed address of the client, the born host of its messages.
        # By the level of their promises: answers that wait for the next write, for the next fsync, or for the object
        # store, to which the list is extended on first use.
        self._promised: list[Promised] = [deque(), deque()]

    def connection_made(self, transport: "asyncio.BaseTransport") -> None:
        super().connection_made(transport)
        if self.closed:
            return
        if self.peer[0]:
            self.packed_peer = pack_host(*self.peer)
        # A certificate of the client is a login.
        if self.context.gate is not None and (self.tls is None or not self.tls.principal):
            self.await_login(self.context.first_request_bytes_max)

    def connection_lost(self, error: Exception | None) -> None:
        self.calls.give_up()
        admission = self.context.admission
        for waiting in self._promised:
            for _, _, kind, *_ in waiting:
                admission.waiting -= 1
                admission.in_work[kind] -= 1
            waiting.clear()
        super().connection_lost(error)

    # -- Requests

    def received(self, frame: memoryview) -> None:
        command = remoting.decode(frame)
        if command.flag & FLAG_RESPONSE:
            self.calls.take_answer(command)
        else:
            command.received_mono_ms = self.server.turn_mono_ms
            if self.context.gate is None or self._is_identified(self.context.gate, command):
                self.take(command)

    def _is_identified(self, gate: Gate, command: RemotingCommand) -> bool:
        """Whether the request proves who has sent it; if not, it is refused."""
        try:
            gate.authenticator.session_of(self, command)
        except WrongSignature as error:
            self._failed_logins.refuse(command, error)
        except RequestRefused as error:
            self.reply(command, self.refusal(command, error))
        else:
            return True
        return False

    def received_all(self) -> None:
        if self.context.halves.gathered:
            append_gathered(self.context.halves, self.context.metrics, self.server.clock.now_ms())
        if self.pause.until_mono_ms:
            self.pause.begin(self)

    def take(self, command: RemotingCommand) -> None:
        """Handle a request, now or in a later turn of the loop."""
        row = self.context.table.get(command.code)
        if row is None:
            remark = f" request type {command.code} not supported"
            self.reply(command, answer(command, ResponseCode.REQUEST_CODE_NOT_SUPPORTED, remark))
        elif row.is_background:
            self.context.background_queues[row.kind].take(self, command)
        else:
            self._go(command, row)

    def go(self, command: RemotingCommand, session: Session | None) -> None:
        """Handle a background request whose turn has come."""
        self.session = session  # Another request of the connection may have come from another user meanwhile.
        self._go(command, self.context.table[command.code])

    def _go(self, command: RemotingCommand, row: Row, *, is_delayed: bool = False) -> None:
        """Handle a request, and send the answer if the handler returned one."""
        self.doing = row.name
        begun_s = self.server.watchdog.seconds() if self.context.quotas.has_any else None
        try:
            given = self._handle_delayed(command, row) if is_delayed else self._handle(command, row)
        except Delayed as delayed:
            self._delay(command, row, delayed.until_mono_ms)
            return
        except Exception as error:  # noqa: BLE001 - `refusal` reports it
            given = self.refusal(command, error)
        if begun_s is not None:
            used_ms = (self.server.watchdog.seconds() - begun_s) * 1000
            count_time(self.context.quotas, self, used_ms, self.server.clock.mono_ms())
        if given is None:
            drop_content(command)
        elif not command.flag & FLAG_ONEWAY:
            self.send(given, command, row)

    def _handle(self, command: RemotingCommand, row: Row) -> Answer | None:
        if self.unanswered >= self.bounds.unanswered_max:
            return answer(command, ResponseCode.SYSTEM_BUSY, _BUSY)
        context = self.context
        context.metrics.requests[row.counter] += 1
        if context.halves.gathered and command.code not in GATHERING:
            # The decisions came before this request, so they are in the log before it, too.
            append_gathered(context.halves, context.metrics, self.server.clock.now_ms())
        if row.is_limited and not command.flag & FLAG_ONEWAY:
            context.admission.check(row.kind)
        if context.gate is not None and self.session is not None:
            self.granted = context.gate.admit(self.session, command, row, context.handlers)
        if context.quotas.has_any:
            check_quotas(context.quotas, self, command, row.kind)
        return row.handler(context.handlers, self, command)

    def _delay(self, command: RemotingCommand, row: Row, until_mono_ms: int) -> None:
        """Handle a request later, because its client is ahead of its quota."""
        self.unanswered += 1
        self.server.timed_calls.call_at(until_mono_ms, partial(self._go_delayed, command, row, self.session))
        self.pause.extend(until_mono_ms)

    def _go_delayed(self, command: RemotingCommand, row: Row, session: Session | None) -> None:
        if not self.closed:
            self.session = session  # Another request of the connection may have come from another user meanwhile.
            self.answered()
            self.server.touch()
            self._go(command, row, is_delayed=True)

    def _handle_delayed(self, command: RemotingCommand, row: Row) -> Answer | None:
        context = self.context
        if self.session is not None and context.gate is not None:
            # A right may have been taken away while the request waited, or its topic deleted, so that it needs more.
            self.granted = context.gate.decide_request(self.session, command, row, context.handlers)
        return row.handler(context.handlers, self, command)

    def refusal(self, asked: RemotingCommand, error: Exception) -> Answer:
        """Return the answer to a request that failed; an error that is not ANSWERABLE is reported as a fault."""
        if not isinstance(error, ANSWERABLE):
            row = self.context.table.get(asked.code)
            self.fault(error, row.counter[1] if row is not None else "request")
            error = RequestRefused(ResponseCode.SYSTEM_ERROR, BUG)
        if isinstance(error, PendingQuotaReached):
            pause_refused(self.context.quotas, self, self.server.clock.mono_ms())
        code = code_of(error)
        self.context.metrics.errors["rocketmq", code.name] += 1
        if isinstance(error, IllegalJson):
            peer = endpoint(*self.peer)
            log.warning("request body refused code=%d peer=%s reason=%r", asked.code, peer, str(error)[:300])
        return answer(asked, code, remark_of(error))

    # -- Answers

    def reply(self, asked: RemotingCommand, given: Answer) -> None:
        """Send the answer to a request that waited, unless the request is one-way."""
        if not asked.flag & FLAG_ONEWAY:
            self.send(given, asked, self.context.table.get(asked.code), is_held=True)

    def send(self, answer: Answer, asked: RemotingCommand, row: Row | None, *, is_held: bool = False) -> None:
        """Let the answer go as soon as its promise is kept, whatever else is unanswered.

        `is_held`: the request waited before it was answered. `row` is that of the request; None: its code is unknown.
        The log keeps promises of one kind in the order in which it gave them, so only the first one is awaited.
        """
        promise, context = answer.promise, self.context
        if self.meter is not None and row is not None and row.kind is Kind.PULL:
            count_pulled(self.meter, answer.size, self.server.clock.mono_ms())
        kind, name = (row.kind, row.counter[1]) if row is not None else (Kind.ADMIN, "UNKNOWN")
        metrics = context.metrics
        latency_ms = (metrics.held_rpc_ms if is_held and kind is Kind.PULL else metrics.rpc_ms)[name]
        if promise is None or self.log.kept(promise):
            self.answers.write(answer.buffers)
            latency_ms.add(self.server.clock.mono_ms() - asked.received_mono_ms)
            return
        if promise.level == len(self._promised):
            self._promised.append(deque())
        waiting = self._promised[promise.level]
        waiting.append((promise, answer.buffers, kind, latency_ms, asked.received_mono_ms))
        self.unanswered += 1
        admission = context.admission
        admission.waiting += 1
        admission.in_work[kind] += 1
        if len(waiting) == 1:
            self.log.when(promise, partial(self._kept, waiting))

    def _kept(self, waiting: Promised, error: StoreError | None) -> None:
        if error is not None:
            self.close(f"the log cannot keep what an answer promises: {error}")
            return
        if not waiting:
            return  # The connection was closed.
        safe_end, mono_ms = self.log.safe_end(waiting[0][0].level), self.server.clock.mono_ms()
        admission, in_work = self.context.admission, self.context.admission.in_work
        before, pieces = len(waiting), list[Buffer]()
        while waiting and waiting[0][0].end <= safe_end:
            _, buffers, kind, latency_ms, received_mono_ms = waiting.popleft()
            pieces += buffers
            latency_ms.add(mono_ms - received_mono_ms)
            in_work[kind] -= 1
        self.answers.write(pieces)
        count = before - len(waiting)
        self.unanswered -= count
        admission.waiting -= count
        self.go_on_soon()
        if waiting:
            self.log.when(waiting[0][0], partial(self._kept, waiting))

    def answered(self) -> None:
        """Take one request out of `unanswered`."""
        self.unanswered -= 1
        self.go_on_soon()

    def in_slices(self, asked: RemotingCommand, steps: Steps) -> Answer | None:
        """Take the first step of a long request, and the others in later turns of the loop."""
        try:
            next(steps)
        except StopIteration as done:
            given: Answer = done.value
            return given
        self.context.background_queues[self.context.table[asked.code].kind].continue_request(self, asked, steps)
        return None
