"""Answers to Produce: offsets, errors, repeats, none for acks=0; and none before the log keeps the records."""

from typing import Any

import pytest

from duolog.bridge.data.publishing.produced_batches import RECORD_ERRORS_MAX
from duolog.bridge.kafka import TABLE
from duolog.protocol.kafka import record_batch
from duolog.protocol.kafka.api_messages import ApiKey, ErrorCode
from duolog.protocol.kafka.compression import Codec
from tests.kit.clock import START_NOW_MS
from tests.unit.bridge.batches import batch
from tests.unit.bridge.kafka.bench import Client, KafkaBench

OK = ErrorCode.none
VERSIONS = range(TABLE[ApiKey.PRODUCE].min_version, TABLE[ApiKey.PRODUCE].max_version + 1)


@pytest.fixture
def bench() -> KafkaBench:
    bench = KafkaBench()
    bench.topic("orders", 2)
    return bench


def request(records: bytes | None, topic: str = "orders", partition: int = 0, acks: int = 1) -> dict[str, Any]:
    part = {"index": partition, "records": records}
    return {"acks": acks, "topic_data": [{"name": topic, "partition_data": [part]}]}


def produce(client: Client, version: int, records: bytes | None, **values: Any) -> Any:
    answer = client.ask(ApiKey.PRODUCE, version, **request(records, **values))
    return answer and answer.responses[0].partition_responses[0]


def patched(batch: bytes, at: int, value: bytes) -> bytes:
    """The batch with some bytes replaced, and signed anew."""
    changed = bytearray(batch)
    changed[at : at + len(value)] = value
    changed[17:21] = record_batch.crc32c(changed[21:]).to_bytes(4, "big")
    return bytes(changed)


BATCH = batch([b"a", b"b"])


@pytest.mark.parametrize("version", VERSIONS)
def test_batches_get_consecutive_offsets(bench: KafkaBench, client: Client, version: int) -> None:
    first, second = produce(client, version, BATCH), produce(client, version, BATCH, acks=-1)
    assert [(each.error_code, each.base_offset) for each in (first, second)] == [(OK, 0), (OK, 2)]
    if version >= 5:
        assert first.log_start_offset == 0
    topic = bench.topics.get("orders")
    assert topic is not None
    assert topic.queues[0].visible_end == 4


def test_log_append_time_is_in_the_answer(bench: KafkaBench, client: Client) -> None:
    bench.topic("stamped", message_timestamp_type="LogAppendTime")
    answer = produce(client, 9, BATCH, topic="stamped")
    assert int(answer.log_append_time.timestamp() * 1000) == START_NOW_MS


REFUSED: list[tuple[str, int, bytes | None, dict[str, Any], ErrorCode]] = [
    ("unknown acks", 9, BATCH, {"acks": 2}, ErrorCode.invalid_required_acks),
    ("unknown topic", 9, BATCH, {"topic": "absent"}, ErrorCode.unknown_topic_or_partition),
    ("unknown partition", 9, BATCH, {"partition": 2}, ErrorCode.unknown_topic_or_partition),
    ("negative partition", 9, BATCH, {"partition": -1}, ErrorCode.unknown_topic_or_partition),
    ("a topic of the broker", 9, BATCH, {"topic": "TBW102"}, ErrorCode.invalid_topic_exception),
    ("no batch", 9, b"", {}, ErrorCode.invalid_record),
    ("null", 9, None, {}, ErrorCode.invalid_record),
    ("two batches", 9, BATCH + BATCH, {}, ErrorCode.invalid_record),
    ("magic 1", 9, patched(BATCH, 16, b"\x01"), {}, ErrorCode.invalid_record),
    ("cut", 9, BATCH[:-1], {}, ErrorCode.corrupt_message),
    ("flipped", 9, BATCH[:-1] + b"\xff", {}, ErrorCode.corrupt_message),
    ("count that lies", 9, patched(BATCH, 57, b"\0\0\0\x03"), {}, ErrorCode.invalid_record),
    ("control", 9, patched(BATCH, 22, b"\x20"), {}, ErrorCode.invalid_record),
    ("too large", 9, batch([bytes(5 << 20)]), {}, ErrorCode.message_too_large),
    ("zstd before 7", 6, batch([b"a"], codec=Codec.ZSTD), {}, ErrorCode.unsupported_compression_type),
    ("in the future", 9, batch([b"a"], timestamp_ms=START_NOW_MS + 7_200_000), {}, ErrorCode.invalid_timestamp),
    ("keyless, compacted", 9, BATCH, {"topic": "compacted"}, ErrorCode.invalid_record),
    ("delayed, who knows", 9, batch([b"a"], headers=[("TIMER_DELAY_SEC", b"soon")]), {}, ErrorCode.invalid_record),
    (
        "of a transaction, without its id",
        9,
        batch([b"a"], producer=(7, 0, 0), is_transactional=True),
        {},
        ErrorCode.transactional_id_authorization_failed,
    ),
]


