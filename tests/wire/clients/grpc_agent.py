"""The official Python client of RocketMQ 5 (gRPC), in a process of its own; driven as `agent.py` says.

Its clients are named by the caller. Bodies are text. A push consumer fails the messages whose bodies the caller names.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
import traceback
from typing import Any

from rocketmq import (
    ClientConfiguration,
    ConsumeResult,
    Credentials,
    FilterExpression,
    Message,
    MessageListener,
    Producer,
    PushConsumer,
    SimpleConsumer,
    TransactionChecker,
    TransactionResolution,
)
from rocketmq.grpc_protocol import FilterType

# The proxy answers with an internal error until it knows the settings of a client that has just come.
STARTING = "settings"

clients: dict[str, Any] = {}
kept: dict[str, Message] = {}  # Received and not acked, by body.


class Checker(TransactionChecker):
    """Commits what it is asked about, unless the body says otherwise."""

    def __init__(self) -> None:
        self.checked: list[str] = []

    def check(self, message: Message) -> TransactionResolution:
        self.checked.append(message.body.decode())
        return TransactionResolution.ROLLBACK if b"rollback" in message.body else TransactionResolution.COMMIT


class Listener(MessageListener):
    def __init__(self, failures: dict[str, int]) -> None:
        self.failures = failures  # How often the message with a body fails.
        self.seen: list[tuple[str, int]] = []

    def consume(self, message: Message) -> ConsumeResult:
        body = message.body.decode()
        self.seen.append((body, message.delivery_attempt))
        fails = message.delivery_attempt <= self.failures.get(body, 0)
        return ConsumeResult.FAILURE if fails else ConsumeResult.SUCCESS


def start(name: str, kind: str, endpoint: str, topic: str, **options: Any) -> None:
    settings = ClientConfiguration(endpoint, Credentials(), request_timeout=10)
    sql = options.get("sql")
    wanted = {topic: FilterExpression(sql, FilterType.SQL) if sql else FilterExpression(options.get("tags", "*"))}
    if kind == "producer":
        checker = Checker()
        client: Any = Producer(settings, (topic,), checker=checker)
        client.checked = checker.checked
    elif kind == "simple":
        client = SimpleConsumer(settings, options["group"], wanted, 2)
    else:
        listener = Listener(options.get("failures", {}))
        client = PushConsumer(settings, options["group"], listener, wanted)
        client.seen = listener.seen
    client.startup()
    clients[name] = client


def send(name: str, topic: str, messages: list[dict[str, Any]], end: str = "") -> list[list[str]]:
    """Send one by one; with `end` each in a transaction that ends so (commit, rollback, or left alone)."""
    sent = []
    for fields in messages:
        message = Message()
        message.topic, message.body = topic, fields.pop("body").encode()
        for header, value in fields.pop("headers", {}).items():
            message.add_property(header, value)
        for field, value in fields.items():
            setattr(message, field, value)
        transaction = clients[name].begin_transaction() if end else None
        receipt = clients[name].send(message, transaction)
        if transaction is not None and end != "nothing":
            getattr(transaction, end)()
        sent.append([receipt.message_id, receipt.recall_handle])
    return sent


def receive(name: str, count: int, patience_s: float, invisible_s: int = 10, most: int = 16) -> list[dict[str, Any]]:
    """Receive until `count` messages are there or the time is over; nothing is acked."""
    found: list[Message] = []
    until = time.monotonic() + patience_s
    while len(found) < count and time.monotonic() < until:
        try:
            found += clients[name].receive(most, invisible_s) or []
        except Exception as error:
            if STARTING not in str(error):
                raise
            time.sleep(0.1)
    kept.update((message.body.decode(), message) for message in found)
    return [
        {
            "body": message.body.decode(), "attempt": message.delivery_attempt, "tag": message.tag,
            "group": message.message_group, "priority": message.priority, "properties": dict(message.properties or {}),
            "keys": list(message.keys or ()),
        }
        for message in found
    ]  # fmt: skip


def ack(name: str, bodies: list[str]) -> None:
    for body in bodies:
        clients[name].ack(kept[body])


def change(name: str, body: str, invisible_s: int) -> None:
    clients[name].change_invisible_duration(kept[body], invisible_s)


def recall(name: str, topic: str, handle: str) -> str:
    return str(clients[name].recall_message(topic, handle))


def seen(name: str) -> list[tuple[str, int]]:
    return list(clients[name].seen)


def checked(name: str) -> list[str]:
    return list(clients[name].checked)


def close(name: str) -> None:
    clients.pop(name).shutdown()


COMMANDS = {each.__name__: each for each in (start, send, receive, ack, change, recall, seen, checked, close)}


def answer(line: str) -> None:
    question = json.loads(line)
    number, command = question.pop("id"), COMMANDS[question.pop("op")]
    try:
        said = {"id": number, "result": command(**question)}
    except Exception as error:  # noqa: BLE001 - The caller gets it.
        said = {"id": number, "error": f"{type(error).__name__}: {error}", "trace": traceback.format_exc()}
    sys.stdout.write(json.dumps(said) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    for each in sys.stdin:
        threading.Thread(target=answer, args=(each,), daemon=True).start()
    os._exit(0)  # The client's threads would wait for their long polls.
