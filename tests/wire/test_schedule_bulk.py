"""`schedule` in bulk: ten million rows in one run that is killed at random, counted at the receiver.

DUOLOG_SCHEDULE_ROWS makes it shorter. Rows are due while the job still runs, and later. How many wait depends on the
machine; those of the last minutes do in files of far timers. None may come early.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.kit.broker import Broker
from tests.kit.eventually import eventually
from tests.wire.clients.jvm import jars
from tests.wire.clients.spark import PROFILE, Spark
from tests.wire.clients.topics import create_topic, end_offsets

pytestmark = [pytest.mark.soak, pytest.mark.usefixtures("both_protocols")]

ROWS = int(os.environ.get("DUOLOG_SCHEDULE_ROWS", 10_000_000))
KILLS = 4
RUN_WITHIN_S = 3600
PART_ROWS = max(1000, ROWS // 20)
# The first is due when some parts should be sent. From then on not more in ten minutes (`delay.near_ms`) than a broker
# keeps in memory.
FIRST_DUE_MS, DUE_WITHIN_MS = 60_000 + ROWS // 16, ROWS // 8


@pytest.mark.timeout(2 * RUN_WITHIN_S)
def test_rows_in_bulk_come_once_each_though_the_job_is_killed(
    broker: Broker, spark: Spark, tmp_path: Path, rng: random.Random
) -> None:
    from pyspark.sql import functions as F

    from duolog.spark.jobs.lateness import lateness
    from duolog.spark.log_source import DuologLog
    from duolog.spark.messages import messages

    create_topic(broker.kafka, "reminders", 4)
    due_ms = round(time.time() * 1000) + FIRST_DUE_MS
    table = spark.session.range(ROWS).select(
        F.lit("reminders").alias("topic"),
        F.concat(F.lit("k"), F.col("id") % 1000).alias("key"),
        F.col("id").cast("string").alias("body"),
        F.timestamp_millis(F.lit(due_ms) + F.pmod(F.xxhash64("id"), F.lit(DUE_WITHIN_MS))).alias("deliver_at"),
    )
    table.write.parquet(str(tmp_path / "table.parquet"))
    state = tmp_path / "state"
    command = [
        sys.executable,
        "-P",
        "-m",
        "duolog.bridge",
        "pipeline",
        "run",
        "schedule",
        str(tmp_path / "table.parquet"),
    ]
    command += ["--state", str(state), "--part-rows", str(PART_ROWS), "--kafka", broker.kafka, "--http", broker.http]
    kill_behind = sorted(rng.sample(range(1, 19), KILLS))  # parts that are begun
    killed = 0
    start = time.perf_counter()
    for parts in [*kill_behind, None]:
        with (tmp_path / "job.log").open("wb") as log:
            job = subprocess.Popen(
                [*command, "--json", "--master", "local[2]"],
                env=os.environ | {"DUOLOG_SPARK_JARS": str(jars(PROFILE))},
                stdout=subprocess.PIPE,
                stderr=log,
                start_new_session=True,
            )
        try:
            if parts is None:
                out, _ = job.communicate(timeout=RUN_WITHIN_S)
                break
            begun = lambda: (len(list((state / "begun").glob("*.json"))), job.poll())  # noqa: B023, E731
            eventually("parts", begun, lambda seen: seen[0] > parts or seen[1] is not None, RUN_WITHIN_S)  # noqa: B023
            time.sleep(rng.random() * 3)  # Somewhere in it.
            killed += job.poll() is None
        finally:
            if job.poll() is None:
                os.killpg(job.pid, signal.SIGKILL)
                job.communicate()
    assert job.returncode == 0, (tmp_path / "job.log").read_text()[-3000:]
    last = json.loads(out.decode().splitlines()[-1])
    print(f"{ROWS} rows, {killed} kills, {time.perf_counter() - start:.0f} s; the last run: {last}")
    assert killed, "it was never killed"

    delivered = lambda: sum(end_offsets(broker.kafka, "reminders").values())  # noqa: E731
    eventually("deliveries", delivered, lambda count: count >= ROWS, RUN_WITHIN_S)
    bodies = messages(spark.session, "reminders", bootstrap=broker.kafka).selectExpr("cast(body as string) as id")
    counted = bodies.groupBy("id").count().agg(F.count("*").alias("ids"), F.max("count").alias("most")).first()
    assert counted is not None
    assert (counted.ids, counted.most, delivered()) == (ROWS, 1, ROWS)
    spark.session.dataSource.register(DuologLog)
    asked = {"topics": "reminders", "http": broker.http, "withTimes": "true"}
    late = lateness(spark.session.read.format("duolog-log").options(**asked).load(), str(tmp_path))
    print(late)
    assert late["early"] == 0
    assert late["delayed messages"] > ROWS // 4, "nearly all were due when they were sent"
