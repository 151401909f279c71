"""`duolog demo`: sends a message from a RocketMQ producer to a Kafka consumer, and one back, and shows both.

    RocketMQ producer ── SEND ──> queue q, offset n ── Fetch ──> Kafka consumer
    RocketMQ consumer <── PULL ── queue q, offset n+1 <── Produce ── Kafka producer

The clients of the demo use Duolog's codecs on blocking sockets, without retries and groups, so that it needs no JVM.
The requests that they send are those of stock clients.
"""

import socket
import struct
import time
from collections.abc import Iterator
from contextlib import ExitStack
from datetime import timedelta
from importlib import import_module
from io import BytesIO
from typing import Any, Final, NamedTuple

import typer
from kio.serial import entity_reader, entity_writer
from rich.console import Console
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from duolog.bridge.cli.common import show_json
from duolog.bridge.cli.http_client import Api
from duolog.bridge.clock import SystemClock
from duolog.protocol.errors import ProtocolError
from duolog.protocol.framing import FrameReader
from duolog.protocol.kafka import batch_builder, record_batch, record_reader
from duolog.protocol.kafka.record_batch import Record
from duolog.protocol.names import kafka_name
from duolog.protocol.rocketmq import remoting
from duolog.protocol.rocketmq.bodies import TopicRouteData
from duolog.protocol.rocketmq.codes import RequestCode, ResponseCode
from duolog.protocol.rocketmq.headers import PullRequest, SendAnswer, SendRequest
from duolog.protocol.rocketmq.json import fastjson
from duolog.protocol.rocketmq.messages import message, properties
from duolog.protocol.rocketmq.messages.flags import PULL_SUBSCRIPTION
from duolog.protocol.rocketmq.messages.message import Message
from duolog.protocol.rocketmq.names import AUTO_CREATE_TOPIC

TOPIC: Final = "duolog-demo"
GROUP: Final = "duolog-demo"
TIMEOUT_S: Final = 10.0
ANSWER_BYTES_MAX: Final = 16 << 20
INFLATE_BYTES_MAX: Final = 16 << 20


class DemoFailed(typer.TyperException):
    """The broker did not answer as the demo expects; exit status 1."""

    exit_code = 1


class DemoStep(NamedTuple):
    """A request of the demo, and its answer."""

    title: str
    asked: dict[str, Any]
    answered: dict[str, Any]


class SentMessage(NamedTuple):
    """The queue and offset of a sent message."""

    queue: int
    offset: int
    message_id: str = ""


def run(api: Api, *, as_json: bool) -> int:
    """Show both directions with the broker that serves `api`. Raises DemoFailed."""
    listeners = api.get("/api/status")["listeners"]
    console = Console(quiet=as_json)
    steps: list[DemoStep] = []
    try:
        with ExitStack() as opened:
            rocketmq = opened.enter_context(RocketMQClient(listeners["namesrv"]))
            kafka = opened.enter_context(KafkaClient(listeners["kafka"]))
            for direction in (_from_rocketmq_to_kafka, _from_kafka_to_rocketmq):
                for step in direction(rocketmq, kafka):
                    _show(console, step)
                    steps.append(step)
    except (OSError, ProtocolError) as error:
        raise DemoFailed(f"demo: {error}") from error
    console.print("One log, one queue, the offsets of one sequence. Each reader got its own protocol's form.")
    if as_json:
        show_json({"steps": [step._asdict() for step in steps]})
    return 0


# -- The two directions


def _from_rocketmq_to_kafka(rocketmq: "RocketMQClient", kafka: "KafkaClient") -> Iterator[DemoStep]:
    body = f"sent by RocketMQ at {time.strftime('%H:%M:%S')}"
    fields = {"KEYS": "order-1", "TAGS": "created", "shop": "Berlin"}
    sent = rocketmq.send(TOPIC, body.encode(), fields)
    yield DemoStep(
        "1  RocketMQ producer: SEND_MESSAGE",
        {"topic": TOPIC, "body": body, "properties": fields},
        {"queue id": sent.queue, "queue offset": sent.offset, "message id": sent.message_id},
    )
    record = kafka.fetch(TOPIC, sent.queue, sent.offset)
    headers = {name: (value or b"").decode() for name, value in record.headers}
    yield DemoStep(
        "2  Kafka consumer: Fetch",
        {"topic": kafka_name(TOPIC), "partition": sent.queue, "offset": sent.offset},
        {
            "key": _text(record.key),
            "value": _text(record.value),
            "headers": headers,
            **_at(record.timestamp_ms),
        },
    )
    _expect(record.value == body.encode() and record.key == b"order-1", "the record is not the message that was sent")


