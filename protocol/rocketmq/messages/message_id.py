"""The offsetMsgId: the id that the broker assigns to a message, and by which it finds the message without an index.

    store host: ip (4 or 16 bytes), port i32 | physical offset i64        as upper-case hex: 32 or 56 digits

Java clients read the physical offset from digits 17 to 32 to end a transaction, and connect to the host to view the
message. The other id of a message, UNIQ_KEY, is assigned by its producer.

Hosts are passed in their packed form, because records contain this form: a connection packs its host once.
Source: `MessageDecoder.java#createMessageId`.
"""

import struct
from collections.abc import Iterable
from functools import lru_cache
from ipaddress import ip_address
from typing import Final

from duolog.protocol.errors import ProtocolError

OFFSET_DIGITS: Final = 16
ID_DIGITS: Final = frozenset({32, 56})

_PORT = struct.Struct(">i")


def pack_host(ip: str, port: int) -> bytes:
    """Pack an IPv4 or IPv6 address and a port into 8 or 20 bytes. An IPv4-mapped IPv6 address is packed as IPv4."""
    address = ip_address(ip)
    packed = (getattr(address, "ipv4_mapped", None) or address).packed
    return packed + _PORT.pack(port)


def unpack_host(host: bytes) -> tuple[str, int]:
    """Return (address, port) of a packed host. Raises ProtocolError unless it has 8 or 20 bytes."""
    if len(host) not in (8, 20):
        raise ProtocolError(f"packed host of {len(host)} bytes; allowed are 8 and 20")
    (port,) = _PORT.unpack_from(host, len(host) - 4)
    return str(ip_address(host[:-4])), port


def message_id(store_host: bytes, physical_offset: int) -> str:
    """Format the id of the message at `physical_offset`."""
    return f"{_host_digits(store_host)}{physical_offset:016X}"


def message_ids(store_host: bytes, physical_offsets: Iterable[int]) -> str:
    """Format the ids of the messages of a batch, joined by commas."""
    host = _host_digits(store_host)
    return ",".join([f"{host}{physical_offset:016X}" for physical_offset in physical_offsets])


@lru_cache(16)
def _host_digits(store_host: bytes) -> str:
    return store_host.hex().upper()


def parse_message_id(text: str) -> tuple[bytes, int]:
    """Give packed host and physical offset. Raises ProtocolError for what is no offsetMsgId, a UNIQ_KEY maybe."""
    try:
        raw = bytes.fromhex(text)
    except ValueError:
        raw = b""
    if len(text) not in ID_DIGITS or len(raw) * 2 != len(text):
        raise ProtocolError(f"{text[:80]!r} is no message id; one has 32 or 56 hex digits")
    return raw[:-8], int.from_bytes(raw[-8:], "big", signed=True)
