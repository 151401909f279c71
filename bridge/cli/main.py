"""The program `duolog`: starts a broker, and has the commands for a running broker, which use its HTTP port.

Exit status: 0 success; 1 failure because of a state, such as a port in use or an unknown topic; 2 invalid option or
setting; 70 an internal error. `commands.py` has all other commands. `duolog serve` does not import it, because they
would take 15 ms of the broker's start, and 1.3 MB as long as it runs. Modules of the broker are imported inside the
commands, so that `duolog version` does not load them.
"""

import gc
import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache, partial
from typing import Annotated, Any, NoReturn

import typer

from duolog.bridge.cli.common import (
    REFUSED,
    BadOption,
    ConfigFile,
    DataDirectory,
    Overrides,
    Refused,
    moved_behind,
    say,
)

SYSTEM_CERTIFICATES = ("SSL_CERT_FILE", "SSL_CERT_DIR")  # The variables that name them (OpenSSL, `X509_get_default_*`).


def main(arguments: list[str] | None = None) -> NoReturn:
    """Run the command line. Every error that a user can cause is one line on standard error.

    Without a command, also after the name of a group such as `topic`, the program prints the help.
    """
    is_process = arguments is None
    arguments = moved_behind(sys.argv[1:] if arguments is None else arguments)
    app = server_program() if arguments[:1] == ["serve"] else program()
    if len(arguments) < 2 and {group.name for group in app.registered_groups}.issuperset(arguments):
        arguments = [*arguments, "--help"]
    try:
        status = command_of(app)(arguments, prog_name="duolog", standalone_mode=False)
    except typer.TyperException as error:
        say(error.format_message())
        status = error.exit_code
    except typer.Abort:
        say("interrupted")
        status = REFUSED
    if is_process and "obstore" in sys.modules:
        _end_at_once(status)
    sys.exit(status)


def _end_at_once(status: int | None) -> NoReturn:
    """End the process without the end of the interpreter, at which a thread of obstore may abort it."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status or 0)


@cache
def program() -> typer.Typer:
    """Return the program with all commands."""
    from duolog.bridge.cli import commands

    app = _new_program()
    commands.add_to(app)
    return app


@cache
def server_program() -> typer.Typer:
    """Return the program with the command `serve` alone."""
    return _new_program()


@cache
def command_of(app: typer.Typer) -> Callable[..., Any]:
    """Return what parses the arguments of a program. It is made once, also for tests that call `main` often."""
    return typer.main.get_command(app)


def _new_program() -> typer.Typer:
    app = typer.Typer(
        help="A message broker: RocketMQ clients, Kafka clients and Spark share the same topics over one commitlog.",
        epilog="--http, --url and --json may also stand before the command. Exit status: 0 done, 1 not done, "
        "2 bad option.",
        pretty_exceptions_enable=False,
        rich_markup_mode=None,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    app.callback()(duolog)
    app.command()(serve)
    return app


# -- Options before the command


def _version(is_asked: bool) -> None:
    if is_asked:
        from duolog.bridge.cli.commands import version

        version()
        raise typer.Exit


def duolog(
    is_version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="print the version and end")
    ] = False,
) -> None:
    pass


# -- Serving


@contextmanager
def _no_system_certificates() -> Iterator[None]:
    """Let OpenSSL find no certificates of the system in this block.

    aiohttp loads them twice when it is imported, for its client: a fifth of the CPU of a start, and 1.7 MB. The broker
    makes a context of its own when it calls a URL (`bridge/transactions/check_callbacks.py`).
    """
    before = {name: os.environ.get(name) for name in SYSTEM_CERTIFICATES}
    os.environ.update(dict.fromkeys(SYSTEM_CERTIFICATES, ""))
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


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
    from duolog.bridge.config import ConfigError, load_with_sources, parse_override

    for number in (signal.SIGTERM, signal.SIGINT):
        # The broker installs its own signal handlers later; until then nothing needs to be closed.
        signal.signal(number, lambda *_: sys.exit(0))
    signal.signal(signal.SIGHUP, signal.SIG_IGN)  # Until the broker reloads its settings by it.
    flags = {
        "store.directory": data,
        "shared.url": shared,
        "server.host": host,
        "server.advertise": advertise,
        "kafka.port": kafka_port,
        "rocketmq.port": rocketmq_port,
        "rocketmq.namesrv_port": namesrv_port,
        "http.port": http_port,
        "log.format": "json" if as_json else None,
    }
    try:
        overrides = dict(parse_override(text) for text in settings or ())
    except ConfigError as error:
        raise BadOption(str(error)) from error
    overrides |= {key: value for key, value in flags.items() if value is not None}

    gc.disable()  # The imports create hardly any garbage. `process.serve` enables the collector again.
    # kio imports hypothesis wherever it is installed: 60 ms and 9 MB that no broker needs.
    sys.modules.setdefault("hypothesis", None)  # type: ignore[arg-type]
    with _no_system_certificates():
        from duolog.bridge.net.addresses import StartError
        from duolog.bridge.running.process import serve as serve_until_stopped

    try:
        load = partial(load_with_sources, config, overrides, os.environ)
        return serve_until_stopped(load, is_ready_as_json=as_json)
    except ConfigError as error:
        raise BadOption(str(error)) from error
    except StartError as error:
        raise Refused(str(error)) from error
