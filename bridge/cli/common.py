"""What all commands share: errors, common options, the choice of the broker, tables.

Exit status: 0 success; 1 failure because of the state of the broker or system; 2 invalid option or setting. An error is
one line that says what to do.
"""

import json
import os
import re
from collections.abc import Iterable, Sequence
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any
from urllib.parse import urlencode

import typer

from duolog.bridge.cli import BAD_OPTION, REFUSED
from duolog.bridge.config import units

if TYPE_CHECKING:
    from duolog.bridge.cli.http_client import Api

HTTP_ADDRESS = "127.0.0.1:9644"
HTTP_VARIABLE = "DUOLOG_HTTP"
CELL_CHARACTERS_MAX = 60  # For keys and values of messages in a table; names are shown in full.

Http = Annotated[
    str | None,
    typer.Option(
        "--http", "--url", metavar="HOST:PORT", help=f"the broker's HTTP port [{HTTP_VARIABLE}, or {HTTP_ADDRESS}]"
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="JSON instead of a table")]
Execute = Annotated[bool, typer.Option("--execute", "--yes", help="make the change; by default it is only shown")]
Search = Annotated[str | None, typer.Option(metavar="TEXT", help="only those whose name contains this text")]
Key = Annotated[str | None, typer.Option(metavar="KEY", help="the message's key")]
Queue = Annotated[
    int | None, typer.Option(metavar="N", help="the queue; by default the queue of the key, or any queue")
]
Headers = Annotated[list[str] | None, typer.Option("--header", metavar="NAME=VALUE", help="a header; repeatable")]
Delay = Annotated[str | None, typer.Option("--in", metavar="TIME", help="length of time from now, like 90s")]
At = Annotated[str | None, typer.Option(metavar="MOMENT", help="moment, like 2030-01-31T08:00:00+01:00")]
ConfigFile = Annotated[Path | None, typer.Option(metavar="FILE", help="settings, a TOML file")]
DataDirectory = Annotated[str | None, typer.Option(metavar="DIR", help="data directory [duolog-data]")]
Overrides = Annotated[
    list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="any setting by its dotted name")
]


class Refused(typer.TyperException):
    """The command cannot be done in the present state; exit status 1."""

    exit_code = REFUSED


class BadOption(typer.TyperException):
    """An option or setting is invalid; exit status 2."""

    exit_code = BAD_OPTION


def new_app(help_text: str) -> typer.Typer:
    """Create a group of commands."""
    return typer.Typer(help=help_text, rich_markup_mode=None, no_args_is_help=False)


def say(message: str) -> None:
    """Write a line for people to standard error; standard output is for scripts."""
    typer.echo(f"duolog: {' '.join(message.split())}", err=True)


# -- The broker


def moved_behind(arguments: Sequence[str]) -> list[str]:
    """Move global options from before the command to after it, where each command parses them."""
    rest, moved = list(arguments), list[str]()
    at = words = 0
    while at < len(rest) and words < 2 and rest[at] != "--":
        name, equals, _ = rest[at].partition("=")
        if name == "--json" or (name in ("--http", "--url") and equals):
            moved.append(rest.pop(at))
        elif name in ("--http", "--url"):
            moved += rest[at : at + 2]
            del rest[at : at + 2]
        elif rest[at].startswith("-"):
            break
        else:
            words, at = words + 1, at + 1
    end = rest.index("--") if "--" in rest else len(rest)
    return [*rest[:end], *moved, *rest[end:]]


def reading(http: str | None) -> "Api":
    """Return the API for a command that only reads; print the broker's address unless the command line has it."""
    return _broker(http, is_said=http is None and bool(os.environ.get(HTTP_VARIABLE)))


def writing(http: str | None) -> "Api":
    """Return the API for a command that changes something; print the broker's address."""
    return _broker(http, is_said=True)


def _broker(http: str | None, *, is_said: bool) -> "Api":
    from duolog.bridge.cli.http_client import Api

    named = http or os.environ.get(HTTP_VARIABLE)
    api = Api(named or HTTP_ADDRESS)
    if is_said:
        source = "" if http else f" ({HTTP_VARIABLE})" if named else " (default; --http names another)"
        say(f"broker {api.address}{source}")
    return api


# -- Arguments


def pairs(option: str, texts: Iterable[str]) -> list[tuple[str, str]]:
    """Split the values NAME=VALUE of a repeatable option."""
    found = [text.partition("=") for text in texts]
    for name, equals, _ in found:
        if not equals:
            raise BadOption(f"{option} {name}: expected {'KEY' if option == '--config' else 'NAME'}=VALUE")
    return [(name, value) for name, _, value in found]


