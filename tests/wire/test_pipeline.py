"""The jobs of the pipeline on topics with messages of both protocols: archive, reconcile, replay.

Most run in the one session of the test run, on files that fail at any operation; one is killed as a user's command is.
"""

from __future__ import annotations

import fcntl
import itertools
import json
import os
import pty
import random
import re
import shutil
import signal
import subprocess
import sys
import termios
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.kit.broker import Broker
from tests.kit.eventually import eventually
from tests.wire.clients.jvm import Agents, jars
from tests.wire.clients.kafka_clients import Confluent
from tests.wire.clients.message import Message
from tests.wire.clients.rocketmq_clients import RocketmqJava
from tests.wire.clients.spark import PROFILE, Spark, quick_start_of_commands
from tests.wire.clients.spark_cluster import submit
from tests.wire.clients.topics import create_topic, end_offsets

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from duolog.spark.files import File
    from duolog.spark.progress import Summary

pytestmark = pytest.mark.usefixtures("both_protocols")

QUEUES = 2
LACK_WITHIN_S = 60  # Kafka's clients wait as long for one broker that does not answer; all commands take five seconds.
# Runs commands in one process, because each process would import PySpark, which takes longer than the command.
ONE_AFTER_ANOTHER = """
import json, sys
from duolog.spark.commands import main
for arguments in json.loads(sys.argv[1]):
    try:
        main(arguments)
    except SystemExit as end:
        print("status", end.code, file=sys.stderr)
"""
COMMAND_WITHIN_S = 240  # Spark alone takes a minute where others have the cores.
STOP_WITHIN_S = 30  # The batch that it is at, and what Spark takes to end.
WITHIN_S = 30
DAY_MS = 86_400_000
LONG_AGO_MS = 1_600_000_000_000  # 2020-09-13
_numbers = itertools.count()


@pytest.fixture
def topic(broker: Broker) -> str:
    name = f"lake-{next(_numbers)}-{int(time.time())}"
    create_topic(broker.kafka, name, QUEUES)
    return name


def write(broker: Broker, topic: str, texts: Sequence[str], at_ms: int | None = None) -> None:
    sent = [
        Message(text.encode(), number % QUEUES, b"key", (("n", b"%d" % number),), timestamp_ms=at_ms)
        for number, text in enumerate(texts)
    ]
    Confluent(broker.kafka).write(topic, sent, way="batch", codec="lz4")


def write_from_rocketmq(broker: Broker, agents: Agents, topic: str, texts: Sequence[str]) -> None:
    sent = [Message(text.encode(), number % QUEUES, b"key", tags="t") for number, text in enumerate(texts)]
    RocketmqJava(broker.namesrv, agents.rocketmq("5.5"), "5.5", "json").write(topic, sent, way="sync", codec="none")


def run_archive(broker: Broker, spark: Spark, topic: str, path: Path, **options: Any) -> Summary:
    from duolog.spark.jobs.archive import ArchiveOptions, archive
    from duolog.spark.messages import messages

    stream = messages(spark.session, topic, bootstrap=broker.kafka, streaming=True, max_offsets_per_trigger=1000)
    return archive(spark.session, stream, ArchiveOptions(str(path), **options))


def archived(spark: Spark, path: Path) -> DataFrame:
    from duolog.spark.jobs.archive import open_table

    return open_table(spark.session, str(path), "parquet").read()


def texts_of(rows: DataFrame) -> list[str]:
    return sorted(row.text for row in rows.selectExpr("cast(body as string) as text").collect())


# -- archive


def test_archive_has_every_message_once_by_topic_and_day(
    broker: Broker, agents: Agents, spark: Spark, topic: str, tmp_path: Path
) -> None:
    path = tmp_path / "lake"
    texts = [f"{number:03}" for number in range(100)]
    write(broker, topic, texts[:60])
    assert run_archive(broker, spark, topic, path)["rows"] == 60
    write_from_rocketmq(broker, agents, topic, texts[60:70])
    write(broker, topic, texts[70:], at_ms=LONG_AGO_MS)
    assert run_archive(broker, spark, topic, path)["rows"] == 40
    rows = archived(spark, path)
    assert texts_of(rows) == texts
    late = rows.where("date = date'2020-09-13'")
    assert texts_of(late) == texts[70:]
    assert sorted(p.name for p in (path / f"topic={topic}").iterdir())[0] == "date=2020-09-13"
    # Readers of the folder as plain Parquet get the same rows.
    assert texts_of(spark.session.read.parquet(str(path))) == texts


