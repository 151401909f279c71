"""Access keys with stock RocketMQ clients (Java 5.5.0 and 4.9.8, Go): a user may what its rules allow, and no more."""

from __future__ import annotations

import re
import secrets
import socket
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.kit.broker import Broker
from tests.kit.command import duolog
from tests.kit.eventually import eventually
from tests.kit.signing import signature_of
from tests.wire.clients import remoting
from tests.wire.clients.agent import Agent, AgentError
from tests.wire.clients.golang import go_agent
from tests.wire.clients.jvm import Agents
from tests.wire.clients.message import Message

PAGE = Path(__file__).parents[2] / "docs/reference/mqadmin.md"
SECRET = "alice's secret"
WITHIN_S = 30.0
LOGIN_BYTES_MAX = 64 << 10
NO_PERMISSION = 16
GET_MAX_OFFSET = 30

Send = Callable[..., Any]


@pytest.fixture(scope="module")
def broker(duolog_only: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """A broker on which alice may write to and read from topics that begin with `orders`, with groups of her own."""
    data = tmp_path_factory.mktemp("access-keys") / "data"
    for words in (["alice"], ["root", "--super"]):
        duolog("user", "add", *words, "--password-stdin", "--data", str(data), given=SECRET + "\n")
    rule = ["--allow", "--user", "alice", "--topic-prefix", "orders", "--group-prefix", "al"]
    duolog("acl", "add", *rule, "--operation", "read,write,create", "--data", str(data))
    with Broker(data, {"security.enabled": "true", "store.flush": "async"}) as running:
        yield running


@pytest.fixture(scope="module")
def go() -> Iterator[Agent]:
    agent = go_agent()
    yield agent
    agent.close()


@pytest.fixture(params=["java 5.5", "java 4.9", "go"])
def client(request: pytest.FixtureRequest, agents: Agents) -> tuple[str, Agent]:
    name = request.param
    if name == "go":
        return name, request.getfixturevalue("go")
    return name, agents.rocketmq(name.split()[1])


def send(client: tuple[str, Agent], broker: Broker, topic: str, body: str, **arguments: Any) -> Any:
    name, agent = client
    if name == "go":
        return agent.call("send", namesrv=broker.namesrv, topic=topic, bodies=[body], **arguments)
    message = Message(body.encode(), queue=-1).as_rocketmq_json()
    return agent.call("write", namesrv=broker.namesrv, topic=topic, how="sync", messages=[message], **arguments)


def read(client: tuple[str, Agent], broker: Broker, topic: str, group: str, **arguments: Any) -> list[Any]:
    """Return what a push consumer gets first."""
    name, agent = client
    wanted = {"topic": topic} if name == "go" else {"topics": {topic: 1}}

    def seen() -> list[Any]:
        answer = agent.call("seen", name=group)
        return list(answer if name == "go" else answer["seen"])

    agent.call("open", name=group, group=group, namesrv=broker.namesrv, **wanted, **arguments)
    try:
        return eventually("a message", seen, bool, WITHIN_S)
    finally:
        agent.call("close", name=group)


def test_client_with_the_right_key_may_what_its_rules_allow(client: tuple[str, Agent], broker: Broker) -> None:
    word = client[0].replace(" ", "-").replace(".", "-")
    key = {"access_key": "alice", "secret_key": SECRET}
    assert len(send(client, broker, f"orders-{word}", "for alice", **key)) == 1
    assert len(read(client, broker, f"orders-{word}", f"al-{word}", **key)) == 1
    with pytest.raises(AgentError):
        send(client, broker, f"payments-{word}", "not hers", **key)


def test_first_request_of_a_connection_may_be_a_large_message(client: tuple[str, Agent], broker: Broker) -> None:
    """Producers that have sent no heartbeat begin with the message. Its body is too random to be compressed."""
    word = client[0].replace(" ", "-").replace(".", "-")
    key = {"access_key": "alice", "secret_key": SECRET}
    assert len(send(client, broker, f"orders-large-{word}", secrets.token_hex(500_000), **key)) == 1


@pytest.mark.parametrize(("port", "limit"), [("rocketmq", (4 << 20) + LOGIN_BYTES_MAX), ("namesrv", LOGIN_BYTES_MAX)])
def test_frames_before_a_signed_request_have_a_limit(broker: Broker, port: str, limit: int) -> None:
    host, _, number = getattr(broker, port).rpartition(":")
    for length, is_refused in ((limit + 1, True), (limit, False)):
        with socket.create_connection((host, int(number)), WITHIN_S) as connection:
            connection.sendall(struct.pack(">I", length) + bytes(100))
            connection.settimeout(WITHIN_S if is_refused else 0.2)
            if is_refused:
                assert connection.recv(1) == b""
            else:
                with pytest.raises(TimeoutError):
                    connection.recv(1)


@pytest.mark.parametrize(
    "key",
    [
        pytest.param({}, id="unsigned"),
        pytest.param({"access_key": "alice", "secret_key": "wrong secret"}, id="wrong-secret"),
        pytest.param({"access_key": "mallory", "secret_key": SECRET}, id="unknown-user"),
    ],
)
def test_nobody_else_may_anything(client: tuple[str, Agent], broker: Broker, key: dict[str, str]) -> None:
    with pytest.raises(AgentError):
        send(client, broker, "orders-nobody", "x", **key)


@pytest.mark.parametrize("port", ["rocketmq", "namesrv"])
def test_signature_fits_one_request_only(broker: Broker, port: str) -> None:
    address = getattr(broker, port)
    fields = {"topic": "orders-signed", "queueId": "0", "AccessKey": "alice"}
    signature = signature_of(fields, b"", SECRET.encode()).decode()
    right = remoting.ask(address, GET_MAX_OFFSET, fields | {"Signature": signature})
    assert right.code != NO_PERMISSION, right.remark
    refusals = {
        "changed field": remoting.ask(address, GET_MAX_OFFSET, fields | {"queueId": "1", "Signature": signature}),
        "further field": remoting.ask(address, GET_MAX_OFFSET, fields | {"more": "1", "Signature": signature}),
        "other body": remoting.ask(address, GET_MAX_OFFSET, fields | {"Signature": signature}, b"more"),
        "no signature": remoting.ask(address, GET_MAX_OFFSET, fields),
        "unknown user": remoting.ask(address, GET_MAX_OFFSET, fields | {"AccessKey": "bob", "Signature": signature}),
    }
    assert {name: (reply.code, reply.remark) for name, reply in refusals.items()} == dict.fromkeys(
        refusals, (NO_PERMISSION, "the access key is unknown, or the signature does not fit the request")
    )


def test_mqadmin_manages_users_and_rules(agents: Agents, broker: Broker) -> None:
    """The users and rules are those of all protocols; `copyUser` and `copyAcl` copy them to the same broker here."""
    admin = agents.admin()

    ran: set[str] = set()

    def run(*words: str, of: str = "root") -> str:
        ran.add(words[0])
        printed = admin.call("run", words=list(words), access_key=of, secret_key=SECRET)
        return str(printed)

    to = ("-b", broker.rocketmq)
    assert "success" in run("createUser", *to, "-u", "bob", "-p", "bob's secret", "-t", "Normal")
    assert "bob" in run("getUser", *to, "-u", "bob")
    assert "Super" in run("listUser", *to)
    assert "success" in run("updateUser", *to, "-u", "bob", "-p", SECRET)
    rule = ("-s", "User:bob", "-r", "Topic:orders*,Group:bobs", "-a", "Pub,Sub", "-d", "Allow")
    assert "success" in run("createAcl", *to, *rule)
    shown = run("getAcl", *to, "-s", "User:bob")
    assert "Topic:orders*" in shown
    assert "Group:bobs" in shown

    fields = {"topic": "orders-bob", "queueId": "0", "AccessKey": "bob"}
    signature = {"Signature": signature_of(fields, b"", SECRET.encode()).decode()}
    assert remoting.ask(broker.rocketmq, GET_MAX_OFFSET, fields | signature).code != NO_PERMISSION
    copy = ("-f", broker.rocketmq, "-t", broker.rocketmq)
    assert "success" in run("copyUser", *copy, "-u", "bob")
    assert "success" in run("copyAcl", *copy, "-s", "User:bob")
    assert remoting.ask(broker.rocketmq, GET_MAX_OFFSET, fields | signature).code != NO_PERMISSION

    assert "success" in run("updateAcl", *to, "-s", "User:bob", "-r", "Topic:orders*", "-a", "Pub,Sub", "-d", "Deny")
    assert remoting.ask(broker.rocketmq, GET_MAX_OFFSET, fields | signature).code == NO_PERMISSION
    assert "Deny" in run("listAcl", *to, "-s", "User:bob")
    assert "success" in run("deleteAcl", *to, "-s", "User:bob", "-r", "Topic:orders*")
    assert "success" in run("deleteUser", *to, "-u", "bob")
    assert "bob" not in run("listUser", *to)
    assert "User:alice may not ALTER on cluster" in run("createUser", *to, "-u", "eve", "-p", "x", of="alice")
    (row,) = (line for line in PAGE.read_text().splitlines() if line.startswith("| works with `security.enabled` |"))
    assert ran == set(re.findall(r"`(\w+)`", row.split("|")[2]))