@pytest.mark.parametrize(("name", "version", "records", "values", "error"), REFUSED, ids=[case[0] for case in REFUSED])
def test_refused(
    bench: KafkaBench,
    client: Client,
    caplog: pytest.LogCaptureFixture,
    name: str,
    version: int,
    records: bytes | None,
    values: dict[str, Any],
    error: ErrorCode,
) -> None:
    bench.topic("compacted", cleanup_policy="compact")
    before = bench.store.next_position
    answer = produce(client, version, records, **values)
    assert (answer.error_code, answer.base_offset) == (error, -1)
    assert ("record refused topic=" in caplog.text) is (error is ErrorCode.invalid_record)
    assert bench.metrics.errors == {("kafka", error.name.upper()): 1}
    assert bench.store.next_position == before
    assert not client.is_closed


@pytest.mark.parametrize("version", VERSIONS)
def test_invalid_records_are_named_from_version_8_on(bench: KafkaBench, client: Client, version: int) -> None:
    """KIP-467: clients fail these records for good, and the others so that they can be sent again."""
    bench.topic("compacted", cleanup_policy="compact")
    answer = produce(client, version, batch([b"a", b"b", b"c"], keys=[None, b"k", None]), topic="compacted")
    assert answer.error_code == ErrorCode.invalid_record
    if version >= 8:
        reason = "no key, and topic compacted is compacted"
        assert [(error.batch_index, error.batch_index_error_message) for error in answer.record_errors] == [
            (0, reason),
            (2, reason),
        ]
        assert answer.error_message == f"record 0 of the batch (and 1 more record): {reason}"


def test_number_of_invalid_records_in_an_answer_is_limited(bench: KafkaBench, client: Client) -> None:
    """A producer meets the others when it sends the rest again."""
    bench.topic("compacted", cleanup_policy="compact")
    answer = produce(client, 9, batch([b"a"] * (RECORD_ERRORS_MAX + 50)), topic="compacted")
    assert answer.error_code == ErrorCode.invalid_record
    assert [error.batch_index for error in answer.record_errors] == [*range(RECORD_ERRORS_MAX)]


def test_partitions_of_a_request_fail_alone(client: Client) -> None:
    parts = [{"index": index, "records": records} for index, records in ((0, BATCH), (9, BATCH), (1, BATCH))]
    answer = client.ask(ApiKey.PRODUCE, 9, acks=1, topic_data=[{"name": "orders", "partition_data": parts}])
    results = answer.responses[0].partition_responses
    assert [(each.index, each.error_code is OK, each.base_offset) for each in results] == [
        (0, True, 0),
        (9, False, -1),
        (1, True, 0),
    ]


def test_batches_beyond_inflate_bytes_max_are_refused(bench: KafkaBench, client: Client) -> None:
    zeros = bench.options.convert.inflate_bytes_max // 2 + 1
    part = {"index": 0, "records": batch([bytes(zeros)], codec=Codec.ZSTD)}
    asked = {"acks": 1, "topic_data": [{"name": "orders", "partition_data": [part] * 4}]}
    answer = client.ask(ApiKey.PRODUCE, 9, **asked)
    errors = [each.error_code for each in answer.responses[0].partition_responses]
    assert errors == [OK, OK, ErrorCode.kafka_storage_error, ErrorCode.kafka_storage_error]
    assert produce(client, 9, BATCH).error_code == OK


def test_acks_0_has_no_answer_and_an_error_closes(bench: KafkaBench, client: Client) -> None:
    client.send(ApiKey.PRODUCE, 9, is_answered=False, **request(BATCH, acks=0))
    assert produce(client, 9, BATCH).base_offset == 2
    client.send(ApiKey.PRODUCE, 9, is_answered=False, **request(BATCH, topic="absent", acks=0))
    assert client.is_closed


def test_repeated_batch_is_answered_with_its_first_offset(client: Client) -> None:
    sent = [batch([b"a", b"b"], producer=(7, 0, sequence)) for sequence in (0, 2, 4, 6, 8)]
    assert [produce(client, 9, each).base_offset for each in sent] == [0, 2, 4, 6, 8]
    assert [produce(client, 9, each).base_offset for each in sent] == [0, 2, 4, 6, 8]
    gap = produce(client, 9, batch([b"c"], producer=(7, 0, 99)))
    assert gap.error_code is ErrorCode.out_of_order_sequence_number
    newer = produce(client, 9, batch([b"c"], producer=(7, 1, 0)))
    assert (newer.error_code, newer.base_offset) == (OK, 10)
    older = produce(client, 9, batch([b"c"], producer=(7, 0, 10)))
    assert older.error_code is ErrorCode.invalid_producer_epoch


def test_answer_waits_for_the_log_and_the_next_request_does_not(bench: KafkaBench, client: Client) -> None:
    bench.is_stalled = True
    first = client.send(ApiKey.PRODUCE, 9, **request(BATCH))
    second = client.send(ApiKey.METADATA, 12, topics=[])
    topic = bench.topics.get("orders")
    assert topic is not None
    assert (topic.queues[0].end_offset, topic.queues[0].visible_end) == (2, 0)
    assert (client.answer_to(first), client.answer_to(second)) == (None, None)
    bench.settle()
    assert client.answer_to(first).responses[0].partition_responses[0].base_offset == 0
    assert client.answer_to(second) is not None


def test_full_disk_is_an_error_that_clients_retry(bench: KafkaBench, client: Client) -> None:
    bench.fill_disk(1)
    assert produce(client, 9, BATCH).error_code is ErrorCode.kafka_storage_error
    bench.fill_disk(0)
    assert produce(client, 9, BATCH).base_offset == 0
