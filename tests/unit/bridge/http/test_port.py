"""The HTTP port's answers, bytes in and bytes out without a socket, on topics and positions in a memory log."""

import asyncio
import json
from types import SimpleNamespace
from typing import Any

import pytest

from duolog.bridge.config import Options, SecurityOptions
from duolog.bridge.http.port import HttpPort
from duolog.bridge.monitoring.metrics import Metrics
from duolog.bridge.monitoring.watchdog import Watchdog
from duolog.bridge.net.addresses import Addresses
from duolog.bridge.security.security import Security
from duolog.store.errors import DiskFull
from tests.kit.clock import ManualClock
from tests.kit.core import ManualCore
from tests.kit.http import HEADERS, HttpBench, encoded, parsed
from tests.kit.memory_log import MemoryLog
from tests.kit.sockets import connect
from tests.unit.bridge.replayed_state import open_state


class RefusingLog(MemoryLog):
    """Takes everything, until it refuses."""

    refusal = ""

    def append(self, entries: Any, now_ms: int) -> Any:
        if self.refusal:
            raise DiskFull(self.refusal)
        return super().append(entries, now_ms)


class Bench:
    """The parts of a broker that the port uses."""

    def __init__(self) -> None:
        self.log = RefusingLog()
        state = open_state(self.log)
        self.failures: list[tuple[str, BaseException]] = []
        self.ready_reason = ""
        self.metrics = Metrics()
        self.context: Any = SimpleNamespace(
            options=Options(),
            clock=ManualClock(),
            store=SimpleNamespace(kept=lambda promise: True),
            state_log=state.state_log,
            topics=state.topics,
            security=Security(state.state_log, Options(), ManualClock()),
            leases=None,
            messages=None,
            delayed=SimpleNamespace(
                delays=SimpleNamespace(is_paused=lambda topic: False, timers=SimpleNamespace(pending=None)),
                commands=None,
                lists=None,
            ),
            transactions=None,
            groups=SimpleNamespace(
                group_offsets=state.group_offsets,
                client_protocols=SimpleNamespace(active=lambda group: None),
                kafka_groups=SimpleNamespace(groups=list, group=lambda name: None),
                rocketmq_members=SimpleNamespace(consumers={}, client_ids=lambda group: []),
                rocketmq_groups=SimpleNamespace(name_of=lambda group: group),
            ),
            monitoring=SimpleNamespace(
                server=SimpleNamespace(timed_calls=None),
                topic_rates=SimpleNamespace(per_second=lambda number: None),
                addresses=Addresses("here", {}),
                not_ready_reason=lambda: self.ready_reason,
                watchdog=Watchdog(),
                metrics=self.metrics,
                faults=SimpleNamespace(contain=lambda error, kind, peer: self.failures.append((kind, error))),
            ),
        )

    def ask(self, method: str, path: str, body: bytes = b"") -> tuple[int, Any]:
        status, answer = self.send(encoded(method, path, body, HEADERS))
        return status, json.loads(answer) if path.startswith("/api") else answer

    def send(self, sent: bytes) -> tuple[int, bytes]:
        """Give these bytes to a connection of the port, and read what it writes until it closes."""
        return asyncio.run(self._send(sent))

    async def _send(self, sent: bytes) -> tuple[int, bytes]:
        port = HttpPort(self.context)
        await port.start()
        connection = port.connection()
        assert isinstance(connection, asyncio.Protocol)
        transport = connect(connection, asyncio.get_running_loop())
        connection.data_received(sent)
        while not transport.closing:  # noqa: ASYNC110 - each turn is one step of the port
            await asyncio.sleep(0)
        await port.stop()
        status, _, body = parsed(bytes(transport.taken))
        return status, body


