"""Kafka's transaction coordinator as a table: for each transactional id one producer, and its open or last transaction.

                     first write                 commit
          Empty ───────────────────> Ongoing ──────────────> CompleteCommit
            ^                        ^  ^  │                   │
            │ InitProducerId         │  │  │ abort, timeout,   │ first write: Ongoing again
            └── from every state     │  │  v a newer producer  │
                                     │  └─ CompleteAbort       │
                                     └─────────────────────────┘

A transaction ends in one unit of the log: markers, positions of groups and the new state together. So Kafka's states
between a decision and its completion (PrepareCommit, PrepareAbort) never show, nobody is told CONCURRENT_TRANSACTIONS,
and who initializes while a transaction is open finds it aborted.

Who asks is judged by producer id and epoch: only the newest producer of an id may do anything, the others are fenced.
Clients of transaction version 2 (KIP-890) get a new epoch with the end of each transaction; then the epoch before is
still known, for who asks again because the answer was lost.

Pure: `judge` reads, the methods below it follow what the log says. Times are wall milliseconds.
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
EPOCH_LAST: Final = 32766  # The last one that a producer gets; 32767 is left for fencing it (TransactionMetadata).
LOOKED_AT_IN_SLICE: Final = 1024  # open transactions
DEAD_DEADLINES_MAX: Final = 64  # of ended transactions, beyond as many as there are open ones; then they are sorted out

# A position of a group, whatever it is to who keeps it.
PositionT = TypeVar("PositionT")


class State(IntEnum):
    """The state of a transactional id; the numbers are in the log, the names are Kafka's."""

    EMPTY = 0
    ONGOING = 1
    COMMITTED = 4
    ABORTED = 5

    @property
    def title(self) -> str:
        return _TITLES[self]


_TITLES: Final = {
    State.EMPTY: "Empty",
    State.ONGOING: "Ongoing",
    State.COMMITTED: "CompleteCommit",
    State.ABORTED: "CompleteAbort",
}


class Ask(Enum):
    """What is asked of the coordinator."""

    INIT = auto()  # InitProducerId of a producer that has just started
    RESUME = auto()  # InitProducerId of one that goes on after an error, and names its id and epoch (KIP-360)
    ADD = auto()  # AddPartitionsToTxn, AddOffsetsToTxn; in version 2 also the first write itself
    WRITE = auto()  # a batch or positions, which in version 1 must have been added before
    COMMIT = auto()  # EndTxn up to version 4
    ABORT = auto()
    COMMIT_RENEW = auto()  # EndTxn 5: the answer brings a new epoch
    ABORT_RENEW = auto()
    FENCE = auto()  # nobody's request: its time is over, or an operator ends it


class Standing(Enum):
    """Who asks, by producer id and epoch."""

    CURRENT = auto()  # the producer
    BEFORE = auto()  # the producer, which has not heard of its newest epoch
    FENCED = auto()  # an older one, or one that cannot be
    STRANGER = auto()  # a producer id that is not this transactional id's


class Outcome(Enum):
    """What is to be done."""

    RENEW = auto()  # give a new epoch
    ABORT_RENEW = auto()  # abort, and give a new epoch
    COMMIT_RENEW = auto()
    END_NOTHING = auto()  # there is nothing to abort, but a new epoch is asked for
    COMMIT = auto()
    ABORT = auto()
    BEGIN = auto()  # open a transaction
    GO_ON = auto()  # it is open
    REPEAT = auto()  # done before: answer the same again
    NOTHING = auto()
    INVALID_STATE = auto()  # refused, as are those below
    FENCED = auto()
    UNKNOWN = auto()


REFUSALS: Final = frozenset((Outcome.INVALID_STATE, Outcome.FENCED, Outcome.UNKNOWN))

