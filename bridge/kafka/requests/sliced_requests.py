"""Requests with much to do: their handlers are generators, which run in slices between which the loop turns.

    a handler returns a generator ── its first slice runs at once ── it ends: the answer leaves like any other
                                          └── it does not end: the connection receives no further request meanwhile,
                                              and the request takes turns with all other such requests

Where many connections send such requests in one turn of the loop, only the first of them run a slice at once. The
others run their first slice in the next turns, before any request runs another slice.

A handler yields wherever the loop may turn: after some ten microseconds of work, never after more than a millisecond or
two. It returns its answer, or None. Other requests change state between two slices, so a handler checks and appends
within one slice. The changes of a handler stay if its connection closes before the handler ends.

The effects of a client's requests keep the order of the requests, since the next request waits, as in Apache Kafka.

The part of an answer that is built is charged as an unsent answer. While the unsent answers of all connections exceed
`limits.answer_bytes_max`, only one request builds its answer; the others are set aside, and follow it in their order. A
request that is received then still runs its first slice up to one and a half times the limit, so that small requests do
not wait for large ones.
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

STEPS_MAX: Final = 500  # In one slice, even if time is left.
PRODUCE_STEPS_MAX: Final = 20  # the same of Produce, of which one step is a whole batch
JOBS_MAX: Final = 20  # That end in one turn of the loop.
AT_ONCE_MAX: Final = 5  # That run a slice when they are received and do not end by it, in one turn of the loop.


class Job(Protocol):
    """Something that SlicedRequests runs in slices."""

    @property
    def connection(self) -> OrderedConnection: ...

    @property
    def kind(self) -> str:
        """The name of its slices in the metric and the log of long turns."""

    @property
    def built_bytes(self) -> int:
        """The size of the built part of its answer, if that is charged and the job may be set aside; else 0."""

    def run_slice(self) -> bool:
        """Run one slice; False: the job needs another slice. It raises no exception."""


class _Job:
    """A request whose handler runs in slices."""

    __slots__ = ("answer", "built_bytes", "connection", "is_holding", "request", "slot", "steps")

    def __init__(
        self, connection: OrderedConnection, request: KafkaRequest, steps: Steps, slot: OutboxSlot | None
    ) -> None:
        self.connection, self.request, self.steps, self.slot = connection, request, steps, slot
        self.is_holding = False  # The connection receives no further request until the job ends.
        self.answer: Answer | None = None
        self.built_bytes = 0  # The built part of the answer, charged to `slot` once there is one.

    @property
    def kind(self) -> str:
        """The name of its slices in the metric and the log of long turns."""
        return f"kafka {ApiKey(self.request.api_key).name.lower()}"

    def run_slice(self) -> bool:
        """Run one slice; True: the job ended with an answer, with an error, or with its connection."""
        connection, slot = self.connection, self.slot
        assert slot is not None, "a job that did not end at once has a slot"
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
        """Run the steps of one slice; True: they ended, and `answer` is set."""
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
        """Free the built part of the answer as soon as the connection closes, not at the next slice."""
        self.connection.on_close.append(self.give_up)

    def give_up(self) -> None:
        self.steps.close()


class SlicedRequests:
    """Runs jobs in turns: one slice of one job in each turn of the loop."""

    def __init__(self) -> None:
        self._new: deque[Job] = deque()  # Jobs that have run no slice.
        self._jobs: deque[Job] = deque()  # Jobs that have run a slice.
        self._aside: deque[Job] = deque()  # Jobs that run no slice while another job builds its answer.
        self._builder: Job | None = None  # The job that builds its answer while others are set aside; it is in `_jobs`.
        self._begun_count = 0  # Requests of this turn that did not end by their first slice.
        self._is_scheduled = False

    def __len__(self) -> int:
        return len(self._new) + len(self._jobs) + len(self._aside)

    def begin(self, connection: OrderedConnection, request: KafkaRequest, steps: Steps) -> Answer | OutboxSlot | None:
        """Run the first slice of a request that was just received; return what a handler returns."""
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
        """Build the answer of a request that has waited, while its connection receives other requests."""
        job = _Job(connection, request, steps, slot)
        job.wait()
        self.add(job)

    def add(self, job: Job) -> None:
        """Add a job to those that take turns; its `run_slice` may add it again."""
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
        """Run a slice of the first job, which becomes the last one if it does not end; run small jobs together."""
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
        """Queue a job that did not end, or set it aside while there is no room for the answer that it builds."""
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
