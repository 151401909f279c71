"""`duolog move` with real stores: a broker's log becomes a stream that two brokers share, and a data directory again.

The stores are moto's S3 server and versitygw. What clients read stays the same, with its offsets.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path

import confluent_kafka
import pytest

from tests.kit.broker import Broker, BrokerError
from tests.kit.command import duolog, run_duolog
from tests.kit.environment import set_environment
from tests.kit.object_servers import ObjectServer, moto, versity
from tests.wire.clients.topics import create_topic
from tests.wire.clients.transactional import LibrdkafkaClient
from tests.wire.test_shared import wait_for_role

pytestmark = pytest.mark.usefixtures("duolog_only")

SETTINGS = {"store.segment_bytes": 1 << 20}
URL = "s3://duolog/stream"
STORES = {"moto": moto, "versity": versity}
WITHIN_S = 30
COUNT = 3_000


@pytest.fixture(params=STORES)
def store(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[ObjectServer]:
    with STORES[request.param]() as running:
        running.make_bucket("duolog")
        set_environment(monkeypatch, running.environment)
        yield running


def produce(broker: Broker, first: int, count: int) -> None:
    producer = confluent_kafka.Producer({"bootstrap.servers": broker.kafka, "log_level": 0, "linger.ms": 5})
    for number in range(first, first + count):
        producer.produce("orders", b"%d".ljust(1000) % number, partition=0)
    assert producer.flush(WITHIN_S) == 0


def check(broker: Broker, count: int) -> None:
    read = LibrdkafkaClient(broker.kafka).read("orders", 1, count, "read_uncommitted")
    assert [int(value) for _, _, value in read] == [*range(count)]
    assert _committed(broker) == 100


def _commit(broker: Broker) -> None:
    consumer = confluent_kafka.Consumer({"bootstrap.servers": broker.kafka, "group.id": "g", "log_level": 0})
    consumer.commit(offsets=[confluent_kafka.TopicPartition("orders", 0, 100)], asynchronous=False)
    consumer.close()


def _committed(broker: Broker) -> int:
    consumer = confluent_kafka.Consumer({"bootstrap.servers": broker.kafka, "group.id": "g", "log_level": 0})
    (found,) = consumer.committed([confluent_kafka.TopicPartition("orders", 0)], timeout=WITHIN_S)
    consumer.close()
    return int(found.offset)


def shared(store: ObjectServer) -> Mapping[str, object]:
    return SETTINGS | {"shared.url": URL, "shared.endpoint": store.endpoint, "store.flush": "shared"}


def test_a_log_goes_into_a_store_and_back(tmp_path: Path, store: ObjectServer) -> None:
    endpoint = ["--set", f"shared.endpoint={store.endpoint}"]
    with Broker(tmp_path / "a", SETTINGS) as broker:
        create_topic(broker.kafka, "orders", 1)
        produce(broker, 0, COUNT)
        _commit(broker)
        in_use = run_duolog("move", "--data", str(tmp_path / "a"), "--to", URL, *endpoint)
        assert "a broker is using the directory; stop it first" in in_use.stderr
    with pytest.raises(BrokerError, match="duolog move --data DIR --to URL"):
        Broker(tmp_path / "a", shared(store)).start()
    moved = json.loads(duolog("move", "--data", str(tmp_path / "a"), "--to", URL, *endpoint, "--json"))
    assert moved["position"] > COUNT * 1000
    with Broker(tmp_path / "a", shared(store)) as owner:
        wait_for_role(owner, "owner")
        check(owner, COUNT)
        with Broker(tmp_path / "b", shared(store)) as standby:
            wait_for_role(standby, "standby")
            produce(owner, COUNT, COUNT)
            serving = run_duolog("move", "--data", str(tmp_path / "new"), "--from", URL, *endpoint)
            assert serving.returncode == 1
            assert f"a broker is writing to {URL}: stop all brokers of the stream" in serving.stderr
            assert not [*tmp_path.glob("new*")]
            owner.stop()
            wait_for_role(standby, "owner")
            check(standby, 2 * COUNT)
            produce(standby, 2 * COUNT, 10)
    back = run_duolog("move", "--data", str(tmp_path / "new"), "--from", URL, *endpoint)
    assert (back.returncode, back.stderr) == (0, "")
    duolog("log", "verify", "--data", str(tmp_path / "new"))
    with pytest.raises(BrokerError, match="its log is the copy of a shared log"):
        Broker(tmp_path / "b", SETTINGS).start()
    (tmp_path / "b" / "shared").unlink()
    for data in ("new", "b"):  # The data directory of the last owner is complete, too.
        with Broker(tmp_path / data, SETTINGS) as alone:
            check(alone, 2 * COUNT + 10)
            produce(alone, 2 * COUNT + 10, 10)
            check(alone, 2 * COUNT + 20)


def test_what_is_wrong_with_a_store_is_named_with_the_remedy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with versity() as running:
        set_environment(monkeypatch, running.environment)
        with Broker(tmp_path / "a", SETTINGS) as broker:
            create_topic(broker.kafka, "orders", 1)

        def refused(*options: str) -> str:
            done = run_duolog("move", *options, "--set", f"shared.endpoint={running.endpoint}")
            assert done.returncode == 1, done.stderr
            return done.stderr

        for options in (("--data", str(tmp_path / "a"), "--to", URL), ("--data", str(tmp_path / "b"), "--from", URL)):
            assert "the bucket does not exist: create it" in refused(*options)
        running.make_bucket("duolog")
        assert f"{URL} has no object 'stream'" in refused("--data", str(tmp_path / "b"), "--from", URL)
        running.client().put_object(Bucket="duolog", Key="stream/notes.txt", Body=b"x")
        assert f"{URL} is not empty: it has 'notes.txt'" in refused("--data", str(tmp_path / "a"), "--to", URL)
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "wrong")
        for options in (("--data", str(tmp_path / "a"), "--to", URL), ("--data", str(tmp_path / "b"), "--from", URL)):
            assert "the credentials are wrong: correct AWS_ACCESS_KEY_ID" in refused(*options)
        assert not (tmp_path / "b").exists()


def test_a_moved_stream_is_the_same_after_the_owner_was_killed(tmp_path: Path, store: ObjectServer) -> None:
    endpoint = ["--set", f"shared.endpoint={store.endpoint}"]
    with Broker(tmp_path / "a", shared(store)) as owner:
        wait_for_role(owner, "owner")
        create_topic(owner.kafka, "orders", 1)
        produce(owner, 0, COUNT)
        _commit(owner)
        owner.kill()
        back = run_duolog("move", "--data", str(tmp_path / "new"), "--from", URL, *endpoint)
        assert back.returncode == 0, back.stderr
        assert "the last owner was not stopped in order" in back.stderr
        with Broker(tmp_path / "new", SETTINGS) as alone:
            check(alone, COUNT)
