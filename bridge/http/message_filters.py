"""The filters of GET /api/topics/{name}/messages: which messages of a queue an answer shows.

    tag=paid || sent      one of these tags, as in a subscription
    key=order-1           this key
    header=trace=7        this header with this value; header=trace: with any value
    sql=price > 10        a condition in SQL92 on headers, as RocketMQ's consumers give it; KEYS is the key

A message is shown if it matches all of them.
"""

import asyncio
from collections.abc import Callable
from typing import Final

from aiohttp import web

from duolog.protocol.kafka.record_batch import Record
from duolog.protocol.rocketmq.filters.sql92 import compile_condition
from duolog.protocol.rocketmq.messages import properties, tags
from duolog.protocol.rocketmq.messages.tags import IllegalExpression

NAMES: Final = frozenset({"tag", "key", "header", "sql"})
_SEPARATORS: Final = "\x01\x02"

Matches = Callable[[Record], bool]


async def filter_of(request: web.Request) -> Matches | None:
    """Return the filter that a request asks for; None: it asks for all messages. Raises HTTPBadRequest."""
    query = request.query
    parts: list[Matches] = []
    try:
        if wanted := tags.parse_expression(query.get("tag")):
            parts.append(lambda record: _text(_header(record, properties.TAGS)) in wanted)
        if sql := query.get("sql"):
            condition = await asyncio.to_thread(compile_condition, sql)  # The first one imports the parser.
            parts.append(lambda record: condition(_properties(record)))
    except IllegalExpression as error:
        raise web.HTTPBadRequest(text=str(error)) from error
    if key := query.get("key"):
        key_bytes = key.encode()
        parts.append(lambda record: record.key is not None and bytes(record.key) == key_bytes)
    if header := query.get("header"):
        name, equals, value = header.partition("=")
        parts.append(lambda record: _has_header(record, name, value.encode() if equals else None))
    return (lambda record: all(matches(record) for matches in parts)) if parts else None


def _has_header(record: Record, name: str, value: bytes | None) -> bool:
    return any(each == name and value in (None, bytes(found or b"")) for each, found in record.headers)


def _header(record: Record, name: str) -> bytes:
    return next((bytes(value or b"") for each, value in record.headers if each == name), b"")


def _properties(record: Record) -> bytes:
    """Return key and headers as RocketMQ's properties; those that a property string cannot hold are left out."""
    named = {name: _text(bytes(value or b"")) for name, value in record.headers}
    if record.key is not None:
        named[properties.KEYS] = _text(bytes(record.key))
    fit = {
        name: value for name, value in named.items() if name and not any(each in name + value for each in _SEPARATORS)
    }
    return "".join(f"{name}\x01{value}\x02" for name, value in fit.items()).encode()


def _text(value: bytes) -> str:
    return value.decode("utf-8", "replace")
