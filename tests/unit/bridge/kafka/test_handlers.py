"""Every version of every API is answered by its handler, on real state; then what each family answers, case by case.

Requests and answers are written and read by kio, so its schemas judge ours. Produce and Fetch have files of their own.
"""

import tracemalloc
from dataclasses import replace
from typing import Any

import pytest

from duolog.bridge.config import KafkaOptions
from duolog.bridge.kafka import TABLE
from duolog.bridge.state.records import CommittedPosition
from duolog.protocol.kafka.api_messages import ApiKey, ErrorCode
from duolog.protocol.kafka.record_batch import read_header
from tests.kit.clock import ManualClock
from tests.unit.bridge.batches import batch
from tests.unit.bridge.kafka.desk import Client, Desk, frame_of

OK = ErrorCode.none
UNKNOWN = ErrorCode.unknown_topic_or_partition
VERSIONS = [(api.key, version) for api in TABLE.values() for version in range(api.min_version, api.max_version + 1)]


@pytest.fixture(scope="module")
def shared_desk() -> Desk:
    return Desk()


@pytest.fixture
def desk() -> Desk:
    return Desk()


@pytest.fixture
def client(desk: Desk) -> Client:
    return desk.connect()


def versions_of(key: ApiKey) -> range:
    return range(TABLE[key].min_version, TABLE[key].max_version + 1)


# -- The connection


@pytest.mark.parametrize("count", [300, 10])
def test_request_above_its_size_closes_the_connection(count: int) -> None:
    desk = Desk(kafka=KafkaOptions(request_bytes_max=2048))
    desk.topic("orders", 1)
    client = desk.connect()
    produce = {
        "acks": 1,
        "topic_data": [{"name": "orders", "partition_data": [{"records": bytes(batch([bytes(9000)]))}]}],
    }
    assert client.ask(ApiKey.PRODUCE, 9, **produce).responses[0].partition_responses[0].error_code is ErrorCode.none
    client.send(ApiKey.DELETE_TOPICS, 1, topic_names=tuple(f"topic-{number}" for number in range(count)))
    assert client.is_closed is (count == 300)


@pytest.mark.parametrize(("key", "version"), VERSIONS, ids=lambda value: getattr(value, "name", str(value)))
def test_every_version_is_answered(shared_desk: Desk, key: ApiKey, version: int) -> None:
    client = shared_desk.connect()
    empty = {"acks": 1, "client_software_name": "a", "client_software_version": "1"}
    assert client.ask(key, version, **empty) is not None
    assert not client.is_closed


@pytest.mark.parametrize(
    "frame",
    [
        frame_of(ApiKey.METADATA, 13, 1)[:-2],  # cut, its length not adapted: the rest is waited for
        b"\0\0\0\x03\0\x03\0",
        b"\0\0\0\x0a\x7f\xff\0\0\0\0\0\x01\xff\xff",  # no such key
        b"\0\0\0\x0a\0\x00\0\x02\0\0\0\x01\xff\xff",  # Produce 2 is advertised but not served
        b"\0\0\0\x0b\0\x0b\0\x00\0\0\0\x01\xff\xff\xff",  # a JoinGroup of one byte
    ],
)
def test_garbage_closes_the_connection(client: Client, frame: bytes) -> None:
    client.connection.data_received(frame)
    client.desk.loop.turn()
    assert client.is_closed is (len(frame) == 4 + int.from_bytes(frame[:4], "big"))


def test_api_versions_are_answered_in_version_0_when_the_version_is_unknown(client: Client) -> None:
    frame = frame_of(ApiKey.API_VERSIONS, 4, 7, client_software_name="a", client_software_version="1")
    client._asked.append((7, ApiKey.API_VERSIONS, 0))
    client.connection.data_received(frame[:6] + b"\0\x63" + frame[8:])
    client.desk.loop.turn()
    assert client.answer_to(7).error_code is ErrorCode.unsupported_version
    assert not client.is_closed


