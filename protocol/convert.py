"""One stored form read as the other: RocketMQ records as a Kafka batch, a Kafka batch as RocketMQ records.

    Kafka record                     RocketMQ message
    value                            body; inflated for Kafka, never compressed for RocketMQ unless it is empty
    value null                       empty body and property __KAFKA_NULL = true
    key                              property KEYS, the whole text
    key that KEYS cannot hold        property __KAFKA_KEY = base64; of an empty key: =
    no key                           no KEYS
    header x                         property x with the same text
    header that x cannot hold        property __KAFKA_HEADER_n = name=base64, of a null value: name!
    headers left out                 named in property __KAFKA_OMITTED, separated by commas
    timestamp; none                  bornTimestamp; storeTimestamp
    LogAppendTime                    bornTimestamp = that time; and back: storeTimestamp, if the topic says so
    partition, offset                queue id, queue offset
    -                                physical offset: entry's position + offset in its batch (message ids), at most
                                     the entry's last position: more records than bytes share it
    -                                hosts: 127.0.0.1:0 was the sender, the broker stored it
    no header                        what steers clients and brokers: WAIT, CLUSTER, DELAY, ... (STEERING); but
                                     TIMER_OUT_MS, when a delayed message was due, is shown
    control batch                    nothing; its offsets pass

The one rule of escapes: a header becomes the property of its name if the name is not empty, occurs for the first time,
is neither KEYS nor one of STEERING nor begins with __KAFKA_, and name and value are text without the bytes 1 and 2,
the value not empty. Every other header becomes __KAFKA_HEADER_n, n being its place among the headers, and its name is
written as in a URL (%XX). Properties stand in the order of the headers, so the way back gives the same headers in the
same order.
    A message's properties have 32,767 bytes. Headers that do not fit, and a key, are left out, and __KAFKA_OMITTED
names them (KEYS: the key); the stored batch stays whole, Kafka's readers see all.

On the way to Kafka nothing is lost either. A body that does not inflate is the value as it lies there, and the header
__ROCKETMQ_SYS_FLAG has the flags that say how it is compressed.

Nothing here knows where frames lie. Raises ProtocolError for a frame that is none; what `rocketmq_records` gets are
records that `record_reader.read_records` has read.
"""

import struct
import zlib
from base64 import b64decode, b64encode
from binascii import Error as Base64Error
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple
from urllib.parse import quote, unquote

from duolog.protocol.errors import ProtocolError
from duolog.protocol.kafka.batch_builder import BatchBuilder, encoded_headers, with_header
from duolog.protocol.kafka.record_batch import TIMESTAMP_MS_MAX, Header, Record, stamp_log_append_time
from duolog.protocol.kafka.varint import varint
from duolog.protocol.rocketmq.messages import properties as names
from duolog.protocol.rocketmq.messages.compression import inflate_body
from duolog.protocol.rocketmq.messages.flags import COMPRESSED, STORE_HOST_V6
from duolog.protocol.rocketmq.messages.message import (
    MAGIC_V1,
    MAGIC_V2,
    NO_HOST,
    PROPERTIES_BYTES_MAX,
    TOPIC_BYTES_MAX_V1,
)

Buffer = bytes | bytearray | memoryview

KAFKA_NULL: Final = "__KAFKA_NULL"
KAFKA_KEY: Final = "__KAFKA_KEY"
KAFKA_HEADER: Final = "__KAFKA_HEADER_"
KAFKA_OMITTED: Final = "__KAFKA_OMITTED"
ROCKETMQ_SYS_FLAG: Final = "__ROCKETMQ_SYS_FLAG"
_ESCAPES: Final = "__KAFKA_"

# Properties that clients or brokers act upon or write themselves: MessageConst.java. Those not here are the user's,
# TAGS, UNIQ_KEY and __SHARDINGKEY among them.
# fmt: off
STEERING: Final = frozenset((
    "WAIT", "CLUSTER", "MSG_REGION", "TRACE_ON", "INSTANCE_ID", "TRACE_CONTEXT", "CONSUME_START_TIME",
    "BORN_TIMESTAMP", "__BORNHOST", "__CRC32#",
    "DELAY", "TIMER_DELIVER_MS", "TIMER_DELAY_MS", "TIMER_DELAY_SEC", "TIMER_OUT_MS", "TIMER_DEL_UNIQKEY",
    "TIMER_DELAY_LEVEL",
    "TIMER_ROLL_TIMES", "TIMER_ENQUEUE_MS", "TIMER_DEQUEUE_MS", "REAL_TOPIC", "REAL_QID",
    "TRAN_MSG", "PGROUP", "CHECK_IMMUNITY_TIME_IN_SECONDS", "TRANSACTION_CHECK_TIMES", "TRAN_PREPARED_QUEUE_OFFSET",
    "__transactionId__",
    "RETRY_TOPIC", "ORIGIN_MESSAGE_ID", "RECONSUME_TIME", "MAX_RECONSUME_TIMES", "POP_CK", "POP_CK_OFFSET",
    "1ST_POP_TIME",
    "MIN_OFFSET", "MAX_OFFSET", "INNER_NUM", "INNER_BASE", "INNER_MULTI_DISPATCH", "INNER_MULTI_QUEUE_OFFSET",
    "PROPERTY_FORWARD_QUEUE_ID", "TRANSFER_FLAG", "CORRECTION_FLAG", "MQ2_FLAG", "REDIRECT", "DUP_INFO",
    "EXTEND_UNIQ_INFO",
))
# fmt: on
_HIDDEN: Final = STEERING - {names.TIMER_OUT_MS}
_TRANSIENT: Final = "__RMQ.TRANSIENT."  # never stored by a RocketMQ broker

