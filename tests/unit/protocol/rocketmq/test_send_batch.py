"""Batch bodies are those of the official Java implementation, both ways; bad ones raise ProtocolError only."""

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from duolog.protocol.errors import ProtocolError
from duolog.protocol.rocketmq.messages import batch
from duolog.protocol.rocketmq.messages.batch import Part

# What `MessageDecoder.encodeMessages` of org.apache.rocketmq:rocketmq-common:5.5.0 wrote for three messages.
OF_JAVA = bytes.fromhex(
    "0000002500000000000000000000000000000005626f647930000a5741495401747275650200000029000000000000000000"
    "00000100000005626f647931000e574149540174727565026e0131020000002900000000000000000000000200000005626f"
    "647932000e574149540174727565026e013202"
)
PARTS = [
    Part(0, b"body0", b"WAIT\x01true\x02"),
    Part(1, b"body1", b"WAIT\x01true\x02n\x011\x02"),
    Part(2, b"body2", b"WAIT\x01true\x02n\x012\x02"),
]

parts = st.lists(
    st.builds(Part, st.integers(-(1 << 31), (1 << 31) - 1), st.binary(max_size=20), st.binary(max_size=20)),
    min_size=1,
    max_size=5,
)


def test_batch_of_java_is_read_and_written() -> None:
    assert batch.decode(OF_JAVA, 3) == PARTS
    assert batch.encode(PARTS) == OF_JAVA


@given(parts, st.booleans())
def test_round_trip(sent: list[Part], as_view: bool) -> None:
    body = batch.encode(sent)
    assert batch.decode(memoryview(body) if as_view else body, len(sent)) == sent


def test_count_is_limited() -> None:
    with pytest.raises(ProtocolError, match="more than 2"):
        batch.decode(OF_JAVA, 2)


@pytest.mark.parametrize(
    ("what", "body"),
    [
        ("nothing", b""),
        ("half a head", OF_JAVA[:10]),
        ("half a message", OF_JAVA[:-1]),
        ("something behind", OF_JAVA + b"\0"),
        ("negative body", struct.pack(">iiiiih", 18, 0, 0, 0, -4, 0)),
        ("negative properties", struct.pack(">iiiiih", 20, 0, 0, 0, 0, -2)),
        ("size that its fields do not have", struct.pack(">iiiiih", 23, 0, 0, 0, 0, 0) + b"\0"),
        ("no size, so without end", bytes(22)),
    ],
)
def test_malformed_batches_are_refused(what: str, body: bytes) -> None:
    with pytest.raises(ProtocolError):
        batch.decode(body, 100)


@given(st.binary(max_size=100), st.integers(0, len(OF_JAVA) - 1), st.integers(0, 255))
def test_any_bytes_raise_nothing_else(garbage: bytes, at: int, byte: int) -> None:
    damaged = bytearray(OF_JAVA)
    damaged[at] = byte
    for body in (garbage, bytes(damaged)):
        try:
            batch.decode(body, 100)
        except ProtocolError:
            pass
