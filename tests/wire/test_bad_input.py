"""Invalid input is answered with an error of its protocol, or closed; it costs little, and does not harm others.

Tables of bad requests, then floods, all on one broker with small limits: its memory is read, and it has to serve sound
clients of both protocols all the time.
"""

from __future__ import annotations

import gzip
import json
import os
import socket
import struct
import threading
import time
import zlib
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

import lz4.frame
import pytest
import zstandard
from crc32c import crc32c

from duolog.protocol.kafka.compression import Codec
from duolog.protocol.rocketmq.codes import RequestCode, ResponseCode
from duolog.protocol.rocketmq.messages import flags
from tests.kit.broker import Broker
from tests.kit.eventually import eventually
from tests.wire.clients import frames
from tests.wire.clients.frames import Closed, Wire, array, batch, fetch, framed, ints, kafka_request, text

MIB = 1 << 20
BROKER_SETTINGS = {
    "store.flush": "async",
    "store.tail_bytes": 4 * MIB,
    "limits.answer_bytes_max": 32 * MIB,
    "limits.request_bytes_max": 32 * MIB,
    "limits.first_request_ms": 2_000,
    "convert.inflate_bytes_max": 16 * MIB,
    "rocketmq.frame_bytes_max": 16 * MIB,
}
MEMORY_BYTES_MAX = (
    300 * MIB
)  # 60 when idle, twice the answers, the requests, and what an answer takes until it is sent.
SERVED_WITHIN_S = 2.0  # On a machine that runs other tests; some milliseconds else.
TOPIC = "sound"

pytestmark = pytest.mark.usefixtures("both_protocols")


def memory_bytes(broker: Broker) -> int:
    status = Path(f"/proc/{broker.pid}/status").read_text()
    return int(status.split("VmRSS:")[1].split()[0]) << 10


class Witness(threading.Thread):
    """A sound client of both protocols, which writes and reads all the time, and notes the longest that it waited."""

    def __init__(self, broker: Broker) -> None:
        super().__init__(name="witness", daemon=True)
        self.longest_s = 0.0
        self.memory_bytes = 0
        self.error: Exception | None = None
        self._broker, self._ending = broker, threading.Event()

    def run(self) -> None:
        try:
            with Wire(self._broker.kafka) as kafka, Wire(self._broker.rocketmq) as rocketmq:
                kafka.kafka(frames.METADATA, 4, frames.metadata(TOPIC))
                while not self._ending.wait(0.01):
                    start = time.monotonic()
                    self._round(kafka, rocketmq)
                    self.longest_s = max(self.longest_s, time.monotonic() - start)
                    self.memory_bytes = max(self.memory_bytes, memory_bytes(self._broker))
        except Exception as error:  # noqa: BLE001 - `end` raises it
            self.error = error

    def _round(self, kafka: Wire, rocketmq: Wire) -> None:
        ((error, offset),) = frames.produced(kafka.kafka(frames.PRODUCE, 7, frames.produce(TOPIC, 0, batch(b"v"))))
        assert error == 0
        pulled = rocketmq.rocketmq(frames.PULL, frames.pull_fields(TOPIC, offset))
        assert (pulled.code, b"v" in pulled.body) == (0, True)
        sent = rocketmq.rocketmq(frames.SEND, frames.send_fields(TOPIC), b"sent")
        assert sent.code == 0
        assert b"sent" in kafka.kafka(frames.FETCH, 4, fetch(TOPIC, int(sent.fields["queueOffset"])))

    def end(self) -> None:
        self._ending.set()
        self.join()
        print(f"the witness waited {self.longest_s * 1000:.0f} ms at most; memory {self.memory_bytes >> 20} MiB")
        assert self.error is None, f"the witness met {self.error!r}"
        assert self.longest_s < SERVED_WITHIN_S, f"the witness waited {self.longest_s:.1f} s"
        assert self.memory_bytes < MEMORY_BYTES_MAX, f"the broker took {self.memory_bytes >> 20} MiB"


@pytest.fixture(autouse=True)
def witness(broker: Broker) -> Iterator[Witness]:
    """Beside every test, and after it: sound clients are served, and the broker is small."""
    witness = Witness(broker)
    witness.start()
    eventually("the witness is served", lambda: witness.memory_bytes or witness.error, bool, SERVED_WITHIN_S * 5)
    witness.longest_s = 0.0  # The first round brings its topic and connections.
    yield witness
    witness.end()
    broker.check_alive()


@pytest.fixture
def kafka(broker: Broker) -> Iterator[Wire]:
    with Wire(broker.kafka) as wire:
        yield wire


@pytest.fixture
def rocketmq(broker: Broker) -> Iterator[Wire]:
    with Wire(broker.rocketmq) as wire:
        yield wire


# -- Kafka: what is no request

