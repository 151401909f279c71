"""Each page is rendered from real answers of the API, shows its commands, and escapes what clients chose; each action
becomes a request of the API, and the command that it shows is one that `duolog` has."""

import re
import shlex
from typing import Any

import pytest
from typer.main import get_command

from duolog.bridge.cli.main import program
from duolog.bridge.console.actions import ACTIONS
from duolog.bridge.console.console import PATHS
from duolog.bridge.console.forms import Form, FormError
from duolog.bridge.console.pages import PAGES
from duolog.bridge.http import local_api
from duolog.bridge.http.observation.warnings import HANGING_MS
from tests.kit.http import HEADERS, HttpBench, encoded

EVIL = "<script>alert(1)</script>"
# A form for each action.
FORMS: dict[str, dict[str, str]] = {
    "create-topic": {"name": "made", "queues": "3", "configs": "retention.ms=7d\nflush.mode=async"},
    "configure-topic": {"topic": "orders", "configs": "retention.ms=1h"},
    "delete-topic": {"topic": "orders"},
    "pause-topic": {"topic": "orders"},
    "resume-topic": {"topic": "orders"},
    "send-message": {"topic": "orders", "value": "v", "key": "k", "headers": "a=1", "tag": "t", "delay": "90s"},
    "cancel-timer": {"id": "0-0"},
    "reschedule-timer": {"id": "0-0", "at": "2030-01-31T08:00"},
    "deliver-timer": {"id": "0-0"},
    "cancel-key": {"topic": "orders", "key": "k"},
    "reschedule-key": {"topic": "orders", "key": "k", "delay": "1h"},
    "add-schedule": {"name": "daily", "topic": "orders", "value": "v", "cron": "0 9 * * *", "zone": "Europe/Berlin"},
    "remove-schedule": {"name": "daily"},
    "abort-transaction": {"id": "payer"},
    "commit-half": {"id": "orders/1"},
    "roll-back-half": {"id": "orders/1"},
    "reset-group": {"group": "billing", "back": "2h", "topics": "orders", "execute": "true"},
    "delete-group": {"group": "billing", "execute": "true"},
    "redrive": {"group": "billing", "to": "topic"},
    "reload-settings": {},
    "acknowledge-records": {},
}


@pytest.fixture(scope="module")
def bench() -> HttpBench:
    """A broker with a topic, messages of hostile texts, a delayed message and a schedule."""
    made = HttpBench()
    made.ask("POST", "/api/topics", {"name": "orders", "queues": 2})
    message = {"value": EVIL, "key": EVIL, "headers": {EVIL: EVIL}, "queue": 0}
    made.ask("POST", "/api/topics/orders/messages", message)
    made.ask("POST", "/api/timers", {"topic": "orders", **message, "delay_ms": 60_000})
    made.ask("POST", "/api/schedules", {"topic": "orders", **message, "name": EVIL, "every_ms": 3_600_000})
    return made


def page(bench: HttpBench, path: str) -> tuple[int, str]:
    status, text = bench.ask("GET", path)
    return status, text.decode()


def test_each_page_has_a_route() -> None:
    assert tuple(PAGES) == PATHS


@pytest.mark.parametrize("path", PAGES)
def test_a_page_is_rendered_and_shows_its_command(bench: HttpBench, path: str) -> None:
    timers = bench.ask("GET", "/api/timers")[1]["timers"]
    queries = {"/console/messages": "?topic=orders", "/console/timer": f"?id={timers[0]['id']}"}
    status, text = page(bench, path.replace("{name}", "orders") + queries.get(path, ""))
    assert status == (404 if path == "/console/groups/{name}" else 200), text
    assert "<script>alert" not in text
    if status == 200 and path not in ("/console/send", "/console/dead-letters"):
        assert "<pre" in text.partition("The same by a command")[2]


def test_texts_of_clients_are_escaped(bench: HttpBench) -> None:
    for path in ("/console/messages?topic=orders", "/console/delayed", "/console/schedules"):
        _, text = page(bench, path)
        assert "&lt;script&gt;" in text, path
        assert EVIL not in text, path


