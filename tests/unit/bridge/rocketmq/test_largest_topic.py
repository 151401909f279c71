"""Proves that a topic with as many queues as the setting allows is made, popped, reset and deleted within the budget
of a turn; work is counted in calls of functions."""

from collections.abc import Callable
from typing import get_type_hints

import pytest

from duolog.bridge.config import Options, TopicsOptions
from duolog.protocol.rocketmq.codes import RequestCode
from tests.unit.adversary.budget import UNITS_MAX, counted
from tests.unit.bridge.rocketmq.broker import RocketMQBroker
from tests.unit.bridge.rocketmq.popping import nothing, pop

MOST: int = get_type_hints(TopicsOptions, include_extras=True)["queues_max"].__metadata__[0].le


def units_of(work: Callable[[], object]) -> int:
    with counted(calls=True) as found:
        work()
    return found.units


@pytest.mark.slow
def test_requests_on_all_queues_of_the_largest_topic_keep_the_budget() -> None:
    broker = RocketMQBroker(options=Options(topics=TopicsOptions(queues_max=MOST)))
    client, now_ms = broker.connect(), broker.clock.now_ms()
    units = {"create": units_of(lambda: broker.topics.create("orders", MOST, {}, now_ms))}
    broker.settle()
    client.beat("billing")
    units["pop"] = units_of(lambda: nothing(client))
    units["held pop"] = units_of(lambda: pop(client, pollTime=60_000))
    fields = {"topic": "orders", "group": "billing", "timestamp": -1, "isForce": "true"}
    # The whole reset, in all its turns of the loop.
    units["reset"] = units_of(lambda: client.ask(RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, **fields))
    topic = broker.topics.get("orders")
    assert topic is not None
    units["delete"] = units_of(lambda: broker.topics.delete(topic, now_ms))
    assert {name: count for name, count in units.items() if count > UNITS_MAX} == {}
