"""`duolog backup` while clients produce without a pause: the restored copy has every message that was acknowledged.

Messages of both kinds of delay are pending meanwhile: in memory, and in sorted tables. The copy is a directory, or
objects in a bucket of moto's S3 server or of versitygw.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import confluent_kafka
import pytest

from tests.kit.broker import Broker
from tests.kit.command import duolog, run_duolog
from tests.kit.environment import set_environment
from tests.kit.eventually import eventually
from tests.kit.object_servers import ObjectServer, moto, versity
from tests.wire.clients.shared_pair import wait_for_role
from tests.wire.clients.topics import create_topic
from tests.wire.clients.transactional import LibrdkafkaClient

pytestmark = pytest.mark.usefixtures("duolog_only")

SETTINGS = {"delay.near_ms": 100, "store.segment_bytes": 1 << 20, "store.checkpoint_bytes": 1 << 20}
HOUR_MS = 3_600_000
LATER = 300
DUE_MS = 15_000  # Longer than it usually takes to make a copy.
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


STORES = {"moto": moto, "versity": versity}


@contextmanager
def running_store(name: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[ObjectServer]:
    """Run an object store with a bucket, whose credentials the commands find in their environment."""
    with STORES[name]() as running:
        running.make_bucket("backups")
        set_environment(monkeypatch, running.environment)
        yield running


@pytest.fixture(params=["directory", *STORES])
def place(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Sequence[str]]:
    """Yield the place of a backup, as arguments of a command."""
    if request.param == "directory":
        yield [str(tmp_path / "backup")]
        return
    with running_store(request.param, monkeypatch) as store:
        yield ["s3://backups/monday", "--set", f"shared.endpoint={store.endpoint}"]


def test_a_copy_of_a_serving_broker_has_every_acknowledged_message(tmp_path: Path, place: Sequence[str]) -> None:
    data = tmp_path / "restored"
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
            duolog("backup", *place, "--http", broker.http)
            after = load.acknowledged
        finally:
            load.is_stopped.set()
            load.join()
        assert after > before, "the broker did not serve while it was copied"
        duolog("log", "verify", "--data", str(broker.data))
    duolog("restore", *place, "--data", str(data))
    duolog("log", "verify", "--data", str(data))
    with Broker(data, SETTINGS) as restored:
        read = LibrdkafkaClient(restored.kafka).read("orders", 1, before, "read_uncommitted")
        assert len(read) >= before
        assert [int(value) for _, _, value in read] == [*range(len(read))]
        pending = json.loads(duolog("timer", "list", "--json", "--http", restored.http))
        assert pending["count"] == LATER


@pytest.mark.parametrize("is_bucket", [False, True], ids=["directory", "bucket"])
def test_a_copy_of_a_stream_delivers_each_message_of_its_sorted_tables_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, is_bucket: bool
) -> None:
    """Some were delivered and some were cancelled before: the tombstones of a stream are in its log."""
    with running_store("moto", monkeypatch) as store:
        endpoint = f"shared.endpoint={store.endpoint}"
        place = ["s3://backups/monday", "--set", endpoint] if is_bucket else [str(tmp_path / "backup")]
        shared = {"shared.url": "s3://backups/stream", "shared.endpoint": store.endpoint, "store.flush": "shared"}
        with Broker(tmp_path / "data", SETTINGS | shared) as broker:
            wait_for_role(broker, "owner")
            create_topic(broker.kafka, "later", 1)
            producer = confluent_kafka.Producer({"bootstrap.servers": broker.kafka, "log_level": 0, "linger.ms": 50})

            def send(numbers: range, delay_ms: int) -> None:
                for number in numbers:
                    headers = [("TIMER_DELAY_MS", str(delay_ms).encode())]
                    producer.produce("later", b"%d" % number, headers=headers)
                assert producer.flush(WITHIN_S) == 0

            send(range(2 * LATER, 2 * LATER + 5), HOUR_MS)
            cancelled = json.loads(duolog("timer", "list", "--json", "--http", broker.http))["timers"]
            assert len(cancelled) == 5
            send(range(LATER), DUE_MS)
            send(range(LATER, 2 * LATER), 1_000)
            tables = store.client().list_objects_v2
            eventually(
                "a table in the bucket",
                lambda: tables(Bucket="backups", Prefix="stream/timers/")["KeyCount"],
                bool,
                WITHIN_S,
            )
            early = LibrdkafkaClient(broker.kafka).read("later", 1, LATER, "read_uncommitted")
            assert sorted(int(value) for _, _, value in early) == [*range(LATER, 2 * LATER)]
            for each in cancelled:
                assert duolog("timer", "cancel", each["id"], "--http", broker.http) == "cancelled\n"
            duolog("backup", *place, "--http", broker.http)
        data = tmp_path / "restored"
        duolog("restore", *place, "--data", str(data))
        assert [*(data / "timers").glob("*.table")]
        with Broker(data, SETTINGS) as restored:
            read = LibrdkafkaClient(restored.kafka).read("later", 1, 2 * LATER, "read_uncommitted")
            assert sorted(int(value) for _, _, value in read) == [*range(2 * LATER)]
            assert json.loads(duolog("timer", "list", "--json", "--http", restored.http))["count"] == 0


def test_what_is_wrong_with_a_bucket_is_named_with_the_remedy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with running_store("versity", monkeypatch) as store, Broker(tmp_path / "data", SETTINGS) as broker:
        create_topic(broker.kafka, "orders", 1)
        endpoint = ["--set", f"shared.endpoint={store.endpoint}"]

        def refused(*arguments: str) -> str:
            done = run_duolog(*arguments, *endpoint)
            assert done.returncode == 1, done.stderr
            return done.stderr.splitlines()[-1]

        to_backup = ["--http", broker.http]
        missing = refused("backup", "s3://missing/monday", *to_backup)
        assert "list s3://missing/monday/: 404 NoSuchBucket: the bucket does not exist: create it" in missing
        duolog("backup", "s3://backups/monday", *to_backup, *endpoint)
        again = refused("backup", "s3://backups/monday", *to_backup)
        assert "s3://backups/monday has a finished backup: use another prefix for each backup" in again
        tuesday = refused("restore", "s3://backups/tuesday", "--data", str(tmp_path / "new"))
        assert "s3://backups/tuesday has no backup.json: it is no finished backup" in tuesday
        (first, *_) = store.client().list_objects_v2(Bucket="backups", Prefix="monday/log/")["Contents"]
        content = bytearray(store.client().get_object(Bucket="backups", Key=first["Key"])["Body"].read())
        content[100] ^= 1
        store.client().put_object(Bucket="backups", Key=first["Key"], Body=bytes(content))
        changed = refused("restore", "s3://backups/monday", "--data", str(tmp_path / "new"))
        assert f"s3://backups/{first['Key']} is damaged: its CRC-32C is" in changed
        store.client().delete_object(Bucket="backups", Key=first["Key"])
        removed = refused("restore", "s3://backups/monday", "--data", str(tmp_path / "new"))
        assert f"s3://backups/{first['Key']} is missing, or empty" in removed
        assert not [*tmp_path.glob("new*")]
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "wrong")
        wrong = refused("backup", "s3://backups/monday", *to_backup)
        assert "the credentials are wrong: correct AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY" in wrong
