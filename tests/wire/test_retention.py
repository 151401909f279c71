"""Retention as clients see it: the log start moves by age, bytes and count, readers start there, disk space comes back.

Segments are as small as they may be and looks frequent, so that a few megabytes show what days would.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import confluent_kafka
import pytest

from tests.kit.broker import Broker
from tests.kit.eventually import eventually
from tests.wire.clients.topics import create_topic

SEGMENT_BYTES = 1 << 20
SETTINGS = {
    "store.segment_bytes": str(SEGMENT_BYTES),
    "retention.check_interval_ms": "100",
}
BODY = b"x" * 8_000
MESSAGES = 800  # six segments and more
WITHIN_S = 30


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    running = Broker(tmp_path_factory.mktemp("retention") / "data", SETTINGS).start()
    yield running
    running.delete()


@pytest.mark.parametrize(
    ("config", "is_kept"),
    [
        pytest.param({"retention.ms": "1000"}, lambda count: count == 0, id="age"),
        pytest.param({"retention.bytes": "100000"}, lambda count: 1 <= count <= 13, id="bytes"),
        pytest.param({"retention.records": "10"}, lambda count: 10 <= count <= 11, id="records"),
    ],
)
def test_log_start_moves_and_segments_go(
    broker: Broker, config: dict[str, str], is_kept: Callable[[int], bool]
) -> None:
    topic = "kept-by-" + "-".join(config).replace(".", "-")
    create_topic(broker.kafka, topic, 1, config)
    fill(broker.kafka, topic)
    low, high = eventually(
        "log start moved", lambda: ends(broker.kafka, topic), lambda seen: is_kept(seen[1] - seen[0]), WITHIN_S
    )
    assert high == MESSAGES, "retention never takes offsets back"
    assert first_read(broker.kafka, topic) in (low, None), "a reader from the beginning starts at the log start"
    eventually("segments removed", lambda: log_bytes(broker.data), lambda size: size <= 4 * SEGMENT_BYTES, WITHIN_S)

    broker.kill()
    broker.start()
    assert ends(broker.kafka, topic) == (low, high), "a restart finds the same ends"


def fill(bootstrap: str, topic: str) -> None:
    producer = confluent_kafka.Producer({"bootstrap.servers": bootstrap, "batch.num.messages": 1})
    for _ in range(MESSAGES):
        producer.produce(topic, BODY, partition=0)
        producer.poll(0)
    assert producer.flush(WITHIN_S) == 0


def ends(bootstrap: str, topic: str) -> tuple[int, int]:
    """The log start and the high watermark."""
    consumer = confluent_kafka.Consumer({"bootstrap.servers": bootstrap, "group.id": "unused"})
    try:
        return consumer.get_watermark_offsets(confluent_kafka.TopicPartition(topic, 0), timeout=WITHIN_S)
    finally:
        consumer.close()


def first_read(bootstrap: str, topic: str) -> int | None:
    """The offset of the first message from the beginning; None if there is none."""
    consumer = confluent_kafka.Consumer(
        {"bootstrap.servers": bootstrap, "group.id": "unused", "auto.offset.reset": "earliest"}
    )
    try:
        consumer.assign([confluent_kafka.TopicPartition(topic, 0, 0)])  # Out of range by now: it is sent to the start.
        first = consumer.poll(2)
        return None if first is None else first.offset()
    finally:
        consumer.close()


def log_bytes(data: Path) -> int:
    return sum(map(size, (data / "log").glob("*.log")))


def size(file: Path) -> int:
    try:
        return file.stat().st_size
    except FileNotFoundError:  # Removed since it was listed.
        return 0
