"""All commands of the program `duolog`.

Each group of commands has a module in `bridge/cli/`; single commands are here.
"""

import os
import sys
import time
from importlib.util import find_spec
from typing import Annotated, Final, NoReturn

import typer

from duolog.bridge.cli import serving
from duolog.bridge.cli.access.acls import acl_app
from duolog.bridge.cli.access.quotas import quota_app
from duolog.bridge.cli.access.users import user_app
from duolog.bridge.cli.common import (
    AsJson,
    ConfigFile,
    DataDirectory,
    Http,
    Overrides,
    Refused,
    given,
    length_ms,
    local_time,
    new_app,
    reading,
    show_done,
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
from duolog.bridge.cli.data_directory.move import move
from duolog.bridge.cli.groups import group_app
from duolog.bridge.cli.http_client import HttpApiError
from duolog.bridge.cli.messages import consume, message_app, produce
from duolog.bridge.cli.observation import clients, history, lines, warnings
from duolog.bridge.cli.timers import schedule_app, timer_app
from duolog.bridge.cli.topics import topic_app
from duolog.bridge.cli.transactions import txn_app

DRAIN_POLL_S: Final = 0.2
DRAIN_STOP_S: Final = 15.0  # The time for the stop itself; `server.stop_ms` is at most 4 s.
# The names of the jobs of `spark`. Importing its list of them would need PySpark.
JOBS = ("archive", "reconcile", "replay", "lateness", "transactions", "schedule")

poison_app = new_app("Stored records that could not be processed.")
pipeline_app = new_app("Spark jobs on the broker's topics.")


def new_program() -> typer.Typer:
    """Return the program with all commands and groups of commands, in the order of its help."""
    app = typer.Typer(
        help="A message broker: RocketMQ clients, Kafka clients and Spark share the same topics over one commitlog.",
        epilog="--http, --url and --json may also stand before the command. Exit status: 0 done, 1 not done, "
        "2 bad option.",
        pretty_exceptions_enable=False,
        rich_markup_mode=None,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    app.callback()(duolog)
    for command in (
        serve,
        settings,
        version,
        status,
        warnings,
        history,
        clients,
        lines,
        produce,
        consume,
        backup,
        restore,
        move,
        doctor,
        drain,
        demo,
    ):
        app.command()(command)
    for group, name in (
        (topic_app, "topic"),
        (message_app, "message"),
        (group_app, "group"),
        (timer_app, "timer"),
        (schedule_app, "schedule"),
        (txn_app, "txn"),
        (log_app, "log"),
        (poison_app, "poison"),
        (dashboard_app, "dashboard"),
        (config_app, "config"),
        (user_app, "user"),
        (acl_app, "acl"),
        (quota_app, "quota"),
        (pipeline_app, "pipeline"),
    ):
        app.add_typer(group, name=name)
    return app


# -- Options before the command


def _version(is_asked: bool) -> None:
    if is_asked:
        version()
        raise typer.Exit


def duolog(
    is_version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="print the version and end")
    ] = False,
) -> None:
    pass


# -- Commands that need no broker


def serve(
    config: ConfigFile = None,
    data: DataDirectory = None,
    shared: Annotated[
        str | None, typer.Option(metavar="URL", help="object store that has the log: s3://bucket/prefix")
    ] = None,
    host: Annotated[str | None, typer.Option(metavar="HOST", help="address to listen on [127.0.0.1]")] = None,
    advertise: Annotated[str | None, typer.Option(metavar="HOST", help="host name that clients connect to")] = None,
    kafka_port: Annotated[str | None, typer.Option(metavar="PORT", help="0: any free one [9092]")] = None,
    rocketmq_port: Annotated[str | None, typer.Option(metavar="PORT", help="[10911]")] = None,
    namesrv_port: Annotated[str | None, typer.Option(metavar="PORT", help="[9876]")] = None,
    http_port: Annotated[str | None, typer.Option(metavar="PORT", help="[9644]")] = None,
    settings: Overrides = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="the ready line and the lines of the log as JSON, as log.format=json")
    ] = False,
) -> int:
    """Run the broker in the foreground; `duolog settings` lists what can be set."""
    by_option = given(
        **{
            "--data": data,
            "--shared": shared,
            "--host": host,
            "--advertise": advertise,
            "--kafka-port": kafka_port,
            "--rocketmq-port": rocketmq_port,
            "--namesrv-port": namesrv_port,
            "--http-port": http_port,
        }
    )
    return serving.serve(serving.ServeOptions(config, by_option, settings or (), as_json))


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


def version(as_json: AsJson = False) -> None:
    """Print the version."""
    from importlib.metadata import version as installed_version

    installed = installed_version("duolog")
    show_done({"version": installed}, f"duolog {installed}", as_json=as_json)


# -- Commands for a running broker


def status(http: Http = None, as_json: AsJson = False) -> None:
    """Show the broker's version, ports, log positions, last recovery and memory."""
    found = reading(http).get("/api/status")
    if as_json:
        show_json(found)
    else:
        show_tree(found)


def drain(
    wait: Annotated[str, typer.Option(metavar="TIME", help="the longest time for clients to leave")] = "10s",
    http: Http = None,
    as_json: AsJson = False,
) -> None:
    """Accept no new connections, wait until all clients have left or the time is over, then stop the broker.

    Requests on open connections are served until the stop. /readyz answers 503 at once, for load balancers.
    """
    wait_ms = length_ms("--wait", wait)
    api = writing(http)
    begun = api.post("/api/drain", {"wait_ms": wait_ms})
    if not as_json:
        typer.echo(f"draining, open connections: {begun['connections']}")
    for _ in range(int((wait_ms / 1000 + DRAIN_STOP_S) / DRAIN_POLL_S)):
        try:
            api.get("/api/status")
        except HttpApiError:
            show_done(begun | {"stopped": True}, "stopped", as_json=as_json)
            return
        time.sleep(DRAIN_POLL_S)
    raise Refused(f"{api.address} still answers; the broker's log says what it waits for")


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
    as_json: AsJson = False,
) -> None:
    """Acknowledge records that were set aside: `list` shows them with --all only, and no start reports them again."""
    done = writing(http).act("/api/poison", "acknowledge", body={"kind": kind, "place": place})
    show_done(done, f"acknowledged {done['acknowledged']} records", as_json=as_json)


def demo(http: Http = None, as_json: AsJson = False) -> int:
    """Send one message from a RocketMQ producer to a Kafka consumer, and one back, on the running broker."""
    from duolog.bridge.cli.demo import run

    return run(writing(http), as_json=as_json)


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
