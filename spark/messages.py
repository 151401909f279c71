"""A topic as a DataFrame, whoever wrote it: Spark's Kafka source, and RocketMQ's meaning as columns.

    topic         string                 as Kafka spells it
    queue         int                    Kafka's partition
    offset        bigint
    key           binary                 Kafka's key; the text of RocketMQ's KEYS
    keys          array<string>          RocketMQ's: the key's words; null without a key, or one that is not text
    tags          string                 null without
    properties    map<string, string>    the headers that are text, TAGS among them; of a repeated name the first
    headers       array<struct<key: string, value: binary>>      all of them, as they are; null without
    body          binary                 null is Kafka's null value
    timestamp     timestamp              as Kafka has it; null if its producer gave none
    born_time     timestamp              when its producer made it; null in a topic of LogAppendTime
    store_time    timestamp              when the broker stored it, in a topic of LogAppendTime; else Kafka is not told
    deliver_time  timestamp              of a delayed message: when it was due; null where that is not kept: RocketMQ's
                                         delay levels, Kafka's messages in a topic of LogAppendTime
    producer      string                 rocketmq or kafka

All of it is column expressions: no Python runs for a row. `producer` follows from the header UNIQ_KEY, which every
RocketMQ client gives; who copies headers with Kafka copies that too. A header that is not text is no property, and is
in `headers` still. A message that was delayed has its due time as Kafka's timestamp, and its own in the header
__BORN_TIMESTAMP. One of RocketMQ keeps its own timestamp, and has its due time in the property TIMER_OUT_MS.

Errors are Spark's: a topic that is missing, an offset that is gone (`fail_on_data_loss`), a broker that is not there.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final

from pyspark.sql import functions as F

from duolog.protocol.names import kafka_name
from duolog.protocol.rocketmq.messages.properties import TIMER_OUT_MS

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

EARLIEST: Final = -2  # among offsets by queue: where the log starts
LATEST: Final = -1  # where it ends

BORN_TIMESTAMP: Final = "__BORN_TIMESTAMP"
_LOG_APPEND_TIME: Final = 1  # Spark's timestampType
_NO_TIMESTAMP_MS: Final = -1

ByQueue = Mapping[str, Mapping[int, int]]  # topic -> queue -> offset, or milliseconds


def messages(
    session: SparkSession,
    topics: str | Sequence[str] | None = None,
    *,
    bootstrap: str,
    streaming: bool = False,
    pattern: str | None = None,
    assign: Mapping[str, Sequence[int]] | None = None,
    starting: str | ByQueue = "earliest",
    ending: str | ByQueue = "latest",
    starting_at_ms: int | ByQueue | None = None,
    ending_at_ms: int | ByQueue | None = None,
    latest_if_no_later: bool = False,
    max_offsets_per_trigger: int | None = None,
    min_partitions: int | None = None,
    fail_on_data_loss: bool = True,
    committed_only: bool = True,
    options: Mapping[str, str] | None = None,
) -> DataFrame:
    """Read topics as rows with the columns above: now, as a batch, or with `streaming` as they come.

    Exactly one of `topics`, `pattern` (a Java regular expression, so that topics made later are read too) and `assign`
    (queues by topic). Topics are named in either family's spelling; in `pattern` and in rows it is Kafka's.
    `starting` and `ending` are "earliest", "latest", or offsets of every queue, EARLIEST and LATEST among them; only
    batches end. `starting_at_ms` begins at the first message of at least that timestamp, `ending_at_ms` ends before
    it. Where there is none, that is an error, unless `latest_if_no_later`. `committed_only` hides what transactions
    aborted or have not committed. `options` are any others of Spark's Kafka source.
    """
    chosen = {"topics": topics, "pattern": pattern, "assign": assign}
    given = {name: value for name, value in chosen.items() if value is not None}
    if len(given) != 1:
        raise ValueError(f"give one of topics, pattern and assign; given: {', '.join(given) or 'none'}")
    asked = {
        "kafka.bootstrap.servers": bootstrap,
        "kafka.isolation.level": "read_committed" if committed_only else "read_uncommitted",
        "startingOffsets": _offsets(starting),
        "failOnDataLoss": str(fail_on_data_loss).lower(),
        "includeHeaders": "true",
    }
    asked |= _chosen(topics, pattern, assign) | _by_time("starting", starting_at_ms)
    if latest_if_no_later:
        asked["startingOffsetsByTimestampStrategy"] = "latest"
    if not streaming:
        asked |= {"endingOffsets": _offsets(ending)} | _by_time("ending", ending_at_ms)
    if max_offsets_per_trigger is not None:
        asked["maxOffsetsPerTrigger"] = str(max_offsets_per_trigger)
    if min_partitions is not None:
        asked["minPartitions"] = str(min_partitions)
    reader = session.readStream if streaming else session.read
    return as_messages(reader.format("kafka").options(**asked | dict(options or {})).load())


def as_messages(frame: DataFrame) -> DataFrame:
    """Give the columns above for a frame of Spark's Kafka source; it must have been loaded with `includeHeaders`."""
    when = F.when(F.unix_millis("timestamp") != _NO_TIMESTAMP_MS, F.col("timestamp"))
    is_log_append_time = F.col("timestampType") == _LOG_APPEND_TIME
    born, due = _moment(BORN_TIMESTAMP), _moment(TIMER_OUT_MS)
    key_text = F.col("key").cast("string")
    return frame.select(
        "topic",
        F.col("partition").alias("queue"),
        "offset",
        "key",
        F.when(F.is_valid_utf8(key_text), F.filter(F.split(key_text, " "), lambda word: word != "")).alias("keys"),
        first_header("TAGS").cast("string").alias("tags"),
        _properties().alias("properties"),
        "headers",
        F.col("value").alias("body"),
        when.alias("timestamp"),
        F.coalesce(born, F.when(~is_log_append_time, when)).alias("born_time"),
        F.when(is_log_append_time, when).alias("store_time"),
        F.coalesce(F.when(born.isNotNull() & ~is_log_append_time, when), due).alias("deliver_time"),
        F.when(first_header("UNIQ_KEY").isNotNull(), "rocketmq").otherwise("kafka").alias("producer"),
    )