class Breaking:
    """The archive's files, until the operation that breaks; then nothing works any more, as for a killed process."""

    def __init__(self, files: Any) -> None:
        self._files = files
        self.left: int | None = None  # operations that still work

    def _count(self) -> None:
        if self.left is not None:
            self.left -= 1
            if self.left < 0:
                raise OSError("broken for the test")

    def list(self, folder: str) -> list[File]:
        self._count()
        found: list[File] = self._files.list(folder)
        return found

    def read_text(self, path: str) -> str | None:
        self._count()
        text: str | None = self._files.read_text(path)
        return text

    def write_text(self, path: str, text: str) -> None:
        self._count()
        self._files.write_text(path, text)

    def move(self, old: str, new: str) -> None:
        self._count()
        self._files.move(old, new)

    def remove(self, path: str) -> None:
        self._count()
        self._files.remove(path)


def test_table_has_each_batch_once_whatever_breaks(spark: Spark, tmp_path: Path, rng: random.Random) -> None:
    """Batches are appended and merged on files that break at the n-th operation; each is tried again until it works."""
    from duolog.spark.files import HadoopFiles
    from duolog.spark.jobs.archive import schema
    from duolog.spark.jobs.tables import ParquetTable

    path = tmp_path / "lake"
    files = Breaking(HadoopFiles(spark.session, str(path)))

    def opened() -> ParquetTable:
        table = ParquetTable(spark.session, str(path), files, schema())
        table.clear_away()
        return table

    def rows(batch: int) -> DataFrame:
        columns = [
            "null" if field.name not in ("queue", "offset", "topic", "date") else field.name for field in schema()
        ]
        numbers = spark.session.range(batch * 6, batch * 6 + 6).selectExpr(
            "cast(id % 2 as int) as queue",
            "id as offset",
            "concat('t', cast(id % 2 as string)) as topic",
            "date'2026-01-01' as date",
        )
        typed = [
            f"cast({column} as {field.dataType.simpleString()}) as {field.name}"
            for column, field in zip(columns, schema(), strict=True)
        ]
        return numbers.selectExpr(*typed).coalesce(1)

    operations, breaks = 0, 0
    for batch in range(3):
        while True:
            files.left = operations
            try:
                table = opened()
                for again in range(batch + 1):  # A batch that may be there already is given again.
                    table.append(rows(again), "query", again)
                if batch == 2:
                    table.compact(small_files_max=1)
                break
            except OSError:
                operations, breaks = operations + 1 + rng.randrange(4), breaks + 1
        operations = rng.randrange(12)
    assert breaks, "nothing broke"
    files.left = None
    offsets = [row.offset for row in opened().read().collect()]
    assert sorted(offsets) == list(range(18))
    plain = [row.offset for row in spark.session.read.parquet(str(path)).collect()]
    assert sorted(plain) == list(range(18))
    assert len(list(path.glob("topic=*/date=*/*.parquet"))) == 2  # Merged: one for each topic.


def test_archive_is_exactly_once_though_it_is_killed(
    broker: Broker, spark: Spark, topic: str, tmp_path: Path, rng: random.Random
) -> None:
    path = tmp_path / "lake"
    texts = [f"{number:04}" for number in range(240)]
    write(broker, topic, texts)
    arguments = ["archive", str(path), "--topics", topic, "--batch-offsets", "40", "--kafka", broker.kafka]
    kills = 0
    with pipeline(*arguments) as process:
        commits = 1 + rng.randrange(3)
        eventually(
            "commits",
            lambda: (len(list(path.glob("_duolog/log/*.json"))), process.poll()),
            lambda seen: seen[0] >= commits or seen[1] is not None,
            COMMAND_WITHIN_S,
        )
        kills += process.poll() is None
    assert kills, "the archive was done before it could be killed"
    done = submit("local[2]", *arguments, "--json")  # It goes on, and be it another way.
    assert done.returncode == 0, done.stderr[-4000:]
    assert 0 < json.loads(done.stdout.splitlines()[-1])["rows"] < len(texts)
    assert Counter(texts_of(archived(spark, path))) == Counter(texts)


