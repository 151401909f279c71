"""`duolog backup` while clients produce without a pause: the restored copy has every message that was acknowledged.

Messages of both kinds of delay are pending meanwhile: in memory, and in sorted tables.
"""

from __future__ import annotations

import json
import threading
from pathlib import Path

import confluent_kafka
import pytest

from tests.kit.broker import Broker
from tests.kit.command import duolog
from tests.kit.eventually import eventually
from tests.wire.clients.topics import create_topic
from tests.wire.clients.transactional import LibrdkafkaClient

pytestmark = pytest.mark.usefixtures("duolog_only")

SETTINGS = {"delay.near_ms": 100, "store.segment_bytes": 1 << 20, "store.checkpoint_bytes": 1 << 20}
HOUR_MS = 3_600_000
LATER = 300
WITHIN_S = 30


class Load(threading.Thread):
    """Produces numbered messages until it is stopped; `acknowledged` counts those that were answered, in order."""

    def __init__(self, kafka: str) -> None:
        super().__init__()
        self.acknowledged = 0
        self.is_stopped = threading.Event()
        self._producer = confluent_kafka.Producer(
            {"bootstrap.servers": kafka, "log_level": 0, "linger.ms": 5, "enable.idempotence": True}
        )

    def run(self) -> None:
        number = 0
        while not self.is_stopped.is_set():
            if len(self._producer) < 500:
                self._producer.produce("orders", b"%d".ljust(2000) % number, partition=0, on_delivery=self._answered)
                number += 1
            self._producer.poll(0 if len(self._producer) < 500 else 0.01)
        assert self._producer.flush(WITHIN_S) == 0

    def _answered(self, error: object, message: object) -> None:
        assert error is None, error
        self.acknowledged += 1


def test_a_copy_of_a_serving_broker_has_every_acknowledged_message(tmp_path: Path) -> None:
    backup, data = tmp_path / "backup", tmp_path / "restored"
    with Broker(tmp_path / "data", SETTINGS) as broker:
        create_topic(broker.kafka, "orders", 1)
        create_topic(broker.kafka, "later", 1)
        producer = confluent_kafka.Producer({"bootstrap.servers": broker.kafka, "log_level": 0, "linger.ms": 50})
        for _ in range(LATER):
            producer.produce("later", bytes(1024), headers=[("TIMER_DELAY_MS", str(HOUR_MS).encode())])
        assert producer.flush(WITHIN_S) == 0
        eventually("a sorted table", lambda: [*(broker.data / "timers").glob("*.table")], bool, WITHIN_S)
        load = Load(broker.kafka)
        load.start()
        try:
            eventually("some load", lambda: load.acknowledged, lambda count: count > 2000, WITHIN_S)
            before = load.acknowledged
            duolog("backup", str(backup), "--http", broker.http)
            after = load.acknowledged
        finally:
            load.is_stopped.set()
            load.join()
        assert after > before, "the broker did not serve while it was copied"
        duolog("log", "verify", "--data", str(broker.data))
    duolog("restore", str(backup), "--data", str(data))
    duolog("log", "verify", "--data", str(data))
    with Broker(data, SETTINGS) as restored:
        read = LibrdkafkaClient(restored.kafka).read("orders", 1, before, "read_uncommitted")
        assert len(read) >= before
        assert [int(value) for _, _, value in read] == [*range(len(read))]
        pending = json.loads(duolog("timer", "list", "--json", "--http", restored.http))
        assert pending["count"] == LATER