def test_a_transaction_that_is_open_for_long_is_called_hanging() -> None:
    bench = HttpBench()
    core, topic = bench.core, bench.core.topic("orders", 1)
    producer, _ = core.transactions.init("payer", 900_000, None, core.clock.now_ms())
    core.transactions.add_queues("payer", producer, [topic.key(0)], core.clock.now_ms())
    core.pass_ms(HANGING_MS - 1)
    assert "hanging" not in page(bench, "/console/transactions")[1]
    core.pass_ms(1)
    assert "hanging" in page(bench, "/console/transactions")[1]
    assert [row["kind"] for row in bench.ask("GET", "/api/warnings")[1]] == ["hanging"]


@pytest.mark.parametrize("path", ["/console/topics/none", "/console/messages?topic=orders&offset=x", "/console/timer"])
def test_a_refused_page_says_why(bench: HttpBench, path: str) -> None:
    status, text = page(bench, path)
    assert status in (400, 404)
    assert 'role="alert"' in text


def test_an_answer_that_is_too_large_is_not_shown(bench: HttpBench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local_api, "ANSWER_BYTES_MAX", 100)
    for path in ("/console/topics", "/console/delayed"):  # A list that is made in parts, and a body.
        status, text = page(bench, path)
        assert status == 413
        assert "a command shows all of it" in text


def test_an_action_says_once_that_its_client_may_send_the_body(bench: HttpBench) -> None:
    sent = encoded("POST", "/console/actions/reload-settings", b"{}", HEADERS | {"Expect": "100-continue"})
    status, _, rest = bench.send(sent)
    assert status == 100
    assert rest.startswith(b"HTTP/1.1 200 OK")


def test_there_is_a_form_for_each_action() -> None:
    assert FORMS.keys() == ACTIONS.keys()


@pytest.mark.parametrize("name", FORMS)
def test_an_action_shows_a_command_that_exists(bench: HttpBench, name: str) -> None:
    status, text = bench.ask("POST", f"/console/actions/{name}", FORMS[name] | {"preview": "true"})
    assert status == 200
    planned = ACTIONS[name](Form(FORMS[name], 0))
    command: Any = get_command(program())
    words = list(planned.words[1:])
    while hasattr(command, "commands"):
        command = command.commands[words.pop(0)]
    context = command.make_context("duolog", [*words, "--http", "127.0.0.1:1"])
    assert context.params, "the command takes these words"
    assert shlex.quote(planned.words[1]) in text.decode()


def test_an_action_does_what_it_says_and_asks_for_a_refresh(bench: HttpBench) -> None:
    body = b'{"name": "made", "queues": "3"}'
    head = f"POST /console/actions/create-topic HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n"
    status, head_of_answer, text = bench.send(
        head.encode() + b"Content-Type: application/json\r\nConnection: close\r\n\r\n" + body
    )
    assert status == 200, text
    assert b"HX-Trigger: changed" in head_of_answer
    assert len(bench.ask("GET", "/api/topics/made")[1]["queues"]) == 3
    status, text = bench.ask("POST", "/console/actions/create-topic", {"name": "made"})
    assert status == 409
    assert b"Not done." in text


def test_pages_forbid_scripts_frames_and_other_hosts(bench: HttpBench) -> None:
    _, head, body = bench.send(b"GET / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
    assert b"script-src 'self'" in head
    assert b"unsafe" not in head
    assert b"frame-ancestors 'none'" in head
    text = body.decode()
    assert not re.search(r"<script(?! src=\"/console/static/)", text)
    assert not re.search(r"\son\w+=|style=|https?://(?!localhost)", text)


@pytest.mark.parametrize(
    ("method", "value", "found"),
    [
        ("moment_ms", "1970-01-01T00:00:01", 1000),
        ("moment_ms", "1970-01-01T01:00:01+01:00", 1000),
        ("moment_ms", "5", 5),
        ("length_ms", "90s", 90_000),
        ("number", " 7 ", 7),
        ("number", "", None),
        ("number", "-1", FormError),
        ("number", "9" * 40, FormError),
        ("moment_ms", "soon", FormError),
        ("length_ms", "90", FormError),
        ("pairs", "a=1\n\n b = 2 ", {"a": "1", "b": "2"}),
        ("pairs", "a", FormError),
        ("text", " ", FormError),
        ("flag", "true", True),
        ("flag", "false", False),
    ],
)
def test_fields_of_forms(method: str, value: str, found: Any) -> None:
    read = getattr(Form({"field": value}, 0), method)
    if found is FormError:
        with pytest.raises(FormError, match="field: "):
            read("field")
    else:
        assert read("field") == found
