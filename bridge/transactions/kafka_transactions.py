"""Kafka's transactions, kept in the log: who produces in them, what they hold, and how they end.

    InitProducerId          TransactionalIdSettled                        one unit
    a transactional batch   the frame alone: queue and transaction follow from its producer id
    a delayed record        parked with the producer id in its `extra`: a timer only when the transaction commits
    AddPartitions, offsets  TransactionGrew
    the end                 a marker for each queue written to, the groups' positions, TransactionalIdSettled: one unit

So a transaction is ended in all its queues and groups, or in none; there is nothing to be completed after a restart. A
queue that was added and not written to gets no marker.

`txn.coordinator` says who may do what; `txn.isolation` what readers see. Both follow the log, live and at recovery.
"""

import sys
from array import array
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import Final

from duolog.bridge.config import Options
from duolog.bridge.data import frame_formats, pending_frames
from duolog.bridge.data.delays import Delays
from duolog.bridge.state.deleted_topics import IsGone, in_slices
from duolog.bridge.state.positions import Positions
from duolog.bridge.state.producers import InvalidProducerEpoch, Producers
from duolog.bridge.state.records import (
    CommittedPosition,
    GroupDeleted,
    QueueTransactions,
    Record,
    TransactionalIdSettled,
    TransactionalIdsForgotten,
    TransactionGrew,
)
from duolog.bridge.state.topics import Topics
from duolog.delay.rows import Timer
from duolog.protocol.kafka import marker
from duolog.protocol.kafka.record_batch import BatchHeader, read_header
from duolog.store.entry import Promise, Slot
from duolog.store.errors import following
from duolog.store.index.queue import Queue
from duolog.store.state_log import StateLog
from duolog.store.unit import Frame
from duolog.txn import coordinator
from duolog.txn.coordinator import (
    Ask,
    Coordinator,
    Outcome,
    Producer,
    State,
)
from duolog.txn.isolation import Aborted, Isolation

TIDIED_AT_ONCE: Final = 1000  # queues whose aborted transactions are looked through in one slice
ENDED_AT_ONCE: Final = 100  # transactions whose time is over, and ids that expire, in one go
DELAYED_MAX: Final = 10_000  # records of one transaction: its commit makes timers of them, at 1 us each
MARKER_BYTES: Final = 256  # more than a marker takes in the log
POSITION_BYTES: Final = 64  # and a position, its text aside
_CHARACTER_BYTES: Final = 4
_KEYS_IN_RECORD: Final = 1000
_ABORTED_BYTES: Final = 32
_ABORTED_IN_RECORD: Final = 10_000

Transaction = coordinator.Transaction[CommittedPosition]


class TransactionError(Exception):
    """A request of a transactional producer is refused, and nothing has changed."""


class InvalidTransactionState(TransactionError):
    """Not in this state: nothing is open, or it ended the other way, or the queue is not part of it."""


class ProducerFenced(TransactionError):
    """A newer producer has taken over the transactional id, or its transaction took too long."""


class UnknownTransactionalProducer(TransactionError):
    """The transactional id does not have this producer id; maybe nobody has initialized it, or it has expired."""


class NoTransactionalId(TransactionError):
    """A transactional batch in a request without a transactional id."""


class InvalidTransactionTimeout(TransactionError):
    """Not above 0, or above `txn.timeout_max_ms`."""


class TransactionLimit(TransactionError):
    """`txn.ids_max`, `txn.pending_positions_max`, `txn.aborted_max`, or what one unit of the log can hold."""


