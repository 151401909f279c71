"""The answer to a request that cannot be handled: one error for everything that it asks for.

It is UNKNOWN_SERVER_ERROR if the handler raised an unexpected exception. A standby answers with errors that send
clients to the owner.

Produce, and Fetch below 7     the error for each partition, as there is none for the whole; none for acks=0
Fetch from 7                   the error, and nothing else
a response with an error code  the same
the others                     the error for each thing that the request names, as Apache's `getErrorResponse` does;
                               a request that names nothing, by an empty array, is answered with an empty one
DescribeLogDirs below 3        the error for the log directory
AlterUserScramCredentials      the error for each user
Metadata of all topics         no topic and no broker: clients take that for a failed update, and ask again
the others for "all" (null)    none: an empty answer would look like success, so the connection is closed

Schemas define what a request names: the array of the response whose elements have an error code belongs to the array
of the request with the same name, or else to the request's only array. The elements of the response take the values of
fields with the same names, and arrays without errors that have the same fields in the request. An item that is a plain
string or number becomes the first field after the error code.
"""

import sys
from collections.abc import Iterator, Sequence
from dataclasses import MISSING, Field, fields, is_dataclass
from datetime import UTC, datetime, timedelta
from functools import cache
from typing import Any, Final, get_args, get_origin

from kio.index import load_response_schema

from duolog.bridge.kafka.requests.repeated_names import unique
from duolog.bridge.kafka.requests.request import KafkaRequest
from duolog.bridge.net.answers import Answer
from duolog.bridge.net.connection import BUG
from duolog.protocol.kafka import fetch, produce
from duolog.protocol.kafka.api_messages import (
    NO_THROTTLE,
    ApiKey,
    ErrorCode,
)
from duolog.protocol.kafka.fetch import PartitionFetched
from duolog.protocol.kafka.produce import PartitionProduced
from duolog.protocol.kafka.response import element_of

_ERROR: Final = ErrorCode.unknown_server_error
_FETCH_ERROR_FROM: Final = 7
_NO_TIME: Final = datetime.fromtimestamp(0, UTC)
_MESSAGE: Final = "error_message"
ITEMS_MAX: Final = 1_000  # In one request, because the answer is made in one turn. With more, the connection is closed.


class _NotMirrored(Exception):
    """The response has no field for the errors of the items that the request names."""


def answer_of(
    request: KafkaRequest, log_directory: str, error: ErrorCode = _ERROR, message: str = BUG
) -> Answer | None:
    """Return the error answer of the request's API and version, and count its errors; None: there is none."""
    answer = _answer_of(request, log_directory, error, message)
    if answer is None:
        request.count_error(error)
    return answer


def _answer_of(request: KafkaRequest, log_directory: str, error: ErrorCode, message: str) -> Answer | None:
    key, version, correlation_id = request.api_key, request.version, request.correlation_id
    if key == ApiKey.PRODUCE:
        if request.body.acks == 0:
            return None
        produced = [
            PartitionProduced(each.topic, each.partition, error, error_message=message)
            for each in request.body.partitions
        ]
        request.count_error(error, len(produced))
        return Answer(produce.encode_response(version, correlation_id, produced))
    if key == ApiKey.FETCH:
        if version >= _FETCH_ERROR_FROM:
            request.count_error(error)
            return Answer(fetch.encode_response(version, correlation_id, (), error=error))
        return fetch_answer_of(request, error)
    response_type: Any = load_response_schema(key, version)
    asked: Any = (log_directory,) if key == ApiKey.DESCRIBE_LOG_DIRS else request.body
    if key == ApiKey.ALTER_USER_SCRAM_CREDENTIALS:
        asked = tuple(dict.fromkeys(row.name for row in (*asked.deletions, *asked.upsertions)))
    if key == ApiKey.METADATA and asked.topics is None:
        asked = ()
    if key == ApiKey.DESCRIBE_TOPIC_PARTITIONS and not asked.topics:
        return None  # An empty list asks for all topics.
    try:
        entity = _Mirror(error, message).entity(response_type, None if _has_own_error(response_type) else asked)
    except _NotMirrored:
        return None
    return request.answer(entity)


