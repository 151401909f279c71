"""Upgrades: this version serves old data of each format version, and refuses newer data.

The archives in `old_data` were written by `old_data/make_data.py`, which says with which version. There must be one for
each format version.
"""

from __future__ import annotations

import json
import tarfile
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from duolog.store.recovery.format_version import FORMAT_VERSION
from tests.kit.broker import Broker
from tests.kit.command import duolog, run_duolog
from tests.wire.clients.topics import committed_offsets
from tests.wire.old_data.make_data import (
    COMMITTED,
    KAFKA_COUNT,
    PENDING_COUNT,
    ROCKETMQ_COUNT,
    SETTINGS,
    archive_of,
    send,
)

WITHIN_S = 30


def unpacked(version: int, folder: Path) -> Path:
    with tarfile.open(archive_of(version)) as archive:
        archive.extractall(folder, filter="data")
    return folder / "data"


@pytest.fixture(params=range(1, FORMAT_VERSION + 1))
def broker(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Broker]:
    with Broker(unpacked(request.param, tmp_path), SETTINGS) as running:
        yield running


def get(broker: Broker, path: str) -> Any:
    with urllib.request.urlopen(f"http://{broker.http}{path}", timeout=WITHIN_S) as answer:
        return json.load(answer)


def read(broker: Broker, queue: int, count: int) -> list[bytes]:
    consumer = Consumer({"bootstrap.servers": broker.kafka, "group.id": "reader", "isolation.level": "read_committed"})
    consumer.assign([TopicPartition("orders", queue, 0)])
    found = [message.value() for message in consumer.consume(count, WITHIN_S)]
    consumer.close()
    return [value for value in found if value is not None]


def test_everything_is_there_and_goes_on(broker: Broker) -> None:
    check_everything(broker)


def check_everything(broker: Broker) -> None:
    """Show that all that `make_data.fill` wrote is there, and that more can be written."""
    kafka = [b"kafka-%d" % number for number in range(KAFKA_COUNT)]
    assert read(broker, 0, KAFKA_COUNT + 1) == [*kafka, b"committed"]
    assert read(broker, 1, ROCKETMQ_COUNT) == [b"rocketmq-%d" % number for number in range(ROCKETMQ_COUNT)]
    assert committed_offsets(broker.kafka, "billing", "orders", 2) == {0: COMMITTED}
    assert len(get(broker, "/api/timers?topic=orders&limit=100")["timers"]) == PENDING_COUNT
    assert [each["name"] for each in get(broker, "/api/schedules")] == ["yearly"]
    producer = Producer({"bootstrap.servers": broker.kafka, "transactional.id": "committed"})
    producer.init_transactions(WITHIN_S)
    producer.begin_transaction()
    producer.produce("orders", b"new", partition=0)
    producer.commit_transaction(WITHIN_S)
    assert send(broker, "orders", b"new").code == 0
    assert read(broker, 0, KAFKA_COUNT + 2)[-1] == b"new"
    assert read(broker, 1, ROCKETMQ_COUNT + 1)[-1] == b"new"
    broker.restart()
    assert read(broker, 0, KAFKA_COUNT + 2)[-1] == b"new"


@pytest.mark.parametrize("version", range(1, FORMAT_VERSION + 1))
def test_commands_read_old_data(version: int, tmp_path: Path) -> None:
    data = unpacked(version, tmp_path)
    found = json.loads(duolog("log", "verify", "--data", str(data), "--json"))
    assert (found["intact"], found["tables"]) == (True, 1)


REFUSED = {
    b"2\n": "it has format 2, and this version of Duolog reads formats up to 1. Start the newer version",
    b"": "its file 'format' is damaged",
    b"x" * 1000: "its file 'format' is damaged",
    None: "it has log/ and no file 'format'",
}


@pytest.mark.parametrize("content", REFUSED)
def test_data_of_another_format_is_refused_and_not_changed(content: bytes | None, tmp_path: Path) -> None:
    data = unpacked(FORMAT_VERSION, tmp_path)
    (data / "format").unlink() if content is None else (data / "format").write_bytes(content)
    before = {path: path.read_bytes() for path in data.rglob("*") if path.is_file()}
    ports = [f"--set={name}=0" for name in ("kafka.port", "rocketmq.port", "rocketmq.namesrv_port", "http.port")]
    refused = run_duolog("serve", "--data", str(data), *ports)
    assert (refused.returncode, REFUSED[content] in refused.stderr) == (1, True), refused.stderr
    assert {path: path.read_bytes() for path in data.rglob("*") if path.is_file()} == before
    if content is not None:
        verified = run_duolog("log", "verify", "--data", str(data))
        assert (verified.returncode, REFUSED[content] in verified.stderr) == (2, True), verified.stderr


def test_a_new_directory_gets_the_version_before_anything_else(tmp_path: Path) -> None:
    with Broker(tmp_path / "data") as broker:
        assert (broker.data / "format").read_text() == f"{FORMAT_VERSION}\n"
        duolog("backup", str(tmp_path / "backup"), "--http", broker.http)
    duolog("restore", str(tmp_path / "backup"), "--data", str(tmp_path / "restored"))
    assert (tmp_path / "restored" / "format").read_text() == f"{FORMAT_VERSION}\n"
