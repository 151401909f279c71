"""Two brokers share a log with `security.enabled` and TLS: users and rules go over to the new owner, and a standby asks
its clients who they are. The clients are librdkafka with SCRAM, and RocketMQ requests with signatures; the command gets
the standby's address alone."""

from __future__ import annotations

import json
import ssl
import urllib.error
import urllib.request
from base64 import b64encode
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import confluent_kafka
import pytest
from confluent_kafka.admin import AdminClient

from tests.kit.broker import Broker, BrokerError
from tests.kit.certificates import Authority
from tests.kit.command import duolog
from tests.kit.eventually import eventually
from tests.kit.signing import signature_of
from tests.wire.clients.remoting import Reply, ask

pytestmark = pytest.mark.usefixtures("duolog_only")

WITHIN_S = 20.0
SEND_MESSAGE, NO_PERMISSION = 10, 16
PASSWORDS = {"root": "root secret", "alice": "alice's"}


class SecurePair:
    """Two brokers of one stream. The first user was made before their first start."""

    def __init__(self, folder: Path) -> None:
        self.authority = Authority(folder / "ca")
        self.url = f"file://{folder}/bucket"
        self.settings = self.authority.settings() | {
            "shared.url": self.url,
            "store.flush": "shared",
            "security.enabled": "true",
            "security.secret_key_file": folder / "brokers.key",
            "tls.outgoing_ca_file": self.authority.file,
        }
        duolog(
            *("user", "add", "root", "--super", "--password-stdin", "--data", str(folder / "a"), "--shared", self.url),
            given=PASSWORDS["root"] + "\n",
            DUOLOG_SECURITY__SECRET_KEY_FILE=str(folder / "brokers.key"),
        )
        self.owner, self.standby = Broker(folder / "a", self.settings), Broker(folder / "b", self.settings)
        self.owner.start()
        self.wait_for_role(self.owner, "owner")
        self.standby.start()
        self.wait_for_role(self.standby, "standby")

    def as_root(self, *words: str, given: str = "") -> str:
        """Run a command that gets the address of the standby."""
        return duolog(
            *words,
            given=given,
            DUOLOG_HTTP=f"https://{self.standby.http}",
            DUOLOG_CA_FILE=str(self.authority.file),
            DUOLOG_USER="root",
            DUOLOG_PASSWORD=PASSWORDS["root"],
        )

    def get(self, broker: Broker, path: str, user: str = "") -> tuple[int, Any]:
        request = urllib.request.Request(f"https://{broker.http}{path}")
        if user:
            request.add_header("Authorization", f"Basic {b64encode(f'{user}:{PASSWORDS[user]}'.encode()).decode()}")
        context = ssl.create_default_context(cafile=str(self.authority.file))
        try:
            with urllib.request.urlopen(request, timeout=5, context=context) as answer:
                return answer.status, json.loads(answer.read() or b"null")
        except urllib.error.HTTPError as error:
            return error.code, None
        except OSError:
            return 0, None

    def wait_for_role(self, broker: Broker, role: str) -> None:
        def found() -> Any:
            status, body = self.get(broker, "/api/status", "root")
            return status == 200 and body

        eventually(f"role {role}", found, lambda body: bool(body) and body["role"] == role, WITHIN_S)

    def position(self, broker: Broker) -> int:
        """Return the end of the broker's log."""
        status, body = self.get(broker, "/api/status", "root")
        assert status == 200
        return int(body["log"]["next_position"])

    def client(self, broker: Broker, user: str, **more: Any) -> dict[str, Any]:
        return {
            "bootstrap.servers": broker.kafka,
            "security.protocol": "SASL_SSL",
            "ssl.ca.location": str(self.authority.file),
            "sasl.mechanism": "SCRAM-SHA-512",
            "sasl.username": user,
            "sasl.password": PASSWORDS[user],
            **more,
        }

    def close(self) -> None:
        self.owner.delete()
        self.standby.delete()


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[SecurePair]:
    running = SecurePair(tmp_path)
    yield running
    running.close()


