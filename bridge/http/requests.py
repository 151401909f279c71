"""The contents of HTTP requests: JSON bodies, query parameters and due times.

Invalid input raises HTTPBadRequest with the name, the value and what was expected; an unknown topic HTTPNotFound.
"""

from typing import TypeVar

import msgspec
from aiohttp import web

from duolog.bridge.http.answers import to_json
from duolog.bridge.http.context import HttpContext
from duolog.bridge.state.topic_table import Topic

Form = TypeVar("Form")
Text = str | int | float | bool  # Where a string is expected: 5000 means "5000", true means "true".


class NewTime(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """A new due time: exactly one of both fields."""

    at_ms: int | None = None
    delay_ms: int | None = None


# -- Bodies and parameters


def parsed(body: bytes, form: type[Form]) -> Form:
    """Parse a JSON body. Raises HTTPBadRequest."""
    if not body:
        raise web.HTTPBadRequest(text="the body is empty; expected a JSON object")
    try:
        return msgspec.json.decode(body, type=form)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise web.HTTPBadRequest(text=str(error)) from error


def text_of(value: Text) -> str:
    """Return a string, number or boolean as text."""
    return value if isinstance(value, str) else to_json(value).decode()


def check_query(request: web.Request, names: set[str]) -> None:
    """Refuse unknown parameters: if a misspelled filter were ignored, the answer would have more than was asked for."""
    for name in request.query:
        if name not in names:
            raise web.HTTPBadRequest(text=f"{name[:60]}: expected one of {', '.join(sorted(names))}")


def required(request: web.Request, name: str) -> str:
    """Return a query parameter. Raises HTTPBadRequest if it is missing or empty."""
    value = request.query.get(name)
    if not value:
        lack = "missing" if value is None else "empty"
        raise web.HTTPBadRequest(text=f"{name}: {lack}")
    return value


def number(request: web.Request, name: str, default: int, highest: int, *, lowest: int = 0) -> int:
    """Return an integer query parameter. Raises HTTPBadRequest if it is not within its limits."""
    text = request.query.get(name)
    if text is None:
        return default
    if not (text.isascii() and text.isdecimal() and len(text) < 20 and lowest <= int(text) <= highest):
        raise web.HTTPBadRequest(text=f"{name}: expected a number from {lowest} to {highest}, got {text[:40]!r}")
    return int(text)


def boolean(request: web.Request, name: str, *, default: bool) -> bool:
    """Return a query parameter that is `true` or `false`. Raises HTTPBadRequest."""
    text = request.query.get(name)
    if text not in (None, "true", "false"):
        raise web.HTTPBadRequest(text=f"{name}: expected true or false, got {text[:40]!r}")
    return default if text is None else text == "true"


def topic_named(context: HttpContext, name: str) -> Topic:
    """Return the topic of this name. Raises HTTPNotFound."""
    topic: Topic | None = context.topics.get(name)
    if topic is None:
        shown = name[:300]
        raise web.HTTPNotFound(
            text=f"there is no topic {shown}; `duolog topic list` shows all, `duolog topic create {shown}` makes it"
        )
    return topic


def due_ms_of(at_ms: int | None, delay_ms: int | None, now_ms: int) -> int:
    """Return the time in a request, which must have exactly one of `at_ms` and `delay_ms`. Raises HTTPBadRequest."""
    if (at_ms is None) == (delay_ms is None):
        raise web.HTTPBadRequest(text="expected either at_ms or delay_ms")
    if delay_ms is not None and delay_ms < 0:
        raise web.HTTPBadRequest(text=f"delay_ms: expected 0 or more, got {delay_ms}")
    return at_ms if at_ms is not None else now_ms + (delay_ms or 0)
