"""Requests with much to do: their handlers are generators, which run in slices between which the loop turns.

    handler gives a generator ── one slice, at once ── done: answered as ever
                                        └── not done: its connection takes no further request meanwhile,
                                            and it has a slice whenever it is its turn among all such requests

Where many connections ask for much in one turn of the loop, only the first of them have a slice at once; the others
have theirs in the next turns, before any request has another one.

A handler yields wherever the loop may turn: after some ten microseconds of work, never more than a millisecond or two.
It returns its answer, None if there is none. Other requests change state between two slices, so what it decides it
decides and appends in one slice. What it has changed stays when its connection closes before its end.

A client's effects stay in the order of its requests, since the next one waits, as in Apache Kafka.
"""

from collections import deque
from collections.abc import Generator
from typing import TYPE_CHECKING, Any, Final, Protocol

from bridge.answers import Answer
from bridge.kafka.request import Request, Work
from bridge.server import TURN_MS, OutboxSlot
from protocol.errors import ProtocolError
from protocol.kafka.api import ApiKey, encode_frame
from protocol.kafka.response import AnswerTooLarge, encode_steps
from store.entry import Promise

if TYPE_CHECKING:
    from bridge.broker import Broker
    from bridge.kafka.connection import KafkaConnection

STEPS_MAX: Final = 500  # in one slice, whatever the clock says
JOBS_MAX: Final = 20  # that end in one turn of the loop
AT_ONCE_MAX: Final = 5  # that have a slice when they are received and are not done by it, in one turn of the loop


def encoded(broker: "Broker", request: Request, entity: Any) -> Generator[None, None, list[bytes]]:
    """Encode a response whose arrays may be `Elements`, as the pieces of its body."""
    try:
        return (yield from encode_steps(entity, broker.options.kafka.answer_bytes_max))
    except AnswerTooLarge:
        raise AnswerTooLarge(
            f"the answer to a request of API {request.api_key} is larger than "
            f"kafka.answer_bytes_max={broker.options.kafka.answer_bytes_max}"
        ) from None


def answered(request: Request, pieces: list[bytes], promise: Promise | None) -> Answer:
    """Make the answer of what `encoded` gave."""
    return Answer(encode_frame(request.api_key, request.version, request.correlation_id, pieces), promise)


def whole(steps: Work) -> Answer | None:
    """Make an answer at once, of which it is known that it is small."""
    while True:
        try:
            next(steps)
        except StopIteration as done:
            answer: Answer | None = done.value
            return answer


class Job(Protocol):
    """What `Works` runs."""

    @property
    def connection(self) -> "KafkaConnection": ...

    @property
    def kind(self) -> str:
        """How its slices are named when one of them is long."""

    def go_on(self) -> bool:
        """Run one slice; false: it has another turn. Raises nothing."""


class _Job:
    """One request that is worked on."""

    __slots__ = ("answer", "connection", "is_holding", "request", "slot", "steps")

    def __init__(self, connection: "KafkaConnection", request: Request, steps: Work, slot: OutboxSlot | None) -> None:
        self.connection, self.request, self.steps, self.slot = connection, request, steps, slot
        self.is_holding = False  # Its connection takes no further request until it is done.
        self.answer: Answer | None = None

    @property
    def kind(self) -> str:
        """How its slices are named when one of them is long."""
        return f"kafka {ApiKey(self.request.api_key).name.lower()}"

    def go_on(self) -> bool:
        """Run one slice, and answer if that is the end; true: it is over, one way or the other."""
        connection, slot = self.connection, self.slot
        assert slot is not None, "only what was not done at once goes on"
        if connection.closed:
            self.steps.close()
            return True
        try:
            if not self.run():
                return False
            connection.outbox.fill(slot, self.answer)
        except ProtocolError as error:
            connection.close(str(error))
        except Exception as error:  # noqa: BLE001 - contained
            connection.failed(self.request, error, slot)
        if self.is_holding:
            connection.is_busy = False
            connection.go_on_soon()
        return True

    def run(self) -> bool:
        """Run one slice; true: it is done, and `answer` is set."""
        mono_ms = self.connection.server.clock.mono_ms
        until_mono_ms = mono_ms() + TURN_MS
        try:
            for _ in range(STEPS_MAX):
                next(self.steps)
                if mono_ms() > until_mono_ms:
                    break
        except StopIteration as done:
            self.answer = done.value
            return True
        return False


class Works:
    """The requests that are worked on, each in its turn: one slice of one of them in a turn of the loop."""

    def __init__(self) -> None:
        self._new: deque[Job] = deque()  # They have had no slice,
        self._jobs: deque[Job] = deque()  # these have.
        self._begun_count = 0  # Requests of this turn that were not done by their first slice.
        self._is_scheduled = False

    def __len__(self) -> int:
        return len(self._new) + len(self._jobs)

    def begin(self, connection: "KafkaConnection", request: Request, steps: Work) -> Answer | OutboxSlot | None:
        """Work on a request that was just received; what it gives is what a handler gives."""
        job = _Job(connection, request, steps, None)
        jobs = self._new
        if self._begun_count < AT_ONCE_MAX:
            if job.run():
                return job.answer
            self._begun_count += 1
            jobs = self._jobs
        job.slot = connection.outbox.reserve(request.held_bytes)
        job.is_holding = connection.is_busy = True
        connection.hold()
        self._add(jobs, job)
        return job.slot

    def finish(self, connection: "KafkaConnection", request: Request, slot: OutboxSlot, steps: Work) -> None:
        """Work on the answer of a request that has waited, while its connection takes others."""
        self.add(_Job(connection, request, steps, slot))

    def add(self, job: Job) -> None:
        """Give a job its turn; its own `go_on` may ask for another one."""
        self._add(self._jobs, job)

    def _add(self, jobs: deque[Job], job: Job) -> None:
        jobs.append(job)
        if not self._is_scheduled:
            self._schedule()

    def _schedule(self) -> None:
        first = (self._new or self._jobs)[0]
        self._is_scheduled = True
        first.connection.server.soon(first.kind, self._go_on)

    def _go_on(self) -> None:
        """Run a slice of the first job; it goes behind the others if it is not done. Small ones run together."""
        server = (self._new or self._jobs)[0].connection.server
        until_mono_ms = server.clock.mono_ms() + TURN_MS
        self._begun_count = 0
        try:
            for _ in range(min(JOBS_MAX, len(self))):
                job = (self._new or self._jobs).popleft()
                if not job.go_on():
                    self._jobs.append(job)
                    break
                if server.clock.mono_ms() > until_mono_ms:
                    break
        finally:
            self._is_scheduled = False
            if len(self):
                self._schedule()
            server.touch()
