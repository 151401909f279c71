"""Errors of forms name the labels that the pages show: a table over all forms of all templates."""

import re
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
FIELD = re.compile(r'{{ *(?:text|area|choice)\("([\w-]+)", "([^"]*)"')
PLAIN_FIELD = re.compile(r'<span>(?P<label>[^<{]*)</span><input [^>]*name="(?P<name>[\w-]+)"')
TO_ACTION = re.compile(r'hx-post="/console/actions/([\w-]+)"')
TO_PAGE = re.compile(r' action="([^"]+)"')


def shown() -> list[tuple[str, str, str]]:
    """Return each labelled field of the templates: the action or page that gets its form, its name, its label."""
    found = []
    for template in sorted(TEMPLATES.glob("*.html")):
        page = f"/console/{template.stem.replace('_', '-')}"
        for form in re.findall("<form.*?</form>", template.read_text(), re.DOTALL):
            head = form.partition(">")[0]
            target = TO_ACTION.search(head) or TO_PAGE.search(head)
            fields = FIELD.findall(form) + [(each["name"], each["label"]) for each in PLAIN_FIELD.finditer(form)]
            found += [(target[1] if target else page, *field) for field in fields]
    return found


def test_the_table_has_the_labels_of_the_templates() -> None:
    found: dict[str, dict[str, str]] = {}
    for target, name, label in shown():
        assert target in ACTIONS or target in PAGES, target
        found.setdefault(target, {})[name] = label
    assert found == LABELS
    assert len({*shown()}) == sum(map(len, LABELS.values())), "a field has two labels"


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
