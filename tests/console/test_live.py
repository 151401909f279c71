"""Live parts of pages in a real browser: they show what is new, and leave what a person has opened as it is.

The browser's clock is moved by the tests, so that refreshes come at once.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from playwright.sync_api import Locator, Page, expect

from tests.console.contents import HOUR_MS, add_dead_letter, ask
from tests.kit.broker import Broker

TAIL_MS, DELAYED_MS = 2_100, 10_100  # A little longer than the time between two refreshes.


@pytest.fixture
def topic(broker: Broker) -> Iterator[str]:
    ask(broker, "POST", "/api/topics", {"name": "watched", "queues": 1})
    yield "watched"
    ask(broker, "DELETE", "/api/topics/watched")


def test_a_tail_shows_what_is_new_unless_live_is_off(page: Page, broker: Broker, topic: str) -> None:
    page.clock.install()
    page.goto(f"/console/messages?topic={topic}&tail=true")
    ask(broker, "POST", f"/api/topics/{topic}/messages", {"value": "just now"})
    expect(page.locator(".messages")).to_contain_text("just now")
    page.get_by_label("Live", exact=True).uncheck()
    ask(broker, "POST", f"/api/topics/{topic}/messages", {"value": "not shown"})
    page.clock.run_for(2 * TAIL_MS)
    expect(page.locator(".messages")).not_to_contain_text("not shown")


def test_a_tail_with_a_filter_shows_each_message_that_matches(page: Page, broker: Broker, topic: str) -> None:
    page.clock.install()
    page.goto(f"/console/messages?topic={topic}&tail=true&tag=paid")
    rows = page.locator(".messages > li")

    def send(first: str, count: int, last: str) -> None:
        tags = ["paid", *["open"] * count, "paid"]
        values = [first, *["other"] * count, last]
        messages = [
            {"value": value, "tag": tag, "headers": {"a": "b"}} for value, tag in zip(values, tags, strict=True)
        ]
        ask(broker, "POST", f"/api/topics/{topic}/messages", {"messages": messages})

    send("one", 200, "two")
    page.clock.run_for(TAIL_MS)
    expect(rows).to_have_count(2)
    rows.last.get_by_text("2 headers").click()
    expect(rows.last.locator("dl")).to_be_visible()
    send("three", 200, "four")
    page.clock.run_for(TAIL_MS)
    expect(rows).to_have_count(4)
    assert [each.locator("pre").inner_text() for each in rows.all()] == ["four", "three", "two", "one"]
    expect(rows.last.locator("dl")).to_be_visible()


def figures(page: Page) -> Locator:
    return page.locator("#live-part details.figures .scroll")


def test_open_figures_of_a_chart_are_refreshed_and_stay_where_they_are(page: Page, broker: Broker, topic: str) -> None:
    page.clock.install()
    page.goto(f"/console/delayed?topic={topic}")
    page.locator("#live-part summary", has_text="Figures of the chart").click()
    cells = figures(page).locator("tbody td.n")
    expect(cells).to_have_count(60)
    figures(page).evaluate("region => region.scrollTo(0, 100)")
    ask(broker, "POST", "/api/timers", {"topic": topic, "value": "v", "delay_ms": HOUR_MS // 2})
    page.clock.run_for(DELAYED_MS)
    expect(page.locator("#live-part p b").first).to_have_text("1")
    expect(cells.get_by_text("1", exact=True)).to_have_count(1)
    expect(cells).to_have_count(60)
    assert figures(page).evaluate("region => region.scrollTop") == 100


def test_open_attempts_of_a_dead_letter_stay_open(page: Page, broker: Broker) -> None:
    add_dead_letter(broker, "first", "watching")
    page.goto("/console/dead-letters?group=watching")
    page.get_by_label("When the attempts of the dead letter at offset 0 failed").click()
    add_dead_letter(broker, "second", "watching")
    page.evaluate("document.body.dispatchEvent(new Event('changed'))")  # As after an action.
    expect(page.locator("#live-part tbody tr")).to_have_count(2)
    expect(page.locator("#live-part details li").first).to_be_visible()