MANY = ints("i", 2**31 - 1)
NO_KAFKA_REQUESTS = {
    "empty": framed(b""),
    "half a header": framed(b"\0\x03\0"),
    "length below zero": ints("i", -1),
    "length above the limit": ints("i", 101 * MIB),
    "unknown key": kafka_request(999, 0, b""),
    "version of nobody": kafka_request(frames.METADATA, 99, b""),
    "version below zero": kafka_request(frames.METADATA, -1, b""),
    "body that ends early": kafka_request(frames.PRODUCE, 7, frames.produce(TOPIC, 0, batch(b"v"))[:-10]),
    "client id beyond the frame": framed(ints("hhih", 3, 4, 1, 30_000) + b"x"),
    "topics beyond counting": kafka_request(frames.METADATA, 4, MANY),
    "topics to create beyond counting": kafka_request(frames.CREATE_TOPICS, 2, MANY),
    "topics to produce to beyond counting": kafka_request(frames.PRODUCE, 7, text(None) + ints("hi", 1, 1) + MANY),
    "topics to fetch beyond counting": kafka_request(frames.FETCH, 4, ints("iiiib", -1, 0, 1, 1, 0) + MANY),
    "topics to commit beyond counting": kafka_request(
        frames.OFFSET_COMMIT, 2, text("g") + ints("i", -1) + text("") + ints("q", -1) + MANY
    ),
    "array of less than nothing": kafka_request(frames.CREATE_TOPICS, 2, ints("i", -7)),
    "varint without end": kafka_request(frames.METADATA, 12, b"\xff" * 20, flexible=True),
    "null where a name must be": kafka_request(frames.PRODUCE, 7, text(None) + ints("hii", 1, 1, 1) + text(None)),
    "text that is no text": kafka_request(frames.METADATA, 4, ints("ih", 1, 2) + b"\xff\xfe\x01"),
}


@pytest.mark.parametrize("sent", NO_KAFKA_REQUESTS.values(), ids=NO_KAFKA_REQUESTS.keys())
def test_what_is_no_kafka_request_closes_its_connection(kafka: Wire, sent: bytes) -> None:
    kafka.send(sent)
    assert kafka.is_closed()


# -- Kafka: batches


def changed(form: str, at: int, *values: int, of: bytes = b"", sign: bool = True) -> bytes:
    """A batch with some fields replaced, and signed anew."""
    made = bytearray(of or batch(b"a", b"b"))
    struct.pack_into(">" + form, made, at, *values)
    if sign:
        struct.pack_into(">I", made, 17, crc32c(bytes(made[21:])))
    return bytes(made)


def packed(codec: int, stream: bytes) -> bytes:
    """A batch of one record whose packed records are this stream."""
    head = batch(b"a")[:61] + stream
    return changed("h", 21, codec, of=changed("i", 8, len(head) - 12, of=head, sign=False))


GIB_OF_ZEROS = {
    Codec.GZIP: gzip.compress(bytes(MIB), 9) * 1024,  # members one after the other
    Codec.SNAPPY: b"\x80\x80\x80\x80\x04" + b"\xfe\x01\x00" * 100,
    Codec.LZ4: lz4.frame.compress(bytes(256 * MIB), block_size=lz4.frame.BLOCKSIZE_MAX4MB),
    Codec.ZSTD: zstandard.ZstdCompressor().compress(bytes(1024 * MIB)),
}
CORRUPT, INVALID, TOO_LARGE, UNKNOWN, COMPRESSION, STORAGE = 2, 87, 10, 3, 76, 56
TRANSACTIONAL_ID = 53  # A transactional batch in a request that names none.
BAD_BATCHES = {
    "no batch": (b"", INVALID),
    "half a batch": (batch(b"a")[:40], CORRUPT),
    "wrong CRC": (changed("I", 17, 5, sign=False), CORRUPT),
    "flipped bit": (changed("b", 70, 1, of=batch(b"abcdefghijkl"), sign=False), CORRUPT),
    "length below zero": (changed("i", 8, -1), CORRUPT),
    "length beyond the batch": (changed("i", 8, 10_000), CORRUPT),
    "two batches": (batch(b"a") * 2, INVALID),
    "magic 1": (changed("b", 16, 1), INVALID),
    "count of none": (changed("i", 57, 0), INVALID),
    "count below zero": (changed("i", 57, -2), INVALID),
    "count beyond its bytes": (changed("i", 57, 1000, of=changed("i", 23, 999)), INVALID),
    "count unlike its offsets": (changed("i", 57, 1), INVALID),
    "base offset": (changed("q", 0, 7), INVALID),
    "unknown codec": (changed("h", 21, 7), COMPRESSION),
    "control batch": (changed("h", 21, 0x20), INVALID),
    "transaction": (changed("h", 21, 0x10, of=changed("qhi", 43, 1, 0, 0)), TRANSACTIONAL_ID),
    "sequence below zero": (changed("qhi", 43, 1, 0, -1), INVALID),
    "time after time": (changed("qq", 27, 2**62, 2**62), 32),
    "too large": (batch(bytes(5 * MIB)), TOO_LARGE),
    **{f"{codec.name} garbage": (packed(codec, os.urandom(100)), INVALID) for codec in GIB_OF_ZEROS},
    **{f"{codec.name} gigabyte": (packed(codec, stream), INVALID) for codec, stream in GIB_OF_ZEROS.items()},
}