@pytest.mark.parametrize(("name", "error"), [("librdkafka", OK), ("a-b.c", OK), ("a b", ErrorCode.invalid_request)])
def test_client_software_must_have_a_plain_name(client: Client, name: str, error: ErrorCode) -> None:
    answer = client.ask(ApiKey.API_VERSIONS, 3, client_software_name=name, client_software_version="1.0")
    assert answer.error_code is error
    assert bool(answer.api_keys) is (error is OK)


# -- Metadata and coordinators


@pytest.mark.parametrize("version", versions_of(ApiKey.METADATA))
def test_metadata_of_all_topics_leaves_the_templates_out(desk: Desk, client: Client, version: int) -> None:
    desk.topic("orders", 3)
    answer = client.ask(ApiKey.METADATA, version, topics=[] if version == 0 else None)
    (topic,) = answer.topics
    assert (topic.name, len(topic.partitions), topic.error_code) == ("orders", 3, OK)
    assert [(b.node_id, b.host, b.port) for b in answer.brokers] == [(0, *desk.addresses.kafka)]
    assert {partition.leader_id for partition in topic.partitions} == {0}
    if version >= 1:
        assert client.ask(ApiKey.METADATA, version, topics=[]).topics == ()
    if version >= 10:
        assert topic.topic_id == desk.topic("orders").id


@pytest.mark.parametrize(
    ("version", "name", "allows", "error", "creates"),
    [
        (0, "new", None, OK, True),
        (3, "new", None, OK, True),
        (5, "new", True, OK, True),
        (5, "new", False, UNKNOWN, False),
        (12, "%RETRY%billing", True, ErrorCode.invalid_topic_exception, False),
        (12, "", True, ErrorCode.invalid_topic_exception, False),
        (12, "__consumer_offsets", True, UNKNOWN, False),
        (12, "TBW102", True, OK, False),  # a template is not listed, but there
    ],
)
def test_metadata_of_a_missing_topic(
    desk: Desk, client: Client, version: int, name: str, allows: bool | None, error: ErrorCode, creates: bool
) -> None:
    before = len(desk.topics)
    asked = {"allow_auto_topic_creation": allows} if allows is not None else {}
    topic_id = {"topic_id": None} if version >= 10 else {}
    (topic,) = client.ask(ApiKey.METADATA, version, topics=[{"name": name, **topic_id}], **asked).topics
    assert (topic.name, topic.error_code) == (name, error)
    assert len(desk.topics) - before == creates


def test_metadata_by_id_and_after_each_change(desk: Desk, client: Client) -> None:
    topic = desk.topic("orders", 2)
    by_id: list[dict[str, Any]] = [{"topic_id": topic.id, "name": None}]
    assert len(client.ask(ApiKey.METADATA, 12, topics=by_id).topics[0].partitions) == 2
    desk.topics.add_queues(topic, 5, desk.clock.now_ms(), "a test")
    assert len(client.ask(ApiKey.METADATA, 12, topics=by_id).topics[0].partitions) == 5
    desk.topics.delete(topic, desk.clock.now_ms())
    (gone,) = client.ask(ApiKey.METADATA, 12, topics=by_id).topics
    assert (gone.error_code, gone.name) == (ErrorCode.unknown_topic_id, None)


def test_metadata_tells_of_a_new_topic_only_when_the_log_keeps_it(desk: Desk, client: Client) -> None:
    desk.is_stalled = True
    number = client.send(ApiKey.METADATA, 5, topics=[{"name": "new"}], allow_auto_topic_creation=True)
    assert client.answer_to(number) is None
    desk.settle()
    assert client.answer_to(number).topics[0].error_code is OK


@pytest.mark.parametrize(
    ("version", "key_type", "error"),
    [
        (0, 0, OK),
        (2, 1, OK),
        (4, 0, OK),
        (6, 1, OK),
        (6, 2, ErrorCode.invalid_request),
    ],
)
def test_coordinator_is_this_broker_for_groups_and_transactional_ids(
    client: Client, version: int, key_type: int, error: ErrorCode
) -> None:
    asked = {"coordinator_keys": ["g"], "key": "g", "key_type": key_type}
    answer = client.ask(ApiKey.FIND_COORDINATOR, version, **asked)
    found = answer.coordinators[0] if version >= 4 else answer
    assert found.error_code is error
    assert (found.node_id, found.port) == ((0, 9092) if error is OK else (-1, -1))


