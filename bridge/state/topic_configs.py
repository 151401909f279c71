"""Topic configs: names, types, defaults, checks, and the typed settings that the broker uses.

The names are Kafka's, RocketMQ's `message.type`, and six of Duolog's own:

    flush.mode               whether answers to producers wait for fsync, or for the object store
    retention.records        the limit of records in a queue
    delay.headers            whether Kafka batches are searched for delay headers
    delay.unknown.headers    what happens to a message whose delay header is probably misspelled
    message.ttl.ms           how long RocketMQ groups may get a message
    message.expired          what happens to an expired message

Values are text, as in Kafka's requests. The value of a config is the topic's override, else the broker's setting, else
the default in TABLE. `cleanup.policy=compact` is accepted, because some applications require it, but all records are
kept.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from enum import IntEnum
from typing import NamedTuple

from duolog.bridge.config import Options
from duolog.bridge.config.conversion import SIMILARITY
from duolog.store.options import LEVELS

INT64_MAX = (1 << 63) - 1
INT32_MAX = (1 << 31) - 1
TTL_MS_MAX = 3650 * 86_400_000  # Ten years.
PRIORITY = "PRIORITY"
# TopicMessageType.java of RocketMQ 5.5, without LITE, because there are no lite topics.
MESSAGE_TYPES = ("UNSPECIFIED", "NORMAL", "FIFO", "DELAY", "TRANSACTION", PRIORITY, "MIXED")
# The length of one value. Overrides are kept in memory, and old versions of DescribeConfigs encode up to 32 KiB.
VALUE_CHARACTERS_MAX = 4096


class InvalidConfig(Exception):
    """There is no such topic config, or it does not accept the value; the message names both."""


class ConfigType(IntEnum):
    """The numbers of types in DescribeConfigs (ConfigDef.Type)."""

    BOOLEAN = 1
    STRING = 2
    INT = 3
    LONG = 5
    DOUBLE = 6
    LIST = 7


class Check(NamedTuple):
    """A test for the values of a config."""

    accepts: Callable[[str], bool]
    allowed: str = ""  # The text that the error message shows as the allowed values.


class TopicConfigKey(NamedTuple):
    """One config: its name, type, default and check, and a description for the documentation."""

    name: str
    type: ConfigType
    default: str
    check: Check
    doc: str


def _integer(low: int, high: int) -> Check:
    def check(value: str) -> bool:
        try:
            return low <= int(value) <= high
        except ValueError:
            return False

    return Check(check, f"{low} to {high}")


def _share(value: str) -> bool:
    try:
        return 0 <= float(value) <= 1
    except ValueError:
        return False


def _one_of(*values: str) -> Check:
    return Check(values.__contains__, ", ".join(values))


def _some_of(*values: str) -> Check:
    return Check(
        lambda value: {part.strip() for part in value.split(",")} <= {"", *values},
        f"{', '.join(values)}, also several joined by commas",
    )


def _life(value: str) -> bool:
    return value == "-1" or _LIVES.accepts(value)


def _row(name: str, type_: ConfigType, default: int | str, check: Check, doc: str) -> TopicConfigKey:
    return TopicConfigKey(name, type_, str(default), check, doc)


_B, _S, _I, _L, _D, _LIST = ConfigType
_BOOL = _one_of("true", "false")
_POSITIVE, _NATURAL, _FROM_MINUS_1 = _integer(1, INT64_MAX), _integer(0, INT64_MAX), _integer(-1, INT64_MAX)
_LIVES = _integer(1, TTL_MS_MAX)
_SHARE, _ANY_TEXT = Check(_share, "0 to 1"), Check(lambda value: True)
_UNUSED = "Accepted for applications that set it; it has no effect."

# fmt: off
TABLE: Mapping[str, TopicConfigKey] = {row.name: row for row in (
    # Configs that have an effect.
    _row("max.message.bytes", _I, 1048588, _integer(0, INT32_MAX), "The largest Kafka batch, as sent, in bytes."),
    _row("message.timestamp.type", _S, "CreateTime", _one_of("CreateTime", "LogAppendTime"),
         "What a Kafka record's timestamp is: the producer's time or the time of the append."),
    _row("message.timestamp.before.max.ms", _L, INT64_MAX, _NATURAL, "How far a batch's timestamps may be before "
         "the broker's time."),
    _row("message.timestamp.after.max.ms", _L, 3600000, _NATURAL, "How far a batch's timestamps may be after the "
         "broker's time."),
    _row("retention.ms", _L, 604800000, _FROM_MINUS_1, "How long records are kept after their append; -1: for ever."),
    _row("retention.bytes", _L, -1, _FROM_MINUS_1, "How many bytes are kept in each queue; -1: no limit."),
    _row("retention.records", _L, -1, _FROM_MINUS_1, "How many records are kept in each queue; -1: no limit."),
    _row("cleanup.policy", _LIST, "delete", _some_of("delete", "compact"),
         "delete: records are removed by the retention limits. compact: accepted; all records are kept."),
    _row(
        "flush.mode",
        _S,
        "sync",
        _one_of(*LEVELS),
        "async: answers wait for write(); sync: for fsync; shared: until the object store has the message.",
    ),
    _row("delay.headers", _B, "true", _BOOL,
         "Whether Kafka records are searched for headers that ask for a delay, an expiry, or for a half message."),
    _row("delay.unknown.headers", _S, "warn", _one_of("warn", "refuse", "ignore"),
         "What happens to a message with a header or property that is probably misspelled: it begins with TIMER_, "
         "AMQ_SCHEDULED_, "
         "EXPIRE_ or TRAN_MSG_, and is not known. warn: the log names it once for each producer. refuse: the "
         "message is refused."),
    _row("message.ttl.ms", _L, -1, Check(_life, f"{_LIVES.allowed}, and -1"),
         "How long RocketMQ groups may get a message after its append; -1: for ever."),
    _row("message.expired", _S, "dead-letter", _one_of("dead-letter", "drop"),
         "What happens to an expired message that a RocketMQ group would get: it becomes a dead letter, or is "
         "dropped."),
    _row("message.type", _S, "NORMAL", _one_of(*MESSAGE_TYPES),
         "Which messages RocketMQ's gRPC proxy lets producers send. PRIORITY: POP takes the last queues first."),
    _row("compression.type", _S, "producer", _one_of("producer"), "Batches are stored as their producers compressed "
         "them."),
    # Configs without effect that applications set or read, Connect and Streams among them.
    _row("delete.retention.ms", _L, 86400000, _NATURAL, _UNUSED),
    _row("file.delete.delay.ms", _L, 60000, _NATURAL, _UNUSED),
    _row("flush.messages", _L, INT64_MAX, _POSITIVE, _UNUSED),
    _row("flush.ms", _L, INT64_MAX, _NATURAL, _UNUSED),
    _row("index.interval.bytes", _I, 4096, _integer(0, INT32_MAX), _UNUSED),
    _row("max.compaction.lag.ms", _L, INT64_MAX, _POSITIVE, _UNUSED),
    _row("min.cleanable.dirty.ratio", _D, "0.5", _SHARE, _UNUSED),
    _row("min.compaction.lag.ms", _L, 0, _NATURAL, _UNUSED),
    _row("min.insync.replicas", _I, 1, _integer(1, INT32_MAX), _UNUSED),
    _row("preallocate", _B, "false", _BOOL, _UNUSED),
    _row("segment.bytes", _I, 1073741824, _integer(14, INT32_MAX), _UNUSED),
    _row("segment.index.bytes", _I, 10485760, _integer(4, INT32_MAX), _UNUSED),
    _row("segment.jitter.ms", _L, 0, _NATURAL, _UNUSED),
    _row("segment.ms", _L, 604800000, _POSITIVE, _UNUSED),
    _row("unclean.leader.election.enable", _B, "false", _BOOL, _UNUSED),
    # Configs of replication between brokers or of older log formats, which tools set.
    _row("leader.replication.throttled.replicas", _LIST, "", _ANY_TEXT, _UNUSED),
    _row("follower.replication.throttled.replicas", _LIST, "", _ANY_TEXT, _UNUSED),
    _row("remote.storage.enable", _B, "false", _one_of("false"), "There is no tiered storage."),
)}
# fmt: on


@dataclass(frozen=True, slots=True)
class TopicSettings:
    """The configs of a topic that the broker uses, typed."""

    max_message_bytes: int
    log_append_time: bool
    timestamp_before_max_ms: int
    timestamp_after_max_ms: int
    retention_ms: int  # -1: no limit; the same for the next two fields.
    retention_bytes: int
    retention_records: int
    compact: bool
    delete: bool
    level: int  # When answers to producers leave, and readers see their messages: `store.entry.WRITTEN` and so on.
    delay_headers: bool
    unknown_headers: str  # A value of `delay.unknown.headers`.
    ttl_ms: int  # -1: no limit
    drops_expired: bool
    has_priorities: bool  # POP reads the queues in descending order: queue n holds the messages of priority n.

    def index_ms(self, born_ms: int, now_ms: int) -> int:
        """Return the timestamp by which the index finds a RocketMQ message.

        The client sets the born time, and RocketMQ accepts any value. The index keeps the greatest timestamp so far, so
        a message from the far future would be the result of every later search by time. If the born time is more than
        `message.timestamp.after.max.ms` ahead, for which a Kafka record is refused, the index uses the current time.
        """
        return born_ms if born_ms <= now_ms + self.timestamp_after_max_ms else now_ms


def broker_defaults(options: Options) -> Mapping[str, str]:
    """Return the broker's settings that are defaults of topic configs, by the names of these configs."""
    return {
        "max.message.bytes": str(options.topics.message_bytes_max),
        "retention.ms": str(options.retention.ms),
        "retention.bytes": str(options.retention.bytes),
        "retention.records": str(options.retention.records),
        "flush.mode": options.store.flush,
    }


