"""Each page is rendered from real answers of the API, shows its commands, and escapes what clients chose; each action
becomes a request of the API, and the command that it shows is one that `duolog` has."""

import json
import re
import shlex
from functools import cache
from html import unescape
from typing import Any
from urllib.parse import quote

import pytest
from typer.main import get_command

from duolog.bridge.cli.main import program
from duolog.bridge.console.actions import ACTIONS
from duolog.bridge.console.console import PATHS
from duolog.bridge.console.forms import Form, FormError, moment
from duolog.bridge.console.pages import PAGES
from duolog.bridge.console.pages.delayed import DAY_MS
from duolog.bridge.console.pages.messages import TAIL_BEHIND_MAX
from duolog.bridge.http import local_api
from duolog.bridge.http.observation.warnings import HANGING_MS
from duolog.bridge.monitoring.history import INTERVAL_MS, INTERVALS_MAX
from duolog.bridge.monitoring.metrics import WIRES
from duolog.bridge.records.groups import CommittedOffset
from tests.kit.http import HEADERS, HttpBench, encoded

COMMAND = re.compile(r"<pre[^>]*><code>(.*?)</code>", re.DOTALL)
# The commands of each page; `--http` with the address of the page is at the end of each.
COMMANDS: dict[str, list[str]] = {
    "/": ["duolog status", "duolog warnings", "duolog history", "duolog poison list"],
    "/console/topics": ["duolog topic list"],
    "/console/topics?search=ord&all=true": ["duolog topic list --search ord --all"],
    "/console/topics/orders": ["duolog topic describe orders", "duolog topic groups orders"],
    "/console/messages": [],
    "/console/messages?topic=orders": [
        "duolog consume orders --queue 0 --from-beginning --count 50 --timeout 1s",
    ],
    "/console/messages?topic=orders&queue=1&offset=0&key=k&tag=a&header=b=c&sql=d > 1": [
        "duolog consume orders --queue 1 --offset 0 --key k --tag a --header b=c --sql 'd > 1' --count 50 --timeout 1s",
    ],
    "/console/messages?topic=orders&time=2030-01-31T08:00": [
        "duolog consume orders --queue 0 --from-time 2030-01-31T08:00:00Z --count 50 --timeout 1s",
    ],
    "/console/send": [],  # Its action has one.
    "/console/delayed": [
        "duolog timer list",
        "duolog timer histogram --from {now} --until {in_an_hour} --bins 60",
        "duolog timer histogram --from {today} --until {in_4_weeks} --bins 28",
    ],
    "/console/delayed?topic=orders&key=k&from=2030-01-31T08:00&until=2030-01-31T09:00&span=week": [
        "duolog timer list --topic orders --key k --from 2030-01-31T08:00:00Z --until 2030-01-31T09:00:00Z",
        "duolog timer histogram --topic orders --from {now} --until {in_a_week} --bins 56",
        "duolog timer histogram --topic orders --from {today} --until {in_4_weeks} --bins 28",
    ],
    "/console/timer?id={timer}": ["duolog timer show {timer}"],
    "/console/schedules": ["duolog schedule list"],
    "/console/schedules?cron=30 2 * * *&zone=Europe/Berlin": [
        "duolog schedule list", "duolog schedule preview '30 2 * * *' --zone Europe/Berlin",
    ],
    "/console/transactions": ["duolog txn list"],
    "/console/groups": ["duolog group list"],
    "/console/groups?search=bill": ["duolog group list --search bill"],
    "/console/groups/orders": ["duolog group describe orders", "duolog group members orders"],
    "/console/dead-letters": ["duolog topic list --search %DLQ%"],
    "/console/dead-letters?group=orders&offset=0&reason=attempts&topic=a&key=b&tag=c": [
        "duolog group dead-letters orders --offset 0 --reason attempts --topic a --key b --tag c",
    ],
    "/console/clients": ["duolog clients --limit 100"],
    "/console/settings": ["duolog config show --http localhost:9644"],
    "/console/settings?search=log.": ["duolog config show --search log. --http localhost:9644"],
    "/console/log": ["duolog lines --limit 200"],
    "/console/log?level=warning&component=data&search=late": [
        "duolog lines --limit 200 --level warning --component data --search late",
    ],
}  # fmt: skip
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
    made.core.group_offsets.commit("orders", [CommittedOffset(made.core.topic("orders").key(0), 0)], 0)
    return made


def page(bench: HttpBench, path: str) -> tuple[int, str]:
    status, text = bench.ask("GET", quote(path, safe="/?=&+"))
    return status, text.decode()


def test_each_page_has_a_route() -> None:
    assert tuple(PAGES) == PATHS


