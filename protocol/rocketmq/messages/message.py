"""RocketMQ's message record: the frame that the log stores, a pull returns, and a check-back contains.

Integers are big-endian. The byte offsets are for IPv4 hosts; fields after an IPv6 host are 12 bytes later:

      0  total size i32 | magic u32 | body CRC u32 | queue id i32 | flag i32
     20  queue offset i64 | physical offset i64 | sysFlag i32
     40  born timestamp i64 | born host: ip, port i32 | store timestamp i64 | store host: ip, port i32
     72  reconsume times i32 | prepared transaction offset i64
     84  body length i32 | body | topic length u8 | topic | properties length i16 | properties

* The magic is V1, or V2 for a topic of more than 127 bytes, whose length is an i16. The Go client reads V1 only.
* The body CRC is the CRC-32 of the body as it is stored, compressed or not, without its highest bit.
* Times are epoch milliseconds. `flags.py` has the bits of sysFlag, `properties.py` the property string, `message_id.py`
  the encoding of hosts.
* Clients decode all fields and do not use the total size to skip. If a length is wrong, Java clients drop the remaining
  messages of a pull without an error. Therefore `decode` requires that all lengths agree.

The body of a pull answer is a sequence of records.
Source: `MessageDecoder.java`, `MessageExtEncoder.java`.
"""

import struct
import zlib
from typing import Final

import msgspec

from duolog.protocol.errors import ProtocolError
from duolog.protocol.rocketmq.messages.flags import (
    BORN_HOST_V6,
    STORE_HOST_V6,
    TRANSACTION_COMMIT,
    TRANSACTION_MASK,
)

Buffer = bytes | bytearray | memoryview

MAGIC_V1: Final = 0xDAA320A7
MAGIC_V2: Final = 0xDAA320AB
TOPIC_BYTES_MAX_V1: Final = 127
TOPIC_BYTES_MAX: Final = 255
PROPERTIES_BYTES_MAX: Final = 32767
RECONSUME_TIMES_MAX: Final = (1 << 31) - 1
BODY_BYTES_MAX: Final = 16 << 20  # A larger record would exceed the largest remoting frame.
NO_HOST: Final = b"\x7f\x00\x00\x01\x00\x00\x00\x00"
"""127.0.0.1:0, the host of messages that were not sent by a RocketMQ client."""


class Message(msgspec.Struct):
    """One decoded message. `body` may be compressed (`compression.inflate_body`).

    `encode` computes size and body CRC, and ignores these two fields; it also sets the two host bits of sysFlag. The
    class has more than 15 fields because each is a field of RocketMQ's stored message.
    """

    topic: str
    body: Buffer
    properties: bytes = b""
    queue_id: int = 0
    flag: int = 0
    queue_offset: int = 0
    physical_offset: int = 0
    sys_flag: int = 0
    born_ms: int = 0
    born_host: bytes = NO_HOST
    store_ms: int = 0
    store_host: bytes = NO_HOST
    reconsume_times: int = 0
    prepared_transaction_offset: int = 0
    size: int = 0
    body_crc: int = 0


# -- Writing


def encode(message: Message) -> bytearray:
    """Encode one record. Raises ProtocolError if a field exceeds the limits of the format."""
    writer = Writer(message.topic, message.queue_id, message.store_host)
    return bytearray().join(writer.pieces(message))


