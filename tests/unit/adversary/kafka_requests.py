"""Kafka requests, valid and hostile, for every row of the dispatch table, made from kio's schemas.

    request = valid(ApiKey.METADATA, 12, world)     # a tree of fields, each with a value that means something
    mutate(request, rng)                            # one field is replaced by a hostile value
    request.encode()                                # the frame's payload

A field knows how it is written, so a mutation may write what no encoder of a client would: a negative size, a count
without elements, text that is not UTF-8, null where the schema has none.
"""

import random
import struct
from collections.abc import Iterator
from dataclasses import dataclass, field, fields, is_dataclass
from functools import cache
from types import NoneType, UnionType
from typing import Any, Union, get_args, get_origin

from crc32c import crc32c
from kio.index import load_request_schema

from duolog.protocol.kafka.api_messages import ApiKey, is_flexible
from duolog.protocol.kafka.compression import Codec
from duolog.protocol.kafka.primitive_types import uvarint
from tests.unit.adversary import hostile
from tests.unit.bridge.batches import batch

CORRELATION_ID = 7
ARRAY_BYTES_MAX = 64 << 20
_FIXED_BYTES = {
    "bool": 1, "int8": 1, "int16": 2, "uint16": 2, "error_code": 2, "int32": 4, "uint32": 4, "timedelta_i32": 4,
    "int64": 8, "timedelta_i64": 8, "datetime_i64": 8, "float64": 8, "uuid": 16,
}  # fmt: skip

# The values of fields in a valid request, by name; others are 0, empty or one element.
VALUES: dict[str, Any] = {
    "topic": "orders", "name": "orders", "group": "billing", "group_id": "billing", "transactional_id": "payments",
    "key": "billing", "coordinator_keys": "billing", "resource_name": "orders", "resource_type": 2, "host": "*",
    "principal": "User:a", "acks": -1, "timeout": 1_000, "max_bytes": 1 << 20, "partition_max_bytes": 1 << 20,
    "min_bytes": 0, "session_timeout": 10_000, "rebalance_timeout": 10_000, "protocol_type": "consumer",
    "num_partitions": 2, "replication_factor": -1, "count": 3, "transaction_timeout": 60_000, "producer_id": -1,
    "producer_epoch": -1, "timestamp": -1, "replica_id": -1, "session_epoch": -1, "current_leader_epoch": -1,
    "leader_epoch": -1, "topic_names": "orders", "groups_names": "billing", "generation_id_or_member_epoch": -1,
    "generation_id": -1, "mechanism": "PLAIN", "client_software_name": "adversary", "client_software_version": "1",
    "fetch_offset": 0, "log_start_offset": -1, "pattern_type_filter": 3, "resource_type_filter": 1, "operation": 1,
    "permission_type": 1, "resource_pattern_type": 3, "coordinator_epoch": 0, "retention_time_ms": -1,
    "last_fetched_epoch": -1, "entity_type": "user", "match_type": 0, "value": "1", "states_filter": "Stable",
    "types_filter": "classic", "commited_offset": 0, "committed_offset": 0, "endpoint_type": 1,
}  # fmt: skip


class _Fixed:
    def __init__(self, name: str, size: int, value: int) -> None:
        self.name, self.size, self.raw = name, size, value.to_bytes(size, "big", signed=True)

    def encode(self) -> bytes:
        return self.raw

    def mutate(self, rng: random.Random) -> None:
        self.raw = hostile.number(rng, min(self.size, 8) * 8).to_bytes(self.size, "big", signed=True)


class _Sized:
    """Text or bytes with their size; a mutation may write a wrong size, or null."""

    def __init__(self, name: str, value: bytes | None, *, flexible: bool, is_text: bool) -> None:
        self.name, self.value, self.flexible, self.is_text = name, value, flexible, is_text
        self.size_written: int | None = None

    def encode(self) -> bytes:
        size = -1 if self.value is None else len(self.value)
        return _size(size if self.size_written is None else self.size_written, self.flexible, self.is_text) + (
            self.value or b""
        )

    def mutate(self, rng: random.Random) -> None:
        kind = rng.random()
        if kind < 0.1:
            self.value = None
        elif kind < 0.2:
            self.size_written = hostile.number(rng, 16 if self.is_text else 32)
        elif kind < 0.4 and self.value:
            self.value = hostile.broken(rng, self.value)
        else:
            self.value = hostile.text(rng) if self.is_text else rng.choice((hostile.text(rng), *_batches()))