def test_producer_ids_are_never_given_twice(client: Client) -> None:
    first, second = (client.ask(ApiKey.INIT_PRODUCER_ID, 4, transactional_id=None) for _ in range(2))
    assert (first.error_code, first.producer_epoch) == (OK, 0)
    assert first.producer_id != second.producer_id


# -- Offsets of the log


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
def test_list_offsets(desk: Desk, client: Client, timestamp: int, offset: int, found_ms: int) -> None:
    topic = desk.topic()
    desk.write(topic, b"gone", timestamp_ms=999)
    desk.write(topic, b"a", b"b", timestamp_ms=1_000)
    desk.write(topic, b"c", b"d", timestamp_ms=5_000)
    desk.write(topic, b"e", timestamp_ms=5_000)
    desk.store.retention.trim(topic.queues[0], 1, desk.clock.now_ms())
    desk.settle()
    (listed,) = list_offsets(client, timestamp)
    assert (listed.error_code, listed.offset, listed.timestamp) == (OK, offset, found_ms)


def list_offsets(client: Client, timestamp: int, *partitions: int, version: int = 9, epoch: int = -1) -> Any:
    asked = [
        {"partition_index": each, "timestamp": timestamp, "current_leader_epoch": epoch} for each in partitions or (0,)
    ]
    answer = client.ask(ApiKey.LIST_OFFSETS, version, topics=[{"name": "orders", "partitions": asked}])
    return answer and [partition for topic in answer.topics for partition in topic.partitions]


def test_list_offsets_waits_for_the_disk_without_holding_up_other_clients(desk: Desk, client: Client) -> None:
    topic = desk.topic()
    desk.write(topic, b"early", timestamp_ms=1_000)
    for _ in range(20):
        desk.write(topic, bytes(50_000), timestamp_ms=2_000)
    desk.disk.cached = False
    asked = [{"partition_index": each, "timestamp": 500} for each in (0, 1)]
    number = client.send(ApiKey.LIST_OFFSETS, 9, topics=[{"name": "orders", "partitions": asked}])
    assert client.answer_to(number) is None
    assert list_offsets(desk.connect(), -1)[0].offset == 21
    desk.reader_threads.run()
    desk.settle()
    found, empty = client.answer_to(number).topics[0].partitions
    assert (found.offset, found.timestamp) == (0, 1_000)
    assert (empty.offset, empty.timestamp, empty.error_code) == (-1, -1, OK)


def test_list_offsets_of_many_partitions_gives_others_their_turn(desk: Desk) -> None:
    class TickingClock(ManualClock):
        def mono_ms(self) -> int:
            self.pass_ms(1)
            return super().mono_ms()

    desk.topic("orders", 30)
    desk.kafka_context = replace(desk.kafka_context, clock=TickingClock())
    client = desk.connect()
    asked = [{"partition_index": each, "timestamp": -1} for each in range(30)]
    frame = frame_of(ApiKey.LIST_OFFSETS, 9, 1, topics=[{"name": "orders", "partitions": asked}])
    client.connection.data_received(frame)
    assert client.connection.unanswered == 1
    assert [each.offset for each in list_offsets(desk.connect(), -1)] == [0]
    desk.loop.turn()
    assert client.connection.unanswered == 0
    assert client.transport.taken


def test_list_offsets_refuses_what_cannot_be(desk: Desk, client: Client) -> None:
    desk.topic()
    assert [each.error_code for each in list_offsets(client, -1, 0, 0)] == [ErrorCode.invalid_request]
    assert list_offsets(client, -1, 7)[0].error_code is UNKNOWN
    assert list_offsets(client, -1, epoch=3)[0].error_code is ErrorCode.unknown_leader_epoch