def test_users_and_rules_survive_a_takeover_and_count_on_a_standby(pair: SecurePair) -> None:
    assert [pair.get(pair.standby, path)[0] for path in ("/api/status", "/metrics", "/api/topics")] == [401] * 3
    pair.as_root("user", "add", "alice", "--password-stdin", given=PASSWORDS["alice"] + "\n")
    pair.as_root("acl", "add", "--allow", "--user", "alice", "--topic", "orders", "--operation", "read,write,create")
    pair.as_root("acl", "add", "--allow", "--user", "alice", "--group", "readers", "--operation", "read")
    # The standby follows within one upload: it knows alice and her rules. She has no right to the status.
    end = pair.position(pair.owner)
    eventually("the rules", lambda: pair.position(pair.standby), lambda position: position >= end, WITHIN_S)
    assert pair.get(pair.standby, "/api/status", "alice")[0] == 403

    places: list[tuple[int, bytes]] = []

    def done(error: Any, message: Any) -> None:
        assert error is None, error
        places.append((message.offset(), message.value()))

    # Bootstrapped by the standby alone, which asks the owner for the topic and for a producer id.
    producer = confluent_kafka.Producer(pair.client(pair.standby, "alice", **{"enable.idempotence": True}))
    producer.produce("orders", b"before", partition=0, callback=done)
    assert producer.flush(WITHIN_S) == 0
    admin = AdminClient(pair.client(pair.standby, "alice"))
    eventually("topic", lambda: [*admin.list_topics(timeout=WITHIN_S).topics], lambda names: bool(names), WITHIN_S)
    assert [*admin.list_topics(timeout=WITHIN_S).topics] == ["orders"]

    pair.owner.kill()
    producer.produce("orders", b"after", partition=0, callback=done)
    assert producer.flush(WITHIN_S) == 0
    assert pair.get(pair.standby, "/api/acls", "alice")[0] == 403
    consumer = confluent_kafka.Consumer(
        pair.client(pair.standby, "alice", **{"group.id": "readers", "auto.offset.reset": "earliest"})
    )
    consumer.subscribe(["orders"])
    found: list[tuple[int, bytes]] = []
    eventually("both records", lambda: found + taken(consumer, found), lambda records: len(records) == 2, WITHIN_S)
    consumer.close()
    assert found == places == [(0, b"before"), (1, b"after")]

    refused: list[Any] = []
    wrong = pair.client(pair.standby, "alice", error_cb=refused.append) | {"sasl.password": "wrong"}
    stranger = confluent_kafka.Producer(wrong)
    eventually("the refusal", lambda: (stranger.poll(0.2) and None) or refused, bool, WITHIN_S)
    assert refused[0].code() == confluent_kafka.KafkaError._AUTHENTICATION


def test_a_standby_sends_on_what_a_user_has_signed_and_may_send(pair: SecurePair) -> None:
    """Over TLS on both ways. The send after the end of the owner waits for the takeover, and is served by it."""
    pair.as_root("topic", "create", "orders", "--queues", "1")
    pair.as_root("user", "add", "alice", "--password-stdin", given=PASSWORDS["alice"] + "\n")
    tls = pair.authority.client_context()
    fields = {
        "producerGroup": "shop", "topic": "orders", "defaultTopic": "TBW102", "defaultTopicQueueNums": "1",
        "queueId": "0", "sysFlag": "0", "bornTimestamp": "0", "flag": "0", "AccessKey": "alice",
    }  # fmt: skip

    def send(secret: str = PASSWORDS["alice"]) -> Reply:
        signed = fields | {"Signature": signature_of(fields, b"body", secret.encode()).decode()}
        return ask(pair.standby.rocketmq, SEND_MESSAGE, signed, b"body", tls)

    eventually("the user", send, lambda reply: "may not WRITE" in str(reply.remark), WITHIN_S)
    assert send("wrong").code == NO_PERMISSION
    pair.as_root("acl", "add", "--allow", "--user", "alice", "--topic", "orders", "--operation", "write")
    stored = eventually("the rule", send, lambda reply: reply.code == 0, WITHIN_S)
    assert stored.fields["queueOffset"] == "0"
    pair.owner.kill()
    stored = eventually("the takeover", send, lambda reply: reply.code == 0, WITHIN_S)
    assert stored.fields["queueOffset"] == "1"


def taken(consumer: Any, found: list[tuple[int, bytes]]) -> list[tuple[int, bytes]]:
    message = consumer.poll(0.5)
    if message is not None and message.error() is None:
        found.append((message.offset(), message.value()))
    return []


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"security__enabled": "false"}, "the brokers of this stream have security.enabled, and this one has not"),
        ({"security__secret_key_file": "other.key"}, "is another one than that of the other brokers of this stream"),
        ({"security__secret_key_file": "no.key"}, "no.key does not exist, and the brokers of this stream have a key"),
    ],
    ids=["no security", "another key", "no key"],
)
def test_a_broker_that_would_weaken_security_after_a_takeover_is_refused(
    tmp_path: Path, settings: dict[str, str], text: str
) -> None:
    pair = SecurePair(tmp_path)
    (tmp_path / "other.key").write_text("0f" * 32)
    try:
        pair.standby.kill()
        if "security__secret_key_file" in settings:
            settings = {"security__secret_key_file": str(tmp_path / settings["security__secret_key_file"])}
        with pytest.raises(BrokerError, match="ended with status 1") as refused:
            pair.standby.start(**settings)
        assert text in str(refused.value)
        assert not (tmp_path / "no.key").exists()
    finally:
        pair.close()
