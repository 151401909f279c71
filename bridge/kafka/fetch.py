"""Fetch 4..12, without fetch sessions: each request names all its partitions, and each answer lists exactly these
(KIP-227).

A Fetch request passes these steps:

    read ── all partitions, in the order of the request, until the budget is used up
     │        ├── a partition that is not in memory: a reader thread reads it, and the request continues after that;
     │        │   after COLD_MS_MAX the other such partitions have no records in the answer, and the client asks again
     │        └── many partitions: each turn of the loop reads a slice of them (`requests/sliced_requests.py`)
     ├── enough bytes, or an error, or no time to wait ──> answer
     └── else the request waits in the purgatory ── new records may be enough, or the time is over ──> read again

The budget is the least of the request's max_bytes, `kafka.fetch_bytes_max`, and the room for unsent answers. An answer
contains whole batches only. It contains at least one batch, of any size, because a consumer that got no part of a large
batch would repeat its request forever. A request whose min_bytes exceeds the budget is answered at the budget, as in
Kafka. A waiting request holds no records.

A read_committed consumer gets the records below the last stable offset and a list of the aborted transactions among
them; the consumer itself skips the records of these. The marker that ends a transaction moves the last stable offset,
and so completes the requests that wait for it.
"""

from collections.abc import Generator, Sequence
from typing import Any, NamedTuple

from duolog.bridge.data.reading.later import Later
from duolog.bridge.kafka.context import KafkaContext
from duolog.bridge.kafka.requests.errors import ANSWERABLE, code_of
from duolog.bridge.kafka.requests.kafka_driver import answer_in_steps
from duolog.bridge.kafka.requests.ordered_connection import OrderedConnection
from duolog.bridge.kafka.requests.request import KafkaRequest, Steps
from duolog.bridge.net.answers import Answer
from duolog.bridge.net.connection import TURN_MS
from duolog.bridge.net.connections import Connections
from duolog.bridge.net.ordered_outbox import OutboxSlot
from duolog.bridge.net.waiting import Hold, HoldOutcome, UntilNextTurn, UntilRead, Wait, WaitingSteps
from duolog.bridge.security.quotas.entity import FETCHED
from duolog.bridge.security.rights import Rights
from duolog.bridge.tracing.tracing import Tracing
from duolog.protocol.kafka import fetch as wire
from duolog.protocol.kafka import record_batch
from duolog.protocol.kafka.api_messages import ErrorCode
from duolog.protocol.kafka.fetch import FetchRequest, PartitionAsked, PartitionFetched
from duolog.store.entry import Buffer
from duolog.store.errors import StoreError
from duolog.store.index.queue import Queue
from duolog.txn.isolation import QueueIsolation

_READ_COMMITTED = 1
_SESSION_ENDS = -1
WAIT_MS_MAX = 600_000  # Longer than any client waits for an answer; Kafka's brokers close a silent connection by then.
COLD_MS_MAX = 10_000  # A pass that has waited longer for the disk or the object store begins no further such wait.
READ_AT_ONCE = 200  # Partitions in one turn of the loop, at some 10 us each.


def fetch(
    context: KafkaContext, connection: OrderedConnection, request: KafkaRequest
) -> Answer | Steps | OutboxSlot | None:
    """Answer with records now, or keep a slot for the answer until there are enough of them."""
    asked: FetchRequest = request.body
    if asked.session_id:
        # This broker gives out no session ids, so the id is another broker's. The error makes the client start over.
        error = ErrorCode.none if asked.session_epoch == _SESSION_ENDS else ErrorCode.fetch_session_id_not_found
        if error is not ErrorCode.none:
            request.count_error(error)
        return Answer(wire.encode_response(request.version, request.correlation_id, (), error=error))
    steps = _steps(context, connection, request)
    return answer_in_steps(connection, request, steps, context.purgatory, context.sliced_requests)


# -- Reading


