"""Every route of the HTTP port by a client without a login, with a wrong password, without rights, and with them; and
what is named by an id.

The routes are those of the router, so a new one is covered by itself.
"""

import base64
import json
import re
from pathlib import Path
from typing import Any

import pytest

from duolog.bridge.config import HttpOptions, Options, SecurityOptions
from duolog.bridge.http.access.requirements import LOGGED_IN, ROUTES, WHEN_FOUND
from duolog.bridge.http.port import routes_of
from duolog.bridge.records.groups import CommittedOffset
from duolog.bridge.security.oauth.key_sets import KeySet
from duolog.bridge.security.oauth.tokens import Tokens
from duolog.bridge.security.session import Session
from duolog.bridge.security.tools.rule_texts import RuleText, rule_of
from duolog.store.errors import StoreError
from tests.kit.http import HEADERS, HttpBench, encoded
from tests.unit.adversary.http_requests import BODIES
from tests.unit.bridge.rocketmq.broker import RocketMQBroker
from tests.unit.bridge.security.test_kafka_login import BOX, RECORDS
from tests.unit.bridge.security.test_rocketmq_paths import Names
from tests.unit.bridge.security.test_tokens import KEY, Source, token

PLACES = {"name": "orders", "lease": "1", "id": "0-0", "topic": "orders", "offset": "0", "queue": "0"}


def as_user(name: str, password: str = "secret") -> dict[str, str]:
    return {"Authorization": f"Basic {base64.b64encode(f'{name}:{password}'.encode()).decode()}"}


class Bench(HttpBench):
    core: RocketMQBroker

    def __init__(self, failed_login_delay_ms: int = 0, readers_file: str = "") -> None:
        settings = SecurityOptions(enabled=True, failed_login_delay_ms=failed_login_delay_ms)
        http = HttpOptions(readers_file=readers_file)
        super().__init__(RocketMQBroker(options=Options(security=settings, http=http)))
        self.core.security.use(BOX)
        for record in RECORDS:
            self.core.security.users.set(record, self.core.clock.now_ms())
        self.core.topic("orders")
        self.core.topic("own")
        self.allow("own", "all")
        self.core.settle()

    def allow(self, topic: str, operation: str) -> None:
        self.core.security.acls.add([rule_of(RuleText("alice", "topic", operation, name=topic))], 1)

    def status(self, method: str, path: str, headers: dict[str, str], body: Any = None) -> int:
        return self.ask(method, path, body, headers)[0]


@pytest.fixture(scope="module")
def bench() -> Bench:
    return Bench()


def test_every_route_asks_who_and_what(bench: Bench) -> None:
    routes = [each for each in routes_of(bench.port().application) if each[1] != "/api/drain"]
    assert len(routes) > 50
    schedule = {"name": "orders", "topic": "orders", "value": "v", "every_ms": 60_000}
    assert bench.status("POST", "/api/schedules", as_user("root"), schedule) == 201
    before = bench.core.store.next_position
    for method, path in routes:
        access = ROUTES.get((method, path), LOGGED_IN)
        if access.is_open:
            assert bench.status(method, path, {}) == 200
            continue
        target = re.sub(r"{(\w+)}", lambda found: PLACES.get(found[1], "orders"), path)
        body = BODIES.get((method, path))
        assert bench.status(method, target, {}, body) == 401, path
        if access._replace(quota=WHEN_FOUND.quota) not in (LOGGED_IN, WHEN_FOUND):
            assert bench.status(method, target, as_user("alice"), body) == 403, f"{method} {path}"
    for headers in (as_user("alice", "wrong"), as_user("nobody"), {"Authorization": "Bearer x"}):
        assert bench.status("GET", "/api/cron", headers) == 401
    assert bench.core.store.next_position == before


def test_lists_show_what_the_user_may_see(bench: Bench) -> None:
    bench.core.group_offsets.commit("crew", [], 1)
    for name, topics, groups in (("alice", ["own"], []), ("root", ["orders", "own"], ["crew"])):
        listed = bench.ask("GET", "/api/topics?system=false", None, as_user(name))[1]
        assert [topic["name"] for topic in listed] == topics
        assert [group["name"] for group in bench.ask("GET", "/api/groups", None, as_user(name))[1]] == groups


