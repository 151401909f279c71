"""Answers to DeleteRecords, case by case."""

import pytest

from duolog.protocol.kafka.api_messages import ApiKey, ErrorCode
from tests.unit.bridge.kafka.bench import Client, KafkaBench

OK = ErrorCode.none


@pytest.mark.parametrize(
    ("offset", "low_watermark", "error"),
    [(2, 2, OK), (-1, 3, OK), (0, 0, OK), (4, -1, ErrorCode.offset_out_of_range)],
)
def test_delete_records(bench: KafkaBench, client: Client, offset: int, low_watermark: int, error: ErrorCode) -> None:
    topic = bench.topic()
    bench.write(topic, b"a", b"b", b"c")
    topics = [{"name": "orders", "partitions": [{"partition_index": 0, "offset": offset}]}]
    (result,) = client.ask(ApiKey.DELETE_RECORDS, 2, topics=topics).topics[0].partitions
    assert (result.low_watermark, result.error_code) == (low_watermark, error)
    assert topic.queues[0].start_offset == max(low_watermark, 0)
