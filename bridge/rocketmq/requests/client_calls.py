"""Requests that the broker sends to a client, over the client's own connection.

    calls.notify(code, ext, body)       a one-way request
    calls.ask(code, ext, body, done)    done(answer), called once; done(None) if no answer came in time, or none will

A client numbers its requests itself, so the broker's requests have numbers of their own. At most CALLS_MAX requests to
one client wait for an answer.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

from duolog.bridge.net.connection import Connection
from duolog.bridge.net.purgatory import Held, Purgatory
from duolog.protocol.rocketmq import remoting
from duolog.protocol.rocketmq.remoting import RemotingCommand
from duolog.store.entry import Buffer

CALLS_MAX: Final = 64  # Apache RocketMQ's broker has the same limit for unanswered requests to one client.
CALL_MS: Final = 10_000
_OPAQUE_MASK: Final = 0x7FFFFFFF

Done = Callable[[RemotingCommand | None], None]


class _Call:
    """One request that waits for the client's answer. It waits in the purgatory and watches no queue."""

    __slots__ = ("_calls", "_contain", "_done", "_opaque", "held")

    def __init__(
        self, calls: dict[int, "_Call"], opaque: int, done: Done, contain: Callable[[Exception], None]
    ) -> None:
        self._calls, self._opaque, self._done, self._contain = calls, opaque, done, contain
        self.held: Held | None = None

    def finish(self, answer: RemotingCommand | None) -> None:
        """Call `done`; the caller must have released the request from the purgatory."""
        del self._calls[self._opaque]
        try:
            self._done(answer)
        except Exception as error:  # noqa: BLE001 - contained: the answer's sender is not at fault
            self._contain(error)

    def try_complete(self) -> bool:
        # Only the client's answer completes the request.
        return False

    def expire(self) -> None:
        self.finish(None)

    def deleted(self) -> None:
        raise AssertionError("a call watches no queue")

    def fail(self, error: Exception) -> None:
        self._contain(error)


class ClientCalls:
    """The broker's requests to the client of one connection."""

    __slots__ = ("_connection", "_next_opaque", "_purgatory", "_waiting")

    def __init__(self, connection: Connection, purgatory: Purgatory) -> None:
        self._connection, self._purgatory = connection, purgatory
        self._waiting: dict[int, _Call] = {}  # By opaque.
        self._next_opaque = 0

    def __len__(self) -> int:
        """Return the number of requests that wait for an answer."""
        return len(self._waiting)

    def notify(self, code: int, ext: dict[str, str], body: bytes = b"") -> None:
        """Send a one-way request."""
        self._send(remoting.request(code, self._new_opaque(), ext, body, oneway=True))

    def ask(
        self, code: int, ext: dict[str, str], body: Buffer | Sequence[Buffer], done: Done, timeout_ms: int = CALL_MS
    ) -> None:
        """Send a request. If CALLS_MAX requests wait or the connection is closed, only `done(None)` is called."""
        connection, opaque = self._connection, self._new_opaque()
        call = _Call(self._waiting, opaque, done, partial(connection.fault, kind="answer of a client"))
        held = None
        if len(self._waiting) < CALLS_MAX and not connection.closed:
            deadline_mono_ms = connection.server.clock.mono_ms() + timeout_ms
            held = self._purgatory.hold(call, (), deadline_mono_ms, connection)
        if held is None:
            done(None)
            return
        call.held = held
        self._waiting[opaque] = call
        self._send(remoting.request(code, opaque, ext, body))

    def take_answer(self, answer: RemotingCommand) -> None:
        """Complete the request that the client answers; an answer that comes too late is ignored."""
        call = self._waiting.get(answer.opaque)
        if call is not None and call.held is not None:
            self._purgatory.release(call.held)
            call.finish(answer)

    def give_up(self) -> None:
        """Complete all requests without an answer, because the connection is closed."""
        for call in list(self._waiting.values()):
            if call.held is not None:
                self._purgatory.release(call.held)
            call.finish(None)

    def _send(self, command: RemotingCommand) -> None:
        self._connection.answers.write(remoting.encode(command))

    def _new_opaque(self) -> int:
        self._next_opaque = self._next_opaque + 1 & _OPAQUE_MASK
        return self._next_opaque
