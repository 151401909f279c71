"""Which RocketMQ response code stands for which of our exceptions: the one table, asked for every refusal.

A producer tries again after 1, 2, 14, 16 and 17; every other code reaches its user at once.
"""

from typing import Final

from duolog.bridge.data.delay_headers import DelayRefused
from duolog.bridge.data.publishing.refusals import IllegalMessage, NotSupported, ProduceRefused
from duolog.bridge.rocketmq.consuming.group_configs import TooManyGroups
from duolog.bridge.rocketmq.groups.members import TooManyMembers
from duolog.bridge.rocketmq.namesrv.key_values import TooManyValues
from duolog.bridge.rocketmq.pop.pop_checkpoints import TooManyPopped
from duolog.bridge.rocketmq.requests.admission import Busy
from duolog.bridge.state.group_offsets import MetadataTooLarge, TooManyGroupOffsets
from duolog.bridge.state.topic_configs import InvalidConfig
from duolog.bridge.state.topics import (
    InvalidQueueCount,
    InvalidTopicName,
    TooManyTopics,
    TopicExists,
    UnknownTopic,
)
from duolog.bridge.transactions.half_messages import TooManyHalves
from duolog.delay.tree.lookups import TooManyNamed
from duolog.protocol.errors import ProtocolError
from duolog.protocol.rocketmq.codes import ResponseCode
from duolog.protocol.rocketmq.messages.batch import TooManyMessages
from duolog.protocol.rocketmq.messages.tags import IllegalExpression
from duolog.protocol.rocketmq.names import IllegalName
from duolog.store.errors import EntryTooLarge, Fault, StoreError
from duolog.txn.half import AlreadyDecided, UnknownHalf

REMARK_CHARACTERS_MAX: Final = 1024


class RequestRefused(Exception):
    """A handler says no: the code and the text that the client gets."""

    def __init__(self, code: ResponseCode, remark: str) -> None:
        super().__init__(remark)
        self.code = code


# A subclass comes before its base.
_CODES: tuple[tuple[type[Exception], ResponseCode], ...] = (
    (EntryTooLarge, ResponseCode.MESSAGE_ILLEGAL),
    (TooManyNamed, ResponseCode.MESSAGE_ILLEGAL),
    (Fault, ResponseCode.SYSTEM_ERROR),
    (StoreError, ResponseCode.SERVICE_NOT_AVAILABLE),  # As Java's broker says of a full disk.
    (DelayRefused, ResponseCode.MESSAGE_ILLEGAL),
    (NotSupported, ResponseCode.MESSAGE_ILLEGAL),  # Not retried, and its text reaches the sender.
    (IllegalMessage, ResponseCode.MESSAGE_ILLEGAL),
    (ProduceRefused, ResponseCode.NO_PERMISSION),
    (TopicExists, ResponseCode.TOPIC_EXIST_ALREADY),
    (UnknownTopic, ResponseCode.TOPIC_NOT_EXIST),
    (InvalidTopicName, ResponseCode.INVALID_PARAMETER),
    (InvalidQueueCount, ResponseCode.INVALID_PARAMETER),
    (InvalidConfig, ResponseCode.INVALID_PARAMETER),
    (TooManyTopics, ResponseCode.SYSTEM_ERROR),
    (UnknownHalf, ResponseCode.SYSTEM_ERROR),  # As Java's broker says of any half message that it does not find.
    (AlreadyDecided, ResponseCode.TRANSACTION_FAILED),
    (TooManyHalves, ResponseCode.SYSTEM_BUSY),
    (TooManyMembers, ResponseCode.SYSTEM_ERROR),
    (Busy, ResponseCode.SYSTEM_BUSY),
    (TooManyPopped, ResponseCode.POLLING_FULL),  # A consumer pops again after a while.
    (TooManyGroups, ResponseCode.SYSTEM_ERROR),
    (TooManyGroupOffsets, ResponseCode.SYSTEM_ERROR),
    (TooManyValues, ResponseCode.SYSTEM_ERROR),
    (MetadataTooLarge, ResponseCode.INVALID_PARAMETER),
    (IllegalExpression, ResponseCode.SUBSCRIPTION_PARSE_FAILED),
    (IllegalName, ResponseCode.INVALID_PARAMETER),
    (TooManyMessages, ResponseCode.MESSAGE_ILLEGAL),
    (ProtocolError, ResponseCode.SYSTEM_ERROR),  # A header field that is missing or illegal, as Java answers it.
)

# What the connection answers. Anything else is our bug.
ANSWERABLE: tuple[type[Exception], ...] = (RequestRefused, *(exception for exception, _ in _CODES))


def code_of(error: Exception) -> ResponseCode:
    """Give the code for an ANSWERABLE exception."""
    if isinstance(error, RequestRefused):
        return error.code
    return next(code for exception, code in _CODES if isinstance(error, exception))


def remark_of(error: Exception) -> str:
    """Say what the client's user reads."""
    return (str(error) or type(error).__name__)[:REMARK_CHARACTERS_MAX]
