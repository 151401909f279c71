"""Bodies compressed by the official Java implementation inflate, within a limit; bad ones raise ProtocolError only."""

import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from duolog.protocol.errors import ProtocolError
from duolog.protocol.rocketmq.messages.compression import deflate_body, inflate_body
from duolog.protocol.rocketmq.messages.flags import (
    COMPRESSED,
    COMPRESSION_LZ4,
    COMPRESSION_ZLIB,
    COMPRESSION_ZLIB_LEGACY,
    COMPRESSION_ZSTD,
)

KINDS = [COMPRESSION_ZLIB_LEGACY, COMPRESSION_LZ4, COMPRESSION_ZSTD, COMPRESSION_ZLIB]

# What `CompressorFactory.getCompressor(type).compress(body, 5)` of org.apache.rocketmq:rocketmq-common:5.5.0 wrote.
BODY = b"abcdefgh" * 375
OF_JAVA = [
    (
        256,
        "04224d186070731d0000008f61626364656667680800ffffffffffffffffffffffa350646566676800000000",
    ),
    (
        512,
        "28b52ffd00587c00004061626364656667680100ad9b5fb8010000",
    ),
    (
        768,
        "785eedc5310100200800b0ac0808fd1358c3637b1627abef6cd8b66ddbfef607792899f9",
    ),
]


@pytest.mark.parametrize(("kind", "body"), OF_JAVA)
def test_bodies_of_java_inflate(kind: int, body: str) -> None:
    assert inflate_body(bytes.fromhex(body), kind | COMPRESSED, len(BODY)) == BODY
    with pytest.raises(ProtocolError):
        inflate_body(bytes.fromhex(body), kind | COMPRESSED, len(BODY) - 1)


@given(st.binary(max_size=300), st.integers(0, 300), st.sampled_from(KINDS))
def test_round_trip(body: bytes, repeat: int, kind: int) -> None:
    body *= repeat
    assert inflate_body(deflate_body(body, kind), kind | COMPRESSED, len(body)) == body


def test_body_that_is_not_compressed_is_left_alone() -> None:
    assert inflate_body(BODY, COMPRESSION_LZ4, 0) is BODY


@pytest.mark.parametrize("size", [0, 100, 200_000])
def test_lz4_blocks_are_independent(size: int) -> None:
    # lz4-java refuses a frame whose blocks refer to earlier ones.
    assert deflate_body(bytes(size), COMPRESSION_LZ4)[4] & 0x20


@pytest.mark.parametrize("kind", KINDS)
def test_bomb_costs_no_more_than_the_limit(kind: int) -> None:
    with pytest.raises(ProtocolError):
        inflate_body(deflate_body(bytes(10 << 20), kind), kind | COMPRESSED, 1 << 20)


@pytest.mark.parametrize(
    ("what", "body", "sys_flag"),
    [
        ("half a stream", zlib.compress(BODY)[:-5], COMPRESSED),
        ("unknown type", zlib.compress(BODY), COMPRESSED | 0x400),
        ("another type", zlib.compress(BODY), COMPRESSED | COMPRESSION_ZSTD),
        ("nothing", b"", COMPRESSED),
    ],
)
def test_bodies_that_are_not_what_they_say_are_refused(what: str, body: bytes, sys_flag: int) -> None:
    with pytest.raises(ProtocolError):
        inflate_body(body, sys_flag, 1 << 20)


@given(st.binary(max_size=100), st.integers(0, 7))
def test_any_bytes_raise_nothing_else(body: bytes, kind: int) -> None:
    try:
        inflate_body(body, COMPRESSED | kind << 8, 1 << 16)
    except ProtocolError:
        pass
