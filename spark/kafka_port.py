"""Checks before Spark starts that a broker answers on the Kafka port and has the topics of a job.

The check is one Metadata request, version 4, the first version with the field `allow_auto_topic_creation`:

    request     size i32 | key i16 | version i16 | correlation i32 | client id | [topic] | may create i8
    response    size i32 | correlation i32 | throttle i32 | [node i32, host, port i32, rack] | cluster id |
                controller i32 | [error i16, topic, is internal i8, [partition]] | ...

Source: Kafka's MetadataRequest.json and MetadataResponse.json.
"""

from __future__ import annotations

import socket
import struct
import time
from collections.abc import Sequence
from typing import Final, NamedTuple

from duolog.protocol.errors import ProtocolError
from duolog.protocol.kafka.api_messages import ErrorCode
from duolog.protocol.kafka.primitive_types import CLASSIC, MALFORMED
from duolog.protocol.names import is_kafka_topic, is_rocketmq_topic, kafka_name

WITHIN_S: Final = 2.5  # The time for all checks, so that a command reports an error within three seconds.
_METADATA, _VERSION, _CORRELATION = 3, 4, 1
_ANSWER_BYTES_MAX: Final = 64 << 20
_NONE, _UNKNOWN_TOPIC, _LEADER_NOT_AVAILABLE = 0, 3, 5  # Error codes; the last one means that a topic is being created.
_PARTITION: Final = struct.Struct(">hii")  # error, index, leader; two arrays of i32 follow.


class KafkaPortError(Exception):
    """No broker answers on the Kafka port, or it does not have a topic. The message has the reason."""


class Metadata(NamedTuple):
    """The decoded Metadata response."""

    brokers: list[tuple[str, int]]  # (host, port)
    errors: dict[str, int]  # Topic, in Kafka's spelling -> error code; 0 for no error.


def check_kafka(bootstrap: str, topics: Sequence[str] = (), *, may_create: bool = False) -> None:
    """Raise KafkaPortError unless a broker of `bootstrap` (`HOST:PORT,...`) answers and has these topics.

    The topics may have Kafka's or RocketMQ's spelling. With `may_create`, missing topics are created if the broker does
    so for clients. The check also connects to the address that the broker advertises.
    """
    for topic in topics:
        if not (is_kafka_topic(topic) or is_rocketmq_topic(topic)):
            raise KafkaPortError(f"{topic!r} is no name of a topic")
    until = time.perf_counter() + WITHIN_S
    metadata = _first_answer(_addresses(bootstrap), topics, may_create, until)
    _check_advertised(bootstrap, metadata.brokers, until)
    for topic in topics:
        error = metadata.errors.get(kafka_name(topic), _UNKNOWN_TOPIC)
        if error == _UNKNOWN_TOPIC and not may_create:
            raise KafkaPortError(f"there is no topic {topic} on {bootstrap}")
        if error == _UNKNOWN_TOPIC:
            raise KafkaPortError(f"there is no topic {topic} on {bootstrap}, and the broker does not create it")
        if error not in (_NONE, _LEADER_NOT_AVAILABLE):
            raise KafkaPortError(f"{bootstrap} refuses the topic {topic}: {ErrorCode(error).name}")


def _addresses(bootstrap: str) -> list[tuple[str, int]]:
    found = []
    for address in bootstrap.split(","):
        host, _, port = address.strip().rpartition(":")
        if not (host and port.isdecimal() and 0 < int(port) < 1 << 16):
            raise KafkaPortError(f"--kafka: expected HOST:PORT of the broker's Kafka port, got {address.strip()!r}")
        found.append((host.strip("[]"), int(port)))
    return found


def _first_answer(
    addresses: Sequence[tuple[str, int]], topics: Sequence[str], may_create: bool, until: float
) -> Metadata:
    reasons = []
    for number, address in enumerate(addresses):
        share_s = (until - time.perf_counter()) / (len(addresses) - number)
        try:
            return _ask(address, _request(topics, may_create), share_s)
        except (OSError, ProtocolError) as error:
            reasons.append(f"{address[0]}:{address[1]}: {getattr(error, 'strerror', None) or error}")
    raise KafkaPortError(f"no Kafka broker answers on {'; '.join(reasons)} (--kafka names its Kafka port)")


def _check_advertised(bootstrap: str, brokers: Sequence[tuple[str, int]], until: float) -> None:
    """Connect to an advertised address. Spark would retry an address that cannot be reached for minutes."""
    reasons = []
    for host, port in brokers:
        try:
            socket.create_connection((host, port), max(0.1, until - time.perf_counter())).close()
            return
        except OSError as error:
            reasons.append(f"{host}:{port}: {error.strerror or error}")
    where = "; ".join(reasons) or "no broker"
    raise KafkaPortError(f"{bootstrap} tells its clients to connect to {where} (server.advertise says so)")


# -- On the wire


def _ask(address: tuple[str, int], request: bytes, within_s: float) -> Metadata:
    until = time.perf_counter() + within_s
    with socket.create_connection(address, max(0.1, within_s)) as connection:
        connection.sendall(request)
        (size,) = struct.unpack(">i", _receive(connection, 4, until))
        if not 0 < size <= _ANSWER_BYTES_MAX:
            raise ProtocolError("the answer is none of Kafka's")
        answer = _receive(connection, size, until)
    try:
        return read_metadata(answer)
    except MALFORMED as error:
        raise ProtocolError("the answer is none of Kafka's") from error


def _receive(connection: socket.socket, size: int, until: float) -> bytes:
    received = bytearray()
    while len(received) < size:
        connection.settimeout(max(0.01, until - time.perf_counter()))
        part = connection.recv(min(1 << 20, size - len(received)))
        if not part:
            raise ProtocolError("the connection was closed without an answer; this is no Kafka port")
        received += part
    return bytes(received)


def _request(topics: Sequence[str], may_create: bool) -> bytes:
    names = [CLASSIC.string(name) for name in dict.fromkeys(map(kafka_name, topics))]
    head = struct.pack(">hhi", _METADATA, _VERSION, _CORRELATION) + CLASSIC.string("duolog")
    body = head + CLASSIC.array_count(len(names)) + b"".join(names) + struct.pack(">?", may_create)
    return struct.pack(">i", len(body)) + body


def read_metadata(answer: bytes) -> Metadata:
    """Decode a response without its size. Raises ProtocolError, and the exceptions in MALFORMED."""
    if answer[:4] != struct.pack(">i", _CORRELATION):
        raise ProtocolError("the answer is none of Kafka's")
    brokers, at = [], 8
    count, at = CLASSIC.read_count(answer, at)
    for _ in range(count):
        host, at = CLASSIC.read_string(answer, at + 4)
        (port,) = struct.unpack_from(">i", answer, at)
        _, at = CLASSIC.read_string(answer, at + 4)
        brokers.append((host or "", port))
    _, at = CLASSIC.read_string(answer, at)
    count, at = CLASSIC.read_count(answer, at + 4)
    errors = {}
    for _ in range(count):
        (error,) = struct.unpack_from(">h", answer, at)
        name, at = CLASSIC.read_string(answer, at + 2)
        errors[name or ""] = error
        at = _skip_partitions(answer, at + 1)
    return Metadata(brokers, errors)


def _skip_partitions(answer: bytes, at: int) -> int:
    count, at = CLASSIC.read_count(answer, at)
    for _ in range(count):
        at += _PARTITION.size
        for _ in ("replicas", "in sync"):
            nodes, at = CLASSIC.read_count(answer, at)
            at += 4 * nodes
    return at
