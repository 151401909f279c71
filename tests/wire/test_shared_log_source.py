"""`duolog-log` with the option `shared` reads a topic from an object store, by its segment objects and WAL objects.

The rows are those of the files. Wrong stores and brokers are named with the remedy.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import confluent_kafka
import pytest

from tests.kit.broker import Broker
from tests.kit.command import duolog
from tests.kit.environment import set_environment
from tests.kit.lacking import skip_or_fail
from tests.kit.object_servers import ObjectServer, moto
from tests.wire.clients.jvm import jars
from tests.wire.clients.spark import PROFILE, quick_start_of_commands
from tests.wire.clients.topics import create_topic
from tests.wire.test_shared import wait_for_role

pytestmark = pytest.mark.usefixtures("duolog_only")

URL = "s3://duolog/stream"
SETTINGS: Mapping[str, object] = {"shared.url": URL, "store.flush": "shared", "store.segment_bytes": 1 << 20}
WITHIN_S = 30
JOB_WITHIN_S = 240
JOB = """
import json, sys
from pyspark.sql import SparkSession
from duolog.spark.log_source import DuologLog

session = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false").getOrCreate()
session.sparkContext.setLogLevel("ERROR")
session.dataSource.register(DuologLog)
for options in map(json.loads, sys.argv[1:]):
    try:
        frame = session.read.format("duolog-log").options(**options).load()
        rows = frame.selectExpr("partition", "offset", "cast(value as string)").collect()
        found = {"rows": sorted(map(list, rows)), "pieces": frame.rdd.getNumPartitions()}
    except Exception as error:
        found = {"error": str(error)}
    print("result", json.dumps(found), flush=True)
"""


@pytest.fixture(scope="module")
def store() -> Iterator[ObjectServer]:
    with moto() as running:
        running.make_bucket("duolog")
        yield running


def job(*reads: Mapping[str, str]) -> list[dict[str, object]]:
    """Read with these options, one after another, in a Spark session of its own."""
    jars(PROFILE)  # Skips where there is no JDK.
    try:
        import pyspark  # noqa: F401
    except ImportError as error:
        skip_or_fail(f"no pyspark: {error}")
    done = subprocess.run(
        [sys.executable, "-c", JOB, *map(json.dumps, reads)],
        env={**os.environ, "PYSPARK_PYTHON": sys.executable, **quick_start_of_commands()},
        capture_output=True, text=True, check=False, timeout=JOB_WITHIN_S,
    )  # fmt: skip
    lines = [line.removeprefix("result ") for line in done.stdout.splitlines() if line.startswith("result ")]
    assert len(lines) == len(reads), done.stderr[-3000:]
    return [json.loads(line) for line in lines]


def produce(broker: Broker, first: int, count: int) -> None:
    producer = confluent_kafka.Producer({"bootstrap.servers": broker.kafka, "log_level": 0, "linger.ms": 5})
    for number in range(first, first + count):
        producer.produce("orders", b"%d" % number, partition=number % 2)
    assert producer.flush(WITHIN_S) == 0


def test_rows_from_the_store_are_those_of_the_files(
    tmp_path: Path, store: ObjectServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A part of the log was moved into the store, so it is in segment objects. What follows is in WAL objects."""
    set_environment(monkeypatch, store.environment)
    settings = SETTINGS | {"shared.endpoint": store.endpoint}
    with Broker(tmp_path / "before", {"store.segment_bytes": 1 << 20}) as local:
        create_topic(local.kafka, "orders", 2)
        produce(local, 0, 4_000)
        local.stop()
        duolog("move", "--data", str(local.data), "--to", URL, "--set", f"shared.endpoint={store.endpoint}")
        with Broker(tmp_path / "owner", settings) as owner, Broker(tmp_path / "alone", {}) as alone:
            wait_for_role(owner, "owner")
            produce(owner, 4_000, 4_000)
            create_topic(alone.kafka, "orders", 2)
            asked = {"http": owner.http, "topics": "orders", "splitBytes": "16384"}
            shared = asked | {"shared": URL, "endpoint": store.endpoint, "region": "us-east-1"}
            some = {"startingOffsets": '{"orders": {"0": 1990}}', "endingOffsets": '{"orders": {"0": 2010, "1": 5}}'}
            files, objects, part, wrong, missing, refused, no_stream = job(
                asked,
                shared,
                shared | some,
                shared | {"shared": "s3://duolog/other"},
                shared | {"shared": "s3://nobody/other"},
                shared | {"endpoint": "http://127.0.0.1:1"},
                shared | {"http": alone.http},
            )
    assert objects["rows"] == files["rows"]
    assert objects["rows"] == [[queue, at, str(2 * at + queue)] for queue in (0, 1) for at in range(4_000)]
    assert isinstance(objects["pieces"], int)
    assert objects["pieces"] > 3
    expected = [[0, at, str(2 * at)] for at in range(1990, 2010)] + [[1, at, str(2 * at + 1)] for at in range(5)]
    assert part["rows"] == expected
    assert "s3://duolog/other has no object 'stream', so it has no stream: correct the URL" in str(wrong["error"])
    assert "the bucket does not exist: create it" in str(missing["error"])
    assert "no connection" in str(refused["error"])
    assert "the broker has no shared log (--shared): leave out the option shared" in str(no_stream["error"])
