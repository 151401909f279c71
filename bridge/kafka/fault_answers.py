"""The answer to a request whose handler failed for a reason that nobody expected: UNKNOWN_SERVER_ERROR.

Produce                            the error for each partition, as there is none for the whole; none for acks=0
Fetch from 7, and each version     the error, and nothing else
whose response has an error code
the others                         none: an empty answer would look like success, so the connection is closed
"""

from dataclasses import MISSING, Field, fields
from datetime import timedelta
from functools import cache
from typing import Any, Final

from kio.index import load_response_schema

from bridge.answers import Answer
from bridge.kafka.request import Request
from bridge.server import BUG
from protocol.kafka import fetch, produce
from protocol.kafka.api import NO_THROTTLE, ApiKey, ErrorCode, encode_response
from protocol.kafka.produce import PartitionProduced

_ERROR: Final = ErrorCode.unknown_server_error
_FETCH_ERROR_FROM: Final = 7


def answer_of(request: Request) -> Answer | None:
    """Give the error answer in the form of the request's API and version; None: it has none."""
    key, version, correlation_id = request.api_key, request.version, request.correlation_id
    if key == ApiKey.PRODUCE:
        if request.body.acks == 0:
            return None
        results = [
            PartitionProduced(each.topic, each.partition, _ERROR, error_message=BUG) for each in request.body.partitions
        ]
        return Answer(produce.encode_response(version, correlation_id, results))
    if key == ApiKey.FETCH:
        if version < _FETCH_ERROR_FROM:
            return None
        return Answer(fetch.encode_response(version, correlation_id, (), error=_ERROR))
    entity = _entity(key, version)
    return None if entity is None else Answer(encode_response(key, version, correlation_id, entity))


@cache
def _entity(key: int, version: int) -> Any:
    """Make a response that has nothing but the error; None if its schema has no place for one."""
    response_type: Any = load_response_schema(key, version)
    values = {field.name: _value(field) for field in fields(response_type)}
    return response_type(**values) if "error_code" in values else None


def _value(field: "Field[Any]") -> Any:
    """Give what stands for "nothing" in a field of a response."""
    kind = field.type
    if kind is ErrorCode:
        return _ERROR
    if field.default is not MISSING:
        return field.default
    if not isinstance(kind, type):  # An optional, or a tuple of elements.
        return None if type(None) in getattr(kind, "__args__", ()) else ()
    if issubclass(kind, timedelta):
        return NO_THROTTLE
    return kind("") if issubclass(kind, str) else b"" if issubclass(kind, bytes) else _number(kind)


def _number(kind: type) -> Any:
    return False if kind is bool else kind(-1)
