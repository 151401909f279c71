"""Avro's binary encoding, decoded by a schema to values that JSON can hold. Bytes become hexadecimal digits.

Logical types are shown as the values that are encoded. Source: the Avro 1.11 specification, "Binary Encoding".
"""

import struct
from typing import Any, Final

from duolog.bridge.console.bodies.bounded_reader import BoundedReader, UndecodableBody

NAMED: Final = ("record", "error", "enum", "fixed")


class AvroSchema:
    """A schema as JSON, with the named types in it. Raises UndecodableBody for what is no schema."""

    def __init__(self, schema: Any) -> None:
        self._named: dict[str, tuple[Any, str]] = {}  # Each named type and the namespace of what it contains.
        self._schema = schema
        self._collect(schema, "", 0)

    def decode(self, body: bytes, at: int = 0) -> Any:
        """Return the value of a whole body. Raises UndecodableBody."""
        reader = BoundedReader(body, at)
        found = self._read(self._schema, "", reader, 0)
        if not reader.is_at_end():
            raise UndecodableBody(f"the value ends at {reader.at} of {len(body)} bytes")
        return found

    def _collect(self, schema: Any, space: str, depth: int) -> None:
        BoundedReader(b"").count_value(depth)
        if isinstance(schema, list):
            for each in schema:
                self._collect(each, space, depth + 1)
        elif isinstance(schema, dict):
            kind = schema.get("type")
            if kind in NAMED:
                name, space = _full_name(schema, space)
                self._named[name] = schema, space
            for each in schema.get("fields", []) if kind in ("record", "error") else []:
                self._collect(each.get("type") if isinstance(each, dict) else None, space, depth + 1)
            for each in (schema.get("items"), schema.get("values"), kind if not isinstance(kind, str) else None):
                if each is not None:
                    self._collect(each, space, depth + 1)

    def _read(self, schema: Any, space: str, reader: BoundedReader, depth: int) -> Any:
        reader.count_value(depth)
        if isinstance(schema, list):
            branch = reader.zigzag()
            if not 0 <= branch < len(schema):
                raise UndecodableBody(f"branch {branch} of a union of {len(schema)}")
            return self._read(schema[branch], space, reader, depth + 1)
        kind = schema.get("type") if isinstance(schema, dict) else schema
        if not isinstance(kind, str):
            return self._read(kind, space, reader, depth + 1)
        if kind in PRIMITIVE:
            return PRIMITIVE[kind](reader)
        if kind in ("array", "map"):
            return self._blocks(schema, space, reader, depth, is_map=kind == "map")
        if kind in NAMED:
            return self._read_named(schema, _full_name(schema, space)[1], reader, depth)
        found = self._named.get(kind if "." in kind or not space else f"{space}.{kind}") or self._named.get(kind)
        if found is None:
            raise UndecodableBody(f"the schema has no type {kind[:80]!r}")
        return self._read_named(*found, reader, depth)

    def _read_named(self, schema: dict[str, Any], space: str, reader: BoundedReader, depth: int) -> Any:
        if schema["type"] == "fixed":
            return reader.take(schema["size"]).hex()
        if schema["type"] == "enum":
            symbols, number = schema["symbols"], reader.zigzag()
            if not 0 <= number < len(symbols):
                raise UndecodableBody(f"symbol {number} of an enum of {len(symbols)}")
            return symbols[number]
        return {each["name"]: self._read(each["type"], space, reader, depth + 1) for each in schema["fields"]}

    def _blocks(self, schema: dict[str, Any], space: str, reader: BoundedReader, depth: int, *, is_map: bool) -> Any:
        """Read the blocks of an array or a map; a negative count is followed by the size of the block."""
        values, named = list[Any](), dict[str, Any]()
        while count := reader.zigzag():
            if count < 0:
                reader.zigzag()
            for _ in range(abs(count)):
                if is_map:
                    name = reader.text(reader.zigzag())
                    named[name] = self._read(schema["values"], space, reader, depth + 1)
                else:
                    values.append(self._read(schema["items"], space, reader, depth + 1))
        return named if is_map else values


def _full_name(schema: dict[str, Any], space: str) -> tuple[str, str]:
    """Return the full name of a named type, and the namespace of what it contains."""
    name = str(schema.get("name", ""))
    if "." in name:
        return name, name.rpartition(".")[0]
    space = str(schema.get("namespace", space))
    return (f"{space}.{name}" if space else name), space


def _float(reader: BoundedReader) -> Any:
    return struct.unpack("<f", reader.take(4))[0]


def _double(reader: BoundedReader) -> Any:
    return struct.unpack("<d", reader.take(8))[0]


PRIMITIVE: Final[dict[str, Any]] = {
    "null": lambda reader: None,
    "boolean": lambda reader: reader.take(1) != b"\0",
    "int": BoundedReader.zigzag,
    "long": BoundedReader.zigzag,
    "float": _float,
    "double": _double,
    "bytes": lambda reader: reader.take(reader.zigzag()).hex(),
    "string": lambda reader: reader.text(reader.zigzag()),
}