class Transactions:
    """The owner of transactional ids and of the queues' isolation."""

    def __init__(
        self,
        state_log: StateLog,
        topics: Topics,
        positions: Positions,
        producers: Producers,
        delays: Delays,
        options: Options,
    ) -> None:
        self._state_log, self._topics, self._positions, self._producers = state_log, topics, positions, producers
        self._delays = delays
        self._options = options.txn
        # Whatever ends a transaction, and a snapshot of all, must fit into a unit.
        self._unit_bytes_max = options.store.segment_bytes // 2
        self._aborted_max = min(self._options.aborted_max, self._unit_bytes_max // 2 // _ABORTED_BYTES)
        self.isolation = Isolation()
        self.coordinator: Coordinator[CommittedPosition] = Coordinator()
        self._snapshot_jumps_ms = 0  # The clock's jumps at the moment that the snapshot shows.
        state_log.own(TransactionalIdSettled, self._replay_settled)
        state_log.own(TransactionGrew, self._replay_grew)
        state_log.own(TransactionalIdsForgotten, self._replay_forgotten)
        state_log.own(QueueTransactions, self._replay_queue)
        state_log.own(GroupDeleted, self._replay_group_deleted)
        state_log.on_extra(pending_frames.HELD_EXTRA_KIND, self._replay_delayed)
        state_log.on_frame(self._replay_frame)
        moment = state_log.on_copied_snapshot(self._names_of_snapshot, self._records_of_id)
        self.coordinator.before_change = moment.before_change
        queues = state_log.on_copied_snapshot(lambda: self.isolation.keys, self._records_of_queue)
        self.isolation.before_change = queues.before_change

    # -- Producers

    def init(
        self, transactional_id: str, timeout_ms: int, claimed: Producer | None, now_ms: int
    ) -> tuple[Producer, Promise]:
        """Give the producer that is to go on with a transactional id; all before it are fenced.

        `claimed` is what a producer says to be that goes on after an error. An open transaction is aborted.
        Raises TransactionError, StoreError.
        """
        if not 0 < timeout_ms <= self._options.timeout_max_ms:
            raise InvalidTransactionTimeout(
                f"transaction timeout {timeout_ms} ms; 1 to {self._options.timeout_max_ms} are allowed"
            )
        transaction = self.coordinator.get(transactional_id)
        if transaction is None:
            if len(self.coordinator) >= self._options.ids_max:
                raise TransactionLimit(f"{len(self.coordinator)} transactional ids; txn.ids_max is reached")
            producer = Producer(self._producers.allocate(now_ms)[0], 0)
            return self._settle([], transactional_id, producer, timeout_ms, State.EMPTY, None, now_ms)
        outcome = self._judged(transaction, Ask.INIT if claimed is None else Ask.RESUME, claimed)
        if outcome is Outcome.REPEAT:
            return transaction.producer, self._state_log.barrier()
        frames = self._markers(transaction, transaction.next_epoch, now_ms, is_commit=False)
        before = None if claimed is None else transaction.producer
        producer = self._next_producer(transaction, now_ms)
        return self._settle(frames, transactional_id, producer, timeout_ms, State.EMPTY, before, now_ms)

    # -- What becomes part of a transaction

    def add_queues(self, transactional_id: str, producer: Producer, keys: Sequence[int], now_ms: int) -> Promise:
        """Let queues be part of the producer's transaction, and open it if need be."""
        transaction, _ = self._asked(transactional_id, Ask.ADD, producer)
        new = [key for key in keys if key not in transaction.keys]
        if not new:
            return self._state_log.barrier()
        self._check_growth(transaction, len(new))
        parts = range(0, len(new), _KEYS_IN_RECORD)
        records = [TransactionGrew(producer.id, now_ms, new[at : at + _KEYS_IN_RECORD]) for at in parts]
        return self._state_log.commit(records, now_ms).promise

    def add_group(self, transactional_id: str, producer: Producer, group: str, now_ms: int) -> Promise:
        """Let positions of a group be part of it, of those that come."""
        transaction, outcome = self._asked(transactional_id, Ask.ADD, producer)
        if outcome is Outcome.GO_ON and group in transaction.positions:
            return self._state_log.barrier()
        self._check_positions(transaction, group, ())
        return self._state_log.commit([TransactionGrew(producer.id, now_ms, group=group)], now_ms).promise

    def add_positions(
        self,
        transactional_id: str,
        producer: Producer,
        group: str,
        positions: Sequence[CommittedPosition],
        now_ms: int,
        *,
        adds_itself: bool,
    ) -> Promise:
        """Take positions that become the group's with the commit; nobody sees them before."""
        transaction = self._admitted(transactional_id, producer, adds_itself=adds_itself)
        if not adds_itself and group not in transaction.positions:
            raise InvalidTransactionState(f"group {group} was not added to the transaction of {transactional_id}")
        self._positions.check(group, positions)
        self._check_positions(transaction, group, positions)
        self._check_growth(transaction, 0, positions)
        return self._state_log.commit([TransactionGrew(producer.id, now_ms, (), group, positions)], now_ms).promise

    def admit(self, key: int, header: BatchHeader, transactional_id: str | None, *, adds_itself: bool) -> None:
        """Judge a batch of an idempotent producer before its append; raises TransactionError, InvalidProducerEpoch.

        `adds_itself`: the queue becomes part of the transaction by this batch (version 2), else it must be already.
        """
        if not header.is_transactional:
            if self.isolation.is_open(key, header.producer_id):
                raise InvalidTransactionState(f"producer {header.producer_id} has an open transaction in this queue")
            return
        if transactional_id is None:
            raise NoTransactionalId("a transactional batch in a request without a transactional id")
        producer = Producer(header.producer_id, header.producer_epoch)
        transaction = self._admitted(transactional_id, producer, adds_itself=adds_itself)
        if key not in transaction.keys:
            if not adds_itself:
                raise InvalidTransactionState(f"the partition was not added to the transaction of {transactional_id}")
            self._check_growth(transaction, 1)

    def wrote(self, key: int, producer_id: int, slot: Slot) -> None:
        """Take note of an appended transactional batch, live and at recovery alike."""
        _, base_offset, stored_ms = slot
        self.isolation.begin(key, producer_id, base_offset)
        transaction = self.coordinator.of_producer(producer_id)
        if transaction is not None:
            self.coordinator.begin(transaction, stored_ms)
            if key not in transaction.keys:
                self.coordinator.add_queues(transaction, (key,))

    def check_delayed(self, producer_id: int, count: int) -> None:
        """Refuse more delayed records than a commit can make timers of at once."""
        held = self._delays.held_count(producer_id)
        if held + count > DELAYED_MAX:
            raise TransactionLimit(f"{held} + {count} delayed records in a transaction; {DELAYED_MAX} are allowed")

    def _check_positions(self, transaction: Transaction, group: str, positions: Sequence[CommittedPosition]) -> None:
        """Refuse groups and positions beyond the limits; those that the transaction has may be moved."""
        options, known = self._options, transaction.positions.get(group)
        if known is None and len(transaction.positions) >= options.groups_max:
            raise TransactionLimit(f"{options.groups_max} groups in the transaction of {transaction.name[:100]}")
        new_count = sum(position.key not in (known or ()) for position in positions) + (known is None)
        if new_count and self.coordinator.pending_count + new_count > options.pending_positions_max:
            raise TransactionLimit(f"{self.coordinator.pending_count} positions and groups in transactions")

    def _check_growth(self, transaction: Transaction, queue_count: int, new: Sequence[CommittedPosition] = ()) -> None:
        """Refuse what would make the transaction too large to be ended in one unit, or too dear to remember."""
        if self.isolation.aborted_count >= self._aborted_max:
            raise TransactionLimit(f"{self.isolation.aborted_count} aborted transactions are remembered")
        options = self._options
        if queue_count and len(transaction.keys) + queue_count > options.partitions_max:
            raise TransactionLimit(
                f"{len(transaction.keys)} + {queue_count} partitions in the transaction of {transaction.name[:100]}; "
                f"txn.partitions_max is {options.partitions_max}"
            )
        if queue_count and self.coordinator.queue_count + queue_count > options.pending_partitions_max:
            raise TransactionLimit(f"{self.coordinator.queue_count} partitions in open transactions")
        size = (len(transaction.keys) + queue_count) * MARKER_BYTES
        for positions in (new, *(known.values() for known in transaction.positions.values())):
            size += sum(POSITION_BYTES + _CHARACTER_BYTES * len(position.metadata) for position in positions)
        if size > self._unit_bytes_max:
            raise TransactionLimit(f"the transaction of {transaction.name} would take {size} bytes to end")

    # -- The end

    def end(
        self, transactional_id: str, producer: Producer, now_ms: int, *, is_commit: bool, renews: bool
    ) -> tuple[Producer, Promise]:
        """Commit or abort; gives the producer to go on as, which has a new epoch if the client `renews` it."""
        if renews:
            ask = Ask.COMMIT_RENEW if is_commit else Ask.ABORT_RENEW
        else:
            ask = Ask.COMMIT if is_commit else Ask.ABORT
        transaction, outcome = self._asked(transactional_id, ask, producer)
        if outcome is Outcome.REPEAT:
            return transaction.producer, self._state_log.barrier()
        next_producer = self._next_producer(transaction, now_ms) if renews else producer
        marker_epoch = transaction.next_epoch if renews else producer.epoch
        before = producer if renews else None
        return self._end(transaction, next_producer, marker_epoch, before, now_ms, is_commit=is_commit)

    def fence(self, transaction: Transaction, now_ms: int) -> Promise:
        """Abort an open transaction without being asked by its producer, which is fenced; else nothing happens."""
        if transaction.judge(Ask.FENCE) is Outcome.NOTHING:
            return self._state_log.barrier()
        producer = self._next_producer(transaction, now_ms)
        return self._end(transaction, producer, transaction.next_epoch, None, now_ms, is_commit=False)[1]

    def _end(
        self,
        transaction: Transaction,
        producer: Producer,
        marker_epoch: int,
        before: Producer | None,
        now_ms: int,
        *,
        is_commit: bool,
    ) -> tuple[Producer, Promise]:
        records: list[Record] = []
        if is_commit:
            for group, positions in transaction.positions.items():
                if positions:
                    records += self._positions.checked_records(group, [*positions.values()], now_ms)
        frames = self._markers(transaction, marker_epoch, now_ms, is_commit=is_commit)
        state = State.COMMITTED if is_commit else State.ABORTED
        name, timeout_ms = transaction.name, transaction.timeout_ms
        return self._settle(frames, name, producer, timeout_ms, state, before, now_ms, records)

    def _settle(
        self,
        markers: Sequence[Frame],
        transactional_id: str,
        producer: Producer,
        timeout_ms: int,
        state: State,
        before: Producer | None,
        now_ms: int,
        records: Sequence[Record] = (),
    ) -> tuple[Producer, Promise]:
        """Append the end of what was open, and how the id goes on, as one unit."""
        number_before, epoch_before = before or (coordinator.NO_PRODUCER, coordinator.NO_EPOCH)
        settled = TransactionalIdSettled(
            transactional_id, *producer, timeout_ms, state, now_ms, number_before, epoch_before
        )
        appended = self._state_log.commit([*records, settled], now_ms, markers)
        with following("the end of a transaction"):
            for frame, slot in zip(markers, appended.slots, strict=False):
                assert isinstance(frame.body, bytearray)
                self._ended(frame.queue.key, slot, frame.body)
                header = read_header(frame.body)
                self._producers.take_marker(frame.queue.key, header.producer_id, header.producer_epoch, slot.stored_ms)
        return producer, appended.promise

    def _markers(self, transaction: Transaction, epoch: int, now_ms: int, *, is_commit: bool) -> list[Frame]:
        """A marker for each queue that the transaction wrote to. It is the unit's only entry in that queue."""
        frames = []
        for key in sorted(transaction.keys):
            number, queue_id = Queue.split(key)
            topic = self._topics.by_number(number)
            if topic is None or not self.isolation.is_open(key, transaction.producer.id):
                continue
            queue = topic.queues[queue_id]
            body = marker.build(
                queue.end_offset,
                topic.leader_epoch(queue_id),
                now_ms,
                transaction.producer.id,
                epoch,
                is_commit=is_commit,
            )
            frames.append(Frame(queue, frame_formats.KAFKA, body))
        return frames

    def _ended(self, key: int, slot: Slot, frame: bytearray | memoryview) -> None:
        """Take note of an appended marker, live and at recovery alike."""
        producer_id = read_header(frame).producer_id
        self.isolation.end(key, producer_id, slot.base_offset, is_aborted=not marker.is_commit(frame))

    def _next_producer(self, transaction: Transaction, now_ms: int) -> Producer:
        if transaction.is_exhausted:
            return Producer(self._producers.allocate(now_ms)[0], 0)
        return Producer(transaction.producer.id, transaction.next_epoch)

    # -- Judging

    def _asked(self, transactional_id: str, ask: Ask, producer: Producer) -> tuple[Transaction, Outcome]:
        transaction = self.coordinator.get(transactional_id)
        if transaction is None:
            raise UnknownTransactionalProducer(f"transactional id {transactional_id[:100]} is not known")
        return transaction, self._judged(transaction, ask, producer)

    def _judged(self, transaction: Transaction, ask: Ask, producer: Producer | None) -> Outcome:
        outcome = transaction.judge(ask, producer)
        if outcome in coordinator.REFUSALS:
            known = f"transactional id {transaction.name} is {transaction.state.title} with {transaction.producer}"
            raise _REFUSALS[outcome](f"{known}; {ask.name} by {producer}")
        return outcome

    def _admitted(self, transactional_id: str, producer: Producer, *, adds_itself: bool) -> Transaction:
        """Judge a write. Writers are told of a newer one by another error than those who ask the coordinator."""
        try:
            return self._asked(transactional_id, Ask.ADD if adds_itself else Ask.WRITE, producer)[0]
        except ProducerFenced as error:
            raise InvalidProducerEpoch(str(error)) from error

    # -- Time

    def next_deadline_ms(self) -> int | None:
        """Wall time at which the next open transaction takes too long."""
        return self.coordinator.next_deadline_ms()

    def expire(self, now_ms: int) -> None:
        """Abort what takes too long; raises StoreError."""
        for transaction in islice(self.coordinator.overdue(now_ms), ENDED_AT_ONCE):
            self.fence(transaction, now_ms)

    def clock_stepped(self, by_ms: int) -> None:
        """The wall clock jumped: open transactions have as much time left as before."""
        self.coordinator.shift(by_ms)

    def clock_was_set_back(self, now_ms: int) -> Iterator[int]:
        """None began later than now, whatever a clock that was ahead has left in the log; goes on in slices."""
        return self.coordinator.begun_by(now_ms)

    def tidy(self, now_ms: int) -> Iterator[None]:
        """Forget ids that are idle for too long, and aborted transactions that nobody can read any more, in slices."""
        for count, key in enumerate([key for key, _ in self.isolation], 1):
            if count % TIDIED_AT_ONCE == 0:
                yield
            number, queue_id = Queue.split(key)
            topic = self._topics.by_number(number)
            if topic is not None:
                self.isolation.forget_below(topic.queues[queue_id])
        idle = self.coordinator.idle_since(now_ms - self._options.id_expiration_ms, ENDED_AT_ONCE)
        if idle:
            self._state_log.commit([TransactionalIdsForgotten(idle)], now_ms)

    # -- Replay

    def _replay_settled(self, record: TransactionalIdSettled, slot: Slot) -> None:
        before = None
        if record.id_before != coordinator.NO_PRODUCER:
            before = Producer(record.id_before, record.epoch_before)
        producer = Producer(record.producer_id, record.epoch)
        ended = self.coordinator.get(record.transactional_id)
        if ended is not None:
            self._delays.decide(ended.producer.id, is_commit=record.state == State.COMMITTED)
        self.coordinator.settle(
            record.transactional_id, producer, record.timeout_ms, State(record.state), before, record.at_ms
        )

    def _replay_grew(self, record: TransactionGrew, slot: Slot) -> None:
        transaction = self.coordinator.of_producer(record.producer_id)
        if transaction is None:
            return
        self.coordinator.begin(transaction, record.at_ms)
        self.coordinator.add_queues(transaction, (key for key in record.keys if key >> 16 in self._topics))
        if record.group is not None:
            known = ((each.key, each) for each in record.positions if each.key >> 16 in self._topics)
            self.coordinator.add_positions(transaction, record.group, known)

    def _replay_forgotten(self, record: TransactionalIdsForgotten, slot: Slot) -> None:
        for transactional_id in record.transactional_ids:
            self.coordinator.forget(transactional_id)

    def _replay_queue(self, record: QueueTransactions, slot: Slot) -> None:
        if record.key >> 16 not in self._topics:
            return
        columns = array("q", record.aborted)
        if sys.byteorder == "little":
            columns.byteswap()
        aborted = map(Aborted, *(columns[at::4] for at in range(4)))
        if record.is_continued:
            for each in aborted:
                self.isolation.add_aborted(record.key, each)
        else:
            self.isolation.restore(record.key, record.open, aborted)

    def _replay_frame(self, key: int, slot: Slot, form: int, count: int, frame: memoryview, extra: bytes) -> None:
        if form != frame_formats.KAFKA or not marker.is_transactional(frame):
            return
        if marker.is_marker(frame):
            self._ended(key, slot, frame)
        else:
            self.wrote(key, read_header(frame).producer_id, slot)

    def _replay_delayed(self, slot: Slot, form: int, size: int, extra: bytes) -> None:
        key, due_ms, producer_id = pending_frames.read_held_extra(extra)
        transaction = self.coordinator.of_producer(producer_id)
        if transaction is not None:
            self.coordinator.begin(transaction, slot.stored_ms)
            self._delays.hold(producer_id, Timer(due_ms, slot.position, key, size, 0, form))

    def sweep(self, is_gone: IsGone) -> Iterator[int]:
        """Forget the queues of deleted topics; until then a transaction that ends passes them by."""
        for keys in in_slices(key for key, _ in self.isolation):
            for key in keys:
                if is_gone(key):
                    self.isolation.forget(key)
            yield len(keys)
        for producer_ids in in_slices(transaction.producer.id for transaction in self.coordinator.open):
            for producer_id in producer_ids:
                yield self.coordinator.forget_queues(producer_id, is_gone)

    def _replay_group_deleted(self, record: GroupDeleted, slot: Slot) -> None:
        self.coordinator.forget_group(record.group)

    # -- Snapshots

    def _names_of_snapshot(self) -> Iterable[str]:
        self._snapshot_jumps_ms = self.coordinator.jumps.total_ms
        return self.coordinator.names

    def _records_of_id(self, name: str) -> list[Record] | None:
        transaction = self.coordinator.get(name)
        if transaction is None:
            return None
        state = State.EMPTY if transaction.state is State.ONGOING else transaction.state
        number_before, epoch_before = transaction.before or (coordinator.NO_PRODUCER, coordinator.NO_EPOCH)
        producer, started_ms = transaction.producer, transaction.began_ms + self._snapshot_jumps_ms
        records: list[Record] = [
            TransactionalIdSettled(
                name, *producer, transaction.timeout_ms, state, transaction.updated_ms, number_before, epoch_before
            )
        ]
        if transaction.state is State.ONGOING:
            records.append(TransactionGrew(producer.id, started_ms, sorted(transaction.keys)))
            for group, found in transaction.positions.items():
                positions = [*found.values()]
                for at in range(0, len(positions) or 1, _KEYS_IN_RECORD):
                    part = positions[at : at + _KEYS_IN_RECORD]
                    records.append(TransactionGrew(producer.id, started_ms, (), group, part))
        return records

    def _records_of_queue(self, key: int) -> list[Record] | None:
        queue = self.isolation.get(key)
        if queue is None:
            return None
        columns = queue.columns_of_aborted()
        if sys.byteorder == "little":
            columns.byteswap()
        aborted = memoryview(columns).cast("B")
        size = _ABORTED_IN_RECORD * _ABORTED_BYTES
        more = (bytes(aborted[at : at + size]) for at in range(size, len(aborted), size))
        return [
            QueueTransactions(key, [*queue.open], bytes(aborted[:size])),
            *(QueueTransactions(key, (), part, is_continued=True) for part in more),
        ]


_REFUSALS: Final[dict[Outcome, type[TransactionError]]] = {
    Outcome.INVALID_STATE: InvalidTransactionState,
    Outcome.FENCED: ProducerFenced,
    Outcome.UNKNOWN: UnknownTransactionalProducer,
}
