"""What clients may occupy before they have proved who they are: the size of their requests, and places in queues."""

from asyncio import Protocol
from dataclasses import replace
from typing import Any

import pytest

from duolog.bridge.config import HooksOptions, LimitsOptions, Options, RocketmqOptions, SecurityOptions
from duolog.bridge.hooks import Hook, Hooks, Request, Send
from duolog.bridge.net.before_login import BeforeLogin
from duolog.bridge.net.tls.peer import TlsPeer
from duolog.bridge.rocketmq.requests.admission import Kind
from duolog.bridge.rocketmq.requests.background_requests import SLICE_MS
from duolog.bridge.rocketmq.requests.connection import RocketMQConnection
from duolog.bridge.rocketmq.requests.hooked_connection import HookedConnection
from duolog.protocol.rocketmq import remoting
from duolog.protocol.rocketmq.acl_signature import ACCESS_KEY, SIGNATURE
from duolog.protocol.rocketmq.codes import RequestCode, ResponseCode
from duolog.protocol.rocketmq.messages.message import decode_all
from duolog.protocol.rocketmq.messages.properties import get
from tests.kit.core import FRAME_BYTES_MAX
from tests.kit.signing import signature_of
from tests.kit.sockets import FakeTransport
from tests.kit.threads import ManualThreads
from tests.unit.bridge.rocketmq.broker import Client, RocketMQBroker
from tests.unit.bridge.security.test_kafka_login import BOX, RECORDS, SecureBench

LOGIN_BYTES_MAX = 64 << 10
BODY_BYTES_MAX = 128 << 10
BEFORE_LOGIN_BYTES_MAX = 1 << 20
HEARTBEAT = b'{"clientID":"c","producerDataSet":[{"groupName":"g"}],"consumerDataSet":[]}'


def new_broker(failed_login_delay_ms: int = 0, **security: Any) -> RocketMQBroker:
    options = Options(
        security=SecurityOptions(enabled=True, failed_login_delay_ms=failed_login_delay_ms, **security),
        rocketmq=RocketmqOptions(body_bytes_max=BODY_BYTES_MAX),
    )
    broker = RocketMQBroker(options=options)
    broker.security.use(BOX)
    for record in RECORDS:
        broker.security.users.set(record, broker.clock.now_ms())
    broker.topic()
    broker.settle()
    return broker


def request(code: int, body: bytes = b"", name: str = "", secret_key: bytes = b"secret", **fields: str) -> bytes:
    """Return a request that a user has signed; without a name, nobody."""
    if name:
        fields[ACCESS_KEY] = name
        fields[SIGNATURE] = signature_of(fields, body, secret_key).decode()
    return b"".join(remoting.encode(remoting.request(code, 1, fields, body)))


def message(size: int, name: str = "", secret_key: bytes = b"secret") -> bytes:
    fields = {"producerGroup": "g", "topic": "orders", "defaultTopic": "TBW102", "defaultTopicQueueNums": "4"}
    fields |= {"queueId": "0", "sysFlag": "0", "bornTimestamp": "1", "flag": "0", "properties": ""}
    return request(RequestCode.SEND_MESSAGE, bytes(size), name, secret_key, **fields)


def code_of_answer(client: Client) -> int | None:
    answer = client.answer_to(1)
    return None if answer is None else answer.code


# -- Sizes of requests


