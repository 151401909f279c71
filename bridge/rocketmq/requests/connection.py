"""A RocketMQ client's connection: command, row of the table, handler, answer as soon as it is ready.

    malformed frame or header         closed, as Java's decoder does
    unknown code                      REQUEST_CODE_NOT_SUPPORTED
    too many requests in work         SYSTEM_BUSY; `rocketmq.unanswered_max`, `admission.py`
    handler gives an Answer           it leaves when its promise is kept; answers are matched by `opaque`, in no order
    handler gives None                somebody answers later: a held pull, a read that waits for the disk
    handler raises what is ANSWERABLE its code and text
    handler raises anything else      a fault: SYSTEM_ERROR, now or later
    one-way request                   never answered

A name server is asked over the same connection: its codes mean nothing else to a broker, so each port serves both.
"""

import logging
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Final, TypeVar

from duolog.bridge.data.reading import Later
from duolog.bridge.monitoring.metrics import Metrics
from duolog.bridge.net.addresses import endpoint
from duolog.bridge.net.answers import Answer
from duolog.bridge.net.connection import BUG, Connection, Log
from duolog.bridge.net.purgatory import Held, Purgatory, Waiting
from duolog.bridge.net.server import Server
from duolog.bridge.rocketmq.namesrv.expected_topics import RouteMisses
from duolog.bridge.rocketmq.producing.gathered_decisions import GATHERING, append_gathered
from duolog.bridge.rocketmq.requests import client_calls
from duolog.bridge.rocketmq.requests.admission import Admission, Kind
from duolog.bridge.rocketmq.requests.background_requests import BackgroundQueue, Steps
from duolog.bridge.rocketmq.requests.client_calls import CALL_MS, Call, Done
from duolog.bridge.rocketmq.requests.errors import (
    ANSWERABLE,
    RequestRefused,
    code_of,
    remark_of,
)
from duolog.bridge.rocketmq.requests.request_row import Row
from duolog.bridge.rocketmq.requests.responses import answer
from duolog.bridge.transactions.half_messages import HalfMessageLog
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


T = TypeVar("T")

Promised = deque[tuple[Promise, Sequence[Buffer], Kind]]

log = logging.getLogger("bridge")

_BUSY: Final = "[OVERLOAD]system busy, start flow control for a while"
_OPAQUE_MASK: Final = 0x7FFFFFFF


@dataclass(frozen=True, slots=True)
class ConnectionContext:
    """What a connection of the RocketMQ port, or of the name server's, uses."""

    server: Server
    store: Log
    purgatory: Purgatory
    metrics: Metrics
    admission: Admission
    background_queues: Mapping[Kind, BackgroundQueue]
    halves: HalfMessageLog
    table: Mapping[int, Row]
    inflate_bytes_max: int  # `convert.inflate_bytes_max`, for hooks.
    handlers: object  # The `RocketMQContext` that the table's handlers get.