def test_one_signal_ends_a_job_with_its_summary(broker: Broker, spark: Spark, topic: str, tmp_path: Path) -> None:
    """Ctrl-C on a terminal, which all of its foreground group get, ends an archive; SIGTERM ends a slow replay."""
    path = tmp_path / "lake"
    write(broker, topic, [f"{number:04}" for number in range(200)])
    write(broker, topic, ["last"], at_ms=LONG_AGO_MS + DAY_MS)
    follow = ("archive", str(path), "--topics", topic, "--batch-offsets", "40", "--http", broker.http, "--follow")
    with terminal(*follow) as (process, keyboard, screen):
        seen = lambda: (len(list(path.glob("_duolog/log/*.json"))), process.poll())  # noqa: E731
        eventually("a commit", seen, lambda seen: seen[0] > 0 or seen[1] is not None, COMMAND_WITHIN_S)
        children = children_of(process.pid)
        os.write(keyboard, b"\x03")
        status = process.wait(STOP_WITHIN_S)
        text = screen()
        assert status == 130, text
        assert "Traceback" not in text, text
        rows = re.search(r"^ rows +(\d+)", text, re.MULTILINE)
        assert rows is not None, text
        assert int(rows[1]) > 0
        assert "duolog: stopped by SIGINT" in text
        assert len(text.splitlines()) < 30, text
        assert children, "there was no JVM"
        eventually("the JVM", lambda: [pid for pid in children if is_running(pid)], lambda left: not left, WITHIN_S)
    done = run_archive(broker, spark, topic, path)
    assert done["rows"] + int(rows[1]) == 201, "a batch was lost, or done twice"
    assert archived(spark, path).count() == 201
    slow = ("replay", str(path), "--to", topic, "--http", broker.http, "--speed", "0.001", "--json")
    with pipeline(*slow) as replaying:
        ends = lambda: sum(end_offsets(broker.kafka, topic).values())  # noqa: E731
        eventually("a replayed row", ends, lambda end: end > 201 or replaying.poll() is not None, COMMAND_WITHIN_S)
        os.killpg(replaying.pid, signal.SIGTERM)
        out, errors = replaying.communicate(timeout=STOP_WITHIN_S)
    assert replaying.returncode == 143, errors
    assert json.loads(out)["rows"] == ends() - 201 == 1
    assert "Traceback" not in errors


def test_computation_is_cancelled_when_the_job_is_to_stop(spark: Spark) -> None:
    """As by the main thread of a command; the job, its session and its connection to the JVM go on."""
    from duolog.spark import stopping

    stop = stopping.Stop()

    def main_thread() -> None:
        eventually("tasks", spark.session.sparkContext.statusTracker().getActiveStageIds, bool, WITHIN_S)
        stop.request(signal.SIGTERM)
        while stop.cancel is not None:
            stopping._cancel(stop)
            time.sleep(0.1)

    thread = threading.Thread(target=main_thread)
    thread.start()
    with pytest.raises(stopping.Stopped), stopping.cancelling(stop, spark.session):
        spark.session.range(1 << 50).selectExpr("sum(sqrt(id))").collect()
    thread.join(WITHIN_S)
    assert spark.session.range(5).count() == 5


