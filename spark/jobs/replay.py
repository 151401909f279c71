"""The job replay: sends the messages of an archive to topics again, in the order of each queue.

With speed 0 all messages are sent at once. Otherwise the job keeps the intervals between the original timestamps,
divided by the speed: the messages of each window of STEP_MS are sent together. Key, body and headers are those of the
archive; the timestamp is the time of sending, because Spark's Kafka sink sets no other. If the job is killed and run
again, it sends all messages again.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from pyspark.sql import functions as F

from duolog.protocol.names import kafka_name
from duolog.spark.progress import OnProgress, Summary, watched
from duolog.spark.stopping import Stop, Stopped, cancelling

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

STEP_MS: Final = 500


@dataclass(frozen=True, slots=True)
class ReplayOptions:
    bootstrap: str
    topics: Sequence[str] | None = None  # The topics of the archive to send; None for all.
    to: str | None = None  # The topic to send to; None for the original topic of each message.
    since_ms: int | None = None  # The lowest timestamp.
    until_ms: int | None = None  # The timestamp after the highest one.
    speed: float = 0  # 1 for the original intervals, 2 for half of them; 0 for none.
    keeps_queues: bool = True  # Whether to send each message to the queue with its original id.


def replay(
    rows: DataFrame, options: ReplayOptions, on_progress: OnProgress | None = None, stop: Stop | None = None
) -> Summary:
    """Send rows of an archive again; return the summary of the job."""
    stop = stop or Stop()
    chosen = _chosen(rows, options).withColumn("at_ms", F.unix_millis("timestamp")).persist()
    sent: Summary = {"rows": 0, "from ms": None, "to ms": None, "topic": options.to or "as archived"}
    try:
        with cancelling(stop, rows.sparkSession):
            ends = chosen.agg(
                F.count("*").alias("rows"), F.min("at_ms").alias("first"), F.max("at_ms").alias("last")
            ).first()
        assert ends is not None
        sent |= {"rows": ends.rows, "from ms": ends.first, "to ms": ends.last}
        if ends.rows and options.speed and ends.first is not None:
            sent["rows"] = _send_spaced(chosen, ends.first, options, on_progress, stop)
        elif ends.rows:
            sent["rows"] = f"unknown, at most {ends.rows}"  # This is the result if the job is stopped.
            with cancelling(stop, rows.sparkSession), watched(rows.sparkSession, on_progress):
                _send(chosen, options)
            sent["rows"] = ends.rows
    except Stopped:
        pass  # `sent` has the result so far.
    finally:
        chosen.unpersist()
    return sent


def _chosen(rows: DataFrame, options: ReplayOptions) -> DataFrame:
    if options.topics is not None:
        rows = rows.where(F.col("topic").isin([kafka_name(topic) for topic in options.topics]))
    if options.since_ms is not None:
        rows = rows.where(F.unix_millis("timestamp") >= options.since_ms)
    if options.until_ms is not None:
        rows = rows.where(F.unix_millis("timestamp") < options.until_ms)
    return rows


def _send_spaced(
    chosen: DataFrame, first_ms: int, options: ReplayOptions, on_progress: OnProgress | None, stop: Stop
) -> int:
    """Send one window after another until the job is asked to stop; return the number of rows that were sent.

    Rows without a timestamp are sent with the first window.
    """
    number = F.coalesce(F.floor((F.col("at_ms") - first_ms) / STEP_MS), F.lit(0)).cast("bigint")
    windowed = chosen.withColumn("window", number).persist()
    sent = 0
    try:
        windows = [(row.window, row["count"]) for row in windowed.groupBy("window").count().orderBy("window").collect()]
        begun: float | None = None
        for done, (window, count) in enumerate(windows):
            if begun is not None:
                due_s = (window - windows[0][0]) * STEP_MS / 1000 / options.speed
                stop.wait(max(0.0, due_s - (time.perf_counter() - begun)))
            if stop.is_requested:
                break
            _send(windowed.where(F.col("window") == window), options)
            sent += count
            # The intervals are counted from the end of the first window, because Spark's first job takes longer.
            begun = begun or time.perf_counter()
            if on_progress is not None:
                on_progress(done + 1, len(windows))
    finally:
        windowed.unpersist()
    return sent


def _send(rows: DataFrame, options: ReplayOptions) -> None:
    # Each queue is sent by one task, so that its order is preserved.
    ordered = rows.repartition("topic", "queue").sortWithinPartitions("topic", "queue", "offset")
    topic = F.lit(kafka_name(options.to)) if options.to else F.col("topic")
    columns = [topic.alias("topic"), F.col("key"), F.col("body").alias("value"), F.col("headers")]
    if options.keeps_queues:
        columns.append(F.col("queue").alias("partition"))
    sink = ordered.select(*columns).write.format("kafka").option("includeHeaders", "true")
    sink.option("kafka.bootstrap.servers", options.bootstrap).save()