# fmt: off
# For each row the outcomes when Empty, Ongoing, CompleteCommit, CompleteAbort.
_ROWS: Final = {
    (Ask.INIT,         Standing.CURRENT): "RENEW         ABORT_RENEW    RENEW          RENEW",
    (Ask.RESUME,       Standing.CURRENT): "RENEW         ABORT_RENEW    RENEW          RENEW",
    (Ask.RESUME,       Standing.BEFORE):  "REPEAT        FENCED         REPEAT         REPEAT",
    (Ask.ADD,          Standing.CURRENT): "BEGIN         GO_ON          BEGIN          BEGIN",
    (Ask.WRITE,        Standing.CURRENT): "INVALID_STATE GO_ON          INVALID_STATE  INVALID_STATE",
    (Ask.COMMIT,       Standing.CURRENT): "INVALID_STATE COMMIT         REPEAT         INVALID_STATE",
    (Ask.ABORT,        Standing.CURRENT): "INVALID_STATE ABORT          INVALID_STATE  REPEAT",
    (Ask.COMMIT_RENEW, Standing.CURRENT): "INVALID_STATE COMMIT_RENEW   INVALID_STATE  INVALID_STATE",
    (Ask.COMMIT_RENEW, Standing.BEFORE):  "FENCED        FENCED         REPEAT         INVALID_STATE",
    (Ask.ABORT_RENEW,  Standing.CURRENT): "END_NOTHING   ABORT_RENEW    END_NOTHING    END_NOTHING",
    (Ask.ABORT_RENEW,  Standing.BEFORE):  "FENCED        FENCED         INVALID_STATE  REPEAT",
    (Ask.FENCE,        Standing.CURRENT): "NOTHING       ABORT_RENEW    NOTHING        NOTHING",
}
# fmt: on
TABLE: Final[dict[tuple[Ask, Standing, State], Outcome]] = {
    (ask, standing, state): Outcome[name]
    for (ask, standing), names in _ROWS.items()
    for state, name in zip(State, names.split(), strict=True)
}


class Producer(NamedTuple):
    """A producer id with its epoch."""

    id: int
    epoch: int


@dataclass(slots=True)
class Jumps:
    """By how much the wall clock has jumped since the start; the transactions of a coordinator share it."""

    total_ms: int = 0


@dataclass(slots=True)
class Transaction(Generic[PositionT]):
    """The open transaction of a transactional id, or its last one."""

    name: str  # the transactional id
    producer: Producer
    timeout_ms: int
    state: State = State.EMPTY
    before: Producer | None = None  # who it was, as long as that one may ask again
    updated_ms: int = NO_TIME
    jumps: Jumps = field(default_factory=Jumps)
    began_ms: int = NO_TIME  # When the open one began, less the jumps: so a jump changes no transaction by itself.
    keys: set[int] = field(default_factory=set)  # queues that are part of it
    positions: dict[str, dict[int, PositionT]] = field(default_factory=dict)  # by group and queue: kept at the commit

    @property
    def started_ms(self) -> int:
        """Wall time at which the open one began; NO_TIME if none is open."""
        return NO_TIME if self.began_ms == NO_TIME else self.began_ms + self.jumps.total_ms

    @property
    def deadline_ms(self) -> int:
        """Wall time at which the open one has taken too long."""
        return self.started_ms + self.timeout_ms

    def standing(self, producer: Producer, ask: Ask) -> Standing:
        if producer == self.producer:
            return Standing.CURRENT
        # An end asked for once more is known by its epoch alone: whose transaction took too long may still abort it,
        # and go on (TransactionCoordinator.scala#endTransaction, retryOnEpochBump).
        is_one_behind = producer.id == self.producer.id and producer.epoch == self.producer.epoch - 1
        if producer == self.before or (is_one_behind and ask in (Ask.COMMIT_RENEW, Ask.ABORT_RENEW)):
            return Standing.BEFORE
        return Standing.FENCED if producer.id == self.producer.id else Standing.STRANGER

    def judge(self, ask: Ask, producer: Producer | None = None) -> Outcome:
        """Say what comes of a request; `producer` is who asks, None where that does not matter."""
        standing = Standing.CURRENT if producer is None else self.standing(producer, ask)
        if standing is Standing.STRANGER:
            return Outcome.FENCED if ask is Ask.RESUME else Outcome.UNKNOWN
        return TABLE.get((ask, standing, self.state), Outcome.FENCED)

    @property
    def is_exhausted(self) -> bool:
        """The next epoch needs another producer id."""
        return self.producer.epoch >= EPOCH_LAST

    @property
    def next_epoch(self) -> int:
        return self.producer.epoch + 1


