"""The commands that show what a broker does now, and those that filter and redrive, against a child process."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from confluent_kafka import Consumer

from tests.kit.broker import Broker
from tests.kit.command import duolog, run_duolog
from tests.wire.clients import remoting

SEND_MESSAGE, SEND_MSG_BACK = 10, 36


@pytest.fixture(scope="module")
def broker(duolog_only: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    with Broker(tmp_path_factory.mktemp("observed") / "data") as running:
        yield running


def asked(broker: Broker, *words: str) -> Any:
    return json.loads(duolog(*words, "--http", broker.http, "--json"))


def send(broker: Broker, body: str, properties: str = "") -> str:
    """Send a message of a RocketMQ producer, and return its id."""
    fields = {
        "producerGroup": "shop", "topic": "orders", "defaultTopic": "TBW102", "defaultTopicQueueNums": 4,
        "queueId": 0, "sysFlag": 4 if "TRAN_MSG" in properties else 0, "bornTimestamp": 0, "flag": 0,
        "properties": properties,
    }  # fmt: skip
    reply = remoting.ask(broker.rocketmq, SEND_MESSAGE, fields, body.encode())
    assert reply.code == 0, reply.remark
    return reply.fields["msgId"]


def test_members_lag_and_clients_of_both_protocols_are_shown(broker: Broker) -> None:
    duolog("topic", "create", "orders", "--queues", "1", "--http", broker.http)
    send(broker, "a")
    consumer = Consumer(
        {"bootstrap.servers": broker.kafka, "group.id": "billing", "client.id": "cashier",
         "auto.offset.reset": "earliest"}
    )  # fmt: skip
    try:
        consumer.subscribe(["orders"])
        assert consumer.consume(1, timeout=20)
        (row,) = asked(broker, "topic", "groups", "orders")
        assert (row["name"], row["active"], row["members"], row["lag"]) == ("billing", "kafka", 1, 1)
        (member,) = asked(broker, "group", "members", "billing")["members"]
        assert (member["client_id"], member["topics"]) == ("cashier", ["orders"])
        assert member["assignment"] == [{"topic": "orders", "queues": [0]}]
        shown = asked(broker, "clients")
        assert {row["client_id"] for row in shown["clients"]} == {"cashier"}
        assert shown["count"] == len(shown["clients"])
        # The consumer's connection to the coordinator is not the one over which it fetches; both show the group.
        assert len(shown["clients"]) >= 2
        assert [row["groups"] for row in shown["clients"]] == [["billing"]] * len(shown["clients"])
    finally:
        consumer.close()


def test_what_the_broker_logged_and_measured_is_shown(broker: Broker) -> None:
    (ready,) = asked(broker, "lines", "--search", "ready in_ms", "--component", "bridge")
    assert ready["level"] == "info"
    assert "ready in_ms=" in duolog("lines", "--http", broker.http)
    assert asked(broker, "history")["interval_ms"] == 10_000
    assert isinstance(asked(broker, "warnings"), list)
    assert len(asked(broker, "schedule", "preview", "0 9 * * *", "--count", "3")["runs"]) == 3


def test_messages_are_filtered(broker: Broker) -> None:
    duolog("topic", "create", "filtered", "--queues", "1", "--http", broker.http)
    for key, tag in (("k1", "paid"), ("k2", "open"), ("k1", "open")):
        duolog("produce", "filtered", f"{key} {tag}", "--key", key, "--tag", tag, "--http", broker.http)
    words = ("consume", "filtered", "--from-beginning", "--timeout", "500ms", "--http", broker.http)
    for filters, count in ((("--key", "k1"), 2), (("--tag", "open || none"), 2), (("--sql", "KEYS = 'k2'"), 1)):
        assert len(duolog(*words, *filters).splitlines()) == count, filters


def test_dead_letters_are_redriven_one_by_one_and_half_messages_decided_by_offset(broker: Broker) -> None:
    for body in ("one", "two"):
        fields = {
            "offset": int(send(broker, body)[16:], 16), "group": "returns", "delayLevel": -1, "maxReconsumeTimes": 0,
        }  # fmt: skip
        assert remoting.ask(broker.rocketmq, SEND_MSG_BACK, fields).code == 0
    assert len(asked(broker, "group", "dead-letters", "returns", "--reason", "given-up")["dead_letters"]) == 2
    redriven = duolog("group", "redrive", "returns", "--to", "topic", "--offset", "1", "--http", broker.http)
    assert redriven == "redrove 1 dead letters of returns\n"
    letters = asked(broker, "group", "dead-letters", "returns")["dead_letters"]
    assert [each["is_redriven"] for each in letters] == [False, True]
    send(broker, "half", "TRAN_MSG\x01true\x02PGROUP\x01shop\x02UNIQ_KEY\x01H1\x02")
    (half,) = [row for row in asked(broker, "txn", "list") if row["state"] == "half"]
    offset = str(half["half_offset"])
    assert duolog("txn", "commit", "--half-offset", offset, "--http", broker.http).endswith(": committed\n")
    assert run_duolog("txn", "rollback", "--half-offset", offset, "--http", broker.http).returncode == 1
