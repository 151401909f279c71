"""The program `duolog`: starts a broker, and has the commands for a running broker, which use its HTTP port.

Exit status: 0 success; 1 failure because of a state, such as a port in use or an unknown topic; 2 invalid option or
setting; 70 an internal error. Each group of commands has a module in `bridge/cli/`. Modules of the broker are imported
inside the commands, so that `duolog version` does not load them.
"""

import os
import signal
import sys
from functools import partial
from importlib.util import find_spec
from typing import Annotated, NoReturn

import typer

from duolog.bridge.cli.common import (
    REFUSED,
    AsJson,
    BadOption,
    ConfigFile,
    DataDirectory,
    Http,
    Overrides,
    Refused,
    local_time,
    moved_behind,
    new_app,
    reading,
    say,
    show_json,
    show_table,
    show_tree,
    writing,
)
from duolog.bridge.cli.config import config_app
from duolog.bridge.cli.dashboards import dashboard_app
from duolog.bridge.cli.data_directory.backup import backup, restore
from duolog.bridge.cli.data_directory.doctor import doctor
from duolog.bridge.cli.data_directory.log import log_app
from duolog.bridge.cli.drain import drain
from duolog.bridge.cli.groups import group_app
from duolog.bridge.cli.messages import consume, message_app, produce
from duolog.bridge.cli.timers import schedule_app, timer_app
from duolog.bridge.cli.topics import topic_app
from duolog.bridge.cli.transactions import txn_app

# The names of the jobs of `spark`. Importing its list of them would need PySpark.
JOBS = ("archive", "reconcile", "replay", "lateness", "transactions", "schedule")

app = typer.Typer(
    help="A message broker: RocketMQ clients, Kafka clients and Spark share the same topics over one commitlog.",
    epilog="--http, --url and --json may also stand before the command. Exit status: 0 done, 1 not done, 2 bad option.",
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)
poison_app = new_app("Stored records that could not be processed.")
pipeline_app = new_app("Spark jobs on the broker's topics.")
app.add_typer(topic_app, name="topic")
app.add_typer(message_app, name="message")
app.add_typer(group_app, name="group")
app.add_typer(timer_app, name="timer")
app.add_typer(schedule_app, name="schedule")
app.add_typer(txn_app, name="txn")
app.add_typer(log_app, name="log")
app.add_typer(poison_app, name="poison")
app.add_typer(dashboard_app, name="dashboard")
app.add_typer(config_app, name="config")
app.add_typer(pipeline_app, name="pipeline")


def main(arguments: list[str] | None = None) -> NoReturn:
    """Run the command line. Every error that a user can cause is one line on standard error.

    Without a command, also after the name of a group such as `topic`, the program prints the help.
    """
    arguments = moved_behind(sys.argv[1:] if arguments is None else arguments)
    if len(arguments) < 2 and {group.name for group in app.registered_groups}.issuperset(arguments):
        arguments = [*arguments, "--help"]
    try:
        status = app(arguments, prog_name="duolog", standalone_mode=False)
    except typer.TyperException as error:
        say(error.format_message())
        status = error.exit_code
    except typer.Abort:
        say("interrupted")
        status = REFUSED
    sys.exit(status)


def _version(is_asked: bool) -> None:
    if is_asked:
        version()
        raise typer.Exit


@app.callback()
def duolog(
    is_version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="print the version and end")
    ] = False,
) -> None:
    pass


# -- Serving


@app.command()
def serve(
    config: ConfigFile = None,
    data: DataDirectory = None,
    host: Annotated[str | None, typer.Option(metavar="HOST", help="address to listen on [127.0.0.1]")] = None,
    advertise: Annotated[str | None, typer.Option(metavar="HOST", help="host name that clients connect to")] = None,
    kafka_port: Annotated[str | None, typer.Option(metavar="PORT", help="0: any free one [9092]")] = None,
    rocketmq_port: Annotated[str | None, typer.Option(metavar="PORT", help="[10911]")] = None,
    namesrv_port: Annotated[str | None, typer.Option(metavar="PORT", help="[9876]")] = None,
    http_port: Annotated[str | None, typer.Option(metavar="PORT", help="[9644]")] = None,
    settings: Overrides = None,
) -> int:
    """Run the broker in the foreground; `duolog settings` lists what can be set."""
    from duolog.bridge.config import ConfigError, load_with_sources, parse_override

    for number in (signal.SIGTERM, signal.SIGINT):
        # The broker installs its own signal handlers later; until then nothing needs to be closed.
        signal.signal(number, lambda *_: sys.exit(0))
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

    from duolog.bridge.broker import serve as serve_until_stopped
    from duolog.bridge.net.addresses import StartError

    try:
        return serve_until_stopped(partial(load_with_sources, config, overrides, os.environ))
    except ConfigError as error:
        raise BadOption(str(error)) from error
    except StartError as error:
        raise Refused(str(error)) from error


