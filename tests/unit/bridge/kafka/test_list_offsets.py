"""Answers to ListOffsets and OffsetForLeaderEpoch, case by case."""

from dataclasses import replace
from typing import Any

import pytest

from duolog.protocol.kafka.api_messages import ApiKey, ErrorCode
from duolog.protocol.kafka.record_batch import read_header
from tests.kit.clock import ManualClock
from tests.kit.kafka_frames import frame_of
from tests.unit.bridge.kafka.bench import Client, KafkaBench

OK = ErrorCode.none
UNKNOWN = ErrorCode.unknown_topic_or_partition


@pytest.mark.parametrize(
    ("timestamp", "offset", "found_ms"),
    [
        (-1, 6, -1),
        (-2, 1, -1),
        (-3, 4, 5_001),
        (-4, 1, -1),
        (-5, -1, -1),
        (0, 1, 1_000),
        (1_001, 2, 1_001),
        (1_002, 3, 5_000),
        (5_002, -1, -1),
    ],
)
def test_list_offsets(bench: KafkaBench, client: Client, timestamp: int, offset: int, found_ms: int) -> None:
    topic = bench.topic()
    bench.write(topic, b"gone", timestamp_ms=999)
    bench.write(topic, b"a", b"b", timestamp_ms=1_000)
    bench.write(topic, b"c", b"d", timestamp_ms=5_000)
    bench.write(topic, b"e", timestamp_ms=5_000)
    bench.store.retention.trim(topic.queues[0], 1, bench.clock.now_ms())
    bench.settle()
    (listed,) = list_offsets(client, timestamp)
    assert (listed.error_code, listed.offset, listed.timestamp) == (OK, offset, found_ms)


def list_offsets(client: Client, timestamp: int, *partitions: int, version: int = 9, epoch: int = -1) -> Any:
    asked = [
        {"partition_index": each, "timestamp": timestamp, "current_leader_epoch": epoch} for each in partitions or (0,)
    ]
    answer = client.ask(ApiKey.LIST_OFFSETS, version, topics=[{"name": "orders", "partitions": asked}])
    return answer and [partition for topic in answer.topics for partition in topic.partitions]


def test_list_offsets_waits_for_the_disk_without_delaying_other_clients(bench: KafkaBench, client: Client) -> None:
    topic = bench.topic()
    bench.write(topic, b"early", timestamp_ms=1_000)
    for _ in range(20):
        bench.write(topic, bytes(50_000), timestamp_ms=2_000)
    bench.disk.cached = False
    asked = [{"partition_index": each, "timestamp": 500} for each in (0, 1)]
    number = client.send(ApiKey.LIST_OFFSETS, 9, topics=[{"name": "orders", "partitions": asked}])
    assert client.answer_to(number) is None
    assert list_offsets(bench.connect(), -1)[0].offset == 21
    bench.reader_threads.run()
    bench.settle()
    found, empty = client.answer_to(number).topics[0].partitions
    assert (found.offset, found.timestamp) == (0, 1_000)
    assert (empty.offset, empty.timestamp, empty.error_code) == (-1, -1, OK)


def test_list_offsets_of_many_partitions_gives_others_their_turn(bench: KafkaBench) -> None:
    class TickingClock(ManualClock):
        def mono_ms(self) -> int:
            self.pass_ms(1)
            return super().mono_ms()

    bench.topic("orders", 30)
    bench.kafka_context = replace(bench.kafka_context, clock=TickingClock())
    client = bench.connect()
    asked = [{"partition_index": each, "timestamp": -1} for each in range(30)]
    frame = frame_of(ApiKey.LIST_OFFSETS, 9, 1, topics=[{"name": "orders", "partitions": asked}])
    client.connection.data_received(frame)
    assert client.connection.unanswered == 1
    assert [each.offset for each in list_offsets(bench.connect(), -1)] == [0]
    bench.loop.turn()
    assert client.connection.unanswered == 0
    assert client.transport.taken


def test_list_offsets_refuses_unknown_partitions_and_timestamps(bench: KafkaBench, client: Client) -> None:
    bench.topic()
    assert [each.error_code for each in list_offsets(client, -1, 0, 0)] == [ErrorCode.invalid_request]
    assert list_offsets(client, -1, 7)[0].error_code is UNKNOWN
    assert list_offsets(client, -1, epoch=3)[0].error_code is ErrorCode.unknown_leader_epoch


@pytest.mark.parametrize(("asked", "epoch", "end"), [(0, 0, 2), (1, -1, -1)])
def test_epoch_ends_where_the_next_began(bench: KafkaBench, client: Client, asked: int, epoch: int, end: int) -> None:
    bench.write(bench.topic(), b"a", b"b")
    topics = [{"topic": "orders", "partitions": [{"partition": 0, "leader_epoch": asked}]}]
    (found,) = client.ask(ApiKey.OFFSET_FOR_LEADER_EPOCH, 4, topics=topics).topics[0].partitions
    assert (found.error_code, found.leader_epoch, found.end_offset) == (OK, epoch, end)


def test_offsets_of_rocketmq_messages_are_those_that_fetch_reads(bench: KafkaBench, client: Client) -> None:
    topic = bench.topic()
    bench.publish(topic, b"a", b"b")
    assert list_offsets(client, -1)[0].offset == 2
    (found,) = list_offsets(client, bench.clock.now_ms())
    assert (found.offset, found.timestamp) == (0, bench.clock.now_ms())
    asked = [{"partition": 0, "fetch_offset": 1, "partition_max_bytes": 1 << 20}]
    answer = client.ask(ApiKey.FETCH, 4, topics=[{"topic": "orders", "partitions": asked}], max_bytes=1 << 20)
    assert read_header(answer.responses[0].partitions[0].records).base_offset == 1
