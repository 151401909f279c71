"""A RocketMQ client's connection: command, row of the table, handler, answer as soon as it is ready.

    malformed frame or header         closed, as Java's decoder does
    unknown code                      REQUEST_CODE_NOT_SUPPORTED
    too many requests in work         SYSTEM_BUSY; `rocketmq.unanswered_max`, `flow.py`
    handler gives an Answer           it leaves when its promise is kept; answers are matched by `opaque`, in no order
    handler gives None                somebody answers later: a held pull, a read that waits for the disk
    handler raises what is ANSWERABLE its code and text
    handler raises anything else      a fault: SYSTEM_ERROR, now or later
    one-way request                   never answered

A name server is asked over the same connection: its codes mean nothing else to a broker, so each port serves both.
"""

import logging
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Final, TypeVar

from duolog.bridge.data.reading import Later
from duolog.bridge.net.addresses import endpoint
from duolog.bridge.net.answers import Answer
from duolog.bridge.net.connection import BUG, Connection
from duolog.bridge.net.purgatory import Held, Waiting
from duolog.bridge.rocketmq import TABLE, Row
from duolog.bridge.rocketmq.namesrv.expected_topics import Asked
from duolog.bridge.rocketmq.producing.half_messages import GATHERING, settle
from duolog.bridge.rocketmq.requests import client_calls
from duolog.bridge.rocketmq.requests.admission import Kind
from duolog.bridge.rocketmq.requests.background_requests import Steps
from duolog.bridge.rocketmq.requests.client_calls import CALL_MS, Call, Done
from duolog.bridge.rocketmq.requests.errors import (
    ANSWERABLE,
    Refused,
    code_of,
    remark_of,
)
from duolog.bridge.rocketmq.requests.responses import answer
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

    from duolog.bridge.broker import Broker

T = TypeVar("T")

Promised = deque[tuple[Promise, Sequence[Buffer], Kind]]

log = logging.getLogger("bridge")

_BUSY: Final = "[OVERLOAD]system busy, start flow control for a while"
_OPAQUE_MASK: Final = 0x7FFFFFFF


class RocketMQConnection(Connection):
    """One client of the RocketMQ port, or of the name server's.

    `unanswered` counts pulls that are held and answers that wait for the log.
    """

    wire = "rocketmq"

    __slots__ = (
        "_durable", "_next_opaque", "_written", "asked", "broker", "calls", "held", "is_member", "packed_peer",
        "waiting_bytes",
    )  # fmt: skip

    def __init__(self, broker: "Broker") -> None:
        super().__init__(broker.server, broker.store)
        self.broker = broker
        self.asked = Asked()  # Of the name server.
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
            self.broker.purgatory.release(held)
        self.held.clear()
        client_calls.give_up(self)
        flow = self.broker.rocketmq_admission
        for waiting in (self._durable, self._written):
            for _, _, kind in waiting:
                flow.waiting -= 1
                flow.in_work[kind] -= 1
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
        if self.broker.halves.gathered:
            settle(self.broker)

    def take(self, command: RemotingCommand) -> None:
        """Handle a request, now or when its turn comes."""
        row = TABLE.get(command.code)
        if row is None:
            remark = f" request type {command.code} not supported"
            self.reply(command, answer(command, ResponseCode.REQUEST_CODE_NOT_SUPPORTED, remark))
        elif row.has_lane:
            self.broker.rocketmq_background_queues[row.kind].take(self, command)
        else:
            self._go(command, row)

    def go(self, command: RemotingCommand) -> None:
        """Handle a request whose turn has come."""
        self._go(command, TABLE[command.code])

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
        broker = self.broker
        broker.metrics.requests[row.counter] += 1
        if broker.halves.gathered and command.code not in GATHERING:
            settle(broker)  # What came first counts first.
        if row.is_limited and not command.flag & FLAG_ONEWAY:
            broker.rocketmq_admission.check(row.kind)
        return row.handler(broker, self, command)

    def refusal(self, asked: RemotingCommand, error: Exception) -> Answer:
        """Give the answer to a request that failed; an error that is not ANSWERABLE is reported as a fault."""
        if not isinstance(error, ANSWERABLE):
            row = TABLE.get(asked.code)
            self.fault(error, row.counter[1] if row is not None else "request")
            error = Refused(ResponseCode.SYSTEM_ERROR, BUG)
        code = code_of(error)
        self.broker.metrics.errors["rocketmq", code.name] += 1
        if isinstance(error, IllegalJson):
            peer = endpoint(*self.peer)
            log.warning("request body refused code=%d peer=%s reason=%r", asked.code, peer, str(error)[:300])
        return answer(asked, code, remark_of(error))

    # -- Answers

    def reply(self, asked: RemotingCommand, given: Answer) -> None:
        """Send the answer to a request that waited, if anybody wants one."""
        if not asked.flag & FLAG_ONEWAY:
            row = TABLE.get(asked.code)
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
        flow = self.broker.rocketmq_admission
        flow.waiting += 1
        flow.in_work[kind] += 1
        if len(waiting) == 1:
            self.log.when(promise, partial(self._kept, waiting))

    def _kept(self, waiting: Promised, error: StoreError | None) -> None:
        if error is not None:
            self.close(f"the log cannot keep what an answer promises: {error}")
            return
        kept, leave = self.log.kept, self.answers.write
        flow = self.broker.rocketmq_admission
        while waiting and kept(waiting[0][0]):
            _, buffers, kind = waiting.popleft()
            leave(buffers)
            self.unanswered -= 1
            flow.waiting -= 1
            flow.in_work[kind] -= 1
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
        self.broker.rocketmq_background_queues[TABLE[asked.code].kind].go_on(self, asked, steps)
        return None

    def begin_read(self, asked: RemotingCommand) -> None:
        """Count a request that begins to wait for a reader thread; raises Busy."""
        self.broker.rocketmq_admission.begin_read(TABLE[asked.code].kind)
        self.unanswered += 1

    def end_read(self, asked: RemotingCommand) -> None:
        """Its thread has looked."""
        self.broker.rocketmq_admission.end_read(TABLE[asked.code].kind)
        self.answered()

    # -- Held requests

    def hold_request(
        self, waiting: Waiting, keys: Iterable[int], deadline_mono_ms: int, *, extra_bytes: int = 0
    ) -> Held | None:
        """Hold a request in the purgatory; None if there is no room for it: then it is to be answered at once."""
        held = self.broker.purgatory.hold(waiting, keys, deadline_mono_ms, self, extra_bytes=extra_bytes)
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
