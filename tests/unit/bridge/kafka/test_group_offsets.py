"""Answers to OffsetCommit, OffsetFetch and OffsetDelete, case by case."""

from typing import Any

import pytest

from duolog.bridge.records.groups import CommittedOffset
from duolog.protocol.kafka.api_messages import ApiKey, ErrorCode
from tests.unit.bridge.kafka.asking import commit, fetch_positions, join, versions_of
from tests.unit.bridge.kafka.bench import Client, KafkaBench

OK = ErrorCode.none
UNKNOWN = ErrorCode.unknown_topic_or_partition


@pytest.mark.parametrize("version", versions_of(ApiKey.OFFSET_FETCH))
def test_committed_positions_are_fetched(bench: KafkaBench, client: Client, version: int) -> None:
    bench.topic()
    assert [each.committed_offset for each in fetch_positions(client, version)] == [-1, -1]
    assert commit(client, max(version, 2), 42, 1, of={"committed_metadata": "note"}) is OK
    missing, found = fetch_positions(client, version)
    assert (missing.committed_offset, missing.metadata, missing.error_code) == (-1, "", OK)
    assert (found.committed_offset, found.metadata, found.error_code) == (42, "note", OK)
    if version >= 2:
        (only,) = fetch_positions(client, version, everything=True)
        assert (only.partition_index, only.committed_offset) == (1, 42)


@pytest.mark.parametrize("version", versions_of(ApiKey.OFFSET_FETCH))
def test_positions_are_fetched_while_the_disk_is_full(bench: KafkaBench, client: Client, version: int) -> None:
    key = bench.topic().key(0)
    assert commit(client, 8, 5) is OK
    bench.group_offsets.commit_later("g", [CommittedOffset(key, 7)], bench.clock.mono_ms(), bench.clock.now_ms())
    bench.fill_disk(1)
    assert commit(client, 8, 9) is ErrorCode.kafka_storage_error
    found, _ = fetch_positions(client, version)
    assert (found.committed_offset, found.error_code) == (7, OK)
    bench.fill_disk(0)
    bench.pass_ms(1000)
    assert bench.group_offsets.all_of("g")[key].offset == 7


def test_commit_is_answered_when_the_log_keeps_it(bench: KafkaBench, client: Client) -> None:
    bench.topic()
    bench.is_stalled = True
    assert commit(client, 8, 5) is None
    bench.settle()
    assert client.answer_to(1).topics[0].partitions[0].error_code is OK


@pytest.mark.parametrize(
    ("version", "partition", "values", "error"),
    [
        (8, 9, {}, UNKNOWN),
        (8, 0, {"of": {"committed_metadata": "x" * 4097}}, ErrorCode.offset_metadata_too_large),
        (8, 0, {"group_id": ""}, ErrorCode.invalid_group_id),
        (8, 0, {"generation_id_or_member_epoch": 3, "member_id": "m"}, ErrorCode.illegal_generation),
        (9, 0, {"generation_id_or_member_epoch": 3, "member_id": "m"}, ErrorCode.group_id_not_found),
    ],
)
def test_invalid_commit_is_refused(
    bench: KafkaBench, client: Client, version: int, partition: int, values: dict[str, Any], error: ErrorCode
) -> None:
    bench.topic()
    assert commit(client, version, 1, partition, **dict(values)) is error
    assert "g" not in bench.group_offsets


def test_positions_of_subscribed_topics_are_not_deleted(bench: KafkaBench, client: Client) -> None:
    bench.topic()
    assert delete_positions(client).error_code is ErrorCode.group_id_not_found
    commit(client, 8, 5)
    joined = join(client, 3)
    (refused,) = delete_positions(client).topics[0].partitions
    assert refused.error_code is ErrorCode.group_subscribed_to_topic
    client.ask(ApiKey.LEAVE_GROUP, 1, group_id="g", member_id=joined.member_id)
    (deleted,) = delete_positions(client).topics[0].partitions
    assert deleted.error_code is OK
    assert fetch_positions(client, 7)[0].committed_offset == -1


def delete_positions(client: Client) -> Any:
    topics = [{"name": "orders", "partitions": [{"partition_index": 0}]}]
    return client.ask(ApiKey.OFFSET_DELETE, 0, group_id="g", topics=topics)
