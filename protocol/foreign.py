"""Recognizes the protocol of a refused frame by its first bytes, so that a log line can name it.

    16 03 ..                      a TLS handshake              GET, POST, ... and a space        HTTP
    PRI * HTTP/2                  gRPC, or other HTTP/2        PROXY, or its binary signature    a load balancer
    length | key, version, ...    Kafka                        length | type, length | {         RocketMQ
    SSH-                          SSH

The result is used for the log line only. The frame was refused before, for another reason.
"""

import struct
from typing import Final

BYTES: Final = 64  # The number of bytes that are examined.

KAFKA: Final = "a Kafka client"
ROCKETMQ: Final = "a RocketMQ client"

_STARTS: Final = (
    (b"\x16\x03", "a TLS handshake"),
    (b"PRI * HTTP/2", "gRPC or another client of HTTP/2"),
    *((method + b" ", "HTTP") for method in (b"GET", b"POST", b"PUT", b"HEAD", b"DELETE", b"OPTIONS", b"PATCH")),
    (b"CONNECT ", "HTTP"),
    (b"PROXY ", "the PROXY protocol of a load balancer"),
    (b"\r\n\r\n\x00\r\nQUIT\n", "the PROXY protocol of a load balancer"),
    (b"SSH-", "SSH"),
)
_KAFKA_KEYS: Final = 100  # All API keys and versions in use are below it.
# length, API key, version, correlation id, length of the client id
_read_kafka: Final = struct.Struct(">ihhih").unpack_from
_read_rocketmq: Final = struct.Struct(">iI").unpack_from  # length, type << 24 | length of the header
_JSON, _BINARY = 0, 1
_BINARY_HEADER_BYTES_MIN: Final = 21  # RocketMQSerializable.java#calTotalLen


def looks_like(first: bytes) -> str:
    """Return the name of the protocol of a frame that begins with these bytes, length included; empty if unknown."""
    for start, name in _STARTS:
        if first.startswith(start):
            return name
    if _is_rocketmq(first):
        return ROCKETMQ
    return KAFKA if _is_kafka(first) else ""


def first_bytes(frame: memoryview) -> bytes:
    """Return the first bytes of a frame as they were received, with its length."""
    return len(frame).to_bytes(4, "big") + bytes(frame[: BYTES - 4])


def _is_rocketmq(first: bytes) -> bool:
    if len(first) < 9:
        return False
    length, mark = _read_rocketmq(first)
    kind, header_bytes = mark >> 24, mark & 0xFFFFFF
    if not 0 < header_bytes <= length - 4:
        return False
    return (kind == _JSON and first[8:9] == b"{") or (kind == _BINARY and header_bytes >= _BINARY_HEADER_BYTES_MIN)


def _is_kafka(first: bytes) -> bool:
    if len(first) < 14:
        return False
    length, key, version, _, client_id_bytes = _read_kafka(first)
    if not (0 <= key < _KAFKA_KEYS and 0 <= version < _KAFKA_KEYS and -1 <= client_id_bytes <= length - 10):
        return False
    return first[14 : 14 + max(client_id_bytes, 0)].decode("latin-1").isprintable()
