"""Compressed message bodies. Bit 0 of sysFlag says that a body is compressed, bits 8 to 10 name the codec:

    0 zlib, of clients before 4.9.4 | 1 LZ4 frame | 2 Zstandard | 3 zlib

The broker stores bodies as they are sent, and decompresses them only for Kafka consumers.
Source: `CompressionType.java`, `CompressorFactory.java`.
"""

import zlib
from typing import Final

from duolog.protocol.errors import ProtocolError
from duolog.protocol.kafka.compression import Codec, deflate, inflate
from duolog.protocol.rocketmq.messages.flags import (
    COMPRESSED,
    COMPRESSION_LZ4,
    COMPRESSION_MASK,
    COMPRESSION_ZLIB,
    COMPRESSION_ZLIB_LEGACY,
    COMPRESSION_ZSTD,
)

Buffer = bytes | bytearray | memoryview

ZLIB_LEVEL: Final = 5
"""`DefaultMQProducer.compressLevel`."""

# The LZ4 and Zstandard frames of both protocols are the same.
_CODECS = {COMPRESSION_LZ4: Codec.LZ4, COMPRESSION_ZSTD: Codec.ZSTD}
_ZLIB = (COMPRESSION_ZLIB_LEGACY, COMPRESSION_ZLIB)


def inflate_body(body: Buffer, sys_flag: int, limit_bytes: int) -> Buffer:
    """Return the decompressed body. A body that is not compressed is returned unchanged.

    Raises ProtocolError if it cannot be decompressed with the codec in sysFlag, or decompresses to more than
    `limit_bytes` bytes; no more bytes than these are decompressed.
    """
    if not sys_flag & COMPRESSED:
        return body
    kind = sys_flag & COMPRESSION_MASK
    if kind in _ZLIB:
        return _inflate_zlib(body, limit_bytes)
    if kind in _CODECS:
        return inflate(_CODECS[kind], body, limit_bytes)
    raise ProtocolError(f"unknown compression type {kind >> 8} in sysFlag {sys_flag:#x}")


def deflate_body(body: Buffer, kind: int) -> bytes:
    """Compress a body. `kind` is a COMPRESSION flag, which the caller sets in sysFlag together with COMPRESSED."""
    if kind in _ZLIB:
        return zlib.compress(body, ZLIB_LEVEL)
    return deflate(_CODECS[kind], body)


def _inflate_zlib(body: Buffer, limit_bytes: int) -> bytes:
    inflater = zlib.decompressobj()
    try:
        inflated = inflater.decompress(body, limit_bytes + 1)
    except zlib.error as error:
        raise ProtocolError(f"{len(body)} bytes do not inflate as zlib: {error}") from None
    if len(inflated) > limit_bytes:
        raise ProtocolError(f"{len(body)} bytes inflate to more than {limit_bytes}")
    if not inflater.eof:
        raise ProtocolError(f"{len(body)} bytes are not a whole zlib stream")
    return inflated