class RocketMQConnection(Connection):
    """One client of the RocketMQ port, or of the name server's.

    `unanswered` counts pulls that are held and answers that wait for the log.
    """

    wire = "rocketmq"

    __slots__ = (
        "_durable",
        "_next_opaque",
        "_written",
        "calls",
        "context",
        "held",
        "is_member",
        "packed_peer",
        "route_misses",
        "waiting_bytes",
    )  # fmt: skip

    def __init__(self, context: ConnectionContext) -> None:
        super().__init__(context.server, context.store)
        self.context = context
        self.route_misses = RouteMisses()  # Of the name server.
        self.calls: dict[int, Call] = {}  # Our own requests that wait for an answer, by opaque.
        self.is_member = False  # It is in a group; its end will be told to `broker.rocketmq_members`.
        self.held: set[Held] = set()  # Its pulls in the purgatory.
        self.waiting_bytes = 0  # Of its requests that wait in lanes.
        self.packed_peer = NO_HOST  # As the born host of its messages.
        self._durable: Promised = deque()  # Answers that wait for the next fsync,
        self._written: Promised = deque()  # and for the next write.
        self._next_opaque = 0  # Of our own requests; the client numbers its requests by itself.

    def connection_made(self, transport: "asyncio.BaseTransport") -> None:
        super().connection_made(transport)
        if not self.closed and self.peer[0]:
            self.packed_peer = pack_host(*self.peer)

    def connection_lost(self, error: Exception | None) -> None:
        for held in self.held:
            self.context.purgatory.release(held)
        self.held.clear()
        client_calls.give_up(self)
        admission = self.context.admission
        for waiting in (self._durable, self._written):
            for _, _, kind in waiting:
                admission.waiting -= 1
                admission.in_work[kind] -= 1
            waiting.clear()
        super().connection_lost(error)

    # -- Requests

    def received(self, frame: memoryview) -> None:
        command = remoting.decode(frame)
        if command.flag & FLAG_RESPONSE:
            client_calls.take_answer(self, command)
        else:
            self.take(command)

    def received_all(self) -> None:
        if self.context.halves.gathered:
            self._append_gathered()

    def take(self, command: RemotingCommand) -> None:
        """Handle a request, now or when its turn comes."""
        row = self.context.table.get(command.code)
        if row is None:
            remark = f" request type {command.code} not supported"
            self.reply(command, answer(command, ResponseCode.REQUEST_CODE_NOT_SUPPORTED, remark))
        elif row.is_background:
            self.context.background_queues[row.kind].take(self, command)
        else:
            self._go(command, row)

    def go(self, command: RemotingCommand) -> None:
        """Handle a request whose turn has come."""
        self._go(command, self.context.table[command.code])

    def _go(self, command: RemotingCommand, row: Row) -> None:
        """Handle a request, and let the answer go, or let somebody answer later."""
        self.doing = row.name
        try:
            given = self._handle(command, row)
        except Exception as error:  # noqa: BLE001 - `refusal` reports it
            given = self.refusal(command, error)
        if given is None:
            # Who answers later needs none of these, and any of them may be 16 MiB.
            command.ext, command.body, command.remark, command.language = {}, b"", None, ""
        elif not command.flag & FLAG_ONEWAY:
            self.send(given, row.kind)

    def _handle(self, command: RemotingCommand, row: Row) -> Answer | None:
        if self.unanswered >= self.bounds.unanswered_max:
            return answer(command, ResponseCode.SYSTEM_BUSY, _BUSY)
        context = self.context
        context.metrics.requests[row.counter] += 1
        if context.halves.gathered and command.code not in GATHERING:
            self._append_gathered()  # The decisions came before this request, so they are in the log before it, too.
        if row.is_limited and not command.flag & FLAG_ONEWAY:
            context.admission.check(row.kind)
        return row.handler(context.handlers, self, command)

    def _append_gathered(self) -> None:
        append_gathered(self.context.halves, self.context.metrics, self.server.clock.now_ms())

    def refusal(self, asked: RemotingCommand, error: Exception) -> Answer:
        """Give the answer to a request that failed; an error that is not ANSWERABLE is reported as a fault."""
        if not isinstance(error, ANSWERABLE):
            row = self.context.table.get(asked.code)
            self.fault(error, row.counter[1] if row is not None else "request")
            error = RequestRefused(ResponseCode.SYSTEM_ERROR, BUG)
        code = code_of(error)
        self.context.metrics.errors["rocketmq", code.name] += 1
        if isinstance(error, IllegalJson):
            peer = endpoint(*self.peer)
            log.warning("request body refused code=%d peer=%s reason=%r", asked.code, peer, str(error)[:300])
        return answer(asked, code, remark_of(error))

    # -- Answers

    def reply(self, asked: RemotingCommand, given: Answer) -> None:
        """Send the answer to a request that waited, if anybody wants one."""
        if not asked.flag & FLAG_ONEWAY:
            row = self.context.table.get(asked.code)
            self.send(given, row.kind if row is not None else Kind.ADMIN)

    def send(self, answer: Answer, kind: Kind = Kind.ADMIN) -> None:
        """Let the answer go as soon as its promise is kept, whatever else is unanswered.

        The log keeps promises of one kind in the order in which it gave them, so only the first is waited for.
        """
        promise = answer.promise
        if promise is None or self.log.kept(promise):
            self.answers.write(answer.buffers)
            return
        waiting = self._durable if promise.durable else self._written
        waiting.append((promise, answer.buffers, kind))
        self.unanswered += 1
        admission = self.context.admission
        admission.waiting += 1
        admission.in_work[kind] += 1
        if len(waiting) == 1:
            self.log.when(promise, partial(self._kept, waiting))

    def _kept(self, waiting: Promised, error: StoreError | None) -> None:
        if error is not None:
            self.close(f"the log cannot keep what an answer promises: {error}")
            return
        kept, leave = self.log.kept, self.answers.write
        admission = self.context.admission
        while waiting and kept(waiting[0][0]):
            _, buffers, kind = waiting.popleft()
            leave(buffers)
            self.unanswered -= 1
            admission.waiting -= 1
            admission.in_work[kind] -= 1
        self.go_on_soon()
        if waiting:
            self.log.when(waiting[0][0], partial(self._kept, waiting))

    def answered(self) -> None:
        """Take one request out of `unanswered`."""
        self.unanswered -= 1
        self.go_on_soon()

    def answer_when(self, asked: RemotingCommand, found: "T | Later[T]", make: Callable[[T], Answer]) -> Answer | None:
        """Make the answer of what was found, now or when a reader thread has it; raises Busy."""
        if not isinstance(found, Later):
            return make(found)

        def done(cold: T | StoreError) -> None:
            self.end_read(asked)
            try:
                given = self.refusal(asked, cold) if isinstance(cold, StoreError) else make(cold)
            except Exception as error:  # noqa: BLE001 - `refusal` reports what nobody expected
                given = self.refusal(asked, error)
            self.reply(asked, given)

        self.begin_read(asked)
        found.start(done)
        return None

    def in_slices(self, asked: RemotingCommand, steps: Steps) -> Answer | None:
        """Take the first step of a long request, and the others in later turns of the loop."""
        try:
            next(steps)
        except StopIteration as done:
            given: Answer = done.value
            return given
        self.context.background_queues[self.context.table[asked.code].kind].go_on(self, asked, steps)
        return None

    def begin_read(self, asked: RemotingCommand) -> None:
        """Count a request that begins to wait for a reader thread; raises Busy."""
        self.context.admission.begin_read(self.context.table[asked.code].kind)
        self.unanswered += 1

    def end_read(self, asked: RemotingCommand) -> None:
        """Its thread has looked."""
        self.context.admission.end_read(self.context.table[asked.code].kind)
        self.answered()

    # -- Held requests

    def hold_request(
        self, waiting: Waiting, keys: Iterable[int], deadline_mono_ms: int, *, extra_bytes: int = 0
    ) -> Held | None:
        """Hold a request in the purgatory; None if there is no room for it: then it is to be answered at once."""
        held = self.context.purgatory.hold(waiting, keys, deadline_mono_ms, self, extra_bytes=extra_bytes)
        if held is not None:
            self.held.add(held)
        return held

    def let_go(self, held: Held) -> None:
        """Forget a request that is not held any more; it may still be unanswered."""
        self.held.discard(held)

    # -- Our own requests

    def notify(self, code: int, ext: dict[str, str], body: bytes = b"") -> None:
        """Send the client a one-way request."""
        self.answers.write(remoting.encode(remoting.request(code, self._new_opaque(), ext, body, oneway=True)))

    def call(
        self, code: int, ext: dict[str, str], body: Buffer | Sequence[Buffer], done: Done, timeout_ms: int = CALL_MS
    ) -> None:
        """Send the client a request; `done` gets the answer, None if none comes in time or the client goes."""
        opaque = self._new_opaque()
        if client_calls.ask(self, opaque, done, timeout_ms):
            self.answers.write(remoting.encode(remoting.request(code, opaque, ext, body)))

    def _new_opaque(self) -> int:
        self._next_opaque = self._next_opaque + 1 & _OPAQUE_MASK
        return self._next_opaque
