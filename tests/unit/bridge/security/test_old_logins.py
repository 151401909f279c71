"""Every row of the three tables with a login that was right once: no handler is reached. Generated from the tables.

    case                                            Kafka         RocketMQ                       HTTP
    ----------------------------------------------  ------------  -----------------------------  -----------------
    token that has expired                          not reached   has no tokens                  status 401
    token that expires while a connection is open   closed        has no tokens                  as above
    recorded request, sent again                    see below     reached until the secret key   has no signatures
                                                                  changes, then not reached
    recorded proof of SCRAM, on a new connection    not reached   has no SCRAM                   has no SCRAM

A RocketMQ signature covers neither a time nor the connection, so only TLS keeps others from recording a request. Kafka
requests are not signed; who may send on a connection is decided by its login, of which SCRAM's proof is a part.
"""

from dataclasses import replace
from typing import Any, cast

import pytest
from aiohttp import web

from duolog.bridge.kafka import TABLE as KAFKA
from duolog.bridge.kafka.requests.request import KafkaRequest
from duolog.bridge.rocketmq.request_table import TABLE as ROCKETMQ
from duolog.bridge.rocketmq.requests.connection import RocketMQConnection
from duolog.bridge.rocketmq.requests.responses import answer
from duolog.bridge.security.logins import new_record
from duolog.bridge.security.oauth.key_sets import KeySet
from duolog.bridge.security.oauth.tokens import Tokens
from duolog.protocol.kafka.api_messages import ApiKey, ErrorCode
from duolog.protocol.rocketmq.codes import ResponseCode
from tests.kit.http import new_port
from tests.kit.loop import run
from tests.kit.sockets import connect
from tests.unit.adversary import http_requests
from tests.unit.bridge.kafka.bench import Client
from tests.unit.bridge.security.test_every_row import (
    LOGINS,
    REACHED,
    Bench,
    http_answer,
    kafka_frame,
    rocketmq_frame,
)
from tests.unit.bridge.security.test_kafka_login import BOX, SETTINGS, login
from tests.unit.bridge.security.test_tokens import KEY, Source, token

LIFETIME_S = 60
KAFKA_ROWS = [key for key in KAFKA if key not in LOGINS]


@pytest.fixture(scope="module")
def bench() -> Bench:
    bench = Bench()
    bench.security.tokens = Tokens(KeySet(Source(one=KEY).read), bench.security.options)
    return bench


def token_of_root(bench: Bench) -> str:
    """Return a token with which the user may do everything, for LIFETIME_S."""
    return token(sub="root", exp=bench.clock.now_ms() // 1000 + LIFETIME_S)


# -- Kafka


class KafkaRows:
    """Connections whose handlers only note the API that was reached."""

    def __init__(self, bench: Bench) -> None:
        self.bench, self.reached = bench, list[int]()
        self.frames = {key: kafka_frame(ApiKey(key)) for key in KAFKA_ROWS}
        noting = {key: KAFKA[key]._replace(handler=self._note) for key in KAFKA_ROWS}
        self._table = {**KAFKA, **noting}

    def _note(self, context: Any, connection: Any, request: KafkaRequest) -> None:
        self.reached.append(request.api_key)

    def connect(self) -> Client:
        client = self.bench.connect()
        client.connection.use(self.bench.kafka_context, self._table)
        return client

    def with_token(self, given: str) -> Client:
        client = self.connect()
        client.ask(ApiKey.SASL_HANDSHAKE, 1, mechanism="OAUTHBEARER")
        client.ask(ApiKey.SASL_AUTHENTICATE, 2, auth_bytes=f"n,,\1auth=Bearer {given}\1\1".encode())
        return client

    def send(self, client: Client, key: int) -> None:
        client.connection.data_received(self.frames[key])
        self.bench.loop.turn()


def test_no_kafka_api_is_served_once_the_token_has_expired(bench: Bench) -> None:
    rows, given = KafkaRows(bench), token_of_root(bench)
    open_clients = {key: rows.with_token(given) for key in KAFKA_ROWS}
    for key, client in open_clients.items():
        rows.send(client, key)
    assert rows.reached == KAFKA_ROWS
    bench.clock.pass_ms(1000 * LIFETIME_S)
    for key, client in open_clients.items():
        late = rows.with_token(given)
        for each in (client, late):
            rows.send(each, key)
            assert each.connection.closed, ApiKey(key).name
    assert rows.reached == KAFKA_ROWS


def test_no_kafka_api_is_served_after_a_recorded_proof(bench: Bench) -> None:
    rows = KafkaRows(bench)
    recorded: list[bytes] = []

    class Recording(Client):
        def send(self, key: int, version: int, /, *, is_answered: bool = True, **values: Any) -> int:
            recorded.append(values.get("auth_bytes", b""))
            return super().send(key, version, is_answered=is_answered, **values)

    assert login(Recording(bench), "root", "secret")[-1].error_code is ErrorCode.none
    _, first, proof = recorded
    for key in KAFKA_ROWS:
        client = rows.connect()
        client.ask(ApiKey.SASL_HANDSHAKE, 1, mechanism="SCRAM-SHA-256")
        assert client.ask(ApiKey.SASL_AUTHENTICATE, 2, auth_bytes=first).error_code is ErrorCode.none
        refused = client.ask(ApiKey.SASL_AUTHENTICATE, 2, auth_bytes=proof)
        assert refused.error_code is ErrorCode.sasl_authentication_failed
        rows.send(client, key)
        assert client.connection.closed, ApiKey(key).name
    assert not rows.reached


# -- RocketMQ


def test_recorded_rocketmq_request_is_refused_once_the_secret_key_has_changed() -> None:
    bench = Bench()
    reached: list[int] = []

    def handler(context: Any, connection: Any, command: Any) -> Any:
        reached.append(command.code)
        return answer(command, ResponseCode.SUCCESS, "")

    table = {code: row._replace(handler=handler) for code, row in ROCKETMQ.items()}
    context = replace(bench.rocketmq_connections, table=table)
    frames = [rocketmq_frame(code, "root") for code in table]

    def replay() -> list[int]:
        connection = RocketMQConnection(context)
        connect(connection, bench.loop)
        reached.clear()
        for frame in frames:
            connection.data_received(frame)
            bench.loop.turn()
        connection.connection_lost(None)
        return [*reached]

    assert replay() == replay() == [*table]
    changed = new_record("root", "another", BOX, SETTINGS, bench.clock.now_ms(), is_super=True)
    bench.security.users.set(changed, bench.clock.now_ms())
    bench.settle()
    assert replay() == []


# -- HTTP


def test_no_http_route_is_served_with_an_expired_token(bench: Bench) -> None:
    run(_http_routes(bench), bench.clock)


async def _http_routes(bench: Bench) -> None:
    async def handler(request: web.Request) -> web.Response:
        return web.Response(status=REACHED)

    port = new_port(bench)
    for route in port.application.router.routes():
        cast(Any, route)._handler = handler
    await port.start()
    given = f"Bearer {token_of_root(bench)}"
    rows = [(method, path) for method, path in http_requests.rows(port.application) if method != "HEAD"]
    for method, path in rows:
        status = int((await http_answer(port, method, path, given))[9:12])
        assert status == REACHED, (method, path)
    bench.clock.pass_ms(1000 * LIFETIME_S)
    for method, path in rows:
        found = await http_answer(port, method, path, given)
        if not port._access[method, path].is_open:
            assert int(found[9:12]) == 401, (method, path)
            assert b"the token has expired" in found, (method, path)
    await port.stop()
