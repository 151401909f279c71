"""archive: topics to a lake table, exactly once, partitioned by topic and date.

    Kafka source  ->  messages (spark/messages.py) + date  ->  one append for each batch (spark/jobs/tables.py)

`date` is the UTC day of the message's timestamp, so late messages go to the day that they belong to, and none is
dropped. Batches are numbered by the query's checkpoint, which lies in the archive; the table takes each number once. So
a run may be killed at any moment: the next one goes on, with the same rows in the table as if nothing had happened.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from duolog.spark.files import HadoopFiles
from duolog.spark.jobs.checkpoints import Progress, progress_of, query_of
from duolog.spark.jobs.tables import (
    DELTA_MODULE,
    ICEBERG_MODULE,
    DeltaTable,
    IcebergTable,
    ParquetTable,
    Table,
    TableError,
)
from duolog.spark.progress import (
    Batches,
    Summary,
    Told,
    follow,
)
from duolog.spark.stopping import Stop

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

CHECKPOINT: Final = "_duolog/checkpoint"
SCHEMA: Final = """
    queue int, offset bigint, key binary, keys array<string>, tags string, properties map<string, string>,
    headers array<struct<key: string, value: binary>>, body binary, timestamp timestamp, born_time timestamp,
    store_time timestamp, deliver_time timestamp, producer string, topic string, date date
"""
COMPACT_EVERY_BATCHES: Final = 16
_DAY_MS: Final = 86_400_000


@dataclass(frozen=True, slots=True)
class ArchiveOptions:
    path: str
    format: str = "parquet"
    follows: bool = False  # Go on until stopped; else end with what is there now.


def archive(
    session: SparkSession,
    stream: DataFrame,
    options: ArchiveOptions,
    told: Told | None = None,
    stop: Stop | None = None,
) -> Summary:
    """Bring a stream of `messages` into the archive. Raises what the query raises, and TableError."""
    stop = stop or Stop()
    table = open_table(session, options.path, options.format)
    if isinstance(table, ParquetTable):
        table.clear_away()
    checkpoint = HadoopFiles(session, f"{options.path}/{CHECKPOINT}")
    merged = 0

    def append(batch: DataFrame, batch_id: int) -> None:
        nonlocal merged
        table.append(batch, query_of(checkpoint), batch_id)
        if batch_id % COMPACT_EVERY_BATCHES == COMPACT_EVERY_BATCHES - 1:
            merged += table.compact()

    batches = Batches(append)
    rows = stream.withColumn("date", date()).select(*schema().names)
    writer = rows.writeStream.foreachBatch(batches)
    writer = writer.queryName("archive").option("checkpointLocation", f"{options.path}/{CHECKPOINT}")
    query = (writer if options.follows else writer.trigger(availableNow=True)).start()
    row_count, batch_count = follow(query, batches, stop, told)
    if batch_count and not stop.is_requested:
        merged += table.compact()
    return {"rows": row_count, "batches": batch_count, "files merged": merged, "archive": options.path}


def schema() -> StructType:
    """The columns of the archive."""
    made = StructType.fromDDL(SCHEMA)
    assert isinstance(made, StructType)
    return made


def open_table(session: SparkSession, path: str, format_: str) -> Table:
    """Open the table of an archive; raises TableError if Spark lacks the jars that its format takes."""
    if format_ == "parquet":
        return ParquetTable(session, path, HadoopFiles(session, path), schema())
    module, name = (DELTA_MODULE, "Delta") if format_ == "delta" else (ICEBERG_MODULE, "Iceberg")
    if not _has_class(session, module):
        raise TableError(f"Spark has no {name}: {module} is not on its classpath. {JARS_ADVICE[format_]}")
    return DeltaTable(session, path) if format_ == "delta" else IcebergTable(session, path)


JARS_ADVICE: Final = {
    "delta": "Add the package io.delta:delta-spark_2.13:4.0.0",
    "iceberg": "Add the package org.apache.iceberg:iceberg-spark-runtime-4.0_2.13:1.10.0",
}


def progress_of_archive(session: SparkSession, path: str) -> Progress:
    """Say which offsets the archive has whole; raises TableError if none."""
    progress = progress_of(HadoopFiles(session, f"{path}/{CHECKPOINT}"))
    if progress is None:
        raise TableError(f"{path} has no finished batch of an archive")
    return progress


def date() -> Column:
    """Give the UTC day of a message, whatever the session's time zone; null without a timestamp."""
    return F.date_from_unix_date(F.floor(F.unix_millis("timestamp") / _DAY_MS).cast("int"))


def _has_class(session: SparkSession, name: str) -> bool:
    from py4j.protocol import Py4JJavaError

    try:
        session._jvm.java.lang.Thread.currentThread().getContextClassLoader().loadClass(name)  # type: ignore[union-attr]
    except Py4JJavaError:
        return False
    return True
