"""Fetch 4..12, without fetch sessions: each request names all its partitions, and each answer lists exactly these
(KIP-227).

A Fetch request passes these steps:

    read ── all partitions, in the order of the request, until the budget is used up
     │        ├── a partition that is not in memory: a reader thread reads it, and the request goes on after it
     │        └── many partitions: each turn of the loop reads a slice of them (`requests/sliced_requests.py`)
     ├── enough bytes, or an error, or no time to wait ──> answer
     └── else the request waits in the purgatory ── new records may be enough, or the time is over ──> read again

The budget is the least of the request's max_bytes, `kafka.fetch_bytes_max`, and the room for unsent answers. An answer
has whole batches only, and at least one batch however large, for a consumer that got none of it would ask for it
forever. A request whose min_bytes exceeds the budget is answered at the budget, as in Kafka. A request that waits keeps
no records.

A read_committed consumer gets the records below the last stable offset and a list of the aborted transactions among
them, whose records the consumer itself leaves out. The marker that ends a transaction moves the last stable offset, and
so completes the requests that wait for it.
"""

from collections.abc import Sequence
from typing import NamedTuple

from duolog.bridge.data.reading.later import Later
from duolog.bridge.kafka.context import KafkaContext
from duolog.bridge.kafka.requests.errors import ANSWERABLE, code_of
from duolog.bridge.kafka.requests.ordered_connection import OrderedConnection
from duolog.bridge.kafka.requests.request import KafkaRequest
from duolog.bridge.net.answers import Answer
from duolog.bridge.net.connection import TURN_MS
from duolog.bridge.net.connections import Connections
from duolog.bridge.net.ordered_outbox import OutboxSlot
from duolog.bridge.net.purgatory import Held
from duolog.protocol.kafka import fetch as wire
from duolog.protocol.kafka import record_batch
from duolog.protocol.kafka.api_messages import ErrorCode
from duolog.protocol.kafka.fetch import FetchRequest, PartitionAsked, PartitionFetched
from duolog.store.entry import Buffer
from duolog.store.index.queue import Queue
from duolog.txn.isolation import QueueIsolation

_READ_COMMITTED = 1
_SESSION_ENDS = -1
WAIT_MS_MAX = 600_000  # Longer than any client waits for an answer; Kafka's brokers close a silent connection by then.
READ_AT_ONCE = 200  # Partitions in one turn of the loop, at some 10 us each.


def fetch(context: KafkaContext, connection: OrderedConnection, request: KafkaRequest) -> Answer | OutboxSlot:
    """Answer with records now, or keep a slot for the answer until there are enough of them."""
    asked: FetchRequest = request.body
    if asked.session_id:
        # This broker gives out no session ids, so the id is another broker's. The error makes the client start over.
        error = ErrorCode.none if asked.session_epoch == _SESSION_ENDS else ErrorCode.fetch_session_id_not_found
        return Answer(wire.encode_response(request.version, request.correlation_id, (), error=error))
    return _Fetch(context, connection, request).start()


# -- Reading


class _Ends(NamedTuple):
    """The ends of a partition at the time of the read, which a reader thread may finish after the topic was deleted."""

    high_watermark: int
    last_stable: int
    isolation: QueueIsolation | None