@contextmanager
def terminal(*arguments: str) -> Iterator[tuple[subprocess.Popen[bytes], int, Callable[[], str]]]:
    """Run `duolog pipeline run ...` on a terminal of its own: (process, its keyboard, what its screen has shown)."""
    ours, theirs = pty.openpty()
    command = [sys.executable, "-P", "-m", "duolog.bridge", "pipeline", "run", *arguments, "--master", "local[2]"]
    places = {"DUOLOG_SPARK_JARS": str(jars(PROFILE)), "TERM": "xterm", "COLUMNS": "120"}
    process = subprocess.Popen(
        command,
        env=os.environ | quick_start_of_commands() | places,
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        start_new_session=True,
        preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),  # It is what a terminal does.
    )
    os.close(theirs)
    shown = bytearray()

    def read() -> None:
        while True:
            try:
                part = os.read(ours, 4096)
            except OSError:  # EIO: nobody has the terminal open any more.
                return
            if not part:
                return
            shown.extend(part)

    reader = threading.Thread(target=read, daemon=True)
    reader.start()

    def screen() -> str:
        reader.join(5)
        text = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", shown.decode(errors="replace"))
        # What a carriage return alone leads back over is shown no more.
        return "\n".join(line.rstrip("\r").rpartition("\r")[2] for line in text.split("\n"))

    try:
        yield process, ours, screen
    finally:
        try:
            os.killpg(process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        process.wait()
        reader.join(5)
        os.close(ours)


def children_of(pid: int) -> list[int]:
    found = []
    for entry in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = entry.read_text().rpartition(")")[2].split()
        except OSError:
            continue  # It has ended.
        if int(fields[1]) == pid:
            found.append(int(entry.parent.name))
    return found


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@pytest.mark.soak
@pytest.mark.timeout(900)
@pytest.mark.parametrize(("format_", "profile"), [("delta", "delta-4.0"), ("iceberg", "iceberg-1.10")])
def test_archive_in_another_format_is_exactly_once_though_it_is_killed(
    broker: Broker, topic: str, tmp_path: Path, rng: random.Random, format_: str, profile: str
) -> None:
    """Late messages among them; the small files of its many batches are merged; `reconcile` is the judge."""
    path = tmp_path / "lake"
    texts = [f"{number:04}" for number in range(240)]
    write(broker, topic, texts[:200])
    write(broker, topic, texts[200:], at_ms=LONG_AGO_MS)
    chosen = (str(path), "--format", format_)
    arguments = ["archive", *chosen, "--topics", topic, "--batch-offsets", "6", "--kafka", broker.kafka]
    for _ in range(2):
        with pipeline(*arguments, profiles=(PROFILE, profile)) as process:
            commits = len(list(path.glob("_duolog/checkpoint/commits/[0-9]*"))) + 3 + rng.randrange(8)
            eventually(
                "commits",
                lambda: (len(list(path.glob("_duolog/checkpoint/commits/[0-9]*"))), process.poll()),
                lambda seen, commits=commits: seen[0] >= commits or seen[1] is not None,  # type: ignore[misc]
                2 * COMMAND_WITHIN_S,
            )
            assert process.poll() is None, "the archive was done before it could be killed"
    done = pipeline_result(*arguments, "--json", profiles=(PROFILE, profile))
    assert 0 < done["rows"] < len(texts)
    assert done["files merged"] > 0
    compared = ("reconcile", *chosen, "--http", broker.http, "--json")
    assert pipeline_result(*compared, profiles=(PROFILE, profile))["records equal"] == len(texts)
    folder = "archive/data/*/*" if format_ == "iceberg" else "*/date=*"
    newest = max(path.glob(f"{folder}/*.parquet"), key=lambda file: file.stat().st_mtime)
    newest.unlink()
    with pipeline(*compared, profiles=(PROFILE, profile)) as process:
        out, errors = process.communicate(timeout=2 * COMMAND_WITHIN_S)
    assert process.returncode == 1, errors
    found = json.loads(out.splitlines()[-1])
    assert found["files missing from the archive"] == 1
    assert 0 < found["missing"] < len(texts)


@contextmanager
def pipeline(*arguments: str, profiles: Sequence[str] = (PROFILE,)) -> Iterator[subprocess.Popen[str]]:
    """Run `duolog pipeline run ...` as a process group of its own; whatever of it is left at the end is killed."""
    command = [sys.executable, "-P", "-m", "duolog.bridge", "pipeline", "run", *arguments, "--master", "local[2]"]
    places = {"DUOLOG_SPARK_JARS": ":".join(str(jars(profile)) for profile in profiles)}
    environment = os.environ | quick_start_of_commands() | places
    process = subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    try:
        yield process
    finally:
        try:
            os.killpg(process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass  # It ended by itself.
        process.communicate()


def pipeline_result(*arguments: str, profiles: Sequence[str] = (PROFILE,)) -> Any:
    with pipeline(*arguments, profiles=profiles) as process:
        out, errors = process.communicate(timeout=2 * COMMAND_WITHIN_S)
        assert process.returncode == 0, errors[-4000:]
        return json.loads(out.splitlines()[-1])


def test_archive_says_what_it_lacks(broker: Broker, spark: Spark, topic: str, tmp_path: Path) -> None:
    from duolog.spark.jobs.tables import TableError

    with pytest.raises(TableError, match=r"Spark has no Delta.*io\.delta:delta-spark"):
        run_archive(broker, spark, topic, tmp_path / "lake", format="delta")
    with pytest.raises(TableError, match=r"Spark has no Iceberg.*iceberg-spark-runtime"):
        run_archive(broker, spark, topic, tmp_path / "lake", format="iceberg")
    with pytest.raises(TableError, match="there is no archive"):
        archived(spark, tmp_path / "lake")


def test_what_a_job_lacks_is_one_line_before_spark_starts(broker: Broker, topic: str, tmp_path: Path) -> None:
    """Spark could not start: there is no Java."""
    lake, nowhere = str(tmp_path / "lake"), "127.0.0.1:1"
    by_http, by_kafka = ("--http", broker.http), ("--http", nowhere, "--kafka", broker.kafka)
    refused = r"no Kafka broker answers on 127\.0\.0\.1:1: Connection refused \(--kafka names its Kafka port\)"
    cases = [
        (("archive", lake, "--topics", topic, "--kafka", nowhere), refused),
        (("archive", lake, "--topics", f"{topic},nope", *by_kafka), rf"there is no topic nope on {broker.kafka}"),
        (("archive", lake, "--topics", "nope", *by_http), rf"there is no topic nope on {broker.kafka}"),
        (("archive", lake, "--topics", topic, "--kafka", broker.http), r"no Kafka broker .*the answer is none of.*"),
        (("archive", lake, "--topics", topic, "--kafka", broker.namesrv), r"no Kafka broker answers on .*"),
        (("archive", lake, "--topics", ","), r"Invalid value: --topics: expected names, .* got ','"),
        (("replay", lake, "--to", "a b", *by_http), "'a b' is no name of a topic"),
        (("schedule", "t.csv", "--state", lake, "--http", nowhere), r"no broker answers on 127\.0\.0\.1:1: .*"),
        (("reconcile", lake, "--http", nowhere), r"no broker answers on .* \(--http names its HTTP port\)"),
        (("reconcile", lake, *by_http), r"there is no archive in \S+/lake; .*"),
        (("replay", lake, *by_http), r"there is no archive in \S+/lake; .*"),
        (("lateness", lake, "--topics", f"{topic},nope", *by_http), "there is no topic nope; .*"),
        (("transactions", lake, *by_http, "--kafka", nowhere), refused),
    ]
    commands = json.dumps([arguments for arguments, _ in cases])
    environment = os.environ | {"JAVA_HOME": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-P", "-c", ONE_AFTER_ANOTHER, commands],
        env=environment, capture_output=True, text=True, timeout=LACK_WITHIN_S,
    )  # fmt: skip
    lines = done.stderr.splitlines()
    assert len(lines) == 2 * len(cases), done.stderr
    for (arguments, expected), line, status in zip(cases, lines[::2], lines[1::2], strict=True):
        assert re.fullmatch(rf"duolog: {expected}", line), (arguments, line)
        assert status == ("status 2" if "Invalid" in expected else "status 1"), arguments


def test_spark_that_lacks_its_connector_says_so_in_its_last_line(broker: Broker, tmp_path: Path) -> None:
    """A Java that fails at once stands for one that fails to fetch."""
    java = tmp_path / "bin" / "java"
    java.parent.mkdir()
    java.write_text("#!/bin/sh\nexit 1\n")
    java.chmod(0o755)
    lake = str(tmp_path / "lake")
    command = [sys.executable, "-P", "-m", "duolog.spark", "archive", lake, "--pattern", ".*", "--kafka", broker.kafka]
    environment = os.environ | {"JAVA_HOME": str(tmp_path), "HOME": str(tmp_path), "DUOLOG_SPARK_JARS": ""}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=COMMAND_WITHIN_S)
    last = done.stderr.splitlines()[-1]
    assert done.returncode == 1
    assert re.search(r"could not fetch \S+:spark-sql-kafka-0-10_2\.13:[0-9.]+: .*pip install 'pyspark==", last), last
    java.unlink()
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=COMMAND_WITHIN_S)
    assert done.stderr.splitlines()[-1].endswith(f"there is none in {tmp_path}")


