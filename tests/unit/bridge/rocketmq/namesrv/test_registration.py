"""A broker registers with the name servers of its cluster: all topics, once for each version, and deleted topics."""

import asyncio
import json
from collections.abc import Callable
from typing import Any

import pytest

from duolog.bridge.config import (
    ConfigError,
    Options,
    TopicsOptions,
    name_servers,
)
from duolog.bridge.rocketmq.namesrv.registration import TOPICS_AT_ONCE, BrokerIdentity, NameServerRegistration
from tests.kit.faults import reraise
from tests.unit.adversary.budget import counted
from tests.unit.bridge.rocketmq.broker import RocketMQBroker


def registration_of(broker: RocketMQBroker) -> NameServerRegistration:
    return NameServerRegistration(broker.topics, broker.clock, BrokerIdentity("c", "b", "h:1"), reraise, [])


def registered(fleet: NameServerRegistration) -> dict[str, Any]:
    body, _ = asyncio.run(fleet._registration())
    wrapper = json.loads(body)["topicConfigSerializeWrapper"]
    return {"version": wrapper["dataVersion"], **{n: t["perm"] for n, t in wrapper["topicConfigTable"].items()}}


def by_steps(
    fleet: NameServerRegistration, between: Callable[[], object]
) -> tuple[tuple[bytes, asyncio.Event], list[int]]:
    """Make a registration; gives it, and the work of each turn of the loop."""
    steps, slices = fleet._registration(), list[int]()
    while True:
        try:
            with counted(calls=True) as work:
                steps.send(None)
        except StopIteration as done:
            return done.value, slices
        finally:
            slices.append(work.units)
        between()


def test_a_new_version_comes_with_each_change_and_only_then() -> None:
    broker = RocketMQBroker()
    fleet = registration_of(broker)
    first, changed = registered(fleet), asyncio.run(fleet._registration())[1]
    broker.clock.pass_ms(1000)
    fleet.notice()
    assert not changed.is_set()
    assert registered(fleet) == first
    topic = broker.topic("orders")
    fleet.notice()
    assert changed.is_set()
    second = registered(fleet)
    assert (second["orders"], second["version"] == first["version"]) == (6, False)
    broker.topics.delete(topic, broker.clock.now_ms())
    assert registered(fleet)["orders"] == 0, "the topic stays in the routes without permissions"
    broker.topic("orders")
    assert registered(fleet)["orders"] == 6


@pytest.mark.slow
def test_registration_of_many_topics_is_written_in_slices_and_what_changes_meanwhile_follows() -> None:
    broker = RocketMQBroker()
    fleet = registration_of(broker)
    for number in range(8 * TOPICS_AT_ONCE):
        broker.topics.create(f"t{number}", 1, {}, broker.clock.now_ms())
    (body, changed), slices = by_steps(fleet, lambda: broker.topic("new"))
    assert len(slices) > 8
    assert max(slices) < 40 * TOPICS_AT_ONCE  # All of them would be eight times as many.
    table = json.loads(body)["topicConfigSerializeWrapper"]["topicConfigTable"]
    assert {f"t{number}" for number in range(8 * TOPICS_AT_ONCE)} <= table.keys()
    fleet.notice()
    assert changed.is_set()
    assert registered(fleet)["new"] == 6


@pytest.mark.parametrize("auto_create", [True, False])
def test_the_template_is_offered_if_topics_are_made_of_it(auto_create: bool) -> None:
    broker = RocketMQBroker(options=Options(topics=TopicsOptions(auto_create=auto_create)))
    assert ("TBW102" in registered(registration_of(broker))) is auto_create


@pytest.mark.parametrize(
    ("text", "expected"),
    [("", []), (" a:1 ; b.example:9876;", [("a", 1), ("b.example", 9876)]), ("[::1]:9876", [("::1", 9876)])],
)
def test_addresses_are_read(text: str, expected: list[tuple[str, int]]) -> None:
    assert name_servers(text) == expected


@pytest.mark.parametrize("text", ["a", "a:", ":1", "a:0", "a:65536", "a:1,b:2", "http://a"])
def test_what_is_no_address_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match=r"^rocketmq\.join_namesrv: expected host:port;host:port, got"):
        name_servers(text)
