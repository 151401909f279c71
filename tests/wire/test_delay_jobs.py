"""Jobs around delayed messages: `schedule` sends each row once, `lateness` reports delays of delivery."""

from __future__ import annotations

import itertools
import json
import re
import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.kit.broker import Broker
from tests.kit.eventually import eventually
from tests.wire.clients.jvm import Agents
from tests.wire.clients.kafka_clients import Confluent
from tests.wire.clients.message import Message
from tests.wire.clients.spark import Spark
from tests.wire.clients.topics import create_topic, end_offsets
from tests.wire.test_pipeline import LONG_AGO_MS, Breaking, pipeline

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

pytestmark = pytest.mark.usefixtures("both_protocols")

WITHIN_S = 90
ROWS = 120
_numbers = itertools.count()


@pytest.fixture
def topic(broker: Broker) -> str:
    name = f"later-{next(_numbers)}-{int(time.time())}"
    create_topic(broker.kafka, name, 2)
    return name


def received(broker: Broker, topic: str, count: int) -> Counter[bytes]:
    """Wait for so many messages, then count the bodies of all that are there."""
    eventually(
        "delivered messages",
        lambda: sum(end_offsets(broker.kafka, topic).values()),
        lambda seen: seen >= count,
        WITHIN_S,
    )
    there = sum(end_offsets(broker.kafka, topic).values())
    return Counter(each.head for each in Confluent(broker.kafka).read({topic: there}, WITHIN_S))


