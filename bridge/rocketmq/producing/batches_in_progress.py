"""Batches in progress: each turn of the loop stores one slice of one large batch (`send_batch.py`).

A batch that ends within its first slice is not queued here. The bodies of all batches in progress take at most
BYTES_MAX.
"""

from collections import deque
from collections.abc import Generator
from typing import Final, NamedTuple

from duolog.bridge.net.answers import Answer
from duolog.bridge.net.connection import TURN_MS
from duolog.bridge.rocketmq.requests.admission import Admission, Busy, Kind
from duolog.bridge.rocketmq.requests.connection import RocketMQConnection
from duolog.protocol.rocketmq.remoting import RemotingCommand

STEPS_MAX: Final = 8  # Steps in one slice, even if time is left.
BYTES_MAX: Final = 64 << 20  # The bytes of the bodies of all batches in progress.

Sending = Generator[bool, None, Answer]
"""A batch in progress; when it yields True, the next step needs a slice of its own."""


class _Job(NamedTuple):
    connection: RocketMQConnection
    command: RemotingCommand
    steps: Sending
    size: int


class BatchesInProgress:
    """The batches that need more than their first slice. Each turn of the loop runs one slice of one batch."""

    def __init__(self, admission: Admission, bytes_max: int = BYTES_MAX) -> None:
        self._admission = admission
        self._bytes_max = bytes_max
        self._jobs: deque[_Job] = deque()
        self._bytes = 0  # Invariant: the sum of the batches' sizes.

    def __len__(self) -> int:
        return len(self._jobs)

    def begin(self, connection: RocketMQConnection, command: RemotingCommand, steps: Sending) -> Answer | None:
        """Run the first slice of a request that was just received, unless others wait. Raises what the batch raises."""
        size = len(command.body)
        if self._bytes + size > self._bytes_max:
            steps.close()
            raise Busy(f"[OVERLOAD]system busy, batches of {self._bytes} bytes are being stored")
        if not self._jobs:
            done = _slice(steps, connection)
            if done is not None:
                return done
        self._jobs.append(_Job(connection, command, steps, size))
        self._bytes += size
        self._admission.in_work[Kind.SEND] += 1
        connection.unanswered += 1
        connection.is_busy = True
        connection.hold()
        if len(self._jobs) == 1:
            self._schedule()
        return None

    def _schedule(self) -> None:
        connection = self._jobs[0].connection
        connection.server.soon("rocketmq SEND_BATCH_MESSAGE", self._turn)

    def _turn(self) -> None:
        """Run a slice of the first batch, which goes to the end of the queue if it is not complete."""
        job = self._jobs.popleft()
        job.connection.server.touch()
        try:
            if self._run_slice(job):
                self._end(job)
            else:
                self._jobs.append(job)
        finally:
            if self._jobs:
                self._schedule()

    def _run_slice(self, job: _Job) -> bool:
        """Run one slice; return True if the batch is answered or its connection is closed."""
        connection, command, steps, _ = job
        if connection.closed:
            steps.close()
            return True
        try:
            given = _slice(steps, connection)
            if given is None:
                return False
        except Exception as error:  # noqa: BLE001 - `refusal` reports faults
            given = connection.refusal(command, error)
        connection.reply(command, given)
        return True

    def _end(self, job: _Job) -> None:
        connection = job.connection
        self._bytes -= job.size
        self._admission.in_work[Kind.SEND] -= 1
        connection.is_busy = False
        connection.answered()


def _slice(steps: Sending, connection: RocketMQConnection) -> Answer | None:
    """Run a batch for some milliseconds; return its answer if it is complete."""
    mono_ms = connection.server.clock.mono_ms
    until_mono_ms = mono_ms() + TURN_MS
    try:
        for _ in range(STEPS_MAX):
            if next(steps) or mono_ms() >= until_mono_ms:
                break
        return None
    except StopIteration as done:
        answer: Answer = done.value
        return answer