def test_pending_message_of_another_topic_is_hidden_and_kept(bench: Bench) -> None:
    made = {}
    for topic in ("orders", "own"):
        body = {"topic": topic, "value": "v", "key": "k", "delay_ms": 60_000}
        status, answer = bench.ask("POST", "/api/timers", body, as_user("root"))
        assert status == 201
        made[topic] = answer["id"]
    for topic, expected in (("orders", 403), ("own", 200)):
        path = f"/api/timers/{made[topic]}"
        for method, target, body in (
            ("GET", path, None),
            ("POST", f"{path}/reschedule", {"delay_ms": 70_000}),
            ("DELETE", path, None),
        ):
            assert bench.status(method, target, as_user("alice"), body) == expected, f"{method} {topic}"
    assert bench.status("GET", f"/api/timers/{made['orders']}", as_user("root")) == 200


def test_schedule_of_another_topic_is_not_replaced_or_removed(bench: Bench) -> None:
    schedule = {"name": "daily", "topic": "orders", "value": "v", "every_ms": 60_000}
    assert bench.status("POST", "/api/schedules", as_user("root"), schedule) == 201
    alice = as_user("alice")
    assert bench.status("POST", "/api/schedules", alice, schedule | {"topic": "own"}) == 403
    assert bench.status("GET", "/api/schedules/daily", alice) == 403
    assert bench.status("DELETE", "/api/schedules/daily", alice) == 403
    assert bench.status("DELETE", "/api/schedules/daily", as_user("root")) == 200


def test_redrive_writes_to_no_topic_that_a_dead_letter_only_names(bench: Bench) -> None:
    core, alice = bench.core, as_user("alice")
    core.topic("%DLQ%alices", 1)
    core.security.acls.add([rule_of(RuleText("alice", "group", "read", name="alices"))], 1)
    core.group_offsets.commit("alices", [CommittedOffset(core.topic("own").key(0), 0)], core.clock.now_ms())
    core.settle()
    core.rocketmq_connections.gate.authenticator = names = Names()
    client = core.connect()
    names.sessions[id(client.connection)] = Session("alice", "10.0.0.1")
    assert client.send("%DLQ%alices", properties="RETRY_TOPIC\x01orders\x02").code == 0
    before = [queue.visible_end for queue in core.topic("orders").queues]
    status, answer = bench.ask("POST", "/api/groups/alices/redrive", {"to": "topic"}, alice)
    assert (status, "orders" in answer["error"]) == (409, True), answer
    assert [queue.visible_end for queue in core.topic("orders").queues] == before
    assert bench.status("POST", "/api/groups/alices/redrive", as_user("root"), {"to": "topic"}) == 200


def test_log_files_are_read_with_the_right_or_a_token_and_another_token_is_a_failed_login(tmp_path: Path) -> None:
    file = tmp_path / "readers.toml"
    file.write_text('"few" = ["orders"]')
    bench = Bench(readers_file=str(file))
    wanted = json.dumps({"topics": ["orders"]}).encode()

    def asked(**headers: str) -> tuple[int, bytes]:
        return bench.send(encoded("POST", "/api/leases", wanted, HEADERS | headers))[:2]

    assert asked(Authorization="Bearer few")[0] == 201
    assert asked(**as_user("root"))[0] == 201
    assert asked(**as_user("alice"))[0] == 403
    status, head = asked(Authorization="Bearer else")
    assert (status, b"WWW-Authenticate: Bearer" in head) == (401, True), head
    assert bench.core.security.audit.logins["http", "reader", "failure"] == 1


def test_token_of_a_user_reads_log_files_where_there_is_a_readers_file(tmp_path: Path) -> None:
    file = tmp_path / "readers.toml"
    file.write_text('"few" = ["orders"]')
    bench = Bench(readers_file=str(file))
    bench.core.security.tokens = Tokens(KeySet(Source(one=KEY).read), bench.core.security.options)
    expires_s = bench.core.clock.now_ms() // 1000 + 600
    wanted = {"topics": ["orders"]}
    for given, status in (
        ("few", 201),
        (token(sub="root", exp=expires_s), 201),
        (token(sub="alice", exp=expires_s), 403),
        ("else", 401),
    ):
        assert bench.status("POST", "/api/leases", {"Authorization": f"Bearer {given}"}, wanted) == status, given
    assert bench.core.security.audit.logins == {("http", "bearer", "success"): 2, ("http", "bearer", "failure"): 1}


