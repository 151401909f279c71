"""The class TransactionRules: decides whether a request of a transactional producer is accepted, and its outcome.

The rules read the state of `txn.coordinator` and `txn.isolation` and change nothing. The caller appends the decision
and then changes the state.
"""

from collections.abc import Collection, Sequence
from typing import Final, Generic, NamedTuple, Protocol, TypeVar

from duolog.txn.coordinator import REFUSALS, Coordinator, Producer, RequestOutcome, Transaction, TransactionRequest
from duolog.txn.isolation import Isolation

MARKER_BYTES: Final = 256  # An upper limit for the size of a marker's entry.
OFFSET_BYTES: Final = 64  # An upper limit for the size of an encoded committed offset without its metadata.
ABORTED_BYTES: Final = 32  # The size of one aborted transaction in a snapshot.
_CHARACTER_BYTES: Final = 4  # An upper limit for the size of one character in UTF-8.


class TransactionError(Exception):
    """A request of a transactional producer is refused, and nothing has changed."""


class InvalidTransactionState(TransactionError):
    """The state of the transaction does not allow the request.

    No transaction is open, it has ended with another outcome, or the queue is not part of it.
    """


class ProducerFenced(TransactionError):
    """A newer producer has taken over the transactional id, or the transaction has exceeded its timeout."""


class UnknownTransactionalProducer(TransactionError):
    """The transactional id does not exist, or has another producer id: it was not initialized, or has expired."""


class NoTransactionalId(TransactionError):
    """The request has a transactional batch, but no transactional id."""


class InvalidTransactionTimeout(TransactionError):
    """The timeout is not above 0, or it exceeds `txn.timeout_max_ms`."""


class TransactionLimit(TransactionError):
    """The request exceeds one of the limits in `TransactionLimits`."""


class TransactionLimits(NamedTuple):
    """The limits of Kafka transactions; docs/reference/settings.md describes the settings of the same names."""

    timeout_max_ms: int
    ids_max: int
    groups_max: int
    partitions_max: int
    pending_partitions_max: int
    pending_positions_max: int
    aborted_max: int
    unit_bytes_max: int  # The largest size of a unit: the end of a transaction must fit into one unit.


class KeyedOffset(Protocol):
    """The fields of a group's committed offset on which the limits depend."""

    @property
    def key(self) -> int: ...

    @property
    def metadata(self) -> str: ...


OffsetT = TypeVar("OffsetT", bound=KeyedOffset)


