"""Fetch 4..12, without sessions: every request names all its partitions, every answer lists exactly these (KIP-227).

One Fetch on its way:

    read ── all partitions, in the order of the request, until the budget is spent
     │        ├── a partition that is not in memory: a reader thread brings it, then go on behind it
     │        └── many partitions: a slice of them in each of the next turns of the loop (`work.py`)
     ├── enough, or an error, or no time to wait ──> answer
     └── else park in the purgatory, watched by queue ── new records may be enough, or the time is up ──> read again

Budget: the request's max_bytes, `kafka.fetch_bytes_max` and what the broker has room for in unsent answers; whole
batches only, and one batch always, however large: a client that got nothing of it would ask for ever. Who wants more
than the budget (min_bytes) is content with it, as in Kafka. What waits keeps no records meanwhile.
Who reads committed records only gets what lies below the last stable offset, with a list of the aborted transactions in
it, and leaves these out itself; a marker that becomes visible is what wakes him.
"""

from collections.abc import Sequence
from typing import NamedTuple

from duolog.bridge.data.reading import Later
from duolog.bridge.kafka.context import KafkaContext
from duolog.bridge.kafka.requests.errors import ANSWERABLE, code_of
from duolog.bridge.kafka.requests.ordered_connection import OrderedConnection
from duolog.bridge.kafka.requests.request import KafkaRequest
from duolog.bridge.net.answers import Answer
from duolog.bridge.net.connection import TURN_MS
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
READ_AT_ONCE = 200  # partitions in one turn of the loop, at some 10 us each


def fetch(context: KafkaContext, connection: OrderedConnection, request: KafkaRequest) -> Answer | OutboxSlot:
    asked: FetchRequest = request.body
    if asked.session_id:
        # We never gave one out: it is of an earlier broker. With the error the client starts over with all it wants.
        error = ErrorCode.none if asked.session_epoch == _SESSION_ENDS else ErrorCode.fetch_session_id_not_found
        return Answer(wire.encode_response(request.version, request.correlation_id, (), error=error))
    return _Fetch(context, connection, request).start()


class _Ends(NamedTuple):
    """Where a partition ends, for readers of all and of committed records; below the latter all is decided."""

    high_watermark: int
    last_stable: int
    isolation: QueueIsolation | None  # As of then: while a thread reads, the topic may go, and what was known of it.