def content_of(value: str | None, key: str | None, queue: int | None, headers: Sequence[str] | None) -> dict[str, Any]:
    """Return the content of a message as the HTTP API expects it."""
    named: dict[str, str] = {}
    for name, text in pairs("--header", headers or ()):
        if name in named:
            raise typer.BadParameter(f"--header {name}: given twice")
        named[name] = text
    body: dict[str, Any] = {"value": value, "headers": named}
    return body | given(key=key, queue=queue)


def length_ms(option: str, text: str) -> int:
    """Return a length of time in milliseconds. Raises BadParameter."""
    found = units.length_ms(text)
    if found is None:
        raise typer.BadParameter(f"{option}: expected {units.MS_EXPECTED}, got {text!r}")
    return found


def moment_ms(option: str, moment: str | None) -> int | None:
    """Parse ISO 8601 (without an offset: local time) or milliseconds; None if the option is not given."""
    if moment is None:
        return None
    if moment.isdecimal():
        return int(moment)
    try:
        return int(datetime.fromisoformat(moment).timestamp() * 1000)
    except (ValueError, OverflowError) as error:
        raise typer.BadParameter(
            f"{option}: expected a moment like 2030-01-31T08:00:00+01:00, got {moment!r}"
        ) from error


def given(**values: Any) -> dict[str, Any]:
    """Return the arguments that are not None."""
    return {name: value for name, value in values.items() if value is not None}


def query(**values: Any) -> str:
    """Return the arguments that are not None as a query string."""
    return urlencode(given(**values))


# -- Output


def show_json(found: object) -> None:
    """Print an object as JSON."""
    typer.echo(json.dumps(found, ensure_ascii=False, indent=2))


def show_json_line(found: object) -> None:
    """Print an object as one line of JSON."""
    typer.echo(json.dumps(found, ensure_ascii=False))


def show_done(found: object, text: str, *, as_json: bool) -> None:
    """Print what a command has done: as JSON the answer of the broker, or a line of text."""
    if as_json:
        show_json(found)
    else:
        typer.echo(text)


def show_table(heads: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
    """Print a table in full width, one line for each row; cells are not shortened."""
    texts = [["" if cell is None else printable(str(cell)) for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(heads, *texts, strict=True)]
    is_number = [bool(rows) and all(isinstance(row[at], int) for row in rows) for at in range(len(heads))]
    for line in (heads, ["-" * width for width in widths], *texts):
        cells = [
            cell.rjust(width) if number else cell.ljust(width)
            for cell, width, number in zip(line, widths, is_number, strict=True)
        ]
        typer.echo("  ".join(cells).rstrip())


def show_tree(found: dict[str, Any], indent: str = "") -> None:
    """Print an object as indented lines of names and values."""
    for key, value in found.items():
        if isinstance(value, dict):
            typer.echo(f"{indent}{key}:")
            show_tree(value, indent + "  ")
        else:
            shown = ", ".join(map(str, value)) if isinstance(value, list) else value
            typer.echo(f"{indent}{key}: {shown}")


def printable(text: str) -> str:
    """Replace characters that break lines or control a terminal by escapes."""
    if text.isprintable():
        return text
    return "".join(each if each.isprintable() else each.encode("unicode_escape").decode() for each in text)


def beginning(row: dict[str, Any], name: str) -> str:
    """Return the start of a key or value of a message; bytes that are not UTF-8 are shown in base64."""
    text = row.get(name)
    if text is None:
        raw = row.get(f"{name}_base64")
        text = "" if raw is None else f"base64:{raw}"
    return shortened(text)


def shortened(text: str, characters_max: int = CELL_CHARACTERS_MAX) -> str:
    """Return a text, or its start with three dots if it has more than `characters_max` characters."""
    return text if len(text) <= characters_max else text[: characters_max - 3] + "..."


def local_time(ms: int) -> str:
    """Return a time in the local time zone, to the millisecond."""
    try:
        return datetime.fromtimestamp(ms / 1000).astimezone().isoformat(sep=" ", timespec="milliseconds")
    except (ValueError, OverflowError):
        return f"{ms} ms"


def length(ms: int) -> str:
    """Format a length of time in the greatest unit that divides it."""
    for unit in ("d", "h", "m", "s"):
        if ms and not ms % units.UNITS_MS[unit]:
            return f"{ms // units.UNITS_MS[unit]}{unit}"
    return f"{ms}ms"


def reason_of(error: Exception) -> str:
    """Return what an error says; of an error of the operating system, the file and the reason without its number."""
    if not isinstance(error, OSError) or not error.strerror:
        return str(error)
    return f"{error.filename} cannot be used: {error.strerror}" if error.filename else error.strerror


def is_number(text: str) -> bool:
    """Return whether a text has only decimal digits."""
    return re.fullmatch(r"[0-9]{1,18}", text) is not None
