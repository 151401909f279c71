"""A broker with `shared.cache_bytes` serves a log that is larger than what it keeps on its disk.

Clients of both families read all of it from its beginning, byte for byte, also after the broker was killed while they
read. The disk never has more than the bound allows. The objects are files, because moto would take half of the test's
CPU; `test_object_stores.py` reads ranges of objects from servers.
"""

from __future__ import annotations

import random
import re
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import confluent_kafka
import pytest

from duolog.protocol.rocketmq.codes import RequestCode
from duolog.protocol.rocketmq.messages import message
from tests.kit.broker import Broker
from tests.kit.eventually import eventually
from tests.wire.clients import frames, remoting
from tests.wire.clients.shared_pair import wait_for_role
from tests.wire.clients.topics import create_topic

pytestmark = pytest.mark.usefixtures("duolog_only")

MIB = 1 << 20
TOPIC, QUEUES, SMALL = "history", 2, "small"
VALUE_BYTES, COUNT = 32 << 10, 2176  # 68 MiB: an owner compacts when 64 MiB lie above the floor,
KEPT_SLOTS = 1_000  # and keeps so many of the newest objects as they are.
SEGMENT_BYTES, CACHE_BYTES = 4 * MIB, 32 * MIB
# The segment that is written to, and one that was sealed since the broker looked for the last time.
DISK_BYTES_MAX = CACHE_BYTES + 2 * SEGMENT_BYTES
SETTINGS: dict[str, object] = {
    "store.flush": "shared", "store.segment_bytes": SEGMENT_BYTES, "store.reserve_bytes": 0,
    "store.checkpoint_interval_ms": 500, "shared.cache_bytes": CACHE_BYTES, "shared.flush_interval_ms": 1,
    "shared.object_bytes": MIB,
}  # fmt: skip
WITHIN_S = 120.0


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Broker]:
    running = Broker(tmp_path / "data", SETTINGS | {"shared.url": f"file://{tmp_path}/objects"})
    running.start()
    wait_for_role(running, "owner")
    yield running
    running.delete()


def value_of(number: int) -> bytes:
    return random.Random(number).randbytes(VALUE_BYTES)


def metric(broker: Broker, name: str) -> int:
    with urllib.request.urlopen(f"http://{broker.http}/metrics", timeout=WITHIN_S) as answer:
        found = re.search(rf"^{re.escape(name)} (\S+)$", answer.read().decode(), re.MULTILINE)
    return int(float(found[1])) if found else 0


def fill(broker: Broker) -> None:
    """Write the history, and then so many small objects that all of the history is compacted."""
    create_topic(broker.kafka, TOPIC, QUEUES)
    producer = confluent_kafka.Producer({"bootstrap.servers": broker.kafka, "linger.ms": 5})
    for number in range(COUNT):
        producer.produce(TOPIC, value_of(number), partition=number % QUEUES)
        producer.poll(0)
    assert producer.flush(WITHIN_S) == 0
    created = 'duolog_object_requests_total{operation="create",outcome="ok"}'
    wanted, until = metric(broker, created) + KEPT_SLOTS + 50, time.monotonic() + WITHIN_S
    small = confluent_kafka.Producer({"bootstrap.servers": broker.kafka, "linger.ms": 0, "batch.num.messages": 1})
    while metric(broker, created) < wanted:
        assert time.monotonic() < until, f"{metric(broker, created)} of {wanted} objects were created"
        for number in range(100):
            small.produce(SMALL, b"%d" % number)
        assert small.flush(WITHIN_S) == 0


class Disk:
    """What a broker has of its log on its disk, and the most that this object has seen."""

    def __init__(self, data: Path) -> None:
        self._data, self.most = data, 0

    def look(self) -> int:
        sizes = 0
        for folder in ("log", "cache"):
            for path in (self._data / folder).glob("*"):
                try:
                    sizes += path.stat().st_size
                except FileNotFoundError:
                    continue  # The broker has removed it meanwhile.
        self.most = max(self.most, sizes)
        return sizes


def read_by_kafka(broker: Broker, disk: Disk, halfway: Callable[[], None] = lambda: None) -> None:
    """Read all records from the beginning, and compare each one with what was written; call `halfway` once."""
    consumer = confluent_kafka.Consumer(
        {"bootstrap.servers": broker.kafka, "group.id": "unused", "auto.offset.reset": "earliest"}
    )
    consumer.assign([confluent_kafka.TopicPartition(TOPIC, queue, 0) for queue in range(QUEUES)])
    expected, is_halfway, until = [0] * QUEUES, False, time.monotonic() + WITHIN_S
    while sum(expected) < COUNT:
        assert time.monotonic() < until, f"{expected} of {COUNT} records were read"
        for each in consumer.consume(100, 1.0):
            assert each.error() is None, each.error()
            queue = each.partition()
            assert each.offset() == expected[queue]
            assert each.value() == value_of(each.offset() * QUEUES + queue)
            expected[queue] += 1
        disk.look()
        if sum(expected) >= COUNT // 2 and not is_halfway:
            is_halfway = True
            halfway()
    consumer.close()


def read_by_rocketmq(broker: Broker, disk: Disk) -> None:
    """Pull all messages from the beginning, and compare each one with what was written."""
    for queue in range(QUEUES):
        offset, end = 0, COUNT // QUEUES
        while offset < end:
            fields = frames.pull_fields(TOPIC, offset, queueId=queue)
            pulled = remoting.ask(broker.rocketmq, RequestCode.PULL_MESSAGE, fields)
            assert pulled.code == 0, pulled.remark
            for each in message.decode_all(pulled.body):
                assert each.queue_offset == offset
                assert bytes(each.body) == value_of(offset * QUEUES + queue)
                offset += 1
            disk.look()


def test_all_of_a_log_that_is_larger_than_the_disk_is_read_also_when_the_broker_is_killed_meanwhile(
    broker: Broker,
) -> None:
    fill(broker)
    disk = Disk(broker.data)
    eventually("old segments leave the disk", disk.look, lambda found: found <= CACHE_BYTES * 3 // 4, WITHIN_S)
    assert metric(broker, "duolog_shared_dropped_segments") >= 68 // 4 - 6
    disk.most = 0

    def kill() -> None:
        broker.kill()
        broker.start()
        wait_for_role(broker, "owner")

    read_by_kafka(broker, disk, halfway=kill)
    read_by_rocketmq(broker, disk)
    read_by_kafka(broker, disk)
    assert metric(broker, 'duolog_shared_cache_reads_total{outcome="miss"}') > 0
    assert disk.most <= DISK_BYTES_MAX
