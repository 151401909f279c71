"""One topic or group, two spellings: Kafka forbids `%` and `|`, RocketMQ forbids `.`.

    Kafka      [a-zA-Z0-9._-]{1,249}, not "." or ".."      a group: any text
    RocketMQ   [%|a-zA-Z0-9_-]{1,127}                      %RETRY% and %DLQ% topics: up to 255

One rule, and it loses nothing: letters, digits, `_` and `-` stay; a run of `|` and `%` is read as a number (base two
with the digits `|` = 1 and `%` = 2, so that every run has its own number), and becomes that many dots; back the same.

    Kafka                          RocketMQ                    dots
    orders                         orders
    orders.eu                      orders|eu                   .     |     1
    ..RETRY..billing               %RETRY%billing              ..    %     2
    ..DLQ..billing.eu              %DLQ%billing|eu
    MQ_INST_7..orders              MQ_INST_7%orders
    a...b                          a||b                        ...   ||    2*1 + 1
    a....b                         a|%b                        ....  |%    2*1 + 2
    a.....b                        a%|b                        ..... %|    2*2 + 1

So a name has one spelling for each family, whoever created it, and two names never meet in one spelling. What the
rule cannot spell (too long for the other family, a Kafka group with other characters, the names `|` and `%`) has a
hashed form: as much of the name as fits, `%%` (in Kafka's spelling six dots), 16 hexadecimal digits of its SHA-256.
A hashed form is not reversible: a catalog that knows the names resolves it, and refuses a new name that would have
the spelling of another.
"""

import re
from collections.abc import Callable
from functools import lru_cache
from hashlib import sha256

from duolog.protocol.rocketmq.names import (
    GROUP_LENGTH_MAX,
    RETRY_OR_DLQ_TOPIC_LENGTH_MAX,
    TOPIC_LENGTH_MAX,
    IllegalName,
    check_group,
    check_topic,
)

KAFKA_NAME_MAX = 249  # Topic.java#MAX_NAME_LENGTH

_KAFKA_LEGAL = re.compile(r"[a-zA-Z0-9._-]+", re.ASCII).fullmatch
_DOTS = re.compile(r"\.+")
_SIGNS = re.compile(r"[|%]+")
_SIGNS_MAX = 16  # a longer run would be more than 65,535 dots
_HASH_DIGITS = 16
_HASH_MARK = "%%"
_KAFKA_HASH_MARK = "." * 6  # as the rule spells it
_OTHER_CHARACTERS = re.compile(r"[^a-zA-Z0-9_-]", re.ASCII)


def is_kafka_topic(name: str) -> bool:
    return len(name) <= KAFKA_NAME_MAX and _KAFKA_LEGAL(name) is not None and name not in (".", "..")


def is_rocketmq_topic(name: str) -> bool:
    return _passes(check_topic, name)


def is_rocketmq_group(name: str) -> bool:
    return _passes(check_group, name)


def _passes(check: Callable[[str], None], name: str) -> bool:
    try:
        check(name)
    except IllegalName:
        return False
    return True


# What is longer fits in neither family, and is not worth a place in a cache.
_LENGTH_MAX = RETRY_OR_DLQ_TOPIC_LENGTH_MAX


# -- Topics: the canonical name is the creator's spelling, and only one family has `.`, only the other `%` and `|`


def kafka_name(name: str) -> str:
    """Spell a topic, given in either spelling, for Kafka."""
    return _kafka_name(name) if len(name) <= _LENGTH_MAX else _hashed(name, _KAFKA_HASH_MARK, KAFKA_NAME_MAX)


@lru_cache(1024)
def _kafka_name(name: str) -> str:
    spelled = _to_kafka(name)
    return spelled if is_kafka_topic(spelled) else _hashed(name, _KAFKA_HASH_MARK, KAFKA_NAME_MAX)


def rocketmq_name(name: str) -> str:
    """Spell a topic, given in either spelling, for RocketMQ."""
    return _rocketmq_name(name) if len(name) <= _LENGTH_MAX else _hashed(name, _HASH_MARK, TOPIC_LENGTH_MAX)


@lru_cache(1024)
def _rocketmq_name(name: str) -> str:
    spelled = _to_rocketmq(name)
    return spelled if is_rocketmq_topic(spelled) else _hashed(spelled, _HASH_MARK, TOPIC_LENGTH_MAX)


# -- Groups: positions know a group by its Kafka spelling, because a Kafka group may be any text


def group_of_rocketmq(name: str) -> str:
    """Give the group that a RocketMQ client means (unless it is a hashed form, which only a catalog resolves)."""
    return kafka_name(name)


def rocketmq_group(group: str) -> str:
    """Spell a group for RocketMQ."""
    return _rocketmq_group(group) if len(group) <= _LENGTH_MAX else _hashed(group, _HASH_MARK, GROUP_LENGTH_MAX)


@lru_cache(1024)
def _rocketmq_group(group: str) -> str:
    spelled = _to_rocketmq(group)
    if is_rocketmq_group(spelled) and _KAFKA_LEGAL(group):
        return spelled
    return _hashed(group, _HASH_MARK, GROUP_LENGTH_MAX)


# -- The rule


def _to_kafka(name: str) -> str:
    return _SIGNS.sub(lambda run: "." * _number(run[0]), name) if "%" in name or "|" in name else name


def _to_rocketmq(name: str) -> str:
    return _DOTS.sub(lambda run: _signs(len(run[0])), name) if "." in name else name


def _number(signs: str) -> int:
    number = 0
    for sign in signs[:_SIGNS_MAX]:
        number = 2 * number + (1 if sign == "|" else 2)
    return number


def _signs(number: int) -> str:
    signs = ""
    while number:
        number, digit = divmod(number - 1, 2)
        signs = "|%"[digit] + signs
    return signs


def _hashed(name: str, mark: str, size: int) -> str:
    digits = sha256(name.encode("utf-8", "surrogatepass")).hexdigest()[:_HASH_DIGITS]
    return _OTHER_CHARACTERS.sub("_", name)[: size - len(mark) - _HASH_DIGITS] + mark + digits
