"""Kafka transactions in the log: appends what `txn` decides, and makes the markers that end transactions.

    InitProducerId          TransactionalIdSettled                        one unit
    a transactional batch   the frame alone, whose producer id names the transaction
    a delayed record        a frame with the producer id in its `extra`; the commit makes it a pending message
    AddPartitions, offsets  TransactionGrew
    the end                 a marker for each queue with records, the groups' committed offsets,
                            TransactionalIdSettled: one unit

So a transaction ends in all its queues and groups or in none, and a restart has nothing to complete. A queue that was
added and never written to gets no marker.

`txn.requests` decides which requests are allowed, by the state in `txn.coordinator` and by limits. `txn.isolation` has
what consumers of committed records may read. `transaction_replay.py` keeps both in step with the log.
"""

from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Final

from duolog.bridge.config import Options
from duolog.bridge.records import frame_formats
from duolog.bridge.records.codec import Record
from duolog.bridge.records.groups import CommittedOffset
from duolog.bridge.records.transactions import TransactionalIdSettled, TransactionalIdsForgotten, TransactionGrew
from duolog.bridge.state.deleted_topics import IsDeleted, in_slices
from duolog.bridge.state.group_offsets import GroupOffsets
from duolog.bridge.state.producers import InvalidProducerEpoch, Producers
from duolog.bridge.state.topics import Topics
from duolog.bridge.transactions.transaction_replay import KEYS_IN_RECORD, TransactionReplay
from duolog.delay import entry_extra
from duolog.delay.rows import Timer, marks_of
from duolog.delay.timers import Timers
from duolog.protocol.kafka import marker
from duolog.protocol.kafka.record_batch import BatchHeader, read_header
from duolog.store.entry import EntrySlot, Promise
from duolog.store.errors import updating_state
from duolog.store.index.queue import Queue
from duolog.store.state_log import StateLog
from duolog.store.unit import Frame
from duolog.txn import coordinator
from duolog.txn.coordinator import Coordinator, Producer, RequestOutcome, State, TransactionRequest
from duolog.txn.isolation import Isolation
from duolog.txn.requests import (
    ABORTED_BYTES,
    InvalidTransactionState,
    ProducerFenced,
    TransactionLimit,
    TransactionLimits,
    TransactionRules,
)

TIDIED_AT_ONCE: Final = 1000  # Queues whose aborted transactions are checked in one slice.
ENDED_AT_ONCE: Final = 100  # Transactions past their deadlines, and expired ids, in one turn of the loop.
DELAYED_MAX: Final = 10_000  # Delayed records of one transaction. Its commit makes them pending messages, at 1 us each.

Transaction = coordinator.Transaction[CommittedOffset]