def fetch_answer_of(request: KafkaRequest, error: ErrorCode) -> Answer:
    """Return the answer to a Fetch request with the error for each partition.

    An error of the whole would not do for a change of the leader: Java's client asks for Metadata only if a partition
    has the error.
    """
    fetched = [PartitionFetched(each.topic, each.partition, error) for each in request.body.partitions]
    request.count_error(error, len(fetched))
    return Answer(fetch.encode_response(request.version, request.correlation_id, fetched))


def entity_of(request: KafkaRequest, error: ErrorCode) -> Any:
    """Return a response in which each item of the request has this error, in the array `array_name`."""
    response_type: Any = load_response_schema(request.api_key, request.version)
    return _Mirror(error, None).items_entity(response_type, request.body)


def array_name(response_type: Any) -> str:
    """Return the name of the array whose elements belong to the items of the request."""
    array = _array_with_errors(response_type)
    assert array is not None, "an API whose items have errors"
    return array.name


class _Mirror:
    """Makes the error response of one request from its schemas."""

    def __init__(self, error: ErrorCode, message: str | None) -> None:
        self._error, self._message = error, message
        self._items_left = ITEMS_MAX

    def items_entity(self, response_type: Any, asked: Any) -> Any:
        """Make a response in which the items have the error, also if the whole could have one."""
        self._items_left = sys.maxsize  # The answer is as large as the handler's would be.
        values = {field.name: self._value(field) for field in fields(response_type)}
        array = _array_with_errors(response_type)
        assert array is not None, "an API whose items have errors"
        values[array.name] = tuple(self._elements(array, asked))
        return response_type(**values)

    def entity(self, response_type: Any, asked: Any) -> Any:
        """Make a response or an element of one, for a request or an item of it; None: the error alone."""
        array = None if _has_own_error(response_type) else _array_with_errors(response_type)
        values = {field.name: self._value(field) for field in fields(response_type)}
        if isinstance(asked, (str, int)):
            values[_first_name(response_type)] = asked
        else:
            values |= {name: getattr(asked, name) for name in _taken_over(response_type) if hasattr(asked, name)}
            asked_type: Any = type(asked)
            values |= {array.name: _copied(array, asked) for array in _repeated_arrays(response_type, asked_type)}
        if array is not None:
            values[array.name] = tuple(self._elements(array, asked))
        elif not _has_own_error(response_type):
            raise _NotMirrored
        return response_type(**values)

    def _elements(self, array: "Field[Any]", asked: Any) -> Iterator[Any]:
        element_type = element_of(array)
        items = _items(asked, array.name)
        if items is None:
            raise _NotMirrored
        if _names(element_type):  # Elements without names belong to items by position.
            items = unique(items)
        self._items_left -= len(items)
        if self._items_left < 0 or (items and not _can_name(element_type, items[0])):
            raise _NotMirrored
        for item in items:
            yield self.entity(element_type, item)

    def _value(self, field: "Field[Any]") -> Any:
        """Return the error, its text, or the value of a field that has nothing to say."""
        if field.type is ErrorCode:
            return self._error
        return self._message if field.name == _MESSAGE else _empty(field)


# -- The items of a request


def _items(asked: Any, name: str) -> Sequence[Any] | None:
    """Return the array of that name in a part of the request, or else its only array; None: null or missing."""
    if isinstance(asked, tuple):
        return asked
    arrays = {each.name: getattr(asked, each.name) for each in fields(asked) if _is_array(each)}
    only = next(iter(arrays.values())) if len(arrays) == 1 else None
    return arrays.get(name, only)