class _Array:
    """Elements with their count."""

    def __init__(self, name: str, elements: "list[_Node] | None", *, flexible: bool) -> None:
        self.name, self.elements, self.flexible = name, elements, flexible
        self.count_written: int | None = None

    def encode(self) -> bytes:
        count = -1 if self.elements is None else len(self.elements)
        body = b""
        if self.elements:  # Elements that are repeated are one object, and encoded once.
            encoded: dict[int, bytes] = {}
            parts, size = list[bytes](), 0
            for each in self.elements:
                if id(each) not in encoded:
                    encoded[id(each)] = each.encode()
                size += len(encoded[id(each)])
                if size > ARRAY_BYTES_MAX:  # Repeated arrays of repeated arrays would take all memory of the test.
                    break
                parts.append(encoded[id(each)])
            count, body = len(parts), b"".join(parts)
        return _size(count if self.count_written is None else self.count_written, self.flexible, False) + body

    def mutate(self, rng: random.Random) -> None:
        kind = rng.random()
        if kind < 0.15:
            self.elements = None
        elif kind < 0.3:
            self.elements = []
        elif kind < 0.45:
            self.count_written = hostile.number(rng, 32)
        elif self.elements:
            self.elements = hostile.repeated(rng, self.elements)


@dataclass
class _Struct:
    name: str
    members: "list[_Node]"
    flexible: bool
    is_null: bool = False
    is_nullable: bool = False
    tags: bytes = field(default=b"\0")

    def encode(self) -> bytes:
        if self.is_null:
            return b"\xff"
        body = b"".join(member.encode() for member in self.members) + (self.tags if self.flexible else b"")
        return b"\x01" + body if self.is_nullable else body

    def mutate(self, rng: random.Random) -> None:
        if self.flexible:
            count = rng.choice((1, 2, 300))
            tag = uvarint(rng.choice((0, 1, 2, 9_999))) + uvarint(3) + b"abc"
            self.tags = uvarint(rng.choice((count, (1 << 32) - 1))) + tag * count
        elif self.is_nullable:
            self.is_null = not self.is_null


_Node = _Fixed | _Sized | _Array | _Struct


@dataclass
class Request:
    """One request of a Kafka client, before it is encoded."""

    key: ApiKey
    version: int
    body: _Struct

    def encode(self) -> bytes:
        tags = b"\0" if is_flexible(self.key, self.version) else b""
        return struct.pack(">hhih4s", self.key, self.version, CORRELATION_ID, 4, b"evil") + tags + self.body.encode()

    @property
    def is_answered(self) -> bool:
        """False for Produce with acks=0, the only request without an answer."""
        acks = next((each for each in self.body.members if each.name == "acks"), None)
        return not (isinstance(acks, _Fixed) and self.key == ApiKey.PRODUCE and acks.raw == b"\0\0")


def valid(key: ApiKey, version: int, values: dict[str, Any] | None = None) -> Request:
    """Return a valid request; `values` override VALUES."""
    merged = {**VALUES, **_OF_API.get(key, {}), **(values or {})}
    return Request(
        key, version, _struct("request", load_request_schema(key, version), merged, is_flexible(key, version))
    )


def mutate(request: Request, rng: random.Random) -> None:
    """Replace one field of the request."""
    hostile.pick(rng, list(_nodes(request.body))).mutate(rng)


def _nodes(node: _Node) -> Iterator[_Node]:
    yield node
    if isinstance(node, _Struct):
        for member in node.members:
            yield from _nodes(member)
    elif isinstance(node, _Array) and node.elements:
        yield from _nodes(node.elements[0])


# -- From the schema to a tree


_fields = cache(fields)
_schema = cache(load_request_schema)  # Because kio finds the schema by its name at each call.


