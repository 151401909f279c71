"""RocketMQ requests that wait: how the driver of `bridge/net/waiting.py` counts and answers them.

The connection counts a request that waits as unanswered until the answer is sent. The admission limit of the request's
kind counts its reads; a read beyond the limit is refused with Busy.
"""

from collections.abc import Callable, Generator
from typing import Any, TypeVar

from duolog.bridge.data.reading.later import Later
from duolog.bridge.net.answers import Answer
from duolog.bridge.net.waiting import RequestDriver, UntilRead, Wait, WaitingSteps
from duolog.bridge.rocketmq.requests.connection import RocketMQConnection
from duolog.bridge.rocketmq.requests.request_row import Row
from duolog.protocol.rocketmq.remoting import RemotingCommand

T = TypeVar("T")


def answer_in_steps(
    connection: RocketMQConnection,
    command: RemotingCommand,
    steps: WaitingSteps[Answer],
    *,
    outlives_connection: bool = False,
) -> Answer | None:
    """Run the steps of a request; return the answer, or None if it is sent later. Raises what the steps raise."""
    try:
        wait = next(steps)
    except StopIteration as end:
        given: Answer = end.value
        return given
    return _RocketMQDriver(connection, command, steps, outlives_connection).begin(wait)


def answer_when(
    connection: RocketMQConnection,
    command: RemotingCommand,
    found: T | Later[T],
    make: Callable[[T], Answer],
    *,
    outlives_connection: bool = False,
) -> Answer | None:
    """Return the answer that `make` makes of `found`, or None if a reader thread must read first. Raises Busy."""
    if not isinstance(found, Later):
        return make(found)
    steps = _make_when_read(found, make)
    return answer_in_steps(connection, command, steps, outlives_connection=outlives_connection)


def _make_when_read(later: Later[T], make: Callable[[T], Answer]) -> WaitingSteps[Answer]:
    return make((yield UntilRead(later.start)))


def read(found: T | Later[T]) -> Generator[Wait, Any, T]:
    """Return what was found, after waiting for a reader thread if necessary; used with `yield from`."""
    if not isinstance(found, Later):
        return found
    records: T = yield UntilRead(found.start)
    return records


class _RocketMQDriver(RequestDriver[RocketMQConnection, Answer]):
    """Drives the steps of one request.

    The class has more than 20 methods because it extends RequestDriver.
    """

    __slots__ = ("_command", "_granted", "_is_unanswered")

    def __init__(
        self,
        connection: RocketMQConnection,
        command: RemotingCommand,
        steps: WaitingSteps[Answer],
        outlives_connection: bool,
    ) -> None:
        super().__init__(connection, connection.context.purgatory, steps, outlives_connection)
        self._command = command
        self._granted = connection.granted
        self._is_unanswered = False  # The connection counts the request in `unanswered`.

    def _row(self) -> Row:
        return self.connection.context.table[self._command.code]

    def _begin_read(self) -> None:
        self.connection.context.admission.begin_read(self._row().kind)

    def _end_read(self) -> None:
        self.connection.context.admission.end_read(self._row().kind)

    def _keep_waiting(self, kept_bytes: int) -> None:
        if not self._is_unanswered:
            self._is_unanswered = True
            self.connection.unanswered += 1

    def _go_on_in_next_turn(self) -> None:
        self.connection.server.soon(self._row().name, self._take_turn)

    def _take_turn(self) -> None:
        self.connection.server.touch()  # The steps may append, and the end of the turn writes the log.
        self._go_on(None)

    def _check(self) -> None:
        if self._granted is not None:
            self._granted.check()

    def _finish(self, result: Answer) -> None:
        self.connection.answered()
        self.connection.reply(self._command, result)

    def _fail(self, error: Exception) -> None:
        self._finish(self.connection.refusal(self._command, error))
