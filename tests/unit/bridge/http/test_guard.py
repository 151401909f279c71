"""No web page reaches the HTTP port: each route of the router's table refuses foreign hosts, forms and origins."""

import re

import pytest

from duolog.bridge.config import HttpOptions, Options, ServerOptions
from tests.kit.core import ManualCore
from tests.kit.http import HttpBench

BENCH = HttpBench()
SAFE = ("GET", "HEAD")


def rows() -> list[tuple[str, str]]:
    """Every route, with something in each of its places."""
    return [
        (route.method, re.sub(r"{\w+}", "x", route.resource.canonical))
        for route in BENCH.port().application.router.routes()
        if route.resource is not None
    ]


ROWS = [*rows(), ("GET", "/none"), ("POST", "/none"), ("PUT", "/api/topics"), ("OPTIONS", "/api/topics")]
CHANGING = [row for row in ROWS if row[0] not in SAFE]


def test_the_table_is_not_empty() -> None:
    assert len(ROWS) > 50
    assert len(CHANGING) > 15


@pytest.mark.parametrize(("method", "path"), ROWS)
def test_every_route_refuses_a_name_that_is_not_the_brokers(method: str, path: str) -> None:
    status, head, _ = BENCH.send(
        f"{method} {path} HTTP/1.1\r\nHost: evil.example\r\nConnection: close\r\n\r\n".encode()
    )
    assert status == 403
    assert b"access-control" not in head.lower()


@pytest.mark.parametrize(("method", "path"), CHANGING)
def test_every_route_that_changes_something_refuses_what_a_page_can_send(method: str, path: str) -> None:
    for given in ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x", ""):
        assert BENCH.ask(method, path, b"{}", {"Content-Type": given})[0] == 415, given
    without_body = BENCH.ask(method, path, None, {"Content-Type": ""})[0]
    assert (without_body == 415) == (method != "DELETE")
    for origin in (
        "https://evil.example",
        "http://localhost:3000",
        "null",
        "http://localhost",
        "http://localhost:96440",
    ):
        assert BENCH.ask(method, path, b"{}", {"Origin": origin})[0] == 403, origin
    for origin in ("http://localhost:9644", "HTTPS://LOCALHOST:9644"):
        assert BENCH.ask(method, path, b"{}", {"Origin": origin})[0] not in (403, 415), origin


def status_for(host: str | None, listening: str = "127.0.0.1") -> int:
    options = Options(
        server=ServerOptions(host=listening),
        http=HttpOptions(hosts="ops.example other", origins="https://ops.example/"),
    )
    status, _ = HttpBench(ManualCore(options)).ask("GET", "/healthz", headers={"Host": host or ""})
    return status


@pytest.mark.parametrize(
    "host",
    [
        "localhost",
        "LocalHost:1",
        "localhost.",
        "127.0.0.1:9644",
        "127.8.8.8",
        "[::1]:9644",
        "[::ffff:127.0.0.1]",
        "broker.example:9644",  # advertised
        "ops.example",
        "other:80",
    ],
)
def test_names_of_the_broker_are_served(host: str) -> None:
    assert status_for(host) == 200


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("evil.example", 403),
        ("localhost.evil.example", 403),
        ("evil.localhost", 403),
        ("127.0.0.1.evil.example", 403),
        ("192.0.2.7", 403),
        ("127.1", 403),
        ("0x7f000001", 403),
        ("", 400),
        ("localhost@evil.example", 400),
        ("localhost:1:2", 400),
        ("localhost, evil.example", 400),
        ("localhost:port", 400),
    ],
)
def test_other_names_are_refused(host: str, status: int) -> None:
    assert status_for(host) == status


def test_listening_address_is_a_name_and_behind_a_wildcard_each_address_is() -> None:
    assert status_for("192.0.2.7:9644", "192.0.2.7") == 200
    assert status_for("192.0.2.8:9644", "192.0.2.7") == 403
    for wildcard in ("", "0.0.0.0", "::"):
        assert status_for("192.0.2.8", wildcard) == 200
        assert status_for("[2001:db8::1]:80", wildcard) == 200
        assert status_for("evil.example", wildcard) == 403


def test_two_hosts_or_content_types_are_none() -> None:
    twice = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nHost: evil.example\r\nConnection: close\r\n\r\n"
    assert BENCH.send(twice)[0] == 400
    assert BENCH.send(b"GET /healthz HTTP/1.0\r\n\r\n")[0] == 400
    typed = b"Content-Type: application/json\r\nContent-Type: text/plain\r\n"
    sent = b"POST /api/topics HTTP/1.1\r\nHost: localhost\r\n%sConnection: close\r\nContent-Length: 2\r\n\r\n{}" % typed
    assert BENCH.send(sent)[0] in (400, 415)


def test_known_origin_may_change_something() -> None:
    bench = HttpBench(ManualCore(Options(http=HttpOptions(origins="https://ops.example/"))))
    body = {"name": "orders"}
    assert bench.ask("POST", "/api/topics", body, {"Origin": "https://ops.example"})[0] == 201
    assert bench.ask("POST", "/api/topics", body, {"Origin": "http://ops.example"})[0] == 403
