"""The two encodings of strings, bytes and arrays in Kafka's requests and responses.

               classic                             compact (KIP-482, "flexible" versions of an API)
    string     length i16 (-1: null) | utf-8       length + 1 as uvarint (0: null) | utf-8
    bytes      length i32 (-1: null) | bytes       length + 1 as uvarint (0: null) | bytes
    array      count i32 (-1: null) | elements     count + 1 as uvarint (0: null) | elements
    tags       none                                at the end of every struct: count uvarint |
                                                   { tag uvarint | size uvarint | `size` bytes } ...

The functions that read take (buffer, at) and return (value, index after it). They raise ProtocolError. They also raise
IndexError, struct.error or UnicodeDecodeError if the buffer ends or a string is not UTF-8; the function that decodes a
whole request converts these exceptions (`MALFORMED`) to ProtocolError. They allocate no more memory than the buffer
has.
"""

import struct
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple, TypeVar

from duolog.protocol.errors import ProtocolError

Buffer = bytes | bytearray | memoryview

# Array elements in one request, including nested ones and tagged fields: the default of `kafka.elements_max`. An
# element may have one byte in the request, and yet take a hundred bytes of memory and 3 us to decode. So the size of
# the frame alone does not limit the cost of a request.
ELEMENTS_MAX: Final = 20_000

# The largest size of a string, which the classic encoding allows. Kafka refuses longer strings in compact encoding,
# too.
STRING_BYTES_MAX: Final = (1 << 15) - 1
TAGS_MAX: Final = 1000  # Tagged fields that `skip_tags` accepts in one struct; Kafka's structs have at most five.
TAGS_ELEMENT_BYTES: Final = 8  # So many bytes of tagged fields count as one element.

# new_tuple(NamedTupleClass, fields) makes a named tuple at half the cost of a call of its class. Code that runs for
# every request uses it.
new_tuple = tuple.__new__

MALFORMED: Final = (IndexError, struct.error, UnicodeDecodeError)

OfTopic = TypeVar("OfTopic", bound=tuple[Any, ...])  # A named tuple whose first field is the topic.

_I16 = struct.Struct(">h")
_I32 = struct.Struct(">i")


class Wire(NamedTuple):
    """The functions and constants of one of the two encodings."""

    read_string: Callable[[Buffer, int], tuple[str | None, int]]
    read_bytes: Callable[[memoryview, int], tuple[memoryview | None, int]]
    read_count: Callable[[Buffer, int], tuple[int, int]]
    skip_tags: Callable[[Buffer, int], int]
    string: Callable[[str | None], bytes]
    bytes_size: Callable[[int], bytes]
    array_count: Callable[[int], bytes]
    null_array: bytes
    no_tags: bytes


# -- Reading


def read_uvarint(buffer: Buffer, at: int) -> tuple[int, int]:
    """Read an unsigned varint, which has at most 5 bytes."""
    byte = buffer[at]
    if byte < 128:
        return byte, at + 1
    value = byte & 127
    for shift in (7, 14, 21, 28):
        at += 1
        byte = buffer[at]
        value |= (byte & 127) << shift
        if byte < 128:
            return value, at + 1
    raise ProtocolError(f"varint longer than 5 bytes at {at}")


def read_classic_string(buffer: Buffer, at: int) -> tuple[str | None, int]:
    (size,) = _I16.unpack_from(buffer, at)
    at += 2
    if size < 0:
        _check_null(size)
        return None, at
    end = at + size
    if end > len(buffer):
        raise ProtocolError(f"a string ends at {end} of {len(buffer)} bytes")
    return str(buffer[at:end], "utf-8"), end


def read_compact_string(buffer: Buffer, at: int) -> tuple[str | None, int]:
    size = buffer[at]  # Mostly all of the varint.
    at += 1
    if size > 127:
        size, at = read_uvarint(buffer, at - 1)
    if size == 0:
        return None, at
    end = at + size - 1
    if end > len(buffer) or size > STRING_BYTES_MAX + 1:
        raise ProtocolError(f"a string of {size - 1} bytes ends at {end} of {len(buffer)} bytes")
    return str(buffer[at:end], "utf-8"), end