def check(configs: Mapping[str, str]) -> None:
    """Raise `InvalidConfig` for an unknown config, or for a value that a config does not accept."""
    for name, value in configs.items():
        row = TABLE.get(name)
        if row is None:
            near = get_close_matches(name, TABLE, 3, SIMILARITY)
            raise InvalidConfig(
                f"unknown topic config {name}" + (f"; did you mean {' or '.join(near)}?" if near else "")
            )
        if len(value) > VALUE_CHARACTERS_MAX or not row.check.accepts(value):
            shown = value[:VALUE_CHARACTERS_MAX]
            allowed = f"; allowed are {row.check.allowed}" if row.check.allowed else ""
            raise InvalidConfig(f"invalid value {shown!r} for topic config {name} ({row.type.name.lower()}){allowed}")


def changed(overrides: Mapping[str, str], changes: Mapping[str, str | None]) -> dict[str, str]:
    """Return overrides after changes; a change to None removes an override. Raises `InvalidConfig`."""
    check(
        {
            name: TABLE[name].default if value is None and name in TABLE else value or ""
            for name, value in changes.items()
        }
    )
    return {name: value for name, value in {**overrides, **changes}.items() if value is not None}


def value_of(name: str, overrides: Mapping[str, str], broker: Mapping[str, str]) -> str:
    """Return the value of a config: the override, else the broker's setting, else the default of TABLE."""
    return overrides[name] if name in overrides else broker.get(name, TABLE[name].default)


def settings(overrides: Mapping[str, str], broker: Mapping[str, str]) -> TopicSettings:
    """Return the typed settings of a topic; `check` must have accepted all values before."""

    def value(name: str) -> str:
        return value_of(name, overrides, broker)

    policies = {part.strip() for part in value("cleanup.policy").split(",")}
    return TopicSettings(
        max_message_bytes=int(value("max.message.bytes")),
        log_append_time=value("message.timestamp.type") == "LogAppendTime",
        timestamp_before_max_ms=int(value("message.timestamp.before.max.ms")),
        timestamp_after_max_ms=int(value("message.timestamp.after.max.ms")),
        retention_ms=int(value("retention.ms")),
        retention_bytes=int(value("retention.bytes")),
        retention_records=int(value("retention.records")),
        compact="compact" in policies,
        delete="compact" not in policies or "delete" in policies,
        level=LEVELS[value("flush.mode")],
        delay_headers=value("delay.headers") == "true",
        unknown_headers=value("delay.unknown.headers"),
        ttl_ms=int(value("message.ttl.ms")),
        drops_expired=value("message.expired") == "drop",
        has_priorities=value("message.type") == PRIORITY,
    )
