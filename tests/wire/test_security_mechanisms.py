"""Each SASL mechanism over TLS with each Kafka client, on one broker: a message is stored, by Java also read."""

from __future__ import annotations

import asyncio
import json
import ssl
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import jwt
import pytest
from aiokafka import AIOKafkaProducer
from aiokafka.abc import AbstractTokenProvider as AiokafkaTokens
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic
from cryptography.hazmat.primitives.asymmetric import ec
from jwt.algorithms import ECAlgorithm
from kafka import KafkaProducer
from kafka.net.sasl.oauth import AbstractTokenProvider as KafkaPythonTokens

from tests.kit.broker import Broker
from tests.kit.certificates import Authority
from tests.kit.command import duolog
from tests.wire.clients.jvm import KAFKA_VERSIONS, Agents
from tests.wire.clients.message import Message, fingerprint
from tests.wire.clients.secured_kafka import java_login, java_tls, java_token

MECHANISMS = ("SCRAM-SHA-256", "SCRAM-SHA-512", "PLAIN", "OAUTHBEARER")
NAME, PASSWORD = "alice", "alice's secret"


class Secured(NamedTuple):
    """A broker with TLS, the CA of its certificate, and a token of its user."""

    broker: Broker
    ca_file: str
    token: str


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    folder = tmp_path_factory.mktemp("mechanisms")
    key = ec.generate_private_key(ec.SECP256R1())
    keys = [{**ECAlgorithm.to_jwk(key.public_key(), as_dict=True), "kid": "one"}]
    (folder / "keys.json").write_text(json.dumps({"keys": keys}))
    token = jwt.encode({"sub": NAME, "exp": time.time() + 600}, key, "ES256", headers={"kid": "one"})
    add_user(folder / "data")
    authority = Authority(folder / "ca")
    settings = authority.settings() | {"security.enabled": "true", "security.oauth_keys": folder / "keys.json"}
    with Broker(folder / "data", settings) as broker:
        found = Secured(broker, str(authority.file), token)
        admin = AdminClient(librdkafka(found, "PLAIN"))
        for made in admin.create_topics([NewTopic("orders", 1)]).values():
            made.result(10)
        yield found


def add_user(data: Path) -> None:
    duolog("user", "add", NAME, "--super", "--password-stdin", "--data", str(data), given=f"{PASSWORD}\n")


def librdkafka(secured: Secured, mechanism: str) -> dict[str, Any]:
    until_s = time.time() + 500
    own: dict[str, Any] = {"sasl.username": NAME, "sasl.password": PASSWORD}
    if mechanism == "OAUTHBEARER":
        own = {"oauth_cb": lambda _: (secured.token, until_s)}
    return {
        "bootstrap.servers": secured.broker.kafka, "security.protocol": "SASL_SSL", "ssl.ca.location": secured.ca_file,
        "sasl.mechanism": mechanism, **own,
    }  # fmt: skip


def credentials(mechanism: str, tokens: object) -> dict[str, Any]:
    if mechanism == "OAUTHBEARER":
        return {"sasl_oauth_token_provider": tokens}
    return {"sasl_plain_username": NAME, "sasl_plain_password": PASSWORD}


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_librdkafka(secured: Secured, mechanism: str) -> None:
    reports: list[object] = []
    producer = Producer(librdkafka(secured, mechanism))
    producer.produce("orders", b"x", on_delivery=lambda error, message: reports.append(error))
    producer.flush(10)
    assert reports == [None]


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_kafka_python(secured: Secured, mechanism: str) -> None:
    class Tokens(KafkaPythonTokens):  # type: ignore[misc]
        def __init__(self, **_: object) -> None:
            pass

        def token(self) -> str:
            return secured.token

    producer = KafkaProducer(
        bootstrap_servers=secured.broker.kafka, security_protocol="SASL_SSL", ssl_cafile=secured.ca_file,
        sasl_mechanism=mechanism, **credentials(mechanism, Tokens()),
    )  # fmt: skip
    assert producer.send("orders", b"x").get(10).offset >= 0
    producer.close()


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_aiokafka(secured: Secured, mechanism: str) -> None:
    class Tokens(AiokafkaTokens):  # type: ignore[misc]
        async def token(self) -> str:
            return secured.token

    async def send() -> int:
        producer = AIOKafkaProducer(
            bootstrap_servers=secured.broker.kafka, security_protocol="SASL_SSL",
            ssl_context=ssl.create_default_context(cafile=secured.ca_file), sasl_mechanism=mechanism,
            **credentials(mechanism, Tokens()),
        )  # fmt: skip
        await producer.start()
        try:
            offset: int = (await producer.send_and_wait("orders", b"x")).offset
            return offset
        finally:
            await producer.stop()

    assert asyncio.run(send()) >= 0


@pytest.mark.parametrize("version", KAFKA_VERSIONS)
@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_java(secured: Secured, agents: Agents, mechanism: str, version: str) -> None:
    agents.token_file.write_text(secured.token)
    login = java_token(agents.token_file) if mechanism == "OAUTHBEARER" else java_login(mechanism, NAME, PASSWORD)
    to = {"bootstrap": secured.broker.kafka, "config": {**java_tls(secured.ca_file), **login}}
    message = Message(body=f"{mechanism} {version}".encode())
    topic = f"java-{mechanism}-{version}"
    agent = agents.kafka(version)
    assert len(agent.call("write", topic=topic, messages=[message.as_kafka_json()], **to)) == 1
    (seen,) = agent.call("read", topics={topic: 1}, **to)
    assert seen["fingerprint"] == fingerprint(message.body)
