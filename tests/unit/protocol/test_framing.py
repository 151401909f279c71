"""A stream of frames gives the same payloads however it is divided, and a wrong length allocates no memory."""

import struct
import tracemalloc
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from duolog.protocol.errors import ProtocolError
from duolog.protocol.framing import FrameReader

LIMIT = 1 << 20


def framed(payload: bytes) -> bytes:
    return struct.pack(">i", len(payload)) + payload


def chunks(stream: bytes, cuts: list[int]) -> list[bytes]:
    bounds = [0, *sorted(cut % (len(stream) + 1) for cut in cuts), len(stream)]
    return [stream[start:end] for start, end in pairwise(bounds)]


@given(
    st.lists(st.binary(max_size=40), max_size=8), st.lists(st.integers(0, 1 << 16), max_size=12), st.binary(max_size=3)
)
def test_any_split_gives_the_same_payloads(payloads: list[bytes], cuts: list[int], tail: bytes) -> None:
    reader = FrameReader(LIMIT)
    found = []
    for chunk in chunks(b"".join(map(framed, payloads)) + tail, cuts):
        found += reader.feed(chunk)
    assert list(map(bytes, found)) == payloads
    assert all(payload.readonly for payload in found)
    assert len(reader.partial) == len(tail)


def test_one_byte_at_a_time() -> None:
    payloads = [b"", b"a", bytes(300), b""]
    reader = FrameReader(LIMIT)
    found = [payload for byte in b"".join(map(framed, payloads)) for payload in reader.feed(bytes((byte,)))]
    assert list(map(bytes, found)) == payloads


@pytest.mark.parametrize("length", [-1, -(1 << 31), LIMIT + 1, (1 << 31) - 1])
@pytest.mark.parametrize("cut", range(4))
def test_bad_length_is_refused_before_anything_is_kept(length: int, cut: int) -> None:
    stream = struct.pack(">i", length) + b"x"
    reader = FrameReader(LIMIT)
    head, rest = stream[:cut], stream[cut:]
    assert reader.feed(head) == []
    with pytest.raises(ProtocolError, match=str(length)):
        reader.feed(rest)


@given(st.lists(st.binary(max_size=12), max_size=4))
def test_garbage_raises_only_protocol_error(stream: list[bytes]) -> None:
    reader = FrameReader(16)
    try:
        for chunk in stream:
            reader.feed(chunk)
    except ProtocolError:
        pass
    assert len(reader.partial) <= 16


def test_whole_payload_is_a_slice_and_a_split_one_is_joined_once() -> None:
    data = framed(b"one") + framed(b"two")[:5]
    reader = FrameReader(LIMIT)
    (one,) = reader.feed(data)
    assert one.obj is data
    assert list(map(bytes, reader.feed(b"wo"))) == [b"two"]


def test_large_frame_in_many_chunks_is_linear_and_costs_what_arrived() -> None:
    size = 1 << 24
    chunk = bytes(256)
    reader = FrameReader(size)
    tracemalloc.start()
    reader.feed(struct.pack(">i", size))
    assert tracemalloc.get_traced_memory()[1] < 10_000, "a length alone must not reserve its frame"
    tracemalloc.stop()
    found: list[memoryview] = []
    # 65,536 chunks take 40 ms; copying all that came before with each would take a minute.
    for _ in range(size // len(chunk)):
        found += reader.feed(chunk)
    assert [len(payload) for payload in found] == [size]


def test_limit_may_change_between_frames() -> None:
    reader = FrameReader(4)
    reader.feed(framed(b"four"))
    reader.limit_bytes = 8
    assert list(map(bytes, reader.feed(framed(b"eight by")))) == [b"eight by"]