def test_checkpoint_that_belongs_to_another_archive_is_refused(
    broker: Broker, spark: Spark, topic: str, tmp_path: Path
) -> None:
    """Without its checkpoint an archive would count batches from 0 again, and take new rows for old ones."""
    path = tmp_path / "lake"
    write(broker, topic, ["a", "b"])
    run_archive(broker, spark, topic, path)
    (path / "_duolog" / "checkpoint").rename(tmp_path / "lost")
    with pytest.raises(Exception, match="the checkpoint is not the one that belongs to this archive"):
        run_archive(broker, spark, topic, path)
    assert texts_of(archived(spark, path)) == ["a", "b"]


# -- reconcile


def reconciled(broker: Broker, spark: Spark, path: Path, rows: DataFrame, step: int = 16) -> Summary:
    from duolog.spark.broker_api import BrokerApi
    from duolog.spark.jobs.archive import progress_of_archive
    from duolog.spark.jobs.reconcile import reconcile

    return reconcile(rows, progress_of_archive(spark.session, str(path)), BrokerApi(broker.http), step=step).summary()


def test_reconcile_finds_a_loss_a_repeat_and_a_changed_byte(
    broker: Broker, agents: Agents, spark: Spark, topic: str, tmp_path: Path
) -> None:
    from pyspark.sql import functions as F

    path = tmp_path / "lake"
    write(broker, topic, [f"{number:03}" for number in range(150)])
    write_from_rocketmq(broker, agents, topic, ["r0", "r1", "r2", "r3"])
    run_archive(broker, spark, topic, path)
    write(broker, topic, ["later", "later"])
    rows = archived(spark, path).persist()
    sound = reconciled(broker, spark, path, rows)
    assert (sound["records equal"], sound["offsets not archived yet"]) == (154, 2)
    assert [sound[kind] for kind in ("missing", "repeated", "changed", "invented")] == [0, 0, 0, 0]

    at = {name: f"queue = {queue} and offset = {offset}" for name, queue, offset in WRONG}
    lost = rows.where(f"not ({at['lost']})")
    repeated = lost.unionByName(rows.where(at["repeated"]))
    body = F.when(F.expr(at["changed"]), F.lit(b"x")).otherwise(F.col("body"))
    header = F.when(F.expr(at["header"]), F.transform("headers", lambda h: F.struct(h.key, F.lit(b"9").alias("value"))))
    changed = repeated.withColumn("body", body).withColumn("headers", F.coalesce(header, F.col("headers")))
    invented = changed.unionByName(rows.where(at["lost"]).withColumn("offset", F.lit(70).cast("bigint")))
    found = reconciled(broker, spark, path, invented)
    assert {kind: found[f"{kind} at"] for kind in ("missing", "repeated", "changed")} == {
        "missing": f"{topic}/0: 3",
        "repeated": f"{topic}/0: 70; {topic}/1: 20",
        "changed": f"{topic}/0: 70; {topic}/1: 33 40",
    }
    rows.unpersist()