@app.command()
def settings(as_json: AsJson = False) -> None:
    """List all settings with their defaults and their names in Kafka and RocketMQ."""
    from duolog.bridge.config import settings as all_settings

    rows = list(all_settings())
    if as_json:
        show_json([row._asdict() for row in rows])
        return
    show_table(
        ("setting", "default", "Kafka", "RocketMQ", "what it is"),
        [[row.name, row.default, row.kafka, row.rocketmq, row.doc] for row in rows],
    )


@app.command()
def version() -> None:
    """Print the version."""
    from importlib.metadata import version as installed_version

    typer.echo(f"duolog {installed_version('duolog')}")


# -- Commands for a running broker


@app.command()
def status(http: Http = None, as_json: AsJson = False) -> None:
    """Show the broker's version, ports, log positions, last recovery and memory."""
    found = reading(http).get("/api/status")
    if as_json:
        show_json(found)
    else:
        show_tree(found)


@poison_app.command("list")
def poison_list(
    everything: Annotated[bool, typer.Option("--all", help="also those that were acknowledged")] = False,
    http: Http = None,
    as_json: AsJson = False,
) -> None:
    """List stored records that could not be processed, and were set aside."""
    found = reading(http).get("/api/poison")
    if as_json:
        show_json(found)
        return
    show_table(
        ("kind", "place", "error", "at"),
        [
            [row["kind"], row["place"], row["error"], "start" if row["at_ms"] is None else local_time(row["at_ms"])]
            for row in found["records"]
            if everything or not row["is_acknowledged"]
        ],
    )


@poison_app.command("acknowledge", epilog="Example: duolog poison acknowledge --kind 'half message'")
def poison_acknowledge(
    kind: Annotated[str | None, typer.Option(metavar="KIND", help="only records of this kind")] = None,
    place: Annotated[str | None, typer.Option(metavar="PLACE", help="only the record at this place")] = None,
    http: Http = None,
) -> None:
    """Acknowledge records that were set aside: `list` shows them with --all only, and no start reports them again."""
    done = writing(http).act("/api/poison", "acknowledge", body={"kind": kind, "place": place})
    typer.echo(f"acknowledged {done['acknowledged']} records")


app.command()(produce)
app.command()(consume)
app.command()(backup)
app.command()(restore)
app.command()(doctor)
app.command()(drain)


@app.command()
def demo(http: Http = None) -> int:
    """Send one message from a RocketMQ producer to a Kafka consumer, and one back, on the running broker."""
    from duolog.bridge.cli.demo import run

    return run(writing(http))


@pipeline_app.command(
    "run",
    context_settings={"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": []},
    epilog="Example: duolog pipeline run archive ./lake --topics orders",
)
def pipeline_run(context: typer.Context) -> NoReturn:
    """Start Spark and run a job: archive, reconcile, replay, ...; `duolog pipeline run JOB --help` says more."""
    if find_spec("pyspark") is None:
        how = "pip install '.[spark]' in Duolog's directory"
        raise Refused(f"the pipeline ({', '.join(JOBS)}) needs PySpark: {how}")
    # Spark runs in another process, because it is a client like any other. PYTHONSAFEPATH keeps its workers from
    # importing files of the working directory that have the name of a package; -P does the same for this process.
    environment = os.environ | {"PYTHONSAFEPATH": "1"}
    os.execve(sys.executable, [sys.executable, "-P", "-m", "duolog.spark", *context.args], environment)