def test_topic_is_created_described_and_deleted() -> None:
    bench = Bench()
    status, made = bench.ask("POST", "/api/topics", b'{"name": "orders", "configs": {"retention.ms": "1000"}}')
    assert (status, len(made["queues"]), made["configs"]) == (201, 4, {"retention.ms": "1000"})
    assert made["queues"][3] == {"queue": 3, "start": 0, "end": 0, "size_bytes": 0, "epoch": 0}
    assert bench.ask("GET", "/api/topics/orders") == (200, made)
    assert "orders" in [topic["name"] for topic in bench.ask("GET", "/api/topics")[1]]
    assert bench.ask("DELETE", "/api/topics/orders") == (200, {"deleted": "orders"})
    assert bench.ask("GET", "/api/topics/orders")[0] == 404


def test_configs_of_a_topic_are_changed_one_by_one() -> None:
    bench = Bench()
    bench.ask("POST", "/api/topics", b'{"name": "orders", "configs": {"retention.ms": "1000", "flush.mode": "async"}}')
    changes = b'{"configs": {"message.ttl.ms": "500", "flush.mode": null}}'
    expected = {"retention.ms": "1000", "message.ttl.ms": "500"}
    status, changed = bench.ask("PATCH", "/api/topics/orders", changes)
    assert (status, changed["configs"]) == (200, expected)
    for bad in (b'{"message.expired": "explode"}', b'{"x": null}'):
        assert bench.ask("PATCH", "/api/topics/orders", b'{"configs": %s}' % bad)[0] == 400
    assert bench.ask("GET", "/api/topics/orders")[1]["configs"] == expected


def test_topic_is_found_by_either_spelling() -> None:
    bench = Bench()
    bench.ask("POST", "/api/topics", b'{"name": "a.b", "queues": 1}')
    topic = bench.ask("GET", "/api/topics/a.b")[1]
    assert topic["kafka_name"] == "a.b"
    quoted = topic["rocketmq_name"].replace("%", "%25")
    assert bench.ask("GET", f"/api/topics/{quoted}") == (200, topic)


@pytest.mark.parametrize(
    ("method", "path", "body", "status", "says"),
    [
        ("POST", "/api/topics", b"", 400, "the body is empty; expected a JSON object"),
        ("POST", "/api/topics", b"{", 400, "truncated"),
        ("POST", "/api/topics", b"\xff\xfe", 400, ""),
        ("POST", "/api/topics", b'{"name": "\xff"}', 400, "utf-8"),
        ("POST", "/api/topics", b"[" * 100_000, 400, "object"),
        ("POST", "/api/topics", b'{"name": 3}', 400, "$.name"),
        ("POST", "/api/topics", b'{"name": "t", "surplus": 1}', 400, "surplus"),
        ("POST", "/api/topics", b'{"name": "a/b"}', 400, "legal neither"),
        ("POST", "/api/topics", b'{"name": "t", "queues": 0}', 400, "0 queues"),
        ("POST", "/api/topics", b'{"name": "t", "configs": {"x": "y"}}', 400, "unknown topic config x"),
        ("PATCH", "/api/topics/TBW102", b'{"configs": {"retention": "1"}}', 400, "; did you mean retention.ms?"),
        ("POST", "/api/topics", b'{"name": "TBW102"}', 409, "exists"),
        ("POST", "/api/topics", b'"' + b"x" * (1 << 20), 413, "exceeded"),
        ("PATCH", "/api/topics/TBW102", b'{"configs": {"message.ttl.ms": "0"}}', 400, "allowed are 1 to 315360000000"),
        (
            "PATCH",
            "/api/topics/TBW102",
            b'{"configs": {"flush.mode": "syncc"}}',
            400,
            "are async, sync, shared",
        ),
        ("PATCH", "/api/topics/TBW102", b'{"configs": {"retention.ms": "7days"}}', 400, "(long); allowed are -1 to 92"),
        ("DELETE", "/api/topics/TBW102", b"", 400, "broker's own"),
        ("DELETE", "/api/topics/none", b"", 404, "there is no topic none; `duolog topic list` shows all"),
        ("GET", "/api/groups/none", b"", 404, "there is no group none"),
        ("POST", "/api/groups/none/redrive", b"", 404, "there is no group none"),
        ("GET", "/api/nonsense", b"", 404, "there is no path /api/nonsense"),
        (
            "GET",
            "/api/timers?tpic=orders",
            b"",
            400,
            "tpic: expected one of after, content, from_ms, key, limit, topic, until_ms",
        ),
        ("GET", "/api/timers/count?limit=1", b"", 400, "limit: expected one of from_ms, key, topic, until_ms"),
        (
            "GET",
            "/api/timers/histogram?key=a&topic=TBW102",
            b"",
            400,
            "key: expected one of bins, from_ms, topic, until_ms",
        ),
        ("GET", "/api/timers/histogram?bins=0", b"", 400, "bins: expected a number from 1 to 1000, got '0'"),
        ("GET", "/api/timers?limit=0", b"", 400, "limit: expected a number from 1 to 1000, got '0'"),
        ("DELETE", "/api/timers?topic=TBW102", b"", 400, "key: missing"),
        ("DELETE", "/api/timers?topic=TBW102&key=", b"", 400, "key: empty"),
        ("POST", "/api/topics/SCHEDULE_TOPIC_XXXX/pause", b"", 400, "SCHEDULE_TOPIC_XXXX is the broker's own"),
        ("GET", "/api/timers/histogram?from_ms=9&until_ms=9", b"", 400, "until_ms 9 is not after from_ms 9"),
        ("DELETE", "/api/timers?topic=TBW102&key=a&limit=1", b"", 400, "limit: expected one of key, topic"),
        ("PUT", "/api/topics", b"", 405, "PUT is not allowed here; expected GET, HEAD, POST"),
    ],
)
def test_bad_request_is_answered_with_its_reason(method: str, path: str, body: bytes, status: int, says: str) -> None:
    bench = Bench()
    found, answer = bench.ask(method, path, body)
    assert (found, bench.failures) == (status, [])
    assert says in answer["error"]
    assert bench.metrics.errors == {("http", str(status)): 1}


