"""Damaged files of delayed messages, on a broker that is stopped, damaged and started: it starts, reports what was
lost, counts it, and still has all other messages.
"""

from __future__ import annotations

import json
import shutil
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path

import confluent_kafka
import pytest
from crc32c import crc32c

from duolog.delay.tables.table_format import FOOTER_SIZE
from tests.kit.broker import Broker
from tests.kit.command import run_duolog
from tests.kit.damage import flip
from tests.kit.eventually import eventually
from tests.wire.clients.topics import create_topic

SETTINGS = {"delay.near_ms": 100}
HOUR_MS = 3_600_000
COUNT = 300  # Messages of 1 KiB in each table: some blocks.
WITHIN_S = 60
COMMITTED_S = 0.5  # Within this time after a table is written, the log names it.


def tables(data: Path) -> list[Path]:
    return sorted((data / "timers").glob("*.table"))


@pytest.fixture(scope="module")
def stopped(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data directory with two tables, which was closed in order."""
    with Broker(tmp_path_factory.mktemp("tables") / "data", SETTINGS) as broker:
        create_topic(broker.kafka, "later", 1)
        for wanted in (1, 2):
            producer = confluent_kafka.Producer(
                {"bootstrap.servers": broker.kafka, "log_level": 0, "linger.ms": 60_000}
            )
            # A producer that does not know the partition yet may send the next messages in two batches, and so may the
            # broker write two tables.
            producer.produce("later", b"at once")
            assert producer.flush(WITHIN_S) == 0
            for _ in range(COUNT):
                producer.produce("later", bytes(1024), headers=[("TIMER_DELAY_MS", str(wanted * HOUR_MS).encode())])
            assert producer.flush(WITHIN_S) == 0
            eventually(
                "a sorted table", lambda: len(list(filter(is_whole, tables(broker.data)))), wanted.__le__, WITHIN_S
            )
            time.sleep(COMMITTED_S)
        broker.stop()
        return broker.data


def is_whole(table: Path) -> bool:
    """Return whether the file of a table has its footer, which is written last."""
    footer = table.read_bytes()[-FOOTER_SIZE:]
    return len(footer) == FOOTER_SIZE and crc32c(footer[:-4]) == int.from_bytes(footer[-4:], "big")


def first(data: Path) -> Path:
    return tables(data)[0]


# What is damaged: (how, what the log says, how many messages are lost).
DAMAGES: dict[str, tuple[Callable[[Path], object], str, range]] = {
    "a block": (lambda data: flip(first(data), 0), "delayed messages are lost", range(1, COUNT)),
    "the footer": (
        lambda data: flip(first(data), -1),
        "delayed messages are lost, their table is set aside", range(COUNT, COUNT + 1),
    ),
    "a missing table": (
        lambda data: first(data).unlink(),
        "delayed messages are lost, their table is set aside", range(COUNT, COUNT + 1),
    ),
    "the manifest": (lambda data: flip(next(data.glob("checkpoint*")), 100), "checkpoint is damaged", range(1)),
}  # fmt: skip


def get(broker: Broker, path: str) -> bytes:
    with urllib.request.urlopen(f"http://{broker.http}{path}", timeout=WITHIN_S) as answer:
        content: bytes = answer.read()
        return content


@pytest.mark.parametrize("damage", DAMAGES)
def test_broker_starts_and_reports_what_was_lost(stopped: Path, tmp_path: Path, damage: str) -> None:
    act, said, lost = DAMAGES[damage]
    data = tmp_path / "data"
    shutil.copytree(stopped, data)
    act(data)
    verified = run_duolog("log", "verify", "--data", str(data), "--json")
    report = json.loads(verified.stdout)
    assert (verified.returncode, report["intact"]) == ((1, False) if lost.start else (0, True))
    assert (report["tables"], len(report["damaged_tables"])) == (2, int(bool(lost.start)))
    with Broker(data, SETTINGS) as broker:
        pending = len(json.loads(get(broker, "/api/timers?topic=later&limit=1000"))["timers"])
        assert 2 * COUNT - pending in lost
        assert said in broker.log.read_text(encoding="utf-8")
        counted = f'duolog_delayed_total{{done="lost"}} {2 * COUNT - pending}.0'
        assert counted in get(broker, "/metrics").decode()
        broker.stop()