class _Ends(NamedTuple):
    """The ends of a partition at the time of the read, which a reader thread may finish after the topic was deleted."""

    high_watermark: int
    last_stable: int
    isolation: QueueIsolation | None


class _ColdPartition(NamedTuple):
    """A partition that is not in memory."""

    asked: PartitionAsked
    queue: Queue
    ends: _Ends
    later: Later[list[Buffer]]


class _Reading:
    """One pass over the partitions of a request. Invariant: `fetched` has the results of the first partitions."""

    __slots__ = (
        "_asked",
        "_budget_bytes",
        "_cold",
        "_cold_ms",
        "_connections",
        "_context",
        "_is_committed",
        "_topics_version",
        "fetched",
        "found_bytes",
        "has_error",
        "queues",
        "wanted_bytes",
    )  # fmt: skip

    def __init__(self, context: KafkaContext, connections: Connections, asked: FetchRequest) -> None:
        self._context, self._connections, self._asked = context, connections, asked
        self._is_committed = asked.isolation_level == _READ_COMMITTED
        self.fetched: list[PartitionFetched] = []
        self.queues: list[Queue] = []  # Those of the partitions that could be read.
        self._topics_version = context.topics.version
        self.found_bytes = 0
        self.has_error = False
        self._cold: _ColdPartition | None = None  # What a thread must read before `read` goes on.
        self._cold_ms = 0  # How long this pass has waited for such reads.
        self._budget_bytes = min(
            asked.max_bytes, context.options.kafka.fetch_bytes_max, connections.answer_room_bytes()
        )
        self.wanted_bytes = min(asked.min_bytes, max(1, self._budget_bytes))

    def read(self) -> bool:
        """Read on; False: the request must `wait` for a reader thread or for its next turn, and then read on."""
        asked, fetched = self._asked.partitions, self.fetched
        begun = len(fetched)
        if begun:
            self._limit_budget()
        mono_ms = self._context.clock.mono_ms
        # The clock is not read for a single partition, which is the most frequent case.
        until_mono_ms = mono_ms() + TURN_MS if len(asked) - begun > 1 else 0
        while len(fetched) < len(asked):
            count = len(fetched) - begun
            if count and (count >= READ_AT_ONCE or mono_ms() > until_mono_ms):
                return False
            found = self._read_partition(asked[len(fetched)])
            if found is None:
                return False
            fetched.append(found)
        return True

    def _limit_budget(self) -> None:
        """Reduce the budget to the room that is left, because other requests have read meanwhile."""
        self._budget_bytes = min(self._budget_bytes, self.found_bytes + self._connections.answer_room_bytes())
        self.wanted_bytes = min(self.wanted_bytes, max(1, self._budget_bytes))

    def _read_partition(self, asked: PartitionAsked) -> PartitionFetched | None:
        topic_name, index, epoch, offset, max_bytes = asked
        context = self._context
        topic = context.topics.by_kafka_name(topic_name)
        if topic is None or not 0 <= index < topic.queue_count:
            return self._failed(asked, ErrorCode.unknown_topic_or_partition)
        if epoch >= 0 and epoch != topic.leader_epoch(index):
            is_old = epoch < topic.leader_epoch(index)
            return self._failed(asked, ErrorCode.fenced_leader_epoch if is_old else ErrorCode.unknown_leader_epoch)
        queue = topic.queues[index]
        if not queue.start_offset <= offset <= queue.visible_end:
            return self._failed(asked, ErrorCode.offset_out_of_range)
        isolation = context.isolation
        ends = _Ends(queue.visible_end, isolation.stable_end(queue), isolation.get(queue.key))
        end = ends.last_stable if self._is_committed else ends.high_watermark
        self.queues.append(queue)
        room_bytes = self._budget_bytes - self.found_bytes
        if offset >= end or (room_bytes <= 0 and self.found_bytes):
            return self._found(asked, queue, ends, ())
        try:
            found = context.reader.read_for_kafka(queue, topic, offset, max(1, min(max_bytes, room_bytes)), end)
        except ANSWERABLE as error:
            return self._failed(asked, code_of(error))
        if isinstance(found, Later):
            if self._cold_ms >= COLD_MS_MAX:
                return self._found(asked, queue, ends, ())
            self._cold = _ColdPartition(asked, queue, ends, found)
            return None
        return self._found(asked, queue, ends, found)

    def wait(self) -> Generator[Wait, Any, None]:
        """Wait for what `read` needs before it reads on."""
        if self._cold is None:
            yield UntilNextTurn(self.found_bytes)
            return
        (asked, queue, ends, later), self._cold = self._cold, None
        begun_mono_ms = self._context.clock.mono_ms()
        try:
            records = yield UntilRead(later.start, self.found_bytes)
        except StoreError as error:
            self.fetched.append(self._failed(asked, code_of(error)))
        else:
            self.fetched.append(self._found(asked, queue, ends, records))
        self._cold_ms += self._context.clock.mono_ms() - begun_mono_ms

    def _found(self, asked: PartitionAsked, queue: Queue, ends: _Ends, records: Sequence[Buffer]) -> PartitionFetched:
        self.found_bytes += sum(map(len, records))
        aborted = None
        if self._is_committed:
            aborted = _aborted(ends.isolation, asked.fetch_offset, records)
        high_watermark, last_stable, _ = ends
        return PartitionFetched(
            asked.topic, asked.partition, 0, high_watermark, last_stable, queue.start_offset, records, aborted
        )

    def _failed(self, asked: PartitionAsked, error: ErrorCode) -> PartitionFetched:
        self.has_error = True
        return PartitionFetched(asked.topic, asked.partition, error)

    def queue_of(self, found: PartitionFetched) -> Queue | None:
        """Return the queue of a result; None if its topic was deleted meanwhile."""
        topic = self._context.topics.by_kafka_name(found.topic)
        return topic.queues[found.partition] if topic is not None and found.partition < topic.queue_count else None

    def is_enough(self) -> bool:
        """Return whether the records that were read are an answer before the request's max_wait_ms is over."""
        return self.has_error or self.found_bytes >= self.wanted_bytes or not self.queues

    def seen_bytes(self) -> int:
        """Return the frame bytes of the queues below the ends of this pass, or a lower number."""
        if self._any_record_is_enough():
            return 0
        return sum(_bytes_below(queue, end) for queue, end in zip(self.queues, self._ends(), strict=True))

    def may_be_enough(self, seen_bytes: int) -> bool:
        """Return whether another pass may find enough, because a queue that the request watches has changed.

        `seen_bytes` is what the method `seen_bytes` returned after this pass. Records that were appended before the
        pass and became visible after it count as well.
        """
        if self._any_record_is_enough() or self._context.topics.version != self._topics_version:
            return True
        return (
            sum(queue.index.total_bytes for queue in self.queues) - seen_bytes >= self.wanted_bytes - self.found_bytes
        )

    def has_missed(self, seen_bytes: int) -> bool:
        """Return whether another pass may find enough, because of changes during this pass over several turns."""
        if not self.may_be_enough(seen_bytes):
            return False
        topics, stable_end = self._context.topics, self._context.isolation.stable_end
        return any(
            queue.topic not in topics or (stable_end(queue) if self._is_committed else queue.visible_end) != end
            for queue, end in zip(self.queues, self._ends(), strict=True)
        )

    def _ends(self) -> list[int]:
        """Return the ends below which this pass read each of `queues`; no partition may have failed."""
        if self._is_committed:
            return [found.last_stable_offset for found in self.fetched]
        return [found.high_watermark for found in self.fetched]

    def _any_record_is_enough(self) -> bool:
        """Return whether a single record may be enough; a marker makes any number of records stable."""
        return self.wanted_bytes <= 1 or self._is_committed