@pytest.mark.parametrize(("asked", "epoch", "end"), [(0, 0, 2), (1, -1, -1)])
def test_epoch_ends_where_the_next_began(desk: Desk, client: Client, asked: int, epoch: int, end: int) -> None:
    desk.write(desk.topic(), b"a", b"b")
    topics = [{"topic": "orders", "partitions": [{"partition": 0, "leader_epoch": asked}]}]
    (found,) = client.ask(ApiKey.OFFSET_FOR_LEADER_EPOCH, 4, topics=topics).topics[0].partitions
    assert (found.error_code, found.leader_epoch, found.end_offset) == (OK, epoch, end)


@pytest.mark.parametrize(
    ("offset", "low_watermark", "error"),
    [(2, 2, OK), (-1, 3, OK), (0, 0, OK), (4, -1, ErrorCode.offset_out_of_range)],
)
def test_delete_records(desk: Desk, client: Client, offset: int, low_watermark: int, error: ErrorCode) -> None:
    topic = desk.topic()
    desk.write(topic, b"a", b"b", b"c")
    topics = [{"name": "orders", "partitions": [{"partition_index": 0, "offset": offset}]}]
    (result,) = client.ask(ApiKey.DELETE_RECORDS, 2, topics=topics).topics[0].partitions
    assert (result.low_watermark, result.error_code) == (low_watermark, error)
    assert topic.queues[0].start_offset == max(low_watermark, 0)


# -- Groups


def join(client: Client, version: int, member_id: str = "", **values: Any) -> Any:
    asked = {
        "group_id": "g", "member_id": member_id, "protocol_type": "consumer", "session_timeout": 10_000,
        "rebalance_timeout": 60_000, "protocols": [{"name": "range", "metadata": b"\0\0\0\0\0\x01\0\x06orders"}],
    }  # fmt: skip
    return client.ask(ApiKey.JOIN_GROUP, version, **{**asked, **values})


def test_log_names_what_a_groups_rocketmq_consumers_left(
    desk: Desk, client: Client, caplog: pytest.LogCaptureFixture
) -> None:
    desk.publish(desk.topic("%RETRY%g", 1), b"a", b"b")
    desk.publish(desk.topic("%DLQ%g", 1), b"c")
    with caplog.at_level("WARNING", "bridge"):
        joined = join(client, 4)
        join(client, 4, joined.member_id)
    assert [record.args for record in caplog.records] == [("g", 2, 1)]


@pytest.mark.parametrize("version", versions_of(ApiKey.JOIN_GROUP))
def test_member_joins_syncs_lives_and_leaves(desk: Desk, client: Client, version: int) -> None:
    joined = join(client, version)
    if version >= 4:
        assert joined.error_code is ErrorCode.member_id_required
        joined = join(client, version, joined.member_id)
    me = {"group_id": "g", "generation_id": 1, "member_id": joined.member_id}
    assert (joined.error_code, joined.generation_id, joined.protocol_name) == (OK, 1, "range")
    assert (joined.leader, len(joined.members)) == (joined.member_id, 1)
    assignments = [{"member_id": joined.member_id, "assignment": b"all"}]
    synced = client.ask(ApiKey.SYNC_GROUP, min(version, 5), assignments=assignments, **me)
    assert (synced.error_code, synced.assignment) == (OK, b"all")
    assert client.ask(ApiKey.HEARTBEAT, min(version, 4), **me).error_code is OK
    (described,) = client.ask(ApiKey.DESCRIBE_GROUPS, min(version, 6), groups=("g",)).groups
    assert (described.group_state, described.protocol_data, len(described.members)) == ("Stable", "range", 1)
    assert described.members[0].client_host == "/192.0.2.1"
    members = [{"member_id": joined.member_id}]
    left = client.ask(ApiKey.LEAVE_GROUP, min(version, 5), group_id="g", member_id=joined.member_id, members=members)
    assert left.error_code is OK
    assert not desk.kafka_groups.has_members("g")


