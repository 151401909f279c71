"""What describes one operation of the HTTP API, and what several operations have in common."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final, NamedTuple

from duolog.bridge.http.answers import Json

INTEGER: Final = {"type": "integer", "minimum": 0}
TEXT: Final = {"type": "string"}
BOOLEAN: Final = {"type": "boolean", "default": False}


class Query(NamedTuple):
    """One parameter of the query string."""

    name: str
    description: str
    schema: Json = INTEGER
    is_required: bool = False


class ApiOperation(NamedTuple):
    """The description of one method of one path. If `answer` is None, the answer is plain text."""

    summary: str
    answer: Any = None
    description: str = ""
    body: Any = None  # A tuple means: one of these types.
    is_body_optional: bool = False
    queries: tuple[Query, ...] = ()
    status: int = 200
    statuses: Mapping[int, str] = MappingProxyType({})
    headers: tuple[Query, ...] = ()


def limit_of(highest: int) -> Query:
    return Query("limit", "The number of rows.", {"type": "integer", "minimum": 1, "maximum": highest, "default": 100})


# The usual reasons for statuses of errors.
NO_TOPIC: Final = {404: "There is no such topic."}
NO_GROUP: Final = {404: "There is no such group."}
ABOVE_QUOTA: Final = {
    429: "The user is above a quota; `Retry-After` says for how many seconds, if the broker knows it."
}
