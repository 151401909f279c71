"""Zig-zag varints of records, least significant group of seven bits first. Source: Kafka's `ByteUtils.java`."""

from typing import Final

from duolog.protocol.errors import ProtocolError


def read_varint(body: bytes, at: int) -> tuple[int, int]:
    """Read a zig-zag varint: (value, where it ends)."""
    n = body[at]
    at += 1
    if n > 127:
        n, at = read_more(body, at, n)
    return (n >> 1) ^ -(n & 1), at


def read_more(body: bytes, at: int, first: int) -> tuple[int, int]:
    """Go on with a varint whose first byte says that there are more: (value still in zig-zag, where it ends)."""
    byte = body[at]
    if byte < 128:
        return first & 127 | byte << 7, at + 1
    value = first & 127
    shift = 7
    while byte > 127:
        value |= (byte & 127) << shift
        shift += 7
        if shift > 56:
            raise ProtocolError(f"varint longer than 9 bytes at {at}")
        at += 1
        byte = body[at]
    return value | byte << shift, at + 1


def encode_varint(value: int) -> bytes:
    n = value << 1 ^ value >> 63
    encoded = bytearray()
    while n > 127:
        encoded.append(n & 127 | 128)
        n >>= 7
    encoded.append(n)
    return bytes(encoded)


# Most of what is encoded are sizes and deltas below this.
ENCODED_MAX: Final = 2048
ENCODED: Final = tuple(map(encode_varint, range(ENCODED_MAX)))


def varint(value: int) -> bytes:
    """Give `value` as a zig-zag varint."""
    return ENCODED[value] if 0 <= value < ENCODED_MAX else encode_varint(value)
