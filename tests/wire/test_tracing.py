"""A message's way across protocols as spans: a collector in this process decodes what the broker exports by OTLP.

Producers send a `traceparent` as OpenTelemetry's instrumentations do: a header of a Kafka record, a property of a
RocketMQ message. Each message is read by a client of the other protocol, which must get the same `traceparent`.
"""

from __future__ import annotations

import itertools
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from tests.kit.broker import Broker
from tests.kit.eventually import eventually
from tests.wire.clients.jvm import Agents
from tests.wire.clients.kafka_clients import Confluent
from tests.wire.clients.message import Message, Seen
from tests.wire.clients.rocketmq_clients import RocketmqJava, RocketmqReader
from tests.wire.clients.topics import create_topic

pytestmark = pytest.mark.usefixtures("duolog_only")
WITHIN_S = 60
PARENT = 0x00F067AA0BA902B7
_numbers = itertools.count(1)


@dataclass
class Collector:
    """An OTLP receiver; `refuses` answers 400 to each request."""

    refuses: bool = False
    spans: list[tuple[Any, str]] = field(default_factory=list)  # Each with the service's name.
    tokens: set[str | None] = field(default_factory=set)
    port: int = 0

    def of(self, trace: int) -> dict[str, Any]:
        """Return the spans of a trace by the operation and the system; a `fetch` of each protocol is apart."""
        found = {}
        for span, _ in list(self.spans):
            if span.trace_id == trace.to_bytes(16, "big"):
                attributes = {each.key: each.value.string_value or each.value.int_value for each in span.attributes}
                found[f"{attributes['messaging.operation.name']} {attributes['messaging.system']}"] = (span, attributes)
        return found

    def wait(self, trace: int, *names: str) -> dict[str, Any]:
        return eventually(f"spans {names}", lambda: self.of(trace), lambda found: found.keys() >= {*names}, WITHIN_S)


