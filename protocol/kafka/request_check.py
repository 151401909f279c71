"""Verifies the body of a request before kio decodes it.

kio allocates memory for an array by its count alone: a count of 2^31 in a request of a few bytes reserves 16 GiB of
address space, and if the system refuses that, the process ends (kio 0.6.5 under `ulimit -v`). kio also refuses unknown
tagged fields, which a receiver must skip (KIP-482).

This module therefore reads the body first, by the same schema classes as kio, without creating objects. It verifies
that all counts and sizes are possible within the body, removes unknown tagged fields, and refuses requests with more
array elements and tagged fields than are allowed.
"""

import struct
from collections.abc import Callable
from dataclasses import Field, fields, is_dataclass
from functools import cache
from types import NoneType, UnionType
from typing import Any, Final, Union, get_args, get_origin

from duolog.protocol.errors import ProtocolError
from duolog.protocol.kafka.primitive_types import (
    ELEMENTS_MAX,
    MALFORMED,
    STRING_BYTES_MAX,
    Buffer,
    read_uvarint,
    too_many_elements,
    uvarint,
)

_I16 = struct.Struct(">h")
_I32 = struct.Struct(">i")

_NULL: Final = -1  # The size or count that stands for null.

_FIXED_BYTES: Final = {
    "bool": 1,
    "int8": 1,
    "int16": 2,
    "uint16": 2,
    "error_code": 2,
    "int32": 4,
    "uint32": 4,
    "timedelta_i32": 4,
    "int64": 8,
    "timedelta_i64": 8,
    "datetime_i64": 8,
    "float64": 8,
    "uuid": 16,
}


class _Walk:
    """The state of the verification of one body."""

    __slots__ = ("buffer", "cuts", "elements_left", "elements_max")

    def __init__(self, buffer: Buffer, elements_max: int) -> None:
        self.buffer = buffer
        self.elements_left = self.elements_max = elements_max
        # (start, end, replacement) of the parts that kio must not see, in ascending order.
        self.cuts: list[tuple[int, int, bytes]] = []

    def count(self, more: int) -> None:
        """Count elements. Raises ProtocolError if the body has more than are allowed."""
        self.elements_left -= more
        if self.elements_left < 0:
            raise too_many_elements(self.elements_max)


# Verifies one field at an index and returns the index after it; an integer stands for a field of so many bytes.
_Step = Callable[[_Walk, int], int] | int


def checked(entity_type: type, buffer: Buffer, at: int = 0, elements_max: int = ELEMENTS_MAX) -> Buffer:
    """Return a read-only buffer from which kio can decode an `entity_type` at index 0 safely.

    Raises ProtocolError if the body at `buffer[at:]` is malformed, or has more than `elements_max` array elements and
    tagged fields. Bytes after the body remain in the buffer.
    """
    walk = _Walk(buffer, elements_max)
    try:
        end = _passed(_struct(entity_type), walk, at)
    except MALFORMED as error:
        raise ProtocolError(f"malformed {entity_type.__name__}: {error}") from None
    if end > len(buffer):
        raise ProtocolError(f"malformed {entity_type.__name__}: it ends at byte {end} of {len(buffer)} bytes")
    view = memoryview(buffer).toreadonly()
    if not walk.cuts:
        return view[at:]
    parts: list[Buffer] = []
    for start, until, instead in walk.cuts:
        parts += (view[at:start], instead)
        at = until
    return b"".join((*parts, view[at:]))


# -- From schema classes to steps


@cache
def _struct(entity_type: type) -> _Step:
    steps: list[_Step] = []
    tagged: dict[int, _Step] = {}
    flexible: bool = entity_type.__flexible__  # type: ignore[attr-defined]
    for field in fields(entity_type):
        if "tag" in field.metadata:
            tagged[field.metadata["tag"]] = _field(field, flexible)
        else:
            _append(steps, _field(field, flexible))
    if flexible:
        steps.append(_tags(tagged))
    if len(steps) == 1:
        return steps[0]

    def walk_struct(walk: _Walk, at: int) -> int:
        for step in steps:
            at = at + step if type(step) is int else step(walk, at)  # type: ignore[operator]
        return at

    return walk_struct


def _append(steps: list[_Step], step: _Step) -> None:
    """Append a step. Consecutive fields of fixed size become one step."""
    if isinstance(step, int) and steps and isinstance(steps[-1], int):
        steps[-1] += step
    else:
        steps.append(step)


def _passed(step: _Step, walk: _Walk, at: int) -> int:
    return at + step if isinstance(step, int) else step(walk, at)


