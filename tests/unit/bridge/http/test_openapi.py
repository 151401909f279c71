"""The OpenAPI document says what the port does: its routes, parameters and bodies, and the fields of real answers."""

from typing import Any

import msgspec
import pytest

from duolog.bridge.http.openapi.document import api_routes, document, is_page
from duolog.bridge.http.openapi.operations import OPERATIONS
from duolog.bridge.http.port import routes_of
from duolog.bridge.records.groups import CommittedOffset
from duolog.protocol.rocketmq.codes import RequestCode
from tests.kit.http import HttpBench
from tests.unit.adversary.http_requests import BODIES
from tests.unit.bridge.batches import batch
from tests.unit.bridge.rocketmq.broker import RocketMQBroker

CONTENT = {"topic": "orders", "value": "v", "key": "k", "headers": {"TAGS": "paid"}}
CHECKED_QUERIES = [
    ("GET", "/api/topics"),
    ("GET", "/api/groups"),
    ("GET", "/api/settings"),
    ("GET", "/api/topics/orders/messages"),
    ("GET", "/api/groups/billing/dead-letters"),
    ("DELETE", "/api/groups/billing"),
    ("GET", "/api/timers"),
    ("DELETE", "/api/timers"),
    ("GET", "/api/timers/count"),
    ("GET", "/api/timers/histogram"),
]


def operation_of(method: str, path: str) -> tuple[str, str]:
    """Find the route that a path matches: as many parts, of which the fixed ones are equal."""
    parts = path.partition("?")[0].split("/")
    for found, route in OPERATIONS:
        names = route.split("/")
        if found == method and len(names) == len(parts) and all(map(_matches, names, parts)):
            return found, route
    raise AssertionError(f"no operation for {method} {path}")


def _matches(name: str, part: str) -> bool:
    return name == part or name.startswith("{")


def check(method: str, path: str, status: int, answer: Any) -> Any:
    """Compare an answer with the type of its operation: every field is there, and no other one."""
    operation = OPERATIONS[operation_of(method, path)]
    assert status == operation.status or status in operation.statuses, (method, path, answer)
    assert msgspec.to_builtins(msgspec.convert(answer, operation.answer)) == answer, (method, path)
    return answer


def test_the_port_serves_the_document_of_its_routes() -> None:
    bench = HttpBench()
    served = api_routes(routes_of(bench.port().application))
    assert set(served) == set(OPERATIONS), "operations.py has other routes than the port"
    status, content = bench.ask("GET", "/openapi.json")
    assert (status, msgspec.json.decode(content)) == (200, msgspec.to_builtins(document(served)))
    status, refusal = bench.ask("GET", "/api/no-such-path")
    assert (status, refusal["error"]) == (404, "there is no path /api/no-such-path; GET /openapi.json lists all paths")


def test_no_two_operations_have_the_same_id() -> None:
    paths = document(tuple(OPERATIONS))["paths"].values()
    ids = [operation["operationId"] for methods in paths for operation in methods.values()]
    assert len(ids) == len(set(ids)) == len(OPERATIONS)


def test_all_references_lead_to_schemas() -> None:
    text = msgspec.json.encode(document(tuple(OPERATIONS))).decode()
    named = {part.partition('"')[0] for part in text.split('"#/components/schemas/')[1:]}
    assert named == set(document(tuple(OPERATIONS))["components"]["schemas"])


@pytest.mark.parametrize(("method", "path"), CHECKED_QUERIES)
def test_parameters_are_those_that_the_handler_takes(method: str, path: str) -> None:
    status, answer = HttpBench().ask(method, f"{path}?no_such=1")
    if status == 404:  # The topic or group is looked up first.
        bench = HttpBench(RocketMQBroker())
        bench.core.topic("orders", 1)  # type: ignore[attr-defined]
        status, answer = bench.ask(method, f"{path}?no_such=1")
    assert (status, answer["error"].split(":")[0]) == (400, "no_such")
    names = sorted(query.name for query in OPERATIONS[operation_of(method, path)].queries)
    assert answer["error"].endswith("expected one of " + ", ".join(names))


@pytest.mark.parametrize(("method", "path"), [row for row in BODIES if not is_page(row[1])])
def test_a_valid_body_has_the_type_of_its_operation(method: str, path: str) -> None:
    kind = OPERATIONS[method, path].body
    if kind is None:
        assert BODIES[method, path] == {}, "the operation has no body"
        return
    kinds = kind if isinstance(kind, tuple) else (kind,)
    assert any(_is_of(BODIES[method, path], each) for each in kinds)


