"""Kafka's transaction coordinator: a state machine in which each transactional id has one producer and one transaction.

    state            InitProducerId   begin     commit           abort
    Empty            Empty            Ongoing   -                - (2)
    Ongoing          Empty (1)        Ongoing   CompleteCommit   CompleteAbort
    CompleteCommit   Empty            Ongoing   - (3)            - (2)
    CompleteAbort    Empty            Ongoing   -                - (2, 3)

    begin   AddPartitionsToTxn or AddOffsetsToTxn; in transaction version 2 (KIP-890) also the first write
    abort   EndTxn, the timeout of the transaction, or a request of an operator
    (1)     The open transaction is aborted.
    (2)     EndTxn from version 5 on leads to CompleteAbort, and gives the producer a new epoch.
    (3)     EndTxn that repeats the last one gets the same answer again, and changes nothing.

One unit of the log ends a transaction: it has the markers, the committed offsets of groups and the new state. Kafka's
states PrepareCommit and PrepareAbort, between the decision and its completion, are therefore not needed. No request is
answered with CONCURRENT_TRANSACTIONS, and an InitProducerId request during an open transaction aborts it at once.

The producer id and epoch of a request are compared with those of the transactional id (`ProducerMatch`). Only the
newest producer of a transactional id is accepted; the others are fenced. With transaction version 2, the end of a
transaction gives the producer a new epoch, which Kafka calls an epoch bump. A repetition of the EndTxn request with the
previous epoch is still accepted, because its answer may have been lost.

`Transaction.judge` returns the decision on a request and changes nothing. The methods of `Coordinator` under "Changes
of state" are called after each append and at recovery. Times are wall milliseconds.
Source: Kafka's TransactionCoordinator.scala, TransactionMetadata.scala; KIP-98, KIP-360, KIP-890.
"""

import heapq
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from enum import Enum, IntEnum, auto
from typing import Final, Generic, NamedTuple, TypeVar

NO_PRODUCER: Final = -1
NO_EPOCH: Final = -1
NO_TIME: Final = -1
EPOCH_LAST: Final = 32766  # The last epoch of a producer id. Epoch 32767 is reserved to fence it (TransactionMetadata).
CHECKED_IN_SLICE: Final = 1024  # Open transactions that are checked in one slice.
# The heap of deadlines is built again when it has more than twice as many items as there are open transactions, plus
# this number, because items of ended transactions stay in it.
DEAD_DEADLINES_MAX: Final = 64

# A committed offset of a group in a queue, with its metadata. The coordinator does not interpret it.
OffsetT = TypeVar("OffsetT")


class State(IntEnum):
    """The state of a transactional id. The numbers are stored in the log."""

    EMPTY = 0
    ONGOING = 1
    COMMITTED = 4
    ABORTED = 5

    @property
    def kafka_name(self) -> str:
        """The name of the state in Kafka's answers (TransactionState.scala)."""
        return _KAFKA_NAMES[self]


_KAFKA_NAMES: Final = {
    State.EMPTY: "Empty",
    State.ONGOING: "Ongoing",
    State.COMMITTED: "CompleteCommit",
    State.ABORTED: "CompleteAbort",
}


class TransactionRequest(Enum):
    """The kinds of requests to the coordinator, by their effect on a transaction."""

    INIT = auto()  # InitProducerId of a producer that has just started.
    RESUME = auto()  # InitProducerId with producer id and epoch, of a producer that continues after an error (KIP-360).
    ADD = auto()  # AddPartitionsToTxn and AddOffsetsToTxn; in transaction version 2 also the first write.
    WRITE = auto()  # A batch or committed offsets; in transaction version 1 their queue or group must be added first.
    COMMIT = auto()  # EndTxn up to version 4.
    ABORT = auto()
    COMMIT_RENEW = auto()  # EndTxn from version 5 on, whose answer has a new epoch (an epoch bump).
    ABORT_RENEW = auto()
    BROKER_ABORT = auto()  # The broker aborts the transaction, because of its timeout or a request of an operator.


class ProducerMatch(Enum):
    """The result of comparing the producer id and epoch of a request with those of the transactional id."""

    CURRENT = auto()  # The newest producer.
    PREVIOUS = auto()  # The producer before the newest one, which may not have got the answer with its new epoch.
    FENCED = auto()  # Any other epoch of the producer id.
    UNKNOWN = auto()  # A producer id that does not belong to the transactional id.


class RequestOutcome(Enum):
    """The decision on a request."""

    RENEW = auto()  # Give the producer a new epoch.
    ABORT_RENEW = auto()  # Abort the transaction, and give the producer a new epoch.
    COMMIT_RENEW = auto()  # Commit the transaction, and give the producer a new epoch.
    END_NOTHING = auto()  # No transaction is open; give the producer a new epoch.
    COMMIT = auto()
    ABORT = auto()
    BEGIN = auto()  # Open a transaction.
    GO_ON = auto()  # The transaction is already open.
    REPEAT = auto()  # The request was processed before: send the same answer again.
    NOTHING = auto()  # Change nothing.
    INVALID_STATE = auto()  # This outcome and those below are refusals.
    FENCED = auto()
    UNKNOWN = auto()


