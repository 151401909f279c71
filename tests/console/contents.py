"""What the broker of these tests holds: some of everything that a page shows."""

from __future__ import annotations

import base64
import json
import struct
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from confluent_kafka import Consumer, Producer

from duolog.bridge.config import Options, StoreSection
from duolog.bridge.offline import open_offline
from tests.kit.broker import Broker
from tests.wire.clients import remoting

SEND_MESSAGE, SEND_MSG_BACK = 10, 36

HOUR_MS = 3_600_000
LONG = "a-name-that-is-as-long-as-names-of-topics-in-large-companies-tend-to-be.v2"


def ask(broker: Broker, method: str, path: str, body: Any = None) -> Any:
    """Send a request to the API, and return its answer."""
    content = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(
        f"http://{broker.http}{path}", content, {"Content-Type": "application/json"}, method=method
    )
    with urllib.request.urlopen(request, timeout=10) as answer:
        return json.loads(answer.read())


def set_aside_records(data: Path) -> None:
    """Begin a data directory whose state lists records that could not be processed."""
    with open_offline(Options(store=StoreSection(directory=str(data)))) as core:
        for kind, place in (("schedule", "nightly"), ("popped message", "orders queue 0 offset 5")):
            core.poison_records.set_aside(kind, place, ValueError("the record has no time"))
        core.poison_records.save(core.clock.now_ms(), core.clock.mono_ms())


def write_schemas(folder: Path) -> None:
    """Write the Avro schema of the topic `sensors`."""
    folder.mkdir()
    fields = [{"name": "sensor", "type": "string"}, {"name": "celsius", "type": "double"}]
    schema = {"type": "record", "name": "Reading", "fields": fields}
    (folder / "sensors.avsc").write_text(json.dumps(schema))


@contextmanager
def fill(broker: Broker) -> Iterator[None]:
    """Fill the broker; a member of a group and an open transaction stay as long as the context."""
    for name, queues in (("orders", 4), ("audit", 1), ("sensors", 1), (LONG, 2)):
        ask(broker, "POST", "/api/topics", {"name": name, "queues": queues})
    messages = [
        {"value": json.dumps({"order": number, "lines": [{"item": "pen", "count": 2}]}), "key": f"order-{number}",
         "tag": "paid" if number % 2 else "open", "headers": {"trace": f"t-{number}"}, "queue": number % 2}
        for number in range(120)
    ]  # fmt: skip
    ask(broker, "POST", "/api/topics/orders/messages", {"messages": messages})
    ask(broker, "POST", "/api/topics/audit/messages", {"value_base64": "AAECAwT/", "key_base64": "/wA="})
    reading = base64.b64encode(b"\x0anorth" + struct.pack("<d", 21.5)).decode()
    ask(broker, "POST", "/api/topics/sensors/messages", {"value_base64": reading, "key": "north"})
    for number in range(40):
        timer = {"topic": "orders", "value": f"reminder {number}", "key": f"order-{number % 5}"}
        ask(broker, "POST", "/api/timers", timer | {"delay_ms": 60_000 + number * number * 120_000})
    schedule = {"name": "every-morning", "topic": "audit", "value": "report", "cron": "30 2 * * *"}
    ask(broker, "POST", "/api/schedules", schedule | {"zone": "Europe/Berlin"})
    ask(broker, "POST", "/api/schedules", {"name": "often", "topic": "audit", "value": "tick", "every_ms": HOUR_MS})
    for number in range(3):
        add_dead_letter(broker, f"failed {number}", "shipping")
    send_half(broker, "half of an order", "H0")
    consumer = Consumer(
        {"bootstrap.servers": broker.kafka, "group.id": "billing", "auto.offset.reset": "earliest",
         "enable.auto.commit": False}
    )  # fmt: skip
    consumer.subscribe(["orders"])
    for message in consumer.consume(50, timeout=15):
        consumer.commit(message, asynchronous=False)
    commit_idle_group(broker)
    producer = Producer(
        {"bootstrap.servers": broker.kafka, "transactional.id": "payer", "transaction.timeout.ms": 600_000}
    )
    producer.init_transactions(15)
    producer.begin_transaction()
    producer.produce("orders", b"not yet", b"k")
    producer.flush(15)
    yield
    producer.abort_transaction(15)
    consumer.close()


def commit_idle_group(broker: Broker) -> None:
    """Let a group without members have committed offsets."""
    idle = Consumer({"bootstrap.servers": broker.kafka, "group.id": "idle", "auto.offset.reset": "earliest"})
    idle.subscribe(["audit"])
    idle.consume(1, timeout=15)
    idle.commit(asynchronous=False)
    idle.close()


def send(broker: Broker, topic: str, body: str, properties: dict[str, str], system_flag: int = 0) -> str:
    """Send a message of a RocketMQ producer, and return its id."""
    fields = {
        "producerGroup": "shop", "topic": topic, "defaultTopic": "TBW102", "defaultTopicQueueNums": 4, "queueId": 0,
        "sysFlag": system_flag, "bornTimestamp": int(time.time() * 1000), "flag": 0,
        "properties": "".join(f"{name}\x01{value}\x02" for name, value in properties.items()),
    }  # fmt: skip
    reply = remoting.ask(broker.rocketmq, SEND_MESSAGE, fields, body.encode())
    assert reply.code == 0, reply.remark
    return reply.fields["msgId"]


def add_dead_letter(broker: Broker, body: str, group: str, tag: str = "late") -> None:
    """Send a message that a RocketMQ group gives up at once."""
    sent = send(broker, "audit", body, {"KEYS": "k", "TAGS": tag})
    fields = {"offset": int(sent[16:], 16), "group": group, "delayLevel": -1, "maxReconsumeTimes": 0}
    reply = remoting.ask(broker.rocketmq, SEND_MSG_BACK, fields)
    assert reply.code == 0, reply.remark


def send_half(broker: Broker, body: str, key: str) -> None:
    """Send a half message whose producer is gone at once."""
    send(broker, "orders", body, {"TRAN_MSG": "true", "PGROUP": "shop", "UNIQ_KEY": key}, 4)