@pytest.mark.parametrize(("records", "error"), BAD_BATCHES.values(), ids=BAD_BATCHES.keys())
def test_bad_batch_is_refused_and_its_connection_goes_on(kafka: Wire, records: bytes, error: int) -> None:
    assert frames.produced(kafka.kafka(frames.PRODUCE, 7, frames.produce(TOPIC, 0, records))) == [(error, -1)]
    assert frames.produced(kafka.kafka(frames.PRODUCE, 7, frames.produce(TOPIC, 0, batch(b"sound"))))[0][0] == 0


@pytest.mark.parametrize(
    ("topic", "partition", "acks", "error"),
    [(TOPIC, 99, 1, UNKNOWN), (TOPIC, -1, 1, UNKNOWN), ("nobody's", 0, 1, UNKNOWN), (TOPIC, 0, 7, 21)],
)
def test_batch_for_nowhere_is_refused(kafka: Wire, topic: str, partition: int, acks: int, error: int) -> None:
    asked = frames.produce(topic, partition, batch(b"a"), acks=acks)
    assert frames.produced(kafka.kafka(frames.PRODUCE, 7, asked)) == [(error, -1)]


def test_hundred_batches_that_inflate_to_gigabytes_hold_nobody_up(kafka: Wire) -> None:
    asked = frames.produce(TOPIC, 0, *[packed(Codec.ZSTD, GIB_OF_ZEROS[Codec.ZSTD])] * 100)
    errors = [error for error, _ in frames.produced(kafka.kafka(frames.PRODUCE, 7, asked))]
    assert set(errors) == {INVALID, STORAGE}


@pytest.mark.parametrize("name", ["", "..", "a b", "a/b", "x" * 250, "x" * 32_000, "\x01" * 32_000, "\u20ac"])
def test_illegal_topic_is_not_created(kafka: Wire, name: str) -> None:
    answer = kafka.kafka(frames.CREATE_TOPICS, 2, frames.create_topic(name))
    assert struct.unpack_from(">h", answer, 8 + 2 + len(name.encode()))[0] == 17


def test_names_that_only_newer_versions_can_spell_are_not_kept(broker: Broker, kafka: Wire) -> None:
    group = b"\xc1\xb8\x02" + b"g" * 40_000  # Compact: its length and 1 as a varint.
    body = group + ints("i", -1) + b"\x01\0\x02\x06sound\x02" + ints("iqi", 0, 1, -1) + b"\0\0\0\0"
    with pytest.raises(Closed):
        kafka.kafka(frames.OFFSET_COMMIT, 8, body, flexible=True)
    with Wire(broker.kafka) as another:
        assert b"gggg" not in another.kafka(frames.LIST_GROUPS, 0, b"")


# -- RocketMQ

DEEP = b"[" * 100_000
NO_REMOTING_COMMANDS = {
    "empty": framed(b""),
    "length below zero": ints("i", -1),
    "length above the limit": ints("i", 17 * MIB),
    "header beyond the frame": framed(ints("i", 9999) + b"{}"),
    "unknown form of header": framed(ints("I", 7 << 24 | 2) + b"{}"),
    "header of garbage": frames.remoting_frame(b"\xff" * 50),
    "deep header": frames.remoting_frame(DEEP),
    "header of a MiB": frames.remoting_frame(b'{"code":34,"opaque":1,"remark":"' + b"x" * MIB + b'"}'),
    "deep field": frames.remoting_frame(b'{"code":34,"opaque":1,"extFields":' + b'{"a":' * 100_000),
    "list of fields": frames.remoting_frame(b'{"code":34,"opaque":1,"extFields":[1]}'),
    "no code": frames.remoting_frame(b'{"opaque":1}'),
    "code beyond numbers": frames.remoting_frame(b'{"code":1e400,"opaque":1}'),
    "half a character": frames.remoting_frame(b'{"code":34,"opaque":1,"extFields":{"a":"\\ud800"}}'),
    "binary garbage": framed(ints("I", 1 << 24 | 40) + os.urandom(40)),
    "binary field beyond": framed(ints("I", 1 << 24 | 27) + ints("hbhiiiihi", 10, 0, 0, 1, 0, 0, 6, 500, 1)[:27]),
}


@pytest.mark.parametrize("sent", NO_REMOTING_COMMANDS.values(), ids=NO_REMOTING_COMMANDS.keys())
def test_what_is_no_remoting_command_closes_its_connection(rocketmq: Wire, sent: bytes) -> None:
    rocketmq.send(sent)
    assert rocketmq.is_closed()


