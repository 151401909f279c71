"""Requests of both protocols, byte by byte, which no client would send."""

from __future__ import annotations

import json
import socket
import struct
from collections.abc import Iterable
from typing import Any, NamedTuple, Self

from duolog.protocol.kafka import batch_builder
from duolog.protocol.kafka.record_batch import Record
from duolog.protocol.rocketmq.codes import RequestCode
from tests.kit.broker import port_of

ANSWER_WITHIN_S = 20.0
PRODUCE, FETCH, LIST_OFFSETS, METADATA, OFFSET_COMMIT, JOIN_GROUP, LIST_GROUPS = 0, 1, 2, 3, 8, 11, 16
API_VERSIONS, CREATE_TOPICS = 18, 19
NOW_MS = 1_700_000_000_000


class Closed(Exception):
    """The broker closed the connection instead of answering."""


class Wire:
    """One connection; both protocols begin a frame with its length."""

    def __init__(self, endpoint: str, *, receive_bytes: int = 0) -> None:
        self.socket = socket.socket()
        if receive_bytes:
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
        self.socket.settimeout(ANSWER_WITHIN_S)
        self.socket.connect(("127.0.0.1", port_of(endpoint)))
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def send(self, data: bytes) -> None:
        try:
            self.socket.sendall(data)
        except (ConnectionResetError, BrokenPipeError) as error:
            raise Closed(str(error)) from error

    def receive(self) -> bytes:
        """One frame without its length; raises Closed."""
        (size,) = struct.unpack(">i", self._exactly(4))
        return self._exactly(size)

    def is_closed(self) -> bool:
        """Wait for the end; what comes before it counts for nothing."""
        try:
            while self.socket.recv(1 << 16):
                pass
        except ConnectionResetError:
            pass
        return True

    def _exactly(self, size: int) -> bytes:
        received = bytearray()
        while len(received) < size:
            try:
                piece = self.socket.recv(min(size - len(received), 1 << 20))
            except ConnectionResetError as error:
                raise Closed(str(error)) from error
            if not piece:
                raise Closed(f"after {len(received)} of {size} bytes")
            received += piece
        return bytes(received)

    # -- Either protocol

    def kafka(self, key: int, version: int, body: bytes, *, flexible: bool = False) -> bytes:
        """Ask, and give the answer behind its correlation id (of a flexible version: tags and body)."""
        self.send(kafka_request(key, version, body, flexible=flexible))
        return self.receive()[4:]

    def rocketmq(self, code: int, fields: dict[str, Any] | None = None, body: bytes = b"") -> Reply:
        self.send(remoting_request(code, fields, body))
        return self.reply()

    def reply(self) -> Reply:
        """The next answer; requests of the broker's own are passed over."""
        said: dict[str, Any] = {"flag": 0}
        while not said["flag"] & 1:
            answer = self.receive()
            header_end = 4 + (struct.unpack_from(">I", answer)[0] & 0xFFFFFF)
            said = json.loads(answer[4:header_end])
        return Reply(said["code"], said.get("remark") or "", said.get("extFields") or {}, answer[header_end:])

    def close(self) -> None:
        self.socket.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


# -- Kafka


def framed(payload: bytes) -> bytes:
    return struct.pack(">i", len(payload)) + payload


def kafka_request(key: int, version: int, body: bytes, *, flexible: bool = False, client_id: str = "x") -> bytes:
    tags = b"\0" if flexible else b""
    return framed(struct.pack(">hhi", key, version, 1) + text(client_id) + tags + body)


def text(value: str | None) -> bytes:
    """A classic string."""
    return b"\xff\xff" if value is None else struct.pack(">h", len(value.encode())) + value.encode()


def array(items: Iterable[bytes]) -> bytes:
    listed = list(items)
    return struct.pack(">i", len(listed)) + b"".join(listed)


def ints(form: str, *values: int) -> bytes:
    return struct.pack(">" + form, *values)


def batch(*values: bytes, codec: int = 0) -> bytes:
    records = [Record(number, NOW_MS, None, value) for number, value in enumerate(values)]
    return bytes(batch_builder.build(records, 0, -1, codec=codec))


def metadata(*topics: str) -> bytes:
    """Version 4; makes the topics that are missing."""
    return array(map(text, topics)) + b"\x01"


def produce(topic: str, partition: int, *batches: bytes, acks: int = -1) -> bytes:
    """Version 7; each batch as a partition of its own."""
    parts = array(ints("ii", partition, len(each)) + each for each in batches)
    return text(None) + ints("hi", acks, 1000) + array([text(topic) + parts])


def produced(answer: bytes) -> list[tuple[int, int]]:
    """Error and base offset of each partition in an answer of version 7 about one topic."""
    (name_size,) = struct.unpack_from(">h", answer, 4)
    at = 6 + name_size
    (count,) = struct.unpack_from(">i", answer, at)
    return [struct.unpack_from(">4xhq", answer, at + 4 + n * 30) for n in range(count)]  # type: ignore[misc]


def fetch(
    topic: str, offset: int = 0, *, wait_ms: int = 0, min_bytes: int = 1, max_bytes: int = 55 << 20, times: int = 1
) -> bytes:
    """Version 4, of partition 0."""
    parts = array([ints("iqi", 0, offset, max_bytes)] * times)
    return ints("iiiib", -1, wait_ms, min_bytes, max_bytes, 0) + array([text(topic) + parts])


def create_topic(topic: str, partitions: int = 1, **configs: str) -> bytes:
    """Version 2."""
    settings = array(text(name.replace("_", ".")) + text(value) for name, value in configs.items())
    return array([text(topic) + ints("ihi", partitions, 1, 0) + settings]) + ints("ib", 1000, 0)


# -- RocketMQ


class Reply(NamedTuple):
    code: int
    remark: str
    fields: dict[str, str]
    body: bytes


def remoting_request(code: int, fields: dict[str, Any] | None = None, body: bytes = b"", opaque: int = 1) -> bytes:
    said = {"code": int(code), "language": "JAVA", "version": 493, "opaque": opaque, "flag": 0}
    return remoting_frame(json.dumps(said | {"extFields": fields or {}}).encode(), body)


def remoting_frame(header: bytes, body: bytes = b"") -> bytes:
    return struct.pack(">II", 4 + len(header) + len(body), len(header)) + header + body


def send_fields(topic: str, **fields: object) -> dict[str, str]:
    plain: dict[str, object] = {
        "producerGroup": "p", "topic": topic, "defaultTopic": "TBW102", "defaultTopicQueueNums": 1, "queueId": 0,
        "sysFlag": 0, "bornTimestamp": NOW_MS, "flag": 0, "properties": "", "reconsumeTimes": 0, "unitMode": "false",
    }  # fmt: skip
    return {name: str(value) for name, value in (plain | fields).items()}


def pull_fields(topic: str, offset: int = 0, **fields: object) -> dict[str, str]:
    """By default not held, and with its subscription."""
    plain: dict[str, object] = {
        "consumerGroup": "c", "topic": topic, "queueId": 0, "queueOffset": offset, "maxMsgNums": 32, "sysFlag": 4,
        "commitOffset": 0, "suspendTimeoutMillis": 0, "subVersion": 0, "subscription": "*",
    }  # fmt: skip
    return {name: str(value) for name, value in (plain | fields).items()}


SEND, PULL = RequestCode.SEND_MESSAGE, RequestCode.PULL_MESSAGE