def test_parked_join_is_answered_by_the_member_that_rejoins_or_by_time(desk: Desk, client: Client) -> None:
    leader = join(client, 3)
    client.ask(ApiKey.SYNC_GROUP, 3, group_id="g", generation_id=1, member_id=leader.member_id)
    second, third = desk.connect(), desk.connect()
    assert join(second, 3) is None
    assert join(client, 3, leader.member_id).generation_id == 2
    assert second.answer_to(1).leader == leader.member_id
    assert join(third, 3) is None
    desk.pass_ms(10_000)  # Two sessions end; the one that waits is all that is left.
    assert third.answer_to(1).generation_id == 3


def test_unknown_group_is_dead_and_one_with_positions_empty(desk: Desk, client: Client) -> None:
    (unknown,) = client.ask(ApiKey.DESCRIBE_GROUPS, 5, groups=("g",)).groups
    assert (unknown.group_state, unknown.error_code) == ("Dead", OK)
    (unknown,) = client.ask(ApiKey.DESCRIBE_GROUPS, 6, groups=("g",)).groups
    assert unknown.error_code is ErrorCode.group_id_not_found
    desk.topic()
    commit(client, 8, 5)
    (known,) = client.ask(ApiKey.DESCRIBE_GROUPS, 6, groups=("g",)).groups
    assert (known.group_state, known.protocol_type, known.error_code) == ("Empty", "consumer", OK)
    (listed,) = client.ask(ApiKey.LIST_GROUPS, 5, states_filter=("empty",)).groups
    assert (listed.group_id, listed.group_state, listed.group_type) == ("g", "Empty", "classic")
    assert client.ask(ApiKey.LIST_GROUPS, 5, states_filter=("Stable",)).groups == ()


def test_group_that_is_active_in_rocketmq_takes_no_kafka_members(desk: Desk, client: Client) -> None:
    desk.topic()
    commit(client, 8, 5)
    desk.rocketmq_groups_with_members.add("g")
    assert join(client, 9).error_code is ErrorCode.inconsistent_group_protocol
    assert commit(client, 8, 7) is ErrorCode.unknown_member_id
    assert fetch_positions(client, 7)[0].committed_offset == 5  # Looking is allowed.
    (described,) = client.ask(ApiKey.DESCRIBE_GROUPS, 5, groups=("g",)).groups
    assert (described.group_state, described.protocol_type) == ("Stable", "rocketmq")
    (deleted,) = client.ask(ApiKey.DELETE_GROUPS, 2, groups_names=("g",)).results
    assert deleted.error_code is ErrorCode.non_empty_group
    desk.rocketmq_groups_with_members.clear()
    assert join(client, 3).error_code is OK


def test_delete_groups(desk: Desk, client: Client) -> None:
    desk.topic()
    commit(client, 8, 5)
    joined = join(client, 3)
    assert delete_group(client) is ErrorCode.non_empty_group
    client.ask(ApiKey.LEAVE_GROUP, 1, group_id="g", member_id=joined.member_id)
    assert delete_group(client) is OK
    assert delete_group(client) is ErrorCode.group_id_not_found
    assert fetch_positions(client, 7)[0].committed_offset == -1


def delete_group(client: Client) -> ErrorCode:
    (result,) = client.ask(ApiKey.DELETE_GROUPS, 2, groups_names=("g",)).results
    error: ErrorCode = result.error_code
    return error


@pytest.mark.parametrize(
    ("key", "version", "values"),
    [
        (ApiKey.SYNC_GROUP, 4, {"assignments": [{"member_id": "m", "assignment": bytes(1 << 23)}]}),
        (ApiKey.DESCRIBE_GROUPS, 5, {"groups": ("g",) * 20_001}),
    ],
)
def test_request_beyond_its_limits_closes_the_connection(
    client: Client, key: ApiKey, version: int, values: dict[str, Any]
) -> None:
    client.send(key, version, **values)
    assert client.is_closed


