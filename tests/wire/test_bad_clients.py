"""Clients that send garbage, send nothing, never read, or connect by the thousand: limited, without harm to others."""

from __future__ import annotations

import random
import resource
import socket
import struct
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest

from tests.kit.broker import Broker, port_of

CONNECTIONS = 10_000
BROKER_SETTINGS = {
    "limits.connections_max": CONNECTIONS,
    "limits.first_request_ms": 1_000,
    "limits.unread_ms": 1_000,
    "kafka.idle_ms": 60_000,
}
CLOSED_WITHIN_S = 10.0
MIB = 1 << 20

pytestmark = pytest.mark.usefixtures("both_protocols")
API_VERSIONS = struct.pack(">ihhih", 10, 18, 0, 7, -1)


def connect(endpoint: str) -> socket.socket:
    return socket.create_connection(("127.0.0.1", port_of(endpoint)), CLOSED_WITHIN_S)


def ask(client: socket.socket) -> bytes:
    """One ApiVersions request, one answer."""
    client.sendall(API_VERSIONS)
    (size,) = struct.unpack(">i", _exactly(client, 4))
    return _exactly(client, size)


def _exactly(client: socket.socket, size: int) -> bytes:
    received = b""
    while len(received) < size:
        piece = client.recv(size - len(received))
        assert piece, f"closed after {len(received)} of {size} bytes"
        received += piece
    return received


def is_closed(client: socket.socket) -> bool:
    """Read until the broker closes."""
    try:
        while client.recv(1 << 16):
            pass
    except ConnectionResetError:
        pass
    except TimeoutError:
        return False
    return True


def anonymous_bytes(broker: Broker) -> int:
    status = Path(f"/proc/{broker.pid}/status").read_text()
    return int(status.partition("RssAnon:")[2].split()[0]) * 1024


@pytest.fixture(autouse=True)
def _others_are_served(broker: Broker) -> Iterator[None]:
    """A client that was there before is there afterwards, and the broker has not grown."""
    with connect(broker.kafka) as bystander:
        ask(bystander)
        before = anonymous_bytes(broker)
        yield
        ask(bystander)
        assert anonymous_bytes(broker) - before < 64 * MIB
    broker.check_alive()


@pytest.mark.parametrize("port", ["kafka", "rocketmq", "namesrv"])
@pytest.mark.parametrize("start", [b"", b"GET / HTTP/1.1\r\n\r\n", b"\x16\x03\x01", struct.pack(">i", -1), b"\x7f" * 4])
def test_garbage_is_closed(broker: Broker, rng: random.Random, port: str, start: bytes) -> None:
    with connect(getattr(broker, port)) as client:
        client.sendall(start + rng.randbytes(2000))
        assert is_closed(client)


@pytest.mark.parametrize("port", ["kafka", "rocketmq", "namesrv"])
def test_whole_frames_of_garbage_are_closed(broker: Broker, rng: random.Random, port: str) -> None:
    for size in (0, 1, 3, 4, 8, 100, 5000):
        with connect(getattr(broker, port)) as client:
            client.sendall(struct.pack(">i", size) + rng.randbytes(size))
            assert is_closed(client)


def test_garbage_on_the_http_port_is_answered(broker: Broker, rng: random.Random) -> None:
    with connect(broker.http) as client:
        client.sendall(rng.randbytes(100).replace(b"\r", b"") + b"\r\n\r\n")
        assert client.recv(12) == b"HTTP/1.0 400"
    with pytest.raises(urllib.error.HTTPError) as error:
        urllib.request.urlopen(f"http://{broker.http}/api/topics/{'x' * 5000}")
    assert error.value.code == 404


@pytest.mark.parametrize("port", ["kafka", "rocketmq", "namesrv"])
@pytest.mark.parametrize("said", [b"", b"\0", struct.pack(">i", 1000) + b"half"])
def test_client_that_never_finishes_a_request_is_closed(broker: Broker, port: str, said: bytes) -> None:
    with connect(getattr(broker, port)) as client:
        client.sendall(said)
        assert is_closed(client)


def test_client_that_never_reads_is_closed(broker: Broker) -> None:
    with connect(broker.kafka) as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        client.settimeout(0.1)
        with pytest.raises((BrokenPipeError, ConnectionResetError)):
            _ask_on(client, CLOSED_WITHIN_S)


def _ask_on(client: socket.socket, for_s: float) -> None:
    """Send whole requests, as fast as they are taken, and read no answer."""
    requests = memoryview(API_VERSIONS * 1000)
    rest = requests
    until = time.monotonic() + for_s
    while time.monotonic() < until:
        with suppress(TimeoutError):
            rest = rest[client.send(rest) :] or requests


def test_frames_that_never_end_cost_only_what_was_sent(broker: Broker) -> None:
    with ExitStack() as opened:
        for _ in range(200):
            client = opened.enter_context(connect(broker.kafka))
            client.sendall(struct.pack(">i", 100 * MIB) + bytes(1000))


def test_ten_thousand_connections_are_served_and_one_more_is_not(broker: Broker) -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, CONNECTIONS + 1000), hard))
    with ExitStack() as opened:
        clients = []
        for _ in range(CONNECTIONS - 1):  # The bystander is one.
            client = opened.enter_context(connect(broker.kafka))
            client.sendall(API_VERSIONS)
            clients.append(client)
        assert all(len(_exactly(client, 4)) == 4 for client in clients)
        with connect(broker.kafka) as one_more:
            assert is_closed(one_more)
