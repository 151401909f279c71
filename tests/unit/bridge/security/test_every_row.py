"""Every row of the three tables asks before its handler runs: generated from the tables, so a new row is covered.

Each row gets a valid request (the adversary's generators) and a handler that only notes that it was reached. The rules
for "with the right" are made from what the row declares for that request; that declarations name the right resources is
what other tests show.

    case                          Kafka, RocketMQ, HTTP
    no login, wrong password      not reached
    no rule                       not reached; Kafka's handler may be reached without the items that were refused
    a rule for each need          reached
    a prefixed rule for each      reached
    everything, each need denied  not reached
    RocketMQ: a field or the body changed under an old signature    not reached

A request that is administrative writes a line to the audit log, which says who has sent it; other requests write none.

`test_old_logins.py` has the same rows with logins that were right once: expired tokens, and recorded signatures.
"""

import asyncio
import base64
import random
import struct
from collections.abc import Awaitable, Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, cast

import pytest
from aiohttp import web

from duolog.bridge.http.access.requirements import access_of
from duolog.bridge.http.port import HttpPort
from duolog.bridge.kafka import TABLE as KAFKA
from duolog.bridge.kafka.requests.access import Access, needs_of
from duolog.bridge.kafka.requests.request import KafkaRequest
from duolog.bridge.kafka.requirements import NOTHING, SEEN
from duolog.bridge.rocketmq.access.requirements import nothing, when_found
from duolog.bridge.rocketmq.request_table import TABLE as ROCKETMQ
from duolog.bridge.rocketmq.requests.connection import RocketMQConnection
from duolog.bridge.rocketmq.requests.responses import answer
from duolog.bridge.security.audit.audit_log import CHANGES, RESOURCES_MAX, WINDOW_MS
from duolog.bridge.security.needs import AnyOf, Need
from duolog.bridge.security.rules import ANY, CLUSTER_NAME, Operation, Pattern, Permission, ResourceType, Rule
from duolog.protocol.kafka.api_messages import ApiKey
from duolog.protocol.rocketmq.acl_signature import ACCESS_KEY, SIGNATURE
from duolog.protocol.rocketmq.codes import RequestCode, ResponseCode
from duolog.protocol.rocketmq.request_headers import REQUESTS
from tests.kit.http import new_port
from tests.kit.loop import run
from tests.kit.signing import signature_of
from tests.kit.sockets import HOST, connect
from tests.unit.adversary import http_requests, kafka_requests, rocketmq_requests
from tests.unit.bridge.kafka.bench import Client
from tests.unit.bridge.security.test_audit import Lines
from tests.unit.bridge.security.test_kafka_login import SecureBench

LOGINS = (ApiKey.API_VERSIONS, ApiKey.SASL_HANDSHAKE, ApiKey.SASL_AUTHENTICATE)
TURNS_MAX = 500
REACHED = 299  # The status of an HTTP handler that was reached.


class Bench(SecureBench):
    """Users alice and root, two topics, and the rules of alice."""

    def __init__(self) -> None:
        super().__init__(sasl_plain_without_tls=True)
        self.topic("orders")
        self.settle()

    @contextmanager
    def rules(self, *rules: Rule) -> Iterator[None]:
        """Give rules to alice for a while."""
        self.security.acls.add(rules, self.clock.now_ms())
        self.settle()
        try:
            yield
        finally:
            self.security.acls.remove(rules, self.clock.now_ms())
            self.settle()


def literal(need: Need, permission: Permission = Permission.ALLOW) -> Rule:
    return Rule("User:alice", need.resource_type, need.name or ANY, Pattern.LITERAL, need.operation, ANY, permission)


def prefixed(need: Need) -> Rule:
    if need.resource_type is ResourceType.CLUSTER or not need.name:
        return literal(need)
    return literal(need)._replace(name=need.name[:2], pattern=Pattern.PREFIXED)


@contextmanager
def changes_of(bench: Bench) -> Iterator[list[dict[str, Any]]]:
    """Give the lines about changes that the audit log writes in the block, without their times."""
    changes: list[dict[str, Any]] = []
    bench.clock.pass_ms(2 * WINDOW_MS)  # Lines in a second are limited.
    bench.security.audit.sink = lines = Lines()
    yield changes
    bench.security.audit.sink = None
    changes += [{name: value for name, value in line.items() if name != "time"} for line in lines.take("change")]


def change_line(protocol: str, address: str, request: str, needs: Iterable[AnyOf]) -> dict[str, Any]:
    """Return the line about a change by root: who, from where, what, and on which resources."""
    resources = [
        {"operation": need.operation.name.lower(), "resource": need.resource_type.name.lower(), "name": need.name or ""}
        for need, *_ in needs
    ]
    more = len(resources) - RESOURCES_MAX
    line = {"event": "change", "protocol": protocol, "principal": "User:root", "address": address, "request": request}
    return line | {"resources": resources[:RESOURCES_MAX]} | ({"more_resources": more} if more > 0 else {})