class _Fetch:
    """One request that is not answered yet: it is being read, or waits for a reader thread, or is parked."""

    __slots__ = (
        "_asked",
        "_budget_bytes",
        "_charged_bytes",
        "_cold",
        "_context",
        "_deadline_ms",
        "_fetched",
        "_found_bytes",
        "_has_error",
        "_held",
        "_is_last",
        "_queues",
        "_request",
        "_seen",
        "_slot",
        "_wanted_bytes",
        "connection",
    )  # fmt: skip

    def __init__(self, context: KafkaContext, connection: OrderedConnection, request: KafkaRequest) -> None:
        self._context, self.connection, self._request = context, connection, request
        self._asked: FetchRequest = request.body
        self._is_last = self._asked.max_wait_ms <= 0  # What this reading finds is the answer, however little.
        self._slot: OutboxSlot | None = None  # Set once the answer could not be given at once.
        self._deadline_ms: int | None = None  # Monotonic; set once it was parked.
        self._held: Held | None = None
        self._charged_bytes = 0  # In the slot, of `_found_bytes`.

    def start(self) -> Answer | OutboxSlot:
        self._begin()
        is_read = self._read()
        if is_read and self._is_enough():
            return self._answer()
        slot = self._slot = self.connection.outbox.reserve(self._request.held_bytes)
        if is_read:
            self._park()
        else:
            self._charge(self._found_bytes)
        return slot

    # -- Reading

    def _begin(self) -> None:
        context, asked = self._context, self._asked
        self._fetched: list[PartitionFetched] = []
        self._queues: list[Queue] = []
        self._found_bytes = 0
        self._has_error = False
        self._budget_bytes = min(
            asked.max_bytes,
            context.options.kafka.fetch_bytes_max,
            self.connection.connections.answer_room_bytes(),
        )
        self._wanted_bytes = min(asked.min_bytes, max(1, self._budget_bytes))

    def _read(self) -> bool:
        """Read on to the last partition; false if it goes on later, after a reader thread or a turn of the loop."""
        asked, fetched = self._asked.partitions, self._fetched
        begun = len(fetched)
        if begun:
            self._limit_budget()
        mono_ms = self._context.clock.mono_ms
        # Nobody need look at the clock for the last partition, which mostly is the only one.
        until_mono_ms = mono_ms() + TURN_MS if len(asked) - begun > 1 else 0
        while len(fetched) < len(asked):
            count = len(fetched) - begun
            if count and (count >= READ_AT_ONCE or mono_ms() > until_mono_ms):
                self._context.sliced_requests.add(self)
                self._charge(self._found_bytes)
                return False
            found = self._read_partition(asked[len(fetched)])
            if found is None:
                self._charge(self._found_bytes)
                return False
            fetched.append(found)
        return True

    def _charge(self, found_bytes: int) -> None:
        """Count the records that this request keeps while it reads on as an unsent answer."""
        if self._slot is not None:
            self.connection.outbox.charge_more(self._slot, found_bytes - self._charged_bytes)
            self._charged_bytes = found_bytes

    def _limit_budget(self) -> None:
        """Take no more than there is room for by now: other requests have read meanwhile."""
        room_bytes = self.connection.connections.answer_room_bytes()
        self._budget_bytes = min(self._budget_bytes, self._found_bytes + room_bytes)
        self._wanted_bytes = min(self._wanted_bytes, max(1, self._budget_bytes))

    @property
    def kind(self) -> str:
        return "kafka fetch"

    @property
    def built_bytes(self) -> int:
        return 0  # It is never set aside: without room it takes no more records, so that it is soon done.

    def go_on(self) -> bool:
        """Read the next slice; `SlicedRequests` calls it when it is its turn, which is over then."""
        if not self.connection.closed:
            try:
                if self._read():
                    self._settle()
            except Exception as error:  # noqa: BLE001 - contained
                self.fail(error)
        return True

    def _read_partition(self, asked: PartitionAsked) -> PartitionFetched | None:
        topic_name, index, epoch, offset, max_bytes = asked
        topic = self._context.topics.by_kafka_name(topic_name)
        if topic is None or not 0 <= index < topic.queue_count:
            return self._failed(asked, ErrorCode.unknown_topic_or_partition)
        if epoch >= 0 and epoch != topic.leader_epoch(index):
            is_old = epoch < topic.leader_epoch(index)
            return self._failed(asked, ErrorCode.fenced_leader_epoch if is_old else ErrorCode.unknown_leader_epoch)
        queue = topic.queues[index]
        if not queue.start_offset <= offset <= queue.visible_end:
            return self._failed(asked, ErrorCode.offset_out_of_range)
        self._queues.append(queue)
        isolation = self._context.isolation
        ends = _Ends(queue.visible_end, isolation.stable_end(queue), isolation.get(queue.key))
        end = ends.last_stable if self._asked.isolation_level == _READ_COMMITTED else ends.high_watermark
        room_bytes = self._budget_bytes - self._found_bytes
        if offset >= end or (room_bytes <= 0 and self._found_bytes):
            return self._found(asked, queue, ends, ())
        try:
            found = self._context.reader.kafka(queue, topic, offset, max(1, min(max_bytes, room_bytes)), end)
        except ANSWERABLE as error:
            return self._failed(asked, code_of(error))
        if isinstance(found, Later):
            self._cold = asked, queue, ends
            found.start(self._on_cold_read)
            return None
        return self._found(asked, queue, ends, found)

    def _on_cold_read(self, found: Sequence[Buffer] | Exception) -> None:
        if self.connection.closed:
            return
        try:
            self._take_cold(found)
        except Exception as error:  # noqa: BLE001 - contained
            self.fail(error)

    def _take_cold(self, found: Sequence[Buffer] | Exception) -> None:
        asked, queue, ends = self._cold
        if isinstance(found, Exception):
            self._fetched.append(self._failed(asked, code_of(found)))
        else:
            self._fetched.append(self._found(asked, queue, ends, found))
        if self._read():
            self._settle()

    def _found(self, asked: PartitionAsked, queue: Queue, ends: "_Ends", records: Sequence[Buffer]) -> PartitionFetched:
        self._found_bytes += sum(map(len, records))
        aborted = None
        if self._asked.isolation_level == _READ_COMMITTED:
            aborted = _aborted(ends.isolation, asked.fetch_offset, records)
        high_watermark, last_stable, _ = ends
        return PartitionFetched(
            asked.topic, asked.partition, 0, high_watermark, last_stable, queue.start_offset, records, aborted
        )

    def _failed(self, asked: PartitionAsked, error: ErrorCode) -> PartitionFetched:
        self._has_error = True
        return PartitionFetched(asked.topic, asked.partition, error)

    # -- Answering or waiting

    def _is_enough(self) -> bool:
        return self._is_last or self._has_error or self._found_bytes >= self._wanted_bytes or not self._queues

    def _answer(self) -> Answer:
        request = self._request
        return Answer(wire.encode_response(request.version, request.correlation_id, self._fetched))

    def _settle(self) -> None:
        """All is read, after a wait: answer, or park."""
        if self._is_enough():
            self._end()
        else:
            self._park()

    def _end(self) -> None:
        connection, slot = self.connection, self._slot
        assert slot is not None, "only an answer that was waited for has a slot"
        if self._deadline_ms is not None and not connection.closed:
            connection.on_close.remove(self._connection_closed)
        connection.outbox.fill(slot, self._answer())

    def _park(self) -> None:
        """Wait for records of any partition that could be read."""
        if self._deadline_ms is None:
            self._deadline_ms = self._context.clock.mono_ms() + min(self._asked.max_wait_ms, WAIT_MS_MAX)
            self.connection.on_close.append(self._connection_closed)
        self._wait_for_more()
        keys = [queue.key for queue in self._queues]
        self._held = self._context.purgatory.hold(self, keys, self._deadline_ms, self.connection)
        if self._held is None:
            self.expire()

    def _wait_for_more(self) -> None:
        self._seen = self._growth()
        self._fetched = []  # It is read anew, and records that nobody gets yet would stay in memory.
        self._charge(0)

    def _growth(self) -> tuple[int, int]:
        """What moves when there may be more to read than before: bytes of the queues, and the topics themselves."""
        return sum(queue.size_bytes for queue in self._queues), self._context.topics.version

    def try_complete(self) -> bool:
        """Read again, unless the queues have not grown by what was missing."""
        if self._wanted_bytes > 1 and self._asked.isolation_level != _READ_COMMITTED:
            (seen_bytes, seen_version), (size_bytes, version) = self._seen, self._growth()
            missing_bytes = self._wanted_bytes - self._found_bytes
            if size_bytes - seen_bytes < missing_bytes and version == seen_version:
                return False
        self._begin()
        if not self._read():
            return True  # Once the reader thread has brought it, `_settle` parks it again if need be.
        if self._is_enough():
            self._end()
            return True
        self._wait_for_more()
        return False

    def expire(self) -> None:
        """The client's patience is over: what there is now is the answer."""
        self._is_last = True
        self._begin()
        if self._read():
            self._end()

    def deleted(self) -> None:
        """What there is now is the answer, and an error for the partition that is gone."""
        self.expire()

    def fail(self, error: Exception) -> None:
        connection = self.connection
        if self._connection_closed in connection.on_close:
            connection.on_close.remove(self._connection_closed)
        assert self._slot is not None, "only what was held, or read by a thread, fails here"
        connection.failed(self._request, error, self._slot)

    def _connection_closed(self) -> None:
        if self._held is not None:
            self._context.purgatory.release(self._held)


def _aborted(isolation: QueueIsolation | None, offset: int, records: Sequence[Buffer]) -> Sequence[tuple[int, int]]:
    """The aborted transactions that touch what is given from this offset on; also those that began before it."""
    if isolation is None or not records or not isolation.has_aborted_from(offset):
        return ()
    return isolation.aborted_between(offset, record_batch.read_header(records[-1]).last_offset + 1)
