"""Spark's Kafka connector: batch read, streaming read and sink, in one small session for the whole test run."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.kit.lacking import skip_or_fail
from tests.wire.clients.jvm import jars
from tests.wire.clients.message import HEAD_BYTES, Message, Position, Seen, seen_by_fingerprint
from tests.wire.clients.roles import Missing
from tests.wire.clients.spark_classes import spark_classes

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, Row, SparkSession

VERSION = "4.0.0"
PROFILE = "spark-4.0"
REQUEST_BYTES_MAX = 8 << 20
# As for the agents (jvm.py): with the second compiler, a session of a minute spends half of its time in compiling.
QUICK_START = "-XX:+UseSerialGC -XX:TieredStopAtLevel=1"
SINK_SCHEMA = """
    topic string, partition int, key binary, value binary, headers array<struct<key: string, value: binary>>
"""


def quick_start_of_driver() -> str:
    """Return the JVM options of a driver, which also uses the archive of its classes."""
    return f"{QUICK_START} {spark_classes(QUICK_START)}"


def quick_start_of_commands() -> dict[str, str]:
    """Return what the environment of a command that starts Spark has besides."""
    return {"SPARK_SUBMIT_OPTS": quick_start_of_driver()}


class Spark:
    """The session. It starts with the first use, which takes some seconds, and ends with `close`."""

    def __init__(self) -> None:
        self._session: SparkSession | None = None
        self._home = Path(tempfile.mkdtemp(prefix="duolog-spark-"))

    @property
    def session(self) -> SparkSession:
        if self._session is None:
            self._session = self._start()
        return self._session

    def checkpoint(self, name: str) -> str:
        """The path of a checkpoint of that name, in a folder that goes with the session."""
        return str(self._home / name)

    def close(self) -> None:
        if self._session is not None:
            self._session.stop()
        shutil.rmtree(self._home, ignore_errors=True)

    def _start(self) -> SparkSession:
        classpath = jars(PROFILE)  # Skips where there is no JDK, before pyspark looks for one.
        try:
            from pyspark.sql import SparkSession
        except ImportError as error:
            skip_or_fail(f"no pyspark: {error}")
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)  # Else its workers are whatever `python3` is.
        session = (
            SparkSession.builder.master("local[2]")
            .appName("duolog")
            .config("spark.jars", ",".join(str(jar) for jar in sorted(classpath.glob("*.jar"))))
            .config("spark.ui.enabled", "false")
            .config("spark.ui.showConsoleProgress", "false")
            .config("spark.driver.memory", "1g")
            .config("spark.driver.host", "127.0.0.1")
            .config("spark.driver.bindAddress", "127.0.0.1")
            .config("spark.driver.extraJavaOptions", quick_start_of_driver())
            .config("spark.sql.shuffle.partitions", "2")
            .config("spark.sql.streaming.metricsEnabled", "false")
            .config("spark.local.dir", str(self._home / "local"))
            .config("spark.sql.warehouse.dir", str(self._home / "warehouse"))
            .getOrCreate()
        )
        session.sparkContext.setLogLevel("ERROR")
        return session


def source(bootstrap: str, topics: Sequence[str]) -> dict[str, str]:
    """Options of the source: from the start, and with an error for anything that is not there any more."""
    return {
        "kafka.bootstrap.servers": bootstrap,
        "kafka.max.partition.fetch.bytes": str(REQUEST_BYTES_MAX),
        "subscribe": ",".join(topics),
        "startingOffsets": "earliest",
        "failOnDataLoss": "true",
        "includeHeaders": "true",
    }


def summary(frame: DataFrame) -> DataFrame:
    """What `seen` needs of each row, without hauling whole bodies to the driver."""
    return frame.selectExpr(
        "topic",
        "partition",
        "offset",
        "key",
        "length(value) as size",
        "sha1(value) as sha1",
        f"substring(value, 1, {HEAD_BYTES}) as head",
        "headers",
        "unix_millis(timestamp) as timestamp_ms",
    )


def seen(row: Row) -> Seen:
    return seen_by_fingerprint(
        row.topic,
        row.partition,
        row.offset,
        None if row.key is None else bytes(row.key),
        None if row.size is None else f"{row.size}:{row.sha1}",
        bytes(row.head or b""),
        [(header.key, None if header.value is None else bytes(header.value)) for header in row.headers or ()],
        row.timestamp_ms,
    )


class SparkBatch:
    """`spark.read` of whole topics."""

    def __init__(self, bootstrap: str, spark: Spark) -> None:
        self.name = f"Spark {VERSION} batch"
        self._bootstrap, self._spark = bootstrap, spark

    def read(self, topics: Mapping[str, int], within_s: float) -> list[Seen]:
        frame = self._spark.session.read.format("kafka").options(**source(self._bootstrap, list(topics))).load()
        return _checked(self.name, map(seen, summary(frame).collect()), topics, within_s)


class SparkStream:
    """`spark.readStream` of all that is available."""

    def __init__(self, bootstrap: str, spark: Spark) -> None:
        self.name = f"Spark {VERSION} stream"
        self._bootstrap, self._spark = bootstrap, spark

    def read(self, topics: Mapping[str, int], within_s: float) -> list[Seen]:
        session = self._spark.session
        frame = session.readStream.format("kafka").options(**source(self._bootstrap, list(topics))).load()
        table = f"seen_{abs(hash(tuple(topics)))}"
        query = (
            summary(frame).writeStream.format("memory").queryName(table).trigger(availableNow=True).outputMode("append")
        ).start()
        try:
            assert query.awaitTermination(int(within_s)), f"{self.name} still ran after {within_s} s"
        finally:
            query.stop()
        rows = session.table(table).collect()
        session.catalog.dropTempView(table)
        return _checked(self.name, map(seen, rows), topics, within_s)


def _checked(name: str, rows: Any, topics: Mapping[str, int], within_s: float) -> list[Seen]:
    missing = Missing(name, topics, within_s)
    for each in rows:
        missing.take(each)
    if missing:
        raise missing.fail()
    return missing.seen


class SparkSink:
    """`frame.write` to a topic. The sink does not say where its rows went, and has no timestamp column."""

    ways = ("oneway",)
    codecs = ("none", "gzip", "snappy", "lz4", "zstd")

    def __init__(self, bootstrap: str, spark: Spark) -> None:
        self.name = f"Spark {VERSION} sink"
        self._bootstrap, self._spark = bootstrap, spark

    def write(self, topic: str, messages: Sequence[Message], *, way: str, codec: str) -> list[Position | None]:
        rows = [(topic, each.queue, each.key, each.body, each.kafka_headers) for each in messages]
        frame = self._spark.session.createDataFrame(rows, SINK_SCHEMA).coalesce(1)  # One task keeps their order.
        options = {
            "kafka.bootstrap.servers": self._bootstrap,
            "kafka.compression.type": codec,
            "kafka.max.request.size": str(REQUEST_BYTES_MAX),
            "includeHeaders": "true",
        }
        frame.write.format("kafka").options(**options).save()
        return [None for _ in messages]
