"""The fuzz target `secured`: what an unknown client sends to the ports of a core whose security is on.

The first byte names the port and how much of the request is well formed, the second one the row or the mechanism. No
input knows a password, a secret key or the key of a token, so no handler but those of logins may be reached, nothing is
appended to the log, and nothing of a connection is counted once it is closed.
"""

import asyncio
import base64
import struct
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final, cast

from aiohttp import web

from duolog.bridge.http.connections import HttpConnection
from duolog.bridge.kafka import TABLE as KAFKA
from duolog.bridge.kafka.requests.connection import KafkaConnection
from duolog.bridge.rocketmq.request_table import TABLE as ROCKETMQ
from duolog.bridge.rocketmq.requests.connection import RocketMQConnection
from duolog.bridge.security.oauth.key_sets import KeySet
from duolog.bridge.security.oauth.tokens import Tokens
from duolog.protocol.kafka.api_messages import ApiKey
from duolog.protocol.rocketmq import remoting
from duolog.protocol.rocketmq.acl_signature import ACCESS_KEY, SIGNATURE
from tests.kit.http import LOOP, new_port
from tests.kit.kafka_frames import frame_of
from tests.kit.sockets import FakeTransport, connect
from tests.unit.bridge.security.test_kafka_login import SecureBench

LOGINS: Final = (ApiKey.API_VERSIONS, ApiKey.SASL_HANDSHAKE, ApiKey.SASL_AUTHENTICATE)
MECHANISMS: Final = ("SCRAM-SHA-256", "SCRAM-SHA-512", "PLAIN", "OAUTHBEARER")
SCHEMES: Final = ("Basic ", "Bearer ", "")
TURNS_MAX: Final = 50
_KAFKA_ROWS = [(key, version) for key, api in KAFKA.items() for version in range(api.min_version, api.max_version + 1)]
_CODES = list(ROCKETMQ)