REFUSALS: Final = frozenset((RequestOutcome.INVALID_STATE, RequestOutcome.FENCED, RequestOutcome.UNKNOWN))

# fmt: off
# The columns are the outcomes in the states Empty, Ongoing, CompleteCommit and CompleteAbort.
_ROWS: Final = {
    ("INIT", "CURRENT"):          "RENEW         ABORT_RENEW    RENEW          RENEW",
    ("RESUME", "CURRENT"):        "RENEW         ABORT_RENEW    RENEW          RENEW",
    ("RESUME", "PREVIOUS"):       "REPEAT        FENCED         REPEAT         REPEAT",
    ("ADD", "CURRENT"):           "BEGIN         GO_ON          BEGIN          BEGIN",
    ("WRITE", "CURRENT"):         "INVALID_STATE GO_ON          INVALID_STATE  INVALID_STATE",
    ("COMMIT", "CURRENT"):        "INVALID_STATE COMMIT         REPEAT         INVALID_STATE",
    ("ABORT", "CURRENT"):         "INVALID_STATE ABORT          INVALID_STATE  REPEAT",
    ("COMMIT_RENEW", "CURRENT"):  "INVALID_STATE COMMIT_RENEW   INVALID_STATE  INVALID_STATE",
    ("COMMIT_RENEW", "PREVIOUS"): "FENCED        FENCED         REPEAT         INVALID_STATE",
    ("ABORT_RENEW", "CURRENT"):   "END_NOTHING   ABORT_RENEW    END_NOTHING    END_NOTHING",
    ("ABORT_RENEW", "PREVIOUS"):  "FENCED        FENCED         INVALID_STATE  REPEAT",
    ("BROKER_ABORT", "CURRENT"):  "NOTHING       ABORT_RENEW    NOTHING        NOTHING",
}
# fmt: on
TABLE: Final[dict[tuple[TransactionRequest, ProducerMatch, State], RequestOutcome]] = {
    (TransactionRequest[request], ProducerMatch[match], state): RequestOutcome[name]
    for (request, match), names in _ROWS.items()
    for state, name in zip(State, names.split(), strict=True)
}


class Producer(NamedTuple):
    """A producer id with its epoch."""

    id: int
    epoch: int


@dataclass(slots=True)
class Jumps:
    """The sum of the wall clock's jumps since the start. All transactions of a coordinator share one `Jumps`."""

    total_ms: int = 0


@dataclass(slots=True)
class Transaction(Generic[OffsetT]):
    """A transactional id with its open or last transaction."""

    name: str  # The transactional id.
    producer: Producer  # The newest producer.
    timeout_ms: int
    state: State = State.EMPTY
    previous: Producer | None = None  # The previous producer, if a request of it may still be repeated.
    updated_ms: int = NO_TIME  # The time of the last `set_state`.
    jumps: Jumps = field(default_factory=Jumps)
    # The begin of the open transaction, minus the `jumps.total_ms` of that moment. So a jump moves the begins of all
    # open transactions by changing `jumps` alone.
    began_ms: int = NO_TIME
    keys: set[int] = field(default_factory=set)  # The keys of the queues that are part of the transaction.
    # The committed offset by group and queue key. The offsets take effect when the transaction is committed.
    offsets: dict[str, dict[int, OffsetT]] = field(default_factory=dict)

    @property
    def started_ms(self) -> int:
        """The wall time at which the open transaction began; NO_TIME if no transaction is open."""
        return NO_TIME if self.began_ms == NO_TIME else self.began_ms + self.jumps.total_ms

    @property
    def deadline_ms(self) -> int:
        """The wall time at which the open transaction exceeds its timeout."""
        return self.started_ms + self.timeout_ms

    def match(self, producer: Producer, request: TransactionRequest) -> ProducerMatch:
        """Compare the producer of a request with the newest and the previous producer of the transactional id."""
        if producer == self.producer:
            return ProducerMatch.CURRENT
        # If the broker aborts a transaction because of its timeout, the producer does not learn of the new epoch. For
        # EndTxn, the epoch before it counts as that of the previous producer, so that the producer can send its own
        # abort and continue (TransactionCoordinator.scala#endTransaction, retryOnEpochBump).
        is_one_behind = producer.id == self.producer.id and producer.epoch == self.producer.epoch - 1
        is_end = request in (TransactionRequest.COMMIT_RENEW, TransactionRequest.ABORT_RENEW)
        if producer == self.previous or (is_one_behind and is_end):
            return ProducerMatch.PREVIOUS
        return ProducerMatch.FENCED if producer.id == self.producer.id else ProducerMatch.UNKNOWN

    def judge(self, request: TransactionRequest, producer: Producer | None = None) -> RequestOutcome:
        """Return the decision on a request of `producer`; None stands for the newest producer."""
        match = ProducerMatch.CURRENT if producer is None else self.match(producer, request)
        if match is ProducerMatch.UNKNOWN:
            return RequestOutcome.FENCED if request is TransactionRequest.RESUME else RequestOutcome.UNKNOWN
        return TABLE.get((request, match, self.state), RequestOutcome.FENCED)

    @property
    def is_exhausted(self) -> bool:
        """Whether the producer id has no further epoch, so that the producer needs another id."""
        return self.producer.epoch >= EPOCH_LAST

    @property
    def next_epoch(self) -> int:
        """The epoch after that of the newest producer."""
        return self.producer.epoch + 1


