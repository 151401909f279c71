"""The request of an action, with the command that does the same."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple


class Planned(NamedTuple):
    """A request of the API: `path` is encoded; `words` are the same as a `duolog` command; `done` says what is done."""

    method: str
    path: str
    words: tuple[str, ...]
    done: str
    body: Any = None
    query: Mapping[str, str] = MappingProxyType({})
