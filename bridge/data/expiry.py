"""How long a message lives: what it says itself, what its topic says, and in which queues to look for that.

    EXPIRE_AFTER_MS    milliseconds from when the broker took it    RocketMQ's properties, or headers of a Kafka record;
    EXPIRE_AT_MS       wall time in milliseconds                    of both, and of the topic's, the earliest counts
    message.ttl.ms     of a topic: milliseconds from when the message was stored in its queue

What must be written anew anyway (a RocketMQ message, a record that is parked or given back) has EXPIRE_AFTER_MS turned
into EXPIRE_AT_MS. A Kafka batch lies as it was sent, and its store time is when it was taken. A message that recurs
keeps it, too: each run is a message of its own.

A message that has expired lies in its queue like any other: it is for the group that would get it to put it among its
dead letters (`bridge/rocketmq/consuming/expired.py`), or to pass over it. Only where the topic's `message.expired` is
`drop` does
nothing become visible that has expired while it waited (`Publisher.delivery`, and a half message's commit).

So that nobody else pays, readers look into properties only in queues that were sent a message with an expiry of its
own: one record says so, in the unit of the first of them.
"""

from collections.abc import Mapping, Sequence
from typing import Final

from duolog.bridge.config import DAY_MS, DelayOptions
from duolog.bridge.data.delay_headers import (
    DelayRefused,
    integer,
    integer_of_header,
    too_far,
)
from duolog.bridge.state.records import QueuesExpire, Record, TopicDeleted
from duolog.bridge.state.topic_configs import TopicSettings
from duolog.protocol import convert
from duolog.protocol.kafka.record_batch import Header
from duolog.protocol.rocketmq.messages import properties
from duolog.store.entry import Slot
from duolog.store.index.queue import QUEUE_ID_BITS
from duolog.store.state_log import StateLog

EXPIRE_AT: Final = "EXPIRE_AT_MS"
EXPIRE_AFTER: Final = "EXPIRE_AFTER_MS"
PREFIX: Final = "EXPIRE_"  # of both
NAMES: Final = (EXPIRE_AT, EXPIRE_AFTER)

_PREFIX_BYTES: Final = PREFIX.encode()


class Lifetimes:
    """Reads what messages ask for, and knows which queues have had one that asks."""

    def __init__(self, state_log: StateLog, options: DelayOptions) -> None:
        self._max_days = options.max_days
        self._topics: dict[int, set[int]] = {}  # by topic number: keys of queues
        state_log.own(QueuesExpire, self._replay_queues)
        state_log.own(TopicDeleted, self._replay_topic_deleted)
        self._moment = state_log.on_copied_snapshot(lambda: self._topics, self._records_of)

    def __contains__(self, key: int) -> bool:
        """Whether messages of that queue may have an expiry of their own."""
        return key in self._topics.get(key >> QUEUE_ID_BITS, ())

    def records(self, key: int) -> list[Record]:
        """Give what belongs into the unit of a message that has one, for that queue."""
        return [] if key in self else [QueuesExpire([key])]

    # -- What is asked for

    def of_properties(self, found: Mapping[str, str], now_ms: int) -> int | None:
        """Read RocketMQ's properties: when the message expires, None: never. Raises DelayRefused."""
        return self._expiry({name: integer(name, found[name]) for name in NAMES if name in found}, now_ms)

    def of_headers(self, headers: Sequence[Header], now_ms: int) -> int | None:
        """Read the headers of a Kafka record; of a name that occurs twice the last counts."""
        found = {name: value for name, value in headers if name in NAMES}
        if not found:  # As with nearly all.
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

    # -- Replay

    def _replay_queues(self, record: QueuesExpire, slot: Slot) -> None:
        for key in record.keys:
            self._moment.before_change(key >> QUEUE_ID_BITS)
            self._topics.setdefault(key >> QUEUE_ID_BITS, set()).add(key)

    def _replay_topic_deleted(self, record: TopicDeleted, slot: Slot) -> None:
        self._moment.before_change(record.number)
        self._topics.pop(record.number, None)

    def _records_of(self, number: int) -> list[Record] | None:
        keys = self._topics.get(number)
        return None if keys is None else [QueuesExpire(sorted(keys))]


# -- What lies in the log: nothing of it is refused any more


def expiry_of(raw: bytes, stored_ms: int, settings: TopicSettings) -> int | None:
    """Say when a message expires that lies in a queue of a topic with these settings; None: never.

    `raw` are its properties as a RocketMQ client gets them.
    """
    own_ms = own_expiry_of(raw, stored_ms)
    if settings.ttl_ms < 0:
        return own_ms
    topics_ms = stored_ms + settings.ttl_ms
    return topics_ms if own_ms is None else min(own_ms, topics_ms)


def own_expiry_of(raw: bytes, stored_ms: int) -> int | None:
    """The same by what the message itself says."""
    if raw.find(_PREFIX_BYTES) < 0:
        return None
    found = properties.parse(properties.repaired(raw))
    asked: dict[str, int] = {}
    for name, value in found.items():
        header = convert.unescaped_header(name.encode(), value.encode()) or (name, value.encode())
        if header[0] in NAMES:
            try:
                asked[header[0]] = integer_of_header(*header)
            except DelayRefused:
                continue  # A plain header, in a topic where they mean nothing (`delay.headers`).
    return _earliest(asked, stored_ms)


def _earliest(asked: Mapping[str, int], from_ms: int) -> int | None:
    return min((value + from_ms if name == EXPIRE_AFTER else value for name, value in asked.items()), default=None)


def without_expiry(found: Mapping[str, str]) -> dict[str, str]:
    """Give properties without those that say when the message expires, also where they are escaped headers."""
    kept = {}
    for name, value in found.items():
        header = convert.unescaped_header(name.encode(), value.encode())
        if (header[0] if header is not None else name) not in NAMES:
            kept[name] = value
    return kept


# -- As of a moment


def fixed_properties(raw: bytes, expires_ms: int) -> bytes:
    """Give properties that say the same at any later moment."""
    return properties.set_many(raw, {EXPIRE_AFTER: None, EXPIRE_AT: str(expires_ms)})


def fixed_headers(headers: Sequence[Header], expires_ms: int) -> list[Header]:
    """Give headers that say the same at any later moment."""
    return [*(header for header in headers if header[0] not in NAMES), (EXPIRE_AT, str(expires_ms).encode())]
