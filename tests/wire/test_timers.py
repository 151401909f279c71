"""Verbs on delayed and recurring messages with real clients: what is cancelled, moved or replaced is what they receive.

Messages wait for an hour, and come because somebody says so; so nothing here depends on how fast the machine is. They
go to a sorted table within moments, so that verbs find them in memory, on their way, or there.
"""

from __future__ import annotations

import itertools
import json
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from typing import Any

import confluent_kafka
import pytest

from tests.kit.broker import Broker
from tests.wire.clients.jvm import Agents
from tests.wire.clients.kafka_clients import Confluent
from tests.wire.clients.message import Message
from tests.wire.clients.topics import create_topic

pytestmark = pytest.mark.usefixtures("both_protocols")
BROKER_SETTINGS = {"delay.near_ms": 100}
WITHIN_S = 60
HOUR_MS = 3_600_000
LATER = ("TIMER_DELAY_MS", str(HOUR_MS).encode())
REPLACE = ("TIMER_REPLACE", b"true")
_numbers = itertools.count(int(time.time()))


@pytest.fixture
def topic(broker: Broker) -> str:
    name = f"timers-{next(_numbers)}"
    create_topic(broker.kafka, name, 1)
    return name


JSON = {"Content-Type": "application/json"}


class Api:
    """The JSON API of a broker."""

    def __init__(self, broker: Broker, topic: str) -> None:
        self._root, self._topic = f"http://{broker.http}", topic

    def call(self, method: str, path: str, body: Any = None) -> Any:
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(f"{self._root}{path}", data, JSON, method=method)
        with urllib.request.urlopen(request, timeout=WITHIN_S) as response:
            return json.load(response)

    def add(self, value: str, **wanted: Any) -> str:
        body = {"topic": self._topic, "value": value, "delay_ms": HOUR_MS} | wanted
        return str(self.call("POST", "/api/timers", body)["id"])

    def pending(self, query: str = "") -> list[str]:
        found = self.call("GET", f"/api/timers?topic={self._topic}{query}")["timers"]
        assert self.call("GET", f"/api/timers/count?topic={self._topic}{query}")["count"] == len(found)
        return [row["id"] for row in found]

    def outcome(self, method: str, path: str, body: Any = None) -> str:
        return str(self.call(method, path, body)["outcome"])


@pytest.fixture
def api(broker: Broker, topic: str) -> Api:
    return Api(broker, topic)


def texts(broker: Broker, topic: str, count: int) -> list[str]:
    seen = Confluent(broker.kafka).read({topic: count}, WITHIN_S)
    return [each.text for each in sorted(seen, key=lambda each: each.offset)]


def produce(broker: Broker, topic: str, value: bytes, *headers: tuple[str, bytes], key: bytes = b"order-17") -> None:
    producer = confluent_kafka.Producer({"bootstrap.servers": broker.kafka, "log_level": 0})
    producer.produce(topic, value, key, headers=list(headers))
    assert producer.flush(WITHIN_S) == 0


def test_outcomes_by_id_are_what_clients_then_receive(broker: Broker, topic: str, api: Api) -> None:
    cancelled, moved, now = api.add("cancelled"), api.add("moved", key="a", headers={"city": "Bern"}), api.add("now")
    assert sorted(api.pending()) == sorted([cancelled, moved, now])
    seen = api.call("GET", f"/api/timers/{moved}")
    assert (seen["value"], seen["key"], seen["headers"]["city"]) == ("moved", "a", "Bern")
    for _ in range(2):
        assert api.outcome("DELETE", f"/api/timers/{cancelled}") == "cancelled"
    assert api.outcome("POST", f"/api/timers/{now}/now") == "rescheduled"
    assert texts(broker, topic, 1) == ["now"]
    assert api.outcome("POST", f"/api/timers/{moved}/reschedule", {"delay_ms": 1}) == "rescheduled"
    assert texts(broker, topic, 2) == ["now", "moved"]
    for each in (now, moved):
        assert api.outcome("DELETE", f"/api/timers/{each}") == "delivered"
    assert api.outcome("DELETE", f"/api/timers/{'A' * 24}") == "not_found"
    assert api.pending() == []


def test_messages_of_both_protocols_are_found_by_their_keys(
    broker: Broker, agents: Agents, topic: str, api: Api
) -> None:
    produce(broker, topic, b"kafka", LATER)
    produce(broker, topic, b"another", LATER, key=b"another")
    one = Message(b"rocketmq", 0, b"order-17").as_rocketmq_json() | {"setDelayTimeMs": HOUR_MS}
    agents.rocketmq("5.5").call("write_delayed", namesrv=broker.namesrv, topic=topic, messages=[one])
    assert len(api.pending()) == 3
    assert len(api.pending("&key=order-17")) == 2
    assert api.outcome("POST", "/api/timers/reschedule", {"topic": topic, "key": "order-17", "delay_ms": 0}) == (
        "rescheduled"
    )
    assert sorted(texts(broker, topic, 2)) == ["kafka", "rocketmq"]
    assert api.outcome("DELETE", f"/api/timers?topic={topic}&key=order-17") == "delivered"
    assert api.outcome("DELETE", f"/api/timers?topic={topic}&key=another") == "cancelled"
    assert api.outcome("DELETE", f"/api/timers?topic={topic}&key=nobody") == "not_found"


