"""The hot paths in process: a real broker on a real directory, with a transport that drops what is written.

    data_received(request) ... ──> handler ──> store ──> the loop's turn ends: one write of the log ──> transport.write

So a request costs what it costs the broker, network aside: framing, header, handler, store, `pwritev` of the log,
encoding of the answer. How many requests share a turn decides how far the turn's own cost is shared; both are shown,
one request a turn and sixteen. Flush is async, for an fsync is the disk's time. Each figure is the CPU time of the
loop's thread in the best of several samples, for what else runs on the machine only ever adds. The samples of an
authorised request and of the same one without security alternate; the budget of the first is 3 % above the second.
"""

from __future__ import annotations

import asyncio
import shutil
import struct
import tempfile
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

import uvloop
from crc32c import crc32c

from benchmarks.contenders import PASSWORD, USER, add_user
from duolog.bridge.broker import Broker
from duolog.bridge.clock import SystemClock
from duolog.bridge.config import load
from duolog.bridge.kafka.requests.connection import KafkaConnection
from duolog.bridge.net.connection import Connection
from duolog.bridge.net.tls.peer import TlsPeer
from duolog.bridge.rocketmq.requests.connection import RocketMQConnection
from duolog.delay.wheel import Wheel
from duolog.protocol.convert.to_kafka import kafka_batch as convert_to_kafka
from duolog.protocol.convert.to_rocketmq import Place, rocketmq_records
from duolog.protocol.kafka import batch_builder, record_reader
from duolog.protocol.kafka.primitive_types import uvarint
from duolog.protocol.kafka.record_batch import Record
from duolog.protocol.kafka.record_reader import FIRST
from duolog.protocol.rocketmq import remoting
from duolog.protocol.rocketmq.acl_signature import ACCESS_KEY, SIGNATURE
from duolog.protocol.rocketmq.messages import batch as rocketmq_batch
from duolog.protocol.rocketmq.messages.batch import Part
from duolog.protocol.rocketmq.messages.message import NO_HOST
from duolog.store.entry import FIRST_FRAME_FORM, Buffer, EntrySlot
from duolog.store.files import RealFiles
from duolog.store.index.queue import queue_key
from duolog.store.options import StoreOptions
from duolog.store.store import Store
from duolog.store.unit import Frame
from tests.kit.signing import signature_of

KIB = 1 << 10
SAMPLES, SAMPLE_S = 8, 0.15
QUICK_SAMPLES, QUICK_SAMPLE_S = 4, 0.05
SHARED = 16  # The requests of one turn of the loop, in rows whose turns are shared.
BATCH_RECORDS = 16
PULL_MESSAGES = 32
FETCH_BATCHES = 64
AUTHORISED_MOST = 1.03  # What an authorised request may cost, of the cost of the same one without security.
IDEMPOTENT_BATCHES = 1600  # Made before the measurement, because each needs a checksum.
NO_PRODUCER = (-1, -1, -1)
CERTIFICATE = TlsPeer("TLSv1.3", "", USER, f"CN={USER}")
TRACEPARENT = b"00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"


class Measured(NamedTuple):
    path: str
    unit: str
    us: float
    budget_us: float | None


def run(*, quick: bool) -> list[Measured]:
    """Measure all paths, one after the other."""
    pace = Pace(QUICK_SAMPLES, QUICK_SAMPLE_S) if quick else Pace(SAMPLES, SAMPLE_S)
    measured: list[Measured] = []
    for measure in (_requests, _authorised, _traced, _conversions, _wheel, _store):
        measured += measure(pace)
    return measured


class Pace(NamedTuple):
    samples: int
    sample_s: float

    def us(self, task: Callable[[int], object]) -> float:
        """Return the time of one repetition in the best sample; `task` gets the number of repetitions."""
        return self.us_of_each(task)[0]

    def us_of_each(self, *tasks: Callable[[int], object]) -> list[float]:
        """Return the time of one repetition of each task in its best sample; the samples alternate."""
        count = 1
        while (elapsed := _timed(tasks[0], count)) < self.sample_s / 10:
            count = max(count + 1, min(count * 10, int(count * self.sample_s / 5 / max(elapsed, 1e-7))))
        count = max(1, int(count * self.sample_s / elapsed))
        samples = [[_timed(task, count) / count * 1e6 for task in tasks] for _ in range(self.samples)]
        return [min(times) for times in zip(*samples, strict=True)]