def _field(field: Field[Any], flexible: bool) -> _Step:
    type_, nullable = _without_none(field.type)
    if get_origin(type_) is tuple:
        element_type, _ = _without_none(get_args(type_)[0])
        return _array(_of_type(element_type, field, flexible), flexible, nullable)
    step = _of_type(type_, field, flexible)
    if is_dataclass(type_) and nullable and "tag" not in field.metadata:
        return _nullable(step)
    return step


def _without_none(type_: Any) -> tuple[Any, bool]:
    if get_origin(type_) not in (UnionType, Union):
        return type_, False
    return next(part for part in get_args(type_) if part is not NoneType), True


def _of_type(type_: Any, field: Field[Any], flexible: bool) -> _Step:
    if is_dataclass(type_):
        return _struct(type_)  # type: ignore[arg-type]
    kafka_type = field.metadata["kafka_type"]
    if kafka_type in _FIXED_BYTES:
        return _FIXED_BYTES[kafka_type]
    if flexible:
        return _compact_string if kafka_type == "string" else _compact
    return _string if kafka_type == "string" else _bytes


# -- Steps


def _compact(walk: _Walk, at: int) -> int:
    """Verify bytes in compact encoding."""
    size, at = read_uvarint(walk.buffer, at)
    return at + size - 1 if size else at


def _compact_string(walk: _Walk, at: int) -> int:
    size = walk.buffer[at]  # Most varints have one byte.
    at += 1
    if size > 127:
        size, at = read_uvarint(walk.buffer, at - 1)
        if size > STRING_BYTES_MAX + 1:
            raise ProtocolError(f"a string of {size - 1} bytes; at most {STRING_BYTES_MAX} bytes are allowed")
    return at + size - 1 if size else at


def _string(walk: _Walk, at: int) -> int:
    return at + 2 + _size(_I16.unpack_from(walk.buffer, at)[0])


def _bytes(walk: _Walk, at: int) -> int:
    return at + 4 + _size(_I32.unpack_from(walk.buffer, at)[0])


def _size(size: int) -> int:
    """Return the number of bytes or elements for a size or count, in which -1 stands for null."""
    if size < _NULL:
        raise ProtocolError(f"negative size {size}")
    return max(size, 0)


def _nullable(step: _Step) -> _Step:
    """Return the step of a struct that may be null: a byte before it is -1 for null (KIP-893)."""

    def walk_nullable(walk: _Walk, at: int) -> int:
        return at + 1 if walk.buffer[at] == 0xFF else _passed(step, walk, at + 1)

    return walk_nullable


def _array(step: _Step, flexible: bool, nullable: bool) -> _Step:
    def walk_array(walk: _Walk, at: int) -> int:
        if flexible:
            count, at = read_uvarint(walk.buffer, at)
            count -= 1
        else:
            (count,) = _I32.unpack_from(walk.buffer, at)
            at += 4
        if count == _NULL and not nullable:
            raise ProtocolError("an array is null that must not be null")  # kio would return None.
        count = _size(count)
        # Each element has at least one byte.
        if count > len(walk.buffer) - at:
            raise ProtocolError(f"an array of {count} elements in {len(walk.buffer) - at} bytes")
        walk.count(count)
        if isinstance(step, int):
            return at + count * step
        for _ in range(count):
            at = step(walk, at)
        return at

    return walk_array


def _tags(known: dict[int, _Step]) -> _Step:
    """Return the step of the tagged fields at the end of a struct. Those that are not in `known` are noted as cuts."""

    def walk_tags(walk: _Walk, at: int) -> int:
        buffer = walk.buffer
        if buffer[at] == 0:
            return at + 1
        start = at
        count, at = read_uvarint(buffer, at)
        walk.count(count)
        kept = []
        for _ in range(count):
            tag_at = at
            tag, at = read_uvarint(buffer, at)
            size, at = read_uvarint(buffer, at)
            if at + size > len(buffer):
                raise ProtocolError(f"tagged field {tag} ends at byte {at + size} of {len(buffer)} bytes")
            if tag in known:
                cut_count = len(walk.cuts)
                if _passed(known[tag], walk, at) != at + size or len(walk.cuts) != cut_count:
                    raise ProtocolError(f"tagged field {tag} has {size} bytes, which its type does not allow")
                kept.append(bytes(buffer[tag_at : at + size]))
            at += size
        if len(kept) != count:
            walk.cuts.append((start, at, b"".join((uvarint(len(kept)), *kept))))
        return at

    return walk_tags
