"""The job schedule: sends the rows of a table (topic, key, body, deliver_at) as delayed messages, each once.

    <state>/rows/part=N      the rows at the beginning of the first run, in parts, each row with its timer key
    <state>/begun/N.json     the ends of the topics before any message of the part was sent
    <state>/done/N.json      all messages of the part are sent

The timer key is a hash of topic, key, body and time, so it is the same in every run. It is the header __SCHEDULE_KEY of
the message. Equal rows are sent as one message.

If the job is killed and run again with the same state, no message is sent twice: for a part that was begun and is not
done, the job searches for its timer keys in the broker's topic of pending messages and in the topics themselves, from
the ends in begun/N.json on, and sends only the rows that it does not find. This requires that the earlier run has
ended, and that retention has not removed its messages from these topics.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple

from pyspark.sql import functions as F

from duolog.protocol.names import is_kafka_topic, is_rocketmq_topic, kafka_name
from duolog.protocol.rocketmq.messages.properties import TIMER_DELIVER_MS
from duolog.protocol.rocketmq.names import TIMER_TOPIC
from duolog.spark.broker_api import ApiError, BrokerApi
from duolog.spark.files import HadoopFiles, TableFiles
from duolog.spark.jobs.tables import TableError
from duolog.spark.messages import LATEST, first_header, messages
from duolog.spark.progress import OnProgress, Summary
from duolog.spark.stopping import Stop

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

SCHEDULE_KEY: Final = "__SCHEDULE_KEY"
COLUMNS: Final = ("topic", "key", "body", "deliver_at")
PART_ROWS: Final = 200_000
_BEGUN, _DONE, _ROWS = "begun", "done", "rows"
_FOUND: Final = "found sent by an earlier run"

Ends = dict[str, dict[str, int]]  # Topic -> queue id as text -> offset, as in the options of Spark's Kafka source.


@dataclass(frozen=True, slots=True)
class ScheduleOptions:
    state: str  # The folder for the state of this job.
    bootstrap: str
    http: str
    part_rows: int = PART_ROWS


class _Part(NamedTuple):
    number: int
    rows: int
    unfit: int  # Rows without a topic or a time.
    topics: list[str]


def schedule(
    session: SparkSession,
    table: DataFrame,
    options: ScheduleOptions,
    on_progress: OnProgress | None = None,
    files: TableFiles | None = None,
    stop: Stop | None = None,
) -> Summary:
    """Send the rows of a table that no earlier run with this state has sent; return the summary.

    `table` has the columns topic (in Kafka's or RocketMQ's spelling), key, body and deliver_at (a timestamp); key and
    body may be null. Only the first run reads it. Raises TableError before anything is sent if a row cannot be sent;
    ApiError; and errors of Spark.
    """
    stop = stop or Stop()
    files = files or HadoopFiles(session, options.state)
    rows_path = f"{options.state.rstrip('/')}/{_ROWS}"
    if files.read_text(f"{_ROWS}/_SUCCESS") is None:
        _check_columns(table)
        _in_parts(table, options.part_rows).write.mode("overwrite").partitionBy("part").parquet(rows_path)
    kept = session.read.parquet(rows_path)
    parts = _parts(kept)
    try:
        _check(parts)
    except TableError:
        files.remove(_ROWS)  # The next run must read the corrected table.
        raise
    sent = found = 0
    for done, part in enumerate(parts):
        if stop.is_requested:
            return {"parts": len(parts), "parts left": len(parts) - done, "sent": sent, _FOUND: found}
        if files.read_text(f"{_DONE}/{part.number}.json") is None:
            counts = _send_part(kept.where(F.col("part") == part.number), part, options, files)
            sent, found = sent + counts[0], found + counts[1]
        if on_progress is not None:
            on_progress(done + 1, len(parts))
    return {"parts": len(parts), "sent": sent, _FOUND: found}


def _check_columns(table: DataFrame) -> None:
    missing = [name for name in COLUMNS if name not in map(str.lower, table.columns)]
    if missing:
        raise TableError(f"the table has no column {', '.join(missing)}; it needs {', '.join(COLUMNS)}")


def _parts(kept: DataFrame) -> list[_Part]:
    """Return the parts with their numbers of rows, by one Spark job: one for each part would take too long."""
    unfit = F.count_if(F.col("topic").isNull() | F.col("deliver_at_ms").isNull())
    counted = kept.groupBy("part").agg(F.count("*"), unfit, F.collect_set("topic"))
    return [_Part(*row) for row in counted.sort("part").collect()]


def _check(parts: Iterable[_Part]) -> None:
    """Raise TableError if a row cannot be sent."""
    unfit = sum(part.unfit for part in parts)
    if unfit:
        raise TableError(f"{unfit} rows of the table have no topic or no deliver_at; nothing was sent")
    for name in sorted({name for part in parts for name in part.topics}):
        if not (is_kafka_topic(name) or is_rocketmq_topic(name)):
            raise TableError(f"{name!r} in the table is no name of a topic; nothing was sent")


def _in_parts(table: DataFrame, part_rows: int) -> DataFrame:
    rows = table.select(
        F.col("topic"),
        F.col("key").cast("binary").alias("key"),
        F.col("body").cast("binary").alias("body"),
        F.unix_millis(F.col("deliver_at").cast("timestamp")).alias("deliver_at_ms"),
    )
    # The count includes equal rows, so parts may be smaller than `part_rows`. Removing equal rows first would need
    # another pass over the table.
    count = max(1, -(-table.count() // part_rows))
    part = F.pmod(F.xxhash64("timer_key"), F.lit(count)).cast("int")
    parted = rows.withColumn("timer_key", timer_key()).withColumn("part", part).repartition(count, "part")
    return parted.dropDuplicates(["part", "timer_key"])  # Because of `part`, Spark needs no second shuffle.


def timer_key() -> Column:
    """Return the column with the timer key: a hash of topic, key, body and time."""
    parts = [F.col("topic").cast("binary"), F.col("key"), F.col("body")]
    sizes = [F.coalesce(F.octet_length(part), F.lit(-1)).cast("string") for part in parts]
    head = F.concat_ws(",", *sizes, F.col("deliver_at_ms").cast("string")).cast("binary")
    return F.sha2(F.concat(head, *(F.coalesce(part, F.lit(b"")) for part in parts)), 256)


def _send_part(rows: DataFrame, part: _Part, options: ScheduleOptions, files: TableFiles) -> tuple[int, int]:
    """Send the rows of a part that were not sent; return (rows sent now, rows sent by an earlier run)."""
    begun = files.read_text(f"{_BEGUN}/{part.number}.json")
    left = part.rows
    if begun is None:
        topics = sorted(map(kafka_name, part.topics))
        ends = _ends_of([kafka_name(TIMER_TOPIC), *topics], BrokerApi(options.http))
        files.write_text(f"{_BEGUN}/{part.number}.json", json.dumps(ends))
    else:
        already = _sent_since(json.loads(begun), options, rows.sparkSession)
        rows = rows.join(already, "timer_key", "left_anti").persist()
        left = rows.count()
    if left:
        _send(rows, part.topics, options.bootstrap)
    rows.unpersist()
    files.write_text(f"{_DONE}/{part.number}.json", json.dumps({"rows": part.rows}))
    return left, part.rows - left


def _ends_of(topics: Iterable[str], api: BrokerApi) -> Ends:
    """Return the ends of the queues of these topics; none for a topic that does not exist, which will begin at 0."""
    known = {topic["kafka_name"] for topic in api.get("/api/topics")}
    return {
        topic: {str(queue["queue"]): queue["end"] for queue in api.get("/api/topics", topic)["queues"]}
        if topic in known
        else {}
        for topic in topics
    }


def _sent_since(ends: Ends, options: ScheduleOptions, session: SparkSession) -> DataFrame:
    """Return the timer keys of the messages at or above these ends."""
    now = _ends_of(ends, BrokerApi(options.http))
    starts = {
        topic: {int(queue): ends[topic].get(queue, 0) for queue in queues} for topic, queues in now.items() if queues
    }
    if not starts:
        raise ApiError(f"none of the topics {', '.join(ends)} exists")
    rows = messages(
        session,
        list(starts),
        bootstrap=options.bootstrap,
        starting=starts,
        ending={topic: dict.fromkeys(queues, LATEST) for topic, queues in starts.items()},
        committed_only=False,
    )
    # These may be many messages, so only one header is read, and the rows are not sorted.
    return rows.select(first_header(SCHEDULE_KEY).cast("string").alias("timer_key")).where("timer_key is not null")


def _send(rows: DataFrame, topics: Iterable[str], bootstrap: str) -> None:
    spellings = F.create_map(*(F.lit(spelled) for name in topics for spelled in (name, kafka_name(name))))
    headers = F.array(
        _header(TIMER_DELIVER_MS, F.col("deliver_at_ms").cast("string")), _header(SCHEDULE_KEY, F.col("timer_key"))
    )
    columns = (spellings[F.col("topic")].alias("topic"), "key", F.col("body").alias("value"), headers.alias("headers"))
    sink = rows.select(*columns).write.format("kafka")
    sink.option("kafka.bootstrap.servers", bootstrap).option("includeHeaders", "true").save()


def _header(name: str, value: Column) -> Column:
    return F.struct(F.lit(name).alias("key"), value.cast("binary").alias("value"))
