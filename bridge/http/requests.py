"""The contents of HTTP requests: JSON bodies, query parameters, and messages in JSON.

Invalid input raises HTTPBadRequest with the name, the value and what was expected; an unknown topic HTTPNotFound.
"""

import base64
import random
import zlib
from binascii import Error as Base64Error
from typing import Final, TypeVar

import msgspec
from aiohttp import web

from duolog.bridge.data import half_frames, unknown_headers
from duolog.bridge.data.delayed.delay_headers import TIMER_NAMES, TIMER_REPLACE
from duolog.bridge.http.answers import to_json
from duolog.bridge.http.context import HttpContext
from duolog.bridge.state.topic_table import Topic
from duolog.delay.recurring import AMQ_NAMES
from duolog.protocol.kafka.record_batch import Record

Form = TypeVar("Form")
Text = str | int | float | bool  # Where a string is expected: 5000 means "5000", true means "true".

NOT_BY_HEADER: Final = (*TIMER_NAMES, *AMQ_NAMES, TIMER_REPLACE, half_frames.ID)
TAG: Final = "TAGS"  # The property of RocketMQ, and the header of Kafka that becomes it (`protocol/convert/`).


class MessageForm(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """A message and its queue. Bytes that are not UTF-8 are sent in base64. A message without a value has null."""

    queue: int | None = None  # None: the queue of the key, or a random queue if there is no key.
    key: Text | None = None
    key_base64: str | None = None
    value: Text | None = None
    value_base64: str | None = None
    headers: dict[str, Text] = {}
    tag: Text | None = None


class TopicMessageForm(MessageForm, forbid_unknown_fields=True, kw_only=True):
    """A message with its topic."""

    topic: str


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


def topic_named(context: HttpContext, name: str) -> Topic:
    """Return the topic of this name. Raises HTTPNotFound."""
    topic: Topic | None = context.topics.get(name)
    if topic is None:
        shown = name[:300]
        raise web.HTTPNotFound(
            text=f"there is no topic {shown}; `duolog topic list` shows all, `duolog topic create {shown}` makes it"
        )
    return topic


# -- Messages


def record_of(topic: Topic, wanted: MessageForm, now_ms: int, spread_by: str = "") -> tuple[int, Record]:
    """Return queue id and record. Without queue and key, the hash of `spread_by` or else chance selects the queue."""
    for name in NOT_BY_HEADER:
        if name in wanted.headers:
            raise web.HTTPBadRequest(
                text=f"header {name}: not allowed over HTTP; use at_ms or delay_ms (command: --at, --in), "
                "or add a timer or a schedule"
            )
    if topic.settings.unknown_headers != unknown_headers.IGNORE:
        for name in unknown_headers.unknown(wanted.headers):
            raise web.HTTPBadRequest(text=unknown_headers.refusal_of(name))
    if wanted.tag is not None and TAG in wanted.headers:
        raise web.HTTPBadRequest(text=f"expected either tag or the header {TAG}")
    key = _bytes_of("key", wanted.key, wanted.key_base64)
    value = _bytes_of("value", wanted.value, wanted.value_base64)
    headers = [(name, text_of(value).encode()) for name, value in wanted.headers.items()]
    if wanted.tag is not None:
        headers.append((TAG, text_of(wanted.tag).encode()))
    return _queue_id(topic, wanted.queue, key or spread_by.encode()), Record(0, now_ms, key, value, headers)


def _queue_id(topic: Topic, wanted: int | None, key: bytes) -> int:
    if wanted is None:
        # The queue that librdkafka's default partitioner selects.
        return zlib.crc32(key) % topic.queue_count if key else random.randrange(topic.queue_count)
    if not 0 <= wanted < topic.queue_count:
        raise web.HTTPBadRequest(text=f"queue: {topic.name} has {topic.queue_count}, none is {wanted}")
    return wanted


def _bytes_of(name: str, text: Text | None, encoded: str | None) -> bytes | None:
    if text is not None and encoded is not None:
        raise web.HTTPBadRequest(text=f"expected either {name} or {name}_base64")
    if encoded is None:
        return None if text is None else text_of(text).encode()
    try:
        return base64.b64decode(encoded, validate=True)
    except (Base64Error, ValueError) as error:
        raise web.HTTPBadRequest(text=f"{name}_base64: {error}") from error


def due_ms_of(at_ms: int | None, delay_ms: int | None, now_ms: int) -> int:
    """Return the time in a request, which must have exactly one of `at_ms` and `delay_ms`. Raises HTTPBadRequest."""
    if (at_ms is None) == (delay_ms is None):
        raise web.HTTPBadRequest(text="expected either at_ms or delay_ms")
    if delay_ms is not None and delay_ms < 0:
        raise web.HTTPBadRequest(text=f"delay_ms: expected 0 or more, got {delay_ms}")
    return at_ms if at_ms is not None else now_ms + (delay_ms or 0)
