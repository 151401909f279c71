"""Every job of the pipeline by `spark-submit` on a standalone cluster: a master and a worker of Spark's own."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.kit.broker import Broker
from tests.kit.eventually import eventually
from tests.wire.clients.kafka_clients import Confluent
from tests.wire.clients.message import Message
from tests.wire.clients.spark_cluster import SparkCluster, submit
from tests.wire.clients.topics import create_topic, end_offsets

pytestmark = [pytest.mark.soak, pytest.mark.usefixtures("both_families")]

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
