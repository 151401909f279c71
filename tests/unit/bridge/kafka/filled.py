"""Requests that are filled from their schemas, all arrays included."""

from dataclasses import fields, is_dataclass
from datetime import timedelta
from typing import Any, get_args, get_origin
from uuid import UUID

from kio.schema.errors import ErrorCode

DURATION_MS = 10_000


def filled(entity_type: Any, text: str, copies: int = 2, **given: Any) -> Any:
    """A request whose texts are all that one; every array has the same element so many times."""
    return entity_type(
        **{field.name: given.get(field.name, _value(field.type, text, copies)) for field in fields(entity_type)}
    )


def _value(type_: Any, text: str, copies: int) -> Any:
    if get_origin(type_) not in (None, tuple):
        type_ = next(each for each in get_args(type_) if each is not type(None))
    if get_origin(type_) is tuple:
        return (_value(get_args(type_)[0], text, copies),) * copies
    if is_dataclass(type_):
        return filled(type_, text, copies)
    kind = str(type_)
    if type_ is str or "Name" in kind or "GroupId" in kind or "TransactionalId" in kind:
        return text
    for name, value in (("bool", True), ("bytes", b"x"), ("Records", b""), ("UUID", UUID(int=7)), ("Timedelta", None)):
        if name in kind:
            return timedelta(milliseconds=DURATION_MS) if value is None else value
    if type_ is ErrorCode:
        return ErrorCode.none
    return 0.0 if type_ is float or "f64" in kind else 1