def test_the_second_message_with_a_key_replaces_the_first_over_a_kill(broker: Broker, topic: str, api: Api) -> None:
    produce(broker, topic, b"first", LATER)
    produce(broker, topic, b"second", LATER, REPLACE)
    broker.kill()
    broker.start()
    again = Api(broker, topic)
    (pending,) = again.pending("&key=order-17")
    assert again.call("GET", f"/api/timers/{pending}")["value"] == "second"
    assert again.outcome("POST", f"/api/timers/{pending}/now") == "rescheduled"
    assert texts(broker, topic, 1) == ["second"]


def test_a_paused_topic_gets_nothing_until_it_is_resumed(broker: Broker, topic: str, api: Api) -> None:
    other = f"{topic}-other"
    create_topic(broker.kafka, other, 1)
    api.call("POST", f"/api/topics/{topic}/pause")
    due = api.add("paused", delay_ms=0)
    Api(broker, other).add("goes on", delay_ms=0)
    assert texts(broker, other, 1) == ["goes on"]  # What was due later is there.
    assert api.pending() == [due]
    api.call("POST", f"/api/topics/{topic}/resume")
    assert texts(broker, topic, 1) == ["paused"]


def test_histogram_counts_what_is_due_when(api: Api) -> None:
    start_ms = int(time.time() * 1000) + HOUR_MS
    for ms in (0, 999, 1000, 2500, 2600):
        api.add("x", at_ms=start_ms + ms, delay_ms=None)
    topic = api.call("GET", f"/api/timers/{api.pending()[0]}")["topic"]
    query = f"topic={topic}&from_ms={start_ms}&until_ms={start_ms + 4000}&bins=4"
    assert api.call("GET", f"/api/timers/histogram?{query}")["counts"] == [2, 1, 2, 0]
    assert len(api.pending(f"&from_ms={start_ms + 999}&until_ms={start_ms + 2500}")) == 2


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ({"delay_ms": None}, "either at_ms or delay_ms"),
        ({"delay_ms": 4000 * 24 * HOUR_MS}, "delay.max_days"),
        ({"delay_ms": -5}, "delay_ms: expected 0 or more"),
        ({"headers": {"TIMER_DELAY_MS": "1"}}, "header TIMER_DELAY_MS"),
        ({"queue": 7}, "queue"),
        ({"topic": "nowhere"}, "there is no topic"),
        ({"value_base64": "x"}, "value"),
    ],
)
def test_what_cannot_be_a_timer_is_refused(api: Api, body: dict[str, Any], said: str) -> None:
    with pytest.raises(urllib.error.HTTPError) as refused:
        api.add("x", **body)
    assert said in json.load(refused.value)["error"]


# -- Recurring


def test_ten_programs_register_one_schedule_and_each_run_comes_once(broker: Broker, topic: str, api: Api) -> None:
    body = {"name": topic, "topic": topic, "value": "tick", "every_ms": 200, "count": 5}
    outcomes = [api.call("POST", "/api/schedules", body)["outcome"] for _ in range(10)]
    assert outcomes == ["created", *["unchanged"] * 9]
    broker.kill()
    broker.start()
    seen = Confluent(broker.kafka).read({topic: 1}, WITHIN_S)
    assert {each.text for each in seen} == {"tick"}
    again = Api(broker, topic)
    eventually(lambda: again.call("GET", f"/api/schedules/{topic}")["next_ms"] is None)
    assert again.call("DELETE", f"/api/schedules/{topic}") == {"outcome": "removed"}


def test_activemq_names_in_both_protocols(broker: Broker, agents: Agents, topic: str) -> None:
    asked = {"AMQ_SCHEDULED_DELAY": "300", "AMQ_SCHEDULED_PERIOD": "200", "AMQ_SCHEDULED_REPEAT": "2"}
    produce(broker, topic, b"kafka", *((name, value.encode()) for name, value in asked.items()))
    headers = tuple((name, value.encode()) for name, value in asked.items())
    one = Message(b"rocketmq", 0, headers=headers).as_rocketmq_json()
    agents.rocketmq("5.5").call("write_delayed", namesrv=broker.namesrv, topic=topic, messages=[one])
    assert sorted(texts(broker, topic, 6)) == ["kafka"] * 3 + ["rocketmq"] * 3


def eventually(is_so: Callable[[], bool]) -> None:
    until = time.monotonic() + WITHIN_S
    while not is_so():
        assert time.monotonic() < until, "it did not come true"
        time.sleep(0.05)
