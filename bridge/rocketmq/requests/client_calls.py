"""What the broker asks of a client, over the client's own connection: waits for the answer, for a time.

    connection.call(code, ext, body, done) ──> done(answer), once; done(None): no answer came, or it will not come

A client numbers its requests by itself, so ours have numbers of their own. Not more than CALLS_MAX wait for one client.
"""

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Final

from duolog.bridge.net.purgatory import Held
from duolog.protocol.rocketmq.remoting import RemotingCommand

if TYPE_CHECKING:
    from duolog.bridge.rocketmq.requests.connection import RocketMQConnection

CALLS_MAX: Final = 64  # As many as Java's broker has on their way to one client.
CALL_MS: Final = 10_000

Done = Callable[[RemotingCommand | None], None]


class Call:
    """One question on its way; it waits in the purgatory, watching no queue."""

    __slots__ = ("_calls", "_contain", "_done", "_opaque", "held")

    def __init__(self, calls: dict[int, "Call"], opaque: int, done: Done, contain: Callable[[Exception], None]) -> None:
        self._calls, self._opaque, self._done, self._contain = calls, opaque, done, contain
        self.held: Held | None = None

    def finish(self, answer: RemotingCommand | None) -> None:
        """Tell who asked; the caller sees to it that the purgatory does not come after."""
        del self._calls[self._opaque]
        try:
            self._done(answer)
        except Exception as error:  # noqa: BLE001 - contained; the client that answered is not to suffer for it
            self._contain(error)

    def try_complete(self) -> bool:
        return False  # Only its answer ends it.

    def expire(self) -> None:
        self.finish(None)

    def deleted(self) -> None:
        raise AssertionError("it watches no queue")

    def fail(self, error: Exception) -> None:
        self._contain(error)


def ask(connection: "RocketMQConnection", opaque: int, done: Done, timeout_ms: int) -> bool:
    """Begin to wait for the answer; False: too many wait already, and `done` was told so."""
    calls = connection.calls
    call = Call(calls, opaque, done, partial(connection.fault, kind="answer of a client"))
    held = None
    if len(calls) < CALLS_MAX and not connection.closed:
        held = connection.context.purgatory.hold(call, (), connection.server.clock.mono_ms() + timeout_ms, connection)
    if held is None:
        done(None)
        return False
    call.held = held
    calls[opaque] = call
    return True


def take_answer(connection: "RocketMQConnection", answer: RemotingCommand) -> None:
    """Give an answer to who waits for it; one that comes too late is nobody's."""
    call = connection.calls.get(answer.opaque)
    if call is not None and call.held is not None:
        connection.context.purgatory.release(call.held)
        call.finish(answer)


def give_up(connection: "RocketMQConnection") -> None:
    """Tell all who wait: the connection has gone."""
    for call in list(connection.calls.values()):
        if call.held is not None:
            connection.context.purgatory.release(call.held)
        call.finish(None)