class Writer:
    """Encodes records of one queue. Topic, queue id and store host are encoded once, and not taken from a Message."""

    __slots__ = ("_magic", "_queue_id", "_store_host", "_store_host_bit", "_topic")

    def __init__(self, topic: str, queue_id: int, store_host: bytes) -> None:
        """Raises ProtocolError for a topic that exceeds the format."""
        self._magic, self._topic = _topics.get(topic) or _encode_topic(topic)
        self._queue_id = queue_id
        self._store_host = store_host
        self._store_host_bit = STORE_HOST_V6 if len(store_host) == 20 else 0

    def pieces(self, message: Message) -> tuple[bytes, Buffer, bytes]:
        """Encode one record as (bytes before the body, the body itself, bytes after the body).

        Raises ProtocolError if a field exceeds the limits of the format.
        """
        body, properties, born_host = message.body, message.properties, message.born_host
        body_bytes, properties_bytes = len(body), len(properties)
        if properties_bytes > PROPERTIES_BYTES_MAX or body_bytes > BODY_BYTES_MAX:
            raise ProtocolError(
                f"message too large: properties {properties_bytes}, body {body_bytes} bytes; allowed are "
                f"{PROPERTIES_BYTES_MAX}, {BODY_BYTES_MAX}"
            )
        tail = self._topic + _U16.pack(properties_bytes) + properties
        sys_flag = message.sys_flag & _NO_HOST_BITS | self._store_host_bit
        if len(born_host) == 20:
            sys_flag |= BORN_HOST_V6
        head = _HEADS[sys_flag >> 4 & 3]
        return (
            head.pack(
                head.size + body_bytes + len(tail),
                self._magic,
                zlib.crc32(body) & 0x7FFFFFFF,
                self._queue_id,
                message.flag,
                message.queue_offset,
                message.physical_offset,
                sys_flag,
                message.born_ms,
                born_host,
                message.store_ms,
                self._store_host,
                message.reconsume_times,
                message.prepared_transaction_offset,
                body_bytes,
            ),
            body,
            tail,
        )


def outline_of(record: bytes) -> tuple[int, int, int, int]:
    """Return (born time, store time, index of the topic's length, index of the properties) of a record.

    `Readdresser.write` and `committed` need these values. Raises ProtocolError.
    """
    try:
        outline = _OUTLINES[record[_SYS_FLAG_LOW_BYTE_AT] >> 4 & 3]
        magic, born_ms, store_ms, body_bytes = outline.unpack_from(record)
        topic_at = outline.size + body_bytes
        if magic == MAGIC_V1:
            properties_at = topic_at + 3 + record[topic_at]
        else:
            properties_at = topic_at + 4 + _U16.unpack_from(record, topic_at)[0]
    except (struct.error, IndexError) as error:
        raise ProtocolError(f"no message in {len(record)} bytes: {error}") from None
    if not outline.size <= topic_at < properties_at <= len(record):
        raise ProtocolError(f"message of {len(record)} bytes with a topic at {topic_at}")
    return born_ms, store_ms, topic_at, properties_at


class Readdresser:
    """Encodes copies of records for another queue, with other properties. Topic and queue id are encoded once."""

    __slots__ = (
        "_magic", "_queue_id", "_raw_queue_id", "_store_host", "_store_host_bit", "_topic", "_topic_name"
    )  # fmt: skip

    def __init__(self, topic: str, queue_id: int, store_host: bytes) -> None:
        """Raises ProtocolError for a topic that exceeds the format."""
        self._magic, self._topic = _topics.get(topic) or _encode_topic(topic)
        self._topic_name, self._queue_id, self._store_host = topic, queue_id, store_host
        self._store_host_bit = STORE_HOST_V6 if len(store_host) == 20 else 0
        self._raw_queue_id = queue_id.to_bytes(4, "big")

    def write(self, record: bytes, topic_at: int, properties: bytes) -> bytes:
        """Return a copy of a record; `topic_at` is from `outline_of`. Raises ProtocolError for too long properties."""
        store_host = self._store_host
        sys_flag = record[_SYS_FLAG_LOW_BYTE_AT]
        host_at = _STORE_MS_AT + 8 + (12 if sys_flag & BORN_HOST_V6 else 0)
        has_same_host = sys_flag & STORE_HOST_V6 == self._store_host_bit and record.startswith(store_host, host_at)
        # The store host is different only if the broker's address was changed since the record was stored.
        if not has_same_host or len(properties) > PROPERTIES_BYTES_MAX:
            message = decode(record)
            message.properties = properties
            return b"".join(Writer(self._topic_name, self._queue_id, store_host).pieces(message))
        topic, properties_bytes = self._topic, len(properties)
        return b"".join(
            (
                _SIZE_AND_MAGIC.pack(topic_at + len(topic) + 2 + properties_bytes, self._magic),
                record[8:_QUEUE_ID_AT],
                self._raw_queue_id,
                record[_QUEUE_ID_AT + 4 : topic_at],
                topic,
                _U16.pack(properties_bytes),
                properties,
            )
        )