def _timed(task: Callable[[int], object], count: int) -> float:
    """Return the CPU time of this thread, without other processes and the background threads of the store."""
    start = time.thread_time()
    task(count)
    return time.thread_time() - start


# -- Requests, through a broker


class Nowhere(asyncio.Transport):
    """A socket that accepts all bytes at once."""

    def __init__(self, tls: TlsPeer | None = None) -> None:
        super().__init__({"peername": ("127.0.0.1", 1), "sockname": ("127.0.0.1", 2), "tls_peer": tls})
        self.taken = 0

    def write(self, data: Buffer) -> None:
        self.taken += len(data)

    def writelines(self, pieces: Any) -> None:
        self.taken += sum(map(len, pieces))

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None: ...

    def get_write_buffer_size(self) -> int:
        return 0

    def pause_reading(self) -> None: ...

    def resume_reading(self) -> None: ...

    def close(self) -> None: ...

    abort = close


class Stage:
    """A broker in this process, and its connections."""

    def __init__(self, loop: asyncio.AbstractEventLoop, broker: Broker) -> None:
        self._loop, self.broker = loop, broker
        self._transports: dict[Connection, Nowhere] = {}

    def connect(self, kind: Callable[[Broker], Connection], tls: TlsPeer | None = None) -> Connection:
        connection = kind(self.broker)
        self._transports[connection] = Nowhere(tls)
        connection.connection_made(self._transports[connection])
        return connection

    def ask(self, connection: Connection, request: bytes, shared: int = 1) -> Callable[[int], None]:
        """Return a task that sends the same request, a number of times in each turn of the loop."""
        return self.ask_all(connection, _endless(request), shared)

    def ask_all(self, connection: Connection, requests: Iterator[bytes], shared: int = 1) -> Callable[[int], None]:
        async def send(count: int) -> None:
            received = connection.data_received
            for _ in range(max(1, count // shared)):
                for _ in range(shared):
                    received(next(requests))
                await asyncio.sleep(0)

        return lambda count: self._loop.run_until_complete(send(max(count, shared)))

    def end_offset(self, topic: str) -> int:
        found = self.broker.topics.by_kafka_name(topic)
        assert found is not None
        return found.queues[0].visible_end

    def expect(self, connection: Connection, request: bytes, least_bytes: int) -> int:
        """Send one request, and return the size of its answer. A small answer is an error, which ends the run."""
        transport = self._transports[connection]
        before = transport.taken

        async def wait() -> None:
            connection.data_received(request)
            for _ in range(1000):
                await asyncio.sleep(0.001)
                if transport.taken > before:
                    return

        self._loop.run_until_complete(wait())
        size = transport.taken - before
        assert size >= least_bytes, f"an answer of {size} bytes instead of {least_bytes} and more"
        return size


def _endless(request: bytes) -> Iterator[bytes]:
    while True:
        yield request


@contextmanager
def _stage(prepare: Callable[[Path], None] = lambda folder: None, **settings: str) -> Iterator[Stage]:
    folder = tempfile.mkdtemp(prefix="duolog-paths-")
    prepare(Path(folder))
    loop = uvloop.new_event_loop()
    ports = dict.fromkeys(("kafka.port", "rocketmq.port", "rocketmq.namesrv_port", "http.port"), 0)
    own = {name.replace("__", "."): value for name, value in settings.items()}
    options = load(None, {"store.directory": folder, "store.flush": "async", "log.level": "error", **ports, **own})
    broker = Broker(options, SystemClock(), loop)
    try:
        loop.run_until_complete(broker.start())
        yield Stage(loop, broker)
        loop.run_until_complete(broker.stop())
    finally:
        loop.close()
        shutil.rmtree(folder, ignore_errors=True)


def _requests(pace: Pace) -> Iterator[Measured]:
    with _stage() as stage:
        yield from _kafka_requests(stage, pace)
        yield from _rocketmq_requests(stage, pace)


class Pair(NamedTuple):
    """A request that two brokers get: one without security, and one whose user may send it."""

    title: str
    unit: str
    without: Callable[[int], None]
    authorised: Callable[[int], None]
    is_signed: bool = False


@contextmanager
def authorised_pairs() -> Iterator[Iterator[Pair]]:
    """Start a broker with security and one without, and give the requests that are compared, one after the other.

    A certificate is the login of both connections, so the difference is the decision. Clients of RocketMQ sign each
    request as well, which is another pair: its HMAC covers all fields and the body.
    """
    with _stage() as free, _stage(add_user, security__enabled="true") as secured:
        yield chain(_kafka_pairs(free, secured), _rocketmq_pairs(free, secured))


def _kafka_pairs(*stages: Stage) -> Iterator[Pair]:
    connections = [
        each.connect(lambda broker: KafkaConnection(broker.server, broker.kafka_context), CERTIFICATE)
        for each in stages
    ]
    batch, large = kafka_batch(1, KIB), kafka_batch(BATCH_RECORDS, KIB)
    for stage, connection in zip(stages, connections, strict=True):
        stage.expect(connection, metadata_request("singles"), 1)
        stage.expect(connection, produce_request("singles", large), 1)  # What is fetched.
    for title, request in (
        ("Kafka Produce of 1 record of 1 KiB", produce_request("singles", batch)),
        (f"Kafka Produce of {BATCH_RECORDS} records of 1 KiB", produce_request("singles", large)),
        ("Kafka Fetch of 16 KiB", fetch_request("singles", 0, len(large))),
    ):
        for stage, connection in zip(stages, connections, strict=True):
            stage.expect(connection, request, 1)
        without, authorised = (
            stage.ask(each, request, SHARED) for stage, each in zip(stages, connections, strict=True)
        )
        yield Pair(title, "request", without, authorised)


def _rocketmq_pairs(*stages: Stage) -> Iterator[Pair]:
    connections = [
        each.connect(lambda broker: RocketMQConnection(broker.rocketmq_connections), CERTIFICATE) for each in stages
    ]
    request, signed = send_request("sends", bytes(KIB)), signed_send_request("sends", bytes(KIB))
    for stage, connection in zip(stages, connections, strict=True):
        stage.expect(connection, request, 1)
    without, authorised = (stage.ask(each, request, SHARED) for stage, each in zip(stages, connections, strict=True))
    yield Pair("RocketMQ SEND of 1 KiB, login by certificate", "message", without, authorised)
    stages[1].expect(connections[1], signed, 1)
    authorised = stages[1].ask(connections[1], signed, SHARED)
    yield Pair("RocketMQ SEND of 1 KiB, signed with an access key", "message", without, authorised, is_signed=True)


def _authorised(pace: Pace) -> Iterator[Measured]:
    """Requests of a user who may send them, each after the same request to a broker without security."""
    with authorised_pairs() as pairs:
        for pair in pairs:
            without_us, us = pace.us_of_each(pair.without, pair.authorised)
            budget_us = None if pair.is_signed else AUTHORISED_MOST * without_us
            yield Measured(f"{pair.title}, {SHARED} a turn, authorised", pair.unit, us, budget_us)


def _traced(pace: Pace) -> Iterator[Measured]:
    """Requests to a broker that traces: of messages without a trace context, and of messages that all have one.

    The same without tracing is in the rows before. The collector does not exist; the thread that exports is not
    measured, because it is not the loop's thread.
    """
    with _stage(tracing__endpoint="http://127.0.0.1:9/v1/traces", tracing__timeout_ms="100") as stage:
        kafka = stage.connect(lambda broker: KafkaConnection(broker.server, broker.kafka_context))
        rocketmq = stage.connect(lambda broker: RocketMQConnection(broker.rocketmq_connections))
        for what, headers in (("none", ()), ("each", (("traceparent", TRACEPARENT),))):
            stage.expect(kafka, metadata_request(f"batches-{what}"), 1)
            batch = kafka_batch(BATCH_RECORDS, KIB, headers=headers)
            us = pace.us(stage.ask(kafka, produce_request(f"batches-{what}", batch), SHARED))
            shown = f"batch of {BATCH_RECORDS} x 1 KiB, {SHARED} a turn, tracing, {what} traced"
            yield Measured(f"Kafka Produce, {shown}", "request", us, None)
            end = stage.end_offset(f"batches-{what}")
            request = fetch_request(f"batches-{what}", end - BATCH_RECORDS, len(batch))
            stage.expect(kafka, request, len(batch))
            us = pace.us(stage.ask(kafka, request))
            yield Measured(f"Kafka Fetch, 1 x 16 KiB, tail, tracing, {what} traced", "response", us, None)
            properties = "".join(f"{name}\x01{value.decode()}\x02" for name, value in headers)
            request = send_request(f"sends-{what}", bytes(KIB), properties)
            stage.expect(rocketmq, request, 1)
            us = pace.us(stage.ask(rocketmq, request, SHARED))
            yield Measured(f"RocketMQ SEND, 1 KiB, {SHARED} a turn, tracing, {what} traced", "message", us, None)


def _kafka_requests(stage: Stage, pace: Pace) -> Iterator[Measured]:
    connection = stage.connect(lambda broker: KafkaConnection(broker.server, broker.kafka_context))
    for topic in ("batches", "singles", "idempotent"):
        stage.expect(connection, metadata_request(topic), 1)  # Creates the topic.
    large, small = kafka_batch(BATCH_RECORDS, KIB), kafka_batch(1, KIB)
    for topic, batch, what in (
        ("batches", large, f"batch of {BATCH_RECORDS} x 1 KiB"),
        ("singles", small, "1 x 1 KiB"),
    ):
        request = produce_request(topic, batch)
        budget_us = 30 + pace.us(_repeat(partial(crc32c, batch)))
        for shared in (1, SHARED):
            us = pace.us(stage.ask(connection, request, shared))
            yield Measured(f"Kafka Produce, {what}, {shared} a turn", "request", us, budget_us)
        if batch is large:
            us = _idempotent_us(stage, connection)
            yield Measured(f"Kafka Produce, the same, idempotent, {SHARED} a turn", "request", us, budget_us)
    for batches in (1, FETCH_BATCHES):
        end = stage.end_offset("batches")
        for offset, where in ((0, "page cache"), (end - batches * BATCH_RECORDS, "tail")):
            request = fetch_request("batches", offset, batches * len(large))
            stage.expect(connection, request, batches * len(large))
            us = pace.us(stage.ask(connection, request))
            yield Measured(f"Kafka Fetch, {batches} x 16 KiB, {where}", "response", us, 25)


def _idempotent_us(stage: Stage, connection: Connection) -> float:
    """Each batch has the next sequence number, so all requests differ, and there is only one sample."""
    producer_id, _ = stage.broker.producers.allocate(stage.broker.clock.now_ms())
    requests = [
        produce_request("idempotent", kafka_batch(BATCH_RECORDS, KIB, (producer_id, 0, number * BATCH_RECORDS)))
        for number in range(IDEMPOTENT_BATCHES)
    ]
    task = stage.ask_all(connection, iter(requests), SHARED)
    task(SHARED)
    count = len(requests) - SHARED
    return _timed(task, count - count % SHARED) / count * 1e6


def _rocketmq_requests(stage: Stage, pace: Pace) -> Iterator[Measured]:
    connection = stage.connect(lambda broker: RocketMQConnection(broker.rocketmq_connections))
    for size, words in ((128, "128 B"), (KIB, "1 KiB")):
        request = send_request("sends", bytes(size))
        stage.expect(connection, request, 1)
        for shared in (1, SHARED):
            us = pace.us(stage.ask(connection, request, shared))
            yield Measured(f"RocketMQ SEND, {words}, {shared} a turn", "message", us, 15)
    request = send_batch_request("batches", 128)
    stage.expect(connection, request, 1)
    us = pace.us(stage.ask(connection, request)) / BATCH_RECORDS
    yield Measured(f"RocketMQ batch of {BATCH_RECORDS}, 128 B, 1 a turn", "message", us, 15)
    for offset, where in ((0, "page cache"), (stage.end_offset("sends") - PULL_MESSAGES, "tail")):
        request = pull_request("sends", offset, PULL_MESSAGES)
        stage.expect(connection, request, PULL_MESSAGES * 128)
        us = pace.us(stage.ask(connection, request))
        yield Measured(f"RocketMQ PULL of {PULL_MESSAGES}, 128 B to 1 KiB, {where}", "response", us, 20)
    yield from _filtered(stage, connection, pace)

    # Reads by the other protocol: batches of 16 KiB by Kafka, written above; messages of RocketMQ.
    request = pull_request("batches", 0, PULL_MESSAGES)
    stage.expect(connection, request, PULL_MESSAGES * KIB)
    us = pace.us(stage.ask(connection, request))
    yield Measured(f"RocketMQ PULL of {PULL_MESSAGES} Kafka records, 1 KiB", "record", us / PULL_MESSAGES, 6)
    kafka = stage.connect(lambda broker: KafkaConnection(broker.server, broker.kafka_context))
    request = fetch_request("sends", 0, 256 * KIB)
    size = stage.expect(kafka, request, 100 * KIB)
    us = pace.us(stage.ask(kafka, request))
    record_bytes = 128 + len(_properties(0)) + 12  # About the size of the Kafka record.
    yield Measured("Kafka Fetch of RocketMQ messages, 128 B", "record", us * record_bytes / size, 6)


def _filtered(stage: Stage, connection: Connection, pace: Pace) -> Iterator[Measured]:
    """Pulls with a filter that selects one message of eight; the cost of each message that is filtered."""
    parts = [Part(0, bytes(128), b"TAGS\x01t%d\x02a\x01%d\x02" % (n % 8, n % 8) + _properties(n)) for n in range(32)]
    request = batch_request("labelled", parts)
    for _ in range(32):
        stage.expect(connection, request, 1)
    for kind, expression, budget_us in (("TAG", "t3", 1.5), ("SQL92", "a > 2 AND a < 4", 3)):
        request = pull_request("labelled", 0, PULL_MESSAGES, kind, expression)
        stage.expect(connection, request, PULL_MESSAGES * 128)
        us = pace.us(stage.ask(connection, request)) / (8 * PULL_MESSAGES)
        yield Measured(f"RocketMQ PULL of {PULL_MESSAGES}, an eighth by {kind}", "message", us, budget_us)


# -- Requests, as clients encode them


def kafka_batch(
    count: int, size: int, producer: tuple[int, int, int] = NO_PRODUCER, headers: Sequence[tuple[str, bytes]] = ()
) -> bytes:
    now_ms = time.time_ns() // 1_000_000
    records = [Record(offset, now_ms, None, bytes(size), headers) for offset in range(count)]
    return bytes(batch_builder.build(records, 0, -1, producer=producer))


def produce_request(topic: str, batch: bytes) -> bytes:
    """Version 11, one partition, acks=all."""
    name, no_tags = topic.encode(), b"\0"
    head = b"\0" + struct.pack(">hi", -1, 30_000)  # no transactional id
    to_topic = uvarint(2) + uvarint(len(name) + 1) + name
    partition = uvarint(2) + struct.pack(">i", 0) + uvarint(len(batch) + 1) + batch
    return _kafka_frame(0, 11, head + to_topic + partition + 3 * no_tags, flexible=True)


def metadata_request(topic: str) -> bytes:
    name = topic.encode()
    return _kafka_frame(3, 4, struct.pack(">ih", 1, len(name)) + name + b"\1", flexible=False)


def fetch_request(topic: str, offset: int, max_bytes: int) -> bytes:
    """Version 11, one partition."""
    name = topic.encode()
    head = struct.pack(">iiiibii", -1, 0, 1, max_bytes, 0, 0, -1)
    asked = struct.pack(">ih", 1, len(name)) + name + struct.pack(">iiiqqi", 1, 0, -1, offset, -1, max_bytes)
    return _kafka_frame(1, 11, head + asked + struct.pack(">ih", 0, 0), flexible=False)


def _kafka_frame(key: int, version: int, body: bytes, *, flexible: bool) -> bytes:
    client = b"bench"
    header = struct.pack(">hhih", key, version, 7, len(client)) + client + (b"\0" if flexible else b"")
    return struct.pack(">i", len(header) + len(body)) + header + body


def send_request(topic: str, body: bytes, properties: str = "") -> bytes:
    """SEND_MESSAGE_V2 with a JSON header, as Java's client writes it; `properties` come before the client's own."""
    return _remoting(310, _send_fields(topic, properties + _properties(0).decode(), "false"), body)


def signed_send_request(topic: str, body: bytes) -> bytes:
    """Return the same as `send_request`, signed by the user."""
    fields = _send_fields(topic, _properties(0).decode(), "false") | {ACCESS_KEY: USER}
    return _remoting(310, fields | {SIGNATURE: signature_of(fields, body, PASSWORD.encode()).decode()}, body)


def send_batch_request(topic: str, size: int) -> bytes:
    parts = [Part(0, bytes(size), _properties(number)) for number in range(BATCH_RECORDS)]
    return batch_request(topic, parts)


def batch_request(topic: str, parts: list[Part]) -> bytes:
    return _remoting(320, _send_fields(topic, "", "true"), rocketmq_batch.encode(parts))


def _send_fields(topic: str, properties: str, batch: str) -> dict[str, str]:
    return {
        "a": "bench", "b": topic, "c": "TBW102", "d": "4", "e": "0", "f": "0", "g": str(time.time_ns() // 1_000_000),
        "h": "0", "i": properties, "j": "0", "k": "false", "l": "0", "m": batch, "n": "duolog",
    }  # fmt: skip


def _properties(number: int) -> bytes:
    return f"UNIQ_KEY\x017F000001{number:024X}\x02WAIT\x01true\x02".encode()


def pull_request(topic: str, offset: int, count: int, kind: str = "TAG", expression: str = "*") -> bytes:
    """PULL_MESSAGE with its subscription, which is not held at the queue's end."""
    fields = {
        "consumerGroup": "bench", "topic": topic, "queueId": "0", "queueOffset": str(offset), "maxMsgNums": str(count),
        "sysFlag": "4", "commitOffset": "0", "suspendTimeoutMillis": "15000", "subscription": expression,
        "subVersion": "0", "expressionType": kind, "maxMsgBytes": str(256 * KIB),
    }  # fmt: skip
    return _remoting(11, fields, b"")


def _remoting(code: int, fields: dict[str, str], body: bytes) -> bytes:
    return b"".join(remoting.encode(remoting.request(code, 7, fields, body)))


# -- Conversion


def _conversions(pace: Pace) -> Iterator[Measured]:
    place = Place(b"topic", 0, 0, 0, 1 << 20, 1_700_000_000_000, NO_HOST)
    for size, words in ((128, "128 B"), (KIB, "1 KiB")):
        headers = (("TAGS", b"red"), ("trace", b"0af7651916cd43dd8448eb211c80319c"))
        records = [
            Record(offset, 1_700_000_000_000, b"key-17", bytes(size), headers) for offset in range(PULL_MESSAGES)
        ]
        opened = record_reader.open_batch(bytes(batch_builder.build(records, 0, -1)), 1 << 20)

        def to_rocketmq(opened: Any = opened) -> None:
            rocketmq_records(record_reader.read_records(opened, FIRST, PULL_MESSAGES)[0], place)

        us = pace.us(_repeat(to_rocketmq)) / PULL_MESSAGES
        yield Measured(f"Kafka record to RocketMQ, {words}, key and 2 headers", "record", us, 6)
        frames = [memoryview(frame) for frame in rocketmq_records(records, place)]

        def to_kafka(frames: Any = frames) -> None:
            convert_to_kafka(frames, 0, 0, bytes_max=1 << 20, inflate_bytes_max=1 << 20)

        us = pace.us(_repeat(to_kafka)) / PULL_MESSAGES
        yield Measured(f"RocketMQ message to Kafka, {words}, key and 2 properties", "record", us, 6)


# -- The wheel


def _wheel(pace: Pace) -> Iterator[Measured]:
    wheel: Wheel[int] = Wheel()
    spread_ms = 1_000_003

    def add(count: int) -> None:
        for number in range(count):
            wheel.add(number * 7919 % spread_ms, number)

    def add_and_cancel(count: int) -> None:
        for number in range(count):
            wheel.cancel(wheel.add(number * 7919 % spread_ms, number))

    def add_and_advance(count: int) -> None:
        turning: Wheel[int] = Wheel()
        for number in range(count):
            turning.add(number * 7919 % spread_ms, number)
        for now_ms in range(0, spread_ms + 1000, 1000):
            turning.advance(now_ms)

    us = pace.us(add)
    yield Measured("wheel: add", "timer", us, 10)
    yield Measured("wheel: add and cancel", "timer", pace.us(add_and_cancel), 10)
    yield Measured("wheel: add and be due, in steps of 1 s", "timer", pace.us(add_and_advance), 10 + 5)


# -- The store


class _NoState:
    """Owns no state."""

    def replay_state(self, payload: bytes, slot: EntrySlot) -> None: ...

    def replay_frame(
        self, key: int, slot: EntrySlot, form: int, count: int, frame: memoryview, extra: bytes
    ) -> None: ...

    def set_aside(self, kind: str, position: int, what: str, error: Exception) -> None: ...

    def snapshot(self) -> Generator[bytes, None, None]:
        yield from ()


def _store(pace: Pace) -> Iterator[Measured]:
    folder = tempfile.mkdtemp(prefix="duolog-paths-")
    try:
        options = StoreOptions(flush="async", checkpoint_bytes=1 << 40, checkpoint_interval_ms=1 << 40)
        store = Store.open(RealFiles(folder), options, _NoState(), 1)
        queue = store.queue(queue_key(1, 0))
        for size, words in ((128, "128 B"), (16 * KIB, "16 KiB")):
            body = bytes(size)

            def append(shared: int, body: bytes = body) -> Callable[[int], None]:
                def task(count: int) -> None:
                    for number in range(count):
                        store.append([Frame(queue, FIRST_FRAME_FORM, body)], 1)
                        if number % shared == 0:
                            store.write()
                    store.write()

                return task

            for shared in (1, SHARED):
                yield Measured(f"store: append {words}, a write for {shared}", "entry", pace.us(append(shared)), None)
        last = queue.visible_end
        read = _repeat(lambda: store.reader.read(queue, last - 64, max_bytes=1 << 20, until=last))
        yield Measured("store: read 64 x 16 KiB of the tail", "entry", pace.us(read) / 64, None)
        read = _repeat(lambda: store.reader.read(queue, 0, max_bytes=1 << 20, until=last, max_entries=64))
        yield Measured("store: read 64 x 128 B of the page cache", "entry", pace.us(read) / 64, None)
        yield from _recovery(Path(folder), store)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _recovery(folder: Path, store: Store) -> Iterator[Measured]:
    """Open a copy of the files as kill -9 leaves them: without a checkpoint."""
    copy = folder / "copy"
    shutil.copytree(folder, copy, ignore=shutil.ignore_patterns("copy"))
    written = store.written
    start = time.perf_counter()
    again = Store.open(RealFiles(str(copy)), StoreOptions(flush="async"), _NoState(), 1)
    us = (time.perf_counter() - start) * 1e6
    again.close(1)
    store.close(1)
    yield Measured("store: recovery without a checkpoint", "MiB of log", us / (written / (1 << 20)), None)


def _repeat(call: Callable[[], object]) -> Callable[[int], None]:
    def task(count: int) -> None:
        for _ in range(count):
            call()

    return task
