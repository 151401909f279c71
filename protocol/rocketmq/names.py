"""The legal and the reserved names of topics and groups.

Sources: `TopicValidator.java`, `MixAll.java`, `Validators.java`.
"""

import re
from typing import Final

from duolog.protocol.errors import ProtocolError

TOPIC_LENGTH_MAX: Final = 127
RETRY_OR_DLQ_TOPIC_LENGTH_MAX: Final = 255
GROUP_LENGTH_MAX: Final = 120

# -- Reserved topics

AUTO_CREATE_TOPIC: Final = "TBW102"
SCHEDULE_TOPIC: Final = "SCHEDULE_TOPIC_XXXX"
TIMER_TOPIC: Final = "rmq_sys_wheel_timer"
HALF_TOPIC: Final = "RMQ_SYS_TRANS_HALF_TOPIC"
OP_HALF_TOPIC: Final = "RMQ_SYS_TRANS_OP_HALF_TOPIC"
TRANS_CHECK_MAX_TIME_TOPIC: Final = "TRANS_CHECK_MAX_TIME_TOPIC"
TRACE_TOPIC: Final = "RMQ_SYS_TRACE_TOPIC"
SELF_TEST_TOPIC: Final = "SELF_TEST_TOPIC"
OFFSET_MOVED_TOPIC: Final = "OFFSET_MOVED_EVENT"
BENCHMARK_TOPIC: Final = "BenchmarkTest"

RETRY_PREFIX: Final = "%RETRY%"
DLQ_PREFIX: Final = "%DLQ%"
LMQ_PREFIX: Final = "%LMQ%"
SYSTEM_PREFIX: Final = "rmq_sys_"
REPLY_SUFFIX: Final = "_REPLY_TOPIC"

# `TopicValidator.NOT_ALLOWED_SEND_TOPIC_SET`: a producer may not name these.
NOT_ALLOWED_TO_SEND: Final = frozenset(
    {SCHEDULE_TOPIC, HALF_TOPIC, OP_HALF_TOPIC, TRANS_CHECK_MAX_TIME_TOPIC, SELF_TEST_TOPIC, OFFSET_MOVED_TOPIC}
)
SYSTEM_TOPICS: Final = NOT_ALLOWED_TO_SEND | {AUTO_CREATE_TOPIC, BENCHMARK_TOPIC, TRACE_TOPIC}

# -- Reserved groups

TOOLS_GROUP: Final = "TOOLS_CONSUMER"
TRANSACTION_GROUP: Final = "CID_RMQ_SYS_TRANS"
DEFAULT_CONSUMER_GROUP: Final = "DEFAULT_CONSUMER"
INNER_PRODUCER_GROUP: Final = "CLIENT_INNER_PRODUCER"

SYSTEM_GROUPS: Final = frozenset(
    {
        TOOLS_GROUP,
        TRANSACTION_GROUP,
        "FILTERSRV_CONSUMER",
        "SELF_TEST_C_GROUP",
        "SCHEDULE_CONSUMER",
        "__MONITOR_CONSUMER",
        "CID_RMQ_SYS_REVIVE_GROUP",
        "CID_ONSAPI_OWNER",
        "CID_ONSAPI_PULL",
        "CID_ONSAPI_PERMISSION",
        "CID_ONS-HTTP-PROXY",
    }
)

_LEGAL = re.compile(r"[%|a-zA-Z0-9_-]+")
_RETRY_V2 = re.compile(r"%RETRY%[%|a-zA-Z0-9_-]+\+[%|a-zA-Z0-9_-]+")  # POP's retry topic, `KeyBuilder.java`


class IllegalName(ProtocolError):
    """A topic or group name that RocketMQ does not allow: response code INVALID_PARAMETER, this text as the remark."""


def check_topic(topic: str) -> None:
    """Raise IllegalName unless `topic` may be the name of a topic."""
    limit = RETRY_OR_DLQ_TOPIC_LENGTH_MAX if topic.startswith((RETRY_PREFIX, DLQ_PREFIX)) else TOPIC_LENGTH_MAX
    _check("topic", topic.replace("+", "_") if _RETRY_V2.fullmatch(topic) else topic, limit)


def check_group(group: str) -> None:
    """Raise IllegalName unless `group` may be the name of a consumer or producer group."""
    _check("group", group, GROUP_LENGTH_MAX)


def is_system_topic(topic: str) -> bool:
    """Return whether a topic is one of RocketMQ's own, which admin tools hide."""
    return topic in SYSTEM_TOPICS or topic.startswith(SYSTEM_PREFIX)


def retry_topic(group: str) -> str:
    """Return the retry topic of a group: messages that it failed to consume and will receive again."""
    return RETRY_PREFIX + group


def dead_letter_topic(group: str) -> str:
    """Return the dead letter topic of a group: messages that it failed to consume as often as is allowed."""
    return DLQ_PREFIX + group


def _check(kind: str, name: str, limit: int) -> None:
    if not name or name.isspace():
        raise IllegalName(f"The specified {kind} is blank.")
    if len(name) > limit:
        raise IllegalName(f"The specified {kind} is longer than {kind} max length {limit}: {len(name)}.")
    if not _LEGAL.fullmatch(name):
        raise IllegalName(f"The specified {kind}[{name}] contains illegal characters, allowing only ^[%|a-zA-Z0-9_-]+$")
