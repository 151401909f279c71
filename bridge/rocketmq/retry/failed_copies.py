"""The copy of a failed message for the retry topic or dead-letter topic of its group.

The copy has the body and the properties of the original, except those that delayed it. Further properties say where the
original is (RETRY_TOPIC, ORIGIN_MESSAGE_ID, ORIGIN_PLACE) and which attempts have failed (`failed_attempts.py`).
"""

from typing import Final

from duolog.bridge.data import expiry
from duolog.bridge.data.delayed.delay_headers import TIMER_REPLACE
from duolog.bridge.rocketmq.retry import failed_attempts
from duolog.bridge.rocketmq.retry.failed_attempts import FAILED_ATTEMPTS
from duolog.delay.recurring import AMQ_NAMES
from duolog.protocol.rocketmq.messages import flags, message, properties
from duolog.protocol.rocketmq.messages.message import Message
from duolog.protocol.rocketmq.messages.message_id import message_id

ORIGIN_PLACE: Final = "ORIGIN_PLACE"  # The property with `queue/offset` of the original in the topic RETRY_TOPIC.

# Properties that delayed or held back the original; the copy does not have them.
_DELAY_PROPERTIES: Final = dict.fromkeys(
    (
        properties.DELAY,
        properties.TIMER_DELIVER_MS,
        properties.TIMER_DELAY_MS,
        properties.TIMER_DELAY_SEC,
        properties.TRAN_MSG,
        TIMER_REPLACE,
        *AMQ_NAMES,
    )
)


def copy_of(failed: Message, changes: dict[str, str | None]) -> Message:
    """Return the message for another topic of the group, with one more failure."""
    found = properties.parse(properties.repaired(failed.properties))
    marks: dict[str, str | None] = {
        properties.RETRY_TOPIC: found.get(properties.RETRY_TOPIC, failed.topic),
        properties.ORIGIN_MESSAGE_ID: found.get(
            properties.ORIGIN_MESSAGE_ID, message_id(failed.store_host, failed.physical_offset)
        ),
        ORIGIN_PLACE: found.get(ORIGIN_PLACE),
        FAILED_ATTEMPTS: failed_attempts.kept(failed.topic, found.get(FAILED_ATTEMPTS)),
    }
    if properties.RETRY_TOPIC not in found:
        marks[ORIGIN_PLACE] = f"{failed.queue_id}/{failed.queue_offset}"
    merged: dict[str, str | None] = {**found, **_DELAY_PROPERTIES, **marks, **changes}
    raw = properties.encode({name: value for name, value in merged.items() if value is not None})
    return Message(
        topic="",  # The publisher sets topic, queue and store host.
        body=failed.body,
        properties=raw.encode(),
        flag=failed.flag,
        sys_flag=failed.sys_flag & ~flags.TRANSACTION_MASK,
        born_ms=failed.born_ms,
        born_host=failed.born_host,
        # Limited, because a sender may set any number.
        reconsume_times=min(failed.reconsume_times + 1, message.RECONSUME_TIMES_MAX),
    )


def counted_failure(failed: Message, now_ms: int, consumer: bytes = message.NO_HOST) -> dict[str, str | None]:
    """Return the change of properties for one more failed attempt, by the consumer with this packed address."""
    raw = properties.repaired(failed.properties)
    return failed_attempts.changes(failed.topic, raw, failed.reconsume_times + 1, now_ms, consumer)


def fixed(expires_ms: int | None) -> dict[str, str | None]:
    """Return the change of properties that gives a copy the expiry time of its original."""
    return {} if expires_ms is None else {expiry.EXPIRE_AFTER: None, expiry.EXPIRE_AT: str(expires_ms)}
