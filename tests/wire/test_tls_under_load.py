"""TLS under load: certificates are replaced while clients work, and 10,000 clients do not end their handshakes.

Then the connections that the broker opens: it verifies the certificates of callbacks with https and of a name server.
"""

from __future__ import annotations

import asyncio
import http.client
import json
import resource
import signal
import socket
import ssl
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import confluent_kafka
import psutil
import pytest

from duolog.bridge.cluster.owner_requests import OwnerRequests
from duolog.bridge.config import TlsOptions
from duolog.bridge.net.tls.outgoing import outgoing_context
from tests.kit.broker import Broker, port_of
from tests.kit.certificates import Authority, Files
from tests.kit.eventually import eventually
from tests.kit.lacking import skip_or_fail
from tests.wire.clients.jvm import require_java
from tests.wire.clients.name_server import NameServer
from tests.wire.clients.topics import create_topic

WITHIN_S = 30.0
HALF_OPEN = 10_000
RELOADS = 150
GIVEN_UP = "TRANS_CHECK_MAX_TIME_TOPIC"
MIB = 1 << 20


@pytest.fixture
def authority(duolog_only: None, tmp_path: Path) -> Authority:
    return Authority(tmp_path / "ca")


class Producing(threading.Thread):
    """A producer with TLS that sends one message after the other on its connection, and measures each."""

    def __init__(self, broker: Broker, authority: Authority) -> None:
        super().__init__(daemon=True)
        options = {"security.protocol": "SSL", "ssl.ca.location": str(authority.file), "linger.ms": 0, "retries": 0}
        self._producer = confluent_kafka.Producer({"bootstrap.servers": broker.kafka, **options})
        self._is_over = threading.Event()
        self.failures: list[str] = []
        self.round_trips_s: list[float] = []
        self.start()

    def run(self) -> None:
        while not self._is_over.is_set():
            begun_s = time.monotonic()
            self._producer.produce("orders", b"x" * 1000, on_delivery=self._delivered)
            self._producer.flush(WITHIN_S)
            self.round_trips_s.append(time.monotonic() - begun_s)

    def _delivered(self, error: object, _: object) -> None:
        if error is not None:
            self.failures.append(str(error))

    def end(self) -> None:
        self._is_over.set()
        self.join(WITHIN_S)


def test_certificates_are_replaced_while_clients_work(authority: Authority, tmp_path: Path) -> None:
    settings = authority.settings() | {"store.flush": "async", "log.level": "warning"}
    with Broker(tmp_path / "data", settings) as broker:
        live = connect(broker, authority)
        producing = Producing(broker, authority)
        serials = [serial_of(broker, authority)]
        files = reload_each(broker, authority, 60)
        serials.append(serial_of(broker, authority))
        producing.end()
        assert producing.failures == []
        assert len(producing.round_trips_s) > 60
        assert serials[0] != serials[1] == files.serial
        assert ask(live, "/readyz") == 200, "a connection from before goes on"

        memory = psutil.Process(broker.pid).memory_info().rss
        files = reload_each(broker, authority, RELOADS)
        grown = psutil.Process(broker.pid).memory_info().rss - memory
        assert grown < 3 * MIB, f"{grown} bytes for {RELOADS} reloads; a context that is kept has 40 KiB"

        files.key.write_bytes(authority.client("another").key.read_bytes())
        psutil.Process(broker.pid).send_signal(signal.SIGHUP)
        wanted = "reload refused, nothing has changed reason='tls.certificate_file:"
        eventually("the refusal in the log", broker.log_tail, lambda text: wanted in text, WITHIN_S)
        assert serial_of(broker, authority) == files.serial


def reload_each(broker: Broker, authority: Authority, count: int) -> Files:
    """Replace the certificate and reload the settings, so often."""
    connection = connect(broker, authority)
    for _ in range(count):
        files = authority.server()
        connection.request("POST", "/api/settings/reload", headers={"Content-Type": "application/json"})
        response = connection.getresponse()
        assert response.status == 200, response.read()
        response.read()
    connection.close()
    return files


def connect(broker: Broker, authority: Authority) -> http.client.HTTPSConnection:
    context = authority.client_context()
    connection = http.client.HTTPSConnection("localhost", port_of(broker.http), timeout=WITHIN_S, context=context)
    connection.connect()
    return connection


def ask(connection: http.client.HTTPSConnection, path: str) -> int:
    connection.request("GET", path)
    response = connection.getresponse()
    response.read()
    return response.status


def serial_of(broker: Broker, authority: Authority) -> int:
    """The serial number of the certificate that a new connection gets."""
    connection = connect(broker, authority)
    certificate = connection.sock.getpeercert()
    connection.close()
    assert certificate is not None
    return int(str(certificate["serialNumber"]), 16)


