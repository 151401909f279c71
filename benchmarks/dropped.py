"""Reading records that are in segment objects of the store, and no longer on the disk of the broker.

A broker keeps few segments on its disk (`shared.cache_bytes`). It is filled once; then the store answers after 5, 50
and 200 ms, and librdkafka reads the records of the dropped segments from their beginning, each time.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from confluent_kafka import Producer

from benchmarks import librdkafka
from benchmarks.broker_process import metric, requests, used_cpu_s
from benchmarks.stores import WITHIN_S, set_latency
from duolog.store.shared.options import MIB, SharedOptions
from tests.kit.broker import Broker
from tests.kit.eventually import eventually

SEGMENT_BYTES = 64 * MIB
CACHE_BYTES = 8 * SEGMENT_BYTES  # A quarter of it is for ranges that were read back.
SETTINGS = {
    "store.segment_bytes": SEGMENT_BYTES,
    "shared.cache_bytes": CACHE_BYTES,
    "shared.flush_interval_ms": 1,  # So that `_write_later_slots` takes only some seconds.
}
LOG_BYTES = 20 * SEGMENT_BYTES
DROPPED_SEGMENTS = 8
DROPPED_WITHIN_S = 120.0
READINGS = 3  # Each reads four times what is kept of ranges that were read back, so none finds what one before left.
LOG_SHARE = 1.05  # The bytes of the log for a byte of records, and some more: all records that are read were dropped.


class Reading(NamedTuple):
    """How records were read with a store of one latency."""

    latency_ms: int
    mb_s: float
    ranges: float  # Requests to the store for 100 MB of records.
    cpu_s_per_gb: float  # The CPU time of the broker.


def fill(broker: Broker, topic: str, partitions: int, body_bytes: int) -> None:
    """Fill a topic, and wait until DROPPED_SEGMENTS are in the store only."""
    librdkafka.produce(broker.kafka, topic, body_bytes, count=LOG_BYTES // body_bytes, partitions=partitions)
    _write_later_slots(broker, topic)
    name = "duolog_shared_dropped_segments"
    eventually(name, lambda: metric(broker, name), lambda count: count >= DROPPED_SEGMENTS, DROPPED_WITHIN_S)


def _write_later_slots(broker: Broker, topic: str) -> None:
    """Write so many slots that all earlier ones may be compacted."""
    producer = Producer({"bootstrap.servers": broker.kafka, "linger.ms": 0})
    for _ in range(SharedOptions().kept_slots + 1):
        producer.produce(topic, b"later", partition=0)
        assert producer.flush(WITHIN_S) == 0, "a record was not acknowledged"


def readings(
    broker: Broker, endpoint: str, topic: str, partitions: int, body_bytes: int, latencies_ms: Sequence[int]
) -> Iterator[Reading]:
    """Read the records of the dropped segments READINGS times with each latency; yield the reading of median speed."""
    count = int(DROPPED_SEGMENTS * SEGMENT_BYTES / LOG_SHARE / body_bytes)
    gb = count * body_bytes / 1e9
    for latency_ms in latencies_ms:
        set_latency(endpoint, latency_ms)
        found: list[Reading] = []
        for _ in range(READINGS):
            asked, cpu_s = requests(broker), used_cpu_s(broker)
            ran = librdkafka.consume(broker.kafka, topic, partitions, count)
            asked, cpu_s = requests(broker) - asked, used_cpu_s(broker) - cpu_s
            mb_s = ran.messages * body_bytes / 1e6 / ran.seconds
            found.append(Reading(latency_ms, mb_s, asked / gb / 10, cpu_s / gb))
        yield sorted(found, key=lambda each: each.mb_s)[READINGS // 2]
