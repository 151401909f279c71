"""Protobuf's wire format, decoded by the descriptors of a FileDescriptorSet to values that JSON can hold.

A body is of the first message type of the last file in the set, which is the file that `protoc` was asked for:

    protoc --include_imports --descriptor_set_out=orders.desc orders.proto

Fields that the type does not have are named by their numbers: `#7`. Bytes become hexadecimal digits. Source: "Encoding"
and descriptor.proto of the Protobuf documentation.
"""

import struct
from collections.abc import Callable, Iterator
from typing import Any, Final, NamedTuple

from duolog.bridge.console.bodies.bounded_reader import BoundedReader, UndecodableBody, signed_of

VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5
DOUBLE, FLOAT, STRING, MESSAGE, BYTE_STRING, ENUM = 1, 2, 9, 11, 12, 14
REPEATED: Final = 3


class Field(NamedTuple):
    """A field of a message type; `type_name` is that of a message or enum, with a dot before it."""

    name: str
    is_repeated: bool
    kind: int
    type_name: str


class MessageType(NamedTuple):
    """A message type: its fields by number, and whether it is an entry of a map."""

    fields: dict[int, Field]
    is_map_entry: bool


class ProtobufSchema:
    """The types of a FileDescriptorSet. Raises UndecodableBody for bytes that are none."""

    def __init__(self, descriptors: bytes) -> None:
        self._messages: dict[str, MessageType] = {}
        self._enums: dict[str, dict[int, str]] = {}
        self._first = ""
        for number, _, file in _fields(BoundedReader(descriptors), 0):
            if number == 1:
                self._add_file(file)
        if not self._first:
            raise UndecodableBody("the descriptors have no message type")

    def decode(self, body: bytes, at: int = 0) -> dict[str, Any]:
        """Return the value of a whole body. Raises UndecodableBody."""
        return self._read(self._first, BoundedReader(body, at), 0)

    # -- Descriptors

    def _add_file(self, file: bytes) -> None:
        found = _grouped(file)
        package = _text(found, 2)
        prefix = f".{package}" if package else ""
        messages = found.get(4, [])
        for each in messages:
            self._add_message(each, prefix)
        for each in found.get(5, []):
            self._add_enum(each, prefix)
        if messages:
            self._first = f"{prefix}.{_text(_grouped(messages[0]), 1)}"

    def _add_message(self, message: bytes, prefix: str, depth: int = 0) -> None:
        BoundedReader(b"").count_value(depth)
        found = _grouped(message)
        name = f"{prefix}.{_text(found, 1)}"
        fields = {}
        for field in map(_grouped, found.get(2, [])):
            number, label, kind = (_number(field, at) for at in (3, 4, 5))
            fields[number] = Field(_text(field, 1), label == REPEATED, kind, _text(field, 6))
        options = _grouped(found[7][0]) if 7 in found else {}
        self._messages[name] = MessageType(fields, is_map_entry=_number(options, 7) == 1)
        for each in found.get(3, []):
            self._add_message(each, name, depth + 1)
        for each in found.get(4, []):
            self._add_enum(each, name)

    def _add_enum(self, enum: bytes, prefix: str) -> None:
        found = _grouped(enum)
        values = map(_grouped, found.get(2, []))
        self._enums[f"{prefix}.{_text(found, 1)}"] = {
            _signed(_number(value, 2), 32): _text(value, 1) for value in values
        }

    # -- Bodies

    def _read(self, type_name: str, reader: BoundedReader, depth: int) -> dict[str, Any]:
        message = self._messages.get(type_name)
        if message is None:
            raise UndecodableBody(f"the descriptors have no type {type_name[:80]!r}")
        found: dict[str, Any] = {}
        for number, wire, raw in _fields(reader, depth):
            field = message.fields.get(number)
            if field is None:
                found[f"#{number}"] = raw.hex() if isinstance(raw, bytes) else raw
                continue
            values = list(self._values(field, wire, raw, depth))
            if field.kind == MESSAGE and self._is_map(field):
                entries = found.setdefault(field.name, {})
                entries.update({str(each.get("key", "")): each.get("value") for each in values})
            elif field.is_repeated:
                found.setdefault(field.name, []).extend(values)
            elif values:
                found[field.name] = values[-1]
        return found

    def _is_map(self, field: Field) -> bool:
        message = self._messages.get(field.type_name)
        return message is not None and message.is_map_entry

    def _values(self, field: Field, wire: int, raw: Any, depth: int) -> Iterator[Any]:
        """Yield the value of a field, or the values of a packed one."""
        if wire != BYTES:
            yield self._scalar(field, raw)
        elif field.kind == MESSAGE:
            yield self._read(field.type_name, BoundedReader(raw), depth + 1)
        elif field.kind == STRING:
            yield BoundedReader(raw).text(len(raw))
        elif field.kind == BYTE_STRING:
            yield raw.hex()
        else:
            reader = BoundedReader(raw)
            while not reader.is_at_end():
                reader.count_value(depth)
                yield self._scalar(field, _raw(reader, _WIRES.get(field.kind, VARINT)))

    def _scalar(self, field: Field, raw: Any) -> Any:
        if field.kind == ENUM:
            number = _signed(raw, 32)
            return self._enums.get(field.type_name, {}).get(number, number)
        convert = _CONVERTED.get(field.kind)
        return raw if convert is None else convert(raw)


# -- The wire format


def _fields(reader: BoundedReader, depth: int) -> Iterator[tuple[int, int, Any]]:
    """Yield number, wire type and value of each field: an integer, or bytes."""
    while not reader.is_at_end():
        reader.count_value(depth)
        tag = reader.uvarint()
        yield tag >> 3, tag & 7, _raw(reader, tag & 7)


def _raw(reader: BoundedReader, wire: int) -> Any:
    if wire == VARINT:
        return reader.uvarint()
    if wire == BYTES:
        return reader.take(reader.uvarint())
    if wire in (FIXED64, FIXED32):
        return int.from_bytes(reader.take(8 if wire == FIXED64 else 4), "little")
    raise UndecodableBody(f"wire type {wire} at {reader.at}")


def _grouped(message: bytes) -> dict[int, list[Any]]:
    found: dict[int, list[Any]] = {}
    for number, _, raw in _fields(BoundedReader(message), 0):
        found.setdefault(number, []).append(raw)
    return found


def _text(found: dict[int, list[Any]], number: int) -> str:
    value = found.get(number, [b""])[-1]
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else ""


def _number(found: dict[int, list[Any]], number: int) -> int:
    value = found.get(number, [0])[-1]
    return value if isinstance(value, int) else 0


def _signed(value: int, bits: int) -> int:
    value &= (1 << bits) - 1
    return value - (1 << bits) if value >> (bits - 1) else value


# By the type of a field (FieldDescriptorProto.Type): its wire type if that is not VARINT, and the value of an integer.
_WIRES: Final = {DOUBLE: FIXED64, FLOAT: FIXED32, 6: FIXED64, 7: FIXED32, 15: FIXED32, 16: FIXED64}
_CONVERTED: Final[dict[int, Callable[[int], Any]]] = {
    DOUBLE: lambda raw: struct.unpack("<d", raw.to_bytes(8, "little"))[0],
    FLOAT: lambda raw: struct.unpack("<f", (raw & 0xFFFF_FFFF).to_bytes(4, "little"))[0],
    3: lambda raw: _signed(raw, 64),
    5: lambda raw: _signed(raw, 32),
    8: bool,
    15: lambda raw: _signed(raw, 32),
    16: lambda raw: _signed(raw, 64),
    17: signed_of,
    18: signed_of,
}
