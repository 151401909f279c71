"""The job archive: copies topics into a table exactly once, partitioned by topic and date.

    Kafka source  ->  messages (spark/messages.py) + date  ->  one append for each batch (spark/jobs/tables.py)

`date` is the UTC day of a message's timestamp, so a late message is stored in the partition of its day. Batches are
numbered by the checkpoint of the query, which is stored in the archive, and the table accepts each number once. The job
may therefore be killed at any moment: the next run continues, and the table has each message once.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
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
    OnProgress,
    Summary,
    follow,
)
from duolog.spark.session import is_submitted
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
    follows: bool = False  # Whether to continue until the job is stopped, or to end with the present messages.


def archive(
    session: SparkSession,
    stream: DataFrame,
    options: ArchiveOptions,
    on_progress: OnProgress | None = None,
    stop: Stop | None = None,
) -> Summary:
    """Append a stream of `messages` to the archive; return the summary. Raises TableError and errors of the query."""
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
    row_count, batch_count = follow(query, batches, stop, on_progress)
    if batch_count and not stop.is_requested:
        merged += table.compact()
    return {"rows": row_count, "batches": batch_count, "files merged": merged, "archive": options.path}


def schema() -> StructType:
    """Return the columns of the archive."""
    made = StructType.fromDDL(SCHEMA)
    assert isinstance(made, StructType)
    return made


def open_table(session: SparkSession, path: str, format_: str) -> Table:
    """Open the table of an archive. Raises TableError if the jars for its format are not on Spark's classpath."""
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


def check_archive(path: str) -> None:
    """Raise TableError if `path` is a folder of this machine that has no archive.

    A job calls it before it starts Spark. Nothing is checked if the path may be in another file system: if it names a
    scheme, or if a cluster or a Hadoop configuration may have another default than this machine's.
    """
    is_here = ":" not in path and not is_submitted() and "HADOOP_CONF_DIR" not in os.environ
    if is_here and not Path(path, CHECKPOINT).is_dir():
        raise TableError(f"there is no archive in {path}; `duolog pipeline run archive` makes one")


def progress_of_archive(session: SparkSession, path: str) -> Progress:
    """Return the ranges of offsets that the archive has. Raises TableError if no batch has finished."""
    progress = progress_of(HadoopFiles(session, f"{path}/{CHECKPOINT}"))
    if progress is None:
        raise TableError(f"{path} is no archive, or no batch of it has finished")
    return progress


def date() -> Column:
    """Return the column with the UTC day of a message, in any time zone of the session; null without a timestamp."""
    return F.date_from_unix_date(F.floor(F.unix_millis("timestamp") / _DAY_MS).cast("int"))


def _has_class(session: SparkSession, name: str) -> bool:
    from py4j.protocol import Py4JJavaError

    try:
        session._jvm.java.lang.Thread.currentThread().getContextClassLoader().loadClass(name)  # type: ignore[union-attr]
    except Py4JJavaError:
        return False
    return True