class _Reading:
    """One pass over the partitions of a request. Invariant: `fetched` has the results of the first partitions."""

    __slots__ = (
        "_asked",
        "_budget_bytes",
        "_cold",
        "_connections",
        "_context",
        "cold_read",
        "fetched",
        "found_bytes",
        "has_error",
        "queues",
        "wanted_bytes",
    )  # fmt: skip

    def __init__(self, context: KafkaContext, connections: Connections, asked: FetchRequest) -> None:
        self._context, self._connections, self._asked = context, connections, asked
        self.fetched: list[PartitionFetched] = []
        self.queues: list[Queue] = []  # Those of the partitions that could be read.
        self.found_bytes = 0
        self.has_error = False
        self.cold_read: Later[list[Buffer]] | None = None  # The read that a thread must do before `read` goes on.
        self._budget_bytes = min(
            asked.max_bytes, context.options.kafka.fetch_bytes_max, connections.answer_room_bytes()
        )
        self.wanted_bytes = min(asked.min_bytes, max(1, self._budget_bytes))

    def read(self) -> bool:
        """Read on; False: `cold_read` must be done first or, if it is None, other requests must have their turn."""
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
        self.queues.append(queue)
        isolation = context.isolation
        ends = _Ends(queue.visible_end, isolation.stable_end(queue), isolation.get(queue.key))
        end = ends.last_stable if self._asked.isolation_level == _READ_COMMITTED else ends.high_watermark
        room_bytes = self._budget_bytes - self.found_bytes
        if offset >= end or (room_bytes <= 0 and self.found_bytes):
            return self._found(asked, queue, ends, ())
        try:
            found = context.reader.kafka(queue, topic, offset, max(1, min(max_bytes, room_bytes)), end)
        except ANSWERABLE as error:
            return self._failed(asked, code_of(error))
        if isinstance(found, Later):
            self._cold, self.cold_read = (asked, queue, ends), found
            return None
        return self._found(asked, queue, ends, found)

    def take_cold(self, found: Sequence[Buffer] | Exception) -> None:
        """Take the outcome of `cold_read`."""
        asked, queue, ends = self._cold
        self.cold_read = None
        if isinstance(found, Exception):
            self.fetched.append(self._failed(asked, code_of(found)))
        else:
            self.fetched.append(self._found(asked, queue, ends, found))

    def _found(self, asked: PartitionAsked, queue: Queue, ends: _Ends, records: Sequence[Buffer]) -> PartitionFetched:
        self.found_bytes += sum(map(len, records))
        aborted = None
        if self._asked.isolation_level == _READ_COMMITTED:
            aborted = _aborted(ends.isolation, asked.fetch_offset, records)
        high_watermark, last_stable, _ = ends
        return PartitionFetched(
            asked.topic, asked.partition, 0, high_watermark, last_stable, queue.start_offset, records, aborted
        )

    def _failed(self, asked: PartitionAsked, error: ErrorCode) -> PartitionFetched:
        self.has_error = True
        return PartitionFetched(asked.topic, asked.partition, error)

    def growth(self) -> tuple[int, int]:
        """Return what moves when there may be more to read: the bytes of the queues, and the version of the topics."""
        return sum(queue.size_bytes for queue in self.queues), self._context.topics.version


def _aborted(isolation: QueueIsolation | None, offset: int, records: Sequence[Buffer]) -> Sequence[tuple[int, int]]:
    """Return the aborted transactions with records among these from the offset on, also those that began before it."""
    if isolation is None or not records or not isolation.has_aborted_from(offset):
        return ()
    return isolation.aborted_between(offset, record_batch.read_header(records[-1]).last_offset + 1)


# -- Answering or waiting