class Transactions:
    """The owner of transactional ids, and of the open and aborted transactions of all queues.

    The class has more than 20 methods because it has one for each request of the transaction APIs, and one for each
    duty of the clock. Decisions are made by `TransactionRules`, and replay is done by `TransactionReplay`.
    """

    def __init__(
        self,
        state_log: StateLog,
        topics: Topics,
        group_offsets: GroupOffsets,
        producers: Producers,
        timers: Timers,
        options: Options,
    ) -> None:
        self._state_log, self._topics, self._group_offsets, self._producers = (
            state_log,
            topics,
            group_offsets,
            producers,
        )
        self._timers = timers
        self._id_expiration_ms = options.txn.id_expiration_ms
        self.isolation = Isolation()
        self.coordinator: Coordinator[CommittedOffset] = Coordinator()
        self.rules = TransactionRules(self.coordinator, self.isolation, _limits(options))
        TransactionReplay(state_log, self.coordinator, self.isolation, topics, self._decide_delayed)
        state_log.on_extra(entry_extra.HELD_KIND, self._replay_delayed)
        state_log.on_frame(self._replay_frame)

    # -- Producers

    def init(
        self, transactional_id: str, timeout_ms: int, claimed: Producer | None, now_ms: int
    ) -> tuple[Producer, Promise]:
        """Return the next producer of a transactional id; all earlier ones are fenced, an open transaction is aborted.

        `claimed` is the producer in the request of a client that continues after an error. Raises TransactionError,
        StoreError.
        """
        self.rules.check_timeout(timeout_ms)
        transaction = self.coordinator.get(transactional_id)
        if transaction is None:
            self.rules.check_new_id()
            producer = Producer(self._producers.allocate(now_ms)[0], 0)
            return self._append_state([], transactional_id, producer, timeout_ms, State.EMPTY, None, now_ms)
        request = TransactionRequest.INIT if claimed is None else TransactionRequest.RESUME
        outcome = self.rules.outcome_of(transaction, request, claimed)
        if outcome is RequestOutcome.REPEAT:
            return transaction.producer, self._state_log.barrier()
        frames = self._markers(transaction, transaction.next_epoch, now_ms, is_commit=False)
        previous = None if claimed is None else transaction.producer
        producer = self._next_producer(transaction, now_ms)
        return self._append_state(frames, transactional_id, producer, timeout_ms, State.EMPTY, previous, now_ms)

    # -- The parts of a transaction

    def add_queues(self, transactional_id: str, producer: Producer, keys: Sequence[int], now_ms: int) -> Promise:
        """Add queues to the producer's transaction, which is opened if none is open."""
        transaction, _ = self.rules.decide(transactional_id, TransactionRequest.ADD, producer)
        new = [key for key in keys if key not in transaction.keys]
        if not new:
            return self._state_log.barrier()
        self.rules.check_growth(transaction, len(new))
        parts = range(0, len(new), KEYS_IN_RECORD)
        records = [TransactionGrew(producer.id, now_ms, new[at : at + KEYS_IN_RECORD]) for at in parts]
        return self._state_log.commit(records, now_ms).promise

    def add_group(self, transactional_id: str, producer: Producer, group: str, now_ms: int) -> Promise:
        """Add a group to the producer's transaction, before its committed offsets."""
        transaction, outcome = self.rules.decide(transactional_id, TransactionRequest.ADD, producer)
        if outcome is RequestOutcome.GO_ON and group in transaction.offsets:
            return self._state_log.barrier()
        self.rules.check_offsets(transaction, group, ())
        return self._state_log.commit([TransactionGrew(producer.id, now_ms, group=group)], now_ms).promise

    def add_offsets(
        self,
        transactional_id: str,
        producer: Producer,
        group: str,
        offsets: Sequence[CommittedOffset],
        now_ms: int,
        *,
        adds_itself: bool,
    ) -> Promise:
        """Add committed offsets of a group, which take effect with the commit of the transaction."""
        transaction = self._check_writer(transactional_id, producer, adds_itself=adds_itself)
        if not adds_itself and group not in transaction.offsets:
            raise InvalidTransactionState(f"group {group} was not added to the transaction of {transactional_id}")
        self._group_offsets.check(group, offsets)
        self.rules.check_offsets(transaction, group, offsets)
        self.rules.check_growth(transaction, 0, offsets)
        return self._state_log.commit([TransactionGrew(producer.id, now_ms, (), group, offsets)], now_ms).promise

    def admit(self, key: int, header: BatchHeader, transactional_id: str | None, *, adds_itself: bool) -> None:
        """Check a batch of an idempotent producer before its append. Raises TransactionError, InvalidProducerEpoch.

        With `adds_itself` the queue becomes part of the transaction by the batch (transaction version 2).
        """
        if not header.is_transactional:
            self.rules.check_plain_write(key, header.producer_id)
            return
        producer = Producer(header.producer_id, header.producer_epoch)
        try:
            self.rules.check_write(key, producer, transactional_id, adds_itself=adds_itself)
        except ProducerFenced as error:
            raise InvalidProducerEpoch(str(error)) from error

    def _check_writer(self, transactional_id: str, producer: Producer, *, adds_itself: bool) -> Transaction:
        """Return the transaction of a write. A fenced writer gets another error than other fenced requests."""
        request = TransactionRequest.ADD if adds_itself else TransactionRequest.WRITE
        try:
            return self.rules.decide(transactional_id, request, producer)[0]
        except ProducerFenced as error:
            raise InvalidProducerEpoch(str(error)) from error

    def wrote(self, key: int, producer_id: int, slot: EntrySlot) -> None:
        """Follow an appended transactional batch, live and at recovery."""
        _, base_offset, stored_ms = slot
        self.isolation.begin(key, producer_id, base_offset)
        transaction = self.coordinator.of_producer(producer_id)
        if transaction is not None:
            self.coordinator.begin(transaction, stored_ms)
            if key not in transaction.keys:
                self.coordinator.add_queues(transaction, (key,))

    def check_delayed(self, producer_id: int, count: int) -> None:
        """Raise TransactionLimit if a transaction has more delayed records than one commit can process."""
        held = self._timers.held.count(producer_id)
        if held + count > DELAYED_MAX:
            raise TransactionLimit(f"{held} + {count} delayed records in a transaction; {DELAYED_MAX} are allowed")

    # -- The end

    def end(
        self, transactional_id: str, producer: Producer, now_ms: int, *, is_commit: bool, renews: bool
    ) -> tuple[Producer, Promise]:
        """Commit or abort; return the producer for the next transaction, with a new epoch if `renews` asks for one."""
        if renews:
            request = TransactionRequest.COMMIT_RENEW if is_commit else TransactionRequest.ABORT_RENEW
        else:
            request = TransactionRequest.COMMIT if is_commit else TransactionRequest.ABORT
        transaction, outcome = self.rules.decide(transactional_id, request, producer)
        if outcome is RequestOutcome.REPEAT:
            return transaction.producer, self._state_log.barrier()
        next_producer = self._next_producer(transaction, now_ms) if renews else producer
        marker_epoch = transaction.next_epoch if renews else producer.epoch
        previous = producer if renews else None
        return self._end(transaction, next_producer, marker_epoch, previous, now_ms, is_commit=is_commit)

    def fence(self, transaction: Transaction, now_ms: int) -> Promise:
        """Abort a transaction, if it is open, and fence its producer, which has not asked for it."""
        if transaction.judge(TransactionRequest.BROKER_ABORT) is RequestOutcome.NOTHING:
            return self._state_log.barrier()
        producer = self._next_producer(transaction, now_ms)
        return self._end(transaction, producer, transaction.next_epoch, None, now_ms, is_commit=False)[1]

    def _end(
        self,
        transaction: Transaction,
        producer: Producer,
        marker_epoch: int,
        previous: Producer | None,
        now_ms: int,
        *,
        is_commit: bool,
    ) -> tuple[Producer, Promise]:
        records: list[Record] = []
        if is_commit:
            for group, offsets in transaction.offsets.items():
                if offsets:
                    records += self._group_offsets.checked_records(group, [*offsets.values()], now_ms)
        frames = self._markers(transaction, marker_epoch, now_ms, is_commit=is_commit)
        state = State.COMMITTED if is_commit else State.ABORTED
        name, timeout_ms = transaction.name, transaction.timeout_ms
        return self._append_state(frames, name, producer, timeout_ms, state, previous, now_ms, records)

    def _append_state(
        self,
        markers: Sequence[Frame],
        transactional_id: str,
        producer: Producer,
        timeout_ms: int,
        state: State,
        previous: Producer | None,
        now_ms: int,
        records: Sequence[Record] = (),
    ) -> tuple[Producer, Promise]:
        """Append the end of an open transaction and the next state of its transactional id as one unit."""
        previous_id, previous_epoch = previous or (coordinator.NO_PRODUCER, coordinator.NO_EPOCH)
        settled = TransactionalIdSettled(
            transactional_id, *producer, timeout_ms, state, now_ms, previous_id, previous_epoch
        )
        # The publisher checks no limits here, because a transaction that began must be able to end.
        appended = self._state_log.commit([*records, settled], now_ms, markers)
        with updating_state("the end of a transaction"):
            for frame, slot in zip(markers, appended.slots, strict=False):
                assert isinstance(frame.body, bytearray)
                self._ended(frame.queue.key, slot, frame.body)
                header = read_header(frame.body)
                self._producers.take_marker(frame.queue.key, header.producer_id, header.producer_epoch, slot.stored_ms)
        return producer, appended.promise

    def _markers(self, transaction: Transaction, epoch: int, now_ms: int, *, is_commit: bool) -> list[Frame]:
        """Make a marker for each queue that the transaction wrote to. It is the unit's only entry in that queue."""
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

    def _ended(self, key: int, slot: EntrySlot, frame: bytearray | memoryview) -> None:
        """Follow an appended marker, live and at recovery."""
        producer_id = read_header(frame).producer_id
        self.isolation.end(key, producer_id, slot.base_offset, is_aborted=not marker.is_commit(frame))

    def _next_producer(self, transaction: Transaction, now_ms: int) -> Producer:
        if transaction.is_exhausted:
            return Producer(self._producers.allocate(now_ms)[0], 0)
        return Producer(transaction.producer.id, transaction.next_epoch)

    # -- Time

    def next_deadline_ms(self) -> int | None:
        """Return the wall time at which the next open transaction exceeds its timeout."""
        return self.coordinator.next_deadline_ms()

    def expire(self, now_ms: int) -> None:
        """Abort the transactions that exceed their timeouts. Raises StoreError."""
        for transaction in islice(self.coordinator.overdue(now_ms), ENDED_AT_ONCE):
            self.fence(transaction, now_ms)

    def clock_stepped(self, by_ms: int) -> None:
        """Move the deadlines of open transactions by a jump of the wall clock."""
        self.coordinator.clock_stepped(by_ms)

    def clock_was_set_back(self, now_ms: int) -> Iterator[int]:
        """Correct, in slices, transactions whose begin is in the future because the clock was ahead."""
        return self.coordinator.clock_was_set_back(now_ms)

    def tidy(self, now_ms: int) -> Iterator[None]:
        """Remove expired transactional ids, and aborted transactions below log start offsets, in slices."""
        for count, key in enumerate([key for key, _ in self.isolation], 1):
            if count % TIDIED_AT_ONCE == 0:
                yield
            queue = self._topics.queue(key)
            if queue is not None:
                self.isolation.forget_below(queue)
        idle = self.coordinator.idle_since(now_ms - self._id_expiration_ms, ENDED_AT_ONCE)
        if idle:
            self._state_log.commit([TransactionalIdsForgotten(idle)], now_ms)

    # -- Replay

    def _replay_frame(self, key: int, slot: EntrySlot, form: int, count: int, frame: memoryview, extra: bytes) -> None:
        if form != frame_formats.KAFKA or not marker.is_transactional(frame):
            return
        if marker.is_marker(frame):
            self._ended(key, slot, frame)
        else:
            self.wrote(key, read_header(frame).producer_id, slot)

    def _replay_delayed(self, slot: EntrySlot, form: int, size: int, extra: bytes) -> None:
        key, due_ms, producer_id, entity = entry_extra.decode_held(extra)
        transaction = self.coordinator.of_producer(producer_id)
        if transaction is not None:
            self.coordinator.begin(transaction, slot.stored_ms)
            self._timers.hold(producer_id, Timer(due_ms, slot.position, key, size, marks_of(entity, 0), form))

    def sweep(self, is_deleted: IsDeleted) -> Iterator[int]:
        """Remove the queues of deleted topics. Until then the end of a transaction skips them."""
        for keys in in_slices(key for key, _ in self.isolation):
            for key in keys:
                if is_deleted(key):
                    self.isolation.forget(key)
            yield len(keys)
        for producer_ids in in_slices(transaction.producer.id for transaction in self.coordinator.open):
            for producer_id in producer_ids:
                yield self.coordinator.forget_queues(producer_id, is_deleted)

    def _decide_delayed(self, producer_id: int, is_commit: bool) -> None:
        """Make the delayed records of an ended transaction pending messages after a commit, or drop them."""
        self._timers.transaction_ended(producer_id, is_commit=is_commit)


def _limits(options: Options) -> TransactionLimits:
    txn, unit_bytes_max = options.txn, options.store.segment_bytes // 2
    return TransactionLimits(
        txn.timeout_max_ms,
        txn.ids_max,
        txn.groups_max,
        txn.partitions_max,
        txn.pending_partitions_max,
        txn.pending_positions_max,
        min(txn.aborted_max, unit_bytes_max // 2 // ABORTED_BYTES),
        unit_bytes_max,
    )