def test_compressed_body_is_not_opened() -> None:
    bench = Bench()
    sent = encoded("POST", "/api/topics", b"\x1f\x8b\x08\x00", HEADERS | {"Content-Encoding": "gzip"})
    assert bench.send(sent)[0] == 400
    assert not bench.failures


def test_log_that_refuses_is_503_and_a_fault_is_500() -> None:
    bench = Bench()
    bench.log.refusal = "no space"
    assert bench.ask("POST", "/api/topics", b'{"name": "t"}') == (503, {"error": "no space"})
    bench.context.topics = None
    assert bench.ask("GET", "/api/topics")[0] == 500
    assert [(kind, type(error)) for kind, error in bench.failures] == [("http GET /api/topics", AttributeError)]


def test_readiness_says_why_not() -> None:
    bench = Bench()
    assert bench.ask("GET", "/healthz") == (200, b"ok\n")
    assert bench.ask("GET", "/readyz") == (200, b"ready\n")
    bench.ready_reason = "the disk is full"
    assert bench.ask("GET", "/readyz") == (503, b"the disk is full\n")


@pytest.mark.parametrize(
    ("host", "is_enabled", "is_warned"),
    [("127.0.0.1", False, False), ("::1", False, False), ("192.0.2.7", False, True), ("192.0.2.7", True, False)],
)
def test_readyz_warns_of_a_broker_that_is_open_to_others(host: str, is_enabled: bool, is_warned: bool) -> None:
    bench = HttpBench(ManualCore(Options(security=SecurityOptions(enabled=is_enabled))))
    bench.core.addresses = Addresses("broker.example", {"kafka": ("127.0.0.1", 9092), "http": (host, 9644)})
    status, answer = bench.ask("GET", "/readyz")
    warning = (
        f"warning: no authentication on {host}: anybody who reaches the ports may do everything (security.enabled)\n"
    )
    assert (status, answer.decode()) == (200, "ready\n" + (warning if is_warned else ""))


@pytest.mark.parametrize(
    "garbage", [b"\x00\x00\x00\x0a" + bytes(10) + b"\r\n\r\n", b"GET /" + b"x" * 100_000 + b"\r\n\r\n"]
)
def test_garbage_is_refused_and_the_broker_goes_on(garbage: bytes) -> None:
    bench = Bench()
    assert bench.send(garbage)[0] == 400
    assert bench.failures == []