def committed(record: bytes, topic_at: int, topic: str, queue_id: int, properties: bytes, store_host: bytes) -> bytes:
    """Return the record that the commit of a half message appends to the message's own topic and queue.

    `topic_at` is from `outline_of`. The position of the half message becomes the prepared transaction offset. Raises
    ProtocolError for too long properties.
    """
    head = _HEADS[record[_SYS_FLAG_LOW_BYTE_AT] >> 4 & 3]
    (
        _, _, body_crc, _, flag, _, physical_offset, sys_flag, born_ms, born_host, store_ms, _, reconsume_times, _,
        body_bytes,
    ) = head.unpack_from(record)  # fmt: skip
    sys_flag = sys_flag & _NO_STORE_HOST_BIT & ~TRANSACTION_MASK | TRANSACTION_COMMIT
    if len(store_host) == 20:
        sys_flag |= STORE_HOST_V6
    head = _HEADS[sys_flag >> 4 & 3]
    magic, encoded_topic = _topics.get(topic) or _encode_topic(topic)
    if len(properties) > PROPERTIES_BYTES_MAX:
        raise ProtocolError(f"message too large: properties {len(properties)}; allowed are {PROPERTIES_BYTES_MAX}")
    tail = encoded_topic + _U16.pack(len(properties)) + properties
    size = head.size + body_bytes + len(tail)
    start = head.pack(
        size, magic, body_crc, queue_id, flag, 0, 0, sys_flag, born_ms, born_host, store_ms, store_host,
        reconsume_times, physical_offset, body_bytes,
    )  # fmt: skip
    return b"".join((start, record[topic_at - body_bytes : topic_at], tail))


def born_ms_of(buffer: Buffer, at: int = 0) -> int:
    return _read(_I64, buffer, at + _BORN_MS_AT)


def body_bytes_of(buffer: Buffer) -> int:
    return _read(_I32, buffer, _HEADS[buffer[_SYS_FLAG_LOW_BYTE_AT] >> 4 & 3].size - 4)


def store_ms_of(buffer: Buffer, at: int = 0) -> int:
    return _read(_I64, buffer, at + _STORE_MS_AT + (12 if buffer[at + _SYS_FLAG_LOW_BYTE_AT] & BORN_HOST_V6 else 0))


# Topic -> (magic, encoded topic with its length).
_topics: dict[str, tuple[int, bytes]] = {}
_TOPICS_CACHED_MAX: Final = 4096  # A cache with so many topics is cleared.


def _encode_topic(name: str) -> tuple[int, bytes]:
    topic = name.encode()
    if len(topic) > TOPIC_BYTES_MAX:
        raise ProtocolError(f"message too large: topic of {len(topic)} bytes; allowed are {TOPIC_BYTES_MAX}")
    if len(topic) <= TOPIC_BYTES_MAX_V1:
        encoded = MAGIC_V1, _TOPIC_LENGTH_V1[len(topic)] + topic
    else:
        encoded = MAGIC_V2, _U16.pack(len(topic)) + topic
    if len(_topics) >= _TOPICS_CACHED_MAX:
        _topics.clear()
    _topics[name] = encoded
    return encoded