def test_requests_that_wait_for_a_group_do_not_keep_their_bodies() -> None:
    """Followers may send assignments too; nobody needs them while the leader's are waited for."""
    desk = Desk(initial_rebalance_delay_ms=1000)
    clients = [desk.connect() for _ in range(5)]
    protocols = [{"name": "range", "metadata": b"m"}]
    asked = {"group_id": "g", "session_timeout": 10_000, "rebalance_timeout": 2000, "protocol_type": "consumer"}
    numbers = [client.send(ApiKey.JOIN_GROUP, 3, protocols=protocols, **asked) for client in clients]
    desk.pass_ms(1000)
    desk.pass_ms(1000)
    joined = [client.answer_to(number) for client, number in zip(clients, numbers, strict=True)]
    leader = joined[0].leader
    tracemalloc.start()
    for client, member in zip(clients, joined, strict=True):
        if member.member_id != leader:
            client.send(
                ApiKey.SYNC_GROUP, 3, group_id="g", generation_id=member.generation_id, member_id=member.member_id,
                assignments=[{"member_id": leader, "assignment": bytes(7 << 20)}],
            )  # fmt: skip
    held_bytes, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert [client.connection.unanswered for client in clients] == [0, 1, 1, 1, 1]
    assert held_bytes < 1 << 20


# -- Positions


def commit(client: Client, version: int, offset: int, partition: int = 0, **values: Any) -> Any:
    asked = [
        {"partition_index": partition, "committed_offset": offset, "committed_leader_epoch": 0, **values.pop("of", {})}
    ]
    topics = [{"name": "orders", "partitions": asked}]
    asked_all = {"group_id": "g", "generation_id_or_member_epoch": -1, "topics": topics, **values}
    answer = client.ask(ApiKey.OFFSET_COMMIT, version, **asked_all)
    return answer and answer.topics[0].partitions[0].error_code


def fetch_positions(client: Client, version: int, *, everything: bool = False) -> Any:
    topics = None if everything else [{"name": "orders", "partition_indexes": (0, 1)}]
    groups = [{"group_id": "g", "topics": topics}]
    asked: dict[str, Any] = {"groups": groups} if version >= 8 else {"group_id": "g", "topics": topics}
    answer = client.ask(ApiKey.OFFSET_FETCH, version, **asked)
    found = answer.groups[0].topics if version >= 8 else answer.topics
    return [partition for topic in found for partition in topic.partitions]


@pytest.mark.parametrize("version", versions_of(ApiKey.OFFSET_FETCH))
def test_committed_positions_are_fetched(desk: Desk, client: Client, version: int) -> None:
    desk.topic()
    assert [each.committed_offset for each in fetch_positions(client, version)] == [-1, -1]
    assert commit(client, max(version, 2), 42, 1, of={"committed_metadata": "note"}) is OK
    missing, found = fetch_positions(client, version)
    assert (missing.committed_offset, missing.metadata, missing.error_code) == (-1, "", OK)
    assert (found.committed_offset, found.metadata, found.error_code) == (42, "note", OK)
    if version >= 2:
        (only,) = fetch_positions(client, version, everything=True)
        assert (only.partition_index, only.committed_offset) == (1, 42)


@pytest.mark.parametrize("version", versions_of(ApiKey.OFFSET_FETCH))
def test_positions_are_fetched_while_the_disk_is_full(desk: Desk, client: Client, version: int) -> None:
    key = desk.topic().key(0)
    assert commit(client, 8, 5) is OK
    desk.positions.commit_later("g", [CommittedPosition(key, 7)], desk.clock.mono_ms(), desk.clock.now_ms())
    desk.fill_disk(1)
    assert commit(client, 8, 9) is ErrorCode.kafka_storage_error
    found, _ = fetch_positions(client, version)
    assert (found.committed_offset, found.error_code) == (7, OK)
    desk.fill_disk(0)
    desk.pass_ms(1000)
    assert desk.positions.all_of("g")[key].offset == 7