def _from_kafka_to_rocketmq(rocketmq: "RocketMQClient", kafka: "KafkaClient") -> Iterator[DemoStep]:
    value = f"sent by Kafka at {time.strftime('%H:%M:%S')}"
    headers = [("TAGS", b"paid"), ("shop", b"Hamburg")]
    sent = kafka.produce(TOPIC, 0, Record(0, SystemClock().now_ms(), b"order-2", value.encode(), headers))
    shown = {name: (text or b"").decode() for name, text in headers}
    yield DemoStep(
        "3  Kafka producer: Produce",
        {"topic": kafka_name(TOPIC), "key": "order-2", "value": value, "headers": shown},
        {"partition": sent.queue, "base offset": sent.offset},
    )
    found = rocketmq.pull(TOPIC, sent.queue, sent.offset)
    fields = properties.parse(found.properties)
    yield DemoStep(
        "4  RocketMQ consumer: PULL_MESSAGE",
        {"topic": TOPIC, "queue id": sent.queue, "queue offset": sent.offset},
        {"body": bytes(found.body).decode(), "properties": fields, **_at(found.born_ms)},
    )
    is_same = bytes(found.body) == value.encode() and fields.get("KEYS") == "order-2" and fields.get("TAGS") == "paid"
    _expect(is_same, "the message is not the record that was produced")


def _expect(holds: bool, complaint: str) -> None:
    if not holds:
        raise DemoFailed(f"demo: {complaint}")


# -- Output


def _show(console: Console, step: DemoStep) -> None:
    table = Table.grid(padding=(0, 2))
    for arrow, fields in (("→", step.asked), ("←", step.answered)):
        for name, value in fields.items():
            table.add_row(arrow, Text(name, style="bold"), Text(_shown(value)))
    console.print(Panel(table, title=step.title, title_align="left"))


def _shown(value: Any) -> str:
    return ", ".join(f"{name}={each}" for name, each in value.items()) if isinstance(value, dict) else str(value)


def _text(value: bytes | None) -> str:
    return "null" if value is None else value.decode(errors="replace")


def _at(timestamp_ms: int) -> dict[str, str]:
    return {"timestamp": time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(timestamp_ms / 1000))}


# -- Clients


class _Socket:
    """A blocking connection, which sends a frame and waits for the next frame."""

    def __init__(self, address: str) -> None:
        host, _, port = address.rpartition(":")
        self._socket = socket.create_connection((host, int(port)), TIMEOUT_S)
        self._reader = FrameReader(ANSWER_BYTES_MAX)

    def ask(self, frame: bytes) -> memoryview:
        self._socket.sendall(frame)
        while True:
            received = self._socket.recv(1 << 16)
            if not received:
                raise DemoFailed("demo: the broker closed the connection")
            frames = self._reader.feed(received)
            if frames:
                return frames[0]

    def close(self) -> None:
        self._socket.close()


