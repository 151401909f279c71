"""Bodies by a schema: Avro's examples of its specification, Protobuf's by the official library; truncated and random
bytes raise UndecodableBody and nothing else, and no body takes more than the limits."""

import json
import random
import struct
from pathlib import Path
from typing import Any

import pytest
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

from duolog.bridge.config import HttpOptions, Options
from duolog.bridge.console.bodies.avro import AvroSchema
from duolog.bridge.console.bodies.bounded_reader import UndecodableBody
from duolog.bridge.console.bodies.protobuf import ProtobufSchema
from duolog.bridge.console.bodies.schemas import BODY_BYTES_MAX, decoded, load
from tests.kit.core import ManualCore
from tests.kit.http import HttpBench

RECORD = {
    "type": "record", "name": "test", "namespace": "n",
    "fields": [{"name": "a", "type": "long"}, {"name": "b", "type": "string"}],
}  # fmt: skip
TREE = {
    "type": "record", "name": "Tree",
    "fields": [
        {"name": "left", "type": ["null", "Tree"]},
        {"name": "kind", "type": {"type": "enum", "name": "K", "symbols": ["x", "y"]}},
    ],
}  # fmt: skip


@pytest.mark.parametrize(
    ("schema", "body", "value"),
    [
        (RECORD, "3606666f6f", {"a": 27, "b": "foo"}),  # The examples of the specification.
        ({"type": "array", "items": "long"}, "04063600", [3, 27]),
        (["null", "string"], "00", None),
        (["null", "string"], "020261", "a"),
        ("long", "01", -1),
        ("long", "7f", -64),
        ("long", "8001", 64),
        ("boolean", "01", True),
        ("double", struct.pack("<d", 1.5).hex(), 1.5),
        ("float", struct.pack("<f", 1.5).hex(), 1.5),
        ("bytes", "0400ff", "00ff"),
        ({"type": "fixed", "name": "f", "size": 2}, "abcd", "abcd"),
        ({"type": "map", "values": "int"}, "0202610400", {"a": 2}),
        ({"type": "array", "items": "int"}, "01020200", [1]),  # A block of one value, with its size.
        (TREE, "02000200", {"left": {"left": None, "kind": "y"}, "kind": "x"}),
        ({"type": {"type": "int", "logicalType": "date"}}, "02", 1),
    ],
)
def test_avro(schema: Any, body: str, value: Any) -> None:
    assert AvroSchema(schema).decode(bytes.fromhex(body)) == value


@pytest.mark.parametrize(
    ("schema", "body"),
    [
        (RECORD, "36"),
        (RECORD, "3606666f6f00"),
        (["null"], "02"),
        ("string", "ff" * 11),
        ("string", "0101"),
        ("string", "02ff"),
        ("unknown", "00"),
        ({"type": "array", "items": "null"}, "feffffffffffffff7f"),
        ({"type": "record", "name": "R", "fields": [{"name": "r", "type": "R"}]}, "00"),
    ],
)
def test_avro_that_does_not_fit(schema: Any, body: str) -> None:
    with pytest.raises(UndecodableBody):
        decoded(AvroSchema(schema), bytes.fromhex(body))


def descriptors() -> descriptor_pb2.FileDescriptorSet:
    """Return what protoc writes for a file with each kind of field."""
    found = descriptor_pb2.FileDescriptorSet()
    file = found.file.add(name="orders.proto", package="shop", syntax="proto3")
    order = file.message_type.add(name="Order")
    kinds = descriptor_pb2.FieldDescriptorProto
    for number, (name, kind) in enumerate(SCALARS.items(), 1):
        order.field.add(name=name, number=number, label=1, type=getattr(kinds, f"TYPE_{kind}"))
    order.enum_type.add(name="State").value.add(name="NEW", number=0)
    order.enum_type[0].value.add(name="PAID", number=1)
    order.nested_type.add(name="Line").field.add(name="item", number=1, label=1, type=kinds.TYPE_STRING)
    entry = order.nested_type.add(name="TagsEntry")
    entry.options.map_entry = True
    entry.field.add(name="key", number=1, label=1, type=kinds.TYPE_STRING)
    entry.field.add(name="value", number=2, label=1, type=kinds.TYPE_INT32)
    order.field.add(name="state", number=30, label=1, type=kinds.TYPE_ENUM, type_name=".shop.Order.State")
    order.field.add(name="lines", number=31, label=3, type=kinds.TYPE_MESSAGE, type_name=".shop.Order.Line")
    order.field.add(name="tags", number=32, label=3, type=kinds.TYPE_MESSAGE, type_name=".shop.Order.TagsEntry")
    order.field.add(name="numbers", number=33, label=3, type=kinds.TYPE_SINT64)
    return found


