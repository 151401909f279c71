"""`spark-submit` on a standalone cluster, a master and a worker of Spark's own: every job of the pipeline, and a user's
script beside files with the names of Duolog's folders."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.kit.broker import Broker
from tests.kit.eventually import eventually
from tests.unit.spark.test_user_files import write_user_files
from tests.wire.clients.kafka_clients import Confluent
from tests.wire.clients.message import Message
from tests.wire.clients.spark_cluster import SparkCluster, submit
from tests.wire.clients.topics import create_topic, end_offsets

pytestmark = [pytest.mark.soak, pytest.mark.usefixtures("both_protocols")]

ROWS = 200
WITHIN_S = 60


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkCluster]:
    from tests.wire.clients.jvm import require_java

    require_java()
    with SparkCluster(tmp_path_factory.mktemp("cluster")) as running:
        yield running


@pytest.mark.timeout(1200)
def test_each_job_runs_on_a_cluster(broker: Broker, cluster: SparkCluster, tmp_path: Path) -> None:
    def job(*arguments: str) -> Any:
        done = submit(cluster.master, *arguments, "--json")
        assert done.returncode == 0, f"{arguments}: {done.stderr[-4000:]}"
        return json.loads(done.stdout.splitlines()[-1])

    kafka, http = ("--kafka", broker.kafka), ("--http", broker.http)
    lake = str(tmp_path / "lake")
    create_topic(broker.kafka, "orders", 2)
    sent = [Message(b"%d" % at, at % 2, headers=(("TIMER_DELAY_MS", b"50"),) * (at % 2)) for at in range(ROWS)]
    Confluent(broker.kafka).write("orders", sent, way="batch", codec="lz4")
    delivered = lambda: sum(end_offsets(broker.kafka, "orders").values())  # noqa: E731
    eventually("orders", delivered, lambda count: count == ROWS, WITHIN_S)
    assert job("archive", lake, "--topics", "orders", *kafka)["rows"] == ROWS
    assert job("reconcile", lake, *http)["records equal"] == ROWS
    assert job("replay", lake, "--to", "again", *kafka)["rows"] == ROWS
    late = job("lateness", str(tmp_path / "late"), "--topics", "orders", *http)
    assert (late["delayed messages"], late["early"]) == (ROWS // 2, 0)
    table = tmp_path / "table.csv"
    table.write_text(
        "topic,key,body,deliver_at\n" + "".join(f"later,k,{at},2030-01-01T00:00:00Z\n" for at in range(ROWS))
    )
    scheduled = job("schedule", str(table), "--state", str(tmp_path / "state"), *kafka, *http)
    assert scheduled["sent"] == ROWS
    assert job("transactions", str(tmp_path / "halves"), *kafka, *http)["half messages"] == 0


SCRIPT = """
import sys
import spark, store
from pyspark.sql import SparkSession
from duolog.spark.messages import messages

session = SparkSession.builder.getOrCreate()
print(spark.OWNER, store.OWNER, messages(session, "own", bootstrap=sys.argv[1]).count())
"""


@pytest.mark.timeout(600)
def test_users_script_beside_files_with_the_names_of_duologs_folders_runs(
    broker: Broker, cluster: SparkCluster, tmp_path: Path
) -> None:
    create_topic(broker.kafka, "own", 1)
    Confluent(broker.kafka).write("own", [Message(b"%d" % at, 0) for at in range(ROWS)], way="batch", codec="lz4")
    write_user_files(tmp_path)
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    done = submit(cluster.master, broker.kafka, application=script)
    assert done.returncode == 0, done.stderr[-4000:]
    assert done.stdout.splitlines()[-1] == f"the user the user {ROWS}"
