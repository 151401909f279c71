"""The messages that a test writes and a reader sees, in terms of neither protocol.

A `Message` has its form in both protocols; `Seen` is what came out at a reader, brought back to the same words by the
mapping of `protocol/convert/`. Bodies are compared by fingerprint (`<size>:<sha1>`), because a megabyte through every
pair of clients would be most of the test's time.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import unquote

HEAD_BYTES = 64

Position = tuple[int, int]  # queue, offset
Headers = Sequence[tuple[str, bytes | None]]  # RocketMQ has no null among its properties


@dataclass(frozen=True, slots=True)
class Message:
    """One message to write. RocketMQ has no null body and takes no timestamp from its sender."""

    body: bytes | None
    queue: int = 0
    key: bytes | None = None
    headers: tuple[tuple[str, bytes | None], ...] = ()
    tags: str | None = None
    timestamp_ms: int | None = None

    @property
    def kafka_headers(self) -> list[tuple[str, bytes | None]]:
        """Headers as a Kafka client sends them: the tags are one of them."""
        return list(self.headers) if self.tags is None else [*self.headers, ("TAGS", self.tags.encode())]

    def as_kafka_json(self) -> dict[str, Any]:
        return self._json(self.kafka_headers) | {"timestamp_ms": self.timestamp_ms}

    def as_rocketmq_json(self) -> dict[str, Any]:
        return self._json(self.headers) | {"tags": self.tags}

    def _json(self, headers: Headers) -> dict[str, Any]:
        return {
            "body": encode(self.body),
            "key": encode(self.key),
            "queue": self.queue,
            "headers": [{"name": name, "value": encode(value)} for name, value in headers],
        }


@dataclass(frozen=True, slots=True)
class Seen:
    """One message as a reader got it."""

    topic: str
    queue: int
    offset: int
    fingerprint: str | None  # None: a null body
    head: bytes  # the body's first bytes
    key: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]
    tags: str | None
    timestamp_ms: int
    inner: Mapping[str, str] = field(default_factory=dict)  # Properties that the protocol's client added.

    @property
    def position(self) -> Position:
        return self.queue, self.offset

    @property
    def text(self) -> str:
        """The body of a short message."""
        return self.head.decode()


def fingerprint(body: bytes | None) -> str | None:
    return None if body is None else f"{len(body)}:{hashlib.sha1(body).hexdigest()}"


def encode(value: bytes | None) -> str | None:
    return None if value is None else base64.b64encode(value).decode()


def decode(value: str | None) -> bytes | None:
    return None if value is None else base64.b64decode(value)


# -- What a Kafka reader saw

# Names that RocketMQ's client or broker gives to a message, not its sender. Kafka readers see them as headers.
ROCKETMQ_OWN_HEADERS = frozenset({"UNIQ_KEY", "__SHARDINGKEY", "MSG_REGION", "TRACE_ON", "INSTANCE_ID"})


def seen_by_kafka(
    topic: str,
    queue: int,
    offset: int,
    key: bytes | None,
    value: bytes | None,
    headers: Headers,
    timestamp_ms: int,
) -> Seen:
    """What a Python client saw."""
    return seen_by_fingerprint(
        topic, queue, offset, key, fingerprint(value), (value or b"")[:HEAD_BYTES], headers, timestamp_ms
    )


def seen_by_kafka_json(seen: Mapping[str, Any]) -> Seen:
    """What the Java client saw, from its agent's JSON."""
    return seen_by_fingerprint(
        seen["topic"],
        seen["queue"],
        seen["offset"],
        decode(seen["key"]),
        seen["fingerprint"],
        decode(seen["head"]) or b"",
        [(header["name"], decode(header["value"])) for header in seen["headers"]],
        seen["timestamp_ms"],
    )


def seen_by_fingerprint(
    topic: str,
    queue: int,
    offset: int,
    key: bytes | None,
    mark: str | None,
    head: bytes,
    headers: Headers,
    timestamp_ms: int,
) -> Seen:
    """What a client saw that gave the body's fingerprint only."""
    tags = next((value.decode() for name, value in headers if name == "TAGS" and value is not None), None)
    own = {name: (value or b"").decode() for name, value in headers if name in ROCKETMQ_OWN_HEADERS}
    others = tuple((name, value) for name, value in headers if name != "TAGS" and name not in ROCKETMQ_OWN_HEADERS)
    return Seen(topic, queue, offset, mark, head, key, others, tags, timestamp_ms, own)


# -- What a RocketMQ reader saw

ROCKETMQ_OWN_PROPERTIES = ROCKETMQ_OWN_HEADERS | {"WAIT", "CLUSTER", "MIN_OFFSET", "MAX_OFFSET", "CONSUME_START_TIME"}
KAFKA_NULL, KAFKA_KEY, KAFKA_HEADER = "__KAFKA_NULL", "__KAFKA_KEY", "__KAFKA_HEADER_"


def seen_by_rocketmq_json(seen: Mapping[str, Any]) -> Seen:
    """What the Java client saw, from its agent's JSON; undoes what the conversion puts into properties."""
    properties: dict[str, str] = seen["properties"]
    spelled = {"TAGS", "KEYS", KAFKA_NULL, KAFKA_KEY, *ROCKETMQ_OWN_PROPERTIES}
    return Seen(
        seen["topic"],
        seen["queue"],
        seen["offset"],
        None if KAFKA_NULL in properties else seen["fingerprint"],
        decode(seen["head"]) or b"",
        _key_of(properties),
        tuple(_header_of(name, value) for name, value in properties.items() if name not in spelled),
        properties.get("TAGS"),
        seen["born_ms"],
        {name: value for name, value in properties.items() if name in ROCKETMQ_OWN_PROPERTIES},
    )


def _key_of(properties: Mapping[str, str]) -> bytes | None:
    if KAFKA_KEY in properties:
        return b"" if properties[KAFKA_KEY] == "=" else decode(properties[KAFKA_KEY])
    return properties["KEYS"].encode() if "KEYS" in properties else None


def _header_of(name: str, value: str) -> tuple[str, bytes | None]:
    if not name.startswith(KAFKA_HEADER):
        return name, value.encode()
    quoted, is_bytes, content = value.partition("=")
    return (unquote(quoted), decode(content)) if is_bytes else (unquote(quoted.removesuffix("!")), None)