def stamp(buffer: bytearray | memoryview, at: int, place: tuple[int, int, int]) -> None:
    """Write the values that are known only at the append into the record at `buffer[at]`. No CRC covers them.

    `place` is (physical offset, queue offset, store timestamp).
    """
    physical_offset, queue_offset, store_ms = place
    _OFFSETS.pack_into(buffer, at + _QUEUE_OFFSET_AT, queue_offset, physical_offset)
    store_ms_at = at + _STORE_MS_AT
    if buffer[at + _SYS_FLAG_LOW_BYTE_AT] & BORN_HOST_V6:
        store_ms_at += 12
    _I64.pack_into(buffer, store_ms_at, store_ms)


# -- Reading


def decode(buffer: Buffer, at: int = 0) -> Message:
    """Decode the record at `buffer[at]`. Its body is a slice of `buffer`, which is no copy if that is a memoryview.

    Raises ProtocolError unless all lengths agree with the total size. The CRC of the body is not verified, as in
    clients.
    """
    try:
        (
            size,
            magic,
            body_crc,
            queue_id,
            flag,
            queue_offset,
            physical_offset,
            sys_flag,
            born_ms,
            born_host,
            store_ms,
            store_host,
            reconsume_times,
            prepared_transaction_offset,
            body_length,
        ) = (head := _HEADS[buffer[at + _SYS_FLAG_LOW_BYTE_AT] >> 4 & 3]).unpack_from(buffer, at)
        body_at = at + head.size
        topic_at, properties_at, end = _spans(buffer, magic, body_at, body_length)
        if end - at != size or end > len(buffer):
            raise ProtocolError(
                f"message at {at} claims {size} bytes, its fields take {end - at} of {len(buffer) - at}"
            )
        return Message(
            str(buffer[topic_at : properties_at - 2], "utf-8"),
            buffer[body_at : body_at + body_length],
            bytes(buffer[properties_at:end]),
            queue_id,
            flag,
            queue_offset,
            physical_offset,
            sys_flag,
            born_ms,
            born_host,
            store_ms,
            store_host,
            reconsume_times,
            prepared_transaction_offset,
            size,
            body_crc,
        )
    except (struct.error, IndexError, UnicodeDecodeError) as error:
        raise ProtocolError(f"no message at {at} of {len(buffer)} bytes: {error}") from None


def decode_all(buffer: Buffer) -> list[Message]:
    """Decode the records of a pull answer. Raises ProtocolError if one is malformed or further bytes follow."""
    messages = []
    at = 0
    while at < len(buffer):
        message = decode(buffer, at)
        messages.append(message)
        at += message.size
    return messages


def is_body_intact(message: Message) -> bool:
    """Return whether the body has the CRC that is stored in the record."""
    return zlib.crc32(message.body) & 0x7FFFFFFF == message.body_crc


# -- Reading one field of a stored record. These functions raise ProtocolError if the record is too short.


def queue_offset_of(buffer: Buffer, at: int = 0) -> int:
    return _read(_I64, buffer, at + _QUEUE_OFFSET_AT)


def physical_offset_of(buffer: Buffer, at: int = 0) -> int:
    return _read(_I64, buffer, at + _PHYSICAL_OFFSET_AT)


def size_of(buffer: Buffer, at: int = 0) -> int:
    """Return the size of the record in bytes."""
    return _read(_I32, buffer, at)


def body_of(buffer: Buffer, at: int = 0) -> Buffer:
    body_at, _, _ = _places(buffer, at)
    return buffer[body_at : body_at + _read(_I32, buffer, body_at - 4)]


def properties_of(buffer: Buffer, at: int = 0) -> bytes:
    _, properties_at, end = _places(buffer, at)
    return bytes(buffer[properties_at:end])


