"""All state that clients create is limited: at the limit the oldest is removed, or new state is refused."""

import logging
from collections.abc import Callable, Sized

import pytest

from duolog.bridge.kafka.requests.metadata_cache import MetadataCache
from duolog.bridge.monitoring.logs import FloodFilter
from duolog.bridge.rocketmq.consuming.assignment import RequestMode
from duolog.bridge.rocketmq.consuming.reset_marks import ResetMarks
from duolog.bridge.rocketmq.namesrv.expected_topics import ExpectedTopics, RouteMisses
from duolog.bridge.rocketmq.requests.errors import RequestRefused
from duolog.bridge.state.topic_configs import VALUE_CHARACTERS_MAX, InvalidConfig, check
from tests.unit.bridge.publish_bench import PublishBench
from tests.unit.bridge.rocketmq.broker import RocketMQBroker

COUNT = 3


def expected() -> Sized:
    table = ExpectedTopics()
    for number in range(10):
        table.add(f"t{number}", 0)
    assert table.has("t9", 0)
    assert not table.has("t0", 0)
    return table._until_mono_ms


def asked() -> Sized:
    table = RouteMisses()
    for number in range(10):
        assert not table.is_asked_again(f"t{number}", 0)
    return table._asked_mono_ms


def marks() -> Sized:
    table = ResetMarks()
    for number in range(10):
        table.mark("g", number, 7)
    assert (table.find("g", 9), table.find("g", 0)) == (7, None)
    return table._marks


def kinds_of_lines() -> Sized:
    table = FloodFilter()
    for number in range(10):
        assert table.filter(logging.LogRecord("bridge", logging.INFO, "", 0, f"line {number}", (), None))
    return table._repeats


def metadata() -> Sized:
    table = MetadataCache()
    table.get(1, ())
    for number in range(10):
        table.put(1, (number,), 0, [b"x"])
    return table._bodies


def paths() -> Sized:
    bench = PublishBench()
    for queue in bench.topic(queues=10).queues:
        bench.halves._op_messages._path_of(queue)
    return bench.halves._op_messages._paths


def modes() -> Sized:
    modes = RocketMQBroker().rocketmq_context.groups.request_modes
    for number in range(COUNT):
        modes.set("g", f"t{number}", RequestMode("POP"), 0)
    with pytest.raises(RequestRefused, match=f"{COUNT} are allowed"):
        modes.set("g", "another", RequestMode("POP"), 0)
    modes.set("g", "t0", RequestMode("PULL"), 0)
    return modes._modes


@pytest.mark.parametrize(
    ("limit", "fill"),
    [
        ("duolog.bridge.rocketmq.namesrv.expected_topics.EXPECTED_MAX", expected),
        ("duolog.bridge.rocketmq.namesrv.expected_topics.ASKED_MAX", asked),
        ("duolog.bridge.rocketmq.consuming.reset_marks.MARKS_MAX", marks),
        ("duolog.bridge.monitoring.logs.KINDS_MAX", kinds_of_lines),
        ("duolog.bridge.kafka.requests.metadata_cache.CACHED_BYTES_MAX", metadata),
        ("duolog.bridge.transactions.op_messages.PATHS_CACHED_MAX", paths),
        ("duolog.bridge.rocketmq.consuming.request_modes.MODES_MAX", modes),
    ],
)
def test_so_many_are_remembered(monkeypatch: pytest.MonkeyPatch, limit: str, fill: Callable[[], Sized]) -> None:
    monkeypatch.setattr(limit, COUNT)
    assert 0 < len(fill()) <= COUNT


def test_value_of_a_topic_config_has_so_many_characters() -> None:
    name = "leader.replication.throttled.replicas"
    check({name: ",".join(["1:1"] * (VALUE_CHARACTERS_MAX // 4))})
    with pytest.raises(InvalidConfig):
        check({name: ",".join(["1:1"] * (VALUE_CHARACTERS_MAX // 4 + 1))})