def _bytes_below(queue: Queue, end: int) -> int:
    """Return the frame bytes below an end, also those below the log start; 0 if the disk would have to be read."""
    return queue.index.total_bytes if end == queue.end_offset else queue.bytes_below(end, block=False) or 0


def _aborted(isolation: QueueIsolation | None, offset: int, records: Sequence[Buffer]) -> Sequence[tuple[int, int]]:
    """Return the aborted transactions with records among these from the offset on, also those that began before it."""
    if isolation is None or not records or not isolation.has_aborted_from(offset):
        return ()
    return isolation.aborted_between(offset, record_batch.read_header(records[-1]).last_offset + 1)


# -- Answering or waiting


def _steps(context: KafkaContext, connection: OrderedConnection, request: KafkaRequest) -> WaitingSteps[Answer | Steps]:
    asked: FetchRequest = request.body
    is_last = asked.max_wait_ms <= 0  # The records of this pass are the answer, however few they are.
    hold: Hold | None = None
    begun_ms = 0 if context.tracing is None else context.clock.now_ms()
    while True:
        reading = _Reading(context, connection.connections, asked)
        took_turns = False
        while not reading.read():
            took_turns = True
            yield from reading.wait()
        if is_last or reading.is_enough() or request.refused is not None:
            if context.tracing is not None:
                _trace(context.tracing, reading, asked, request.client_id or "", begun_ms)
            fetched = reading.fetched if request.rights is None else _allowed(request, request.rights, reading.fetched)
            if reading.has_error or request.rights is not None:
                _count_errors(request, fetched)
            throttle_ms = 0
            if context.security.quotas.has_any and not connection.closed:
                mono_ms, used = context.clock.mono_ms(), reading.found_bytes
                throttle_ms = connection.throttle(context.security.quotas, FETCHED, used, request.client_id, mono_ms)
            buffers = wire.encode_response(request.version, request.correlation_id, fetched, throttle_ms=throttle_ms)
            return Answer(buffers)
        if hold is None:
            until_mono_ms = context.clock.mono_ms() + min(asked.max_wait_ms, WAIT_MS_MAX)
            hold = Hold([queue.key for queue in reading.queues], until_mono_ms)
        seen_bytes = reading.seen_bytes()
        if took_turns and reading.has_missed(seen_bytes):
            is_last = context.clock.mono_ms() >= hold.until_mono_ms
            continue
        reading.fetched = []  # A held request keeps no records; the next pass reads them anew.
        outcome = yield hold
        while outcome is HoldOutcome.CHANGED and not reading.may_be_enough(seen_bytes):
            outcome = yield hold
        is_last = outcome is not HoldOutcome.CHANGED