@pytest.fixture(scope="module")
def collector() -> Iterator[Collector]:
    collected = Collector()

    class Receiver(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            collected.tokens.add(self.headers["Authorization"])
            self.send_response(400 if collected.refuses else 200)
            self.end_headers()
            if not collected.refuses:
                for resource in ExportTraceServiceRequest.FromString(body).resource_spans:
                    named = {each.key: each.value.string_value for each in resource.resource.attributes}
                    name = named["service.name"]
                    collected.spans += [(span, name) for scope in resource.scope_spans for span in scope.spans]

        def log_message(self, format: str, *arguments: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Receiver)
    collected.port = server.server_address[1]
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield collected
    server.shutdown()
    server.server_close()


@pytest.fixture(scope="module")
def broker(duolog_only: None, collector: Collector, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    settings = {
        "tracing.endpoint": f"http://127.0.0.1:{collector.port}/v1/traces",
        "tracing.headers": "Authorization=Bearer top-secret",
        "tracing.service_name": "shop-broker",
    }
    with Broker(tmp_path_factory.mktemp("tracing") / "data", settings) as running:
        yield running


def new_trace() -> int:
    return time.time_ns() << 32 | next(_numbers)


def traceparent(trace: int, flags: str = "01") -> str:
    return f"00-{trace:032x}-{PARENT:016x}-{flags}"


def produce(broker: Broker, topic: str, *traces: str, codec: str = "none", **headers: str) -> None:
    producer = Producer({"bootstrap.servers": broker.kafka, "compression.type": codec, "linger.ms": 50})
    for trace in traces:
        producer.produce(topic, b"body", headers={"traceparent": trace, **headers}, partition=0)
    assert producer.flush(WITHIN_S) == 0


def header(seen: Seen) -> str:
    return (dict(seen.headers)["traceparent"] or b"").decode()


def check(spans: dict[str, Any], topic: str) -> None:
    """Check what all spans of a message have in common, and that their times are in order."""
    for name, (span, attributes) in spans.items():
        operation = name.partition(" ")[0]
        assert (span.name, attributes["messaging.destination.name"]) == (f"{operation} {topic}", topic)
        assert span.parent_span_id == PARENT.to_bytes(8, "big")
        assert 0 < span.start_time_unix_nano <= span.end_time_unix_nano
    assert len({span.span_id for span, _ in spans.values()}) == len(spans)


@pytest.mark.parametrize("codec", ["none", "zstd"])
def test_kafka_to_rocketmq(broker: Broker, collector: Collector, agents: Agents, codec: str) -> None:
    trace, topic = new_trace(), f"to-rocketmq-{codec}"
    create_topic(broker.kafka, topic, 1)
    produce(broker, topic, traceparent(trace), codec=codec)
    (seen,) = RocketmqReader(broker.namesrv, agents.rocketmq("5.5"), "5.5", "json", "pull").read({topic: 1}, WITHIN_S)
    assert header(seen) == traceparent(trace)
    spans = collector.wait(trace, "publish kafka", "fetch rocketmq")
    check(spans, topic)
    _, attributes = spans["fetch rocketmq"]
    assert attributes["messaging.consumer.group.name"]
    assert (attributes["messaging.destination.partition.id"], attributes["messaging.message.offset"]) == ("0", 0)
    assert {name for _, name in collector.spans} == {"shop-broker"}
    assert collector.tokens == {"Bearer top-secret"}


def test_rocketmq_to_kafka(broker: Broker, collector: Collector, agents: Agents) -> None:
    trace, topic = new_trace(), "to-kafka"
    create_topic(broker.kafka, topic, 1)
    sent = Message(b"body", headers=(("traceparent", traceparent(trace).encode()),))
    RocketmqJava(broker.namesrv, agents.rocketmq("5.5"), "5.5", "json").write(topic, [sent], way="sync", codec="none")
    (seen,) = Confluent(broker.kafka).read({topic: 1}, WITHIN_S)
    assert header(seen) == traceparent(trace)
    spans = collector.wait(trace, "publish rocketmq", "fetch kafka")
    check(spans, topic)


def test_a_delayed_message_has_spans_of_its_delay_and_delivery_also_after_a_restart(
    broker: Broker, collector: Collector, agents: Agents
) -> None:
    kafka, rocketmq, topic = new_trace(), new_trace(), "delayed"
    create_topic(broker.kafka, topic, 1)
    produce(broker, topic, traceparent(kafka), TIMER_DELAY_MS="3000")
    headers = (("traceparent", traceparent(rocketmq).encode()),)
    message = Message(b"body", headers=headers).as_rocketmq_json() | {"setDelayTimeMs": 3000}
    agents.rocketmq("5.5").call("write_delayed", namesrv=broker.namesrv, topic=topic, messages=[message])
    collector.wait(kafka, "publish kafka")
    collector.wait(rocketmq, "publish rocketmq")
    broker.stop()
    broker.start()
    for seen in Confluent(broker.kafka).read({topic: 2}, WITHIN_S):
        assert header(seen) in (traceparent(kafka), traceparent(rocketmq))
    for trace, writer in ((kafka, "kafka"), (rocketmq, "rocketmq")):
        operations = ("publish", "delay", "deliver")
        spans = collector.wait(trace, *(f"{each} {writer}" for each in operations), "fetch kafka")
        check({name: span for name, span in spans.items() if span[1]["messaging.destination.name"] == topic}, topic)
        delay, deliver = (spans[f"{each} {writer}"][0] for each in ("delay", "deliver"))
        assert 2_000_000_000 < delay.end_time_unix_nano - delay.start_time_unix_nano < 60_000_000_000
        assert deliver.start_time_unix_nano == delay.end_time_unix_nano


def test_messages_that_are_not_sampled_or_have_no_valid_context_have_no_spans(
    broker: Broker, collector: Collector
) -> None:
    topic = "unsampled"
    create_topic(broker.kafka, topic, 1)
    unsampled, last = new_trace(), new_trace()
    produce(broker, topic, traceparent(unsampled, "00"), "00-0-0-01", "x" * 1000, traceparent(last))
    Confluent(broker.kafka).read({topic: 4}, WITHIN_S)
    collector.wait(last, "publish kafka", "fetch kafka")
    assert not collector.of(unsampled)


def test_a_collector_that_fails_does_not_hold_the_broker(broker: Broker, collector: Collector) -> None:
    collector.refuses = True
    try:
        produce(broker, "refused", traceparent(new_trace()))
        eventually("failed spans", lambda: broker.log.read_text(), lambda text: "spans not exported" in text, WITHIN_S)
        assert (
            f"spans not exported endpoint=http://127.0.0.1:{collector.port}/v1/traces count=" in broker.log.read_text()
        )
        assert "top-secret" not in broker.log.read_text()
    finally:
        collector.refuses = False
    produce(broker, "refused", traceparent(again := new_trace()))
    collector.wait(again, "publish kafka")


def test_without_the_extra_the_broker_says_what_to_install(tmp_path: Path) -> None:
    """The child does not find the packages. Without the setting the broker imports none of them."""
    hidden = "import sys; sys.modules['opentelemetry.sdk'] = None; "
    serve = "from duolog.bridge.cli.main import main; sys.argv = ['duolog', 'serve', *sys.argv[1:]]; main()"
    options = ["--data=data", "--set=tracing.endpoint=http://127.0.0.1:1/v1/traces"]
    options += [f"--set={name}=0" for name in ("kafka.port", "rocketmq.port", "rocketmq.namesrv_port", "http.port")]
    found = subprocess.run(
        [sys.executable, "-c", hidden + serve, *options],
        cwd=tmp_path, capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert found.returncode == 2, found.stderr
    assert "tracing.endpoint: the package opentelemetry.sdk" in found.stderr
    assert "recovered" not in found.stderr
    assert "pip install 'duolog[tracing]'" in found.stderr
    loaded = "import sys, duolog.bridge.broker; print('opentelemetry' in sys.modules)"
    assert (
        subprocess.run([sys.executable, "-c", loaded], capture_output=True, text=True, timeout=60).stdout == "False\n"
    )
