"""The variable-length integers of records: zig-zag, the seven least significant bits first.

Source: Kafka's `ByteUtils.java`.
"""

from typing import Final

from duolog.protocol.errors import ProtocolError


def read_varint(body: bytes, at: int) -> tuple[int, int]:
    """Return (value, index after the varint) of the varint at `body[at]`.

    Raises IndexError if the bytes end within it, and ProtocolError if it has more than 9 bytes.
    """
    n = body[at]
    at += 1
    if n > 127:
        n, at = read_more(body, at, n)
    return (n >> 1) ^ -(n & 1), at


def read_more(body: bytes, at: int, first: int) -> tuple[int, int]:
    """Return (value in zig-zag encoding, index after the varint) of a varint with more than one byte.

    `first` is its first byte, `at` the index of the second.
    """
    byte = body[at]
    if byte < 128:
        return first & 127 | byte << 7, at + 1
    value = first & 127
    shift = 7
    while byte > 127:
        value |= (byte & 127) << shift
        shift += 7
        if shift > 56:
            raise ProtocolError(f"the varint that contains byte {at} has more than 9 bytes")
        at += 1
        byte = body[at]
    return value | byte << shift, at + 1


def encode_varint(value: int) -> bytes:
    """Encode a value as a zig-zag varint."""
    n = value << 1 ^ value >> 63
    encoded = bytearray()
    while n > 127:
        encoded.append(n & 127 | 128)
        n >>= 7
    encoded.append(n)
    return bytes(encoded)


# Most encoded values are sizes and deltas below this value. Their encodings are computed once.
ENCODED_MAX: Final = 2048
ENCODED: Final = tuple(map(encode_varint, range(ENCODED_MAX)))


def varint(value: int) -> bytes:
    """Return the encoding of `value`, from the table ENCODED if possible."""
    return ENCODED[value] if 0 <= value < ENCODED_MAX else encode_varint(value)