def _read_classic_bytes(buffer: memoryview, at: int) -> tuple[memoryview | None, int]:
    (size,) = _I32.unpack_from(buffer, at)
    at += 4
    if size < 0:
        _check_null(size)
        return None, at
    return _part(buffer, at, at + size), at + size


def _read_compact_bytes(buffer: memoryview, at: int) -> tuple[memoryview | None, int]:
    size, at = read_uvarint(buffer, at)
    if size == 0:
        return None, at
    end = at + size - 1
    return _part(buffer, at, end), end


def _read_classic_count(buffer: Buffer, at: int) -> tuple[int, int]:
    """Read the count of an array; a null array is read as an empty one."""
    (count,) = _I32.unpack_from(buffer, at)
    return _believable(count if count != -1 else 0, buffer, at), at + 4


def _read_compact_count(buffer: Buffer, at: int) -> tuple[int, int]:
    count = buffer[at]  # Mostly all of the varint.
    at += 1
    if count > 127:
        count, at = read_uvarint(buffer, at - 1)
    return _believable(count - 1 if count else 0, buffer, at), at


def skip_tags(buffer: Buffer, at: int) -> int:
    """Return the index after the tagged fields of a struct. A receiver must ignore unknown tagged fields (KIP-482)."""
    if buffer[at] == 0:
        return at + 1
    count, at = read_uvarint(buffer, at)
    if count > TAGS_MAX:
        raise ProtocolError(f"{count} tagged fields in one struct; {TAGS_MAX} are allowed")
    for _ in range(count):
        _, at = read_uvarint(buffer, at)
        size, at = read_uvarint(buffer, at)
        at += size
    if at > len(buffer):
        raise ProtocolError(f"tagged fields end at {at} of {len(buffer)} bytes")
    return at


def _skip_no_tags(_buffer: Buffer, at: int) -> int:
    return at


def _check_null(size: int) -> None:
    if size != -1:
        raise ProtocolError(f"negative size {size}")


def _part(buffer: memoryview, at: int, end: int) -> memoryview:
    if end > len(buffer):
        raise ProtocolError(f"bytes end at {end} of {len(buffer)}")
    return buffer[at:end]


def _believable(count: int, buffer: Buffer, at: int) -> int:
    if count < 0 or count > len(buffer) - at:
        raise ProtocolError(f"an array of {count} elements in {len(buffer) - at} bytes")
    return count


def too_many_elements(elements_max: int) -> ProtocolError:
    return ProtocolError(f"more array elements than kafka.elements_max={elements_max} allows in one request")


# -- Writing


def uvarint(value: int) -> bytes:
    if value < 128:
        return _ONE_BYTE[value]
    encoded = bytearray()
    while value > 127:
        encoded.append(value & 127 | 128)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)


_ONE_BYTE = tuple(bytes((n,)) for n in range(128))


def _classic_string(text: str | None) -> bytes:
    if text is None:
        return b"\xff\xff"
    encoded = text.encode()
    return _I16.pack(len(encoded)) + encoded


def _compact_string(text: str | None) -> bytes:
    if text is None:
        return b"\0"
    encoded = text.encode()
    return uvarint(len(encoded) + 1) + encoded


def _compact_size(size: int) -> bytes:
    return uvarint(size + 1)


def by_topic(partitions: Sequence[OfTopic]) -> list[tuple[str, list[OfTopic]]]:
    """Group consecutive partitions of the same topic. The order is not changed."""
    topics: list[tuple[str, list[OfTopic]]] = []
    for partition in partitions:
        if topics and topics[-1][0] == partition[0]:
            topics[-1][1].append(partition)
        else:
            topics.append((partition[0], [partition]))
    return topics


CLASSIC: Final = Wire(
    read_classic_string,
    _read_classic_bytes,
    _read_classic_count,
    _skip_no_tags,
    _classic_string,
    _I32.pack,
    _I32.pack,
    b"\xff\xff\xff\xff",
    b"",
)
COMPACT: Final = Wire(
    read_compact_string,
    _read_compact_bytes,
    _read_compact_count,
    skip_tags,
    _compact_string,
    _compact_size,
    _compact_size,
    b"\0",
    b"\0",
)
