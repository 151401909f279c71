"""The compression codecs of record batches, with a limit for the decompressed size.

The attributes of a batch name the codec. The records of the batch are one compressed stream:

    gzip    RFC 1952
    snappy  a raw block (librdkafka, Sarama, franz-go), or xerial's framing (Java, kafka-python, kafkajs):
            \\x82SNAPPY\\0 | version i32 | compatible i32 | { length i32 | raw block } ...      big-endian
    lz4     an LZ4 frame
    zstd    a Zstandard frame

Sources: Kafka's `CompressionType.java`, snappy-java's `SnappyCodec.java`.
"""

import struct
from collections.abc import Callable
from enum import IntEnum
from functools import partial
from io import BytesIO

import cramjam

from duolog.protocol.errors import ProtocolError

Buffer = bytes | bytearray | memoryview


class Codec(IntEnum):
    """Bits 0 to 2 of a batch's attributes."""

    NONE = 0
    GZIP = 1
    SNAPPY = 2
    LZ4 = 3
    ZSTD = 4


_XERIAL_MAGIC = b"\x82SNAPPY\0"
_XERIAL_HEADER_BYTES = 16
_XERIAL_BLOCKS_MAX = 1 << 15  # Decompressing a block takes at least 2 us; clients write blocks of 32 KiB.
_BLOCK_LENGTH = struct.Struct(">i")

# Magic; version 1, independent blocks, no checksums; blocks of up to 64 KiB; checksum of the two bytes before.
_LZ4_HEADER = bytes.fromhex("04224d18 6040 82")
_LZ4_BLOCK_BYTES = 64 << 10
_LZ4_STORED = 1 << 31
_LZ4_BLOCK_LENGTH = struct.Struct("<I")
_LZ4_END = bytes(4)

# The first guess for the decompressed size of a batch: its compressed size times a factor, and at least a minimum.
_ROOM_BYTES_MIN = 64 << 10
_ROOM_FACTOR = 8
_NO_ROOM = "failed to write whole buffer"  # cramjam's message if the output buffer is too small.


def inflate(codec: int, data: Buffer, limit_bytes: int) -> bytes:
    """Decompress `data`, which may come from any client.

    Raises ProtocolError if it is not one whole stream of `codec`, or decompresses to more than `limit_bytes` bytes. The
    function uses less memory than twice the limit.
    """
    try:
        if codec == Codec.SNAPPY:
            return _inflate_snappy(data, limit_bytes)
        return _inflate_stream(_INFLATERS[codec], data, limit_bytes)
    except KeyError:
        raise ProtocolError(f"unknown compression codec {codec}") from None
    except cramjam.DecompressionError as error:
        raise ProtocolError(f"{len(data)} bytes cannot be decompressed as {Codec(codec).name}: {error}") from None


def deflate(codec: int, data: Buffer) -> bytes:
    """Compress `data`. The same input always gives the same output."""
    match codec:
        case Codec.NONE:
            return bytes(data)
        case Codec.GZIP:
            return bytes(cramjam.gzip.compress(data))
        case Codec.SNAPPY:
            return bytes(cramjam.snappy.compress_raw(data))
        case Codec.LZ4:
            return _deflate_lz4(data)
        case Codec.ZSTD:
            return bytes(cramjam.zstd.compress(data))
    raise ValueError(f"unknown compression codec {codec}")


def _deflate_lz4(data: Buffer) -> bytes:
    """Return an LZ4 frame of independent blocks: Kafka's Java client reads no others, and cramjam links its blocks."""
    view = memoryview(data)
    pieces: list[Buffer] = [_LZ4_HEADER]
    for at in range(0, len(view), _LZ4_BLOCK_BYTES):
        block = view[at : at + _LZ4_BLOCK_BYTES]
        deflated = bytes(cramjam.lz4.compress_block(block, store_size=False))
        if len(deflated) < len(block):
            pieces += (_LZ4_BLOCK_LENGTH.pack(len(deflated)), deflated)
        else:
            pieces += (_LZ4_BLOCK_LENGTH.pack(len(block) | _LZ4_STORED), block)
    pieces.append(_LZ4_END)
    return b"".join(pieces)


def _inflate_stream(inflate_into: Callable[[Buffer, memoryview], int], data: Buffer, limit_bytes: int) -> bytes:
    """Decompress into a buffer of fixed size: first of the guessed size, then of `limit_bytes`.

    The operating system allocates the pages of the buffer only when they are written.
    """
    room = min(max(len(data) * _ROOM_FACTOR, _ROOM_BYTES_MIN), limit_bytes)
    while True:
        try:
            return _written(room, partial(inflate_into, data))
        except cramjam.DecompressionError as error:
            if room == limit_bytes or _NO_ROOM not in str(error):
                raise
            room = limit_bytes


def _written(room: int, write: Callable[[memoryview], int]) -> bytes:
    """Return the bytes that `write` writes into a buffer of `room` bytes, without copying them.

    A copy would hold the interpreter lock, so all other threads would wait. BytesIO uses the zeros as its buffer,
    because nothing else refers to them, and `getvalue` returns that buffer itself.
    """
    buffer = BytesIO(bytes(room))
    with buffer.getbuffer() as target:
        size = write(target)
    buffer.truncate(size)
    return buffer.getvalue()


def _inflate_snappy(data: Buffer, limit_bytes: int) -> bytes:
    view = memoryview(data)
    if view[:8] != _XERIAL_MAGIC:
        return _inflate_snappy_block(view, limit_bytes)
    blocks: list[bytes] = []
    at = _XERIAL_HEADER_BYTES
    while at < len(view):
        if len(blocks) == _XERIAL_BLOCKS_MAX:
            raise ProtocolError(f"xerial snappy: the stream has more than {_XERIAL_BLOCKS_MAX} blocks")
        if at + 4 > len(view):
            raise ProtocolError(f"xerial snappy: a block length has 4 bytes, and only {len(view) - at} bytes follow")
        (length,) = _BLOCK_LENGTH.unpack_from(view, at)
        at += 4
        if not 0 < length <= len(view) - at:
            raise ProtocolError(f"xerial snappy: a block has {length} bytes, and only {len(view) - at} bytes follow")
        block = _inflate_snappy_block(view[at : at + length], limit_bytes)
        limit_bytes -= len(block)
        blocks.append(block)
        at += length
    return b"".join(blocks)


def _inflate_snappy_block(block: memoryview, limit_bytes: int) -> bytes:
    size = cramjam.snappy.decompress_raw_len(block)
    if size > limit_bytes:
        raise ProtocolError(f"a snappy block decompresses to {size} bytes; {limit_bytes} are allowed")
    inflated = _written(size, partial(cramjam.snappy.decompress_raw_into, block))
    if len(inflated) != size:
        raise ProtocolError(f"a snappy block decompresses to {len(inflated)} bytes, and its header says {size}")
    return inflated


_INFLATERS: dict[int, Callable[[Buffer, memoryview], int]] = {
    Codec.GZIP: cramjam.gzip.decompress_into,
    Codec.LZ4: cramjam.lz4.decompress_into,
    Codec.ZSTD: cramjam.zstd.decompress_into,
}
