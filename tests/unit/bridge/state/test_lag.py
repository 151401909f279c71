"""The lag of groups: the same figure over HTTP, in the command and in the metrics, for any committed offsets."""

import re
from typing import Any

from duolog.bridge.kafka.groups.group_requests import JoinRequest, SyncRequest
from duolog.bridge.records.groups import CommittedOffset
from tests.kit.core import ManualCore
from tests.kit.http import HttpBench


def committed(core: ManualCore, group: str, *positions: tuple[int, int]) -> None:
    core.group_offsets.commit(group, [CommittedOffset(key, at) for key, at in positions], core.clock.now_ms())


def metric(bench: HttpBench, name: str) -> dict[str, float]:
    text = bench.ask("GET", "/metrics")[1].decode()
    found: list[tuple[str, str]] = re.findall(
        rf'^duolog_{name}{{group="(\w+)",topic="orders"}} (\S+)$', text, re.MULTILINE
    )
    return {group: float(value) for group, value in found}


def test_queues_without_a_position_count_from_their_log_start() -> None:
    bench = HttpBench()
    core = bench.core
    topic = core.topic("orders", 3)
    core.publish(topic, *[b"x"] * 8, queue_id=0)
    core.publish(topic, *[b"x"] * 5, queue_id=1)
    committed(core, "readers", (topic.key(1), 4))
    summary = {
        "name": "readers", "active": None, "members": 0, "topics": ["orders"],
        "lag": 9, "lag_without_position": 8, "queues_without_position": 2,
    }  # fmt: skip
    assert bench.ask("GET", "/api/groups") == (200, [summary])
    assert metric(bench, "group_lag_messages") == {"readers": 9}
    assert metric(bench, "group_lag_without_position_messages") == {"readers": 8}
    described = bench.ask("GET", "/api/groups/readers")[1]
    assert {name: described[name] for name in summary} == summary
    rows = [(row["queue"], row["position"], row["start"], row["end"], row["lag"]) for row in described["positions"]]
    assert rows == [(0, None, 0, 8, 8), (1, 4, 0, 5, 1), (2, None, 0, 0, 0)]
    assert (described["retries_waiting"], described["dead_letters"]) == (0, 0)


def test_position_outside_the_log_counts_what_is_there() -> None:
    bench = HttpBench()
    topic = bench.core.topic("orders", 2)
    bench.core.publish(topic, *[b"x"] * 8)
    bench.core.store.retention.trim(topic.queues[0], 6, bench.core.clock.now_ms())
    committed(bench.core, "behind", (topic.key(0), 3))
    committed(bench.core, "beyond", (topic.key(0), 99))
    committed(bench.core, "new", (topic.key(1), 0))
    assert [(row["name"], row["lag"]) for row in bench.ask("GET", "/api/groups")[1]] == [
        ("behind", 2), ("beyond", 0), ("new", 2)
    ]  # fmt: skip


def test_topics_that_live_members_subscribe_to_count_before_the_first_commit() -> None:
    bench = HttpBench()
    core = bench.core
    core.publish(core.topic("orders", 2), *[b"x"] * 8)
    core.topic("quiet", 1)
    subscription = b"\x00\x00" + b"\x00\x00\x00\x03" + b"\x00\x06orders" + b"\x00\x05quiet" + b"\x00\x04none"
    join_as_kafka(core, "readers", subscription)
    (row,) = bench.ask("GET", "/api/groups")[1]
    assert (row["active"], row["topics"]) == ("kafka", ["orders", "quiet"])
    assert (row["lag"], row["lag_without_position"], row["queues_without_position"]) == (8, 8, 3)


def join_as_kafka(core: ManualCore, group: str, subscription: bytes) -> None:
    join = JoinRequest(
        group, "", "c", "h", 10_000, 10_000, "consumer", (("range", subscription),), member_id_required=False
    )
    ticket: Any = object()
    core.kafka_groups.join(join, ticket, core.clock.mono_ms())
    (joined,) = core.kafka_groups.expire(core.clock.mono_ms() + 60_000) or [None]
    member = joined.answer.member_id if joined is not None else ""
    core.kafka_groups.sync(SyncRequest(group, member, 1), ticket, core.clock.mono_ms())


def test_group_that_nobody_knows_is_404() -> None:
    assert HttpBench().ask("GET", "/api/groups/none") == (404, {"error": "there is no group none"})
