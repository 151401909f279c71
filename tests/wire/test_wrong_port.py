"""Clients on a port that is not theirs: the broker closes them, and its log names what they are."""

from __future__ import annotations

import http.client
import socket
import ssl
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from kafka import KafkaProducer
from kafka.errors import KafkaError

from duolog.protocol.rocketmq import remoting
from tests.kit.broker import Broker, port_of
from tests.kit.eventually import eventually


@pytest.fixture(scope="module")
def broker(duolog_only: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    path: Path = tmp_path_factory.mktemp("wrong-port")
    with Broker(path / "data") as running:
        yield running


def tls(port: int) -> None:
    with socket.create_connection(("127.0.0.1", port), 5) as raw, pytest.raises((ssl.SSLError, OSError)):
        ssl.create_default_context().wrap_socket(raw, server_hostname="localhost")


def web(port: int) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
    connection.request("GET", "/")
    with pytest.raises((http.client.HTTPException, OSError)):
        connection.getresponse()


def kafka(port: int) -> None:
    with pytest.raises(KafkaError):
        KafkaProducer(bootstrap_servers=f"127.0.0.1:{port}", max_block_ms=500, bootstrap_timeout_ms=500)


def rocketmq(port: int) -> None:
    frame = b"".join(bytes(part) for part in remoting.encode(remoting.request(105, 1, {"topic": "orders"})))
    with socket.create_connection(("127.0.0.1", port), 5) as raw:
        raw.sendall(frame)
        assert raw.recv(100) == b""


@pytest.mark.parametrize(
    ("client", "name", "port"),
    [
        (tls, "a TLS handshake", "kafka"),
        (tls, "a TLS handshake", "rocketmq"),
        (web, "HTTP", "kafka"),
        (web, "HTTP", "namesrv"),
        (kafka, "a Kafka client", "rocketmq"),
        (kafka, "a Kafka client", "namesrv"),
        (rocketmq, "a RocketMQ client", "kafka"),
    ],
)
def test_client_on_the_wrong_port_is_named(broker: Broker, client: Callable[[int], None], name: str, port: str) -> None:
    number = port_of(getattr(broker, port))
    client(number)
    wire = "kafka" if port == "kafka" else "rocketmq"
    line = f"looks_like={name!r} wire={wire} port={number} "
    eventually("a line in the log", broker.log.read_text, lambda text: line in text, 5)
