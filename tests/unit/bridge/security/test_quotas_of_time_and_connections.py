"""Quotas of request time, of connections and their rate, and of what RocketMQ clients pull: what clients see."""

import json
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from duolog.bridge.rocketmq.requests.quota_check import DELAY_MS_MAX
from duolog.bridge.security.quotas.entity import CONNECTION_RATE, FETCHED, REQUEST_TIME
from duolog.bridge.security.quotas.quotas import REFUSAL_MS, WINDOW_MS
from duolog.protocol.kafka.api_messages import ApiKey
from duolog.protocol.rocketmq.codes import RequestCode, ResponseCode
from tests.kit.core import ManualCore
from tests.kit.http import HEADERS, HttpBench, encoded
from tests.unit.bridge.kafka.bench import Client, KafkaBench
from tests.unit.bridge.rocketmq.broker import Client as RocketMQClient
from tests.unit.bridge.rocketmq.broker import RocketMQBroker
from tests.unit.bridge.security.test_quotas import pass_ms, put

OVERLOAD = "[OVERLOAD]system busy, start flow control for a while, quota"


@contextmanager
def slow_requests(core: ManualCore, ms: int) -> Iterator[None]:
    """Let each measured part of a request take so long: between two readings of the watchdog's clock."""
    clock, now_s = core.watchdog.seconds, 0.0

    def seconds() -> float:
        nonlocal now_s
        now_s += ms / 1000
        return now_s

    core.watchdog.seconds = seconds
    yield
    core.watchdog.seconds = clock


# -- Request time


def test_kafka_client_above_its_request_time_is_not_read() -> None:
    bench = KafkaBench()
    put(bench.security.quotas, None, "test", request_percentage=10)
    noisy, other = bench.connect(), bench.connect()
    with slow_requests(bench, 150):
        assert noisy.ask(ApiKey.METADATA, 12, topics=[]) is not None
    # 150 ms are 10 % of 1,500 ms, of which the window before the request has paid for 1,000.
    assert noisy.transport.is_paused
    assert not other.transport.is_paused
    pass_ms(bench, 150 * 10 - WINDOW_MS - 1)
    assert noisy.transport.is_paused
    pass_ms(bench, 1)
    assert not noisy.transport.is_paused
    assert bench.security.quotas.throttled == {("kafka", REQUEST_TIME): 1}
    pass_ms(bench, WINDOW_MS)
    with slow_requests(bench, 90):
        assert noisy.ask(ApiKey.METADATA, 12, topics=[]) is not None
    assert not noisy.transport.is_paused, "the request is within the quota"


def test_rocketmq_client_above_its_request_time_is_not_read() -> None:
    bench = RocketMQBroker()
    bench.topic("orders")
    put(bench.security.quotas, "", None, request_percentage=10)
    client = bench.connect()
    with slow_requests(bench, 150):
        assert client.beat("crew").code == ResponseCode.SUCCESS
    assert client.transport.is_paused
    pass_ms(bench, 150 * 10 - WINDOW_MS - 1)
    assert client.transport.is_paused
    pass_ms(bench, 1)
    assert not client.transport.is_paused
    assert bench.security.quotas.throttled == {("rocketmq", REQUEST_TIME): 1}
    assert client.send().code == ResponseCode.SUCCESS


def test_rocketmq_client_far_above_its_request_time_may_beat_but_not_send_and_pull() -> None:
    bench = RocketMQBroker()
    bench.topic("orders")
    put(bench.security.quotas, "", None, request_percentage=10)
    client = bench.connect()
    with slow_requests(bench, 1000):
        assert client.send().code == ResponseCode.SUCCESS
    pass_ms(bench, DELAY_MS_MAX - 1)
    assert client.transport.is_paused
    pass_ms(bench, 1)
    for ask in (client.send, lambda: client.pull(0)):
        assert not client.transport.is_paused
        refused = ask()
        assert (refused.code, refused.remark) == (
            ResponseCode.SYSTEM_BUSY, f"{OVERLOAD} request_percentage of ANONYMOUS"
        )  # fmt: skip
        pass_ms(bench, DELAY_MS_MAX)
    assert client.beat("crew").code == ResponseCode.SUCCESS
    pass_ms(bench, 10_000)
    assert client.send().code == ResponseCode.SUCCESS


