"""Kafka's command-line tools on a broker with TLS and logins, and Java clients beyond the time of a session."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.kit.broker import Broker
from tests.kit.certificates import Authority
from tests.kit.command import duolog
from tests.kit.eventually import eventually
from tests.wire.clients.agent import Agent, AgentError
from tests.wire.clients.jvm import KAFKA_VERSIONS, Agents
from tests.wire.clients.message import Message
from tests.wire.clients.secured_kafka import as_properties, java_login, java_tls

SECRET = "root's secret"
SESSION_MS = 2000
WITHIN_S = 20.0


class Secured(NamedTuple):
    """A broker on which only the super user root may do anything yet, and the CA of its certificate."""

    broker: Broker
    ca_file: str

    def login(self, name: str, password: str = SECRET, mechanism: str = "SCRAM-SHA-512") -> dict[str, str]:
        return {**java_tls(self.ca_file), **java_login(mechanism, name, password)}


class Tools(NamedTuple):
    """The tools of root."""

    agent: Agent
    broker: Broker
    login_file: Path

    def run(self, tool: str, *words: str, status: int = 0) -> str:
        """Run a tool that ends with this exit status, and return what it prints."""
        to = ("--bootstrap-server", self.broker.kafka, "--command-config", str(self.login_file))
        done = self.agent.call("run", tool=tool, words=[*to, *words])
        printed = str(done["printed"])
        assert done["status"] == status, printed
        return printed

    def acls(self, *words: str, status: int = 0) -> str:
        return self.run("kafka-acls.sh", *words, status=status)

    def configs(self, *words: str, status: int = 0) -> str:
        return self.run("kafka-configs.sh", *words, status=status)


@pytest.fixture(scope="module")
def secured(duolog_only: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    folder = tmp_path_factory.mktemp("kafka-tools")
    duolog("user", "add", "root", "--super", "--password-stdin", "--data", str(folder / "data"), given=SECRET + "\n")
    authority = Authority(folder / "ca")
    settings = {"security.enabled": "true", "security.session_ms": SESSION_MS, "store.flush": "async"}
    with Broker(folder / "data", authority.settings() | settings) as broker:
        yield Secured(broker, str(authority.file))


@pytest.fixture
def tools(secured: Secured, agents: Agents, tmp_path: Path) -> Tools:
    file = tmp_path / "root.properties"
    file.write_text(as_properties(secured.login("root")))
    return Tools(agents.kafka_tools(), secured.broker, file)


def write(agent: Agent, broker: Broker, topic: str, login: Mapping[str, str]) -> Any:
    message = Message(b"x").as_kafka_json()
    return agent.call("write", bootstrap=broker.kafka, topic=topic, messages=[message], config=login)


def test_rules_and_credentials_of_the_tools_decide(secured: Secured, tools: Tools, agents: Agents) -> None:
    java = agents.kafka("4.3")
    user = ("--entity-type", "users", "--entity-name", "carol")
    credential = "SCRAM-SHA-512=[iterations=8192,password=carols-secret]"
    assert "Completed updating config for user carol" in tools.configs("--alter", "--add-config", credential, *user)
    assert "SCRAM-SHA-512=iterations=8192" in tools.configs("--describe", *user)
    carol = secured.login("carol", "carols-secret")
    with pytest.raises(AgentError, match="SaslAuthenticationException"):
        write(java, secured.broker, "orders", secured.login("carol", "another secret"))
    with pytest.raises(AgentError, match="TopicAuthorizationException"):
        write(java, secured.broker, "orders", carol)

    producer = (
        "--allow-principal",
        "User:carol",
        "--producer",
        "--topic",
        "ord",
        "--resource-pattern-type",
        "prefixed",
    )
    denied = ("--deny-principal", "User:carol", "--operation", "Write", "--topic", "orders-old")
    assert "Adding ACLs for resource" in tools.acls("--add", *producer)
    assert "Adding ACLs for resource" in tools.acls("--add", *denied)
    listed = tools.acls("--list", "--principal", "User:carol")
    assert "resourceType=TOPIC, name=ord, patternType=PREFIXED" in listed
    assert "(principal=User:carol, host=*, operation=WRITE, permissionType=ALLOW)" in listed
    assert "(principal=User:carol, host=*, operation=WRITE, permissionType=DENY)" in listed
    assert len(write(java, secured.broker, "orders", carol)) == 1
    with pytest.raises(AgentError, match="TopicAuthorizationException"):
        write(java, secured.broker, "orders-old", carol)

    tools.acls("--remove", "--force", *producer)
    tools.acls("--remove", "--force", *denied)
    assert "User:carol" not in tools.acls("--list")
    with pytest.raises(AgentError, match="TopicAuthorizationException"):
        write(java, secured.broker, "orders", carol)
    tools.configs("--alter", "--delete-config", "SCRAM-SHA-512", *user)
    assert "SCRAM-SHA-512" not in tools.configs("--describe", *user)
    with pytest.raises(AgentError, match="SaslAuthenticationException"):
        write(java, secured.broker, "orders", carol)


def test_quotas_of_the_tools_are_stored(tools: Tools) -> None:
    entities = {
        "user-principal 'dave'": ("--entity-type", "users", "--entity-name", "dave"),
        "the default user-principal": ("--entity-type", "users", "--entity-default"),
        "client-id 'app'": ("--entity-type", "clients", "--entity-name", "app"),
        "user-principal 'dave', client-id 'app'": (
            "--entity-type", "users", "--entity-name", "dave", "--entity-type", "clients", "--entity-name", "app",
        ),
    }  # fmt: skip
    both = "producer_byte_rate=1048576,consumer_byte_rate=2097152"
    for name, entity in entities.items():
        tools.configs("--alter", "--add-config", both, *entity)
        tools.configs(
            "--alter", "--add-config", "producer_byte_rate=4096", "--delete-config", "consumer_byte_rate", *entity
        )
        assert f"Quota configs for {name} are producer_byte_rate=4096.0\n" in tools.configs("--describe", *entity)
    for entity in entities.values():
        tools.configs("--alter", "--delete-config", "producer_byte_rate", *entity)
    for types in (("users",), ("clients",), ("users", "clients")):
        of_all = [word for each in types for word in ("--entity-type", each)]
        assert "producer_byte_rate" not in tools.configs("--describe", *of_all)


def test_configs_of_a_topic_are_changed_by_whoever_may(
    secured: Secured, tools: Tools, agents: Agents, tmp_path: Path
) -> None:
    """kafka-configs.sh lists all topics before it describes one, and sends IncrementalAlterConfigs."""
    topic, names = ("--entity-type", "topics", "--entity-name", "configured"), "retention.ms=3600000,flush.mode=async"
    for name in ("configured", "another"):
        write(agents.kafka("4.3"), secured.broker, name, secured.login("root"))  # The first message creates the topic.
    tools.configs("--alter", "--add-config", "SCRAM-SHA-512=[password=erins-secret]", "--entity-type", "users",
                  "--entity-name", "erin")  # fmt: skip
    login_file = tmp_path / "erin.properties"
    login_file.write_text(as_properties(secured.login("erin", "erins-secret")))
    erin = tools._replace(login_file=login_file)

    def rule(operation: str) -> tuple[str, ...]:
        return "--allow-principal", "User:erin", "--operation", operation, "--topic", "configured"

    assert "The topic 'configured' doesn't exist" in erin.configs("--describe", *topic), "it lists no such topic"
    tools.acls("--add", *rule("Describe"))
    assert "TopicAuthorizationException" in erin.configs("--describe", *topic, status=1)
    tools.acls("--add", *rule("DescribeConfigs"))
    assert "retention.ms" not in erin.configs("--describe", *topic)
    refused = erin.configs("--alter", "--add-config", names, *topic, status=1)
    assert "TopicAuthorizationException" in refused
    assert "retention.ms" not in tools.configs("--describe", *topic)

    tools.acls("--add", *rule("AlterConfigs"))
    assert "Completed updating config for topic configured" in erin.configs("--alter", "--add-config", names, *topic)
    found = erin.configs("--describe", *topic)
    assert "retention.ms=3600000 " in found
    assert "flush.mode=async " in found
    both = ("--add-config", "retention.ms=7200000", "--delete-config", "flush.mode")
    erin.configs("--alter", *both, *topic)
    found = tools.configs("--describe", *topic)
    assert "retention.ms=7200000 " in found
    assert "flush.mode" not in found
    for wrong in ("retention.ms=soon", "no.such.config=1"):
        assert "InvalidConfigurationException" in erin.configs("--alter", "--add-config", wrong, *topic, status=1)
    assert "retention.ms=7200000 " in tools.configs("--describe", *topic)

    others = ("--entity-type", "topics", "--entity-name", "another")
    assert "TopicAuthorizationException" in erin.configs("--alter", "--add-config", names, *others, status=1)
    assert "retention.ms" not in tools.configs("--describe", *others)
    tools.acls("--remove", "--force", *rule("AlterConfigs"))
    assert "TopicAuthorizationException" in erin.configs("--alter", "--delete-config", "retention.ms", *topic, status=1)
    assert "retention.ms=7200000 " in tools.configs("--describe", *topic)


def test_tools_report_what_is_refused(secured: Secured, tools: Tools, tmp_path: Path) -> None:
    """A user without rights changes nothing; a quota that Duolog does not have is refused, with the reason."""
    user = ("--entity-type", "users", "--entity-name", "mallory")
    refused = tools.configs("--alter", "--add-config", "controller_mutation_rate=1", *user, status=1)
    assert "controller_mutation_rate" in refused
    tools.configs("--alter", "--add-config", "SCRAM-SHA-256=[password=mallorys-secret]", *user)
    mallory = tmp_path / "mallory.properties"
    mallory.write_text(as_properties(secured.login("mallory", "mallorys-secret", "SCRAM-SHA-256")))
    without_rights = tools._replace(login_file=mallory)
    rule = ("--allow-principal", "User:mallory", "--operation", "All", "--cluster")
    refused = without_rights.acls("--add", *rule, status=1)
    assert "ClusterAuthorizationException" in refused
    assert "User:mallory" not in tools.acls("--list")
    tools.configs("--alter", "--delete-config", "SCRAM-SHA-256", *user)


def test_clients_go_on_beyond_a_session(secured: Secured, agents: Agents) -> None:
    """They log in again on their connections, and lose none of them. The versions run side by side, to save time."""
    clients = [SessionClients(agents.kafka(version), version, secured) for version in KAFKA_VERSIONS]
    for each in clients:
        each.send(0)
        eventually("the first message seen", each.seen, bool, WITHIN_S)
    sent = 1
    until = time.monotonic() + 1.25 * SESSION_MS / 1000  # All connections are open, and have logged in, by now.
    while time.monotonic() < until:
        for each in clients:
            each.send(sent)
        sent += 1
        time.sleep(0.02)
    for each in clients:
        got = eventually("messages seen", each.seen, lambda seen: len(seen) >= sent, WITHIN_S)
        assert sorted(got) == list(range(sent))
        for metrics in each.metrics():
            assert metrics["successful-reauthentication-total"] >= 1, metrics
            assert metrics["failed-reauthentication-total"] == metrics["failed-authentication-total"] == 0, metrics
            assert metrics["connection-close-total"] == 0, metrics
        each.close()


class SessionClients:
    """A producer that does not try again, and a consumer in a group, of one version."""

    def __init__(self, agent: Agent, version: str, secured: Secured) -> None:
        self._agent, self._topic, self._name = agent, f"sessions-{version}", f"session-{version}"
        self._seen: list[int] = []
        to = {"bootstrap": secured.broker.kafka, "name": self._name}
        login = secured.login("root")
        agent.call("open_producer", config=login | {"retries": "0", "enable.idempotence": "false"}, **to)
        agent.call("join", topics=[self._topic], config=login | {"group.id": self._name}, **to)

    def send(self, number: int) -> None:
        message = Message(b"x", queue=0, timestamp_ms=number).as_kafka_json()
        self._agent.call("producer", name=self._name, do="send", topic=self._topic, messages=[message])

    def seen(self) -> list[int]:
        """Return the numbers of the messages that the consumer has got."""
        got = self._agent.call("member", name=self._name, action="seen")["seen"]
        self._seen += [each["timestamp_ms"] for each in got]
        return self._seen

    def metrics(self) -> list[dict[str, float]]:
        return [
            self._agent.call("producer", name=self._name, do="metrics"),
            self._agent.call("member", name=self._name, action="metrics"),
        ]

    def close(self) -> None:
        self._agent.call("producer", name=self._name, do="close")
        self._agent.call("leave", name=self._name)
