"""The streams that docs/guides/spark-streams.md shows do what it says; the database is right though one is killed.

Each example is the block of Python below its mark on the page, run as it stands there.
"""

from __future__ import annotations

import os
import random
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

import pytest

from tests.kit.broker import Broker
from tests.kit.eventually import eventually
from tests.wire.clients.jvm import Agents, jars
from tests.wire.clients.kafka_clients import Confluent
from tests.wire.clients.message import Message
from tests.wire.clients.postgres import Cluster, programs
from tests.wire.clients.rocketmq_clients import RocketmqJava
from tests.wire.clients.spark import PROFILE, Spark, quick_start_of_commands
from tests.wire.clients.topics import create_topic

pytestmark = pytest.mark.usefixtures("both_protocols")

PAGE = Path(__file__).parents[2] / "docs/guides/spark-streams.md"
NOON_MS = 1_767_268_800_000  # 2026-01-01 12:00 UTC
WITHIN_S = 150
PREAMBLE = """
import sys
from duolog.spark.messages import messages
from duolog.spark.session import open_session
kafka, folder, database = sys.argv[1:]
session = open_session("example", "local[2]")
"""


def example(name: str) -> str:
    text = PAGE.read_text().split(f"<!-- example: {name} -->")[1]
    return text.split("```python\n")[1].split("```")[0]


def run(code: str, broker: Broker, spark: Spark, folder: Path, **more: str) -> None:
    from duolog.spark.messages import messages

    values = {"session": spark.session, "messages": messages, "kafka": broker.kafka, "folder": str(folder)} | more
    exec(compile(code, PAGE.name, "exec"), values)


class Database(Protocol):
    """Where the totals lie."""

    name: str  # what to connect to

    def adapted(self, example: str) -> str:
        """Give the page's example as it says that it is to be changed for this database."""

    def totals(self) -> dict[str, int]:
        """Give what is committed; nothing yet, if there are no tables."""


class Postgres:
    def __init__(self, cluster: Cluster) -> None:
        self.name = cluster.name

    def adapted(self, example: str) -> str:
        return example

    def totals(self) -> dict[str, int]:
        import psycopg

        with psycopg.connect(self.name) as connection:
            try:
                return dict(connection.execute("select tag, orders from totals").fetchall())
            except psycopg.errors.UndefinedTable:
                return {}


class Sqlite:
    def __init__(self, path: Path) -> None:
        self.name = str(path)

    def adapted(self, example: str) -> str:
        return example.replace("psycopg", "sqlite3").replace("%s", "?")

    def totals(self) -> dict[str, int]:
        with sqlite3.connect(self.name) as connection:
            try:
                return dict(connection.execute("select tag, orders from totals").fetchall())
            except sqlite3.OperationalError:  # The table is not there yet, or the database is locked.
                return {}


@pytest.fixture
def database(tmp_path: Path) -> Iterator[Database]:
    """PostgreSQL where it is installed, else SQLite."""
    found = programs()
    if found is None:
        yield Sqlite(tmp_path / "totals.db")
        return
    with Cluster(found) as cluster:
        yield Postgres(cluster)


@pytest.fixture(autouse=True)
def topics(broker: Broker) -> Iterator[None]:
    """The examples name their topics; each test has them to itself."""
    import confluent_kafka.admin

    for name in ("orders", "payments"):
        create_topic(broker.kafka, name, 2)
    yield
    admin = confluent_kafka.admin.AdminClient({"bootstrap.servers": broker.kafka})
    for deleted in admin.delete_topics(["orders", "payments"]).values():
        deleted.result(20)


def order(number: int, seconds: int, tags: str = "open") -> Message:
    key = b"order-%d" % number
    return Message(b"tea %d" % number, number % 2, key, tags=tags, timestamp_ms=NOON_MS + seconds * 1000)


def test_windows_are_written_once_the_watermark_has_passed(broker: Broker, spark: Spark, tmp_path: Path) -> None:
    writer = Confluent(broker.kafka)
    writer.write("orders", [order(1, 1), order(2, 9), order(3, 9, "paid"), order(4, 12)], way="batch", codec="none")
    writer.write("orders", [order(5, 600)], way="batch", codec="none")
    run(example("windows"), broker, spark, tmp_path)
    rows = spark.session.read.parquet(str(tmp_path / "windows")).selectExpr("unix_millis(start) as at", "tags", "count")
    found = sorted(((row["at"] - NOON_MS) // 1000, row["tags"], row["count"]) for row in rows.collect())
    assert found == [(0, "open", 2), (0, "paid", 1), (10, "open", 1)]


def test_orders_of_one_family_join_payments_of_the_other(
    broker: Broker, agents: Agents, spark: Spark, tmp_path: Path
) -> None:
    orders = [Message(b"tea %d" % number, number % 2, b"order-%d" % number) for number in range(6)]
    Confluent(broker.kafka).write("orders", orders, way="batch", codec="zstd")
    payments = [Message(b"%d francs" % number, number % 2, b"order-%d" % number) for number in (1, 4, 9)]
    rocketmq = RocketmqJava(broker.namesrv, agents.rocketmq("5.5"), "5.5", "json")
    rocketmq.write("payments", payments, way="sync", codec="none")
    run(example("join"), broker, spark, tmp_path)
    rows = spark.session.read.parquet(str(tmp_path / "paid")).collect()
    assert sorted((row.ordered, row.what, row.amount) for row in rows) == [
        ("order-1", "tea 1", "1 francs"),
        ("order-4", "tea 4", "4 francs"),
    ]


def test_totals_in_a_database_survive_kills(
    broker: Broker, spark: Spark, database: Database, tmp_path: Path, rng: random.Random
) -> None:
    orders = [order(number, number, "paid" if number % 3 == 0 else "open") for number in range(240)]
    Confluent(broker.kafka).write("orders", orders, way="batch", codec="none")
    script = tmp_path / "totals_example.py"
    script.write_text(PREAMBLE + database.adapted(example("upsert")))

    process = subprocess.Popen(
        [sys.executable, "-P", str(script), broker.kafka, str(tmp_path), database.name],
        env=os.environ | quick_start_of_commands() | {"DUOLOG_SPARK_JARS": str(jars(PROFILE))},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )
    batches = 1 + rng.randrange(4)
    try:
        eventually(
            "batches in the database",
            lambda: (sum(database.totals().values()) // 20, process.poll()),
            lambda seen: seen[0] >= batches or seen[1] is not None,
            WITHIN_S,
        )
        assert process.poll() is None, process.communicate()[1].decode()[-3000:]
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
    assert 0 < sum(database.totals().values()) < 240
    # A batch that is in the database, while the checkpoint does not say so, is given again.
    commits = tmp_path / "totals.checkpoint" / "commits"
    finished = [int(path.name) for path in commits.iterdir() if path.name.isdecimal()] if commits.exists() else []
    for last in sorted(finished)[-1:]:
        (commits / str(last)).unlink()
        (commits / f".{last}.crc").unlink(missing_ok=True)
    run(database.adapted(example("upsert")), broker, spark, tmp_path, database=database.name)
    assert database.totals() == {"paid": 80, "open": 160}