class Secured:
    """The target; its ports are made at the first input."""

    def __init__(self) -> None:
        self._is_begun = False

    def __call__(self, sent: bytes) -> None:
        if len(sent) < 3:
            return
        if not self._is_begun:
            self._is_begun = True
            self._begin()
        stages: list[Callable[[int, bytes], None]] = [
            self._kafka_bytes, self._kafka_row, self._kafka_login, self._rocketmq_frame, self._rocketmq_signed,
            self._http_bytes, self._http_credentials,
        ]  # fmt: skip
        before = self._bench.store.next_position
        stages[sent[0] % len(stages)](sent[1], sent[2:])
        server = self._bench.server
        counted = len(server.connections), server.connections.request_bytes, server.before_login.bytes
        assert counted == (0, 0, 0), f"something of a closed connection is still counted: {counted}"
        assert self._bench.store.next_position == before, "an unknown client has changed the log"

    def _begin(self) -> None:
        bench = self._bench = SecureBench(sasl_plain_without_tls=True)
        bench.topic("orders")
        bench.settle()
        bench.security.tokens = Tokens(KeySet(lambda: b'{"keys": []}'), bench.security.options)

        def reached(*arguments: Any) -> Any:
            raise AssertionError("a handler was reached without a login")

        self._kafka_table = {key: api if key in LOGINS else api._replace(handler=reached) for key, api in KAFKA.items()}
        table = {code: row._replace(handler=reached) for code, row in ROCKETMQ.items()}
        self._rocketmq_context = replace(bench.rocketmq_connections, table=table)
        self._port = new_port(bench)
        self._rows = [row for row in self._port._access if not self._port._access[row].is_open]
        for route in self._port.application.router.routes():
            if (access := self._port._access.get((route.method, _path_of(route)))) is None or not access.is_open:
                cast(Any, route)._handler = reached
        LOOP.run(self._port.start())

    # -- Kafka

    def _kafka_bytes(self, cut: int, rest: bytes) -> None:
        self._kafka(rest[:cut], rest[cut:])

    def _kafka_row(self, row: int, rest: bytes) -> None:
        """A request of a row, with a right header, after which nothing need be right."""
        key, version = _KAFKA_ROWS[(row + len(rest) * 256) % len(_KAFKA_ROWS)]
        self._kafka(_framed(struct.pack(">hhih", key, version, 1, -1) + rest))

    def _kafka_login(self, mechanism: int, rest: bytes) -> None:
        """A handshake, and tokens between bytes that no UTF-8 has; then a request that needs a login."""
        name = MECHANISMS[mechanism % len(MECHANISMS)]
        tokens = rest.split(b"\xff", 2)
        frames = [frame_of(ApiKey.SASL_HANDSHAKE, 1, 1, mechanism=name)]
        frames += [frame_of(ApiKey.SASL_AUTHENTICATE, 2, 2, auth_bytes=token) for token in tokens]
        self._kafka(*frames, frame_of(ApiKey.METADATA, 12, 3, topics=None))

    def _kafka(self, *parts: bytes) -> None:
        connection = KafkaConnection(self._bench.server, self._bench.kafka_context, self._kafka_table)
        self._talk(connection, *parts)
        assert connection.session is None, "a login without a password"

    # -- RocketMQ

    def _rocketmq_frame(self, cut: int, rest: bytes) -> None:
        frame = _framed(rest)
        self._rocketmq(frame[:cut], frame[cut:])

    def _rocketmq_signed(self, row: int, rest: bytes) -> None:
        """A request of a row, with fields in lines, signed by somebody who does not know the secret key."""
        body, *lines = rest.decode("utf-8", "replace").split("\n")
        fields = {ACCESS_KEY: "root", SIGNATURE: "c2lnbmF0dXJl"} | dict(line.partition("=")[::2] for line in lines)
        command = remoting.request(_CODES[row % len(_CODES)], 1, fields, body.encode())
        self._rocketmq(b"".join(remoting.encode(command)))

    def _rocketmq(self, *parts: bytes) -> None:
        connection = RocketMQConnection(self._rocketmq_context)
        self._talk(connection, *parts)
        assert connection.session is None, "a signature without the secret key"

    def _talk(self, connection: KafkaConnection | RocketMQConnection, *parts: bytes) -> None:
        transport = connect(connection, self._bench.loop)
        for part in parts:
            if part and not transport.closing and not transport.is_paused:
                transport.receive(part)
                self._bench.loop.turn()
        transport.abort()
        self._bench.loop.turn()

    # -- HTTP

    def _http_bytes(self, cut: int, rest: bytes) -> None:
        LOOP.run(self._http(rest[:cut], rest[cut:]))

    def _http_credentials(self, row: int, rest: bytes) -> None:
        """A request of a row, with credentials of which the password is wrong, if they are any."""
        method, path = self._rows[row % len(self._rows)]
        scheme, given = SCHEMES[rest[:1][0] % len(SCHEMES)] if rest else "", rest[1:]
        if scheme == "Basic ":
            given = base64.b64encode(given)
        given = given.replace(b"\r", b"").replace(b"\n", b"")
        head = f"{method} {path} HTTP/1.1\r\nHost: localhost:9644\r\nContent-Length: 0\r\nAuthorization: {scheme}"
        answer = LOOP.run(self._http(head.encode() + given + b"\r\n\r\n"))
        assert not answer or answer[9:10] == b"4", answer[:200]

    async def _http(self, *parts: bytes) -> bytes:
        faults = self._bench.faults
        faults.is_strict = False  # Otherwise aiohttp would answer the exception.
        connection = self._port.connection()
        assert isinstance(connection, HttpConnection)
        transport: FakeTransport = connect(connection, asyncio.get_running_loop())
        for part in parts:
            if part and not transport.closing and not transport.is_paused:
                transport.receive(part)
                await asyncio.sleep(0)
        for _ in range(TURNS_MAX):
            await asyncio.sleep(0)
            if transport.closing or transport.taken:
                break
        transport.abort()
        for _ in range(5):
            await asyncio.sleep(0)
        faults.is_strict = True
        assert not faults.counts, faults.counts
        return bytes(transport.taken)


def _framed(payload: bytes) -> bytes:
    return struct.pack(">i", len(payload)) + payload


def _path_of(route: web.AbstractRoute) -> str:
    return "" if route.resource is None else route.resource.canonical
