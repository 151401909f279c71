"""The same request as a command: `duolog ...` and curl, quoted for a shell."""

import shlex
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple
from urllib.parse import urlencode

from duolog.bridge.http.answers import to_json

HTTP_ADDRESS: Final = "127.0.0.1:9644"  # The address that commands use by default.


class Commands(NamedTuple):
    """What a person may paste in a shell; `duolog` is empty if only the HTTP API can do it."""

    duolog: str
    curl: str


def duolog(*words: object) -> tuple[str, ...]:
    """Return the words of a command; arguments that are None or empty tuples are left out."""
    return ("duolog", *(str(word) for word in words if word is not None))


def option(name: str, value: object) -> tuple[str, ...]:
    """Return an option with its value; nothing if the value is None. True stands for the option alone."""
    if value is None or value is False:
        return ()
    return (name,) if value is True else (name, str(value))


def options(name: str, values: Sequence[object]) -> tuple[str, ...]:
    """Return an option that is repeated for each value."""
    return tuple(word for value in values for word in option(name, value))


def commands(
    words: Sequence[str], origin: str, method: str, path: str, query: Mapping[str, str], body: object = None
) -> Commands:
    """Return both commands; `origin` is the address of the HTTP port, as http://HOST:PORT."""
    target = origin + path + (f"?{urlencode(query)}" if query else "")
    curl = ["curl", "-s"]
    if method not in ("GET", "POST") or (method == "POST" and body is None):
        curl += ["-X", method]
    if body is not None:
        curl += ["--json", to_json(body).decode()]
    elif method in ("POST", "PATCH"):
        curl += ["-H", "Content-Type: application/json"]
    address = origin.partition("://")[2]
    here = () if not words or address == HTTP_ADDRESS or "--http" in words else ("--http", address)
    return Commands(shlex.join([*words, *here]), shlex.join([*curl, target]))