class _Fetch:
    """One request that is not answered yet: it reads, or waits for a reader thread or in the purgatory."""

    __slots__ = (
        "_asked", "_charged_bytes", "_context", "_deadline_ms", "_held", "_is_last", "_reading", "_request", "_seen",
        "_slot", "connection",
    )  # fmt: skip

    def __init__(self, context: KafkaContext, connection: OrderedConnection, request: KafkaRequest) -> None:
        self._context, self.connection, self._request = context, connection, request
        self._asked: FetchRequest = request.body
        self._is_last = self._asked.max_wait_ms <= 0  # This pass is the last: its records are the answer, however few.
        self._slot: OutboxSlot | None = None  # Set once the answer could not be given at once.
        self._deadline_ms: int | None = None  # Monotonic; set once the request was held.
        self._held: Held | None = None
        self._charged_bytes = 0  # The part of the reading's `found_bytes` that is charged to the slot.

    def start(self) -> Answer | OutboxSlot:
        self._reading = _Reading(self._context, self.connection.connections, self._asked)
        is_read = self._read()
        if is_read and self._is_enough():
            return self._answer()
        slot = self._slot = self.connection.outbox.reserve(self._request.held_bytes)
        if is_read:
            self._hold()
        else:
            self._charge(self._reading.found_bytes)
        return slot

    def _read(self) -> bool:
        """Read on; False: `_on_cold_read` or `run_slice` will be called, and read the rest."""
        reading = self._reading
        if reading.read():
            return True
        if reading.cold_read is not None:
            reading.cold_read.start(self._on_cold_read)
        else:
            self._context.sliced_requests.add(self)
        self._charge(reading.found_bytes)
        return False

    def _charge(self, found_bytes: int) -> None:
        """Count the records that this request keeps while it reads on as an unsent answer."""
        if self._slot is not None:
            self.connection.outbox.charge_more(self._slot, found_bytes - self._charged_bytes)
            self._charged_bytes = found_bytes

    def _on_cold_read(self, found: Sequence[Buffer] | Exception) -> None:
        if self.connection.closed:
            return
        try:
            self._reading.take_cold(found)
            if self._read():
                self._settle()
        except Exception as error:  # noqa: BLE001 - contained
            self.fail(error)

    # -- What SlicedRequests calls

    @property
    def kind(self) -> str:
        return "kafka fetch"

    @property
    def built_bytes(self) -> int:
        return 0  # A Fetch is never set aside: without room it reads no more records, and so ends soon.

    def run_slice(self) -> bool:
        """Read the next slice. `_read` adds the request again if there is another one."""
        if not self.connection.closed:
            try:
                if self._read():
                    self._settle()
            except Exception as error:  # noqa: BLE001 - contained
                self.fail(error)
        return True

    # -- The end of a pass

    def _is_enough(self) -> bool:
        reading = self._reading
        return self._is_last or reading.has_error or reading.found_bytes >= reading.wanted_bytes or not reading.queues

    def _answer(self) -> Answer:
        request = self._request
        return Answer(wire.encode_response(request.version, request.correlation_id, self._reading.fetched))

    def _settle(self) -> None:
        """Answer or hold a request that has a slot and has read all its partitions."""
        if self._is_enough():
            self._end()
        else:
            self._hold()

    def _end(self) -> None:
        connection, slot = self.connection, self._slot
        assert slot is not None, "only an answer that was waited for has a slot"
        if self._deadline_ms is not None and not connection.closed:
            connection.on_close.remove(self._connection_closed)
        connection.outbox.fill(slot, self._answer())

    def _hold(self) -> None:
        """Wait in the purgatory for records of any partition that could be read."""
        if self._deadline_ms is None:
            self._deadline_ms = self._context.clock.mono_ms() + min(self._asked.max_wait_ms, WAIT_MS_MAX)
            self.connection.on_close.append(self._connection_closed)
        self._drop_records()
        keys = [queue.key for queue in self._reading.queues]
        self._held = self._context.purgatory.hold(self, keys, self._deadline_ms, self.connection)
        if self._held is None:
            self.expire()

    def _drop_records(self) -> None:
        """Keep no records while the request waits: the next pass reads them anew."""
        self._seen = self._reading.growth()
        self._reading.fetched = []
        self._charge(0)

    # -- What the purgatory calls

    def try_complete(self) -> bool:
        """Read again, unless the queues have grown by less than what was missing."""
        last = self._reading
        if last.wanted_bytes > 1 and self._asked.isolation_level != _READ_COMMITTED:
            (seen_bytes, seen_version), (size_bytes, version) = self._seen, last.growth()
            if size_bytes - seen_bytes < last.wanted_bytes - last.found_bytes and version == seen_version:
                return False
        self._reading = _Reading(self._context, self.connection.connections, self._asked)
        if not self._read():
            return True  # When the reader thread is done, `_settle` holds the request again if need be.
        if self._is_enough():
            self._end()
            return True
        self._drop_records()
        return False

    def expire(self) -> None:
        """Answer with the records that there are now, because the request's max_wait_ms is over."""
        self._is_last = True
        self._reading = _Reading(self._context, self.connection.connections, self._asked)
        if self._read():
            self._end()

    def deleted(self) -> None:
        """Answer with the records that there are now, and with an error for the partition that was deleted."""
        self.expire()

    def fail(self, error: Exception) -> None:
        """Report an unexpected error, and answer the request with it."""
        connection = self.connection
        if self._connection_closed in connection.on_close:
            connection.on_close.remove(self._connection_closed)
        assert self._slot is not None, "only a request that was held, or read by a thread, fails here"
        connection.failed(self._request, error, self._slot)

    def _connection_closed(self) -> None:
        if self._held is not None:
            self._context.purgatory.release(self._held)
