"""The command `duolog`: serve, and talk to a running broker over its HTTP port.

Exit status: 0 done; 1 a state of affairs (port in use, no such topic); 2 a bad option or setting, one line that names
it; 70 a bug of ours. Imports stand inside the commands, so that `serve` loads no table printer and `version` no broker.
"""

import os
import signal
import sys
from collections.abc import Sequence
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer

from bridge.cli_timers import schedule_app, timer_app

if TYPE_CHECKING:
    from bridge.http_client import Api

REFUSED = 1
BAD_OPTION = 2
JOBS = (
    "archive",
    "reconcile",
    "replay",
    "lateness",
    "transactions",
    "schedule",
)  # of the pipeline, whose own list needs PySpark
PIPE_WIDTH = 1000

app = typer.Typer(
    help="A message broker: RocketMQ clients, Kafka clients and Spark share the same topics over one commitlog.",
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
topic_app = typer.Typer(help="Topics.", rich_markup_mode=None)
group_app = typer.Typer(help="Consumer groups of both families.", rich_markup_mode=None)
poison_app = typer.Typer(help="Stored records that could not be processed.", rich_markup_mode=None)
txn_app = typer.Typer(help="Transactions of both families.", rich_markup_mode=None)
pipeline_app = typer.Typer(help="Spark jobs on the broker's topics.", rich_markup_mode=None)
app.add_typer(topic_app, name="topic")
app.add_typer(pipeline_app, name="pipeline")
app.add_typer(group_app, name="group")
app.add_typer(poison_app, name="poison")
app.add_typer(txn_app, name="txn")
app.add_typer(timer_app, name="timer")
app.add_typer(schedule_app, name="schedule")

HttpAddress = Annotated[
    str, typer.Option("--http", metavar="HOST:PORT", envvar="DUOLOG_HTTP", help="the broker's HTTP port")
]
HTTP_ADDRESS = "127.0.0.1:9644"


def main(arguments: list[str] | None = None) -> NoReturn:
    """Run the command line; everything that a user can cause ends in one line on standard error."""
    arguments = sys.argv[1:] if arguments is None else arguments
    try:
        status = app(arguments or ["--help"], prog_name="duolog", standalone_mode=False)
    except typer.TyperException as error:
        _say(error.format_message())
        status = error.exit_code
    except typer.Abort:
        _say("interrupted")
        status = REFUSED
    sys.exit(status)


def _say(message: str) -> None:
    typer.echo(f"duolog: {' '.join(message.split())}", err=True)


class Refused(typer.TyperException):
    """A state of affairs is in the way."""

    exit_code = REFUSED


class BadOption(typer.TyperException):
    """A setting or option that cannot be."""

    exit_code = BAD_OPTION


# -- Serving


@app.command()
def serve(
    config: Annotated[Path | None, typer.Option(metavar="FILE", help="settings, a TOML file")] = None,
    data: Annotated[str | None, typer.Option(metavar="DIR", help="data directory [duolog-data]")] = None,
    host: Annotated[str | None, typer.Option(metavar="HOST", help="address to listen on [127.0.0.1]")] = None,
    advertise: Annotated[str | None, typer.Option(metavar="HOST", help="host that clients are told")] = None,
    kafka_port: Annotated[str | None, typer.Option(metavar="PORT", help="0: any free one [9092]")] = None,
    rocketmq_port: Annotated[str | None, typer.Option(metavar="PORT", help="[10911]")] = None,
    namesrv_port: Annotated[str | None, typer.Option(metavar="PORT", help="[9876]")] = None,
    http_port: Annotated[str | None, typer.Option(metavar="PORT", help="[9644]")] = None,
    settings: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="any setting by its dotted name")
    ] = None,
) -> int:
    """Run the broker in the foreground; `duolog settings` lists what can be set."""
    from bridge.config import ConfigError, load, parse_override

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: sys.exit(0))  # Until the broker takes them: nothing is open yet.
    signal.signal(signal.SIGHUP, signal.SIG_IGN)  # Until the broker reloads its settings by it.
    flags = {
        "store.directory": data,
        "server.host": host,
        "server.advertise": advertise,
        "kafka.port": kafka_port,
        "rocketmq.port": rocketmq_port,
        "rocketmq.namesrv_port": namesrv_port,
        "http.port": http_port,
    }
    try:
        overrides = dict(parse_override(text) for text in settings or ())
    except ConfigError as error:
        raise BadOption(str(error)) from error
    overrides |= {key: value for key, value in flags.items() if value is not None}

    # kio imports hypothesis wherever it is installed: 60 ms and 9 MB that no broker needs.
    sys.modules.setdefault("hypothesis", None)  # type: ignore[arg-type]

    from bridge.broker import serve as serve_until_stopped
    from bridge.server import StartError

    try:
        return serve_until_stopped(partial(load, config, overrides))
    except ConfigError as error:
        raise BadOption(str(error)) from error
    except StartError as error:
        raise Refused(str(error)) from error