_NULL_PROPERTY: Final = f"{KAFKA_NULL}\x01true\x02".encode()
_NAMES_CACHED_MAX: Final = 4096  # each way; then the cache starts anew
_NAME_CACHED_CHARACTERS_MAX: Final = 64
_OMITTED_BYTES_MAX: Final = 1024  # of the names of what was left out
_EMPTY_KEY: Final = "="
_NO_HEADERS: Final = b"\0"


# -- RocketMQ's records as a Kafka batch


class Batched(NamedTuple):
    """A batch of the first `record_count` records; `met_fault`: it ends there, as the last one does not inflate."""

    batch: Buffer
    record_count: int
    met_fault: bool


def kafka_batch(
    records: Sequence[memoryview],
    base_offset: int,
    leader_epoch: int,
    *,
    bytes_max: int,
    inflate_bytes_max: int,
    log_append_time: bool = False,
) -> Batched:
    """Build one uncompressed batch of consecutive records.

    At least one; as many as fit into `bytes_max` once inflated. A body that does not inflate is given as it is and ends
    the batch, since it may have cost `inflate_bytes_max` to find out. With `log_append_time` all have the store time of
    the first, and the batch ends before a record of another. The same records always give the same bytes.
    """
    builder = BatchBuilder()
    append = builder.append_encoded
    store_ms = None
    met_fault = False
    for index, record in enumerate(records):
        if builder.size >= bytes_max and index:
            break  # Before a body is inflated for which there is no room.
        sys_flag, born_ms, stored_ms, body, raw = _open_record(record)
        if store_ms is None:
            store_ms = stored_ms
        elif log_append_time and stored_ms != store_ms:
            break
        key, is_null, headers = _kafka_parts(raw)
        value: Buffer | None = body
        if sys_flag & COMPRESSED:
            try:
                value = inflate_body(body, sys_flag, inflate_bytes_max)
            except ProtocolError:
                met_fault = True
                headers = with_header(headers, ROCKETMQ_SYS_FLAG, str(sys_flag).encode())
        if is_null and not value:
            value = None
        if index and builder.size + len(value or b"") + len(key or b"") + len(headers) > bytes_max:
            break
        append(index, stored_ms if log_append_time else born_ms, key, value, headers)
        if met_fault:
            break
    batch = builder.finish(base_offset, leader_epoch)
    if log_append_time and store_ms is not None:
        stamp_log_append_time(batch, 0, store_ms)
    return Batched(batch, builder.count, met_fault)


def kafka_record(frame: memoryview, offset: int, *, inflate_bytes_max: int, log_append_time: bool = False) -> Record:
    """Give one record as a Kafka client reads it out of `kafka_batch`; this takes half the time of both."""
    sys_flag, born_ms, stored_ms, body, raw = _open_record(frame)
    key, is_null, headers = _read_properties(raw)
    value: bytes | None = None
    if sys_flag & COMPRESSED:
        try:
            value = bytes(inflate_body(body, sys_flag, inflate_bytes_max))
        except ProtocolError:
            headers.append((ROCKETMQ_SYS_FLAG, str(sys_flag).encode()))
    if value is None:
        value = body.tobytes()
    timestamp_ms = stored_ms if log_append_time else born_ms
    if not -1 <= timestamp_ms <= TIMESTAMP_MS_MAX:
        timestamp_ms = min(max(timestamp_ms, -1), TIMESTAMP_MS_MAX)
    return Record(offset, timestamp_ms, key, None if is_null and not value else value, headers)


# What conversion needs of the part before the body, by sysFlag bits 4 and 5: flags, born, stored, size of the body.
_FIXED: Final = [
    struct.Struct(f">4xI28xiq{born}xq{store}x12xi") for born, store in ((8, 8), (20, 8), (8, 20), (20, 20))
]
_SYS_FLAG_LOW_BYTE_AT: Final = 39
_I32: Final = struct.Struct(">i")