def _can_name(element_type: Any, item: Any) -> bool:
    """Whether an element can name its item, or has only an error code and belongs to its item by position."""
    if isinstance(item, (str, int)):
        return True
    return not _names(element_type) or any(hasattr(item, name) for name in _taken_over(element_type))


# -- Reading the schemas


@cache
def _has_own_error(entity_type: Any) -> bool:
    return any(field.type is ErrorCode for field in fields(entity_type))


@cache
def _array_with_errors(entity_type: Any) -> "Field[Any] | None":
    """Return the array whose elements, or the elements within them, have an error code."""
    for field in fields(entity_type):
        element_type = element_of(field)
        if element_type is not None and _has_errors(element_type):
            return field
    return None


def _has_errors(entity_type: Any) -> bool:
    """Whether the type, or an array within it, has an error code."""
    return _has_own_error(entity_type) or _array_with_errors(entity_type) is not None


@cache
def _names(entity_type: Any) -> tuple[str, ...]:
    """Return the fields of a response's item that have no default and are no array, duration or error.

    The first of them is the name of the item, such as the topic or the group.
    """
    return tuple(
        field.name
        for field in fields(entity_type)
        if field.type is not ErrorCode
        and field.name != _MESSAGE
        and field.default is MISSING
        and not _is_array(field)
        and not (isinstance(field.type, type) and issubclass(field.type, timedelta))
    )


@cache
def _taken_over(entity_type: Any) -> tuple[str, ...]:
    """Return the fields that name an item, and that an item of the request has under the same name."""
    return tuple(name for name in _names(entity_type) if name in _ASKED)


# Other fields that both have (`leader_epoch`, `num_partitions`) are results in a response, not names.
_ASKED: Final = frozenset(
    {"name", "topic", "topic_id", "topic_name", "partition", "partition_index", "group_id", "producer_id"}
    | {"resource_type", "resource_name"}
)


@cache
def _repeated_arrays(response_type: Any, asked_type: Any) -> tuple["Field[Any]", ...]:
    """Return the arrays that the request has, too, with the same fields and no errors: they name the item.

    An example is the entity of a quota, which consists of a user and a client id.
    """
    asked = {field.name: element_of(field) for field in fields(asked_type)} if is_dataclass(asked_type) else {}
    return tuple(
        field
        for field in fields(response_type)
        if (element_type := element_of(field)) is not None
        and not _has_errors(element_type)
        and (given_type := asked.get(field.name)) is not None
        and [each.name for each in fields(element_type)] == [each.name for each in fields(given_type)]
    )


def _copied(array: "Field[Any]", asked: Any) -> tuple[Any, ...]:
    """Return the elements that an item of the request has in the array of this name, for the response."""
    element_type = element_of(array)
    names = [field.name for field in fields(element_type)]
    return tuple(element_type(**{name: getattr(each, name) for name in names}) for each in getattr(asked, array.name))


def _first_name(entity_type: Any) -> str:
    return _names(entity_type)[0]


def _is_array(field: "Field[Any]") -> bool:
    return any(get_origin(part) is tuple for part in (field.type, *get_args(field.type)))


def is_nullable_array(field: "Field[Any]") -> bool:
    """Whether the field is an array that may be null, which in requests mostly means all."""
    return _is_array(field) and type(None) in get_args(field.type)


def _empty(field: "Field[Any]") -> Any:
    """Return the value of a field of the response that has nothing to say."""
    kind = field.type
    if field.default is not MISSING:
        return field.default
    if _is_array(field):
        return ()
    if not isinstance(kind, type):  # An optional.
        return None
    if issubclass(kind, timedelta):
        return NO_THROTTLE
    if issubclass(kind, datetime):
        return _NO_TIME
    return kind("") if issubclass(kind, str) else b"" if issubclass(kind, bytes) else _number(kind)


def _number(kind: type) -> Any:
    return False if kind is bool else kind(-1)