def test_commit_is_answered_when_the_log_keeps_it(desk: Desk, client: Client) -> None:
    desk.topic()
    desk.is_stalled = True
    assert commit(client, 8, 5) is None
    desk.settle()
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
def test_commit_that_cannot_be(
    desk: Desk, client: Client, version: int, partition: int, values: dict[str, Any], error: ErrorCode
) -> None:
    desk.topic()
    assert commit(client, version, 1, partition, **dict(values)) is error
    assert "g" not in desk.positions


def test_positions_of_subscribed_topics_are_not_deleted(desk: Desk, client: Client) -> None:
    desk.topic()
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


# -- Topics


@pytest.mark.parametrize(
    ("wish", "error"),
    [
        ({}, OK),
        ({"num_partitions": -1}, OK),
        ({"replication_factor": 3}, OK),
        ({"num_partitions": 0}, ErrorCode.invalid_partitions),
        ({"name": "old"}, ErrorCode.topic_already_exists),
        ({"name": "bad name"}, ErrorCode.invalid_topic_exception),
        ({"configs": [{"name": "cleanup.policy", "value": "compact"}]}, OK),
        ({"configs": [{"name": "nonsense", "value": "1"}]}, ErrorCode.invalid_config),
        ({"configs": [{"name": "retention.ms", "value": None}]}, ErrorCode.invalid_config),
        ({"assignments": [{"partition_index": 0, "broker_ids": (5,)}]}, ErrorCode.invalid_request),
        (
            {
                "assignments": [{"partition_index": 0, "broker_ids": (5,)}],
                "num_partitions": -1,
                "replication_factor": -1,
            },
            OK,
        ),
    ],
)
@pytest.mark.parametrize("validate_only", [False, True])
def test_create_topics(desk: Desk, client: Client, wish: dict[str, Any], error: ErrorCode, validate_only: bool) -> None:
    desk.topic("old")
    before = len(desk.topics)
    topics = [{"name": "new", "num_partitions": 3, "replication_factor": 1, **wish}]
    answer = client.ask(ApiKey.CREATE_TOPICS, 7, topics=topics, timeout=1_000, validate_only=validate_only)
    (result,) = answer.topics
    assert result.error_code is error, result.error_message
    assert len(desk.topics) - before == (error is OK and not validate_only)
    if error is OK:
        assert {config.name for config in result.configs} >= {"retention.ms", "cleanup.policy"}
        assert result.num_partitions == {-1: 1 if "assignments" in wish else 4}.get(wish.get("num_partitions"), 3)


def test_topic_named_twice_is_created_by_neither(desk: Desk, client: Client) -> None:
    wish = {"name": "new", "num_partitions": 1, "replication_factor": 1}
    (result,) = client.ask(ApiKey.CREATE_TOPICS, 7, topics=[wish, wish]).topics
    assert result.error_code is ErrorCode.invalid_request
    assert desk.topics.get("new") is None


def test_topics_are_deleted_by_name_or_id_and_grown(desk: Desk, client: Client) -> None:
    first, second = desk.topic("first"), desk.topic("second", 2)

    def grow(count: int, **values: Any) -> ErrorCode:
        topics = [{"name": "second", "count": count, **values}]
        error: ErrorCode = client.ask(ApiKey.CREATE_PARTITIONS, 3, topics=topics).results[0].error_code
        return error

    assert grow(2) is ErrorCode.invalid_partitions
    assert grow(4, assignments=[{"broker_ids": (0,)}, {"broker_ids": (7,)}]) is OK
    assert second.queue_count == 4
    (result,) = client.ask(ApiKey.DELETE_TOPICS, 3, topic_names=("first",)).responses
    assert result.error_code is OK
    topics = [{"name": None, "topic_id": second.id}, {"name": "first", "topic_id": None}]
    results = client.ask(ApiKey.DELETE_TOPICS, 6, topics=topics).responses
    assert [(each.name, each.error_code) for each in results] == [("second", OK), ("first", UNKNOWN)]
    assert desk.topics.by_id(first.id) is None


# -- Configs


def configs_of(client: Client, resource_type: int, name: str, *keys: str) -> Any:
    resources = [{"resource_type": resource_type, "resource_name": name, "configuration_keys": keys or None}]
    (result,) = client.ask(ApiKey.DESCRIBE_CONFIGS, 4, resources=resources).results
    if result.error_code is not OK:
        return result.error_code
    return {config.name: (config.value, config.config_source, config.read_only) for config in result.configs}