def _open_record(record: memoryview) -> tuple[int, int, int, memoryview, bytes]:
    """Give (sysFlag, born, stored, body, properties) of one record."""
    try:
        fixed = _FIXED[record[_SYS_FLAG_LOW_BYTE_AT] >> 4 & 3]
        magic, sys_flag, born_ms, stored_ms, body_size = fixed.unpack_from(record)
        topic_at = fixed.size + body_size
        if magic == MAGIC_V1:
            at = topic_at + 1 + record[topic_at]
        elif magic == MAGIC_V2:
            at = topic_at + 2 + (record[topic_at] << 8 | record[topic_at + 1])
        else:
            raise ProtocolError(f"message with magic {magic:#x}")
        end = at + 2 + (record[at] << 8 | record[at + 1])
    except (struct.error, IndexError) as error:
        raise ProtocolError(f"no message in {len(record)} bytes: {error}") from None
    if body_size < 0 or end != len(record):
        raise ProtocolError(f"message of {len(record)} bytes with a body of {body_size} ends at {end}")
    return sys_flag, born_ms, stored_ms, record[fixed.size : topic_at], record[at + 2 :].tobytes()


def _kafka_parts(raw: bytes) -> tuple[bytes | None, bool, bytes]:
    """Give (key, whether the value is null, encoded headers) of one message's properties."""
    if not raw:
        return None, False, _NO_HEADERS
    if raw.find(b"__KAFKA_") >= 0:  # `in` takes twice as long.
        key, is_null, headers = _read_properties(raw)
        return key, is_null, encoded_headers(headers)
    pairs = _pairs(raw)
    key = pairs.pop(b"KEYS", None) or None
    parts = [b""]
    known = _header_names.get
    for name, value in pairs.items():
        header = known(name)
        if header is None:
            header = _header_name(name)
        if header and value:
            parts.append(header)
            parts.append(varint(len(value)))
            parts.append(value)
    parts[0] = varint(len(parts) // 3)
    return key, False, b"".join(parts)


def _read_properties(raw: bytes) -> tuple[bytes | None, bool, list[Header]]:
    """Give the same with headers that are not encoded."""
    if not raw:
        return None, False, []
    pairs = _pairs(raw)
    key = pairs.pop(b"KEYS", None) or None
    if raw.find(b"__KAFKA_") >= 0:
        is_null = pairs.pop(b"__KAFKA_NULL", None) == b"true"
        key = _unescaped_key(pairs.pop(b"__KAFKA_KEY", None), key)
        return key, is_null, _unescaped_headers(pairs)
    known = _header_texts.get
    headers: list[Header] = []
    for name, value in pairs.items():
        text = known(name)
        if text is None:
            text = _header_text(name)
        if text and value:
            headers.append((text, value))
    return key, False, headers


_MARKS: Final = b"\x01\x02"
_NO_MARKS: Final = bytes(byte for byte in range(256) if byte not in _MARKS)
_ALTERNATING: Final = _MARKS * (PROPERTIES_BYTES_MAX // 2 + 1)


def _pairs(raw: bytes) -> dict[bytes, bytes]:
    """Give a message's properties; a pair without 0x01 is as if it were not there."""
    marks = raw.translate(None, _NO_MARKS)
    if len(marks) & 1 == 0 and raw[-1] == 2 and _ALTERNATING.startswith(marks):
        flat = raw.replace(b"\x02", b"\x01").split(b"\x01")
        return dict(zip(flat[:-1:2], flat[1::2], strict=True))
    return dict([pair.split(b"\x01", 1) for pair in raw.split(b"\x02") if b"\x01" in pair])


_header_names: dict[bytes, bytes] = {}
_header_texts: dict[bytes, str] = {}


def _header_name(name: bytes) -> bytes:
    """Give a property's name as the key of a Kafka header, with its size; nothing, if no header shows it."""
    encoded = _header_text(name).encode()
    header = varint(len(encoded)) + encoded if encoded else b""
    if len(name) <= _NAME_CACHED_CHARACTERS_MAX:
        if len(_header_names) >= _NAMES_CACHED_MAX:
            _header_names.clear()
        _header_names[name] = header
    return header


def _header_text(name: bytes) -> str:
    """Give a property's name as that of a header; nothing, if no header shows it."""
    text = name.decode("utf-8", "replace")
    shown = "" if text in _HIDDEN or text.startswith(_TRANSIENT) else text
    if len(name) <= _NAME_CACHED_CHARACTERS_MAX:
        if len(_header_texts) >= _NAMES_CACHED_MAX:
            _header_texts.clear()
        _header_texts[name] = shown
    return shown


def _unescaped_key(escaped: bytes | None, key: bytes | None) -> bytes | None:
    if not escaped:
        return key
    if escaped == _EMPTY_KEY.encode():
        return b""
    try:
        return b64decode(escaped, validate=True)
    except Base64Error:
        return key  # Not written here: some client's own property.


def _unescaped_headers(pairs: dict[bytes, bytes]) -> list[Header]:
    """Give properties as headers, where some may be escaped ones."""
    headers: list[Header] = []
    for name, value in pairs.items():
        if not value:
            continue
        original = unescaped_header(name, value)
        if original is not None:
            headers.append(original)
        elif text := _header_text(name):
            headers.append((text, value))
    return headers


def unescaped_header(name: bytes, value: bytes) -> Header | None:
    """Give the header that was escaped so; None if this is none."""
    if not name.startswith(KAFKA_HEADER.encode()):
        return None
    quoted, sign, content = value.decode("utf-8", "replace").partition("=")
    try:
        if sign:
            return unquote(quoted), b64decode(content, validate=True)
    except (Base64Error, ValueError):
        return None
    return (unquote(quoted[:-1]), None) if quoted.endswith("!") else None


# -- A Kafka batch's records as RocketMQ's


class Place(NamedTuple):
    """What RocketMQ's records tell of the entry that their batch lies in."""

    topic: bytes  # as RocketMQ spells it
    queue_id: int
    base_offset: int
    position: int
    last_position: int
    stored_ms: int
    store_host: bytes


def rocketmq_records(records: Iterable[Record], place: Place) -> list[bytes]:
    """Encode each record as the RocketMQ record that a pull returns.

    One that exceeds what RocketMQ's format can say (a value of 2 GiB) cannot come out of a batch.
    """
    topic, queue_id, base_offset, position, last_position, stored_ms, store_host = place
    is_v1 = len(topic) <= TOPIC_BYTES_MAX_V1
    tail_head = (len(topic).to_bytes(1 if is_v1 else 2, "big")) + topic
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
# A Java client leaves a body of no bytes null, and the push consumer of 4.9 then dies of it, message after message
# (ProcessQueue.java#putMessage). What inflates to nothing is an empty array to every client.
_EMPTY_BODY: Final = zlib.compress(b"")


def properties_of(record: Record) -> bytes:
    """Give the properties that a RocketMQ consumer filters this record by."""
    _, _, key, value, headers = record
    return _property_string(key, value, headers)


def _property_string(key: bytes | None, value: bytes | None, headers: Sequence[Header]) -> bytes:
    """Encode key, null value and headers as properties."""
    # First as if nothing needed an escape; one look at the whole then says whether that was so.
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
        parts.append(_NULL_PROPERTY)
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
    """Give a header's name as that of a property, with its end; nothing, if it must be escaped."""
    encoded = name.encode("utf-8", "replace")
    is_free = name not in STEERING and name != names.KEYS and not name.startswith((_ESCAPES, _TRANSIENT))
    prefix = encoded + b"\x01" if is_free and name and _is_plain(encoded) else b""
    if len(name) <= _NAME_CACHED_CHARACTERS_MAX:
        if len(_property_names) >= _NAMES_CACHED_MAX:
            _property_names.clear()
        _property_names[name] = prefix
    return prefix


def _is_plain(text: bytes) -> bool:
    """Say whether a property can hold these bytes as they are."""
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
    return b"%b\x01%b\x02" % (KAFKA_KEY.encode(), b64encode(key) or _EMPTY_KEY.encode())


def _escaped_header(index: int, name: str, content: bytes | None) -> bytes:
    quoted = quote(name, safe="", errors="replace")
    value = quoted + "!" if content is None else f"{quoted}={b64encode(content).decode()}"
    return f"{KAFKA_HEADER}{index}\x01{value}\x02".encode()


def _shortened(key: bytes | None, value: bytes | None, headers: Sequence[Header], parts: list[bytes]) -> bytes:
    """Leave out what does not fit and name it; the earlier comes first, and what is small is not lost to a giant."""
    labels = [names.KEYS] if key is not None else []
    labels += [""] if value is None else []
    labels += [name for name, _ in headers]
    room = PROPERTIES_BYTES_MAX - _OMITTED_BYTES_MAX
    kept, omitted = [], []
    for label, part in zip(labels, parts, strict=True):
        if len(part) <= room:
            room -= len(part)
            kept.append(part)
        else:
            omitted.append(quote(label, safe="", errors="replace"))
    named = ",".join(omitted)[: _OMITTED_BYTES_MAX - len(KAFKA_OMITTED) - 2]
    return b"".join((*kept, f"{KAFKA_OMITTED}\x01{named}\x02".encode()))
