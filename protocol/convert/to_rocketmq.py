"""Converts the records of a Kafka batch to RocketMQ records (`mapping.py`)."""

import struct
import zlib
from base64 import b64encode
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple
from urllib.parse import quote

from duolog.protocol.convert.mapping import (
    EMPTY_KEY,
    ESCAPES,
    KAFKA_HEADER,
    KAFKA_KEY,
    KAFKA_OMITTED,
    NAME_CACHED_CHARACTERS_MAX,
    NAMES_CACHED_MAX,
    NULL_PROPERTY,
    OMITTED_BYTES_MAX,
    STEERING,
    TRANSIENT,
)
from duolog.protocol.kafka.record_batch import Header, Record
from duolog.protocol.rocketmq.messages import properties as names
from duolog.protocol.rocketmq.messages.flags import COMPRESSED, STORE_HOST_V6
from duolog.protocol.rocketmq.messages.message import (
    MAGIC_V1,
    MAGIC_V2,
    NO_HOST,
    PROPERTIES_BYTES_MAX,
    TOPIC_BYTES_MAX_V1,
)


class Place(NamedTuple):
    """The queue and the entry of a batch, from which the fields of its RocketMQ records are computed."""

    topic: bytes  # In RocketMQ's spelling.
    queue_id: int
    base_offset: int
    position: int
    last_position: int
    stored_ms: int
    store_host: bytes


def rocketmq_records(records: Iterable[Record], place: Place) -> list[bytes]:
    """Convert each record of a batch to the RocketMQ record that a pull returns.

    A record of a batch never exceeds the limits of RocketMQ's format, such as 2 GiB for a value.
    """
    topic, queue_id, base_offset, position, last_position, stored_ms, store_host = place
    is_v1 = len(topic) <= TOPIC_BYTES_MAX_V1
    tail_head = len(topic).to_bytes(1 if is_v1 else 2, "big") + topic
    pack = _PACKS[len(store_host) == 20].pack
    sys_flag = STORE_HOST_V6 if len(store_host) == 20 else 0
    fixed_size = _PACKS[len(store_host) == 20].size + len(tail_head) + 2
    crc32 = zlib.crc32
    magic = MAGIC_V1 if is_v1 else MAGIC_V2
    encoded: list[bytes] = []
    for offset, timestamp_ms, key, value, headers in records:
        raw = _property_string(key, value, headers) if key is not None or value is None or headers else b""
        body = value or _EMPTY_BODY
        head = pack(
            fixed_size + len(body) + len(raw),
            magic,
            crc32(body) & 0x7FFFFFFF,
            queue_id,
            0,
            offset,
            address if (address := position + offset - base_offset) < last_position else last_position,
            sys_flag if value else sys_flag | COMPRESSED,
            timestamp_ms if timestamp_ms >= 0 else stored_ms,
            NO_HOST,
            stored_ms,
            store_host,
            0,
            0,
            len(body),
        )
        encoded.append(b"".join((head, body, tail_head, len(raw).to_bytes(2, "big"), raw)))
    return encoded


_PACKS: Final = [struct.Struct(f">iIIiiqqiq8sq{store}siqi") for store in (8, 20)]
# A Java client decodes a body of 0 bytes as null, and the push consumer of 4.9 then fails for each message
# (ProcessQueue.java#putMessage). All clients decode a compressed empty body as an empty array.
_EMPTY_BODY: Final = zlib.compress(b"")


def properties_of(record: Record) -> bytes:
    """Return the properties of a record, by which subscriptions of RocketMQ consumers are evaluated."""
    _, _, key, value, headers = record
    return _property_string(key, value, headers)


def _property_string(key: bytes | None, value: bytes | None, headers: Sequence[Header]) -> bytes:
    """Encode key, null value and headers as properties."""
    # The properties are first encoded without escapes, and one check of the result then shows whether any is needed.
    parts = [] if key is None else [b"KEYS\x01", key, b"\x02"]
    known = _property_names.get
    for name, content in headers:
        prefix = known(name)
        if prefix is None:
            prefix = _property_name(name)
        if not prefix or not content:
            break
        parts += (prefix, content, b"\x02")
    else:
        raw = b"".join(parts)
        count = len(parts) // 3
        is_plain = raw.count(1) == count and raw.count(2) == count and raw.isascii()
        is_unique = len(headers) < 2 or len({name for name, _ in headers}) == len(headers)
        if is_plain and is_unique and key != b"" and value is not None and len(raw) <= PROPERTIES_BYTES_MAX:
            return raw
    return _escaped_property_string(key, value, headers)


def _escaped_property_string(key: bytes | None, value: bytes | None, headers: Sequence[Header]) -> bytes:
    parts = []
    if key is not None:
        parts.append(_key_property(key))
    if value is None:
        parts.append(NULL_PROPERTY)
    seen: set[str] = set()
    for index, (name, content) in enumerate(headers):
        prefix = _property_name(name)
        if prefix and name not in seen and content and _is_plain(content):
            parts.append(prefix + content + b"\x02")
        else:
            parts.append(_escaped_header(index, name, content))
        seen.add(name)
    raw = b"".join(parts)
    return raw if len(raw) <= PROPERTIES_BYTES_MAX else _shortened(key, value, headers, parts)


_property_names: dict[str, bytes] = {}


def _property_name(name: str) -> bytes:
    """Return the encoded property name of a header, with its end byte; empty if the header must be escaped."""
    encoded = name.encode("utf-8", "replace")
    is_free = name not in STEERING and name != names.KEYS and not name.startswith((ESCAPES, TRANSIENT))
    prefix = encoded + b"\x01" if is_free and name and _is_plain(encoded) else b""
    if len(name) <= NAME_CACHED_CHARACTERS_MAX:
        if len(_property_names) >= NAMES_CACHED_MAX:
            _property_names.clear()
        _property_names[name] = prefix
    return prefix


def _is_plain(text: bytes) -> bool:
    """Return whether a property can contain these bytes without an escape."""
    if b"\x01" in text or b"\x02" in text:
        return False
    if text.isascii():
        return True
    try:
        text.decode()
    except UnicodeDecodeError:
        return False
    return True


def _key_property(key: bytes) -> bytes:
    if key and _is_plain(key):
        return b"KEYS\x01%b\x02" % key
    return b"%b\x01%b\x02" % (KAFKA_KEY.encode(), b64encode(key) or EMPTY_KEY.encode())


def _escaped_header(index: int, name: str, content: bytes | None) -> bytes:
    quoted = quote(name, safe="", errors="replace")
    value = quoted + "!" if content is None else f"{quoted}={b64encode(content).decode()}"
    return f"{KAFKA_HEADER}{index}\x01{value}\x02".encode()


def _shortened(key: bytes | None, value: bytes | None, headers: Sequence[Header], parts: list[bytes]) -> bytes:
    """Omit the key and the headers that do not fit, and add their names. Earlier ones have precedence.

    A large header that does not fit does not prevent later small ones from being included.
    """
    labels = [names.KEYS] if key is not None else []
    labels += [""] if value is None else []
    labels += [name for name, _ in headers]
    room = PROPERTIES_BYTES_MAX - OMITTED_BYTES_MAX
    kept, omitted = [], []
    for label, part in zip(labels, parts, strict=True):
        if len(part) <= room:
            room -= len(part)
            kept.append(part)
        else:
            omitted.append(quote(label, safe="", errors="replace"))
    named = ",".join(omitted)[: OMITTED_BYTES_MAX - len(KAFKA_OMITTED) - 2]
    return b"".join((*kept, f"{KAFKA_OMITTED}\x01{named}\x02".encode()))