@app.command()
def settings() -> None:
    """List all settings with their defaults and what Kafka and RocketMQ call them."""
    from bridge.config import settings as all_settings

    show_table(
        ("setting", "default", "what it is", "Kafka", "RocketMQ"),
        [[row.name, row.default, row.doc, row.kafka, row.rocketmq] for row in all_settings()],
    )


@app.command()
def version() -> None:
    """Print the version."""
    from importlib.metadata import version as installed_version

    typer.echo(f"duolog {installed_version('duolog')}")


# -- Looking at a running broker


@app.command()
def status(http: HttpAddress = HTTP_ADDRESS) -> None:
    """Show the broker, its log and what it costs."""
    show_tree(_api(http).get("/api/status"))


@topic_app.command("list")
def topic_list(http: HttpAddress = HTTP_ADDRESS) -> None:
    """List topics."""
    rows = _api(http).get("/api/topics")
    show_table(
        ("topic", "queues", "records", "bytes", "kafka", "rocketmq"),
        [
            [row["name"], row["queues"], row["records"], row["size_bytes"], row["kafka_name"], row["rocketmq_name"]]
            for row in sorted(rows, key=lambda row: row["name"])
        ],
    )


@topic_app.command("describe")
def topic_describe(name: str, http: HttpAddress = HTTP_ADDRESS) -> None:
    """Show a topic's queues, offsets and configs."""
    found = _api(http).get("/api/topics", name)
    queues = found.pop("queues")
    show_tree(found)
    show_table(
        ("queue", "start", "end", "bytes", "epoch"),
        [[queue["queue"], queue["start"], queue["end"], queue["size_bytes"], queue["epoch"]] for queue in queues],
    )


@topic_app.command("create")
def topic_create(
    name: str,
    queues: Annotated[int | None, typer.Option(help="number of queues; else the broker's `topics.queues`")] = None,
    configs: Annotated[list[str] | None, typer.Option("--config", metavar="KEY=VALUE", help="a topic config")] = None,
    http: HttpAddress = HTTP_ADDRESS,
) -> None:
    """Create a topic."""
    body: dict[str, Any] = {"name": name, "configs": dict(_pairs(configs or ()))}
    if queues is not None:
        body["queues"] = queues
    made = _api(http).post("/api/topics", body)
    typer.echo(f"created {made['name']} with {len(made['queues'])} queues")


def _pairs(configs: Sequence[str]) -> list[tuple[str, str]]:
    pairs = [text.partition("=") for text in configs]
    for key, equals, _ in pairs:
        if not equals:
            raise BadOption(f"--config {key}: expected KEY=VALUE")
    return [(key, value) for key, _, value in pairs]


