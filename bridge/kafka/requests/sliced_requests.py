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

The part of an answer that is built is charged as an unsent answer. While unsent answers of all connections are above
`limits.answer_bytes_max`, only one request builds its answer further; the others are set aside and go on after it, in
their order. A request that is received then still has its first slice, up to half as much again, so that small
requests do not wait for large ones.
"""

from collections import deque
from typing import Final, Protocol

from duolog.bridge.kafka.requests.ordered_connection import OrderedConnection
from duolog.bridge.kafka.requests.request import KafkaRequest, Steps
from duolog.bridge.net.answers import Answer
from duolog.bridge.net.connection import TURN_MS
from duolog.bridge.net.ordered_outbox import OutboxSlot
from duolog.bridge.net.server import Server
from duolog.protocol.errors import ProtocolError
from duolog.protocol.kafka.api_messages import ApiKey

STEPS_MAX: Final = 500  # in one slice, whatever the clock says
PRODUCE_STEPS_MAX: Final = 20  # the same of Produce, of which one step is a whole batch
JOBS_MAX: Final = 20  # that end in one turn of the loop
AT_ONCE_MAX: Final = 5  # that have a slice when they are received and are not done by it, in one turn of the loop


class Job(Protocol):
    """What `SlicedRequests` runs."""

    @property
    def connection(self) -> OrderedConnection: ...

    @property
    def kind(self) -> str:
        """How its slices are named when one of them is long."""

    @property
    def built_bytes(self) -> int:
        """How much of its answer it has built, if it is charged for that and may be set aside; 0 otherwise."""

    def run_slice(self) -> bool:
        """Run one slice; false: it has another turn. Raises nothing."""


class _Job:
    """One request that is worked on."""

    __slots__ = ("answer", "built_bytes", "connection", "is_holding", "request", "slot", "steps")

    def __init__(
        self, connection: OrderedConnection, request: KafkaRequest, steps: Steps, slot: OutboxSlot | None
    ) -> None:
        self.connection, self.request, self.steps, self.slot = connection, request, steps, slot
        self.is_holding = False  # Its connection takes no further request until it is done.
        self.answer: Answer | None = None
        self.built_bytes = 0  # Of its answer, so far; charged in `slot`, once it has one.

    @property
    def kind(self) -> str:
        """How its slices are named when one of them is long."""
        return f"kafka {ApiKey(self.request.api_key).name.lower()}"

    def run_slice(self) -> bool:
        """Run one slice, and answer if that is the end; true: it is over, one way or the other."""
        connection, slot = self.connection, self.slot
        assert slot is not None, "only what was not done at once goes on"
        if connection.closed:
            self.steps.close()
            return True
        charged_bytes = self.built_bytes
        try:
            if not self.run_steps():
                connection.outbox.charge_more(slot, self.built_bytes - charged_bytes)
                return False
            connection.outbox.fill(slot, self.answer)
        except ProtocolError as error:
            connection.close(str(error))
        except Exception as error:  # noqa: BLE001 - contained
            connection.failed(self.request, error, slot)
        if not connection.closed:
            connection.on_close.remove(self.give_up)
        if self.is_holding:
            connection.is_busy = False
            connection.go_on_soon()
        return True

    def run_steps(self) -> bool:
        """Run one slice; true: it is done, and `answer` is set."""
        mono_ms = self.connection.server.clock.mono_ms
        until_mono_ms = mono_ms() + TURN_MS
        built_bytes: int | None = None
        try:
            for _ in range(PRODUCE_STEPS_MAX if self.request.api_key == ApiKey.PRODUCE else STEPS_MAX):
                built_bytes = next(self.steps) or built_bytes
                if mono_ms() > until_mono_ms:
                    break
        except StopIteration as done:
            self.answer = done.value
            return True
        self.built_bytes = built_bytes or self.built_bytes
        return False

    def wait(self) -> None:
        """Have what it has built given back when its connection closes, however late its turn would be."""
        self.connection.on_close.append(self.give_up)

    def give_up(self) -> None:
        self.steps.close()


class SlicedRequests:
    """The requests that are worked on, each in its turn: one slice of one of them in a turn of the loop."""

    def __init__(self) -> None:
        self._new: deque[Job] = deque()  # They have had no slice,
        self._jobs: deque[Job] = deque()  # these have,
        self._aside: deque[Job] = deque()  # and these have none as long as another one builds its answer.
        self._builder: Job | None = None  # The one that builds its answer while there is no room for more; in `_jobs`.
        self._begun_count = 0  # Requests of this turn that were not done by their first slice.
        self._is_scheduled = False

    def __len__(self) -> int:
        return len(self._new) + len(self._jobs) + len(self._aside)

    def begin(self, connection: OrderedConnection, request: KafkaRequest, steps: Steps) -> Answer | OutboxSlot | None:
        """Steps on a request that was just received; what it gives is what a handler gives."""
        job = _Job(connection, request, steps, None)
        jobs = self._new
        if self._begun_count < AT_ONCE_MAX and _has_room_to_begin(connection.server):
            if job.run_steps():
                return job.answer
            self._begun_count += 1
            jobs = self._jobs
        job.slot = connection.outbox.reserve(request.held_bytes + job.built_bytes)
        job.is_holding = connection.is_busy = True
        connection.hold()
        job.wait()
        self._add(jobs, job)
        return job.slot

    def finish(self, connection: OrderedConnection, request: KafkaRequest, slot: OutboxSlot, steps: Steps) -> None:
        """Steps on the answer of a request that has waited, while its connection takes others."""
        job = _Job(connection, request, steps, slot)
        job.wait()
        self.add(job)

    def add(self, job: Job) -> None:
        """Give a job its turn; its own `run_slice` may ask for another one."""
        self._add(self._jobs, job)

    def _add(self, jobs: deque[Job], job: Job) -> None:
        jobs.append(job)
        if not self._is_scheduled:
            self._schedule()

    def _schedule(self) -> None:
        first = (self._new or self._jobs or self._aside)[0]
        self._is_scheduled = True
        first.connection.server.soon(first.kind, self._run_turn)

    def _run_turn(self) -> None:
        """Run a slice of the first job; it goes behind the others if it is not done. Small ones run together."""
        server = (self._new or self._jobs or self._aside)[0].connection.server
        until_mono_ms = server.clock.mono_ms() + TURN_MS
        self._begun_count = 0
        try:
            for _ in range(min(JOBS_MAX, len(self))):
                job = self._next(server)
                if not job.run_slice():
                    self._put_back(server, job)
                    break
                if job is self._builder:
                    self._builder = None
                if server.clock.mono_ms() > until_mono_ms:
                    break
        finally:
            self._is_scheduled = False
            if len(self):
                self._schedule()
            server.touch()

    def _next(self, server: Server) -> Job:
        if self._aside and (self._builder is None or _has_room(server)):
            self._jobs.append(self._aside.popleft())
        if self._new and (not self._jobs or _has_room_to_begin(server)):
            return self._new.popleft()
        return self._jobs.popleft()

    def _put_back(self, server: Server, job: Job) -> None:
        """Give a job that is not done another turn, or set it aside while there is no room for what it builds."""
        if not job.built_bytes or _has_room(server):
            self._jobs.append(job)
        elif self._builder is None or self._builder is job:
            self._builder = job
            self._jobs.append(job)
        else:
            self._aside.append(job)


def _has_room(server: Server) -> bool:
    return server.connections.answer_bytes <= server.connections.limits.answer_bytes_max


def _has_room_to_begin(server: Server) -> bool:
    return 2 * server.connections.answer_bytes <= 3 * server.connections.limits.answer_bytes_max
