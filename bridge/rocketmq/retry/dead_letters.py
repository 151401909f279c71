"""Which failed or expired messages become dead letters, and why.

    a consumer sends the message back (36)       `send_back.py`           its delay level is below 0, or no attempt is
                                                                          left
    a consumer sends it to the retry topic       `retry_sends.py`         no attempt is left, or its group holds queue
                                                                          locks
    its invisible time is over (POP)             `pop/revived_copies.py`  no attempt is left, or its properties are too
                                                                          large
    it has expired, and its topic keeps expired  `send_back.py`, `pop/revived_copies.py`, `consuming/expired.py`

An attempt is left if the message has failed at most as often as its consumer or the group's `retryMaxTimes` allows.
"""

from typing import Final

from duolog.bridge.data import expiry
from duolog.bridge.monitoring.metrics import Metrics
from duolog.bridge.rocketmq.retry.failed_copies import copy_of
from duolog.bridge.state.topic_table import Topic
from duolog.bridge.state.topics import Topics
from duolog.protocol.rocketmq.bodies import SubscriptionGroupConfig
from duolog.protocol.rocketmq.messages import properties
from duolog.protocol.rocketmq.messages.message import Message
from duolog.protocol.rocketmq.names import DLQ_PREFIX, RETRY_PREFIX
from duolog.protocol.rocketmq.remoting import RemotingCommand

REASON: Final = "DEAD_LETTER_REASON"  # The property of a dead letter with one of the four reasons below.
ATTEMPTS: Final = "attempts"  # No attempts were left.
GIVEN_UP: Final = "given-up"  # The consumer asked for it by a delay level below 0.
TOO_LARGE: Final = "too-large"  # The properties have no room for those of another attempt.
EXPIRED: Final = "expired"  # The message had expired.
EXPIRED_AT: Final = "EXPIRED_AT_MS"  # The property of a dead letter with the time at which it expired.
OWN_LIMIT_VERSION: Final = 121  # `MQVersion.V3_4_9`: clients from this version on send their number of attempts.


# -- Failed


def reason_of(failures: int, attempts_max: int, *, is_given_up: bool = False, is_full: bool = False) -> str | None:
    """Return why a message with so many failures becomes a dead letter; None if it is tried again."""
    if is_given_up:
        return GIVEN_UP
    if is_full:
        return TOO_LARGE
    return ATTEMPTS if failures > attempts_max else None


def attempts_max(command: RemotingCommand, requested: int | None, config: SubscriptionGroupConfig) -> int:
    """Return how often a message may fail: the number in the request of a consumer, or that of the group."""
    return requested if requested is not None and command.version >= OWN_LIMIT_VERSION else config.retry_max_times


def count(metrics: Metrics, *, is_dead: bool) -> None:
    """Count a dead letter or a retry in the metrics."""
    if is_dead:
        metrics.dead_letters += 1
    else:
        metrics.retries += 1


# -- Expired


def expiry_of(topics: Topics, failed: Message) -> int | None:
    """Return the time when a message expires, by its own property or by its topic; None: never."""
    topic = topics.by_rocketmq_name(failed.topic)
    if topic is None or failed.topic.startswith(DLQ_PREFIX):
        return None
    return expiry.expiry_of(failed.properties, failed.store_ms, topic.settings)


def drops_expired(topics: Topics, topic: Topic, raw: bytes) -> bool:
    """Return whether an expired message is dropped, as configured for its topic or the topic it was retried from."""
    if topic.rocketmq_name.startswith(RETRY_PREFIX):
        origin_name = properties.get(properties.repaired(raw), properties.RETRY_TOPIC) or ""
        origin = topics.by_rocketmq_name(origin_name)
        return origin is not None and origin.settings.drops_expired
    return topic.settings.drops_expired


def expired_copy(found: Message, expires_ms: int) -> Message:
    """Return the dead letter for an expired message: without one more failure, and without an expiry time."""
    kept = expiry.without_expiry(properties.parse(properties.repaired(found.properties)))
    found.properties = properties.encode(kept).encode()
    dead = copy_of(found, {properties.DELAY: None, REASON: EXPIRED, EXPIRED_AT: str(expires_ms)})
    dead.reconsume_times = found.reconsume_times
    return dead
