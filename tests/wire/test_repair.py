"""`duolog log repair` of a broker's damaged log: stock Kafka clients read past the offsets that are left out."""

from __future__ import annotations

import json
import urllib.request

import confluent_kafka
import pytest

from tests.kit.broker import Broker, BrokerError
from tests.kit.command import duolog
from tests.kit.eventually import eventually
from tests.wire.clients.topics import create_topic
from tests.wire.clients.transactional import KafkaPythonClient, LibrdkafkaClient

pytestmark = pytest.mark.usefixtures("duolog_only")

SETTINGS = {"store.segment_bytes": 1 << 20}
COUNT = 3000
LOST_BYTES = 4096
WITHIN_S = 30


def produce(broker: Broker, values: range) -> None:
    producer = confluent_kafka.Producer({"bootstrap.servers": broker.kafka, "log_level": 0, "linger.ms": 5})
    for value in values:
        producer.produce("orders", b"%d".ljust(1000) % value, partition=0)
        if not value % 20:
            producer.flush(WITHIN_S)  # So that there are many batches.
    assert producer.flush(WITHIN_S) == 0


def metrics(broker: Broker) -> str:
    with urllib.request.urlopen(f"http://{broker.http}/metrics", timeout=WITHIN_S) as answer:
        text: bytes = answer.read()
    return text.decode()


@pytest.fixture(scope="module")
def repaired(tmp_path_factory: pytest.TempPathFactory) -> tuple[Broker, set[int]]:
    """Yield a broker on a repaired log, and the offsets that the report says were left out."""
    data = tmp_path_factory.mktemp("repair") / "data"
    with Broker(data, SETTINGS) as broker:
        create_topic(broker.kafka, "orders", 1)
        produce(broker, range(COUNT))
        broker.stop()
        path = sorted((data / "log").glob("*.log"))[1]
        content = bytearray(path.read_bytes())
        at = len(content) // 2
        content[at : at + LOST_BYTES] = bytes(LOST_BYTES)
        path.write_bytes(content)
        # The checkpoint lets the broker start, and the background check finds the damage.
        broker.start(store__verify_bytes_per_s=1 << 30)
        eventually("the damage", lambda: metrics(broker), lambda text: "duolog_damaged_places 1.0" in text, WITHIN_S)
        assert f"sealed data is damaged place='log/{path.name} positions" in broker.log.read_text()
        broker.stop()
        (data / "checkpoint").unlink()  # Otherwise a start does not read this part of the log.
        with pytest.raises(BrokerError, match="has no whole unit at byte"):
            broker.start()
        duolog("log", "verify", "--data", str(data), status=1)
        report = json.loads(duolog("log", "repair", "--data", str(data), "--json"))
        duolog("log", "verify", "--data", str(data))
        broker.start()
        produce(broker, range(COUNT, COUNT + 1))
        yield broker, {offset for row in report["lost_offsets"] for offset in range(row["start"], row["end"])}


@pytest.mark.parametrize("isolation", ["read_uncommitted", "read_committed"])
@pytest.mark.parametrize("client", [LibrdkafkaClient, KafkaPythonClient])
def test_kafka_clients_read_everything_but_the_offsets_left_out(
    repaired: tuple[Broker, set[int]], client: type[LibrdkafkaClient | KafkaPythonClient], isolation: str
) -> None:
    broker, lost = repaired
    assert 0 < len(lost) < COUNT // 10
    left = [offset for offset in range(COUNT + 1) if offset not in lost]
    read = client(broker.kafka).read("orders", 1, len(left), isolation)
    assert [(offset, int(value)) for _, offset, value in read] == [(offset, offset) for offset in left]
