"""Writes a small data directory by a broker of the version at hand, and packs it for `test_upgrade.py`.

    python -m tests.wire.old_data.make_data        # writes tests/wire/old_data/format-<version>.tar.xz

It is run with each release, and the archive is committed: so the archive of a format has the data of the last release
that writes this format. Before the first release, the archive of format 1 was written by an unreleased version. The
content is what `test_upgrade.py` expects: messages of both client protocols, a committed offset, a committed and an
aborted Kafka transaction, messages that are pending for years in a sorted table, and a schedule.
"""

from __future__ import annotations

import json
import tarfile
import tempfile
import urllib.request
from pathlib import Path
from typing import Any

from confluent_kafka import Consumer, Producer, TopicPartition

from duolog.store.recovery.format_version import FORMAT_VERSION
from tests.kit.broker import Broker
from tests.kit.eventually import eventually
from tests.wire.clients.remoting import ask
from tests.wire.clients.topics import create_topic

HERE = Path(__file__).parent
SETTINGS: dict[str, object] = {
    "store.segment_bytes": 65_536,
    "store.reserve_bytes": 0,
    "delay.near_ms": 100,
    "retention.ms": -1,
    "groups.positions_retention_ms": 100 * 365 * 86_400_000,
}
PENDING_MS = 9 * 365 * 86_400_000
KAFKA_COUNT, ROCKETMQ_COUNT, PENDING_COUNT, COMMITTED = 20, 5, 8, 7
SEND_MESSAGE = 10
WITHIN_S = 30


def archive_of(version: int) -> Path:
    """Return the path of the archive of a format version."""
    return HERE / f"format-{version}.tar.xz"


def fill(broker: Broker) -> None:
    """Write everything."""
    create_topic(broker.kafka, "orders", 2)
    producer = Producer({"bootstrap.servers": broker.kafka, "compression.type": "zstd"})
    for number in range(KAFKA_COUNT):
        producer.produce("orders", b"kafka-%d" % number, key=b"k", headers={"n": b"%d" % number}, partition=0)
    for number in range(PENDING_COUNT):
        producer.produce("orders", b"later-%d" % number, headers={"TIMER_DELAY_MS": str(PENDING_MS)}, partition=0)
    assert producer.flush(WITHIN_S) == 0
    for number in range(ROCKETMQ_COUNT):
        assert send(broker, "orders", b"rocketmq-%d" % number).code == 0
    for does_commit in (True, False):
        transact(broker, does_commit)
    group = Consumer({"bootstrap.servers": broker.kafka, "group.id": "billing"})
    group.commit(offsets=[TopicPartition("orders", 0, COMMITTED)], asynchronous=False)
    group.close()
    post(broker, "/api/schedules", {"name": "yearly", "topic": "orders", "value": "x", "cron": "0 0 1 1 *"})
    tables = broker.data / "timers"
    eventually("a sorted table", lambda: [*tables.glob("*.table")], bool, WITHIN_S)


def transact(broker: Broker, does_commit: bool) -> None:
    name = "committed" if does_commit else "aborted"
    producer = Producer({"bootstrap.servers": broker.kafka, "transactional.id": name})
    producer.init_transactions(WITHIN_S)
    producer.begin_transaction()
    producer.produce("orders", name.encode(), partition=0)
    producer.flush(WITHIN_S)
    (producer.commit_transaction if does_commit else producer.abort_transaction)(WITHIN_S)


def send(broker: Broker, topic: str, body: bytes) -> Any:
    fields = {
        "producerGroup": "shop", "topic": topic, "defaultTopic": "TBW102", "defaultTopicQueueNums": 4, "queueId": 1,
        "sysFlag": 0, "bornTimestamp": 1_700_000_000_000, "flag": 0, "properties": "TAGS\x01red\x02", "batch": "false",
    }  # fmt: skip
    return ask(broker.rocketmq, SEND_MESSAGE, fields, body)


def post(broker: Broker, path: str, body: dict[str, object]) -> None:
    request = urllib.request.Request(
        f"http://{broker.http}{path}", json.dumps(body).encode(), {"Content-Type": "application/json"}, method="POST"
    )
    urllib.request.urlopen(request, timeout=WITHIN_S).close()


def make(archive: Path) -> None:
    """Write a directory and pack it."""
    with tempfile.TemporaryDirectory() as folder:
        data = Path(folder) / "data"
        with Broker(data, SETTINGS) as broker:
            fill(broker)
        with tarfile.open(archive, "w:xz") as packed:
            packed.add(data, "data", filter=_anonymous)


def _anonymous(member: tarfile.TarInfo) -> tarfile.TarInfo:
    member.uid = member.gid = 0
    member.uname = member.gname = ""
    return member


if __name__ == "__main__":
    make(archive_of(FORMAT_VERSION))