@topic_app.command("configure")
def topic_configure(
    name: str,
    configs: Annotated[
        list[str], typer.Option("--config", metavar="KEY=VALUE", help="a topic config; KEY=: its default")
    ],
    http: HttpAddress = HTTP_ADDRESS,
) -> None:
    """Change configs of a topic; those that are not named stay."""
    changes = {key: value or None for key, value in _pairs(configs)}
    found = _api(http).patch("/api/topics", name, body={"configs": changes})
    typer.echo(f"{found['name']}: " + (" ".join(f"{key}={value}" for key, value in found["configs"].items()) or "-"))


@topic_app.command("delete")
def topic_delete(name: str, http: HttpAddress = HTTP_ADDRESS) -> None:
    """Delete a topic with all its messages and its groups' positions in it."""
    typer.echo(f"deleted {_api(http).delete('/api/topics', name)['deleted']}")


@group_app.command("list")
def group_list(http: HttpAddress = HTTP_ADDRESS) -> None:
    """List groups, the family in which each is active, and how far behind it is."""
    show_table(
        ("group", "active in", "members", "lag", "no position yet", "topics"),
        [
            [
                row["name"],
                row["active"] or "-",
                row["members"],
                row["lag"],
                row["lag_without_position"],
                ", ".join(row["topics"]),
            ]
            for row in _api(http).get("/api/groups")
        ],
    )


@group_app.command("describe")
def group_describe(name: str, http: HttpAddress = HTTP_ADDRESS) -> None:
    """Show a group's positions."""
    found = _api(http).get("/api/groups", name)
    positions = found.pop("positions")
    show_tree(found)
    show_table(
        ("topic", "queue", "position", "start", "end", "lag"),
        [
            [
                row["topic"],
                row["queue"],
                "none yet" if row["position"] is None else row["position"],
                row["start"],
                row["end"],
                row["lag"],
            ]
            for row in positions
        ],
    )


@group_app.command("redrive")
def group_redrive(
    name: str,
    to: Annotated[
        str | None, typer.Option(metavar="retry|topic", help="its retry topic, or the topics that they came from")
    ] = None,
    http: HttpAddress = HTTP_ADDRESS,
) -> None:
    """Give a group its dead letters again."""
    done = _api(http).act("/api/groups", name, "redrive", body={"to": to})
    typer.echo(f"redrove {done['redriven']} dead letters of {done['group']}")


@poison_app.command("list")
def poison_list(http: HttpAddress = HTTP_ADDRESS) -> None:
    """List stored records that could not be processed, and were set aside."""
    from bridge.cli_timers import local_time

    rows = _api(http).get("/api/poison")["records"]
    show_table(
        ("kind", "place", "error", "at"),
        [
            [row["kind"], row["place"], row["error"], "start" if row["at_ms"] is None else local_time(row["at_ms"])]
            for row in rows
        ],
    )


@txn_app.command("list")
def txn_list(http: HttpAddress = HTTP_ADDRESS) -> None:
    """List Kafka's transactional ids and RocketMQ's open half messages: state, age, and what they wait for."""
    columns = ("kind", "id", "state", "age_ms", "producer", "checks", "waits_for")
    show_table(
        tuple(column.replace("_", " ") for column in columns),
        [[_shown(row, column) for column in columns] for row in _api(http).get("/api/transactions")],
    )


def _shown(row: dict[str, Any], column: str) -> Any:
    """Give a cell; the age of what is not open is -1, and is not shown."""
    return None if column == "age_ms" and row[column] < 0 else row[column]


@txn_app.command("describe")
def txn_describe(transactional_id: str, http: HttpAddress = HTTP_ADDRESS) -> None:
    """Show the transaction of a Kafka producer: the queues it wrote to, the groups whose positions it holds.

    Of its half message, named TOPIC/ID as in the list, show the row of the list.
    """
    found = _api(http).get("/api/transactions", transactional_id)
    queues = found.pop("queues", None)
    show_tree(found)
    if queues is None:
        return
    columns = ("topic", "queue", "first_offset", "stable_end")
    show_table(
        tuple(column.replace("_", " ") for column in columns),
        [[row[column] for column in columns] for row in queues],
    )