def test_http_client_above_its_request_time_is_refused_until_its_time_has_come() -> None:
    bench = HttpBench(RocketMQBroker())
    bench.core.topic("orders")
    put(bench.core.security.quotas, "ANONYMOUS", None, request_percentage=10)
    assert bench.ask("GET", "/api/topics")[0] == 200
    with slow_requests(bench.core, 300):
        assert bench.ask("GET", "/api/topics")[0] == 200
    for method, path in (
        ("GET", "/api/topics"),
        ("GET", "/api/topics/orders/messages"),
        ("DELETE", "/api/topics/orders"),
    ):
        status, head, answer = bench.send(encoded(method, path, b"", HEADERS), REFUSAL_MS)
        assert (status, b"Retry-After: " in head) == (429, True), (path, head)
        assert "the quota request_percentage of ANONYMOUS is used up" in json.loads(answer)["error"]
    assert bench.ask("GET", "/healthz")[0] == 200, "it is for everybody"
    assert bench.core.topics.get("orders") is not None
    assert bench.core.security.quotas.throttled == {("http", REQUEST_TIME): 3}
    bench.core.clock.pass_ms(20_000)
    assert bench.ask("GET", "/api/topics")[0] == 200


# -- What is pulled


def test_pull_above_the_quota_is_busy_until_its_time_has_come() -> None:
    bench = RocketMQBroker()
    bench.publish(bench.topic("orders"), b"x" * 3000, b"y")
    put(bench.security.quotas, "", None, consumer_byte_rate=1000)
    client = bench.connect()
    assert client.pull(0).code == ResponseCode.SUCCESS
    refused = client.pull(1)
    assert (refused.code, refused.remark) == (
        ResponseCode.SYSTEM_BUSY, f"{OVERLOAD} consumer_byte_rate of ANONYMOUS"
    )  # fmt: skip
    assert client.transport.is_paused
    assert bench.security.quotas.throttled == {("rocketmq", FETCHED): 1}
    pass_ms(bench, 3000)
    assert not client.transport.is_paused
    assert client.pull(1).code == ResponseCode.SUCCESS


# -- Connections


def test_rocketmq_connections_above_the_quota_are_closed() -> None:
    bench = RocketMQBroker()
    put(bench.security.quotas, "ANONYMOUS", None, connections=1)
    first, second = bench.connect(), bench.connect()
    assert first.ask(RequestCode.GET_BROKER_CLUSTER_INFO).code == ResponseCode.SUCCESS
    second.ask(RequestCode.GET_BROKER_CLUSTER_INFO)
    assert [client.transport.closing for client in (first, second)] == [False, True]
    first.connection.connection_lost(None)
    third = bench.connect()
    assert third.ask(RequestCode.GET_BROKER_CLUSTER_INFO).code == ResponseCode.SUCCESS
    assert not third.transport.closing


@pytest.mark.parametrize("wire", ["kafka", "rocketmq"])
def test_connection_above_the_rate_of_new_ones_waits_before_its_second_request(wire: str) -> None:
    bench = KafkaBench() if wire == "kafka" else RocketMQBroker()
    put(bench.security.quotas, "ANONYMOUS", None, connection_creation_rate=2)

    def ask() -> tuple[bool, bool]:
        """Send the first request of a connection; return whether it has an answer, and whether the next one waits."""
        client = bench.connect()
        if isinstance(client, Client):
            answer = client.ask(ApiKey.METADATA, 12, topics=[])
        else:
            answer = client.ask(RequestCode.GET_BROKER_CLUSTER_INFO)
        clients.append(client)
        return answer is not None, client.transport.is_paused

    clients: list[Client | RocketMQClient] = []
    # The window before has paid for two, and each further one waits for half a second more.
    assert [ask() for _ in range(4)] == [(True, False), (True, False), (True, True), (True, True)]
    pass_ms(bench, 499)
    assert [client.transport.is_paused for client in clients] == [False, False, True, True]
    pass_ms(bench, 1)
    assert [client.transport.is_paused for client in clients] == [False, False, False, True]
    pass_ms(bench, 500)
    assert not any(client.transport.is_paused for client in clients)
    assert bench.security.quotas.throttled == {(wire, CONNECTION_RATE): 2}
