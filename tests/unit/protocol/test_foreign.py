"""Clients on the wrong port are recognized by their first bytes, however the bytes are divided."""

import ssl
import struct
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from duolog.protocol import foreign
from duolog.protocol.errors import ProtocolError
from duolog.protocol.foreign import KAFKA, ROCKETMQ, looks_like
from duolog.protocol.framing import FrameReader
from duolog.protocol.rocketmq import remoting


def client_hello() -> bytes:
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = ssl.create_default_context().wrap_bio(incoming, outgoing, server_hostname="broker.example")
    with pytest.raises(ssl.SSLWantReadError):
        client.do_handshake()
    return outgoing.read()


def remoting_frame(*, json: bool) -> bytes:
    return b"".join(bytes(part) for part in remoting.encode(remoting.request(34, 1, json=json)))


def kafka_frame(key: int, version: int, client_id: bytes | None) -> bytes:
    id_bytes = b"" if client_id is None else client_id
    length = -1 if client_id is None else len(client_id)
    payload = struct.pack(">hhih", key, version, 7, length) + id_bytes + b"\0\x06java\0"
    return struct.pack(">i", len(payload)) + payload


CASES = [
    (client_hello(), "a TLS handshake"),
    (b"GET / HTTP/1.1\r\nHost: localhost:9092\r\n\r\n", "HTTP"),
    (b"POST /api HTTP/1.1\r\n", "HTTP"),
    (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", "gRPC or another client of HTTP/2"),
    (b"PROXY TCP4 192.0.2.1 192.0.2.2 40000 9092\r\n", "the PROXY protocol of a load balancer"),
    (b"\r\n\r\n\0\r\nQUIT\n\x21\x11\0\x0c", "the PROXY protocol of a load balancer"),
    (b"SSH-2.0-OpenSSH_9.6\r\n", "SSH"),
    (kafka_frame(18, 4, b"producer-1"), KAFKA),
    (kafka_frame(3, 12, None), KAFKA),
    (remoting_frame(json=True), ROCKETMQ),
    (remoting_frame(json=False), ROCKETMQ),
    (b"*1\r\n$4\r\nPING\r\n", ""),
    (bytes(64), ""),
    (b"", ""),
]


@pytest.mark.parametrize(("first", "name"), CASES)
def test_first_bytes_name_their_protocol(first: bytes, name: str) -> None:
    assert looks_like(first[: foreign.BYTES]) == name


@given(st.binary(max_size=80))
def test_any_bytes_are_classified(first: bytes) -> None:
    assert isinstance(looks_like(first), str)


@pytest.mark.parametrize("cut", [1, 3, 4, 9, 1000])
def test_a_refused_frame_is_kept_by_its_first_bytes_however_it_is_cut(cut: int) -> None:
    stream, reader = client_hello(), FrameReader(1 << 20)
    with suppress(ProtocolError):
        for at in range(0, len(stream), cut):
            reader.feed(stream[at : at + cut])
    assert len(reader.refused) >= 4
    assert stream[: foreign.BYTES].startswith(reader.refused)
    assert looks_like(reader.refused) == "a TLS handshake"
