"""Forms and their errors have the labels of one table: a table over all forms of all templates."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from duolog.bridge.console import rendering
from duolog.bridge.console.actions import ACTIONS
from duolog.bridge.console.forms import Form, FormError
from duolog.bridge.console.labels import LABELS
from duolog.bridge.console.pages import PAGES
from tests.kit.http import HttpBench
from tests.unit.bridge.console.test_pages import FORMS

TEMPLATES = Path(rendering.__file__).with_name("templates")
FORM = re.compile(r'(?:{% set labels = LABELS\["([^"]+)"\] %}\s*)?(<form.*?</form>)', re.DOTALL)
FIELD = re.compile(r'{{ *(?:text|area|choice)\(labels, "([\w-]+)"')
PLAIN_FIELD = re.compile(r'<span>{{ labels\["([\w-]+)"\] }}</span><input [^>]*name="\1"')
ANY_FIELD = re.compile(r'{{ *(?:text|area|choice)\(|<label class="field"')
TO_ACTION = re.compile(r'hx-post="/console/actions/([\w-]+)"')
TO_PAGE = re.compile(r' action="([^"]+)"')


def forms() -> Iterator[tuple[str, str, list[str]]]:
    """Yield each form with labels: the action or page that gets it, the key of its labels, the names of its fields."""
    for template in sorted(TEMPLATES.glob("*.html")):
        page = f"/console/{template.stem.replace('_', '-')}"
        for key, form in FORM.findall(template.read_text()):
            head = form.partition(">")[0]
            target = TO_ACTION.search(head) or TO_PAGE.search(head)
            fields = FIELD.findall(form) + PLAIN_FIELD.findall(form)
            assert len(fields) == len(ANY_FIELD.findall(form)), f"{template.name}: a field has no label of the table"
            if fields:
                yield target[1] if target else page, key, fields


def test_each_form_has_the_labels_of_the_action_or_page_that_gets_it() -> None:
    found: dict[str, set[str]] = {}
    for target, key, fields in forms():
        assert key == target
        assert target in ACTIONS or target in PAGES, target
        found.setdefault(target, set()).update(fields)
    assert found == {target: {*labels} for target, labels in LABELS.items()}


ROWS = [(name, field) for name in LABELS if name in ACTIONS for field in LABELS[name]]


@pytest.mark.parametrize(("name", "field"), ROWS)
@pytest.mark.parametrize("text", ["", "?"])
def test_an_error_names_the_label(name: str, field: str, text: str) -> None:
    try:
        ACTIONS[name](Form(FORMS[name] | {field: text}, 0, LABELS[name]))
    except FormError as error:
        subject, colon, _ = str(error).partition(": ")
        assert not colon or subject == f'"{LABELS[name][field]}"', "or this value is right"


@pytest.mark.parametrize(
    ("name", "fields", "error"),
    [
        ("reset-group", {"back": "2"}, "&#34;or back by&#34;: expected "),
        ("create-topic", {"queues": "x"}, "&#34;Queues&#34;: expected a number"),
        ("create-topic", {"name": ""}, "&#34;Name&#34;: missing"),
        ("send-message", {"at": "soon"}, "&#34;Deliver at (UTC)&#34;: expected a moment"),
        ("send-message", {"headers": "a"}, "&#34;Headers, one a line&#34;: expected lines"),
        ("add-schedule", {"count": "few"}, "&#34;Number of runs&#34;: expected a number"),
    ],
)
def test_an_action_shows_the_label(name: str, fields: dict[str, str], error: str) -> None:
    status, text = HttpBench().ask("POST", f"/console/actions/{name}", FORMS[name] | fields)
    assert status == 400
    assert error in text.decode()


@pytest.mark.parametrize(
    ("path", "error"),
    [
        ("/console/messages?topic=TBW102&offset=x", "&#34;From offset&#34;: expected a number"),
        ("/console/messages?topic=TBW102&time=x", "&#34;From time (UTC)&#34;: expected a moment"),
        ("/console/delayed?from=x", "&#34;Due from (UTC)&#34;: expected a moment"),
        ("/console/timer", "&#34;Id of a message&#34;: missing"),
    ],
)
def test_a_page_shows_the_label(path: str, error: str) -> None:
    status, text = HttpBench().ask("GET", path)
    assert status == 400
    assert error in text.decode()


@pytest.mark.parametrize(
    ("name", "fields", "error"),
    [
        ("send-message", {"queue": "99"}, "&#34;Queue&#34;: orders has 2, none is 99"),
        (
            "send-message",
            {"at": "2030-01-31", "delay": "1h"},
            "expected either &#34;Deliver at (UTC)&#34; or &#34;Deliver in&#34;",
        ),
        (
            "send-message",
            {"headers": "TAGS=t"},
            "expected either &#34;Tag (RocketMQ)&#34; or the header TAGS",
        ),
        ("add-schedule", {"every": "1h", "cron": ""}, "&#34;Time zone&#34; goes with &#34;or a cron expression&#34;"),
        ("add-schedule", {"missed": "key"}, "&#34;Missed runs&#34;: expected skip, once or all, got &#39;key&#39;"),
        ("add-schedule", {"until": "1990-01-01"}, "before its first run: &#34;Until (UTC)&#34; 631152000000"),
        (
            "reset-group",
            {"to": "earliest"},
            "expected one of &#34;To&#34;, &#34;or to the moment (UTC)&#34;, &#34;or to the offset&#34;",
        ),
        ("redrive", {"to": "to"}, "&#34;Send again to&#34;: expected retry or topic, got &#39;to&#39;"),
        ("create-topic", {"name": "at_ms: key"}, "topic name &#39;at_ms: key&#39; is legal neither"),
    ],
)
def test_an_error_of_the_api_has_the_labels_of_the_form(name: str, fields: dict[str, str], error: str) -> None:
    bench = HttpBench()
    bench.ask("POST", "/api/topics", {"name": "orders", "queues": 2})
    status, text = bench.ask("POST", f"/console/actions/{name}", FORMS[name] | fields)
    assert status == 400
    assert error in text.decode()


@pytest.mark.parametrize(
    ("path", "error"),
    [
        ("/console/delayed?key=k", "&#34;Topic&#34;: missing"),
        ("/console/messages?topic=TBW102&queue=99", "&#34;Queue&#34;: expected a number from 0 to 7, got &#39;99&#39;"),
        ("/console/log?level=search", "&#34;Level and above&#34;: expected one of debug, info"),
    ],
)
def test_a_page_shows_an_error_of_the_api_with_labels(path: str, error: str) -> None:
    status, text = HttpBench().ask("GET", path)
    assert status == 400
    assert error in text.decode()
