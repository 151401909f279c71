"""Answers of the APIs of groups on a real broker core; groups/test_coordinator.py has the histories of groups."""

import tracemalloc

import pytest

from duolog.bridge.kafka import TABLE
from duolog.bridge.kafka.groups import turn_work
from duolog.protocol.kafka.api_messages import ApiKey, ErrorCode
from tests.unit.bridge.kafka.asking import commit, fetch_positions, join, versions_of
from tests.unit.bridge.kafka.bench import Client, KafkaBench

OK = ErrorCode.none


def test_log_counts_retries_and_dead_letters_of_a_group_that_moves_to_kafka(
    bench: KafkaBench, client: Client, caplog: pytest.LogCaptureFixture
) -> None:
    bench.publish(bench.topic("%RETRY%g", 1), b"a", b"b")
    bench.publish(bench.topic("%DLQ%g", 1), b"c")
    with caplog.at_level("WARNING", "kafka"):
        joined = join(client, 4)
        join(client, 4, joined.member_id)
    assert [record.args for record in caplog.records] == [("g", 2, 1)]


@pytest.mark.parametrize("version", versions_of(ApiKey.JOIN_GROUP))
def test_member_joins_syncs_lives_and_leaves(bench: KafkaBench, client: Client, version: int) -> None:
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
    assert not bench.kafka_groups.has_members("g")


def test_waiting_join_is_answered_when_the_others_rejoin_or_their_time_is_over(
    bench: KafkaBench, client: Client
) -> None:
    leader = join(client, 3)
    client.ask(ApiKey.SYNC_GROUP, 3, group_id="g", generation_id=1, member_id=leader.member_id)
    second, third = bench.connect(), bench.connect()
    assert join(second, 3) is None
    assert join(client, 3, leader.member_id).generation_id == 2
    assert second.answer_to(1).leader == leader.member_id
    assert join(third, 3) is None
    bench.pass_ms(10_000)  # Two sessions end; the one that waits is all that is left.
    assert third.answer_to(1).generation_id == 3


def test_unknown_group_is_dead_and_one_with_positions_empty(bench: KafkaBench, client: Client) -> None:
    (unknown,) = client.ask(ApiKey.DESCRIBE_GROUPS, 5, groups=("g",)).groups
    assert (unknown.group_state, unknown.error_code) == ("Dead", OK)
    (unknown,) = client.ask(ApiKey.DESCRIBE_GROUPS, 6, groups=("g",)).groups
    assert unknown.error_code is ErrorCode.group_id_not_found
    bench.topic()
    commit(client, 8, 5)
    (known,) = client.ask(ApiKey.DESCRIBE_GROUPS, 6, groups=("g",)).groups
    assert (known.group_state, known.protocol_type, known.error_code) == ("Empty", "consumer", OK)
    (listed,) = client.ask(ApiKey.LIST_GROUPS, 5, states_filter=("empty",)).groups
    assert (listed.group_id, listed.group_state, listed.group_type) == ("g", "Empty", "classic")
    assert client.ask(ApiKey.LIST_GROUPS, 5, states_filter=("Stable",)).groups == ()


def test_group_that_is_active_in_rocketmq_takes_no_kafka_members(
    bench: KafkaBench, client: Client, caplog: pytest.LogCaptureFixture
) -> None:
    bench.topic()
    commit(client, 8, 5)
    bench.rocketmq_groups_with_members.add("g")
    with caplog.at_level("WARNING", "kafka"):
        assert join(client, 9).error_code is ErrorCode.inconsistent_group_protocol
    (refused,) = caplog.messages
    assert refused.startswith("member refused, because its group is active in RocketMQ group=g client=")
    assert commit(client, 8, 7) is ErrorCode.unknown_member_id
    assert fetch_positions(client, 7)[0].committed_offset == 5  # Looking is allowed.
    (described,) = client.ask(ApiKey.DESCRIBE_GROUPS, 5, groups=("g",)).groups
    assert (described.group_state, described.protocol_type) == ("Stable", "rocketmq")
    (deleted,) = client.ask(ApiKey.DELETE_GROUPS, 2, groups_names=("g",)).results
    assert deleted.error_code is ErrorCode.non_empty_group
    bench.rocketmq_groups_with_members.clear()
    assert join(client, 3).error_code is OK


def test_delete_groups(bench: KafkaBench, client: Client) -> None:
    bench.topic()
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


def test_groups_that_rebalance_in_one_turn_are_limited_in_all(monkeypatch: pytest.MonkeyPatch) -> None:
    """Requests that complete ten rebalances are read in one turn; each turn completes some, and all are answered."""
    monkeypatch.setattr(turn_work, "REPLIES_MAX", 6)
    bench = KafkaBench(initial_rebalance_delay_ms=1000)
    clients = [bench.connect() for _ in range(30)]
    asked = {"session_timeout": 10_000, "rebalance_timeout": 2000, "protocol_type": "consumer"}
    protocols = [{"name": "range", "metadata": b"m"}]
    numbers = [
        client.send(ApiKey.JOIN_GROUP, 3, group_id=f"g{index % 10}", protocols=protocols, **asked)
        for index, client in enumerate(clients)
    ]
    bench.pass_ms(1000)
    bench.pass_ms(1000)
    joined = [client.answer_to(number) for client, number in zip(clients, numbers, strict=True)]
    assert [answer.error_code for answer in joined] == [OK] * 30
    turn, bench.loop.turn = bench.loop.turn, lambda: None  # All requests come in one turn.
    leaders_last = sorted(range(30), key=lambda index: joined[index].member_id == joined[index].leader)
    numbers = [
        clients[index].send(
            ApiKey.SYNC_GROUP, 3, group_id=f"g{index % 10}", generation_id=joined[index].generation_id,
            member_id=joined[index].member_id, assignments=[],
        )
        for index in leaders_last
    ]  # fmt: skip
    replies = [bench.kafka_context.group_work.replies]
    while bench.loop.turn_once():
        replies.append(bench.kafka_context.group_work.replies)
    assert (max(replies), sum(count > 0 for count in replies)) == (6, 5)
    bench.loop.turn = turn
    answers = [clients[index].answer_to(number) for index, number in zip(leaders_last, numbers, strict=True)]
    assert [answer.error_code for answer in answers] == [OK] * 30
    assert bench.metrics.requests[TABLE[ApiKey.SYNC_GROUP].metric] == 30


def test_requests_that_wait_for_a_group_do_not_keep_their_bodies() -> None:
    """Followers may send assignments too; the coordinator ignores them and waits for the leader's."""
    bench = KafkaBench(initial_rebalance_delay_ms=1000)
    clients = [bench.connect() for _ in range(5)]
    protocols = [{"name": "range", "metadata": b"m"}]
    asked = {"group_id": "g", "session_timeout": 10_000, "rebalance_timeout": 2000, "protocol_type": "consumer"}
    numbers = [client.send(ApiKey.JOIN_GROUP, 3, protocols=protocols, **asked) for client in clients]
    bench.pass_ms(1000)
    bench.pass_ms(1000)
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
