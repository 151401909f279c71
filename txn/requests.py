"""Decides which requests of transactional producers are refused, by state or by limit, and what the others lead to.

`TransactionRules` reads the tables of `txn.coordinator` and `txn.isolation` and changes neither. The caller appends
what was decided, and the tables then follow the log.
"""

from collections.abc import Collection, Sequence
from typing import Final, Generic, NamedTuple, Protocol, TypeVar

from duolog.txn.coordinator import REFUSALS, Coordinator, Producer, RequestOutcome, Transaction, TransactionRequest
from duolog.txn.isolation import Isolation

MARKER_BYTES: Final = 256  # An upper bound for the entry of a marker.
POSITION_BYTES: Final = 64  # An upper bound for a committed offset without its metadata.
ABORTED_BYTES: Final = 32  # One aborted transaction in a snapshot.
_CHARACTER_BYTES: Final = 4


class TransactionError(Exception):
    """A request of a transactional producer is refused, and nothing has changed."""


class InvalidTransactionState(TransactionError):
    """The state does not allow the request: nothing is open, it ended otherwise, or the queue is not part of it."""


class ProducerFenced(TransactionError):
    """A newer producer has taken over the transactional id, or the transaction has exceeded its timeout."""


class UnknownTransactionalProducer(TransactionError):
    """The transactional id does not have this producer id; it was never initialized, or it has expired."""


class NoTransactionalId(TransactionError):
    """The request has a transactional batch, but no transactional id."""


class InvalidTransactionTimeout(TransactionError):
    """The timeout is not above 0, or it exceeds `txn.timeout_max_ms`."""


class TransactionLimit(TransactionError):
    """The request exceeds one of the limits in `TransactionLimits`."""


class TransactionLimits(NamedTuple):
    """The limits of Kafka transactions; see the settings of the same names."""

    timeout_max_ms: int
    ids_max: int
    groups_max: int
    partitions_max: int
    pending_partitions_max: int
    pending_positions_max: int
    aborted_max: int
    unit_bytes_max: int  # The end of a transaction, and a snapshot of all, must fit into one unit of the log.


class Position(Protocol):
    """The part of a group's committed offset that the limits depend on."""

    @property
    def key(self) -> int: ...

    @property
    def metadata(self) -> str: ...


PositionT = TypeVar("PositionT", bound=Position)


class TransactionRules(Generic[PositionT]):
    """The rules by which requests are allowed."""

    def __init__(self, coordinator: Coordinator[PositionT], isolation: Isolation, limits: TransactionLimits) -> None:
        self.limits = limits
        self._coordinator, self._isolation = coordinator, isolation

    # -- By state

    def decide(
        self, transactional_id: str, request: TransactionRequest, producer: Producer
    ) -> tuple[Transaction[PositionT], RequestOutcome]:
        """Look up the transaction of an id and the outcome of a request for it. Raises TransactionError."""
        transaction = self._coordinator.get(transactional_id)
        if transaction is None:
            raise UnknownTransactionalProducer(f"transactional id {transactional_id[:100]} is not known")
        return transaction, self.outcome_of(transaction, request, producer)

    def outcome_of(
        self, transaction: Transaction[PositionT], request: TransactionRequest, producer: Producer | None
    ) -> RequestOutcome:
        """Return the outcome of a request for a transaction. Raises TransactionError if it is a refusal."""
        outcome = transaction.judge(request, producer)
        if outcome in REFUSALS:
            known = f"transactional id {transaction.name} is {transaction.state.title} with {transaction.producer}"
            raise _REFUSALS[outcome](f"{known}; {request.name} by {producer}")
        return outcome

    def check_write(self, key: int, producer: Producer, transactional_id: str | None, *, adds_itself: bool) -> None:
        """Check a transactional batch for a queue. Raises TransactionError.

        With `adds_itself` the queue becomes part of the transaction by the batch (transaction version 2).
        """
        if transactional_id is None:
            raise NoTransactionalId("a transactional batch in a request without a transactional id")
        request = TransactionRequest.ADD if adds_itself else TransactionRequest.WRITE
        transaction, _ = self.decide(transactional_id, request, producer)
        if key not in transaction.keys:
            if not adds_itself:
                raise InvalidTransactionState(f"the partition was not added to the transaction of {transactional_id}")
            self.check_growth(transaction, 1)

    def check_plain_write(self, key: int, producer_id: int) -> None:
        """Check a batch outside transactions of an idempotent producer. Raises InvalidTransactionState."""
        if self._isolation.is_open(key, producer_id):
            raise InvalidTransactionState(f"producer {producer_id} has an open transaction in this queue")

    # -- By limit

    def check_timeout(self, timeout_ms: int) -> None:
        """Raise InvalidTransactionTimeout for a timeout outside the limits."""
        if not 0 < timeout_ms <= self.limits.timeout_max_ms:
            raise InvalidTransactionTimeout(
                f"transaction timeout {timeout_ms} ms; 1 to {self.limits.timeout_max_ms} are allowed"
            )

    def check_new_id(self) -> None:
        """Raise TransactionLimit if no further transactional id is allowed."""
        if len(self._coordinator) >= self.limits.ids_max:
            raise TransactionLimit(f"{len(self._coordinator)} transactional ids; txn.ids_max is reached")

    def check_positions(self, transaction: Transaction[PositionT], group: str, positions: Sequence[PositionT]) -> None:
        """Raise TransactionLimit for too many groups or positions; those that the transaction has may change."""
        limits, known = self.limits, transaction.positions.get(group)
        if known is None and len(transaction.positions) >= limits.groups_max:
            raise TransactionLimit(f"{limits.groups_max} groups in the transaction of {transaction.name[:100]}")
        known_keys: Collection[int] = () if known is None else known
        new_count = sum(position.key not in known_keys for position in positions) + (known is None)
        if new_count and self._coordinator.pending_count + new_count > limits.pending_positions_max:
            raise TransactionLimit(f"{self._coordinator.pending_count} positions and groups in transactions")

    def check_growth(
        self, transaction: Transaction[PositionT], queue_count: int, new: Sequence[PositionT] = ()
    ) -> None:
        """Raise TransactionLimit if the transaction would exceed a limit with so many more queues and these positions.

        The end of a transaction must fit into one unit of the log.
        """
        limits = self.limits
        if self._isolation.aborted_count >= limits.aborted_max:
            raise TransactionLimit(f"{self._isolation.aborted_count} aborted transactions are remembered")
        if queue_count and len(transaction.keys) + queue_count > limits.partitions_max:
            raise TransactionLimit(
                f"{len(transaction.keys)} + {queue_count} partitions in the transaction of {transaction.name[:100]}; "
                f"txn.partitions_max is {limits.partitions_max}"
            )
        if queue_count and self._coordinator.queue_count + queue_count > limits.pending_partitions_max:
            raise TransactionLimit(f"{self._coordinator.queue_count} partitions in open transactions")
        size = (len(transaction.keys) + queue_count) * MARKER_BYTES
        for positions in (new, *(known.values() for known in transaction.positions.values())):
            size += sum(POSITION_BYTES + _CHARACTER_BYTES * len(position.metadata) for position in positions)
        if size > limits.unit_bytes_max:
            raise TransactionLimit(f"the transaction of {transaction.name} would take {size} bytes to end")


_REFUSALS: Final[dict[RequestOutcome, type[TransactionError]]] = {
    RequestOutcome.INVALID_STATE: InvalidTransactionState,
    RequestOutcome.FENCED: ProducerFenced,
    RequestOutcome.UNKNOWN: UnknownTransactionalProducer,
}