def test_schedule_sends_each_row_once_whatever_breaks(broker: Broker, spark: Spark, topic: str, tmp_path: Path) -> None:
    """A run breaks behind a part that it has sent, and within the other one; the next has nothing broken."""
    from pyspark.sql import functions as F

    from duolog.spark.files import HadoopFiles
    from duolog.spark.jobs import schedule as job

    due_ms = int(time.time() * 1000) + 10_000
    table = spark.session.range(ROWS).select(
        F.lit(topic).alias("topic"),
        F.when(F.col("id") % 2 == 0, F.concat(F.lit("k"), F.col("id"))).alias("key"),
        F.concat(F.lit("row "), F.col("id")).alias("body"),
        # Each third message is due at once, and never pending.
        F.timestamp_millis(F.when(F.col("id") % 3 == 0, F.lit(0)).otherwise(F.lit(due_ms) + F.col("id"))).alias(
            "deliver_at"
        ),
    )
    # Two parts, because the table has more rows than one.
    options = job.ScheduleOptions(str(tmp_path / "state"), broker.kafka, broker.http, part_rows=ROWS)
    files = Breaking(HadoopFiles(spark.session, options.state))

    def run() -> dict[str, Any]:
        return job.schedule(spark.session, table.unionByName(table.limit(5)), options, files=files)

    files.left = 4  # The fifth would say that the first part is done.
    with pytest.raises(OSError, match="broken"):
        run()
    # As if the second part had been killed half way.
    files.left = None
    second = kept_rows(spark, options.state).where("part = 1")
    ends = job._ends_of(["rmq_sys_wheel_timer", topic], job.BrokerApi(broker.http))
    files.write_text("begun/1.json", job.json.dumps(ends))
    half = second.limit(second.count() // 2)
    job._send(half, [topic], broker.kafka)
    done = run()
    assert (done["parts"], done["sent"] + done["found sent by an earlier run"]) == (2, ROWS)
    assert done["found sent by an earlier run"] == ROWS - second.count() + half.count()
    assert run()["sent"] == 0
    assert received(broker, topic, ROWS) == Counter(b"row %d" % number for number in range(ROWS))


def test_schedule_refuses_rows_that_it_cannot_send_before_any_is_sent(
    broker: Broker, spark: Spark, topic: str, tmp_path: Path
) -> None:
    """The first run reads the table; one that is refused does not count as one."""
    from duolog.spark.jobs import schedule as job
    from duolog.spark.jobs.tables import TableError

    options = job.ScheduleOptions(str(tmp_path / "state"), broker.kafka, broker.http, part_rows=1)

    def run(*rows: tuple[str | None, str | None], columns: str = "topic string, deliver_at string") -> Any:
        table = spark.session.createDataFrame(rows, columns).selectExpr("*", "'k' as key", "'b' as body")
        return job.schedule(spark.session, table, options)

    past = "2001-01-01 00:00:00Z"
    with pytest.raises(TableError, match="no column deliver_at; it needs topic, key, body, deliver_at"):
        run((topic, past), columns="topic string, due string")
    with pytest.raises(TableError, match=r"^2 rows of the table have no topic or no deliver_at"):
        run((topic, past), (None, past), (topic, None))
    with pytest.raises(TableError, match="'a b' in the table is no name of a topic"):
        run((topic, past), ("a b", past))
    assert sum(end_offsets(broker.kafka, topic).values()) == 0
    # In either form of the name.
    create_topic(broker.kafka, f"{topic}.eu", 1)
    assert run((topic, past), (f"{topic}|eu", past))["sent"] == 2
    assert received(broker, f"{topic}.eu", 1) == {b"b": 1}


def test_command_says_in_one_line_what_made_a_task_fail(broker: Broker, topic: str, tmp_path: Path) -> None:
    table, state = tmp_path / "table.json", str(tmp_path / "state")
    table.write_text(json.dumps({"topic": topic, "key": "k", "body": "b", "deliver_at": "2099-12-31T00:00:00Z"}))
    with pipeline("schedule", str(table), "--state", state, "--kafka", broker.kafka, "--http", broker.http) as process:
        _, errors = process.communicate(timeout=WITHIN_S)
    assert process.returncode == 1
    assert re.fullmatch(
        r"duolog: TIMER_DELIVER_MS=\d+ is \d+ days from now; delay.max_days is \d+", errors.splitlines()[-1]
    )
    assert "Traceback" not in errors


def kept_rows(spark: Spark, state: str) -> DataFrame:
    return spark.session.read.parquet(f"{state}/rows")


def test_lateness_of_both_protocols(broker: Broker, agents: Agents, spark: Spark, topic: str, tmp_path: Path) -> None:
    from duolog.spark.broker_api import BrokerApi
    from duolog.spark.jobs.lateness import lateness
    from duolog.spark.log_source import DuologLog

    delayed = [Message(b"late", number % 2, headers=(("TIMER_DELAY_MS", b"300"),)) for number in range(20)]
    Confluent(broker.kafka).write(topic, [*delayed, Message(b"at once")], way="batch", codec="none")
    api = BrokerApi(broker.http)
    far = api.post("/api/timers", body={"topic": topic, "value": "past", "delay_ms": 3_600_000})
    api.post("/api/timers", far["id"], "reschedule", body={"at_ms": LONG_AGO_MS})
    api.post("/api/timers", body={"topic": topic, "value": "past", "at_ms": LONG_AGO_MS})
    later = Message(b"late").as_rocketmq_json() | {"setDelayTimeMs": 300}
    agents.rocketmq("5.5").call("write_delayed", namesrv=broker.namesrv, topic=topic, messages=[later] * 10)
    assert received(broker, topic, 33) == {b"late": 30, b"at once": 1, b"past": 2}
    spark.session.dataSource.register(DuologLog)
    asked = {"topics": topic, "http": broker.http, "withTimes": "true"}
    steps: list[tuple[int, int]] = []
    rows_of_log = spark.session.read.format("duolog-log").options(**asked).load()
    summary = lateness(rows_of_log, str(tmp_path), lambda done, total: steps.append((done, total)))
    assert steps[-1][0] == steps[-1][1] > 0
    assert (summary["delayed messages"], summary["early"]) == (30, 0)
    assert summary["left out, due before they were made"] == 2
    assert 0 <= summary["p50 ms"] <= summary["p99 ms"] <= summary["max ms"]
    rows = spark.session.read.option("header", "true").csv(str(tmp_path / "table")).collect()
    assert {row.topic for row in rows} == {topic}
    assert sum(int(row.messages) for row in rows) == 30
    assert (tmp_path / "lateness.png").read_bytes().startswith(b"\x89PNG")
