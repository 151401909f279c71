"""TLS with stock clients of both families on all ports: a broker that requires it, and one where it is optional."""

from __future__ import annotations

import asyncio
import http.client
import json
import re
import socket
import ssl
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

import aiohttp
import aiokafka
import aiokafka.errors
import confluent_kafka
import kafka
import pytest

from tests.kit.broker import Broker, port_of
from tests.kit.certificates import Authority, Files
from tests.kit.command import duolog
from tests.kit.eventually import eventually
from tests.wire.clients.agent import AgentError
from tests.wire.clients.golang import go_agent
from tests.wire.clients.jvm import KAFKA_VERSIONS, Agents
from tests.wire.clients.message import Message, fingerprint
from tests.wire.clients.rocketmq_clients import RocketmqJava, RocketmqReader
from tests.wire.clients.secured_kafka import java_tls

WITHIN_S = 20.0


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("ca"))


@pytest.fixture(scope="module")
def alice(authority: Authority) -> Files:
    return authority.client("alice")


@pytest.fixture(scope="module")
def required(duolog_only: None, authority: Authority, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """A broker that requires TLS and client certificates."""
    data = tmp_path_factory.mktemp("required") / "data"
    with Broker(data, authority.settings() | {"tls.client_auth": "require", "store.flush": "async"}) as running:
        yield running


@pytest.fixture(scope="module")
def optional(duolog_only: None, authority: Authority, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    data = tmp_path_factory.mktemp("optional") / "data"
    with Broker(data, authority.settings() | {"tls.mode": "optional", "store.flush": "async"}) as running:
        yield running


def librdkafka(authority: Authority, files: Files | None) -> dict[str, str | int | float | bool]:
    own = {} if files is None else {
        "ssl.certificate.location": str(files.certificate), "ssl.key.location": str(files.key),
    }  # fmt: skip
    return {"security.protocol": "SSL", "ssl.ca.location": str(authority.file), **own}


def kafka_python(authority: Authority, files: Files | None) -> dict[str, str]:
    own = {} if files is None else {"ssl_certfile": str(files.certificate), "ssl_keyfile": str(files.key)}
    return {"security_protocol": "SSL", "ssl_cafile": str(authority.file), **own}


def confluent_round_trip(
    address: str, topic: str, options: dict[str, str | int | float | bool], bodies: list[bytes]
) -> None:
    failures = []
    producer = confluent_kafka.Producer({"bootstrap.servers": address, **options})
    for body in bodies:
        producer.produce(topic, body, on_delivery=lambda error, _: failures.append(error) if error else None)
    assert (producer.flush(WITHIN_S), failures) == (0, [])
    consumer = confluent_kafka.Consumer(
        {"bootstrap.servers": address, "group.id": topic, "auto.offset.reset": "earliest", **options}
    )
    consumer.subscribe([topic])
    got: list[bytes] = []
    until = time.monotonic() + WITHIN_S
    while len(got) < len(bodies) and time.monotonic() < until:
        message = consumer.poll(0.2)
        if message is not None and not message.error():
            got.append(message.value() or b"")
    consumer.close()
    assert sorted(got) == sorted(bodies)


def test_librdkafka_and_kafka_python_read_what_each_other_wrote(
    required: Broker, authority: Authority, alice: Files
) -> None:
    bodies = [bytes([number]) * 30_000 for number in range(100)]
    confluent_round_trip(required.kafka, "librdkafka", librdkafka(authority, alice), bodies)
    options = kafka_python(authority, alice)
    producer = kafka.KafkaProducer(bootstrap_servers=required.kafka, **options)
    producer.send("librdkafka", b"from kafka-python").get(WITHIN_S)
    producer.close()
    consumer = kafka.KafkaConsumer(
        "librdkafka", bootstrap_servers=required.kafka, auto_offset_reset="earliest",
        consumer_timeout_ms=5_000, **options,
    )  # fmt: skip
    got = []
    for record in consumer:
        got.append(record.value)
        if len(got) == 101:
            break
    consumer.close()
    assert sorted(got) == sorted([*bodies, b"from kafka-python"])


def test_clients_with_and_without_tls_share_ports_if_it_is_optional(optional: Broker, authority: Authority) -> None:
    confluent_round_trip(optional.kafka, "with", librdkafka(authority, None), [b"secret"])
    confluent_round_trip(optional.kafka, "without", {}, [b"plain"])
    port = port_of(optional.http)
    plain = http.client.HTTPConnection("127.0.0.1", port, timeout=WITHIN_S)
    encrypted = http.client.HTTPSConnection(
        "localhost", port, timeout=WITHIN_S, context=authority.client_context()
    )  # fmt: skip
    for connection in (plain, encrypted):
        connection.request("GET", "/readyz")
        assert connection.getresponse().status == 200
        connection.close()


@pytest.mark.parametrize("version", KAFKA_VERSIONS)
def test_java_writes_and_reads_with_kafkas_ssl(
    optional: Broker, authority: Authority, agents: Agents, version: str
) -> None:
    """The settings of docs/operating/encryption.md, without a login."""
    config = java_tls(str(authority.file)) | {"security.protocol": "SSL"}
    to = {"bootstrap": optional.kafka, "config": config}
    message = Message(body=version.encode())
    agent = agents.kafka(version)
    assert len(agent.call("write", topic=f"ssl-{version}", messages=[message.as_kafka_json()], **to)) == 1
    (seen,) = agent.call("read", topics={f"ssl-{version}": 1}, **to)
    assert seen["fingerprint"] == fingerprint(message.body)


def test_aiokafka_writes_and_reads_with_kafkas_ssl(optional: Broker, authority: Authority, tmp_path: Path) -> None:
    """The settings of docs/operating/encryption.md, without a login; with another CA, it does not connect."""

    def options(ca_file: Path) -> dict[str, object]:
        context = ssl.create_default_context(cafile=str(ca_file))
        return {"bootstrap_servers": optional.kafka, "security_protocol": "SSL", "ssl_context": context}

    async def round_trip() -> bytes | None:
        trusting = options(authority.file)
        async with aiokafka.AIOKafkaProducer(**trusting) as producer:
            await producer.send_and_wait("ssl-aiokafka", b"secret")
        async with aiokafka.AIOKafkaConsumer("ssl-aiokafka", auto_offset_reset="earliest", **trusting) as consumer:
            body: bytes | None = (await asyncio.wait_for(consumer.getone(), WITHIN_S)).value
        producer = aiokafka.AIOKafkaProducer(**options(Authority(tmp_path, "other").file))
        with pytest.raises(aiokafka.errors.KafkaConnectionError):
            await producer.start()
        await producer.stop()
        return body

    assert asyncio.run(round_trip()) == b"secret"


def test_aiohttp_uses_https_with_large_answers(required: Broker, authority: Authority, alice: Files) -> None:
    async def ask() -> tuple[int, int]:
        context = authority.client_context(alice)
        async with aiohttp.ClientSession(f"https://localhost:{port_of(required.http)}") as session:
            async with session.get("/openapi.json", ssl=context) as response:
                size = len(await response.read())
            body = {"name": "made-over-https", "queues": 2}
            async with session.post("/api/topics", json=body, ssl=context) as response:
                return size, response.status

    size, status = asyncio.run(ask())
    assert size > 50_000
    assert status == 201


@pytest.mark.parametrize("port", ["kafka", "rocketmq", "namesrv", "http"])
def test_nothing_is_served_without_tls_if_it_is_required(required: Broker, port: str) -> None:
    """Including what Apache brokers served once although TLS was enforced: plain requests on a port with TLS."""
    number = port_of(getattr(required, port))
    requests = {
        "kafka": b"\x00\x00\x00\x0a\x00\x12\x00\x00\x00\x00\x00\x01\xff\xff",  # ApiVersions v0
        "http": b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n",
    }
    header = b'{"code":105,"extFields":{"topic":"TBW102"},"flag":0,"language":"JAVA","opaque":1,"version":0}'
    remoting = (len(header) + 4).to_bytes(4, "big") + len(header).to_bytes(4, "big") + header
    with socket.create_connection(("127.0.0.1", number), WITHIN_S) as raw:
        raw.sendall(requests.get(port, remoting))
        assert raw.recv(100) == b""
    wire = "rocketmq" if port == "namesrv" else port
    wanted = f"connection without TLS refused, tls.mode=required wire={wire} port={number}"
    eventually("the refusal in the log", required.log_tail, lambda text: wanted in text, WITHIN_S)


@pytest.mark.parametrize("port", ["kafka", "rocketmq", "namesrv", "http"])
def test_client_without_a_certificate_is_refused_if_one_is_required(
    required: Broker, authority: Authority, port: str
) -> None:
    number = port_of(getattr(required, port))
    with socket.create_connection(("127.0.0.1", number), WITHIN_S) as raw:
        tls = authority.client_context().wrap_socket(raw, server_hostname="localhost")
        with pytest.raises((ssl.SSLError, ConnectionError)):
            tls.recv(1)


# -- RocketMQ's clients


@pytest.mark.parametrize("version", ["4.9", "5.5"])
def test_rocketmq_java_clients_with_tls_enable_use_the_usual_ports(
    required: Broker, authority: Authority, alice: Files, agents: Agents, version: str
) -> None:
    agent = agents.rocketmq_with_tls(version, authority, alice)
    topic = f"java-{version[0]}"  # Without a dot, so that it has the same name for RocketMQ.
    connection = http.client.HTTPSConnection(
        "localhost", port_of(required.http), timeout=WITHIN_S, context=authority.client_context(alice)
    )
    made = {"name": topic, "queues": 2}
    connection.request("POST", "/api/topics", json.dumps(made), {"Content-Type": "application/json"})
    assert connection.getresponse().status == 201
    writer = RocketmqJava(required.namesrv, agent, version, "json")
    messages = [Message(body=bytes([number]) * 20_000) for number in range(20)]
    writer.write(topic, messages, way="sync", codec="none")
    reader = RocketmqReader(required.namesrv, agent, version, "json", "push")
    seen = reader.read({topic: 20}, WITHIN_S)
    assert {each.fingerprint for each in seen} == {fingerprint(each.body) for each in messages}


def test_rocketmq_go_client_with_tls_uses_the_usual_ports(optional: Broker) -> None:
    go = go_agent(with_tls=True)
    completed = handshakes(optional)
    stored = go.call("send", namesrv=optional.namesrv, topic="go", bodies=["one", "two"])
    assert len(stored) == 2
    go.call("open", name="consumer", namesrv=optional.namesrv, topic="go", group="go")
    seen: list[str] = []

    def look() -> list[str]:
        seen.extend(each["body"] for each in go.call("seen", name="consumer"))
        return sorted(seen)

    eventually("messages seen", look, lambda bodies: bodies == ["one", "two"], WITHIN_S)
    go.call("close", name="consumer")
    go.close()
    assert handshakes(optional) >= completed + 3, "name server, broker, and the consumer's connection"


def handshakes(broker: Broker) -> int:
    """The number of TLS handshakes that the broker has completed."""
    connection = http.client.HTTPConnection("127.0.0.1", port_of(broker.http), timeout=WITHIN_S)
    connection.request("GET", "/metrics")
    text = connection.getresponse().read().decode()
    connection.close()
    found = re.search(r'^duolog_tls_handshakes_total\{result="completed"\} (\d+)', text, re.MULTILINE)
    assert found is not None
    return int(found[1])


# -- Users


def test_user_of_a_certificate_may_do_what_rules_allow_it(
    duolog_only: None, authority: Authority, alice: Files, agents: Agents, tmp_path: Path
) -> None:
    bob, data = authority.client("bob", organisation="Shop"), tmp_path / "data"
    duolog("user", "add", "root", "--super", "--password-stdin", "--data", str(data), given="root secret\n")
    settings = authority.settings() | {"tls.client_auth": "request", "security.enabled": True, "store.flush": "async"}
    with Broker(data, settings) as broker:
        as_root = {
            "DUOLOG_HTTP": f"https://localhost:{port_of(broker.http)}", "DUOLOG_CA_FILE": str(authority.file),
            "DUOLOG_USER": "root", "DUOLOG_PASSWORD": "root secret",
        }  # fmt: skip
        duolog("topic", "create", "orders", **as_root)
        duolog("topic", "create", "payments", **as_root)
        rule = ("--allow", "--user", "alice", "--topic", "orders", "--operation", "read,write,describe")
        duolog("acl", "add", *rule, **as_root)
        outcomes = [produced(broker, librdkafka(authority, files)) for files in (alice, bob, None)]
        assert outcomes == ["", "TOPIC_AUTHORIZATION_FAILED", "_MSG_TIMED_OUT"]
        statuses = [status_of(broker, authority, files, "/api/topics/orders") for files in (alice, bob, None)]
        assert statuses == [200, 403, 401]
        writer = RocketmqJava(broker.namesrv, agents.rocketmq_with_tls("5.5", authority, alice), "5.5", "json")
        writer.write("orders", [Message(body=b"x")], way="sync", codec="none")
        with pytest.raises(AgentError, match="User:alice may not"):
            writer.write("payments", [Message(body=b"x")], way="sync", codec="none")


def status_of(broker: Broker, authority: Authority, files: Files | None, path: str) -> int:
    connection = http.client.HTTPSConnection(
        "localhost", port_of(broker.http), timeout=WITHIN_S, context=authority.client_context(files)
    )
    connection.request("GET", path)
    status = connection.getresponse().status
    connection.close()
    return status


def produced(broker: Broker, options: dict[str, str | int | float | bool]) -> str:
    """The name of the error with which a message to `orders` was refused; empty: it was stored."""
    reports: list[str] = []
    settings: dict[str, str | int | float | bool] = {
        "bootstrap.servers": broker.kafka, "message.timeout.ms": 1500, "log_level": 0, **options
    }  # fmt: skip
    producer = confluent_kafka.Producer(settings)
    producer.produce("orders", b"x", on_delivery=lambda error, _: reports.append(error.name() if error else ""))
    assert producer.flush(WITHIN_S) == 0
    return reports[0]


# -- Versions, renegotiation, compression: what openssl s_client sees


def s_client(port: int, *options: str) -> str:
    command = ["openssl", "s_client", "-connect", f"localhost:{port}", *options]
    done = subprocess.run(command, input="", capture_output=True, text=True, check=False, timeout=WITHIN_S)
    return done.stdout + done.stderr


@pytest.mark.parametrize(
    ("options", "is_served"),
    [
        (["-tls1_3"], True),
        (["-tls1_2"], True),
        (["-tls1_1", "-cipher", "ALL:@SECLEVEL=0"], False),
        (["-tls1", "-cipher", "ALL:@SECLEVEL=0"], False),
        (["-tls1_2", "-cipher", "AES128-SHA"], False),
        (["-tls1_2", "-cipher", "ECDHE-ECDSA-AES256-GCM-SHA384"], True),
    ],
)
def test_only_safe_versions_and_ciphers_are_served(
    optional: Broker, authority: Authority, options: list[str], is_served: bool
) -> None:
    seen = s_client(port_of(optional.kafka), "-CAfile", str(authority.file), *options)
    assert ("Verify return code: 0 (ok)" in seen and "Cipher is (NONE)" not in seen) == is_served, seen
    if is_served:
        assert "Compression: NONE" in seen


@contextmanager
def typing_client(
    broker: Broker, authority: Authority, *options: str
) -> Iterator[tuple[subprocess.Popen[str], IO[str]]]:
    """An `openssl s_client` on the HTTP port that stays connected, and its input: it takes a letter from each write."""
    command = ["openssl", "s_client", "-connect", f"localhost:{port_of(broker.http)}", "-CAfile", str(authority.file)]
    pipe = subprocess.PIPE
    with subprocess.Popen([*command, *options], stdin=pipe, stdout=pipe, stderr=subprocess.STDOUT, text=True) as client:
        assert client.stdin is not None
        try:
            yield client, client.stdin
        finally:
            client.kill()


def seen_until(client: subprocess.Popen[str], text: str) -> str:
    """Return what the client prints up to a text, or up to its end."""
    assert client.stdout is not None
    seen = ""
    while text not in seen and (line := client.stdout.readline()):
        seen += line
    return seen


def test_renegotiation_is_refused(optional: Broker, authority: Authority) -> None:
    """OpenSSL's client ends when the server answers with the alert no_renegotiation, and goes on if it renegotiates."""
    with typing_client(optional, authority, "-tls1_2") as (client, keyboard):
        seen = seen_until(client, "Verify return code")
        keyboard.write("R\n")
        keyboard.flush()
        client.wait(WITHIN_S)
        refused = seen_until(client, "at the end of its output")
    assert "Secure Renegotiation IS supported" in seen
    assert "RENEGOTIATING" in refused
    assert "ssl3_read_bytes:no renegotiation" in refused, refused
    optional.check_alive()


def test_connection_is_served_after_key_updates(optional: Broker, authority: Authority) -> None:
    updates = 20
    with typing_client(optional, authority, "-tls1_3") as (client, keyboard):
        seen_until(client, "Verify return code")
        for number in range(updates):
            keyboard.write("K\n" if number % 2 else "k\n")  # K: the server must change its key, too.
            keyboard.flush()
            assert "KEYUPDATE" in seen_until(client, "KEYUPDATE")
        keyboard.write("GET /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        keyboard.flush()
        assert "HTTP/1.1 200 OK" in seen_until(client, "HTTP/1.1 200 OK")
    optional.check_alive()