def _is_of(value: Any, kind: Any) -> bool:
    try:
        msgspec.convert(value, kind)
    except msgspec.ValidationError:
        return False
    return True


def test_answers_have_the_fields_of_their_types() -> None:
    bench = HttpBench(_broker_with_a_dead_letter())

    def ask(method: str, path: str, body: Any = None) -> Any:
        return check(method, path, *bench.ask(method, path, body))

    ask("POST", "/api/poison/acknowledge", {"kind": "frame"})
    ask("POST", "/api/settings/reload")
    ask("POST", "/api/log/levels", {"component": "store", "level": "debug"})
    ask("POST", "/api/topics", {"name": "made", "queues": 2, "configs": {"retention.ms": 1000}})
    ask("PATCH", "/api/topics/made", {"configs": {"retention.ms": None}})
    ask("POST", "/api/topics/orders/messages", {"messages": [{"value": "v", "tag": "t"}, {"value_base64": "/w=="}]})
    ask("POST", "/api/topics/orders/messages", {"value": "v", "delay_ms": 60_000})
    timer = ask("POST", "/api/timers", CONTENT | {"delay_ms": 60_000})["id"]
    for path in ("", "?content=true", "/count", "/histogram", f"/{timer}"):
        ask("GET", f"/api/timers{path}")
    ask("POST", f"/api/timers/{timer}/reschedule", {"delay_ms": 90_000})
    ask("POST", "/api/timers/reschedule", {"topic": "orders", "key": "k", "delay_ms": 90_000})
    ask("DELETE", "/api/timers?topic=orders&key=k")
    ask("DELETE", f"/api/timers/{timer}")
    ask("POST", f"/api/timers/{timer}/now")
    ask("POST", "/api/topics/orders/pause", {})
    ask("POST", "/api/topics/orders/resume", {})
    ask("POST", "/api/schedules", CONTENT | {"name": "daily", "cron": "0 9 * * *"})
    ask("POST", "/api/schedules", CONTENT | {"name": "often", "every_ms": 10_000})
    for path in ("schedules", "schedules/daily", "schedules/often", "groups", "groups/billing", "topics", "status"):
        ask("GET", f"/api/{path}")
    ask("DELETE", "/api/schedules/daily")
    for path in (
        "settings",
        "segments",
        "poison",
        "transactions",
        "topics/orders",
        "topics/orders/messages",
        "topics/orders/sums",
    ):
        ask("GET", f"/api/{path}")
    place = ask("GET", "/api/groups/billing/dead-letters")["dead_letters"][0]["origin"]["message_id"]
    ask("GET", f"/api/messages/{place}")
    ask("POST", "/api/groups/billing/redrive", {"to": "topic"})
    ask("POST", "/api/groups/billing/reset", {"to": "earliest"})
    ask("DELETE", "/api/groups/billing")
    lease = ask("POST", "/api/leases", {"topics": ["orders"]})["lease"]
    ask("POST", f"/api/leases/{lease}", {})
    ask("DELETE", f"/api/leases/{lease}")
    ask("POST", "/api/backups", {"lease_ms": 1000})
    ask("GET", "/api/transactions/orders%2Fa")
    ask("POST", "/api/transactions/orders/a", {"verdict": "commit"})
    ask("DELETE", "/api/topics/made")


def _broker_with_a_dead_letter() -> RocketMQBroker:
    """Give a core with a half message of a Kafka producer, and a group with a committed offset and a dead letter."""
    broker = RocketMQBroker()
    topic = broker.topic("orders", 2)
    client = broker.connect()
    offset = int(str(client.send(body=b"a").ext["msgId"])[16:], 16)
    given_up = {"offset": offset, "group": "billing", "delayLevel": 0, "maxReconsumeTimes": 0}
    assert client.ask(RequestCode.CONSUMER_SEND_MSG_BACK, **given_up).code == 0
    broker.group_offsets.commit("billing", [CommittedOffset(topic.key(0), 1)], broker.clock.now_ms())
    broker.publisher.publish_batch(topic, 0, batch([b"x"], headers=[("TRAN_MSG_ID", b"a")]), broker.clock.now_ms())
    broker.settle()
    return broker
