"""Background requests: queues for requests that take long and are not urgent, such as heartbeats and tools' requests.

    request ──┬── the queue is empty, and time is left in this turn's slice ──> handled at once
              ├── waits in the queue; each turn of the loop handles a slice, between other work
              │        longer than `rocketmq.wait_ms` ──> [TIMEOUT_CLEAN_QUEUE]
              └── the queue is full (`admission.py`) ──> [OVERLOAD]

A request that takes longer than a slice is a generator, of which each turn of the loop runs a step
(`continue_request`). Later requests of its kind wait until it is complete, so at most one answer of a kind is being
built at a time.

A flood of such requests therefore takes SLICE_MS of each turn from other work, or the time of one request if that is
longer; an otherwise idle broker does nothing else. Requests of one kind are handled in order. Times are monotonic.
"""

from collections import deque
from collections.abc import Generator
from typing import Final, NamedTuple, Protocol, cast

from duolog.bridge.clock import Clock
from duolog.bridge.net.answers import Answer
from duolog.bridge.net.server import Server
from duolog.bridge.rocketmq.requests.admission import (
    Admission,
    Busy,
    Kind,
    waited_too_long,
)
from duolog.bridge.security.session import Session
from duolog.protocol.rocketmq.remoting import RemotingCommand

BACKGROUND_KINDS: Final = (Kind.CLIENT, Kind.ADMIN)
SLICE_MS: Final = 2
GIVEN_UP_AT_ONCE: Final = 256  # Requests that waited too long, and are refused in one turn.
BYTES_MAX: Final = 64 << 20  # Bytes of the waiting requests of one kind.
CONNECTION_BYTES_MAX: Final = 32 << 20  # Bytes of the waiting requests of one connection, of all kinds.


class BackgroundConnection(Protocol):
    """What background queues use of a `RocketMQConnection`."""

    unanswered: int
    waiting_bytes: int  # The size of its requests that wait in background queues.

    @property
    def closed(self) -> bool: ...

    @property
    def server(self) -> Server: ...

    session: Session | None  # Who has sent the last request.

    def go(self, command: RemotingCommand, session: Session | None) -> None: ...

    def reply(self, asked: RemotingCommand, given: Answer) -> None: ...

    def refusal(self, asked: RemotingCommand, error: Exception) -> Answer: ...

    def answered(self) -> None: ...

    def broken(self, error: Exception, kind: str) -> None: ...


class _Waiting(NamedTuple):
    connection: BackgroundConnection
    command: RemotingCommand
    session: Session | None
    size: int
    since_mono_ms: int


Steps = Generator[None, None, Answer]
"""A request in progress: yields after a few milliseconds of work, and returns the answer."""


class _InProgress(NamedTuple):
    connection: BackgroundConnection
    command: RemotingCommand
    steps: Steps


