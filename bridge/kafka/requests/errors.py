"""The table of Kafka error codes for the broker's exceptions, which all handlers use.

Kafka's clients retry after some codes and fail on others, so the choice decides what applications see.
"""

from typing import Final

from duolog.bridge.data.publishing.pending_quota import PendingQuotaReached
from duolog.bridge.data.publishing.refusals import NotSupported, ProduceRefused
from duolog.bridge.state.group_offsets import MetadataTooLarge, TooManyGroupOffsets
from duolog.bridge.state.producers import InvalidProducerEpoch, OutOfOrderSequence
from duolog.bridge.state.topic_configs import InvalidConfig
from duolog.bridge.state.topics import InvalidQueueCount, InvalidTopicName, TooManyTopics, TopicExists, UnknownTopic
from duolog.bridge.transactions.half_message_log import TooManyHalves
from duolog.delay.requested_delay import DelayRefused
from duolog.delay.tree.lookups import TooManyNamed
from duolog.protocol.kafka.api_messages import ErrorCode
from duolog.protocol.kafka.record_batch import InvalidBatch, Reason
from duolog.store.errors import (
    Corruption,
    EntryTooLarge,
    Fault,
    OffsetOutOfRange,
    StoreError,
)
from duolog.txn.requests import (
    InvalidTransactionState,
    InvalidTransactionTimeout,
    NoTransactionalId,
    ProducerFenced,
    TransactionLimit,
    UnknownTransactionalProducer,
)

# In an error message of an answer. A message may quote the request, and strings of older versions end at 32 KiB.
MESSAGE_CHARACTERS_MAX: Final = 1024


class InvalidRequest(Exception):
    """A request contradicts itself, or names something that does not exist; the message says what."""


# A subclass comes before its base class.
_CODES: tuple[tuple[type[Exception], ErrorCode], ...] = (
    (InvalidRequest, ErrorCode.invalid_request),
    (OffsetOutOfRange, ErrorCode.offset_out_of_range),
    (EntryTooLarge, ErrorCode.record_list_too_large),
    (Corruption, ErrorCode.corrupt_message),
    (TooManyNamed, ErrorCode.policy_violation),
    (Fault, ErrorCode.unknown_server_error),
    # All clients retry: they keep their records until there is room, or until their delivery timeout ends.
    (StoreError, ErrorCode.kafka_storage_error),
    (TopicExists, ErrorCode.topic_already_exists),
    (UnknownTopic, ErrorCode.unknown_topic_or_partition),
    (InvalidTopicName, ErrorCode.invalid_topic_exception),
    (InvalidQueueCount, ErrorCode.invalid_partitions),
    (TooManyTopics, ErrorCode.policy_violation),
    (InvalidConfig, ErrorCode.invalid_config),
    (OutOfOrderSequence, ErrorCode.out_of_order_sequence_number),
    (InvalidProducerEpoch, ErrorCode.invalid_producer_epoch),
    (InvalidTransactionState, ErrorCode.invalid_txn_state),
    (ProducerFenced, ErrorCode.producer_fenced),
    (UnknownTransactionalProducer, ErrorCode.invalid_producer_id_mapping),
    (NoTransactionalId, ErrorCode.transactional_id_authorization_failed),
    (InvalidTransactionTimeout, ErrorCode.invalid_transaction_timeout),
    (TransactionLimit, ErrorCode.policy_violation),
    (DelayRefused, ErrorCode.invalid_record),
    # Clients do not retry, and show the message. Room comes only when messages are due, perhaps in days; until then a
    # client that retries would hold up its other records of the partition.
    (PendingQuotaReached, ErrorCode.policy_violation),
    (TooManyHalves, ErrorCode.kafka_storage_error),  # Clients retry, because verdicts on half messages make room.
    (NotSupported, ErrorCode.invalid_record),  # Clients do not retry, and show the message.
    (ProduceRefused, ErrorCode.invalid_topic_exception),
    (MetadataTooLarge, ErrorCode.offset_metadata_too_large),
    (TooManyGroupOffsets, ErrorCode.group_max_size_reached),
)

_REASONS: dict[Reason, ErrorCode] = {
    Reason.NOT_ONE_BATCH: ErrorCode.invalid_record,
    Reason.CORRUPT: ErrorCode.corrupt_message,
    Reason.INVALID: ErrorCode.invalid_record,
    Reason.TOO_LARGE: ErrorCode.message_too_large,
    Reason.TIMESTAMP: ErrorCode.invalid_timestamp,
    Reason.COMPRESSION: ErrorCode.unsupported_compression_type,
}

# The exceptions that handlers catch. Any other exception is a bug.
ANSWERABLE: tuple[type[Exception], ...] = (InvalidBatch, *(exception for exception, _ in _CODES))


def code_of(error: Exception) -> ErrorCode:
    """Return the error code of an ANSWERABLE exception."""
    if isinstance(error, InvalidBatch):
        return _REASONS[error.reason]
    return next(code for exception, code in _CODES if isinstance(error, exception))


def message_of(error: Exception) -> str:
    """Return the error message for the client."""
    return str(error)[:MESSAGE_CHARACTERS_MAX]