@txn_app.command("abort")
def txn_abort(transactional_id: str, http: HttpAddress = HTTP_ADDRESS) -> None:
    """Abort the open transaction of a Kafka producer, which is fenced, so that readers go on."""
    typer.echo(f"aborted {_api(http).delete('/api/transactions', transactional_id)['aborted']}")


HalfTopic = Annotated[str, typer.Argument(metavar="TOPIC", help="or TOPIC/ID, as `txn list` shows it")]
HalfId = Annotated[str | None, typer.Argument(metavar="[ID]", help="the producer's own")]


@txn_app.command("commit")
def commit_half(topic: HalfTopic, id: HalfId = None, http: HttpAddress = HTTP_ADDRESS) -> None:
    """Commit the half message that a Kafka producer gave this id."""
    _decide(http, topic, id, "commit")


@txn_app.command("rollback")
def roll_back_half(topic: HalfTopic, id: HalfId = None, http: HttpAddress = HTTP_ADDRESS) -> None:
    """Roll back the half message that a Kafka producer gave this id."""
    _decide(http, topic, id, "rollback")


def _decide(http: str, topic: str, id: str | None, verdict: str) -> None:
    from urllib.parse import quote

    if id is None:
        topic, _, id = topic.partition("/")  # No topic has a slash in its name.
    if not id:
        raise BadOption(f"expected TOPIC ID or TOPIC/ID, got {topic!r} alone")
    done = _api(http).post(f"/api/transactions/{quote(topic, safe='')}/{quote(id, safe='')}", {"verdict": verdict})
    typer.echo(f"{done['topic']} {done['id']}: {done['state']}")


@app.command()
def demo(http: HttpAddress = HTTP_ADDRESS) -> int:
    """Show one message's way from a RocketMQ producer to a Kafka consumer and back, against the running broker."""
    from bridge.demo import run

    return run(_api(http))


@pipeline_app.command(
    "run",
    context_settings={"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": []},
    epilog="Example: duolog pipeline run archive ./lake --topics orders",
)
def pipeline_run(context: typer.Context) -> NoReturn:
    """Run a job on a Spark of its own: archive, reconcile, replay, ...; `duolog pipeline run JOB --help` says more."""
    if find_spec("pyspark") is None:
        how = "pip install '.[spark]' in Duolog's directory"
        raise Refused(f"the pipeline ({', '.join(JOBS)}) needs PySpark: {how}")
    # Another program, since Spark is a client like any. The variable keeps its workers from importing whatever has the
    # name of one of our packages in the directory that the user happens to be in; -P does so for itself.
    environment = os.environ | {"PYTHONSAFEPATH": "1"}
    os.execve(sys.executable, [sys.executable, "-P", "-m", "spark", *context.args], environment)


# -- Showing


def _api(http: str) -> "Api":
    from bridge.http_client import Api

    return Api(http)


def show_table(heads: tuple[str, ...], rows: list[list[Any]]) -> None:
    from rich import box
    from rich.console import Console
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for at, head in enumerate(heads):
        numeric = bool(rows) and all(isinstance(row[at], int) for row in rows)
        table.add_column(head, justify="right" if numeric else "left", overflow="fold")
    for row in rows:
        table.add_row(*("" if cell is None else str(cell) for cell in row))
    # Into a pipe the table is as wide as it needs to be, so that a script finds one row a line.
    Console(width=None if sys.stdout.isatty() else PIPE_WIDTH).print(table)


def show_tree(found: dict[str, Any], indent: str = "") -> None:
    for key, value in found.items():
        if isinstance(value, dict):
            typer.echo(f"{indent}{key}:")
            show_tree(value, indent + "  ")
        else:
            shown = ", ".join(map(str, value)) if isinstance(value, list) else value
            typer.echo(f"{indent}{key}: {shown}")