class RocketMQClient:
    """A producer and consumer that finds the broker through the name server, as stock clients do."""

    def __init__(self, namesrv: str) -> None:
        self._namesrv = _Socket(namesrv)
        self._broker: _Socket | None = None
        self._opaque = 0

    def __enter__(self) -> "RocketMQClient":
        return self

    def __exit__(self, *_: object) -> None:
        self._namesrv.close()
        if self._broker is not None:
            self._broker.close()

    def send(self, topic: str, body: bytes, fields: dict[str, str]) -> SentMessage:
        """Send one message to queue 0 of a topic, which is created if necessary."""
        request = SendRequest(
            producer_group=GROUP,
            topic=topic,
            default_topic=AUTO_CREATE_TOPIC,
            default_topic_queue_nums=4,
            queue_id=0,
            sys_flag=0,
            born_timestamp=SystemClock().now_ms(),
            flag=0,
            properties=properties.encode(fields),
        )
        answer = self._ask(self._to_broker(), RequestCode.SEND_MESSAGE, request.to_ext(), body)
        where = SendAnswer.parse(answer.ext)
        return SentMessage(where.queue_id, where.queue_offset, where.msg_id)

    def pull(self, topic: str, queue: int, offset: int) -> Message:
        """Pull one message. Raises DemoFailed."""
        request = PullRequest(
            consumer_group=GROUP,
            topic=topic,
            queue_id=queue,
            queue_offset=offset,
            max_msg_nums=1,
            sys_flag=PULL_SUBSCRIPTION,
            commit_offset=0,
            suspend_timeout_millis=0,
            sub_version=0,
            subscription="*",
            expression_type="TAG",
        )
        answer = self._ask(self._to_broker(), RequestCode.PULL_MESSAGE, request.to_ext())
        assert isinstance(answer.body, memoryview)
        return message.decode(answer.body)

    def _to_broker(self) -> _Socket:
        """Connect to the broker that the name server returns."""
        if self._broker is None:
            for name in (TOPIC, AUTO_CREATE_TOPIC):
                answer = self._exchange(self._namesrv, RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": name})
                if answer.code == ResponseCode.SUCCESS:
                    break
            else:
                raise DemoFailed(f"demo: topics.auto_create is off and there is no topic: duolog topic create {TOPIC}")
            assert isinstance(answer.body, memoryview)
            route = fastjson.read(answer.body, TopicRouteData)
            self._broker = _Socket(route.broker_datas[0].broker_addrs[0])
        return self._broker

    def _ask(self, to: _Socket, code: int, ext: dict[str, str], body: bytes = b"") -> remoting.RemotingCommand:
        answer = self._exchange(to, code, ext, body)
        if answer.code != ResponseCode.SUCCESS:
            raise DemoFailed(f"demo: RocketMQ request {code} was answered with {answer.code}: {answer.remark}")
        return answer

    def _exchange(self, to: _Socket, code: int, ext: dict[str, str], body: bytes = b"") -> remoting.RemotingCommand:
        self._opaque += 1
        return remoting.decode(to.ask(b"".join(remoting.encode(remoting.request(code, self._opaque, ext, body)))))


class KafkaClient:
    """A producer and consumer that uses one fixed version of each request."""

    def __init__(self, address: str) -> None:
        self._socket = _Socket(address)
        self._correlation_id = 0

    def __enter__(self) -> "KafkaClient":
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()

    def produce(self, topic: str, partition: int, record: Record) -> SentMessage:
        """Produce one record. Raises DemoFailed."""
        schema: Any = import_module("kio.schema.produce.v9.request")
        batch = bytes(batch_builder.build([record], base_offset=0, leader_epoch=-1))
        data = schema.PartitionProduceData(index=partition, records=batch)
        topics = (schema.TopicProduceData(name=kafka_name(topic), partition_data=(data,)),)
        request = schema.ProduceRequest(acks=-1, timeout=timedelta(seconds=TIMEOUT_S), topic_data=topics)
        produced = self._ask(request, "produce.v9").responses[0].partition_responses[0]
        if produced.error_code:
            raise DemoFailed(f"demo: Kafka Produce was answered with {produced.error_code.name}")
        return SentMessage(partition, produced.base_offset)

    def fetch(self, topic: str, partition: int, offset: int) -> Record:
        """Fetch the record at an offset. Raises DemoFailed."""
        schema: Any = import_module("kio.schema.fetch.v12.request")
        asked = schema.FetchPartition(partition=partition, fetch_offset=offset, partition_max_bytes=1 << 20)
        request = schema.FetchRequest(
            max_wait=timedelta(seconds=1),
            min_bytes=1,
            max_bytes=1 << 20,
            topics=(schema.FetchTopic(topic=kafka_name(topic), partitions=(asked,)),),
            forgotten_topics_data=(),
        )
        fetched = self._ask(request, "fetch.v12").responses[0].partitions[0]
        if fetched.error_code:
            raise DemoFailed(f"demo: Kafka Fetch was answered with {fetched.error_code.name}")
        for batch in record_batch.split(fetched.records or b""):
            for record in record_reader.records(batch, INFLATE_BYTES_MAX):
                if record.offset == offset:
                    return record
        raise DemoFailed(f"demo: Kafka Fetch did not return offset {offset} of {topic}/{partition}")

    def _ask(self, request: Any, name: str) -> Any:
        """Send a request of a flexible version, and return the body of the answer."""
        self._correlation_id += 1
        header = request.__header_schema__(
            request_api_key=request.__api_key__,
            request_api_version=request.__version__,
            correlation_id=self._correlation_id,
            client_id="duolog-demo",
        )
        frame = BytesIO()
        entity_writer(type(header))(frame, header)
        entity_writer(type(request))(frame, request)
        payload = self._socket.ask(struct.pack(">i", frame.tell()) + frame.getvalue())
        response: Any = import_module(f"kio.schema.{name}.response")
        body_type = getattr(response, type(request).__name__.replace("Request", "Response"))
        _, head_bytes = entity_reader(body_type.__header_schema__)(payload, 0)
        body, _ = entity_reader(body_type)(payload, head_bytes)
        return body
