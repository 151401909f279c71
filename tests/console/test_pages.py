"""Each page in a real browser: no error, no request to another host, landmarks, charts, nothing that axe calls serious,
and not wider than the window, at both widths and in both themes.

Screenshots go to DUOLOG_SCREENSHOTS, or to a temporary folder.
"""

from __future__ import annotations

import os
import re
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from urllib.parse import quote

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import BrowserContext, CDPSession, Page, expect

from duolog.bridge.console import pages as console_pages
from tests.console.conftest import Faults, page_name, processor_s, wait_until
from tests.console.contents import HOUR_MS, LONG, ask
from tests.kit.broker import Broker

PAGES = {
    "overview": "/",
    "topics": "/console/topics",
    "topic": "/console/topics/orders",
    "long-topic": f"/console/topics/{LONG}",
    "messages": "/console/messages?topic=orders&as=json",
    "tail": "/console/messages?topic=orders&tail=true",
    "hex": "/console/messages?topic=audit&as=hex",
    "schema": "/console/messages?topic=sensors&as=schema",
    "send": "/console/send?topic=orders",
    "delayed": "/console/delayed?span=day",
    "delayed-topic": "/console/delayed?topic=orders",
    "timer": "/console/timer?id={timer}",  # A pending message.
    "schedules": "/console/schedules",
    "transactions": "/console/transactions",
    "groups": "/console/groups",
    "group": "/console/groups/billing",
    "dead-letter-groups": "/console/dead-letters",
    "dead-letters": "/console/dead-letters?group=shipping",
    "preview": "/console/schedules?cron=30+2+*+*+*&zone=Europe/Berlin",
    "clients": "/console/clients",
    "settings": "/console/settings",
    "log": "/console/log",
    "refused": "/console/topics/none",
}
# What a page shows of what it is about, where a page of an empty broker would pass, too.
SHOWN = {
    "overview": "the record has no time",
    "schema": '"celsius": 21.5',
    "delayed-topic": "Pause or resume orders",
    "timer": "reminder ",
    "dead-letter-groups": "shipping",
    "dead-letters": "consumer 127.0.0.1",
    "transactions": "half",
    "preview": "when the clock goes from +01:00 to +02:00",
    "refused": "Status 404",
}
CHARTS = {"overview": 4, "delayed": 1, "delayed-topic": 1}
LANDMARKS = ("banner", "navigation", "main", "contentinfo")
SEARCHES = {"delayed": 2, "delayed-topic": 2} | dict.fromkeys(
    ("topics", "messages", "tail", "hex", "schema", "schedules", "preview", "groups", "dead-letter-groups",
     "dead-letters", "settings", "log"), 1
)  # fmt: skip
SCREENSHOTS = Path(os.environ.get("DUOLOG_SCREENSHOTS") or tempfile.gettempdir()) / "duolog-console"
WIDTHS = (360, 1600)
AXE_WIDTHS = {"light": 360, "dark": 1600}  # The width at which axe looks at a page of this theme.
# The number of charts that are as wide as their places. They are drawn again after a change of the width.
CHARTS_THAT_FIT = """[...document.querySelectorAll(".chart")].filter((place) => place.querySelector("canvas")
    && place.firstChild.clientWidth === Math.max(200, place.clientWidth)).length"""
GRAVE = ("serious", "critical")
LOAD_S = 0.3
HISTORY_MS = 40_000  # Longer than the time until the broker has figures of an interval.
TOPICS = 1000
LOADED = (
    "/", "/console/topics", "/console/topics?search=many&after=many-0500", "/console/delayed", "/console/groups",
    "/console/transactions", "/console/messages?topic=many-0500", "/console/clients", "/console/dead-letters",
    "/console/dead-letters?group=shipping",
)  # fmt: skip


