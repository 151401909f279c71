"""A broker with `security.enabled`: users and rules made by the command before and after the start, librdkafka with
SCRAM, and the same decision over HTTP."""

import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest
from confluent_kafka import Consumer, KafkaError, Producer
from confluent_kafka.admin import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    NewTopic,
    ResourcePatternType,
    ResourceType,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)

from tests.kit.broker import PORTS, Broker, BrokerError, Endpoints, free_ports
from tests.kit.command import DUOLOG, duolog, run_duolog
from tests.wire.test_guides import Examples, blocks

PASSWORDS = {"root": "root secret", "alice": "alice's"}


def add_user(data: Path, name: str, *options: str) -> None:
    words = ("user", "add", name, *options, "--password-stdin", "--data", str(data))
    assert duolog(*words, given=PASSWORDS[name] + "\n") == f"added {name}\n"


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Broker]:
    data = tmp_path / "data"
    add_user(data, "root", "--super")
    add_user(data, "alice")
    with Broker(data, {"security.enabled": "true"}) as broker:
        yield broker


def settings(broker: Broker, name: str, mechanism: str = "SCRAM-SHA-512", **more: Any) -> dict[str, Any]:
    return {
        "bootstrap.servers": broker.kafka,
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": mechanism,
        "sasl.username": name,
        "sasl.password": PASSWORDS[name],
        **more,
    }


def test_broker_without_a_user_says_how_to_make_one(tmp_path: Path) -> None:
    broker = Broker(tmp_path / "data", {"security.enabled": "true"})
    with pytest.raises(BrokerError, match="duolog user add NAME --super --password-stdin --data"):
        broker.start()


def test_rules_decide_what_a_user_may_do(broker: Broker) -> None:
    as_root = {"DUOLOG_HTTP": broker.http, "DUOLOG_USER": "root", "DUOLOG_PASSWORD": PASSWORDS["root"]}
    admin = AdminClient(settings(broker, "root"))
    for made in admin.create_topics([NewTopic("orders", 1), NewTopic("payments", 1)]).values():
        made.result(10)
    rules = ("acl", "add", "--allow", "--user", "alice", "--topic", "orders", "--group-prefix", "al", "--operation")
    done = run_duolog(*rules, "read,write", **as_root)
    assert done.stdout == "rules added: 4\n", done.stderr

    reports: dict[str, KafkaError | None] = {}
    producer = Producer(settings(broker, "alice", "SCRAM-SHA-256"))
    for topic in ("orders", "payments"):
        producer.produce(topic, b"x", on_delivery=lambda error, message: reports.update({message.topic(): error}))
    assert producer.flush(10) == 0
    assert reports["orders"] is None
    assert reports["payments"] is not None
    assert reports["payments"].code() == KafkaError.TOPIC_AUTHORIZATION_FAILED

    consumer = Consumer(settings(broker, "alice", **{"group.id": "alerts", "auto.offset.reset": "earliest"}))
    consumer.subscribe(["orders"])
    message = consumer.poll(10)
    assert message is not None
    assert (message.error(), message.value()) == (None, b"x")
    consumer.close()
    assert list(AdminClient(settings(broker, "alice")).list_topics(timeout=10).topics) == ["orders"]

    as_alice = as_root | {"DUOLOG_USER": "alice", "DUOLOG_PASSWORD": PASSWORDS["alice"]}
    duolog("consume", "orders", "--from-beginning", "--count", "1", **as_alice)
    refused = run_duolog("consume", "payments", **as_alice)
    assert (refused.returncode, "User:alice may not DESCRIBE on topic payments" in refused.stderr) == (1, True)
    nobody = run_duolog("topic", "list", **(as_root | {"DUOLOG_PASSWORD": "wrong"}))
    assert (nobody.returncode, "user name or password is wrong" in nobody.stderr) == (1, True)


def test_kafka_tools_manage_rules_and_credentials(broker: Broker) -> None:
    admin = AdminClient(settings(broker, "root"))
    rule = AclBinding(
        ResourceType.TOPIC, "ord", ResourcePatternType.PREFIXED, "User:carol", "*", AclOperation.READ,
        AclPermissionType.ALLOW,
    )  # fmt: skip
    for made in admin.create_acls([rule]).values():
        assert made.result(10) is None
    everything = AclBindingFilter(
        ResourceType.ANY, None, ResourcePatternType.ANY, None, None, AclOperation.ANY, AclPermissionType.ANY
    )
    assert admin.describe_acls(everything).result(10) == [rule]
    credential = UserScramCredentialUpsertion(
        "carol", ScramCredentialInfo(ScramMechanism.SCRAM_SHA_256, 4096), b"carol's", b"a salt"
    )
    for changed in admin.alter_user_scram_credentials([credential]).values():
        assert changed.result(10) is None
    described = admin.describe_user_scram_credentials(["carol"])["carol"].result(10)
    assert [info.iterations for info in described.scram_credential_infos] == [4096]
    PASSWORDS["carol"] = "carol's"
    carol = AdminClient(settings(broker, "carol", "SCRAM-SHA-256"))
    assert list(carol.list_topics(timeout=10).topics) == []
    (removed,) = admin.delete_acls([everything]).values()
    assert removed.result(10) == [rule]


def test_ten_minutes_of_the_page_are_followed_literally(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The blocks of docs/operating/security.md, up to its other sections, run as they stand, in one folder."""
    monkeypatch.chdir(tmp_path)
    ports = dict(zip(PORTS, free_ports(len(PORTS)), strict=True))
    endpoints = Endpoints(**{name: f"127.0.0.1:{port}" for name, port in ports.items()})
    examples = Examples(cast(Broker, endpoints), tmp_path, 0)
    followed = [block for block in blocks("docs/operating/security.md") if block.mark]
    serving: subprocess.Popen[bytes] | None = None
    try:
        for block, output in zip(followed, [*followed[1:], None], strict=True):
            if block.kind == "file":
                examples.write(block)
            elif block.kind == "serve":
                options = [word for name, port in ports.items() for word in (f"--{name}-port", str(port))]
                command = [*DUOLOG, *block.code.split()[1:], *options]
                serving = subprocess.Popen(command, stdout=subprocess.PIPE, cwd=tmp_path)
                assert serving.stdout is not None
                assert serving.stdout.readline().startswith(b"ready ")
            elif block.kind == "run":
                examples.run(block, output if output is not None and output.kind == "output" else None)
        assert serving is not None, "the page starts a broker"
    finally:
        examples.close()
        if serving is not None:
            serving.terminate()
            serving.wait(10)
