"""Data of other compression libraries is decompressed, and they decompress ours; no stream exceeds its limit."""

import gzip
import resource
import struct
import tracemalloc
from collections.abc import Callable

import cramjam
import lz4.frame
import pytest
import snappy
import zstandard
from hypothesis import given
from hypothesis import strategies as st
from kafka.codec import snappy_decode, snappy_encode

from duolog.protocol.errors import ProtocolError
from duolog.protocol.kafka.compression import Codec, deflate, inflate

LIMIT = 1 << 20
PACKED = [codec for codec in Codec if codec]

# (codec, another library's compressor, its decompressor)
OTHERS: list[tuple[Codec, Callable[[bytes], bytes], Callable[[bytes], bytes]]] = [
    (Codec.GZIP, gzip.compress, gzip.decompress),
    (Codec.SNAPPY, snappy.compress, snappy.decompress),
    (Codec.SNAPPY, snappy_encode, snappy_decode),  # xerial's framing; its reader takes raw blocks too
    (Codec.LZ4, lz4.frame.compress, lz4.frame.decompress),
    (Codec.LZ4, lambda data: lz4.frame.compress(data, store_size=False, block_linked=False), lz4.frame.decompress),
    (Codec.ZSTD, zstandard.ZstdCompressor().compress, zstandard.ZstdDecompressor().decompress),
    (
        Codec.ZSTD,  # streamed, so without the size of its content, as Java writes it
        lambda data: (stream := zstandard.ZstdCompressor().compressobj()).compress(data) + stream.flush(),
        zstandard.ZstdDecompressor().decompress,
    ),
]
SAMPLES = [b"", b"a", bytes(100_000), bytes(range(256)) * 300, b'{"event": "click"}' * 9]


@pytest.mark.parametrize(("codec", "compress", "decompress"), OTHERS)
def test_other_libraries_are_read_and_can_read_us(
    codec: Codec, compress: Callable[[bytes], bytes], decompress: Callable[[bytes], bytes]
) -> None:
    for sample in SAMPLES:
        assert inflate(codec, compress(sample), LIMIT) == sample
        assert decompress(deflate(codec, sample)) == sample


@given(st.sampled_from(list(Codec)[1:]), st.binary(max_size=2000), st.integers(0, 3))
def test_round_trip_up_to_the_limit_and_not_beyond(codec: Codec, data: bytes, kind: int) -> None:
    packed = [bytes, bytearray, memoryview, lambda part: memoryview(bytearray(part))][kind](deflate(codec, data))
    assert inflate(codec, packed, len(data)) == data
    if data:
        with pytest.raises(ProtocolError):
            inflate(codec, packed, len(data) - 1)


def test_limit_is_exact_beyond_the_first_room() -> None:
    data = bytes(1 << 20)
    for codec in PACKED:
        assert inflate(codec, deflate(codec, data), len(data)) == data
        with pytest.raises(ProtocolError):
            inflate(codec, deflate(codec, data), len(data) - 1)


@given(st.integers(0, 9), st.binary(max_size=60))
def test_garbage_raises_only_protocol_error(codec: int, data: bytes) -> None:
    try:
        inflate(codec, data, LIMIT)
    except ProtocolError:
        pass


@given(st.sampled_from(list(Codec)[1:]), st.booleans(), st.data())
def test_damage_raises_only_protocol_error(codec: Codec, xerial: bool, data: st.DataObject) -> None:
    sample = bytes(range(200)) * 20
    packed = bytearray(snappy_encode(sample) if xerial and codec is Codec.SNAPPY else deflate(codec, sample))
    for _ in range(data.draw(st.integers(1, 3))):
        packed[data.draw(st.integers(0, len(packed) - 1))] = data.draw(st.integers(0, 255))
    del packed[data.draw(st.integers(1, len(packed))) :]
    try:
        inflate(codec, packed, LIMIT)
    except ProtocolError:
        pass


def xerial(*blocks: bytes) -> bytes:
    return b"\x82SNAPPY\0" + struct.pack(">ii", 1, 1) + b"".join(struct.pack(">i", len(b)) + b for b in blocks)


GIB = 1 << 30
BOMBS = {
    # A gibibyte of zeros each: concatenated streams are one stream.
    "gzip": (Codec.GZIP, bytes(cramjam.gzip.compress(bytes(1 << 24), 1)) * 64),
    "lz4": (Codec.LZ4, bytes(cramjam.lz4.compress(bytes(1 << 24), 0)) * 64),
    "zstd": (Codec.ZSTD, bytes(cramjam.zstd.compress(bytes(1 << 24))) * 64),
    "xerial": (Codec.SNAPPY, xerial(*[bytes(cramjam.snappy.compress_raw(bytes(1 << 20)))] * 64)),
    # Sizes that are only claimed.
    "snappy claims 4 GiB": (Codec.SNAPPY, b"\xff\xff\xff\xff\x0f" + bytes(20)),
    "xerial claims 4 GiB": (Codec.SNAPPY, xerial(b"\xff\xff\xff\xff\x0f" + bytes(20))),
    "zstd claims 1 GiB": (Codec.ZSTD, struct.pack("<IBQ", 0xFD2FB528, 0xE0, GIB) + b"\x03\0\0\0"),
    "zstd window of 1 GiB": (Codec.ZSTD, struct.pack("<IBB", 0xFD2FB528, 0x00, 20 << 3) + b"\x03\0\0\0"),
}


@pytest.mark.parametrize("bomb", BOMBS)
def test_bomb_costs_no_more_than_twice_its_limit(bomb: str) -> None:
    codec, packed = BOMBS[bomb]
    limit = 4 << 20
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(ProtocolError):
        inflate(codec, packed, limit)
    grown_bytes = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024
    assert grown_bytes < 2 * limit + (2 << 20)


@pytest.mark.parametrize("codec", [Codec.GZIP, Codec.SNAPPY, Codec.LZ4, Codec.ZSTD])
def test_inflated_bytes_are_not_copied(codec: Codec) -> None:
    """A copy holds the GIL: while a thread inflates 60 MB, the loop would stand still for 50 ms."""
    size = 4 << 20
    packed = deflate(codec, bytes(size))
    tracemalloc.start()
    try:
        inflated = inflate(codec, packed, size)
        peak_bytes = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert inflated == bytes(size)
    assert peak_bytes < size + (64 << 10)


def test_xerial_blocks_are_limited() -> None:
    block = bytes(cramjam.snappy.compress_raw(b"x"))
    assert inflate(Codec.SNAPPY, xerial(*[block] * 1000), LIMIT) == b"x" * 1000
    with pytest.raises(ProtocolError, match="more than 32768 blocks"):
        inflate(Codec.SNAPPY, xerial(*[block] * ((1 << 15) + 1)), LIMIT)


def test_unknown_codecs_are_refused() -> None:
    for codec in (-1, 0, 5, 7):
        with pytest.raises(ProtocolError, match=f"codec {codec}"):
            inflate(codec, b"", LIMIT)
