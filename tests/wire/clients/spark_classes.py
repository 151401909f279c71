"""An archive of the classes that Spark's driver loads (class data sharing), which JVMs of the tests map into memory.

Without it, each JVM parses and verifies these classes: it takes 14 s of the processor to start a session and run its
first queries, and 8 s with it. A session that runs some queries makes the archive, once for each Java and PySpark.
"""

from __future__ import annotations

import hashlib
import subprocess
import sys
import tempfile
from functools import cache
from pathlib import Path

from tests.wire.clients.jvm import TARGET, alone, require_java

FOLDER = TARGET / "shared-classes"
MADE_WITHIN_S = 300
JVM_ENDS_WITHIN_S = 120  # It writes the archive at its end.


@cache
def spark_classes(options: str) -> str:
    """Return the JVM option that uses the archive, which is made if there is none; `options` are those of all JVMs."""
    require_java()
    archive = FOLDER / f"spark-{_version()}.jsa"
    with alone(FOLDER):
        if not archive.exists():
            for old in FOLDER.glob("spark-*"):
                old.unlink()
            new = archive.with_suffix(".new")
            command = [sys.executable, "-m", "tests.wire.clients.spark_classes", f"{options} {_ARCHIVE_AT_EXIT}{new}"]
            root = Path(__file__).parents[3]
            done = subprocess.run(command, cwd=root, capture_output=True, text=True, check=False, timeout=MADE_WITHIN_S)
            assert new.exists(), done.stderr[-3000:]
            new.rename(archive)
    return f"-XX:SharedArchiveFile={archive}"


_ARCHIVE_AT_EXIT = "-XX:ArchiveClassesAtExit="


def _version() -> str:
    """Return a text that differs for each installation of Java and PySpark; a JVM takes no archive of another one."""
    import pyspark

    jars = Path(pyspark.__file__).parent / "jars"
    java = subprocess.run(["java", "-version"], capture_output=True, check=True).stderr
    return hashlib.sha256(java + f"{jars} {jars.stat().st_mtime_ns}".encode()).hexdigest()[:16]


def main(options: str) -> None:
    """Run batch and streaming queries in a session of this process, whose JVM then writes the archive."""
    from pyspark import SparkContext
    from pyspark.sql import SparkSession
    from pyspark.sql import functions as f

    session = (
        SparkSession.builder.master("local[2]")
        .config("spark.ui.enabled", "false")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.extraJavaOptions", options)
        .config("spark.sql.shuffle.partitions", "2")
        .getOrCreate()
    )
    with tempfile.TemporaryDirectory(prefix="duolog-spark-classes-") as folder:
        rows = session.createDataFrame([(number % 3, f"{number}") for number in range(100)], "key int, text string")
        rows.write.partitionBy("key").parquet(f"{folder}/table")
        table = session.read.parquet(f"{folder}/table")
        table.join(table.groupBy("key").agg(f.count("text")), "key").orderBy("text").collect()
        stream = session.readStream.schema(table.schema).parquet(f"{folder}/table")
        query = stream.writeStream.format("memory").queryName("seen").trigger(availableNow=True)
        query.option("checkpointLocation", f"{folder}/checkpoint").start().awaitTermination()
    gateway = SparkContext._gateway
    assert gateway is not None
    session.stop()
    gateway.shutdown()
    gateway.proc.stdin.close()
    gateway.proc.wait(JVM_ENDS_WITHIN_S)


if __name__ == "__main__":
    main(sys.argv[1])
