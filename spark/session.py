"""Opens the Spark session of a job: a local session with the Kafka connector, or the session of `spark-submit`.

A local session uses the jars in the folders that DUOLOG_SPARK_JARS lists, separated by colons. Without this variable,
Spark downloads the connector for its version from Maven Central once. The message of `SessionError` says what to do if
that fails.

The output of a local session's JVM, such as Ivy's report and stack traces, is written to a log file.
"""

from __future__ import annotations

import logging
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final

import pyspark
from pyspark import SparkConf, SparkContext
from pyspark.errors import PySparkRuntimeError
from pyspark.java_gateway import launch_gateway
from pyspark.sql import SparkSession

JARS_VARIABLE: Final = "DUOLOG_SPARK_JARS"
_SUBMITTED: Final = "PYSPARK_GATEWAY_PORT"  # Set by spark-submit, for the application that it starts.
_PACKAGES: Final = {
    "kafka": f"org.apache.spark:spark-sql-kafka-0-10_2.13:{pyspark.__version__}",
    "delta": "io.delta:delta-spark_2.13:4.0.0",
    "iceberg": "org.apache.iceberg:iceberg-spark-runtime-4.0_2.13:1.10.0",
}
_EXTENSIONS: Final[Mapping[str, Mapping[str, str]]] = {
    "delta": {
        "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
        "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
    },
    "iceberg": {"spark.sql.extensions": "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions"},
}
_LOCAL: Final = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.sql.shuffle.partitions": "4",
    "spark.python.sql.dataFrameDebugging.enabled": "false",  # Otherwise errors name lines of this package.
    "spark.jars.ivy": str(Path.home() / ".ivy2"),
    "spark.sql.streaming.stopTimeout": "10s",
}


class SessionError(Exception):
    """Spark could not be started; the message says what to do."""


def is_submitted() -> bool:
    """Return whether `spark-submit` runs this process; it has started the JVM and uses the terminal itself."""
    return _SUBMITTED in os.environ


def new_log(job: str) -> Path:
    """Create an empty log file for the JVM of a local session."""
    descriptor, path = tempfile.mkstemp(prefix=f"duolog-{job}-", suffix=".log")
    os.close(descriptor)
    return Path(path)


def open_session(name: str, master: str, formats: Iterable[str] = (), log: Path | None = None) -> SparkSession:
    """Start Spark for a job. Raises SessionError.

    `formats` lists the table formats that need further packages, "delta" or "iceberg". A local session writes its
    output to `log`, unless it is None.
    """
    conf = SparkConf().setAppName(f"duolog {name}")
    for format_ in formats:
        conf.setAll(list(_EXTENSIONS[format_].items()))
    if not is_submitted():
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)  # The default is `python3` of the PATH.
        conf.setMaster(master).setAll([*_LOCAL.items(), *_jars(("kafka", *formats)).items()])
        try:
            SparkContext(conf=conf, gateway=launch_gateway(conf, _popen_options(log)))  # type: ignore[no-untyped-call]
        except PySparkRuntimeError as error:
            raise SessionError(_why_not_started(error, ("kafka", *formats))) from error
    session = SparkSession.builder.config(conf=conf).getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    return session


def _popen_options(log: Path | None) -> dict[str, Any]:
    """Return options that start the JVM in another process session, without the terminal's signals, with a log file."""
    options: dict[str, Any] = {"start_new_session": True}
    if log is not None:
        handler = logging.FileHandler(log, delay=True)
        py4j = logging.getLogger("py4j")  # It logs the stack of each error that crosses into the JVM.
        py4j.addHandler(handler)
        py4j.propagate = False
        options |= {"stdout": log.open("ab"), "stderr": subprocess.STDOUT}
    return options


def _jars(wanted: Iterable[str]) -> dict[str, str]:
    folders = os.environ.get(JARS_VARIABLE)
    if not folders:
        return {"spark.jars.packages": ",".join(_PACKAGES[name] for name in wanted)}
    jars = [str(jar) for folder in folders.split(":") for jar in sorted(Path(folder).glob("*.jar"))]
    return {"spark.jars": ",".join(jars)}


def _why_not_started(error: PySparkRuntimeError, wanted: Iterable[str]) -> str:
    """Return the reason for Spark's error JAVA_GATEWAY_EXITED, which has many causes. Java's message is in the log."""
    java = os.environ.get("JAVA_HOME")
    if shutil.which(f"{java}/bin/java" if java else "java") is None:
        return f"Spark needs Java 17 or later, and there is none in {java or 'the PATH'}"
    jars = Path(_LOCAL["spark.jars.ivy"]) / "jars"
    names = [] if os.environ.get(JARS_VARIABLE) else [_PACKAGES[name] for name in wanted]
    missing = [name for name in names if not (jars / f"{name.replace(':', '_', 1).replace(':', '-')}.jar").exists()]
    if not missing:
        return f"Spark does not start: {error}"
    return (
        f"Spark does not start, and could not fetch {', '.join(missing)}: it takes Java 17, Maven Central, and a "
        "PySpark whose connector is there (pip install 'pyspark==4.0.0'), or the jars in folders that "
        f"{JARS_VARIABLE} names"
    )