EVERYTHING = [
    Rule("User:alice", kind, CLUSTER_NAME if kind is ResourceType.CLUSTER else ANY, Pattern.LITERAL, Operation.ALL, ANY,
         Permission.ALLOW)
    for kind in ResourceType
]  # fmt: skip


def sets_of_rules(needs: list[AnyOf]) -> Iterator[tuple[list[Rule], bool]]:
    """Yield rules, and whether the request is allowed with them."""
    yield [], False
    for number in range(max(map(len, needs))):  # Each of the alternatives is enough.
        chosen = [alternatives[min(number, len(alternatives) - 1)] for alternatives in needs]
        yield [literal(need) for need in chosen], True
        yield [prefixed(need) for need in chosen], True
    yield [*EVERYTHING, *(literal(need, Permission.DENY) for alternatives in needs for need in alternatives)], False


# -- Kafka


@pytest.fixture(scope="module")
def bench() -> Bench:
    return Bench()


def kafka_frame(key: ApiKey) -> bytes:
    found = {"topic_id": 0, "transactional_ids": "payments", "v3_and_below_transactional_id": "payments"}
    payload = kafka_requests.valid(key, KAFKA[key].max_version, found).encode()
    return struct.pack(">i", len(payload)) + payload


def logged_in(bench: Bench, name: str, password: str = "secret") -> Client:
    client = bench.connect()
    client.ask(ApiKey.SASL_HANDSHAKE, 1, mechanism="PLAIN")
    client.ask(ApiKey.SASL_AUTHENTICATE, 2, auth_bytes=f"\0{name}\0{password}".encode())
    return client


@pytest.mark.parametrize("key", [key for key in KAFKA if key not in LOGINS], ids=lambda key: ApiKey(key).name)
def test_kafka_api(bench: Bench, monkeypatch: pytest.MonkeyPatch, key: ApiKey) -> None:
    reached: list[KafkaRequest] = []

    def handler(context: Any, connection: Any, request: KafkaRequest) -> None:
        reached.append(request)

    api = KAFKA[key]
    monkeypatch.setitem(cast(Any, KAFKA), key, api._replace(handler=handler))
    frame = kafka_frame(key)

    def send(client: Client) -> list[KafkaRequest]:
        """Send the request; return it as the handler got it, with the items that were allowed."""
        reached.clear()
        client.connection.data_received(frame)
        bench.loop.turn()
        return reached

    for client in (bench.connect(), logged_in(bench, "alice", "wrong")):
        assert not send(client)
        assert client.connection.closed
    root = logged_in(bench, "root")
    with changes_of(bench) as changes:
        (whole,) = send(root)
    needs = [*_needs_of_kafka(api.access, bench.kafka_context, whole.body)]
    assert [need for need, *_ in needs] == [*needs_of(api.access, bench.kafka_context, whole.body)]
    assert needs or api.access in (NOTHING, SEEN), "the request has nothing that its row asks about"
    is_change = any(need.operation in CHANGES for need, *_ in needs)
    assert api.access.is_change == is_change
    assert changes == [change_line("kafka", root.connection.peer[0], key.name, needs)] * is_change
    alice = logged_in(bench, "alice")
    if not needs:
        assert send(alice)
        return
    for rules, is_allowed in sets_of_rules(needs):
        if alice.connection.closed:
            alice = logged_in(bench, "alice")  # A refusal for which the API has no error closes the connection.
        with bench.rules(*rules):
            passed = [request.body for request in send(alice) if [*_items_of(request)] or not api.access.items]
        assert passed == ([whole.body] if is_allowed else []), (rules, passed)


def _needs_of_kafka(access: Access, context: Any, body: Any) -> Iterator[AnyOf]:
    if access.whole is not None:
        yield from access.whole(context, body)
    for items in access.items:
        for item in getattr(body, items.array, None) or ():
            yield from items.needs(context, item, body)


def _items_of(request: KafkaRequest) -> Iterator[Any]:
    """Yield the items that the handler may work on."""
    for items in KAFKA[ApiKey(request.api_key)].access.items:
        yield from getattr(request.body, items.array, None) or ()


# -- RocketMQ


def rocketmq_frame(
    code: int, name: str = "", password: str = "secret", change: Callable[[Any], None] = lambda request: None
) -> bytes:
    """Return a request that a user has signed, and that was changed after that."""
    request = rocketmq_requests.valid(code, random.Random(1))
    request.is_binary = False
    if code not in REQUESTS and not request.ext:
        request.ext = {field: value.encode() for field, value in rocketmq_requests.FIELDS.items()}
    if name:
        request.ext[ACCESS_KEY] = name.encode()
        fields = {field: value.decode() for field, value in request.ext.items()}
        request.ext[SIGNATURE] = signature_of(fields, _body(request), password.encode())
    change(request)
    payload = request.encode()
    return struct.pack(">i", len(payload)) + payload


