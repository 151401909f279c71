"""The answer to a failed login waits for `security.failed_login_delay_ms` in all protocols; so does the connection."""

import asyncio
from typing import Any

import pytest

from duolog.bridge.config import Options, SecurityOptions
from duolog.protocol.kafka.api_messages import ApiKey, ErrorCode
from duolog.protocol.rocketmq import remoting
from duolog.protocol.rocketmq.acl_signature import ACCESS_KEY, SIGNATURE
from duolog.protocol.rocketmq.codes import RequestCode, ResponseCode
from tests.kit.core import ManualCore
from tests.kit.http import HEADERS, HttpDialogue, encoded, parsed
from tests.kit.signing import signature_of
from tests.unit.bridge.rocketmq.broker import Client, RocketMQBroker
from tests.unit.bridge.security import test_http_paths
from tests.unit.bridge.security.test_http_paths import as_user
from tests.unit.bridge.security.test_kafka_login import BOX, RECORDS, SecureBench, login

DELAY_MS = SecurityOptions().failed_login_delay_ms


def passing(core: ManualCore, ms: int) -> None:
    """Let a time pass, and make the calls that are due."""
    core.clock.pass_ms(ms)
    core.server.timed_calls.run(core.clock.mono_ms())
    core.settle()


# -- Kafka


@pytest.mark.parametrize("name", ["alice", "nobody"])
def test_kafka_answer_to_a_failed_login_waits(name: str) -> None:
    bench = SecureBench(failed_login_delay_ms=DELAY_MS)
    client = bench.connect()
    assert login(client, name, "wrong")[-1] is None
    assert client.transport.is_paused
    passing(bench, DELAY_MS - 1)
    assert not client.transport.taken
    assert not client.is_closed
    assert bench.server.timed_calls.next_deadline_mono_ms() == bench.clock.mono_ms() + 1
    passing(bench, 1)
    assert client.answer_to(3).error_code is ErrorCode.sasl_authentication_failed
    bench.loop.turn()
    assert client.is_closed


def test_kafka_login_that_succeeds_does_not_wait() -> None:
    bench = SecureBench(failed_login_delay_ms=DELAY_MS)
    client = bench.logged_in("alice")
    assert client.ask(ApiKey.METADATA, 12, topics=[]) is not None
    assert bench.server.timed_calls.next_deadline_mono_ms() is None


def test_connection_that_is_closed_meanwhile_gets_no_answer() -> None:
    bench = SecureBench(failed_login_delay_ms=DELAY_MS)
    client = bench.connect()
    login(client, "alice", "wrong")
    client.connection.connection_lost(None)
    passing(bench, DELAY_MS)
    assert not client.transport.taken
    assert not bench.faults.counts


# -- RocketMQ


def signed(opaque: int, secret_key: bytes, code: int = RequestCode.GET_BROKER_CLUSTER_INFO) -> bytes:
    fields = {ACCESS_KEY: "alice"}
    fields[SIGNATURE] = signature_of(fields, b"", secret_key).decode()
    return b"".join(remoting.encode(remoting.request(code, opaque, fields, b"")))


@pytest.fixture
def broker() -> RocketMQBroker:
    broker = RocketMQBroker(options=Options(security=SecurityOptions(enabled=True)))
    broker.security.use(BOX)
    for record in RECORDS:
        broker.security.users.set(record, broker.clock.now_ms())
    broker.settle()
    return broker


def codes(client: Client, *opaques: int) -> list[int | None]:
    answers: list[Any] = [client.answer_to(opaque) for opaque in opaques]
    return [None if answer is None else answer.code for answer in answers]


@pytest.mark.parametrize("code", [RequestCode.GET_BROKER_CLUSTER_INFO, RequestCode.GET_MAX_OFFSET])
def test_guesses_of_one_rocketmq_connection_wait_for_each_other(broker: RocketMQBroker, code: int) -> None:
    refused, client = ResponseCode.NO_PERMISSION, broker.connect()
    client.connection.data_received(b"".join(signed(opaque, b"wrong", code) for opaque in (1, 2)))
    broker.loop.turn()
    assert codes(client, 1, 2) == [None, None]
    assert client.connection.is_holding
    passing(broker, DELAY_MS - 1)
    assert codes(client, 1, 2) == [None, None]
    passing(broker, 1)
    assert codes(client, 1, 2) == [refused, None]
    passing(broker, DELAY_MS)
    assert codes(client, 1, 2) == [None, refused]
    assert client.connection.unanswered == 0
    client.connection.data_received(signed(3, b"secret"))
    broker.loop.turn()
    assert codes(client, 3) == [ResponseCode.SUCCESS]


def test_rocketmq_connection_may_close_before_the_answer(broker: RocketMQBroker) -> None:
    client = broker.connect()
    client.connection.data_received(signed(1, b"wrong"))
    client.connection.connection_lost(None)
    passing(broker, DELAY_MS)
    assert not broker.faults.counts
    assert broker.server.timed_calls.next_deadline_mono_ms() is None


# -- HTTP


def test_http_answer_to_a_wrong_password_comes_when_the_port_stops() -> None:
    bench = test_http_paths.Bench(DELAY_MS)

    async def stopped() -> bytes:
        port = bench.port()
        await port.start()
        connection = HttpDialogue(bench.core, port)
        connection.send(encoded("GET", "/api/users", b"", HEADERS | as_user("root", "wrong")))
        await connection.turn(50)
        assert not connection.transport.taken
        await port.stop()
        return await connection.answers()

    assert parsed(asyncio.run(stopped()))[0] == 401


def test_http_answer_to_a_wrong_password_waits() -> None:
    bench = test_http_paths.Bench(DELAY_MS)

    async def dialogue(password: str) -> tuple[bytes, bytes]:
        port = bench.port()
        await port.start()
        connection = HttpDialogue(bench.core, port)
        connection.send(encoded("GET", "/api/users", b"", HEADERS | as_user("root", password)))
        await connection.turn(50)
        early = bytes(connection.transport.taken)
        passing(bench.core, DELAY_MS)
        answer = await connection.answers()
        await port.stop()
        return early, answer

    early, answer = asyncio.run(dialogue("wrong"))
    assert (early, parsed(answer)[0]) == (b"", 401)
    early, answer = asyncio.run(dialogue("secret"))
    assert early
    assert parsed(answer)[0] == 200


def test_http_request_without_credentials_is_told_at_once() -> None:
    bench = test_http_paths.Bench(DELAY_MS)
    assert bench.ask("GET", "/api/cron")[0] == 401
