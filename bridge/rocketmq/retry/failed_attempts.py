"""The failed attempts of a message: number, time and consumer of each, in a property of its retries and dead letters.

    FAILED_ATTEMPTS    1:1763900000000@192.0.2.7 2:1763900010412@192.0.2.8

The time is when the broker learned of the failure: from request 36, from a consumer that sent the message to its retry
topic, or because the invisible time of a popped message was over. The address is that of the consumer's connection; a
popped message has none. Orderly consumers repeat an attempt without telling the broker, so only their last attempt is
known.

The property is carried, and not looked up, because retention may have removed earlier retries. It holds the last
ATTEMPTS_MAX attempts, at most 71 bytes each, and never makes a message too large: messages whose own properties have
more than half of the allowed bytes do not get it. A consumer that sends to its retry topic can forge it.
"""

import re
from typing import Final, NamedTuple

from duolog.protocol.rocketmq.messages import properties
from duolog.protocol.rocketmq.messages.message import PROPERTIES_BYTES_MAX
from duolog.protocol.rocketmq.messages.message_id import unpack_host
from duolog.protocol.rocketmq.names import RETRY_PREFIX

FAILED_ATTEMPTS: Final = "FAILED_ATTEMPTS"
ATTEMPTS_MAX: Final = 16  # The default of `retryMaxTimes`. Older attempts are left out.
OTHER_BYTES_MAX: Final = PROPERTIES_BYTES_MAX // 2

_ATTEMPT: Final = re.compile(r"([1-9][0-9]{0,9}):([0-9]{1,13})(?:@([0-9a-f.:]{2,45}))?")


class ConsumerFailure(NamedTuple):
    """One failed attempt of a consumer. The number counts from 1; no consumer: its address is not known."""

    number: int
    failed_ms: int
    consumer: str | None


def parse(text: str) -> list[ConsumerFailure]:
    """Return the attempts in a value of the property; parts that this module has not written are left out."""
    found = [_ATTEMPT.fullmatch(part) for part in text.split(" ")[-ATTEMPTS_MAX:]]
    return [ConsumerFailure(int(each[1]), int(each[2]), each[3]) for each in found if each is not None]


def kept(topic: str, known: str | None) -> str | None:
    """Return the property's value that a copy takes from a message of this topic.

    Only messages of retry topics have one; in any other message, its producer has set the property.
    """
    return known if topic.startswith(RETRY_PREFIX) else None


def changes(topic: str, raw: bytes, number: int, failed_ms: int, host: bytes) -> dict[str, str | None]:
    """Return the change of properties that adds an attempt to those of a message in `topic`.

    `raw` has the properties of the message, and `host` is the packed address of the consumer.
    """
    known = kept(topic, properties.get(raw, FAILED_ATTEMPTS)) or ""
    if number < 1 or len(raw) - len(known) > OTHER_BYTES_MAX:
        return {FAILED_ATTEMPTS: None}
    address, port = unpack_host(host)
    attempts = [*parse(known), ConsumerFailure(number, failed_ms, address if port else None)]
    return {FAILED_ATTEMPTS: " ".join(map(_text, attempts[-ATTEMPTS_MAX:]))}


def _text(attempt: ConsumerFailure) -> str:
    consumer = "" if attempt.consumer is None else f"@{attempt.consumer}"
    return f"{attempt.number}:{attempt.failed_ms}{consumer}"
