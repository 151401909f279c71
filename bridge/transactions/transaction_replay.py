"""Replays the state records of Kafka transactions into the tables of `txn`, and makes those of a snapshot."""

import sys
from array import array
from collections.abc import Callable, Iterable
from typing import Final

from duolog.bridge.records.codec import Record
from duolog.bridge.records.groups import CommittedOffset, GroupDeleted
from duolog.bridge.records.transactions import (
    QueueTransactions,
    TransactionalIdSettled,
    TransactionalIdsForgotten,
    TransactionGrew,
)
from duolog.bridge.state.topics import Topics
from duolog.store.entry import EntrySlot
from duolog.store.index.queue import QUEUE_ID_BITS
from duolog.store.state_log import StateLog
from duolog.txn.coordinator import NO_EPOCH, NO_PRODUCER, Coordinator, Producer, State
from duolog.txn.isolation import Aborted, Isolation
from duolog.txn.requests import ABORTED_BYTES

KEYS_IN_RECORD: Final = 1000
_ABORTED_IN_RECORD: Final = 10_000


class TransactionReplay:
    """Keeps a coordinator and the isolation of queues in step with the state log.

    `on_end` is called with a producer id and whether it committed, before the coordinator ends its transaction.
    """

    def __init__(
        self,
        state_log: StateLog,
        coordinator: Coordinator[CommittedOffset],
        isolation: Isolation,
        topics: Topics,
        on_end: Callable[[int, bool], None],
    ) -> None:
        self._coordinator, self._isolation, self._topics, self._on_end = coordinator, isolation, topics, on_end
        self._snapshot_jumps_ms = 0  # The sum of the clock's jumps at the moment of the snapshot.
        state_log.own(TransactionalIdSettled, self._replay_settled)
        state_log.own(TransactionGrew, self._replay_grew)
        state_log.own(TransactionalIdsForgotten, self._replay_forgotten)
        state_log.own(QueueTransactions, self._replay_queue)
        state_log.own(GroupDeleted, self._replay_group_deleted)
        ids = state_log.on_copied_snapshot(self._names_of_snapshot, self._records_of_id)
        coordinator.before_change = ids.before_change
        queues = state_log.on_copied_snapshot(lambda: isolation.keys, self._records_of_queue)
        isolation.before_change = queues.before_change

    def _replay_settled(self, record: TransactionalIdSettled, slot: EntrySlot) -> None:
        previous = None
        if record.previous_id != NO_PRODUCER:
            previous = Producer(record.previous_id, record.previous_epoch)
        producer = Producer(record.producer_id, record.epoch)
        ended = self._coordinator.get(record.transactional_id)
        if ended is not None:
            self._on_end(ended.producer.id, record.state == State.COMMITTED)
        self._coordinator.set_state(
            record.transactional_id, producer, record.timeout_ms, State(record.state), previous, record.at_ms
        )

    def _replay_grew(self, record: TransactionGrew, slot: EntrySlot) -> None:
        transaction = self._coordinator.of_producer(record.producer_id)
        if transaction is None:
            return
        self._coordinator.begin(transaction, record.at_ms)
        self._coordinator.add_queues(transaction, (key for key in record.keys if key >> QUEUE_ID_BITS in self._topics))
        if record.group is not None:
            known = ((each.key, each) for each in record.offsets if each.key >> QUEUE_ID_BITS in self._topics)
            self._coordinator.add_offsets(transaction, record.group, known)

    def _replay_forgotten(self, record: TransactionalIdsForgotten, slot: EntrySlot) -> None:
        for transactional_id in record.transactional_ids:
            self._coordinator.forget(transactional_id)

    def _replay_queue(self, record: QueueTransactions, slot: EntrySlot) -> None:
        if record.key >> QUEUE_ID_BITS not in self._topics:
            return
        columns = array("q", record.aborted)
        if sys.byteorder == "little":
            columns.byteswap()
        aborted = map(Aborted, *(columns[at::4] for at in range(4)))
        if record.is_continued:
            for each in aborted:
                self._isolation.add_aborted(record.key, each)
        else:
            self._isolation.restore(record.key, record.open, aborted)

    def _replay_group_deleted(self, record: GroupDeleted, slot: EntrySlot) -> None:
        self._coordinator.forget_group(record.group)

    # -- Snapshots

    def _names_of_snapshot(self) -> Iterable[str]:
        self._snapshot_jumps_ms = self._coordinator.jumps.total_ms
        return self._coordinator.names

    def _records_of_id(self, name: str) -> list[Record] | None:
        transaction = self._coordinator.get(name)
        if transaction is None:
            return None
        state = State.EMPTY if transaction.state is State.ONGOING else transaction.state
        previous_id, previous_epoch = transaction.previous or (NO_PRODUCER, NO_EPOCH)
        producer, started_ms = transaction.producer, transaction.began_ms + self._snapshot_jumps_ms
        records: list[Record] = [
            TransactionalIdSettled(
                name, *producer, transaction.timeout_ms, state, transaction.updated_ms, previous_id, previous_epoch
            )
        ]
        if transaction.state is State.ONGOING:
            records.append(TransactionGrew(producer.id, started_ms, sorted(transaction.keys)))
            for group, found in transaction.offsets.items():
                offsets = [*found.values()]
                for at in range(0, len(offsets) or 1, KEYS_IN_RECORD):
                    part = offsets[at : at + KEYS_IN_RECORD]
                    records.append(TransactionGrew(producer.id, started_ms, (), group, part))
        return records

    def _records_of_queue(self, key: int) -> list[Record] | None:
        queue = self._isolation.get(key)
        if queue is None:
            return None
        columns = queue.columns_of_aborted()
        if sys.byteorder == "little":
            columns.byteswap()
        aborted = memoryview(columns).cast("B")
        size = _ABORTED_IN_RECORD * ABORTED_BYTES
        more = (bytes(aborted[at : at + size]) for at in range(size, len(aborted), size))
        return [
            QueueTransactions(key, [*queue.open], bytes(aborted[:size])),
            *(QueueTransactions(key, (), part, is_continued=True) for part in more),
        ]
