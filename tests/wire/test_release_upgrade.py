"""An upgrade from the last release: this tree serves what a broker of the release wrote, in both client protocols.

`tests/kit/release.py` says which commit the last release is. Its source runs here with the packages of this
environment. It writes what `old_data/make_data.py` writes, and a user, an open half message and an offset of a RocketMQ
group. The broker was stopped, or killed, so that this tree reads its checkpoint, or its log.
"""

from __future__ import annotations

import base64
import json
import shutil
import subprocess
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Producer

from duolog.store.recovery.format_version import FORMAT_VERSION
from tests.kit.broker import Broker
from tests.kit.command import DUOLOG, duolog
from tests.kit.release import ROOT, last_release, unpack
from tests.wire.clients import frames, remoting
from tests.wire.old_data.make_data import KAFKA_COUNT, PENDING_COUNT, SETTINGS, fill
from tests.wire.test_upgrade import WITHIN_S, check_everything, get, read

SEND_MESSAGE, PULL_MESSAGE, QUERY_CONSUMER_OFFSET, UPDATE_CONSUMER_OFFSET = 10, 11, 14, 15
PLACE = {"consumerGroup": "readers", "topic": "orders", "queueId": 1}
PASSWORD = "of the release"
NEW_COUNT, NEW_BYTES = 80, 2048  # More than two segments of SETTINGS.
BATCH_BYTES = 16_384  # A batch must fit in a segment.
STATES = ("stopped", "killed")


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a data directory of the release for each of STATES."""
    release = last_release(ROOT, FORMAT_VERSION)
    folder = tmp_path_factory.mktemp("release")
    python = str(unpack(ROOT, release, folder))
    data = folder / "stopped"
    words = ("user", "add", "alice", "--super", "--password-stdin", "--data", str(data))
    subprocess.run([python, *DUOLOG[1:], *words], input=f"{PASSWORD}\n", text=True, check=True)
    with Broker(data, SETTINGS, command=(python, *DUOLOG[1:])) as old:
        fill(old)
        fill_further(old)
        old.kill()
        shutil.copytree(data, folder / "killed")
        old.start()
    assert (data / "checkpoint").stat().st_size > 0
    return folder


def fill_further(old: Broker) -> None:
    """Add an open half message, and an offset of a RocketMQ group."""
    fields = {
        "producerGroup": "shop", "topic": "orders", "defaultTopic": "TBW102", "defaultTopicQueueNums": 4, "queueId": 1,
        "sysFlag": 4, "bornTimestamp": 0, "flag": 0,
        "properties": "TRAN_MSG\x01true\x02PGROUP\x01shop\x02UNIQ_KEY\x01H1\x02",
    }  # fmt: skip
    assert remoting.ask(old.rocketmq, SEND_MESSAGE, fields, b"half").code == 0
    assert remoting.ask(old.rocketmq, UPDATE_CONSUMER_OFFSET, PLACE | {"commitOffset": 3}).code == 0
    assert remoting.ask(old.rocketmq, QUERY_CONSUMER_OFFSET, PLACE).fields["offset"] == "3"


@pytest.fixture(params=STATES)
def broker(request: pytest.FixtureRequest, written: Path, tmp_path: Path) -> Iterator[Broker]:
    """A broker of this tree on a copy of what the release wrote."""
    data = tmp_path / "data"
    shutil.copytree(written / request.param, data)
    with Broker(data, SETTINGS) as running:
        yield running


def test_data_of_the_last_release_is_served_and_continued(broker: Broker) -> None:
    assert remoting.ask(broker.rocketmq, QUERY_CONSUMER_OFFSET, PLACE).fields["offset"] == "3"
    pulled = remoting.ask(broker.rocketmq, PULL_MESSAGE, frames.pull_fields("orders", queueId=1, queueOffset=0))
    assert (pulled.code, b"rocketmq-0" in pulled.body) == (0, True)
    check_everything(broker)
    (half,) = [row for row in get(broker, "/api/transactions") if row["state"] == "half"]
    assert half["producer"] == "shop"
    duolog("txn", "commit", "--half-offset", str(half["half_offset"]), "--http", broker.http)
    timers = get(broker, "/api/timers?topic=orders&limit=100")["timers"]
    assert duolog("timer", "cancel", timers[0]["id"], "--http", broker.http) == "cancelled\n"
    producer = Producer({"bootstrap.servers": broker.kafka, "batch.size": BATCH_BYTES})
    errors: list[object] = []
    for _ in range(NEW_COUNT):
        producer.produce("orders", b"x" * NEW_BYTES, partition=0, on_delivery=lambda error, _: errors.append(error))
    assert (producer.flush(WITHIN_S), errors) == (0, [None] * NEW_COUNT)
    broker.restart(security__enabled="true")
    assert login_status(broker, PASSWORD) == 200
    assert login_status(broker, "another") == 401
    broker.restart()
    assert read(broker, 0, KAFKA_COUNT + 2 + NEW_COUNT)[-1] == b"x" * NEW_BYTES
    assert len(get(broker, "/api/timers?topic=orders&limit=100")["timers"]) == PENDING_COUNT - 1
    broker.stop()
    found = json.loads(duolog("log", "verify", "--data", str(broker.data), "--json"))
    assert (found["intact"], found["segments"] > 2) == (True, True)


def login_status(broker: Broker, password: str) -> int:
    """Return the status of a request that logs in as the user of the release."""
    name = base64.b64encode(f"alice:{password}".encode()).decode()
    request = urllib.request.Request(f"http://{broker.http}/api/status", headers={"Authorization": f"Basic {name}"})
    try:
        with urllib.request.urlopen(request, timeout=WITHIN_S) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        error.close()
        return error.code
