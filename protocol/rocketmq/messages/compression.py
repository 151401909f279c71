"""Compressed message bodies: sysFlag bit 0 says that a body is, bits 8 to 10 how.

    0 zlib, by a client that does not say so | 1 LZ4 frame | 2 Zstandard | 3 zlib

The broker stores what came and inflates only for readers of the other protocol.
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

# Both protocols mean the same LZ4 frames and Zstandard frames.
_CODECS = {COMPRESSION_LZ4: Codec.LZ4, COMPRESSION_ZSTD: Codec.ZSTD}
_ZLIB = (COMPRESSION_ZLIB_LEGACY, COMPRESSION_ZLIB)


def inflate_body(body: Buffer, sys_flag: int, limit_bytes: int) -> Buffer:
    """Give the body as its producer's user wrote it; one that is not compressed comes back as it is.

    Raises ProtocolError if it is not what sysFlag says, or has more than `limit_bytes`: no more than that are ever
    inflated.
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
    """Compress `body`; `kind` is one of the COMPRESSION flags, to be set in sysFlag together with COMPRESSED."""
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