def test_reconcile_reports_what_lost_files_had_as_missing(
    broker: Broker, spark: Spark, topic: str, tmp_path: Path
) -> None:
    from duolog.spark.jobs.archive import open_table

    path = tmp_path / "lake"
    for _ in range(2):
        write(broker, topic, [f"{number:03}" for number in range(20)])
        run_archive(broker, spark, topic, path)
    next(path.glob("topic=*/date=*/batch-00000000-*.parquet")).unlink()
    table = open_table(spark.session, str(path), "parquet")
    (lost,) = table.lost()
    assert lost.startswith(f"topic={topic}/")
    found = reconciled(broker, spark, path, table.read([lost]))
    assert found["missing"] == 10  # A batch has a file for each queue.
    shutil.rmtree(path / f"topic={topic}")
    assert reconciled(broker, spark, path, table.read(table.lost()))["missing"] == 40


def test_reconcile_that_is_stopped_says_how_much_is_left(
    broker: Broker, spark: Spark, topic: str, tmp_path: Path
) -> None:
    from duolog.spark.broker_api import BrokerApi
    from duolog.spark.jobs.archive import progress_of_archive
    from duolog.spark.jobs.reconcile import reconcile
    from duolog.spark.stopping import Stop

    path, stop = tmp_path / "lake", Stop()
    write(broker, topic, ["a", "b"])
    run_archive(broker, spark, topic, path)
    progress = progress_of_archive(spark.session, str(path))
    on_progress = lambda *_: stop.request(signal.SIGINT)  # noqa: E731  # With the first queue.
    report = reconcile(archived(spark, path), progress, BrokerApi(broker.http), on_progress, stop=stop)
    assert (report.summary()["queues not compared"], report.summary()["records equal"]) == (1, 1)


