"""The table of RocketMQ response codes for the broker's exceptions.

Producers send again after the codes 1, 2, 14, 16 and 17. After any other code they report an error to the application.
"""

from typing import Final

from duolog.bridge.data.publishing.pending_quota import PendingQuotaReached
from duolog.bridge.data.publishing.refusals import IllegalMessage, NotSupported, ProduceRefused
from duolog.bridge.rocketmq.consuming.group_configs import TooManyGroups
from duolog.bridge.rocketmq.groups.membership_limits import TooManyMembers
from duolog.bridge.rocketmq.namesrv.key_values import TooManyValues
from duolog.bridge.rocketmq.pop.pop_checkpoints import TooManyPopped
from duolog.bridge.rocketmq.requests.admission import Busy
from duolog.bridge.security.acls import TooManyRules
from duolog.bridge.security.rules import BadRule
from duolog.bridge.security.user_changes import NotSuper, RightTakenAway
from duolog.bridge.security.users import UnknownUser, UserError
from duolog.bridge.state.group_offsets import MetadataTooLarge, TooManyGroupOffsets
from duolog.bridge.state.topic_configs import InvalidConfig
from duolog.bridge.state.topics import InvalidQueueCount, InvalidTopicName, TooManyTopics, TopicExists, UnknownTopic
from duolog.bridge.transactions.half_message_log import TooManyHalves
from duolog.delay.requested_delay import DelayRefused
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
    """A handler refuses a request with this response code and remark."""

    def __init__(self, code: ResponseCode, remark: str) -> None:
        super().__init__(remark)
        self.code = code


# A subclass comes before its base class.
_CODES: tuple[tuple[type[Exception], ResponseCode], ...] = (
    (EntryTooLarge, ResponseCode.MESSAGE_ILLEGAL),
    (TooManyNamed, ResponseCode.MESSAGE_ILLEGAL),
    (Fault, ResponseCode.SYSTEM_ERROR),
    # The code with which Apache RocketMQ refuses messages when its disk is full.
    (StoreError, ResponseCode.SERVICE_NOT_AVAILABLE),
    (DelayRefused, ResponseCode.MESSAGE_ILLEGAL),
    (PendingQuotaReached, ResponseCode.SYSTEM_BUSY),
    (NotSupported, ResponseCode.MESSAGE_ILLEGAL),  # Producers do not send again; they show the remark.
    (IllegalMessage, ResponseCode.MESSAGE_ILLEGAL),
    (ProduceRefused, ResponseCode.NO_PERMISSION),
    (TopicExists, ResponseCode.TOPIC_EXIST_ALREADY),
    (UnknownTopic, ResponseCode.TOPIC_NOT_EXIST),
    (InvalidTopicName, ResponseCode.INVALID_PARAMETER),
    (InvalidQueueCount, ResponseCode.INVALID_PARAMETER),
    (InvalidConfig, ResponseCode.INVALID_PARAMETER),
    (TooManyTopics, ResponseCode.SYSTEM_ERROR),
    (UnknownHalf, ResponseCode.SYSTEM_ERROR),  # The code of Apache RocketMQ for any half message that it does not find.
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
    (NotSuper, ResponseCode.NO_PERMISSION),
    (RightTakenAway, ResponseCode.NO_PERMISSION),
    (UnknownUser, ResponseCode.USER_NOT_EXIST),
    (UserError, ResponseCode.INVALID_PARAMETER),
    (BadRule, ResponseCode.INVALID_PARAMETER),
    (TooManyRules, ResponseCode.INVALID_PARAMETER),
    (TooManyMessages, ResponseCode.MESSAGE_ILLEGAL),
    # A header field is missing or invalid. Apache RocketMQ answers with the same code.
    (ProtocolError, ResponseCode.SYSTEM_ERROR),
)

# The exceptions that a connection answers. Any other exception is a bug.
ANSWERABLE: tuple[type[Exception], ...] = (RequestRefused, *(exception for exception, _ in _CODES))


def code_of(error: Exception) -> ResponseCode:
    """Return the response code of an ANSWERABLE exception."""
    if isinstance(error, RequestRefused):
        return error.code
    return next(code for exception, code in _CODES if isinstance(error, exception))


def remark_of(error: Exception) -> str:
    """Return the remark, which the client shows."""
    return (str(error) or type(error).__name__)[:REMARK_CHARACTERS_MAX]
