"""replay: from the archive back into topics, in the order of each queue.

At once, or as far apart as the messages once were: then the rows of each window of STEP_MS are sent when their time
comes, counted from the first. Key, body and headers are the archive's; the timestamp is that of the sending, for
Spark's sink has none to give. A run that was killed and is run again sends again what it had sent: choose the times
with care.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from pyspark.sql import functions as F

from protocol.names import kafka_name
from spark.progress import Summary, Told, watched

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

STEP_MS: Final = 500


@dataclass(frozen=True, slots=True)
class ReplayOptions:
    bootstrap: str
    topics: Sequence[str] | None = None  # of the archive; None: all
    to: str | None = None  # None: each to its own
    since_ms: int | None = None
    until_ms: int | None = None
    speed: float = 0  # of the original spacing; 0: at once
    keeps_queues: bool = True


def replay(rows: DataFrame, options: ReplayOptions, told: Told | None = None) -> Summary:
    """Send rows of an archive again; returns what was sent."""
    chosen = _chosen(rows, options).withColumn("at_ms", F.unix_millis("timestamp")).persist()
    try:
        ends = chosen.agg(
            F.count("*").alias("rows"), F.min("at_ms").alias("first"), F.max("at_ms").alias("last")
        ).first()
        assert ends is not None
        if ends.rows and options.speed and ends.first is not None:
            _send_spaced(chosen, ends.first, options, told)
        elif ends.rows:
            with watched(rows.sparkSession, told):
                _send(chosen, options)
        return {"rows": ends.rows, "from ms": ends.first, "to ms": ends.last, "topic": options.to or "as archived"}
    finally:
        chosen.unpersist()


def _chosen(rows: DataFrame, options: ReplayOptions) -> DataFrame:
    if options.topics is not None:
        rows = rows.where(F.col("topic").isin([kafka_name(topic) for topic in options.topics]))
    if options.since_ms is not None:
        rows = rows.where(F.unix_millis("timestamp") >= options.since_ms)
    if options.until_ms is not None:
        rows = rows.where(F.unix_millis("timestamp") < options.until_ms)
    return rows


def _send_spaced(chosen: DataFrame, first_ms: int, options: ReplayOptions, told: Told | None) -> None:
    """Send window after window; a row without a timestamp goes with the first."""
    number = F.coalesce(F.floor((F.col("at_ms") - first_ms) / STEP_MS), F.lit(0)).cast("bigint")
    windowed = chosen.withColumn("window", number).persist()
    try:
        windows = [row.window for row in windowed.select("window").distinct().orderBy("window").toLocalIterator()]
        begun: float | None = None
        for done, window in enumerate(windows):
            if begun is not None:
                due_s = (window - windows[0]) * STEP_MS / 1000 / options.speed
                time.sleep(max(0.0, due_s - (time.perf_counter() - begun)))
            _send(windowed.where(F.col("window") == window), options)
            begun = begun or time.perf_counter()  # Spark's first job takes longer; the others shall not come closer.
            if told is not None:
                told(done + 1, len(windows))
    finally:
        windowed.unpersist()


def _send(rows: DataFrame, options: ReplayOptions) -> None:
    # One task sends a queue, so that its order stays.
    ordered = rows.repartition("topic", "queue").sortWithinPartitions("topic", "queue", "offset")
    topic = F.lit(kafka_name(options.to)) if options.to else F.col("topic")
    columns = [topic.alias("topic"), F.col("key"), F.col("body").alias("value"), F.col("headers")]
    if options.keeps_queues:
        columns.append(F.col("queue").alias("partition"))
    sink = ordered.select(*columns).write.format("kafka").option("includeHeaders", "true")
    sink.option("kafka.bootstrap.servers", options.bootstrap).save()