WRONG = [("lost", 0, 3), ("repeated", 1, 20), ("changed", 1, 33), ("header", 1, 40)]


def test_reconcile_compares_what_the_broker_still_has(broker: Broker, spark: Spark, topic: str, tmp_path: Path) -> None:
    from tests.wire.test_messages import delete_until

    path = tmp_path / "lake"
    write(broker, topic, [f"{number:03}" for number in range(40)])
    run_archive(broker, spark, topic, path)
    delete_until(broker.kafka, topic, 5)
    found = reconciled(broker, spark, path, archived(spark, path))
    assert (found["offsets removed from the broker"], found["records equal"]) == (5, 35)
    assert [found[kind] for kind in ("missing", "repeated", "changed", "invented")] == [0, 0, 0, 0]


# -- replay


def test_replay_sends_a_range_of_times_again_in_order(broker: Broker, spark: Spark, topic: str, tmp_path: Path) -> None:
    from duolog.spark.jobs.replay import ReplayOptions, replay
    from duolog.spark.messages import messages

    path = tmp_path / "lake"
    for day in range(3):
        write(broker, topic, [f"{day}{number:02}" for number in range(20)], at_ms=LONG_AGO_MS + day * DAY_MS)
    run_archive(broker, spark, topic, path)
    target = f"{topic}-again"
    create_topic(broker.kafka, target, QUEUES)
    sent = replay(
        archived(spark, path),
        ReplayOptions(broker.kafka, [topic], target, LONG_AGO_MS + DAY_MS, LONG_AGO_MS + 2 * DAY_MS),
    )
    assert sent["rows"] == 20
    seen = messages(spark.session, target, bootstrap=broker.kafka).orderBy("queue", "offset").collect()
    assert [(row.queue, bytes(row.body)) for row in seen] == [
        (number % 2, b"1%02d" % number) for number in sorted(range(20), key=lambda number: number % 2)
    ]
    assert {(bytes(row.key), row.properties["n"]) for row in seen} == {(b"key", str(number)) for number in range(20)}


def test_replay_keeps_the_original_spacing(broker: Broker, spark: Spark, topic: str, tmp_path: Path) -> None:
    """At twice the speed, messages 6 s apart are stored at least 3 s apart, by the broker's clock."""
    from duolog.spark.jobs.replay import ReplayOptions, replay
    from duolog.spark.messages import messages

    path = tmp_path / "lake"
    write(broker, topic, ["a", "b"], at_ms=LONG_AGO_MS)
    write(broker, topic, ["c"], at_ms=LONG_AGO_MS + 6000)
    run_archive(broker, spark, topic, path)
    target = f"{topic}-again"
    create_topic(broker.kafka, target, QUEUES, {"message.timestamp.type": "LogAppendTime"})
    replay(archived(spark, path), ReplayOptions(broker.kafka, to=target, speed=2))
    rows = messages(spark.session, target, bootstrap=broker.kafka).selectExpr(
        "cast(body as string) as text", "unix_millis(store_time) as at_ms"
    )
    at_ms = {row.text: row.at_ms for row in rows.collect()}
    assert at_ms["c"] - max(at_ms["a"], at_ms["b"]) >= 2990  # Clocks count whole milliseconds.