SEND, PULL, HEART_BEAT = RequestCode.SEND_MESSAGE, RequestCode.PULL_MESSAGE, RequestCode.HEART_BEAT
NO_FIELD = ResponseCode.SYSTEM_ERROR
BAD_COMMANDS = {
    "unknown code": (9999, {}, b"", ResponseCode.REQUEST_CODE_NOT_SUPPORTED),
    "no fields": (SEND, {}, b"", NO_FIELD),
    "no topic": (SEND, {k: v for k, v in frames.send_fields("t").items() if k != "topic"}, b"", NO_FIELD),
    "odd fields": (SEND, {"topic": [1, {"a": 2}], "queueId": 1.5, "flag": None, "producerGroup": True}, b"", NO_FIELD),
    "queue that is no number": (SEND, frames.send_fields(TOPIC, queueId="x"), b"", NO_FIELD),
    "queue beyond 32 bits": (SEND, frames.send_fields(TOPIC, queueId=2**40), b"", NO_FIELD),
    "queue of nobody": (SEND, frames.send_fields(TOPIC, queueId=99), b"", ResponseCode.INVALID_PARAMETER),
    "illegal topic": (SEND, frames.send_fields("a b"), b"", ResponseCode.INVALID_PARAMETER),
    "long topic": (SEND, frames.send_fields("x" * 9999), b"", ResponseCode.INVALID_PARAMETER),
    "topic without template": (SEND, frames.send_fields("new", defaultTopic="?"), b"", ResponseCode.TOPIC_NOT_EXIST),
    "delay": (SEND, frames.send_fields(TOPIC, properties="DELAY\x01soon\x02"), b"", ResponseCode.MESSAGE_ILLEGAL),
    "large body": (SEND, frames.send_fields(TOPIC), bytes(5 * MIB), ResponseCode.MESSAGE_ILLEGAL),
    "large properties": (SEND, frames.send_fields(TOPIC, properties="x" * 40_000), b"", ResponseCode.MESSAGE_ILLEGAL),
    "batch of garbage": (RequestCode.SEND_BATCH_MESSAGE, frames.send_fields(TOPIC), os.urandom(500), NO_FIELD),
    "batch of none": (RequestCode.SEND_BATCH_MESSAGE, frames.send_fields(TOPIC), b"", NO_FIELD),
    "batch that lies": (
        RequestCode.SEND_BATCH_MESSAGE, frames.send_fields(TOPIC), ints("5i", -1, 0, 0, 0, -1), NO_FIELD
    ),
    "pull without fields": (PULL, {}, b"", NO_FIELD),
    "pull of no topic": (PULL, frames.pull_fields("nobody"), b"", ResponseCode.TOPIC_NOT_EXIST),
    "pull of no queue": (PULL, frames.pull_fields(TOPIC, queueId=-1), b"", ResponseCode.INVALID_PARAMETER),
    "pull below": (PULL, frames.pull_fields(TOPIC, -(2**63)), b"", ResponseCode.PULL_OFFSET_MOVED),
    "pull beyond": (PULL, frames.pull_fields(TOPIC, 2**63 - 1), b"", ResponseCode.PULL_OFFSET_MOVED),
    "pull by SQL that is none": (
        PULL, frames.pull_fields(TOPIC, expressionType="SQL92"), b"", ResponseCode.SUBSCRIPTION_PARSE_FAILED
    ),
    "pull by deep SQL": (
        PULL,
        frames.pull_fields(TOPIC, expressionType="SQL92", subscription="(" * 4000),
        b"",
        ResponseCode.SUBSCRIPTION_PARSE_FAILED,
    ),
    "pull by 400 KiB of SQL": (
        PULL,
        frames.pull_fields(TOPIC, expressionType="SQL92", subscription="a OR " * (400 * 1024 // 5)),
        b"",
        ResponseCode.SUBSCRIPTION_PARSE_FAILED,
    ),
    "pull of a hundred thousand tags": (
        PULL, frames.pull_fields(TOPIC, subscription="a||" * 100_000), b"", ResponseCode.SUBSCRIPTION_PARSE_FAILED
    ),
    "deep heartbeat": (HEART_BEAT, {}, b'{"clientID":"x","consumerDataSet":' + DEEP, NO_FIELD),
    "large heartbeat": (HEART_BEAT, {}, b'{"clientID":"' + b"x" * 15 * MIB + b'"}', NO_FIELD),
    "heartbeat of many braces": (HEART_BEAT, {}, b'{{"' * 80_000, NO_FIELD),
    "config of a group with a number of 30 digits": (
        RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP,
        {},
        b'{"groupName":"g","retryQueueNums":' + b"9" * 30 + b"}",
        NO_FIELD,
    ),
    "lock of a queue with a number of 30 digits": (
        RequestCode.LOCK_BATCH_MQ,
        {},
        b'{"consumerGroup":"g","clientId":"c","mqSet":[{"topic":"t","brokerName":"b","queueId":%d}]}' % 10**30,
        NO_FIELD,
    ),
}  # fmt: skip


@pytest.mark.parametrize(("code", "fields", "body", "answer"), BAD_COMMANDS.values(), ids=BAD_COMMANDS.keys())
def test_bad_command_is_answered_and_its_connection_goes_on(
    rocketmq: Wire, code: int, fields: dict[str, object], body: bytes, answer: int
) -> None:
    assert rocketmq.rocketmq(code, fields, body).code == answer
    assert rocketmq.rocketmq(SEND, frames.send_fields(TOPIC), b"sound").code == 0


# -- What one protocol takes and the other cannot read


@pytest.fixture(scope="module")
def bombs() -> dict[int, bytes]:
    """By the flag of their compression. Making them takes longer than a connection may wait for its first request."""
    return {
        flags.COMPRESSION_ZLIB: zlib.compress(bytes(256 * MIB)),
        flags.COMPRESSION_LZ4: GIB_OF_ZEROS[Codec.LZ4],
        flags.COMPRESSION_ZSTD: GIB_OF_ZEROS[Codec.ZSTD],
    }


def test_gigabytes_in_a_body_are_not_inflated_for_kafka(broker: Broker, bombs: dict[int, bytes]) -> None:
    count = 0
    with Wire(broker.rocketmq) as rocketmq:
        for kind, body in bombs.items():
            for _ in range(10):
                fields = frames.send_fields("bombs", sysFlag=flags.COMPRESSED | kind)
                assert rocketmq.rocketmq(SEND, fields, body).code == 0
                count += 1
    offset = 0
    with Wire(broker.kafka) as kafka:
        while offset < count:  # Each read passes over one of them at most.
            found = kafka.kafka(frames.FETCH, 4, fetch("bombs", offset))
            batch_at = len(found) - (len(found) - found.index(b"bombs") - 5 - 4 - 4 - 2 - 8 - 8 - 4 - 4)
            base, last_delta = (
                struct.unpack_from(">q", found, batch_at)[0],
                struct.unpack_from(">i", found, batch_at + 23)[0],
            )
            assert base == offset
            offset = base + last_delta + 1


def test_gigabytes_in_a_batch_are_refused_and_never_reach_rocketmq(broker: Broker, kafka: Wire) -> None:
    kafka.kafka(frames.CREATE_TOPICS, 2, frames.create_topic("closed", delay_headers="false"))
    for codec, stream in GIB_OF_ZEROS.items():
        for stream_of in (stream, os.urandom(100)):
            asked = frames.produce("closed", 0, packed(codec, stream_of))
            assert frames.produced(kafka.kafka(frames.PRODUCE, 7, asked))[0][0] == INVALID
    asked = frames.produce("closed", 0, batch(b"after"))
    end = frames.produced(kafka.kafka(frames.PRODUCE, 7, asked))[0][1]
    offset = 0
    with Wire(broker.rocketmq) as rocketmq:
        while offset <= end:
            pulled = rocketmq.rocketmq(PULL, frames.pull_fields("closed", offset))
            assert int(pulled.fields["nextBeginOffset"]) > offset
            offset = int(pulled.fields["nextBeginOffset"])
    assert b"after" in pulled.body


# -- HTTP

NEW_TOPIC = b"POST /api/topics HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
BAD_HTTP = {
    "garbage": (b"\xff\xfe\r\n\r\n", 400),
    "long line": (b"GET /" + b"x" * 100_000 + b" HTTP/1.1\r\n\r\n", 400),
    "long header": (b"GET / HTTP/1.1\r\nX: " + b"x" * 100_000 + b"\r\n\r\n", 400),
    "text that is no text": (NEW_TOPIC + b'Content-Length: 12\r\n\r\n{"name":"\xff"}', 400),
    "deep JSON": (NEW_TOPIC + b"Content-Length: 100000\r\n\r\n" + DEEP, 400),
    "large body": (NEW_TOPIC + b"Content-Length: 3000000\r\n\r\n" + bytes(3_000_000), 413),
    "bad chunks": (NEW_TOPIC + b"Transfer-Encoding: chunked\r\n\r\nzzz\r\n", 400),
    "bad gzip": (NEW_TOPIC + b"Content-Encoding: gzip\r\nContent-Length: 4\r\n\r\n\x1f\x8bxx", 400),
    "body that does not come": (NEW_TOPIC + b"Content-Length: 1000\r\n\r\n{", 400),
    "odd name": (b"GET /api/topics/%ff%00%0a HTTP/1.1\r\nHost: localhost\r\n\r\n", 404),
}


@pytest.mark.parametrize(("sent", "status"), BAD_HTTP.values(), ids=BAD_HTTP.keys())
def test_bad_http_is_answered(broker: Broker, sent: bytes, status: int) -> None:
    with Wire(broker.http) as wire:
        with suppress(Closed):
            wire.send(sent)
        assert wire.socket.recv(12)[-3:] == b"%d" % status


def test_http_requests_that_are_cut_short_and_silent_connections_leave_room(broker: Broker) -> None:
    with ExitStack() as opened:
        for _ in range(100):
            with Wire(broker.http) as wire:
                wire.send(NEW_TOPIC + b"Content-Length: 1000\r\n\r\n{")
        for _ in range(300):
            opened.enter_context(Wire(broker.http))
        eventually("HTTP is answered", lambda: _health(broker), lambda status: status == b"200", 10)


def _health(broker: Broker) -> bytes:
    try:
        with Wire(broker.http) as wire:
            wire.send(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
            return wire.socket.recv(12)[-3:]
    except (Closed, ConnectionResetError) as error:
        return str(error).encode()


# -- Floods


@pytest.fixture(scope="module")
def big_topic(broker: Broker) -> str:
    """128 MiB, more than the broker keeps in memory."""
    with Wire(broker.kafka) as kafka, Wire(broker.rocketmq) as rocketmq:
        kafka.kafka(frames.CREATE_TOPICS, 2, frames.create_topic("big", max_message_bytes=str(5 * MIB)))
        for _ in range(16):
            asked = frames.produce("big", 0, batch(os.urandom(4 * MIB)))
            assert frames.produced(kafka.kafka(frames.PRODUCE, 7, asked))[0][0] == 0
            assert rocketmq.rocketmq(SEND, frames.send_fields("big"), os.urandom(4 * MIB - 100)).code == 0
    return "big"


def test_fetches_that_nobody_reads_cost_bounded_memory(broker: Broker, big_topic: str) -> None:
    with ExitStack() as opened:
        for _ in range(60):
            wire = opened.enter_context(Wire(broker.kafka, receive_bytes=4096))
            wire.socket.settimeout(0.2)
            with suppress(TimeoutError):
                wire.socket.sendall(kafka_request(frames.FETCH, 4, fetch(big_topic)) * 1000)
        time.sleep(1)


def test_pulls_that_nobody_reads_cost_bounded_memory(broker: Broker, big_topic: str) -> None:
    with ExitStack() as opened:
        for _ in range(60):
            wire = opened.enter_context(Wire(broker.rocketmq, receive_bytes=4096))
            wire.socket.settimeout(0.2)
            with suppress(TimeoutError):
                wire.socket.sendall(frames.remoting_request(PULL, frames.pull_fields(big_topic, 1)) * 1000)
        time.sleep(1)


def test_answers_behind_a_held_one_cost_bounded_memory(broker: Broker, big_topic: str) -> None:
    held = kafka_request(frames.FETCH, 4, fetch("held", wait_ms=30_000))
    with ExitStack() as opened:
        for _ in range(60):
            wire = opened.enter_context(Wire(broker.kafka))
            wire.kafka(frames.METADATA, 4, frames.metadata("held"))
            wire.send(held + kafka_request(frames.FETCH, 4, fetch(big_topic)) * 50)
        time.sleep(1)


def test_unfinished_requests_cost_bounded_memory(broker: Broker) -> None:
    with ExitStack() as opened:
        for endpoint, size in ((broker.kafka, 100 * MIB), (broker.rocketmq, 16 * MIB)):
            for _ in range(20):
                wire = opened.enter_context(Wire(endpoint))
                with suppress(Closed):
                    wire.send(ints("i", size) + bytes(4 * MIB))
        time.sleep(0.5)


def test_held_pulls_keep_nothing_of_their_requests(rocketmq: Wire) -> None:
    end = rocketmq.rocketmq(SEND, frames.send_fields("quiet"), b"x").fields["queueOffset"]
    fields = frames.pull_fields("quiet", int(end) + 1, sysFlag=6, suspendTimeoutMillis=60_000)
    for number in range(30):
        rocketmq.send(frames.remoting_request(PULL, fields, bytes(10 * MIB), number))
        rocketmq.send(frames.remoting_request(PULL, fields | {"more": "x" * (MIB // 4)}, b"", number))


def test_a_partition_that_a_fetch_names_often_counts_once(broker: Broker, kafka: Wire) -> None:
    kafka.kafka(frames.METADATA, 4, frames.metadata("empty"))
    asked = kafka_request(frames.FETCH, 4, fetch("empty", wait_ms=100, min_bytes=2**31 - 1, times=19_000))
    for _ in range(5):
        with Wire(broker.kafka) as wire:
            wire.send(asked)
            assert 0 < len(wire.receive()) < 100


def test_thousands_of_slow_requests_of_one_connection_let_others_pass(broker: Broker, kafka: Wire) -> None:
    kafka.kafka(frames.CREATE_TOPICS, 2, frames.create_topic("wide", 1000))
    done = threading.Event()

    def drain() -> None:
        with suppress(OSError):
            while kafka.socket.recv(1 << 20):
                done.set()

    reader = threading.Thread(target=drain)
    reader.start()
    until = time.monotonic() + 3
    kafka.socket.settimeout(0.5)
    with suppress(TimeoutError):
        while time.monotonic() < until:
            kafka.socket.sendall(kafka_request(frames.METADATA, 4, frames.metadata("wide", "nobody's")) * 100)
    kafka.socket.shutdown(socket.SHUT_RDWR)
    reader.join()
    assert done.is_set()


def test_heartbeats_with_subscriptions_by_the_thousand_are_refused_in_time(rocketmq: Wire) -> None:
    subscriptions = [{"topic": f"t{n}", "subString": "*", "subVersion": 1} for n in range(2000)]
    groups = [{"groupName": f"g--{n}", "subscriptionDataSet": subscriptions} for n in range(4)]
    body = json.dumps({"clientID": "c", "consumerDataSet": groups}, separators=(",", ":")).encode()
    codes = [rocketmq.rocketmq(HEART_BEAT, {}, body.replace(b"g--", b"g%02d" % n)).code for n in range(40)]
    assert (codes[0], codes[-1]) == (0, ResponseCode.SYSTEM_ERROR)


def test_flood_of_tools_does_not_delay_senders_and_is_answered_system_busy(broker: Broker) -> None:
    """As many questions at once as the limit allows, and half as many again; each is answered, in time."""
    each, wires = 1_500, 10
    asked = b"".join(
        frames.remoting_request(RequestCode.GET_ALL_TOPIC_CONFIG, {}, b"", number) for number in range(each)
    )
    codes: list[int] = []

    def flood() -> None:
        with Wire(broker.rocketmq) as wire:
            sender = threading.Thread(target=wire.socket.sendall, args=(asked,))
            sender.start()
            codes.extend(wire.reply().code for _ in range(each))
            sender.join()

    threads = [threading.Thread(target=flood) for _ in range(wires)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(codes) == each * wires
    assert set(codes) <= {0, ResponseCode.SYSTEM_BUSY}


# -- The end of the broker


def test_broker_stops_in_time_whatever_its_clients_leave_undone(tmp_path: Path) -> None:
    broker = Broker(tmp_path / "data", {"store.flush": "async"}).start()
    with ExitStack() as opened:
        opened.enter_context(Wire(broker.http)).send(NEW_TOPIC + b"Content-Length: 1000\r\n\r\n{")
        opened.enter_context(Wire(broker.kafka)).send(ints("i", 1000) + b"half")
        waiting = opened.enter_context(Wire(broker.kafka))
        waiting.kafka(frames.METADATA, 4, frames.metadata("t"))
        waiting.send(kafka_request(frames.FETCH, 4, fetch("t", wait_ms=60_000)))
        held = opened.enter_context(Wire(broker.rocketmq))
        assert held.rocketmq(SEND, frames.send_fields("t"), b"x").code == 0
        held.send(frames.remoting_request(PULL, frames.pull_fields("t", 1, sysFlag=6, suspendTimeoutMillis=60_000)))
        deaf = opened.enter_context(Wire(broker.rocketmq, receive_bytes=4096))
        deaf.socket.settimeout(0.2)
        with suppress(TimeoutError):
            deaf.socket.sendall(frames.remoting_request(SEND, frames.send_fields("t"), bytes(1000)) * 100_000)
        broker.stop()


# -- Every named limit answers as it was decided

SMALL_LIMITS = {
    "store.flush": "async",
    "topics.topics_max": 4,
    "topics.queues_max": 4,
    "topics.queues": 1,
    "groups.count_max": 20,  # So are some groups of RocketMQ.
    "groups.members_max": 1,
    "rocketmq.groups_max": 2,
    "rocketmq.subscriptions_max": 2,
    "rocketmq.unanswered_max": 2,
    "limits.held_bytes_max": 4 * 1536,
    "limits.connections_max": 12,
}
GROUP_FULL, POLICY, INVALID_PARTITIONS = 81, 44, 37


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    with Broker(tmp_path_factory.mktemp("small") / "data", SMALL_LIMITS) as broker:
        yield broker


def test_topics_beyond_their_number_are_refused(small: Broker) -> None:
    with Wire(small.kafka) as kafka, Wire(small.rocketmq) as rocketmq:
        answers = [kafka.kafka(frames.CREATE_TOPICS, 2, frames.create_topic(f"topic{n}")) for n in range(5)]
        assert [struct.unpack_from(">h", answer, 16)[0] for answer in answers] == [0, 0, 0, 0, POLICY]
        assert rocketmq.rocketmq(SEND, frames.send_fields("one-more"), b"x").code == ResponseCode.SYSTEM_ERROR
        assert rocketmq.rocketmq(SEND, frames.send_fields("topic0"), b"x").code == 0


def test_queues_beyond_their_number_are_refused(small: Broker) -> None:
    with Wire(small.kafka) as kafka:
        answer = kafka.kafka(frames.CREATE_TOPICS, 2, frames.create_topic("wider", 5))
        assert struct.unpack_from(">h", answer, 15)[0] in (INVALID_PARTITIONS, POLICY)


def test_groups_beyond_their_number_are_refused(small: Broker) -> None:
    position = ints("i", -1) + text("") + ints("q", -1) + array([text("topic0") + array([ints("iq", 0, 1) + text("")])])
    with Wire(small.kafka) as kafka:
        answers = [kafka.kafka(frames.OFFSET_COMMIT, 2, text(f"group{n}") + position) for n in range(21)]
    assert [struct.unpack(">h", answer[-2:])[0] for answer in answers] == [0] * 20 + [GROUP_FULL]


def test_members_beyond_their_number_are_refused(small: Broker) -> None:
    body = text("lonely") + ints("ii", 10_000, 10_000) + text("") + text("consumer") + array([text("r") + ints("i", 0)])
    with Wire(small.kafka) as first, Wire(small.kafka) as second:
        errors = [struct.unpack_from(">h", wire.kafka(frames.JOIN_GROUP, 2, body), 4)[0] for wire in (first, second)]
    assert errors == [0, GROUP_FULL]


@pytest.mark.parametrize(
    ("groups", "topics", "limit"), [(3, 1, "rocketmq.groups_max"), (1, 3, "rocketmq.subscriptions_max")]
)
def test_heartbeats_beyond_the_limits_are_refused_by_their_name(
    small: Broker, groups: int, topics: int, limit: str
) -> None:
    subscriptions = [{"topic": f"t{n}"} for n in range(topics)]
    data = [{"groupName": f"group{n}", "subscriptionDataSet": subscriptions} for n in range(groups)]
    with Wire(small.rocketmq) as wire:
        reply = wire.rocketmq(HEART_BEAT, {}, json.dumps({"clientID": "c", "consumerDataSet": data}).encode())
    assert reply.code == ResponseCode.SYSTEM_ERROR
    assert limit in reply.remark


def test_pulls_beyond_the_limits_are_answered_at_once(small: Broker) -> None:
    with ExitStack() as opened:
        wires = [opened.enter_context(Wire(small.rocketmq)) for _ in range(3)]
        assert wires[0].rocketmq(SEND, frames.send_fields("topic1"), b"x").code == 0
        fields = frames.pull_fields("topic1", 1, sysFlag=6, suspendTimeoutMillis=30_000)
        for wire in wires[:2]:  # Two are held on each: all that may be, of a connection and in all.
            for number in range(2):
                wire.send(frames.remoting_request(PULL, fields, b"", number))
        assert wires[1].rocketmq(PULL, fields).code == ResponseCode.SYSTEM_BUSY
        assert wires[0].rocketmq(PULL, fields).code == ResponseCode.SYSTEM_BUSY
        assert wires[2].rocketmq(PULL, fields).code == ResponseCode.PULL_NOT_FOUND


def test_connections_beyond_their_number_are_closed(small: Broker) -> None:
    with ExitStack() as opened:
        wires = [opened.enter_context(Wire(small.kafka)) for _ in range(12)]
        for wire in wires:
            assert wire.kafka(frames.API_VERSIONS, 0, b"")
        with Wire(small.rocketmq) as one_more:
            assert one_more.is_closed()


# -- The disk


def test_disk_above_its_mark_refuses_writes_in_each_protocols_words(tmp_path: Path) -> None:
    disk = os.statvfs(tmp_path)
    total = disk.f_blocks * disk.f_frsize
    used = total - disk.f_bavail * disk.f_frsize
    ballast_bytes = total // 100
    mark = used / total + 0.005
    broker = Broker(tmp_path / "data", {"store.disk_full_ratio": mark, "store.disk_resume_ratio": mark - 0.002})
    ballast = tmp_path / "ballast"
    with broker, Wire(broker.kafka) as kafka, Wire(broker.rocketmq) as rocketmq:
        kafka.kafka(frames.METADATA, 4, frames.metadata("t"))

        def written() -> tuple[int, int]:
            ((error, _),) = frames.produced(kafka.kafka(frames.PRODUCE, 7, frames.produce("t", 0, batch(b"v"))))
            return error, rocketmq.rocketmq(SEND, frames.send_fields("t"), b"x").code

        assert written() == (0, 0)
        with ballast.open("wb") as file:
            os.posix_fallocate(file.fileno(), 0, ballast_bytes)
        refused = (STORAGE, ResponseCode.SERVICE_NOT_AVAILABLE)
        eventually("writes are refused", written, lambda seen: seen == refused, 10)
        assert b"v" in kafka.kafka(frames.FETCH, 4, fetch("t"))
        ballast.unlink()
        eventually("writes are taken again", written, lambda seen: seen == (0, 0), 10)
