"""Converts the names of topics and groups between Kafka, which forbids `%` and `|`, and RocketMQ, which forbids `.`.

    Kafka      [a-zA-Z0-9._-]{1,249}, not "." or ".."      a group: any text
    RocketMQ   [%|a-zA-Z0-9_-]{1,127}                      %RETRY% and %DLQ% topics: up to 255

The conversion is reversible. Letters, digits, `_` and `-` are unchanged. A sequence of `|` and `%` is read as a number
in base two with the digits `|` = 1 and `%` = 2, in which each number has exactly one spelling, and is replaced by that
many dots:

    Kafka                          RocketMQ                    dots
    orders                         orders
    orders.eu                      orders|eu                   .     |     1
    ..RETRY..billing               %RETRY%billing              ..    %     2
    ..DLQ..billing.eu              %DLQ%billing|eu
    MQ_INST_7..orders              MQ_INST_7%orders
    a...b                          a||b                        ...   ||    2*1 + 1
    a....b                         a|%b                        ....  |%    2*1 + 2
    a.....b                        a%|b                        ..... %|    2*2 + 1

So a name has one spelling in each protocol, and two names never have the same spelling. Names that cannot be converted
in this way (they are too long for the other protocol, are Kafka groups with other characters, or are `|` or `%`) have a
hashed form: as much of the name as fits, then `%%` (six dots in Kafka), then 16 hexadecimal digits of the name's
SHA-256. A hashed form is not reversible: the broker finds the name in its table of names, and refuses to create a name
whose spelling exists already.
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
_SIGNS_MAX = 16  # A longer sequence would become more than 65,535 dots.
_HASH_DIGITS = 16
_HASH_MARK = "%%"
_KAFKA_HASH_MARK = "." * 6  # The conversion of _HASH_MARK.
_OTHER_CHARACTERS = re.compile(r"[^a-zA-Z0-9_-]", re.ASCII)


def is_kafka_topic(name: str) -> bool:
    """Return whether Kafka allows this name for a topic (Topic.java#validate)."""
    return len(name) <= KAFKA_NAME_MAX and _KAFKA_LEGAL(name) is not None and name not in (".", "..")


def is_rocketmq_topic(name: str) -> bool:
    """Return whether RocketMQ allows this name for a topic."""
    return _passes(check_topic, name)


def is_rocketmq_group(name: str) -> bool:
    """Return whether RocketMQ allows this name for a group."""
    return _passes(check_group, name)


def _passes(check: Callable[[str], None], name: str) -> bool:
    try:
        check(name)
    except IllegalName:
        return False
    return True


# Longer names are allowed in neither protocol and are not cached.
_LENGTH_MAX = RETRY_OR_DLQ_TOPIC_LENGTH_MAX


# -- Topics. The broker stores the name as the topic's creator has spelled it.


def kafka_name(name: str) -> str:
    """Return Kafka's spelling of a topic, given in either spelling."""
    return _kafka_name(name) if len(name) <= _LENGTH_MAX else _hashed(name, _KAFKA_HASH_MARK, KAFKA_NAME_MAX)


@lru_cache(1024)
def _kafka_name(name: str) -> str:
    spelled = _to_kafka(name)
    return spelled if is_kafka_topic(spelled) else _hashed(name, _KAFKA_HASH_MARK, KAFKA_NAME_MAX)


def rocketmq_name(name: str) -> str:
    """Return RocketMQ's spelling of a topic, given in either spelling."""
    return _rocketmq_name(name) if len(name) <= _LENGTH_MAX else _hashed(name, _HASH_MARK, TOPIC_LENGTH_MAX)


@lru_cache(1024)
def _rocketmq_name(name: str) -> str:
    spelled = _to_rocketmq(name)
    return spelled if is_rocketmq_topic(spelled) else _hashed(spelled, _HASH_MARK, TOPIC_LENGTH_MAX)


# -- Groups. The broker stores a group by its Kafka spelling, because a Kafka group may be any text.


def group_of_rocketmq(name: str) -> str:
    """Return Kafka's spelling of a group, given in RocketMQ's spelling. It must not be a hashed form."""
    return kafka_name(name)


def rocketmq_group(group: str) -> str:
    """Return RocketMQ's spelling of a group, given in Kafka's spelling."""
    return _rocketmq_group(group) if len(group) <= _LENGTH_MAX else _hashed(group, _HASH_MARK, GROUP_LENGTH_MAX)


@lru_cache(1024)
def _rocketmq_group(group: str) -> str:
    spelled = _to_rocketmq(group)
    if is_rocketmq_group(spelled) and _KAFKA_LEGAL(group):
        return spelled
    return _hashed(group, _HASH_MARK, GROUP_LENGTH_MAX)


# -- The conversion of sequences of dots and signs


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
