"""Proves that each turn of the loop is measured once, and that long ones are named."""

import asyncio
import logging
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from duolog.bridge.monitoring.watchdog import (
    BOUNDS_S,
    LONG_S,
    QUIET_S,
    Watchdog,
    measured,
)
from duolog.bridge.rocketmq.request_table import TABLE
from duolog.protocol.rocketmq.codes import RequestCode
from tests.unit.bridge.rocketmq.broker import RocketMQBroker

ALL_TOPICS = RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER


class Seconds:
    """A clock that is moved."""

    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def seconds() -> Seconds:
    return Seconds()


def turn(watchdog: Watchdog, seconds: Seconds, kind: Any, took_s: float) -> None:
    begun_s = watchdog.seconds()
    seconds.now_s += took_s
    watchdog.turned(kind, begun_s)


def test_histogram_counts_each_turn_once(seconds: Seconds) -> None:
    watchdog = Watchdog(seconds)
    for took_s in (0.0, 0.0005, 0.0011, 0.0499, 0.051, 0.3, 30.0):
        turn(watchdog, seconds, "any", took_s)
    counts = dict(watchdog.buckets())
    assert [counts[str(bound_s)] for bound_s in BOUNDS_S] == [2, 3, 3, 3, 3, 4, 5, 5, 6, 6, 6]
    assert (counts["+Inf"], watchdog.count, round(watchdog.total_s, 4)) == (7, 7, 30.4025)


def test_long_turns_are_named_counted_and_logged_once_in_a_while(
    seconds: Seconds, caplog: pytest.LogCaptureFixture
) -> None:
    watchdog = Watchdog(seconds)
    with caplog.at_level(logging.WARNING, "bridge"):
        for kind, took_s in (("a", 0.2), ("a", 0.3), ("b", LONG_S + 0.01), ("c", 0.09), ("a", QUIET_S)):
            turn(watchdog, seconds, kind, took_s)
    assert watchdog.long == {"a": 3, "b": 1}
    assert watchdog.longest_s == {"a": QUIET_S, "b": pytest.approx(LONG_S + 0.01), "c": pytest.approx(0.09)}
    assert [record.getMessage() for record in caplog.records] == [
        "loop turn was long kind='a' ms=200 in_all=1",
        "loop turn was long kind='b' ms=110 in_all=1",
        "loop turn was long kind='a' ms=5000 in_all=3",
    ]
    watchdog.reset()
    assert (watchdog.longest_s, watchdog.long["a"]) == ({}, 3)


def test_a_requests_turn_has_its_name(seconds: Seconds, monkeypatch: pytest.MonkeyPatch) -> None:
    broker = RocketMQBroker()
    broker.watchdog.seconds = seconds
    client = broker.connect()
    handler = TABLE[ALL_TOPICS].handler

    def slow(*arguments: Any) -> Any:
        seconds.now_s += 0.25
        return handler(*arguments)

    monkeypatch.setitem(TABLE, ALL_TOPICS, TABLE[ALL_TOPICS]._replace(handler=slow))
    turns = broker.watchdog.count
    broker.watchdog.reset()
    assert client.ask(ALL_TOPICS).code == 0
    assert broker.watchdog.longest_s == {"rocketmq GET_ALL_TOPIC_LIST_FROM_NAMESERVER": 0.25}
    assert broker.watchdog.count == turns + 2  # What was received, and the end of the turn.


def test_each_step_of_a_coroutine_is_a_turn(seconds: Seconds) -> None:
    watchdog = Watchdog(seconds)

    async def work() -> str:
        seconds.now_s += 0.2
        await asyncio.sleep(0)
        seconds.now_s += 0.3
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0):
                await asyncio.sleep(60)
        seconds.now_s += 0.4
        return "done"

    async def main() -> str:
        return await measured(work(), watchdog, "http")

    assert asyncio.run(main()) == "done"
    assert watchdog.longest_s == {"http": pytest.approx(0.4)}
    assert watchdog.long["http"] == 3


def test_what_a_coroutine_raises_comes_through(seconds: Seconds) -> None:
    async def fails() -> None:
        await asyncio.sleep(0)
        raise KeyError("x")

    async def main() -> None:
        await measured(fails(), Watchdog(seconds), "http")

    with pytest.raises(KeyError):
        asyncio.run(main())


def test_prometheus_reads_the_histogram(seconds: Seconds) -> None:
    from prometheus_client.core import HistogramMetricFamily
    from prometheus_client.exposition import generate_latest
    from prometheus_client.registry import CollectorRegistry

    watchdog = Watchdog(seconds)
    turn(watchdog, seconds, "a", 0.3)

    class Collector:
        def collect(self) -> Any:
            family = HistogramMetricFamily("turns", "x")
            family.add_metric((), watchdog.buckets(), watchdog.total_s)
            yield family

    registry = CollectorRegistry()
    registry.register(Collector())
    (family,) = text_string_to_metric_families(generate_latest(registry).decode())
    samples = {(each.name, each.labels.get("le")): each.value for each in family.samples}
    assert samples["turns_bucket", "0.2"] == 0
    assert samples["turns_bucket", "0.5"] == 1
    assert samples["turns_count", None] == 1