class Coordinator(Generic[OffsetT]):
    """All transactional ids, in the order of their last change.

    The class has more than 20 methods because each change of state updates several tables and sums.
    """

    def __init__(self) -> None:
        self._by_name: OrderedDict[str, Transaction[OffsetT]] = OrderedDict()
        self._by_producer: dict[int, Transaction[OffsetT]] = {}
        self._open: dict[int, Transaction[OffsetT]] = {}  # By producer id.
        self.jumps = Jumps()
        # Heap of (`began_ms + timeout_ms`, producer id). Items of ended transactions are skipped.
        self._deadlines: list[tuple[int, int]] = []
        self._groups: dict[str, set[int]] = {}  # By group: the producer ids of the open transactions that contain it.
        # Invariant: the number of committed offsets in all open transactions, plus the number of their groups.
        self.pending_count = 0
        self.queue_count = 0  # Invariant: the queues in all open transactions.
        # Called with a transactional id before its state is changed.
        self.before_change: Callable[[str], object] = _ignore

    # -- Reading

    def __len__(self) -> int:
        return len(self._by_name)

    def __iter__(self) -> Iterator[Transaction[OffsetT]]:
        return iter(self._by_name.values())

    @property
    def names(self) -> Iterable[str]:
        """All transactional ids."""
        return self._by_name

    def get(self, name: str) -> Transaction[OffsetT] | None:
        """Return the transaction of a transactional id, if the id exists."""
        return self._by_name.get(name)

    def of_producer(self, producer_id: int) -> Transaction[OffsetT] | None:
        """Return the transaction whose newest producer has this id, if there is one."""
        return self._by_producer.get(producer_id)

    @property
    def open(self) -> Iterable[Transaction[OffsetT]]:
        """The open transactions."""
        return self._open.values()

    def pending(self, group: str) -> frozenset[int]:
        """Return the keys of the queues for which open transactions have a committed offset of the group."""
        return frozenset(key for number in self._groups.get(group, ()) for key in self._open[number].offsets[group])

    def has_group(self, group: str) -> bool:
        """Return whether the group is part of an open transaction, even without committed offsets."""
        return group in self._groups

    # -- Time

    def next_deadline_ms(self) -> int | None:
        """Return the wall time at which the next open transaction exceeds its timeout; None if none is open."""
        deadlines = self._deadlines
        while deadlines:
            due_ms, number = deadlines[0]
            transaction = self._open.get(number)
            if transaction is not None and transaction.began_ms + transaction.timeout_ms == due_ms:
                return transaction.deadline_ms
            heapq.heappop(deadlines)
        return None

    def overdue(self, now_ms: int) -> Iterator[Transaction[OffsetT]]:
        """Yield the open transactions whose deadline has passed, the earliest deadline first.

        The caller must end each transaction before it takes the next one.
        """
        while (deadline_ms := self.next_deadline_ms()) is not None and deadline_ms <= now_ms:
            yield self._open[self._deadlines[0][1]]

    def clock_stepped(self, by_ms: int) -> None:
        """Move all deadlines by a jump of the wall clock, so that open transactions keep their remaining time."""
        self.jumps.total_ms += by_ms

    def clock_was_set_back(self, now_ms: int) -> Iterator[int]:
        """Set the begin of open transactions that began after `now_ms` to `now_ms`, in slices.

        They began while the wall clock was ahead. Yields after each slice the number of transactions in it.
        """
        numbers = [*self._open]
        for at in range(0, len(numbers), CHECKED_IN_SLICE):
            some = numbers[at : at + CHECKED_IN_SLICE]
            for number in some:
                transaction = self._open.get(number)
                if transaction is not None and transaction.started_ms > now_ms:
                    self.before_change(transaction.name)
                    transaction.began_ms = now_ms - self.jumps.total_ms
                    self._add_deadline(transaction)
            yield len(some)

    def idle_since(self, before_ms: int, count_max: int) -> list[str]:
        """Return up to `count_max` ids without an open transaction that have not changed since `before_ms`.

        The id that has been idle for the longest time is the first one.
        """
        idle: list[str] = []
        for name, transaction in self._by_name.items():
            if transaction.updated_ms > before_ms or len(idle) == count_max:
                break
            if transaction.state is not State.ONGOING:
                idle.append(name)
        return idle

    # -- Changes of state, after an append and at recovery

    def set_state(
        self, name: str, producer: Producer, timeout_ms: int, state: State, previous: Producer | None, at_ms: int
    ) -> None:
        """Set the producer and state of a transactional id, and end its open transaction, if any."""
        self.before_change(name)
        transaction = self._by_name.get(name)
        if transaction is None:
            transaction = self._by_name[name] = Transaction(name, producer, timeout_ms, jumps=self.jumps)
        else:
            self._close(transaction)
            del self._by_producer[transaction.producer.id]
        self._by_producer[producer.id] = transaction
        transaction.producer, transaction.previous = producer, previous
        transaction.timeout_ms, transaction.state, transaction.updated_ms = timeout_ms, state, at_ms
        self._by_name.move_to_end(name)

    def begin(self, transaction: Transaction[OffsetT], at_ms: int) -> None:
        """Open a transaction, unless it is already open."""
        if transaction.state is not State.ONGOING:
            self.before_change(transaction.name)
            transaction.state, transaction.began_ms = State.ONGOING, at_ms - self.jumps.total_ms
            self._open[transaction.producer.id] = transaction
            self._add_deadline(transaction)

    def add_offsets(
        self, transaction: Transaction[OffsetT], group: str, offsets: Iterable[tuple[int, OffsetT]]
    ) -> None:
        """Add a group to an open transaction, with (queue key, committed offset) of queues; there may be none yet."""
        self.before_change(transaction.name)
        known = transaction.offsets.get(group)
        if known is None:
            known = transaction.offsets[group] = {}
            self.pending_count += 1
        self.pending_count -= len(known)
        known.update(offsets)
        self.pending_count += len(known)
        self._groups.setdefault(group, set()).add(transaction.producer.id)

    def add_queues(self, transaction: Transaction[OffsetT], keys: Iterable[int]) -> None:
        """Add queues to an open transaction."""
        self.before_change(transaction.name)
        self.queue_count -= len(transaction.keys)
        transaction.keys.update(keys)
        self.queue_count += len(transaction.keys)

    def forget(self, name: str) -> None:
        """Remove a transactional id."""
        self.before_change(name)
        transaction = self._by_name.pop(name, None)
        if transaction is not None:
            self._close(transaction)
            del self._by_producer[transaction.producer.id]

    def forget_queues(self, producer_id: int, is_deleted: Callable[[int], bool]) -> int:
        """Remove deleted queues from the open transaction of a producer.

        `is_deleted(key)` says whether a queue was deleted. Returns the number of queues and committed offsets that were
        checked, as a measure of the work.
        """
        transaction = self._open.get(producer_id)
        if transaction is None:
            return 1
        self.before_change(transaction.name)
        checked = len(transaction.keys) + 1
        self.queue_count -= len(transaction.keys)
        transaction.keys = {key for key in transaction.keys if not is_deleted(key)}
        self.queue_count += len(transaction.keys)
        for offsets in transaction.offsets.values():
            checked += len(offsets)
            for key in [key for key in offsets if is_deleted(key)]:
                del offsets[key]
                self.pending_count -= 1
        return checked

    def forget_group(self, group: str) -> None:
        """Remove a deleted group from all open transactions."""
        for number in self._groups.pop(group, ()):
            self.before_change(self._open[number].name)
            self.pending_count -= len(self._open[number].offsets.pop(group)) + 1

    def _close(self, transaction: Transaction[OffsetT]) -> None:
        self._open.pop(transaction.producer.id, None)
        self.queue_count -= len(transaction.keys)
        for group, offsets in transaction.offsets.items():
            self.pending_count -= len(offsets) + 1
            numbers = self._groups[group]
            numbers.discard(transaction.producer.id)
            if not numbers:
                del self._groups[group]
        transaction.keys, transaction.offsets, transaction.began_ms = set(), {}, NO_TIME

    def _add_deadline(self, transaction: Transaction[OffsetT]) -> None:
        if len(self._deadlines) > 2 * len(self._open) + DEAD_DEADLINES_MAX:
            self._deadlines = [(each.began_ms + each.timeout_ms, number) for number, each in self._open.items()]
            heapq.heapify(self._deadlines)
        heapq.heappush(self._deadlines, (transaction.began_ms + transaction.timeout_ms, transaction.producer.id))


def _ignore(name: object) -> None:
    pass
