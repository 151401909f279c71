"""Proves that each broker of a stream keeps its number, and that answers name the brokers and the owner."""

from __future__ import annotations

import asyncio

import pytest

from duolog.bridge.cluster.members import FOLDER, NODES_MAX, Members, key_of
from duolog.bridge.cluster.standby_kafka import error_for
from duolog.bridge.cluster.standby_metrics import exposition
from duolog.bridge.kafka import TABLE
from duolog.bridge.monitoring.metrics import Metrics
from duolog.bridge.net.nodes import ENDPOINTS_BYTES_MAX, Endpoints, Node, Nodes
from duolog.protocol.kafka.api_messages import ApiKey, ErrorCode
from duolog.store.objects.errors import StoreRefused
from tests.kit.clock import ManualClock
from tests.kit.loop import run
from tests.kit.object_store import SimulatedBucket


def endpoints(port: int, http: int = 9644) -> Endpoints:
    return Endpoints(("host", port), ("host", port + 1), ("host", port + 2), ("host", http))


@pytest.mark.parametrize("seed", range(5))
def test_brokers_that_start_together_get_numbers_of_their_own_and_keep_them(seed: int) -> None:
    bucket = SimulatedBucket(seed)
    own = [endpoints(port) for port in (100, 200, 300)]

    async def main() -> None:
        members = [Members(bucket.client(f"broker-{number}")) for number in range(3)]
        nodes = await asyncio.gather(*(each.register(mine) for each, mine in zip(members, own, strict=True)))
        assert {node.id for node in nodes} == {0, 1, 2}
        for mine, node in zip(own, nodes, strict=True):
            started_again = Members(bucket.client("again"))
            assert await started_again.register(mine) == node
            await started_again.refresh()
            assert started_again.known == {each.id: each.endpoints for each in nodes}

    run(main(), ManualClock())


def test_a_broker_whose_other_port_has_moved_keeps_its_number() -> None:
    bucket = SimulatedBucket(1)

    async def main() -> Node:
        members = Members(bucket.client("a"))
        await members.register(endpoints(100))
        return await members.register(endpoints(100, http=1))

    assert run(main(), ManualClock()) == Node(0, endpoints(100, http=1))
    assert Endpoints.decode(bucket.objects[key_of(0)]).http == ("host", 1)


def test_too_many_brokers_are_refused_with_the_remedy() -> None:
    bucket = SimulatedBucket(1)
    for number in range(NODES_MAX):
        bucket.objects[key_of(number)] = endpoints(1000 + number).encode()
    with pytest.raises(StoreRefused, match=r"remove the objects"):
        run(Members(bucket.client("a")).register(endpoints(1)), ManualClock())


def test_what_another_program_has_put_there_is_left_out() -> None:
    bucket = SimulatedBucket(1)
    bucket.objects |= {key_of(0): b"{}", f"{FOLDER}readme": b"", key_of(1): endpoints(100).encode()}

    async def main() -> dict[int, Endpoints]:
        members = Members(bucket.client("a"))
        await members.refresh()
        return members.known

    assert run(main(), ManualClock()) == {1: endpoints(100)}


@pytest.mark.parametrize(
    "data",
    [b"", b"[]", b'{"kafka": ["", 1]}', endpoints(65535).encode(), b" " * (ENDPOINTS_BYTES_MAX + 1)],
    ids=["empty", "no object", "no host", "port too high", "too long"],
)
def test_addresses_that_are_none_are_refused(data: bytes) -> None:
    with pytest.raises(ValueError):
        Endpoints.decode(data)


def test_nodes_change_their_version_only_if_something_has_changed() -> None:
    own, other = Node(1, endpoints(100)), Node(0, endpoints(200))
    nodes = Nodes(own, None)
    nodes.set({0: other.endpoints}, other.endpoints)
    assert (nodes.all, nodes.owner, nodes.is_owner, nodes.version) == ((other, own), other, False, 1)
    nodes.set({0: other.endpoints}, other.endpoints)
    assert nodes.version == 1
    nodes.set({}, own.endpoints)
    assert (nodes.all, nodes.is_owner, nodes.version) == ((own,), True, 2)
    nodes.set({}, other.endpoints)  # An owner whose addresses are not known yet.
    assert nodes.owner is None


def test_a_standby_sends_each_request_to_the_owner_by_an_error_that_its_clients_retry() -> None:
    retried = {ErrorCode.not_leader_or_follower, ErrorCode.not_coordinator, ErrorCode.not_controller}
    assert {error_for(key) for key in TABLE} == retried
    assert error_for(ApiKey.PRODUCE) is error_for(ApiKey.FETCH) is ErrorCode.not_leader_or_follower
    assert error_for(ApiKey.JOIN_GROUP) is error_for(ApiKey.END_TXN) is ErrorCode.not_coordinator
    assert error_for(ApiKey.CREATE_TOPICS) is ErrorCode.not_controller


def test_what_a_takeover_has_lost_is_a_metric_of_a_standby_too() -> None:
    metrics = Metrics()
    metrics.shared_lost_entries = 7
    assert b"duolog_shared_lost_entries 7.0" in exposition(metrics, epoch=3)