def _allowed(request: KafkaRequest, rights: Rights, fetched: list[PartitionFetched]) -> list[PartitionFetched]:
    """Return the results with errors for the partitions that were refused, or must not be read any more.

    A right may have been taken away while the request waited.
    """
    allowed = [
        found
        if rights.may_read(found.topic)
        else PartitionFetched(found.topic, found.partition, ErrorCode.topic_authorization_failed)
        for found in fetched
    ]
    if request.refused is not None:
        for error, body in request.refused.bodies.items():
            allowed += (PartitionFetched(each.topic, each.partition, error) for each in body.partitions)
    return allowed


def _count_errors(request: KafkaRequest, fetched: list[PartitionFetched]) -> None:
    for found in fetched:
        if found.error:
            request.count_error(found.error)


def _trace(tracing: Tracing, reading: _Reading, asked: FetchRequest, client_id: str, begun_ms: int) -> None:
    """Make the spans of the messages in an answer."""
    attributes: dict[str, str | int] = {"messaging.system": "kafka", "messaging.client.id": client_id}
    for partition, found in zip(asked.partitions, reading.fetched, strict=False):
        queue = reading.queue_of(found) if found.records else None
        if queue is not None:
            end = record_batch.read_header(found.records[-1]).last_offset + 1
            tracing.read(queue, partition.fetch_offset, end, begun_ms, attributes)
