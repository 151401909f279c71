"""Reads topics as a DataFrame: Spark's Kafka source, with RocketMQ's properties as columns.

The rows are the same for messages of Kafka and RocketMQ producers. Their columns:

    topic         string                 the topic, in Kafka's spelling
    queue         int                    the queue id, which is Kafka's partition
    offset        bigint
    key           binary                 the key of Kafka, or the property KEYS of RocketMQ
    keys          array<string>          the words of the key; null if there is no key, or it is not UTF-8
    tags          string                 the property TAGS; null if there is none
    properties    map<string, string>    the headers whose value is UTF-8, including TAGS; the first header of each name
    headers       array<struct<key: string, value: binary>>      all headers; null if there are none
    body          binary                 the body; null for Kafka's null value
    timestamp     timestamp              Kafka's timestamp; null if the producer set none
    born_time     timestamp              when the producer created the message; null in a topic with LogAppendTime
    store_time    timestamp              when the broker stored the message; null in a topic without LogAppendTime
    deliver_time  timestamp              the due time of a delayed message; null if it is not stored, as for RocketMQ's
                                         delay levels and Kafka messages in a topic with LogAppendTime
    producer      string                 the protocol of the producer: rocketmq or kafka

All columns are column expressions, so no Python code runs for a row. `producer` is derived from the header UNIQ_KEY,
which all RocketMQ clients set; a Kafka producer that copies headers also copies this one. A delayed message of a Kafka
producer has its due time as its timestamp, and its original timestamp in the header __BORN_TIMESTAMP. A delayed message
of a RocketMQ producer has its original timestamp, and its due time in the property TIMER_OUT_MS.

Errors are those of Spark's Kafka source: a topic does not exist, an offset was removed (`fail_on_data_loss`), or no
broker answers.
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

EARLIEST: Final = -2  # In place of an offset: the log start offset of the queue.
LATEST: Final = -1  # In place of an offset: the end of the queue.

BORN_TIMESTAMP: Final = "__BORN_TIMESTAMP"
_LOG_APPEND_TIME: Final = 1  # The value of Spark's column timestampType.
_NO_TIMESTAMP_MS: Final = -1

ByQueue = Mapping[str, Mapping[int, int]]  # Topic -> queue id -> offset, or time in milliseconds.


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
    """Return a DataFrame of topics with the columns above: a batch, or a stream if `streaming` is true.

    topics, pattern, assign    Exactly one must be given: topic names; a Java regular expression, which also matches
                               topics that are created later; or queue ids by topic. Topic names may have Kafka's or
                               RocketMQ's spelling. `pattern` and the rows use Kafka's.
    starting, ending           "earliest", "latest", or the offset of each queue, which may be EARLIEST or LATEST.
                               `ending` applies to batches only.
    starting_at_ms             begin at the first message with this timestamp or a later one
    ending_at_ms               end before the first message with this timestamp or a later one
    latest_if_no_later         if a queue has no such message, begin at its end; without it, Spark raises an error
    committed_only             do not return messages of aborted and open transactions
    options                    further options of Spark's Kafka source

    Raises ValueError unless exactly one of `topics`, `pattern` and `assign` is given.
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
    """Return the columns above for a DataFrame of Spark's Kafka source, loaded with the option `includeHeaders`."""
    when = F.when(F.unix_millis("timestamp") != _NO_TIMESTAMP_MS, F.col("timestamp"))
    is_log_append_time = F.col("timestampType") == _LOG_APPEND_TIME
    born, due = _timestamp(BORN_TIMESTAMP), _timestamp(TIMER_OUT_MS)
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
    """Return the column with the value of the first header of this name; null if there is none."""
    return F.get(F.filter("headers", lambda header: header.key == name), F.lit(0)).value


def _timestamp(name: str) -> Column:
    """Return the column of a header that contains milliseconds as text, as a timestamp.

    It is null if there is no such header, or its value is not a number of at most fifteen digits, the range of Spark's
    timestamps.
    """
    text = first_header(name).cast("string")
    return F.timestamp_millis(F.when(text.rlike("^[0-9]{1,15}$"), text.cast("bigint")))


def _properties() -> Column:
    """Return the column of the headers with UTF-8 values as a map, which is empty if there are none."""
    is_text = F.filter(
        F.coalesce("headers", F.array()),
        lambda header: header.value.isNotNull() & F.is_valid_utf8(header.value.cast("string")),
    )
    names = F.transform(is_text, lambda header: header.key)
    distinct = F.array_distinct(names)
    # `map_from_entries` refuses repeated names. They are rare, and finding the first header of each name is slow.
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
