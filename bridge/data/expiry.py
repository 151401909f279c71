"""The expiry of messages: the settings of messages and topics, and the queues that have messages with their own expiry.

    EXPIRE_AFTER_MS    Milliseconds from the time when the broker received the message.
    EXPIRE_AT_MS       Wall time in milliseconds.
    message.ttl.ms     A topic config: milliseconds from the time when the message was stored in its queue.

The first two are RocketMQ properties or headers of a Kafka record. The earliest of the three times counts.

A message that is written anew in any case (a RocketMQ message, a record that is delayed or redelivered) gets
EXPIRE_AT_MS in place of EXPIRE_AFTER_MS. A Kafka batch is stored as it was sent, and its store time is the time when it
was received. A recurring message keeps EXPIRE_AFTER_MS, because each of its runs is a message of its own.

An expired message stays in its queue like any other. The group that would receive it moves it to its dead letters or
skips it (`bridge/rocketmq/consuming/expired.py`). Only in a topic with `message.expired=drop` does a message that
expired while it waited never become visible (`DeliveryFrames.deliveries`, and the commit of a half message).

Readers parse properties only in queues that received a message with an expiry of its own, so that other queues pay
nothing. A state record in the unit of the first such message marks the queue.
"""

from collections.abc import Mapping, Sequence
from typing import Final

from duolog.bridge.config import DAY_MS, DelayOptions
from duolog.bridge.data.delayed.delay_headers import integer, integer_of_header
from duolog.bridge.records.codec import Record
from duolog.bridge.records.expiry import QueuesExpire
from duolog.bridge.records.topics import TopicDeleted
from duolog.bridge.state.topic_configs import TopicSettings
from duolog.delay.requested_delay import DelayRefused, too_far
from duolog.protocol.convert import to_kafka
from duolog.protocol.kafka.record_batch import Header
from duolog.protocol.rocketmq.messages import properties
from duolog.store.entry import EntrySlot
from duolog.store.index.queue import QUEUE_ID_BITS
from duolog.store.state_log import StateLog

EXPIRE_AT: Final = "EXPIRE_AT_MS"
EXPIRE_AFTER: Final = "EXPIRE_AFTER_MS"
PREFIX: Final = "EXPIRE_"  # The beginning of both names.
NAMES: Final = (EXPIRE_AT, EXPIRE_AFTER)

_PREFIX_BYTES: Final = PREFIX.encode()


class ExpiringQueues:
    """The queues that received a message with an expiry of its own."""

    def __init__(self, state_log: StateLog) -> None:
        self._topics: dict[int, set[int]] = {}  # The keys of such queues by the number of their topic.
        state_log.own(QueuesExpire, self._replay_queues)
        state_log.own(TopicDeleted, self._replay_topic_deleted)
        self._snapshot_copy = state_log.on_copied_snapshot(lambda: self._topics, self._records_of)

    def __contains__(self, key: int) -> bool:
        """Return whether messages of the queue with this key may have an expiry of their own."""
        return key in self._topics.get(key >> QUEUE_ID_BITS, ())

    def records_for(self, key: int) -> list[Record]:
        """Make the state records that the unit of a message with an expiry needs in this queue."""
        return [] if key in self else [QueuesExpire([key])]

    def _replay_queues(self, record: QueuesExpire, slot: EntrySlot) -> None:
        for key in record.keys:
            self._snapshot_copy.before_change(key >> QUEUE_ID_BITS)
            self._topics.setdefault(key >> QUEUE_ID_BITS, set()).add(key)

    def _replay_topic_deleted(self, record: TopicDeleted, slot: EntrySlot) -> None:
        self._snapshot_copy.before_change(record.number)
        self._topics.pop(record.number, None)

    def _records_of(self, number: int) -> list[Record] | None:
        keys = self._topics.get(number)
        return None if keys is None else [QueuesExpire(sorted(keys))]


class ExpiryParser:
    """Reads the expiry that a message asks for, and refuses times that are invalid or too far away."""

    def __init__(self, options: DelayOptions) -> None:
        self._max_days = options.max_days

    def parse_properties(self, found: Mapping[str, str], now_ms: int) -> int | None:
        """Read RocketMQ's properties; return the time of expiry, or None. Raises DelayRefused."""
        return self._expiry({name: integer(name, found[name]) for name in NAMES if name in found}, now_ms)

    def parse_headers(self, headers: Sequence[Header], now_ms: int) -> int | None:
        """Read the headers of a Kafka record; if a name occurs twice, the last one counts. Raises DelayRefused."""
        found = {name: value for name, value in headers if name in NAMES}
        if not found:  # Nearly all records have none.
            return None
        return self._expiry({name: integer_of_header(name, value) for name, value in found.items()}, now_ms)

    def _expiry(self, asked: Mapping[str, int], now_ms: int) -> int | None:
        if not asked:
            return None
        for name, value in asked.items():
            if value <= 0:
                raise DelayRefused(f"{name}={value}: expected more than 0")
            left_ms = value if name == EXPIRE_AFTER else value - now_ms
            if left_ms > self._max_days * DAY_MS:
                raise too_far(f"{name}={value}", left_ms, self._max_days)
        return _earliest(asked, now_ms)


# -- Stored messages, whose times are not checked


def expiry_of(raw: bytes, stored_ms: int, settings: TopicSettings) -> int | None:
    """Return when a stored message of a topic with these settings expires, or None if it never does.

    `raw` holds the message's properties as a RocketMQ client gets them.
    """
    own_ms = own_expiry_of(raw, stored_ms)
    if settings.ttl_ms < 0:
        return own_ms
    topics_ms = stored_ms + settings.ttl_ms
    return topics_ms if own_ms is None else min(own_ms, topics_ms)


def own_expiry_of(raw: bytes, stored_ms: int) -> int | None:
    """Return when a stored message expires by its own properties, or None if they name no time."""
    if raw.find(_PREFIX_BYTES) < 0:
        return None
    found = properties.parse(properties.repaired(raw))
    asked: dict[str, int] = {}
    for name, value in found.items():
        header = to_kafka.unescaped_header(name.encode(), value.encode()) or (name, value.encode())
        if header[0] in NAMES:
            try:
                asked[header[0]] = integer_of_header(*header)
            except DelayRefused:
                continue  # In a topic with delay.headers=false the name is a plain header.
    return _earliest(asked, stored_ms)


def _earliest(asked: Mapping[str, int], from_ms: int) -> int | None:
    return min((value + from_ms if name == EXPIRE_AFTER else value for name, value in asked.items()), default=None)


def without_expiry(found: Mapping[str, str]) -> dict[str, str]:
    """Remove the expiry from properties, including expiry headers of Kafka records in their escaped form."""
    kept = {}
    for name, value in found.items():
        header = to_kafka.unescaped_header(name.encode(), value.encode())
        if (header[0] if header is not None else name) not in NAMES:
            kept[name] = value
    return kept


# -- Expiry as an absolute time


def fixed_properties(raw: bytes, expires_ms: int) -> bytes:
    """Set EXPIRE_AT_MS in place of EXPIRE_AFTER_MS in the properties of a message."""
    return properties.set_many(raw, {EXPIRE_AFTER: None, EXPIRE_AT: str(expires_ms)})


def fixed_headers(headers: Sequence[Header], expires_ms: int) -> list[Header]:
    """Set EXPIRE_AT_MS in place of EXPIRE_AFTER_MS in the headers of a record."""
    return [*(header for header in headers if header[0] not in NAMES), (EXPIRE_AT, str(expires_ms).encode())]