def test_10000_half_open_handshakes_cost_nobody_else_much(authority: Authority, tmp_path: Path) -> None:
    if resource.getrlimit(resource.RLIMIT_NOFILE)[1] < 2 * HALF_OPEN:
        skip_or_fail(f"the hard limit of open files is below {2 * HALF_OPEN}")
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (before[1], before[1]))
    settings = authority.settings() | {"store.flush": "async", "tls.handshake_ms": 4_000, "tls.handshakes_max": 500}
    with Broker(tmp_path / "data", settings) as broker:
        producing = Producing(broker, authority)
        eventually("the producer works", lambda: len(producing.round_trips_s), lambda count: count > 20, WITHIN_S)
        memory = psutil.Process(broker.pid).memory_info().rss
        half_open = list(half_open_connections(broker))
        try:
            begun_s = time.monotonic()
            fresh = connect(broker, authority)
            assert ask(fresh, "/readyz") == 200
            assert time.monotonic() - begun_s < 2
            grown = psutil.Process(broker.pid).memory_info().rss - memory
            assert grown < 150 * MIB, f"{grown / MIB:.0f} MiB; without a limit it would be 450 MiB"
            eventually("closed by tls.handshake_ms", lambda: open_ones(half_open), lambda count: count == 0, WITHIN_S)
        finally:
            for each in half_open:
                each.close()
        producing.end()
        assert producing.failures == []
        slow = sorted(producing.round_trips_s)[-max(1, len(producing.round_trips_s) // 100)]
        assert slow < 0.25, f"p99 of {len(producing.round_trips_s)} messages was {slow:.3f} s"
        assert ask(fresh, "/readyz") == 200
    resource.setrlimit(resource.RLIMIT_NOFILE, before)


def half_open_connections(broker: Broker) -> Iterator[socket.socket]:
    """Connections of another host, of which every other one sends a whole ClientHello, and the others part of it."""
    context = ssl.create_default_context()
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    with pytest.raises(ssl.SSLWantReadError):
        context.wrap_bio(incoming, outgoing, server_hostname="localhost").do_handshake()
    hello = outgoing.read()
    addresses = [("127.0.0.1", port_of(each)) for each in (broker.kafka, broker.rocketmq, broker.namesrv)]
    for number in range(HALF_OPEN):
        connection = socket.create_connection(addresses[number % 3], WITHIN_S, source_address=("127.0.0.2", 0))
        connection.sendall(hello if number % 2 else hello[:100])
        connection.setblocking(False)
        yield connection


def open_ones(connections: list[socket.socket]) -> int:
    return sum(not is_closed(each) for each in connections)


def is_closed(connection: socket.socket) -> bool:
    try:
        while connection.recv(1 << 16):
            pass
    except BlockingIOError:
        return False
    except OSError:
        pass
    return True


# -- Connections that the broker opens


class Answering(ThreadingHTTPServer):
    """A producer's callback with https, which commits everything that it is asked about."""

    daemon_threads = True

    def __init__(self, files: Files) -> None:
        super().__init__(("127.0.0.1", 0), Committing)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(files.certificate, files.key)
        self.socket = context.wrap_socket(self.socket, server_side=True)
        self.asked: list[str] = []
        threading.Thread(target=self.serve_forever, daemon=True).start()

    @property
    def url(self) -> str:
        return f"https://127.0.0.1:{self.server_port}/checks/"

    def handle_error(self, request: object, client_address: object) -> None:
        """The broker refused the certificate."""

    def end(self) -> None:
        self.shutdown()
        self.server_close()


class Committing(BaseHTTPRequestHandler):
    server: Answering

    def do_POST(self) -> None:
        question = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.asked.append(question["id"])
        body = b'{"verdict": "commit"}'
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        pass


def test_callbacks_are_asked_only_if_their_certificates_are_right(authority: Authority, tmp_path: Path) -> None:
    stranger = Authority(tmp_path / "stranger", "another CA")
    right, untrusted = Answering(authority.server()), Answering(stranger.server())
    elsewhere = Answering(authority.server("elsewhere.example"))
    settings = {
        "txn.check_urls": " ".join(each.url for each in (right, untrusted, elsewhere)), "txn.immunity_ms": 1,
        "txn.check_interval_ms": 600, "txn.check_max": 3, "tls.outgoing_ca_file": authority.file,
        "store.flush": "async",
    }  # fmt: skip
    with Broker(tmp_path / "data", settings) as broker:
        create_topic(broker.kafka, "asked", 1)
        refusals = (untrusted, "unable to get local issuer certificate"), (elsewhere, "IP address mismatch")
        for number, (server, refusal) in enumerate(refusals, 1):
            produce_half(broker, server)
            # Failures are logged once a second, so the next server waits until this one is asked no more.
            eventually(
                "given up after the last check-back",
                lambda: given_up(broker),
                lambda count, number=number: count == number,
                WITHIN_S,
            )
            assert refusal in broker.log_tail()
        produce_half(broker, right)
        eventually("asked", lambda: right.asked, lambda asked: asked == [right.url], WITHIN_S)
    assert untrusted.asked == elsewhere.asked == []
    for server in (right, untrusted, elsewhere):
        server.end()


def test_callbacks_are_verified_by_the_certificates_of_the_system(
    authority: Authority, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(authority.file))  # The CAs of the system are those in this file.
    right, untrusted = (
        Answering(authority.server()),
        Answering(Authority(tmp_path / "stranger", "another CA").server()),
    )
    settings = {
        "txn.check_urls": f"{right.url} {untrusted.url}", "txn.immunity_ms": 1, "txn.check_interval_ms": 600,
        "txn.check_max": 3, "store.flush": "async",
    }  # fmt: skip
    with Broker(tmp_path / "data", settings) as broker:
        create_topic(broker.kafka, "asked", 1)
        produce_half(broker, untrusted)
        eventually("given up after the last check-back", lambda: given_up(broker), lambda count: count == 1, WITHIN_S)
        assert "unable to get local issuer certificate" in broker.log_tail()
        produce_half(broker, right)
        eventually("asked", lambda: right.asked, lambda asked: asked == [right.url], WITHIN_S)
    assert untrusted.asked == []
    for server in (right, untrusted):
        server.end()


def given_up(broker: Broker) -> int:
    consumer = confluent_kafka.Consumer({"bootstrap.servers": broker.kafka, "group.id": "unused"})
    try:
        return consumer.get_watermark_offsets(confluent_kafka.TopicPartition(GIVEN_UP, 0), timeout=WITHIN_S)[1]
    except confluent_kafka.KafkaException:
        return 0  # The topic is not there yet.
    finally:
        consumer.close()


def produce_half(broker: Broker, server: Answering) -> None:
    producer = confluent_kafka.Producer({"bootstrap.servers": broker.kafka})
    headers = [("TRAN_MSG_ID", server.url), ("TRAN_MSG_CHECK_URL", f"{server.url}orders")]
    producer.produce("asked", b"half", headers=headers)
    assert producer.flush(WITHIN_S) == 0


def test_standby_asks_the_owner_with_tls(authority: Authority, tmp_path: Path) -> None:
    frame = b"\x00\x12\x00\x00\x00\x00\x00\x07\xff\xff"  # ApiVersions v0, correlation id 7.
    trusted = outgoing_context(TlsOptions(outgoing_ca_file=str(authority.file)))
    with Broker(tmp_path / "data", authority.settings()) as owner:
        address = ("localhost", port_of(owner.kafka))
        answer = asyncio.run(OwnerRequests(MIB, lambda: trusted).ask(address, frame))
        assert answer[4:8] == b"\x00\x00\x00\x07"
        with pytest.raises(ssl.SSLCertVerificationError):
            asyncio.run(OwnerRequests(MIB, ssl.create_default_context).ask(address, frame))
        with pytest.raises(ConnectionError):
            asyncio.run(OwnerRequests(MIB, lambda: None).ask(address, frame))


def test_broker_registers_with_a_name_server_whose_certificate_is_right(authority: Authority, tmp_path: Path) -> None:
    require_java()
    files = authority.server()
    properties = {
        "tls.server.mode": "permissive", "tls.test.mode.enable": "false",
        "tls.server.certPath": files.certificate, "tls.server.keyPath": files.key,
    }  # fmt: skip
    config = tmp_path / "tls.properties"
    config.write_text("".join(f"{name}={value}\n" for name, value in properties.items()))
    server = NameServer(tmp_path / "namesrv", "-Dtls.server.mode=permissive", f"-Dtls.config.file={config}")
    server.start()
    settings = {
        "rocketmq.join_namesrv": server.address, "rocketmq.join_namesrv_tls": True, "rocketmq.broker": "trusting",
    }  # fmt: skip
    try:
        with Broker(tmp_path / "suspicious", settings | {"rocketmq.broker": "suspicious"}) as suspicious:
            wanted = "name server lost address="
            eventually("the refusal", suspicious.log_tail, lambda text: wanted in text, WITHIN_S)
            assert "certificate verify failed" in suspicious.log_tail()
            with Broker(tmp_path / "trusting", settings | {"tls.outgoing_ca_file": authority.file}):
                eventually("registered", server.brokers, lambda names: "trusting" in names, WITHIN_S)
            assert "suspicious" not in server.brokers()
    finally:
        server.end()
