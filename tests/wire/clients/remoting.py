"""A minimal RocketMQ client: one JSON command, one answer. For requests that the stock clients do not send."""

from __future__ import annotations

import json
import socket
import ssl
import struct
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

UPDATE_AND_CREATE_TOPIC = 17
ANSWER_WITHIN_S = 10.0


@dataclass(frozen=True, slots=True)
class Reply:
    code: int
    remark: str | None
    fields: dict[str, str]
    body: bytes


def ask(
    endpoint: str,
    code: int,
    fields: dict[str, Any] | None = None,
    body: bytes = b"",
    tls: ssl.SSLContext | None = None,
) -> Reply:
    """Send one command over a connection of its own and return the answer."""
    host, _, port = endpoint.rpartition(":")
    command = {"code": code, "language": "JAVA", "version": 493, "opaque": 1, "flag": 0}
    header = json.dumps(command | {"extFields": {name: str(value) for name, value in (fields or {}).items()}}).encode()
    with ExitStack() as opened:
        connection = opened.enter_context(socket.create_connection((host, int(port)), ANSWER_WITHIN_S))
        if tls is not None:
            connection = opened.enter_context(tls.wrap_socket(connection, server_hostname=host))
        connection.sendall(struct.pack(">II", 4 + len(header) + len(body), len(header)) + header + body)
        stream = connection.makefile("rb")
        size, header_size = struct.unpack(">II", stream.read(8))
        answer = stream.read(size - 4)
    header_size &= 0xFFFFFF  # The high byte says JSON or binary; an answer has the form of its question.
    said = json.loads(answer[:header_size])
    return Reply(said["code"], said.get("remark"), said.get("extFields") or {}, answer[header_size:])


def create_topic(rocketmq: str, topic: str, queues: int, attributes: str = "") -> None:
    wanted = {
        "topic": topic,
        "defaultTopic": "TBW102",
        "readQueueNums": queues,
        "writeQueueNums": queues,
        "perm": 6,
        "topicFilterType": "SINGLE_TAG",
        "topicSysFlag": 0,
        "order": "false",
        "attributes": attributes,
    }
    reply = ask(rocketmq, UPDATE_AND_CREATE_TOPIC, wanted)
    assert reply.code == 0, f"creating {topic} was answered with {reply.code}: {reply.remark}"