class BackgroundQueue:
    """The queue of one kind of requests."""

    def __init__(
        self, kind: Kind, admission: Admission, clock: Clock, wait_ms: int, bytes_max: int = BYTES_MAX
    ) -> None:
        self._kind, self._admission, self._clock = kind, admission, clock
        self._wait_ms, self._bytes_max = wait_ms, bytes_max
        self._queue: deque[_Waiting] = deque()
        self._bytes = 0  # Invariant: the sum of the requests' sizes.
        self._spent_ms = 0  # The time used in this turn.
        self._is_scheduled = False
        self._in_progress: _InProgress | None = None  # The request in progress, for which all others wait.

    def __len__(self) -> int:
        return len(self._queue)

    def take(self, connection: BackgroundConnection, command: RemotingCommand) -> None:
        """Handle the request now or later, or refuse it."""
        if not self._queue and self._spent_ms < SLICE_MS and self._in_progress is None:
            self._run(connection, command, connection.session)
            return
        try:
            self._put(connection, command)
        except Busy as busy:
            connection.reply(command, connection.refusal(command, busy))

    def continue_request(self, connection: BackgroundConnection, command: RemotingCommand, steps: Steps) -> None:
        """Run the remaining steps of a request in progress, one in each turn of the loop."""
        assert self._in_progress is None, "a request that had its turn"
        connection.unanswered += 1
        self._admission.in_work[self._kind] += 1
        self._in_progress = _InProgress(connection, command, steps)
        if not self._is_scheduled:
            self._schedule(connection)

    def _run_step(self, in_progress: _InProgress) -> None:
        connection = in_progress.connection
        connection.server.touch()
        try:
            self._step(in_progress)
        except Exception as error:  # noqa: BLE001 - other requests of this kind must be handled
            connection.broken(error, "background request")
        if (self._in_progress is not None or self._queue) and not self._is_scheduled:
            self._schedule(connection)

    def _step(self, in_progress: _InProgress) -> None:
        connection, command, steps = in_progress
        given: Answer | None = None
        try:
            if not connection.closed:
                next(steps)
                return
            steps.close()
        except StopIteration as done:
            given = done.value
        except Exception as error:  # noqa: BLE001 - `refusal` reports faults
            given = connection.refusal(command, error)
        self._in_progress = None
        self._admission.in_work[self._kind] -= 1
        connection.answered()
        if given is not None:
            connection.reply(command, given)

    def _put(self, connection: BackgroundConnection, command: RemotingCommand) -> None:
        size = _size_of(command)
        if self._bytes + size > self._bytes_max or connection.waiting_bytes + size > CONNECTION_BYTES_MAX:
            raise Busy(f"[OVERLOAD]system busy, {self._bytes} bytes of requests wait")
        self._admission.begin(self._kind)
        self._bytes += size
        connection.waiting_bytes += size
        connection.unanswered += 1
        # A copy, because the body is a view of everything that was read with it.
        command.body = memoryview(bytes(cast(memoryview, command.body)))
        self._queue.append(_Waiting(connection, command, connection.session, size, self._clock.mono_ms()))

    def _run(self, connection: BackgroundConnection, command: RemotingCommand, session: Session | None) -> None:
        clock = self._clock
        begun_mono_ms = clock.mono_ms()
        connection.go(command, session)
        self._spent_ms += clock.mono_ms() - begun_mono_ms
        if self._spent_ms and not self._is_scheduled:
            self._schedule(connection)

    def _schedule(self, connection: BackgroundConnection) -> None:
        self._is_scheduled = True
        connection.server.soon(f"rocketmq background {self._kind.name}", self._turn)

    def _turn(self) -> None:
        """Handle waiting requests for one slice; called after other work had its turn."""
        self._is_scheduled, self._spent_ms, given_up = False, 0, 0
        if self._in_progress is not None:
            self._run_step(self._in_progress)
            return
        while self._queue and self._spent_ms < SLICE_MS and given_up < GIVEN_UP_AT_ONCE and self._in_progress is None:
            connection, command, session, size, since_mono_ms = self._queue.popleft()
            connection.server.touch()
            self._admission.in_work[self._kind] -= 1
            self._bytes -= size
            connection.waiting_bytes -= size
            connection.answered()
            waited_ms = self._clock.mono_ms() - since_mono_ms
            try:
                if connection.closed:
                    given_up += 1
                elif waited_ms > self._wait_ms:
                    given_up += 1
                    refusal = waited_too_long(waited_ms, len(self._queue))
                    connection.reply(command, connection.refusal(command, refusal))
                else:
                    self._run(connection, command, session)
            except Exception as error:  # noqa: BLE001 - other requests of this kind must be handled
                connection.broken(error, "background request")
        if self._queue and not self._is_scheduled:
            self._schedule(self._queue[0].connection)


def _size_of(command: RemotingCommand) -> int:
    """Return the bytes that a waiting request keeps in memory: header fields, remark and body."""
    fields = sum(len(name) + len(value) for name, value in command.ext.items())
    return fields + len(command.remark or "") + len(command.language) + len(command.body)
