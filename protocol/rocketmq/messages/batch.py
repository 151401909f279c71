"""The body of SEND_BATCH_MESSAGE: several messages of one topic, from a producer to the broker.

    { total size i32 | magic i32 = 0 | body CRC i32 = 0 | flag i32
      | body length i32 | body | properties length i16 | properties } ...        big-endian

Each message has its own properties, including UNIQ_KEY; the other fields are in the header of the request, once for
all. The broker stores each message as a separate record. Source: `MessageDecoder.java#encodeMessages`.
"""

import struct
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from duolog.protocol.errors import ProtocolError

Buffer = bytes | bytearray | memoryview

_HEAD = struct.Struct(">iiiii")
_PROPERTIES_LENGTH = struct.Struct(">h")
_FRAMING_BYTES = _HEAD.size + _PROPERTIES_LENGTH.size
_new_part = tuple.__new__  # It takes half the time of a call of the class.


class TooManyMessages(ProtocolError):
    """A batch has more messages than are allowed: response code MESSAGE_ILLEGAL."""


class Part(NamedTuple):
    """One message of a batch. A decoded body is a slice of the body of the batch."""

    flag: int
    body: Buffer
    properties: bytes


def decode(body: Buffer, count_max: int) -> list[Part]:
    """Decode all messages. Raises ProtocolError for a malformed or empty batch, TooManyMessages above `count_max`."""
    (parts,) = read(body, count_max, count_max)
    return parts


def read(body: Buffer, count: int, count_max: int) -> Iterator[list[Part]]:
    """Decode the messages and yield lists of `count`. Raises as `decode` does, possibly after some messages."""
    view = memoryview(body)
    at, end, before = 0, len(view), 0
    if not end:
        raise ProtocolError("batch without a message")
    while at < end:
        if before == count_max:
            raise TooManyMessages(f"batch of more than {count_max} messages; send them in several batches")
        parts: list[Part] = []
        for number in range(before, min(before + count, count_max)):
            try:
                size, _, _, flag, body_length = _HEAD.unpack_from(view, at)
                body_at = at + _HEAD.size
                properties_at = body_at + body_length + 2
                (properties_length,) = _PROPERTIES_LENGTH.unpack_from(view, properties_at - 2)
            except struct.error as error:
                raise ProtocolError(f"message {number} of a batch, at {at} of {end} bytes: {error}") from None
            next_at = properties_at + properties_length
            if body_length < 0 or properties_length < 0 or next_at > end or size != next_at - at:
                raise ProtocolError(
                    f"message {number} of a batch claims {size} bytes, {body_length} of body and {properties_length} "
                    f"of properties, at {at} of {end}"
                )
            properties = view[properties_at:next_at].tobytes()
            parts.append(_new_part(Part, (flag, view[body_at : properties_at - 2], properties)))
            at = next_at
            if at == end:
                break
        before += len(parts)
        yield parts


def encode(parts: Iterable[Part]) -> bytes:
    """Encode messages as a producer does."""
    pieces: list[Buffer] = []
    for flag, body, properties in parts:
        size = _FRAMING_BYTES + len(body) + len(properties)
        pieces += (_HEAD.pack(size, 0, 0, flag, len(body)), body, _PROPERTIES_LENGTH.pack(len(properties)), properties)
    return b"".join(pieces)
