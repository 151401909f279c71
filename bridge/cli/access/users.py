"""`duolog user`: the users of a broker. With --data they are changed in a data directory that no broker uses."""

import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from duolog.bridge.cli.common import (
    AsJson,
    BadOption,
    ConfigFile,
    Http,
    Refused,
    new_app,
    reading,
    show_done,
    show_json,
    show_table,
    writing,
)

if TYPE_CHECKING:
    from duolog.bridge.core import Core

user_app = new_app("Users, who log in to Kafka, RocketMQ and HTTP with one name and one password.")

OfflineData = Annotated[
    str | None,
    typer.Option("--data", metavar="DIR", help="change this data directory, which no broker uses"),
]
OfflineShared = Annotated[
    str | None,
    typer.Option(
        "--shared", metavar="URL", help="with --data: change the log in this object store, which no broker owns"
    ),
]
FromInput = Annotated[
    bool, typer.Option("--password-stdin", help="read the password from standard input, which must be a line")
]
Groups = Annotated[list[str] | None, typer.Option("--in-group", metavar="GROUP", help="a group of users; repeatable")]


@contextmanager
def offline(data: str, config: Any, shared: str | None = None) -> Iterator["Core"]:
    """Open a data directory, or make one and say so: its name may be misspelled. Raises BadOption and Refused.

    With `shared`, or if the settings have `shared.url`, what is changed is the log in the object store.
    """
    from duolog.bridge.config import ConfigError, load
    from duolog.bridge.net.addresses import StartError
    from duolog.bridge.offline import open_offline
    from duolog.bridge.security.acls import TooManyRules
    from duolog.bridge.security.users import UserError

    sys.modules.setdefault("hypothesis", None)  # type: ignore[arg-type]  # As `duolog serve` does.
    if not Path(data).exists():
        typer.echo(f"duolog: --data {data} did not exist: a new data directory was made", err=True)
    try:
        given = {"store.directory": data} | ({"shared.url": shared} if shared else {})
        with open_offline(load(config, given, os.environ)) as core:
            yield core
    except ConfigError as error:
        raise BadOption(str(error)) from error
    except (StartError, UserError, TooManyRules) as error:
        raise Refused(str(error)) from error


def add_offline(core: "Core", name: str, password: str, *, is_super: bool, groups: Sequence[str] = ()) -> None:
    """Add a user to an open data directory. Raises UserError."""
    from duolog.bridge.security.user_changes import hashed, hashing, set_user

    now_ms = core.clock.now_ms()
    made = hashed(hashing(core.security, name, password, now_ms, is_super=is_super, groups=groups)())
    set_user(core.security, None, made, now_ms, is_new=True)


def password_of(is_from_input: bool) -> str:
    """Read a password: from standard input, or twice from the terminal. Raises BadOption."""
    if is_from_input:
        password = sys.stdin.readline().rstrip("\r\n")
    elif sys.stdin.isatty():
        password = typer.prompt("Password", hide_input=True, confirmation_prompt=True, err=True)
    else:
        raise BadOption("the password: expected --password-stdin, or a terminal")
    if not password:
        raise BadOption("the password is empty")
    return password


@user_app.command("add", epilog="Example: echo secret | duolog user add alice --super --password-stdin --data DIR")
def user_add(
    name: str,
    is_super: Annotated[bool, typer.Option("--super", help="the user may do everything")] = False,
    is_from_input: FromInput = False,
    groups: Groups = None,
    data: OfflineData = None,
    shared: OfflineShared = None,
    config: ConfigFile = None,
    http: Http = None,
    as_json: AsJson = False,
) -> None:
    """Add a user."""
    if shared is not None and data is None:
        raise BadOption("--shared: expected --data, too, with the directory of a copy, which may be new")
    password = password_of(is_from_input)
    if data is None:
        body = {"name": name, "password": password, "is_super": is_super, "groups": groups or []}
        writing(http).post("/api/users", body)
    else:
        with offline(data, config, shared) as core:
            add_offline(core, name, password, is_super=is_super, groups=groups or ())
    show_done({"added": name}, f"added {name}", as_json=as_json)


@user_app.command("list")
def user_list(data: OfflineData = None, config: ConfigFile = None, http: Http = None, as_json: AsJson = False) -> None:
    """List the users."""
    if data is None:
        rows = reading(http).get("/api/users")
    else:
        with offline(data, config) as core:
            rows = [user.view for user in core.security.users.all()]
    if as_json:
        show_json(rows)
        return
    show_table(
        ("user", "super", "groups"),
        [[row["name"], "yes" if row["is_super"] else "", " ".join(row["groups"])] for row in rows],
    )


@user_app.command("password")
def user_password(
    name: str,
    is_from_input: FromInput = False,
    data: OfflineData = None,
    config: ConfigFile = None,
    http: Http = None,
    as_json: AsJson = False,
) -> None:
    """Change the password of a user, which ends the user's sessions."""
    password = password_of(is_from_input)
    if data is None:
        writing(http).patch("/api/users", name, body={"password": password})
    else:
        from duolog.bridge.security.user_changes import change_user, hashed, hashing

        with offline(data, config) as core:
            now_ms = core.clock.now_ms()
            made = hashed(hashing(core.security, name, password, now_ms)())
            change_user(core.security, None, name, now_ms, made=made)
    show_done({"changed": name}, f"changed the password of {name}", as_json=as_json)


@user_app.command("remove")
def user_remove(
    name: str, data: OfflineData = None, config: ConfigFile = None, http: Http = None, as_json: AsJson = False
) -> None:
    """Remove a user, which ends the user's sessions. Rules that name the user stay."""
    if data is None:
        writing(http).delete("/api/users", name)
    else:
        with offline(data, config) as core:
            core.security.users.remove(name, core.clock.now_ms())
    show_done({"removed": name}, f"removed {name}", as_json=as_json)