def _struct(name: str, entity_type: Any, values: dict[str, Any], flexible: bool) -> _Struct:
    members = [_field(each, values, flexible) for each in _fields(entity_type) if "tag" not in each.metadata]
    return _Struct(name, members, flexible)


def _field(schema: Any, values: dict[str, Any], flexible: bool) -> _Node:
    kind, is_nullable = _without_none(schema.type)
    if get_origin(kind) is tuple:
        element, _ = _without_none(get_args(kind)[0])
        return _Array(schema.name, [_of_type(schema, element, values, flexible, is_nullable=False)], flexible=flexible)
    node = _of_type(schema, kind, values, flexible, is_nullable=is_nullable)
    if isinstance(node, _Struct):
        node.is_nullable = is_nullable
    return node


def _of_type(schema: Any, kind: Any, values: dict[str, Any], flexible: bool, *, is_nullable: bool) -> _Node:
    if is_dataclass(kind):
        return _struct(schema.name, kind, values, flexible)
    name, form = schema.name, schema.metadata["kafka_type"]
    value = values.get(name)
    if form in _FIXED_BYTES:
        return _Fixed(name, _FIXED_BYTES[form], value if isinstance(value, int) else 0)
    if form == "string":
        given = value.encode() if isinstance(value, str) else None if is_nullable and value is None else b""
        return _Sized(name, given, flexible=flexible, is_text=True)
    return _Sized(name, value if isinstance(value, bytes) else b"", flexible=flexible, is_text=False)


def _without_none(kind: Any) -> tuple[Any, bool]:
    if get_origin(kind) not in (UnionType, Union):
        return kind, False
    return next(part for part in get_args(kind) if part is not NoneType), True


def _size(size: int, flexible: bool, is_text: bool) -> bytes:
    if flexible:
        return uvarint(size + 1 & 0xFFFFFFFF)
    return (size & 0xFFFF).to_bytes(2, "big") if is_text else (size & 0xFFFFFFFF).to_bytes(4, "big")


# -- Batches


def _batches() -> tuple[bytes, ...]:
    """Batches that are valid, and invalid ones that only a check of their records finds."""
    global _made
    if not _made:
        many = [b"v"] * 300
        cron = [("AMQ_SCHEDULED_CRON", b"* * * * *")]
        _made = (
            batch([b"a"]),
            batch(many, codec=Codec.ZSTD),
            batch([b"a"], headers=[("TIMER_DELAY_MS", b"1000")]),
            batch(many, headers=cron, codec=Codec.ZSTD),
            batch([b"a"], producer=(1, 0, 0)),
            batch([b"a"], producer=(1, 0, 0), is_transactional=True),
            batch([b"a"], timestamp_ms=(1 << 62)),
            *(batch([b"a" * 100, b"b"], codec=codec) for codec in Codec),
        )
    return _made


_made: tuple[bytes, ...] = ()

_OF_API: dict[int, dict[str, Any]] = {
    ApiKey.PRODUCE: {"records": batch([b"a", b"b"]), "transactional_id": None},
    ApiKey.CREATE_TOPICS: {"name": "made", "assignments": None},
    ApiKey.JOIN_GROUP: {"name": "range", "metadata": b"\0\1\0\0\0\1\0\6orders\0\0\0\0"},
    ApiKey.SYNC_GROUP: {"assignment": b"x" * 40},
    ApiKey.DELETE_TOPICS: {"name": "doomed", "topic_names": "doomed"},
    ApiKey.DELETE_GROUPS: {"groups_names": "idle"},
    ApiKey.OFFSET_DELETE: {"group_id": "idle"},
    ApiKey.DESCRIBE_GROUPS: {"groups": "billing"},
    ApiKey.DESCRIBE_TRANSACTIONS: {"transactional_ids": "payments"},
}


def repeat(request: Request, name: str, count: int) -> None:
    """Repeat the element of the array with this name."""
    array = next(each for each in _nodes(request.body) if isinstance(each, _Array) and each.name == name)
    assert array.elements, f"{name} has no element to repeat"
    array.elements = array.elements * count


def with_crc(whole: bytearray) -> bytes:
    """Write the valid CRC into the batch."""
    struct.pack_into(">I", whole, 17, crc32c(bytes(whole[21:])))
    return bytes(whole)