@pytest.mark.parametrize("path", COMMANDS)
def test_a_page_is_rendered_and_shows_the_commands_that_do_the_same(bench: HttpBench, path: str) -> None:
    timers = bench.ask("GET", "/api/timers")[1]["timers"]
    now_ms = bench.core.clock.now_ms()
    today_ms = now_ms - now_ms % DAY_MS
    known = {
        "timer": timers[0]["id"], "now": moment(now_ms), "in_an_hour": moment(now_ms + DAY_MS // 24),
        "in_a_week": moment(now_ms + 7 * DAY_MS), "today": moment(today_ms),
        "in_4_weeks": moment(today_ms + 28 * DAY_MS),
    }  # fmt: skip
    status, text = page(bench, path.replace("{timer}", known["timer"]))
    assert status == 200, text
    assert "<script>alert" not in text
    shown = [shlex.split(each) for each in map(unescape, COMMAND.findall(text.partition("The same by a command")[2]))]
    expected = [shlex.split(each.format(**known)) for each in COMMANDS[path]]
    assert [words for words in shown if words[0] == "duolog"] == [
        words if "--http" in words else [*words, "--http", "localhost:9644"] for words in expected
    ]
    assert sum(words[0] == "curl" for words in shown) == len(expected)
    for words in expected:
        is_understood(words)


def test_the_commands_of_each_page_are_asked_for() -> None:
    names = {path.partition("?")[0] for path in COMMANDS}
    assert {path for path in PAGES if path.replace("{name}", "orders") not in names} == set()


@cache
def parser() -> Any:
    """Return what parses the words of `duolog`: its own, because Click keeps what a command was first called with."""
    return get_command(program())


def is_understood(words: list[str]) -> None:
    """Ask that `duolog` takes these words."""
    command = parser()
    left = words[1:]
    while hasattr(command, "commands"):
        command = command.commands[left.pop(0)]
    address = [] if "--http" in left else ["--http", "127.0.0.1:1"]
    context = command.make_context("duolog", [*left, *address])
    assert context.params, "the command takes these words"


def tail(bench: HttpBench, path: str) -> tuple[list[int], str, str]:
    """Return the offsets on a page of a tail, the path from which it goes on, and its text."""
    status, text = page(bench, path)
    assert status == 200
    (following,) = re.findall(r'hx-get="([^"]*)"', text)
    return [int(offset) for offset in re.findall(r"<header><b>(\d+)</b>", text)], unescape(following), text


def test_a_tail_looks_at_each_message_once_and_says_how_many_it_leaves_out() -> None:
    bench = HttpBench()
    bench.ask("POST", "/api/topics", {"name": "orders", "queues": 1})

    def send(*tags: str) -> None:
        messages = {"messages": [{"value": "v", "tag": tag} for tag in tags]}
        assert bench.ask("POST", "/api/topics/orders/messages", messages)[0] == 201

    send(*["old"] * 60)
    offsets, following, _ = tail(bench, "/console/messages?topic=orders&tail=true")
    assert offsets == [*range(59, 9, -1)], "the newest first"
    send(*["new"] * 70)
    offsets, following, _ = tail(bench, following)
    assert offsets == [*range(129, 59, -1)], "also more than the first page has"
    assert tail(bench, following)[:2] == ([], following)
    offsets, following, _ = tail(bench, "/console/messages?topic=orders&tail=true&tag=paid")
    assert offsets == []
    send("paid", *["open"] * 200, "paid")
    offsets, following, _ = tail(bench, following)
    assert offsets == [331, 130]
    for _ in range(TAIL_BEHIND_MAX // 1000):
        send(*["open"] * 1000)
    assert "left out" not in tail(bench, following)[2]
    send(*["paid"] * 60)
    offsets, following, text = tail(bench, following)
    end = 332 + TAIL_BEHIND_MAX + 60
    assert offsets == [*range(end - 1, end - 51, -1)]
    assert f"{TAIL_BEHIND_MAX + 10:,} messages came faster than they were looked at" in text


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
    is_understood([*planned.words])
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


def test_the_overview_of_a_full_hour_is_small() -> None:
    bench = HttpBench()
    metrics = bench.core.metrics
    for number in range(INTERVALS_MAX + 1):
        for wire in WIRES:
            metrics.records_in[wire] += 123_457
            metrics.records_out[wire] += 123_457
        metrics.timer_lateness_s.add_all([0.001, 0.2])
        metrics.fsync_s.add(0.0024)
        bench.core.history.sample(number * INTERVAL_MS, bench.core.clock.now_ms() + number * INTERVAL_MS)
    status, text = page(bench, "/")
    assert (status, text.count("data-chart=")) == (200, 4)
    assert len(json.loads(unescape(re.findall(r'data-x="([^"]*)"', text)[0]))) == INTERVALS_MAX
    assert len(text) < 40_000, "a refresh every ten seconds sends as much"