SCALARS = {
    "a": "INT32", "b": "INT64", "c": "UINT64", "d": "SINT32", "e": "FIXED64", "f": "SFIXED32", "g": "DOUBLE",
    "h": "FLOAT", "i": "BOOL", "j": "STRING", "k": "BYTES",
}  # fmt: skip


def order(**more: Any) -> bytes:
    """Encode an order with the official library."""
    pool = descriptor_pool.DescriptorPool()
    pool.AddSerializedFile(descriptors().file[0].SerializeToString())
    kind = message_factory.GetMessageClass(pool.FindMessageTypeByName("shop.Order"))
    encoded: bytes = kind(
        a=-150, b=-(1 << 40), c=(1 << 64) - 1, d=-3, e=5, f=-6, g=1.25, h=0.5, i=True, j="é", k=b"\x00\xff", state=1,
        lines=[{"item": "pen"}, {"item": "ink"}], tags={"x": 1}, numbers=[-1, 300], **more,
    ).SerializeToString()  # fmt: skip
    return encoded


def test_protobuf() -> None:
    schema = ProtobufSchema(descriptors().SerializeToString())
    assert schema.decode(order()) == {
        "a": -150, "b": -(1 << 40), "c": (1 << 64) - 1, "d": -3, "e": 5, "f": -6, "g": 1.25, "h": 0.5, "i": True,
        "j": "é", "k": "00ff", "state": "PAID", "lines": [{"item": "pen"}, {"item": "ink"}], "tags": {"x": 1},
        "numbers": [-1, 300],
    }  # fmt: skip
    assert schema.decode(bytes.fromhex("089601")) == {"a": 150}  # The example of "Encoding".
    assert schema.decode(bytes.fromhex("f80301fa03020102")) == {"#63": "0102"}


@pytest.mark.parametrize("schema", [ProtobufSchema(descriptors().SerializeToString()), AvroSchema(TREE)])
def test_random_bytes_raise_one_error_only(schema: Any, rng: random.Random) -> None:
    good = order()
    for _ in range(300):
        body = bytearray(good[: rng.randrange(len(good))])
        for _ in range(rng.randrange(4)):
            if body:
                body[rng.randrange(len(body))] = rng.randrange(256)
        try:
            decoded(schema, bytes(body))
        except UndecodableBody:
            pass


def test_a_schema_is_found_by_the_name_of_the_topic(tmp_path: Path) -> None:
    for directory, problem in (("", "is empty"), (str(tmp_path), "has no orders.avsc")):
        with pytest.raises(UndecodableBody, match=problem):
            load(directory, "orders")
    (tmp_path / "orders.desc").write_bytes(descriptors().SerializeToString())
    body = order()
    assert decoded(load(str(tmp_path), "orders"), b"\0\0\0\0\7\0" + body)["j"] == "é"
    (tmp_path / "orders.avsc").write_text(json.dumps(RECORD))
    schema = load(str(tmp_path), "orders")
    assert decoded(schema, bytes.fromhex("00000000073606666f6f")) == {"a": 27, "b": "foo"}
    with pytest.raises(UndecodableBody, match="more than"):
        decoded(schema, b"0" * (BODY_BYTES_MAX + 1))
    for text in ("{", "[" * 100_000):
        (tmp_path / "orders.avsc").write_text(text)
        with pytest.raises(UndecodableBody, match="no schema"):
            load(str(tmp_path), "orders")


def test_a_page_shows_bodies_by_the_schema_and_masks_their_fields(tmp_path: Path) -> None:
    (tmp_path / "orders.avsc").write_text(json.dumps(RECORD))
    options = Options(http=HttpOptions(schemas_directory=str(tmp_path), masks="orders:a"))
    bench = HttpBench(ManualCore(options))
    bench.ask("POST", "/api/topics", {"name": "orders", "queues": 1})
    for value in ("NgZmb28=", "/w=="):  # The record, and what is none.
        bench.ask("POST", "/api/topics/orders/messages", {"value_base64": value})
    text = bench.ask("GET", "/console/messages?topic=orders&as=schema")[1].decode()
    assert "&#34;b&#34;: &#34;foo&#34;" in text
    assert "&#34;a&#34;: &#34;***&#34;" in text
    assert "not decoded by the schema" in text
