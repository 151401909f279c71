"""Frames of Kafka clients, written and read by kio, so that they do not depend on the codecs under test.

frame = frame_of(ApiKey.METADATA, 12, 1, topics=None)        # with its size
answer = answer_of(ApiKey.METADATA, 12, 1, frame)            # without its size
"""

import struct
from collections.abc import Iterator
from dataclasses import MISSING, fields, is_dataclass
from datetime import timedelta
from functools import cache
from typing import Any, cast, get_args, get_origin

from kio.index import load_request_schema, load_response_schema
from kio.schema.errors import ErrorCode
from kio.serial import entity_reader, entity_writer

from duolog.protocol.kafka.api_messages import ApiKey, is_flexible

_NO_TIME = b"\xff" * 8


def frame_of(key: int, version: int, number: int, /, **values: Any) -> bytes:
    """Encode a request. Values that the version lacks are left out, and missing values are empty."""
    parts = [struct.pack(">hhi", key, version, number), b"\0\x04test"]
    if is_flexible(key, version):
        parts.append(b"\0")
    entity_type = _request_type(key, version)
    entity_writer(entity_type)(cast(Any, _Parts(parts)), _filled(entity_type, values))
    frame = b"".join(parts)
    return struct.pack(">i", len(frame)) + frame


def answer_of(key: int, version: int, number: int, frame: bytes | memoryview) -> Any:
    """Decode the answer to the request with this number."""
    at = 5 if is_flexible(key, version) and key != ApiKey.API_VERSIONS else 4
    assert struct.unpack_from(">i", frame)[0] == number, "answers come in the order of asking"
    if key == ApiKey.DESCRIBE_TRANSACTIONS:
        # A time of -1 says that there is none; kio cannot read it.
        frame = bytes(frame).replace(_NO_TIME, bytes(8))
    entity, size = entity_reader(_answer_type(key, version))(frame, at)
    assert at + size == len(frame), "the answer is as long as it says"
    return entity


@cache
def _request_type(key: int, version: int) -> Any:
    return load_request_schema(key, version)


@cache
def _answer_type(key: int, version: int) -> Any:
    return load_response_schema(key, version)


class _Parts:
    def __init__(self, parts: list[bytes]) -> None:
        self.write = parts.append


def _filled(entity_type: Any, values: dict[str, Any]) -> Any:
    """Make an entity of plain values: dicts and lists for nested entities, numbers for durations."""
    filled = {}
    for name, type_, has_default in _fields_of(entity_type):
        if name in values:
            filled[name] = _value(type_, values[name])
        elif not has_default:
            filled[name] = _empty(type_)
    return entity_type(**filled)


@cache
def _fields_of(entity_type: Any) -> list[tuple[str, Any, bool]]:
    """Return the name and type of each field, and whether it has a default."""
    return [
        (each.name, each.type, each.default is not MISSING or each.default_factory is not MISSING)
        for each in fields(entity_type)
    ]


def _value(type_: Any, value: Any) -> Any:
    if isinstance(value, list) and (element := _element_of(type_)) is not None:
        return tuple(_value(element, each) for each in value)
    if isinstance(value, dict):
        return _filled(_entity_of(type_), value)
    if isinstance(value, int) and _is_duration(type_):
        return timedelta(milliseconds=value)
    return value


@cache
def _element_of(type_: Any) -> Any:
    """Return the type of the elements, if the type is a tuple or None."""
    return next((get_args(each)[0] for each in _parts_of(type_) if get_origin(each) is tuple), None)


@cache
def _entity_of(type_: Any) -> Any:
    return next(each for each in _parts_of(type_) if is_dataclass(each))


@cache
def _is_duration(type_: Any) -> bool:
    return "Timedelta" in str(type_)


@cache
def _empty(type_: Any) -> Any:
    kinds = _parts_of(type_)
    if type(None) in kinds:
        return None
    (kind,) = kinds
    if get_origin(kind) is tuple:
        return ()
    if is_dataclass(kind):
        return _filled(kind, {})
    if _is_duration(kind):
        return timedelta(0)
    if kind is bool:
        return False
    if kind is bytes:
        return b""
    is_text = kind is str or any(text in str(kind) for text in ("Name", "GroupId", "TransactionalId"))
    return "" if is_text else 0


def _parts_of(type_: Any) -> tuple[Any, ...]:
    is_union = get_origin(type_) is not None and get_origin(type_) is not tuple
    return get_args(type_) if is_union else (type_,)


def errors_in(value: Any) -> Iterator[ErrorCode]:
    """Yield each error code of an answer, `none` included."""
    if isinstance(value, ErrorCode):
        yield value
    elif isinstance(value, tuple):
        for each in value:
            yield from errors_in(each)
    elif is_dataclass(value):
        for field in fields(value):
            yield from errors_in(getattr(value, field.name))