# -- Columns


def first_header(name: str) -> Column:
    """Give the value of the first header of that name, null if there is none."""
    return F.get(F.filter("headers", lambda header: header.key == name), F.lit(0)).value


def _moment(name: str) -> Column:
    """Give the header of that name, milliseconds as text, as a timestamp; null if it is not there, or something else.

    Fifteen digits: what has more is no time that Spark's timestamps can be.
    """
    text = first_header(name).cast("string")
    return F.timestamp_millis(F.when(text.rlike("^[0-9]{1,15}$"), text.cast("bigint")))


def _properties() -> Column:
    """Give the headers that are text as a map; one without entries where there are none."""
    is_text = F.filter(
        F.coalesce("headers", F.array()),
        lambda header: header.value.isNotNull() & F.is_valid_utf8(header.value.cast("string")),
    )
    names = F.transform(is_text, lambda header: header.key)
    distinct = F.array_distinct(names)
    # A map refuses a name twice. That is rare, and looking for the first of each name is not cheap.
    first_of_each = F.filter(is_text, lambda header, at: F.array_position(names, header.key) == at + 1)
    unique = F.when(F.size(names) == F.size(distinct), is_text).otherwise(first_of_each)
    return F.map_from_entries(F.transform(unique, lambda header: F.struct(header.key, header.value.cast("string"))))


# -- Options


def _chosen(
    topics: str | Sequence[str] | None, pattern: str | None, assign: Mapping[str, Sequence[int]] | None
) -> dict[str, str]:
    if assign is not None:
        return {"assign": json.dumps({kafka_name(topic): list(queues) for topic, queues in assign.items()})}
    if pattern is not None:
        return {"subscribePattern": pattern}
    names = topics.split(",") if isinstance(topics, str) else topics or ()
    return {"subscribe": ",".join(map(kafka_name, names))}


def _offsets(value: str | ByQueue) -> str:
    if isinstance(value, str):
        return value
    return json.dumps({kafka_name(topic): dict(queues) for topic, queues in value.items()})


def _by_time(which: str, at_ms: int | ByQueue | None) -> dict[str, str]:
    if at_ms is None:
        return {}
    if isinstance(at_ms, int):
        return {f"{which}Timestamp": str(at_ms)}
    return {f"{which}OffsetsByTimestamp": _offsets(at_ms)}