def stored_properties_of(buffer: Buffer) -> bytes:
    """Return the same as `properties_of`, in less time for records with IPv4 hosts and magic V1."""
    try:
        magic, sys_flag, body_length = _SHORT_HEAD.unpack_from(buffer)
        if magic == MAGIC_V1 and not sys_flag & (BORN_HOST_V6 | STORE_HOST_V6) and body_length >= 0:
            topic_at = _SHORT_HEAD.size + body_length
            properties_at = topic_at + 3 + buffer[topic_at]
            return bytes(buffer[properties_at : properties_at + _U16.unpack_from(buffer, properties_at - 2)[0]])
    except (struct.error, IndexError):
        pass  # `properties_of` raises the error.
    return properties_of(buffer)


# -- Layout

_I32 = struct.Struct(">i")
_I64 = struct.Struct(">q")
_U32 = struct.Struct(">I")
_U16 = struct.Struct(">H")
_SIZE_AND_MAGIC = struct.Struct(">iI")
_OFFSETS = struct.Struct(">qq")
_NO_HOST_BITS = ~(BORN_HOST_V6 | STORE_HOST_V6)
_NO_STORE_HOST_BIT = ~STORE_HOST_V6
_TOPIC_LENGTH_V1 = [bytes((length,)) for length in range(TOPIC_BYTES_MAX_V1 + 1)]

# The fields before the body, by bits 4 (born host is IPv6) and 5 (store host is IPv6) of sysFlag.
_HOSTS = ((8, 8), (20, 8), (8, 20), (20, 20))
_HEADS = [struct.Struct(f">iIIiiqqiq{born}sq{store}siqi") for born, store in _HOSTS]
_OUTLINES = [
    struct.Struct(f">4xI32xq{born}xq{store}x12xi") for born, store in _HOSTS
]  # What `outline_of` reads of these.
_SHORT_HEAD = struct.Struct(">4xI28xi44xi")  # magic, sysFlag, and the length of the body
_MAGIC_AT = 4
_QUEUE_ID_AT = 12
_QUEUE_OFFSET_AT = 20
_PHYSICAL_OFFSET_AT = 28
_SYS_FLAG_LOW_BYTE_AT = 39
_BORN_MS_AT = 40
_STORE_MS_AT = 56


def _spans(buffer: Buffer, magic: int, body_at: int, body_length: int) -> tuple[int, int, int]:
    """Return (index of the topic, index of the properties, index after the record)."""
    topic_at = body_at + body_length
    if body_length < 0:
        raise ProtocolError(f"message with a body of {body_length} bytes")
    if magic == MAGIC_V1:
        topic_length = buffer[topic_at]
        topic_at += 1
    elif magic == MAGIC_V2:
        (topic_length,) = _U16.unpack_from(buffer, topic_at)
        topic_at += 2
    else:
        raise ProtocolError(f"message with magic {magic:#x}; known are {MAGIC_V1:#x} and {MAGIC_V2:#x}")
    properties_at = topic_at + topic_length + 2
    (properties_length,) = _U16.unpack_from(buffer, properties_at - 2)
    if properties_length > PROPERTIES_BYTES_MAX:
        raise ProtocolError(f"message with properties of {properties_length} bytes")
    return topic_at, properties_at, properties_at + properties_length


def _places(buffer: Buffer, at: int) -> tuple[int, int, int]:
    """Return (index of the body, index of the properties, index after the record)."""
    try:
        body_at = at + _HEADS[buffer[at + _SYS_FLAG_LOW_BYTE_AT] >> 4 & 3].size
        (magic,) = _U32.unpack_from(buffer, at + _MAGIC_AT)
        _, properties_at, end = _spans(buffer, magic, body_at, _I32.unpack_from(buffer, body_at - 4)[0])
    except (struct.error, IndexError) as error:
        raise ProtocolError(f"no message at {at} of {len(buffer)} bytes: {error}") from None
    return body_at, properties_at, end


def _read(form: struct.Struct, buffer: Buffer, at: int) -> int:
    try:
        value: int = form.unpack_from(buffer, at)[0]
    except struct.error as error:
        raise ProtocolError(f"no message field at {at} of {len(buffer)} bytes: {error}") from None
    return value