class TransactionRules(Generic[OffsetT]):
    """Decides on requests by state and by limit."""

    def __init__(self, coordinator: Coordinator[OffsetT], isolation: Isolation, limits: TransactionLimits) -> None:
        self.limits = limits
        self._coordinator, self._isolation = coordinator, isolation

    # -- By state

    def decide(
        self, transactional_id: str, request: TransactionRequest, producer: Producer
    ) -> tuple[Transaction[OffsetT], RequestOutcome]:
        """Return the transaction of a transactional id, and the outcome of the request. Raises TransactionError."""
        transaction = self._coordinator.get(transactional_id)
        if transaction is None:
            raise UnknownTransactionalProducer(f"there is no transactional id {transactional_id[:100]}")
        return transaction, self.outcome_of(transaction, request, producer)

    def outcome_of(
        self, transaction: Transaction[OffsetT], request: TransactionRequest, producer: Producer | None
    ) -> RequestOutcome:
        """Return the outcome of a request for a transaction. Raises TransactionError if it is a refusal."""
        outcome = transaction.judge(request, producer)
        if outcome in REFUSALS:
            raise _REFUSALS[outcome](
                f"{request.name} of {producer} is not allowed: transactional id {transaction.name[:100]} "
                f"has {transaction.producer} and is in state {transaction.state.kafka_name}"
            )
        return outcome

    def check_write(self, key: int, producer: Producer, transactional_id: str | None, *, adds_itself: bool) -> None:
        """Check whether a transactional batch may be appended to the queue with this key. Raises TransactionError.

        With `adds_itself` the batch itself makes the queue part of the transaction (transaction version 2).
        """
        if transactional_id is None:
            raise NoTransactionalId("the request has a transactional batch, but no transactional id")
        request = TransactionRequest.ADD if adds_itself else TransactionRequest.WRITE
        transaction, _ = self.decide(transactional_id, request, producer)
        if key not in transaction.keys:
            if not adds_itself:
                raise InvalidTransactionState(
                    f"the partition was not added to the transaction of transactional id {transactional_id[:100]}"
                )
            self.check_growth(transaction, 1)

    def check_plain_write(self, key: int, producer_id: int) -> None:
        """Check whether an idempotent producer may append a batch without a transaction to this queue.

        Raises InvalidTransactionState if the producer has an open transaction in the queue.
        """
        if self._isolation.is_open(key, producer_id):
            raise InvalidTransactionState(
                f"producer id {producer_id} has an open transaction in this partition, and the batch has none"
            )

    # -- By limit

    def check_timeout(self, timeout_ms: int) -> None:
        """Raise InvalidTransactionTimeout for a timeout outside the limits."""
        if not 0 < timeout_ms <= self.limits.timeout_max_ms:
            raise InvalidTransactionTimeout(
                f"the transaction timeout is {timeout_ms} ms; allowed are 1 to {self.limits.timeout_max_ms} ms "
                f"(txn.timeout_max_ms)"
            )

    def check_new_id(self) -> None:
        """Raise TransactionLimit if there are `ids_max` transactional ids."""
        if len(self._coordinator) >= self.limits.ids_max:
            raise TransactionLimit(
                f"there are {len(self._coordinator)} transactional ids; txn.ids_max is {self.limits.ids_max}"
            )

    def check_offsets(self, transaction: Transaction[OffsetT], group: str, offsets: Sequence[OffsetT]) -> None:
        """Raise TransactionLimit if the transaction would have too many groups or committed offsets.

        Committed offsets that replace others of the transaction do not count.
        """
        limits, known = self.limits, transaction.offsets.get(group)
        if known is None and len(transaction.offsets) >= limits.groups_max:
            raise TransactionLimit(
                f"the transaction of transactional id {transaction.name[:100]} has {limits.groups_max} groups; "
                f"txn.groups_max is {limits.groups_max}"
            )
        known_keys: Collection[int] = () if known is None else known
        new_count = sum(each.key not in known_keys for each in offsets) + (known is None)
        if new_count and self._coordinator.pending_count + new_count > limits.pending_positions_max:
            raise TransactionLimit(
                f"open transactions have {self._coordinator.pending_count} committed offsets and groups; "
                f"txn.pending_positions_max is {limits.pending_positions_max}"
            )

    def check_growth(self, transaction: Transaction[OffsetT], queue_count: int, new: Sequence[OffsetT] = ()) -> None:
        """Raise TransactionLimit if `queue_count` more queues and the committed offsets `new` would exceed a limit.

        The end of a transaction must fit into one unit of the log.
        """
        limits = self.limits
        if self._isolation.aborted_count >= limits.aborted_max:
            raise TransactionLimit(
                f"the queues have {self._isolation.aborted_count} aborted transactions; "
                f"txn.aborted_max is {limits.aborted_max}"
            )
        if queue_count and len(transaction.keys) + queue_count > limits.partitions_max:
            raise TransactionLimit(
                f"the transaction of transactional id {transaction.name[:100]} would have "
                f"{len(transaction.keys) + queue_count} partitions; txn.partitions_max is {limits.partitions_max}"
            )
        if queue_count and self._coordinator.queue_count + queue_count > limits.pending_partitions_max:
            raise TransactionLimit(
                f"open transactions have {self._coordinator.queue_count} partitions; "
                f"txn.pending_partitions_max is {limits.pending_partitions_max}"
            )
        size = (len(transaction.keys) + queue_count) * MARKER_BYTES
        for offsets in (new, *(known.values() for known in transaction.offsets.values())):
            size += sum(OFFSET_BYTES + _CHARACTER_BYTES * len(each.metadata) for each in offsets)
        if size > limits.unit_bytes_max:
            raise TransactionLimit(
                f"the end of the transaction of transactional id {transaction.name[:100]} would have {size} bytes; "
                f"a unit has at most {limits.unit_bytes_max}"
            )


_REFUSALS: Final[dict[RequestOutcome, type[TransactionError]]] = {
    RequestOutcome.INVALID_STATE: InvalidTransactionState,
    RequestOutcome.FENCED: ProducerFenced,
    RequestOutcome.UNKNOWN: UnknownTransactionalProducer,
}