def test_configs_are_described_with_their_sources(desk: Desk, client: Client) -> None:
    desk.topic(retention_ms="1000")
    found = configs_of(client, 2, "orders", "retention.ms", "cleanup.policy", "max.message.bytes")
    assert found == {
        "retention.ms": ("1000", 1, False),
        "cleanup.policy": ("delete", 5, False),
        "max.message.bytes": (str(desk.options.topics.message_bytes_max), 4, False),
    }
    listeners = configs_of(client, 4, "0")["advertised.listeners"]
    assert listeners == ("PLAINTEXT://broker.example:9092", 4, True)
    assert configs_of(client, 4, "") == {}
    assert configs_of(client, 4, "7") is ErrorCode.invalid_request
    assert configs_of(client, 2, "absent") is UNKNOWN


SET, DELETE, APPEND, SUBTRACT = range(4)


@pytest.mark.parametrize(
    ("operation", "name", "value", "error", "now"),
    [
        (SET, "retention.ms", "5", OK, "5"),
        (SET, "retention.ms", "soon", ErrorCode.invalid_config, "1000"),
        (DELETE, "retention.ms", None, OK, "604800000"),
        (APPEND, "cleanup.policy", "compact", OK, "delete,compact"),
        (SUBTRACT, "cleanup.policy", "delete", OK, ""),
        (APPEND, "retention.ms", "5", ErrorCode.invalid_config, "1000"),
        (7, "retention.ms", "5", ErrorCode.invalid_request, "1000"),
        (SET, "nonsense", "5", ErrorCode.invalid_config, None),
    ],
)
def test_single_configs_are_changed(
    desk: Desk, client: Client, operation: int, name: str, value: str | None, error: ErrorCode, now: str | None
) -> None:
    desk.topic(retention_ms="1000")
    changes = [{"name": name, "config_operation": operation, "value": value}]
    resources = [{"resource_type": 2, "resource_name": "orders", "configs": changes}]
    (result,) = client.ask(ApiKey.INCREMENTAL_ALTER_CONFIGS, 1, resources=resources).responses
    assert result.error_code is error, result.error_message
    if now is not None:
        assert configs_of(client, 2, "orders", name)[name][0] == now


def test_old_style_alteration_replaces_the_whole_set(desk: Desk, client: Client) -> None:
    topic = desk.topic(retention_ms="1000")

    def alter(resource_type: int, name: str, *, validate_only: bool = False) -> ErrorCode:
        configs = [{"name": "cleanup.policy", "value": "compact"}]
        resources = [{"resource_type": resource_type, "resource_name": name, "configs": configs}]
        answer = client.ask(ApiKey.ALTER_CONFIGS, 2, resources=resources, validate_only=validate_only)
        error: ErrorCode = answer.responses[0].error_code
        return error

    assert alter(2, "orders", validate_only=True) is OK
    assert dict(topic.configs) == {"retention.ms": "1000"}
    assert alter(2, "orders") is OK
    assert dict(topic.configs) == {"cleanup.policy": "compact"}
    assert alter(4, "0") is ErrorCode.invalid_request


def test_what_rocketmq_wrote_is_where_kafka_looks_for_it(desk: Desk, client: Client) -> None:
    topic = desk.topic()
    desk.publish(topic, b"a", b"b")
    assert list_offsets(client, -1)[0].offset == 2
    (found,) = list_offsets(client, desk.clock.now_ms())
    assert (found.offset, found.timestamp) == (0, desk.clock.now_ms())
    asked = [{"partition": 0, "fetch_offset": 1, "partition_max_bytes": 1 << 20}]
    answer = client.ask(ApiKey.FETCH, 4, topics=[{"topic": "orders", "partitions": asked}], max_bytes=1 << 20)
    assert read_header(answer.responses[0].partitions[0].records).base_offset == 1