def test_first_request_may_be_a_message_and_later_ones_anything() -> None:
    broker = new_broker()
    client = broker.connect()
    client.connection.data_received(message(BODY_BYTES_MAX, "root"))
    broker.settle()
    assert code_of_answer(client) == ResponseCode.SUCCESS
    client.connection.data_received(
        request(RequestCode.GET_BROKER_CLUSTER_INFO, bytes(FRAME_BYTES_MAX["rocketmq"] // 2))
    )
    broker.loop.turn()
    assert code_of_answer(client) == ResponseCode.NO_PERMISSION, "it is read, and has no signature"


@pytest.mark.parametrize("sent", [message(10, "root", b"wrong"), message(10, "nobody"), message(10)])
def test_request_that_proves_nothing_is_no_login(sent: bytes) -> None:
    broker = new_broker()
    client = broker.connect()
    client.connection.data_received(sent)
    broker.loop.turn()
    assert code_of_answer(client) == ResponseCode.NO_PERMISSION
    client.connection.data_received(message(BODY_BYTES_MAX + LOGIN_BYTES_MAX, "root")[:100])
    assert client.transport.closing


def test_client_with_a_certificate_needs_no_signed_request_first() -> None:
    broker = new_broker()
    connection, transport = RocketMQConnection(broker.rocketmq_connections), FakeTransport(Protocol(), broker.loop)
    peer = TlsPeer("TLSv1.3", "TLS_AES_256_GCM_SHA384", "root", "CN=root")
    transport._extra["tls_peer"] = peer  # type: ignore[attr-defined]
    connection.connection_made(transport)
    connection.data_received(message(2 * (BODY_BYTES_MAX + LOGIN_BYTES_MAX))[:100])
    assert not transport.closing


def test_requests_to_the_name_server_are_small_before_the_login() -> None:
    broker = new_broker(login_bytes_max=LOGIN_BYTES_MAX)
    context = replace(broker.rocketmq_connections, first_request_bytes_max=LOGIN_BYTES_MAX)
    client = broker.connect(RocketMQConnection(context))
    client.connection.data_received(message(LOGIN_BYTES_MAX, "root")[:100])
    assert client.transport.closing
    client = broker.connect(RocketMQConnection(context))
    client.connection.data_received(request(RequestCode.GET_BROKER_CLUSTER_INFO, name="root"))
    client.connection.data_received(message(LOGIN_BYTES_MAX, "root"))
    broker.settle()
    assert not client.transport.closing


def test_unfinished_requests_before_the_login_take_room_from_each_other_only() -> None:
    broker = new_broker()
    connections = broker.server.connections
    broker.server.before_login = BeforeLogin(LimitsOptions(before_login_bytes_max=BEFORE_LOGIN_BYTES_MAX))
    known = broker.connect()
    known.connection.data_received(request(RequestCode.GET_BROKER_CLUSTER_INFO, name="root"))
    known.connection.data_received(message(BODY_BYTES_MAX, "root")[:-1])
    part = message(BODY_BYTES_MAX)[:BODY_BYTES_MAX]
    strangers = [broker.connect() for _ in range(3 * BEFORE_LOGIN_BYTES_MAX // BODY_BYTES_MAX)]
    for stranger in strangers:
        stranger.connection.data_received(part)
        assert broker.server.before_login.bytes <= BEFORE_LOGIN_BYTES_MAX + BODY_BYTES_MAX
        for each in strangers:
            if each.transport.closing and each.connection in connections:
                each.connection.connection_lost(None)
        assert broker.server.before_login.bytes <= BEFORE_LOGIN_BYTES_MAX
    are_open = [not stranger.transport.closing for stranger in strangers]
    assert are_open == sorted(are_open), "the oldest are closed"
    assert 0 < sum(are_open) <= BEFORE_LOGIN_BYTES_MAX // (len(part) - 4)
    assert not known.transport.closing
    last = strangers[-1].connection
    last.data_received(message(BODY_BYTES_MAX)[BODY_BYTES_MAX:])
    last.data_received(message(BODY_BYTES_MAX, "root"))
    for stranger in strangers:
        if stranger.connection in connections:
            stranger.connection.connection_lost(None)
    assert broker.server.before_login.bytes == 0
    assert connections.request_bytes == known.connection.partial_bytes


def test_unfinished_requests_of_kafka_clients_before_the_login_are_bounded_too() -> None:
    bench = SecureBench()
    bench.server.before_login = BeforeLogin(LimitsOptions(before_login_bytes_max=BEFORE_LOGIN_BYTES_MAX))
    part = LOGIN_BYTES_MAX.to_bytes(4, "big") + bytes(LOGIN_BYTES_MAX - 1)
    strangers = [bench.connect() for _ in range(2 * BEFORE_LOGIN_BYTES_MAX // LOGIN_BYTES_MAX)]
    for stranger in strangers:
        stranger.connection.data_received(part)
    assert [stranger.is_closed for stranger in strangers[:2]] == [True, True]
    assert not strangers[-1].is_closed
    client = bench.logged_in("alice")
    client.connection.data_received((1 << 21).to_bytes(4, "big") + bytes(2 * BEFORE_LOGIN_BYTES_MAX - 1))
    assert not client.is_closed
    assert not strangers[-1].is_closed


# -- Queues


def test_background_requests_that_prove_nothing_take_no_place_in_the_queue() -> None:
    broker = new_broker()
    queue = broker.rocketmq_context.requests.background_queues[Kind.CLIENT]
    queue._spent_ms = SLICE_MS  # The time of this turn of the loop is used up, so requests wait.
    known, strangers = broker.connect(), [broker.connect() for _ in range(3)]
    for stranger, name in zip(strangers, ("", "root", "nobody"), strict=True):
        stranger.connection.data_received(request(RequestCode.HEART_BEAT, HEARTBEAT, name, b"wrong"))
    assert len(queue) == 0
    assert [stranger.connection.unanswered for stranger in strangers] == [0, 0, 0]
    known.connection.data_received(request(RequestCode.HEART_BEAT, HEARTBEAT, "root"))
    assert len(queue) == 1
    queue._schedule(known.connection)
    broker.loop.turn()
    assert code_of_answer(known) == ResponseCode.SUCCESS
    assert [code_of_answer(stranger) for stranger in strangers] == [ResponseCode.NO_PERMISSION] * 3


def test_background_request_is_that_of_its_sender_when_its_turn_comes() -> None:
    """Two users may share a connection: the later request must not lend its rights to the earlier one."""
    broker = new_broker()
    queue = broker.rocketmq_context.requests.background_queues[Kind.ADMIN]
    queue._spent_ms = SLICE_MS
    client = broker.connect()
    client.connection.data_received(request(RequestCode.GET_BROKER_CONFIG, name="alice"))
    client.connection.data_received(request(RequestCode.GET_BROKER_CLUSTER_INFO, name="root"))
    queue._schedule(client.connection)
    broker.loop.turn()
    assert code_of_answer(client) == ResponseCode.NO_PERMISSION
    assert code_of_answer(client) == ResponseCode.SUCCESS


# -- Hooks


class Marking(Hook):
    """Notes the requests that it sees, and changes messages."""

    def __init__(self) -> None:
        self.seen: list[str] = []

    def before_request(self, request: Request) -> None:
        self.seen.append(request.name)

    def before_send(self, send: Send) -> Send:
        return replace(send, body=b"changed", properties={**send.properties, "MARKED": "yes"})


def test_hooks_see_requests_of_users_only_and_may_change_what_was_signed() -> None:
    broker, hook, threads = new_broker(), Marking(), ManualThreads()
    hooks = Hooks((hook,), HooksOptions(), threads)

    def sent(*frames: bytes) -> int | None:
        client = broker.connect(HookedConnection(broker.rocketmq_connections, hooks))
        for frame in frames:
            client.connection.data_received(frame)
        threads.run()
        broker.settle()
        return code_of_answer(client)

    assert sent(message(10)) == sent(message(10, "root", b"wrong")) == ResponseCode.NO_PERMISSION
    assert hook.seen == []
    assert sent(message(10, "root")) == ResponseCode.SUCCESS
    assert hook.seen == ["SEND_MESSAGE"]
    (stored,) = decode_all(bytes(pulled(broker)))
    assert (stored.body, get(stored.properties, "MARKED")) == (b"changed", "yes")
    # The second request has come while the hook had the first one; each is decided for its own sender.
    other = request(RequestCode.GET_BROKER_CLUSTER_INFO, name="root")
    assert sent(message(10, "alice"), other) == ResponseCode.NO_PERMISSION


def pulled(broker: RocketMQBroker) -> bytes:
    """Return the messages that root gets from the first queue of the topic."""
    fields = {
        "consumerGroup": "g", "topic": "orders", "queueId": "0", "queueOffset": "0", "maxMsgNums": "32",
        "sysFlag": "4", "commitOffset": "0", "suspendTimeoutMillis": "0", "subVersion": "0", "subscription": "*",
    }  # fmt: skip
    client = broker.connect()
    client.connection.data_received(request(RequestCode.PULL_MESSAGE, b"", "root", **fields))
    broker.loop.turn()
    answer = client.answer_to(1)
    assert answer is not None
    assert answer.code == ResponseCode.SUCCESS
    return bytes(answer.body)
