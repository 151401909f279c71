"""Each form of a page that asks for another view, filled in and sent in a real browser, shows what it asks for."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import NamedTuple

import pytest
from playwright.sync_api import Page, expect

from duolog.bridge.console.labels import LABELS
from tests.console.contents import ask
from tests.kit.broker import Broker


class Filter(NamedTuple):
    """What is filled into the fields of a form by their names, and what the page then shows and leaves out."""

    page: str
    fields: Mapping[str, str]
    shown: str
    left_out: str
    button: str = "Show"


# The form with the labels of this path; the search by id is in test_actions.py.
FILTERS = {
    "/console/topics": Filter("/console/topics", {"search": "AUD"}, "audit", "orders", "Search"),
    "/console/groups": Filter("/console/groups", {"search": "ID"}, "idle", "billing", "Search"),
    "/console/settings": Filter("/console/settings", {"search": "http.ma"}, "http.masks", "store.flush", "Search"),
    "/console/log": Filter(
        "/console/log", {"level": "info", "component": "bridge", "search": "READY"}, "ready in_ms", "recovered"
    ),
    "/console/messages": Filter(
        "/console/messages?topic=orders",
        {"queue": "1", "offset": "2", "key": "order-7", "tag": "paid", "header": "trace=t-7", "as": "json"},
        '"order": 7',
        '"order": 9',
    ),
    "/console/delayed": Filter(
        "/console/delayed",
        {"topic": "orders", "key": "order-2", "from": "2020-01-31T08:00", "until": "2099-01-31T08:00", "span": "week"},
        "order-2",
        "order-3",
    ),
    "/console/schedules": Filter(
        "/console/schedules", {"cron": "15 6 * * *", "zone": "Asia/Tokyo"}, "06:15", "goes from", "Show the runs"
    ),
    "/console/dead-letters": Filter(
        "/console/dead-letters",
        {"group": "shipping", "reason": "given-up", "topic": "audit", "key": "k", "tag": "late"},
        "failed 0",
        "Groups with dead letters",
    ),
}


def test_each_form_of_a_page_is_sent() -> None:
    assert {path for path in LABELS if path.startswith("/")} == {*FILTERS, "/console/timer"}
    for path, found in FILTERS.items():
        filled = found.fields.keys() | {"topic"} if path == "/console/messages" else found.fields.keys()
        assert filled >= LABELS[path].keys() - {"time", "sql"}, path  # Tests below fill these two.


@pytest.mark.parametrize("path", FILTERS)
def test_a_form_shows_what_it_asks_for(page: Page, path: str) -> None:
    found = FILTERS[path]
    page.goto(found.page)
    form = page.get_by_role("search").first  # Of two on the page of delayed messages.
    for name, value in found.fields.items():
        field = form.locator(f"[name={name}]")
        if field.evaluate("field => field.localName") == "select":
            field.select_option(value)
        else:
            field.fill(value)
    form.get_by_role("button", name=found.button, exact=True).click()
    expect(page).to_have_url(re.compile(f"{next(iter(found.fields))}="))
    main = page.locator("main")
    expect(main).to_contain_text(found.shown)
    expect(main).not_to_contain_text(found.left_out)


def test_messages_by_an_sql92_condition(page: Page) -> None:
    page.goto("/console/messages?topic=orders")
    page.get_by_label("SQL92 condition").fill("TAGS = 'open' AND trace = 't-4'")
    page.get_by_role("button", name="Show").click()
    expect(page.locator(".messages li")).to_have_count(1)
    expect(page.locator(".messages")).to_contain_text("order-4")


def test_messages_from_a_time_on(page: Page, broker: Broker) -> None:
    page.goto("/console/messages?topic=orders")
    page.get_by_label("From time").fill("2099-01-31T08:00")
    page.get_by_role("button", name="Show").click()
    expect(page.locator("main")).to_contain_text("There are no such messages from there on.")
    first = ask(broker, "GET", "/api/topics/orders/messages?limit=1")["messages"][0]
    page.get_by_label("From time").fill(str(first["timestamp_ms"]))
    page.get_by_role("button", name="Show").click()
    expect(page.locator(".messages li").first).to_contain_text("order-0")


def test_a_click_on_the_calendar_shows_the_messages_of_a_day(page: Page) -> None:
    page.goto("/console/delayed?topic=orders")
    cells = page.locator(".calendar a")
    expect(cells).to_have_count(28)
    count = int(cells.first.locator("b").inner_text())
    assert count > 0
    cells.first.click()
    expect(page.locator("main p b").first).to_have_text(str(count))


def test_preview_a_cron_expression(page: Page) -> None:
    page.goto("/console/schedules")
    page.get_by_role("link", name="Preview 30 2 * * * Europe/Berlin").click()
    expect(page.get_by_text("when the clock goes from +01:00 to +02:00")).to_be_visible()
