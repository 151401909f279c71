"""The Spark session of a job: a local one with the connector, or that of `spark-submit`.

A local session takes the connector's jars from the folders that DUOLOG_SPARK_JARS names, separated by colons; without
that Spark fetches them once from Maven Central. There each has the version of Spark that it is for; `SessionError` says
what to do where one is not to be had.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final

import pyspark
from pyspark.errors import PySparkRuntimeError
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
    "spark.python.sql.dataFrameDebugging.enabled": "false",  # Else errors are logged with places in this package.
    "spark.jars.ivy": str(Path.home() / ".ivy2"),
}


class SessionError(Exception):
    """Spark does not start; the message says what to do."""


def open_session(name: str, master: str, formats: Iterable[str] = ()) -> SparkSession:
    """Start Spark for a job; `formats` are those of FORMATS that need packages of their own. Raises SessionError."""
    builder = SparkSession.builder.appName(f"duolog {name}")
    for format_ in formats:
        builder = builder.config(map=dict(_EXTENSIONS[format_]))
    if _SUBMITTED not in os.environ:
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)  # Else workers are whatever `python3` is.
        builder = builder.master(master).config(map={**_LOCAL, **_jars(("kafka", *formats))})
    try:
        session = builder.getOrCreate()
    except PySparkRuntimeError as error:
        raise SessionError(_why_not_started(error, ("kafka", *formats))) from error
    session.sparkContext.setLogLevel("ERROR")
    return session


def _jars(wanted: Iterable[str]) -> dict[str, str]:
    folders = os.environ.get(JARS_VARIABLE)
    if not folders:
        return {"spark.jars.packages": ",".join(_PACKAGES[name] for name in wanted)}
    jars = [str(jar) for folder in folders.split(":") for jar in sorted(Path(folder).glob("*.jar"))]
    return {"spark.jars": ",".join(jars)}


def _why_not_started(error: PySparkRuntimeError, wanted: Iterable[str]) -> str:
    """Explain what Spark calls JAVA_GATEWAY_EXITED, whatever was the matter; Java's own words are above it already."""
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