class Coordinator(Generic[PositionT]):
    """All transactional ids, the longest unchanged first."""

    def __init__(self) -> None:
        self._by_name: OrderedDict[str, Transaction[PositionT]] = OrderedDict()
        self._by_producer: dict[int, Transaction[PositionT]] = {}
        self._open: dict[int, Transaction[PositionT]] = {}  # by producer id
        self.jumps = Jumps()
        # A deadline less the jumps, and a producer id; also of some that have ended.
        self._deadlines: list[tuple[int, int]] = []
        self._groups: dict[str, set[int]] = {}  # with positions in open transactions: the producer ids
        # Invariant: the positions in all open transactions, each of their groups counted as one, too.
        self.pending_count = 0
        self.queue_count = 0  # Invariant: the queues in all open transactions.
        self.before_change: Callable[[str], object] = _ignore  # Told the name of each whose state is about to change.

    # -- Looking

    def __len__(self) -> int:
        return len(self._by_name)

    def __iter__(self) -> Iterator[Transaction[PositionT]]:
        return iter(self._by_name.values())

    @property
    def names(self) -> Iterable[str]:
        return self._by_name

    def get(self, name: str) -> Transaction[PositionT] | None:
        return self._by_name.get(name)

    def of_producer(self, producer_id: int) -> Transaction[PositionT] | None:
        return self._by_producer.get(producer_id)

    @property
    def open(self) -> Iterable[Transaction[PositionT]]:
        return self._open.values()

    def pending(self, group: str) -> frozenset[int]:
        """The queues of which open transactions hold a position of the group."""
        return frozenset(key for number in self._groups.get(group, ()) for key in self._open[number].positions[group])

    def holds(self, group: str) -> bool:
        """Whether an open transaction has the group, with positions or before they come."""
        return group in self._groups

    # -- Time

    def next_deadline_ms(self) -> int | None:
        """When the time of an open transaction is over."""
        deadlines = self._deadlines
        while deadlines:
            due_ms, number = deadlines[0]
            transaction = self._open.get(number)
            if transaction is not None and transaction.began_ms + transaction.timeout_ms == due_ms:
                return transaction.deadline_ms
            heapq.heappop(deadlines)
        return None

    def overdue(self, now_ms: int) -> Iterator[Transaction[PositionT]]:
        """The open transactions whose time is over, the oldest deadline first; each is to be ended before the next."""
        while (deadline_ms := self.next_deadline_ms()) is not None and deadline_ms <= now_ms:
            yield self._open[self._deadlines[0][1]]

    def shift(self, by_ms: int) -> None:
        """The wall clock jumped by so much: the open transactions keep the time that they have left."""
        self.jumps.total_ms += by_ms

    def begun_by(self, now_ms: int) -> Iterator[int]:
        """Let no open transaction have begun later than now; yields after each slice how many were looked at."""
        numbers = [*self._open]
        for at in range(0, len(numbers), LOOKED_AT_IN_SLICE):
            some = numbers[at : at + LOOKED_AT_IN_SLICE]
            for number in some:
                transaction = self._open.get(number)
                if transaction is not None and transaction.started_ms > now_ms:
                    self.before_change(transaction.name)
                    transaction.began_ms = now_ms - self.jumps.total_ms
                    self._file_deadline(transaction)
            yield len(some)

    def idle_since(self, before_ms: int, count_max: int) -> list[str]:
        """Transactional ids without a change since then, the longest idle first; never one with an open transaction."""
        idle: list[str] = []
        for name, transaction in self._by_name.items():
            if transaction.updated_ms > before_ms or len(idle) == count_max:
                break
            if transaction.state is not State.ONGOING:
                idle.append(name)
        return idle

    # -- Following the log

    def settle(
        self, name: str, producer: Producer, timeout_ms: int, state: State, before: Producer | None, at_ms: int
    ) -> None:
        """The id goes on like this; what was open has ended, or there was nothing."""
        self.before_change(name)
        transaction = self._by_name.get(name)
        if transaction is None:
            transaction = self._by_name[name] = Transaction(name, producer, timeout_ms, jumps=self.jumps)
        else:
            self._close(transaction)
            del self._by_producer[transaction.producer.id]
        self._by_producer[producer.id] = transaction
        transaction.producer, transaction.before = producer, before
        transaction.timeout_ms, transaction.state, transaction.updated_ms = timeout_ms, state, at_ms
        self._by_name.move_to_end(name)

    def begin(self, transaction: Transaction[PositionT], at_ms: int) -> None:
        """Open a transaction, unless it is open."""
        if transaction.state is not State.ONGOING:
            self.before_change(transaction.name)
            transaction.state, transaction.began_ms = State.ONGOING, at_ms - self.jumps.total_ms
            self._open[transaction.producer.id] = transaction
            self._file_deadline(transaction)

    def add_positions(
        self, transaction: Transaction[PositionT], group: str, positions: Iterable[tuple[int, PositionT]]
    ) -> None:
        """Take positions by queue key; none says that some will come."""
        self.before_change(transaction.name)
        known = transaction.positions.get(group)
        if known is None:
            known = transaction.positions[group] = {}
            self.pending_count += 1
        self.pending_count -= len(known)
        known.update(positions)
        self.pending_count += len(known)
        self._groups.setdefault(group, set()).add(transaction.producer.id)

    def add_queues(self, transaction: Transaction[PositionT], keys: Iterable[int]) -> None:
        self.before_change(transaction.name)
        self.queue_count -= len(transaction.keys)
        transaction.keys.update(keys)
        self.queue_count += len(transaction.keys)

    def forget(self, name: str) -> None:
        self.before_change(name)
        transaction = self._by_name.pop(name, None)
        if transaction is not None:
            self._close(transaction)
            del self._by_producer[transaction.producer.id]

    def forget_queues(self, producer_id: int, is_gone: Callable[[int], bool]) -> int:
        """Some queues are gone: a producer's open transaction, if it has one, has nothing in them.

        Returns how many queues and positions were looked at.
        """
        transaction = self._open.get(producer_id)
        if transaction is None:
            return 1
        self.before_change(transaction.name)
        looked_at = len(transaction.keys) + 1
        self.queue_count -= len(transaction.keys)
        transaction.keys = {key for key in transaction.keys if not is_gone(key)}
        self.queue_count += len(transaction.keys)
        for positions in transaction.positions.values():
            looked_at += len(positions)
            for key in [key for key in positions if is_gone(key)]:
                del positions[key]
                self.pending_count -= 1
        return looked_at

    def forget_group(self, group: str) -> None:
        """The group was deleted: its positions in open transactions go with it."""
        for number in self._groups.pop(group, ()):
            self.before_change(self._open[number].name)
            self.pending_count -= len(self._open[number].positions.pop(group)) + 1

    def _close(self, transaction: Transaction[PositionT]) -> None:
        self._open.pop(transaction.producer.id, None)
        self.queue_count -= len(transaction.keys)
        for group, positions in transaction.positions.items():
            self.pending_count -= len(positions) + 1
            numbers = self._groups[group]
            numbers.discard(transaction.producer.id)
            if not numbers:
                del self._groups[group]
        transaction.keys, transaction.positions, transaction.began_ms = set(), {}, NO_TIME

    def _file_deadline(self, transaction: Transaction[PositionT]) -> None:
        if len(self._deadlines) > 2 * len(self._open) + DEAD_DEADLINES_MAX:
            self._deadlines = [(each.began_ms + each.timeout_ms, number) for number, each in self._open.items()]
            heapq.heapify(self._deadlines)
        heapq.heappush(self._deadlines, (transaction.began_ms + transaction.timeout_ms, transaction.producer.id))


def _ignore(name: object) -> None:
    pass