@pytest.mark.parametrize("theme", AXE_WIDTHS)
@pytest.mark.parametrize("name", PAGES)
def test_a_page_has_no_fault(
    new_context: Callable[..., BrowserContext], broker: Broker, faults: Faults, name: str, theme: str
) -> None:
    page = new_context(WIDTHS[0], theme).new_page()
    faults.watch(page)
    requested: list[str] = []
    page.on("request", lambda request: requested.append(request.url))
    if name == "overview":
        wait_until(page, lambda: bool(ask(broker, "GET", "/api/history")["intervals"]), "no figures", HISTORY_MS)
    page.goto(address(broker, name), wait_until="load")
    open_panels(page)
    expect(page.locator("main")).to_contain_text(SHOWN.get(name, ""))
    for role in LANDMARKS:
        expect(page.get_by_role(role)).to_have_count(1)  # type: ignore[arg-type]
    expect(page.get_by_role("search")).to_have_count(SEARCHES.get(name, 0))
    SCREENSHOTS.mkdir(parents=True, exist_ok=True)
    for width in WIDTHS:
        page.set_viewport_size({"width": width, "height": 900})
        wait_until(
            page, lambda: page.evaluate(CHARTS_THAT_FIT) == CHARTS.get(name, 0), "a chart does not fit its place"
        )
        page.screenshot(path=SCREENSHOTS / f"{name}-{width}-{theme}.png", full_page=True)
        assert page.evaluate("document.documentElement.scrollWidth") <= width, "the page is wider than the window"
        if width == AXE_WIDTHS[theme]:
            found = Axe().run(page).response["violations"]
            grave = [f"{each['id']}: {each['nodes'][0]['html'][:200]}" for each in found if each["impact"] in GRAVE]
            assert not grave, "\n".join(grave)
    assert all(url.startswith(f"http://{broker.http}/") for url in requested)
    expected = [line for line in faults if name == "refused" and "404" in line]
    assert list(faults) == expected


def address(broker: Broker, name: str) -> str:
    """Return the path of a page of PAGES."""
    path = PAGES[name]
    if "{timer}" not in path:
        return path
    query = f"topic=orders&from_ms={int(time.time() * 1000) + HOUR_MS}&limit=1"
    return path.format(timer=ask(broker, "GET", f"/api/timers?{query}")["timers"][0]["id"])


def test_each_page_of_the_console_is_opened() -> None:
    assert {page_name(path) for path in PAGES.values()} == {page.__name__ for page in console_pages.PAGES.values()}


def open_panels(page: Page) -> None:
    for panel in page.locator("details.panel").all():
        panel.locator("summary").first.click()


def test_a_search_by_keyboard(page: Page) -> None:
    page.goto("/console/topics")
    page.keyboard.press("Tab")
    expect(page.get_by_text("Skip to the content")).to_be_focused()
    page.keyboard.press("Enter")
    expect(page.locator("#main")).to_be_focused()
    page.keyboard.press("Tab")
    expect(page.get_by_label("Name contains")).to_be_focused()
    page.keyboard.type("aud")
    page.keyboard.press("Enter")
    expect(page).to_have_url(re.compile("search=aud"))
    expect(page.locator("#live-part tbody tr")).to_have_count(1)


def test_pages_load_within_the_time_with_many_topics(page: Page, broker: Broker) -> None:
    """The time is the processor time of the broker and of the page's thread in the browser, which work one after the
    other; unlike the time of a clock, a busy machine does not lengthen it.

    The first page of a run is loaded before: the browser keeps the files then, the broker the templates.
    """
    session = page.context.new_cdp_session(page)
    session.send("Performance.enable")
    names = [f"many-{number:04}" for number in range(TOPICS)]
    for name in names:
        ask(broker, "POST", "/api/topics", {"name": name, "queues": 4})
    try:
        page.goto("/console/settings", wait_until="load")
        for path in LOADED:
            times = []
            for _ in range(3):
                begun_s = processor_s(broker)
                page.goto(path, wait_until="load")
                times.append(processor_s(broker) - begun_s + page_processor_s(session))
            assert 0 < min(times) < LOAD_S, f"{path}: {times} s"
        page.goto("/console/topics?search=many")
        expect(page.locator("#live-part tbody tr")).to_have_count(100)
        page.get_by_role("link", name="Next topics").click()
        expect(page.locator("#live-part tbody tr").first).to_contain_text("many-0100")
    finally:
        for name in names:
            ask(broker, "DELETE", f"/api/topics/{quote(name)}")


def page_processor_s(session: CDPSession) -> float:
    """Return the processor time since the navigation of the thread that parses, runs and lays out the page."""
    metrics = {each["name"]: each["value"] for each in session.send("Performance.getMetrics")["metrics"]}
    return float(metrics["ThreadTime"])
