"""`duolog config`: checks a config file, shows the settings in force with their sources, and has them reloaded."""

import os
from pathlib import Path
from typing import Annotated, Any

import typer

from duolog.bridge.cli import BAD_OPTION
from duolog.bridge.cli.common import (
    AsJson,
    BadOption,
    ConfigFile,
    Http,
    Overrides,
    Search,
    new_app,
    query,
    reading,
    say,
    show_json,
    show_table,
    writing,
)
from duolog.bridge.config import ConfigError, SettingsInForce, errors_of, load_with_sources, parse_override

config_app = new_app("The settings of a config file, and of a running broker.")


@config_app.command("check", epilog="Exit status: 0 the broker would start with this file, 2 it would not.")
def config_check(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="settings, a TOML file")], as_json: AsJson = False
) -> int:
    """Check a config file, with the environment's DUOLOG_ variables; print all errors, a line each."""
    errors = errors_of(file, os.environ)
    if as_json:
        show_json({"file": str(file), "errors": errors})
    elif errors:
        for error in errors:
            say(error)
    else:
        typer.echo(f"{file}: no errors")
    return BAD_OPTION if errors else 0


@config_app.command("show", epilog="Example: duolog config show --config duolog.toml --set store.flush=async")
def config_show(
    config: ConfigFile = None,
    overrides: Overrides = None,
    search: Search = None,
    http: Annotated[
        str | None,
        typer.Option("--http", "--url", metavar="HOST:PORT", help="the settings of the broker that runs there"),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Show the value and the source of each setting: those that `serve` would have, or those of a running broker.

    A source is default, file, environment, command line, or run time (`duolog config log-level`). Secret values are
    hidden.
    """
    if http is not None and (config is not None or overrides):
        raise typer.BadParameter("expected either --http, or --config and --set")
    if http is not None:
        rows = reading(http).get(f"/api/settings?{query(search=search)}")
    else:
        rows = [row for row in _would_be(config, overrides or []) if (search or "").lower() in row["name"]]
    if as_json:
        show_json(rows)
        return
    show_table(
        ("setting", "value", "source"),
        [[row["name"], _shown(row["value"]), row["source"]] for row in rows],
    )


@config_app.command("reload")
def config_reload(http: Http = None, as_json: AsJson = False) -> None:
    """Let a running broker read its settings again, as SIGHUP does; print what has changed and what needs a restart."""
    found = writing(http).act("/api/settings/reload")
    if as_json:
        show_json(found)
        return
    typer.echo(f"reloaded: {', '.join(found['reloaded']) or 'nothing'}")
    if found["need_restart"]:
        typer.echo(f"need a restart: {', '.join(found['need_restart'])}")


@config_app.command("log-level", epilog="Example: duolog config log-level store debug")
def config_log_level(
    component: Annotated[str, typer.Argument(metavar="COMPONENT", help="store, kafka, ..., or all")],
    level: Annotated[str, typer.Argument(metavar="LEVEL", help="debug, info, warning, error, or default")],
    http: Http = None,
    as_json: AsJson = False,
) -> None:
    """Change the least severity of a component's log lines on a running broker, whatever the source of its settings is.

    `all` stands for the components that have no level of their own; `default` takes its own from a component. The
    change ends with a restart, or when the settings are read again.
    """
    body = {"component": None if component == "all" else component, "level": None if level == "default" else level}
    found = writing(http).act("/api/log/levels", body=body)
    if as_json:
        show_json(found)
        return
    show_table(("component", "level"), [["all others", found["level"]], *map(list, sorted(found["levels"].items()))])


def _would_be(config: Path | None, overrides: list[str]) -> list[dict[str, Any]]:
    try:
        loaded = load_with_sources(config, dict(map(parse_override, overrides)), os.environ)
    except ConfigError as error:
        raise BadOption(str(error)) from error
    return [row._asdict() for row in SettingsInForce(loaded.options, loaded.sources).rows()]


def _shown(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