@pytest.mark.parametrize("code", ROCKETMQ, ids=lambda code: RequestCode(code).name)
def test_rocketmq_code(bench: Bench, code: int) -> None:
    reached: list[Any] = []

    def handler(context: Any, connection: Any, command: Any) -> Any:
        reached.append(command)
        return answer(command, ResponseCode.SUCCESS, "")

    row = ROCKETMQ[code]
    context = replace(bench.rocketmq_connections, table={code: row._replace(handler=handler)})

    def send(name: str = "", password: str = "secret", change: Callable[[Any], None] = lambda request: None) -> bool:
        connection = RocketMQConnection(context)
        connect(connection, bench.loop)
        reached.clear()
        connection.data_received(rocketmq_frame(code, name, password, change))
        bench.loop.turn()
        connection.close("")
        bench.loop.turn()
        connection.connection_lost(None)
        return bool(reached)

    assert not send()
    assert not send("alice", "wrong")
    assert not send("nobody")
    audit = bench.security.audit
    with changes_of(bench) as changes:
        assert send("root")
    needs = [*row.needs(bench.rocketmq_context, reached[0])]
    is_change = code == RequestCode.INVOKE_BROKER_TO_RESET_OFFSET or any(
        need.operation in CHANGES for need, *_ in needs
    )
    assert changes == [change_line("rocketmq", HOST, RequestCode(code).name, needs)] * is_change
    refused_before = audit.refusals["rocketmq",]
    for change in (_add_field, _change_field, _change_body):
        assert not send("root", change=change)
    if not needs:
        assert row.needs in (nothing, when_found), "the request has nothing that its row asks about"
        assert send("alice")
        return
    for rules, is_allowed in sets_of_rules(needs):
        with bench.rules(*rules):
            assert send("alice") == is_allowed, rules
    assert audit.refusals["rocketmq",] == refused_before + 2, "each refusal is counted once"


def _body(request: rocketmq_requests.Request) -> bytes:
    return rocketmq_requests.encoded_body(request)


def _add_field(request: rocketmq_requests.Request) -> None:
    request.ext["another"] = b"1"


def _change_field(request: rocketmq_requests.Request) -> None:
    request.ext[ACCESS_KEY] = b"alice"


def _change_body(request: rocketmq_requests.Request) -> None:
    request.body = _body(request) + b" "


# -- HTTP


@pytest.mark.slow
def test_http_routes(bench: Bench) -> None:
    run(_http_routes(bench), bench.clock)


async def _http_routes(bench: Bench) -> None:
    port = new_port(bench)
    needs: list[AnyOf] = []
    for route in port.application.router.routes():
        cast(Any, route)._handler = _noting(bench, port, needs)
    await port.start()
    for method, path in http_requests.rows(port.application):
        if method == "HEAD":
            continue
        row = port._access[method, path]
        anonymous, wrong = [await _status(bench, port, method, path, login) for login in ("", "alice:wrong")]
        with changes_of(bench) as changes:
            rooted = await _status(bench, port, method, path, "root:secret")
        assert (anonymous, wrong) == ((REACHED, REACHED) if row.is_open else (401, 401)), (method, path)
        assert rooted == REACHED, (method, path)
        found = [*needs]
        # A route that changes something is administrative, unless it declares that it is about messages or their files.
        is_change = method != "GET" and not row.is_data
        assert is_change or row.is_data or not any(need.operation in CHANGES for need, *_ in found), (method, path)
        target = http_requests.Request(method, path).encode().split(b" ")[1].decode()
        expected = change_line("http", HOST, f"{method} {target}", found)
        assert changes == [expected] * is_change, (method, path)
        for rules, is_allowed in sets_of_rules(found) if found else [([], True)]:
            with bench.rules(*rules):
                status = await _status(bench, port, method, path, "alice:secret")
            assert status == (REACHED if is_allowed else 403), (method, path, rules)
    await port.stop()


def _noting(bench: Bench, port: HttpPort, needs: list[AnyOf]) -> Callable[[web.Request], Awaitable[web.Response]]:
    """Return a handler that notes what the route has declared for the request."""
    context = bench.http_context()

    async def handler(request: web.Request) -> web.Response:
        access = access_of(port._access, request)
        assert access is not None
        body = await port.read(request) if access.reads_body else b""
        needs[:] = access.needs(context, request, body)
        return web.Response(status=REACHED)

    return handler


async def _status(bench: Bench, port: HttpPort, method: str, path: str, login: str) -> int:
    credentials = f"Basic {base64.b64encode(login.encode()).decode()}" if login else ""
    return int((await http_answer(port, method, path, credentials))[9:12])


async def http_answer(port: HttpPort, method: str, path: str, credentials: str) -> bytes:
    """Send the request of a row; return its answer."""
    request = http_requests.Request(method, path)
    if credentials:
        request.headers["Authorization"] = credentials.encode()
    connection = cast(asyncio.Protocol, port.connection())
    transport = connect(connection, asyncio.get_running_loop())
    connection.data_received(request.encode())
    for _ in range(TURNS_MAX):
        await asyncio.sleep(0)
        if transport.closing:
            return bytes(transport.taken)
    raise AssertionError(f"{method} {path}: no answer")
