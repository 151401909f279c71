"""The command line of the Spark jobs: options, a progress bar, a summary.

exit status     0                              the job is done
                1                              the job failed, or reconcile has found a difference
                2                              an option is wrong
                128 + number of the signal     a signal has stopped the job (`spark/stopping.py`)
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final, Literal, NamedTuple, NoReturn

import typer
from py4j.protocol import Py4JError, Py4JJavaError, Py4JNetworkError
from pyspark.errors import PySparkException

from duolog.spark.broker_api import ApiError, BrokerApi
from duolog.spark.jobs.tables import TableError
from duolog.spark.kafka_port import KafkaPortError, check_kafka
from duolog.spark.progress import OnProgress, Summary
from duolog.spark.session import (
    SessionError,
    is_submitted,
    new_log,
    open_session,
)
from duolog.spark.stopping import (
    Stop,
    Stopped,
    ending_at_once,
    run_until_signal,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

REFUSED = 1

_PYTHON_STACK: Final = "Traceback (most recent call last):"
_SQLSTATE: Final = re.compile(r"\s*SQLSTATE: \w+")  # After it, Spark's messages have query plans and call sites.

app = typer.Typer(
    help="Spark jobs on the broker's topics.",
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)

Kafka = Annotated[
    str | None,
    typer.Option(metavar="HOST:PORT", envvar="DUOLOG_KAFKA", help="the broker's Kafka port [what its HTTP port says]"),
]
Http = Annotated[
    str,
    typer.Option(metavar="HOST:PORT", envvar="DUOLOG_HTTP", help="the broker's HTTP port, which knows the others"),
]
Master = Annotated[str, typer.Option(metavar="URL", help="Spark master of a local run; spark-submit names its own")]
AsJson = Annotated[bool, typer.Option("--json", help="the summary as one line of JSON")]
Archive = Annotated[str, typer.Argument(metavar="ARCHIVE", help="folder or URL of the archive")]
Format = Annotated[
    Literal["parquet", "delta", "iceberg"], typer.Option("--format", help=" format of the archive's table")
]
HTTP, MASTER = "127.0.0.1:9644", "local[*]"


def main(arguments: list[str] | None = None) -> NoReturn:
    """Run the command line and exit. Errors that a user can cause are one line on standard error."""
    arguments = sys.argv[1:] if arguments is None else arguments
    sys.exit(run_until_signal(lambda stop: _run(arguments or ["--help"], stop)))


def _run(arguments: list[str], stop: Stop) -> int:
    try:
        return int(app(arguments, prog_name="duolog pipeline run", standalone_mode=False, obj=stop) or 0)
    except typer.TyperException as error:
        _say(error.format_message())
        return error.exit_code
    except typer.Abort:
        return REFUSED
    except (TableError, ApiError, KafkaPortError, SessionError) as error:
        _say(str(error))
    except (PySparkException, Py4JError, OSError) as error:
        # After a signal the JVM may have ended, too, and calls into it fail.
        if not (stop.is_requested and isinstance(error, Py4JNetworkError | OSError)):
            _say(_reason(error))
    except Stopped:
        pass
    finally:
        if stop.is_requested:
            _say(stop.reason)
    return REFUSED


def _say(message: str) -> None:
    typer.echo(f"duolog: {' '.join(message.split())}", err=True)


def _reason(error: Exception) -> str:
    """Return the message of an error of Spark, without query plans and stack traces."""
    text = str(_root_cause(error) if isinstance(error, Py4JJavaError) else error)
    head, is_python, frames = text.partition(_PYTHON_STACK)
    if is_python:  # The traceback of a Python worker: its frames are indented, and the exception follows them.
        text = head + "\n".join(line for line in frames.splitlines() if not line.startswith(" "))
    text = _SQLSTATE.split(text, maxsplit=1)[0]
    lines = [line for line in text.splitlines() if line.strip()]
    kept = [line for line in lines if not line.lstrip().startswith(("at ", "..."))]
    return " ".join(kept[:12])[:2000] or type(error).__name__


def _root_cause(error: Py4JJavaError) -> str:
    """Return the message of the innermost cause: Spark wraps the error of a task into errors of a stage and a job."""
    cause = error.java_exception
    while (deeper := cause.getCause()) is not None:
        cause = deeper
    return str(cause.getMessage() or cause.toString())


# -- Jobs


@app.command(epilog="Example: duolog pipeline run archive ./lake --topics orders,payments")
def archive(
    context: typer.Context,
    path: Archive,
    topics: Annotated[str | None, typer.Option(metavar="NAME,...", help="the topics")] = None,
    pattern: Annotated[str | None, typer.Option(metavar="REGEX", help="all topics whose names match")] = None,
    format_: Annotated[
        Literal["parquet", "delta", "iceberg"], typer.Option("--format", help="format of the table")
    ] = "parquet",
    follow: Annotated[
        bool,
        typer.Option(
            "--follow", help="continue until stopped; by default the job ends with the messages that are there"
        ),
    ] = False,
    batch_offsets: Annotated[int, typer.Option(metavar="N", min=1, help="offsets of one batch")] = 500_000,
    http: Http = HTTP,
    kafka: Kafka = None,
    master: Master = MASTER,
    as_json: AsJson = False,
) -> int:
    """Copy topics into a lake table, exactly once, partitioned by topic and date."""
    from duolog.spark.jobs.archive import ArchiveOptions
    from duolog.spark.jobs.archive import archive as run
    from duolog.spark.messages import messages

    names = _names(topics)
    if (names is None) == (pattern is None):
        raise typer.BadParameter("give --topics or --pattern")
    bootstrap = _kafka_port(kafka, http, names or ())
    with _running(context, "archive", master, as_json, _formats(format_)) as (session, on_progress, stop):
        stream = messages(
            session,
            names,
            pattern=pattern,
            bootstrap=bootstrap,
            streaming=True,
            max_offsets_per_trigger=batch_offsets,
        )
        _show(run(session, stream, ArchiveOptions(path, format_, follow), on_progress, stop), as_json)
    return 0


@app.command(epilog="Example: duolog pipeline run reconcile ./lake || echo the archive and the broker differ")
def reconcile(
    context: typer.Context,
    path: Archive,
    format_: Format = "parquet",
    http: Http = HTTP,
    master: Master = MASTER,
    as_json: AsJson = False,
) -> int:
    """Prove that the archive and the broker agree; exit status 1 if they do not."""
    from duolog.spark.jobs.archive import check_archive, open_table, progress_of_archive
    from duolog.spark.jobs.reconcile import reconcile as run

    api = _broker(http)
    check_archive(path)
    with _running(context, "reconcile", master, as_json, _formats(format_)) as (session, on_progress, stop):
        progress, table = progress_of_archive(session, path), open_table(session, path, format_)
        lost = table.lost()
        report = run(table.read(lost), progress, api, on_progress, stop=stop)
        report.files_missing = len(lost)
        _show(report.summary(), as_json)
    return REFUSED if report.differences else 0


@app.command(epilog="Example: duolog pipeline run replay ./lake --topics orders --to orders.again --from 2026-11-01")
def replay(
    context: typer.Context,
    path: Archive,
    topics: Annotated[
        str | None, typer.Option(metavar="NAME,...", help="topics of the archive; by default all")
    ] = None,
    to: Annotated[
        str | None, typer.Option(metavar="NAME", help="one topic for all messages; by default their own topics")
    ] = None,
    since: Annotated[datetime | None, typer.Option("--from", help="messages of this UTC time and later")] = None,
    until: Annotated[datetime | None, typer.Option("--until", help="messages before this UTC time")] = None,
    speed: Annotated[float, typer.Option(min=0, help="1: as far apart as they were; 2: twice as fast; 0: at once")] = 0,
    keep_queues: Annotated[bool, typer.Option(help="send to queues of the same numbers; else by key")] = True,
    format_: Format = "parquet",
    http: Http = HTTP,
    kafka: Kafka = None,
    master: Master = MASTER,
    as_json: AsJson = False,
) -> int:
    """Send archived messages again, in the order of each queue."""
    from duolog.spark.jobs.archive import check_archive, open_table
    from duolog.spark.jobs.replay import ReplayOptions
    from duolog.spark.jobs.replay import replay as run

    bootstrap = _kafka_port(kafka, http, [to] if to else (), may_create=True)
    check_archive(path)
    options = ReplayOptions(bootstrap, _names(topics), to, _ms(since), _ms(until), speed, keep_queues)
    with _running(context, "replay", master, as_json, _formats(format_)) as (session, on_progress, stop):
        _show(run(open_table(session, path, format_).read(), options, on_progress, stop), as_json)
    return 0


@app.command(epilog="Example: duolog pipeline run lateness ./late --topics reminders")
def lateness(
    context: typer.Context,
    path: Annotated[str, typer.Argument(metavar="FOLDER", help="folder for the table and the plot")],
    topics: Annotated[str, typer.Option(metavar="NAME,...", help="the topics")],
    directory: Annotated[
        str | None, typer.Option(metavar="DIR", help="the broker's data directory, if it has another path here")
    ] = None,
    token: Annotated[
        str | None, typer.Option(envvar="DUOLOG_TOKEN", help="token of http.readers_file, if it is set")
    ] = None,
    http: Http = HTTP,
    master: Master = MASTER,
    as_json: AsJson = False,
) -> int:
    """Measure how late delayed messages became visible, by topic and minute, from the log's files.

    Writes a table and a plot.
    """
    from duolog.spark.jobs.lateness import lateness as run
    from duolog.spark.log_source import DuologLog

    given = {"directory": directory, "token": token}
    asked = {"topics": topics, "http": http, "withTimes": "true"} | {key: each for key, each in given.items() if each}
    _broker(http, _names(topics) or ())
    with _running(context, "lateness", master, as_json) as (session, on_progress, stop):
        session.dataSource.register(DuologLog)
        Path(path).mkdir(parents=True, exist_ok=True)
        _show(run(session.read.format("duolog-log").options(**asked).load(), path, on_progress, stop), as_json)
    return 0


@app.command(epilog="Example: duolog pipeline run transactions ./halves")
def transactions(
    context: typer.Context,
    path: Annotated[str, typer.Argument(metavar="FOLDER", help="folder for the table")],
    http: Http = HTTP,
    kafka: Kafka = None,
    master: Master = MASTER,
    as_json: AsJson = False,
) -> int:
    """Report the outcome of half messages: verdict, time to decide, check-backs, and messages that are still open."""
    from duolog.spark.jobs.transactions import TransactionsOptions
    from duolog.spark.jobs.transactions import transactions as run

    _broker(http)
    options = TransactionsOptions(path, _kafka_port(kafka, http), http)
    with _running(context, "transactions", master, as_json) as (session, on_progress, stop):
        _show(run(session, options, on_progress, stop), as_json)
    return 0


@app.command(epilog="Example: duolog pipeline run schedule reminders.parquet --state ./reminders.state")
def schedule(
    context: typer.Context,
    table: Annotated[str, typer.Argument(metavar="TABLE", help="topic, key, body, deliver_at: Parquet, CSV or JSON")],
    state: Annotated[
        str, typer.Option(metavar="FOLDER", help="folder with the state of this job; give it again after a kill")
    ],
    part_rows: Annotated[int, typer.Option(metavar="N", min=1, help="rows of one part")] = 200_000,
    http: Http = HTTP,
    kafka: Kafka = None,
    master: Master = MASTER,
    as_json: AsJson = False,
) -> int:
    """Send the rows of a table as delayed messages, each once, also if the job is killed and run again."""
    from duolog.spark.jobs.schedule import ScheduleOptions
    from duolog.spark.jobs.schedule import schedule as run

    _broker(http)
    options = ScheduleOptions(state, _kafka_port(kafka, http), http, part_rows)
    with _running(context, "schedule", master, as_json) as (session, on_progress, stop):
        format_ = table.rstrip("/").rpartition(".")[2].lower()
        reader = session.read.option("header", "true").format(format_ if format_ in ("csv", "json") else "parquet")
        _show(run(session, reader.load(table), options, on_progress, stop=stop), as_json)
    return 0


# -- Functions of all jobs


def _formats(format_: str) -> list[str]:
    """Return the format in a list if it needs further packages; otherwise an empty list."""
    return [] if format_ == "parquet" else [format_]


def _names(topics: str | None) -> list[str] | None:
    """Split the value of --topics. Raises BadParameter if it has no name."""
    if topics is None:
        return None
    names = [name.strip() for name in topics.split(",") if name.strip()]
    if not names:
        raise typer.BadParameter(f"--topics: expected names, separated by commas, got {topics!r}")
    return names


def _ms(at: datetime | None) -> int | None:
    return None if at is None else round(at.replace(tzinfo=UTC).timestamp() * 1000)


def _broker(http: str, topics: Sequence[str] = ()) -> BrokerApi:
    """Return the API of the broker at an HTTP port, after checking that it answers and has these topics.

    A job calls it before it starts Spark, which takes seconds. Raises ApiError.
    """
    api = BrokerApi(http)
    api.get("/api/status")
    for topic in topics:
        api.get("/api/topics", topic)
    return api


def _kafka_port(kafka: str | None, http: str, topics: Sequence[str] = (), *, may_create: bool = False) -> str:
    """Return HOST:PORT of the Kafka port, after checking that it answers and has these topics.

    Raises ApiError and KafkaPortError.
    """
    bootstrap = kafka or BrokerApi(http).kafka_address()
    check_kafka(bootstrap, topics, may_create=may_create)
    return bootstrap


class Running(NamedTuple):
    """The Spark session of a job, the function that reports its progress, and whether it was asked to stop."""

    session: SparkSession
    on_progress: OnProgress
    stop: Stop


@contextmanager
def _running(
    context: typer.Context, name: str, master: str, as_json: bool, formats: Sequence[str] = ()
) -> Iterator[Running]:
    """Open a Spark session and a progress bar, and yield what a job needs. Closes the session at the end."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    stop: Stop = context.obj
    log = None if is_submitted() else new_log(name)
    if log is not None:
        _say(f"Spark writes its log to {log}")
    with ending_at_once(stop):
        session = open_session(name, master, formats, log)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    try:
        with Progress(*columns, console=Console(stderr=True), disable=as_json) as progress:
            task = progress.add_task(name, total=None)
            yield Running(session, lambda done, total: progress.update(task, completed=done, total=total), stop)
    finally:
        session.stop()


def _show(summary: Summary, as_json: bool) -> None:
    if as_json:
        typer.echo(json.dumps(summary))
        return
    from rich import box
    from rich.console import Console
    from rich.table import Table

    table = Table(box=box.SIMPLE, show_header=False, pad_edge=False)
    for name, value in summary.items():
        table.add_row(name, f"{value:,}" if isinstance(value, int) else str(value))
    Console().print(table)