class Full:
    """Threads for which so many logins wait that there is no room."""

    def submit(self, run: Any, done: Any) -> None:
        done(StoreError("256 logins wait for a thread"))


def test_request_is_to_be_repeated_while_so_many_logins_wait_for_a_thread() -> None:
    bench = Bench()
    bench.core.security.executor = Full()
    assert bench.ask("GET", "/api/users", headers=as_user("root")) == (503, {"error": "256 logins wait for a thread"})


@pytest.mark.parametrize("has_tokens", [False, True])
def test_answer_to_a_request_without_a_login_names_all_ways(has_tokens: bool) -> None:
    bench = Bench()
    if has_tokens:
        bench.core.security.tokens = Tokens(KeySet(Source(one=KEY).read), bench.core.security.options)
    status, head, answer = bench.send(encoded("GET", "/api/cron", b"", HEADERS))
    assert status == 401
    offered = [line for line in head.decode().splitlines() if line.startswith("WWW-Authenticate: ")]
    assert [line.split()[1] for line in offered] == ["Basic", *(["Bearer"] if has_tokens else [])]
    words = "Basic, with the name and password of a user" + (", or Bearer, with a token" if has_tokens else "")
    expected = f"security.enabled: expected Authorization: {words}; or a TLS certificate of a user"
    assert json.loads(answer)["error"] == expected


def test_users_and_rules_are_managed_without_showing_secrets(bench: Bench) -> None:
    root = as_user("root")
    new = {"name": "carol", "password": "carol's", "groups": ["ops"]}
    assert bench.ask("POST", "/api/users", new, root)[0] == 201
    assert bench.status("POST", "/api/users", root, new) == 409
    listed = bench.ask("GET", "/api/users", None, root)[1]
    assert listed[-1] == {
        "name": "carol", "is_super": False, "groups": ["ops"], "mechanisms": ["SCRAM-SHA-256", "SCRAM-SHA-512"],
        "has_secret_key": True,
    }  # fmt: skip
    carol = as_user("carol", "carol's")
    assert bench.status("GET", "/api/topics/orders", carol) == 403
    rule = {"principal": "Group:ops", "resource": "topic", "name": "orders", "operation": "read"}
    assert bench.ask("POST", "/api/acls", {"rules": [rule, rule]}, root)[1] == {"added": 1}
    assert bench.status("GET", "/api/topics/orders", carol) == 200
    assert bench.status("PATCH", "/api/users/carol", root, {"password": "other"}) == 200
    assert bench.status("GET", "/api/topics/orders", carol) == 401
    assert bench.ask("POST", "/api/acls/remove", {"rules": [rule]}, root)[1] == {"removed": 1}
    assert bench.status("DELETE", "/api/users/carol", root) == 200
    assert bench.status("DELETE", "/api/users/carol", root) == 404
    assert bench.status("POST", "/api/acls", root, {"rules": [rule | {"operation": "fly"}]}) == 400


def test_only_super_users_change_super_users(bench: Bench) -> None:
    root = as_user("root")
    assert bench.status("POST", "/api/users", root, {"name": "clerk", "password": "secret"}) == 201
    rule = {"principal": "clerk", "resource": "cluster", "operation": "alter"}
    assert bench.status("POST", "/api/acls", root, {"rules": [rule]}) == 200
    clerk = as_user("clerk")
    for method, path, body, status in (
        ("POST", "/api/users", {"name": "eve", "password": "x", "is_super": True}, 403),
        ("PATCH", "/api/users/clerk", {"is_super": True}, 403),
        ("PATCH", "/api/users/root", {"password": "known"}, 403),
        ("DELETE", "/api/users/root", None, 403),
        ("POST", "/api/users", {"name": "eve", "password": "x"}, 201),
        ("DELETE", "/api/users/eve", None, 200),
        ("DELETE", "/api/users/clerk", None, 200),
    ):
        assert bench.status(method, path, clerk, body) == status, f"{method} {path} {body}"


def test_open_broker_takes_no_users_for_later() -> None:
    bench = HttpBench()
    for path in ("/api/users", "/api/acls"):
        assert bench.ask("GET", path)[0] == 409
    assert bench.ask("POST", "/api/users", {"name": "eve", "password": "x", "is_super": True})[0] == 409
    assert len(bench.core.security.users) == 0
