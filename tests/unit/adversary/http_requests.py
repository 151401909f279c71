"""HTTP requests, valid and hostile, for every route of the port's router.

A route that takes a body has a valid one in BODIES; `test_adversary.py` fails for a route that has none, so a new route
is covered once its body is written down here.
"""

import json
import random
import re
from typing import Any

from aiohttp import web

from tests.unit.adversary import hostile
from tests.unit.adversary.rocketmq_requests import mutated_json

_CONTENT = {"topic": "orders", "value": "v", "key": "k", "headers": {"TAGS": "paid"}}

# A valid body of each route that reads one.
BODIES: dict[tuple[str, str], Any] = {
    ("POST", "/api/topics"): {"name": "made", "queues": 2, "configs": {"retention.ms": "1000"}},
    ("PATCH", "/api/topics/{name}"): {"configs": {"retention.ms": "1000"}},
    ("POST", "/api/topics/{name}/messages"): {"messages": [{"key": "k", "value": "v", "headers": {"TAGS": "paid"}}]},
    ("POST", "/api/settings/reload"): {},
    ("POST", "/api/log/levels"): {"component": "store", "level": "debug"},
    ("POST", "/api/poison/acknowledge"): {"kind": "schedule", "place": "orders"},
    ("POST", "/api/leases"): {"topics": ["orders"], "lease_ms": 1_000},
    ("POST", "/api/leases/{lease}"): {},
    ("POST", "/api/backups"): {"lease_ms": 1_000},
    ("POST", "/api/drain"): {"wait_ms": 1_000},
    ("POST", "/api/groups/{name}/redrive"): {"to": "topic"},
    ("POST", "/api/groups/{name}/reset"): {"to": "earliest", "topics": ["orders"], "execute": True},
    ("POST", "/api/transactions/{topic}/{id}"): {"verdict": "commit"},
    ("POST", "/api/half-messages/{offset}"): {"verdict": "commit"},
    ("POST", "/api/timers"): {**_CONTENT, "delay_ms": 1_000, "replace": True},
    ("POST", "/api/timers/reschedule"): {"topic": "orders", "key": "k", "delay_ms": 1_000},
    ("POST", "/api/timers/{id}/reschedule"): {"delay_ms": 1_000},
    ("POST", "/api/timers/{id}/now"): {},
    ("POST", "/api/topics/{name}/pause"): {},
    ("POST", "/api/topics/{name}/resume"): {},
    ("POST", "/console/actions/{name}"): {"topic": "orders", "key": "k", "delay": "1s"},
    ("POST", "/api/users"): {"name": "alice", "password": "secret", "is_super": True, "groups": ["ops"]},
    ("PATCH", "/api/users/{name}"): {"password": "secret", "is_super": False},
    ("POST", "/api/acls"): {"rules": [{"principal": "User:a", "resource": "topic", "name": "t", "operation": "read"}]},
    ("POST", "/api/acls/remove"): {"rules": []},
    ("POST", "/api/quotas"): {"user": "u", "limits": {"consumer_byte_rate": 1e9}},
    ("POST", "/api/schedules"): {**_CONTENT, "name": "daily", "cron": "0 9 * * *", "zone": "Europe/Berlin", "count": 3},
}

QUERIES = {
    "topic": b"orders", "key": b"k", "from_ms": b"0", "until_ms": b"99999999999999", "after": b"0-0", "limit": b"10",
    "bins": b"10", "queue": b"0", "offset": b"0", "from": b"0", "until": b"10", "group": b"billing",
    "content": b"true", "execute": b"true", "time_ms": b"1700000000000", "step": b"1", "start": b"0", "end": b"10",
}  # fmt: skip
# What a place of one path has, where it is not the same as in others.
_PLACES_OF = {"/console/actions/{name}": b"reschedule-key", "/console/static/{name}": b"console.js"}
_PLACES = {"name": b"orders", "lease": b"1", "id": b"0-0", "topic": b"orders", "group": b"billing", "offset": b"0"}


class Request:
    """One request, before it is encoded."""

    def __init__(self, method: str, path: str) -> None:
        self.method, self.path = method, path
        self.places = {name: _PLACES_OF.get(path) or _PLACES.get(name, b"x") for name in re.findall(r"{(\w+)}", path)}
        self.query: dict[str, bytes] = {}
        self.body: Any = BODIES.get((method, path))
        self.headers = {"Host": b"127.0.0.1:8080", "Content-Type": b"application/json", "Connection": b"close"}
        self.length: bytes | None = None

    @property
    def kind(self) -> str:
        return f"{self.method} {self.path}"

    def encode(self) -> bytes:
        """Return the bytes of the request."""
        path = self.path.encode()
        for name, value in self.places.items():
            path = path.replace(b"{%s}" % name.encode(), _escaped(value))
        if self.query:
            path += b"?" + b"&".join(name.encode() + b"=" + _escaped(value) for name, value in self.query.items())
        body = (
            b"" if self.body is None else self.body if isinstance(self.body, bytes) else json.dumps(self.body).encode()
        )
        headers = {**self.headers, "Content-Length": b"%d" % len(body) if self.length is None else self.length}
        lines = [b"%s %s HTTP/1.1" % (self.method.encode(), path)]
        lines += [name.encode() + b": " + value for name, value in headers.items()]
        return b"\r\n".join(lines) + b"\r\n\r\n" + body

    def mutate(self, rng: random.Random) -> None:
        """Replace a part of the path, the query, the headers or the body."""
        kind = rng.random()
        if kind < 0.25 and self.places:
            self.places[hostile.pick(rng, list(self.places))] = hostile.text(rng)
        elif kind < 0.5:
            name = hostile.pick(rng, list(QUERIES))
            self.query = dict(QUERIES) if rng.random() < 0.3 else {}
            self.query[name] = rng.choice((hostile.text(rng), b"%d" % hostile.number(rng, 64)))
        elif kind < 0.6:
            names = ("Host", "Origin", "Content-Type", "Content-Length", "Transfer-Encoding", "Authorization", "Expect")
            self.headers[rng.choice(names)] = rng.choice((b"", b"chunked", b"-1", b"9" * 30, b"evil.example", b"null"))
        elif kind < 0.65:
            self.length = b"%d" % rng.choice((0, 1, 10, 1 << 31, 1 << 63))
        elif self.body is None or isinstance(self.body, bytes):
            self.body = hostile.text(rng)
        else:
            self.body = mutated_json(rng, self.body)


def rows(application: web.Application) -> list[tuple[str, str]]:
    """Return the method and path of each route."""
    found = []
    for route in application.router.routes():
        assert route.resource is not None
        found.append((route.method, route.resource.canonical))
    return found


def _escaped(value: bytes) -> bytes:
    """Percent-encode the characters that a request line must not contain."""
    return b"".join(b"%c" % byte if 0x20 < byte < 0x7F and byte not in b"?#&" else b"%%%02X" % byte for byte in value)
