"""The loads of stock clients on a broker. Each returns the number of its messages and its time.

    loads = Loads(folder)
    loads.java.call("kafka_produce", kafka="127.0.0.1:9092", topic="t", size=1024, seconds=3)
    loads.close()

Java's clients live in one JVM for all rounds (`java/Load.java`), librdkafka in this process (`librdkafka.py`), Spark in
the JVM that pyspark starts. All three start when first used.
"""

from __future__ import annotations

import shutil
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks import librdkafka
from benchmarks.librdkafka import Ran
from tests.wire.clients.agent import Agent
from tests.wire.clients.jvm import JAVA, jars
from tests.wire.clients.spark import Spark, source

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from benchmarks.contenders import Contender

SOURCES = Path(__file__).parent / "java"
JVM_OPTIONS = ["-Xms1g", "-Xmx1g", "-Drocketmq.client.logLevel=ERROR", "-Dorg.slf4j.simpleLogger.defaultLogLevel=error"]
CALL_WITHIN_S = 900.0
FILL_THREADS, FILL_BATCH = 8, 32
SINK_BODY = "1f" * 512  # 1 KiB


class Loads:
    """The clients of one run of the benchmarks."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    @cached_property
    def java(self) -> Agent:
        return self._jvm("loads")

    @cached_property
    def noise(self) -> Agent:
        """Another JVM, for a load beside one that is measured."""
        return self._jvm("noise")

    def _jvm(self, name: str) -> Agent:
        home = f"-Duser.home={self._folder}"
        return Agent(name, ["java", *JVM_OPTIONS, home, "-cp", self._classpath, "Load"], self._folder)

    @cached_property
    def _classpath(self) -> str:
        # Kafka's jars come first: both clients bring lz4 and zstd, and the newer ones serve both.
        classpath = ":".join(f"{jars(profile)}/*" for profile in ("kafka-4.3", "rocketmq-5.5"))
        classes = self._folder / "classes"
        sources = [*SOURCES.glob("*.java"), JAVA / "Agent.java"]
        subprocess.run(["javac", "-nowarn", "-cp", classpath, "-d", str(classes), *map(str, sources)], check=True)
        return f"{classes}:{classpath}"

    @cached_property
    def spark(self) -> Spark:
        return Spark()

    def close(self) -> None:
        for name in ("java", "noise"):
            if name in self.__dict__:
                getattr(self, name).close()
        if "spark" in self.__dict__:
            self.spark.close()

    # -- Java

    def call(self, op: str, broker: Contender, topic: str, **arguments: Any) -> Any:
        return self.java.call(
            op, within_s=CALL_WITHIN_S, kafka=broker.kafka, namesrv=broker.namesrv, topic=topic, **arguments
        )

    def run(self, op: str, broker: Contender, topic: str, **arguments: Any) -> Ran:
        result = self.call(op, broker, topic, **arguments)
        return Ran(result["messages"], result["seconds"])

    # -- Filling a topic, untimed

    def fill_by_kafka(self, broker: Contender, topic: str, size: int, count: int, codec: str = "none") -> int:
        return librdkafka.produce(broker.kafka, topic, size, count=count, codec=codec).messages

    def fill_by_rocketmq(self, broker: Contender, topic: str, size: int, count: int, *, labelled: bool = False) -> int:
        """Return the number of messages in the topic: a first one, which finds the route, and `count` more.

        `labelled`: as many have each of the tags t0 to t7, and of the values 0 to 7 of their property `a`.
        """
        how = {"size": size, "count": count, "threads": FILL_THREADS, "batch": FILL_BATCH, "labelled": labelled}
        return self.run("rocketmq_send", broker, topic, **how).messages + 1

    # -- Spark

    def spark_read(self, broker: Contender, topic: str, count: int) -> Ran:
        options = source(broker.kafka, [topic]) | {"includeHeaders": "false"}
        start = time.perf_counter()
        _drain(self.spark.session.read.format("kafka").options(**options).load())
        return Ran(count, time.perf_counter() - start)

    def spark_direct(self, broker: Contender, topic: str, count: int) -> Ran:
        """Read Duolog's log files, or a peer by the Spark source that exists for it."""
        if not broker.http:
            return self.spark_read(broker, topic, count)
        from duolog.spark.log_source import DuologLog

        self.spark.session.dataSource.register(DuologLog)
        options = {"http": broker.http, "topics": topic}
        start = time.perf_counter()
        _drain(self.spark.session.read.format("duolog-log").options(**options).load())
        return Ran(count, time.perf_counter() - start)

    def spark_stream(self, broker: Contender, topic: str, count: int) -> Ran:
        options = source(broker.kafka, [topic]) | {"includeHeaders": "false"}
        checkpoint = self.spark.checkpoint(f"stream-{time.monotonic_ns()}")
        start = time.perf_counter()
        stream = self.spark.session.readStream.format("kafka").options(**options).load().writeStream
        query = stream.format("noop").option("checkpointLocation", checkpoint).trigger(availableNow=True).start()
        query.awaitTermination()
        elapsed = time.perf_counter() - start
        shutil.rmtree(checkpoint, ignore_errors=True)
        return Ran(count, elapsed)

    def spark_sink(self, broker: Contender, topic: str, count: int) -> Ran:
        rows = self.spark.session.range(0, count, numPartitions=4).selectExpr(f"'{SINK_BODY}' as value")
        start = time.perf_counter()
        rows.write.format("kafka").option("kafka.bootstrap.servers", broker.kafka).option("topic", topic).save()
        return Ran(count, time.perf_counter() - start)


@contextmanager
def repeated(task: Callable[[], object]) -> Iterator[None]:
    """Call `task` in a thread, again and again until the block ends; then wait for the last call."""
    ended = threading.Event()
    failures: list[BaseException] = []

    def run() -> None:
        try:
            while not ended.is_set():
                task()
        except BaseException as error:  # noqa: BLE001  # Raised again below.
            failures.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
    if failures:
        raise failures[0]


def _drain(frame: DataFrame) -> None:
    """Read each row and column, and drop them."""
    frame.write.format("noop").mode("overwrite").save()
